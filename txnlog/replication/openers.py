"""What lies at a place: a root of a replicated store, its controller, a member, or a standby."""

from __future__ import annotations

import os
from collections.abc import Mapping

from txnlog.clock import Clock
from txnlog.replication import root_names
from txnlog.storage.base import Storage
from txnlog.storage.reach import own_options


def check(storage: Storage) -> None:
    """Raise NotAStore if a folder belongs to one root of a replicated store, whose URL is told.

    It looks like a store: what is written there is acknowledged, and then gone. Servers are asked
    only where the folder is called like a member's. Raises StorageError if it cannot be read.
    """
    last = storage.url.rstrip("/").rpartition("/")[2]
    local = storage.local_path("")
    if local is None and root_names.parse_incarnation_folder(last) is None:
        return
    marks = storage.list_names(root_names.MEMBER_MARKS)
    if marks or root_names.incarnations_around(local):
        from txnlog.replication.roots.members import check_marks, check_outside

        check_marks(storage, storage.url)
        check_outside(storage)


def find(
    url: str | os.PathLike[str],
    options: Mapping[str, object] | None,
    clock: Clock,
    *,
    unsafe_single_writer: bool,
) -> Storage | None:
    """The roots of a replicated store, or a standby; None if it is neither."""
    from txnlog.replication.roots.find_replicas import find_replicas
    from txnlog.replication.standby.standby_storage import find_standby

    # A root on a local disk takes no options: they are for the others then.
    return find_replicas(url, options, clock) or find_standby(
        url, own_options(url, options), unsafe_single_writer=unsafe_single_writer
    )
