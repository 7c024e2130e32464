"""Calls that run ahead of the consumer of their results: few at a time, in order, bounded memory.

Threads are used only if requests wait. A disk whose files are cached answers faster than a thread
starts, so the first calls are timed, and all run one by one if they are fast.

An iteration that is left may be ended by the collector of garbage, in any thread, at any line, so
also where that holds the very lock that a thread takes to start or to end. So what ends then waits
for nothing: calls that run go on, and nobody wants their results.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Final, Generic, NamedTuple, NoReturn, TypeAlias, TypeVar

from txnlog.storage.together import THREADS, Begun

T = TypeVar("T")

MAX_AHEAD_BYTES: Final = 64 << 20
"""How many bytes are in flight, or wait for the consumer, besides those being processed."""

MAX_WORK_BYTES: Final = 16 << 20
"""How much is computed ahead: for readers of few columns."""

MAX_RESULT_BYTES: Final = MAX_WORK_BYTES // 2
"""A larger result is not computed before its turn."""

_FIRST_CALLS: Final = 4
"""How many calls begin at once; each result taken allows one more than it has freed. So a consumer
that only looks at the beginning has requested little more.
"""

_WORTH_A_THREAD_S: Final = 0.001
"""Measured: a call costs 0.06 ms of CPU time more in a thread; object stores wait 5 to 50 ms."""

_WEIGHT: Final = 0.25

SizedCall: TypeAlias = tuple[int, Callable[[], T]]
"""The result's approximate size in bytes, and the call that makes it."""


class Waits:
    """How long the calls to one storage wait: a mean of the newest ones, without their CPU time.

    Of each two in a row the shorter one counts: a call delayed by something else, such as a busy
    machine, says nothing about the storage. ``expected_s`` is assumed before any.
    """

    def __init__(self, expected_s: float = 0.0) -> None:
        self.mean_s = self._newest_s = expected_s

    @property
    def are_long(self) -> bool:
        """Whether threads pay."""
        return self.mean_s >= _WORTH_A_THREAD_S

    def time(self, call: Callable[[], T]) -> T:
        """Run a call and record how long it has waited."""
        started_s, worked_s = time.perf_counter(), time.thread_time()
        try:
            return call()
        finally:
            self.record(time.perf_counter() - started_s - (time.thread_time() - worked_s))

    def record(self, waited_s: float) -> None:
        """Record how long a call has waited, or each of several in a row."""
        shorter_s, self._newest_s = min(waited_s, self._newest_s), waited_s
        self.mean_s += (shorter_s - self.mean_s) * _WEIGHT


class _Ahead(Generic[T]):
    """The calls that have begun, and the threads that run them."""

    def __init__(
        self, calls: Iterable[SizedCall[T]], waits: Waits, most_calls: int, most_bytes: int
    ) -> None:
        self._calls = iter(calls)
        self._next: SizedCall[T] | None = next(self._calls, None)
        self._waits = waits
        self._most_calls = most_calls
        self._most_bytes = most_bytes
        self._allowed = min(_FIRST_CALLS, most_calls)
        self._begun: deque[tuple[SizedCall[T], Begun[T]]] = deque()
        self._held_bytes = 0
        self._pool: ThreadPoolExecutor | None = None
        self._process = os.getpid()

    def take(self) -> Generator[T]:
        """The results in order, each when asked for; errors in turn."""
        try:
            while self._begun or self._next is not None:
                self._begin()
                if self._begun:
                    (size_bytes, call), begun = self._begun[0]
                    # A forked child has no threads: inherited calls are started again.
                    result = begun.result() if self._is_mine() else call()
                    self._begun.popleft()
                    self._held_bytes -= size_bytes
                else:
                    assert self._next is not None
                    (_, call), self._next = self._next, next(self._calls, None)
                    result = self._waits.time(call)
                self._allowed = min(self._allowed + 1, self._most_calls)
                self._begin()
                yield result
        except GeneratorExit:
            self._leave()
            raise
        finally:
            self._end()

    def _is_mine(self) -> bool:
        return os.getpid() == self._process

    def _begin(self) -> None:
        """Begin as many calls as allowed."""
        while self._next is not None and self._is_mine() and self._waits.are_long:
            size_bytes, call = self._next
            too_many = len(self._begun) >= self._allowed
            too_large = self._held_bytes + size_bytes > self._most_bytes
            if self._begun and (too_many or too_large):
                break
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._most_calls, "txnlog-ahead")
            begun = Begun(partial(self._waits.time, call))
            self._begun.append((self._next, begun))
            with suppress(RuntimeError):  # at the interpreter's exit no thread can be started
                self._pool.submit(begun.run)
            self._held_bytes += size_bytes
            self._next = next(self._calls, None)
        if self._next is None and self._pool is not None and self._is_mine():
            self._pool.shutdown(wait=False)  # the threads end with their calls

    def _leave(self) -> None:
        """Begin no more calls, and wait for none."""
        for _, begun in self._begun:
            begun.unwant()
        if self._pool is not None and self._is_mine():
            self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool = None

    def _end(self) -> None:
        """Begin no more calls, and wait for those running."""
        self._next = None
        if self._pool is not None and self._is_mine():
            self._pool.shutdown(wait=False, cancel_futures=True)
            for _, begun in self._begun:
                begun.drop()
            self._pool.shutdown(wait=True)  # the threads are about to end
        self._begun.clear()


def run_ahead(
    calls: Iterable[SizedCall[T]], waits: Waits, most_calls: int, most_bytes: int
) -> Generator[T]:
    """See :meth:`txnlog.storage.base.Storage.run_ahead`."""
    return _Ahead(calls, waits, most_calls, most_bytes).take()


def run_in_order(calls: Iterable[SizedCall[T]]) -> Generator[T]:
    """Run calls without threads: each when its result is asked for."""
    for _, call in calls:
        yield call()


def work_ahead(calls: Iterable[SizedCall[T]]) -> Generator[T]:
    """Results of calls that only compute, in order; processors work in parallel.

    A few small results are made ahead; a large one in the iterating thread, when it is its turn.
    ``calls`` is consumed there too; its errors and those of calls are raised in turn. Running calls
    are waited for, unless the iteration is left.
    """
    process = os.getpid()
    most_calls = os.cpu_count() or 1
    waiting: deque[tuple[SizedCall[T], Begun[T]]] = deque()
    held_bytes = 0

    def take() -> T:
        (_, call), begun = waiting[0]
        # Calls that no thread has begun yet run here: so no thread waits for one that waits too.
        result = begun.result() if os.getpid() == process else call()
        waiting.popleft()
        return result

    def end() -> None:
        if os.getpid() == process:  # a child of a fork has no threads to wait for
            for _, begun in waiting:
                begun.drop()
            THREADS.end(threads)

    threads = THREADS.begin()
    try:
        for size_bytes, call in _in_turn(calls):
            is_large = size_bytes > MAX_RESULT_BYTES
            while waiting and (
                is_large or len(waiting) > most_calls or held_bytes + size_bytes > MAX_WORK_BYTES
            ):
                held_bytes -= waiting[0][0][0]
                yield take()
            if is_large:
                yield call()
                continue
            begun = Begun(call)
            waiting.append(((size_bytes, call), begun))
            with suppress(RuntimeError):  # at the interpreter's exit no thread can be started
                threads.executor.submit(begun.run)
            held_bytes += size_bytes
        while waiting:
            yield take()
    except GeneratorExit:
        for _, begun in waiting:
            begun.unwant()
        raise
    except BaseException:
        end()
        raise
    end()


def _in_turn(calls: Iterable[SizedCall[T]]) -> Iterator[SizedCall[T]]:
    """The calls; an error of the iterable counts as one more call's."""
    try:
        yield from calls
    except Exception as error:  # noqa: BLE001 - raised in its turn
        yield 0, partial(_raise, error)


def _raise(error: Exception) -> NoReturn:
    raise error


R = TypeVar("R")


class _Outcome(NamedTuple, Generic[T]):
    """A result of the reader with this number; ``take`` returns it, or raises its error."""

    number: int
    take: Callable[[], T]


class InTurn(Generic[R, T]):
    """Readers one after another: iterating returns them; ``results`` are those of the last one.

    While the last results of one reader are made, the next one is opened and its first are begun:
    no processor waits between two files.

    ``readers``: taken when it is their turn, or a little before. ``calls_of``: a reader's calls
    that make its results, each with its approximate size in bytes. The reader is opened when the
    first one is asked for, in the iterating thread. ``runs_ahead``: whether it may be opened
    before.
    """

    def __init__(
        self,
        readers: Iterable[R],
        calls_of: Callable[[R], Iterator[SizedCall[T]]],
        runs_ahead: Callable[[R], bool],
    ) -> None:
        self._coming = enumerate(readers)
        self._calls_of = calls_of
        self._runs_ahead = runs_ahead
        self._seen: deque[tuple[int, R]] = deque()
        """The readers that were taken before their turn."""
        self._current: tuple[int, R] | None = None
        self._last_begun = -1
        self._outcomes: Generator[_Outcome[T]] | None = None
        self._held: _Outcome[T] | None = None

    def __iter__(self) -> Iterator[R]:
        while True:
            self._current = self._seen.popleft() if self._seen else next(self._coming, None)
            if self._current is None:
                return
            yield self._current[1]

    def results(self) -> Iterator[T]:
        """The results of the reader's calls, in order; errors are raised in turn."""
        assert self._current is not None
        number, reader = self._current
        if self._last_begun < number:
            self._outcomes = work_ahead(self._begin(number, reader))
        while (outcome := self._next_outcome()) is not None and outcome.number <= number:
            self._held = None
            if outcome.number == number:  # others are of readers that were not read to their end
                yield outcome.take()

    def close(self) -> None:
        """Begin no more calls."""
        if self._outcomes is not None:
            self._outcomes.close()

    def _next_outcome(self) -> _Outcome[T] | None:
        if self._held is None and self._outcomes is not None:
            self._held = next(self._outcomes, None)
        return self._held

    def _begin(self, number: int, reader: R) -> Iterator[SizedCall[_Outcome[T]]]:
        """The calls of a reader, and of later ones, as long as they may be opened."""
        while True:
            self._last_begun = number
            try:
                for size_bytes, call in self._calls_of(reader):
                    yield size_bytes, partial(_attempt, number, call)
            except Exception as error:  # noqa: BLE001 - raised in its turn
                failing: Callable[[], T] = partial(_raise, error)
                yield 0, partial(_attempt, number, failing)
            coming = next(self._coming, None)
            if coming is None:
                return
            self._seen.append(coming)
            number, reader = coming
            if not self._runs_ahead(reader):
                return


def _attempt(number: int, call: Callable[[], T]) -> _Outcome[T]:
    try:
        result = call()
    except Exception as error:  # noqa: BLE001 - raised in its turn
        return _Outcome(number, partial(_raise, error))
    return _Outcome(number, lambda: result)
