"""A part of a row group as a Parquet file of its own, in memory: its pages, and a footer.

Arrow reads whole column chunks. So the bytes of a few pages are put together, and described by a
footer that is made here, of which nothing is taken from the file but its schema, which was checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from txnlog.segments.parquet.compact_values import field_head, varint
from txnlog.segments.parquet.file_metadata import ColumnChunk, FileMetadata
from txnlog.segments.parquet.footer import MAGIC, RowGroup, with_tail
from txnlog.segments.parquet.pages import count_values

_I32, _I64, _BINARY, _LIST, _STRUCT = 5, 6, 8, 9, 12
_MANY: Final = 15
_ENCODINGS: Final = (0, 3, 8)
_ARROW_SCHEMA: Final = b"ARROW:schema"

BytesOf = Callable[[range], memoryview]
"""The bytes of a range of the file."""


class PartFile:
    """``data`` are the bytes before the footer ``end``; ``chunks`` lie in them, by leaf."""

    def __init__(
        self, described: FileMetadata, group: RowGroup, leaves: Sequence[int], bytes_of: BytesOf
    ) -> None:
        """Raises ValueError: its pages do not have the values that they must have."""
        dictionaries = group.dictionaries
        assert dictionaries is not None
        pieces: list[memoryview] = [memoryview(MAGIC)]
        self.chunks: dict[int, ColumnChunk] = {}
        position, row_count = len(MAGIC), group.header.record_count
        for leaf in leaves:
            chunk = group.chunks[leaf]
            pages = bytes_of(range(chunk.position, chunk.position + chunk.size_bytes))
            count = count_values(pages) if chunk.leaf.is_nested else row_count
            if count < row_count:
                raise ValueError(f"{count} values are claimed for {row_count} rows")
            if leaf in dictionaries:
                pieces.append(bytes_of(dictionaries[leaf]))
            pieces.append(pages)
            size_bytes = len(pages) + len(dictionaries.get(leaf, ()))
            self.chunks[leaf] = replace(
                chunk, value_count=count, position=position, size_bytes=size_bytes
            )
            position += size_bytes
        self.data = b"".join(pieces)
        sizes = {leaf: len(where) for leaf, where in dictionaries.items()}
        self.end = _end(described, self.chunks, sizes, row_count)

    def read(self, leaf: int, start: int, stop: int) -> memoryview:
        """Bytes [start, stop) of a chunk, fewer only at its end."""
        chunk = self.chunks[leaf]
        last = min(stop, chunk.size_bytes)
        return memoryview(self.data)[chunk.position + start : chunk.position + last]


def _end(
    described: FileMetadata,
    chunks: Mapping[int, ColumnChunk],
    dictionary_bytes: Mapping[int, int],
    row_count: int,
) -> bytes:
    """The footer of a file with one row group, which has these chunks; others have no values."""
    columns = []
    for number, leaf in enumerate(described.leaves):
        chunk = chunks.get(number)
        if chunk is None:
            chunk = ColumnChunk(leaf, 0, 0, len(MAGIC), 0, 0, False, None, None)
        columns.append(_column(chunk, dictionary_bytes.get(number, 0)))
    total = sum(chunk.uncompressed_bytes for chunk in chunks.values())
    group = (
        field_head(0, 1, _LIST) + _list(_STRUCT, columns)
        + _number(1, 2, total, _I64) + _number(2, 3, row_count, _I64) + b"\0"
    )  # fmt: skip
    pairs = b""
    if _ARROW_SCHEMA in described.pairs:
        pair = _text(0, 1, _ARROW_SCHEMA) + _text(1, 2, described.pairs[_ARROW_SCHEMA]) + b"\0"
        pairs = field_head(4, 5, _LIST) + _list(_STRUCT, [pair])
    return with_tail(b"".join([
        _number(0, 1, 2, _I32), field_head(1, 2, _LIST), described.schema,
        _number(2, 3, row_count, _I64), field_head(3, 4, _LIST), _list(_STRUCT, [group]), pairs,
        b"\0",
    ]))  # fmt: skip


def _column(chunk: ColumnChunk, dictionary_bytes: int) -> bytes:
    leaf, at = chunk.leaf, chunk.position
    encodings = [varint(number << 1) for number in _ENCODINGS]
    path = [varint(len(name)) + name for name in leaf.path]
    described = [
        _number(0, 1, leaf.kind, _I32), field_head(1, 2, _LIST), _list(_I32, encodings),
        field_head(2, 3, _LIST), _list(_BINARY, path), _number(3, 4, chunk.codec, _I32),
        _number(4, 5, chunk.value_count, _I64), _number(5, 6, chunk.uncompressed_bytes, _I64),
        _number(6, 7, chunk.size_bytes, _I64), _number(7, 9, at + dictionary_bytes, _I64),
    ]  # fmt: skip
    if dictionary_bytes:
        described.append(_number(9, 11, at, _I64))
    return b"".join([
        _number(0, 2, at, _I64), field_head(2, 3, _STRUCT), *described, b"\0\0"
    ])  # fmt: skip


def _number(before: int, field: int, value: int, kind: int) -> bytes:
    return field_head(before, field, kind) + varint(value << 1)


def _text(before: int, field: int, value: bytes) -> bytes:
    return field_head(before, field, _BINARY) + varint(len(value)) + value


def _list(kind: int, elements: Sequence[bytes]) -> bytes:
    count = len(elements)
    head = bytes([min(count, _MANY) << 4 | kind])
    return b"".join([head, varint(count) if count >= _MANY else b"", *elements])
