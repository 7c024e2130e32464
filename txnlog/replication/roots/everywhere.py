"""Names that are known to be at every member: they need no second look."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from txnlog.replication.roots.epochs import Epoch
from txnlog.storage.fork_safe_lock import ForkSafeLock

_MOST_NAMES = 100_000


class Everywhere:
    """Names that all members of an epoch were seen to have, while it was the newest one.

    Every later in-sync set has them too: its members are from this one, or copied from it later. An
    unclean election ends that. Forgets the oldest when there are many. Safe to use from several
    threads.
    """

    def __init__(self) -> None:
        self._names: OrderedDict[str, None] = OrderedDict()
        self._unclean = -1
        self._lock = ForkSafeLock()

    def add(self, epoch: Epoch, paths: Iterable[str]) -> None:
        with self._lock.mutex:
            self.follow(epoch)
            if epoch.last_unclean < self._unclean:
                return
            self._names.update(dict.fromkeys(paths))
            while len(self._names) > _MOST_NAMES:
                self._names.popitem(last=False)

    def has(self, path: str) -> bool:
        return path in self._names

    def drop(self, paths: Iterable[str]) -> None:
        with self._lock.mutex:
            for path in paths:
                self._names.pop(path, None)

    def follow(self, epoch: Epoch) -> None:
        """Forget everything if there was an unclean election."""
        with self._lock.mutex:
            if epoch.last_unclean > self._unclean:
                self._names.clear()
                self._unclean = epoch.last_unclean
