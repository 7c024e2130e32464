"""Checks of records that a user sends, and their conversion for segments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from txnlog.config import TopicConfig, check_whole_number
from txnlog.errors import InvalidRecord, InvalidTimestamp
from txnlog.log.uploads import TopicSpec
from txnlog.write.partitioner import check_explicit

Headers = Sequence[tuple[str, bytes | None]]
Value = bytes | str | Mapping[str, object] | None
"""A record's value; for a typed topic a mapping of columns to values."""
_NO_LIMIT = (1 << 63) - 1
_DECADE_MS = 10 * 365 * 86_400_000


def to_bytes(value: Value, what: str) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise InvalidRecord(f"a record's {what} is not valid text: {error}") from None
    raise InvalidRecord(f"a record's {what} must be bytes, a string or None, not {value!r:.60}")


def check_timestamp(timestamp_ms: int | None) -> int | None:
    if timestamp_ms is None:
        return None
    what = "timestamp_ms (milliseconds since the epoch)"
    return check_whole_number(timestamp_ms, what, InvalidRecord, least=-1, most=(1 << 53) - 1)


class TimestampLimits:
    """How far from now a topic's timestamps may be; see Kafka's keys."""

    def __init__(self, topic: str, config: TopicConfig) -> None:
        self._topic = topic
        self._before_ms = config.timestamp_before_max_ms
        self._after_ms = config.timestamp_after_max_ms
        self._none = config.log_append_time or min(self._before_ms, self._after_ms) == _NO_LIMIT

    def check(self, timestamps: npt.NDArray[np.int64], now_ms: int) -> None:
        """Raise InvalidTimestamp if one of these (ms since the epoch; -1: none) is outside."""
        if self._none or not len(timestamps):
            return
        is_told = timestamps != -1
        least = int(np.min(timestamps, initial=_NO_LIMIT, where=is_told))
        most = int(np.max(timestamps, initial=-1, where=is_told))
        if (least == _NO_LIMIT or now_ms - least <= self._before_ms) and (
            most - now_ms <= self._after_ms
        ):
            return
        wrong = is_told & (timestamps < now_ms - self._before_ms)
        wrong |= is_told & (timestamps > now_ms + self._after_ms)
        first = int(np.argmax(wrong))
        self._refuse(f"record {first} of {len(timestamps)}", int(timestamps[first]), now_ms)

    def check_one(self, timestamp_ms: int | None, now_ms: int) -> None:
        """Raise InvalidRecord if a time is too far off; None is a record that gets its time now."""
        if self._none or timestamp_ms is None or timestamp_ms == -1:
            return
        if now_ms - timestamp_ms > self._before_ms or timestamp_ms - now_ms > self._after_ms:
            self._refuse("a record", timestamp_ms, now_ms)

    def _refuse(self, which: str, timestamp_ms: int, now_ms: int) -> NoReturn:
        key, allowed_ms = "message.timestamp.before.max.ms", self._before_ms
        if timestamp_ms > now_ms:
            key, allowed_ms = "message.timestamp.after.max.ms", self._after_ms
        hint = "correct the timestamp"
        for unit, per_ms in (("microseconds", 1_000), ("nanoseconds", 1_000_000)):
            if abs(timestamp_ms // per_ms - now_ms) < _DECADE_MS:
                hint = f"it looks like {unit}: give milliseconds"
        raise InvalidTimestamp(
            f"the timestamp of {which} is {timestamp_ms}, and it is {now_ms} now; {key} of topic "
            f"{self._topic!r} allows a difference of {allowed_ms} ms: {hint}, or alter the topic"
        )


class KeyCheck:
    """Whether a topic's records must have keys, because it is compacted."""

    def __init__(self, topic: str, config: TopicConfig) -> None:
        self._topic = topic
        self._is_needed = config.compacts

    def check(self, keys: pa.Array) -> None:
        """Raise InvalidRecord if one of these is null and must not be. Empty is a key."""
        if self._is_needed and keys.null_count:
            raise InvalidRecord(f"{keys.null_count} of {len(keys)} records have no key{self._why}")

    def check_one(self, key: bytes | None) -> None:
        """Raise InvalidRecord if the key of a record is None and must not be."""
        if self._is_needed and key is None:
            raise InvalidRecord(f"a record has no key{self._why}")

    @property
    def _why(self) -> str:
        return (
            f", and topic {self._topic!r} is compacted by key: give each one, or alter the topic's "
            "cleanup.policy to delete"
        )


def check_headers(headers: Headers | None) -> list[tuple[str, bytes | None]]:
    checked = []
    if isinstance(headers, str | bytes | dict) or not isinstance(headers or (), Iterable):
        raise InvalidRecord(f"headers must be a list of pairs, not {headers!r:.60}")
    for header in headers or ():
        if not (isinstance(header, tuple) and len(header) == 2 and isinstance(header[0], str)):
            raise InvalidRecord(
                f"a header must be a pair of a string and bytes, not {header!r:.60}"
            )
        to_bytes(header[0], "header's name")
        checked.append((header[0], to_bytes(header[1], "header")))
    return checked


def check_partition(partition: int | None, spec: TopicSpec) -> int | None:
    if partition is None:
        return None
    check_whole_number(partition, "partition", InvalidRecord)
    if not 0 <= partition < spec.partitions:
        raise InvalidRecord(
            f"topic {spec.topic!r} has no partition {partition}; it has {spec.partitions}"
        )
    return partition


def explicit_partitions(
    batch: pa.RecordBatch, partition: int | None, spec: TopicSpec, column: str = "partition"
) -> pa.Array | None:
    """The explicit partition of each record (int32), null where there is none.

    ``partition`` is that of all of them; else it is in ``column``. None: no record has one.
    """
    if partition is not None:
        same = np.full(batch.num_rows, check_partition(partition, spec), dtype=np.int32)
        return pa.array(same)
    if column not in batch.schema.names:
        return None
    return check_explicit(batch.column(column), spec.topic, spec.partitions, column)
