"""A controller that is lost is made anew from what the roots keep of its epochs."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import txnlog
from tests.support.cli.cli_command import cli
from tests.support.replication.replica_folders import (
    FIRST,
    SECOND,
    lose,
    make_with,
    make_written,
    reopened,
    skip_probes,
    values,
    write,
)
from txnlog.errors import (
    CorruptEntry,
    InvalidOption,
    NotEnoughReplicas,
    StorageError,
    StoreExists,
    TxnlogError,
)
from txnlog.replication import Replicas, open_replicas, recover_controller, root_names
from txnlog.replication.roots import agreement, controller_move, epoch_notes, recovery, root_join
from txnlog.replication.roots.controller import Controller, list_epochs
from txnlog.replication.roots.election import take_out
from txnlog.replication.roots.epochs import AUTO_RETURN, Epoch, configured
from txnlog.replication.roots.find_replicas import prepare_root
from txnlog.replication.roots.members import MarkedDisk
from txnlog.replication.roots.old_incarnations import forget
from txnlog.replication.roots.replicated_storage import ReplicatedStorage, find_replicated
from txnlog.replication.roots.root_join import join
from txnlog.storage.adapters.local import LocalStorage
from txnlog.testing import VirtualClock

pytestmark = pytest.mark.rule("R16")

Break = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> txnlog.Store:
    skip_probes(monkeypatch)
    return make_written(tmp_path, "1")


def recover(folder: Path, root: str = "a", to: str = "new", lost: Sequence[str] = ()) -> None:
    recover_controller(str(folder / root), str(folder / to), lost=lost, clock=VirtualClock())


@pytest.mark.parametrize("root", ["a", "b"])
def test_everything_goes_on(made: txnlog.Store, tmp_path: Path, root: str) -> None:
    Replicas(made).remove("r1")
    write(made, "2")
    Replicas(made).add(str(tmp_path / "b"))
    write(made, "3")
    shutil.rmtree(tmp_path / "control")
    bring_back = lose(tmp_path / "b")
    with pytest.raises(StorageError, match="`txnlog replicas recover` makes it anew"):
        reopened(tmp_path, "a")
    bring_back()
    recover(tmp_path, root)
    for url in ("new", "a", "b"):
        store = reopened(tmp_path, url)
        assert values(store) == ["1", "2", "3"]
    write(store, "4")
    assert values(reopened(tmp_path, "a")) == ["1", "2", "3", "4"]
    assert {*Replicas(store).describe().in_sync} == {"r0-0", "r1-1"}
    Replicas(store).move_controller(str(tmp_path / "newer"))
    assert values(reopened(tmp_path, "b")) == ["1", "2", "3", "4"]


def test_one_that_answers_is_not_replaced(made: txnlog.Store, tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="move-controller"):
        recover(tmp_path)


def test_one_that_answers_and_takes_no_epoch(
    made: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its disk is full: it can neither move nor be replaced before it is taken away."""
    put = LocalStorage.put_if_absent

    def refuse(self: LocalStorage, name: str, data: bytes) -> bool:
        if f"{tmp_path}/control" in self.url:
            raise StorageError("no space left")
        return put(self, name, data)

    monkeypatch.setattr(LocalStorage, "put_if_absent", refuse)
    with pytest.raises(StorageError, match=r"no space left.*rename it.*replicas recover"):
        Replicas(made).move_controller(str(tmp_path / "moved"))
    with pytest.raises(InvalidOption, match=r"takes no epoch.*rename it.*replicas recover"):
        recover(tmp_path)
    (tmp_path / "control").rename(tmp_path / "away")
    recover(tmp_path)
    write(reopened(tmp_path, "b"), "on")
    assert values(reopened(tmp_path, "a"))[-1] == "on"


def damage_epoch(folder: Path, number: int, place: str = "control") -> None:
    path = folder / place / root_names.epoch_file(number)
    path.write_bytes(path.read_bytes().replace(b'"leader"', b'"bearer"'))


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("root", ["control", "a"])
def test_a_damaged_epoch_is_what_roots_have_noted(
    made: txnlog.Store, tmp_path: Path, number: int, root: str
) -> None:
    for leader in ("r1", "r0"):
        Replicas(made).elect(leader)
        write(made, leader)
    path = tmp_path / "control" / root_names.epoch_file(number)
    whole = path.read_bytes()
    damage_epoch(tmp_path, number)
    store = reopened(tmp_path, root)
    assert values(store) == ["1", "r1", "r0"]
    assert [one.epoch for one in Replicas(store).history()] == [0, 1, 2]
    assert path.read_bytes() == whole
    write(made, "on")  # who knew it as it was goes on with the others
    assert values(store) == ["1", "r1", "r0", "on"]


def test_the_only_epoch_is_damaged(made: txnlog.Store, tmp_path: Path) -> None:
    """Nothing is beside it: all roots must have the same."""
    path = tmp_path / "control" / root_names.epoch_file(0)
    whole = path.read_bytes()
    damage_epoch(tmp_path, 0)
    with pytest.raises(CorruptEntry, match=r"is damaged.*open the store by a root"):
        reopened(tmp_path)
    with pytest.raises(InvalidOption, match="by a root while all answer"):
        recover(tmp_path)
    bring_back = lose(tmp_path / "b")
    with pytest.raises(CorruptEntry, match=r"is damaged.*r1 must answer"):
        reopened(tmp_path, "a")
    bring_back()
    store = reopened(tmp_path, "a")
    assert path.read_bytes() == whole
    write(store, "2")
    assert values(reopened(tmp_path)) == ["1", "2"]


def test_the_only_epoch_is_damaged_and_roots_differ(made: txnlog.Store, tmp_path: Path) -> None:
    """One of them has it from a controller that was lost."""
    note = tmp_path / FIRST / root_names.epoch_note(0)
    note.write_bytes(epoch_notes.encode_epoch(replace(made_epoch(made), by="lost")))
    damage_epoch(tmp_path, 0)
    with pytest.raises(CorruptEntry, match=r"is damaged.*of two histories"):
        reopened(tmp_path, "a")


def test_the_newest_epoch_is_damaged_and_no_root_has_it(made: txnlog.Store, tmp_path: Path) -> None:
    """Nothing was acknowledged under it: what was before can be read."""
    Replicas(made).elect("r1")
    damage_epoch(tmp_path, 1)
    assert values(reopened(tmp_path, "a")) == ["1"]
    with pytest.raises(CorruptEntry, match="is damaged"):
        write(reopened(tmp_path, "a"), "2")


@pytest.mark.parametrize("place", ["control", "moved"])
def test_a_damaged_epoch_by_which_the_controller_has_moved(
    made: txnlog.Store, tmp_path: Path, place: str
) -> None:
    """Each place has it."""
    Replicas(made).move_controller(str(tmp_path / "moved"))
    write(made, "2")
    damage_epoch(tmp_path, 2, place)
    for url in ("control", "a"):
        store = reopened(tmp_path, url)
        assert values(store) == ["1", "2"]
        assert [one.epoch for one in Replicas(store).history()] == [0, 1, 2]


def test_a_note_of_another_history_takes_no_epochs_place(
    made: txnlog.Store, tmp_path: Path
) -> None:
    Replicas(made).elect("r1")
    write(made, "2")
    epoch = made_epoch(made)
    other = replace(epoch, leader="r0-0", before="another")
    for folder in (FIRST, SECOND):
        note = tmp_path / folder / root_names.epoch_note(1)
        note.write_bytes(epoch_notes.encode_epoch(other))
    damage_epoch(tmp_path, 1)
    with pytest.raises(CorruptEntry, match=r"epochs/0*1\.json is damaged"):
        values(reopened(tmp_path))


def test_a_note_that_the_next_epoch_contradicts(made: txnlog.Store, tmp_path: Path) -> None:
    """It is of a controller that was lost; where no later epoch tells, neither note is taken."""
    Replicas(made).elect("r1")
    write(made, "2")
    decided = made_epoch(made)
    note = tmp_path / FIRST / root_names.epoch_note(1)
    note.write_bytes(epoch_notes.encode_epoch(replace(decided, leader="r0-0", by="lost")))
    path = tmp_path / "control" / root_names.epoch_file(1)
    whole = path.read_bytes()
    damage_epoch(tmp_path, 1)
    with pytest.raises(CorruptEntry, match=r"epochs/0*1\.json is damaged"):
        values(reopened(tmp_path))
    path.write_bytes(whole)
    storage = find_replicated(made.logs.storage)
    assert storage is not None
    agreement = storage.agreement
    assert agreement.propose(configured(decided, {}, agreement.proposer("test")))
    damage_epoch(tmp_path, 1)
    storage = find_replicated(reopened(tmp_path).logs.storage)
    assert storage is not None
    assert storage.agreement.controller.at(1) == decided
    assert path.read_bytes() == whole


def test_a_damaged_move_is_given_whole_to_the_new_place(
    made: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old place may be read-only, and its writer killed."""
    Replicas(made).move_controller(str(tmp_path / "moved"))
    write(made, "2")
    where = root_names.epoch_file(2)
    whole = (tmp_path / "moved" / where).read_bytes()
    (tmp_path / "moved" / where).unlink()
    for later in (tmp_path / "moved").glob("epochs/*"):
        assert later.name < where.rpartition("/")[2]
    damage_epoch(tmp_path, 2)

    def refuse(storage: LocalStorage, name: str, data: bytes) -> None:
        raise StorageError(f"{storage.url}/{name}: read-only")

    monkeypatch.setattr(LocalStorage, "replace", refuse)
    assert values(reopened(tmp_path)) == ["1", "2"]
    assert (tmp_path / "moved" / where).read_bytes() == whole


def made_epoch(store: txnlog.Store) -> Epoch:
    storage = find_replicated(store.logs.storage)
    assert storage is not None
    return storage.agreement.refresh()


@pytest.mark.parametrize("is_noted", [True, False])
def test_one_that_answers_damaged_is_not_replaced(
    made: txnlog.Store, tmp_path: Path, *, is_noted: bool
) -> None:
    """Who knows the epoch before, or the damaged one, would go on there."""
    Replicas(made).elect("r1")
    if is_noted:
        write(made, "2")
    damage_epoch(tmp_path, 1)
    with pytest.raises(InvalidOption, match=r"answers.*is damaged.*rename it"):
        recover(tmp_path)


def test_who_was_put_out_does_not_decide(made: txnlog.Store, tmp_path: Path) -> None:
    """It knows no later epoch, and lacks what was acknowledged since."""
    bring_back = lose(tmp_path / "b")
    write(made, "2")
    bring_back()
    shutil.rmtree(tmp_path / "control")
    bring_back = lose(tmp_path / "a")
    with pytest.raises(NotEnoughReplicas, match="r0 must answer"):
        recover(tmp_path, "b")
    bring_back()
    recover(tmp_path, "b")
    assert values(reopened(tmp_path, "b")) == ["1", "2"]


def test_all_must_answer_or_be_given_up(made: txnlog.Store, tmp_path: Path) -> None:
    """Who was in sync before an unclean election knows nothing of it."""
    Replicas(made).remove("r1")
    write(made, "2")
    bring_back = lose(tmp_path / "a")
    open_replicas(str(tmp_path / "control")).elect("r1", unclean=True)
    write(reopened(tmp_path), "3")
    bring_back()
    shutil.rmtree(tmp_path / "control")
    bring_back = lose(tmp_path / "b")
    with pytest.raises(NotEnoughReplicas, match="r1 must answer"):
        recover(tmp_path)
    bring_back()
    with pytest.raises(InvalidOption, match="no root r7"):
        recover(tmp_path, lost=["r7"])
    recover(tmp_path)
    assert values(reopened(tmp_path, "a")) == ["1", "3"]


def test_a_root_that_came_before_all_others_were_lost(made: txnlog.Store, tmp_path: Path) -> None:
    """Who added it was killed then. The others know of it all the same, so that it is asked."""
    storage = find_replicated(reopened(tmp_path)._storage)
    assert storage is not None
    join(storage.agreement, *prepare_root(storage, str(tmp_path / "c")))
    bring_back = [lose(tmp_path / "a"), lose(tmp_path / "b")]
    write(made, "2")
    for call in bring_back:
        call()
    shutil.rmtree(tmp_path / "control")
    recover(tmp_path, "a")
    assert values(reopened(tmp_path, "a")) == ["1", "2"]


def test_who_was_joining_is_out(
    made: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has given up since, by an epoch that only the controller had; nobody waits for it."""
    storage = find_replicated(reopened(tmp_path)._storage)
    assert storage is not None
    root, url = prepare_root(storage, str(tmp_path / "c"))

    def fails(*_: object) -> None:
        raise NotEnoughReplicas("its disk is full")

    monkeypatch.setattr(root_join, "_copy", fails)
    with pytest.raises(NotEnoughReplicas, match="disk is full"):
        join(storage.agreement, root, url)
    shutil.rmtree(tmp_path / "control")
    recover(tmp_path, "a")
    found = reopened(tmp_path, "a")
    assert values(found) == ["1"]
    assert Replicas(found).describe().out == ("r2",)


def test_a_root_that_is_lost_with_the_controller(made: txnlog.Store, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "control")
    shutil.rmtree(tmp_path / "b")
    with pytest.raises(NotEnoughReplicas, match="--lost"):
        recover(tmp_path)
    recover(tmp_path, lost=["r1"])
    write(reopened(tmp_path, "a"), "2")
    assert values(reopened(tmp_path, "new")) == ["1", "2"]


@pytest.mark.parametrize("data", [b"{", b'{"kind":"epoch","version":99}'])
def test_a_note_that_cannot_be_read_may_be_the_newest(
    made: txnlog.Store, tmp_path: Path, data: bytes
) -> None:
    Replicas(made).remove("r1")
    write(made, "2")
    notes = tmp_path / "a/incarnation-00000" / root_names.EPOCH_NOTES
    max(notes.iterdir()).write_bytes(data)
    shutil.rmtree(tmp_path / "control")
    for root in ("a", "b"):
        with pytest.raises(CorruptEntry, match="epoch 1 of r0-0 cannot be relied on"):
            recover(tmp_path, root)


def test_notes_of_two_histories(made: txnlog.Store, tmp_path: Path) -> None:
    Replicas(made).remove("r1")
    write(made, "2")
    notes = [tmp_path / root / "incarnation-00000" / root_names.EPOCH_NOTES for root in "ab"]
    newest = max(notes[0].iterdir())
    (epoch,), _ = epoch_notes.read_notes(LocalStorage(str(tmp_path / FIRST)), [1])
    other = epoch_notes.encode_epoch(replace(epoch, why="another"))
    (notes[1] / newest.name).write_bytes(other)
    shutil.rmtree(tmp_path / "control")
    for root in ("a", "b"):
        with pytest.raises(CorruptEntry, match="two histories"):
            recover(tmp_path, root)


def test_another_stores_root_in_its_place(made: txnlog.Store, tmp_path: Path) -> None:
    """Its epochs are none of ours, and nothing is put into it."""
    other = make_with(VirtualClock(seed=7), tmp_path / "other")
    other.topics.create("t", partitions=1)
    Replicas(other).remove("r0")
    write(other, "y")
    shutil.rmtree(tmp_path / "control")
    shutil.rmtree(tmp_path / "b")
    shutil.copytree(tmp_path / "other/b", tmp_path / "b")
    with pytest.raises(NotEnoughReplicas, match="another store's"):
        recover(tmp_path)


def test_an_old_copy_of_a_root_decides_nothing(made: txnlog.Store, tmp_path: Path) -> None:
    """Where the epochs say that the root is elsewhere, that is asked."""
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    Replicas(made).remove("r1")
    write(made, "2")
    shutil.rmtree(tmp_path / "control")
    bring_back = lose(tmp_path / "a")
    with pytest.raises(NotEnoughReplicas, match="r0 must answer"):
        recover(tmp_path, "copy")
    bring_back()
    recover(tmp_path, "copy")
    assert values(reopened(tmp_path, "a")) == ["1", "2"]


def test_the_place_that_was_lost_is_not_taken_again(made: txnlog.Store, tmp_path: Path) -> None:
    """A process that slept would believe in it."""
    Replicas(made).move_controller(str(tmp_path / "new"))
    write(made, "2")
    shutil.rmtree(tmp_path / "new")
    (tmp_path / "new").mkdir()
    with pytest.raises(InvalidOption, match="Choose another folder"):
        recover(tmp_path)
    recover(tmp_path, to="newer")
    assert values(reopened(tmp_path, "b")) == ["1", "2"]


def test_it_has_moved_and_nothing_was_written_since(made: txnlog.Store, tmp_path: Path) -> None:
    Replicas(made).move_controller(str(tmp_path / "moved"))
    shutil.rmtree(tmp_path / "moved")
    shutil.rmtree(tmp_path / "control")
    recover(tmp_path)
    for url in ("a", "b"):
        assert values(reopened(tmp_path, url)) == ["1"]


def test_a_member_is_forgotten_and_nothing_was_written_since(
    made: txnlog.Store, tmp_path: Path
) -> None:
    """By the newest epoch that was written under it was in sync."""
    Replicas(made).remove("r1")
    Replicas(made).forget("r1-0")
    shutil.rmtree(tmp_path / "control")
    recover(tmp_path)
    assert values(reopened(tmp_path, "a")) == ["1"]


@pytest.mark.parametrize("gone", ["a", "b"])
@pytest.mark.parametrize("noticed_by", ["operator", "writer"])
def test_a_root_that_is_given_up_is_not_waited_for(
    made: txnlog.Store, tmp_path: Path, gone: str, noticed_by: str
) -> None:
    """Another one has taken its place: nothing is to be done, and nobody need ask it."""
    root, other = ("r0", "b") if gone == "a" else ("r1", "a")
    replicas = Replicas(made)
    replicas.alter({AUTO_RETURN: True})
    shutil.rmtree(tmp_path / gone)
    if noticed_by == "operator":
        replicas.remove(root)
    else:
        write(made, "2")
    replicas.add(str(tmp_path / "c"))
    assert replicas.describe().condition == "degraded"
    replicas.forget(f"{root}-0", lost=True)
    described = replicas.describe()
    assert (described.out, described.condition) == ((root,), "whole")
    made.maintain()
    assert not (tmp_path / gone).exists()
    expected = values(made)
    away = lose(tmp_path / "control")
    for url in (other, "c"):
        assert values(reopened(tmp_path, url)) == expected
    away()
    assert replicas.move_controller(str(tmp_path / "new")).untold == ()
    shutil.rmtree(tmp_path / "new")
    recover(tmp_path, other, "newer")
    urls = [str(tmp_path / url) for url in (other, "c")]
    place = str(tmp_path / "newer")
    made = open_replicas(urls, controller=place, create=True, clock=VirtualClock(seed=9)).store
    write(made, "3")
    Replicas(made).add(str(tmp_path / gone))
    assert {*Replicas(made).describe().in_sync} >= {f"{root}-1", "r2-0"}
    assert Replicas(made).describe().condition == "whole"
    assert values(reopened(tmp_path, gone)) == [*expected, "3"]


def came_and_leads(folder: Path) -> ReplicatedStorage:
    """r2 has all that was written, and no epoch yet; r0, which knows the newest ones, is out."""
    storage = find_replicated(reopened(folder)._storage)
    assert storage is not None
    join(storage.agreement, *prepare_root(storage, str(folder / "c")))
    for root in ("r1", "r0"):
        take_out(storage.agreement, root)
    assert storage.agreement.epoch().in_sync == ("r2-0",)
    return storage


def test_who_knows_most_is_forgotten(made: txnlog.Store, tmp_path: Path) -> None:
    """Below the operators' methods, too: another one in sync knows a later epoch before."""
    storage = came_and_leads(tmp_path)
    for member in ("r0-0", "r1-0"):
        forget(storage, member, lambda *_: None)
    shutil.rmtree(tmp_path / "control")
    recover(tmp_path, "c")
    assert values(reopened(tmp_path, "b")) == ["1"]


def test_settings_are_known_at_the_roots_before_anybody_writes(
    made: txnlog.Store, tmp_path: Path
) -> None:
    Replicas(made).alter({"replica.scrub.bytes": 7})
    shutil.rmtree(tmp_path / "control")
    recover(tmp_path)
    settings = Replicas(reopened(tmp_path, "new")).describe().settings
    assert [one.value for one in settings if one.key == "replica.scrub.bytes"] == ["7"]


def test_who_alone_knows_most_stays(
    made: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk of the one in sync is full. What knows no more than that one may go all the same."""
    storage = came_and_leads(tmp_path)
    put = LocalStorage.put_if_absent

    def fails(disk: LocalStorage, name: str, data: bytes) -> bool:
        if disk.url == str(tmp_path / "c/incarnation-00000"):
            raise StorageError("no space is left")
        return put(disk, name, data)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "put_if_absent", fails)
        with pytest.raises(StorageError, match="no space is left"):
            forget(storage, "r0-0", lambda *_: None)
    forget(storage, "r1-0", lambda *_: None)
    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "put_if_absent", fails)
        forget(storage, "r0-0", lambda *_: None)


def test_one_from_a_backup_is_refused(made: txnlog.Store, tmp_path: Path) -> None:
    """By who writes, when he begins to."""
    shutil.copytree(tmp_path / "control", tmp_path / "backup")
    Replicas(made).remove("r1")
    write(made, "2")
    shutil.rmtree(tmp_path / "control")
    shutil.copytree(tmp_path / "backup", tmp_path / "control")
    store = reopened(tmp_path)
    with pytest.raises(StorageError, match="restored from a backup"):
        write(store, "3")
    recover(tmp_path)
    assert values(reopened(tmp_path, "a")) == ["1", "2"]


def test_the_old_one_that_comes_back_is_refused(made: txnlog.Store, tmp_path: Path) -> None:
    (tmp_path / "control").rename(tmp_path / "away")
    recover(tmp_path)
    (tmp_path / "away").rename(tmp_path / "control")
    store = reopened(tmp_path)
    with pytest.raises(StorageError, match="replicas recover"):
        write(store, "2")
    write(reopened(tmp_path, "new"), "3")
    assert values(reopened(tmp_path, "b")) == ["1", "3"]


@pytest.mark.parametrize("killed_in", ["_follow", "tell_root"])
def test_the_place_to_which_it_moves_is_lost(
    made: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_in: str
) -> None:
    """The old one names it, and answers; whoever moved it was killed."""

    def kill(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        where = Controller if killed_in == "_follow" else controller_move
        patch.setattr(where, killed_in, kill)
        with pytest.raises(KeyboardInterrupt):
            Replicas(made).move_controller(str(tmp_path / "new"))
    bring_back = lose(tmp_path / "new")
    assert values(reopened(tmp_path, "a")) == ["1"]
    with pytest.raises(StorageError, match="is the controller's disk mounted"):
        reopened(tmp_path, "a").storage.put_if_absent("x", b"")
    recover(tmp_path, "a", to="newer")
    write(reopened(tmp_path, "b"), "2")
    assert values(reopened(tmp_path, "a")) == ["1", "2"]
    bring_back()
    with pytest.raises(StorageError, match="recover"):
        reopened(tmp_path, "control").storage.put_if_absent("x", b"")


def test_places_that_name_each_other_are_not_followed_for_ever(
    made: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them is damaged, or from a backup: either answers."""

    def kill(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Controller, "_follow", kill)
        with pytest.raises(KeyboardInterrupt):
            Replicas(made).move_controller(str(tmp_path / "new"))
    old, new = (LocalStorage(str(tmp_path / name)) for name in ("control", "new"))
    newest = max(list_epochs(old))
    found = Controller(old).at(newest)
    names_old = replace(found, controllers=(*found.controllers, old.url))
    new.delete([root_names.epoch_file(newest)])
    new.put(root_names.epoch_file(newest), epoch_notes.encode_epoch(names_old))
    with pytest.raises(InvalidOption, match="answers: `txnlog replicas move-controller`"):
        recover(tmp_path, to="newer")


def test_two_places_at_once(made: txnlog.Store, tmp_path: Path) -> None:
    """The epoch of one is at the leader when the other puts its own."""
    shutil.rmtree(tmp_path / "control")
    decide = recovery._decide

    def after_another(*told: object) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(recovery, "_decide", decide)
            recover(tmp_path, to="first")
        decide(*told)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recovery, "_decide", after_another)
        with pytest.raises(StoreExists, match="somebody else recovers"):
            recover(tmp_path, to="second")
    write(reopened(tmp_path, "b"), "2")
    assert values(reopened(tmp_path, "first")) == ["1", "2"]


def test_killed_anywhere_it_is_run_again(made: txnlog.Store, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "control")
    put = MarkedDisk.put_if_absent
    stops = 0

    class Killed(BaseException):
        pass

    for number in range(40):
        left = number

        def counted(disk: MarkedDisk, name: str, data: bytes) -> bool:
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1
            return put(disk, name, data)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(MarkedDisk, "put_if_absent", counted)
            try:
                recover(tmp_path)
            except Killed:
                stops += 1
            else:
                break
        with suppress(TxnlogError):  # nobody takes an older epoch for the newest
            found = reopened(tmp_path, "new").storage.agreement  # type: ignore[attr-defined]
            assert found.refresh().number == 1
    assert stops >= 3
    assert values(reopened(tmp_path, "a")) == ["1"]
    write(reopened(tmp_path, "new"), "2")


def test_a_place_that_is_taken(made: txnlog.Store, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "control")
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "mine").write_text("x")
    with pytest.raises(StoreExists, match="not empty"):
        recover(tmp_path)
    for nested in ("a/inside", "b", "control"):
        with pytest.raises(InvalidOption, match="folder of its own"):
            recover(tmp_path, to=nested)
    with pytest.raises(InvalidOption, match="no root"):
        recover(tmp_path, root="new")


def test_a_damaged_note_is_none(made: txnlog.Store, tmp_path: Path) -> None:
    """Of an epoch that another root has, too."""
    write(made, "2")
    [note] = (tmp_path / "a/incarnation-00000" / root_names.EPOCH_NOTES).iterdir()
    note.write_bytes(note.read_bytes()[:-9])
    shutil.rmtree(tmp_path / "control")
    recover(tmp_path, "b")
    assert values(reopened(tmp_path, "a")) == ["1", "2"]


def give_up(store: txnlog.Store, root: str) -> None:
    """A root is lost for good. Another one has its place, if it led."""
    replicas = Replicas(store)
    if root not in replicas.describe().out:
        replicas.remove(root)
    for member in [one for one in replicas._roots.agreement.refresh().left if one[:2] == root]:
        replicas.forget(member, lost=True)


def run(folder: Path, seed: int) -> None:
    """Writes, roots that go and come, some for good, and then the controller is lost."""
    chance = random.Random(seed)
    roots = {name: folder / name for name in "abc"}
    store = open_replicas(
        [str(path) for path in roots.values()],
        controller=str(folder / "control"),
        create=True,
        clock=VirtualClock(),
    ).store
    store.topics.create("t", partitions=1)
    acknowledged: list[str] = []
    away: dict[str, Callable[[], object]] = {}
    for step in range(chance.randrange(4, 14)):
        what = chance.choice(["write", "write", "lose", "back", "give up", "elect", "reopen"])
        with suppress(TxnlogError):
            if what == "write":
                write(store, str(step))
                acknowledged.append(str(step))
            elif what == "lose" and len(away) < len(roots) - 1:
                name = chance.choice([name for name in roots if name not in away])
                away[name] = lose(roots[name])
            elif what == "back" and away:
                name = chance.choice([*away])
                away.pop(name)()
                Replicas(store).add(str(roots[name]))
            elif what == "give up" and away:
                name = chance.choice([*away])
                give_up(store, f"r{'abc'.index(name)}")
                away.pop(name)
                roots.pop(name)
            elif what == "elect":
                Replicas(store).elect(f"r{chance.randrange(3)}")
            elif what == "reopen":
                store = reopened(
                    folder, chance.choice([name for name in roots if name not in away])
                )
    shutil.rmtree(folder / "control")
    recovered = False
    while not recovered:
        for root in roots.keys() - away.keys():
            with suppress(NotEnoughReplicas, InvalidOption):
                recover(folder, root)
                recovered = True
                break
        assert recovered or away, "all roots answer"
        if away:
            away.pop(chance.choice([*away]))()
    for bring_back in away.values():
        bring_back()
    recover(folder, chance.choice([*roots]))  # tells those that were away
    assert values(reopened(folder, chance.choice([*roots]))) == acknowledged


SEEDS = [pytest.param(n, marks=[] if n < 8 else [pytest.mark.more]) for n in range(60)]


@pytest.mark.few(5)
@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_that_was_acknowledged_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    skip_probes(monkeypatch)
    run(tmp_path, seed)


def nobody_notes(patch: pytest.MonkeyPatch) -> None:
    """Epochs after the first one are at the controller alone."""
    note = epoch_notes.note_epoch

    def first_alone(ours: Any, epoch: Epoch, *given: Any, **how: Any) -> None:
        if not epoch.number:
            note(ours, epoch, *given, **how)

    patch.setattr(agreement, "note_epoch", first_alone)


def any_root_tells(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery, "_check_answered", lambda *_: None)


@pytest.mark.more
@pytest.mark.parametrize("broken", [nobody_notes, any_root_tells])
def test_each_rule_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: Break
) -> None:
    skip_probes(monkeypatch)
    broken(monkeypatch)
    for seed in range(200):
        (tmp_path / str(seed)).mkdir()
        try:
            run(tmp_path / str(seed), seed)
        except (AssertionError, TxnlogError):
            return
    raise AssertionError("none of the runs notices")


def test_the_verb(made: txnlog.Store, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "control")
    how = ("--store", tmp_path / "a", "--controller", tmp_path / "new", "-o", "jsonl")
    planned = cli("replicas", "recover", *how, "--dry-run")
    assert planned.code == 0
    assert not (tmp_path / "new").exists()
    done = cli("replicas", "recover", *how)
    assert (done.code, '"told":["r0","r1"]' in done.out.replace(" ", "")) == (0, True), done.out
    assert values(reopened(tmp_path, "b")) == ["1"]


# -- epochs that are over ------------------------------------------------------------------------


class Late:
    """A process that slept notes epochs that were lost with the controller, at the second root.

    Nothing was acknowledged under them.
    """

    def __init__(self, made: txnlog.Store, folder: Path) -> None:
        storage = find_replicated(made.storage)
        assert storage is not None
        self.epochs = [storage.agreement.refresh()]
        self.member = LocalStorage(str(folder / SECOND))
        for value in ("true", "false"):
            who = storage.agreement.proposer("it slept")
            changed = {AUTO_RETURN: value}
            self.epochs.append(configured(self.epochs[-1], changed, who))

    def note(self, *numbers: int) -> None:
        for number in numbers:
            data = epoch_notes.encode_epoch(self.epochs[number])
            assert epoch_notes.put_note(self.member, number, data)


@pytest.mark.parametrize("numbers", [(1,), (2,), (1, 2)])
def test_what_is_noted_late_is_in_nobodys_way(
    made: txnlog.Store, tmp_path: Path, numbers: Sequence[int]
) -> None:
    """Those who write go on, and keep their own epochs; so does who makes a controller anew."""
    late = Late(made, tmp_path)
    shutil.rmtree(tmp_path / "control")
    recover(tmp_path)
    if 1 in numbers:  # who recovers has noted his own there
        late.member.delete([root_names.epoch_note(1)])
    late.note(*numbers)
    store = reopened(tmp_path, "a")
    assert Replicas(store).describe().condition == "whole"
    write(store, "2")
    Replicas(store).alter({"replica.scrub.bytes": "none"})
    write(store, "3")
    notes, _ = epoch_notes.read_notes(late.member, epoch_notes.list_notes(late.member))
    newest = find_replicated(store.storage).agreement.epoch()  # type: ignore[union-attr]
    assert newest in notes
    shutil.rmtree(tmp_path / "new")
    recover(tmp_path, "b", "newer")
    assert values(reopened(tmp_path, "a")) == ["1", "2", "3"]


def test_what_is_noted_late_does_not_lead_back(made: txnlog.Store, tmp_path: Path) -> None:
    """Though its number is higher than that of what was decided since."""
    late = Late(made, tmp_path)
    shutil.rmtree(tmp_path / "control")
    recover(tmp_path)
    Replicas(reopened(tmp_path, "a")).remove("r1")
    write(reopened(tmp_path, "a"), "2")
    data = epoch_notes.encode_epoch(replace(late.epochs[-1], number=9))
    assert epoch_notes.put_note(late.member, 9, data)
    assert Replicas(reopened(tmp_path, "b")).describe().in_sync == ("r0-0",)
    shutil.rmtree(tmp_path / "new")
    recover(tmp_path, "b", "newer")
    store = reopened(tmp_path, "b")
    assert values(store) == ["1", "2"]
    assert Replicas(store).describe().in_sync == ("r0-0",)
    write(store, "3")


def test_what_is_noted_late_while_it_is_made_anew(
    made: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has begun is killed when the leader has his epoch; another number is chosen then."""
    late = Late(made, tmp_path)
    shutil.rmtree(tmp_path / "control")
    put = epoch_notes.put_note

    def put_once(storage: LocalStorage, number: int, data: bytes) -> bool:
        if storage.url == str(tmp_path / SECOND):
            late.note(1)
            raise KeyboardInterrupt
        return put(storage, number, data)

    with monkeypatch.context() as patch:
        patch.setattr(recovery, "put_note", put_once)
        with pytest.raises(KeyboardInterrupt):
            recover(tmp_path)
    recover(tmp_path, "b")
    store = reopened(tmp_path, "b")
    write(store, "2")
    assert values(reopened(tmp_path, "a")) == ["1", "2"]


def test_doctor_misses_no_epoch_that_no_root_has_noted(made: txnlog.Store, tmp_path: Path) -> None:
    for value in (True, False):
        Replicas(made).alter({AUTO_RETURN: value})
    write(made, "2")
    shutil.rmtree(tmp_path / "control")
    recover(tmp_path)
    done = cli("doctor", "--store", tmp_path / "a", "--no-probe")
    assert done.code == 0, done.out
