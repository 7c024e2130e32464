"""Scans: ranges of pinned segments, read as Arrow record batches.

A scan is planned from a snapshot without touching a segment, and is then plain data: its ranges
can be pickled and read anywhere, one by one, which is what Spark's tasks do.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

import crc32c
import numpy as np
import pyarrow as pa

from txnlog import names
from txnlog.config import TopicConfig
from txnlog.errors import (
    CorruptRecord,
    InvalidOption,
    ObjectNotFound,
    OffsetOutOfRange,
    TxnlogError,
    UnknownTopicOrPartition,
)
from txnlog.log.topic_log import current_topic_id
from txnlog.names import TopicPartition
from txnlog.segments.indexes.sparse import OffsetIndex, TimeIndex
from txnlog.segments.indexes.transactions import TransactionIndex
from txnlog.segments.reader import SegmentBatch, SkipBatch, find_timestamp, read_segment
from txnlog.segments.records import HEADERS_TYPE
from txnlog.state.placement import Segment
from txnlog.state.topic import Partition
from txnlog.storage.base import Storage

if TYPE_CHECKING:
    import pandas as pd

SCAN_SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestampType", pa.int32()),
        pa.field("headers", HEADERS_TYPE),
    ]
)
"""What a scan can return: the row of Spark's Kafka source. timestampType: 0 create, 1 append."""

EARLIEST = -2
LATEST = -1

Offsets = Literal["earliest", "latest"] | Mapping[int, int] | Mapping[TopicPartition, int] | None
"""Where to start or end: by partition; -2 is earliest, -1 latest; partitions left out default."""

_STORED_COLUMNS = ("key", "value", "timestamp", "headers")


@dataclass(frozen=True, slots=True)
class SegmentRange:
    """The offsets [start_offset, stop_offset) of one partition, all in one segment."""

    topic: str
    partition: int
    segment: Segment
    start_offset: int
    stop_offset: int
    log_append_time: bool = False
    topic_id: str = ""
    hides_aborted: bool = False

    @property
    def record_count(self) -> int:
        """How many records it holds; of a segment that came from Kafka, how many at most."""
        return self.stop_offset - self.start_offset

    @property
    def size_bytes(self) -> int:
        """About how many bytes of the segment the range takes."""
        offsets = self.segment.end_offset - self.segment.base_offset
        return self.segment.size_bytes * self.record_count // max(offsets, 1)


class Scan:
    """A pinned range of one topic. Iterating twice gives the same records.

    ``start_offsets`` and ``end_offsets`` are resolved, by partition.
    """

    def __init__(
        self,
        storage: Storage,
        ranges: Sequence[SegmentRange],
        columns: Sequence[str],
        start_offsets: Mapping[int, int],
        end_offsets: Mapping[int, int],
    ) -> None:
        self._storage = storage
        self.ranges = tuple(ranges)
        self.columns = tuple(columns)
        self.start_offsets = dict(start_offsets)
        self.end_offsets = dict(end_offsets)

    @property
    def schema(self) -> pa.Schema:
        """The columns of the scan, in the order they were asked for."""
        return scan_schema(self.columns)

    @property
    def record_count(self) -> int:
        """How many records the scan returns; nothing is read to know it.

        What was imported from Kafka may have gaps: then it is how many there can be at most.
        """
        return sum(part.record_count for part in self.ranges)

    def count(self) -> dict[int, int]:
        """How many records the scan returns of each of its partitions, exactly.

        Only segments that came from Kafka are read for it, because they may have gaps.
        """
        counts = dict.fromkeys(self.start_offsets, 0)
        for part in self.ranges:
            counts[part.partition] += (
                part.record_count
                if part.segment.kafka is None
                else sum(b.num_rows for b in read_range(self._storage, part, ("offset",)))
            )
        return counts

    def head(self, count: int) -> pa.Table:
        """The oldest records: at most ``count``, by their times.

        Records of a partition stay in the order of their offsets. Holds up to ``count`` records
        of each partition in memory.
        """
        from txnlog.read.head_and_tail import first_records

        return first_records(self._storage, self.ranges, self.columns, count)

    def tail(self, count: int) -> pa.Table:
        """The newest records: at most ``count``, by their times; see :meth:`head`."""
        from txnlog.read.head_and_tail import last_records

        return last_records(self._storage, self.ranges, self.columns, count)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Read record batches, partition by partition in the order of their offsets.

        Memory is bounded by a chunk and a batch, however large the topic is.

        Raises:
            UnknownTopicOrPartition: the topic was deleted meanwhile.
            CorruptRecord: a segment is damaged or gone.
        """
        for part in self.ranges:
            yield from read_range(self._storage, part, self.columns)

    def to_arrow(self) -> pa.Table:
        """Read everything into one table."""
        return pa.Table.from_batches(self.to_batches(), schema=self.schema)

    def to_file(
        self,
        path: str | os.PathLike[str],
        file_format: str | None = None,
        *,
        encoding: str = "text",
        progress: Callable[[int, int], None] | None = None,
    ) -> int:
        """Write the records to a new local file, in bounded memory; returns how many there were.

        Args:
            path: must not exist. Nothing is there before all of it is.
            file_format: 'parquet', 'arrow' (an IPC file) or 'csv'; None: by the path's ending.
            encoding: for CSV, how keys and values are written: 'text', 'hex' or 'base64'.
            progress: called with the records done and those there are at most.

        Raises:
            InvalidOption: the format or encoding is unknown, or a value is no UTF-8 text.
            StorageError: the file exists or cannot be written.
        """
        from txnlog.read.record_files import write_file

        return write_file(self, path, file_format, encoding=encoding, progress=progress)

    def to_pandas(self) -> pd.DataFrame:
        """Read everything into a pandas DataFrame."""
        frame: pd.DataFrame = self.to_arrow().to_pandas()
        return frame

    def to_reader(self) -> pa.RecordBatchReader:
        """The batches as an Arrow reader, for anything that streams."""
        return pa.RecordBatchReader.from_batches(self.schema, self.to_batches())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Arrow's PyCapsule interface: Polars, DuckDB and others read a scan as it is."""
        return self.to_reader().__arrow_c_stream__(requested_schema)


def scan_schema(columns: Sequence[str]) -> pa.Schema:
    """The Arrow schema of these columns of a scan."""
    return pa.schema([SCAN_SCHEMA.field(name) for name in columns])


def check_columns(columns: Sequence[str] | None) -> tuple[str, ...]:
    """Return the columns to read, all of them if None. Raises InvalidOption."""
    if columns is None:
        return tuple(SCAN_SCHEMA.names)
    if isinstance(columns, str):
        raise InvalidOption(f"columns must be a list of names, not the string {columns!r}")
    chosen = tuple(columns)
    for name in chosen:
        if name not in SCAN_SCHEMA.names:
            raise InvalidOption(
                f"unknown column {name!r}; a scan has {', '.join(SCAN_SCHEMA.names)}"
            )
    if not chosen or len(set(chosen)) != len(chosen):
        raise InvalidOption("columns must name at least one column, and none twice")
    return chosen


def plan_scan(
    storage: Storage,
    topic: str,
    topic_id: str,
    config: Mapping[str, str],
    partitions: Sequence[Partition],
    hidden_entries: frozenset[int],
    starting_offsets: Offsets,
    ending_offsets: Offsets,
    columns: Sequence[str] | None,
    *,
    hides_aborted: bool,
) -> Scan:
    """Choose the segment ranges between two resolved ends; no file is touched.

    ``hidden_entries`` are left out whole; ``hides_aborted`` is about what was aborted in Kafka.

    Raises:
        OffsetOutOfRange: an offset lies below the log's start or beyond its end.
        InvalidOption: a malformed offset or column.
    """
    chosen = check_columns(columns)
    start = _resolve(topic, partitions, starting_offsets, "starting_offsets", EARLIEST)
    end = _resolve(topic, partitions, ending_offsets, "ending_offsets", LATEST)
    log_append_time = TopicConfig.of(config).log_append_time
    ranges = [
        SegmentRange(
            topic,
            number,
            segment,
            max(segment.base_offset, start[number]),
            min(segment.end_offset, end[number]),
            log_append_time,
            topic_id,
            hides_aborted and segment.has_aborted,
        )
        for number, partition in enumerate(partitions)
        for segment in partition.overlapping(start[number], end[number])
        if segment.entry not in hidden_entries
    ]
    return Scan(storage, ranges, chosen, start, end)


def _resolve(
    topic: str, partitions: Sequence[Partition], offsets: Offsets, what: str, default: int
) -> dict[int, int]:
    if isinstance(offsets, str):
        if offsets not in ("earliest", "latest"):
            raise InvalidOption(f"{what} is {offsets!r}; it can be 'earliest' or 'latest'")
        default, offsets = (EARLIEST if offsets == "earliest" else LATEST), None
    resolved = dict.fromkeys(range(len(partitions)), default)
    for where, offset in (offsets or {}).items():
        number = where.partition if isinstance(where, TopicPartition) else where
        if isinstance(where, TopicPartition) and where.topic != topic:
            raise InvalidOption(f"{what} has {where}, but the scan is of topic {topic!r}")
        if isinstance(number, bool) or not isinstance(number, int) or number not in resolved:
            raise InvalidOption(
                f"{what}: topic {topic!r} has no partition {number!r}; it has {len(partitions)}"
            )
        if isinstance(offset, bool) or not isinstance(offset, int) or offset < EARLIEST:
            raise InvalidOption(f"{what}: {offset!r} is no offset (partition {number})")
        resolved[number] = offset
    for number, offset in resolved.items():
        partition = partitions[number]
        if offset == EARLIEST:
            resolved[number] = partition.log_start_offset
        elif offset == LATEST:
            resolved[number] = partition.end_offset
        elif not partition.log_start_offset <= offset <= partition.end_offset:
            raise OffsetOutOfRange(
                f"{what}: offset {offset} of {topic}:{number} is out of range; "
                f"the log has {partition.log_start_offset} to {partition.end_offset}"
            )
    return resolved


# -- reading -----------------------------------------------------------------------------------


def read_range(
    storage: Storage, part: SegmentRange, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Read one range as record batches of exactly ``scan_schema(columns)``.

    Raises:
        UnknownTopicOrPartition: the topic was deleted since the range was planned.
        CorruptRecord: the segment is damaged or gone; the message says where.
    """
    stored = [name for name in _STORED_COLUMNS if name in columns]
    assemble = _Assembler(part, columns)
    for batch in read_batches(storage, part, stored):
        yield assemble(batch)


def read_batches(
    storage: Storage, part: SegmentRange, columns: Sequence[str] | None
) -> Iterator[SegmentBatch]:
    """Read one range as it is stored: offsets are those in the file. Raises CorruptRecord."""
    path = names.segment_file(part.topic, part.partition, part.segment.name)
    segment, shift = part.segment, part.segment.offset_shift
    try:
        yield from read_segment(
            partial(storage.get_range, path),
            segment.size_bytes,
            name=path,
            start_offset=part.start_offset - shift,
            stop_offset=part.stop_offset - shift,
            base_offset=segment.base_offset - shift,
            index=_load_index(storage, part) if part.start_offset > segment.base_offset else None,
            columns=columns,
            skip=_load_aborted(storage, part),
            identity=segment.identity,
        )
    except ObjectNotFound as error:
        raise _gone(storage, part, path) from error


def first_at_or_after(
    storage: Storage, part: SegmentRange, timestamp_ms: int
) -> tuple[int, int] | None:
    """The first record of a range at or after a time: (offset, timestamp in ms), or None."""
    path = names.segment_file(part.topic, part.partition, part.segment.name)
    shift = part.segment.offset_shift
    times = _load_time_index(storage, part)
    try:
        found = find_timestamp(
            partial(storage.get_range, path),
            part.segment.size_bytes,
            timestamp_ms,
            name=path,
            start_offset=part.start_offset - shift,
            stop_offset=part.stop_offset - shift,
            base_offset=part.segment.base_offset - shift,
            time_index=times,
            index=_load_index(storage, part) if times is not None else None,
            skip=_load_aborted(storage, part),
            identity=part.segment.identity,
        )
    except ObjectNotFound as error:
        raise _gone(storage, part, path) from error
    return None if found is None else (shift + found[0], found[1])


def _gone(storage: Storage, part: SegmentRange, path: str) -> TxnlogError:
    """Why a segment is not there: its topic was deleted, or something is wrong."""
    now = current_topic_id(storage, part.topic)
    if now is None or (part.topic_id and now != part.topic_id):
        return UnknownTopicOrPartition(
            f"topic {part.topic!r} was deleted{' and made anew' if now else ''} since this read "
            f"was planned, and segment {path} with it; plan the read again"
            + ("" if now else ", or make the topic with create_topic")
        )
    return CorruptRecord(
        f"segment {path} is gone, with offsets {part.start_offset} to {part.stop_offset - 1} of "
        f"{part.topic}:{part.partition}; restore it from a backup"
    )


def _load_index(storage: Storage, part: SegmentRange) -> OffsetIndex | None:
    """The offset index, if there is one that can be used. It only saves reading from the start."""
    if part.segment.batch_count < 2:
        return None
    path = names.offset_index_file(part.topic, part.partition, part.segment.name)
    try:
        return OffsetIndex.decode(storage.get(path))
    except (ObjectNotFound, CorruptRecord, ValueError):
        return None


def _load_time_index(storage: Storage, part: SegmentRange) -> TimeIndex | None:
    """The time index, if there is one that can be used."""
    if part.segment.batch_count < 2:
        return None
    path = names.time_index_file(part.topic, part.partition, part.segment.name)
    try:
        return TimeIndex.decode(storage.get(path))
    except (ObjectNotFound, CorruptRecord, ValueError):
        return None


def _load_aborted(storage: Storage, part: SegmentRange) -> SkipBatch | None:
    """What hides the aborted records of a segment that came from Kafka; None if it has none."""
    if not part.hides_aborted:
        return None
    return load_transaction_index(storage, part).hides


def load_transaction_index(storage: Storage, part: SegmentRange) -> TransactionIndex:
    """The aborted transactions of a segment that came from Kafka.

    Unlike the other indexes it is no accelerator: without it aborted records would show.

    Raises:
        CorruptRecord: it is damaged or gone.
        UnknownTopicOrPartition: the topic was deleted since the range was planned.
    """
    known = part.segment.kafka
    if known is None or not known.aborted_count:
        return TransactionIndex(())
    path = names.transaction_index_file(part.topic, part.partition, part.segment.name)
    try:
        data = storage.get(path)
    except ObjectNotFound as error:
        raise _gone(storage, part, path) from error
    if crc32c.crc32c(data) != known.aborted_crc:
        raise CorruptRecord(f"{path} is not as it was written; restore it from a backup")
    return TransactionIndex.decode(data, name=path)


class _Assembler:
    """Adds the columns that are not stored: topic, partition, offset, timestampType.

    The constant columns are made once and sliced, so they cost nothing per batch.
    """

    def __init__(self, part: SegmentRange, columns: Sequence[str]) -> None:
        self._part = part
        self._columns = columns
        self._schema = scan_schema(columns)
        self._constants: dict[str, pa.Array] = {}
        self._length = 0

    def __call__(self, batch: SegmentBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(
            [self._column(name, batch) for name in self._columns], schema=self._schema
        )

    def _column(self, name: str, batch: SegmentBatch) -> pa.Array:
        if name == "offset":
            return pa.array(batch.offsets() + self._part.segment.offset_shift)
        if name == "timestampType" and self._part.segment.kafka is not None:
            stamped = int(batch.header.is_log_append_time)
            return pa.repeat(pa.scalar(stamped, pa.int32()), batch.record_count)
        if name == "timestamp":
            milliseconds = batch.records.column("timestamp").view(pa.int64()).to_numpy()
            return pa.array(milliseconds * np.int64(1000)).view(SCAN_SCHEMA.field(name).type)
        if name in _STORED_COLUMNS:
            return batch.records.column(name)
        return self._constant(name, batch.record_count)

    def _constant(self, name: str, length: int) -> pa.Array:
        if length > self._length:
            self._constants.clear()
            self._length = length
        if name not in self._constants:
            value: object = {
                "topic": self._part.topic,
                "partition": self._part.partition,
                "timestampType": int(self._part.log_append_time),
            }[name]
            self._constants[name] = pa.repeat(
                pa.scalar(value, SCAN_SCHEMA.field(name).type), self._length
            )
        return self._constants[name].slice(0, length)
