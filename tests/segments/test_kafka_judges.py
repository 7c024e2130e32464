"""Both ways between txnlog and two independent libraries, on every format and codec."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.support.segments.kafka_judges import JUDGES, Judge, Marker, markers_read
from tests.support.segments.segment_samples import Row, batch_of, random_records, rows_of
from txnlog.segments.batch_header import Compression
from txnlog.segments.batches import decode_batch, encode_batch, encode_marker
from txnlog.segments.formats.message_sets import encode_message_set

MIXED: list[Row] = [
    (b"key", b"value", 1_700_000_000_000, [("h", b"x"), ("h", None), ("", b"")]),
    (None, None, 0, []),
    (b"", b"", -1, [("\u00e9\u4e2d", b"\0\xff")]),
    (b"k" * 63, b"v" * 64, 1_700_000_000_001, []),
    (b"k" * 64, b"v" * 8191, 1, [("n" * 200, b"v" * 200)] * 70),
    (None, b"v" * 8192, 1_600_000_000_000, []),
]
MANY = rows_of(random_records(10_000, seed=9))


def of_size(mebibytes: int) -> list[Row]:
    return [
        (b"large", np.random.default_rng(1).bytes(1 << 20) * mebibytes, 5, []),
        (None, b"", 0, []),
    ]


CASES = {
    "mixed": MIXED,
    "many": MANY,
    "some": MANY[:1000],
    "large": of_size(2),
    "largest": of_size(16),
    "one": MIXED[:1],
}

PAIRS = [
    pytest.param(judge, magic, codec, id=f"{judge.name}-v{magic}-{codec.kafka_name}")
    for judge in JUDGES
    for magic in (0, 1, 2)
    for codec in Compression
    if judge.can(magic, codec)
]


def cases() -> list[Any]:
    """A judge, a format, a codec and records.

    Records of v0 and v1 take most, and a thousand of them the tenth of ten thousand.
    """
    found = []
    for pair in PAIRS:
        _, magic, _ = pair.values
        for case in CASES:
            is_slow = case == "largest" or (magic != 2 and case == "many")
            marks = [pytest.mark.slow] if is_slow else []
            if magic != 2 or case != "some":
                found.append(pytest.param(*pair.values, case, marks=marks, id=f"{pair.id}-{case}"))
    return found


def said(rows: list[Row], magic: int) -> list[Row]:
    """What a format can say of the rows: v0 has no times, and neither v0 nor v1 has headers."""
    if magic == 2:
        return rows
    return [(key, value, time if magic else -1, []) for key, value, time, _ in rows]


@cache
def records_of(case: str) -> pa.RecordBatch:
    return batch_of(CASES[case])


@cache
def ours(case: str, magic: int, codec: Compression, base_offset: int) -> bytes:
    records = records_of(case)
    if magic == 2:
        return encode_batch(
            records, record_format="kafka", compression=codec, base_offset=base_offset
        )
    return encode_message_set(records, magic, compression=codec, base_offset=base_offset)


def read_by_us(data: bytes) -> tuple[list[int], list[Row]]:
    offsets: list[int] = []
    found: list[pa.RecordBatch] = []
    left = memoryview(data)
    while left:
        decoded = decode_batch(left)
        decoded.records.validate(full=True)
        assert decoded.offset_deltas is None
        base = decoded.header.base_offset
        offsets += range(base, base + decoded.records.num_rows)
        found.append(decoded.records)
        left = left[decoded.header.size_bytes :]
    # All at once: in v0 and v1 without a codec, each record is a batch of its own.
    return offsets, [
        row
        for batch in pa.Table.from_batches(found).combine_chunks().to_batches()
        for row in rows_of(batch)
    ]


@pytest.mark.condition(46)
@pytest.mark.parametrize(("judge", "magic", "codec", "case"), cases())
def test_a_judge_reads_what_we_write(
    judge: Judge, magic: int, codec: Compression, case: str
) -> None:
    """Record for record, with offsets, nulls, headers, times and right checksums."""
    rows = CASES[case]
    # From a base of 1, since readers take a wrapper's offset 0 for one that was never set.
    data = ours(case, magic, codec, base_offset=1)
    assert judge.read(data) == (list(range(1, len(rows) + 1)), said(rows, magic))


@pytest.mark.few(26)
@pytest.mark.condition(46)
@pytest.mark.parametrize(("judge", "magic", "codec", "case"), cases())
def test_we_read_what_a_judge_writes(
    judge: Judge, magic: int, codec: Compression, case: str
) -> None:
    """The other direction, with offsets from 0 as a producer writes them."""
    rows = CASES[case]
    data = judge.write(rows, magic, codec)
    assert read_by_us(data) == (list(range(len(rows))), said(rows, magic))


@pytest.mark.parametrize("judge", JUDGES, ids=lambda judge: judge.name)
def test_bytes_are_the_same(judge: Judge) -> None:
    """Without a codec our bytes are the judge's, but for the leader epoch a broker sets."""
    for case in ("mixed", "many"):
        rows = CASES[case]
        theirs = judge.write(rows, 2, 0)
        mine = ours(case, 2, Compression.NONE, 0)
        assert (mine[:12], mine[16:]) == (theirs[:12], theirs[16:])
        for magic in (0, 1):
            assert ours(case, magic, Compression.NONE, 0) == judge.write(rows, magic, 0)


@pytest.mark.parametrize("commit", [False, True])
def test_markers(commit: bool) -> None:
    """Both judges take our markers for what they are."""
    data = encode_marker(
        commit=commit,
        offset=5,
        timestamp_ms=9,
        producer_id=3,
        producer_epoch=1,
        coordinator_epoch=2,
    )
    assert markers_read(data) == [[Marker(5, commit)], [Marker(5, commit)]]


@pytest.mark.parametrize("judge", JUDGES, ids=lambda judge: judge.name)
def test_gaps_and_attributes(judge: Judge) -> None:
    """Offsets with gaps, log append time and a delete horizon are read alike."""
    rows: list[Row] = [(b"a", b"1", 700, []), (b"b", b"2", 700, [])]
    data = encode_batch(
        batch_of(rows),
        record_format="kafka",
        base_offset=10,
        offset_deltas=np.array([1, 5], dtype=np.int32),
        log_append_time=True,
        transactional=True,
        producer_id=7,
        producer_epoch=0,
        base_sequence=4,
    )
    assert judge.read(data) == ([11, 15], rows)
    assert rows_of(decode_batch(data).records) == rows
    horizon = encode_batch(batch_of(rows), record_format="kafka", delete_horizon_ms=1 << 40)
    assert judge.read(horizon) == ([0, 1], rows)
