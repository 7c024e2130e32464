"""Keys and the newest position of each, exactly, in bounded memory and without a loop over records.

Positions are any numbers that ascend in the order of records. Keys are compared byte for byte:
hashes only say which of them are processed together. If memory runs out, the table keeps half of
its part of the key space and leaves the other half for another pass, again and again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from txnlog.columns.keys import HASH_BITS, MOST_PART_BITS, WHOLE, Hashes, KeyPart, Mask, hash_keys
from txnlog.segments.arrays import as_array
from txnlog.segments.records import Int64Array

_Piece: TypeAlias = tuple[int, npt.NDArray[np.int32] | slice, pa.Array]

# Grouping takes several times the memory of its input, and is faster in the processor's cache: so a
# large table is grouped piece by piece.
_BUCKET_BITS = 5
_LEAST_BUCKETED_ROWS: Final = 1 << 16
# Arrow's columns of bytes end at 2 GiB.
_MOST_BYTES: Final = 1 << 29
_ROW_BYTES = 12  # per row besides its key's bytes: where they begin, and its position


def size_of(keys: pa.Array) -> int:
    """About how many bytes of memory rows with these keys take: only the slice's own."""
    offsets = np.frombuffer(keys.buffers()[1], dtype=np.int32) if len(keys) else np.zeros(1)
    first, last = int(offsets[keys.offset]), int(offsets[keys.offset + len(keys)])
    return last - first + _ROW_BYTES * len(keys)


class GatheredRows:
    """Keys with their positions, gathered until it is worthwhile to process them together."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._keys: list[pa.Array] = []
        self._positions: list[Int64Array] = []

    def add(self, keys: pa.Array, positions: Int64Array) -> None:
        if len(keys):
            self._keys.append(keys)
            self._positions.append(positions)
            self.size_bytes += size_of(keys)

    def take(self) -> tuple[pa.Array, Int64Array]:
        """Everything added since the last call."""
        keys = pa.concat_arrays(self._keys) if self._keys else pa.array([], pa.binary())
        self._keys = []
        positions = np.concatenate([np.empty(0, np.int64), *self._positions])
        self._positions, self.size_bytes = [], 0
        return keys, positions


@dataclass(slots=True, eq=False)
class _Bucket:
    """Keys, each once, with the newest position of each (int64); and those added since."""

    keys: pa.Array = field(default_factory=lambda: pa.array([], pa.binary()))
    positions: pa.Array = field(default_factory=lambda: pa.array([], pa.int64()))
    added: list[tuple[pa.Array, Int64Array]] = field(default_factory=list)

    def fold(self) -> None:
        """Merge the added keys in."""
        if not self.added:
            return
        added, self.added = self.added, []
        table = pa.table(
            {
                "key": pa.chunked_array([self.keys, *(keys for keys, _ in added)]),
                "position": pa.chunked_array([self.positions, *(at for _, at in added)]),
            }
        )
        found = table.group_by("key", use_threads=False).aggregate([("position", "max")])
        self.keys, self.positions = as_array(found["key"]), as_array(found["position_max"])

    def filter(self, inside: Mask) -> None:
        """Keep some of the keys."""
        mask = pa.array(inside)
        self.keys, self.positions = self.keys.filter(mask), self.positions.filter(mask)


class KeyTable:
    """The newest position of each key of one part of the key space.

    ``part`` is the part that it holds; it shrinks when there is no room for more, and the parts
    that it no longer holds are in ``given_up``. Memory: about ``memory_bytes``, or more if a few
    keys are larger than that.
    """

    def __init__(self, memory_bytes: int, part: KeyPart = WHOLE) -> None:
        self.part = part
        self.given_up: list[KeyPart] = []
        self._most_bytes = min(memory_bytes // 2, _MOST_BYTES)
        self._bucket_bits = 0
        self._buckets: dict[int, _Bucket] = defaultdict(_Bucket)
        self._added_rows = self._added_bytes = 0

    @property
    def gather_bytes(self) -> int:
        """How much is best gathered before it is processed, as ``size_of`` counts it."""
        return max((2 * self._most_bytes - self._size_bytes()) // 3, self._most_bytes // 3)

    def add(self, keys: pa.Array, positions: Int64Array) -> None:
        """Add keys (binary, no nulls) with their positions; those of other parts are ignored."""
        # First, because it may shrink the part.
        if self._added_bytes and self._added_bytes + size_of(keys) > self.gather_bytes:
            self.finish()
        hashes = None
        if self.part.bits:
            hashes = hash_keys(keys)
            inside = self.part.holds(hashes)
            keys, positions = keys.filter(pa.array(inside)), positions[inside]
            hashes = hashes[inside]
        if len(keys) == 0:
            return
        if self._bucket_bits == 0 and self._added_rows + len(keys) > _LEAST_BUCKETED_ROWS:
            self._divide()
        for number, rows, part in self._split(keys, hashes):
            self._buckets[number].added.append((part, positions[rows]))
        self._added_rows += len(keys)
        self._added_bytes += size_of(keys)

    def finish(self) -> None:
        """Merge the added keys into the table; called before lookups."""
        for bucket in self._buckets.values():
            bucket.fold()
        self._added_bytes = 0
        while self._size_bytes() > self._most_bytes and self.part.bits < MOST_PART_BITS:
            self._give_up_half()

    def positions(self) -> Iterator[Int64Array]:
        """The newest position of each key, in pieces, in no particular order."""
        for bucket in self._buckets.values():
            yield bucket.positions.to_numpy()

    def holds(self, keys: pa.Array) -> Mask:
        """Which of these keys (binary, no nulls) are in the table."""
        found = np.zeros(len(keys), dtype=np.bool_)
        for number, rows, part in self._split(keys):
            bucket = self._buckets.get(number)
            if bucket is not None:
                found[rows] = np.asarray(pc.is_in(part, value_set=bucket.keys))
        return found

    def _size_bytes(self) -> int:
        return sum(size_of(bucket.keys) for bucket in self._buckets.values())

    def _divide(self) -> None:
        """Switch from one bucket to many."""
        before = self._buckets.pop(0, _Bucket())
        self._bucket_bits = _BUCKET_BITS
        for keys, positions in ((before.keys, before.positions.to_numpy()), *before.added):
            for number, rows, part in self._split(keys):
                self._buckets[number].added.append((part, positions[rows]))

    def _give_up_half(self) -> None:
        self.part, other = self.part.halves()
        self.given_up.append(other)
        for bucket in self._buckets.values():
            inside = self.part.holds(hash_keys(bucket.keys))
            if not inside.all():
                bucket.filter(inside)

    def _split(self, keys: pa.Array, hashes: Hashes | None = None) -> Iterable[_Piece]:
        """The keys by bucket: its number, the rows' indices, and the keys."""
        if self._bucket_bits == 0:
            return [(0, slice(None), keys)]
        return _split_by_hash(keys, hash_keys(keys) if hashes is None else hashes)


def _split_by_hash(keys: pa.Array, hashes: Hashes) -> Iterator[_Piece]:
    # By the bits after those that choose a part, which all of its keys have in common.
    shift = np.uint32(HASH_BITS - MOST_PART_BITS - _BUCKET_BITS)
    numbers = (hashes >> shift).astype(np.uint8) & np.uint8((1 << _BUCKET_BITS) - 1)
    order = np.argsort(numbers, kind="stable").astype(np.int32)
    ordered = keys.take(pa.array(order))
    ends = np.cumsum(np.bincount(numbers, minlength=1 << _BUCKET_BITS))
    start = 0
    for number, stop in enumerate(int(end) for end in ends):
        if stop > start:
            yield number, order[start:stop], ordered.slice(start, stop - start)
        start = stop
