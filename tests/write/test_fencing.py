"""Fencing: what an instance, or a transaction, that was replaced can do no more."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from tests.support.log.settling import settling_early
from tests.support.steps import (
    ANYWHERE,
    another,
    append,
    begin,
    checkpoint,
    elsewhere,
    new_store,
    send,
    values,
)
from tests.support.storage.disturbed_storages import HookedStorage
from txnlog.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    ProducerFenced,
)
from txnlog.names import TopicPartition
from txnlog.segments.records import normalize
from txnlog.storage.base import Storage
from txnlog.store import Store
from txnlog.testing import VirtualClock
from txnlog.write.segment_uploads import SegmentUploader

T0 = TopicPartition("t", 0)


pytestmark = ANYWHERE


@pytest.mark.condition(13, 28)
def test_a_second_instance_fences_the_first(store: Store, clock: VirtualClock) -> None:
    """The first one's send, offsets and commit are refused."""
    first = begin(store, "same")
    send(first, b"first")
    second = begin(elsewhere(store.storage, clock), "same")
    first.send("t", b"late", partition=0)
    with pytest.raises(ProducerFenced):
        first.flush()
    for call in (
        first.commit_transaction,
        first.abort_transaction,
        lambda: first.send("t", b"x"),
        lambda: first.send_offsets_to_transaction({T0: 1}, "g"),
    ):
        with pytest.raises(InvalidTxnState, match="fenced"):
            call()
    send(second, b"second")
    second.commit_transaction()
    assert values(store) == [b"second"]


@pytest.mark.condition(28)
def test_a_fenced_commit_is_refused(store: Store, clock: VirtualClock) -> None:
    """Where the first instance notices only at its decision."""
    first = begin(store, "same")
    send(first, b"first")
    elsewhere(store.storage, clock).producer(transactional_id="same").init_transactions()
    with pytest.raises(ProducerFenced):
        first.commit_transaction()
    assert values(store) == []


@pytest.mark.rule("hazard 4")
def test_a_zombies_append_is_never_seen(store: Store, clock: VirtualClock) -> None:
    """Hazard 4: an entry that comes after its transaction ended stays out, for every reader."""
    first = begin(store, "z")
    send(first, b"in time")
    coordinator = first._coordinator
    assert coordinator is not None
    zombie = coordinator.state.ref
    first.commit_transaction()
    spec = store.logs.topic_spec("t")
    uploader = SegmentUploader(store.storage, spec, clock)
    uploader.write(
        normalize(pa.record_batch({"value": [b"too late"]}), now_ms=1), np.zeros(1, dtype=np.int32)
    )
    store.logs.topic("t").place(uploader.finish(), transaction=zombie)
    assert values(store) == [b"in time"]
    with first.transaction():
        send(first, b"next")
    for reader in (store, elsewhere(store.storage, clock), elsewhere(store.storage, clock)):
        assert values(reader) == [b"in time", b"next"]


def test_a_zombie_that_loses_its_number_learns_of_a_newer_epoch_in_manifests(
    memory_storage: Storage, clock: VirtualClock
) -> None:
    """Its successor's appends were settled meanwhile, so the log alone says nothing."""
    store = new_store(memory_storage, clock)
    append(store, b"first")
    hooked = HookedStorage(store.storage)
    zombie = begin(another(store, hooked), "p")

    def meanwhile(name: str) -> None:
        if not name.startswith("topics/t/log"):
            return
        hooked.rule = None
        with begin(another(store), "p") as successor:
            send(successor, b"successor's")
            successor.commit_transaction()
        for number in range(12):
            append(store, b"%d" % number)
        checkpoint(another(store))

    hooked.rule = meanwhile
    with settling_early():
        with pytest.raises(InvalidProducerEpoch):
            send(zombie, b"zombie's")
        assert b"zombie's" not in values(another(store), isolation_level="read_uncommitted")
        assert not [found for found in store.examine() if found.state == "damage"]
