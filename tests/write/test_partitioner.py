"""Partitioning whole columns as Kafka partitions single records."""

from __future__ import annotations

import random
import zlib

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from txnlog.errors import InvalidOption, InvalidRecord
from txnlog.storage import open_storage
from txnlog.store import attach
from txnlog.write.partitioner import (
    check_explicit,
    choose_partitions,
    crc32,
    make_partitioner,
    murmur2,
)


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
    choose = make_partitioner("murmur2", 5)
    keys = pa.array([b"abc", None, b"foobar", None, None], pa.binary())
    first = choose(keys).tolist()
    assert first == [murmur2_of(b"abc") % 2**31 % 5, 0, murmur2_of(b"foobar") % 2**31 % 5, 1, 2]
    assert choose(pa.nulls(4, pa.binary())).tolist() == [3, 4, 0, 1]


def test_crc32_is_that_of_everybody_else() -> None:
    """The checksum of zlib, for ragged keys, nulls and slices."""
    rng = random.Random(2)
    keys = [rng.randbytes(rng.randint(0, 40)) for _ in range(200)]
    assert crc32(pa.array(keys, pa.binary())).tolist() == [zlib.crc32(key) for key in keys]
    sliced = pa.array([b"before", None, *keys], pa.binary()).slice(1)
    assert crc32(sliced).tolist() == [0, *(zlib.crc32(key) for key in keys)]
    assert crc32(pa.array([], pa.binary())).tolist() == []


def test_librdkafkas_default_hashes_keys_and_not_empty_ones() -> None:
    """consistent_random: CRC-32 of the key; null and empty keys are bound to nothing."""
    choose = make_partitioner("crc32", 5, first=3)
    chosen = choose(pa.array([b"abc", None, b"", b"k"], pa.binary())).tolist()
    assert chosen == [zlib.crc32(b"abc") % 5, 3, 4, zlib.crc32(b"k") % 5]


def test_round_robin_ignores_keys() -> None:
    """Records take turns over all batches, with keys or without."""
    choose = make_partitioner("round_robin", 3, first=1)
    assert choose(pa.array([b"a", b"a", None, b"a"], pa.binary())).tolist() == [1, 2, 0, 1]
    assert choose(pa.array([b"a"], pa.binary())).tolist() == [2]


def test_an_explicit_partition_wins() -> None:
    """Null leaves the choice to the partitioner, which is asked for no other record's."""
    asked = []

    def by_length(keys: pa.Array) -> npt.NDArray[np.int32]:
        asked.append(keys.to_pylist())
        return np.array([len(key or b"") for key in keys.to_pylist()], dtype=np.int32)

    keys = pa.array([b"a", b"bb", None, b"dddd"], pa.binary())
    cases = [
        (None, [1, 2, 0, 4], [keys.to_pylist()]),
        ([None] * 4, [1, 2, 0, 4], [keys.to_pylist()]),
        ([3, None, 3, None], [3, 2, 3, 4], [[b"bb", b"dddd"]]),
        ([3, 0, 1, 2], [3, 0, 1, 2], []),
    ]
    for explicit, expected, seen in cases:
        column = None if explicit is None else pa.array(explicit, pa.int32())
        assert choose_partitions(keys, column, by_length).tolist() == expected
        assert asked == seen
        asked.clear()
    nothing = pa.array([], pa.int32())
    assert choose_partitions(keys[:0], nothing, by_length).tolist() == []


def test_an_explicit_partition_is_one_that_the_topic_has() -> None:
    """Of any integer type; a negative one is an error, as in Kafka's producer and Spark's sink."""
    for kind in (pa.int8(), pa.int32(), pa.uint64()):
        checked = check_explicit(pa.array([1, None, 0], kind), "t", 2)
        assert (checked.type, checked.to_pylist()) == (pa.int32(), [1, None, 0])
    for wrong in (2, -1, -2, 2**40):
        with pytest.raises(InvalidRecord, match=f"has {wrong}, but topic 't' has 2 partitions"):
            check_explicit(pa.array([0, None, wrong], pa.int64()), "t", 2)
    with pytest.raises(InvalidRecord, match="column 'partition' is double"):
        check_explicit(pa.array([0.0]), "t", 2)
    assert check_explicit(pa.nulls(2, pa.int16()), "t", 2).to_pylist() == [None, None]


def test_a_producer_follows_its_partitioner() -> None:
    """What was chosen for a producer decides where its records lie, in rows and batches."""
    store = attach(open_storage("memory://partitioners"), create=True)
    store.create_topic("t", partitions=3)
    with store.producer(partitioner="round_robin") as producer:
        for _ in range(3):
            producer.send("t", value=b"v", key=b"same")
        producer.flush()
        producer.send_batch("t", pa.record_batch({"key": [b"same"] * 3, "value": [b"v"] * 3}))
    found = store.scan("t", columns=["partition"]).to_arrow().column("partition").to_pylist()
    assert found == [0, 0, 1, 1, 2, 2]
    with pytest.raises(InvalidOption, match="'random' is not one of murmur2, crc32, round_robin"):
        store.producer(partitioner="random")
