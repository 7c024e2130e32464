"""Shares of all keys, by their hashes: what does not fit into memory is done share by share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from txnlog.columns.keys import Hashes, murmur2

Mask: TypeAlias = npt.NDArray[np.bool_]

HASH_BITS: Final = 32
MOST_PART_BITS: Final = 12
_SPREAD = np.uint32(0x9E3779B1)  # 2^32 divided by the golden ratio
_HASHED_BYTES = 64
_HASHED_ROWS = 1 << 15  # at once: what is worked on stays in the processor's cache


@dataclass(frozen=True, slots=True)
class KeyPart:
    """The keys whose hashes begin with the ``bits`` bits of ``number``."""

    bits: int = 0
    number: int = 0

    def halves(self) -> tuple[KeyPart, KeyPart]:
        return (
            KeyPart(self.bits + 1, 2 * self.number),
            KeyPart(self.bits + 1, 2 * self.number + 1),
        )

    def holds(self, hashes: Hashes) -> Mask:
        """Which of the keys with these hashes belong to it."""
        if self.bits == 0:
            return np.ones(len(hashes), dtype=np.bool_)
        chosen: Mask = hashes >> np.uint32(HASH_BITS - self.bits) == self.number
        return chosen


WHOLE: Final = KeyPart()


def hash_keys(keys: pa.Array) -> Hashes:
    """A hash whose first bits divide the keys of one partition evenly: uint32, one for each.

    Those of a partition may have the last bits of their murmur2 in common, so these are spread. Of
    long keys only both ends count, because the hash takes its time by the longest one.
    """
    hashes = np.empty(len(keys), dtype=np.uint32)
    for start in range(0, len(keys), _HASHED_ROWS):
        block = keys.slice(start, _HASHED_ROWS)
        hashes[start : start + len(block)] = _hash_block(block)
    hashes *= _SPREAD
    return hashes


def _hash_block(keys: pa.Array) -> Hashes:
    is_long = np.asarray(pc.greater(pc.binary_length(keys), 2 * _HASHED_BYTES))
    if not is_long.any():
        return murmur2(keys)
    long_keys = keys.filter(pa.array(is_long))
    hashes = np.empty(len(keys), dtype=np.uint32)
    hashes[~is_long] = murmur2(keys.filter(pa.array(~is_long)))
    hashes[is_long] = murmur2(pc.binary_slice(long_keys, 0, _HASHED_BYTES)) ^ (
        murmur2(pc.binary_slice(long_keys, -_HASHED_BYTES, None)) >> np.uint32(1)
    )
    return hashes
