"""Looks up the keys of batches among others, several batches at a time where there are many keys.

Each lookup takes in all keys that are looked among, which is most of its time if a batch is small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Final, TypeVar

import pyarrow as pa

from txnlog.segments.reader import SegmentBatch

B = TypeVar("B", pa.RecordBatch, SegmentBatch)

_MOST_WAITING_BYTES: Final = 32 << 20
_WORTH_TIMES: Final = 4
"""Batches wait until they have so many rows for each key, or take so many bytes together."""


def look_up(
    batches: Iterable[B],
    keys_of: Callable[[pa.RecordBatch], pa.Array],
    find: Callable[[pa.ChunkedArray], pa.ChunkedArray],
    among: int,
) -> Iterator[tuple[B, pa.Array]]:
    """Each batch, and what ``find`` says of its rows by their keys; ``among`` is of how many."""
    waiting: list[B] = []
    rows = size_bytes = 0
    for batch in chain(batches, [None]):
        if batch is not None:
            records = _records(batch)
            waiting.append(batch)
            rows += records.num_rows
            size_bytes += records.nbytes
            if rows < _WORTH_TIMES * among and size_bytes < _MOST_WAITING_BYTES:
                continue
        if waiting:
            keys = pa.chunked_array([keys_of(_records(other)) for other in waiting])
            found = find(keys).combine_chunks()
            start = 0
            for other in waiting:
                count = _records(other).num_rows
                yield other, found.slice(start, count)
                start += count
        waiting, rows, size_bytes = [], 0, 0


def _records(batch: pa.RecordBatch | SegmentBatch) -> pa.RecordBatch:
    return batch.records if isinstance(batch, SegmentBatch) else batch
