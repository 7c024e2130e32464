"""A user's options: known names in any case, typed values, errors that name the option.

An option that would have no effect is refused, never ignored. Messages show the values of offsets
and names, never those of ``storage.*``, which may be secrets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import TypeVar, cast

from txnlog.errors import InvalidOption, TxnlogError
from txnlog.spark.options import kafka_client_options
from txnlog.spark.options.kafka_client_options import IGNORE_KAFKA_CLIENT_OPTIONS
from txnlog.spark.options.option_names import (
    KAFKA_GROUP_ID,
    KAFKA_SPELLINGS,
    STORAGE_PREFIX,
    TYPED_STORAGE,
)

_NO_MEANING = {
    "groupidprefix": (
        "option groupIdPrefix names the consumer groups that Spark makes up for Kafka; none are "
        "made up here: remove it, or ignore it with ignoreKafkaClientOptions=true. Give group.id "
        "if a group is to be followed"
    ),
}

_ARGUMENTS = {"latest": "latest=True", "values": "values=..."}
"""What Spark's own reader has no option for."""
_ACCEPTED = ", ".join([KAFKA_GROUP_ID, *(f"kafka.{name}" for name in KAFKA_SPELLINGS)])

_T = TypeVar("_T")
_BYTES = re.compile(r"(\d{1,18})\s*(?:([kmgt])(?:i?b)?|b)?", re.IGNORECASE | re.ASCII)


class OptionValues:
    """Options by their lower-cased names, checked to be known ones.

    A job that is moved over often has several wrong ones. Errors of names are collected, errors of
    values by :meth:`tried`, and :meth:`raise_errors` raises all of them at once.

    ``known`` are the names that ``verb`` ("read", "write", as messages have it) knows, in the case
    of their documentation; ``others`` those of other verbs, to say what an option is for;
    ``ignored`` have no effect and are no error, as in Spark's Kafka source.
    """

    def __init__(
        self,
        options: Mapping[str, str],
        known: Sequence[str],
        verb: str,
        others: Mapping[str, Sequence[str]],
        ignored: Sequence[str] = (),
    ) -> None:
        self._values: dict[str, str] = {}
        self._errors: list[TxnlogError] = []
        self._known, self._verb, self._others = known, verb, others
        self.storage: dict[str, object] = {}
        self.passed_over: list[str] = []
        """Given options of Kafka's client that are ignored."""
        if {"provider", "location"} <= {key.lower() for key in options}:
            raise InvalidOption(
                "CREATE TABLE ... USING txnlog: Spark does not keep a table's options for later "
                "reads and writes; use CREATE TEMPORARY VIEW ... USING txnlog OPTIONS (...)"
            )
        names = {name.lower() for name in known}
        of_no_effect = {name.lower() for name in ignored}
        for_client: list[str] = []
        unknown: list[str] = []
        for key, value in options.items():
            key = key.lower()
            if key == TYPED_STORAGE:
                self.storage.update(_parse_typed_storage(value))
                continue
            if key.startswith(STORAGE_PREFIX):
                self.storage[key.removeprefix(STORAGE_PREFIX)] = value
                continue
            name = key if key == KAFKA_GROUP_ID else key.removeprefix("kafka.")
            if key in of_no_effect:
                continue
            if kafka_client_options.is_client_option(key):
                for_client.append(key)
            elif name != key and name not in KAFKA_SPELLINGS:
                self._errors.append(_kafka_option(key))
            elif name not in names:
                unknown.append(name)
            elif self._values.get(name, value) != value:
                self._errors.append(
                    InvalidOption(f"options {name} and kafka.{name} contradict each other")
                )
            else:
                self._values[name] = value
        self._judge_client_options(for_client)
        self._judge_unknown(unknown)

    def _judge_client_options(self, given: Sequence[str]) -> None:
        if self.tried(lambda: self.boolean(IGNORE_KAFKA_CLIENT_OPTIONS)):
            self.passed_over.extend(map(kafka_client_options.display_name, sorted(given)))
            return
        self._errors.extend(InvalidOption(_NO_MEANING[key]) for key in given if key in _NO_MEANING)
        if of_kafka := [key for key in given if key not in _NO_MEANING]:
            shown = [*map(kafka_client_options.display_name, of_kafka)]
            self._errors.append(InvalidOption(kafka_client_options.refusal(shown, _ACCEPTED)))

    def _judge_unknown(self, given: Sequence[str]) -> None:
        """Errors for other verbs' options, and unknown ones: the last of these lists all names."""
        of_others: dict[str, tuple[str, str]] = {}
        for verb, options in self._others.items():
            for option in options:
                of_others.setdefault(option.lower(), (option, verb))
        nobodys = [name for name in given if name not in of_others]
        for name in given:
            if name in of_others:
                option, other_verb = of_others[name]
                error = f"option {option} is for a {other_verb}, this is a {self._verb}"
            else:
                error = self._unknown(name, list_all=name == nobodys[-1])
            self._errors.append(InvalidOption(error))

    def _unknown(self, name: str, *, list_all: bool) -> str:
        by_lower = {option.lower(): option for option in self._known}
        close = get_close_matches(name, by_lower, n=1)
        hints = [f"did you mean {by_lower[close[0]]}?"] if close else []
        if (argument := name.lower()) in _ARGUMENTS:
            hints.append(f"it is an argument: txnlog.spark.read(..., {_ARGUMENTS[argument]});")
        if list_all:
            hints.append(f"known are {', '.join(self._known)} and storage.*")
        return f"unknown option {name!r} for a {self._verb}; {' '.join(hints)}".rstrip("; ")

    def tried(self, parse: Callable[[], _T]) -> _T:
        """The result of ``parse``; its error is kept for :meth:`raise_errors`.

        After an error it returns None, which is not used before that call.
        """
        try:
            return parse()
        except TxnlogError as error:
            self._errors.append(error)
            return cast("_T", None)

    @property
    def error_count(self) -> int:
        return len(self._errors)

    def raise_errors(self) -> None:
        """Raise the errors: a single one as it is, several as one InvalidOption."""
        if len(self._errors) == 1:
            raise self._errors[0]
        if self._errors:
            listed = "".join(f"\n  - {error}" for error in self._errors)
            raise InvalidOption(
                f"{len(self._errors)} things are wrong with the options of this {self._verb}:"
                f"{listed}"
            )

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
        found = whole_number(text.strip())
        if not found:
            raise InvalidOption(f"option {name} must be a whole number above 0, not {text!r:.100}")
        return found

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


def whole_number(text: str) -> int | None:
    """A number of digits that a long of Java's holds; None: it is none."""
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        return None
    found = int(text)
    return found if found < 1 << 63 else None


def check_positive(name: str, value: int | None) -> None:
    """Raise InvalidOption unless an argument is a whole number above 0, or None."""
    if value is not None and value < 1:
        raise InvalidOption(f"{name} must be a whole number above 0, not {value!r}")


def _parse_typed_storage(text: str) -> dict[str, object]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise InvalidOption(f"option {TYPED_STORAGE} is set by txnlog itself; remove it")
    return found


def _kafka_option(key: str) -> InvalidOption:
    """The advice for a client option that would affect which records are read or written."""
    if key == "kafka.partitioner.class":
        return InvalidOption(
            "option kafka.partitioner.class names a Java class; use the option partitioner with "
            "murmur2 (Kafka's default), crc32 (librdkafka's default), sticky, round_robin, random, "
            "and package.module:function of Python"
        )
    return InvalidOption(
        f"option {key} is for Kafka's client, which is not used here, and might say what it reads "
        f"or writes; remove it. Of the kafka.* options only these are used: {_ACCEPTED}"
    )
