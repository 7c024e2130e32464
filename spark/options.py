"""The options of reads and writes: Spark's Kafka names, typed values, errors that name the option.

An option that would have no effect is refused, never ignored. Messages show the values of offsets
and names, never those of ``storage.*``, which may be secrets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

from txnlog.config import WriterCodec
from txnlog.errors import InvalidOption
from txnlog.names import check_group_id, check_topic, check_transactional_id

Edge = Literal["earliest", "latest"]
OffsetsOption = Edge | Mapping[str, Mapping[int, int]]
"""Where a read starts or ends: an edge, or offsets by topic and partition; -2, -1 are the edges."""

STAGING = "txnlog.staging"
"""Set by ``transaction(...)`` on its writes, never by people: where to leave the manifest."""

_STORAGE_PREFIX = "storage."
_READ = (
    "path",
    "subscribe",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "isolation.level",
    "group.id",
    "transactional.id",
    "transaction.timeout.ms",
    "maxRecords",
    "minPartitions",
    "includeHeaders",
    "columns",
    "failOnDataLoss",
)
_WRITE = (
    "path",
    "topic",
    "includeHeaders",
    "compression.type",
    "compression.level",
    "transactional.id",
    "transaction.timeout.ms",
)
_KAFKA_SPELLINGS = (
    "isolation.level",
    "group.id",
    "transactional.id",
    "transaction.timeout.ms",
    "compression.type",
)
_NOT_YET = (
    "subscribePattern",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "maxRecordsPerPartition",
    "groupIdPrefix",
)
_STREAMS_ONLY = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a read asks for. ``subscription`` maps topics to partitions, None being all of them."""

    path: str
    storage_options: Mapping[str, str]
    subscription: Mapping[str, tuple[int, ...] | None]
    starting_offsets: OffsetsOption | None
    ending_offsets: OffsetsOption
    isolation_level: str
    group_id: str | None
    transactional_id: str | None
    transaction_timeout_ms: int | None
    max_records: int | None
    min_partitions: int | None
    columns: tuple[str, ...]
    fail_on_data_loss: bool


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What a write asks for. ``include_headers`` None: if there is such a column."""

    path: str
    storage_options: Mapping[str, str]
    topic: str | None
    include_headers: bool | None
    codec: WriterCodec | None
    transactional_id: str | None
    transaction_timeout_ms: int | None
    staging: str | None


def parse_read(options: Mapping[str, str]) -> ReadOptions:
    """Parse the options of a read. Raises InvalidOption and what the checks of names raise."""
    given = _Given(options, _READ, "read")
    include_headers = given.boolean("includeHeaders") or False
    parsed = ReadOptions(
        path=given.path(),
        storage_options=given.storage,
        subscription=_subscription(given),
        starting_offsets=given.offsets("startingOffsets"),
        ending_offsets=given.offsets("endingOffsets") or "latest",
        isolation_level=given.get("isolation.level") or "read_committed",
        group_id=given.get("group.id"),
        transactional_id=given.get("transactional.id"),
        transaction_timeout_ms=given.whole_number("transaction.timeout.ms"),
        max_records=given.whole_number("maxRecords"),
        min_partitions=given.whole_number("minPartitions"),
        columns=_columns(given.get("columns"), include_headers),
        fail_on_data_loss=given.boolean("failOnDataLoss") is not False,
    )
    _check_read(parsed)
    return parsed


def parse_write(options: Mapping[str, str]) -> WriteOptions:
    """Parse the options of a write. Raises InvalidOption and what the checks of names raise."""
    staging = options.get(STAGING)
    given = _Given({k: v for k, v in options.items() if k != STAGING}, _WRITE, "write")
    topic, transactional_id = given.get("topic"), given.get("transactional.id")
    timeout_ms = given.whole_number("transaction.timeout.ms")
    if topic is not None:
        check_topic(topic)
    if transactional_id is not None:
        check_transactional_id(transactional_id)
    elif timeout_ms is not None:
        raise InvalidOption("option transaction.timeout.ms has no effect without transactional.id")
    return WriteOptions(
        path=given.path(),
        storage_options=given.storage,
        topic=topic,
        include_headers=given.boolean("includeHeaders"),
        codec=WriterCodec.parse(given.get("compression.type"), given.level("compression.level")),
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        staging=staging,
    )


def starting_offsets_json(offsets: Mapping[str, Mapping[int, int]]) -> str:
    """Offsets as the JSON that startingOffsets and endingOffsets take."""
    return json.dumps(
        {topic: {str(p): at for p, at in parts.items()} for topic, parts in offsets.items()}
    )


def parse_offsets(option: str, text: str) -> OffsetsOption:
    """Parse ``earliest``, ``latest`` or ``{"topic":{"0":23}}``. Raises InvalidOption."""
    word = text.strip().lower()
    if word == "earliest":
        return "earliest"
    if word == "latest":
        return "latest"
    wrong = InvalidOption(
        f'option {option} must be earliest, latest or JSON like {{"topic":{{"0":23,"1":-2}}}} '
        f"(-2 is earliest, -1 latest), not {text!r:.200}"
    )
    try:
        found = json.loads(text)
    except ValueError:
        raise wrong from None
    if not isinstance(found, dict) or not all(isinstance(parts, dict) for parts in found.values()):
        raise wrong
    parsed: dict[str, dict[int, int]] = {}
    for topic, partitions in found.items():
        for partition, offset in partitions.items():
            is_offset = isinstance(offset, int) and not isinstance(offset, bool) and offset >= -2
            if not (partition.isascii() and partition.isdigit() and is_offset):
                raise wrong
            parsed.setdefault(topic, {})[int(partition)] = offset
    return parsed


class _Given:
    """The options that were given, by their lower-cased names, checked to be known ones."""

    def __init__(self, options: Mapping[str, str], known: tuple[str, ...], verb: str) -> None:
        self._values: dict[str, str] = {}
        self.storage: dict[str, str] = {}
        names = {name.lower(): name for name in known}
        for key, value in options.items():
            key = key.lower()
            if key.startswith(_STORAGE_PREFIX):
                self.storage[key.removeprefix(_STORAGE_PREFIX)] = value
                continue
            name = key.removeprefix("kafka.")
            if name != key and name not in _KAFKA_SPELLINGS:
                raise _kafka_option(key)
            if name not in names:
                raise _unknown(name, known, verb)
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
                'as in .option("path", "/data/store") or .load("s3://bucket/store")'
            )
        return path

    def boolean(self, name: str) -> bool | None:
        text = self.get(name)
        if text is None:
            return None
        if text.strip().lower() not in ("true", "false"):
            raise InvalidOption(f"option {name} must be true or false, not {text!r:.100}")
        return text.strip().lower() == "true"

    def whole_number(self, name: str) -> int | None:
        text = self.get(name)
        if text is None:
            return None
        if not (text.strip().isascii() and text.strip().isdigit()) or int(text) < 1:
            raise InvalidOption(f"option {name} must be a whole number above 0, not {text!r:.100}")
        return int(text)

    def level(self, name: str) -> int | None:
        text = self.get(name)
        try:
            return None if text is None else int(text)
        except ValueError:
            raise InvalidOption(
                f"option {name} must be a whole number, not {text!r:.100}"
            ) from None

    def offsets(self, name: str) -> OffsetsOption | None:
        text = self.get(name)
        return None if text is None else parse_offsets(name, text)


def _unknown(name: str, known: tuple[str, ...], verb: str) -> InvalidOption:
    for other in _NOT_YET:
        if name == other.lower():
            return InvalidOption(f"option {other} is not implemented yet")
    for other in _STREAMS_ONLY:
        if name == other.lower():
            return InvalidOption(f"option {other} is for streams, which are not implemented yet")
    other_verb, others = ("write", _WRITE) if verb == "read" else ("read", _READ)
    for other in others:
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
    accepted = ", ".join(f"kafka.{name}" for name in _KAFKA_SPELLINGS)
    return InvalidOption(
        f"option {key} is for Kafka's client, which is not used here; remove it. Of the kafka.* "
        f"options these are taken: {accepted}"
    )


def _subscription(given: _Given) -> dict[str, tuple[int, ...] | None]:
    subscribe, assign = given.get("subscribe"), given.get("assign")
    if (subscribe is None) == (assign is None):
        raise InvalidOption(
            "exactly one of the options subscribe (topics, with commas between them) and assign "
            '(JSON like {"topic":[0,1]}) must be given'
        )
    if subscribe is not None:
        return {check_topic(topic.strip()): None for topic in subscribe.split(",")}
    assert assign is not None
    wrong = InvalidOption(f'option assign must be JSON like {{"topic":[0,1]}}, not {assign!r:.200}')
    try:
        found = json.loads(assign)
    except ValueError:
        raise wrong from None
    if not isinstance(found, dict) or not found:
        raise wrong
    for partitions in found.values():
        if not isinstance(partitions, list) or not partitions:
            raise wrong
        if not all(type(number) is int and number >= 0 for number in partitions):
            raise wrong
    return {check_topic(topic): tuple(sorted(set(parts))) for topic, parts in found.items()}


def _columns(text: str | None, include_headers: bool) -> tuple[str, ...]:
    from txnlog.spark.rows import COLUMNS

    if text is None:
        return COLUMNS if include_headers else tuple(c for c in COLUMNS if c != "headers")
    chosen = tuple(name.strip() for name in text.split(","))
    for name in chosen:
        if name not in COLUMNS:
            raise InvalidOption(
                f"option columns: there is no {name!r}; known: {', '.join(COLUMNS)}"
            )
    if len(set(chosen)) != len(chosen):
        raise InvalidOption("option columns names a column twice")
    if include_headers and "headers" not in chosen:
        raise InvalidOption("option includeHeaders is true, but columns leaves headers out")
    return chosen


def _check_read(options: ReadOptions) -> None:
    if options.isolation_level not in ("read_committed", "read_uncommitted"):
        raise InvalidOption(
            "option isolation.level must be read_committed or read_uncommitted, "
            f"not {options.isolation_level!r:.100}"
        )
    if options.group_id is not None:
        check_group_id(options.group_id)
    if options.transactional_id is None:
        if options.transaction_timeout_ms is not None:
            raise InvalidOption(
                "option transaction.timeout.ms has no effect without transactional.id"
            )
        return
    check_transactional_id(options.transactional_id)
    if options.group_id is None:
        raise InvalidOption(
            "option transactional.id on a read also needs group.id: the group whose offsets the "
            "transaction moves"
        )
    if options.isolation_level != "read_committed":
        raise InvalidOption(
            "option isolation.level must be read_committed for a read with transactional.id: what "
            "is not committed cannot be consumed exactly once"
        )
