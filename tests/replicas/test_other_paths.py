"""A store is known by what its marks say, whatever paths its roots and its controller have."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import txnlog
from tests.support.replication.replica_folders import (
    make,
    make_with,
    make_written,
    reopened,
    skip_probes,
    values,
    write,
)
from txnlog.errors import InvalidOption, NotAStore, StorageError, StoreExists
from txnlog.names import STORE_FILE
from txnlog.replication import Replicas, open_replicas, recover_controller, root_names
from txnlog.replication.roots import controller_move, find_replicas, root_join
from txnlog.replication.roots.controller import Controller
from txnlog.replication.roots.members import find_mark
from txnlog.storage.adapters.local import LocalStorage
from txnlog.storage.base import CannotReplace
from txnlog.testing import VirtualClock

LATE = 1_800_000_000_000


@pytest.fixture(autouse=True)
def _skip_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    skip_probes(monkeypatch)


@pytest.fixture(params=["replaces", "deletes first"])
def kind_of_disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Storages that have a step which replaces an object, and those that have none."""

    def cannot(storage: LocalStorage, name: str, _: bytes) -> None:
        raise CannotReplace(f"{storage.url} has no step that replaces {name}")

    if request.param != "replaces":
        monkeypatch.setattr(LocalStorage, "replace", cannot)


def link(folder: Path) -> Path:
    """Another path of a folder."""
    other = folder.with_name(f"{folder.name}-link")
    other.symlink_to(folder, target_is_directory=True)
    return other


def relocate(folder: Path) -> Path:
    """Another path, in place of the first one."""
    return folder.rename(folder.with_name(f"{folder.name}-moved"))


def leave_link(folder: Path) -> Path:
    """Another path, to which the first one leads."""
    other = relocate(folder)
    folder.symlink_to(other, target_is_directory=True)
    return other


Way = Callable[[Path], Path]


def opened(path: Path) -> txnlog.Store:
    return txnlog.open(str(path), clock=VirtualClock(LATE, seed=99))


def mark_file(root: Path) -> Path:
    return root / root_names.REPLICA_FILE


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


# -- the controller ------------------------------------------------------------------------------


def brings_back(store: txnlog.Store, folder: Path) -> None:
    Replicas(store).remove("r1")
    assert Replicas(store).add(str(folder / "b")).member == "r1-1"


def adds(store: txnlog.Store, folder: Path) -> None:
    assert Replicas(store).add(str(folder / "c")).member == "r2-0"


def moves_it(store: txnlog.Store, folder: Path) -> None:
    assert Replicas(store).move_controller(str(folder / "new")).told == ("r0", "r1")
    assert values(reopened(folder, "b")) == ["1", "2"]


def forgets(store: txnlog.Store, _: Path) -> None:
    Replicas(store).remove("r1")
    assert Replicas(store).forget("r1-0").member == "r1-0"


def makes_again(store: txnlog.Store, folder: Path) -> None:
    paths = [str(folder / name) for name in "ab"]
    url = Replicas(store).describe().controller
    again = open_replicas(paths, controller=url, create=True, clock=VirtualClock(LATE, seed=5))
    assert again.describe().epoch == 0


def reopens_by_a_root(store: txnlog.Store, folder: Path) -> None:
    if (folder / "control").exists():
        write(reopened(folder, "b"), "3")
    else:  # it is where the roots do not say
        assert Replicas(reopened(folder, "b")).describe().condition == "no controller"
        write(store, "3")


@pytest.mark.parametrize(
    "do", [brings_back, adds, moves_it, forgets, makes_again, reopens_by_a_root]
)
@pytest.mark.parametrize("way", [link, relocate, leave_link])
def test_the_controller_by_another_path(
    tmp_path: Path, way: Way, do: Callable[[txnlog.Store, Path], None]
) -> None:
    make_written(tmp_path, "1")
    store = opened(way(tmp_path / "control"))
    write(store, "2")
    assert [one.subject for one in store.examine(with_probe=False) if one.state == "damage"] == []
    assert Replicas(store).describe().condition == "whole"
    do(store, tmp_path)
    assert values(store)[:2] == ["1", "2"]


def test_another_stores_controller_at_the_path_that_a_root_names(tmp_path: Path) -> None:
    """Both were made at the same paths, one after the other."""
    make_written(tmp_path, "1")
    away = relocate(tmp_path / "b")
    for name in ("a", "control"):
        shutil.rmtree(tmp_path / name)
    make_with(VirtualClock(seed=7), tmp_path)
    with pytest.raises(StorageError, match="which is another store's: was its disk exchanged"):
        opened(away)


def test_a_place_that_another_stores_controller_has_claimed(tmp_path: Path) -> None:
    store = make_written(tmp_path, "1")
    make_with(VirtualClock(seed=7), tmp_path / "other")
    Replicas(reopened(tmp_path / "other")).move_controller(str(tmp_path / "place"))
    shutil.rmtree(tmp_path / "place" / root_names.EPOCHS)
    with pytest.raises(StoreExists, match="claimed for another store's controller"):
        Replicas(store).move_controller(str(tmp_path / "place"))
    shutil.rmtree(tmp_path / "control")
    with pytest.raises(StoreExists, match="claimed for another store's controller"):
        recover_controller(str(tmp_path / "a"), str(tmp_path / "place"))


def test_a_controller_is_made_where_a_move_of_it_came_no_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_written(tmp_path, "1")

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    copy = controller_move.copy_epochs

    def copies(*given: Any) -> None:
        copy(*given)
        monkeypatch.setattr(Controller, "propose", killed)

    propose = Controller.propose
    monkeypatch.setattr(controller_move, "copy_epochs", copies)
    with pytest.raises(KeyboardInterrupt):
        Replicas(store).move_controller(str(tmp_path / "new"))
    monkeypatch.setattr(Controller, "propose", propose)
    write(reopened(tmp_path), "2")
    shutil.rmtree(tmp_path / "control")
    recover_controller(str(tmp_path / "a"), str(tmp_path / "new"))
    assert values(reopened(tmp_path, "b")) == values(reopened(tmp_path, "new")) == ["1", "2"]


@pytest.mark.parametrize("whose", ["another store's", "a later one's"])
def test_no_controller_is_made_over_epochs_that_no_root_knows(tmp_path: Path, whose: str) -> None:
    make_written(tmp_path, "1")
    make_with(VirtualClock(seed=7), tmp_path / "other")
    source = tmp_path / "other" / "control"
    if whose == "a later one's":
        source = tmp_path / "control"
        Replicas(reopened(tmp_path)).alter({"replica.scrub.bytes": 1})
        for root in "ab":  # whoever has decided it was killed then
            (tmp_path / root / "incarnation-00000" / root_names.epoch_note(1)).unlink()
    (tmp_path / "new").mkdir()
    shutil.copytree(source / root_names.EPOCHS, tmp_path / "new" / root_names.EPOCHS)
    shutil.rmtree(tmp_path / "control")
    with pytest.raises(StoreExists, match="that no root knows: choose an empty folder"):
        recover_controller(str(tmp_path / "a"), str(tmp_path / "new"))


# -- roots ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [link, relocate, leave_link])
@pytest.mark.parametrize("is_out", [True, False])
def test_a_store_is_opened_by_another_path_of_a_root(
    tmp_path: Path, way: Way, *, is_out: bool
) -> None:
    store = make_written(tmp_path, "1")
    if is_out:
        Replicas(store).remove("r1")
    there = opened(way(tmp_path / "b"))
    write(there, "2")  # where the epochs say that it is there is nothing any more, perhaps
    assert values(there) == ["1", "2"]


@pytest.mark.parametrize("way", [link, leave_link])
def test_a_root_in_sync_is_no_second_one(tmp_path: Path, way: Way) -> None:
    store = make_written(tmp_path, "1")
    with pytest.raises(InvalidOption, match="in sync already, as r1"):
        Replicas(store).add(str(way(tmp_path / "b")))


@pytest.mark.usefixtures("kind_of_disk")
@pytest.mark.parametrize("way", [link, relocate, leave_link])
@pytest.mark.parametrize("mark", ["whole", "lost", "damaged"])
def test_a_roots_disk_comes_back_by_another_path(tmp_path: Path, way: Way, mark: str) -> None:
    """What it has is not sent again, and it keeps its name."""
    store = make_written(tmp_path, "1")
    Replicas(store).remove("r1")
    write(store, "2")
    there = way(tmp_path / "b")
    if mark == "lost":
        mark_file(there).unlink()
    elif mark == "damaged":
        flip(mark_file(there))
    planned = Replicas(store).add(str(there), dry_run=True)
    joined = Replicas(store).add(str(there))
    assert joined.member == planned.member == "r1-1"
    assert joined.kept_objects == planned.kept_objects > 0
    assert Replicas(store).describe().replicas[1].url == str(there.resolve())
    assert find_mark(LocalStorage(str(there))).member == "r1"
    assert mark_file(there).exists()
    assert values(opened(there)) == ["1", "2"]
    assert [one for one in store.examine(with_probe=False) if one.state == "damage"] == []


def test_an_earlier_copy_of_a_root(tmp_path: Path) -> None:
    store = make_written(tmp_path, "1")
    shutil.copytree(tmp_path / "b", tmp_path / "backup")
    Replicas(store).remove("r1")
    Replicas(store).add(str(tmp_path / "b"))
    Replicas(store).remove("r1")
    with pytest.raises(StoreExists, match=r"is an earlier copy of r1, which is at .*/b: add that"):
        Replicas(store).add(str(tmp_path / "backup"))
    assert Replicas(store).add(str(tmp_path / "b")).member == "r1-2"


@pytest.mark.parametrize("way", [link, relocate, leave_link])
def test_a_disk_that_moved_after_a_killed_join_is_no_earlier_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: Way
) -> None:
    """The incarnation that was joining had nothing yet."""
    store = make_written(tmp_path, "1")
    Replicas(store).remove("r1")

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(root_join, "_copy", killed)
        with pytest.raises(KeyboardInterrupt):
            Replicas(store).add(str(tmp_path / "b"))
    assert Replicas(store).describe().joining == ("r1-1",)
    joined = Replicas(store).add(str(way(tmp_path / "b")))
    assert joined.member == "r1-2"
    assert joined.kept_objects > 0
    assert values(reopened(tmp_path, "control")) == ["1"]


@pytest.mark.parametrize("way", [link, relocate, leave_link])
def test_a_disk_that_moved_after_a_killed_forget_is_no_earlier_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: Way
) -> None:
    """Its marks go first, and the epochs name it no more."""
    store = make_written(tmp_path, "1")
    Replicas(store).remove("r1")
    delete = LocalStorage.delete

    def killed(storage: LocalStorage, names: Any) -> None:
        names = [*names]
        delete(storage, names)
        if any(name.startswith(root_names.MEMBER_MARKS) for name in names):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "delete", killed)
        with pytest.raises(KeyboardInterrupt):
            Replicas(store).forget("r1-0")
    joined = Replicas(store).add(str(way(tmp_path / "b")))
    assert joined.member == "r1-1"
    assert Replicas(store).forget("r1-0").objects > 0  # the rest
    assert values(reopened(tmp_path)) == ["1"]


def test_a_moved_disk_with_nothing_but_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that it had was forgotten, and an addition was killed: it comes in as a new one."""
    store = make_written(tmp_path, "1")
    Replicas(store).remove("r1")
    Replicas(store).forget("r1-0")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(find_replicas, "put_pointer", killed)
        with pytest.raises(KeyboardInterrupt):
            Replicas(store).add(str(tmp_path / "b"))
    assert Replicas(store).add(str(relocate(tmp_path / "b"))).member == "r2-0"
    assert values(reopened(tmp_path, "b-moved")) == ["1"]


def test_a_root_that_moved_as_only_the_leader_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever root is named: the others are asked where the newest epoch says that they are."""
    paths = [str(tmp_path / name) for name in "abc"]
    control = str(tmp_path / "control")
    store = open_replicas(paths, controller=control, create=True, clock=VirtualClock()).store
    store.topics.create("t", partitions=1)
    write(store, "1")
    Replicas(store).remove("r1")
    there = relocate(tmp_path / "b")

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(root_join, "_copy", killed)
        with pytest.raises(KeyboardInterrupt):
            Replicas(store).add(str(there))
    shutil.rmtree(tmp_path / "control")
    assert values(reopened(tmp_path, "c")) == ["1"]
    assert recover_controller(paths[2], str(tmp_path / "new")).told == ("r0", "r1", "r2")
    assert Replicas(reopened(tmp_path, "new")).add(str(there)).member == "r1-2"


def test_another_stores_root(tmp_path: Path) -> None:
    """Made at the same paths: its mark names the controller that this one has."""
    make_written(tmp_path, "other")
    away = relocate(tmp_path / "b")
    for name in ("a", "control"):
        shutil.rmtree(tmp_path / name)
    store = make_with(VirtualClock(seed=7), tmp_path)
    Replicas(store).remove("r1")
    with pytest.raises(StoreExists, match="another store"):
        Replicas(store).add(str(away))
    shutil.rmtree(tmp_path / "b")
    shutil.copytree(away, tmp_path / "b")
    with pytest.raises(StoreExists, match="another store"):
        Replicas(store).add(str(tmp_path / "b"))
    with pytest.raises(StoreExists, match="another store"):
        Replicas(store).forget("r1-0")
    (away / root_names.REPLICA_FILE).unlink()  # its incarnations tell
    with pytest.raises(StoreExists, match="another store"):
        Replicas(store).add(str(away))


def test_a_lost_mark_is_put_again(tmp_path: Path) -> None:
    store = make_written(tmp_path, "1")
    for root in "ab":
        mark_file(tmp_path / root).unlink()
    assert values(reopened(tmp_path, "b")) == ["1"]
    Replicas(store).move_controller(str(tmp_path / "new"))
    assert mark_file(tmp_path / "a").exists()
    assert mark_file(tmp_path / "b").exists()


def test_another_stores_root_where_a_reader_asks_for_epochs(tmp_path: Path) -> None:
    make_written(tmp_path, "other")
    away = relocate(tmp_path / "a")
    for name in ("b", "control"):
        shutil.rmtree(tmp_path / name)
    store = make_with(VirtualClock(seed=7), tmp_path)
    store.topics.create("t", partitions=1)
    write(store, "1")
    reader = reopened(tmp_path, "b")
    for name in ("control", "a"):
        shutil.rmtree(tmp_path / name)
    away.rename(tmp_path / "a")
    with pytest.raises(StorageError, match="is not root r0, or is another store's"):
        values(reader)


@pytest.mark.usefixtures("kind_of_disk")
@pytest.mark.parametrize("harm", [flip, Path.unlink])
def test_a_pointer_that_is_damaged_or_lost(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    """The one before it leads to the controller, too; the newest is put again."""
    store = make_written(tmp_path, "1")
    Replicas(store).move_controller(str(tmp_path / "new"))
    Replicas(store).move_controller(str(tmp_path / "newer"))
    pointer = tmp_path / "b" / root_names.controller_pointer(2)
    harm(pointer)
    assert values(reopened(tmp_path, "b")) == ["1"]
    assert "r1" in [one.subject for one in store.examine(with_probe=False)]
    assert Replicas(store).move_controller(str(tmp_path / "newer")).untold == ()
    assert "r1" not in [one.subject for one in store.examine(with_probe=False)]
    for name in ("control", "new"):
        shutil.rmtree(tmp_path / name)
    assert Replicas(reopened(tmp_path, "b")).describe().condition == "whole"


# -- who was killed ------------------------------------------------------------------------------


@pytest.mark.parametrize("step", range(4))
def test_a_killed_creation_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """After so many marks: of roots, and of what is in them."""
    left = [step]
    put_if_absent = LocalStorage.put_if_absent

    def killed(storage: LocalStorage, name: str, data: bytes) -> bool:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return put_if_absent(storage, name, data)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "put_if_absent", killed)
        with pytest.raises(KeyboardInterrupt):
            make(tmp_path)
    store = make_with(VirtualClock(seed=7), tmp_path)
    store.topics.create("t", partitions=1)
    write(store, "1")
    assert values(reopened(tmp_path, "b")) == ["1"]


@pytest.mark.parametrize("holder", ["a", "b"])
def test_a_creation_that_was_killed_with_the_stores_file_at_some_roots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holder: str
) -> None:
    """The others get it: nothing else would give it to them, and without it there is no store."""
    put_if_absent = LocalStorage.put_if_absent

    def killed(storage: LocalStorage, name: str, data: bytes) -> bool:
        done = put_if_absent(storage, name, data)
        if name == STORE_FILE and f"/{holder}/" in storage.url:
            raise KeyboardInterrupt
        return done

    paths = [str(tmp_path / name) for name in "abc"]
    control = str(tmp_path / "control")
    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "put_if_absent", killed)
        with pytest.raises(KeyboardInterrupt):
            open_replicas(paths, controller=control, create=True, clock=VirtualClock())
    again = open_replicas(paths, controller=control, create=True, clock=VirtualClock(seed=7))
    again.store.topics.create("t", partitions=1)
    write(again.store, "1")
    assert [*again.verify(with_contents=True)] == []
    shutil.rmtree(tmp_path / "a")
    (tmp_path / "a").mkdir()
    again.remove("r0", force=True)
    assert values(reopened(tmp_path, "b")) == values(reopened(tmp_path, "c")) == ["1"]


def test_of_two_that_make_a_store_both_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    propose = Controller.propose

    def late(*given: Any) -> bool:
        monkeypatch.setattr(Controller, "propose", propose)
        make_with(VirtualClock(seed=7), tmp_path)
        return propose(*given)

    monkeypatch.setattr(Controller, "propose", late)
    store = make(tmp_path)
    store.topics.create("t", partitions=1)
    write(store, "1")
    assert values(reopened(tmp_path, "b")) == ["1"]


def test_of_two_stores_on_one_root_one_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = find_replicas.check_empty

    def late(storage: LocalStorage) -> None:
        check(storage)
        monkeypatch.setattr(find_replicas, "check_empty", check)
        paths = [str(tmp_path / name) for name in "ac"]
        other = str(tmp_path / "other")
        open_replicas(paths, controller=other, create=True, clock=VirtualClock(seed=7))

    monkeypatch.setattr(find_replicas, "check_empty", late)
    with pytest.raises(StoreExists, match="has just become a replica of another store"):
        make(tmp_path)
    assert Replicas(opened(tmp_path / "a")).describe().condition == "whole"


@pytest.mark.usefixtures("kind_of_disk")
def test_the_name_that_a_killed_addition_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another root has it by now: the first one gets another name."""
    store = make_written(tmp_path, "1")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(find_replicas, "put_pointer", killed)
        with pytest.raises(KeyboardInterrupt):
            Replicas(store).add(str(tmp_path / "c"))
    assert find_mark(LocalStorage(str(tmp_path / "c"))).member == "r2"
    assert Replicas(store).add(str(tmp_path / "d")).member == "r2-0"
    assert Replicas(store).add(str(tmp_path / "c")).member == "r3-0"
    assert find_mark(LocalStorage(str(tmp_path / "c"))).member == "r3"
    mark_file(tmp_path / "c").unlink()
    assert find_mark(LocalStorage(str(tmp_path / "c"))).member == "r3"
    assert values(reopened(tmp_path, "c")) == ["1"]


def test_files_of_others_are_no_root(tmp_path: Path) -> None:
    store = make_written(tmp_path, "1")
    (tmp_path / "c" / "incarnation-00000" / "topics").mkdir(parents=True)
    (tmp_path / "c" / "incarnation-00000" / "topics" / "x").write_bytes(b"x")
    with pytest.raises(NotAStore, match="is not empty"):
        Replicas(store).add(str(tmp_path / "c"))
