"""A lock that survives a fork: in the child it is free, even if the parent held it."""

from __future__ import annotations

import os
import threading
import weakref


class ForkSafeLock:
    """A reentrant lock, of the whole process or of one object: ``with lock.mutex: ...``.

    For what a child may have from its parent, as a snapshot by which it goes on reading: a plain
    lock that another thread of the parent held during the fork would be held in the child for ever.

    It is not a context manager itself: Ctrl-C between acquiring it in a Python method and the block
    would leave it locked for ever, which does not happen to the interpreter's own lock, until
    Python 3.14 (CPython's issue 148874). A thread that forks while holding it releases the one it
    has acquired.
    """

    def __init__(self) -> None:
        self.mutex = threading.RLock()
        _LOCKS.add(self)


_LOCKS: weakref.WeakSet[ForkSafeLock] = weakref.WeakSet()


def _after_fork() -> None:
    for lock in list(_LOCKS):
        lock.mutex = threading.RLock()


# Once: what is registered stays for the life of the process, and its locks need not.
os.register_at_fork(after_in_child=_after_fork)
