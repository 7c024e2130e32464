"""A lock that survives a fork: in the child it is free, whoever held it in the parent."""

from __future__ import annotations

import os
import threading
from types import TracebackType


class ForkSafeLock:
    """A reentrant lock of the whole process, for the life of the process: ``with lock: ...``.

    A plain lock that another thread of the parent held during the fork would be held in the child
    for ever.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._lock.release()
