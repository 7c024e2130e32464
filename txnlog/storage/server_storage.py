"""What storages on servers share: a check before the first write, and one of their disks.

An endpoint other than the one that created the store may not keep the promise: each process checks
for itself, once: a result is kept for the life of the process and of its forks, so a server that
has failed is not tried until it happens to pass. Knows the probe, and no server.
"""

from __future__ import annotations

import os
import time
from abc import abstractmethod
from collections.abc import Callable, Generator, Hashable, Iterable
from functools import partial
from typing import Final, TypeVar

from txnlog.errors import ObjectNotFound, PutIfAbsentBroken
from txnlog.names import STORE_FILE
from txnlog.storage.base import Storage
from txnlog.storage.fork_safe_lock import ForkSafeLock
from txnlog.storage.probe import FOLDER, check_before_first_write
from txnlog.storage.threads import MAX_AHEAD_BYTES, SizedCall, Waits


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


T = TypeVar("T")

_EXPECTED_S: Final = 0.005
"""The expected wait for a server's answer before any was measured."""


class ServerStorage(Storage):
    """A storage whose ``put_if_absent`` begins with :meth:`check_before_write`."""

    _probed: Storage | None = None

    def probe_in(self, storage: Storage) -> None:
        """Make the check in another folder of the server: others may delete what lies in this one.

        Then a race has no winner, or two, and the server would be refused.
        """
        self._probed = storage

    @property
    @abstractmethod
    def server(self) -> Hashable:
        """What one check covers, as an endpoint and a bucket. Without secrets."""

    def trust(self, *, probed: bool = False) -> None:
        mark_passed(self.server, probed=probed)

    def was_probed(self) -> bool:
        return was_probed(self.server)

    @property
    def checked_for_s(self) -> float | None:
        """For how long what is put here first has waited for the check; None if it does not."""
        return checked_for_s(self.server)

    def run_ahead(
        self, calls: Iterable[SizedCall[T]], most_bytes: int = MAX_AHEAD_BYTES
    ) -> Generator[T]:
        # Requests to a server wait, unless measured otherwise: the first calls go in parallel.
        self.__dict__.setdefault("_waits", Waits(_EXPECTED_S))
        return super().run_ahead(calls, most_bytes)

    def check_before_write(self, name: str) -> None:
        """Check that the server keeps the promise, unless this process has done so.

        Raises:
            PutIfAbsentBroken: it does not.
            StorageError: the check could not be made.
        """
        if not name.startswith(f"{FOLDER}/"):  # the probe's own objects
            check_once(self.server, self._probe_before_first_write)

    def _probe_before_first_write(self) -> None:
        try:
            check_before_first_write(self._probed or self)
        except PutIfAbsentBroken as error:
            raise PutIfAbsentBroken(
                f"{error}. Nothing was written. Stop all others that write there, run `txnlog "
                "doctor` through a server that can be relied on, and restart this process"
            ) from error


class CaseFolding:
    """Whether a server's disk takes names that differ only in case for one: its store's file tells.

    Two requests at the same time, when it is first asked for.
    """

    def __init__(self) -> None:
        self._folds: bool | None = None

    def of(self, storage: Storage) -> bool:
        """Whether the file is found under its name in the other case too. Raises StorageError."""
        if self._folds is None:
            both = (STORE_FILE.swapcase(), STORE_FILE)
            swapped, own = storage.gather(partial(_is_there, storage, name) for name in both)
            if own:  # else there is no store yet, and nothing is known
                self._folds = swapped
        return self._folds or False


def _is_there(storage: Storage, name: str) -> bool:
    try:
        storage.size(name)
    except ObjectNotFound:
        return False
    return True
