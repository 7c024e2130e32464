"""Old epochs are deleted: nobody needs them, and nobody is misled by a name that is free again."""

from __future__ import annotations

from pathlib import Path

import pytest

import txnlog
from tests.support.replication.replica_folders import (
    make,
    make_written,
    reopened,
    values,
    write,
)
from tests.support.replication.replica_world import Roots
from txnlog.errors import NotEnoughReplicas, StorageError
from txnlog.replication import EpochCleaning, Replicas, recover_controller, root_names
from txnlog.replication.roots import epoch_cleaning, root_join
from txnlog.replication.roots.agreement import Agreement
from txnlog.replication.roots.controller import Controller, list_epochs
from txnlog.replication.roots.epoch_cleaning import clean_epochs
from txnlog.replication.roots.epoch_notes import list_notes, note_epoch
from txnlog.replication.roots.epochs import configured
from txnlog.replication.roots.replicated_storage import ReplicatedStorage, find_replicated
from txnlog.replication.roots.root_join import join
from txnlog.storage.adapters.local import LocalStorage
from txnlog.storage.counting import CountingStorage
from txnlog.storage.forwarding import ForwardingStorage
from txnlog.testing import HeapStorage, VirtualClock

pytestmark = pytest.mark.rule("R18")

CONTROL = "control"
FEW = 3


def made(count: int) -> Roots:
    """Roots whose epochs may be deleted but for the newest three."""
    roots = Roots(count)
    for place in roots.places.values():
        place.kept = FEW
    return roots


class Names(ForwardingStorage):
    """Counts the names that listings give."""

    def __init__(self, inner: HeapStorage) -> None:
        super().__init__(inner)
        self.listed = 0

    def list_names(self, folder: str, start_after: str = "") -> list[str]:
        found = super().list_names(folder, start_after)
        self.listed += len(found)
        return found


def go_on(agreement: Agreement, count: int) -> None:
    """So many more epochs, as writers come to know each."""
    for number in range(count):
        epoch = agreement.refresh()
        who = agreement.proposer(f"change {number}")
        assert agreement.propose(configured(epoch, epoch.settings, who))
        note_epoch(agreement, agreement.epoch())


def agreement_of(store: txnlog.Store) -> Agreement:
    found = find_replicated(store.logs.storage)
    assert found is not None
    return found.agreement


@pytest.mark.parametrize("elections", [10, 2000])
def test_a_look_costs_the_same_after_many_epochs(elections: int) -> None:
    """To open, and to look again: as many requests, and no more names than are kept."""
    roots = Roots(2)
    agreement = roots.plain(VirtualClock()).agreement
    go_on(agreement, elections)
    clean_epochs(agreement)
    names = Names(roots.controller)
    controller = CountingStorage(names)
    members = {one: CountingStorage(roots.heap(one)) for one in agreement.epoch().in_sync}
    storage = ReplicatedStorage(controller, lambda _, one: members[one], clock=VirtualClock())
    assert storage.agreement.refresh().number == elections
    assert names.listed <= epoch_cleaning.KEPT + 1 + epoch_cleaning.KEPT
    # Of the newest epoch that it finds it looks whether that says where the next one is decided.
    assert controller.take() == {"confirm": 1, "get": 1, "list": 2}
    names.listed = 0
    storage.agreement.refresh()
    assert names.listed == 1
    assert controller.take() == {"list": 1}
    assert len(list_epochs(roots.controller)) <= epoch_cleaning.KEPT + 1
    for member in members:
        assert len(list_notes(roots.heap(member))) <= epoch_cleaning.KEPT


def test_what_there_is_on_a_disk_stays_small(tmp_path: Path) -> None:
    """There a listing costs what the folder holds, wherever it begins."""
    store = make_written(tmp_path, "1")
    go_on(agreement_of(store), 120)
    left = [0, *range(21, 121)]
    assert EpochCleaning(20, 42) in [*store.maintain(dry_run=True)]
    assert len(list_epochs(LocalStorage(str(tmp_path / CONTROL)))) == 121
    assert EpochCleaning(20, 42) in [*store.maintain()]
    assert list_epochs(LocalStorage(str(tmp_path / CONTROL))) == left
    for root in "ab":
        notes = list_notes(LocalStorage(str(tmp_path / root / "incarnation-00000")))
        assert notes == left[1:]
    assert not [step for step in store.maintain() if isinstance(step, EpochCleaning)]
    write(reopened(tmp_path), "2")
    assert values(reopened(tmp_path)) == ["1", "2"]
    assert [epoch.epoch for epoch in Replicas(store).history()] == left
    assert {one.state for one in store.examine() if one.check == "replicas"} == {"ok"}


def test_what_a_later_epoch_counts_from_stays() -> None:
    roots, clock = made(3), VirtualClock()
    agreement = roots.plain(clock).agreement
    go_on(agreement, 2)
    assert agreement.put_out(agreement.refresh(), "a-0", "fails")  # b-0 leads, since epoch 3
    go_on(agreement, 9)
    clean_epochs(agreement, kept=FEW)
    assert list_epochs(roots.controller) == [0, 3, 10, 11, 12]
    assert agreement.epoch().leader_since == 3


def test_who_slept_while_his_epoch_was_deleted_goes_on(tmp_path: Path) -> None:
    """A reader and a writer, who know of none of those that are left."""
    store = make_written(tmp_path, "1")
    go_on(agreement_of(store), 1)
    asleep = reopened(tmp_path)
    assert values(asleep) == ["1"]
    go_on(agreement_of(store), 20)
    clean_epochs(agreement_of(store), kept=FEW)
    assert values(asleep) == ["1"]
    assert agreement_of(asleep).epoch().number == 21
    write(asleep, "2")
    assert values(store) == ["1", "2"]


def test_a_controller_that_is_not_mounted_has_not_been_cleaned() -> None:
    """Nor has an older one that was restored, whatever else has become of it."""
    roots, clock = made(2), VirtualClock()
    asleep, agreement = roots.plain(clock).agreement, roots.plain(clock).agreement
    asleep.refresh()
    go_on(agreement, 20)
    knows = roots.plain(clock).agreement
    knows.refresh()
    clean_epochs(agreement, kept=FEW)
    kept = {name: roots.controller.get(name) for name, _ in roots.controller.list_all("")}
    first = root_names.epoch_file(0)
    roots.controller.delete([first])  # what tells a place that is mounted
    with pytest.raises(StorageError, match="is gone"):
        asleep.refresh()
    roots.controller.put(first, kept[first])
    roots.controller.delete([name for name in kept if name >= root_names.epoch_file(20)])
    with pytest.raises(StorageError, match="is gone"):
        knows.refresh()


def test_a_name_that_is_free_again_is_not_won() -> None:
    """By who slept before he put the epoch that follows from the one that he knows."""
    roots, clock = made(2), VirtualClock()
    asleep, agreement = roots.plain(clock).agreement, roots.plain(clock).agreement
    go_on(asleep, 1)
    epoch = asleep.epoch()
    proposed = configured(
        epoch, {**epoch.settings, "min.insync.replicas": "2"}, asleep.proposer("")
    )
    go_on(agreement, 20)
    clean_epochs(agreement, kept=FEW)
    newest = agreement.epoch()
    assert not asleep.propose(proposed)
    assert proposed.number in list_epochs(roots.controller)  # he has taken it, and it is no use
    assert asleep.epoch() == newest
    assert roots.plain(clock).agreement.refresh() == newest
    clean_epochs(agreement, kept=FEW)
    assert proposed.number not in list_epochs(roots.controller)


def test_who_was_first_is_told_so_though_others_have_gone_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    roots, clock = made(2), VirtualClock()
    mine, others = roots.plain(clock).agreement, roots.plain(clock).agreement
    counts = Controller._counts

    def be_late(self: Controller, *told: object) -> bool:
        monkeypatch.setattr(Controller, "_counts", counts)
        go_on(others, 2)
        return counts(self, *told)  # type: ignore[arg-type]

    monkeypatch.setattr(Controller, "_counts", be_late)
    epoch = mine.refresh()
    assert mine.propose(configured(epoch, epoch.settings, mine.proposer("mine")))
    assert mine.epoch().number == 3


def test_nobody_joins_by_a_name_that_is_free_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its incarnation's number may have been given away since: nothing is copied into that."""
    roots, clock = made(2), VirtualClock()
    asleep, agreement = roots.plain(clock).agreement, roots.plain(clock).agreement
    agreement.refresh()
    begin = root_join._begin

    def wake_up(told: Agreement, epoch: object, *rest: object) -> object:
        monkeypatch.setattr(root_join, "_begin", begin)
        assert join(agreement, "c", "heap://c").member == "c-0"
        go_on(agreement, 20)
        clean_epochs(agreement, kept=FEW)
        return begin(told, epoch, *rest)  # type: ignore[arg-type]

    before = asleep.refresh().number
    monkeypatch.setattr(root_join, "_begin", wake_up)
    with pytest.raises(NotEnoughReplicas, match=f"epoch {before + 1} was somebody else's"):
        join(asleep, "c", "heap://c")


def test_a_controller_that_has_moved_is_found_after_a_cleaning() -> None:
    """By who knows the old place alone, and the epoch that named the new one is deleted there."""
    from txnlog.replication.roots.controller_move import move

    roots, clock = made(2), VirtualClock()
    asleep, agreement = roots.plain(clock).agreement, roots.plain(clock).agreement
    asleep.refresh()
    move(agreement, roots.places["new"])
    go_on(agreement, 20)
    clean_epochs(agreement, kept=FEW)
    assert max(list_epochs(roots.controller)) not in list_epochs(roots.places["new"])
    assert asleep.refresh() == agreement.epoch()
    assert roots.plain(clock).agreement.refresh() == agreement.epoch()


def test_a_controller_is_made_anew_from_the_notes_that_are_left(tmp_path: Path) -> None:
    store = make_written(tmp_path, "1")
    go_on(agreement_of(store), 20)
    assert clean_epochs(agreement_of(store), kept=FEW) == EpochCleaning(17, 36)
    (tmp_path / CONTROL).rename(tmp_path / "gone")
    recover_controller(tmp_path / "a", tmp_path / "other", clock=VirtualClock())
    found = reopened(tmp_path, "b")
    assert values(found) == ["1"]
    write(found, "2")
    assert Replicas(found).describe().in_sync == ("r0-0", "r1-0")


def test_a_root_that_does_not_answer_keeps_its_notes() -> None:
    roots, clock = made(2), VirtualClock()
    agreement = roots.plain(clock).agreement
    go_on(agreement, 9)
    roots.down.add("b")
    clean_epochs(agreement, kept=FEW)
    assert list_epochs(roots.controller) == [0, 7, 8, 9]
    assert len(list_notes(roots.heap("b-0"))) == 9


def test_an_epoch_that_is_lost_is_told_apart_from_one_that_was_cleaned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txnlog.replication.examination.KEPT", FEW)
    store = make(tmp_path)
    go_on(agreement_of(store), 20)
    clean_epochs(agreement_of(store), kept=FEW)
    control = LocalStorage(str(tmp_path / CONTROL))
    control.delete([root_names.epoch_file(19)])
    found = [one.detail for one in reopened(tmp_path).examine() if one.state == "damage"]
    assert found == ["epoch 19 is gone, and 20 is there"]
