"""What a producer holds between calls: records and offsets that are not placed yet, and its lock.

Used between its sends and its flush or commit, and by a Spark transaction for single records;
memory is bounded. Threads may share a producer, one at a time in any of its methods. Processes may
not: in a forked child a producer is still the parent's, and refuses.
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import Field
from functools import partial, wraps
from typing import Any, ClassVar, Concatenate, Final, ParamSpec, Protocol, TypeAlias, TypeVar

import pyarrow as pa

from txnlog.config import Acks
from txnlog.errors import CommitFailed, ForkedProducer, InvalidRecord, RecordTooLarge
from txnlog.log.group_metadata import GroupMetadata, OffsetAndMetadata
from txnlog.log.open_logs import Logs
from txnlog.log.uploads import UploadedSegment
from txnlog.names import TopicPartition, check_group_id
from txnlog.segments.records import CONVERSION_ERRORS
from txnlog.state.group import OffsetCommit
from txnlog.state.membership import Committer
from txnlog.write.deliveries import Flush, FutureRecordMetadata, SentBatch
from txnlog.write.record_checks import Headers, Value
from txnlog.write.segment_uploads import UploadBudget
from txnlog.write.topic_buffer import TopicBuffer, WriterSettings, WritesAs


class ProducerLock:
    """The one lock of a producer, and the process that the producer belongs to.

    ``noun``: its name in messages, if users do not see it as a producer.
    """

    def __init__(self, noun: str = "producer") -> None:
        self._noun = noun
        self.mutex = threading.RLock()
        self._process_id = os.getpid()
        self.inherited = False
        """Whether this process is a fork of the one that made the producer."""
        _LOCKS.add(self)

    def check(self) -> None:
        """Raise ForkedProducer in a child, where the mutex may be locked for ever."""
        if self.inherited:
            raise ForkedProducer(
                f"this {self._noun} belongs to process {self._process_id}, and this is its child "
                f"{os.getpid()}: both would write as one producer. Nothing was done here, and "
                f"nothing of the parent's is lost; make a new {self._noun} in the child"
            )


_LOCKS: weakref.WeakSet[ProducerLock] = weakref.WeakSet()


def _after_fork() -> None:
    # Stored once, so that not every send looks up the process's id.
    for lock in list(_LOCKS):
        lock.inherited = True


os.register_at_fork(after_in_child=_after_fork)


class Locked(Protocol):
    """Has one lock for all of its methods."""

    _lock: ProducerLock


LockedT = TypeVar("LockedT", bound=Locked)
P = ParamSpec("P")
T = TypeVar("T")


def exclusive(
    method: Callable[Concatenate[LockedT, P], T],
) -> Callable[Concatenate[LockedT, P], T]:
    """A method that waits until no other thread is in a method that is marked with this.

    It raises ForkedProducer in a child of the process that the producer belongs to.
    """

    @wraps(method)
    def waiting(self: LockedT, /, *args: P.args, **kwargs: P.kwargs) -> T:
        self._lock.check()
        with self._lock.mutex:
            return method(self, *args, **kwargs)

    return waiting


_REFUSALS: Final = (InvalidRecord, RecordTooLarge)
"""What a topic refuses records with, by its schema, settings and partitions."""
_JUDGED_S = 1.0
"""How long records are refused by a topic that was looked at because of one, and was as known:
senders that skip what is refused would pay a request for each.
"""
_KEPT_TOPICS = 100
"""So many topics are always known, and of more those with metadata that is not outdated."""
_INSTEAD: Final = {
    "LazyFrame": "its collect() makes a frame",
    "dict": "pyarrow.table() makes a table of columns, send() takes one record",
}
"""Advice for common wrong arguments instead of a batch, by class name."""


class SupportsArrow(Protocol):
    """Objects with Arrow's PyCapsule interface, from which Arrow can make a table."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object: ...


class IsDataclass(Protocol):
    """Instances of any dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


Batch: TypeAlias = SupportsArrow | Sequence[Mapping[str, Any] | IsDataclass]
"""What ``send_batch`` takes: columns, or a list of records."""


class RecordBuffers:
    """A buffer for each topic, all within one budget. For one thread at a time.

    ``by_topic`` are those of topics that were sent to, see :meth:`Producer.send`.
    """

    def __init__(
        self,
        logs: Logs,
        writes_as: WritesAs,
        settings: WriterSettings | None = None,
        *,
        flush: Flush = lambda: None,
    ) -> None:
        self._logs = logs
        self._writes_as = writes_as
        self._flush = flush
        self._settings = settings or WriterSettings()
        self._budget = UploadBudget(self._settings.memory_bytes)
        self.by_topic: dict[str, TopicBuffer] = {}
        self._most = _KEPT_TOPICS
        self._interrupted = False
        self._monotonic_s = logs.clock.monotonic_s

    @property
    def lost(self) -> bool:
        """True once an error has lost records that were sent."""
        return self._interrupted or any(buffer.lost for buffer in self.by_topic.values())

    def send(
        self,
        topic: str,
        value: Value,
        key: bytes | str | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
    ) -> FutureRecordMetadata:
        """Take one record. Raises UnknownTopicOrPartition, InvalidRecord, RecordTooLarge."""
        buffer = self.by_topic.get(topic)
        if buffer is None or buffer.outdated:
            buffer = self._buffer_of(topic)
        try:
            return buffer.send(value, key, partition, timestamp_ms, headers)
        except _REFUSALS:
            if not self._has_changed(buffer):
                raise
        return buffer.send(value, key, partition, timestamp_ms, headers)

    def batches(self, topic: str) -> list[SentBatch]:
        """Those in segments that :meth:`finish` has returned, until :meth:`forget_batches`."""
        return self.by_topic[topic].batches

    def forget_batches(self, topic: str) -> None:
        """Let go of a topic's batches whose futures are answered by others.

        Batches that an interrupt leaves here are refused by :meth:`discard`.
        """
        self.by_topic[topic].forget_batches()

    def send_batch(self, topic: str, batch: Batch, partition: int | None = None) -> None:
        """Take a whole batch. Raises UnknownTopicOrPartition, InvalidRecord, RecordTooLarge."""
        buffer = self._buffer_of(topic)
        if isinstance(batch, list | tuple):
            sending = partial(buffer.send_rows, batch, partition)
        else:
            sending = partial(buffer.send_batches, _to_batches(batch), partition)
        try:
            sending()
        except _REFUSALS:
            if not self._has_changed(buffer):
                raise
            sending()

    def _buffer_of(self, topic: str) -> TopicBuffer:
        """The topic's buffer. Its metadata is refreshed once in a while."""
        if topic not in self.by_topic:
            with self._settings.retries.waiting(self._logs.storage):
                spec = self._logs.topic_spec(topic)
            if len(self.by_topic) >= self._most:
                self._forget_idle()
            self.by_topic[topic] = TopicBuffer(
                self._logs, spec, self._settings, self._budget, self._writes_as, self._flush
            )
        buffer = self.by_topic[topic]
        if buffer.outdated:
            self._refresh(buffer)
            if self._settings.acks is Acks.NONE and not buffer.is_current():
                self._let_wait_no_longer(topic)
                return self._buffer_of(topic)
        return buffer

    def _let_wait_no_longer(self, topic: str) -> None:
        """Flush records that wait for a topic that was recreated, and forget the old topic.

        With acks=0 nobody is told that they are refused, and later records would be refused, too.
        """
        flush = self._flush()
        if flush is not None:
            flush()
        self.forget(topic)

    def _refresh(self, buffer: TopicBuffer) -> bool:
        """Fetch the topic's newest metadata for a buffer; returns whether they have changed."""
        with self._settings.retries.waiting(self._logs.storage):
            spec = buffer.refresh_spec()
        if spec == buffer.spec:
            return False
        buffer.change_spec(spec)
        return True

    def _has_changed(self, buffer: TopicBuffer) -> bool:
        """Whether what was refused may be sent again: the topic is not as it was judged by.

        It was altered, or recreated. Not if the refusal has lost any records, and not again just
        after a look that has found it as it was.
        """
        if buffer.lost or self._monotonic_s() < buffer.judged_until_s:
            return False
        if self._refresh(buffer):
            return True
        if buffer.is_current():  # else it was recreated, and is taken once nothing waits
            buffer.judged_until_s = self._monotonic_s() + _JUDGED_S
        return False

    def _forget_idle(self) -> None:
        """Forget topics that nothing was sent to lately: a producer may meet any number of them."""
        for topic, buffer in [*self.by_topic.items()]:
            if buffer.outdated and buffer.is_empty:
                self.forget(topic)
        self._most = max(_KEPT_TOPICS, 2 * len(self.by_topic))

    def finish(self) -> dict[str, list[UploadedSegment]]:
        """Upload all buffers; returns segments by topic, in the order they are to be placed."""
        finished: dict[str, list[UploadedSegment]] = {}
        self._interrupted = True
        for buffer in self.by_topic.values():
            buffer.upload()  # all of them before any is returned: if one fails, all are discarded
        for topic, buffer in self.by_topic.items():
            if segments := buffer.finish():
                finished[topic] = segments
        self._interrupted = False
        return finished

    def hand_over(self, refused: Collection[str]) -> dict[str, TopicBuffer]:
        """Hand over all buffers; new ones keep the metadata of topics that were not refused."""
        for buffer in self.by_topic.values():
            buffer.flush_rows()
        handed, self._budget = self.by_topic, UploadBudget(self._settings.memory_bytes)
        kept = {name: buffer for name, buffer in handed.items() if name not in refused}
        self.by_topic = {name: buffer.successor(self._budget) for name, buffer in kept.items()}
        return handed

    def forget(self, topic: str) -> None:
        """Forget a topic's metadata; nothing is buffered for it."""
        self.by_topic.pop(topic, None)

    def look_again(self, topic: str) -> None:
        """Look at a topic's metadata with its next record, however new it is. By any thread."""
        buffer = self.by_topic.get(topic)
        if buffer is not None:
            buffer.fresh_until_s = -math.inf

    def follow(self, topics: Iterable[str]) -> None:
        """Go on with topics as they are known by now; those that were recreated are forgotten."""
        for topic in topics:
            buffer = self.by_topic.get(topic)
            if buffer and not buffer.follow():
                self.forget(topic)

    def unsent(self) -> dict[str, int]:
        """How many records wait here, by topic."""
        counts = {topic: buffer.record_count for topic, buffer in [*self.by_topic.items()]}
        return {topic: count for topic, count in counts.items() if count}

    def refuse_batches(self) -> None:
        """Tell those who wait for records that these are not written any more."""
        for buffer in [*self.by_topic.values()]:
            buffer.refuse_batches()

    def discard(self) -> None:
        """Drop everything, best effort."""
        self._interrupted = False
        for buffer in self.by_topic.values():
            buffer.discard()


def _to_batches(batch: object) -> list[pa.RecordBatch]:
    """Convert to Arrow batches. Raises InvalidRecord."""
    if isinstance(batch, pa.RecordBatch):
        return [batch]
    if isinstance(batch, pa.Table):
        batches: list[pa.RecordBatch] = batch.to_batches()
        return batches
    if not hasattr(batch, "__arrow_c_stream__") and not hasattr(batch, "__arrow_c_array__"):
        instead = _INSTEAD.get(type(batch).__name__)
        hint = f"; {instead}" if instead else ""
        raise InvalidRecord(
            "send_batch takes a pyarrow RecordBatch or Table, what supports Arrow's PyCapsule "
            "interface as the frames of pandas and Polars do, or a list of mappings or "
            f"dataclasses, not {type(batch).__name__}{hint}"
        )
    try:
        return list(pa.table(batch).to_batches())
    except CONVERSION_ERRORS as error:
        raise InvalidRecord(f"the {type(batch).__name__} cannot be made Arrow: {error}") from error


class SentOffsets:
    """The offsets of one transaction at a time.

    ``committers`` has, by group, the member whose offsets are committed, in the oldest generation
    it told.
    """

    def __init__(self) -> None:
        self.committers: dict[str, Committer] = {}
        self._waiting: dict[str, dict[TopicPartition, OffsetCommit]] = {}
        self._moves: list[tuple[GroupMetadata, dict[TopicPartition, int]]] = []

    def add(
        self, metadata: GroupMetadata, chosen: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> None:
        """Add offsets of a group, or none of them. Raises CommitFailed."""
        waiting = dict(self._waiting.get(metadata.group_id, {}))
        for where, at in chosen.items():
            start, entry = metadata.start_of(where)
            if before := waiting.get(where):
                start, entry = before.start, before.start_entry
            waiting[where] = OffsetCommit(
                topic=where.topic,
                partition=where.partition,
                offset=at.offset,
                metadata=at.metadata,
                compare=True,
                start=start,
                topic_id=metadata.topic_ids.get(where.topic, ""),
                start_entry=entry,
            )
        # All at once, or an interrupt leaves some of them to be committed.
        self._waiting[metadata.group_id] = waiting
        self._note_committer(metadata)
        self._moves.append((metadata, {where: at.offset for where, at in chosen.items()}))

    def _note_committer(self, metadata: GroupMetadata) -> None:
        known, found = self.committers.get(metadata.group_id), metadata.committer
        if found is None or (known is not None and known.member_id != found.member_id):
            if known is not None:
                raise CommitFailed(
                    f"offsets of group {metadata.group_id!r} were read by several consumers: "
                    "commit those of each in a transaction of its own"
                )
        elif known is None or found.generation < known.generation:
            self.committers[metadata.group_id] = found

    def take(self) -> dict[str, list[OffsetCommit]]:
        """Take the waiting offsets, by group; none wait afterwards."""
        taken = {group: list(waiting.values()) for group, waiting in self._waiting.items()}
        self._waiting = {}
        return {group: offsets for group, offsets in taken.items() if offsets}

    def note_commit(self, entries: Mapping[str, int]) -> None:
        """The transaction is committed: consumers learn of it. ``entries``: by group."""
        for metadata, offsets in self._moves:
            metadata.moved(offsets, entries.get(metadata.group_id))
        self.end()

    def end(self) -> None:
        """The transaction has ended."""
        self._moves = []
        self.committers = {}

    def drop(self) -> None:
        """Drop the waiting offsets."""
        self._waiting = {}


def group_now(
    logs: Logs, partitions: Collection[TopicPartition], group: str | GroupMetadata
) -> GroupMetadata:
    """The group's metadata; read now if only the group's id is given.

    Raises UnknownTopicOrPartition if a topic or partition does not exist; a consumer's metadata has
    only what it has read.
    """
    if isinstance(group, GroupMetadata):
        return group
    topics = sorted({where.topic for where in partitions})
    topic_ids = {topic: logs.topic_spec(topic).topic_id for topic in topics}
    logs.check_partitions(partitions, topic_ids)
    log = logs.fresh_group(check_group_id(group))
    with log.lock:
        return GroupMetadata.of(log.state, group, partitions, topic_ids)
