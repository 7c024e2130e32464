"""Calls made together, in threads that are reused from round to round.

Starting a thread takes longer than most requests to a disk. So there is one pool for the whole
process: started with the first round, grown when rounds find no idle thread, and empty in a forked
child. Knows nothing of what the calls do.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

T = TypeVar("T")

MOST_THREADS: Final = 256
"""For all concurrent rounds. One that gets no thread runs its calls in its own."""


@dataclass(slots=True)
class _Pool:
    """The threads, and how many rounds use them just now."""

    executor: ThreadPoolExecutor | None = None
    rounds: int = 0


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

    @contextmanager
    def for_round(self) -> Iterator[ThreadPoolExecutor]:
        """The executor, for one round of calls."""
        with self._mutex:
            pool = self._pool
            if pool.executor is None:
                pool.executor = ThreadPoolExecutor(MOST_THREADS, "txnlog-requests")
            pool.rounds += 1
        try:
            yield pool.executor
        finally:
            with self._mutex:
                pool.rounds -= 1

    def _before_fork(self) -> None:
        self._mutex.acquire()  # until the fork is over: no round begins meanwhile
        if self._pool.rounds == 0:
            pool, self._pool = self._pool, _Pool()
            if pool.executor is not None:
                pool.executor.shutdown()

    def _after_fork_here(self) -> None:
        self._mutex.release()

    def _after_fork(self) -> None:
        self._mutex = threading.RLock()
        self._pool = _Pool()


THREADS: Final = KeptThreads()


class _Round(Generic[T]):
    """Waiting, running and finished calls of several threads."""

    def __init__(self, executor: ThreadPoolExecutor, most_threads: int) -> None:
        self._executor = executor
        self._most_threads = most_threads
        self._mutex = threading.Lock()
        self._waiting: deque[tuple[int, Callable[[], T]]] = deque()
        self._working = 0
        self._threads: list[Future[None]] = []
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
            self._threads.append(self._executor.submit(self._work))
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
            try:
                self._results[number] = call()
            except BaseException as error:  # noqa: BLE001 - raised to who waits
                self._errors[number] = error

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
        self._join()
        if self._errors:
            raise self._errors[min(self._errors)]
        return [self._results[number] for number in range(self._count)]

    def stop(self) -> None:
        """Begin no more calls, and wait for those running."""
        with self._mutex:
            self._waiting.clear()
        self._join()

    def _join(self) -> None:
        # A thread that has not started yet is not waited for: there is nothing left to do.
        wait([thread for thread in self._threads if not thread.cancel()])


def run_together(calls: Iterable[Callable[[], T]], most_threads: int) -> list[T]:
    """Run calls in this thread and up to ``most_threads`` others; see ``Storage.gather``.

    A call may run others together in turn: a thread that waits for calls works on them, so nested
    rounds cannot wait for each other's threads.
    """
    process = os.getpid()
    with THREADS.for_round() as executor:
        work: _Round[T] = _Round(executor, most_threads)
        try:
            for call in calls:
                work.add(call)
            return work.run()
        except BaseException:
            if os.getpid() == process:  # a child of a fork has no threads to wait for
                work.stop()
            raise
