"""Time limits for calls that may wait forever: they are abandoned, and go on in their threads.

No request to a filesystem can be cancelled, nor a call into a library. Threads are reused, and are
daemons: one whose call hangs does not keep a process from ending. Knows nothing of what the calls
do; callers bound how many they abandon.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, Protocol, TypeVar, cast

T = TypeVar("T")

_SLICES: Final = 8
"""Into how many parts the time is divided: a process that was stopped counts as having waited for
one.
"""
_MOST_IDLE: Final = 64
_ASKED_AFTER: Final = 0.25
"""The part of the time after which it is asked whether to go on, and whether it is over."""


class NoAnswer(TimeoutError):
    """A call has not ended in time: it may take effect at any time, or never."""

    hint = "the server may hang or be cut off: check it and the network, then try again"
    retriable = True


class RunWithin(Protocol):
    """Runs a call and returns its result, or raises its error, within a time.

    ``go_on`` and ``is_over``, if given, are asked beside the call when a quarter of the time is
    over. If the first has said yes at the end, the call has as long again, and they are asked
    again; as soon as the second says so, however long that takes, it is waited for no longer.
    Raises NoAnswer: the call goes on.
    """

    def __call__(
        self,
        call: Callable[[], T],
        for_s: float,
        go_on: Callable[[], bool] | None = None,
        is_over: Callable[[], bool] | None = None,
    ) -> T:
        """Run a call."""
        ...


def run_whole(
    call: Callable[[], T],
    for_s: float,  # noqa: ARG001
    go_on: Callable[[], bool] | None = None,  # noqa: ARG001
    is_over: Callable[[], bool] | None = None,  # noqa: ARG001
) -> T:
    """Wait for the end, however long it takes: nothing is abandoned."""
    return call()


class _Job:
    """A call and its outcome."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._running = threading.Lock()  # much quicker than an event
        self._running.acquire()
        self.result: object = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self._call()
        except BaseException as error:  # noqa: BLE001 - raised to who waits
            self.error = error

    def end(self) -> None:
        self._running.release()

    def says_no(self) -> bool:
        """Whether it has ended, and has not said yes."""
        return not (self._running.locked() or self.result)

    def wait(self, for_s: float, is_over: _Job | None = None) -> bool:
        """Wait up to ``for_s`` seconds; returns whether it has ended.

        Returns early once ``is_over`` has ended with a yes.
        """
        for _ in range(_SLICES):
            if self._running.acquire(timeout=for_s / _SLICES):
                return True
            if is_over is not None and is_over.result:
                break
        return False


class _Workers:
    """Threads that wait for calls. Idle ones are ended before a fork, so that it copies none."""

    def __init__(self) -> None:
        self._forget()
        os.register_at_fork(
            before=self._before_fork,
            after_in_parent=self._after_fork_here,
            after_in_child=self._forget,
        )

    def _forget(self) -> None:
        self._mutex = threading.RLock()
        self._idle: list[tuple[threading.Thread, SimpleQueue[_Job | None]]] = []

    def begin(self, job: _Job) -> None:
        """Run a job. Raises RuntimeError: no thread can be started any more."""
        with self._mutex:
            if self._idle:
                self._idle.pop()[1].put(job)
                return
        inbox: SimpleQueue[_Job | None] = SimpleQueue()
        threading.Thread(target=self._work, args=(inbox,), name="txnlog-wait", daemon=True).start()
        inbox.put(job)

    def _work(self, inbox: SimpleQueue[_Job | None]) -> None:
        while (job := inbox.get()) is not None:
            job.run()
            with self._mutex:  # before the caller is woken: its next call finds this thread
                if kept := len(self._idle) < _MOST_IDLE:
                    self._idle.append((threading.current_thread(), inbox))
            job.end()
            if not kept:
                return

    def _after_fork_here(self) -> None:
        self._mutex.release()

    def _before_fork(self) -> None:
        self._mutex.acquire()
        while self._idle:
            thread, inbox = self._idle.pop()
            inbox.put(None)
            thread.join()


_WORKERS: Final = _Workers()


def _begin(call: Callable[[], object]) -> _Job:
    job = _Job(call)
    try:
        _WORKERS.begin(job)
    except RuntimeError:  # at the interpreter's exit
        job.run()
        job.end()
    return job


def run_within(
    call: Callable[[], T],
    for_s: float,
    go_on: Callable[[], bool] | None = None,
    is_over: Callable[[], bool] | None = None,
) -> T:
    """See :class:`RunWithin`."""
    job = _begin(call)
    first_s = for_s if go_on is None and is_over is None else _ASKED_AFTER * for_s
    over: _Job | None = None
    while not job.wait(first_s, over):
        # In the time that the call has left: one after the other would take twice as long.
        asked = None if go_on is None else _begin(go_on)
        if is_over is not None and (over is None or over.says_no()):
            over = _begin(is_over)
        if (asked or over) and job.wait(for_s - first_s, over):
            break
        if over is not None and over.result:
            raise NoAnswer("others go on without it, so it was waited for no longer")
        if asked is None or not asked.result:
            raise NoAnswer(f"there was no answer for {for_s:.3g} s")
    if job.error is not None:
        raise job.error
    return cast("T", job.result)
