"""Calls that run ahead: in order, a few at a time, in bounded memory, and cleanly ended."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Generator, Iterator
from functools import partial

import pytest

from tests.support.runtime.forked_child import in_child
from txnlog.errors import StorageError
from txnlog.storage import threads
from txnlog.storage.base import PARALLEL_REQUESTS, Storage
from txnlog.store import attach
from txnlog.testing import VirtualClock


def _threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("txnlog-ahead")]


@pytest.fixture
def waiting(memory_storage: Storage, monkeypatch: pytest.MonkeyPatch) -> Iterator[Storage]:
    """A storage whose requests are taken for long ones. Afterwards all threads end."""
    monkeypatch.setattr(threads, "_WORTH_A_THREAD_S", -1.0)
    yield memory_storage
    for thread in _threads():
        thread.join(60)
    assert _threads() == []


class Gauge:
    """Makes calls that know how many of them run, and which have begun."""

    def __init__(self, together: int = 1) -> None:
        self.running = self.most = 0
        self.begun: list[int] = []
        self.lock = threading.Lock()
        self.barrier = threading.Barrier(together, timeout=60)

    def call(self, number: int) -> int:
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
            self.begun.append(number)
        try:
            if number < self.barrier.parties:
                self.barrier.wait()
            return number
        finally:
            with self.lock:
                self.running -= 1

    def calls(self, count: int, size_bytes: int = 1) -> Iterator[tuple[int, Callable[[], int]]]:
        return ((size_bytes, partial(self.call, number)) for number in range(count))


def test_calls_run_together_and_come_in_order(waiting: Storage) -> None:
    """The first four wait for each other, so that they must run at the same time."""
    gauge = Gauge(4)
    assert list(waiting.run_ahead(gauge.calls(200))) == list(range(200))
    assert 4 <= gauge.most <= PARALLEL_REQUESTS
    assert sorted(gauge.begun) == list(range(200))


def test_who_leaves_early_has_asked_for_little(waiting: Storage) -> None:
    """Four at first, and one more with each that is taken; then nothing begins any more."""
    gauge = Gauge()
    results = waiting.run_ahead(gauge.calls(1000))
    assert next(results) == 0
    assert next(results) == 1
    results.close()
    assert len(gauge.begun) <= 8
    assert list(results) == []


@pytest.mark.parametrize("of", ["requests", "work"])
def test_what_is_left_waits_for_no_thread(
    waiting: Storage, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    """The collector of garbage may end it where threads start, which others wait for."""
    let_go = threading.Event()
    calls: list[tuple[int, Callable[[], object]]] = [(1, lambda: 0), (1, let_go.wait)]
    results = (waiting.run_ahead if of == "requests" else threads.work_ahead)(calls * 50)
    assert next(results) == 0
    with monkeypatch.context() as patch:
        for method in ("start", "join"):
            patch.setattr(threading.Thread, method, lambda *_: pytest.fail("it waits"))
        patch.setattr(threads.THREADS, "_mutex", None)
        results.close()
    assert not let_go.is_set()
    let_go.set()


def test_a_scan_that_is_left_ends_where_threads_start(
    waiting: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of its layers: files, segments, batches."""
    store = attach(waiting, clock=VirtualClock(), create=True)
    store.topics.create("t", partitions=4)
    for number in range(8):
        with store.producer() as producer:
            producer.send("t", value=b"%d" % number, partition=number % 4)
    batches = iter(store.scan("t").to_batches())
    next(batches)
    with monkeypatch.context() as patch:
        for method in ("start", "join"):
            patch.setattr(threading.Thread, method, lambda *_: pytest.fail("it waits"))
        del batches
        gc.collect()


def test_bytes_in_flight_are_bounded(waiting: Storage) -> None:
    """No more begin than fit, but always one; what was taken does not count."""
    gauge = Gauge()
    results = waiting.run_ahead(gauge.calls(50, size_bytes=45), 100)
    for number, found in enumerate(results):
        assert found == number
        assert len(gauge.begun) <= number + 3
    huge = Gauge()
    assert list(waiting.run_ahead(huge.calls(5, size_bytes=1000), 100)) == list(range(5))
    assert huge.most == 1


def test_calls_for_which_no_thread_can_be_started_run_here(
    waiting: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The main thread has ended, and another one reads on: as at the exit."""
    monkeypatch.setattr("concurrent.futures.thread._shutdown", True)
    gauge = Gauge()
    assert list(waiting.run_ahead(gauge.calls(50))) == gauge.begun == list(range(50))
    with pytest.raises(StorageError, match="racing needs threads"):
        waiting.race(lambda _, racer: racer, 1)


def test_an_error_comes_in_its_turn_and_ends_it(waiting: Storage) -> None:
    """Earlier results are yielded; later calls that were begun are waited for and dropped."""

    def fail() -> int:
        raise StorageError("503")

    gauge = Gauge()
    calls = [*gauge.calls(3), (1, fail), *gauge.calls(100)]
    results = waiting.run_ahead(calls)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(StorageError, match="503"):
        next(results)
    assert gauge.running == 0
    assert list(results) == []


def test_an_error_of_the_iterable_is_raised(waiting: Storage) -> None:
    """Calls are made up while others run; what goes wrong there ends it too."""

    def broken() -> Iterator[tuple[int, Callable[[], int]]]:
        yield from Gauge().calls(2)
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        list(waiting.run_ahead(broken()))


def test_fast_calls_take_no_threads(
    memory_storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing waits each runs when it is asked for, in the thread that asks."""
    monkeypatch.setattr(threads, "_WORTH_A_THREAD_S", 60.0)
    here, seen = threading.get_ident(), []

    def note() -> None:
        seen.append(threading.get_ident())

    results = memory_storage.run_ahead((1, note) for _ in range(100))
    next(results)
    assert seen == [here]
    assert len(list(results)) == 99
    assert {*seen} == {here}


def test_waits_are_learnt_and_forgotten() -> None:
    """One long wait is none, two in turn are; some short ones undo it."""
    waits = threads.Waits()
    told = [waits.are_long]
    now_s = 0.0

    def clock() -> float:
        return now_s

    def take(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("time.perf_counter", clock)
        patched.setattr("time.thread_time", lambda: 0.0)
        waits.time(partial(take, 0.02))
        waits.time(partial(take, 0.0001))
        told.append(waits.are_long)
        waits.time(partial(take, 0.02))
        waits.time(partial(take, 0.02))
        told.append(waits.are_long)
        for _ in range(10):
            waits.time(partial(take, 0.0001))
        told.append(waits.are_long)
        patched.setattr("time.thread_time", clock)
        waits.time(partial(take, 0.5))  # it has worked, not waited
        waits.time(partial(take, 0.5))
        told.append(waits.are_long)
    assert told == [False, False, True, False, False]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_of_a_fork_goes_on_by_itself(waiting: Storage) -> None:
    """It has none of the threads, and waits for none; the parent goes on as well."""
    # Calls without locks: one that a thread holds at the fork would be held for ever in the child.
    results: Generator[int] = waiting.run_ahead((1, partial(int, number)) for number in range(60))
    assert [next(results) for _ in range(5)] == list(range(5))
    assert in_child(lambda: list(results)) == repr(list(range(5, 60)))
    assert list(results) == list(range(5, 60))


def test_work_is_shared_by_threads_and_comes_in_order() -> None:
    """Two wait for each other; no more are made ahead than there are processors, or than fit."""
    most = max(2, os.cpu_count() or 1)
    gauge = Gauge(2)
    results = threads.work_ahead(gauge.calls(40))
    assert next(results) == 0
    assert len(gauge.begun) <= most + 2
    assert list(results) == list(range(1, 40))
    assert 2 <= gauge.most <= most + 1
    gauge = Gauge()
    assert list(threads.work_ahead(gauge.calls(9, threads.MAX_WORK_BYTES))) == list(range(9))
    assert gauge.most == 1


def test_errors_of_work_come_in_their_turn() -> None:
    """Also those of whoever says what there is to do, which is asked for before it is its turn."""

    def fails() -> int:
        raise StorageError("of a call")

    def calls() -> Iterator[tuple[int, Callable[[], int]]]:
        yield from ((1, partial(int, number)) for number in range(2))
        raise StorageError("of the calls")

    found: list[int] = []
    with pytest.raises(StorageError, match="of the calls"):
        found += threads.work_ahead(calls())
    results = threads.work_ahead(calls())
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(StorageError, match="of a call"):
        list(threads.work_ahead([(1, fails), *calls_of(3)]))


def calls_of(count: int) -> list[tuple[int, Callable[[], int]]]:
    return [(1, partial(int, number)) for number in range(count)]


def test_work_within_work_waits_for_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of two threads waits for work that no third one can begin: it does it itself."""
    monkeypatch.setattr(threads, "MOST_THREADS", 2)
    monkeypatch.setattr(threads, "THREADS", threads.KeptThreads())
    inner = partial(lambda: list(threads.work_ahead(calls_of(3))))
    assert list(threads.work_ahead([(1, inner)] * 6)) == [[0, 1, 2]] * 6


def test_a_child_goes_on_with_work_by_itself() -> None:
    """It asks no thread: a lock of theirs that one held at the fork is held for ever there."""
    results = threads.work_ahead(calls_of(30))
    assert next(results) == 0

    def go_on() -> list[int]:
        with pytest.MonkeyPatch.context() as patch:
            patch.delattr(threads.Use, "ask")
            return list(results)

    assert in_child(go_on) == str([*range(1, 30)])
    assert list(results) == list(range(1, 30))
