"""A lock that survives a fork: in the child it is free, even if the parent held it."""

from __future__ import annotations

import os
import threading


class ForkSafeLock:
    """A reentrant lock of the whole process, for its life: ``with lock.mutex: ...``.

    A plain lock that another thread of the parent held during the fork would be held in the child
    for ever. It is not a context manager itself: Ctrl-C between acquiring it in a Python method and
    the block would leave it locked for ever, which does not happen to the interpreter's own lock,
    until Python 3.14 (CPython's issue 148874). A thread that forks while holding it releases the
    one it has acquired.
    """

    def __init__(self) -> None:
        self.mutex = threading.RLock()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self.mutex = threading.RLock()
