"""Makes requests to members within a time limit, and keeps count of those that it abandons.

An abandoned request goes on, and may take effect later. If its member is out by then, no later
epoch names that member, except after an unclean election. If the member stays in, the request is
like one of a writer that slept: the look at the epochs, and put-if-absent, allow for that.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, TypeVar

from txnlog.clock import Clock
from txnlog.errors import StorageError
from txnlog.replication.roots.bounded_requests import BoundedRequests
from txnlog.replication.roots.epochs import DEFAULT_LAG_S, Epoch, Member
from txnlog.storage.base import Storage
from txnlog.storage.fork_safe_lock import ForkSafeLock
from txnlog.time_limits import NoAnswer, RunWithin

T = TypeVar("T")

_BYTES_A_SECOND: Final = 1 << 20
"""The speed at which larger requests get more time; any useful root is faster."""
_NAMES_A_SECOND: Final = 100
MOST_LAGS: Final = 10
"""How many lags some requests may take: those without which nothing can be done.

They are a writer's to the controller, an operator's to a new root or controller, and those made
while a server is checked.
"""
_MOST_LEFT: Final = 8
_LOCK: Final = ForkSafeLock()
"""Guards all state of this module; held only for moments."""


class TookTooLong(StorageError):
    """A member has not answered in time. The request may still take effect, at any time."""


def time_for(epoch: Epoch | None, *, size_bytes: int = 0, count: int = 0) -> float:
    """How long one request may take before its member is slow, in seconds.

    Without an epoch the default lag counts, since the settings are not known yet.
    """
    lag_s = DEFAULT_LAG_S if epoch is None else epoch.lag_s
    return lag_s + size_bytes / _BYTES_A_SECOND + count / _NAMES_A_SECOND


class Slowness:
    """Makes requests within a time limit; remembers the members that left requests unanswered.

    Such a member gets no requests for a while, and none at all while many of them hang: so only few
    threads hang. Safe to use from several threads.
    """

    def __init__(self, run_within: RunWithin, clock: Clock) -> None:
        self._run_within = run_within
        self._clock = clock
        self._left: dict[Member, dict[object, float]] = {}
        self._pid = os.getpid()

    def ask(
        self,
        member: Member,
        call: Callable[[], T],
        within_s: float,
        go_on: Callable[[], bool] | None = None,
        pause_s: float | None = None,
        is_over: Callable[[], bool] | None = None,
        left_as: Callable[[], Member] | None = None,
    ) -> T:
        """Make a request within ``within_s`` seconds. Raises TookTooLong, and what the call raises.

        While an earlier request to the member is unanswered, TookTooLong is raised at once for
        ``pause_s`` seconds; if that is None, for ``within_s``. ``left_as`` returns the member to
        whom an abandoned request is charged, if not to this one. ``go_on``, ``is_over``: see
        :class:`RunWithin`.
        """
        self._check(member, within_s if pause_s is None else pause_s)
        token, ended, who = object(), [], [member]

        def run() -> T:
            try:
                return call()
            finally:
                with _LOCK.mutex:
                    ended.append(True)
                    self._left.get(who[0], {}).pop(token, None)

        try:
            return self._run_within(run, within_s, go_on, is_over)
        except NoAnswer as error:
            with _LOCK.mutex:
                if not ended:
                    who[0] = member if left_as is None else left_as()
                    self._left.setdefault(who[0], {})[token] = self._clock.monotonic_s()
            raise TookTooLong(str(error)) from None

    def bounding(self, place: Storage, epoch: Epoch | None) -> Storage:
        """Give each request to a place ``MOST_LAGS`` times as long as usual: it must answer."""

        def within(call: Callable[[], T], *, size_bytes: int = 0, count: int = 0) -> T:
            for_s = time_for(epoch, size_bytes=size_bytes, count=count)
            return self.ask(place.url, call, MOST_LAGS * for_s, pause_s=for_s)

        return BoundedRequests(place, within)

    def is_left(self, member: Member, pause_s: float) -> bool:
        """Whether a member has left a request unanswered, and gets no others for ``pause_s``."""
        try:
            self._check(member, pause_s)
        except TookTooLong:
            return True
        return False

    def _check(self, member: Member, pause_s: float) -> None:
        with _LOCK.mutex:
            if self._pid != os.getpid():  # their threads are not in a forked child
                self._pid = os.getpid()
                self._left.clear()
            left = self._left.get(member)
            if not left:
                return
            for_s = self._clock.monotonic_s() - max(left.values())
            if len(left) >= _MOST_LEFT or for_s < pause_s:
                raise TookTooLong(f"{len(left)} earlier requests to {member} are not answered yet")
