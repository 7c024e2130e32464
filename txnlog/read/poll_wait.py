"""How a consumer waits: it looks for records now and then, and at once when woken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from txnlog.clock import Clock, Signal
from txnlog.errors import Wakeup
from txnlog.log.arrivals import listen

T = TypeVar("T")

_FIRST_PAUSE_MS: Final = 10


class PollWait:
    """When a consumer that has returned everything looks for more.

    Each look is a listing per topic. The pauses between looks double up to ``max_wait_ms``, also
    across polls; a writer of the same process ends one early.
    """

    def __init__(self, clock: Clock, url: str, max_wait_ms: int) -> None:
        self._clock = clock
        self._max_wait_ms = max_wait_ms
        self._event = Signal()
        self._told = False
        self._pause_ms = 0
        self._next_ms = 0
        listen(url, self._event)

    def wake(self) -> None:
        """End the current or the next wait, from any thread: it raises Wakeup."""
        self._told = True
        self._event.set()

    def check(self) -> None:
        """Raise Wakeup if :meth:`wake` was called since."""
        if self._told:
            self._told = False
            raise Wakeup("wakeup() was called; nothing is lost: poll again to go on, or close")

    def look_soon(self) -> None:
        """There may be new records: look again at once."""
        self._pause_ms = self._next_ms = 0

    def look_now(self) -> None:
        """End the current or the next wait by a look, from any thread."""
        self._event.set()

    def until_found(
        self,
        look: Callable[[], T],
        nothing: T,
        timeout_ms: int | None,
        attend: Callable[[], float],
    ) -> T:
        """The result of ``look`` as soon as it finds something, ``nothing`` after the timeout.

        ``nothing``: what ``look`` returns if there is nothing. ``timeout_ms``: with 0 it looks
        once, however recent the last look; None: for ever. ``attend`` does before each wait what
        else is due, and returns when it is to be called again, in s. Raises Wakeup: :meth:`wake`
        was called.
        """
        until_ms = None if timeout_ms is None else self._now_ms() + timeout_ms
        while True:
            if timeout_ms == 0 or self._event.is_set() or self._now_ms() >= self._next_ms:
                self._event.clear()  # cleared before the look: later arrivals cause another one
                self.check()
                found = look()
                if found:
                    self.look_soon()
                    return found
                self._pause_ms = min(2 * self._pause_ms or _FIRST_PAUSE_MS, self._max_wait_ms)
                self._next_ms = self._now_ms() + self._pause_ms
            now_ms = self._now_ms()
            if until_ms is not None and now_ms >= until_ms:
                return nothing
            pause_s = attend()
            next_ms = self._next_ms if until_ms is None else min(self._next_ms, until_ms)
            self._clock.wait(self._event, max(min((next_ms - now_ms) / 1000, pause_s), 0))

    def _now_ms(self) -> int:
        return round(self._clock.monotonic_s() * 1000)
