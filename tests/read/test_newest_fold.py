"""Rows are folded to the newest of each key, whatever the keys are and however they come."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from txnlog.read import latest
from txnlog.read.latest import NewestFold

KINDS = [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()]


@pytest.mark.few(7)
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("lengths", [(1,), (3,), (8,), (17,), (0,), (2, 3), (0, 1)], ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_keys_of_one_length_and_of_several(
    kind: pa.DataType, lengths: tuple[int, ...], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In slices of larger arrays, grouped few at a time; the other key column is of numbers."""
    monkeypatch.setattr(latest, "_LEAST_ROWS", 7)
    if seed % 2:
        monkeypatch.setattr(latest, "_MOST_BYTES", 40)
    rng = random.Random(seed)
    fold, offset = NewestFold(2), 0
    expected: dict[tuple[str, int], tuple[int, int]] = {}
    for turn in range(12):
        count = rng.randrange(9)
        length = lengths[0] if turn < 6 else None
        words = ["".join(rng.choices("ab", k=length or rng.choice(lengths))) for _ in range(count)]
        keys = pa.array(["yy", *words, "z"], pa.string()).cast(kind).slice(1, count)
        numbers = pa.array([rng.randrange(2) for _ in words], pa.int64())
        offsets = pa.array(range(offset, offset + count), pa.int64())
        times = pa.array([rng.randrange(100) for _ in words], pa.int64())
        fold.add(pa.table([keys, numbers, offsets, times], ["key0", "key1", "offset", "timestamp"]))
        rows = zip(words, numbers.to_pylist(), offsets.to_pylist(), times.to_pylist(), strict=True)
        expected |= {(word, number): (at, time) for word, number, at, time in rows}
        offset += count
    found = fold.finish()
    assert found is not None
    texts = found["key0"].cast(pa.large_string()).to_pylist()
    others = [found[name].to_pylist() for name in ("key1", "offset", "timestamp")]
    assert {(k, n): (o, t) for k, n, o, t in zip(texts, *others, strict=True)} == expected
    assert len(found) == len(expected)
    wide = {"binary": "large_binary", "string": "large_string"}
    assert str(found["key0"].type) in (str(kind), wide.get(str(kind)))
