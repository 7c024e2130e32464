"""A lock that survives a fork: in the child it is free, whoever held it in the parent."""

from __future__ import annotations

import os
import threading


class ForkSafeLock:
    """A reentrant lock of the whole process, for its life: ``with lock.mutex: ...``.

    A plain lock that another thread of the parent held during the fork would be held in the child
    for ever. It is not a context manager itself: Ctrl-C between taking it in a method of Python's
    and the block would leave it taken for ever, which does not happen to the interpreter's own
    lock. Whoever forks while holding it lets go of the one it has taken.
    """

    def __init__(self) -> None:
        self.mutex = threading.RLock()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self.mutex = threading.RLock()
