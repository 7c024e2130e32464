"""Ctrl-C and SIGTERM of verbs that go on: the first one asks, so that what was read is written."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def stopping(stop: Callable[[], object]) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM calls ``stop``, anywhere in the main thread's code.

    A second one does what it did before; one that is ignored, as by nohup, stays so.
    """
    handlers = {which: signal.getsignal(which) for which in (signal.SIGINT, signal.SIGTERM)}
    before = {
        w: handler for w, handler in handlers.items() if handler not in (None, signal.SIG_IGN)
    }

    def restore() -> None:
        for which, handler in before.items():
            signal.signal(which, handler)

    def stop_at_next(*_: object) -> None:
        restore()  # a second one does not wait
        stop()

    for which in before:
        signal.signal(which, stop_at_next)
    try:
        yield
    finally:
        restore()
