"""Which records stay: the newest of each key in the dirty part, and clean ones not superseded.

Records have positions, which ascend with their offsets, separately for clean and dirty ones; one
bit for each tells whether it stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from txnlog.admin.compaction.key_table import GatheredRows, KeyTable, size_of
from txnlog.columns.keys import WHOLE, KeyPart, Mask
from txnlog.segments.records import Int64Array

DEFAULT_MEMORY_BYTES: Final = 80 << 20
"""With this a compacting process grows by at most 256 MB, measured, read-ahead included."""

ReadKeys = Callable[[], Iterator[tuple[int, pa.Array]]]
"""Reads keys from the beginning, in pieces: the position of the first, and the keys (binary)."""


class Bits:
    """One bit for each of ``count`` positions, all of them zero at first."""

    def __init__(self, count: int) -> None:
        self._bytes = np.zeros(-(-count // 8), dtype=np.uint8)

    def set(self, positions: Int64Array) -> None:
        """Set these bits; they are in no order, without repeats."""
        bits = np.left_shift(1, positions & 7).astype(np.uint8)
        np.bitwise_or.at(self._bytes, positions >> 3, bits)

    def get(self, start: int, stop: int) -> Mask:
        """The bits of positions [start, stop)."""
        first = start >> 3
        unpacked = np.unpackbits(self._bytes[first : -(-stop // 8)], bitorder="little")
        chosen: npt.NDArray[np.uint8] = unpacked[start - 8 * first : stop - 8 * first]
        return chosen.view(np.bool_)

    def count(self, start: int, stop: int) -> int:
        """How many of positions [start, stop) are one."""
        step = 1 << 23
        return sum(
            int(np.count_nonzero(self.get(at, min(at + step, stop))))
            for at in range(start, stop, step)
        )


class Survivors:
    """Which records of the clean and of the dirty part stay."""

    def __init__(self, clean_count: int, dirty_count: int) -> None:
        self._superseded = Bits(clean_count)
        self._newest = Bits(dirty_count)

    def of_clean(self, start: int, stop: int) -> Mask:
        """Which of the clean records [start, stop) stay."""
        return ~self._superseded.get(start, stop)

    def of_dirty(self, start: int, stop: int) -> Mask:
        """Which of the dirty records [start, stop) stay."""
        return self._newest.get(start, stop)

    def superseded(self, start: int, stop: int) -> int:
        """How many of the clean records [start, stop) do not stay."""
        return self._superseded.count(start, stop)

    def add(self, table: KeyTable, read_clean: ReadKeys) -> None:
        """Apply one part of the keys."""
        for positions in table.positions():
            self._newest.set(positions)
        gathered = GatheredRows()
        for keys, positions in _with_positions(read_clean, self._superseded.set):
            if gathered.size_bytes + size_of(keys) > table.gather_bytes:
                self._supersede(table, gathered)
            gathered.add(keys, positions)
        self._supersede(table, gathered)

    def _supersede(self, table: KeyTable, gathered: GatheredRows) -> None:
        keys, positions = gathered.take()
        self._superseded.set(positions[table.holds(keys)])


def find_survivors(
    read_clean: ReadKeys,
    read_dirty: ReadKeys,
    clean_count: int,
    dirty_count: int,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
) -> Survivors:
    """Find the newest record of each key of the dirty part, and what it supersedes in the clean.

    Records without a key do not stay. Keys are read once, or, where they do not fit into
    ``memory_bytes``, once for each part of them that does; one bit for each record comes on top,
    and the storage's read-ahead. All positions in a part are below its count; ``read_clean`` reads
    each key once.
    """
    survivors = Survivors(clean_count, dirty_count)
    parts: list[KeyPart] = [WHOLE]
    while parts:
        table = KeyTable(memory_bytes, parts.pop())
        for keys, positions in _with_positions(read_dirty):
            table.add(keys, positions)
        table.finish()
        parts += table.given_up
        survivors.add(table, read_clean)
    return survivors


def _with_positions(
    read: ReadKeys, keyless: Callable[[Int64Array], None] | None = None
) -> Iterator[tuple[pa.Array, Int64Array]]:
    """Non-null keys, with their positions; ``keyless`` gets the positions of the others."""
    for first, keys in read():
        positions = np.arange(first, first + len(keys), dtype=np.int64)
        if keys.null_count:
            null = np.asarray(keys.is_null())
            if keyless is not None:
                keyless(positions[null])
            keys, positions = keys.drop_null(), positions[~null]
        yield keys, positions
