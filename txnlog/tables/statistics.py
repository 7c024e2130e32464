"""Statistics of columns from a file's footer, by which engines can skip the file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import types

from txnlog.segments.parquet.open_segment import leaves_of

Bound = int | float | str

_LONGEST_TEXT = 256
"""Longer texts are not used as bounds: a table's log would grow with them."""
_MICROS = {"ms": 1000, "us": 1}


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """The statistics of one column of a file; None: not known.

    Dates are days, times microseconds since 1970. Of floats with NaN there are no bounds, as in the
    footers of their files; ``nan_count`` is 0 where it is known that there is none.
    """

    null_count: int | None
    least: Bound | None = None
    largest: Bound | None = None
    nan_count: int | None = None


def column_statistics(
    metadata: Any,  # noqa: ANN401 - pyarrow has no types
    columns: pa.Schema,
    names: Mapping[str, str],
) -> dict[str, ColumnStatistics]:
    """The statistics of columns that are not nested, by their names in the table.

    ``names`` are those in the file, by these names; a column without one is null in all rows.
    """
    stored = metadata.schema.to_arrow_schema()
    leaves = leaves_of(stored)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    found = {}
    for field in columns:
        if types.is_nested(field.type):
            continue
        name = names.get(field.name)
        if name is None:
            found[field.name] = ColumnStatistics(metadata.num_rows)
        elif name in leaves:
            chunks = [group.column(leaves[name][0]) for group in groups]
            found[field.name] = _summarise(chunks, stored.field(name).type)
    return found


def _summarise(chunks: list[Any], kind: Any) -> ColumnStatistics:  # noqa: ANN401
    each = [chunk.statistics if chunk.is_stats_set else None for chunk in chunks]
    known = [statistics for statistics in each if statistics is not None]
    if len(known) < len(each) or not all(statistics.has_null_count for statistics in known):
        return ColumnStatistics(None)
    nulls = [statistics.null_count for statistics in known]
    # A row group of only nulls has no least value, and needs none.
    valued = [
        statistics
        for statistics, count, chunk in zip(known, nulls, chunks, strict=True)
        if count < chunk.num_values
    ]
    if not valued or not all(statistics.has_min_max for statistics in valued):
        return ColumnStatistics(sum(nulls))
    if types.is_floating(kind):
        low = min(float(one.min_raw) for one in valued)
        high = max(float(one.max_raw) for one in valued)
        return ColumnStatistics(sum(nulls), low, high, nan_count=0)
    least = [_bound(one, kind, "min") for one in valued]
    largest = [_bound(one, kind, "max") for one in valued]
    if None in least or None in largest:
        return ColumnStatistics(sum(nulls))
    return ColumnStatistics(sum(nulls), min(least), max(largest))


def _bound(statistics: Any, kind: Any, which: str) -> Any:  # noqa: ANN401
    """A bound in the form of :class:`ColumnStatistics`; None for types without one."""
    if types.is_string(kind):
        text = getattr(statistics, which)
        return text if isinstance(text, str) and len(text) <= _LONGEST_TEXT else None
    if not (types.is_signed_integer(kind) or types.is_date32(kind) or types.is_timestamp(kind)):
        return None
    raw = int(getattr(statistics, f"{which}_raw"))
    return raw * _MICROS[kind.unit] if types.is_timestamp(kind) else raw
