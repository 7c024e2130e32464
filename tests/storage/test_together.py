"""Calls that are made together, in threads that are kept: rounds within rounds, forks, exits."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait

import pytest

from tests.support.runtime.forked_child import in_child
from txnlog.storage import threads
from txnlog.storage.threads import KeptThreads, run_together, submit

NAME = "txnlog-requests"


def kept() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith(NAME)}


def meet(count: int) -> list[Callable[[], int]]:
    """Calls that end only when so many of them run at the same time."""
    barrier = threading.Barrier(count, timeout=30)
    return [barrier.wait] * count


def test_threads_are_kept_from_one_round_to_the_next() -> None:
    """The second round of as many calls starts none."""
    assert sorted(run_together(meet(5), 16)) == [0, 1, 2, 3, 4]
    before = kept()
    assert len(before) >= 4
    for _ in range(20):
        run_together(meet(5), 16)
    assert kept() == before


def test_threads_that_come_late_work_for_the_next_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often a round is over before its threads begin, there are no more than for one."""
    monkeypatch.setattr("txnlog.storage.threads.THREADS", KeptThreads())
    before = kept()
    for _ in range(300):
        run_together([list[int]] * 8, 7)
    assert len(kept() - before) <= 8


def test_no_more_threads_work_for_a_round_than_may() -> None:
    """The one that waits works too."""
    seen: set[int] = set()
    calls: list[Callable[[], None]] = [lambda: seen.add(threading.get_ident())] * 200
    run_together(calls, 3)
    assert len(seen) <= 4


def test_rounds_within_rounds_do_not_wait_for_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four threads for all, and eight calls that make eight calls each that make eight each."""
    monkeypatch.setattr(threads, "MOST_THREADS", 4)
    monkeypatch.setattr(threads, "THREADS", KeptThreads())

    def nested(depth: int) -> int:
        return 1 if depth == 0 else sum(run_together([lambda: nested(depth - 1)] * 8, 16))

    assert nested(3) == 8**3


def test_a_call_that_comes_late_begins_while_the_caller_waits() -> None:
    """A thread that adds calls may wait for their results, though all threads were idle before."""
    began = [threading.Event() for _ in range(40)]

    def calls() -> Iterator[Callable[[], None]]:
        yield began[0].set
        for event in began[1:]:
            yield event.set
            assert event.wait(30)  # done by another thread: this one is here

    run_together(calls(), 2)
    assert began[0].is_set()


def test_every_error_of_a_thread_is_raised_here() -> None:
    """Also one that is not an Exception; the first in order, when all calls have ended."""

    class Stopped(BaseException):
        pass

    done: list[int] = []
    barrier = threading.Barrier(3, timeout=30)

    def call(number: int) -> None:
        barrier.wait()
        done.append(number)
        if number:
            raise ValueError(number) if number == 2 else Stopped(number)

    with pytest.raises((Stopped, ValueError)) as raised:
        run_together([lambda n=n: call(n) for n in range(3)], 16)  # type: ignore[misc]
    assert raised.value.args == (1,)
    assert sorted(done) == [0, 1, 2]


def test_a_fork_copies_no_idle_thread() -> None:
    """They are ended before it; parent and child go on, each with threads of its own."""
    run_together(meet(5), 16)
    idle = kept()
    assert idle

    def work() -> tuple[int, list[int]]:
        return len(kept()), sorted(run_together(meet(5), 16))

    child = os.fork()
    if child == 0:
        os._exit(threading.active_count() != 1)
    assert os.waitpid(child, 0)[1] == 0
    assert not idle & kept(), "the parent's idle threads have ended"
    assert in_child(work) == "(0, [0, 1, 2, 3, 4])"
    assert sorted(run_together(meet(5), 16)) == [0, 1, 2, 3, 4]


def test_a_fork_amid_a_round_leaves_both_working() -> None:
    """The round of the parent ends as ever; the child has no thread of it, and makes its own."""
    told: list[str] = []
    forked = threading.Event()

    def fork() -> None:
        told.append(in_child(lambda: sorted(run_together(meet(3), 16))))
        forked.set()

    assert run_together([fork, lambda: forked.wait(30)], 16) == [None, True]
    assert told == ["[0, 1, 2]"]


def test_importing_starts_no_thread_and_idle_ones_delay_no_exit() -> None:
    """A round that is asked for while the interpreter exits is done without threads."""
    program = """
import atexit, threading
import txnlog
from txnlog.storage.threads import run_together
assert threading.active_count() == 1
atexit.register(lambda: print(run_together([lambda: "still", lambda: "here"], 16)))
barrier = threading.Barrier(4, timeout=30)
run_together([barrier.wait] * 4, 16)
assert threading.active_count() >= 4
"""
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("['still', 'here']\n", "", 0)


def test_calls_for_which_no_thread_can_be_started_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The main thread has ended, and another one goes on: as at the exit. Each runs once."""
    done: list[int] = []
    with ThreadPoolExecutor(1) as pool:
        over = threading.Event()
        before = submit(pool, over.wait)
        monkeypatch.setattr("concurrent.futures.thread._shutdown", True)

        def waited(some: Iterable[Future[bool]]) -> None:
            over.set()
            wait(some)

        monkeypatch.setattr(threads, "wait", waited)
        after = submit(pool, lambda: done.append(1), [before])
        assert before.done(), "in the order in which they were given"
        assert done == [1]
        assert after.result() is None
        with pytest.raises(ZeroDivisionError):
            submit(pool, lambda: 1 // 0).result()
        monkeypatch.undo()
        monkeypatch.setattr(threading.Thread, "start", _refuse)
        with ThreadPoolExecutor(1) as other:  # takes the call, and cannot start its thread
            assert submit(other, lambda: done.append(2)).result() is None
            monkeypatch.undo()
            assert submit(other, lambda: done.append(3)).result() is None
    assert done == [1, 2, 3]


def _refuse(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")
