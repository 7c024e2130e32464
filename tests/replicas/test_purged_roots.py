"""Purges of stores on several roots: while a root has such records, somewhere, it is said."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

import txnlog
from tests.support.replication.replica_folders import lose, reopened
from txnlog.replication import Replicas, open_replicas
from txnlog.replication.roots.epochs import FACTOR, SCRUB
from txnlog.results import PurgeReport
from txnlog.storage.adapters.local import LocalStorage
from txnlog.testing import ProcessStopped, VirtualClock

PERSON = "mallory"
"""The key to purge. Nothing is compressed, so its records can be looked for in bytes of files."""
NOTHING = PurgeReport("t", (), 0, 0)

pytestmark = pytest.mark.usefixtures("unlogged")


def make(folder: Path, factor: int | None) -> txnlog.Store:
    """Three roots, with a segment of each of three partitions that has a record of the person."""
    store = open_replicas(
        [str(folder / root) for root in "abc"],
        controller=str(folder / "control"),
        create=True,
        config={SCRUB: "none", **({} if factor is None else {FACTOR: factor})},
        clock=VirtualClock(),
    ).store
    config = {"compression.type": "none", "file.delete.delay.ms": 0}
    store.topics.create("t", partitions=3, config=config)
    write(store, "ann", PERSON)
    return store


def write(store: txnlog.Store, *keys: str) -> None:
    with store.producer() as producer:
        for partition in range(3):
            for key in keys:
                producer.send("t", f"of {key}", key, partition=partition)
            producer.flush()


def holding(folder: Path) -> set[str]:
    """The incarnations with such records."""
    there = (path for root in "abc" for path in (folder / root).rglob("*") if path.is_file())
    held = (path for path in there if PERSON.encode() in path.read_bytes())
    return {"/".join(path.relative_to(folder).parts[:2]) for path in held}


def purge(folder: Path) -> PurgeReport:
    """Purge, and see that it is said where some are left."""
    report = reopened(folder).maintenance.purge("t", [{"key": PERSON}])
    assert report != NOTHING or not holding(folder)
    return report


@pytest.mark.few(2)
@pytest.mark.parametrize("gone", ["a", "b", "c"])
@pytest.mark.parametrize("factor", [None, 2])
def test_a_root_was_out(tmp_path: Path, factor: int | None, gone: str) -> None:
    """What it had then is named until it is forgotten, and is not brought back to the others."""
    store = make(tmp_path, factor)
    bring_back = lose(tmp_path / gone)
    write(store, "bob")
    earlier = f"r{'abc'.index(gone)}-0"
    report = purge(tmp_path)
    assert len(report.partitions) == 3
    assert report.old_copies == (earlier,)  # nobody knows what it has
    reopened(tmp_path).maintain()
    bring_back()
    for _ in range(2):
        assert purge(tmp_path).old_copies == (earlier,)
        if Replicas(store).describe().out:
            Replicas(store).add(str(tmp_path / gone))
        if factor is not None:
            Replicas(store).reassign()
        reopened(tmp_path).maintain()
        assert holding(tmp_path) == {f"{gone}/incarnation-00000"}
    assert purge(tmp_path) == PurgeReport("t", (), 0, 0, (earlier,))
    Replicas(store).forget(earlier)
    assert holding(tmp_path) == set()
    assert purge(tmp_path) == NOTHING


@pytest.mark.parametrize("factor", [None, 2])
def test_an_old_copy_that_has_nothing_else_is_not_named(tmp_path: Path, factor: int | None) -> None:
    """Its segments are those that the log places."""
    store = make(tmp_path, factor)
    purge(tmp_path)
    reopened(tmp_path).maintain()
    assert holding(tmp_path) == set()
    Replicas(store).remove("r1")
    Replicas(store).add(str(tmp_path / "b"))
    assert Replicas(store).describe().replicas[1].old == ("r1-0",)
    assert purge(tmp_path) == NOTHING


@pytest.mark.parametrize("ends_at", ["a", "b", "c"])
@pytest.mark.parametrize("factor", [None, 2])
def test_a_deletion_ends_at_some_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factor: int | None, ends_at: str
) -> None:
    """The others may have deleted it: it waits while any has it, and the next one goes on."""
    make(tmp_path, factor)
    assert purge(tmp_path).waiting_files == 3
    delete = LocalStorage.delete

    def stop(self: LocalStorage, names: Iterable[str]) -> None:
        doomed = [*names]
        if f"/{ends_at}/" in self.url and any(name.endswith(".log") for name in doomed):
            raise ProcessStopped
        delete(self, doomed)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "delete", stop)
        with pytest.raises(ProcessStopped):
            reopened(tmp_path).maintain()
    assert holding(tmp_path)
    assert purge(tmp_path).waiting_files
    reopened(tmp_path).maintain()
    assert holding(tmp_path) == set()
    assert purge(tmp_path) == NOTHING


@pytest.mark.parametrize("away", ["b", "c"])
def test_who_only_reads_lists_files_without_a_root_that_is_away(tmp_path: Path, away: str) -> None:
    """Nobody has put it out yet: what the others have is told."""
    make(tmp_path, None)
    store = reopened(tmp_path)
    expected = [*store.storage.list_all("topics/t")]
    lose(tmp_path / away)
    for one in (store, reopened(tmp_path)):
        assert [*one.storage.list_all("topics/t")] == expected
    assert len(Replicas(store).describe().in_sync) == 3
