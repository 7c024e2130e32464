"""Arrow's own scanner reads few columns of large files, and keeps what a plain filter keeps."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.read.filtered_stores import (
    ALL,
    SOME,
    START_MS,
    check_filter,
    filters_of,
    some_of,
    typed_store,
)
from txnlog.errors import CorruptRecord
from txnlog.read.scan_reader import read_each
from txnlog.storage import open_storage
from txnlog.store import Store, attach
from txnlog.testing import VirtualClock

ODD = (pc.field("id") > 25) & (pc.field("small") != 0)
"""Keeps some of each file, but for the first ones of an earlier schema."""
SCANNED = ["id", "number", "small", "day", "at", "flag", "place.x"]


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """The same in files, of which few columns are read by Arrow's scanner, however small."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("txnlog.segments.writer.DEFAULT_ROW_GROUP_BYTES", 600)
        patched.setattr("txnlog.read.arrow_scans.WHOLE_BYTES", 0)
        yield typed_store(storage=open_storage(str(tmp_path_factory.mktemp("store"))))


@settings(SOME, max_examples=15)
@given(kept=filters_of(SCANNED), columns=some_of([*SCANNED, "price"]), start=st.integers(0, 30))
def test_what_arrow_scans_is_what_a_plain_filter_keeps(
    on_disk: Store, kept: pc.Expression, columns: list[str], start: int
) -> None:
    """Also of files of an earlier schema, and of a file from its middle on."""
    everything = on_disk.scan("typed", {0: start, 1: 3}, columns=ALL["typed"]).to_arrow()
    found = on_disk.scan("typed", {0: start, 1: 3}, columns=columns, filter=kept).to_arrow()
    assert str(found.to_pylist()) == str(everything.filter(kept).select(columns).to_pylist())


def _scanned(patched: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the files of which the scanner gives batches, of each run."""
    from txnlog.read.arrow_scans import _Scanning

    original, found = _Scanning._scan, []

    def scan(self: Any) -> Iterator[tuple[int, pa.RecordBatch]]:
        for number, batch in original(self):
            found.append(number)
            yield number, batch

    patched.setattr(_Scanning, "_scan", scan)
    return found


@pytest.mark.parametrize(
    ("columns", "kept", "is_scanned"),
    [
        (["number"], ODD, True),
        (["number", "price"], ODD, True),
        (["number", "price", "cost"], ODD, False),  # the filter helps more with the others
        (["name"], pc.field("id") > 25, False),
        (["id"], pc.field("price") > 3, False),  # statistics pass over NaN
        (["id", "_offset"], ODD, False),
        (["id"], pc.field("_partition") == 1, False),
    ],
)
def test_arrow_scans_few_columns_of_whole_files(
    on_disk: Store,
    monkeypatch: pytest.MonkeyPatch,
    columns: list[str],
    kept: pc.Expression,
    is_scanned: bool,
) -> None:
    scanned = _scanned(monkeypatch)
    check_filter(on_disk, "typed", columns, kept)
    assert bool(scanned) == is_scanned
    scanned.clear()
    monkeypatch.setattr("txnlog.read.arrow_scans.WHOLE_BYTES", 4 << 20)
    check_filter(on_disk, "typed", columns, kept)
    assert not scanned  # of small ones our own reader checks all bytes


def test_a_default_is_there_of_files_without_the_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow knows of none: such files are read by our own reader, between others."""
    monkeypatch.setattr("txnlog.read.arrow_scans.WHOLE_BYTES", 0)
    scanned = _scanned(monkeypatch)
    store = attach(open_storage(str(tmp_path)), create=True, clock=VirtualClock(START_MS))
    schemas = [pa.schema([("id", pa.int64())]), pa.schema([("id", pa.int64()), ("n", pa.int64())])]
    store.topics.create("t", schema=schemas[0])
    for turn, schema in enumerate(schemas):
        if turn:
            store.topics.alter("t", schema=schema, defaults={"n": 7})
        with store.producer() as producer:
            rows = pa.table([[turn * 10 + n for n in range(10)]] * len(schema), schema=schema)
            producer.send_batch("t", rows)
    found = store.scan("t", columns=["n"], filter=pc.field("id").isin([4, 9, 14, 19]))
    assert found.to_arrow()["n"].to_pylist() == [7, 7, 14, 19]
    assert scanned


def test_batches_that_nobody_takes_are_not_those_of_the_next_file(
    on_disk: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txnlog.read.arrow_scans._BATCH_BYTES", 64)
    scanned = _scanned(monkeypatch)
    scan = on_disk.scan("typed", columns=["id"], filter=pc.field("id") >= 0)
    reads = read_each(on_disk.storage, scan.ranges, scan._columns)
    firsts = [next(batches)["id"][0].as_py() for _, batches in reads]
    assert firsts == [0, 24, 48, 12, 36, 60]
    assert scanned.count(0) > 1


def test_where_the_scanner_fails_our_reader_goes_on(
    on_disk: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No row is lost or comes twice, wherever it is."""
    from txnlog.read.arrow_scans import _Scanning

    expected = on_disk.scan("typed", columns=["number"], filter=ODD).to_arrow()
    original = _Scanning._scan
    monkeypatch.setattr(
        "txnlog.read.arrow_scans._BATCH_BYTES", 64
    )  # several batches of each row group
    total = len(_scan_all(on_disk, monkeypatch))
    assert total > 8
    for most in range(total + 1):

        def scan(self: Any, most: int = most) -> Iterator[tuple[int, pa.RecordBatch]]:
            for at, found in enumerate(original(self)):
                if at == most:
                    raise OSError("the disk is damaged")
                yield found

        monkeypatch.setattr(_Scanning, "_scan", scan)
        assert on_disk.scan("typed", columns=["number"], filter=ODD).to_arrow() == expected


def _scan_all(store: Store, patched: pytest.MonkeyPatch) -> list[int]:
    with patched.context() as inner:
        scanned = _scanned(inner)
        store.scan("typed", columns=["number"], filter=ODD).to_arrow()
    return scanned


def test_damage_is_noticed_in_what_arrow_scans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The right rows, or an error of that row group or of the footer, whichever byte is wrong."""
    monkeypatch.setattr("txnlog.segments.writer.DEFAULT_ROW_GROUP_BYTES", 600)
    monkeypatch.setattr("txnlog.read.arrow_scans.WHOLE_BYTES", 0)
    store = typed_store(storage=open_storage(str(tmp_path / "store")))
    scan = store.scan("typed", columns=["number"], filter=ODD)
    expected = scan.to_arrow()
    scanned = _scanned(monkeypatch)
    part = scan.ranges[-1]
    path = Path(str(store.storage.local_path(part.paths.log)))
    data = path.read_bytes()
    errors: list[str] = []
    for at in range(0, len(data), 151):
        path.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        try:
            assert scan.to_arrow() == expected
        except CorruptRecord as error:
            errors.append(str(error))
    assert len(errors) > 5
    assert all(part.paths.log in error for error in errors)
    assert any("row group" in error for error in errors)
    assert scanned
    other = Path(str(store.storage.local_path(scan.ranges[0].paths.log))).read_bytes()
    for wrong in (data[:-1], data[: len(data) // 2], other):
        path.write_bytes(wrong)
        with pytest.raises(CorruptRecord, match=re.escape(part.paths.log)):
            scan.to_arrow()
    path.unlink()
    with pytest.raises(CorruptRecord, match="is gone"):
        scan.to_arrow()
