"""Footers of Parquet files whose bytes are anybody's: read, or refused with a reason."""

from __future__ import annotations

import io
import random
from contextlib import suppress

import pytest

from tests.support.segments.segment_samples import numbered
from txnlog.segments import untrusted
from txnlog.segments.parquet.file_metadata import read_file_metadata
from txnlog.segments.writer import SegmentWriter


@pytest.fixture(scope="module")
def footer() -> bytes:
    """Of a segment with several row groups."""
    sink = io.BytesIO()
    writer = SegmentWriter(sink, record_format="parquet", batch_bytes=2_000)
    for start in range(0, 200, 50):
        writer.append(numbered(50, start=start))
        writer.flush()
    writer.finish()
    data = sink.getvalue()
    size = int.from_bytes(data[-8:-4], "little")
    return data[-8 - size : -8]


def test_a_footer_that_ends_too_early_is_refused(footer: bytes) -> None:
    """Wherever that is."""
    assert len(read_file_metadata(footer, 1 << 20).groups) > 2
    for size in range(0, len(footer), 7):
        with pytest.raises(ValueError, match=r"\w"):
            read_file_metadata(footer[:size], 1 << 20)


def test_a_footer_without_a_field_is_refused() -> None:
    """One that each footer has."""
    with pytest.raises(ValueError, match=r"field \d is missing"):
        read_file_metadata(b"\0", 1 << 20)


def test_a_footer_with_other_bytes_is_read_or_refused(footer: bytes) -> None:
    """No other error ends a reader; and what was read is within the file."""
    rng = random.Random(1)
    read = 0
    for _ in range(400):
        changed = bytearray(footer)
        for _ in range(rng.choice([1, 1, 2, 8])):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        with suppress(ValueError):
            found = read_file_metadata(bytes(changed), 1 << 20)
            read += 1
            chunks = [chunk for group in found.groups for chunk in group.chunks]
            assert all(0 <= c.position <= c.position + c.size_bytes <= 1 << 20 for c in chunks)
    assert 0 < read < 400


def test_what_footers_say_is_kept_by_their_bytes(
    footer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last ones within a bound, none for other bytes or another place; a huge one is not."""
    monkeypatch.setattr(untrusted, "_KEPT_FOOTER_BYTES", 4 * (len(footer) + 8))
    monkeypatch.setattr(untrusted, "_kept_footers", untrusted._KeptFooters())
    tail = footer + len(footer).to_bytes(4, "little") + b"PAR1"
    first = untrusted.check_parquet_footer(tail, 1 << 20)
    assert untrusted.check_parquet_footer(bytes(bytearray(tail)), 1 << 20) is first
    second = untrusted.check_parquet_footer(tail, (1 << 20) + 1)
    for position in range((1 << 20) + 2, (1 << 20) + 4):
        assert untrusted.check_parquet_footer(tail, position) is not first
    assert untrusted.check_parquet_footer(tail, 1 << 20) is first  # used last, so now kept longest
    untrusted.check_parquet_footer(tail, 1 << 21)
    assert untrusted.check_parquet_footer(tail, 1 << 20) is first
    assert untrusted.check_parquet_footer(tail, (1 << 20) + 1) is not second
    damaged = bytearray(tail)
    damaged[0] ^= 0xFF
    with pytest.raises(ValueError, match=r"\w"):
        untrusted.check_parquet_footer(bytes(damaged), 1 << 20)
    monkeypatch.setattr(untrusted, "_KEPT_FOOTER_BYTES", 4 * len(tail) - 1)
    for position in range(1 << 22, (1 << 22) + 9):
        untrusted.check_parquet_footer(tail, position)
    assert untrusted.check_parquet_footer(tail, 1 << 20) is first
