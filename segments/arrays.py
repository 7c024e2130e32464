"""Arrow's arrays from memory and back, in bulk. Knows no records.

Numbers pass without ``pa.array``, ``pa.scalar`` and ``to_numpy``: these import pandas if it is
installed, as with Spark, which took most of a process's first small scan.

Values of variable length are cut out of one block of bytes, and laid out in one: a block with
offsets is a binary array, and taking some of its elements is one memcpy each, with no loop in
Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_Numbers = npt.NDArray[Any]
_Int64s = npt.NDArray[np.int64]


def arrow_of(numbers: _Numbers) -> pa.Array:
    """An array over the same memory, which must be contiguous. Not for booleans."""
    kind = pa.from_numpy_dtype(numbers.dtype)
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


def numbers_of(array: pa.Array) -> _Numbers:
    """The numbers of an array without nulls, over the same memory. Raises ArrowInvalid: it has."""
    if array.null_count:
        raise pa.ArrowInvalid(f"{array.null_count} of {len(array)} numbers are null")
    kind = np.dtype(array.type.to_pandas_dtype())
    data = array.buffers()[1]
    if not len(array) or data is None:
        return np.empty(0, kind)
    return np.frombuffer(data, kind, len(array), array.offset * kind.itemsize)


def numbers_of_column(column: pa.ChunkedArray) -> _Int64s:
    """The whole numbers of a column without nulls. Raises ArrowInvalid: it has some."""
    return np.concatenate([np.empty(0, np.int64), *map(numbers_of, column.chunks)])


def as_array(column: pa.ChunkedArray) -> pa.Array:
    """A column as one array; not copied if it has one chunk."""
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def text_array(texts: Sequence[str]) -> pa.Array:
    """An array of texts, of less than 2 GiB together and none of them null."""
    encoded = [text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(encoded), buffers)


def constant_array(value: int | str, kind: pa.DataType, count: int) -> pa.Array:
    """``count`` times a number, or a text of type ``string``."""
    if not isinstance(value, str):
        return arrow_of(np.full(count, value, dtype=kind.to_pandas_dtype()))
    data = value.encode()
    ends = np.arange(count + 1, dtype=np.int64) * len(data)
    if ends[-1] > np.iinfo(np.int32).max:
        raise pa.ArrowCapacityError(f"{count} times {len(data)} bytes are too many for an array")
    buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(data * count)]
    return pa.Array.from_buffers(kind, count, buffers)


NULL_LENGTH: Final = -1


def cut(block: pa.Buffer, starts: _Int64s, lengths: _Int64s) -> pa.Array:
    """A binary array of the values at ``starts``; a length of -1 is null. It owns its bytes.

    Values lie in the block (under 2 GiB), in order, and do not overlap: the caller has checked it.
    """
    count = len(starts)
    if count == 0:
        return pa.array([], pa.binary())
    null = lengths == NULL_LENGTH
    has_null = bool(null.any())
    # Values and what lies between them take turns: one array of twice as many elements.
    offsets = np.empty(2 * count, dtype=np.int32)
    offsets[0::2] = starts
    np.add(starts, lengths, out=offsets[1::2], casting="unsafe")
    if has_null:
        offsets[1::2][null] = offsets[0::2][null]
    pieces = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(offsets), block])
    places = np.arange(0, 2 * count, 2, dtype=np.int32)
    return pieces.take(pa.array(places, mask=null if has_null else None))


def value_lengths(array: pa.Array) -> _Int64s:
    """The length of each element of a binary or string array (32-bit offsets); -1 for null."""
    offsets = np.frombuffer(array.buffers()[1], dtype=np.int32)
    lengths = np.diff(offsets[array.offset : array.offset + len(array) + 1]).astype(np.int64)
    if array.null_count:
        lengths[array.is_null().to_numpy(zero_copy_only=False)] = NULL_LENGTH
    return lengths


def rows_of_bytes(data: npt.NDArray[np.uint8], sizes: _Int64s) -> pa.Array:
    """A binary array over ``data``, without copying: element n has the next ``sizes[n]`` bytes."""
    offsets = np.zeros(len(sizes) + 1, dtype=np.int32)
    np.cumsum(sizes, out=offsets[1:])
    return pa.Array.from_buffers(
        pa.binary(), len(sizes), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def interleave(parts: Sequence[pa.Array], count: int) -> pa.Array:
    """Element n of every part, one after the other, for each n below ``count``.

    Parts are binary and have ``count`` elements, or one that stands for all; nulls take no bytes.
    All bytes together are under 2 GiB. What is returned starts at offset 0, so that its data
    buffer is the bytes of all of it, in order.
    """
    places = np.empty((count, len(parts)), dtype=np.int32)
    first = 0
    for number, part in enumerate(parts):
        places[:, number] = first if len(part) == 1 else np.arange(first, first + count)
        first += len(part)
    return pa.concat_arrays(parts).take(pa.array(places.reshape(-1)))


def all_bytes(array: pa.Array) -> memoryview:
    """The bytes of all elements of an array that starts at offset 0, without copying."""
    offsets = np.frombuffer(array.buffers()[1], dtype=np.int32)
    data = array.buffers()[2]
    if data is None:
        return memoryview(b"")
    return memoryview(data).cast("B")[: int(offsets[len(array)])]
