"""A scan as a data frame of other libraries, and what is said where one is not there."""

from __future__ import annotations

import importlib.util
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import dataset

import txnlog
from txnlog import Scan
from txnlog.errors import InvalidOption
from txnlog.read.arrow_scans import _Segments


@pytest.fixture
def scan(request: pytest.FixtureRequest) -> Scan:
    """Three records."""
    store = txnlog.open(f"memory://frames-{request.node.name}", create=True)
    store.topics.create("t")
    with store.producer() as producer:
        for number in range(3):
            producer.send("t", b"%d" % number)
    return store.scan("t", columns=["value", "offset"])


def test_polars_and_duckdb_have_the_records(scan: Scan) -> None:
    """A relation can be read more than once, and belongs to the connection that was given."""
    assert scan.to_polars().rows() == [(b"0", 0), (b"1", 1), (b"2", 2)]
    import duckdb

    with duckdb.connect() as connection:
        relation = scan.to_duckdb(connection)
        for _ in range(2):
            assert relation.filter('"offset" > 0').fetchall() == [(b"1", 1), (b"2", 2)]
        assert connection.sql('SELECT sum("offset") FROM relation').fetchall() == [(3,)]
    assert len(scan.to_duckdb().fetchall()) == 3


@pytest.mark.parametrize("package", ["pandas", "polars", "duckdb"])
def test_what_is_not_installed_is_named(
    scan: Scan, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    """And how it gets there."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(
        InvalidOption,
        match=rf"to_{package}\(\) needs {package}: pip install '{package}>=\S+'( 'pytz')?$",
    ):
        getattr(scan, f"to_{package}")()


def test_times_come_out_of_duckdb() -> None:
    """With a zone, for which DuckDB imports a package that the extra brings."""
    store = txnlog.open("memory://frames-times", create=True)
    store.topics.create("t")
    with store.producer() as producer:
        producer.send("t", b"v", timestamp_ms=1_700_000_000_000)
    (row,) = store.scan("t").to_duckdb().fetchall()
    (sent,) = (value for value in row if isinstance(value, datetime))
    assert sent == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)


def test_a_reader_of_a_dataset_opens_no_file_before_it_is_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Arrow would hold Python's lock meanwhile, which opening needs: DuckDB stood still."""
    store = txnlog.open(str(tmp_path), create=True)
    store.topics.create("t", schema=pa.schema([("id", pa.int64())]))
    for number in range(20):
        with store.producer() as producer:
            producer.send_batch("t", pa.table({"id": [number] if number else [0, 0]}))
    opened: list[str] = []
    open_input_file = _Segments.open_input_file

    def noted(files: _Segments, path: str) -> pa.NativeFile:
        opened.append(path)
        return open_input_file(files, path)

    monkeypatch.setattr(_Segments, "open_input_file", noted)
    whole = store.snapshot(["t"]).dataset("t")
    store.topics.delete_records({txnlog.TopicPartition("t", 0): 1})
    cut = store.snapshot(["t"]).dataset("t")  # the rest of a file, and files
    only_id = pa.schema([whole.schema.field("id")])
    for found, rows, files in ((whole, 21, 20), (cut, 20, 19)):
        for data in (found, found.replace_schema(only_id), found.filter(pc.field("id") >= 0)):
            opened.clear()
            reader = data.scanner(columns=["id"]).to_reader()
            assert not opened
            assert reader.read_all().num_rows == rows
            assert len(opened) == files


def test_pyarrow_writes_a_dataset_and_what_is_scanned_of_it(tmp_path: Path) -> None:
    """Files alone, and with the rest of one that was cut through."""
    store = txnlog.open(str(tmp_path / "store"), create=True)
    store.topics.create("t", schema=pa.schema([("id", pa.int64()), ("n", pa.int64())]))
    with store.producer() as producer:
        producer.send_batch("t", pa.table({"id": [0, 1, 2], "n": [0, 0, 1]}))
    for first in (0, 1):
        store.topics.delete_records({txnlog.TopicPartition("t", 0): first})
        found = store.snapshot(["t"]).dataset("t")
        for data, names in ((found, found.schema.names), (found.scanner(columns=["id"]), ["id"])):
            folder = tmp_path / f"{first}-{len(names)}"
            dataset.write_dataset(data, folder, format="parquet")
            written = dataset.dataset(folder).to_table()
            assert written.schema.names == names
            assert sorted(written.column("id").to_pylist()) == [0, 1, 2][first:]
