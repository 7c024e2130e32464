"""Records of a compacted topic need keys: what has none is refused before anything is taken."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from txnlog import Store
from txnlog.errors import InvalidRecord
from txnlog.store import attach
from txnlog.testing import HeapStorage

NO_KEY = r"topic 't' is compacted by key: give each one, or alter the topic's cleanup\.policy"


@pytest.fixture
def store() -> Store:
    store = attach(HeapStorage(), create=True)
    store.topics.create("t", config={"cleanup.policy": "compact,delete"})
    return store


def test_one_by_one(store: Store) -> None:
    """Records sent before are written; an empty key is a key."""
    with store.producer() as producer:
        producer.send("t", b"1", b"a")
        with pytest.raises(InvalidRecord, match=f"a record has no key, and {NO_KEY}"):
            producer.send("t", b"2")
        producer.send("t", b"3", b"")
    assert store.scan("t").to_arrow()["value"].to_pylist() == [b"1", b"3"]


@pytest.mark.parametrize(
    "batch",
    [
        pa.record_batch({"key": ["a", None, "c"], "value": ["1", "2", "3"]}),
        pa.record_batch({"value": ["1"]}),
        pa.record_batch({"key": pa.nulls(2), "value": ["1", "2"]}),
        pa.record_batch({"key": pa.array(["a", None]).dictionary_encode(), "value": ["1", "2"]}),
    ],
)
def test_a_batch_is_taken_whole_or_not_at_all(store: Store, batch: pa.RecordBatch) -> None:
    """Whatever Arrow's way to say null is; the producer goes on."""
    with store.producer() as producer:
        producer.send("t", b"before", b"k")
        with pytest.raises(InvalidRecord, match=rf"\d of \d records have no key, and {NO_KEY}"):
            producer.send_batch("t", batch)
        producer.send_batch("t", pa.record_batch({"key": ["k"], "value": ["after"]}))
    assert store.scan("t").to_arrow()["value"].to_pylist() == [b"before", b"after"]


def test_tombstones_are_taken(store: Store) -> None:
    """A null value is not a null key."""
    with store.producer() as producer:
        producer.send("t", None, b"k")
    assert store.scan("t").to_arrow()["value"].to_pylist() == [None]


def test_other_topics_need_none(store: Store) -> None:
    """Nor does this one, when it is not compacted any more."""
    store.topics.alter("t", config={"cleanup.policy": "delete"})
    with store.producer() as producer:
        producer.send("t", b"1")
    assert store.scan("t").count() == {0: 1}


def test_an_import(store: Store, tmp_path: Path) -> None:
    """Nothing of folders with such records is imported; the error says where it was."""
    store.topics.create("keyless")
    with store.producer() as producer:
        producer.send("keyless", b"1", b"k")
        producer.send("keyless", b"2")
    store.kafka.export_topic("keyless", str(tmp_path))
    (tmp_path / "keyless-0").rename(tmp_path / "t-0")
    files = {*store.storage.list_names("topics/t/data/0")}
    with pytest.raises(InvalidRecord, match=r"nothing was imported: .*t-0/0+\.log, the batch at"):
        store.kafka.import_topic("t", [str(tmp_path)])
    assert store.scan("t").count() == {0: 0}
    assert {*store.storage.list_names("topics/t/data/0")} == files
