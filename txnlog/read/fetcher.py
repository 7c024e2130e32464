"""What a consumer reads: planned ranges as Arrow batches, one at a time, partitions in turns.

Knows nothing of positions, groups or waiting: where reading begins is in the ranges it is given.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, groupby, zip_longest
from typing import Final

import pyarrow as pa

from txnlog.names import TopicPartition
from txnlog.read.consumer_record import RECORD_COLUMNS
from txnlog.read.schema import TYPED_METADATA, ScanColumns, scan_columns
from txnlog.read.segment_ranges import SegmentRange, read_each
from txnlog.schema import DELETED, PARTITION, TOPIC, TopicSchema
from txnlog.storage.base import Storage

Schemas = Mapping[str, TopicSchema | None]

_RECORDS_AT_ONCE: Final = 8192
"""Of so many records the columns are unpacked together: what waits in Python's types is small."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A batch of one partition's records, and where that is read on after it.

    ``batch`` is None at the end of a range: what comes before ``next_offset`` is no record.
    """

    where: TopicPartition
    next_offset: int
    batch: pa.RecordBatch | None


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """Kafka's settings, in bytes.

    ``max_bytes``: on their way from the storage, or returned as batches, in all;
    ``max_partition_bytes``: of one partition before it is another one's turn. Both give way to
    a single batch that is larger.
    """

    max_bytes: int
    max_partition_bytes: int


class Fetcher:
    """Reads planned ranges for one consumer, and holds one batch at a time."""

    def __init__(self, storage: Storage, limits: FetchLimits) -> None:
        self._storage = storage
        self._limits = limits
        self._reads: Generator[Fetched] | None = None
        self.as_records = True
        """Whether what is read has the columns that records are made of, or those of scans."""

    def begin(self, ranges: Sequence[SegmentRange], schemas: Schemas, *, as_records: bool) -> None:
        """Read these ranges from now on; ``schemas`` are those of their topics, None if untyped."""
        self.drop()
        self.as_records = as_records
        self._reads = self._read(ranges, schemas)

    def drop(self) -> None:
        """Read nothing more of what was planned."""
        reads, self._reads = self._reads, None
        if reads is not None:
            reads.close()

    def next(self) -> Fetched | None:
        """The next batch, or the end of a range; None if all is read.

        Raises what :func:`txnlog.read.segment_ranges.read_ranges` does.
        """
        return next(self._reads, None) if self._reads is not None else None

    def _read(self, ranges: Sequence[SegmentRange], schemas: Schemas) -> Generator[Fetched]:
        for schema, parts in _by_schema(ranges, schemas):
            columns = _columns_of(schema, as_records=self.as_records)
            offset = columns.only("offset").names[0]
            turns = in_turns(parts, self._limits.max_partition_bytes)
            reads = read_each(self._storage, turns, columns, self._limits.max_bytes)
            with closing(reads):
                for part, batches in reads:
                    where = TopicPartition(part.topic, part.partition)
                    for batch in batches:
                        for piece in self._cut(batch):
                            yield Fetched(where, piece.column(offset)[-1].as_py() + 1, piece)
                    # What came from Kafka may end with what is no record.
                    yield Fetched(where, part.stop_offset, None)

    def _cut(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if not self.as_records:
            return iter([batch])
        starts = range(0, batch.num_rows, _RECORDS_AT_ONCE)
        return (batch.slice(start, _RECORDS_AT_ONCE) for start in starts)


def _by_schema(
    ranges: Iterable[SegmentRange], schemas: Schemas
) -> list[tuple[TopicSchema | None, list[SegmentRange]]]:
    """The ranges of topics that are read with the same columns, in their order."""
    found: list[tuple[TopicSchema | None, list[SegmentRange]]] = []
    for topic, parts in groupby(ranges, key=lambda part: part.topic):
        schema = schemas[topic]
        known = next((mine for of, mine in found if of == schema), None)
        if known is None:
            found.append((schema, [*parts]))
        else:
            known += parts
    return found


def _columns_of(schema: TopicSchema | None, *, as_records: bool) -> ScanColumns:
    if as_records:
        return scan_columns(RECORD_COLUMNS, schema, as_json=True)
    if schema is None:
        return scan_columns(None)
    left_out = (TOPIC, PARTITION) if schema.key else (TOPIC, PARTITION, DELETED)
    more = [name for name in TYPED_METADATA.names if name not in left_out]
    return scan_columns([*schema.columns.names, *more], schema)


def in_turns(ranges: Sequence[SegmentRange], most_bytes: int) -> list[SegmentRange]:
    """The same ranges, partitions in turns: of each so many bytes, or one segment that has more.

    Ranges of a partition stay in their order, and those of partitions with less stay together, so
    that small segments that lie side by side in a file are still read in one request.
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
