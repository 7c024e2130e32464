"""Steps that tests of a store take again and again: begin, append, look, as another process."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pytest

from txnlog import IsolationLevel
from txnlog.admin.maintenance import MaintenanceStep
from txnlog.log.uploads import UploadedSegment
from txnlog.names import TopicPartition
from txnlog.producer import Producer
from txnlog.results import FileDeletion, MaintenanceFailure, TransactionDescription
from txnlog.segments.records import normalize
from txnlog.storage.base import Storage
from txnlog.store import Store, attach
from txnlog.testing import VirtualClock
from txnlog.write.segment_uploads import SegmentUploader

_SEEDS = itertools.count(1)

ANYWHERE = [
    pytest.mark.usefixtures("any_storage"),
    pytest.mark.store(topics={"t": 1, "wide": 4}, on="any_storage"),
]
"""Marks of tests whose ``store`` is on each kind of storage, and has a wide topic, too."""


def new_store(
    storage: Storage,
    clock: VirtualClock | None,
    topics: Mapping[str, int] | None = None,
    config: Mapping[str, object] | None = None,
    topic_config: Mapping[str, str] | None = None,
) -> Store:
    """A new store whose topics have so many partitions; by default one, ``t``, with one."""
    store = attach(storage, create=True, clock=clock, config=config)
    for topic, partitions in ({"t": 1} if topics is None else topics).items():
        store.topics.create(topic, partitions=partitions, config=topic_config)
    return store


def another(store: Store, storage: Storage | None = None) -> Store:
    """The same store, as a process that starts now finds it; maybe through its own storage."""
    return attach(storage or store.storage, clock=store.logs.clock)


def elsewhere(storage: Storage, clock: VirtualClock, ahead_ms: int = 0) -> Store:
    """The same store on another machine, whose clock is so far ahead and then goes by itself."""
    return attach(storage, clock=VirtualClock(clock.time_ms + ahead_ms, next(_SEEDS)))


def append(store: Store, *values: bytes, topic: str = "t", partition: int | None = None) -> None:
    """Append records without a transaction, in one entry."""
    with store.producer() as producer:
        for value in values:
            producer.send(topic, value, partition=partition)


def begin(store: Store, transactional_id: str = "p", timeout_ms: int = 60_000) -> Producer:
    """An initialised producer with an open transaction that holds nothing yet."""
    producer = store.producer(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms)
    producer.init_transactions()
    producer.begin_transaction()
    return producer


def send(producer: Producer, *values: bytes, topic: str = "t", partition: int = 0) -> None:
    """Send records and place them, in one entry."""
    for value in values:
        producer.send(topic, value, partition=partition)
    producer.flush()


def begin_with(
    store: Store,
    transactional_id: str,
    *values: bytes,
    partition: int = 0,
    timeout_ms: int = 60_000,
) -> Producer:
    """A producer with an open transaction that has placed these records of ``t``, one by one."""
    producer = begin(store, transactional_id, timeout_ms)
    for value in values:
        send(producer, value, partition=partition)
    return producer


def begin_with_offsets(
    store: Store, transactional_id: str, offsets: Mapping[TopicPartition, int]
) -> Producer:
    """A producer with an open transaction that has placed these offsets of group ``g``."""
    producer = begin(store, transactional_id)
    producer.send_offsets_to_transaction(dict(offsets), "g")
    assert producer._coordinator is not None
    producer._coordinator.place({}, producer._offsets.take())
    return producer


def stop_before_marking(producer: Producer) -> None:
    """When it has decided its transaction, the producer stops before it marks an entry."""
    assert producer._coordinator is not None
    producer._coordinator._finish_quietly = lambda: None  # type: ignore[method-assign]


def end_batches(producer: Producer, topic: str = "t") -> None:
    """What was sent to a topic becomes batches, which wait, as when memory is short."""
    buffer = producer._records.by_topic[topic]
    buffer.flush_rows()
    if buffer._uploader is not None:
        for segment in buffer._uploader._open.values():
            with buffer._budget._counting(segment):
                segment.writer.flush()


def upload(store: Store, *values: bytes, partition: int = 0) -> list[UploadedSegment]:
    """A segment of topic ``t`` that no entry names yet."""
    uploader = SegmentUploader(store.storage, store.logs.topic_spec("t"), store.logs.clock)
    records = normalize(pa.record_batch({"value": list(values)}), now_ms=1)
    uploader.write(records, np.full(len(values), partition, dtype=np.int32))
    return uploader.finish()


def checkpoint(store: Store, topic: str = "t") -> None:
    """Put a checkpoint at the end of a topic's log, which also cleans behind an older one."""
    log = store.logs.topic(topic)
    log.refresh()
    log.checkpoint()


def values(
    store: Store, topic: str = "t", isolation_level: IsolationLevel = "read_committed"
) -> list[bytes]:
    """The values of a topic, partition by partition."""
    table = store.scan(topic, isolation_level=isolation_level).to_arrow()
    found: list[bytes] = table.column("value").to_pylist()
    return found


def sound_transactions(store: Store) -> list[TransactionDescription]:
    """The store's transactional ids, none of which is damaged."""
    return [*store.transactions.list()]


def maintain(store: Store, *topics: str, **options: bool) -> list[MaintenanceStep]:
    """Run it as a new process; no part fails."""
    steps = another(store).maintain(topics or None, **options)  # type: ignore[arg-type]
    assert not [step for step in steps if isinstance(step, MaintenanceFailure)]
    return steps


def reasons(steps: Sequence[MaintenanceStep]) -> list[str]:
    return [step.reason for step in steps if isinstance(step, FileDeletion)]
