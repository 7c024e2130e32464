"""The newest record of each key, in bounded memory: a dict is the model."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from txnlog.admin.compaction.key_table import KeyTable, size_of
from txnlog.admin.compaction.survivors import Bits, ReadKeys, find_survivors
from txnlog.columns.keys import WHOLE, KeyPart, hash_keys
from txnlog.write.partitioner import make_partitioner


def reader(keys: list[bytes | None], step: int) -> ReadKeys:
    """Reads the keys in batches of so many, which are slices of larger arrays, as in files."""

    def read() -> Iterator[tuple[int, pa.Array]]:
        for start in range(0, len(keys), 3 * step):
            array = pa.array([b"before", *keys[start : start + 3 * step]], pa.binary())
            for row in range(1, len(array), step):
                yield start + row - 1, array.slice(row, step)

    return read


def model(clean: list[bytes | None], dirty: list[bytes | None]) -> tuple[list[bool], list[bool]]:
    """Which of the clean and of the dirty records stay."""
    newest = {key: at for at, key in enumerate(dirty) if key is not None}
    stays = [key is not None and key not in newest for key in clean]
    return stays, [key is not None and newest[key] == at for at, key in enumerate(dirty)]


def survivors(
    clean: list[bytes | None], dirty: list[bytes | None], memory_bytes: int, step: int = 100
) -> tuple[list[bool], list[bool]]:
    found = find_survivors(
        reader(clean, step), reader(dirty, step), len(clean), len(dirty), memory_bytes
    )
    stays = found.of_clean(0, len(clean)).tolist(), found.of_dirty(0, len(dirty)).tolist()
    assert found.superseded(0, len(clean)) == len(clean) - sum(stays[0])
    return stays


def some_keys(rng: random.Random, count: int, distinct: int) -> list[bytes | None]:
    sizes = [0, 1, 3, 16, 16, 16, 127, 128, 129, 500]
    keys: list[bytes | None] = [rng.randbytes(rng.choice(sizes)) for _ in range(distinct)]
    return [rng.choice([None, *keys] if rng.random() < 0.1 else keys) for _ in range(count)]


@pytest.mark.few(4)
@pytest.mark.parametrize("memory_bytes", [4_000, 100_000, 1 << 27])
@pytest.mark.parametrize("seed", range(4))
def test_a_dict_is_the_model(seed: int, memory_bytes: int) -> None:
    """However many passes it takes, with keys of all sizes, empty ones and none."""
    rng = random.Random(seed)
    distinct = rng.choice([1, 30, 150] if memory_bytes < 5000 else [30, 1000])
    dirty = some_keys(rng, rng.choice([0, 1, 900, 3000]), distinct)
    known = [key for key in dirty if rng.random() < 0.5]
    clean = [*dict.fromkeys([*known, *some_keys(rng, 300, 200)])]
    rng.shuffle(clean)
    assert survivors(clean, dirty, memory_bytes, rng.choice([7, 1000])) == model(clean, dirty)


def test_many_keys_are_divided_into_buckets_and_parts() -> None:
    """The sizes at which everything is in use; keys that have murmur2's last bits in common."""
    rng = np.random.default_rng(3)
    keys = [b"%07d" % n for n in rng.integers(0, 400_000, 200_000)]
    array = pa.array(keys, pa.binary())
    chosen = make_partitioner("murmur2", 2)(array) == 1
    dirty: list[bytes | None] = [key for key, mine in zip(keys, chosen, strict=True) if mine]
    clean: list[bytes | None] = [*dict.fromkeys(dirty[::2])]
    for memory_bytes in (300_000, 1 << 27):
        assert survivors(clean, dirty, memory_bytes, 20_000) == model(clean, dirty)
    table = KeyTable(300_000)
    for at, part in reader(dirty, 20_000)():
        table.add(part, np.arange(at, at + len(part)))
    table.finish()
    assert 4 <= table.part.bits == len(table.given_up) <= 7


def test_parts_divide_the_keys() -> None:
    """Both halves of a part hold all of its keys, each one once and about as many."""
    keys = pa.array([b"key-%d" % n for n in range(4000)], pa.binary())
    hashes = hash_keys(keys)
    parts = [WHOLE]
    for _ in range(3):
        parts = [half for part in parts for half in part.halves()]
    counts = [int(part.holds(hashes).sum()) for part in parts]
    assert sum(counts) == 4000
    assert min(counts) > 400
    assert KeyPart(3, 7) in parts


def test_a_hash_is_the_keys_alone() -> None:
    """Whatever other keys it is computed with, and wherever they lie."""
    keys = [b"", b"a", b"x" * 127, b"x" * 128, b"x" * 129, b"y" * 5000, b"abc"]
    together = hash_keys(pa.array([b"1", *keys], pa.binary()).slice(1)).tolist()
    assert together == [int(hash_keys(pa.array([key], pa.binary()))[0]) for key in keys]


def test_huge_keys() -> None:
    """Each may take more than all the memory: a few are held all the same, and exactly."""
    keys: list[bytes | None] = [bytes([n]) * (1 << 20) for n in (1, 2, 1, 3, 2)]
    assert survivors(keys[:1], keys, 1000, 1) == ([False], [False, False, True, True, True])


def test_keys_that_share_their_hash_are_told_apart() -> None:
    """Hashes only divide keys; here all of them have the same, and more than there is room for."""
    ends = b"a" * 64
    dirty: list[bytes | None] = [ends + b"%d" % (n % 50) + ends for n in range(200)]
    same = [ends + b"%03d" % (n % 50) + ends for n in range(200)]
    assert len(set(hash_keys(pa.array(same, pa.binary())).tolist())) == 1
    for keys in (dirty, [*same]):
        assert survivors([], [*keys], 500) == model([], [*keys])


def test_memory_is_bounded() -> None:
    """That of Arrow and of numpy together, whatever comes; a key costs more than its record."""
    limit = 16 << 20
    rng = np.random.default_rng(1)

    def read() -> Iterator[tuple[int, pa.Array]]:
        for at in range(0, 3_000_000, 15_000):
            rows = rng.integers(0, 1 << 60, (15_000, 2))
            offsets = (np.arange(15_001) * 16).astype(np.int32)
            buffers = [None, pa.py_buffer(offsets), pa.py_buffer(rows.tobytes())]
            yield at, pa.Array.from_buffers(pa.binary(), 15_000, buffers)

    table = KeyTable(limit)
    pool = pa.default_memory_pool()
    held = 0
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        for at, keys in read():
            table.add(keys, np.arange(at, at + len(keys)))
            held = max(held, pa.total_allocated_bytes() - before)
        table.finish()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert pool.backend_name
    assert table.part.bits >= 3
    assert held + peak < 1.5 * limit


def test_size_of_a_slice_is_its_own() -> None:
    """Not that of the array that it is a part of."""
    array = pa.array([b"x" * 100] * 1000, pa.binary())
    assert size_of(array.slice(10, 5)) == 5 * 112
    assert size_of(array.slice(0, 0)) == 0


def test_bits() -> None:
    """Positions are found where they were set, whatever lies around them."""
    rng = np.random.default_rng(2)
    bits, expected = Bits(1003), np.zeros(1003, dtype=bool)
    for _ in range(5):
        chosen = rng.choice(1003, 100, replace=False)
        bits.set(chosen)
        expected[chosen] = True
    for start, stop in ((0, 1003), (0, 0), (7, 8), (8, 16), (3, 1000), (1003, 1003)):
        assert np.array_equal(bits.get(start, stop), expected[start:stop])
        assert bits.count(start, stop) == expected[start:stop].sum()
