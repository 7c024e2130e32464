"""A footer's statistics about the values in a row group. Absent statistics say nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import types

from txnlog.segments.parquet.open_segment import ParquetSegment
from txnlog.segments.records import CONVERSION_ERRORS


@dataclass(frozen=True, slots=True, eq=False)
class ValueRange:
    """The values of a column lie in [least, most], scalars of its type; None: unknown.

    Floats may also be NaN. ``null_count`` of ``count`` values are null; None: unknown.
    """

    least: pa.Scalar | None
    most: pa.Scalar | None
    null_count: int | None
    count: int


def value_ranges(
    segment: ParquetSegment, group: int, wanted: Mapping[str, pa.Field]
) -> dict[str, ValueRange]:
    """The range of each column of a row group of which something is known.

    ``wanted``: by its name in the file, the column that is asked for: of whose name and type the
    range is. Nested ones are left out.
    """
    described = segment.footer.metadata.row_group(group)
    found: dict[str, ValueRange] = {}
    for name, field in wanted.items():
        kind = segment.schema.field(name).type
        if types.is_nested(kind):
            continue
        (leaf,) = segment.leaves[name]
        chunk = described.column(leaf)
        if chunk.is_stats_set:
            found[field.name] = _range_of(chunk.statistics, kind, field.type, chunk)
    return found


def _range_of(statistics: Any, stored: Any, kind: Any, chunk: Any) -> ValueRange:
    nulls = statistics.null_count if statistics.has_null_count else None
    least = most = None
    if statistics.has_min_max:
        least, most = _scalars(statistics, stored, kind)
    return ValueRange(least, most, nulls, chunk.num_values)


def _scalars(statistics: Any, stored: Any, kind: Any) -> tuple[pa.Scalar | None, pa.Scalar | None]:
    """Both ends as scalars of type ``kind``; None if they cannot be told exactly."""
    try:
        ends = [_scalar(statistics, end, stored).cast(kind) for end in ("min", "max")]
    except CONVERSION_ERRORS:
        return None, None
    return ends[0], ends[1]


def _scalar(statistics: Any, end: str, stored: Any) -> pa.Scalar:
    raw = getattr(statistics, f"{end}_raw")
    if types.is_date32(stored):
        return pa.scalar(raw, pa.int32()).cast(stored)
    if types.is_timestamp(stored):  # years that Python's datetime does not have are among them
        return pa.scalar(raw, pa.int64()).cast(stored)
    plain = types.is_integer(stored) or types.is_floating(stored) or types.is_boolean(stored)
    if plain:
        return pa.scalar(raw, stored)
    return pa.scalar(getattr(statistics, end), stored)
