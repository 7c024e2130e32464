"""The data files that a log does not need: what they held was purged, compacted or merged, say.

And those that roots had when they left the set, for purges: nothing is deleted there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from threading import Lock
from typing import Final

from txnlog import names
from txnlog.admin.live_segments import (
    kept_for_import,
    kept_for_lost,
    placed_files,
    rewritten_files,
)
from txnlog.admin.vacuum import LEAST_ORPHAN_AGE_MS, list_segment_files
from txnlog.errors import TxnlogError
from txnlog.log.open_logs import Logs
from txnlog.names import FileKey
from txnlog.replication.roots.agreement import MemberFailed
from txnlog.replication.roots.epochs import Member, root_of
from txnlog.replication.roots.members import without_mark
from txnlog.replication.roots.old_incarnations import check_root, old_incarnations
from txnlog.replication.roots.replicated_storage import ReplicatedStorage, find_replicated
from txnlog.replication.roots.slowness import time_for
from txnlog.storage.base import Storage

_ANY: Final = ""
"""The name of a file of which nothing is known."""


@dataclass(frozen=True, slots=True)
class _Told:
    """The files that a topic's log says were replaced, and those that it needs.

    Any other file that was put before ``unplaced_since_ms`` is not needed either: no writer will
    place it any more.
    """

    replaced: AbstractSet[names.FileKey] = frozenset()
    needed: AbstractSet[names.FileKey] = frozenset()
    unplaced_since_ms: int | None = None


class ReplacedData:
    """Tells such files by the log. Remembers those of the topic asked for last.

    For several threads.

    Vacuum has deleted them, or will. What a trim has released the log does not tell for ever, nor
    what was replaced a while ago: so it goes by age, as an orphan does.
    """

    def __init__(self, logs: Logs) -> None:
        self._logs = logs
        self._lock = Lock()
        self._topic = ""
        self._told = _Told()

    def __call__(self, storage: Storage, name: str) -> bool:
        """Raises ObjectNotFound, StorageError."""
        parsed = names.parse_data_file(name)
        if parsed is None:
            return False
        partition, stem, _ = parsed
        topic = name.split("/")[1]
        with self._lock:
            if topic != self._topic:
                self._topic, self._told = topic, self._read(topic)
            told = self._told
        if (partition, stem) in told.replaced:
            return True
        if told.unplaced_since_ms is None or not told.needed.isdisjoint(
            [(partition, stem), (partition, _ANY)]
        ):
            return False
        put_ms = storage.modified_ms(name)
        return put_ms is not None and put_ms <= told.unplaced_since_ms

    def _read(self, topic: str) -> _Told:
        """Nothing, if the log cannot be read."""
        # Logs of its own: what it takes in memory is let go of.
        logs = Logs(self._logs.storage, self._logs.config, self._logs.clock)
        try:
            there = {*list_segment_files(logs.storage, topic)}
            log = logs.topic(topic)
            log.refresh()
            state = log.whole_segments()
        except TxnlogError:
            return _Told()
        if log.next_entry == 0:
            return _Told()  # it may be lost
        there.update((n, _ANY) for n in (names.SHARED, *range(len(state.partitions))))
        kept = kept_for_lost(state, there, log.manifests.left_out_rewrites())
        kept |= kept_for_import(state)
        # One clock that is ahead must not let go of what a writer is about to place.
        now_ms = min(logs.clock.now_ms(), state.log_time_ms)
        return _Told(
            rewritten_files(topic, state) - kept,
            kept | placed_files(topic, state),
            now_ms - LEAST_ORPHAN_AGE_MS,
        )


def list_old_copies(logs: Logs, topic: str) -> Iterator[tuple[Member, Collection[FileKey] | None]]:
    """The files of a topic's data in each old incarnation; None: its root does not answer.

    Raises StorageError: the controller fails.
    """
    storage = find_replicated(logs.storage)
    if storage is None:
        return
    for root in sorted(storage.agreement.refresh().roots):
        yield from _of_root(storage, root, topic)


def _of_root(
    storage: ReplicatedStorage, root: str, topic: str
) -> Iterator[tuple[Member, Collection[FileKey] | None]]:
    agreement, epoch = storage.agreement, storage.agreement.epoch()

    def look() -> tuple[Member, ...]:
        check_root(storage, epoch, root)
        return old_incarnations(storage, epoch, root)

    def listing(storage: Storage) -> Collection[FileKey]:
        return list_segment_files(without_mark(storage), topic).keys()

    try:
        old = agreement.slowness.ask(root, look, time_for(epoch))
    except TxnlogError:
        for member in epoch.left:
            if root_of(member) == root:
                yield member, None
        return
    # One that was not forgotten whole has no mark any more.
    for member in old:
        try:
            yield member, agreement.ask(epoch, member, listing)
        except (MemberFailed, TxnlogError):
            yield member, None
