"""A controller that moves: who follows, what a kill leaves, and what is refused."""

from __future__ import annotations

import pickle
import shutil
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import txnlog
from tests.support.replication.controller_model import Model
from tests.support.replication.controller_model import Violation as Broken
from tests.support.replication.replica_folders import (
    lose,
    make,
    make_written,
    reopened,
    values,
    write,
)
from txnlog.errors import (
    CorruptEntry,
    InvalidOption,
    NotAStore,
    NotEnoughReplicas,
    PutIfAbsentBroken,
    StorageError,
    StoreExists,
)
from txnlog.replication import Replicas, open_replicas, root_names
from txnlog.replication.roots import controller_move
from txnlog.replication.roots.agreement import Agreement
from txnlog.replication.roots.controller import Controller
from txnlog.replication.roots.epochs import Epoch
from txnlog.replication.roots.replicated_storage import ReplicatedStorage
from txnlog.storage.adapters.local import LocalStorage

pytestmark = pytest.mark.rule("R9")


@pytest.fixture
def made(tmp_path: Path) -> txnlog.Store:
    return make_written(tmp_path, "1")


def epochs(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / root_names.EPOCHS).iterdir()}


def replicated(store: txnlog.Store) -> ReplicatedStorage:
    assert isinstance(store.storage, ReplicatedStorage)
    return store.storage


def newest(store: txnlog.Store) -> Epoch:
    return replicated(store).agreement.refresh()


# -- the model -----------------------------------------------------------------------------------


def test_the_model_keeps_its_promises() -> None:
    runs = [Model(seed).run() for seed in range(60)]
    assert sum(run.acknowledged for run in runs) > 300
    assert sum(run.moves for run in runs) > 10


@pytest.mark.more
@pytest.mark.parametrize("broken", ["stay", "unsaid", "oldestfirst", "decidethere", "unmarked"])
def test_each_rule_of_the_model_is_needed(broken: str) -> None:
    for seed in range(400):
        try:
            Model(seed, broken).run()
        except Broken:
            return
    raise AssertionError("none of the runs notices")


# -- moves ---------------------------------------------------------------------------------------


def test_everybody_follows(made: txnlog.Store, tmp_path: Path) -> None:
    """Open stores, handles sent to other processes, and opening it by any earlier address."""
    asleep = reopened(tmp_path)
    handed = pickle.dumps(made)
    moved = Replicas(made).move_controller(str(tmp_path / "new"))
    assert (moved.url, moved.epoch) == (str(tmp_path / "new"), 2)
    assert (moved.told, moved.untold) == (("r0", "r1"), ())
    assert epochs(tmp_path / "new") == epochs(tmp_path / "control")
    for store in (made, asleep, pickle.loads(handed), *(reopened(tmp_path, w) for w in "ab")):
        assert Replicas(store).describe().controller == str(tmp_path / "new")
        assert store.storage.address().url == str(tmp_path / "new")
    assert Replicas(reopened(tmp_path)).describe().controller == str(tmp_path / "new")
    write(asleep, "2")
    Replicas(made).remove("r1")
    assert len(epochs(tmp_path / "new")) == 4
    assert len(epochs(tmp_path / "control")) == 3
    assert values(reopened(tmp_path, "a")) == ["1", "2"]
    assert [one.epoch for one in Replicas(reopened(tmp_path)).history()] == [0, 1, 2, 3]


def test_the_old_place_may_go_for_good(made: txnlog.Store, tmp_path: Path) -> None:
    """Any root is enough; who was asleep acknowledges nothing any more."""
    asleep = reopened(tmp_path)
    newest(asleep)
    Replicas(made).move_controller(str(tmp_path / "new"))
    shutil.rmtree(tmp_path / "control")
    with pytest.raises(StorageError, match="is the controller's disk mounted"):
        asleep.storage.put_if_absent("x", b"1")
    for root in "ab":
        write(reopened(tmp_path, root), root)
    assert values(made) == ["1", "a", "b"]
    assert values(reopened(tmp_path, "new")) == ["1", "a", "b"]


@pytest.mark.parametrize("behind", [0, 1])
def test_back_and_on(made: txnlog.Store, tmp_path: Path, behind: int) -> None:
    """A move back is one as any other: also for who slept through all of them."""
    asleep = [reopened(tmp_path) for _ in range(3)]
    for store in asleep:
        newest(store)
    for where in ("new", "control", "third"):
        Replicas(made).move_controller(str(tmp_path / where))
        if behind:
            newest(asleep.pop())
        Replicas(made).alter({"replica.lag.time.max.ms": 5000 + len(asleep)})
    for store in [*asleep, *(reopened(tmp_path, name) for name in ("new", "control", "a"))]:
        assert Replicas(store).describe().controller == str(tmp_path / "third")
        write(store, "2")
    assert newest(made).controllers == tuple(
        str(tmp_path / name) for name in ("control", "new", "control", "third")
    )
    shutil.rmtree(tmp_path / "control")
    shutil.rmtree(tmp_path / "new")
    assert len(values(reopened(tmp_path, "b"))) == (4 if behind else 7)


def test_a_move_back_is_not_believed_before_it_is_decided(
    made: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All epochs are copied: those at the old place say where they are decided."""
    Replicas(made).move_controller(str(tmp_path / "new"))
    Replicas(made).alter({"replica.lag.time.max.ms": 5000})
    with monkeypatch.context() as patch:
        patch.setattr(Agreement, "propose", killed)
        with pytest.raises(KeyboardInterrupt):
            Replicas(made).move_controller(str(tmp_path / "control"))
    assert len(epochs(tmp_path / "control")) == 4
    assert Replicas(reopened(tmp_path)).describe().controller == str(tmp_path / "new")
    assert Replicas(made).move_controller(str(tmp_path / "control")).epoch == 4


def killed(*_: object, **__: object) -> Any:
    raise KeyboardInterrupt


# -- kills ---------------------------------------------------------------------------------------


def kill_at(patch: pytest.MonkeyPatch, at: int) -> list[str]:
    """A kill before the first put, after it, before the second one, ...; returns what was put."""
    put_if_absent, points, put = LocalStorage.put_if_absent, iter(range(1, at + 1)), []

    def point() -> None:
        if next(points, at) == at:
            raise KeyboardInterrupt

    def killing(storage: LocalStorage, name: str, data: bytes) -> bool:
        point()
        done = put_if_absent(storage, name, data)
        put.append(name)
        point()
        return done

    patch.setattr(LocalStorage, "put_if_absent", killing)
    return put


@pytest.mark.parametrize("at", range(1, 15))
def test_a_kill_anywhere(tmp_path: Path, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others go on, by every place that has epochs; the next call finishes it."""
    made = make(tmp_path)
    asleep = reopened(tmp_path)
    newest(asleep)
    with monkeypatch.context() as patch:
        put = kill_at(patch, at)
        with pytest.raises(KeyboardInterrupt):
            Replicas(reopened(tmp_path)).move_controller(str(tmp_path / "new"))
    assert asleep.storage.put_if_absent("x", b"1")
    places = ["control", "a", "b"]
    if at > 7:  # the last epoch that is copied is the first one, without which none is believed
        assert put.count(root_names.epoch_file(0)) == 1
        places.append("new")
    assert len({Replicas(reopened(tmp_path, name)).describe().epoch for name in places}) == 1
    moved = Replicas(made).move_controller(str(tmp_path / "new"))
    assert moved.told == ("r0", "r1")
    assert newest(asleep).controllers == (str(tmp_path / "control"), str(tmp_path / "new"))


# -- places that are not what they should be -----------------------------------------------------


def test_a_place_whose_disk_is_not_mounted_is_taken_for_nothing(
    made: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The move is decided, and the new place has not heard of it; then it is away."""
    asleep = reopened(tmp_path)
    newest(asleep)
    with monkeypatch.context() as patch:
        patch.setattr(Controller, "_follow", killed)
        with pytest.raises(KeyboardInterrupt):
            Replicas(made).move_controller(str(tmp_path / "new"))
    bring_back = lose(tmp_path / "new")
    with pytest.raises(StorageError, match="is the controller's disk mounted"):
        asleep.storage.put_if_absent("x", b"1")
    with pytest.raises(StorageError, match="is the controller's disk mounted"):
        reopened(tmp_path, "a").storage.put_if_absent("x", b"1")
    assert not list((tmp_path / "new").rglob("*.json"))
    bring_back()
    assert asleep.storage.put_if_absent("x", b"1")
    assert epochs(tmp_path / "new") == epochs(tmp_path / "control")


def test_one_epoch_where_the_disk_is_not_mounted_is_no_controller(
    made: txnlog.Store, tmp_path: Path
) -> None:
    """It was put while the disk disappeared: the first epoch is missing."""
    Replicas(made).remove("r1")
    path = root_names.epoch_file(newest(made).number)
    left = (tmp_path / "control" / path).read_bytes()
    lose(tmp_path / "control")
    (tmp_path / "control" / path).parent.mkdir()
    (tmp_path / "control" / path).write_bytes(left)
    with pytest.raises(StorageError, match="is the controller's disk mounted"):
        made.storage.put_if_absent("x", b"1")


def test_a_server_without_the_epochs_is_given_none(made: txnlog.Store, tmp_path: Path) -> None:
    """Nothing tells that a bucket was emptied but that the epoch before is gone."""
    Replicas(made).move_controller(str(tmp_path / "new"))
    shutil.rmtree(tmp_path / "new")
    empty = LocalStorage(str(tmp_path / "new"))
    old = Controller(LocalStorage(str(tmp_path / "control")), lambda _: empty)
    with pytest.raises(StorageError, match="where the epochs are gone"):
        old.newest()
    assert not list((tmp_path / "new").rglob("*.json"))


def test_another_stores_controller_is_not_followed(made: txnlog.Store, tmp_path: Path) -> None:
    Replicas(made).move_controller(str(tmp_path / "new"))
    other = make(tmp_path / "other")
    for ms in (1, 2):
        Replicas(other).alter({"replica.lag.time.max.ms": ms})
    shutil.rmtree(tmp_path / "new")
    shutil.copytree(tmp_path / "other/control", tmp_path / "new")
    with pytest.raises(CorruptEntry, match="is not what"):
        newest(reopened(tmp_path))


def test_what_is_no_place_for_a_controller_is_refused(made: txnlog.Store, tmp_path: Path) -> None:
    other = make(tmp_path / "other")
    for ms in (1, 2, 3):
        Replicas(other).alter({"replica.lag.time.max.ms": ms})
    Replicas(made).alter({"replica.lag.time.max.ms": 5000})
    longer = str(tmp_path / "other/control")
    with pytest.raises(StoreExists, match="of another store"):
        Replicas(made).move_controller(longer)
    for number in (3, 2):
        (tmp_path / "other/control" / root_names.epoch_file(number)).unlink()
    with pytest.raises(StoreExists, match="is not what"):
        Replicas(made).move_controller(longer)
    places = (
        ("control", "already"),
        ("control/x", "are nested"),
        ("a", "is a root"),
        ("a/incarnation-00000/x", "are nested"),
    )
    for where, says in places:
        with pytest.raises(InvalidOption, match=says):
            Replicas(made).move_controller(str(tmp_path / where))
    with pytest.raises(InvalidOption, match="none may lie inside another"):
        open_replicas(
            [tmp_path / "x", str(tmp_path / "y")], controller=str(tmp_path / "x/c"), create=True
        )
    for where in ("a/sub", "control/sub"):
        with pytest.raises(InvalidOption, match="are nested"):
            Replicas(made).add(str(tmp_path / where))
    txnlog.open(str(tmp_path / "plain"), create=True)
    with pytest.raises(NotAStore, match="a folder of its own"):
        Replicas(made).move_controller(str(tmp_path / "plain"))
    with pytest.raises(InvalidOption, match="credentials"):
        Replicas(made).move_controller("s3://key:secret@bucket/x")
    with pytest.raises(InvalidOption, match="is malformed"):
        Replicas(made).move_controller("sftp://[host/x")
    with pytest.raises(InvalidOption, match="is malformed"):
        open_replicas(["s3://[x", str(tmp_path / "y")], controller=str(tmp_path / "c"), create=True)
    assert Replicas(made).describe().controller == str(tmp_path / "control")


def test_a_dry_run_changes_nothing(made: txnlog.Store, tmp_path: Path) -> None:
    planned = Replicas(made).move_controller(str(tmp_path / "new"), dry_run=True)
    assert not (tmp_path / "new").exists()
    assert newest(made).number == 0
    assert Replicas(made).move_controller(str(tmp_path / "new")).epoch == planned.epoch


def test_where_nothing_can_be_decided_nothing_moves(
    made: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> None:
        raise PutIfAbsentBroken("two writers win")

    monkeypatch.setattr(controller_move, "probe", broken)
    with pytest.raises(PutIfAbsentBroken):
        Replicas(made).move_controller(str(tmp_path / "new"))
    assert newest(made).number == 0


# -- roots ---------------------------------------------------------------------------------------


def test_a_root_that_was_away_learns_it_when_it_returns(made: txnlog.Store, tmp_path: Path) -> None:
    """Until then it names the old place. Where that is gone others know, or it tells what to do."""
    Replicas(made).remove("r1")
    bring_back = lose(tmp_path / "b")
    assert Replicas(made).move_controller(str(tmp_path / "new")).untold == ("r1",)
    shutil.rmtree(tmp_path / "control")
    bring_back()
    assert Replicas(reopened(tmp_path, "b")).describe().controller == str(tmp_path / "new")
    bring_others_back = lose(tmp_path / "a")
    with pytest.raises(StorageError, match="If it was moved while this root was away"):
        reopened(tmp_path, "b")
    bring_others_back()
    assert [one.subject for one in made.examine(with_probe=False) if one.state == "note"] == [
        "r1",
        "r1",
    ]
    Replicas(made).add(str(tmp_path / "b"))
    assert Replicas(reopened(tmp_path, "b")).describe().controller == str(tmp_path / "new")
    Replicas(made).remove("r1")
    assert Replicas(made).forget("r1-0").member == "r1-0"


def test_roots_that_were_not_told_are_told_again(made: txnlog.Store, tmp_path: Path) -> None:
    bring_back = lose(tmp_path / "b")
    Replicas(made).move_controller(str(tmp_path / "new"))
    bring_back()
    assert Replicas(made).move_controller(str(tmp_path / "new")).told == ("r0", "r1")
    assert (tmp_path / "b" / root_names.controller_pointer(1)).exists()
    assert newest(made).number == 2
    assert Replicas(made).add(str(tmp_path / "c")).member == "r2-0"
    assert Replicas(reopened(tmp_path, "c")).describe().controller == str(tmp_path / "new")


# -- races ---------------------------------------------------------------------------------------


def test_whoever_changes_the_set_meanwhile_is_not_lost(
    made: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = controller_move.copy_epochs

    def change_behind(*told: Any) -> None:
        copy(*told)
        monkeypatch.setattr(controller_move, "copy_epochs", copy)
        Replicas(reopened(tmp_path)).remove("r1")

    monkeypatch.setattr(controller_move, "copy_epochs", change_behind)
    assert Replicas(made).move_controller(str(tmp_path / "new")).epoch == 3
    assert Replicas(reopened(tmp_path, "new")).describe().in_sync == ("r0-0",)


def test_of_two_that_move_it_one_wins(
    made: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = controller_move.copy_epochs

    def move_behind(*told: Any) -> None:
        copy(*told)
        monkeypatch.setattr(controller_move, "copy_epochs", copy)
        Replicas(reopened(tmp_path)).move_controller(str(tmp_path / "other"))

    monkeypatch.setattr(controller_move, "copy_epochs", move_behind)
    with pytest.raises(NotEnoughReplicas, match="somebody else has moved it"):
        Replicas(made).move_controller(str(tmp_path / "new"))
    for name in ("control", "new", "other"):
        assert Replicas(reopened(tmp_path, name)).describe().controller == str(tmp_path / "other")


def test_a_listing_that_misses_what_came_before_is_not_believed(
    made: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first copies say nothing of a move: who finds them alone lists once more."""
    Replicas(made).move_controller(str(tmp_path / "new"))
    list_names, looks = LocalStorage.list_names, count(1)

    def torn(storage: LocalStorage, folder: str, start_after: str = "") -> list[str]:
        found = list_names(storage, folder, start_after)
        return found[:1] if next(looks) == 1 else found

    monkeypatch.setattr(LocalStorage, "list_names", torn)
    place = LocalStorage(str(tmp_path / "new"))
    assert Controller(place).newest().number == 2
