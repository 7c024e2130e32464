"""A root that comes back is sent what it lacks; what it has whole it keeps."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import txnlog
from tests.support.replication.replica_folders import FIRST, SECOND, make, objects, reopened
from txnlog.errors import NotEnoughReplicas
from txnlog.replication import Replicas
from txnlog.replication.roots.agreement import Agreement
from txnlog.replication.roots.epochs import Epoch
from txnlog.storage.adapters.inside import Inside
from txnlog.storage.adapters.local import LocalStorage, _LocalUpload

pytestmark = pytest.mark.rule("R17")

THIRD = "b/incarnation-00001"
FLUSHES, BYTES_EACH = 6, 40_000
LITTLE = 20_000
"""Logs, indexes and what was missed; all data together has twelve times that."""


def fill(store: txnlog.Store, first: int, count: int = FLUSHES) -> None:
    """Send so many records of random bytes, each in a segment of its own."""
    with store.producer() as producer:
        for number in range(first, first + count):
            chance = store.logs.clock.token().encode()
            value = f"{number:09d}".encode() + (chance * (BYTES_EACH // len(chance)))
            producer.send_batch("t", pa.record_batch({"value": pa.array([value], pa.binary())}))
            producer.flush()


def numbers(store: txnlog.Store) -> list[int]:
    return [int(bytes(one)[:9]) for one in store.scan("t").to_arrow()["value"].to_pylist()]


@pytest.fixture(params=["kafka", "parquet"])
def away(tmp_path: Path, request: pytest.FixtureRequest) -> txnlog.Store:
    """A store whose second root was taken out after six records, and has missed one."""
    store = make(tmp_path)
    config = {"compression.type": "none", "record.format": request.param}
    store.topics.create("t", partitions=1, config=config)
    fill(store, 0)
    Replicas(store).remove("r1")
    fill(store, FLUSHES, 1)
    return store


def come_back(folder: Path) -> tuple[int, int]:
    """Bytes that were copied, and that were kept."""
    joined = Replicas(reopened(folder)).add(str(folder / "b"))
    return joined.bytes, joined.kept_bytes


def segments(folder: Path) -> dict[str, Path]:
    found = folder.glob("topics/t/data/*/*")
    return {one.name: one for one in found if one.suffix in (".log", ".parquet")}


def room(folder: Path) -> int:
    """The bytes on disk below a folder, of each file once."""
    found = {path.stat().st_ino: path.stat().st_size for path in folder.rglob("*")}
    return sum(found.values())


def check_whole(folder: Path, last: int = FLUSHES) -> None:
    """Both roots have the same, and the second alone can be read."""
    there = objects(folder / THIRD)
    assert {name: there[name] for name in objects(folder / FIRST)} == objects(folder / FIRST)
    Replicas(reopened(folder)).remove("r0")
    assert numbers(reopened(folder)) == [*range(last + 1)]


def test_only_the_difference_travels(away: txnlog.Store, tmp_path: Path) -> None:
    before, had = room(tmp_path / "b"), objects(tmp_path / SECOND)
    copied, kept = come_back(tmp_path)
    assert BYTES_EACH < copied < BYTES_EACH + LITTLE
    assert kept >= FLUSHES * BYTES_EACH
    assert room(tmp_path / "b") - before < BYTES_EACH + 2 * LITTLE
    assert objects(tmp_path / SECOND) == had
    check_whole(tmp_path)


@pytest.mark.parametrize("times", [1, 10])
def test_the_cost_follows_the_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """Of ten times as much data as little is asked of the leader, and as little is written."""
    store = make(tmp_path)
    config = {"compression.type": "none", "record.format": "kafka"}
    store.topics.create("t", partitions=1, config=config)
    fill(store, 0, FLUSHES * times)
    Replicas(store).remove("r1")
    fill(store, FLUSHES * times, 1)
    read: list[tuple[str, int]] = []
    written: list[int] = []
    get_range, write = LocalStorage.get_range, _LocalUpload.write

    def counted_read(self: LocalStorage, name: str, start: int, stop: int) -> bytes:
        data = get_range(self, name, start, stop)
        if "/a/" in f"{self.url}/" and "/data/" in name and name.endswith(".log"):
            read.append((name, len(data)))
        return data

    def counted_write(self: _LocalUpload, data: bytes) -> int:
        written.append(len(data))
        return write(self, data)

    monkeypatch.setattr(LocalStorage, "get_range", counted_read)
    monkeypatch.setattr(_LocalUpload, "write", counted_write)
    come_back(tmp_path)
    assert len({name for name, _ in read}) == 1  # what was missed
    assert BYTES_EACH <= sum(size for _, size in read) < 3 * BYTES_EACH  # judged, then copied
    assert sum(written) <= 2 * BYTES_EACH


@pytest.mark.condition(61)
def test_what_a_disk_has_damaged_is_not_kept(away: txnlog.Store, tmp_path: Path) -> None:
    """Any bit of it: the others' is copied, and what is damaged stays where it was."""
    name, path = sorted(segments(tmp_path / SECOND).items())[2]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    copied, kept = come_back(tmp_path)
    assert 2 * BYTES_EACH < copied < 2 * BYTES_EACH + LITTLE
    assert kept >= (FLUSHES - 1) * BYTES_EACH
    assert path.read_bytes() == data
    assert segments(tmp_path / THIRD)[name].stat().st_ino != path.stat().st_ino
    check_whole(tmp_path)


def test_a_name_alone_keeps_nothing(away: txnlog.Store, tmp_path: Path) -> None:
    """Under the name of a segment lies another one, whole in itself."""
    (_, first), (_, second) = sorted(segments(tmp_path / SECOND).items())[:2]
    first.write_bytes(second.read_bytes())
    copied, _ = come_back(tmp_path)
    assert copied > 2 * BYTES_EACH
    check_whole(tmp_path)


def test_what_was_decided_in_a_race_is_the_leaders(away: txnlog.Store, tmp_path: Path) -> None:
    """Who was out may have another entry of the number that was given to the one it has missed."""
    entries = sorted((tmp_path / FIRST / "topics/t/log").glob("*.json"))
    other = tmp_path / SECOND / "topics/t/log" / entries[-1].name
    assert not other.exists()
    other.write_bytes(entries[-2].read_bytes())  # as it was written, and never acknowledged
    come_back(tmp_path)
    assert other.read_bytes() == entries[-2].read_bytes()
    check_whole(tmp_path)


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM, errno.EMLINK])
def test_where_a_file_gets_no_second_name_it_is_copied(
    away: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    link = Inside.link

    def refuse(self: Inside, source: str, target: str, below: Inside | None = None) -> None:
        if below is not None:
            raise OSError(number, "no")
        link(self, source, target)

    monkeypatch.setattr(Inside, "link", refuse)
    had = objects(tmp_path / SECOND)
    copied, kept = come_back(tmp_path)
    assert kept == 0
    assert copied > FLUSHES * BYTES_EACH
    assert objects(tmp_path / SECOND) == had
    check_whole(tmp_path)


@pytest.mark.few(6)
@pytest.mark.parametrize("step", range(FLUSHES + 1))
def test_killed_at_any_step_nothing_is_lost(
    away: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Before or after a name was given; the next attempt keeps what the killed one had, too."""
    had = objects(tmp_path / SECOND)

    class Killed(BaseException):
        pass

    killed_at(monkeypatch, step, Killed)
    with pytest.raises(Killed):
        come_back(tmp_path)
    monkeypatch.undo()
    assert objects(tmp_path / SECOND) == had
    assert Replicas(reopened(tmp_path)).describe().in_sync == ("r0-0",)
    joined = Replicas(reopened(tmp_path)).add(str(tmp_path / "b"))
    assert joined.member == "r1-2"
    assert joined.kept_bytes >= FLUSHES * BYTES_EACH
    assert objects(tmp_path / SECOND) == had
    Replicas(reopened(tmp_path)).remove("r0")
    assert numbers(reopened(tmp_path)) == [*range(FLUSHES + 1)]


def killed_at(patch: pytest.MonkeyPatch, step: int, kind: type[BaseException]) -> None:
    take_over, asked = LocalStorage.take_over, iter(range(1000))

    def take(self: LocalStorage, name: str, source: LocalStorage) -> bool:
        number = next(asked)
        if number == step:
            raise kind
        done = take_over(self, name, source)
        if number == step - 1 and step == FLUSHES:
            raise kind
        return done

    patch.setattr(LocalStorage, "take_over", take)


def test_what_an_attempt_has_copied_is_not_copied_again(
    away: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was killed when it had everything, and was about to be in sync."""

    class Killed(BaseException):
        pass

    def stop(*_: object) -> None:
        raise Killed

    monkeypatch.setattr("txnlog.replication.roots.root_join._finish", stop)
    with pytest.raises(Killed):
        come_back(tmp_path)
    monkeypatch.undo()
    copied, kept = come_back(tmp_path)
    assert copied < LITTLE
    assert kept > (FLUSHES + 1) * BYTES_EACH


def test_who_gives_up_leaves_what_there_was(
    away: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It deletes its names, and the files keep the ones that they had."""
    had = objects(tmp_path / SECOND)

    def fail(*_: object) -> Epoch:
        raise NotEnoughReplicas("the set has changed")

    monkeypatch.setattr("txnlog.replication.roots.root_join._finish", fail)
    with pytest.raises(NotEnoughReplicas):
        come_back(tmp_path)
    monkeypatch.undo()
    assert objects(tmp_path / THIRD) == {}
    assert objects(tmp_path / SECOND) == had


LATE: dict[str, Callable[[LocalStorage, str], object]] = {
    "puts an entry": lambda old, _: old.put_if_absent(
        f"topics/t/log/{FLUSHES + 1:020d}.json", b"never acknowledged"
    ),
    "replaces": lambda old, name: old.replace(name, b"other bytes"),
    "deletes": lambda old, name: old.delete([name]),
}


@pytest.mark.condition(59)
@pytest.mark.parametrize("what", LATE)
def test_a_late_writer_reaches_the_earlier_incarnation_alone(
    away: txnlog.Store, tmp_path: Path, what: str
) -> None:
    """By the names it knows, whatever it does there."""
    old = LocalStorage(str(tmp_path / SECOND))
    name = next(name for name, _ in old.list_all("topics/t/data"))
    come_back(tmp_path)
    before = objects(tmp_path / THIRD)
    LATE[what](old, name)
    assert objects(tmp_path / THIRD) == before
    check_whole(tmp_path)


def test_a_late_upload_ends_in_the_earlier_incarnation(away: txnlog.Store, tmp_path: Path) -> None:
    """Its file is open since before the root was out."""
    upload = LocalStorage(str(tmp_path / SECOND)).upload("topics/t/data/0/late.log")
    upload.write(b"one part, ")
    come_back(tmp_path)
    before = objects(tmp_path / THIRD)
    upload.write(b"and another")
    upload.close()
    assert objects(tmp_path / THIRD) == before
    assert objects(tmp_path / SECOND)["topics/t/data/0/late.log"] == b"one part, and another"


def test_a_reader_of_the_earlier_incarnation_goes_on(away: txnlog.Store, tmp_path: Path) -> None:
    salvaged = txnlog.open(str(tmp_path / SECOND), salvage=True)
    come_back(tmp_path)
    assert numbers(salvaged) == [*range(FLUSHES)]


def test_forgetting_the_earlier_incarnation_takes_nothing_away(
    away: txnlog.Store, tmp_path: Path
) -> None:
    come_back(tmp_path)
    Replicas(reopened(tmp_path)).forget("r1-0")
    assert objects(tmp_path / SECOND) == {}
    check_whole(tmp_path)


def test_a_full_disk_comes_back_without_room_for_a_second_copy(
    away: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is room for what was missed, and logs."""
    left = BYTES_EACH + 2 * LITTLE
    write, temporary = _LocalUpload.write, LocalStorage._write_temporary

    def take(size: int) -> None:
        nonlocal left
        left -= size
        if left < 0:
            raise OSError(errno.ENOSPC, "no room")

    def write_some(self: _LocalUpload, data: bytes) -> int:
        if "/b/" in f"{self._storage.url}/":
            take(len(data))
        return write(self, data)

    def write_whole(self: LocalStorage, name: str, data: bytes) -> None:
        if "/b/" in f"{self.url}/":
            take(len(data))
        temporary(self, name, data)

    monkeypatch.setattr(_LocalUpload, "write", write_some)
    monkeypatch.setattr(LocalStorage, "_write_temporary", write_whole)
    come_back(tmp_path)
    monkeypatch.undo()
    check_whole(tmp_path)


def test_what_it_takes_can_be_told_before(away: txnlog.Store, tmp_path: Path) -> None:
    planned = Replicas(reopened(tmp_path)).add(str(tmp_path / "b"), dry_run=True)
    joined = Replicas(reopened(tmp_path)).add(str(tmp_path / "b"))
    assert joined == planned


def test_a_new_root_is_asked_for_nothing_that_it_cannot_have(
    away: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    check_mark = Agreement.check_mark

    def noted(self: Agreement, epoch: Epoch, member: str, **how: float) -> None:
        asked.append(member)
        check_mark(self, epoch, member, **how)

    monkeypatch.setattr(Agreement, "check_mark", noted)
    joined = Replicas(reopened(tmp_path)).add(str(tmp_path / "c"))
    assert joined.kept_objects == 0
    assert {one for one in asked if one.startswith("r2")} <= {"r2-0"}
