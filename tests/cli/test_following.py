"""A follower that goes on for ever: when it sweeps, and how long it bears a storage that fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import txnlog
from tests.support.steps import append
from txnlog import replication
from txnlog.cli.commands.records import ends
from txnlog.cli.input.places import parse_target
from txnlog.cli.input.record_options import Isolation
from txnlog.cli.output import watch
from txnlog.consumer import Consumer
from txnlog.errors import CorruptEntry, StorageError
from txnlog.replication.commands import standbys


class Time:
    """A clock that goes on while somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    clock = Time()
    monkeypatch.setattr(standbys, "time", clock)
    monkeypatch.setattr(watch, "time", clock)
    return clock


class Follower:
    """Notes what is asked of it; ``fails`` tells with what a round does."""

    def __init__(self, clock: Time, fails: Callable[[float], Exception | None]) -> None:
        self._clock = clock
        self._fails = fails
        self.rounds = 0
        self.swept_s: list[float] = []

    def follow(self) -> int:
        error = self._fails(self._clock.now_s)
        if error is not None:
            raise error
        self.rounds += 1
        return self.rounds

    def sweep(self) -> None:
        self.swept_s.append(self._clock.now_s)


def test_it_sweeps_at_first_and_every_hour(clock: Time) -> None:
    """A process that is restarted often still sweeps."""
    follower: Any = Follower(clock, lambda _: None)
    rounds = standbys._follow(follower, 600.0)
    assert [next(rounds) for _ in range(16)] == [*range(1, 17)]
    assert follower.swept_s == [0.0, 4200.0, 8400.0]


def test_a_storage_that_fails_for_less_than_a_minute_is_borne(
    clock: Time, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is said once each time; one that works in between is patience again."""
    fails = {10.0, 20.0, 60.0, 70.0, 110.0}
    follower: Any = Follower(clock, lambda at: StorageError("slow") if at in fails else None)
    rounds = standbys._follow(follower, 10.0)
    assert [next(rounds) for _ in range(8)] == [*range(1, 9)]
    assert capsys.readouterr().err.count("slow; trying again") == 3


def test_a_storage_that_fails_for_longer_ends_it(clock: Time) -> None:
    follower: Any = Follower(clock, lambda at: StorageError("gone") if at >= 10 else None)
    rounds = standbys._follow(follower, 10.0)
    next(rounds)
    with pytest.raises(StorageError, match="gone"):
        next(rounds)
    assert clock.now_s == 80.0


def test_what_will_not_end_is_not_borne(clock: Time) -> None:
    class Final(StorageError):
        retriable = False

    for error in (Final("never"), CorruptEntry("damaged")):
        follower: Any = Follower(clock, {0.0: error}.get)
        with pytest.raises(type(error)):
            next(standbys._follow(follower, 10.0))
    assert clock.now_s == 0.0


def test_once_is_one_round_and_a_sweep(clock: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    follower = Follower(clock, lambda _: None)
    shown: list[list[int]] = []
    session: Any = SimpleNamespace(
        open_to_read=lambda: None,
        storage_options_of=lambda _: {},
        output=SimpleNamespace(rows=lambda _, rows: shown.append([*rows])),
    )
    monkeypatch.setattr(replication, "Follower", lambda *_, **__: follower, raising=False)
    standbys.follow_store(session, "/standby", once=True)
    assert shown == [[1]]
    assert follower.swept_s == [0.0]


@pytest.mark.parametrize("target", ["t", "t:0"])
@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("moment", ["before", "subscribed", "positioned"])
def test_a_topic_that_is_made_anew_while_tail_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, partitions: int, target: str
) -> None:
    """All of it is shown: what was shown before was another topic's."""
    store = txnlog.open(str(tmp_path), create=True)
    other = txnlog.open(str(tmp_path))
    store.topics.create("t", partitions=2)
    append(store, b"old", b"old", partition=0)
    append(store, b"old", partition=1)

    def make_anew() -> None:
        other.topics.delete("t")
        other.topics.create("t", partitions=partitions)
        for number in range(3):
            append(other, b"%d" % number, partition=0)

    snapshot = store.snapshot("t")
    if moment == "before":
        make_anew()
    for name in ("subscribe", "assign"):
        begin = getattr(Consumer, name)

        def begin_late(self: Consumer, *given: Any, begin: Any = begin) -> None:
            begin(self, *given)
            if moment == "subscribed":
                make_anew()

        monkeypatch.setattr(Consumer, name, begin_late)
    where = parse_target(target)
    consumer = ends._start_consumer(store, where, snapshot, Isolation.COMMITTED, "raise", None)
    if moment == "positioned":
        make_anew()
    shown = [record.value for _ in range(5) for record in consumer.poll()]
    assert shown == [b"0", b"1", b"2"]
