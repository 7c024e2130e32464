"""Stores of format 1 that were written once are read as they were then, and carried on."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest

import txnlog
from tests.store.golden_stores import read_parquet
from txnlog import IsolationLevel, TopicPartition
from txnlog.store import Store

GOLDEN = Path(__file__).parent / "golden"
SOURCE = TopicPartition("columns", 0)


@pytest.fixture
def golden(tmp_path: Path) -> tuple[Store, dict[str, object]]:
    """A copy of the store, and what the version that wrote it has read from it.

    Its last writer died in a transaction of a minute, in 2025.
    """
    with zipfile.ZipFile(GOLDEN / "format-1.zip") as files:
        files.extractall(tmp_path / "store")
    for path in (tmp_path / "store").rglob("*.json"):
        # A copy is new by its disk's clock, and so would be the transaction.
        os.utime(path, (0, 0))
    expected = json.loads((GOLDEN / "format-1.json").read_text())
    return txnlog.open(str(tmp_path / "store")), expected


def records(
    store: Store, isolation_level: IsolationLevel = "read_committed"
) -> dict[str, list[list[object]]]:
    snapshot = store.snapshot(["columns", "rows"], isolation_level=isolation_level)
    found = {}
    for topic in snapshot.topics:
        table = snapshot.scan(topic, columns=["partition", "offset", "value"]).to_arrow()
        rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
        found[topic] = [[p, offset, value.decode()] for p, offset, value in rows]
    return found


def test_it_is_read_as_ever(golden: tuple[Store, dict[str, object]]) -> None:
    store, expected = golden
    # The one that was open is aborted by whoever comes by.
    assert records(store) == records(store, "snapshot") == expected["records"]
    committed = store.consumer("columns", group_id="group").committed(SOURCE)
    assert committed is not None
    assert committed.offset == expected["group"]
    assert store.transactions.describe("open").status == "CompleteAbort"
    assert not [f for f in store.examine(with_contents=True) if f.state == "damage"]


def test_it_is_carried_on(golden: tuple[Store, dict[str, object]]) -> None:
    """New transactions of an old id, beyond the next checkpoint, and read by somebody new."""
    store, expected = golden
    before = expected["records"]
    assert isinstance(before, dict)
    with store.producer(transactional_id="job") as producer:
        producer.init_transactions()
        for turn in range(40):
            with producer.transaction():
                producer.send("columns", b"new %d" % turn, partition=0)
                producer.send("rows", b"new %d" % turn)
                producer.send_offsets_to_transaction({SOURCE: 100 + turn}, "group")
    again = txnlog.open(store.url)
    found = records(again)
    for topic, old in before.items():
        assert [row for row in found[topic] if not str(row[2]).startswith("new")] == old
        assert len(found[topic]) == len(old) + 40
    committed = again.consumer("columns", group_id="group").committed(SOURCE)
    assert committed is not None
    assert committed.offset == 139
    assert not [f for f in again.examine(with_contents=True) if f.state == "damage"]


def test_a_damaged_copy_is_noticed(golden: tuple[Store, dict[str, object]]) -> None:
    """The same check of these very files can fail."""
    store, _ = golden
    shutil.rmtree(Path(store.url) / "topics/rows/data")
    assert [f for f in store.examine(with_contents=True) if f.state == "damage"]


def test_parquet_segments_and_bundles(tmp_path: Path) -> None:
    """Typed rows before and after a change of columns, gaps, and a shared entry file."""
    root = tmp_path / "store"
    with zipfile.ZipFile(GOLDEN / "format-1-parquet.zip") as files:
        files.extractall(root)
    names = [str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()]
    assert sum(name.endswith(".parquet") for name in names) > 10
    entries = [json.loads(p.read_bytes()) for p in (root / "topics/t/log").glob("*.json")]
    assert "bundle" in {entry["kind"] for entry in entries}
    store = txnlog.open(str(root))
    expected = json.loads((GOLDEN / "format-1-parquet.json").read_text())
    assert read_parquet(store) == expected
    with store.producer(transactional_id="job") as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send_batch("typed", pa.table({"carrier": ["later"], "gate": [1]}))
            producer.send("bytes", b"later")
            producer.send("t", b"later")
    again = read_parquet(txnlog.open(str(root)))
    assert {topic: len(rows) for topic, rows in again.items()} == {
        topic: len(rows) + 1 for topic, rows in expected.items()
    }
    store.maintenance.compact("typed")
    store.maintenance.merge("bytes")
    assert not [f for f in store.examine(with_contents=True) if f.state == "damage"]
