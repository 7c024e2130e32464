"""Writers that are not the first, so that they propose, and are placed together."""

from __future__ import annotations

import pytest

from tests.support.steps import another, append, upload
from tests.support.storage.disturbed_storages import HookedStorage
from txnlog import names
from txnlog.log.uploads import Appended, IdempotentWriter, UploadedSegment
from txnlog.state.transaction import TransactionRef
from txnlog.store import Store
from txnlog.testing import ProcessStopped

LOG, PROPOSALS = names.topic_log("t"), names.topic_proposals("t")


class Losing(HookedStorage):
    """A process's storage: somebody else takes the first entry number that it tries to put.

    With ``dies`` the process stops when it has put its proposal.
    """

    def __init__(self, store: Store, *, dies: bool = False) -> None:
        super().__init__(store.storage)
        self.dies = dies
        self.rule = lambda name: self.be_faster(store, name)

    def be_faster(self, store: Store, name: str) -> None:
        if name.startswith(LOG):
            self.rule = None
            append(another(store), b"faster", partition=0)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        created = super().put_if_absent(name, data)
        if self.dies and name.startswith(PROPOSALS):
            self.stopped = True
        return created


def place(
    store: Store,
    value: bytes,
    writer: IdempotentWriter | None = None,
    *,
    partition: int = 0,
    segments: list[UploadedSegment] | None = None,
) -> Appended:
    """Append a record as a writer that was not the first, so that it proposes, and looks again."""
    process = another(store, Losing(store))
    segments = segments or upload(store, value, partition=partition)
    return process.logs.topic("t").place(segments, writer=writer)


def propose(
    store: Store,
    value: bytes,
    writer: IdempotentWriter | None = None,
    *,
    partition: int = 0,
    transaction: TransactionRef | None = None,
) -> list[UploadedSegment]:
    """Leave the proposal of a writer that is not there any more. What it has uploaded."""
    process = another(store, Losing(store, dies=True))
    segments = upload(store, value, partition=partition)
    with pytest.raises(ProcessStopped):
        process.logs.topic("t").place(segments, writer=writer, transaction=transaction)
    return segments
