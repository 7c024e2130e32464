"""Checks that are made once per process, before it creates a store on a server or writes there.

Knows nothing of what is checked. A result is kept for the life of the process and of its forks: a
server that has failed once is not tried until it happens to pass.
"""

from __future__ import annotations

import os
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
        self.runs_in = 0
        """The process in which it is being made."""


_CHECKS: dict[Hashable, _Check] = {}
_LOCK = ForkSafeLock()


def _check_of(server: Hashable) -> _Check:
    with _LOCK.mutex:
        return _CHECKS.setdefault(server, _Check())


def check_once(server: Hashable, check: Callable[[], None]) -> None:
    """Run ``check`` unless it has passed for this server; concurrent calls wait for it.

    Raises:
        PutIfAbsentBroken: the server is refused, now or earlier.
        StorageError: the check could not be made; the next call makes it.
    """
    known = _check_of(server)
    if known.passed:
        return
    with known.lock.mutex:
        if known.passed:  # in another thread, meanwhile
            return  # type: ignore[unreachable]
        if known.refusal is not None:
            raise PutIfAbsentBroken(known.refusal)
        known.runs_in = os.getpid()
        try:
            check()
        except PutIfAbsentBroken as error:
            known.refusal = str(error)
            raise
        finally:
            known.runs_in = 0
        known.passed = True


def is_running(server: Hashable) -> bool:
    """Whether the server is being checked, in this process."""
    return _check_of(server).runs_in == os.getpid()


def mark_passed(server: Hashable, *, probed: bool) -> None:
    """Record that the server has passed the check before a write, or (probed) the longer one."""
    known = _check_of(server)
    known.passed = True
    known.probed = known.probed or probed


def was_probed(server: Hashable) -> bool:
    """Whether the server has passed the longer check."""
    return _check_of(server).probed
