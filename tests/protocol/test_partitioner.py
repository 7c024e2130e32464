"""Partitioning whole columns as Kafka partitions single records."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from txnlog.partitioner import DefaultPartitioner, murmur2


def murmur2_of(key: bytes) -> int:
    """The plain algorithm, one key at a time; shares no code with the one under test."""
    mask = 0xFFFFFFFF
    h = 0x9747B28C ^ len(key)
    for at in range(0, len(key) - len(key) % 4, 4):
        k = int.from_bytes(key[at : at + 4], "little") * 0x5BD1E995 & mask
        k = (k ^ (k >> 24)) * 0x5BD1E995 & mask
        h = (h * 0x5BD1E995 & mask) ^ k
    tail = key[len(key) - len(key) % 4 :]
    if tail:
        h = (h ^ int.from_bytes(tail, "little")) * 0x5BD1E995 & mask
    h = (h ^ (h >> 13)) * 0x5BD1E995 & mask
    return h ^ (h >> 15)


@pytest.mark.parametrize(
    ("key", "expected"), [(b"21", -973932308), (b"foobar", -790332482), (b"abc", 479470107)]
)
def test_kafkas_vectors(key: bytes, expected: int) -> None:
    """The vectors of Kafka's own tests."""
    assert murmur2(pa.array([key], pa.binary())).astype(np.int32).tolist() == [expected]
    assert np.uint32(murmur2_of(key)).astype(np.int32) == expected


def test_any_lengths_nulls_and_slices() -> None:
    """Ragged and uniform columns, with and without nulls, sliced: each as one by one."""
    rng = random.Random(1)
    for uniform in (None, 0, 1, 3, 4, 7, 16, 33):
        keys = [
            rng.randbytes(rng.randint(0, 40) if uniform is None else uniform) for _ in range(99)
        ]
        for array in (pa.array(keys), pa.array([b"before", *keys, b"after"]).slice(1, 99)):
            assert murmur2(array).tolist() == [murmur2_of(key) for key in keys]
        holes = [None if rng.random() < 0.3 else key for key in keys]
        expected = [murmur2_of(key or b"") for key in holes]
        assert murmur2(pa.array(holes, pa.binary())).tolist() == expected
    assert murmur2(pa.array([], pa.binary())).tolist() == []


def test_keys_decide_and_keyless_records_take_turns() -> None:
    """(murmur2 & 0x7fffffff) % partitions; the turn goes on from batch to batch."""
    choose = DefaultPartitioner(5)
    keys = pa.array([b"abc", None, b"foobar", None, None], pa.binary())
    first = choose(keys).tolist()
    assert first == [murmur2_of(b"abc") % 2**31 % 5, 0, murmur2_of(b"foobar") % 2**31 % 5, 1, 2]
    assert choose(pa.nulls(4, pa.binary())).tolist() == [3, 4, 0, 1]
