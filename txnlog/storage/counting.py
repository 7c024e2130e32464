"""Counts the requests to a storage: a measure of cost that is the same on every machine.

Knows nothing of their purpose, nor how many HTTP requests an adapter makes for one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

from txnlog.storage.base import Storage
from txnlog.storage.fork_safe_lock import ForkSafeLock
from txnlog.storage.forwarding import RequestStorage

T = TypeVar("T")

_AT_ONCE = ("delete", "abort_uploads")


class CountingStorage(RequestStorage):
    """Forwards everything and counts it by kind: ``counts["put_if_absent"]`` and so on.

    An upload counts as one request, a deletion of any number of objects as one, as does aborting
    uploads; reading many objects, or ranges, is a ``get`` or ``get_range`` for each, and
    ``put_decided`` a ``put_if_absent``. Requests to its view without fsync count here
    too.
    """

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.counts: Counter[str] = Counter()
        self._lock = ForkSafeLock()

    def __reduce__(self) -> tuple[type[CountingStorage], tuple[Storage]]:
        return CountingStorage, (self.inner,)

    def beside(self, inner: Storage) -> CountingStorage:
        """Another storage, whose requests are counted together with those of this one."""
        other = CountingStorage(inner)
        other.counts, other._lock = self.counts, self._lock
        return other

    def seen(self) -> dict[str, int]:
        """The counts so far, in the order of the kinds' names."""
        with self._lock.mutex:
            return dict(sorted(self.counts.items()))

    def _request(
        self,
        kind: str,
        names: Sequence[str],
        call: Callable[[], T],
        size_bytes: int = 0,  # noqa: ARG002
    ) -> T:
        with self._lock.mutex:
            self.counts[kind] += 1 if kind in _AT_ONCE else len(names)
        return call()

    def take(self) -> dict[str, int]:
        """The counts since the last call, in the order of the kinds' names."""
        with self._lock.mutex:
            taken = dict(sorted(self.counts.items()))
            self.counts.clear()
        return taken
