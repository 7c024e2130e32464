"""Who looks at what roots keep, for the controller or to clean, waits for none that hangs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Timer
from typing import Any

import pytest

import txnlog
from tests.replicas.stalled_roots import LAG_MS, REQUESTS, Gate
from tests.support.replication.replica_folders import (
    FIRST,
    SECOND,
    lose,
    make,
    reopened,
    values,
    write,
)
from txnlog.errors import NotEnoughReplicas, StorageError
from txnlog.replication import Replicas, open_replicas, recover_controller
from txnlog.replication.examination import _check_pointers
from txnlog.replication.roots import slowness
from txnlog.replication.roots.agreement import MemberFailed
from txnlog.replication.roots.epoch_cleaning import clean_epochs
from txnlog.replication.roots.epochs import Epoch, Root
from txnlog.replication.roots.members import MemberOpener
from txnlog.replication.roots.replicated_storage import ReplicatedStorage, find_replicated
from txnlog.replication.roots.scrub import scrub
from txnlog.replication.roots.trim import read_notes
from txnlog.replication.roots.watermarks import watermarks
from txnlog.results import MaintenanceFailure
from txnlog.storage import Storage, registry
from txnlog.storage.adapters.local import LocalStorage
from txnlog.store import attach
from txnlog.testing import VirtualClock

Look = Callable[[Path, ReplicatedStorage], object]


LONGEST_S = 20
"""Then a request that hangs goes on, and who has waited for it fails the test."""


@pytest.fixture
def storage(tmp_path: Path) -> ReplicatedStorage:
    make(tmp_path, **{"replica.lag.time.max.ms": LAG_MS})
    found = find_replicated(reopened(tmp_path, "a").storage)
    assert found is not None
    return found


def read(_: Path, storage: ReplicatedStorage) -> None:
    with pytest.raises(StorageError, match="Without it everything can be read while all roots"):
        storage.agreement.refresh()


def test_one_thread_may_learn_that_the_controller_is_back_while_another_asks(
    tmp_path: Path, storage: ReplicatedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    agreement, lag_s = storage.agreement, vars(Epoch)["lag_s"].fget
    agreement.refresh()
    lose(tmp_path / "control")
    agreement.refresh()
    assert agreement.lost is not None

    def learn_meanwhile(epoch: Epoch) -> object:
        agreement.lost = None
        return lag_s(epoch)

    monkeypatch.setattr(Epoch, "lag_s", property(learn_meanwhile))
    assert agreement.refresh().number == 0


def recover(folder: Path, _: ReplicatedStorage) -> None:
    with pytest.raises(NotEnoughReplicas, match=r"r1 must answer.* there was no answer for"):
        recover_controller(str(folder / "a"), str(folder / "new"), clock=VirtualClock())


@pytest.mark.parametrize(
    ("where", "kind"),
    [("b", "get"), ("b", "list_folders"), (SECOND, "list_names"), (SECOND, "get")],
)
@pytest.mark.parametrize("look", [read, recover])
def test_the_notes_that_roots_keep(
    tmp_path: Path, storage: ReplicatedStorage, gate: Gate, look: Look, where: str, kind: str
) -> None:
    lose(tmp_path / "control")
    gate.close(tmp_path / where, kind)
    look(tmp_path, storage)
    assert gate.asked


def test_the_root_by_which_the_store_was_opened(
    tmp_path: Path, storage: ReplicatedStorage, gate: Gate
) -> None:
    lose(tmp_path / "control")
    gate.close(tmp_path / "a", "get")
    read(tmp_path, storage)
    assert gate.asked == ["get"]


@pytest.mark.parametrize("opens", [txnlog.open, open_replicas])
def test_whoever_opens_the_store_by_a_root_that_hangs_is_told(
    tmp_path: Path,
    gate: Gate,
    monkeypatch: pytest.MonkeyPatch,
    opens: Callable[..., object],
) -> None:
    """Not even its mark can be read, by which the others are found."""
    make(tmp_path)
    monkeypatch.setattr(registry, "_ANSWERS_WITHIN_S", LAG_MS / 1000)
    gate.close(tmp_path / "a", *REQUESTS)
    watch = Timer(LONGEST_S, gate.let_go)
    watch.start()
    with pytest.raises(StorageError, match=r"hangs.*open that by another root"):
        opens(str(tmp_path / "a"), clock=VirtualClock())
    watch.cancel()
    assert len(gate.asked) == 1
    reopened(tmp_path, "b")


def test_a_root_that_hangs_while_it_is_opened_is_put_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its server does not answer not even its path can be looked at."""
    make(tmp_path, **{"replica.lag.time.max.ms": LAG_MS})
    over, at = Event(), MemberOpener.at

    def hang(opener: MemberOpener, root: Root, member: str, store: str) -> Storage:
        if member == "r1-0":
            over.wait(LONGEST_S)
        return at(opener, root, member, store)

    monkeypatch.setattr(MemberOpener, "at", hang)
    store = reopened(tmp_path)
    store.topics.create("t", partitions=1)
    assert not over.is_set()
    over.set()
    assert Replicas(store).describe().in_sync == ("r0-0",)


@pytest.mark.parametrize("kind", ["list_names", "get", "confirm"])
def test_the_controller(
    tmp_path: Path, gate: Gate, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who reads goes on by what roots keep; who writes is told."""
    monkeypatch.setattr(slowness, "DEFAULT_LAG_S", LAG_MS / 1000)
    make(tmp_path, **{"replica.lag.time.max.ms": LAG_MS})
    writer = reopened(tmp_path)
    writer.topics.create("t", partitions=1)
    write(writer, "1")
    reader = reopened(tmp_path, "a")
    assert values(reader) == ["1"]
    Replicas(writer).alter({"replica.scrub.bytes": 1})  # an epoch that others do not know
    other = reopened(tmp_path)
    other.topics.describe("t")
    Replicas(writer).alter({"replica.scrub.bytes": 2})
    gate.close(tmp_path / "control", kind)
    watch = Timer(LONGEST_S, gate.let_go)
    watch.start()
    assert values(reader) == values(reopened(tmp_path, "a")) == ["1"]
    with pytest.raises(StorageError, match=r"no answer|not answered yet"):
        write(other, "2")
    watch.cancel()
    assert gate.asked


@pytest.mark.parametrize(
    "do",
    [
        lambda replicas: replicas.elect("r1"),
        lambda replicas: replicas.alter({"replica.scrub.bytes": 3}),
        lambda replicas: replicas.store.maintain(),
    ],
    ids=["elect", "alter", "maintain"],
)
def test_operators_are_told_that_the_controller_hangs(
    tmp_path: Path, gate: Gate, do: Callable[[Replicas], object]
) -> None:
    make(tmp_path, **{"replica.lag.time.max.ms": LAG_MS})
    replicas = Replicas(reopened(tmp_path))
    replicas.describe()
    gate.close(tmp_path / "control", "get", "delete", "confirm")
    gate.close_at(tmp_path / "control", "list_names")
    watch = Timer(LONGEST_S, gate.let_go)
    watch.start()
    with pytest.raises(StorageError, match=r"no answer|not answered yet"):
        do(replicas)
    watch.cancel()
    assert gate.asked


def clean(_: Path, storage: ReplicatedStorage) -> None:
    assert clean_epochs(storage.agreement, kept=1) is None


def look_at_trims(_: Path, storage: ReplicatedStorage) -> None:
    with pytest.raises(MemberFailed, match="no answer"):
        read_notes(storage.agreement, storage.agreement.epoch(), ["r1-0"])


@pytest.mark.parametrize("look", [clean, look_at_trims])
def test_other_notes(tmp_path: Path, storage: ReplicatedStorage, gate: Gate, look: Look) -> None:
    gate.close(tmp_path / SECOND, "list_names")
    look(tmp_path, storage)
    assert gate.asked == ["list_names"]


def test_where_the_controller_has_moved(
    tmp_path: Path, storage: ReplicatedStorage, gate: Gate
) -> None:
    Replicas(reopened(tmp_path)).move_controller(str(tmp_path / "new"))
    gate.close(tmp_path / "b", "get")
    assert not [*_check_pointers(storage)]
    assert gate.asked == ["get"]


def test_a_root_that_hangs_is_waited_for_once(
    tmp_path: Path, storage: ReplicatedStorage, gate: Gate
) -> None:
    """Its mark is asked for, and then what epochs it knows."""
    gate.close(tmp_path / SECOND, "get")
    gate.close(tmp_path / "b", "list_folders")
    found = Replicas(attach(storage)).describe()
    assert [one.answer for one in found.replicas] == ["answers", "no answer"]
    assert gate.asked == ["get"]


@pytest.mark.parametrize(("moves", "kind"), [(False, "list_folders"), (True, "get")])
def test_a_slow_folder_of_a_root_does_not_put_its_member_out(
    tmp_path: Path, storage: ReplicatedStorage, gate: Gate, moves: bool, kind: str
) -> None:
    """Who looks at it has waited for long enough; the member itself answers."""
    if moves:
        Replicas(reopened(tmp_path)).move_controller(str(tmp_path / "new"))
    gate.close(tmp_path / "b", kind)
    replicas = Replicas(attach(storage))
    assert replicas.describe().condition == "whole"
    assert not [*_check_pointers(storage)]
    replicas.store.topics.create("t", partitions=1)
    assert gate.asked
    assert replicas.describe().in_sync == ("r0-0", "r1-0")


def verify(storage: ReplicatedStorage) -> None:
    with pytest.raises(StorageError, match=r"r1-0.* no answer"):
        [*Replicas(attach(storage)).verify()]


def describe_lag(storage: ReplicatedStorage) -> None:
    found = Replicas(attach(storage)).describe(with_lag=True)
    assert [one.objects_behind for one in found.replicas] == [None, None]


def look_at_watermarks(storage: ReplicatedStorage) -> None:
    assert {one.behind for one in watermarks(storage.agreement)} == {("r1-0",)}


@pytest.mark.parametrize("look", [verify, describe_lag, look_at_watermarks])
def test_all_that_a_root_has(
    tmp_path: Path,
    storage: ReplicatedStorage,
    gate: Gate,
    monkeypatch: pytest.MonkeyPatch,
    look: Callable[[ReplicatedStorage], None],
) -> None:
    """It has shown its mark, and hangs then."""
    reopened(tmp_path).topics.create("t", partitions=1)
    gate.close(tmp_path / SECOND, "list_all")
    listed = LocalStorage.list_all

    def hang(of: LocalStorage, *given: Any) -> Iterator[tuple[str, int]]:
        if of.url == str(tmp_path / SECOND):
            gate.close(tmp_path / SECOND, "get")
        return listed(of, *given)

    monkeypatch.setattr(LocalStorage, "list_all", hang)
    look(storage)
    assert gate.asked[0] == "list_all"


Do = Callable[[Path, txnlog.Store], object]


def scrubs(_: Path, store: txnlog.Store) -> object:
    found = find_replicated(store.storage)
    assert found is not None
    return scrub(found, lambda *_: None)


def repairs(folder: Path, store: txnlog.Store) -> object:
    """The second root has lost a segment."""
    for path in (folder / SECOND / "topics").rglob("*-0.log"):
        path.unlink()
    return [*Replicas(store).verify(repair=True)]


def adds(folder: Path, store: txnlog.Store) -> object:
    return Replicas(store).add(str(folder / "c"))


def forgets(_: Path, store: txnlog.Store) -> object:
    Replicas(store).remove("r1")
    return Replicas(store).forget("r1-0")


def moves(folder: Path, store: txnlog.Store) -> object:
    return Replicas(store).move_controller(str(folder / "new"))


def recovers(folder: Path, store: txnlog.Store) -> object:
    lose(folder / "control")
    return recover_controller(str(folder / "a"), str(folder / "new"), clock=store.logs.clock)


@pytest.mark.parametrize(
    ("do", "where", "first"),
    [
        (adds, "c", "get"),
        (adds, "c", "put_if_absent"),
        (adds, "c", "confirm"),
        (moves, "new", "list_folders"),
        (moves, "new", "put_if_absent"),
        (moves, "new", "confirm"),
        (moves, "control", "get"),
        (recovers, "new", "list_names"),
        (recovers, "new", "put_if_absent"),
        (recovers, FIRST, "put_if_absent"),
        (scrubs, SECOND, "get_range"),
        (repairs, SECOND, "put_if_absent"),
        (adds, FIRST, "confirm"),
        (adds, FIRST, "get_range"),
        (forgets, SECOND, "delete"),
        (forgets, "b", "get"),
    ],
)
def test_whoever_changes_something_ends_too(
    tmp_path: Path,
    gate: Gate,
    do: Do,
    where: str,
    first: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At whichever request a root begins to hang, or who is to be one, or the controller."""
    monkeypatch.setattr(slowness, "DEFAULT_LAG_S", LAG_MS / 1000)
    store = make(tmp_path, **{"replica.lag.time.max.ms": LAG_MS})
    store.topics.create("t", partitions=1)
    write(store, "1")
    gate.close_at(tmp_path / where, first)
    watch = Timer(LONGEST_S, gate.let_go)
    watch.start()
    try:
        with pytest.raises(StorageError, match=r"no answer|not answered yet"):
            do(tmp_path, store)
    finally:
        watch.cancel()
    assert gate.asked


def test_a_new_root_has_time_for_each_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its check alone is many, and a slow server answers each."""
    store = make(tmp_path)
    asked: list[str] = []
    ask = slowness.Slowness.ask

    def asking(self: slowness.Slowness, member: str, *given: Any, **more: Any) -> Any:
        asked.append(member)
        return ask(self, member, *given, **more)

    monkeypatch.setattr(slowness.Slowness, "ask", asking)
    adds(tmp_path, store)
    assert asked.count(str(tmp_path / "c")) > 5


def test_a_root_that_is_out_does_not_stop_maintenance(tmp_path: Path, gate: Gate) -> None:
    store = make(tmp_path, **{"replica.lag.time.max.ms": LAG_MS, "replica.auto.return": True})
    bring_back = lose(tmp_path / "b")
    store.topics.create("t", partitions=1)
    bring_back()
    gate.close(tmp_path / "b", "get")
    watch = Timer(LONGEST_S, gate.let_go)
    watch.start()
    assert not [one for one in store.maintain() if isinstance(one, MaintenanceFailure)]
    watch.cancel()
    assert gate.asked == ["get"]
    assert Replicas(store).describe().out == ("r1",)
