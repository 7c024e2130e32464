"""Stores in folders, with data at some of the roots."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import txnlog
from tests.support.replication.replica_folders import lose, objects, reopened, values, write
from tests.support.replication.replica_world import Roots
from txnlog.errors import (
    InvalidConfig,
    InvalidOption,
    NotEnoughReplicas,
    SnapshotExpired,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from txnlog.names import parse_data_file
from txnlog.replication import Reassigned, Replicas, ScrubPass, open_replicas, root_names
from txnlog.replication import replicas as admin_of_replicas
from txnlog.replication.roots.election import take_out
from txnlog.replication.roots.epochs import (
    FACTOR,
    RACK,
)
from txnlog.replication.roots.reassignment import reassign
from txnlog.replication.roots.trim import TrimNote
from txnlog.storage import envelope
from txnlog.storage.adapters.local import LocalStorage
from txnlog.testing import VirtualClock

pytestmark = pytest.mark.usefixtures("unlogged")


@pytest.fixture
def store(tmp_path: Path) -> txnlog.Store:
    found = open_replicas(
        [str(tmp_path / "a"), str(tmp_path / "b"), str(tmp_path / "c")],
        controller=str(tmp_path / "control"),
        create=True,
        config={FACTOR: 2},
        clock=VirtualClock(),
    ).store
    found.topics.create("t", partitions=1)
    for number in range(4):
        write(found, str(number))
    return found


def copies(tmp_path: Path, store: txnlog.Store) -> Counter[str]:
    """At how many roots in sync each data file is."""
    found: Counter[str] = Counter()
    for member in Replicas(store).describe().in_sync:
        root, _, number = member.rpartition("-")
        folder = tmp_path / "abc"[int(root[1:])] / root_names.incarnation_folder(int(number))
        found.update(name for name in objects(folder) if parse_data_file(name))
    return found


@pytest.mark.condition(62)
@pytest.mark.parametrize("gone", ["a", "b", "c"])
def test_a_root_is_lost_and_comes_back(store: txnlog.Store, tmp_path: Path, gone: str) -> None:
    """Everything is read, writes go on; then each file is at two roots again."""
    assert set(copies(tmp_path, store).values()) == {2}
    bring_back = lose(tmp_path / gone)
    write(store, "4")
    assert values(store) == [*"01234"]
    described = Replicas(store).describe(with_lag=True)
    assert len(described.in_sync) == 2
    if described.under_replicated:
        assert described.under_replicated_bytes
    bring_back()
    Replicas(store).add(str(tmp_path / gone))
    Replicas(store).reassign()
    found = copies(tmp_path, store)
    assert set(found.values()) == {2}
    assert len(found) == 5
    assert values(reopened(tmp_path)) == [*"01234"]
    assert Replicas(store).describe(with_lag=True).under_replicated == 0
    assert Replicas(store).reassign() == []


def test_a_root_that_is_taken_out_leaves_enough_copies(store: txnlog.Store, tmp_path: Path) -> None:
    """Before it goes, what too few others have is copied; by force nothing is."""
    planned = Replicas(store).remove("r0", dry_run=True)
    assert Replicas(store).describe().in_sync == ("r0-0", "r1-0", "r2-0")
    done = Replicas(store).remove("r0")
    assert sum(one.copied for one in planned) == sum(one.copied for one in done) > 0
    assert set(copies(tmp_path, store).values()) == {2}
    Replicas(store).add(str(tmp_path / "a"), rack="x")
    assert {one.key: one.value for one in Replicas(store).alter({})}[f"{RACK}.r0"] == "x"
    Replicas(store).reassign()
    holds = "b" if any(map(parse_data_file, objects(tmp_path / "b/incarnation-00000"))) else "c"
    assert Replicas(store).remove("r1" if holds == "b" else "r2", force=True) == []
    assert 1 in copies(tmp_path, store).values()
    assert values(store) == [*"0123"]


def test_a_factor_of_a_topic_that_is_not_there(
    store: txnlog.Store, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be set before the topic is made; a misspelt name is said to be none."""
    logging.disable(logging.NOTSET)
    Replicas(store).alter({f"{FACTOR}.t": 1, f"{FACTOR}.orders": 1})
    told = [one.getMessage() for one in caplog.records if "no topic" in one.getMessage()]
    assert told == [
        "there is no topic 'orders' yet: replication.factor.orders applies once it is made"
    ]


@pytest.mark.few(1)
@pytest.mark.parametrize("is_damaged", [False, True])
def test_doctor_tells_of_a_note_that_was_left(
    store: txnlog.Store, tmp_path: Path, *, is_damaged: bool
) -> None:
    """By a process that was killed while it deleted: nothing else says why copies are missing."""

    def told() -> list[str]:
        return [found.detail for found in store.examine() if found.rule == "R11"]

    assert told() == []
    name = min(copies(tmp_path, store))
    note = envelope.encode(TrimNote((name,)))
    folder = tmp_path / "b" / root_names.incarnation_folder(0)
    note = note[:-4] if is_damaged else note
    LocalStorage(str(folder)).put(root_names.trim_note(f"{7:032x}"), note)
    (detail,) = told()
    which = "no copy at r1-0 counts" if is_damaged else "1 data files will not be put at r1-0 again"
    assert which in detail
    assert "`txnlog replicas remove r1`, then `add`" in detail
    Replicas(store).remove("r1")
    Replicas(store).add(str(tmp_path / "b"))
    assert told() == []


def test_what_is_put_while_a_root_is_taken_out(
    store: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was put at that root, too, after everything was copied."""

    def take_out_later(*told: Any, dry_run: bool = False, **how: Any) -> None:
        if not dry_run:
            write(reopened(tmp_path), "4")
        take_out(*told, dry_run=dry_run, **how)

    monkeypatch.setattr(admin_of_replicas, "take_out", take_out_later)
    Replicas(store).remove("r0")
    assert set(copies(tmp_path, store).values()) == {2}
    assert len(copies(tmp_path, store)) == 5


def test_a_disk_that_is_not_mounted_has_not_lost_data(store: txnlog.Store, tmp_path: Path) -> None:
    """Nothing is missing: it is told where it may be, and read when that is back."""
    Replicas(store).alter({FACTOR: 1})
    Replicas(store).reassign()
    found = {
        name: folder
        for folder in ("b", "c")
        for name in objects(tmp_path / folder / "incarnation-00000")
        if parse_data_file(name)
    }
    name, holder = found.popitem()
    bring_back = lose(tmp_path / holder)
    for reader in (store, reopened(tmp_path)):
        with pytest.raises(NotEnoughReplicas, match=f"may be on a root that is out.*{holder}"):
            reader.storage.get(name)
    bring_back()
    assert values(reopened(tmp_path)) == [*"0123"]


@pytest.mark.parametrize("at", [0, 1])
def test_a_damaged_copy_is_read_where_it_is_not(
    store: txnlog.Store, tmp_path: Path, at: int
) -> None:
    """Wherever of the two it is; and it is put right."""
    name = next(iter(copies(tmp_path, store)))
    folders = [tmp_path / root / "incarnation-00000" for root in "abc"]
    path = [folder / name for folder in folders if (folder / name).exists()][at]
    data = path.read_bytes()
    path.write_bytes(data[:-9] + bytes(byte ^ 255 for byte in data[-9:]))
    assert values(reopened(tmp_path)) == [*"0123"]
    (found,) = Replicas(store).verify(with_contents=True, repair=True)
    assert (found.kind, found.name, found.is_repaired) == ("damaged", name, True)
    assert path.read_bytes() == data
    assert set(copies(tmp_path, store).values()) == {2}


def test_a_topic_is_created_with_its_factor(tmp_path: Path, store: txnlog.Store) -> None:
    """All of its data is placed; what cannot be is created with nothing changed."""

    def factors() -> dict[str, str]:
        return {one.key: one.value for one in Replicas(store).alter({}) if FACTOR in one.key}

    before = factors()
    assert store.topics.create("u", replication_factor=1, dry_run=True).topic == "u"
    with pytest.raises(InvalidOption, match="is 4, but there are 3 roots"):
        store.topics.create("u", replication_factor=4)
    with pytest.raises(TopicAlreadyExists):
        store.topics.create("t", replication_factor=1)
    assert factors() == before
    store.topics.create("u", replication_factor=1)
    assert factors() == {**before, f"{FACTOR}.u": "1"}
    with store.producer() as producer:
        producer.send("u", value=b"1")
    roots = [tmp_path / root / "incarnation-00000/topics/u/data" for root in "abc"]
    assert sum(any(root.rglob("*.log")) for root in roots) == 1
    plain = txnlog.open(str(tmp_path / "plain"), create=True)
    with pytest.raises(InvalidOption, match="a store on one root"):
        plain.topics.create("u", replication_factor=2)
    assert plain.topics.list() == []


@pytest.mark.parametrize("again", [None, 1, 3])
def test_a_factor_goes_with_its_topic(store: txnlog.Store, again: int | None) -> None:
    """One that is made anew has its own; what is not deleted keeps what it has."""

    def factors() -> dict[str, str]:
        return {one.key: one.value for one in Replicas(store).alter({}) if FACTOR in one.key}

    before = factors()
    topic_id = store.topics.create("u", replication_factor=1).topic_id
    Replicas(store).alter({f"{FACTOR}.t": 1})
    kept = {**before, f"{FACTOR}.t": "1"}
    with pytest.raises(UnknownTopicOrPartition):
        store.topics.delete("u", topic_id="0" * len(topic_id))
    assert factors() == {**kept, f"{FACTOR}.u": "1"}
    store.topics.delete("u")
    assert factors() == kept
    with pytest.raises(UnknownTopicOrPartition):
        store.topics.delete("u")
    store.topics.create("u", replication_factor=again)
    assert factors() == ({**kept, f"{FACTOR}.u": str(again)} if again else kept)
    epoch = Replicas(store).describe().epoch
    store.topics.create("plain")
    store.topics.delete("plain")
    assert Replicas(store).describe().epoch == epoch


def test_the_factor_is_no_setting_of_a_topic(store: txnlog.Store) -> None:
    with pytest.raises(InvalidConfig, match=r"txnlog replicas config replication.factor.<topic>=2"):
        store.topics.create("u", config={"replication.factor": 2})
    Replicas(store).alter({f"{FACTOR}.u": 1})
    with pytest.raises(InvalidOption, match="every root has everything"):
        reassign(Roots(2).plain(VirtualClock()).agreement)


def test_a_store_with_placed_data_is_examined_and_cleaned(store: txnlog.Store) -> None:

    def found() -> list[str]:
        told = [one for one in store.examine(with_probe=False) if one.state != "ok"]
        return [one.detail.partition(" of ")[0] for one in told if "fewer roots" in one.detail]

    assert found() == []
    Replicas(store).alter({FACTOR: 3})
    assert found() == ["4 data files"]
    Replicas(store).reassign()
    assert found() == []
    Replicas(store).alter({FACTOR: 2})
    assert store.maintenance.merge("t")
    Replicas(store).reassign()
    assert values(store) == [*"0123"]
    assert not [one for one in store.examine(with_probe=False) if one.state == "damage"]


def test_what_only_a_root_has_that_is_out_is_told(store: txnlog.Store) -> None:
    """It can be read, and is lost with that root."""

    def found() -> list[str]:
        told = [one for one in store.examine(with_probe=False) if one.check == "data"]
        return [one.detail for one in told if one.state != "ok"]

    Replicas(store).alter({FACTOR: 1})
    Replicas(store).reassign()
    assert found() == []
    Replicas(store).remove("r1", force=True)
    Replicas(store).remove("r2", force=True)
    assert len(found()) == 1
    assert "no root in sync has shown" in found()[0]
    described = Replicas(store).describe(with_lag=True)
    assert described.only_out
    assert described.only_out_bytes
    assert described.under_replicated == 0
    Replicas(store).reassign()
    assert found() == []
    assert Replicas(store).describe(with_lag=True).only_out == 0


@pytest.mark.parametrize("by", ["reassigning", "repairing"])
def test_only_what_is_needed_counts_as_being_only_out(
    store: txnlog.Store, tmp_path: Path, by: str
) -> None:
    """A root is back, and has lost what it has still from before; what no log names may go."""
    kept = min(copies(tmp_path, store))
    at = [root for root in "abc" if (tmp_path / root / "incarnation-00000" / kept).exists()]
    first = next(root for root in at if root != "a")
    Replicas(store).remove(f"r{'abc'.index(first)}", force=True)
    old = tmp_path / first / "incarnation-00000"
    (old / kept).with_name(f"{'0' * 32}-0.log").write_bytes(b"left by an upload")
    Replicas(store).add(str(tmp_path / first))
    described = Replicas(store).describe(with_lag=True)
    assert (described.condition, described.only_out) == ("whole", 0)
    for root in at:
        newest = max((tmp_path / root).glob("incarnation-*"))
        (newest / kept).unlink()
    described = Replicas(store).describe(with_lag=True)
    assert (described.condition, described.only_out) == ("degraded", 1)
    assert described.only_out_bytes == (old / kept).stat().st_size
    if by == "reassigning":
        Replicas(store).reassign()
    else:
        assert [one.name for one in Replicas(store).verify(repair=True)] == [kept]
    assert copies(tmp_path, store)[kept] == 2
    described = Replicas(store).describe(with_lag=True)
    assert (described.condition, described.only_out) == ("whole", 0)


def test_doctor_lists_each_root_once(store: txnlog.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is at too few roots it sees in the listing that it compares by."""
    listed: Counter[str] = Counter()
    list_all = LocalStorage.list_all

    def counted(disk: LocalStorage, folder: str, *given: Any) -> Iterator[tuple[str, int]]:
        if folder in ("", "topics"):
            listed[disk.url] += 1
        return list_all(disk, folder, *given)

    monkeypatch.setattr(LocalStorage, "list_all", counted)
    list(store.examine(with_probe=False))
    # One goes through both folders.
    assert [count for url, count in listed.items() if "incarnation" in url] == [2, 2, 2]


def test_maintenance_moves_data_when_a_root_has_come_back(
    store: txnlog.Store, tmp_path: Path
) -> None:
    """Only then: it lists the roots whole."""
    Replicas(store).alter({"replica.auto.return": True, FACTOR: 1})
    assert not [one for one in store.maintain() if isinstance(one, Reassigned)]
    agreement = store.storage.agreement  # type: ignore[attr-defined]
    agreement.put_out(agreement.refresh(), "r1-0", "it fails")
    (moved,) = [one for one in store.maintain() if isinstance(one, Reassigned)]
    assert (moved.topic, moved.lacking) == ("t", 0)
    assert set(copies(tmp_path, store).values()) == {1}
    assert values(store) == [*"0123"]


@pytest.mark.parametrize("factor", [2, "all"])
def test_an_old_plan_is_old_though_a_root_is_out(
    store: txnlog.Store, tmp_path: Path, factor: int | str
) -> None:
    """The log tells it, where no root that answers has the file, and one that does not might."""
    Replicas(store).alter({FACTOR: factor})
    Replicas(store).reassign()
    store.topics.alter("t", config={"file.delete.delay.ms": 0})
    planned = store.scan("t")
    store.maintenance.merge("t")
    store.maintain("t")
    Replicas(store).remove("r2")
    lose(tmp_path / "c")
    with pytest.raises(SnapshotExpired, match="plan the read again"):
        planned.to_arrow()
    assert values(store) == [*"0123"]


def scrubbed(store: txnlog.Store) -> ScrubPass:
    """What a pass over everything has found."""
    [*store.maintain()]
    found = Replicas(store).describe().scrub
    assert found is not None
    assert found.before is not None
    return found.before


def test_maintenance_copies_what_a_root_has_lost(store: txnlog.Store, tmp_path: Path) -> None:
    """Data has two copies: another root has it still. What no log names is nobody's loss."""
    assert scrubbed(store).found == 0
    lost = next(tmp_path.glob("[abc]/incarnation-00000/topics/t/data/0/*"))
    lost.with_name(f"{'0' * 32}-0.log").write_bytes(b"left by an upload")
    before = copies(tmp_path, store)
    lost.unlink()
    found = scrubbed(store)
    assert (found.found, found.repaired, found.under_replicated) == (1, 1, 0)
    assert copies(tmp_path, store) == before
    measured = {one.name: one.value for one in store.metrics()}
    assert measured["txnlog_scrub_found"] == 1
    assert measured["txnlog_scrub_under_replicated"] == 0


@pytest.mark.parametrize("away", [False, True])
def test_maintenance_counts_what_is_at_too_few_roots(
    store: txnlog.Store, tmp_path: Path, *, away: bool
) -> None:
    """While a root is out its data is left to reassigning; what cannot be copied is counted."""
    Replicas(store).remove("r2", force=True)
    if not away:
        Replicas(store).add(str(tmp_path / "c"))
    kept = copies(tmp_path, store)
    few = sum(count < 2 for count in kept.values())
    assert bool(few) is away
    found = scrubbed(store)
    assert (found.found, found.under_replicated) == (0, few)
    assert {name: copies(tmp_path, store)[name] for name in kept} == kept
    measured = {one.name: one.value for one in store.metrics()}
    assert measured["txnlog_scrub_under_replicated"] == few
    Replicas(store).reassign()
    assert scrubbed(store).under_replicated == 0


def test_what_all_have_lost_is_told(store: txnlog.Store, tmp_path: Path) -> None:
    copies = sorted(tmp_path.glob("[abc]/incarnation-00000/topics/t/data/0/*.log"))
    name = copies[0].name
    for one in copies:
        if one.name == name:
            one.unlink()
    path = f"topics/t/data/0/{name}"
    told = [(one.name, one.kind, one.detail) for one in Replicas(store).verify()]
    assert told == [(path, "missing", "no root in sync has it; restore it from a backup")]
    found = scrubbed(store)
    assert (found.found, found.left) == (1, (path,))


def test_what_all_in_sync_have_lost_is_given_back(store: txnlog.Store, tmp_path: Path) -> None:
    """By a root that is out."""
    Replicas(store).remove("r2", force=True)
    kept = sorted((tmp_path / "c/incarnation-00000/topics/t/data/0").glob("*.log"))
    for root in "ab":
        file = tmp_path / root / "incarnation-00000/topics/t/data/0" / kept[0].name
        file.unlink(missing_ok=True)
    (told,) = Replicas(store).verify(repair=True)
    assert told.kind == "missing"
    assert copies(tmp_path, store)[told.name] == 2
    assert [*Replicas(store).verify()] == []
    assert store.scan("t").to_arrow().num_rows == 4
