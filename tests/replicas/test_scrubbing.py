"""Maintenance compares a share of all objects at each run: damage is found that nobody meets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import txnlog
from tests.support.replication.replica_folders import (
    FIRST,
    SECOND,
    break_sector,
    make_written,
    objects,
    reopened,
    values,
)
from txnlog.errors import InvalidConfig
from txnlog.replication import Replicas, Scrubbed, ScrubNote, root_names
from txnlog.replication.roots import scrub, verification
from txnlog.results import MaintenanceFailure
from txnlog.storage.adapters.local import LocalStorage

RUNS = 200


@pytest.fixture
def store(tmp_path: Path) -> txnlog.Store:
    """A few logs and segments, of which each run compares one object; nothing else is to do."""
    store = make_written(tmp_path, "1")
    for topic in "uv":
        store.topics.create(topic, partitions=1)
        with store.producer() as producer:
            producer.send(topic, value=b"1")
    Replicas(store).alter({"replica.scrub.bytes": "none"})
    [*store.maintain()]
    Replicas(store).alter({"replica.scrub.bytes": 1})
    return store


def note(store: txnlog.Store) -> ScrubNote:
    found = Replicas(store).describe().scrub
    assert found is not None
    return found


def flip(path: Path) -> bytes:
    right = path.read_bytes()
    path.write_bytes(right[:-3] + bytes([right[-3] ^ 1]) + right[-2:])
    return right


def until_over(folder: Path) -> list[Scrubbed]:
    """Maintain, each time in another process, until all objects were compared once more."""
    found = []
    ended = None
    for _ in range(RUNS):
        one = reopened(folder)
        steps = [*one.maintain()]
        failures = [step for step in steps if isinstance(step, MaintenanceFailure)]
        assert "replicas" not in [failure.part for failure in failures]
        found += [step for step in steps if isinstance(step, Scrubbed)]
        before = note(one).before
        if before is not None and note(one).number > 1:
            assert ended in (None, before.ended_ms)
            return found
    raise AssertionError("it never ends")


def test_each_run_goes_on_where_the_one_before_ended(store: txnlog.Store, tmp_path: Path) -> None:
    """Whoever it was; and in the end every object was compared once, then it begins again."""
    seen = []
    total = len(objects(tmp_path / FIRST))
    for _ in range(total):
        [*reopened(tmp_path).maintain()]
        seen.append(note(store).after)
    assert seen == sorted(set(seen))
    assert {*objects(tmp_path / FIRST)} >= {*seen}
    assert note(store).running.objects == total
    assert note(store).before is None
    [*reopened(tmp_path).maintain()]  # nothing is behind it
    told = note(store)
    assert (told.after, told.running.objects) == ("", 0)
    assert told.before is not None
    assert (told.before.objects, told.before.found) == (total, 0)
    assert told.before.size_bytes == 2 * sum(map(len, objects(tmp_path / FIRST).values()))
    for root in (FIRST, SECOND):
        kept = LocalStorage(str(tmp_path / root)).list_names(root_names.SCRUB_NOTES)
        assert len(kept) == 1


@pytest.mark.condition(61)
@pytest.mark.parametrize(
    ("where", "what"),
    [
        (FIRST, "topics/t/data/*/*.log"),
        (SECOND, "topics/t/data/*/*.log"),
        (SECOND, "topics/t/log/*1.json"),
    ],
)
def test_what_is_damaged_is_found_and_repaired(
    store: txnlog.Store, tmp_path: Path, where: str, what: str
) -> None:
    path = min((tmp_path / where).glob(what))
    right = flip(path)
    found = until_over(tmp_path)
    assert path.read_bytes() == right
    assert [(one.found, one.repaired) for one in found] == [(1, 1)]
    before = note(store).before
    assert before is not None
    assert (before.found, before.repaired, before.left) == (1, 1, ())
    samples = {metric.name: metric.value for metric in reopened(tmp_path).metrics()}
    assert (samples["txnlog_scrub_found"], samples["txnlog_scrub_left"]) == (1, 0)


@pytest.mark.few(1)
@pytest.mark.condition(61)
@pytest.mark.parametrize("where", [FIRST, SECOND])
@pytest.mark.parametrize("what", ["topics/t/data/*/*.log", "topics/t/log/*1.json"])
def test_what_cannot_be_read_is_damaged_and_nothing_else_waits(
    store: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, what: str
) -> None:
    """Only what has one writer is replaced: of the rest it may be what somebody has won with."""
    path = min((tmp_path / where).glob(what))
    behind = min((tmp_path / where).glob("topics/v/data/*/*.log"))
    right = flip(behind)
    is_data = path.suffix == ".log"
    break_sector(monkeypatch, path)
    found = until_over(tmp_path)
    assert sum(one.found for one in found) == 2
    before = note(store).before
    assert before is not None
    left = () if is_data else (str(path.relative_to(tmp_path / where)),)
    assert (before.found, before.left) == (2, left)
    assert behind.read_bytes() == right
    assert Replicas(store).describe().in_sync == ("r0-0", "r1-0")
    told = [*Replicas(reopened(tmp_path)).verify(with_contents=True, repair=True)]
    root = "r0" if where == FIRST else "r1"
    assert all(f"`txnlog replicas remove` {root}, and" in one.detail for one in told)
    assert len(told) == len(left)


def test_what_is_deleted_when_it_could_not_be_read_ends_nothing(
    store: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = min((tmp_path / SECOND).glob("topics/t/data/*/*.log"))
    break_sector(monkeypatch, path)
    check = verification._check_unread

    def then_delete(*told: Any) -> None:
        check(*told)
        path.unlink(missing_ok=True)

    monkeypatch.setattr(verification, "_check_unread", then_delete)
    assert [(one.found, one.repaired) for one in until_over(tmp_path)] == [(1, 1)]
    assert path.read_bytes() == objects(tmp_path / FIRST)[str(path.relative_to(tmp_path / SECOND))]


def test_nobody_else_has_what_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_written(tmp_path, "1")
    Replicas(store).remove("r1")
    name = "topics/t/log/00000000000000000001.json"
    break_sector(monkeypatch, tmp_path / FIRST / name)
    told = next(iter(Replicas(store).verify(with_contents=True, repair=True)))
    assert (told.name, told.kind, told.members, told.is_repaired) == (
        *(name, "damaged", ("r0-0",)),
        False,
    )
    assert "txnlog replicas remove" not in told.detail


def test_what_cannot_be_repaired_is_named(store: txnlog.Store, tmp_path: Path) -> None:
    """It is damaged at both roots, in different places."""
    name = min(one for one in objects(tmp_path / FIRST) if one.endswith(".log"))
    for number, root in enumerate((FIRST, SECOND)):
        data = bytearray((tmp_path / root / name).read_bytes())
        data[len(data) // 2 + number] ^= 1
        (tmp_path / root / name).write_bytes(data)
    until_over(tmp_path)
    before = note(store).before
    assert before is not None
    assert (before.found, before.repaired, before.left) == (1, 0, (name,))
    samples = {metric.name: metric.value for metric in reopened(tmp_path).metrics()}
    assert samples["txnlog_scrub_left"] == 1


@pytest.mark.parametrize("elsewhere", [True, False], ids=["whole elsewhere", "nowhere whole"])
def test_what_one_root_alone_has_is_checked_too(
    store: txnlog.Store, tmp_path: Path, *, elsewhere: bool
) -> None:
    """It is taken from where it was before, of a root that was taken out, if it is whole there."""
    Replicas(store).remove("r1")
    path = min((tmp_path / FIRST).glob("topics/t/data/*/*.log"))
    name = path.relative_to(tmp_path / FIRST).as_posix()
    data = path.read_bytes()
    flip(path)
    if not elsewhere:
        flip(tmp_path / SECOND / name)
    until_over(tmp_path)
    before = note(store).before
    assert before is not None
    assert before.left == (() if elsewhere else (name,))
    assert (path.read_bytes() == data) is elsewhere


def test_a_root_that_is_out_may_have_what_the_only_one_has_damaged(
    store: txnlog.Store, tmp_path: Path
) -> None:
    Replicas(store).remove("r1")
    (segment, *_) = sorted((tmp_path / FIRST / "topics/t/data").rglob("*.log"))
    flip(segment)
    (told,) = Replicas(store).verify(with_contents=True)
    assert told.detail.endswith("r1-0 has it whole, from when it was put out")
    (told,) = Replicas(store).verify(with_contents=True, repair=True)
    assert told.is_repaired
    assert [*Replicas(store).verify(with_contents=True)] == []


def test_a_run_that_is_killed_is_done_again(
    store: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has compared its share, and not said so."""

    class Killed(BaseException):
        pass

    def stop(*_: object) -> None:
        raise Killed

    [*store.maintain()]
    told = note(store)
    monkeypatch.setattr(scrub, "_put", stop)
    with pytest.raises(Killed):
        [*store.maintain()]
    monkeypatch.undo()
    assert note(store) == told
    [*store.maintain()]
    assert note(store).running.objects == told.running.objects + 1


def test_a_note_that_is_damaged_or_lost_is_another_roots(
    store: txnlog.Store, tmp_path: Path
) -> None:
    [*store.maintain()]
    [*store.maintain()]
    told = note(store)
    first, second = (
        next((tmp_path / root / root_names.SCRUB_NOTES).glob("*.json")) for root in (FIRST, SECOND)
    )
    flip(first)
    assert note(store) == told
    first.unlink()
    assert note(store) == told
    flip(second)
    assert Replicas(store).describe().scrub is None
    [*store.maintain()]  # from the beginning
    assert note(store).running.objects == 1
    assert values(store) == ["1"]


def test_it_can_be_switched_off(store: txnlog.Store) -> None:
    Replicas(store).alter({"replica.scrub.bytes": "none"})
    [*store.maintain()]
    assert Replicas(store).describe().scrub is None
    with pytest.raises(InvalidConfig, match="at least 1, or 'none', not '0'"):
        Replicas(store).alter({"replica.scrub.bytes": 0})
    assert not [one for one in store.metrics() if one.name.startswith("txnlog_scrub")]


def test_a_dry_run_compares_nothing(store: txnlog.Store) -> None:
    [*store.maintain(dry_run=True)]
    assert Replicas(store).describe().scrub is None
