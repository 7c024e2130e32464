"""Checks that are made once per process, before it creates a store on a server or writes there.

Knows nothing of what is checked. A result is kept for the life of the process and of its forks: a
server that has failed once is not tried until it happens to pass.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Hashable

from txnlog.errors import PutIfAbsentBroken
from txnlog.storage.fork_safe_lock import ForkSafeLock


class _Check:
    """The checks of one server."""

    def __init__(self) -> None:
        self.lock = ForkSafeLock()
        self.passed = False
        self.probed = False
        """The longer check, at a store's creation, has passed."""
        self.refusal: str | None = None
        self.began: tuple[int, float] | None = None
        """The process in which it is being made, and since when."""


_CHECKS: dict[Hashable, _Check] = {}
_LOCK = ForkSafeLock()


def _check_of(server: Hashable) -> _Check:
    with _LOCK.mutex:
        known = _CHECKS.get(server)
        if known is None:
            known = _CHECKS[server] = _Check()
        return known


def check_once(server: Hashable, check: Callable[[], None]) -> None:
    """Run ``check`` unless it has passed for this server; concurrent calls wait for it.

    Raises PutIfAbsentBroken: the server is refused, now or earlier. StorageError: the check could
    not be made; the next call makes it.
    """
    known = _check_of(server)
    if known.passed:
        return
    with known.lock.mutex:
        if known.passed:  # in another thread, meanwhile
            return  # type: ignore[unreachable]
        if known.refusal is not None:
            raise PutIfAbsentBroken(known.refusal)
        known.began = os.getpid(), time.monotonic()
        try:
            check()
        except PutIfAbsentBroken as error:
            known.refusal = str(error)
            raise
        finally:
            known.began = None
        known.passed = True


def checked_for_s(server: Hashable) -> float | None:
    """For how long the server has been checked in this process, if it is just now."""
    began = _check_of(server).began
    return None if began is None or began[0] != os.getpid() else time.monotonic() - began[1]


def mark_passed(server: Hashable, *, probed: bool) -> None:
    """Record that the server has passed the check before a write, or (probed) the longer one."""
    known = _check_of(server)
    known.passed = True
    known.probed = known.probed or probed


def was_probed(server: Hashable) -> bool:
    """Whether the server has passed the longer check."""
    return _check_of(server).probed
