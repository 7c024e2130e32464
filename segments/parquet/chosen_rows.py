"""Reads those rows of a Parquet segment that a choice wants: first the columns that it looks at.

Of row groups without such rows nothing else is read, nor anything of those that cannot have any.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, Protocol

import numpy as np
import pyarrow as pa

from txnlog.segments.parquet.footer import RowGroup
from txnlog.segments.parquet.reader import ParquetSegment, RowGroupRecords, keep_rows
from txnlog.segments.records import RECORD_SCHEMA, Int32Array
from txnlog.segments.schema_columns import Columns

_LOOKED_AT_BYTES: Final = 32 << 20
"""Of row groups with so many bytes of these columns, or of one, it is looked at once which rows are
wanted; then the other columns are read: the requests of both are in flight together."""


class RowChoice(Protocol):
    """Tells by some columns which rows of a segment are wanted."""

    @property
    def columns(self) -> Columns:
        """What it looks at: a part of the columns that are read."""

    def groups(self, segment: ParquetSegment, groups: Sequence[RowGroup]) -> Sequence[RowGroup]:
        """The row groups that may have such rows."""

    def rows(self, found: RowGroupRecords) -> pa.BooleanArray:
        """For each row whether it is wanted, by ``columns`` of it; never null."""


def read_chosen(
    segment: ParquetSegment,
    groups: Sequence[RowGroup],
    columns: Columns,
    max_uncompressed_bytes: int,
    choice: RowChoice,
) -> Iterator[RowGroupRecords]:
    """The rows of row groups that are wanted, as ``segment.read`` returns all of them."""
    rest = _without(columns, choice.columns)
    for some in _together(segment, choice.groups(segment, groups), choice.columns):
        chosen: list[tuple[RowGroupRecords, pa.BooleanArray]] = []
        for found in segment.read(some, choice.columns, max_uncompressed_bytes):
            rows = choice.rows(found)
            if not rows.true_count:
                continue
            records = keep_rows(found.records, rows)
            kept = RowGroupRecords(found.group, records, _offset_deltas(found, rows))
            if rest:
                chosen.append((kept, rows))
            else:
                yield _in_order(kept, kept.records, columns)
        if chosen:
            wanted = [kept.group for kept, _ in chosen]
            rows_of = [rows for _, rows in chosen]
            others = segment.read(wanted, rest, max_uncompressed_bytes, rows_of)
            for (kept, _), other in zip(chosen, others, strict=True):
                yield _in_order(kept, other.records, columns)


def _together(
    segment: ParquetSegment, groups: Sequence[RowGroup], columns: Columns
) -> Iterator[Sequence[RowGroup]]:
    """Row groups one after the other, as many at once as are not too large."""
    some: list[RowGroup] = []
    size_bytes = 0
    for group in groups:
        more = segment.column_bytes(group, columns)
        if some and size_bytes + more > _LOOKED_AT_BYTES:
            yield some
            some, size_bytes = [], 0
        some.append(group)
        size_bytes += more
    if some:
        yield some


def _without(columns: Columns, others: Columns) -> Columns:
    """Those of the columns that are not among others."""
    taken = frozenset(_names(others))
    if isinstance(columns, pa.Schema):
        return pa.schema([field for field in columns if field.name not in taken])
    return [name for name in _names(columns) if name not in taken]


def _names(columns: Columns) -> Sequence[str]:
    if isinstance(columns, pa.Schema):
        names: list[str] = columns.names
        return names
    return RECORD_SCHEMA.names if columns is None else columns


def _offset_deltas(found: RowGroupRecords, rows: pa.BooleanArray) -> Int32Array | None:
    """The offsets of the rows that are wanted; None: they are those of all, which are dense."""
    deltas = found.offset_deltas
    if rows.true_count == len(rows):
        return deltas
    # By numpy this takes a third of the time that Arrow's kernel takes.
    bits = np.unpackbits(np.frombuffer(rows.buffers()[1], np.uint8), bitorder="little")
    kept = bits[rows.offset : rows.offset + len(rows)].view(bool)
    return np.flatnonzero(kept).astype(np.int32) if deltas is None else deltas[kept]


def _in_order(kept: RowGroupRecords, others: pa.RecordBatch, columns: Columns) -> RowGroupRecords:
    """All columns of the chosen rows: those that were looked at, and the others."""
    names = _names(columns)
    if not names:
        return kept
    looked_at = frozenset(kept.records.schema.names)
    sources = [kept.records if name in looked_at else others for name in names]
    pairs = [*zip(sources, names, strict=True)]
    schema = columns
    if not isinstance(schema, pa.Schema):
        schema = pa.schema([source.schema.field(name) for source, name in pairs])
    arrays = [source.column(name) for source, name in pairs]
    return replace(kept, records=pa.RecordBatch.from_arrays(arrays, schema=schema))
