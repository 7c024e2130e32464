"""Calls in threads: made together, or ahead of the consumer of their results.

Starting a thread takes longer than most requests to a disk. So there is one pool for the whole
process: started with the first round, grown when rounds find no idle thread, and empty in a forked
child. What runs ahead are few calls at a time, in order, in bounded memory, and threads are used
only if requests wait: a disk whose files are cached answers faster than a thread starts, so the
first calls are timed, and all run one by one if they are fast. Knows nothing of what calls do.

Ctrl-C may come while calls are waited for. Conditions, events and futures wait in Python: an
interrupt amid their steps leaves them as "release unlocked lock", or locked for ever. So what is
waited for here is a lock that is held while a call runs: taking it is one step, which can be
repeated. An iteration that is left may be ended by the collector of garbage, in any thread, at any
line, so also where that holds the very lock that a thread takes to start or to end. So what ends
then waits for nothing: calls that run go on, and nobody wants their results.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Generic, NamedTuple, NoReturn, TypeAlias, TypeVar, cast

T = TypeVar("T")

MOST_THREADS: Final = 256
"""For all concurrent rounds. One that gets no thread runs its calls in its own."""


@dataclass(slots=True)
class _Pool:
    """The threads, and who uses them just now: a use that was interrupted is collected.

    ``wanted`` is what no thread has begun yet, ``coming`` how many will look there. A round may be
    over before they do; then they work for the next one, which needs no others.
    """

    executor: ThreadPoolExecutor
    uses: weakref.WeakSet[Use] = field(default_factory=weakref.WeakSet)
    mutex: threading.Lock = field(default_factory=threading.Lock)
    wanted: deque[tuple[Use, Callable[[], None]]] = field(default_factory=deque)
    coming: int = 0

    def work(self) -> None:
        """Take one call of those that wait, if there is one, and run it."""
        with self.mutex:
            self.coming = max(self.coming - 1, 0)  # of one that an interrupt left uncounted
            work = self.wanted.popleft()[1] if self.wanted else None
        if work is not None:
            work()


@dataclass(eq=False)
class Use:
    """A round's use of the threads."""

    pool: _Pool

    def ask(self, work: Callable[[], None]) -> None:
        """Let a thread do this, unless the round ends before.

        Raises RuntimeError: no thread can be started, as at the interpreter's exit.
        """
        pool = self.pool
        with pool.mutex:
            pool.wanted.append((self, work))
            if pool.coming < len(pool.wanted):
                pool.executor.submit(pool.work)
                pool.coming += 1


class KeptThreads:
    """The pool of a process. Idle threads are ended before a fork, so that it copies none."""

    def __init__(self) -> None:
        self._mutex = threading.RLock()
        self._pool: _Pool | None = None
        os.register_at_fork(
            before=self._before_fork,
            after_in_parent=self._after_fork_here,
            after_in_child=self._after_fork,
        )

    def begin(self) -> Use:
        """The threads, for a round of calls, until it ends: see :meth:`end`."""
        with self._mutex:
            pool = self._pool
            if pool is None:
                pool = self._pool = _Pool(ThreadPoolExecutor(MOST_THREADS, "txnlog-requests"))
            use = Use(pool)
            pool.uses.add(use)
            return use

    def end(self, use: Use) -> None:
        """End a use: calls that have not begun are dropped. May be repeated."""
        pool = use.pool
        with pool.mutex:
            pool.wanted = deque(item for item in pool.wanted if item[0] is not use)
        with self._mutex:
            pool.uses.discard(use)

    def _before_fork(self) -> None:
        self._mutex.acquire()  # until the fork is over: no round begins meanwhile
        pool = self._pool
        if pool is not None and not pool.uses:
            self._pool = None
            pool.executor.shutdown()

    def _after_fork_here(self) -> None:
        self._mutex.release()

    def _after_fork(self) -> None:
        self._mutex = threading.RLock()
        self._pool = None


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
            self._use.ask(self._work)
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
                if os.getpid() == process:  # a child of a fork runs them itself
                    threads.ask(begun.run)
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
