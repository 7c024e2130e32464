"""What lies at a place: a root of a replicated store, its controller, a member, or a standby."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from txnlog.clock import Clock
from txnlog.errors import NotAStore
from txnlog.replication import root_names
from txnlog.storage import open_storage
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
    _check_marks(storage, storage.url)
    for folder in Path(local).resolve().parents if local is not None else ():
        if root_names.parse_incarnation_folder(folder.name) is not None:
            _check_marks(open_storage(folder), storage.url)


def _check_marks(storage: Storage, url: str) -> None:
    """Raise NotAStore if a folder, with what lies at a URL in it, is a root's own."""
    for name in storage.list_names(root_names.MEMBER_MARKS):
        if root_names.is_trim_note(name):
            continue
        from txnlog.replication.roots.members import MARK_DECODER
        from txnlog.state import envelope

        path = f"{root_names.MEMBER_MARKS}/{name}"
        mark = envelope.decode(storage.get(path), MARK_DECODER, f"{storage.url}/{path}")
        raise NotAStore(
            f"{url} is what one root of a replicated store holds ({mark.member}), and the "
            f"others would not have what is written there: open the store by {mark.controller}. "
            "To look at this folder alone use txnlog.open(..., salvage=True), which writes nothing"
        )


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
