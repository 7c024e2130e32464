"""Numbers between Arrow and numpy without ``pa.array``, ``pa.scalar`` and ``to_numpy``.

Those import pandas if it is installed, as with Spark: that took most of a process's first small
scan. Knows no records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_Numbers = npt.NDArray[Any]


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


def numbers_of_column(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """The whole numbers of a column without nulls. Raises ArrowInvalid: it has some."""
    return np.concatenate([np.empty(0, np.int64), *map(numbers_of, column.chunks)])


def as_array(column: pa.ChunkedArray) -> pa.Array:
    """A column as one array; without a copy if it is one."""
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def text_array(texts: Sequence[str]) -> pa.Array:
    """Texts of less than 2 GiB, none of them null."""
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
