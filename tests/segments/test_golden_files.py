"""Files written once, by us and by others, are read forever."""

from __future__ import annotations

import pytest
from golden_files import GOLDEN, MARKER_OFFSET, ROWS, files
from segment_samples import RecordingFile, Row, rows_of

from txnlog.segments.batches import decode_batch
from txnlog.segments.markers import COMMIT, ControlMarker
from txnlog.segments.reader import read_segment
from txnlog.segments.verify import verify

NAMES = sorted(path.name for path in GOLDEN.glob("*.log"))


@pytest.mark.parametrize("name", NAMES)
def test_golden_file(name: str) -> None:
    """Goal: every record of a file of old is what it was when it was written."""
    data = (GOLDEN / name).read_bytes()
    magic = 2 if "columns" in name else int(name.split("-v")[1][0])
    rows: list[Row] = []
    offsets: list[int] = []
    for part in read_segment(RecordingFile(data), len(data), name=name):
        rows += rows_of(part.records)
        offsets += part.offsets().tolist()
    assert offsets == list(range(len(ROWS)))
    assert rows == [
        (key, value, time if magic else -1, headers if magic == 2 else [])
        for key, value, time, headers in ROWS
    ]
    assert not verify(RecordingFile(data), len(data), name=name).damages


def test_golden_transaction() -> None:
    """Goal: the producer's fields and the marker behind its batch are what they were."""
    data = (GOLDEN / "txnlog-v2-transaction.log").read_bytes()
    header = decode_batch(data).header
    assert (header.producer_id, header.producer_epoch, header.leader_epoch) == (4_000_000_000, 3, 8)
    assert (header.base_sequence, header.last_sequence) == (2**31 - 10, 14)
    assert header.is_transactional
    marker = decode_batch(data[header.size_bytes :])
    assert marker.markers == (ControlMarker(MARKER_OFFSET, 5, COMMIT, 6),)


def test_no_golden_file_is_missing() -> None:
    """Goal: there is a file for every writer, format and codec, and they are small."""
    assert [name for name, _ in files() if name not in NAMES] == []
    assert all((GOLDEN / name).stat().st_size < 5000 for name in NAMES)
