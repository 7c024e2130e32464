"""Keys of records: as bytes, and their hashes, by which they go to partitions.

Other hashes divide all keys into shares: what does not fit into memory is done share by share.

Compaction compares these bytes; what reads the newest record of each key must know when a key can
be in one partition alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from txnlog.segments.records import is_bytes, is_text

Hashes = npt.NDArray[np.uint32]

_SEED = np.uint32(0x9747B28C)
_M = np.uint32(0x5BD1E995)
_R = np.uint32(24)
FEW_KEYS: Final = 24
"""What is left of so many, if it is long, is hashed faster one key after the other."""
USUAL_BYTES: Final = 256
"""Of a key."""
_WORDS_AT_ONCE: Final = 1 << 16


def encode_keys(columns: Sequence[pa.Array], count: int) -> pa.Array:
    """The keys of records as bytes, by which they are hashed and compared, for ever.

    A key of one column of strings or bytes is these bytes, as in Kafka. Any other is, for each
    column in its order, a byte 1 and the value: whole numbers, dates (days) and times (in
    microseconds) as 8 bytes, big-endian; booleans as one byte; strings and bytes as they are,
    behind their length in 4 bytes.
    """
    if not columns:
        return pa.nulls(count, pa.binary())
    if len(columns) == 1 and (is_text(columns[0].type) or is_bytes(columns[0].type)):
        return columns[0].cast(pa.binary())
    parts = [part for column in columns for part in _key_parts(column)]
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))


def _key_parts(column: pa.Array) -> list[pa.Array]:
    kind = column.type
    if types.is_boolean(kind):
        return [_fixed(column.cast(pa.uint8()).to_numpy(zero_copy_only=False), "u1")]
    if types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us", kind.tz)).view(pa.int64())
    elif types.is_date32(kind):
        column = column.view(pa.int32())
    if types.is_integer(column.type):
        return [_fixed(column.to_numpy(zero_copy_only=False).astype(np.int64), ">i8")]
    texts = column.cast(pa.binary())
    lengths = pc.binary_length(texts).to_numpy(zero_copy_only=False)
    return [_fixed(lengths, ">u4"), texts]


def _fixed(values: npt.NDArray[Any], form: str) -> pa.Array:
    """A byte 1 and each value in a form of fixed width, as an Arrow array of bytes."""
    rows = np.empty(len(values), dtype=[("there", "u1"), ("value", form)])
    rows["there"], rows["value"] = 1, values
    width = rows.dtype.itemsize
    fixed = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(width), len(values), [None, pa.py_buffer(rows.tobytes())]
    )
    return fixed.cast(pa.binary())


def home_of(keys: pa.Array, partitions: int) -> npt.NDArray[np.int32]:
    """The partition of each key of a binary array by murmur2, as Kafka chooses it."""
    return (positive_murmur2(keys) % np.uint32(partitions)).astype(np.int32)


def positive_murmur2(keys: pa.Array) -> Hashes:
    """:func:`murmur2` without its sign: what Kafka divides by the number of partitions."""
    return murmur2(keys) & np.uint32(0x7FFFFFFF)


def murmur2(keys: pa.Array) -> Hashes:
    """Kafka's murmur2 of each value of a binary array; a null hashes like an empty key.

    The loop runs over the words of the keys, not over the keys; each turn works on the keys that
    still have a word left, until these are few: a single long one would take a turn for each of
    its words. Keys that are all of one length lie in memory as a matrix and need no gathering,
    which is several times faster. Facts: Kafka's ``Utils.murmur2``.
    """
    count = len(keys)
    if count == 0:
        return np.empty(0, dtype=np.uint32)
    data, starts, lengths = key_layout(keys)
    length = int(lengths[0])
    is_usual = count > FEW_KEYS or length <= USUAL_BYTES
    if is_usual and (lengths == length).all() and not keys.null_count:
        return _murmur2_matrix(data[starts[0] : starts[0] + count * length].reshape(count, length))
    return _murmur2_ragged(data, starts, lengths)


def key_layout(
    keys: pa.Array,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The bytes of a binary array, and where each value starts and how long it is (0: null)."""
    offsets = np.frombuffer(keys.buffers()[1], dtype=np.int32)[keys.offset :][: len(keys) + 1]
    data_buffer = keys.buffers()[2]
    data = np.frombuffer(data_buffer, dtype=np.uint8) if data_buffer else np.empty(0, np.uint8)
    lengths = np.diff(offsets).astype(np.int64)
    if keys.null_count:
        # The bytes under a null are undefined.
        lengths = np.where(keys.is_valid().to_numpy(zero_copy_only=False), lengths, 0)
    return data, offsets[:-1].astype(np.int64), lengths


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
        while active.size > FEW_KEYS or (active.size and word < USUAL_BYTES // 4):
            at = starts[active] + 4 * word
            k = data[at].astype(np.uint32)
            for byte in (1, 2, 3):
                k |= data[at + byte].astype(np.uint32) << np.uint32(8 * byte)
            some = hashes[active]
            _mix(some, k)
            hashes[active] = some
            word += 1
            active = active[words[active] > word]
        for key in active.tolist():
            left = data[starts[key] + 4 * word : starts[key] + 4 * words[key]]
            hashes[key] = _murmur2_words(int(hashes[key]), left.view("<u4"))
        tails = lengths % 4
        ends = starts + 4 * words
        for byte in (2, 1, 0):
            rest = np.flatnonzero(tails > byte)
            hashes[rest] ^= data[ends[rest] + byte].astype(np.uint32) << np.uint32(8 * byte)
        rest = np.flatnonzero(tails > 0)
        hashes[rest] *= _M
        return _finish(hashes)


def _murmur2_words(hashed: int, words: npt.NDArray[np.uint32]) -> int:
    """The hash of one key with more of its words."""
    factor = int(_M)
    for start in range(0, len(words), _WORDS_AT_ONCE):
        some = words[start : start + _WORDS_AT_ONCE].astype(np.uint32)
        _mix_words(some)
        for word in some.tolist():
            hashed = (hashed * factor & 0xFFFFFFFF) ^ word
    return hashed


def _mix_words(words: Hashes) -> None:
    words *= _M
    words ^= words >> _R
    words *= _M


def _mix(hashes: Hashes, words: Hashes) -> None:
    """Take one word of each key into its hash, in place."""
    _mix_words(words)
    hashes *= _M
    hashes ^= words


def _finish(hashes: Hashes) -> Hashes:
    hashes ^= hashes >> np.uint32(13)
    hashes *= _M
    hashes ^= hashes >> np.uint32(15)
    return hashes


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
