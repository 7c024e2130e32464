"""The options that a user gave: known names in any case, typed values, errors that name the option.

An option that would have no effect is refused, never ignored. Messages show the values of offsets
and names, never those of ``storage.*``, which may be secrets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from txnlog.errors import InvalidOption
from txnlog.spark.options.option_names import (
    KAFKA_GROUP_ID,
    KAFKA_SPELLINGS,
    STORAGE_PREFIX,
    TYPED_STORAGE,
)

_NO_MEANING = {
    "groupidprefix": (
        "option groupIdPrefix names the consumer groups that Spark makes up for Kafka; none are "
        "made up here: remove it. Give group.id if a group is to be followed"
    ),
    "kafkaconsumer.polltimeoutms": "option kafkaConsumer.pollTimeoutMs is for Kafka's client, "
    "which is not used here; remove it",
    "fetchoffset.numretries": "option fetchOffset.numRetries is for Kafka's brokers, of which "
    "there are none here; remove it",
    "fetchoffset.retryintervalms": "option fetchOffset.retryIntervalMs is for Kafka's brokers, "
    "of which there are none here; remove it",
}

_BYTES = re.compile(r"(\d+)\s*(?:([kmgt])(?:i?b)?|b)?", re.IGNORECASE | re.ASCII)


class OptionValues:
    """Options by their lower-cased names, checked to be known ones.

    Args:
        options: as they were given.
        known: the names that ``verb`` has, in the case of their documentation.
        verb: what is being done, for messages: "read", "write".
        others: the names that other verbs have, to tell what an option is for.
    """

    def __init__(
        self,
        options: Mapping[str, str],
        known: Sequence[str],
        verb: str,
        others: Mapping[str, Sequence[str]],
    ) -> None:
        self._values: dict[str, str] = {}
        self.storage: dict[str, object] = {}
        names = {name.lower(): name for name in known}
        if {"provider", "location"} <= {key.lower() for key in options}:
            raise InvalidOption(
                "CREATE TABLE ... USING txnlog: Spark does not keep a table's options for later "
                "reads and writes; use CREATE TEMPORARY VIEW ... USING txnlog OPTIONS (...)"
            )
        for key, value in options.items():
            key = key.lower()
            if key == TYPED_STORAGE:
                self.storage.update(_parse_typed_storage(value))
                continue
            if key.startswith(STORAGE_PREFIX):
                self.storage[key.removeprefix(STORAGE_PREFIX)] = value
                continue
            name = key if key == KAFKA_GROUP_ID else key.removeprefix("kafka.")
            if name != key and name not in KAFKA_SPELLINGS:
                raise _kafka_option(key)
            if name not in names:
                raise _unknown_option(name, known, verb, others)
            if self._values.get(name, value) != value:
                raise InvalidOption(f"options {name} and kafka.{name} contradict each other")
            self._values[name] = value

    def get(self, name: str) -> str | None:
        return self._values.get(name.lower())

    def path(self) -> str:
        path = self.get("path")
        if not path:
            raise InvalidOption(
                "option path is missing: the folder or URL of the store, "
                'as in .option("path", "/data/store") or .load("s3://bucket/store"). A table of '
                "Spark's catalog has none, even if it was made with OPTIONS: use CREATE TEMPORARY "
                "VIEW ... USING txnlog OPTIONS (...)"
            )
        return path

    def boolean(self, name: str) -> bool | None:
        text = self.get(name)
        if text is None:
            return None
        if text.strip().lower() not in ("true", "false"):
            raise InvalidOption(f"option {name} must be true or false, not {text!r:.100}")
        return text.strip().lower() == "true"

    def positive(self, name: str) -> int | None:
        """A whole number above 0."""
        text = self.get(name)
        if text is None:
            return None
        if not (text.strip().isascii() and text.strip().isdigit()) or int(text) < 1:
            raise InvalidOption(f"option {name} must be a whole number above 0, not {text!r:.100}")
        return int(text)

    def integer(self, name: str) -> int | None:
        text = self.get(name)
        try:
            return None if text is None else int(text)
        except ValueError:
            raise InvalidOption(
                f"option {name} must be a whole number, not {text!r:.100}"
            ) from None

    def size_bytes(self, name: str, *, least: int = 1) -> int | None:
        """A number of bytes as Spark writes them: ``1048576``, ``64m``, ``1g``."""
        text = self.get(name)
        if text is None:
            return None
        found = _BYTES.fullmatch(text.strip())
        if not found or int(found[1]) < least:
            raise InvalidOption(
                f"option {name} must be a number of bytes such as 64m or 67108864, not "
                f"{text!r:.100}"
            )
        unit = (found[2] or "").lower()
        return int(found[1]) << {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}[unit]


def check_positive(name: str, value: int | None) -> None:
    """Raise InvalidOption unless an argument is a whole number above 0, or None."""
    if value is not None and value < 1:
        raise InvalidOption(f"{name} must be a whole number above 0, not {value!r}")


def _parse_typed_storage(text: str) -> dict[str, object]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InvalidOption(f"option {TYPED_STORAGE} is set by txnlog itself; remove it")
    return found


def _unknown_option(
    name: str, known: Sequence[str], verb: str, others: Mapping[str, Sequence[str]]
) -> InvalidOption:
    if name in _NO_MEANING:
        return InvalidOption(_NO_MEANING[name])
    for other_verb, theirs in others.items():
        for other in theirs:
            if name == other.lower():
                return InvalidOption(f"option {other} is for a {other_verb}, this is a {verb}")
    by_lower = {option.lower(): option for option in known}
    close = get_close_matches(name, by_lower, n=1)
    hint = f"did you mean {by_lower[close[0]]}? " if close else ""
    return InvalidOption(
        f"unknown option {name!r} for a {verb}; {hint}known are {', '.join(known)} and storage.*"
    )


def _kafka_option(key: str) -> InvalidOption:
    if key == "kafka.bootstrap.servers":
        return InvalidOption(
            "option kafka.bootstrap.servers: there is no broker to connect to; "
            'give the store\'s folder or URL instead, as in .option("path", "s3://bucket/store")'
        )
    if key == "kafka.partitioner.class":
        return InvalidOption(
            "option kafka.partitioner.class names a Java class; there is option partitioner with "
            "murmur2 (Kafka's default), crc32 (librdkafka's default), sticky, round_robin, random, "
            "and package.module:function of Python"
        )
    accepted = ", ".join([KAFKA_GROUP_ID, *(f"kafka.{name}" for name in KAFKA_SPELLINGS)])
    return InvalidOption(
        f"option {key} is for Kafka's client, which is not used here; remove it. Of the kafka.* "
        f"options these are taken: {accepted}"
    )
