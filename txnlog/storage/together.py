"""Calls made together, in threads that are reused from round to round.

Starting a thread takes longer than most requests to a disk. So there is one pool for the whole
process: started with the first round, grown when rounds find no idle thread, and empty in a forked
child. Knows nothing of what the calls do.

Ctrl-C may come while calls are waited for. Conditions, events and futures wait in Python: an
interrupt amid their steps leaves them as "release unlocked lock", or locked for ever. So what is
waited for here is a lock that is held while a call runs: taking it is one step, which can be
repeated.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar, cast

T = TypeVar("T")

MOST_THREADS: Final = 256
"""For all concurrent rounds. One that gets no thread runs its calls in its own."""


@dataclass(eq=False)
class Use:
    """A round's use of the threads."""

    executor: ThreadPoolExecutor


@dataclass(slots=True)
class _Pool:
    """The threads, and who uses them just now: a use that was interrupted is collected."""

    executor: ThreadPoolExecutor | None = None
    uses: weakref.WeakSet[Use] = field(default_factory=weakref.WeakSet)


class KeptThreads:
    """The pool of a process. Idle threads are ended before a fork, so that it copies none."""

    def __init__(self) -> None:
        self._mutex = threading.RLock()
        self._pool = _Pool()
        os.register_at_fork(
            before=self._before_fork,
            after_in_parent=self._after_fork_here,
            after_in_child=self._after_fork,
        )

    def begin(self) -> Use:
        """The threads, for a round of calls, until it ends: see :meth:`end`."""
        with self._mutex:
            pool = self._pool
            if pool.executor is None:
                pool.executor = ThreadPoolExecutor(MOST_THREADS, "txnlog-requests")
            use = Use(pool.executor)
            pool.uses.add(use)
            return use

    def end(self, use: Use) -> None:
        """None of the round's calls runs any more. May be repeated."""
        with self._mutex:
            self._pool.uses.discard(use)

    def _before_fork(self) -> None:
        self._mutex.acquire()  # until the fork is over: no round begins meanwhile
        if not self._pool.uses:
            pool, self._pool = self._pool, _Pool()
            if pool.executor is not None:
                pool.executor.shutdown()

    def _after_fork_here(self) -> None:
        self._mutex.release()

    def _after_fork(self) -> None:
        self._mutex = threading.RLock()
        self._pool = _Pool()


THREADS: Final = KeptThreads()


def submit(
    pool: ThreadPoolExecutor, call: Callable[[], T], after: Iterable[Future[Any]] = ()
) -> Future[T]:
    """Run a call in a pool's thread; at the interpreter's exit, when none can be started, in this.

    So it is for other threads once the main thread has ended. Here it waits for calls ``after``
    which it comes, as it does in a pool of one thread.
    """
    future: Future[T] = Future()
    turn = threading.Lock()

    def run() -> None:
        if not turn.acquire(blocking=False):
            return  # a pool that could not start a thread may have kept it, and run it later
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised to who waits
            future.set_exception(error)

    try:
        pool.submit(run)
    except RuntimeError:
        wait(after)
        run()
    return future


class Begun(Generic[T]):
    """A call that a thread may run; one who waits runs it instead, if none has begun it yet."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._mutex = threading.Lock()
        self._is_wanted = True
        self._has_begun = False
        self._running = threading.Lock()
        self._running.acquire()
        self._result: T | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """For a thread: run the call, unless it is not wanted any more."""
        with self._mutex:
            if not self._is_wanted:
                return
            self._has_begun = True
        try:
            self._result = self._call()
        except BaseException as error:  # noqa: BLE001 - raised to who waits
            self._error = error
        finally:
            self._running.release()

    def unwant(self) -> None:
        """Let no thread begin it that has not just done so. Takes no lock."""
        self._is_wanted = False

    def drop(self) -> bool:
        """Let no thread begin it, or wait for its end; whether one has run it. May be repeated."""
        with self._mutex:
            self._is_wanted = False
        if self._has_begun:
            with self._running:
                pass
        return self._has_begun

    def result(self) -> T:
        """What the call returns, or raises."""
        if not self.drop():
            return self._call()
        if self._error is not None:
            raise self._error
        return cast("T", self._result)


class _Round(Generic[T]):
    """Waiting, running and finished calls of several threads."""

    def __init__(self, most_threads: int) -> None:
        self._use = THREADS.begin()
        self._most_threads = most_threads
        self._mutex = threading.Lock()
        self._waiting: deque[tuple[int, Callable[[], T]]] = deque()
        self._working = 0
        """Threads that look for calls, or have yet to begin."""
        self._running = 0
        self._busy = threading.Lock()
        """Held while other threads run calls."""
        self._results: dict[int, T] = {}
        self._errors: dict[int, BaseException] = {}
        self._count = 0

    def add(self, call: Callable[[], T]) -> None:
        """Add a call. All but the first may begin at once; that one is for the adding thread."""
        with self._mutex:
            self._waiting.append((self._count, call))
            self._count += 1
            if self._count == 1 or self._working == self._most_threads:
                return
            self._working += 1
        try:
            self._use.executor.submit(self._work)
        except RuntimeError:  # at the interpreter's exit no thread can be started any more
            with self._mutex:
                self._working -= 1

    def _work(self) -> None:
        while True:
            with self._mutex:
                if not self._waiting:
                    self._working -= 1
                    return
                number, call = self._waiting.popleft()
                self._running += 1
                if self._running == 1:
                    self._busy.acquire()
            try:
                self._results[number] = call()
            except BaseException as error:  # noqa: BLE001 - raised to who waits
                self._errors[number] = error
            with self._mutex:
                self._running -= 1
                if self._running == 0:
                    self._busy.release()

    def run(self) -> list[T]:
        """Run the waiting calls, in this thread too, and return all results in order."""
        while True:
            with self._mutex:
                if not self._waiting:
                    break
                number, call = self._waiting.popleft()
            try:
                self._results[number] = call()
            except Exception as error:  # noqa: BLE001 - raised below
                self._errors[number] = error
        self.stop()
        if self._errors:
            raise self._errors[min(self._errors)]
        return [self._results[number] for number in range(self._count)]

    def stop(self) -> None:
        """Begin no more calls, and wait for those running. May be repeated."""
        with self._mutex:
            self._waiting.clear()
        # A thread that has not started yet is not waited for: there is nothing left to do.
        with self._busy:
            pass
        THREADS.end(self._use)


def run_together(calls: Iterable[Callable[[], T]], most_threads: int) -> list[T]:
    """Run calls in this thread and up to ``most_threads`` others; see ``Storage.gather``.

    A call may run others together in turn: a thread that waits for calls works on them, so nested
    rounds cannot wait for each other's threads.
    """
    process = os.getpid()
    work: _Round[T] = _Round(most_threads)
    try:
        for call in calls:
            work.add(call)
        return work.run()
    except BaseException:
        if os.getpid() == process:  # a child of a fork has no threads to wait for
            work.stop()
        raise
