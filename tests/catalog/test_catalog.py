"""Topics as tables of a catalog: the rows of the topic now, by pyiceberg, which knows no txnlog."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import NoSuchTableError

from tests.catalog.served import Served, served
from tests.tables.published import SCHEMA, commit_some_of, rows
from txnlog import TopicPartition
from txnlog.log import manifests, topic_log
from txnlog.names import is_of_tables
from txnlog.storage.adapters.local import LocalStorage
from txnlog.storage.counting import CountingStorage
from txnlog.store import Store, attach
from txnlog.tables import fresh_pieces
from txnlog.tables.pinned_topic import PinnedTopic
from txnlog.tables.plain_entries import RangeTable
from txnlog.testing import VirtualClock

DAY_MS = 86_400_000


@pytest.fixture
def store(tmp_path: Path, clock: VirtualClock) -> Store:
    """A store whose path must be encoded, with a topic ``f`` of three partitions."""
    folder = tmp_path / "st o%re #1?ü"
    folder.mkdir()
    made = attach(LocalStorage(str(folder)), create=True, clock=clock)
    made.topics.create("f", partitions=3, schema=SCHEMA, key=["carrier"])
    return made


@pytest.fixture
def catalog(store: Store) -> Iterator[Served]:
    with served(store) as opened:
        yield opened


def send(store: Store, batch: Any, topic: str = "f") -> None:
    with store.producer() as producer:
        producer.send_batch(topic, batch)


def in_folder(store: Store, pattern: str = "*") -> set[str]:
    """What catalogs have put, by day, topic and name."""
    root = Path(store.url) / "tables"
    return {f"{path.relative_to(root)}" for path in root.glob(f"*/*/{pattern}")}


def test_a_table_is_the_topic_now(store: Store, catalog: Served) -> None:
    """Every type, nulls and tombstones; of transactions those that are committed, whole."""
    assert catalog.check_same("f") == 0
    still_open = commit_some_of(store)
    assert catalog.check_same("f") == 51
    still_open.commit_transaction()
    assert catalog.check_same("f") == 91


def test_a_table_follows_merging_compaction_and_trims(
    store: Store, catalog: Served, clock: VirtualClock
) -> None:
    """Rows that a trim took out of a file are deleted by position; nothing is copied."""
    config = {"cleanup.policy": "compact", "min.compaction.lag.ms": 0}
    store.topics.alter("f", config=config)
    for first in range(0, 60, 10):
        send(store, rows(first, first + 12))
    assert catalog.check_same("f") == 72
    store.maintenance.compact("f")
    assert catalog.check_same("f") == 62
    send(store, rows(0, 5))
    store.topics.delete_records({TopicPartition("f", 0): 9, TopicPartition("f", 1): 7})
    rest = catalog.check_same("f")
    assert 0 < rest < 67
    assert not [name for name in in_folder(store, "*.parquet") if "deleted-" not in name]
    assert in_folder(store, "deleted-*.parquet")
    assert all(is_of_tables(f"tables/{name}") for name in in_folder(store))  # vacuum deletes them
    # Iceberg's Java library passes over deletes of sequence number 0.
    table = catalog.catalog().load_table("topics.f")
    snapshot = table.current_snapshot()
    assert snapshot is not None
    numbers = {one.content.name: one.sequence_number for one in snapshot.manifests(table.io)}
    assert numbers == {"DATA": 0, "DELETES": 1}
    # Merged with what came later, and trimmed where rows have gaps between their offsets.
    clock.time_ms += DAY_MS
    store.maintenance.merge("f")
    assert catalog.check_same("f") == rest


def test_settled_entries_show_as_the_newest_do(
    store: Store, catalog: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is in the log's manifests: committed, aborted, trimmed, and open when it was settled."""
    still_open = commit_some_of(store)
    assert catalog.check_same("f") == 51
    for module in (manifests, topic_log):
        monkeypatch.setattr(module, "KEPT_ENTRIES", 0)
        monkeypatch.setattr(module, "SETTLED_AT_ONCE", 1)
    log = store.logs.topic("f")
    log.refresh()
    log.checkpoint()
    assert RangeTable.of(PinnedTopic.of(store.logs, "f").view)._settled is not None
    assert catalog.check_same("f") == 51
    still_open.commit_transaction()
    assert catalog.check_same("f") == 91
    log.refresh()
    log.checkpoint()
    store.topics.delete_records({TopicPartition("f", 0): 9})
    left = catalog.check_same("f")
    assert left < 91
    with served(attach(LocalStorage(store.url), clock=store.logs.clock)) as other:
        assert other.check_same("f") == left


@pytest.mark.parametrize("lost", ["c", "d"])
def test_trimmed_rows_never_show(
    store: Store, catalog: Served, clock: VirtualClock, lost: str
) -> None:
    """Whoever dies may have put the manifest of the files, or that of their deleted rows, alone."""
    send(store, rows(0, 30))
    store.topics.delete_records({TopicPartition("f", 0): 3})
    left = catalog.check_same("f")
    put = in_folder(store, f"*.{lost}.*.avro")
    assert len(put) == 1
    (Path(store.url) / "tables" / put.pop()).unlink()
    with served(attach(LocalStorage(store.url), clock=clock)) as other:
        assert other.check_same("f") == left == 27


def test_a_table_follows_the_schema(store: Store, catalog: Served) -> None:
    """Columns by their ids: added, dropped, renamed, widened; a default in files without it."""
    send(store, rows(0, 20))
    send(store, pa.table({"carrier": ["c1"], "_deleted": [True]}))
    assert catalog.check_same("f") == 21
    kept = [field for field in SCHEMA if field.name not in ("price", "flight", "local")]
    changed = pa.schema([("later", pa.timestamp("us")), *kept, ("flight", pa.int64())])
    store.topics.alter("f", schema=changed)
    send(store, pa.table({"carrier": ["new"], "flight": [1 << 40]}))
    assert catalog.check_same("f") == 22
    more = [
        pa.field("gate", pa.string(), nullable=False),
        pa.field("dec", pa.decimal128(9, 2)),
        pa.field("bin", pa.binary()),
        pa.field("noon", pa.timestamp("us", tz="UTC")),
        pa.field("date", pa.date32()),
        pa.field("half", pa.float64()),
    ]
    values = ["?", Decimal("12.50"), b"\x00\xff", 0, 3, 0.5]
    defaults = {
        field.name: pa.scalar(value, field.type) for field, value in zip(more, values, strict=True)
    }
    store.topics.alter("f", schema=pa.schema([*changed, *more]), defaults=defaults)
    assert catalog.check_same("f") == 22
    send(store, pa.table({"carrier": ["x"], "gate": ["A"]}))
    assert catalog.check_same("f") == 23
    assert len(catalog.read("f", ["carrier"], row_filter="gate = '?'")) == 22
    assert len(catalog.read("f", ["carrier"], row_filter="half is null")) == 0
    assert not in_folder(store, "*.parquet")


@pytest.mark.parametrize("config", [{}, {"record.format": "parquet"}])
def test_keys_and_values_are_a_table(store: Store, catalog: Served, config: dict[str, str]) -> None:
    """With record.format=auto what is small is copied until it is merged, once."""
    store.topics.create("plain", partitions=2, config=config)
    for number in range(4):
        with store.producer() as producer:
            producer.send("plain", value=f"v{number}", key=f"k{number}", headers=[("h", b"\xff")])
            producer.send("plain", value=None, key=f"k{number}")
        assert catalog.check_same("plain") == 2 * number + 2
    copies = in_folder(store, "*.parquet")
    assert bool(copies) == (not config)
    assert catalog.check_same("plain") == 8
    assert in_folder(store, "*.parquet") == copies


def test_what_is_known_is_not_made_again(
    store: Store, catalog: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit makes one manifest anew, whatever is there already; no commit makes nothing."""
    monkeypatch.setattr(fresh_pieces, "_MEAN_FILES", 3)
    for number in range(10):
        send(store, rows(number, number + 2))
    catalog.check_same("f")
    before = in_folder(store)
    assert len([name for name in before if name.endswith("b.avro") or ".b." in name]) > 3
    catalog.check_same("f")
    assert in_folder(store) == before
    send(store, rows(0, 1))
    catalog.check_same("f")
    new = in_folder(store) - before
    assert sorted(name.rpartition(".")[2] for name in new) == ["avro", "avro", "json"]
    # Another process finds what is there.
    with served(attach(LocalStorage(store.url), clock=store.logs.clock)) as other:
        other.check_same("f")
    assert in_folder(store) == before | new


class _CountingDisk(CountingStorage):
    """Engines find the files of a disk that is counted too."""

    def local_path(self, name: str) -> str | None:
        return None if name else self.inner.local_path("")


def test_files_are_opened_once(tmp_path: Path, clock: VirtualClock) -> None:
    """Footers are read of new files alone."""
    counting = _CountingDisk(LocalStorage(str(tmp_path)))
    store = attach(counting, create=True, clock=clock)
    store.topics.create("f", schema=SCHEMA)
    with served(store) as catalog:

        def load() -> dict[str, int]:
            counting.take()
            assert catalog.ask("/v1/namespaces/topics/tables/f").status == 200
            return counting.take()

        for number in range(10):
            send(store, rows(number, number + 1))
        assert load()["get_range"] >= 10
        send(store, rows(0, 1))
        again = load()
        assert 1 <= again["get_range"] <= 2
        # The new piece's manifest, the list and the metadata.
        assert again["put_if_absent"] == 3
        assert load().keys() <= {"size", "list"}


def test_bounds_are_added_by_and_by(
    store: Store, catalog: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More files than are opened for one answer are known by their times, then by all columns."""
    monkeypatch.setattr(fresh_pieces, "_MEAN_FILES", 4)
    monkeypatch.setattr(fresh_pieces, "MOST_FOOTERS", 16)
    for number in range(16):
        send(store, rows(number, number + 3))
    kinds = []
    for _ in range(6):
        catalog.check_same("f")
        answer = catalog.ask("/v1/namespaces/topics/tables/f").json
        summary = answer["metadata"]["snapshots"][0]["summary"]
        assert int(summary["total-records"]) == 48
        kinds.append(len([name for name in in_folder(store) if ".b." in name]))
    assert kinds == sorted(kinds)
    assert kinds[0] < kinds[-1]
    table = catalog.catalog().load_table("topics.f")
    found = [*table.scan(row_filter="carrier == 'c7'").plan_files()]
    assert 0 < len(found) <= 6


def test_the_next_day_has_a_folder_of_its_own(
    store: Store, catalog: Served, clock: VirtualClock
) -> None:
    """What is still needed is put again, manifests without a look at segments."""
    send(store, rows(0, 30))
    store.topics.delete_records({TopicPartition("f", 0): 3})
    catalog.check_same("f")
    first = in_folder(store)
    clock.time_ms += DAY_MS
    assert catalog.check_same("f")
    second = in_folder(store) - first
    assert {name.partition("/")[0] for name in first}.isdisjoint(
        name.partition("/")[0] for name in second
    )
    shutil.rmtree(Path(store.url) / "tables" / next(iter(first)).partition("/")[0])
    assert catalog.check_same("f")
    with served(attach(LocalStorage(store.url), clock=clock)) as other:
        assert other.check_same("f")


def test_tables_are_topics(store: Store, catalog: Served) -> None:
    """Those whose segments may be Parquet files; what a client asks beside them."""
    store.topics.create("kafka", config={"record.format": "kafka"})
    store.topics.create("a.b-c_d")
    client = catalog.catalog()
    assert client.list_namespaces() == [("topics",)]
    assert client.list_tables("topics") == [("topics", "a.b-c_d"), ("topics", "f")]
    assert client.table_exists(("topics", "a.b-c_d"))
    assert not client.table_exists(("topics", "kafka"))
    assert client.load_table(("topics", "a.b-c_d")).scan().to_arrow().num_rows == 0
    for missing in (("topics", "none"), ("topics", "kafka"), ("topics", "..")):
        with pytest.raises(NoSuchTableError):
            client.load_table(missing)
    store.topics.delete("a.b-c_d")
    assert client.list_tables("topics") == [("topics", "f")]
    with pytest.raises(NoSuchTableError):
        client.load_table(("topics", "a.b-c_d"))


def test_a_topic_that_is_made_anew_is_another_table(store: Store, catalog: Served) -> None:
    send(store, rows(0, 3))
    assert catalog.check_same("f") == 3
    first = catalog.ask("/v1/namespaces/topics/tables/f").json["metadata"]["table-uuid"]
    store.topics.delete("f")
    store.topics.create("f", schema=pa.schema([("other", pa.int64())]))
    assert catalog.check_same("f") == 0
    second = catalog.ask("/v1/namespaces/topics/tables/f").json["metadata"]["table-uuid"]
    assert first != second
