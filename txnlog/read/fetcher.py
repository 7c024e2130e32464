"""A consumer's reads: planned ranges as Arrow batches, one at a time, partitions in turn.

Knows nothing of positions, groups or waiting: the given ranges say where reading begins.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby, zip_longest
from typing import Final

import pyarrow as pa

from txnlog.config import OnCorrupt
from txnlog.errors import InvalidOption
from txnlog.names import TopicPartition
from txnlog.read.consumer_record import RECORD_COLUMNS, ConsumerRecord
from txnlog.read.schema import TYPED_METADATA, ScanColumns, scan_columns
from txnlog.read.segment_ranges import SegmentRange
from txnlog.read.sound_ranges import DamagedRecords, read_sound
from txnlog.schema import DELETED, PARTITION, TOPIC, TopicSchema
from txnlog.storage.base import Storage

_logger = logging.getLogger(__name__)

Schemas = Mapping[str, TopicSchema | None]

_RECORDS_AT_ONCE: Final = 8192
"""How many records are unpacked together: few wait as Python objects."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A batch of one partition's records.

    ``stop_offset`` is the offset after its last record, ``next_offset`` the one to read on from:
    nothing before it is shown. ``batch`` is None at the end of a range.
    """

    where: TopicPartition
    stop_offset: int
    next_offset: int
    batch: pa.RecordBatch | None

    def after(self, record: ConsumerRecord) -> int:
        """The offset to read on from after one of its records."""
        at = record.offset + 1
        return self.next_offset if at == self.stop_offset else at


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """Kafka's settings, in bytes and milliseconds.

    ``max_bytes``: in flight from the storage, or returned as batches, in all;
    ``max_partition_bytes``: of one partition before another one's turn. A single larger batch may
    exceed both. ``min_bytes`` must have arrived, or ``max_wait_ms`` have passed since the first
    did, before any are read; ``max_wait_ms`` is also the longest pause between two looks for more.
    ``on_corrupt``: whether damaged records are an error, after all that is sound, or skipped.
    ``as_json``: whether values of typed topics are JSON, or rows.
    """

    min_bytes: int
    max_bytes: int
    max_partition_bytes: int
    max_wait_ms: int
    on_corrupt: OnCorrupt
    as_json: bool

    def __post_init__(self) -> None:
        if self.on_corrupt not in ("raise", "skip"):
            raise InvalidOption(f"on_corrupt {self.on_corrupt!r} is not one of raise, skip")


class Fetcher:
    """Reads planned ranges for one consumer, and holds one batch at a time."""

    def __init__(self, storage: Storage, settings: FetchSettings) -> None:
        self._storage = storage
        self._settings = settings
        self._reads: Generator[Fetched] | None = None

    def begin(
        self,
        ranges: Sequence[SegmentRange],
        ends: Mapping[TopicPartition, int],
        schemas: Schemas,
        *,
        as_records: bool,
    ) -> None:
        """Read these ranges from now on, in pieces with the columns of records.

        ``ends`` is by partition where its read ends: nothing is shown between its last range and
        there. ``schemas`` are those of their topics, None if untyped. Without ``as_records`` in
        whole batches with the columns of scans.
        """
        self.drop()
        self._reads = self._read(ranges, ends, schemas, as_records=as_records)

    def drop(self) -> None:
        """Drop the planned ranges."""
        reads, self._reads = self._reads, None
        if reads is not None:
            reads.close()

    def next(self) -> Fetched | None:
        """The next batch, or the end of a range; None if all is read.

        Raises what :func:`txnlog.read.scanned_ranges.read_ranges` does; CorruptRecord when all that
        is sound was returned, with its partition and offsets.
        """
        return next(self._reads, None) if self._reads is not None else None

    def _read(
        self,
        ranges: Sequence[SegmentRange],
        ends: Mapping[TopicPartition, int],
        schemas: Schemas,
        *,
        as_records: bool,
    ) -> Generator[Fetched]:
        damaged: list[DamagedRecords] = []
        last = {TopicPartition(part.topic, part.partition): part for part in ranges}
        make = partial(_columns_of, as_records=as_records, as_json=self._settings.as_json)
        columns = _by_topic(ranges, schemas, make)
        turns = in_turns(ranges, self._settings.max_partition_bytes)
        skips = self._settings.on_corrupt == "skip"
        limit = self._settings.max_bytes
        reads = read_sound(self._storage, turns, columns, limit, skip_damaged=skips, by_page=True)
        with closing(reads):
            for part, found in reads:
                where = TopicPartition(part.topic, part.partition)
                # Aborted records may follow, and a segment may end with what is not shown.
                end = ends[where] if part is last[where] else part.stop_offset
                if found is None:
                    yield Fetched(where, end, end, None)
                elif not isinstance(found, DamagedRecords):
                    offset = columns[part.topic].offset
                    for piece in _pieces_of(found) if as_records else (found,):
                        stop = piece.column(offset)[-1].as_py() + 1
                        after = end if stop == part.stop_offset else stop
                        yield Fetched(where, stop, after, piece)
                elif skips:
                    _logger.warning("skipped, %d at most: %s", found.offset_count, found)
                    yield Fetched(where, found.next_offset, found.next_offset, None)
                else:
                    damaged.append(found)
        if damaged:
            raise damaged[0].error()


def _pieces_of(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    starts = range(0, batch.num_rows, _RECORDS_AT_ONCE)
    return (batch.slice(start, _RECORDS_AT_ONCE) for start in starts)


def _by_topic(
    ranges: Iterable[SegmentRange],
    schemas: Schemas,
    make: Callable[[TopicSchema | None], ScanColumns],
) -> dict[str, ScanColumns]:
    """The columns of each topic; those with equal schemas share them."""
    made: list[tuple[TopicSchema | None, ScanColumns]] = []
    found = {}
    for topic in dict.fromkeys(part.topic for part in ranges):
        schema = schemas[topic]
        columns = next((known for of, known in made if of == schema), None)
        if columns is None:
            columns = make(schema)
            made.append((schema, columns))
        found[topic] = columns
    return found


def _columns_of(schema: TopicSchema | None, *, as_records: bool, as_json: bool) -> ScanColumns:
    if as_records:
        return scan_columns(RECORD_COLUMNS, schema, as_json=True, as_rows=not as_json)
    if schema is None:
        return scan_columns(None)
    left_out = (TOPIC, PARTITION) if schema.key else (TOPIC, PARTITION, DELETED)
    more = [name for name in TYPED_METADATA.names if name not in left_out]
    return scan_columns([*schema.columns.names, *more], schema)


def in_turns(ranges: Sequence[SegmentRange], most_bytes: int) -> list[SegmentRange]:
    """Order ranges by partitions in turn: this many bytes of each, or one larger segment.

    Ranges of a partition stay in order, and small ones stay together, so that adjacent small
    segments in a file are still read in one request.
    """
    partitions = [
        _in_pieces(mine, most_bytes)
        for _, mine in groupby(ranges, key=lambda part: (part.topic, part.partition))
    ]
    turns = chain.from_iterable(zip_longest(*partitions, fillvalue=()))
    return [part for piece in turns for part in piece]


def _in_pieces(ranges: Iterable[SegmentRange], most_bytes: int) -> list[list[SegmentRange]]:
    pieces: list[list[SegmentRange]] = []
    room = 0
    for part in ranges:
        if not pieces or part.size_bytes > room:
            pieces.append([])
            room = most_bytes
        pieces[-1].append(part)
        room -= part.size_bytes
    return pieces
