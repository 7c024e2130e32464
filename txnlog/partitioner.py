"""Which partition a record goes to, for whole columns at once.

Kafka's default: murmur2 of the key, so that a key lands where a Kafka producer with the same
number of partitions would put it. Records without a key take turns. An explicit partition wins.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Int32Array = npt.NDArray[np.int32]
Hashes = npt.NDArray[np.uint32]

_SEED = np.uint32(0x9747B28C)
_M = np.uint32(0x5BD1E995)
_R = np.uint32(24)


def murmur2(keys: pa.Array) -> Hashes:
    """Kafka's murmur2 of each value of a binary array; a null hashes like an empty key.

    The loop runs over the words of the longest key, not over the keys; each turn works on the
    keys that still have a word left. Keys that are all of one length lie in memory as a matrix
    and need no gathering, which is several times faster. Facts: Kafka's ``Utils.murmur2``.
    """
    count = len(keys)
    if count == 0:
        return np.empty(0, dtype=np.uint32)
    offsets = np.frombuffer(keys.buffers()[1], dtype=np.int32)[keys.offset :][: count + 1]
    data_buffer = keys.buffers()[2]
    data = np.frombuffer(data_buffer, dtype=np.uint8) if data_buffer else np.empty(0, np.uint8)
    starts = offsets[:-1].astype(np.int64)
    lengths = np.diff(offsets).astype(np.int64)
    if keys.null_count:
        # What lies under a null is undefined.
        lengths = np.where(keys.is_valid().to_numpy(zero_copy_only=False), lengths, 0)
    elif (lengths == lengths[0]).all():
        length = int(lengths[0])
        return _murmur2_matrix(data[starts[0] : starts[0] + count * length].reshape(count, length))
    return _murmur2_ragged(data, starts, lengths)


def _murmur2_matrix(keys: npt.NDArray[np.uint8]) -> Hashes:
    """The hash of each row of bytes."""
    count, length = keys.shape
    hashes = np.full(count, _SEED ^ np.uint32(length), dtype=np.uint32)
    whole = length - length % 4
    words = np.ascontiguousarray(keys[:, :whole]).view("<u4").reshape(count, whole // 4)
    with np.errstate(over="ignore"):
        for word in range(whole // 4):
            _mix(hashes, words[:, word].astype(np.uint32))
        if length % 4:
            for byte in range(length % 4 - 1, -1, -1):
                hashes ^= keys[:, whole + byte].astype(np.uint32) << np.uint32(8 * byte)
            hashes *= _M
        return _finish(hashes)


def _murmur2_ragged(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> Hashes:
    """The hash of each slice of ``data``."""
    hashes = _SEED ^ lengths.astype(np.uint32)
    words = lengths // 4
    active = np.flatnonzero(words > 0)
    word = 0
    with np.errstate(over="ignore"):
        while active.size:
            at = starts[active] + 4 * word
            k = data[at].astype(np.uint32)
            for byte in (1, 2, 3):
                k |= data[at + byte].astype(np.uint32) << np.uint32(8 * byte)
            some = hashes[active]
            _mix(some, k)
            hashes[active] = some
            word += 1
            active = active[words[active] > word]
        tails = lengths % 4
        ends = starts + 4 * words
        for byte in (2, 1, 0):
            rest = np.flatnonzero(tails > byte)
            hashes[rest] ^= data[ends[rest] + byte].astype(np.uint32) << np.uint32(8 * byte)
        rest = np.flatnonzero(tails > 0)
        hashes[rest] *= _M
        return _finish(hashes)


def _mix(hashes: Hashes, words: Hashes) -> None:
    """Take one word of each key into its hash, in place."""
    words *= _M
    words ^= words >> _R
    words *= _M
    hashes *= _M
    hashes ^= words


def _finish(hashes: Hashes) -> Hashes:
    hashes ^= hashes >> np.uint32(13)
    hashes *= _M
    hashes ^= hashes >> np.uint32(15)
    return hashes


class DefaultPartitioner:
    """Kafka's default partitioner for one topic; keeps whose turn it is among keyless records."""

    def __init__(self, partitions: int, first: int = 0) -> None:
        self._partitions = partitions
        self._turn = first % partitions

    def __call__(self, keys: pa.Array) -> Int32Array:
        """The partition of each record: int32, one for each key of a binary array."""
        hashes = murmur2(keys) & np.uint32(0x7FFFFFFF)
        chosen = (hashes % np.uint32(self._partitions)).astype(np.int32)
        if keys.null_count:
            keyless = np.flatnonzero(keys.is_null().to_numpy(zero_copy_only=False))
            chosen[keyless] = (self._turn + np.arange(keyless.size)) % self._partitions
            self._turn = (self._turn + keyless.size) % self._partitions
        return chosen
