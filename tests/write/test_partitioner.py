"""Partitioning whole columns as Kafka partitions single records."""

from __future__ import annotations

import itertools
import random
import re
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

import txnlog.columns.keys as keys_module
from txnlog.columns.keys import FEW_KEYS, murmur2
from txnlog.errors import InvalidOption, InvalidRecord
from txnlog.storage import open_storage
from txnlog.store import attach
from txnlog.write.partitioner import (
    check_explicit,
    choose_partitions,
    crc32,
    make_partitioner,
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


@pytest.mark.few(5)
@pytest.mark.parametrize("count", [1, 2, FEW_KEYS, FEW_KEYS + 1, 3 * FEW_KEYS])
@pytest.mark.parametrize("longest", [0, 1, 3, FEW_KEYS, FEW_KEYS + 1])
def test_a_few_long_keys_among_others(
    count: int, longest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By both hashes as one by one; and a long key takes no turn for each of its words."""
    turns = 0
    mix = keys_module._mix

    def counted(*given: Any) -> None:
        nonlocal turns
        turns += 1
        mix(*given)

    monkeypatch.setattr(keys_module, "_mix", counted)
    rng = random.Random(count)
    sizes = [rng.randint(0, 40) for _ in range(count)]
    few = min(longest, count, 3)
    sizes[:longest] = [rng.randint(250, 270) for _ in sizes[:longest]]
    sizes[:few] = [300_000 + number for number in range(few)]
    keys = [rng.randbytes(size) for size in rng.sample(sizes, count)]
    assert murmur2(pa.array(keys)).tolist() == [murmur2_of(key) for key in keys]
    assert turns < 100
    assert crc32(pa.array(keys)).tolist() == [zlib.crc32(key) for key in keys]


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

    def by_length(keys: pa.Array, _: pa.RecordBatch | None = None, /) -> npt.NDArray[np.int32]:
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
    """Any integer type; a negative one is an error, as in Kafka's producer and Spark's sink."""
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
    store.topics.create("t", partitions=3)
    with store.producer(partitioner="round_robin") as producer:
        for _ in range(3):
            producer.send("t", value=b"v", key=b"same")
        producer.flush()
        producer.send_batch("t", pa.record_batch({"key": [b"same"] * 3, "value": [b"v"] * 3}))
    found = store.scan("t", columns=["partition"]).to_arrow().column("partition").to_pylist()
    assert found == [0, 0, 1, 1, 2, 2]
    with pytest.raises(InvalidOption, match="'best' is not one of murmur2, crc32, sticky"):
        store.producer(partitioner="best")


def test_sticky_partitions_change_with_the_batch() -> None:
    """What has no key stays together, and goes elsewhere with the next batch; keys decide."""
    keyless = pa.nulls(100, pa.binary())
    choose = make_partitioner("sticky", 5, token=lambda: "ab")
    batches = [choose(keyless) for _ in range(200)]
    assert all((batch == batch[0]).all() for batch in batches)
    taken = [int(batch[0]) for batch in batches]
    assert all(one != other for one, other in itertools.pairwise(taken))
    assert min(np.bincount(taken, minlength=5)) > 20
    mixed = pa.array([b"a", None, b"b", None, b"c"], pa.binary())
    keyed = make_partitioner("murmur2", 5)(mixed)
    chosen = choose(mixed)
    assert chosen[[0, 2, 4]].tolist() == keyed[[0, 2, 4]].tolist()
    assert chosen[1] == chosen[3]
    assert make_partitioner("sticky", 1)(keyless).tolist() == [0] * 100


def test_random_partitions_are_even_and_differ_from_producer_to_producer() -> None:
    """Whatever the keys are; a task of Spark's that comes again chooses the same."""
    keys = pa.array([b"same"] * 10_000, pa.binary())
    one, other = (
        make_partitioner("random", 4, token=token) for token in (lambda: "1", lambda: "2")
    )
    assert min(np.bincount(one(keys), minlength=4)) > 2_300
    assert (one(keys) != other(keys)).any()
    again = [make_partitioner("random", 4, first=7)(keys).tolist() for _ in range(2)]
    assert again[0] == again[1]


def test_a_keyless_flush_is_one_segment_if_partitions_stick() -> None:
    """Round robin leaves one for each partition."""
    store = attach(open_storage("memory://sticking"), create=True)
    for partitioner, segments in (("sticky", 1), ("murmur2", 4)):
        store.topics.create(partitioner, partitions=4)
        with store.producer(partitioner=partitioner) as producer:
            for _ in range(8):
                producer.send(partitioner, b"v")
        assert len(store.scan(partitioner).ranges) == segments


def by_first_byte(records: pa.RecordBatch, partitions: int) -> list[int]:
    """What users write: a partitioner of their own."""
    assert records.schema.names == ["key", "value", "timestamp", "headers"]
    return [value[0] % partitions for value in records.column("value").to_pylist()]


@pytest.mark.parametrize("chosen", [by_first_byte, f"{__name__}:by_first_byte"])
def test_a_function_of_ones_own_chooses(chosen: Callable[..., list[int]] | str) -> None:
    """It sees whole columns of the records that have no partition of their own, and no others."""
    store = attach(open_storage(f"memory://own{isinstance(chosen, str)}"), create=True)
    store.topics.create("t", partitions=3)
    with store.producer(partitioner=chosen) as producer:
        for number in range(6):
            producer.send("t", bytes([number]))
        producer.send("t", b"\x01", partition=2)
        batch = {
            "value": [b"\x00", b"\x01", b"\x01"],
            "partition": pa.array([None, 0, None], pa.int8()),
        }
        producer.send_batch("t", pa.record_batch(batch))
    found = store.scan("t", columns=["partition", "value"]).to_arrow().to_pylist()
    lie = sorted((row["partition"], row["value"][0]) for row in found)
    assert lie == [(0, 0), (0, 0), (0, 1), (0, 3), (1, 1), (1, 1), (1, 4), (2, 1), (2, 2), (2, 5)]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([0], "returned 1 partitions for 2 records; it must return a whole number from 0 to 2"),
        ([0, None], "returned 1 partitions for 2 records"),
        ([0, 3], "returned 3, but there are 3 partitions"),
        ([0, -1], "returned -1"),
        ([0.5, 1.5], "returned double"),
        (["x", object()], "it must return a whole number"),
        ([0, 2**70], "it must return a whole number"),
    ],
)
def test_what_a_function_may_not_return(answer: list[int], message: str) -> None:
    """Refused with its name, before anything is uploaded."""

    def odd(_: pa.RecordBatch, __: int) -> list[int]:
        return answer

    store = attach(open_storage("memory://odd"), create=True)
    if "t" not in store.topics.list():
        store.topics.create("t", partitions=3)
    producer = store.producer(partitioner=odd)
    with pytest.raises(InvalidRecord, match=re.escape(message)) as caught:
        producer.send_batch("t", pa.record_batch({"value": [b"1", b"2"]}))
    assert "odd" in str(caught.value)
    assert store.scan("t").record_count == 0


@pytest.mark.parametrize(
    "name", ["json:nothing", "no.such.module:f", ":f", ".json:f", "json:__name__", "json:"]
)
def test_functions_that_there_are_not(name: str) -> None:
    """Found out when the producer is made."""
    store = attach(open_storage("memory://absent"), create=True)
    with pytest.raises(InvalidOption, match=r"package\.module:function|is not a function"):
        store.producer(partitioner=name)
    with pytest.raises(InvalidOption, match="a name or a function"):
        store.producer(partitioner=7)  # type: ignore[arg-type]
