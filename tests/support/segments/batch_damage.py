"""Damage to a batch in columns, and what every way to read it must say of it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from tests.support.segments.segment_layout import resealed
from tests.support.segments.segment_samples import file_of
from txnlog.segments.batches import decode_batch
from txnlog.segments.errors import CorruptRecord
from txnlog.segments.reader import read_segment
from txnlog.segments.schema_columns import Columns


def decode(data: bytes, columns: Columns = None) -> pa.RecordBatch:
    """The records of one batch, with these columns."""
    [batch] = read_segment(file_of(data), columns=columns)
    return batch.records


def check_flipped_bits(data: bytes, columns: Columns = None) -> None:
    """One flipped bit anywhere, header included, is CorruptRecord with its place."""
    for at in range(len(data)):
        for bit in range(8):
            broken = bytearray(data)
            broken[at] ^= 1 << bit
            with pytest.raises(CorruptRecord, match=r"x\.log at byte 77"):
                decode_batch(bytes(broken), name="x.log", position=77, columns=columns)


def check_corrupt(data: bytes) -> None:
    """It is CorruptRecord whichever columns are read, none of them too."""
    for columns in (None, ["key"], ["timestamp"], []):
        with pytest.raises(CorruptRecord):
            decode_batch(data, columns=columns)


def decode_damaged(data: bytes, times: int, columns: Columns = None) -> Iterator[pa.RecordBatch]:
    """What is read of it after random damage under a right checksum, where that is not noticed."""
    rng = np.random.default_rng(5)
    for _ in range(times):
        start = int(rng.integers(64, len(data) - 1))
        size = int(rng.integers(1, 4))
        broken = resealed(data, {start: rng.bytes(min(size, len(data) - start))})
        try:
            yield decode(broken, columns)
        except CorruptRecord:
            continue
