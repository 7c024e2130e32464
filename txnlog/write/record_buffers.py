"""Records sent to any topics and not placed yet, in bounded memory.

Used by a producer between its sends and its flush, and by a Spark transaction for single records.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import Field
from functools import partial
from typing import Any, ClassVar, Final, Protocol, TypeAlias

import pyarrow as pa

from txnlog.config import Acks
from txnlog.errors import InvalidRecord, RecordTooLarge
from txnlog.log.open_logs import Logs
from txnlog.log.uploads import UploadedSegment
from txnlog.segments.records import CONVERSION_ERRORS
from txnlog.write.deliveries import Flush, FutureRecordMetadata, SentBatch
from txnlog.write.record_checks import Headers, Value
from txnlog.write.segment_uploads import UploadBudget
from txnlog.write.topic_buffer import TopicBuffer, WritesAs
from txnlog.write.writer_settings import WriterSettings

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
        """Others tell them. What an interrupt leaves here is refused by :meth:`discard`."""
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
        """Flush what waits for a topic that was recreated, and forget the old one.

        With acks=0 nobody is told that it is refused, and what is sent after it would be, too.
        """
        flush = self._flush()
        if flush is not None:
            flush()
        self.forget(topic)

    def _refresh(self, buffer: TopicBuffer) -> bool:
        """Go on with the topic's newest metadata; returns False if that is what it had."""
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
