"""Footers of Parquet files whose bytes are anybody's: read, or refused with a reason."""

from __future__ import annotations

import io
import random
from contextlib import suppress

import pyarrow as pa
import pyarrow.parquet as pq
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


def test_what_a_footer_says_is_kept_by_its_bytes() -> None:
    """Of a file with four row groups of 20 columns, and for no other bytes and no other place."""
    sink = io.BytesIO()
    table = pa.table({f"column_{number}": [*range(400)] for number in range(20)})
    pq.write_table(table, sink, row_group_size=100)
    data = sink.getvalue()
    size = int.from_bytes(data[-8:-4], "little")
    assert size > 8 << 10
    tail = data[-8 - size :]
    first = untrusted.check_parquet_footer(tail, 1 << 20)
    assert untrusted.check_parquet_footer(bytes(bytearray(tail)), 1 << 20) is first
    assert untrusted.check_parquet_footer(tail, (1 << 20) + 1) is not first
    with pytest.raises(ValueError, match=r"\w"):
        untrusted.check_parquet_footer(b"\xff" + tail[1:], 1 << 20)
