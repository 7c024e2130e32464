"""An unreadable object is a finding of its own, and makes nothing else wrong."""

from __future__ import annotations

import pytest

from tests.doctor.broken_store import (
    A_LOG,
    G_LOG,
    SMALL,
    BrokenStore,
    Refusing,
    examine,
    wrong_offset,
)
from txnlog import names
from txnlog.doctor.findings import Finding
from txnlog.errors import StorageError
from txnlog.names import LogFile
from txnlog.store import attach
from txnlog.testing import FaultyStorage, VirtualClock


def test_what_cannot_be_read_is_told_and_the_rest_looked_at() -> None:
    """An entry, a marker, a checkpoint, a state, a segment, a folder: each is a finding of its own.

    The damage beside them is still found, and nothing is called damage that only was not read.
    """
    broken = BrokenStore()
    wrong_offset(broken)
    segment = next(name for name, _ in broken.storage.list_all("topics/b/data"))
    refused = [
        broken.path(A_LOG, 5),
        broken.path(A_LOG, 41, LogFile.COMMIT),
        next(f"{A_LOG}/{n}" for n in broken.storage.list_names(A_LOG) if n.endswith("checkpoint")),
        broken.path(names.transaction_log("undone"), 1),
        segment,
    ]
    storage = Refusing(broken.storage, *refused)
    found = examine(storage, with_contents=True)
    unreadable = [f for f in found if f.state == "unreadable"]
    assert sorted(f.path or "" for f in unreadable) == sorted(refused)
    assert all("injected failure" in f.detail for f in unreadable)
    assert ("group", "g", "ok") in [
        (f.check, f.subject, f.state)
        for f in attach(storage, clock=VirtualClock(seed=9)).examine(with_probe=False)
    ]
    lists = ("transactions/done", "topics/a/log", "groups/g", "list_all topics/b")
    found = examine(Refusing(SMALL.copy(), *(f"list {part}" for part in lists[:3]), lists[3]))
    assert {(f.check, f.subject, f.state) for f in found} == {
        ("transactions", "done", "unreadable"),
        ("topic", "a", "unreadable"),
        ("group", "g", "unreadable"),
        ("data", "b", "unreadable"),
    }


def test_a_disk_that_takes_no_write_can_be_examined() -> None:
    """A full one, say: the probe is a finding, and the rest is looked at."""

    def refuse(request: str) -> None:
        if request.startswith("put"):
            failed = StorageError("the disk is full")
            failed.retriable = passes
            raise failed

    passes = False
    store = attach(FaultyStorage(SMALL.copy(), before_request=refuse), clock=VirtualClock(seed=9))
    first, *others = store.examine()
    assert (first.check, first.state) == ("probe", "unreadable")
    assert first.detail.startswith("the disk is full; --no-probe, ")
    assert others
    assert {finding.state for finding in others} == {"ok"}
    passes = True
    with pytest.raises(StorageError, match="the disk is full"):
        list(store.examine())


@pytest.mark.more
def test_one_state_or_entry_that_cannot_be_read_makes_nothing_else_wrong() -> None:
    """Whatever single file it is: no other is called damaged for that."""
    for path, _ in list(SMALL.list_all("")):
        if path == names.STORE_FILE:
            continue
        found = examine(Refusing(SMALL.copy(), f"get {path}"), with_contents=True)
        assert {f.state for f in found} <= {"unreadable"}, (path, found)


def test_what_an_unreadable_id_has_decided_is_not_guessed() -> None:
    """Two commits without markers move one offset: with the id's state that would be judged."""
    broken = BrokenStore()
    broken.storage.delete([broken.path(G_LOG, number, LogFile.COMMIT) for number in (0, 1)])
    (found,) = examine(Refusing(broken.storage, f"get {names.transaction_log('done')}/"))[-1:]
    assert (found.check, found.subject, found.state) == ("transactions", "done", "unreadable")


def test_an_outage_ends_the_examination() -> None:
    """Nothing can be read: one error, not a finding for each of very many objects."""
    storage = SMALL.copy()
    store = attach(storage, clock=VirtualClock(seed=6))
    with store.producer() as producer:
        for number in range(20):
            store.topics.create(f"t{number}")
            producer.send(f"t{number}", "x")
    faulty = Refusing(storage)
    store = attach(faulty, clock=VirtualClock(seed=9))
    faulty.refused = ("get ",)
    found: list[Finding] = []
    with pytest.raises(StorageError, match="gave up after 64 objects in a row"):
        found.extend(store.examine(with_probe=False))
    assert 0 < len(found) <= 64
    faulty.refused = ("list",)
    with pytest.raises(StorageError, match="injected failure of list_folders"):
        list(store.examine(with_probe=False))


def test_one_unreadable_log_does_not_end_it() -> None:
    """Of many unreadable entries only some are reported."""
    found = examine(Refusing(SMALL.copy(), f"get {A_LOG}"))
    unreadable = [f for f in found if f.state == "unreadable"]
    assert {f.state for f in found} == {"unreadable"}
    assert {f.subject for f in unreadable} == {"a"}
    assert len(unreadable) == 17
    assert "not looked at" in unreadable[-1].detail
