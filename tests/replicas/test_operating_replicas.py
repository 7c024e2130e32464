"""What an operator asks of replicas and does to them: elections, comparing, old incarnations."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import txnlog
from tests.support.replication.replica_folders import (
    FIRST,
    SECOND,
    lose,
    make,
    make_with,
    make_written,
    objects,
    reopened,
    values,
    write,
)
from txnlog.errors import (
    CorruptEntry,
    InvalidConfig,
    InvalidOption,
    NotAStore,
    NotEnoughReplicas,
    StorageError,
    StoreExists,
    UnknownTopicOrPartition,
)
from txnlog.replication import (
    ReplicaDifference,
    ReplicaReturn,
    Replicas,
    open_replicas,
    root_names,
)
from txnlog.replication.roots import old_incarnations, replica_return, verification
from txnlog.replication.roots import root_join as joining_roots
from txnlog.replication.roots.agreement import Agreement
from txnlog.replication.roots.epochs import Epoch, Proposer, first_epoch, joining, without
from txnlog.replication.roots.find_replicas import prepare_root
from txnlog.replication.roots.members import OwnerMark
from txnlog.replication.roots.replica_return import outdated, roots_to_return
from txnlog.replication.roots.replicated_storage import ReplicatedStorage, find_replicated
from txnlog.replication.roots.root_join import Joined, join
from txnlog.replication.sound_copies import SoundCopies
from txnlog.results import FileDeletion, MaintenanceFailure
from txnlog.storage import envelope
from txnlog.storage.adapters.local import LocalStorage
from txnlog.storage.base import Storage
from txnlog.testing import VirtualClock

pytestmark = pytest.mark.rule("R5", "R8")


@pytest.fixture
def made(tmp_path: Path) -> txnlog.Store:
    return make_written(tmp_path, "1", "2")


def differences(store: txnlog.Store, **how: bool) -> list[ReplicaDifference]:
    return [*Replicas(store).verify(**how)]


def data_file(folder: Path) -> str:
    """The name of the topic's only segment file."""
    (name,) = (name for name in objects(folder) if name.endswith(".log") and "/data/" in name)
    return name


# -- elections -----------------------------------------------------------------------------------


def test_an_operator_names_the_leader(made: txnlog.Store) -> None:
    """Nothing is lost, and the old leader stays in sync; a dry run changes nothing."""
    assert Replicas(made).elect("r1", dry_run=True).leader == "r1-0"
    assert Replicas(made).describe().leader == "r0-0"
    election = Replicas(made).elect("r1")
    assert (election.leader, election.clean, election.missing_count) == ("r1-0", True, 0)
    described = Replicas(made).describe()
    assert (described.leader, set(described.in_sync)) == ("r1-0", {"r0-0", "r1-0"})
    assert described.why == "an operator elects r1-0"
    write(made, "3")
    assert values(made) == ["1", "2", "3"]
    with pytest.raises(InvalidOption, match="leads already"):
        Replicas(made).elect("r1")
    with pytest.raises(InvalidOption, match="r9 is not one of"):
        Replicas(made).elect("r9")


def test_the_preferred_leader_leads_again(made: txnlog.Store, tmp_path: Path) -> None:
    """The first root if nothing else is set; only in sync; once is enough."""
    assert (Replicas(made).elect().leader, Replicas(made).describe().epoch) == ("r0-0", 0)
    bring_back = lose(tmp_path / "a")
    Replicas(made).elect("r1")
    with pytest.raises(InvalidOption, match=f"not in sync: .* add {tmp_path / 'a'}"):
        Replicas(made).elect()
    bring_back()
    Replicas(made).add(str(tmp_path / "a"))
    assert Replicas(made).elect(dry_run=True).leader == "r0-1"
    assert Replicas(made).describe().leader == "r1-0"
    assert Replicas(made).elect().leader == "r0-1"
    described = Replicas(made).describe()
    assert (described.leader, {*described.in_sync}) == ("r0-1", {"r0-1", "r1-0"})
    Replicas(made).alter({"replica.preferred.leader": "r1"})
    election = Replicas(made).elect()
    assert (election.leader, election.clean) == ("r1-0", True)
    epoch = Replicas(made).describe().epoch
    assert Replicas(made).elect() == election
    assert Replicas(made).describe().epoch == epoch
    assert values(made) == ["1", "2"]


def test_an_old_leader_that_does_not_answer_is_put_out(made: txnlog.Store, tmp_path: Path) -> None:
    lose(tmp_path / "a")
    Replicas(made).elect("r1")
    assert Replicas(made).describe().in_sync == ("r1-0",)


def test_who_does_not_answer_is_not_elected(made: txnlog.Store, tmp_path: Path) -> None:
    lose(tmp_path / "b")
    with pytest.raises(NotEnoughReplicas, match=r"r1-0 at .* cannot lead"):
        Replicas(made).elect("r1")
    assert Replicas(made).describe().leader == "r0-0"


@pytest.mark.condition(60)
def test_an_unclean_election_tells_what_it_loses(made: txnlog.Store, tmp_path: Path) -> None:
    """Only with the word for it, only if nobody in sync answers, and after it has been told."""
    Replicas(made).add(str(tmp_path / "c"))
    Replicas(made).remove("r1")
    write(made, "3")
    Replicas(made).remove("r2")
    with pytest.raises(InvalidOption, match="what was acknowledged since then may be lost"):
        Replicas(made).elect("r1")
    with pytest.raises(InvalidOption, match="r0-0 is in sync and answers"):
        Replicas(made).elect("r1", unclean=True)
    lose(tmp_path / "a")
    before = Replicas(made).describe().epoch
    planned = Replicas(made).elect("r1", unclean=True, dry_run=True)
    assert Replicas(made).describe().epoch == before
    assert (planned.leader, planned.clean, planned.since_epoch) == ("r1-0", False, 3)
    there = set(objects(tmp_path / "c/incarnation-00000"))
    lost = sorted(there - set(objects(tmp_path / SECOND)))
    assert lost
    assert list(planned.missing) == lost
    assert (planned.missing_count, planned.unseen) == (len(lost), ("r0-0",))
    assert planned.missing_bytes > 0
    assert Replicas(made).elect("r1", unclean=True) == planned
    store = reopened(tmp_path)
    assert Replicas(store).describe().in_sync == ("r1-0",)
    assert values(store) == ["1", "2"]


def test_an_election_that_comes_too_late_changes_nothing(
    made: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    propose = Agreement.propose

    def be_second(agreement: Agreement, epoch: Epoch) -> bool:
        monkeypatch.setattr(Agreement, "propose", propose)
        Replicas(reopened(tmp_path)).remove("r1")
        return propose(agreement, epoch)

    monkeypatch.setattr(Agreement, "propose", be_second)
    with pytest.raises(NotEnoughReplicas, match="the set has changed since epoch 0"):
        Replicas(made).elect("r1")
    assert Replicas(made).describe().in_sync == ("r0-0",)


def test_topics_that_never_were_are_not_reassigned(made: txnlog.Store) -> None:
    """A mistyped name is not passed over."""
    Replicas(made).alter({"replication.factor": "1"})
    with pytest.raises(UnknownTopicOrPartition, match="'nope' does not exist"):
        Replicas(made).reassign(["nope"])


def test_the_epochs_as_they_went(made: txnlog.Store) -> None:
    Replicas(made).remove("r1")
    first, second = Replicas(made).history()
    assert (first.epoch, first.in_sync, first.why) == (0, ("r0-0", "r1-0"), "made")
    assert (second.in_sync, second.out) == (("r0-0",), ("r1",))
    assert second.why == "an operator takes r1 out"


# -- comparing -----------------------------------------------------------------------------------


def test_roots_that_are_alike(made: txnlog.Store) -> None:
    assert differences(made) == differences(made, with_contents=True) == []


@pytest.mark.condition(61)
@pytest.mark.parametrize("gone", ["a", "b"])
def test_a_data_file_that_a_root_lacks(made: txnlog.Store, tmp_path: Path, gone: str) -> None:
    """It is told, served from the other root, and given back, also to the leader."""
    name = data_file(tmp_path / FIRST)
    (tmp_path / gone / "incarnation-00000" / name).unlink()
    assert values(reopened(tmp_path)) == ["1", "2"]
    (found,) = differences(made)
    member = {"a": "r0-0", "b": "r1-0"}[gone]
    assert (found.name, found.kind, found.members) == (name, "missing", (member,))
    assert not found.is_repaired
    (repaired,) = differences(made, repair=True)
    assert repaired.is_repaired
    assert objects(tmp_path / FIRST) == objects(tmp_path / SECOND)
    assert differences(made, with_contents=True) == []


def test_what_is_damaged_is_not_copied(made: txnlog.Store, tmp_path: Path) -> None:
    name = data_file(tmp_path / FIRST)
    (tmp_path / FIRST / name).unlink()
    path = tmp_path / SECOND / name
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    (found,) = differences(made, repair=True)
    assert (found.kind, found.is_repaired) == ("missing", False)
    assert "no copy of it is sound" in found.detail
    assert not (tmp_path / FIRST / name).exists()


@pytest.mark.condition(61)
@pytest.mark.parametrize("damage", ["flip", "empty"])
@pytest.mark.parametrize("where", [FIRST, SECOND])
def test_a_damaged_data_file_is_put_right(
    made: txnlog.Store, tmp_path: Path, where: str, damage: str
) -> None:
    """Checksums and the log tell which of two is right, whoever leads."""
    name = data_file(tmp_path / FIRST)
    path = tmp_path / where / name
    right = path.read_bytes()
    path.write_bytes(b"" if damage == "empty" else right[:-1] + b"?")
    if damage == "flip":
        assert differences(made) == []  # its name and size are right
    (found,) = differences(made, with_contents=True)
    assert (found.name, found.kind, found.is_repaired) == (name, "damaged", False)
    assert found.members == ({FIRST: "r0-0", SECOND: "r1-0"}[where],)
    (repaired,) = differences(made, with_contents=True, repair=True)
    assert repaired.is_repaired
    assert path.read_bytes() == right


def test_a_copy_that_nobody_can_judge_any_more_replaces_no_other(
    made: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the topic's log cannot be read between the comparing and the repair."""
    path = tmp_path / SECOND / data_file(tmp_path / SECOND)
    path.write_bytes(b"damaged")
    judged = []
    judge = SoundCopies.__call__

    def judge_twice(sound: SoundCopies, storage: Storage, name: str) -> bool | None:
        judged.append(name)
        return judge(sound, storage, name) if len(judged) <= 2 else None

    monkeypatch.setattr(SoundCopies, "__call__", judge_twice)
    (found,) = differences(made, with_contents=True, repair=True)
    assert (found.kind, found.is_repaired) == ("damaged", False)
    assert path.read_bytes() == b"damaged"


def test_entries_are_given_to_followers_alone(made: txnlog.Store, tmp_path: Path) -> None:
    """An object that the leader lacks cannot be repaired: it may be being deleted."""
    LocalStorage(str(tmp_path / FIRST)).put_if_absent("f/leads", b"1")
    LocalStorage(str(tmp_path / SECOND)).put_if_absent("f/follows", b"2")
    extra, missing = differences(made, repair=True)
    assert (extra.name, extra.kind, extra.members) == ("f/follows", "extra", ("r1-0",))
    assert (missing.name, missing.kind, missing.is_repaired) == ("f/leads", "missing", True)
    assert (tmp_path / SECOND / "f/leads").read_bytes() == b"1"
    assert not (tmp_path / FIRST / "f/follows").exists()


def test_entries_that_differ_are_left(made: txnlog.Store, tmp_path: Path) -> None:
    LocalStorage(str(tmp_path / FIRST)).put_if_absent("f/x", b"1")
    LocalStorage(str(tmp_path / SECOND)).put_if_absent("f/x", b"2")
    assert differences(made) == []
    (found,) = differences(made, with_contents=True, repair=True)
    assert (found.kind, found.members, found.is_repaired) == ("undecided", ("r1-0", "r0-0"), False)
    assert "elect" in found.detail


def test_what_is_deleted_meanwhile_is_no_difference(
    made: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was there when the leader was listed; it is looked for again."""
    made.storage.put("f/x", b"1")
    add = verification.add_listing  # type: ignore[attr-defined]

    def delete_behind(*told: Any) -> None:
        add(*told)
        made.storage.delete(["f/x"])

    monkeypatch.setattr(verification, "add_listing", delete_behind)
    assert differences(made) == []


def test_several_objects_are_repaired_at_a_time(
    made: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each waits for another one here."""
    together, copy = threading.Barrier(2), verification.copy_between  # type: ignore[attr-defined]

    def meet(*told: Any) -> int:
        together.wait(10)
        done: int = copy(*told)
        return done

    monkeypatch.setattr(verification, "copy_between", meet)
    write(made, "3")
    for path in (tmp_path / SECOND / "topics/t/data").rglob("*-0.log"):
        path.unlink()
    assert [found.is_repaired for found in differences(made, repair=True)] == [True, True]


def test_a_disk_that_is_not_mounted_is_no_difference(made: txnlog.Store, tmp_path: Path) -> None:
    lose(tmp_path / "b")
    with pytest.raises(NotEnoughReplicas, match=r"r1-0 at .* cannot be compared"):
        differences(made)


def test_a_repair_that_cannot_read_blames_whom_it_reads(
    made: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the one that was to have the copy, which somebody would put out for it."""
    (tmp_path / SECOND / data_file(tmp_path / SECOND)).unlink()
    copy = verification.copy_between  # type: ignore[attr-defined]

    def fails(storage: LocalStorage, *_: object) -> bytes:
        raise StorageError(f"{storage.url} is slow")

    def copy_slowly(*told: Any) -> int:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LocalStorage, "get_range", fails)
            patch.setattr(LocalStorage, "get", fails)
            done: int = copy(*told)
            return done

    monkeypatch.setattr(verification, "copy_between", copy_slowly)
    with pytest.raises(NotEnoughReplicas, match=r"^r0-0 at .* cannot be compared"):
        differences(made, repair=True)


# -- old incarnations ----------------------------------------------------------------------------


def test_an_old_incarnation_is_forgotten(made: txnlog.Store, tmp_path: Path) -> None:
    Replicas(made).remove("r1")
    Replicas(made).add(str(tmp_path / "b"))
    assert [replica.old for replica in Replicas(made).describe().replicas] == [(), ("r1-0",)]
    for part in ("r0-0", "r1-1"):
        with pytest.raises(InvalidOption, match="is a member"):
            Replicas(made).forget(part)
    for unknown in ("r1-2", "r7-0", "nonsense"):
        with pytest.raises(InvalidOption):
            Replicas(made).forget(unknown)
    planned = Replicas(made).forget("r1-0", dry_run=True)
    assert planned.objects == len(objects(tmp_path / SECOND))
    assert Replicas(made).forget("r1-0") == planned
    assert not [path for path in (tmp_path / SECOND).rglob("*") if path.is_file()]
    assert values(made) == ["1", "2"]
    with pytest.raises(InvalidOption, match="nothing of r1-0"):
        Replicas(made).forget("r1-0")


def test_what_is_half_forgotten_is_never_elected(
    made: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An epoch lets go of it before the first object goes."""
    Replicas(made).remove("r1")

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(old_incarnations, "delete_incarnation", killed)
        with pytest.raises(KeyboardInterrupt):
            Replicas(made).forget("r1-0")
    lose(tmp_path / "a")
    with pytest.raises(InvalidOption, match="never in sync"):
        Replicas(made).elect("r1", unclean=True)


@pytest.mark.parametrize("within", [".", "topics"])
def test_what_is_half_forgotten_is_no_store(
    made: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, within: str
) -> None:
    """Its mark goes first."""
    Replicas(made).remove("r1")
    delete = LocalStorage.delete

    def killed(self: LocalStorage, names: Any) -> None:
        delete(self, names)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "delete", killed)
        with pytest.raises(KeyboardInterrupt):
            Replicas(made).forget("r1-0")
    folder = str(tmp_path / SECOND / within)
    for create in (False, True):
        with pytest.raises(NotAStore, match=r"what is left of.*replicas forget"):
            txnlog.open(folder, create=create)
    assert values(txnlog.open(str(tmp_path / SECOND), salvage=True)) == ["1", "2"]
    Replicas(made).forget("r1-0")
    assert not [path for path in (tmp_path / SECOND).rglob("*") if path.is_file()]


def test_nothing_is_deleted_in_a_root_of_another_store(made: txnlog.Store, tmp_path: Path) -> None:
    """As where disks were exchanged."""
    make_with(VirtualClock(seed=7), tmp_path / "other")
    Replicas(made).remove("r1")
    lose(tmp_path / "b")
    (tmp_path / "b").rmdir()
    (tmp_path / "other" / "b").rename(tmp_path / "b")
    before = objects(tmp_path / "b")
    with pytest.raises(StoreExists, match="of another store"):
        Replicas(made).forget("r1-0")
    assert objects(tmp_path / "b") == before


# -- returns -------------------------------------------------------------------------------------


def put_out(store: txnlog.Store, member: str) -> None:
    """As whoever finds that it fails does."""
    agreement = store.storage.agreement  # type: ignore[attr-defined]
    assert agreement.put_out(agreement.refresh(), member, "it fails")


def returns(store: txnlog.Store, *, dry_run: bool = False) -> list[str | None]:
    steps = store.maintain(dry_run=dry_run)
    assert not [step for step in steps if isinstance(step, MaintenanceFailure)]
    return [step.member for step in steps if isinstance(step, ReplicaReturn)]


def test_what_was_put_out_comes_back_if_a_setting_says_so(tmp_path: Path) -> None:
    """With the last of its old incarnations; never what an operator took out, or is not mounted."""
    store = make(tmp_path, **{"replica.auto.return": True})
    store.storage.put("x", b"1")
    put_out(store, "r1-0")
    assert returns(store, dry_run=True) == [None]
    assert Replicas(store).describe().out == ("r1",)
    bring_back = lose(tmp_path / "b")
    assert returns(store) == []
    assert returns(store, dry_run=True) == []
    bring_back()
    assert returns(store) == ["r1-1"]
    assert Replicas(store).describe().in_sync == ("r0-0", "r1-1")
    assert objects(tmp_path / "b/incarnation-00001")["x"] == b"1"
    put_out(store, "r1-1")
    assert returns(store) == ["r1-2"]
    assert Replicas(store).describe().replicas[1].old == ("r1-1",)
    Replicas(store).remove("r1")
    assert returns(store) == []
    Replicas(store).add(str(tmp_path / "b"))
    put_out(store, "r1-3")
    Replicas(store).remove("r1")  # it is out already, and is to stay so
    assert returns(store) == []


def test_what_returned_often_costs_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left of earlier incarnations that each look at the root would ask."""
    store = make(tmp_path, **{"replica.auto.return": True})
    store.storage.put("x", b"1")
    counted = Counter[str]()

    def count(kind: str) -> None:
        ask = getattr(LocalStorage, kind)

        def asks(disk: LocalStorage, *given: Any) -> Any:
            counted[kind] += 1
            return ask(disk, *given)

        monkeypatch.setattr(LocalStorage, kind, asks)

    for kind in ("get", "size", "list_names", "list_folders", "list_all"):
        count(kind)

    def cost_of(look: Callable[[Replicas], object]) -> Counter[str]:
        replicas = Replicas(reopened(tmp_path, "b"))
        counted.clear()
        look(replicas)
        return counted.copy()

    looks: list[Callable[[Replicas], object]] = [
        Replicas.describe,
        lambda replicas: replicas.add(str(tmp_path / "c"), dry_run=True),
        lambda replicas: replicas.alter({"min.insync.replicas": 1}, dry_run=True),
        lambda replicas: [*replicas.store.maintain(dry_run=True)],
    ]
    costs = []
    for number in range(1, 31):
        put_out(store, f"r1-{number - 1}")
        assert returns(store) == [f"r1-{number}"]
        if number in (3, 30):
            costs.append([cost_of(look) for look in looks])
    assert costs[0] == costs[1]
    there = sorted(path.name for path in (tmp_path / "b").glob("incarnation-*"))
    assert there == ["incarnation-00029", "incarnation-00030"]


def test_what_an_unclean_election_has_lost_is_not_forgotten(tmp_path: Path) -> None:
    """Only the old leader has writes acknowledged since: they stay, however often it returns."""
    store = make(tmp_path, **{"replica.auto.return": True})
    put_out(store, "r1-0")
    store.storage.put("x", b"1")
    bring_back = lose(tmp_path / "a")
    open_replicas(str(tmp_path / "b")).elect("r1", unclean=True)
    bring_back()
    store = reopened(tmp_path)
    assert returns(store) == ["r0-1"]
    put_out(store, "r0-1")
    assert returns(store) == ["r0-2"]
    assert Replicas(store).describe().replicas[0].old == ("r0-0", "r0-1")
    assert objects(tmp_path / FIRST)["x"] == b"1"


def test_half_a_copy_does_not_stay_in_place_of_a_whole_one(tmp_path: Path) -> None:
    store = make(tmp_path, **{"replica.auto.return": True})
    agreement = store.storage.agreement  # type: ignore[attr-defined]
    put_out(store, "r1-0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joining_roots, "_copy", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            Replicas(store).add(str(tmp_path / "b"))
    put_out(store, "r1-1")
    assert returns(store) == ["r1-2"]
    assert Replicas(store).describe().replicas[1].old == ("r1-0",)
    assert outdated(agreement.refresh(), ["r1-0", "r1-1"]) == ["r1-1"]


def test_a_disk_that_is_too_small_is_not_filled_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A return that fails deletes what it has copied, says so, and is tried later, and later."""
    store = make(tmp_path, **{"replica.auto.return": True})
    clock: Any = store.storage.agreement.clock  # type: ignore[attr-defined]
    store.topics.create("t", partitions=1)
    store.storage.put("x", b"1")
    put_out(store, "r1-0")
    put, is_full = LocalStorage.put_if_absent, True

    def full(storage: LocalStorage, name: str, data: bytes) -> bool:
        if is_full and name == "x" and storage.url.startswith(str(tmp_path / "b")):
            raise StorageError("no space left on device")
        return put(storage, name, data)

    monkeypatch.setattr(LocalStorage, "put_if_absent", full)

    def tries() -> int:
        """How many a round of maintenance makes."""
        before = Replicas(store).describe().epoch
        steps = list(store.maintain())
        told = [str(step) for step in steps if isinstance(step, MaintenanceFailure)]
        assert all("no space left" in one for one in told)
        assert not list((tmp_path / "b").glob("incarnation-0000[1-9]/**/*.json"))
        assert Replicas(store).describe().joining == ()
        assert Replicas(store).describe().epoch == before + 2 * len(told)
        return len(told)

    assert [tries(), tries()] == [1, 0]
    assert Replicas(store).describe().why.startswith("r1-1 gives up joining")
    assert any("failed tries to bring it back: 1)" in one.detail for one in store.examine())
    clock.time_ms += 11 * 60_000
    assert [tries(), tries()] == [1, 0]
    clock.time_ms += 11 * 60_000
    assert tries() == 0
    clock.time_ms += 11 * 60_000
    is_full = False
    assert returns(store) == ["r1-3"]
    assert store.storage.agreement.refresh().failed_joins == {}  # type: ignore[attr-defined]


def test_it_is_told_why_a_root_is_not_in_sync(made: txnlog.Store, tmp_path: Path) -> None:
    def detail() -> str | None:
        return Replicas(made).describe().replicas[1].detail

    assert detail() is None
    put_out(made, "r1-0")
    assert detail() == "by epoch 1: r1-0 fails: it fails"
    Replicas(made).alter({"replica.scrub.bytes": 1})
    assert str(detail()).startswith("by epoch 1: ")
    agreement = made.storage.agreement  # type: ignore[attr-defined]
    who = agreement.proposer("it joins")
    url = str(tmp_path / "b")
    storage = find_replicated(made.storage)
    assert storage is not None
    prepare_root(storage, url)
    agreement.propose_alone(joining(agreement.refresh(), "r1-1", url, who))
    assert f"`txnlog replicas add {url}` starts over" in str(detail())


def test_a_root_that_is_in_sync_after_all_is_not_deleted(
    made: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The put of its epoch was in doubt."""
    finish = joining_roots._finish

    def in_doubt(*told: Any) -> Epoch:
        finish(*told)
        raise StorageError("the response was lost")

    monkeypatch.setattr(joining_roots, "_finish", in_doubt)
    with pytest.raises(StorageError, match="response"):
        Replicas(made).add(str(tmp_path / "c"))
    assert Replicas(made).describe().in_sync == ("r0-0", "r1-0", "r2-0")
    assert objects(tmp_path / "c/incarnation-00000") == objects(tmp_path / FIRST)


def test_a_root_that_is_not_the_stores_own_any_more_stops_no_other_one(tmp_path: Path) -> None:
    store = make(tmp_path, **{"replica.auto.return": True})
    Replicas(store).add(str(tmp_path / "c"))
    put_out(store, "r1-0")
    put_out(store, "r2-0")
    mark = tmp_path / "b" / "replica.json"
    mark.write_bytes(envelope.encode(OwnerMark(str(tmp_path / "another"), "r1")))
    steps = list(store.maintain())
    assert [step.member for step in steps if isinstance(step, ReplicaReturn)] == ["r2-1"]
    (failure,) = (step for step in steps if isinstance(step, MaintenanceFailure))
    assert str(tmp_path / "b") in str(failure)


@pytest.mark.parametrize("moves", [False, True])
def test_a_root_whose_own_file_is_damaged(tmp_path: Path, *, moves: bool) -> None:
    """Its incarnations tell what it is; when it comes back the file is written anew."""
    store = make_written(tmp_path, "1")
    if moves:
        Replicas(store).move_controller(str(tmp_path / "moved"))
    own = tmp_path / "b" / root_names.REPLICA_FILE
    for number in (1, 2):
        own.write_bytes(own.read_bytes().replace(b"r1", b"r7"))
        assert values(reopened(tmp_path, "b")) == ["1"]
        Replicas(store).remove("r1")
        assert Replicas(store).add(str(tmp_path / "b")).member == f"r1-{number}"
        assert b"r1" in own.read_bytes()
        own.write_bytes(own.read_bytes().replace(b"r1", b"r7"))
        Replicas(store).forget(f"r1-{number - 1}")


def test_nothing_tells_what_a_damaged_root_is(tmp_path: Path) -> None:
    store = make_written(tmp_path, "1")
    Replicas(store).remove("r1")
    Replicas(store).forget("r1-0")
    own = tmp_path / "b" / root_names.REPLICA_FILE
    own.write_bytes(own.read_bytes().replace(b"r1", b"r7"))
    with pytest.raises(CorruptEntry, match="is damaged"):
        Replicas(store).add(str(tmp_path / "b"))


def test_nobody_comes_back_where_no_setting_says_so(tmp_path: Path) -> None:
    store = make(tmp_path)
    put_out(store, "r1-0")
    assert returns(store) == []


def test_who_joins_is_left_alone_unless_it_was_killed_over_it() -> None:
    made = first_epoch({"r0": "/a", "r1": "/b"}, {}, Proposer("x", 0, "made"))
    out = without(made, "r1-0", Proposer("x", 0, "test"))
    busy = joining(out, "r1-1", "/b", Proposer("x", 5_000, "test"))
    assert roots_to_return(out, lambda _: False, 5_001) == ["r1"]
    assert roots_to_return(busy, lambda _: False, 5_001) == []
    assert roots_to_return(busy, lambda member: member == "r1-1", 5_001) == ["r1"]


@pytest.mark.parametrize("off_days", [-3, 0, 3])
def test_who_joins_is_judged_by_its_roots_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, off_days: int
) -> None:
    """That of whoever looks may be days off, and so may have been that of whoever was killed."""
    day_s = 24 * 3600
    store = make(tmp_path, **{"replica.auto.return": True})
    store.storage.put("x", b"1")
    put_out(store, "r1-0")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(joining_roots, "_copy", killed)
        with pytest.raises(KeyboardInterrupt):
            Replicas(store).add(str(tmp_path / "b"))
    now_ms = int(time.time() * 1000) + off_days * day_s * 1000
    other = txnlog.open(str(tmp_path / "control"), clock=VirtualClock(now_ms, seed=77))
    assert returns(other) == []
    (mark,) = (tmp_path / "b/incarnation-00001" / root_names.MEMBER_MARKS).glob("r1-*")
    os.utime(mark, (time.time() - day_s - 60,) * 2)
    assert returns(other) == ["r1-2"]


def test_what_another_process_has_begun_meanwhile_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To bring in a root may take hours, and the next one is judged when that is over."""
    store = make_written(tmp_path, "1")
    Replicas(store).add(str(tmp_path / "c"))
    Replicas(store).alter({"replica.auto.return": True})
    put_out(store, "r1-0")
    put_out(store, "r2-0")

    def joins(*given: Any) -> Joined:
        monkeypatch.setattr(replica_return, "join", join)
        joined = join(*given)
        other = reopened(tmp_path).storage
        assert isinstance(other, ReplicatedStorage)
        _, url = prepare_root(other, str(tmp_path / "c"))
        epoch, who = other.agreement.refresh(), other.agreement.proposer("it joins")
        other.agreement.propose_alone(joining(epoch, "r2-1", url, who))
        return joined

    monkeypatch.setattr(replica_return, "join", joins)
    assert returns(store) == ["r1-1"]
    assert Replicas(store).describe().joining == ("r2-1",)


def test_whoever_copies_in_vain_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process has begun anew: what the first one has copied goes."""
    monkeypatch.setattr(joining_roots, "_AT_ONCE", 1)
    store = make_written(tmp_path, *map(str, range(20)))
    put_out(store, "r1-0")
    copies, begin = [], joining_roots._round

    def begins_anew(agreement: Agreement, calls: list[Any]) -> None:
        copies.append(len(calls))
        if len(copies) == 2:
            epoch = agreement.refresh()
            who = agreement.proposer("begun anew")
            assert agreement.propose(without(epoch, "r1-1", who))
        begin(agreement, calls)

    monkeypatch.setattr(joining_roots, "_round", begins_anew)
    with pytest.raises(NotEnoughReplicas, match="r1-1 is not joining any more"):
        Replicas(store).add(str(tmp_path / "b"))
    assert len(copies) == 2
    assert not (tmp_path / "b/incarnation-00001").exists()


def test_what_bringing_a_root_in_would_take(made: txnlog.Store, tmp_path: Path) -> None:
    planned = Replicas(made).add(str(tmp_path / "c"), dry_run=True)
    assert not (tmp_path / "c").exists()
    assert Replicas(made).add(str(tmp_path / "c")) == planned


# -- settings ------------------------------------------------------------------------------------


def test_settings_are_changed(made: txnlog.Store, tmp_path: Path) -> None:
    """By one epoch, that another process holds to at its next commit; a dry run changes nothing."""
    other = reopened(tmp_path)
    changes: dict[str, object] = {"min.insync.replicas": 2, "replica.auto.return": True}
    planned = Replicas(made).alter(changes, dry_run=True)
    assert Replicas(made).describe().epoch == 0
    assert Replicas(made).alter(changes) == planned == Replicas(other).describe().settings
    held = {one.key: one.value for one in planned if one.is_set}
    assert held == {"min.insync.replicas": "2", "replica.auto.return": "true"}
    assert (Replicas(made).describe().epoch, Replicas(made).describe().min_insync) == (1, 2)
    Replicas(made).alter(changes)
    assert Replicas(made).describe().epoch == 1, "nothing to change"
    Replicas(made).remove("r1")
    with pytest.raises(NotEnoughReplicas), other.producer(delivery_timeout_ms=0) as producer:
        producer.send("t", value=b"3")
    Replicas(made).alter({"min.insync.replicas": None})
    write(other, "4")
    assert values(made)[:2] == ["1", "2"]
    assert values(made)[-1] == "4"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"min.insync.replica": None}, "min.insync.replica is not a setting of replicas"),
        ({"min.insync.replicas": 3}, "but there are 2 roots"),
        ({"replica.lag.time.max.ms": "soon"}, "must be a number"),
        ({"replica.auto.return": "yes"}, "must be true or false"),
        ({"replica.preferred.leader": "r7"}, "must be one of first, r0, r1, not 'r7'"),
    ],
)
def test_settings_that_cannot_be(made: txnlog.Store, changes: Any, told: str) -> None:
    with pytest.raises((InvalidConfig, InvalidOption), match=told):
        Replicas(made).alter({"unclean.leader.election.enable": True, **changes})
    assert Replicas(made).describe().epoch == 0


# -- high watermarks -----------------------------------------------------------------------------


def test_high_watermarks(made: txnlog.Store, tmp_path: Path) -> None:
    """Each log's end at the leader and at all in sync; data files do not count."""
    with made.producer(transactional_id="p") as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send("t", value=b"3")
    marks = {mark.log: mark for mark in Replicas(made).watermarks()}
    assert set(marks) == {"topics/t/log", "transactions/p"}
    assert all(mark.high_watermark == mark.end_number > 0 for mark in marks.values())
    end = marks["topics/t/log"].end_number
    folder = tmp_path / SECOND / "topics/t/log"
    last = max(path.name.split(".")[0] for path in folder.iterdir())
    assert int(last) == end - 1
    for path in [*folder.iterdir()]:
        if path.name.startswith(last):
            path.unlink()
    mark = Replicas(made).watermarks()[0]
    assert (mark.end_number, mark.high_watermark, mark.behind) == (end, end - 1, ("r1-0",))
    lose(tmp_path / "b")
    mark = Replicas(made).watermarks()[0]
    assert (mark.end_number, mark.high_watermark, mark.behind) == (end, None, ("r1-0",))
    lose(tmp_path / "a")
    with pytest.raises(NotEnoughReplicas, match="the leader r0-0 fails"):
        Replicas(made).watermarks()


def test_what_killed_checks_have_left_is_deleted_after_a_day(tmp_path: Path) -> None:
    """At the roots in sync and the controller; what a check has put just now stays."""
    store = make_written(tmp_path, "x")
    places = [tmp_path / name for name in ("control", "a", "b")]
    old, young = ([place / ".probe" / age / "twice" for place in places] for age in ("old", "new"))
    for path in (*old, *young):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x")
    for path in old:
        os.utime(path, (time.time() - 90_000,) * 2)
    store.maintain(dry_run=True)
    assert all(path.exists() for path in old)
    done = [one for one in store.maintain() if isinstance(one, FileDeletion)]
    assert sorted(path for one in done for path in one.paths) == sorted(map(str, old))
    assert not any(path.exists() for path in old)
    assert all(path.exists() for path in young)
    assert values(store) == ["x"]
