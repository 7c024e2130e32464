"""What roots had when they left the set, for purges: nothing is deleted there."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from txnlog.admin.vacuum import list_segment_files
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
