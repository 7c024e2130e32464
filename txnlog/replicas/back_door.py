"""A member's folder looks like a store: what is written there is acknowledged, and then gone."""

from __future__ import annotations

from txnlog import root_names
from txnlog.errors import NotAStore
from txnlog.replicas.members import MARK_DECODER
from txnlog.state import envelope
from txnlog.storage.base import Storage
from txnlog.storage.read_only import ReadOnlyStorage


def check_no_member(storage: Storage, *, salvage: bool) -> Storage:
    """A storage that a store may be opened in: not a member's, unless only to look at it.

    Servers are asked only where the folder is called like a member's.

    Raises:
        NotAStore: it belongs to a replicated store, whose URL is told.
        StorageError: it cannot be read.
    """
    if salvage:
        return _Salvaged(storage)
    last = storage.url.rstrip("/").rpartition("/")[2]
    if storage.local_path("") is None and root_names.parse_incarnation_folder(last) is None:
        return storage
    for name in storage.list_names(root_names.MEMBER_MARKS):
        if root_names.is_trim_note(name):
            continue
        path = f"{root_names.MEMBER_MARKS}/{name}"
        mark = envelope.decode(storage.get(path), MARK_DECODER, f"{storage.url}/{path}")
        raise NotAStore(
            f"{storage.url} is what one root of a replicated store holds ({mark.member}), and the "
            f"others would not have what is written there: open the store by {mark.controller}. "
            "To look at this folder alone use txnlog.open(..., salvage=True), which writes nothing"
        )
    return storage


class _Salvaged(ReadOnlyStorage):
    def why_read_only(self) -> str:
        return "it was opened with salvage=True, and can be read only"
