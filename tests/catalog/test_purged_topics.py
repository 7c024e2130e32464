"""Purging a topic that a catalog serves, which has copied rows of small segments."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyarrow import parquet

from txnlog.admin import purge_topic
from txnlog.admin.live_segments import placed_refs
from txnlog.clock import SystemClock
from txnlog.names import SegmentRef, is_of_tables
from txnlog.results import PurgeReport
from txnlog.state.segment import Segment
from txnlog.state.topic import TopicState
from txnlog.storage.adapters.local import LocalStorage
from txnlog.store import Store, attach
from txnlog.tables.fresh_table import FreshTables
from txnlog.testing import VirtualClock

DAY_MS = 86_400_000


@pytest.fixture
def clock() -> VirtualClock:
    """That of the files' times."""
    return VirtualClock(SystemClock().now_ms())


@pytest.fixture
def store(tmp_path: Path, clock: VirtualClock) -> Store:
    made = attach(LocalStorage(str(tmp_path)), create=True, clock=clock)
    made.topics.create("t", partitions=2)
    return made


def send(store: Store, *keys: str) -> None:
    with store.producer() as producer:
        for number, key in enumerate(keys):
            producer.send("t", b"x", key, partition=number % 2)


def purge(store: Store) -> PurgeReport:
    return store.maintenance.purge("t", [{"key": "mallory"}])


def copies_with(store: Store, key: bytes) -> list[Path]:
    """The files of catalogs that have a record of this key."""
    found = Path(store.url).glob("tables/*/t/[0-9]*.parquet")
    return [path for path in found if key in parquet.read_table(path).column("key").to_pylist()]


def test_copies_of_purged_records_are_waited_for(store: Store, clock: VirtualClock) -> None:
    """Whatever day they were put on; those of other records are none of its business."""
    for days in (0, 1):
        clock.time_ms += days * DAY_MS
        send(store, "ann", "mallory", "bob")
        FreshTables(store.logs).load("t")
    held = copies_with(store, b"mallory")
    assert len({path.parent for path in held}) == 2
    FreshTables(store.logs).load("t")
    assert [path for path, _ in store.storage.list_all("tables") if not is_of_tables(path)] == []
    assert purge(store).partitions
    before = purge(store).waiting_files
    assert before >= len(held)
    for path in held:
        path.unlink()
    assert purge(store).waiting_files == before - len(held)


def test_in_the_end_nothing_waits_though_a_catalog_is_asked_again(
    store: Store, clock: VirtualClock
) -> None:
    """Copies are deleted with the folder of their day; new ones have no record of the keys."""
    clock.time_ms -= 9 * DAY_MS
    send(store, "ann", "mallory", "bob")
    FreshTables(store.logs).load("t")
    assert copies_with(store, b"mallory")
    assert purge(store).waiting_files > 0
    clock.time_ms += 9 * DAY_MS
    for path in Path(store.url).rglob("*"):
        os.utime(path, (clock.time_ms / 1000 - 9 * 86_400,) * 2)
    for _ in range(3):
        attach(LocalStorage(store.url), clock=clock).maintain()
    assert not copies_with(store, b"mallory")
    send(store, "ann")
    FreshTables(store.logs).load("t")
    assert copies_with(store, b"ann")
    assert purge(store) == PurgeReport("t", (), 0, 0)


def test_a_copy_that_is_put_meanwhile_is_not_waited_for(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is of a segment that the log did not have yet when it was looked at."""

    def too_late(topic: str, state: TopicState) -> list[tuple[SegmentRef, Segment]]:
        found = [*placed_refs(topic, state)]
        send(store, "bob")
        FreshTables(store.logs).load("t")
        return found

    monkeypatch.setattr(purge_topic, "placed_refs", too_late)
    send(store, "ann")
    assert purge(store) == PurgeReport("t", (), 0, 0)
    assert copies_with(store, b"bob")
