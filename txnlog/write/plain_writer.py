"""Places records without a transaction: one entry per topic, recognised if it is repeated.

For producers without a transactional id. With acks=0 it works in a thread of its own, and failures
are only logged.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from txnlog.errors import CommitStateUnknown, StorageError, TxnlogError
from txnlog.log.open_logs import Logs
from txnlog.log.sequence_log import Recent
from txnlog.log.uploads import IdempotentWriter, UploadedSegment
from txnlog.names import TopicPartition
from txnlog.state.producers import ProducerRef
from txnlog.storage.create_once import Retries
from txnlog.storage.threads import submit
from txnlog.write.deliveries import SentBatch, refuse
from txnlog.write.topic_buffer import TopicBuffer

_MAX_QUEUED_FLUSHES = 8
"""How many flushes may be queued with acks=0; the next one waits for the first."""

_logger = logging.getLogger(__name__)
_commits = logging.getLogger("txnlog.commits")
"""Logs flushes without a transaction, as the coordinator's logger does transactions."""


@dataclass(frozen=True, slots=True, eq=False)
class _PendingAppend:
    """Segments of one topic that are uploaded but not placed yet.

    ``since_entry`` is a number that the topic's log had not passed before the first attempt.
    """

    topic: str
    writer: IdempotentWriter
    segments: list[UploadedSegment]
    since_entry: int
    sent: Sequence[SentBatch]


class PlainWriter:
    """Places uploaded segments as one idempotent producer. For one thread at a time."""

    def __init__(self, logs: Logs, retries: Retries) -> None:
        self._logs = logs
        self._retries = retries
        self._pending: list[_PendingAppend] = []
        self._writers = Recent[str, IdempotentWriter](logs.clock)

    def writes_as(self, topic: str) -> ProducerRef:
        """The producer as which records of a topic are written.

        A later one if it is forgotten before they are placed, or what was sent before is given up.
        """
        return self._writer(topic).producer

    def _writer(self, topic: str) -> IdempotentWriter:
        """The topic's writer; another one after a long rest, which costs nothing but a new id."""
        known = self._writers.get(topic)
        if known is None:
            known = self._writers[topic] = IdempotentWriter.new(self._logs.clock.token())
        return known

    def add(
        self, topic: str, segments: list[UploadedSegment], sent: Sequence[SentBatch] = ()
    ) -> None:
        """Add segments of one topic for the next :meth:`place`."""
        since_entry = self._logs.topic(topic).next_entry
        # Kept with them, however long they stay in doubt: they are repeated as they were.
        writer = self._writer(topic)
        self._pending.append(_PendingAppend(topic, writer, segments, since_entry, sent))

    @property
    def waiting(self) -> str | None:
        """The topic that is placed next; None if nothing is pending."""
        return self._pending[0].topic if self._pending else None

    def place(self) -> dict[TopicPartition, range]:
        """Place the pending segments of the first topic.

        Raises CommitStateUnknown: they stay pending, and may have been placed; call again.
        TxnlogError: they were refused. They stay pending, too: give them up.
        """
        waiting = self._pending[0]
        try:
            logs = self._logs
            placed = self._retries.run(logs.clock, logs.storage, lambda: self._place(waiting))
        except StorageError as error:
            raise CommitStateUnknown(
                f"records for topic {waiting.topic!r} may or may not have been written: {error}. "
                "Nothing was deleted; flush() again: what was written is not written twice"
            ) from error
        try:
            self._pending.remove(waiting)  # who is told may flush what is left, or close
            for batch in waiting.sent:
                batch.resolve(waiting.topic, {at: [offsets] for at, offsets in placed.items()})
        except BaseException:  # what an interrupt leaves is recognised, and told
            self._pending = [waiting, *(one for one in self._pending if one is not waiting)]
            raise
        _commits.info(
            "%s: appended, %d records",
            waiting.topic,
            sum(map(len, placed.values())),
            extra={"topic": waiting.topic, "records": sum(map(len, placed.values()))},
        )
        self._logs.tidy([self._logs.topic(waiting.topic)])
        return placed

    def _place(self, waiting: _PendingAppend) -> dict[TopicPartition, range]:
        return (
            self._logs.topic(waiting.topic)
            .place(
                waiting.segments,
                writer=waiting.writer,
                since_entry=waiting.since_entry,
                timeout_ms=self._retries.delivery_timeout_ms,
            )
            .offsets
        )

    def give_up(self, error: TxnlogError) -> None:
        """Drop the pending segments of the first topic, and tell those who wait for them."""
        given_up = self._pending.pop(0)
        # The next append gets a new producer id: it must not be taken for a repeat of this.
        given_up.writer.begin_anew(self._logs.clock.token())
        refuse(given_up.sent, error)

    def close(self) -> None:
        """Fail the futures of what is still pending: its outcome stays unknown."""
        for waiting in self._pending:
            error = CommitStateUnknown(
                f"records for topic {waiting.topic!r} may or may not have been written: their "
                "producer was closed before that was known"
            )
            refuse(waiting.sent, error)
        self._pending = []


class BackgroundWriter:
    """For acks=0: finishes uploads and places them in the background, in order.

    ``on_refusal`` is called by its thread with a topic that has taken no records.
    """

    def __init__(self, plain: PlainWriter, on_refusal: Callable[[str], object]) -> None:
        self._plain = plain
        self._on_refusal = on_refusal
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: deque[Future[None]] = deque()
        self._refused: set[str] = set()

    def submit(self, buffers: Mapping[str, TopicBuffer]) -> None:
        """Take over buffers; the caller must not use them any more."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="txnlog-acks0")
        while self._waiting and (
            self._waiting[0].done() or len(self._waiting) >= _MAX_QUEUED_FLUSHES
        ):
            self._waiting.popleft().result()
        write = partial(self._write, buffers)
        self._waiting.append(submit(self._pool, write, self._waiting))

    def take_refused(self) -> set[str]:
        """Topics that took no records lately: they were recreated, for example."""
        refused = {*self._refused}
        self._refused -= refused
        return refused

    def close(self) -> None:
        """Wait until everything was tried. Failures were only logged."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _write(self, buffers: Mapping[str, TopicBuffer]) -> None:
        try:
            self._finish(buffers)
        except BaseException:
            for buffer in buffers.values():
                buffer.discard()
            raise
        self._place()

    def _finish(self, buffers: Mapping[str, TopicBuffer]) -> None:
        for topic, buffer in buffers.items():
            try:
                segments = buffer.finish()
            except TxnlogError as error:
                _logger.warning("acks=0: records for topic %r are lost: %s", topic, error)
                buffer.discard()
                continue
            if segments:
                self._plain.add(topic, segments, buffer.batches)
                buffer.forget_batches()

    def _place(self) -> None:
        while (waiting := self._plain.waiting) is not None:
            try:
                self._plain.place()
            except CommitStateUnknown as error:
                self._plain.give_up(error)
                _logger.warning("acks=0: %s", error)
            except TxnlogError as error:
                # First: who is told may send more.
                self._refused.add(waiting)
                self._on_refusal(waiting)
                self._plain.give_up(error)
                _logger.warning("acks=0: records for topic %r are lost: %s", waiting, error)
