"""Parquet footers with something changed: without some bounds, or with other names of columns.

Of a footer no more is understood than that takes. Everything else stays byte for byte.

The least and the largest values of a chunk leave out NaN, which Spark takes for the largest number
of all and Arrow for one that differs from every number. And where they are equal, as -0.0 and 0.0
are, Arrow puts the least in the place of each value, though its sets tell these two apart. Engines
that go by them would pass over rows. So chunks with a NaN, or with nothing but zeros, have none.
Arrow's writer only knows columns without statistics in all of a file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from txnlog.segments.parquet.compact_values import CompactReader, field_head, varint
from txnlog.segments.schema_columns import children

Chunk: TypeAlias = tuple[int, int]
"""The number of a row group, and of a Parquet column in it."""

# Fields of FileMetaData, RowGroup, ColumnChunk, ColumnMetaData and Statistics.
_ROW_GROUPS: Final = 4
_COLUMNS: Final = 1
_META_DATA: Final = 3
_COLUMN_INDEX: Final = frozenset({6, 7})  # where that of the chunk lies, and its length
_STATISTICS: Final = 12
_BOUNDS: Final = frozenset({1, 2, 5, 6, 7, 8})  # the count of nulls stays

_Edit: TypeAlias = Callable[[int], None]


def float_leaves(schema: pa.Schema) -> dict[int, list[int]]:
    """The Parquet columns with floats, nested ones too: by number, the path to each.

    A path is the index of a column, and those of fields within it.
    """
    leaves = enumerate(_leaves([*schema], []))
    return {number: path for number, (path, kind) in leaves if types.is_floating(kind)}


def _leaves(fields: Iterable[pa.Field], path: list[int]) -> Iterator[tuple[list[int], Any]]:
    for at, field in enumerate(fields):
        inner = children(field.type)
        if inner:
            yield from _leaves(inner, [*path, at])
        else:
            yield [*path, at], field.type


def misleads(pieces: Sequence[pa.RecordBatch], path: Sequence[int]) -> bool:
    """Whether rows may be passed over by the bounds of the floats to which the path leads."""
    arrays = [_leaf(piece, path) for piece in pieces]
    if any(pc.any(pc.is_nan(array)).as_py() for array in arrays):
        return True
    if any(pc.any(pc.not_equal(array, pa.scalar(0, array.type))).as_py() for array in arrays):
        return False
    return any(len(array) > array.null_count for array in arrays)


def _leaf(piece: pa.RecordBatch, path: Sequence[int]) -> pa.Array:
    array = piece.column(path[0])
    for at in path[1:]:
        array = _child(array, at)
    return array


def _child(array: pa.Array, at: int) -> pa.Array:
    if types.is_struct(array.type):
        return array.field(at)
    parts = (array.keys, array.items) if types.is_map(array.type) else (array.values,)
    start, stop = array.offsets[0].as_py(), array.offsets[-1].as_py()
    return parts[at].slice(start, stop - start)


def without_bounds(footer: bytes, chunks: Collection[Chunk]) -> bytes:
    """The footer, without its length and the magic, in which these chunks have no bounds.

    Neither for the chunk nor for its pages. Raises ValueError: it is no footer.
    """
    return _Editing(footer, chunks).edited()


class _Editing:
    """Leaves fields out of a footer, and adjusts the numbers in the heads of fields after them."""

    def __init__(self, footer: bytes, chunks: Collection[Chunk]) -> None:
        self._footer = footer
        self._reader = CompactReader(footer)
        self._chunks = chunks
        self._pieces: list[bytes] = []
        self._copied = 0

    def edited(self) -> bytes:
        for field, kind in self._reader.fields():
            if field == _ROW_GROUPS:
                self._each(self._row_group)
            else:
                self._reader.skip(kind)
        return b"".join([*self._pieces, self._footer[self._copied :]])

    def _each(self, edit: _Edit) -> None:
        for number in range(self._reader.list_head()[0]):
            edit(number)

    def _row_group(self, number: int) -> None:
        for field, kind in self._reader.fields():
            if field == _COLUMNS:
                self._each(lambda leaf: self._chunk((number, leaf)))
            else:
                self._reader.skip(kind)

    def _chunk(self, chunk: Chunk) -> None:
        if chunk in self._chunks:
            self._struct(_COLUMN_INDEX, {_META_DATA: self._meta_data})
        else:
            for _, kind in self._reader.fields():
                self._reader.skip(kind)

    def _meta_data(self) -> None:
        self._struct(frozenset(), {_STATISTICS: lambda: self._struct(_BOUNDS, {})})

    def _struct(self, left_out: frozenset[int], edits: dict[int, Callable[[], None]]) -> None:
        """Copy a struct without some fields, and with others edited."""
        reader, before, is_behind = self._reader, 0, False
        for field, kind in reader.fields():
            head_at = reader.head_at
            if field in left_out:
                reader.skip(kind)
                self._replace(head_at, reader.at, b"")
                is_behind = True
                continue
            if is_behind:
                self._replace(head_at, reader.at, field_head(before, field, kind))
                is_behind = False
            before = field
            if field in edits:
                edits[field]()
            else:
                reader.skip(kind)

    def _replace(self, start: int, stop: int, by: bytes) -> None:
        self._pieces += [self._footer[self._copied : start], by]
        self._copied = stop


_LENGTH_BYTES: Final = 4
_TAIL_BYTES: Final = 8  # the footer's length and the magic

# Fields of Parquet's FileMetaData and SchemaElement.
_SCHEMA: Final = 2
_NAME: Final = 4
_FIELD_ID: Final = 9


def rename_columns(tail: bytes, names: Mapping[int, str]) -> bytes:
    """The end of a file, from its footer on, where columns have these names by their ids.

    Columns with other ids get names that no column of a topic has; those without one keep theirs.
    Raises ValueError: it is no such footer.
    """
    footer = tail[:-_TAIL_BYTES]
    pieces, position = [], 0
    for start, stop, number in _find_names(CompactReader(footer)):
        name = names.get(number, f"\0{number}").encode()
        pieces += [footer[position:start], varint(len(name)), name]
        position = stop
    renamed = b"".join([*pieces, footer[position:]])
    return renamed + len(renamed).to_bytes(_LENGTH_BYTES, "little") + tail[-_LENGTH_BYTES:]


def _find_names(footer: CompactReader) -> list[tuple[int, int, int]]:
    """For each column with an id, the position of its name, length included, and the id."""
    found = []
    for field, kind in footer.fields():
        if field != _SCHEMA:
            footer.skip(kind)
            continue
        for _ in range(footer.list_head()[0]):
            place = _find_name(footer)
            if place is not None:
                found.append(place)
    return found


def _find_name(footer: CompactReader) -> tuple[int, int, int] | None:
    start = stop = number = -1
    for field, kind in footer.fields():
        before = footer.at
        if field == _FIELD_ID:
            number = footer.integer()
            continue
        footer.skip(kind)
        if field == _NAME:
            start, stop = before, footer.at
    return (start, stop, number) if start >= 0 and number >= 0 else None
