"""A member's folder looks like a store: what is written there is acknowledged, and then gone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

from txnlog import root_names
from txnlog.errors import NotAStore, StorageError
from txnlog.replicas.members import MARK_DECODER
from txnlog.state import envelope
from txnlog.storage.base import Storage, UnfinishedUpload, Upload
from txnlog.storage.forwarding import ForwardingStorage


def check_no_member(storage: Storage, *, salvage: bool) -> Storage:
    """A storage that a store may be opened in: not a member's, unless only to look at it.

    Servers are asked only where the folder is called like a member's.

    Raises:
        NotAStore: it belongs to a replicated store, whose URL is told.
        StorageError: it cannot be read.
    """
    if salvage:
        return ReadOnly(storage)
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


class ReadOnly(ForwardingStorage):
    """Refuses whatever changes the store."""

    def _refuse(self) -> NoReturn:
        error = StorageError(f"{self.url} was opened with salvage=True: it can be read only")
        error.retriable = False
        raise error

    def put_if_absent(self, name: str, data: bytes) -> bool:  # noqa: ARG002
        self._refuse()

    def put_decided(self, name: str, data: bytes) -> bool:  # noqa: ARG002
        self._refuse()

    def put(self, name: str, data: bytes) -> None:  # noqa: ARG002
        self._refuse()

    def replace(self, name: str, data: bytes) -> None:  # noqa: ARG002
        self._refuse()

    def upload(self, name: str) -> Upload:  # noqa: ARG002
        self._refuse()

    def delete(self, names: Iterable[str]) -> None:
        for _ in names:
            self._refuse()

    def abort_uploads(self, uploads: Iterable[UnfinishedUpload]) -> None:
        for _ in uploads:
            self._refuse()
