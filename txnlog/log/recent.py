"""What a process remembers of names that come and go: topics, groups, transactional ids.

A process may live for months, and meet any number of them.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from txnlog.clock import Clock

KEPT = 1_000
"""So many are always remembered ..."""
IDLE_S = 600.0
"""... and of more those that were asked for within this time."""

K = TypeVar("K")
V = TypeVar("V")


class _Entry(Generic[V]):
    __slots__ = ("used_s", "value")

    def __init__(self, value: V, used_s: float) -> None:
        self.value = value
        self.used_s = used_s


class Recent(Generic[K, V]):
    """A dictionary that forgets what was not asked for lately, if it has more than ``KEPT``.

    For what is found out again, or begins again, at no more than a cost. Threads may share it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: dict[K, _Entry[V]] = {}
        self._most = KEPT

    def get(self, key: K) -> V | None:
        """The value, None if it is not known."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        entry.used_s = self._clock.monotonic_s()
        return entry.value

    def __setitem__(self, key: K, value: V) -> None:
        if len(self._entries) >= self._most and key not in self._entries:
            self._forget_idle()
        self._entries[key] = _Entry(value, self._clock.monotonic_s())

    def pop(self, key: K) -> None:
        """Forget it, if it is known."""
        self._entries.pop(key, None)

    def _forget_idle(self) -> None:
        since_s = self._clock.monotonic_s() - IDLE_S
        for key, entry in self._entries.copy().items():  # one step, whatever other threads add
            if entry.used_s < since_s:
                self._entries.pop(key, None)
        # Looked through again only when as many have come: a step for each, whatever is in use.
        self._most = max(KEPT, 2 * len(self._entries))
