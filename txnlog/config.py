"""Configuration of topics and stores: Kafka's keys, typed values, and errors that name the key.

A key that this version does not know is an error, never silently ignored. Numbers from callers are
checked as carefully: ``check_whole_number``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from typing import Literal, TypeGuard
from urllib.parse import unquote

from txnlog.errors import InvalidConfig, InvalidPartitions, TxnlogError
from txnlog.limits import MAX_PARTITIONS
from txnlog.segments.batch_header import Compression
from txnlog.segments.errors import UnsupportedCompression

DAY_MS = 86_400_000
"""The age at which leftovers count as abandoned, unless log.cleanup.age.ms is set."""
FUTURE_MS = 3_600_000
"""How far ahead of the time a record's may lie by default."""
PARQUET = "parquet"
"""The record.format of topics whose segments are Parquet files."""
AUTO = "auto"
"""The record.format of topics whose large segments are Parquet files, and small ones batches."""
PRODUCER_CODEC = "producer"
"""The compression.type of topics whose writers choose it."""
CONSTRAINT = "constraint."
"""How the settings of a typed topic begin that are expressions which its rows must not violate."""
_LONG_MAX = (1 << 63) - 1
_MOST_CONSTRAINTS = 100


@dataclass(frozen=True, slots=True)
class _Key:
    default: str
    check: Callable[[str], object]
    meaning: str


def is_whole_number(value: object) -> TypeGuard[int]:
    """Whether it is an int, and not a bool, which is an int in Python."""
    return isinstance(value, int) and not isinstance(value, bool)


def check_whole_number(
    value: object,
    what: str,
    error: type[TxnlogError],
    *,
    least: int | None = None,
    most: int | None = None,
) -> int:
    """Return ``value`` if it is a whole number inside its bounds, else raise ``error``.

    ``what`` is its name in the message. ``most`` is only given together with ``least``.
    """
    if (
        is_whole_number(value)
        and (least is None or value >= least)
        and (most is None or value <= most)
    ):
        return value
    bounds = "" if least is None else f" of at least {least}"
    if most is not None:
        bounds = f" from {least} to {most}"
    raise error(f"{what} must be a whole number{bounds}, not {value!r}")


LARGEST_RECORD_BYTES = 1 << 26
"""Half of what a reader decodes of a batch."""


def check_partition_count(partitions: int, current: int = 0) -> int:
    """Return ``partitions`` if a topic may have that many, else raise InvalidPartitions."""
    check_whole_number(partitions, "partitions", InvalidPartitions, least=1, most=MAX_PARTITIONS)
    if partitions < current:
        raise InvalidPartitions(
            f"the topic has {current} partitions; it cannot shrink to {partitions}"
        )
    return partitions


_WHOLE = re.compile(r"-?[0-9]{1,30}")
_DECIMAL = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)([eE]-?[0-9]{1,3})?")
"""What others read as a number, too: Python's may have spaces, underscores and any digits."""


def _integer(low: int, high: int) -> Callable[[str], int]:
    def check(text: str) -> int:
        if not _WHOLE.fullmatch(text):
            raise ValueError(f"an integer is needed, not {text!r:.60}")
        value = int(text)
        if not low <= value <= high:
            raise ValueError(f"{value} is not between {low} and {high}")
        return value

    return check


class _OneOf:
    """One of these words; if there may be ``several``, with commas between them."""

    def __init__(self, *choices: str, several: bool = False) -> None:
        self.choices = choices
        self._several = several

    def __call__(self, text: str) -> str:
        words = text.split(",") if self._several else [text]
        for word in words:
            if word not in self.choices:
                raise ValueError(f"{word!r:.60} is not one of {', '.join(self.choices)}")
        if len({*words}) < len(words):
            raise ValueError(f"{text!r} names one twice")
        return text


def _ratio(text: str) -> float:
    if not _DECIMAL.fullmatch(text):
        raise ValueError(f"a number is needed, not {text!r:.60}")
    value = float(text)
    if not 0 <= value <= 1:
        raise ValueError(f"{text} is not between 0 and 1")
    return value


_TABLE_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/]*)/.+")
_TABLE_PATH = re.compile(r"(/|[A-Za-z]:[\\/]).+")
_TABLE_IN_CATALOG = re.compile(r"[\w-]{1,64}/[\w-]{1,128}(\.[\w-]{1,128})+")
_LONGEST_TABLE = 1024
_CONTAINER_FIRST = frozenset({"abfs", "abfss"})
"""Schemes whose URLs have a container where others have a user's name."""


def _table(text: str) -> str:
    """Where a topic is published. What it may hold is said, and never shown: it may be a secret."""
    kind, _, place = text.partition(":")
    if not text:
        return text
    if len(text) > _LONGEST_TABLE or not text.isprintable():
        raise ValueError(f"at most {_LONGEST_TABLE} printable characters are needed")
    if kind == "iceberg":
        if not _TABLE_IN_CATALOG.fullmatch(place):
            raise ValueError(
                "an Iceberg table is iceberg:CATALOG/NAMESPACE.TABLE, where CATALOG is a name in "
                "pyiceberg's configuration, which holds its address and its secrets"
            )
        return text
    url = _TABLE_URL.fullmatch(place)
    if kind != "delta" or not (url or _TABLE_PATH.fullmatch(place)):
        raise ValueError(
            "a table is delta:URL, or delta:/FOLDER, or iceberg:CATALOG/NAMESPACE.TABLE"
        )
    if ".." in re.split(r"[\\/]", unquote(place)):
        raise ValueError("the folder of a table must be named without '..'")
    if url:
        user, at, _ = url[2].rpartition("@")
        has_user = at and (":" in user or url[1].lower() not in _CONTAINER_FIRST)
        if has_user or "?" in place or "#" in place:
            raise ValueError(
                "a URL with a user's name, a password or a query may hold a secret, which all who "
                "read the topic would see: leave that out, and give it to the process that "
                "publishes, by its environment"
            )
    return text


def _level(low: int, high: int) -> Callable[[str], object]:
    return lambda text: _integer(low, high)(text) if text else None


_TOPIC_KEYS = {
    "compression.type": _Key(
        PRODUCER_CODEC,
        _OneOf(PRODUCER_CODEC, "none", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        "codec of the topic's batches, whatever writers choose; record.format=columns and auto "
        "have no gzip and no snappy; producer: each writer's, and if it chooses none lz4, in "
        "Parquet files zstd",
    ),
    "compression.gzip.level": _Key("", _level(1, 9), "empty: the codec's own default"),
    "compression.lz4.level": _Key("", _level(1, 12), "empty: the codec's own default"),
    "compression.zstd.level": _Key("", _level(-7, 22), "empty: the codec's own default"),
    "record.format": _Key(
        AUTO,
        _OneOf(AUTO, "columns", "kafka", PARQUET),
        "how records are stored: auto: large segments, and what is merged or compacted, in Parquet "
        "files, small ones in batches of Arrow's columns; columns: all in such batches; parquet: "
        "all in Parquet files; kafka: all in Kafka's own batches",
    ),
    "schema.compatibility": _Key(
        "BACKWARD",
        _OneOf("BACKWARD", "FORWARD", "FULL", "NONE"),
        "which changes of a typed topic's schema are refused: those after which older records "
        "could not be read (BACKWARD), or newer ones by those who know the older one (FORWARD, "
        "FULL; they are the same here); NONE: what has no place in the new schema is not read any "
        "more",
    ),
    "segment.bytes": _Key(
        str(1 << 30),
        _integer(1024, (1 << 31) - 1),
        "the largest segment, bytes; one record may be larger",
    ),
    "segment.ms": _Key(
        str(_LONG_MAX),
        _integer(1, _LONG_MAX),
        "records of a merged segment lie no further apart in time, so that retention.ms deletes it "
        "soon enough; each flush ends its segments in any case. In Kafka the default is 7 days",
    ),
    "index.interval.bytes": _Key(
        "4096", _integer(0, (1 << 31) - 1), "about one index entry per this many bytes"
    ),
    "max.message.bytes": _Key(
        str(1_048_588), _integer(1, LARGEST_RECORD_BYTES), "the largest record, bytes"
    ),
    "message.timestamp.type": _Key(
        "CreateTime", _OneOf("CreateTime", "LogAppendTime"), "whose clock stamps a record"
    ),
    "message.timestamp.before.max.ms": _Key(
        str(_LONG_MAX),
        _integer(0, _LONG_MAX),
        "with CreateTime: a record that is older by more than this is refused",
    ),
    "message.timestamp.after.max.ms": _Key(
        str(FUTURE_MS),
        _integer(0, _LONG_MAX),
        "with CreateTime: a record that lies further in the future is refused",
    ),
    "cleanup.policy": _Key(
        "delete",
        _OneOf("delete", "compact", several=True),
        "what becomes of old records: delete: they go by retention.ms and retention.bytes; "
        "compact: of each key the newest one stays; or both",
    ),
    "min.cleanable.dirty.ratio": _Key(
        "0.5",
        _ratio,
        "a partition is compacted when more than this part of its bytes is new since the last time",
    ),
    "min.compaction.lag.ms": _Key(
        "0", _integer(0, _LONG_MAX), "a record is not compacted before this age"
    ),
    "max.compaction.lag.ms": _Key(
        str(_LONG_MAX),
        _integer(1, _LONG_MAX),
        "a partition with a record that waits for longer is compacted whatever its dirty ratio",
    ),
    "delete.retention.ms": _Key(
        "86400000",
        _integer(0, _LONG_MAX),
        "a tombstone stays for this long after it was first compacted",
    ),
    "retention.ms": _Key(
        "-1",
        _integer(-1, _LONG_MAX),
        "segments whose newest record is older are deleted, by `maintain` and by writers now and "
        "then; -1: none. In Kafka the default is 7 days",
    ),
    "retention.bytes": _Key(
        "-1",
        _integer(-1, _LONG_MAX),
        "a partition's oldest segments are deleted likewise while the rest is at least this "
        "large, bytes; -1: none",
    ),
    "file.delete.delay.ms": _Key(
        "604800000",
        _integer(0, _LONG_MAX),
        "`maintain` deletes files of deleted records after this, by the storage's clock: no "
        "reader may be pinned for longer. In Kafka the default is a minute",
    ),
    "table.publish": _Key(
        "",
        _table,
        "the table that `maintain --publish` makes of the topic: delta:URL or "
        "iceberg:CATALOG/NAMESPACE.TABLE; empty: none",
    ),
}

_CONSTRAINT_NAME = re.compile(r"constraint\.[A-Za-z0-9_-]{1,64}")


def _expression(text: str) -> str:
    if not text.strip() or len(text) > 4096:
        raise ValueError("an expression of at most 4096 characters is needed")
    return text


_CONSTRAINT_KEY = _Key(
    "",
    _expression,
    "of a typed topic: an expression over its columns, such as amount > 0; a written row for which "
    "it is false is refused",
)


def _find_key(keys: Mapping[str, _Key], name: str) -> _Key | None:
    if keys is _TOPIC_KEYS and _CONSTRAINT_NAME.fullmatch(str(name)):
        return _CONSTRAINT_KEY
    return keys.get(name)


# Codecs that Arrow cannot use for its buffers.
_ROWS_ONLY = frozenset({Compression.GZIP, Compression.SNAPPY})

_STORE_KEYS = {
    "transaction.max.timeout.ms": _Key(
        "900000", _integer(1, (1 << 31) - 1), "the longest timeout a transaction may ask for"
    ),
    "transactional.id.expiration.ms": _Key(
        "604800000",
        _integer(1, (1 << 53)),
        "`maintain` forgets ids that were idle for this long",
    ),
    "producer.id.expiration.ms": _Key(
        "86400000", _integer(1, (1 << 53)), "an idle idempotent producer is forgotten after this"
    ),
    "log.cleanup.age.ms": _Key(
        "900000",
        _integer(1, (1 << 53)),
        "log entries that nobody needs any more are deleted after this, on disks when there are "
        "many; at least transaction.max.timeout.ms",
    ),
    "offsets.retention.ms": _Key(
        "-1",
        _integer(-1, (1 << 53)),
        "`maintain` deletes groups that were idle for this long; -1: none. In Kafka it is "
        "offsets.retention.minutes",
    ),
}


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic's settings with defaults filled in. Sizes in bytes, times in milliseconds.

    ``parquet_compression`` is the codec of Parquet files, ``compression`` that of batches, if a
    topic has any.
    """

    compression: Compression
    compression_level: int | None
    parquet_compression: Compression
    parquet_compression_level: int | None
    record_format: str
    schema_compatibility: str
    segment_bytes: int
    segment_ms: int
    index_interval_bytes: int
    max_message_bytes: int
    log_append_time: bool
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int
    retention_ms: int
    retention_bytes: int
    file_delete_delay_ms: int
    compacts: bool
    deletes: bool
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    delete_retention_ms: int
    table_publish: str

    @property
    def has_parquet(self) -> bool:
        """Whether there may be segments that are Parquet files."""
        return self.record_format in (PARQUET, AUTO)

    @property
    def has_batches(self) -> bool:
        """Whether segments are made that are not Parquet files."""
        return self.record_format != PARQUET

    @classmethod
    def of(cls, config: Mapping[str, str]) -> TopicConfig:
        """Read validated settings; keys that are missing have their defaults."""
        get = {key: config.get(key, entry.default) for key, entry in _TOPIC_KEYS.items()}
        chosen = get["compression.type"]
        unchosen = Compression.ZSTD if get["record.format"] == PARQUET else Compression.LZ4
        compression = unchosen if chosen == PRODUCER_CODEC else Compression.parse(chosen)
        in_parquet = Compression.ZSTD if chosen == PRODUCER_CODEC else compression
        policies = get["cleanup.policy"].split(",")
        return cls(
            compression=compression,
            compression_level=_level_of(compression, get),
            parquet_compression=in_parquet,
            parquet_compression_level=_level_of(in_parquet, get),
            record_format=get["record.format"],
            schema_compatibility=get["schema.compatibility"],
            segment_bytes=int(get["segment.bytes"]),
            segment_ms=int(get["segment.ms"]),
            index_interval_bytes=int(get["index.interval.bytes"]),
            max_message_bytes=int(get["max.message.bytes"]),
            log_append_time=get["message.timestamp.type"] == "LogAppendTime",
            timestamp_before_max_ms=int(get["message.timestamp.before.max.ms"]),
            timestamp_after_max_ms=int(get["message.timestamp.after.max.ms"]),
            retention_ms=int(get["retention.ms"]),
            retention_bytes=int(get["retention.bytes"]),
            file_delete_delay_ms=int(get["file.delete.delay.ms"]),
            compacts="compact" in policies,
            deletes="delete" in policies,
            min_cleanable_dirty_ratio=float(get["min.cleanable.dirty.ratio"]),
            min_compaction_lag_ms=int(get["min.compaction.lag.ms"]),
            max_compaction_lag_ms=int(get["max.compaction.lag.ms"]),
            delete_retention_ms=int(get["delete.retention.ms"]),
            table_publish=get["table.publish"],
        )


def _level_of(compression: Compression, config: Mapping[str, str]) -> int | None:
    level = config.get(f"compression.{compression.kafka_name}.level")
    return int(level) if level else None


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of a topic or a store: its value, whether it was set there, its meaning."""

    key: str
    value: str
    default: str
    is_set: bool
    meaning: str


def topic_setting(config: Mapping[str, str], key: str) -> str:
    """The effective value of one of a topic's keys. Raises InvalidConfig for an unknown key."""
    known = _find_key(_TOPIC_KEYS, key)
    if known is None:
        raise InvalidConfig(_unknown(key, _TOPIC_KEYS, "topic"))
    return config.get(key, known.default)


def setting_choices(level: Literal["topic", "store"]) -> dict[str, Sequence[str]]:
    """The keys of all settings, each with the words it may have; of others there are none."""
    keys = _TOPIC_KEYS if level == "topic" else _STORE_KEYS
    return {name: getattr(key.check, "choices", ()) for name, key in keys.items()}


def topic_settings(config: Mapping[str, str], keys: Iterable[str] = ()) -> list[Setting]:
    """A topic's settings by key, all of them or these. Raises InvalidConfig for an unknown key."""
    chosen = tuple(keys) or sorted({*_TOPIC_KEYS, *filter(_CONSTRAINT_NAME.fullmatch, config)})
    for key in chosen:
        topic_setting(config, key)
    return [_setting(config, key, _find_key(_TOPIC_KEYS, key) or _CONSTRAINT_KEY) for key in chosen]


def store_settings(config: Mapping[str, str]) -> list[Setting]:
    """A store's settings by key."""
    return [_setting(config, key, of) for key, of in sorted(_STORE_KEYS.items())]


def _setting(config: Mapping[str, str], key: str, of: _Key) -> Setting:
    return Setting(key, config.get(key, of.default), of.default, key in config, of.meaning)


@dataclass(frozen=True, slots=True)
class WriterCodec:
    """The codec that a writer has chosen, for topics that leave it to the writers."""

    compression: Compression
    level: int | None

    @classmethod
    def parse(cls, compression_type: str | None, level: int | None) -> WriterCodec | None:
        """None if nothing is chosen. Raises InvalidConfig."""
        if compression_type is None:
            if level is not None:
                raise InvalidConfig("a compression level has no effect without compression.type")
            return None
        try:
            compression = Compression.parse(compression_type)
        except UnsupportedCompression as error:
            raise InvalidConfig(f"compression.type of a writer: {error}") from None
        codec = cls(compression, level)
        codec._settings()
        return codec

    def _settings(self) -> dict[str, str]:
        name = self.compression.kafka_name
        chosen: dict[str, object] = {"compression.type": name}
        if self.level is not None:
            if f"compression.{name}.level" not in _TOPIC_KEYS:
                raise InvalidConfig(f"compression.type {name} has no levels")
            chosen[f"compression.{name}.level"] = self.level
        return _check(chosen, _TOPIC_KEYS, "writer")

    def override(self, config: Mapping[str, str]) -> dict[str, str]:
        """A topic's settings, with this codec if it has none of its own.

        Raises InvalidConfig if they are not valid.
        """
        if config.get("compression.type", PRODUCER_CODEC) != PRODUCER_CODEC:
            return {**config}
        merged = {**config, **self._settings()}
        check_merged_topic_config(merged)
        return merged


DEFAULT_TRANSACTION_TIMEOUT_MS = 60_000
"""Of producers and of transactions in Spark."""

AcksValue = Literal["all", "1", "0", "-1", 1, 0, -1]
AutoOffsetReset = Literal["earliest", "latest", "none"]
OnCorrupt = Literal["raise", "skip"]
CompressionType = Literal["none", "gzip", "snappy", "lz4", "zstd"]


class Acks(Enum):
    """What a producer waits for: the levels that differ on files."""

    NONE = "0"
    WRITTEN = "1"
    ALL = "all"

    @classmethod
    def parse(cls, acks: str | int, *, transactional: bool) -> Acks:
        """Kafka's values: 0, 1, and 'all' or -1. Raises InvalidConfig."""
        known = {"0": cls.NONE, "1": cls.WRITTEN, "all": cls.ALL, "-1": cls.ALL}
        found = None if isinstance(acks, bool) else known.get(str(acks))
        if found is None:
            raise InvalidConfig(f"acks of a producer is {acks!r}; it must be 0, 1, or 'all'")
        if transactional and found is not cls.ALL:
            raise InvalidConfig(
                f"acks of a producer is {acks!r}; with a transactional_id it must be 'all', "
                "because a commit promises that everything is there"
            )
        return found


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """A store's settings, fixed when it is created. Times in milliseconds."""

    transaction_max_timeout_ms: int
    transactional_id_expiration_ms: int
    producer_id_expiration_ms: int
    log_cleanup_age_ms: int
    left_over_age_ms: int
    offsets_retention_ms: int

    @classmethod
    def of(cls, config: Mapping[str, str]) -> StoreConfig:
        """Read validated settings; keys that are missing have their defaults.

        ``left_over_age_ms`` is the age at which leftovers count as abandoned: log.cleanup.age.ms if
        it is set, else a day.
        """
        get = {key: int(config.get(key, entry.default)) for key, entry in _STORE_KEYS.items()}
        left_over_ms = int(config.get("log.cleanup.age.ms", DAY_MS))
        return cls(
            transaction_max_timeout_ms=get["transaction.max.timeout.ms"],
            transactional_id_expiration_ms=get["transactional.id.expiration.ms"],
            producer_id_expiration_ms=get["producer.id.expiration.ms"],
            # Below it, entries that a transaction needs could be cleaned up.
            log_cleanup_age_ms=max(get["log.cleanup.age.ms"], get["transaction.max.timeout.ms"]),
            left_over_age_ms=max(left_over_ms, get["transaction.max.timeout.ms"]),
            offsets_retention_ms=get["offsets.retention.ms"],
        )


def check_topic_config(config: Mapping[str, object] | None) -> dict[str, str]:
    """Validate a topic's settings and return them as strings; raise InvalidConfig."""
    checked = _check(config, _TOPIC_KEYS, "topic")
    check_merged_topic_config(checked)
    return checked


def check_merged_topic_config(config: Mapping[str, str]) -> None:
    """Check the combination of settings that are valid one by one; raise InvalidConfig.

    ``config`` is all of a topic's settings: when a topic is altered, those that result.
    """
    settings = TopicConfig.of(config)
    if settings.record_format in ("columns", AUTO) and settings.compression in _ROWS_ONLY:
        raise InvalidConfig(
            f"topic config compression.type: {settings.compression.kafka_name} needs "
            f"record.format=kafka or parquet; record.format={settings.record_format} has only "
            "none, lz4 and zstd"
        )
    if settings.table_publish and not settings.has_parquet:
        raise InvalidConfig(
            "topic config table.publish: a table refers to Parquet files, which a topic has with "
            f"record.format=auto or parquet, not with {settings.record_format}"
        )
    if sum(key.startswith(CONSTRAINT) for key in config) > _MOST_CONSTRAINTS:
        raise InvalidConfig(f"a topic has at most {_MOST_CONSTRAINTS} constraints")
    if settings.max_compaction_lag_ms < settings.min_compaction_lag_ms:
        raise InvalidConfig(
            f"topic config max.compaction.lag.ms: {settings.max_compaction_lag_ms} is less than "
            f"min.compaction.lag.ms ({settings.min_compaction_lag_ms})"
        )


def check_topic_changes(config: Mapping[str, object | None] | None) -> dict[str, str | None]:
    """Validate changes of a topic's settings one by one; None resets a key to its default.

    check_merged_topic_config checks them together with the settings that stay.
    """
    changes = config or {}
    for key in changes:
        if _find_key(_TOPIC_KEYS, key) is None:
            raise InvalidConfig(_unknown(key, _TOPIC_KEYS, "topic"))
    checked = _check({k: v for k, v in changes.items() if v is not None}, _TOPIC_KEYS, "topic")
    return {key: checked.get(key) for key in changes}


def check_store_config(config: Mapping[str, object] | None) -> dict[str, str]:
    """Validate a store's settings and return them as strings; raise InvalidConfig."""
    checked = _check(config, _STORE_KEYS, "store")
    settings = StoreConfig.of(checked)
    if settings.producer_id_expiration_ms < settings.transaction_max_timeout_ms:
        raise InvalidConfig(
            "producer.id.expiration.ms must not be shorter than transaction.max.timeout.ms: "
            "a producer with an open transaction would be forgotten"
        )
    cleanup_age_ms = int(checked.get("log.cleanup.age.ms", settings.log_cleanup_age_ms))
    if cleanup_age_ms < settings.transaction_max_timeout_ms:
        raise InvalidConfig(
            f"log.cleanup.age.ms is {cleanup_age_ms}; it must not be shorter than "
            f"transaction.max.timeout.ms ({settings.transaction_max_timeout_ms}): entries of a "
            "transaction could be cleaned up while it is open"
        )
    return checked


def check_stored_topic_config(config: Mapping[str, str | None]) -> None:
    """Raise ValueError if one of a topic's settings in its log is not valid.

    Unknown keys are passed over: no version has written any that a later one does not know.
    """
    _check_stored(config, _TOPIC_KEYS)


def check_stored_store_config(config: Mapping[str, str]) -> None:
    """Raise ValueError if one of the settings in a store's file is not valid."""
    _check_stored(config, _STORE_KEYS)


def _check_stored(config: Mapping[str, str | None], keys: Mapping[str, _Key]) -> None:
    for key, value in config.items():
        known = _find_key(keys, key)
        if value is not None and known is not None:
            try:
                known.check(value)
            except ValueError as error:
                raise ValueError(f"setting {key}: {error}") from None


def _check(
    config: Mapping[str, object] | None, keys: Mapping[str, _Key], of: str
) -> dict[str, str]:
    checked = {}
    for key, value in (config or {}).items():
        known = _find_key(keys, key)
        if known is None:
            raise InvalidConfig(_unknown(key, keys, of))
        text = str(value)
        try:
            known.check(text)
        except ValueError as error:
            raise InvalidConfig(f"{of} config {key}: {error} ({known.meaning})") from None
        checked[key] = text
    return checked


def _unknown(key: str, keys: Mapping[str, _Key], of: str) -> str:
    if key == "replication.factor":
        return (
            f"{key} is no {of} config, but one of a store's roots: `txnlog replicas config "
            f"{key}.<topic>=2`, or txnlog.replication.Replicas.alter"
        )
    if str(key).startswith(CONSTRAINT):
        return (
            f"unknown {of} config {key!r}: a constraint of a topic has a name of letters, digits, "
            "_ and -, such as constraint.positive"
        )
    close = get_close_matches(str(key), keys, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"unknown {of} config {key!r}; {hint}known are: {', '.join(sorted(keys))}"
