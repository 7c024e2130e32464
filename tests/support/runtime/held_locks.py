"""The locks that objects carry, all of them held by another thread."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FunctionType, ModuleType
from typing import Any

_LOCKS = type(threading.Lock()), type(threading.RLock())
_SHARED = type, ModuleType, FunctionType, threading.Thread
"""What leads to everything that a process has."""


def locks_of(*objects: object) -> list[Any]:
    """The locks to which these objects lead: in attributes, and in what those hold in turn."""
    seen: dict[int, object] = {}
    waiting: list[object] = [*objects]
    while waiting:
        one = waiting.pop()
        if id(one) not in seen and not isinstance(one, _SHARED):
            seen[id(one)] = one
            waiting += gc.get_referents(one)
    return [one for one in seen.values() if isinstance(one, _LOCKS)]


@contextmanager
def locks_held(*objects: object) -> Iterator[None]:
    """Within the block a thread holds all that these objects lead to."""
    held, enough = threading.Event(), threading.Event()

    def hold() -> None:
        with ExitStack() as stack:
            for lock in locks_of(*objects):
                assert lock.acquire(timeout=30)
                stack.callback(lock.release)
            held.set()
            enough.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(60)
    try:
        yield
    finally:
        enough.set()
        thread.join()
