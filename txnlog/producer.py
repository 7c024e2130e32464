"""The producer: buffers records, uploads them as segments, places them, alone or in transactions.

``send`` and ``send_batch`` only buffer. ``flush`` uploads and places what is buffered: at once
visible without a transactional id, visible with the commit otherwise. Like Kafka's producer it
may be shared by threads: its calls take turns.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import chain
from typing import NoReturn, Self, TypeVar

from txnlog.arguments import names_wrong_arguments
from txnlog.config import Acks
from txnlog.display import shorten
from txnlog.errors import (
    CommitStateUnknown,
    IllegalState,
    InvalidOption,
    InvalidTxnState,
    TxnlogError,
)
from txnlog.log.group_metadata import GroupMetadata, OffsetAndMetadata, check_offset
from txnlog.log.open_logs import Logs
from txnlog.log.uploads import UploadedSegment
from txnlog.metric import Meter, Metric
from txnlog.names import TopicPartition, check_topic
from txnlog.serializers import Serializers
from txnlog.state.group import OffsetCommit
from txnlog.state.transaction import Outcome, Version, check_version
from txnlog.write.coordinator import Coordinator
from txnlog.write.deliveries import FutureRecordMetadata, refusing
from txnlog.write.linger import Linger, tell_unsent
from txnlog.write.plain_writer import BackgroundWriter, PlainWriter
from txnlog.write.record_buffers import (
    Batch,
    ProducerLock,
    RecordBuffers,
    SentOffsets,
    exclusive,
    group_now,
)
from txnlog.write.record_checks import Headers
from txnlog.write.topic_buffer import BYTES_PER_BATCH, ROWS_PER_BATCH, WriterSettings, WritesAs

_logger = logging.getLogger(__name__)

Placed = dict[TopicPartition, list[range]]
DecidedT = TypeVar("DecidedT")


@dataclass(frozen=True, slots=True)
class BeginResult:
    """What became of ``begin_transaction``.

    ``already_committed``: this version, or a greater one, was committed before. Then no
    transaction was begun, and there is nothing to do.
    """

    already_committed: bool = False


class Phase(Enum):
    """A producer's phase. The values are for messages."""

    NEW = "not initialised"
    READY = "ready"
    IN_TRANSACTION = "in a transaction"
    FAILED = "in a transaction that can only be aborted"
    UNKNOWN = "in a transaction whose outcome is unknown"
    FENCED = "fenced"
    BROKEN = "broken: what was sent since the last flush is lost"
    CLOSED = "closed"

    def refusal(self, call: str) -> TxnlogError:
        """The error of a call that does not fit this phase."""
        if self is Phase.CLOSED:
            return IllegalState(f"{call}(): the producer is closed")
        return InvalidTxnState(f"{call}(): the producer is {self.value}; {_HINTS[self]}")


_HINTS = {
    Phase.NEW: "call init_transactions() first",
    Phase.READY: "call begin_transaction() first",
    Phase.IN_TRANSACTION: "commit or abort it first",
    Phase.FAILED: "call abort_transaction()",
    Phase.UNKNOWN: "call commit_transaction() or abort_transaction() again",
    Phase.FENCED: "close it; a newer instance has its transactional id",
    Phase.BROKEN: "make a new producer, and send again what was not flushed",
}


@names_wrong_arguments("send")
class Producer:
    """Writes records to topics. Made by :meth:`txnlog.Store.producer`.

    With a transactional id: ``init_transactions`` once, then ``begin_transaction``, sends, and
    ``commit_transaction`` or ``abort_transaction``. Without: ``send`` and ``flush``; each flush
    is atomic per topic. A context manager that closes; closing flushes, or aborts what is open.

    May be shared by threads: their calls take turns, and they share its one transaction. It
    cannot be shared by processes: in a forked child every call raises ForkedProducer, and closing
    does nothing.
    """

    def __init__(
        self,
        logs: Logs,
        settings: WriterSettings,
        *,
        transactional_id: str | None,
        transaction_timeout_ms: int,
        serializers: Serializers | None = None,
    ) -> None:
        logs.storage.will_write()
        self._logs = logs
        self._monotonic_s = logs.clock.monotonic_s
        self._serializers = serializers
        self._retries = settings.retries
        self._plain = PlainWriter(logs, settings.retries)
        self._lock = ProducerLock()
        self._coordinator: Coordinator | None = None
        writes_as: WritesAs = self._plain.writes_as
        if transactional_id is not None:
            coordinator = Coordinator(logs, transactional_id, transaction_timeout_ms)
            self._coordinator, writes_as = coordinator, lambda _: coordinator.state.ref
        self._records = RecordBuffers(
            logs, writes_as, settings, flush=weakref.WeakMethod(self.flush)
        )
        self._background = (
            BackgroundWriter(self._plain, self._records.look_again)
            if settings.acks is Acks.NONE
            else None
        )
        self._phase = Phase.READY if transactional_id is None else Phase.NEW
        self._sending = Phase.READY if transactional_id is None else Phase.IN_TRANSACTION
        """The phase in which records may be sent."""
        self._offsets = SentOffsets()
        self._placed: Placed = {}
        self._last_outcome: Outcome | None = None
        self._linger = Linger.of(settings.linger_ms, logs, self._flush_lingering)
        self._late: Exception | None = None
        """The error of a flush by ``linger_ms``, for the next call."""
        # With acks=0 a thread of its own goes on with what is pending.
        pending = None if self._background else self._plain
        self._end = weakref.finalize(
            self, tell_unsent, self._records, self._lock, self._linger, pending
        )
        self._version: Version | None = None
        self._meter = Meter("txnlog_producer", logs.clock)

    # -- the context -----------------------------------------------------------------------------

    def __repr__(self) -> str:
        name = self._coordinator.transactional_id if self._coordinator else None
        return f"Producer(transactional_id={name!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a producer belongs to its process: send the store, and make another one there"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(flush=kind is None)

    def close(self, *, flush: bool = True) -> None:
        """Flush (without a transactional id) or abort an open transaction, and finish.

        A transaction whose outcome is unknown is left to the next ``init_transactions``. With
        acks=0 it waits until every upload has succeeded or failed. In a forked child process it
        does nothing: the producer belongs to the parent.
        """
        if not self._lock.inherited:
            self._close(flush=flush)

    @exclusive
    def _close(self, *, flush: bool) -> None:
        if self._phase is Phase.CLOSED:
            return
        if self._linger is not None:
            self._linger.end()
        late, self._late = self._late, None
        try:
            if self._coordinator is None and flush and self._phase is Phase.READY:
                self._flush()
                if isinstance(late, CommitStateUnknown):
                    late = None  # what was unknown is written now
            elif self._phase in (Phase.IN_TRANSACTION, Phase.FAILED):
                self.abort_transaction()
            if flush and late is not None:
                raise late
        finally:
            if self._background is not None:
                self._background.close()
            self._plain.close()
            self._discard()
            self._phase = Phase.CLOSED
            self._end.detach()

    # -- transactions ----------------------------------------------------------------------------

    @exclusive
    def init_transactions(self) -> None:
        """Take over the transactional id: end what an older instance left open, and fence it.

        Raises:
            InvalidTxnState: it was called before, or there is no transactional id.
            StorageError: the storage failed; call it again.
        """
        coordinator = self._transactional("init_transactions")
        if self._phase is not Phase.NEW:
            raise InvalidTxnState(
                f"init_transactions() was called before; it is {self._phase.value}"
            )
        self._retries.run(self._logs.clock, self._logs.storage, coordinator.initialize)
        self._phase = Phase.READY

    @exclusive
    def begin_transaction(
        self, *, application_id: str | None = None, version: int | None = None
    ) -> BeginResult:
        """Begin a transaction. Nothing is written before the first flush or the commit.

        With an application id and a version the commit is idempotent: the version, such as the
        number of a batch, is stored with the transactional id, and a batch that is repeated is
        recognised.

            begun = producer.begin_transaction(application_id="stream", version=batch_id)
            if not begun.already_committed:
                ...
                producer.commit_transaction()

        Args:
            application_id: whose version it is; each application counts its own.
            version: 0 or more; it must grow with each commit of the application: one that comes
                after a greater one counts as committed. Give runs that may come in any order,
                such as a day's that is repeated after the next, an application id each.

        Returns:
            Whether this version, or a greater one, was committed already.
        """
        coordinator = self._transactional("begin_transaction")
        self._require(Phase.READY, "begin_transaction")
        self._version = check_version(application_id, version)
        if self._version is not None and self._version.is_committed(coordinator.state.versions):
            return BeginResult(already_committed=True)
        coordinator.start()
        self._placed = {}
        self._phase = Phase.IN_TRANSACTION
        return BeginResult()

    @exclusive
    def committed_version(self, application_id: str) -> int | None:
        """The last version that an application has committed with this transactional id."""
        coordinator = self._transactional("committed_version")
        if self._phase is Phase.NEW:
            self._require(Phase.READY, "committed_version")
        return coordinator.state.versions.get(application_id)

    @exclusive
    def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        group: str | GroupMetadata,
    ) -> None:
        """Commit a group's offsets together with the transaction.

        Args:
            offsets: the next offset to read, by partition, with or without metadata.
            group: ``consumer.group_metadata()``, which knows where the consumer began: if
                the group's offsets have moved since, the commit is refused. With only a group
                id they are compared with what they are now.

        Raises:
            UnknownTopicOrPartition: only a group id was given, and a topic or one of the partitions
                does not exist.
            CommitFailed: raised at the commit, if the group's offsets have moved.
        """
        self._transactional("send_offsets_to_transaction")
        self._require(Phase.IN_TRANSACTION, "send_offsets_to_transaction")
        with self._fail_on_error(), self._retries.waiting(self._logs.storage):
            chosen = {where: check_offset(where, at) for where, at in offsets.items()}
            self._offsets.add(group_now(self._logs, chosen, group), chosen)

    @exclusive
    def commit_transaction(self) -> Placed:
        """Flush, then commit everything at once.

        Returns:
            By partition, the offsets of the transaction's records.

        Raises:
            ProducerFenced: a newer instance took over; nothing was committed.
            CommitFailed: the group's offsets had moved; nothing was committed. Abort.
            CommitStateUnknown: call it again to learn the outcome.
        """
        coordinator = self._transactional("commit_transaction")
        if self._phase is Phase.READY and self._last_outcome is not None:
            self._repeat(Outcome.COMMIT)
            return self._placed
        if self._phase is not Phase.UNKNOWN:
            self._raise_late()
            self._require(Phase.IN_TRANSACTION, "commit_transaction")
            self._flush(with_offsets=True)
        try:
            self._decide(partial(coordinator.commit, version=self._version))
        except CommitStateUnknown:
            self._phase = Phase.UNKNOWN
            raise
        except BaseException as error:
            if coordinator.decided is Outcome.COMMIT:
                self._note_commit()
            else:
                self._fail(error)
            raise
        self._note_commit()
        return self._placed

    def _decide(self, call: Callable[[], DecidedT]) -> DecidedT:
        """Repeat a decision whose outcome is unknown, while the transaction has time enough."""
        assert self._coordinator is not None
        left_ms = self._coordinator.left_ms()
        at_most_ms = None if left_ms is None else left_ms // 2
        logs = self._logs
        return self._retries.run(logs.clock, logs.storage, call, at_most_ms=at_most_ms)

    def _note_commit(self) -> None:
        assert self._coordinator is not None
        decided = self._coordinator.state.entries
        self._offsets.note_commit({e.name: e.number for e in decided if e.log == "group"})
        self._last_outcome = Outcome.COMMIT
        self._phase = Phase.READY
        self._meter.add("committed_transactions")

    @exclusive
    def abort_transaction(self) -> None:
        """Abort the transaction: nothing of it will ever be seen under read_committed.

        Raises:
            InvalidTxnState: none is open, or its commit had succeeded after all.
            CommitStateUnknown: call it again to learn the outcome.
        """
        coordinator = self._transactional("abort_transaction")
        self._late = None
        if self._phase is Phase.READY and self._last_outcome is not None:
            self._repeat(Outcome.ABORT)
            return
        if self._phase not in (Phase.IN_TRANSACTION, Phase.FAILED, Phase.UNKNOWN):
            raise InvalidTxnState(f"abort_transaction(): the producer is {self._phase.value}")
        if self._phase is Phase.IN_TRANSACTION:
            self._phase = Phase.FAILED  # wherever it is interrupted, only abort is left
        self._drop_records()
        try:
            outcome = self._decide(coordinator.abort)
        except CommitStateUnknown:
            self._phase = Phase.UNKNOWN
            raise
        except BaseException as error:
            self._fail(error)
            raise
        if outcome is Outcome.COMMIT:
            self._note_commit()  # consumers learn of it too
            raise InvalidTxnState(
                f"{coordinator.state.ref} cannot be aborted: its commit, whose outcome was "
                "unknown, had succeeded"
            )
        self._offsets.end()
        self._last_outcome = Outcome.ABORT
        self._phase = Phase.READY
        self._meter.add("aborted_transactions")

    @contextmanager
    def transaction(self) -> Iterator[Producer]:
        """Begin; commit at the end of the block; abort if an exception leaves it."""
        self.begin_transaction()
        try:
            yield self
            self.commit_transaction()
        except BaseException:
            ours = not self._lock.inherited  # what a child of a fork leaves is the parent's
            if ours and self._phase in (Phase.IN_TRANSACTION, Phase.FAILED):
                try:
                    self.abort_transaction()
                except TxnlogError:
                    # The block's own exception matters; the next init or reader ends this.
                    self._discard()
            raise

    # -- sending ---------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: object,
        key: object = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
        on_delivery: Callable[[FutureRecordMetadata], object] | None = None,
    ) -> FutureRecordMetadata:
        """Buffer one record; its future tells its partition and offset.

        It is done after the flush that places the record, by whomever. To wait for one flushes, so
        send many, then wait.

        Args:
            topic: the topic to write to; it must exist.
            value: bytes, or a string, which is encoded as UTF-8; None is a tombstone. For a topic
                with a schema, a mapping of column names to values. Columns that may be null, or
                have a default, may be left out; ``_deleted=True`` makes it a deletion. With a
                ``value_serializer`` whatever that takes.
            key: bytes or a string, or what the ``key_serializer`` takes; equal keys go to the same
                partition. Leave it out if the topic's schema has a key.
            partition: the partition, whatever the key is.
            timestamp_ms: milliseconds since the epoch; now if left out.
            headers: pairs of a name and bytes, or None in place of the bytes.
            on_delivery: called with the future when it is done, in the thread that flushes; it
                must not use the producer.

        Raises:
            UnknownTopicOrPartition, InvalidRecord, RecordTooLarge: the record was not taken. Nor
                was it if a serializer raises, whatever it is.
            InvalidConfig: nor now; the topic's ``record.format`` has no such ``compression_type``.
        """
        if on_delivery is not None and not callable(on_delivery):
            raise InvalidOption(f"on_delivery must be a function, not {shorten(on_delivery)}")
        if self._serializers is not None:
            key, value = self._serializers(key, value)
        lock = self._lock
        if lock.inherited:
            lock.check()
        # This runs for each record. So it takes the lock as methods that are marked exclusive do,
        # for half of what ``with`` costs; bytes without rare attributes take no further call.
        mutex = lock.mutex
        try:
            mutex.acquire()
            if self._late is not None:
                self._raise_late()
            if self._phase is not self._sending:
                self._require(self._sending, "send")
            try:
                buffer = self._records.by_topic.get(topic)
                if (
                    buffer is not None
                    and type(value) is bytes
                    and (type(key) is bytes or (key is None and not buffer.needs_keys))
                    and partition is None
                    and timestamp_ms is None
                    and headers is None
                    and (size := len(value) + (0 if key is None else len(key))) <= buffer.most_bytes
                    and self._monotonic_s() <= buffer.fresh_until_s
                ):
                    rows = buffer.rows
                    row = len(rows.keys)
                    total = rows.size_bytes + size
                    future = FutureRecordMetadata(buffer.sent, row)
                    try:
                        rows.values.append(value)
                        rows.keys.append(key)
                        rows.size_bytes = total
                    except BaseException:  # an interrupt
                        buffer.lost = True
                        raise
                    if row + 1 >= ROWS_PER_BATCH or total >= BYTES_PER_BATCH:
                        buffer.flush_rows()
                else:
                    future = self._records.send(topic, value, key, partition, timestamp_ms, headers)  # type: ignore[arg-type]
            except BaseException as error:
                self._fail(error)
                if isinstance(error, TypeError):
                    check_topic(topic)
                raise
            if on_delivery is not None:
                future.add_done_callback(on_delivery)
            if self._linger is not None:
                self._linger.arm()
        except BaseException:
            try:  # noqa: SIM105 - a second interrupt could come before any other call
                mutex.release()
            except RuntimeError:
                pass  # the wait for it was interrupted
            raise
        mutex.release()
        return future

    @exclusive
    def send_batch(self, topic: str, batch: Batch, partition: int | None = None) -> None:
        """Buffer a whole batch.

        Args:
            topic: the topic to write to; it must exist.
            batch: an Arrow batch or table, a data frame of pandas or Polars, or a list of mappings
                or dataclasses. It has a column ``value`` and optionally ``key``, ``timestamp``,
                ``headers`` and ``partition`` (null: by the key). Strings become UTF-8; timestamps
                may have any unit. For a topic with a schema it has the schema's columns and
                optionally ``_timestamp``, ``_headers``, ``_partition`` and, if there is a key,
                ``_deleted``.
            partition: the partition of all its records, whatever the keys and the column say.
        """
        self._raise_late()
        self._require(self._sending, "send")
        with self._fail_on_error():
            self._records.send_batch(topic, batch, partition)
        if self._linger is not None:
            self._linger.arm()

    def partitions_for(self, topic: str) -> range:
        """The numbers of a topic's partitions now. Raises UnknownTopicOrPartition."""
        with self._retries.waiting(self._logs.storage):
            return range(self._logs.topic_spec(topic).partitions)

    @exclusive
    def flush(self) -> Placed:
        """Upload everything that is buffered, and append it to the logs.

        Returns:
            By partition, the offsets of the records that this call appended: not those that
            ``linger_ms`` has sent before. Empty with acks=0, which does not wait for them.

        Raises:
            CommitStateUnknown: without a transaction, if the storage failed. Flush again: records
                that were appended are recognised, and not appended twice.
            StorageError: an upload failed, and nothing was written. Without a transaction this
                producer cannot go on: send what came since the last flush with a new one.
        """
        self._raise_late()
        self._require(self._sending, "flush")
        return self._flush()

    @exclusive
    def metrics(self) -> list[Metric]:
        """What it has done since it was made, and what waits in it, as numbers for monitoring.

        ``txnlog_producer_flush_total``, ``_flush_error_total`` and ``_flush_seconds_total`` are of
        flushes, those of commits and of ``linger_ms`` too; ``_records_total`` counts the records
        that these have placed (none with acks=0), ``_committed_transactions_total`` and
        ``_aborted_transactions_total`` what became of them; ``_buffered_records`` are not flushed
        yet, by topic. What has not happened is left out. Asks the storage for nothing.
        """
        waiting = self._records.unsent().items()
        return [
            *self._meter.metrics(),
            *(Metric("txnlog_producer_buffered_records", {"topic": t}, n) for t, n in waiting),
        ]

    def _flush_lingering(self) -> None:
        """A flush by the thread of ``linger_ms``; its error is for the next call."""
        with self._lock.mutex:
            if self._phase is not self._sending:
                return
            try:
                self._flush()
            except Exception as error:  # noqa: BLE001 - also what a user's partitioner raises
                self._late = error
                _logger.warning("records that linger_ms was to send: %s", error)

    def _raise_late(self) -> None:
        late, self._late = self._late, None
        if late is not None:
            raise late

    # -- the steps -------------------------------------------------------------------------------

    def _flush(self, *, with_offsets: bool = False) -> Placed:
        with self._meter.timed("flush"):
            if self._coordinator is None:
                placed = self._flush_plain()
            else:
                placed = self._place_all(with_offsets=with_offsets)
        counts = (len(offsets) for ranges in placed.values() for offsets in ranges)
        self._meter.add("records", sum(counts))
        return placed

    def _place_all(self, *, with_offsets: bool) -> Placed:
        """Place what is buffered, in the transaction; with the offsets too, or without."""
        # An interrupt may come between any two steps, and what was taken from the buffers would
        # not be placed any more: until all is done only abort is left.
        self._phase = Phase.FAILED
        with self._logs.storage.count_later() as count:
            segments = self._finish_records()
        placed = self._place(segments, self._offsets.take() if with_offsets else {}, count)
        if self._phase is Phase.FAILED:  # unless who was told has ended it
            self._phase = Phase.IN_TRANSACTION
        return placed

    def _finish_records(self) -> dict[str, list[UploadedSegment]]:
        with self._fail_on_error():
            return self._records.finish()

    def _place(
        self,
        segments: dict[str, list[UploadedSegment]],
        offsets: dict[str, list[OffsetCommit]],
        count: Callable[[], None] = lambda: None,
    ) -> Placed:
        assert self._coordinator is not None
        sent = {topic: self._records.batches(topic) for topic in segments}
        try:
            waiting = self._retries.waiting(self._logs.storage)
            with self._fail_on_error(), refusing(chain.from_iterable(sent.values())), waiting:
                placed = self._coordinator.place(segments, offsets, self._offsets.committers, count)
                for topic, batches in sent.items():
                    for batch in batches:
                        batch.resolve(topic, placed)
                    self._records.forget_batches(topic)
        finally:
            # Also if it failed: perhaps because a topic was recreated.
            self._records.follow(segments)
        for where, ranges in placed.items():
            self._placed.setdefault(where, []).extend(ranges)
        return placed

    def _flush_plain(self) -> Placed:
        """Place without a transaction: one entry per topic, recognisable if it is repeated.

        What is refused for one topic keeps nothing of the others from being placed.
        """
        if self._background is not None:
            with self._fail_on_error():
                handed = self._records.hand_over(self._background.take_refused())
                self._background.submit(handed)
            return {}
        # As in _place_all: what an interrupt takes on its way no later flush may leave out.
        self._phase = Phase.BROKEN
        for name, segments in self._finish_records().items():
            self._plain.add(name, segments, self._records.batches(name))
            self._records.forget_batches(name)
        self._phase = Phase.READY
        placed: Placed = {}
        refused: TxnlogError | None = None
        while (topic := self._plain.waiting) is not None:
            try:
                done = self._plain.place()
            except CommitStateUnknown:
                raise
            except TxnlogError as error:
                _logger.warning("records for topic %r are not written: %s", topic, error)
                self._records.forget(topic)
                self._plain.give_up(error)
                refused = refused or error
                continue
            self._records.follow([topic])
            for where, offsets in done.items():
                placed.setdefault(where, []).append(offsets)
        if refused is not None:
            raise refused
        return placed

    # -- phases ----------------------------------------------------------------------------------

    def _transactional(self, call: str) -> Coordinator:
        if self._coordinator is None:
            raise InvalidTxnState(f"{call}(): this producer has no transactional_id")
        return self._coordinator

    def _require(self, phase: Phase, call: str) -> None:
        if self._phase is not phase:
            raise self._phase.refusal(call)

    @contextmanager
    def _fail_on_error(self) -> Iterator[None]:
        """An error inside a transaction leaves only abort; a fatal one, nothing.

        Without a transaction one that takes buffered records leaves nothing either: no later flush
        may pretend otherwise.
        """
        try:
            yield
        except BaseException as error:
            self._fail(error)
            raise

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, TxnlogError) and error.fatal:
            self._discard()
            self._phase = Phase.FENCED
        elif self._phase is Phase.IN_TRANSACTION:
            self._phase = Phase.FAILED
        elif self._coordinator is None and self._records.lost:
            self._discard()
            self._phase = Phase.BROKEN

    def _repeat(self, outcome: Outcome) -> None:
        """The last transaction is ended once more: that does nothing; the opposite is refused."""
        assert self._last_outcome is not None
        if outcome is not self._last_outcome:
            raise InvalidTxnState(
                f"{outcome.value}_transaction(): the last transaction ended with "
                f"{self._last_outcome.value}, and no other was begun"
            )

    def _discard(self) -> None:
        self._offsets.end()
        self._drop_records()

    def _drop_records(self) -> None:
        self._records.discard()
        self._offsets.drop()
