"""Ranges of pinned segments as record batches with the columns of a scan."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial

import numpy as np
import pyarrow as pa

from txnlog.read.filtered_reads import FileChoice, keep_rows
from txnlog.read.json_records import json_keys, json_pieces, json_values
from txnlog.read.schema import ScanColumns
from txnlog.read.segment_ranges import RowSelection, SegmentRange, read_stored
from txnlog.schema import HEADERS
from txnlog.segments.number_arrays import arrow_of, constant_array
from txnlog.segments.reader import SegmentBatch
from txnlog.segments.records import HEADERS_TYPE, timestamps_ms
from txnlog.segments.schema_columns import Columns
from txnlog.storage.ahead import MAX_AHEAD_BYTES
from txnlog.storage.base import Storage


def read_ranges(
    storage: Storage, parts: Sequence[SegmentRange], columns: ScanColumns
) -> Iterator[pa.RecordBatch]:
    """Read ranges one after the other as record batches of exactly ``columns.schema``.

    Their requests are in flight together, if the storage makes that worthwhile: see
    :meth:`txnlog.storage.base.Storage.run_ahead`. Raises UnknownTopicOrPartition: the topic was
    deleted since the range was planned. CorruptRecord: the segment is damaged or gone; the message
    says where.
    """
    with closing(read_each(storage, parts, columns)) as reads:
        for _, batches in reads:
            yield from batches


def read_each(
    storage: Storage,
    parts: Sequence[SegmentRange],
    columns: ScanColumns,
    ahead_bytes: int = MAX_AHEAD_BYTES,
    *,
    by_page: bool = False,
) -> Generator[tuple[SegmentRange, Iterator[pa.RecordBatch]]]:
    """Read ranges, each with its own batches, to be taken before the next one is asked for.

    At most ``ahead_bytes`` are in flight, or a single larger request. With ``by_page`` batches are
    small, and each is decoded when it is asked for; filtered reads are not.
    """
    if columns.row_filter is None:
        assemble = _Assembler(columns)
        stored_reads = read_stored(
            storage, parts, columns.stored, ahead_bytes=ahead_bytes, by_page=by_page
        )
        with closing(stored_reads) as reads:
            for part, stored in reads:
                yield part, map(partial(assemble, part), _pieces(stored, columns))
        return
    from txnlog.read.arrow_scans import scan_or_read

    read = partial(_read_filtered, storage, columns=columns, ahead_bytes=ahead_bytes)
    yield from scan_or_read(storage, parts, columns, read)


def read_topics(
    storage: Storage,
    parts: Sequence[SegmentRange],
    columns: Mapping[str, ScanColumns],
    ahead_bytes: int = MAX_AHEAD_BYTES,
    *,
    by_page: bool = False,
) -> Generator[tuple[SegmentRange, Iterator[pa.RecordBatch]]]:
    """Read ranges as :func:`read_each` does, with the columns of each topic, which have no filter.

    Topics with the same columns should share the object: then they share what is made of it.
    """
    different = {id(of): of for of in columns.values()}
    selections = {key: RowSelection(of.stored) for key, of in different.items()}
    assemblers = {key: _Assembler(of) for key, of in different.items()}

    def wanted(part: SegmentRange) -> RowSelection:
        return selections[id(columns[part.topic])]

    with closing(read_stored(storage, parts, None, wanted, ahead_bytes, by_page=by_page)) as reads:
        for part, stored in reads:
            of = columns[part.topic]
            yield part, map(partial(assemblers[id(of)], part), _pieces(stored, of))


def _read_filtered(
    storage: Storage, parts: Sequence[SegmentRange], columns: ScanColumns, ahead_bytes: int
) -> Generator[tuple[SegmentRange, Iterator[pa.RecordBatch]]]:
    reading = columns.with_looked_at
    assemble, assemble_chosen = _Assembler(reading), _Assembler(columns)
    assemble_looked_at = _Assembler(columns.looked_at)

    def wanted(part: SegmentRange) -> RowSelection:
        if not part.paths.is_parquet:
            return RowSelection(reading.stored)
        offsets, shift = range(part.start_offset, part.stop_offset), part.segment.offset_shift
        looked_at = partial(assemble_looked_at, part)
        choice = FileChoice(columns, part.partition, offsets, shift, looked_at)
        return RowSelection(columns.stored, choice)

    with closing(read_stored(storage, parts, None, wanted, ahead_bytes)) as reads:
        for part, stored in reads:
            pieces = _pieces(stored, columns)
            if part.paths.is_parquet:
                yield part, map(partial(assemble_chosen, part), pieces)
            else:
                yield part, keep_rows(map(partial(assemble, part), pieces), columns)


def stored_columns(columns: ScanColumns) -> Columns:
    """The stored columns that ``assembled`` needs."""
    return (columns if columns.row_filter is None else columns.with_looked_at).stored


def assembled(
    part: SegmentRange, stored: Sequence[SegmentBatch], columns: ScanColumns
) -> Iterator[pa.RecordBatch]:
    """Batches of a range as those of a scan: what is read singly, with ``stored_columns``."""
    pieces = _pieces(iter(stored), columns)
    if columns.row_filter is None:
        return map(partial(_Assembler(columns), part), pieces)
    reading = _Assembler(columns.with_looked_at)
    return keep_rows(map(partial(reading, part), pieces), columns)


def _pieces(stored: Iterator[SegmentBatch], columns: ScanColumns) -> Iterator[SegmentBatch]:
    return json_pieces(stored) if columns.as_json else stored


class _Assembler:
    """Adds the columns that are not stored: topic, partition, offset, timestampType.

    The constant columns are made once and sliced, so they cost next to nothing per batch.
    """

    def __init__(self, columns: ScanColumns) -> None:
        self._columns = columns
        self._schema = columns.schema
        stored = () if columns.as_json else columns.stored
        self._stored = frozenset(stored.names if isinstance(stored, pa.Schema) else stored)
        """Those that are shown as they are stored; as JSON a column may be called as another."""
        self._constants: dict[str, tuple[object, pa.Array]] = {}
        """By column, the last value and an array of nothing else."""

    def __call__(self, part: SegmentRange, batch: SegmentBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(
            [self._column(name, part, batch) for name in self._columns.names], schema=self._schema
        )

    def _column(self, name: str, part: SegmentRange, batch: SegmentBatch) -> pa.Array:
        if self._columns.as_json and name in ("key", "value", "headers"):
            return self._json_column(name, batch)
        meaning = self._columns.meaning(name)
        if meaning == "offset":
            return arrow_of(batch.offsets() + part.segment.offset_shift)
        if meaning == "timestamp":
            milliseconds = timestamps_ms(batch.records)
            return arrow_of(milliseconds * np.int64(1000)).view(self._schema.field(name).type)
        if name in self._stored:
            column = batch.records.column(name)
            kind = self._schema.field(name).type
            return column if column.type == kind else column.cast(kind)
        if meaning == "topic":
            return self._constant(name, part.topic, batch.record_count)
        if meaning == "partition":
            return self._constant(name, part.partition, batch.record_count)
        stamped = part.log_append_time
        if part.segment.stored.kafka is not None:
            stamped = batch.header.is_log_append_time
        return self._constant(name, int(stamped), batch.record_count)

    def _json_column(self, name: str, batch: SegmentBatch) -> pa.Array:
        schema = self._columns.topic_schema
        assert schema is not None
        if name == "headers":
            return batch.records.column(HEADERS).cast(HEADERS_TYPE)
        if name == "value" and self._columns.as_rows:
            fields = [*self._schema.field(name).type]
            return pa.StructArray.from_arrays(
                [batch.records.column(of.name).cast(of.type) for of in fields], fields=fields
            )
        if name == "key":
            return json_keys(batch.records, schema, batch.record_count)
        return json_values(batch.records, schema)

    def _constant(self, name: str, value: int | str, length: int) -> pa.Array:
        known, array = self._constants.get(name, (None, None))
        if array is None or known != value or len(array) < length:
            array = constant_array(value, self._schema.field(name).type, length)
            self._constants[name] = value, array
        return array.slice(0, length)
