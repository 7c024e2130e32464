"""Time limits for calls into libraries that may wait forever.

Such a call cannot be cancelled: it stays behind in a thread, which does not keep the process from
ending. Threads are reused. Knows nothing of what the calls do.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class NoAnswer(TimeoutError):
    """A call had not ended in time: it may still take effect."""

    hint = "the server may hang or be cut off: check it and the network, then try again"
    retriable = True


class _Worker(threading.Thread):
    """Makes one call after the other."""

    def __init__(self) -> None:
        super().__init__(name="txnlog-time-limit", daemon=True)
        self.calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()

    def run(self) -> None:
        while True:
            future, call = self.calls.get()
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001 - raised to who waits
                future.set_exception(error)
            else:
                future.set_result(result)
            del future, call
            _idle.append(self)


_idle: list[_Worker] = []


def run_within(timeout_s: float, call: Callable[[], T]) -> T:
    """A call's result or error. Raises NoAnswer if it has not ended in time."""
    try:
        worker = _idle.pop()
    except IndexError:
        worker = _Worker()
        worker.start()
    future: Future[T] = Future()
    worker.calls.put((future, call))
    try:
        return future.result(timeout_s)
    except TimeoutError as error:
        if future.done():
            return future.result()  # just now, or the error is the call's own
        raise NoAnswer(f"there was no answer for {timeout_s:g} s") from error


# A child of a fork has none of the threads.
os.register_at_fork(after_in_child=_idle.clear)
