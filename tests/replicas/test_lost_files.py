"""The leader loses any file of its logs, or is put back to what it was at any earlier moment."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import txnlog
from tests.support.cli.cli_command import cli
from tests.support.log.settling import settle_early
from tests.support.replication.replica_folders import (
    FIRST,
    SECOND,
    lose,
    make,
    make_written,
    objects,
    reopened,
    skip_probes,
    values,
    write,
)
from txnlog import names
from txnlog.errors import ObjectNotFound, ProducerFenced, TopicAlreadyExists, TxnlogError
from txnlog.log import manifests
from txnlog.log.chapters import ClosingMark
from txnlog.names import TopicPartition, is_unique
from txnlog.producer import Producer
from txnlog.replication import Replicas
from txnlog.replication.roots import root_join
from txnlog.replication.roots.replicated_storage import find_replicated
from txnlog.replication.roots.scrub import scrub
from txnlog.replication.sound_copies import SoundCopies
from txnlog.storage import envelope
from txnlog.testing import VirtualClock

pytestmark = pytest.mark.rule("R14")

BEGUN_MS = VirtualClock().now_ms()
WITH_CHECKPOINTS = pytest.mark.parametrize("early", [False, True], ids=["entries", "checkpoints"])


@pytest.fixture(autouse=True)
def unprobed(monkeypatch: pytest.MonkeyPatch, early: bool) -> None:
    skip_probes(monkeypatch)
    if early:
        settle_early(monkeypatch)
        monkeypatch.setattr(manifests, "KEPT_LISTS", 2)


def work(store: txnlog.Store) -> Iterator[None]:
    """Transactions of all outcomes, in two topics and a group, and plain records between them."""
    yield
    for topic in ("t", "u"):
        store.topics.create(topic, partitions=1)
        yield
    producer, other = (store.producer(transactional_id=name) for name in "xy")
    producer.init_transactions()
    other.init_transactions()
    other.begin_transaction()
    other.send("t", value=b"open")
    other.flush()
    yield
    for number in range(5):
        producer.begin_transaction()
        for topic in ("t", "u"):
            producer.send(topic, value=b"%d" % number)
        producer.send_offsets_to_transaction({TopicPartition("t", 0): number}, "g")
        producer.flush()
        if number % 3 == 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
        yield
    other.commit_transaction()
    yield
    for number in range(3):
        with store.producer() as plain:
            plain.send("t", value=b"plain-%d" % number)
        yield


def commit_with(producer: Producer, value: bytes) -> None:
    producer.begin_transaction()
    producer.send("t", value=value)
    producer.commit_transaction()


def commit_one(store: txnlog.Store) -> None:
    store.topics.create("t", partitions=1)
    producer = store.producer(transactional_id="x")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("t", value=b"0")
    producer.commit_transaction()


def shown(store: txnlog.Store) -> dict[str, object]:
    """All that a store shows."""
    found: dict[str, object] = {"topics": sorted(store.topics.list())}
    for topic in ("t", "u"):
        for level in ("read_committed", "read_uncommitted"):
            table = store.scan(topic, isolation_level=level).to_arrow()
            found[f"{topic} {level}"] = table["value"].to_pylist()
    found["offsets"] = [one.offset for one in store.groups.describe("g").offsets]
    return found


def check(folder: Path, expected: dict[str, object], where: object) -> None:
    """Everything is shown, and whoever writes goes on from there."""
    assert shown(reopened(folder)) == expected, where
    store = reopened(folder)
    producer = store.producer(transactional_id="x")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("t", value=b"later")
    producer.commit_transaction()
    for _ in range(6):  # a checkpoint, and a list
        with store.producer() as plain:
            plain.send("u", value=b"later")
    after = shown(store)
    later = [*expected["t read_committed"], b"later"]  # type: ignore[misc]
    assert (after["t read_committed"], after["offsets"]) == (later, expected["offsets"]), where
    of_u = [*expected["u read_committed"], *[b"later"] * 6]  # type: ignore[misc]
    assert shown(reopened(folder))["u read_committed"] == of_u, where
    assert len(Replicas(store).describe().in_sync) == 2, where


def numbered(folder: Path) -> list[Path]:
    """The entries, markers, checkpoints, states and lists of a root."""
    found = (str(path.relative_to(folder)) for path in sorted(folder.rglob("*")))
    return [folder / name for name in found if names.is_framed(name) and name[0] != "."]


@pytest.mark.few(1)
@WITH_CHECKPOINTS
@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.more)])
def test_any_file(tmp_path: Path, early: bool, step: int) -> None:
    """The other root has it: nothing acknowledged is taken for aborted, or for never written."""
    made, kept = tmp_path / "made", tmp_path / "kept"
    store = make(made)
    for _ in work(store):
        pass
    expected = shown(reopened(made))
    shutil.copytree(made, kept)
    lost = numbered(made / FIRST)
    assert {path.suffix for path in lost} >= {".json", ".commit", ".abort"}
    assert any(path.suffix == ".checkpoint" for path in lost) is early
    assert any(path.suffix == ".closed-1" for path in lost) is early
    for path in lost[::step]:
        if path.name == names.STORE_FILE:
            continue
        path.unlink()
        check(made, expected, path)
        shutil.rmtree(made)
        shutil.copytree(kept, made)


@pytest.mark.parametrize("early", [False])
@pytest.mark.usefixtures("early")
def test_a_state_whose_witness_is_left(tmp_path: Path) -> None:
    """The leader has a later name than the state that it lacks: it is no state."""
    store = make(tmp_path)
    commit_one(store)
    states = sorted((tmp_path / FIRST / "transactions/x").glob("*.json"))
    number = len(states) - 1
    assert store.logs.transactions.witness("x", number, store.logs.clock.now_ms()) is not None
    states[-1].unlink()
    assert store.storage.list_names("transactions/x")[-2] == states[-1].name


@pytest.mark.parametrize("early", [False])
@pytest.mark.usefixtures("early")
def test_what_the_leader_loses_while_a_root_joins_is_not_deleted_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After it was copied, and before the leader is listed for the last time."""
    store = make(tmp_path)
    for _ in work(store):
        pass
    expected = shown(store)
    logs = [tmp_path / FIRST / folder for folder in ("topics/t/log", "transactions/x")]
    lost = [max(log.glob("*.json")) for log in logs]
    named_now = root_join._named_now

    def lose_first(*told: Any) -> Any:
        for path in lost:
            path.unlink()
        return named_now(*told)

    monkeypatch.setattr(root_join, "_named_now", lose_first)
    Replicas(store).add(str(tmp_path / "c"))
    for path in lost:
        name = path.relative_to(tmp_path / FIRST)
        assert (tmp_path / "c/incarnation-00000" / name).exists()
    assert shown(reopened(tmp_path)) == expected


@pytest.mark.parametrize("early", [False])
@pytest.mark.usefixtures("early")
@pytest.mark.parametrize("how", ["lost", "damaged"])
def test_data_of_the_last_root_in_sync_is_read_where_one_has_left(tmp_path: Path, how: str) -> None:
    """A root that left has it whole; if its disk is away, nobody says that the file is lost."""
    store = make_written(tmp_path, "a", "b")
    Replicas(store).remove("r1")
    [data] = (tmp_path / FIRST).rglob("*.log")
    if how == "lost":
        data.unlink()
    else:
        data.write_bytes(bytes(data.stat().st_size))
    assert values(reopened(tmp_path)) == ["a", "b"]
    lose(tmp_path / "b")
    away = r"may be on a root that is out, and none of these answers: .*\(r1-0\)"
    expected = away if how == "lost" else "shorter than a message"
    with pytest.raises(TxnlogError, match=expected) as raised:
        values(reopened(tmp_path))
    assert raised.value.__cause__ is not raised.value
    examined = reopened(tmp_path).examine(with_probe=False)
    told = {one.state for one in examined if one.check == "data" and one.path}
    assert told == ({"unreadable"} if how == "lost" else set())


@pytest.mark.parametrize("early", [False])
@pytest.mark.usefixtures("early")
@pytest.mark.parametrize("at", [FIRST, SECOND])
@pytest.mark.parametrize("is_placed", [False, True])
def test_data_at_one_root_is_damage_if_the_log_places_it(
    tmp_path: Path, at: str, is_placed: bool
) -> None:
    """Else a writer that was killed has left it, who had put it where he took roots to be."""
    store = make_written(tmp_path, "a", "b")
    folder = tmp_path / at
    [data] = folder.rglob("*.log")
    if is_placed:
        data.unlink()
    else:
        data.with_name(f"{'0' * 32}-0.log").write_bytes(data.read_bytes())
    examined = [one for one in store.examine(with_probe=False) if one.check == "replicas"]
    (told,) = (one for one in examined if one.path)
    assert (told.state, told.rule) == (("damage", "R1") if is_placed else ("note", None))
    assert ("no entry of the log places it" in told.detail) is not is_placed
    described = Replicas(store).describe(with_lag=True)
    assert described.condition == ("degraded" if is_placed else "whole")
    [found] = Replicas(store).verify(repair=True)
    assert (found.kind, found.is_repaired) == (("missing" if is_placed else "extra"), is_placed)
    assert found.members == ("r0-0" if at == FIRST else "r1-0",)
    assert [one.kind for one in Replicas(store).verify()] == ([] if is_placed else ["extra"])
    assert cli("replicas", "verify", "--store", tmp_path / "control").code == 0


@pytest.mark.parametrize("early", [False])
@pytest.mark.usefixtures("early")
def test_what_was_placed_since_the_log_was_read_is_named(tmp_path: Path) -> None:
    store = make_written(tmp_path, "a", "b")
    sound, other = SoundCopies(store.logs), f"topics/t/data/0/{'0' * 32}-0.log"
    before = {*objects(tmp_path / SECOND)}
    assert sound.unnamed("t", [*filter(is_unique, before), other]) == [other]
    write(store, "c")
    added = [*filter(is_unique, {*objects(tmp_path / SECOND)} - before)]
    assert len(added) == 1
    assert sound.unnamed("t", [*added, other]) == [other]
    for root in (FIRST, SECOND):  # it cannot be read
        (tmp_path / root / "topics/t/log/00000000000000000001.json").write_bytes(b"")
    assert not SoundCopies(reopened(tmp_path).logs).unnamed("t", [other])


@pytest.mark.parametrize("early", [False])
@pytest.mark.usefixtures("early")
def test_what_is_left_of_a_dead_id_is_not_lost(tmp_path: Path) -> None:
    """Its removal was cut short at the other root, which has old states: the copy tells."""
    store = make(tmp_path)
    commit_one(store)
    folder = tmp_path / SECOND / "transactions/x"
    shutil.copytree(folder, tmp_path / "left")
    for days in (20, 40):
        for path in tmp_path.rglob("*.json"):
            os.utime(path, (BEGUN_MS // 1000, BEGUN_MS // 1000))
        clock = VirtualClock(BEGUN_MS + days * 86_400_000)
        [*txnlog.open(str(tmp_path / "control"), clock=clock).transactions.expire_ids()]
    assert not (tmp_path / FIRST / "transactions/x").exists()
    shutil.copytree(tmp_path / "left", folder, dirs_exist_ok=True)
    for _ in range(2):
        assert [*reopened(tmp_path).transactions.list()] == []
    reopened(tmp_path).producer(transactional_id="x").init_transactions()
    assert reopened(tmp_path).transactions.describe("x").producer_epoch >= 0
    assert len(Replicas(store).describe().in_sync) == 2


@pytest.mark.parametrize("early", [False], ids=["entries"])
@pytest.mark.parametrize("roots", [2, 3])
@pytest.mark.parametrize("by", ["the fenced instance", "a reader"])
def test_a_fence_whose_name_the_leader_gives_away(tmp_path: Path, roots: int, by: str) -> None:
    """Who was fenced puts the next state without a listing: it stays fenced, by what others have.

    The leader leaves the set, whoever notices it first.
    """
    store = make(tmp_path)
    if roots == 3:
        Replicas(store).add(str(tmp_path / "c"))
    store.topics.create("t", partitions=1)
    fenced, newer = (reopened(tmp_path).producer(transactional_id="x") for _ in range(2))
    fenced.init_transactions()
    newer.init_transactions()
    lost = max((tmp_path / FIRST / "transactions/x").glob("*.json"))
    before = lost.with_name(f"{int(lost.stem) - 1:020}.json")
    lost.unlink()
    if by == "a reader":
        lost.write_bytes(before.read_bytes())  # any other state will do
        reopened(tmp_path).transactions.describe("x")
    with pytest.raises(ProducerFenced):
        commit_with(fenced, b"fenced")
    commit_with(newer, b"newer")
    assert values(reopened(tmp_path)) == ["newer"]
    others = ("r1-0", "r2-0")[: roots - 1]
    assert Replicas(reopened(tmp_path)).describe().in_sync == others


@pytest.mark.few(1)
@WITH_CHECKPOINTS
@pytest.mark.usefixtures("early")
def test_any_folder(tmp_path: Path) -> None:
    """Nobody takes it for deleted, makes it anew, or puts out the root that has it."""
    made, kept = tmp_path / "made", tmp_path / "kept"
    for _ in work(make(made)):
        pass
    expected = shown(reopened(made))
    shutil.copytree(made, kept)
    folders = {path.parent for path in numbered(made / FIRST)} - {made / FIRST}
    for folder in sorted({*folders, *(one.parent for one in folders)} - {made / FIRST}):
        shutil.rmtree(folder)
        with pytest.raises(TopicAlreadyExists):
            reopened(made).topics.create("t")
        check(made, expected, folder)
        assert sorted(Replicas(reopened(made)).describe().in_sync) == ["r0-0", "r1-0"]
        shutil.rmtree(made)
        shutil.copytree(kept, made)


@pytest.mark.few(1)
@WITH_CHECKPOINTS
@pytest.mark.usefixtures("early")
@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.more)])
def test_any_earlier_state(tmp_path: Path, step: int) -> None:
    """Of a disk that was restored from a backup, without its root being taken out before."""
    made, kept = tmp_path / "made", tmp_path / "kept"
    for number, _ in enumerate(work(make(made))):
        shutil.copytree(made / "a", tmp_path / f"state-{number}")
    expected = shown(reopened(made))
    shutil.copytree(made, kept)
    for state in sorted(tmp_path.glob("state-*"))[::step]:
        shutil.rmtree(made / "a")
        shutil.copytree(state, made / "a")
        check(made, expected, state.name)
        shutil.rmtree(made)
        shutil.copytree(kept, made)


@pytest.mark.parametrize("early", [False])
@pytest.mark.usefixtures("early")
def test_a_lost_marker_is_reported_and_repaired(tmp_path: Path) -> None:
    store = make(tmp_path)
    for _ in work(store):
        pass
    name = "topics/t/log/00000000000000000002.commit"
    for repair in (False, True):
        (tmp_path / FIRST / name).unlink()  # who has read the logs has put it there again
        found = [*Replicas(reopened(tmp_path)).verify(repair=repair)]
        assert [(one.name, one.kind, one.members, one.is_repaired) for one in found] == [
            (name, "missing", ("r0-0",), repair)
        ]
    assert (tmp_path / FIRST / name).read_bytes() == (tmp_path / SECOND / name).read_bytes()


def ask(folder: Path, mark: str) -> None:
    reopened(folder).storage.size(mark)


def list_all(folder: Path, mark: str) -> None:
    reopened(folder).storage.list_names(mark.rpartition("/")[0])


def mend_it(folder: Path, mark: str) -> None:
    found = [*Replicas(reopened(folder)).verify(repair=True)]
    assert [(one.name, one.kind, one.is_repaired) for one in found] == [(mark, "missing", True)]


def add_a_root(folder: Path, mark: str) -> None:
    Replicas(reopened(folder)).add(str(folder / "c"))
    assert (folder / "c/incarnation-00000" / mark).exists()


@pytest.mark.few(1)
@pytest.mark.parametrize("early", [True])
@pytest.mark.parametrize("mend", [ask, list_all, mend_it, add_a_root])
def test_any_closing_mark(tmp_path: Path, mend: Callable[[Path, str], None]) -> None:
    """It tells a writer that slept that its entry's name had been freed."""
    made, kept = tmp_path / "made", tmp_path / "kept"
    for _ in work(make(made)):
        pass
    shutil.copytree(made, kept)
    first = made / FIRST
    marks = [str(path.relative_to(first)) for path in sorted(first.rglob("*.closed-*"))]
    assert {name.split("/")[0] for name in marks} == {names.TOPICS, names.GROUPS}
    for name in marks:
        (first / name).unlink()
        mend(made, name)
        assert (first / name).read_bytes() == (made / SECOND / name).read_bytes(), name
        assert [*Replicas(reopened(made)).verify(with_contents=True)] == []
        shutil.rmtree(made)
        shutil.copytree(kept, made)


@pytest.mark.parametrize("early", [True])
@pytest.mark.usefixtures("early")
def test_a_closing_mark_says_the_same_with_any_time(tmp_path: Path) -> None:
    """Where a root has another one nobody leaves, and nothing differs."""
    for _ in work(make(tmp_path)):
        pass
    expected = shown(reopened(tmp_path))
    for path in sorted((tmp_path / SECOND).rglob("*.closed-*")):
        path.write_bytes(envelope.encode(ClosingMark(BEGUN_MS + 1)))
    check(tmp_path, expected, "other times")
    assert [*Replicas(reopened(tmp_path)).verify(with_contents=True)] == []


@pytest.mark.parametrize("early", [True])
@pytest.mark.usefixtures("early")
def test_a_widened_mark_is_not_lost(tmp_path: Path) -> None:
    """Its deletion was cut short at the other root."""
    for _ in work(make(tmp_path)):
        pass
    log, narrow = "topics/t/log", names.closing_mark(0, 1)
    for root in (FIRST, SECOND):
        folder = tmp_path / root / log
        shutil.copy(folder / narrow, folder / names.closing_mark(0, 2))
    (tmp_path / FIRST / log / narrow).unlink()
    store = reopened(tmp_path)
    assert narrow not in store.storage.list_names(log)
    with pytest.raises(ObjectNotFound):
        store.storage.size(f"{log}/{narrow}")
    assert [one.kind for one in Replicas(store).verify()] == ["extra"]


def come_back(folder: Path) -> None:
    Replicas(reopened(folder)).add(str(folder / "b"))


def repair(folder: Path) -> None:
    [*Replicas(reopened(folder)).verify(repair=True)]


def compare(folder: Path) -> None:
    """A few objects at a time."""
    Replicas(reopened(folder)).alter({"replica.scrub.bytes": 1500})
    for _ in range(100):
        store = reopened(folder)
        note = Replicas(store).describe().scrub
        if note is not None and note.before is not None:
            return
        storage, copies = find_replicated(store.storage), SoundCopies(store.logs)
        assert storage is not None
        scrub(storage, copies, copies.needed)
    raise AssertionError("it never ends")


def has_one_writer(path: Path) -> bool:
    """All but those whose names are raced for, and notes, that nobody misses: one by one."""
    if path.name == names.STORE_FILE:
        return True
    parsers = names.parse_log_file, names.parse_closing_mark, names.parse_manifest_list
    return not (
        path.parent.name in ("members", "retired")
        or any(parse(path.name) is not None for parse in parsers)
    )


def files_of(folder: Path) -> list[Path]:
    """Of each kind without numbers the first and the last: data, manifests, the store's own."""
    kinds: dict[str, list[Path]] = {}
    for path in folder.rglob("[!.]*"):
        inside = not str(path.relative_to(folder)).startswith(".")
        if inside and path.is_file() and has_one_writer(path):
            kinds.setdefault(path.suffix, []).append(path)
    return sorted({one for some in kinds.values() for one in (min(some), max(some))})


@pytest.mark.few(1)
@pytest.mark.parametrize("early", [True])
@pytest.mark.parametrize("mend", [come_back, repair, compare])
@pytest.mark.parametrize("where", ["in sync", "out", "out then"])
def test_any_file_that_has_one_writer(
    tmp_path: Path, early: bool, where: str, mend: Callable[[Path], None]
) -> None:
    """Data, manifests and the store's own file: from a root in sync, or one that was."""
    made, kept = tmp_path / "made", tmp_path / "kept"
    store = make(made)
    for _ in work(store):
        pass
    store.maintenance.merge("t")
    for number in range(6):
        write(store, f"after the merge {number}")
    expected = shown(reopened(made))
    shutil.copytree(made, kept)
    lost = files_of(made / FIRST)
    assert {path.suffix for path in lost} == {".log", ".parquet", ".arrow", ".rewrites", ".json"}
    for path in lost:
        data = path.read_bytes()
        if where == "out":
            Replicas(reopened(made)).remove("r1")
        path.unlink()
        if where == "out then" or (where, mend) == ("in sync", come_back):
            Replicas(reopened(made)).remove("r1")
        mend(made)
        assert path.read_bytes() == data, path
        replicas = Replicas(reopened(made))
        assert [*replicas.verify(with_contents=True)] == [], path
        if mend is come_back:
            replicas.forget("r1-0")
            replicas.remove("r0")
            shutil.rmtree(made / "a")
            assert shown(reopened(made)) == expected, path
        shutil.rmtree(made)
        shutil.copytree(kept, made)


@pytest.mark.parametrize("early", [False])
@pytest.mark.usefixtures("early")
def test_a_file_that_was_placed_when_it_was_gone_is_not_missed(tmp_path: Path) -> None:
    """Its writer slept; then the append was aborted."""
    store = make(tmp_path)
    commit_one(store)
    before = {*tmp_path.rglob("*.log")}
    producer = store.producer(transactional_id="x")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("t", value=b"1")
    producer.flush()
    producer.abort_transaction()
    for path in {*tmp_path.rglob("*.log")} - before:
        path.unlink()
    assert [*Replicas(store).verify(with_contents=True, repair=True)] == []
    [*store.maintain()]
    scrubbed = Replicas(store).describe().scrub
    assert scrubbed is not None
    assert scrubbed.before is not None
    assert scrubbed.before.left == ()
    assert [one for one in store.examine(with_probe=False) if one.state == "damage"] == []


@pytest.mark.parametrize("early", [True])
@pytest.mark.parametrize("mend", [come_back, repair, compare])
def test_what_was_deleted_is_not_lost(
    tmp_path: Path, early: bool, mend: Callable[[Path], None]
) -> None:
    """A root that was out, and one whose deletion was cut short, have data that no log names."""
    store = make(tmp_path)
    store.topics.create("t", partitions=1, config={"file.delete.delay.ms": 0})
    for number in range(4):
        with store.producer() as producer:
            producer.send("t", value=b"%d" % number)
    data = tmp_path / FIRST / "topics/t/data/0"
    doomed, *_, last = sorted(data.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    Replicas(store).remove("r1")
    end = store.topics.describe("t").partitions[0].end_offset
    store.topics.delete_records({TopicPartition("t", 0): end - 1})
    for _ in range(3):
        store.logs.clock.sleep(100 * 86_400)
        [*store.maintain()]
    assert [*data.iterdir()] == [last]
    assert (tmp_path / SECOND / doomed.relative_to(tmp_path / FIRST)).exists()
    mend(tmp_path)
    assert [*data.iterdir()] == [last]
    if mend is not come_back:
        come_back(tmp_path)
    assert len([*(tmp_path / "b/incarnation-00001/topics/t/data/0").iterdir()]) == 1
