"""Writers wake readers that wait in the same process.

Only a hint that saves waiting: readers also look by themselves, and so find what other processes
write.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Iterable

from txnlog.clock import Signal
from txnlog.storage.fork_safe_lock import ForkSafeLock

_LOCK = ForkSafeLock()
_WAITING: defaultdict[str, weakref.WeakSet[Signal]] = defaultdict(weakref.WeakSet)
"""By the store's URL, without credentials. Two stores of one URL may wake each other needlessly."""


def listen(url: str, event: Signal) -> None:
    """Set this event whenever a writer of this process has appended to a topic of the store."""
    with _LOCK.mutex:
        for left in [known for known, waiting in _WAITING.items() if not waiting]:
            del _WAITING[left]
        _WAITING[url].add(event)


def announce(url: str) -> None:
    """Something was appended to a topic of this store, or has been decided there."""
    with _LOCK.mutex:
        waiting: Iterable[Signal] = list(_WAITING.get(url, ()))
    for event in waiting:
        event.set()
