"""Files written once, by us and by others, are read forever."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.segments.golden_files import (
    GOLDEN,
    GOLDEN_TAG,
    MARKER_OFFSET,
    ROWS,
    TYPED_OFFSETS,
    files,
    typed_records,
)
from tests.support.segments.segment_samples import Row, file_of, rows_of
from txnlog.segments.batch_header import NO_TAG, SegmentIdentity
from txnlog.segments.batches import decode_batch
from txnlog.segments.errors import CorruptRecord
from txnlog.segments.inspect.dump import dump_segment, verify_batches
from txnlog.segments.kafka_markers import COMMIT, ControlMarker
from txnlog.segments.reader import read_segment

NAMES = sorted(path.name for path in GOLDEN.glob("*.log"))
OF_TYPED = [name for name in NAMES if "-typed-" in name]


@pytest.mark.parametrize("name", [name for name in NAMES if name not in OF_TYPED])
def test_golden_file(name: str) -> None:
    """Every record of a file of old is what it was when it was written."""
    data = (GOLDEN / name).read_bytes()
    own = "columns" in name or "packed" in name
    magic = 2 if own else int(name.split("-v")[1][0])
    rows: list[Row] = []
    offsets: list[int] = []
    for part in read_segment(file_of(data, name)):
        rows += rows_of(part.records)
        offsets += part.offsets().tolist()
    assert offsets == list(range(len(ROWS)))
    assert rows == [
        (key, value, time if magic else -1, headers if magic == 2 else [])
        for key, value, time, headers in ROWS
    ]
    assert not verify_batches(dump_segment(file_of(data, name))).damages


@pytest.mark.parametrize("name", OF_TYPED)
def test_golden_file_of_a_typed_topic(name: str) -> None:
    """Its columns are found by their ids, whatever they are called now."""
    data = (GOLDEN / name).read_bytes()
    records = typed_records()
    renamed = pa.schema([*records.schema]).set(0, records.schema.field(0).with_name("key"))
    for schema, expected in (
        (records.schema, records),
        (renamed, pa.RecordBatch.from_arrays(records.columns, schema=renamed)),
    ):
        (part,) = read_segment(file_of(data, name), columns=schema)
        assert part.records.equals(expected)
        assert part.offsets().tolist() == TYPED_OFFSETS
    assert not verify_batches(dump_segment(file_of(data, name))).damages


def test_golden_transaction() -> None:
    """The producer's fields and the marker behind its batch are what they were."""
    data = (GOLDEN / "txnlog-v2-transaction.log").read_bytes()
    header = decode_batch(data).header
    assert (header.producer_id, header.producer_epoch, header.leader_epoch) == (4_000_000_000, 3, 8)
    assert (header.base_sequence, header.last_sequence) == (2**31 - 10, 14)
    assert header.is_transactional
    marker = decode_batch(data[header.size_bytes :])
    assert marker.markers == (ControlMarker(MARKER_OFFSET, 5, COMMIT, 6),)


@pytest.mark.parametrize(
    "name", ["txnlog-v2-tagged.log", "txnlog-columns-tagged.log", "txnlog-packed-tagged.log"]
)
def test_golden_tag(name: str) -> None:
    """A file that says which segment it is of is that segment, and no other one."""
    data = (GOLDEN / name).read_bytes()
    for tag in (GOLDEN_TAG, NO_TAG):
        identity = SegmentIdentity(0, len(ROWS), tag)
        parts = [*read_segment(file_of(data, name, identity=identity))]
        assert sum(part.record_count for part in parts) == len(ROWS)
        assert [part.header.base_sequence for part in parts] == [0]
    other = SegmentIdentity(0, len(ROWS), GOLDEN_TAG + 1)
    with pytest.raises(CorruptRecord, match="exchanged"):
        next(read_segment(file_of(data, name, identity=other)))


def test_no_golden_file_is_missing() -> None:
    """There is a file for every writer, format and codec, and they are small."""
    assert [name for name, _ in files() if name not in NAMES] == []
    assert all((GOLDEN / name).stat().st_size < 5000 for name in NAMES)
