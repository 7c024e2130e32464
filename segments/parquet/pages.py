"""The pages of a column chunk: how much memory their values take, before they are decoded.

A page's header claims a size, which Arrow allocates; and a short page may name a long value of the
chunk's dictionary again and again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from txnlog.segments.batch_header import BytesLike
from txnlog.segments.parquet.compact_values import BOOLEAN, I32, read_struct, struct_of
from txnlog.segments.parquet.file_metadata import (
    BYTE_ARRAY,
    CODECS,
    DICTIONARY_ENCODINGS,
    ENCODINGS,
    STATISTICS,
    ColumnChunk,
)

_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3
_HEADER: Final = {
    1: I32,
    2: I32,
    3: I32,
    4: I32,
    5: struct_of({1: I32, 2: I32, 3: I32, 4: I32, 5: STATISTICS}),
    7: struct_of({1: I32, 2: I32, 3: BOOLEAN}),
    8: struct_of({**dict.fromkeys(range(1, 7), I32), 7: BOOLEAN, 8: STATISTICS}),
}
_PARTS: Final = {_DATA: 5, _DICTIONARY: 7, _DATA_V2: 8}
_ENCODING: Final = {_DATA: 2, _DICTIONARY: 2, _DATA_V2: 4}
_HEADER_BYTES: Final = 128
"""More than a page's header takes, unless it has long bounds; then it takes at most this:"""
_LONG_HEADER_BYTES: Final = 16 << 20
_LENGTH: Final = struct.Struct("<I")
_MOST_WALKED: Final = 1 << 17
"""Values of a dictionary that are looked at one by one, in a few hundredths of a second. Those of
more are counted as pages name them, if that matters."""


ReadChunk: TypeAlias = Callable[[int, int], BytesLike]
"""Reads bytes [start, stop) of a chunk, fewer only at its end."""


@dataclass(slots=True)
class PageSizes:
    """What the pages of a chunk claim.

    ``plain_bytes`` are those of pages that have their values, ``named_count`` values are named by
    others; ``dictionary`` is where these values are, from the chunk's beginning,
    ``dictionary_bytes`` their uncompressed size, and ``dictionary_count`` how many they are.
    """

    uncompressed_bytes: int = 0
    plain_bytes: int = 0
    named_count: int = 0
    dictionary: tuple[int, int] | None = None
    dictionary_bytes: int = 0
    dictionary_count: int = 0


def page_sizes(chunk: ColumnChunk, read: ReadChunk) -> PageSizes:
    """Read the headers of a chunk's pages.

    Raises ValueError: they contradict the footer, or segments have no such pages.
    """
    try:
        return _read_pages(chunk, read)
    except (IndexError, OverflowError):
        raise ValueError("a page ends within its header") from None
    except KeyError as error:
        raise ValueError(f"a page's header has no field {error}") from None


def _read_header(read: ReadChunk, at: int) -> tuple[dict[int, Any], int]:
    """A page's header, and the position after it."""
    for size_bytes in (_HEADER_BYTES, _LONG_HEADER_BYTES):
        try:
            header, length = read_struct(read(at, at + size_bytes), 0, _HEADER)
        except (IndexError, ValueError):
            if size_bytes == _LONG_HEADER_BYTES:
                raise
        else:
            return header, at + length
    raise AssertionError


def _read_pages(chunk: ColumnChunk, read: ReadChunk) -> PageSizes:
    sizes = PageSizes()
    at = count = 0
    while count < chunk.value_count or (at == 0 and chunk.size_bytes):
        header, body = _read_header(read, at)
        kind, uncompressed, compressed = header[1], header[2], header[3]
        if kind not in _PARTS:
            raise ValueError(f"a page is of type {kind}")
        part = header[_PARTS[kind]]
        values, encoding = part[1], part[_ENCODING[kind]]
        is_first, at = at == 0, body + compressed
        if min(uncompressed, compressed, values) < 0 or at > chunk.size_bytes:
            raise ValueError(f"a page claims {values} values in {compressed} bytes")
        if encoding not in ENCODINGS:
            raise ValueError(f"values are in encoding {encoding}, which no segment has")
        if kind == _DATA_V2 and (
            min(part[5], part[6]) < 0 or part[5] + part[6] > min(uncompressed, compressed)
        ):
            raise ValueError("a page's levels are longer than it is")
        sizes.uncompressed_bytes += uncompressed
        if kind == _DICTIONARY:
            if not is_first:  # some footers say nothing of it, and values begin with it
                raise ValueError("a dictionary is not at the beginning")
            sizes.dictionary, sizes.dictionary_bytes = (body, at), uncompressed
            sizes.dictionary_count = values
            continue
        count += values
        if encoding in DICTIONARY_ENCODINGS:
            sizes.named_count += values
        else:
            sizes.plain_bytes += uncompressed
    if count != chunk.value_count:
        raise ValueError(f"its pages have {count} values, the footer says {chunk.value_count}")
    return sizes


def count_values(pages: memoryview) -> int:
    """How many values the headers of pages claim that follow each other, without a dictionary.

    Of nested columns they are more than rows. Raises ValueError.
    """
    at = count = 0
    try:
        while at < len(pages):
            header, at = _read_header(lambda start, stop: pages[start:stop], at)
            at += header[3]
            count += header[_PARTS[header[1]]][1]
            if header[3] < 0:
                raise ValueError(f"a page claims {header[3]} bytes")
    except (IndexError, OverflowError):
        raise ValueError("a page ends within its header") from None
    except KeyError as error:
        raise ValueError(f"a page's header has no field {error}") from None
    return count


def most_decoded_bytes(chunk: ColumnChunk, sizes: PageSizes, read: ReadChunk, most: int) -> int:
    """At most how many bytes the values of a chunk of texts take; about, if it is over ``most``.

    Raises ValueError: its dictionary does not decompress, or claims more values than it has.
    """
    assert chunk.leaf.kind == BYTE_ARRAY
    size, count = sizes.dictionary_bytes, sizes.dictionary_count
    if count * _LENGTH.size > size:
        raise ValueError(f"a dictionary claims {count} values in {size} bytes")
    if sizes.plain_bytes + sizes.named_count * size <= most:
        return sizes.plain_bytes + sizes.named_count * size
    if sizes.dictionary is None or size > most:
        return sizes.plain_bytes + size
    if count > _MOST_WALKED:  # each of the others takes at least its length
        return sizes.plain_bytes + sizes.named_count * (size - count * _LENGTH.size)
    name = CODECS[chunk.codec]
    values: Any = read(*sizes.dictionary)
    if name is not None:
        values = pa.Codec(name).decompress(values, decompressed_size=size)
    return sizes.plain_bytes + sizes.named_count * _longest(memoryview(values), count)


def _longest(values: memoryview, most_count: int) -> int:
    """The length in bytes of the longest of at most ``most_count`` values in plain encoding.

    In that encoding each value follows its own length.
    """
    size = len(values)
    if size >= _LENGTH.size:
        (length,) = _LENGTH.unpack_from(values)
        count, rest = divmod(size, _LENGTH.size + length)
        if not rest:  # mostly all have the same length, and a loop over each takes long
            rows = np.frombuffer(values, np.uint8).reshape(count, -1)
            if bool((rows[:, : _LENGTH.size] == rows[0, : _LENGTH.size]).all()):
                return int(length)
    at = longest = 0
    unpack, head = _LENGTH.unpack_from, _LENGTH.size
    for _ in range(most_count):
        if at >= size:
            break
        (length,) = unpack(values, at)
        longest = max(longest, length)
        at += head + length
    return longest
