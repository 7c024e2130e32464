"""Cuts variable-length values out of one block of bytes, and lays them out in one, in bulk.

Both directions let Arrow copy: a block of bytes with offsets is a binary array, and taking some
of its elements is one memcpy each, with no loop in Python. Knows nothing of what the bytes mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from txnlog.segments.records import Int64Array

NULL_LENGTH: Final = -1


def cut(block: pa.Buffer, starts: Int64Array, lengths: Int64Array) -> pa.Array:
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


def value_lengths(array: pa.Array) -> Int64Array:
    """The length of each element of a binary or string array (32-bit offsets); -1 for null."""
    offsets = np.frombuffer(array.buffers()[1], dtype=np.int32)
    lengths = np.diff(offsets[array.offset : array.offset + len(array) + 1]).astype(np.int64)
    if array.null_count:
        lengths[array.is_null().to_numpy(zero_copy_only=False)] = NULL_LENGTH
    return lengths


def rows_of_bytes(data: npt.NDArray[np.uint8], sizes: Int64Array) -> pa.Array:
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
