"""Manifests of very many files: the bytes that one file after the other would have."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import txnlog
from tests.catalog.served import served
from tests.tables.published import SCHEMA, rows
from txnlog import TopicPartition
from txnlog.log.uploads import UploadedSegment
from txnlog.state.segment import StoredSegment
from txnlog.store import Store
from txnlog.tables import fresh_pieces, plain_entries
from txnlog.tables.avro import number
from txnlog.tables.fresh_table import FreshTables
from txnlog.tables.plain_entries import PlainEntries

NUMBERS = [0, 1, 63, 64, 127, 128, 8191, 8192, (1 << 35) + 5, (1 << 40) - 1]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return txnlog.open(str(tmp_path / "st o%re #1?ü"), create=True)


def place_unmade(store: Store, topic: str) -> None:
    """Segments whose files are not there, of all sizes, times and numbers, some without times."""
    spec = store.logs.topic_spec(topic)
    base = 0
    for turn, size in enumerate(NUMBERS):
        placed = []
        for partition in range(spec.partitions):
            for count in range(1 + turn % 3):
                version = f"-v{count}" if count and topic == "altered" else ""
                name = f"{'w' * (1 + 20 * turn)}{version}-{count}.parquet"
                times = (-1, -1) if turn == 3 else (size * 1000, size * 1000 + turn)
                stored = StoredSegment(name, 1 + size % 9000, 1 + size, *times)
                placed.append(UploadedSegment(topic, spec.topic_id, partition, stored))
        base += len(placed)
        store.logs.topic(topic).place(placed)
    assert base > len(NUMBERS)


def manifests_of(store: Store, topic: str) -> dict[str, bytes]:
    """Those that a first answer has put; they are removed again."""
    FreshTables(store.logs).load(topic)
    root = Path(store.url) / "tables"
    found = {path.name: path.read_bytes() for path in root.glob("*/*/*.avro")}
    shutil.rmtree(root)
    return {name: data for name, data in found.items() if ".list." not in name}


@pytest.mark.parametrize("topic", ["plain", "typed", "keyed", "altered"])
def test_bytes_are_the_same(store: Store, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In formats 2 and 3, with times and without, across blocks and windows."""
    monkeypatch.setattr(fresh_pieces, "_MEAN_FILES", 3)
    monkeypatch.setattr(fresh_pieces, "MOST_FOOTERS", 0)
    monkeypatch.setattr(plain_entries, "_ROWS", 5)
    columns = None if topic == "plain" else SCHEMA
    key = ["carrier"] if topic == "keyed" else None
    store.topics.create(topic, partitions=3, schema=columns, key=key)
    if topic == "altered":
        wider = SCHEMA
        for name in ("more", "most"):
            wider = wider.append(pa.field(name, pa.int64()))
            store.topics.alter(topic, schema=wider)
    if topic != "plain":
        with store.producer() as producer:
            producer.send_batch(topic, rows(0, 30))
    place_unmade(store, topic)
    made = []
    original = PlainEntries.of

    def of(self: PlainEntries, first: int, stop: int) -> pa.Array:
        made.append(stop - first)
        return original(self, first, stop)

    monkeypatch.setattr(PlainEntries, "of", of)
    monkeypatch.setattr("txnlog.tables.avro._BLOCK_BYTES", 700)
    found = manifests_of(store, topic)
    assert sum(made) > len(NUMBERS)
    monkeypatch.setattr(PlainEntries, "known", lambda self: np.zeros(len(self.order), np.bool_))
    made.clear()
    assert manifests_of(store, topic) == found
    assert made == []


@pytest.mark.parametrize("config", [{}, {"record.format": "auto"}])
def test_rows_that_need_more_than_the_log(
    store: Store, config: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that are cut, and segments that are no Parquet file of their own, are shown too."""
    monkeypatch.setattr(fresh_pieces, "_MEAN_FILES", 1)
    monkeypatch.setattr(fresh_pieces, "MOST_FOOTERS", 0)
    store.topics.create("f", partitions=2, schema=SCHEMA, config=config)
    for first in range(0, 60, 20):
        with store.producer() as producer:
            producer.send_batch("f", rows(first, first + 20))
    store.topics.delete_records({TopicPartition("f", 0): 3, TopicPartition("f", 1): 12})
    with served(store) as catalog:
        assert catalog.check_same("f") == 45


def test_numbers_are_those_of_avro() -> None:
    """Each as it is written alone, negative ones too."""
    values = [*NUMBERS, *(-n for n in NUMBERS), (1 << 63) - 1, -(1 << 63)]
    found = plain_entries._numbers(np.array(values, np.int64)).to_pylist()
    assert found == [number(value) for value in values]
    assert len(plain_entries._numbers(np.empty(0, np.int64))) == 0


def test_a_first_answer_does_without_pandas(store: Store) -> None:
    """Where it is installed its import takes a second."""
    store.topics.create("t", partitions=2, schema=pa.schema([("a", pa.int64())]))
    place_unmade(store, "t")
    code = """if True:
        import sys
        import txnlog
        from txnlog.tables import fresh_pieces
        from txnlog.tables.fresh_table import FreshTables
        fresh_pieces.MOST_FOOTERS = 0
        FreshTables(txnlog.open(sys.argv[1]).logs).load("t")
        assert "pandas" not in sys.modules
        """
    subprocess.run([sys.executable, "-c", code, store.url], check=True, timeout=120)
