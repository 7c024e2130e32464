"""How a Parquet segment's columns are stored: which have dictionaries, and where pages end.

A dictionary of values that are nearly all different makes a file larger, and dearer to read. And
where the pages of all columns end at the same rows, a reader that wants a few rows decodes a page
of each column, not the row group.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from inspect import signature
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from txnlog.segments.records import RECORD_SCHEMA
from txnlog.segments.schema_columns import children

_SAMPLE_ROWS: Final = 4096
MOST_DICTIONARY_BYTES: Final = 128 << 10
"""What a dictionary may take: values of a larger one lie all over the memory, and cost a reader
more than those that follow each other. Arrow ends one that is larger, and stores the other values
as they are.
"""
_LENGTH_BYTES: Final = 4
_PAGE_ROWS: Final = 20_000
"""The most rows of a page, as Arrow has it."""
_RECORD_PAGE_BYTES: Final = 1 << 20
_TYPED_PAGE_BYTES: Final = 4 << 20
"""The size of one page of each column together, before they are encoded. Of records little: a
consumer decodes a page for its first one. Typed rows have many columns, and each page a header.
"""
LARGEST_PAGE_BYTES: Final = 64 << 20
"""No page ends by its size alone: its rows would not be those of the others."""


def page_rows(records: pa.Table) -> int:
    """How many rows a page of each column is to have, by the size of the first ones."""
    is_typed = records.schema.names[: len(RECORD_SCHEMA)] != RECORD_SCHEMA.names
    row_bytes: int = max(records.nbytes // max(records.num_rows, 1), 1)
    most_bytes = _TYPED_PAGE_BYTES if is_typed else _RECORD_PAGE_BYTES
    return max(min(most_bytes // row_bytes, _PAGE_ROWS), 1)


@cache
def has_page_rows() -> bool:
    """Whether pyarrow's writer can be told how many rows a page has."""
    from pyarrow import parquet

    return "max_rows_per_page" in signature(parquet.ParquetWriter).parameters


def dictionary_leaves(records: pa.Table) -> list[str]:
    """The paths of the Parquet columns for which a dictionary pays, judged by the first rows.

    Nested ones have one always.
    """
    return [
        path
        for field, column in zip(records.schema, records.columns, strict=True)
        if children(field.type) or _repeats(column)
        for path in _paths(field.name, field.type)
    ]


def _repeats(column: pa.ChunkedArray) -> bool:
    """Whether a column has few values, as far as its first rows tell."""
    rows, kind = len(column), column.type
    if types.is_boolean(kind) or types.is_null(kind):
        return False
    sample = column.slice(0, _SAMPLE_ROWS)
    count, distinct = len(sample), pc.count_distinct(sample, mode="all").as_py()
    value_bytes = sample.nbytes // max(count, 1) + _LENGTH_BYTES
    if 2 * distinct <= count:
        return bool(distinct * value_bytes <= MOST_DICTIONARY_BYTES)
    # Of d values that are equally frequent, n rows repeat about n * n / 2 / d.
    expected = count * count // max(2 * (count - distinct), 1)
    return count < rows and 2 * expected <= rows and expected * value_bytes <= MOST_DICTIONARY_BYTES


def _paths(path: str, kind: pa.DataType) -> Iterator[str]:
    """The paths of a column's Parquet columns, as Arrow's writer calls them."""
    if types.is_struct(kind):
        for field in children(kind):
            yield from _paths(f"{path}.{field.name}", field.type)
    elif types.is_map(kind):
        yield from _paths(f"{path}.key_value.key", kind.key_type)
        yield from _paths(f"{path}.key_value.value", kind.item_type)
    elif children(kind):
        yield from _paths(f"{path}.list.element", kind.value_type)
    else:
        yield path
