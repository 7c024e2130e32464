"""``transaction(...)``: reads, transforms and writes of Spark, committed with the group's offsets.

The transaction is held by the user's own process. Writes only upload, and stage that; when the
block ends everything is placed and decided at once, so nothing shows and nobody waits before.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from txnlog.admin.publish import check_places, publish_as_set
from txnlog.config import DEFAULT_TRANSACTION_TIMEOUT_MS
from txnlog.errors import (
    IllegalState,
    InvalidOption,
    InvalidTxnState,
    TxnlogError,
)
from txnlog.names import TopicPartition, check_group_id, check_topic
from txnlog.spark.batch import commit, provenance
from txnlog.spark.batch.decoded_values import ValueColumns
from txnlog.spark.batch.determinism import RepeatableWrites
from txnlog.spark.batch.latest import read_latest
from txnlog.spark.batch.pinned_read import PinnedRead, pin_read
from txnlog.spark.batch.read_frame import read_frame
from txnlog.spark.batch.skipped_records import take_notes
from txnlog.spark.options.option_names import FILLER, ORIGIN, STAGING
from txnlog.spark.options.option_values import check_positive
from txnlog.spark.options.read_options import SNAPSHOT, parse_read
from txnlog.spark.options.store_options import store_options
from txnlog.spark.stream.commit_once import take_over
from txnlog.spark.transactions.keyed_rows import rows_to_delete, rows_to_merge
from txnlog.spark.transactions.read_options import merge_read_options
from txnlog.spark.transactions.result import TransactionResult
from txnlog.spark.transactions.row_budget import unmeasured
from txnlog.spark.transactions.staged_writes import StagedWrites
from txnlog.state.transaction import ConsumedOffset, Outcome, Version, check_version
from txnlog.store import Store, open_store
from txnlog.write.coordinator import Coordinator, Placed
from txnlog.write.record_buffers import Batch, ProducerLock, RecordBuffers, exclusive
from txnlog.write.record_checks import Headers, Value

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from txnlog.config import CompressionType
    from txnlog.results import DamagedRecords, TablePublication
    from txnlog.spark.batch.provenance import Origin
    from txnlog.spark.options.positions import OffsetsOption
    from txnlog.spark.options.read_options import ReadOptions
    from txnlog.values import ValueReader

_logger = logging.getLogger(__name__)
_STOPPED: Final = (
    "the SparkSession was stopped inside this transaction's block, so nothing was committed; stop "
    "it after the block"
)


class _Phase(Enum):
    NEW = "not entered yet"
    OPEN = "open"
    FAILED = "failed: it can only be aborted"
    COMMITTED = "committed"
    ENDED = "ended without a commit"


def transaction(
    spark: SparkSession,
    path: str | Store,
    *,
    transactional_id: str,
    group_id: str | None = None,
    max_records: int | None = None,
    storage_options: Mapping[str, object] | None = None,
    transaction_timeout_ms: int = DEFAULT_TRANSACTION_TIMEOUT_MS,
    application_id: str | None = None,
    version: int | None = None,
    publish: str | Sequence[str] = (),
) -> SparkTransaction:
    """Read, transform and write in one transaction.

        with transaction(spark, "/data/store", transactional_id="etl", group_id="etl") as txn:
            orders = txn.read("orders")
            txn.write(orders.where(...), topic="paid")

    Leaving the block commits everything that was written and the group's offsets, all at once.
    If an exception leaves it, nothing is committed.

    Args:
        spark: the session that reads and writes.
        path: the store's folder or URL, or an open store: Spark's tasks open it as it was opened.
        transactional_id: names the job: entering the block ends what an earlier run left open,
            and fences that run.
        group_id: the consumer group whose offsets say where to read from, and that the commit
            moves. Without one each run reads from the topics' start again, which is logged, or
            where ``starting_offsets`` says.
        max_records: the most that one ``read`` returns; see :meth:`SparkTransaction.read`.
        storage_options: for the filesystem, as ``txnlog.open`` takes them; Spark's tasks use them
            too. With an open store they are for the tasks, on top of the store's own.
        transaction_timeout_ms: the most that the commit at the end may take; how long the block
            runs does not matter.
        application_id: with ``version`` it makes the commit idempotent: whose version it is.
        version: a number that grows with each commit of the application.
            ``txn.already_committed`` says whether it, or a greater one, was committed before with
            this transactional id: give runs that may come in any order an application id each.
        publish: where this process may publish topics that have ``table.publish``, as for
            ``Store.maintain``. After the commit those that it has written become tables, or these
            are brought up to date. A failure is logged, and in ``result.unpublished``: the
            transaction is committed all the same.

    Raises:
        StoreNotFound, InvalidOption, InvalidTransactionalId, InvalidTransactionTimeout: nothing was
            begun.
    """
    options = dict(storage_options or {})
    store = path if isinstance(path, Store) else open_store(path, storage_options=options)
    if store.url.startswith("memory:"):
        raise InvalidOption(f"{store.url} is in this process only; Spark's tasks cannot reach it")
    if group_id is not None:
        check_group_id(group_id)
    check_positive("max_records", max_records)
    checked = check_version(application_id, version)
    places = check_places(publish)
    reached = store_options(store, options)
    coordinator = Coordinator(store.logs, transactional_id, transaction_timeout_ms)
    return SparkTransaction(
        spark, store, coordinator, group_id, max_records, reached, checked, places
    )


class SparkTransaction:
    """An open ``transaction(...)`` block."""

    def __init__(
        self,
        spark: SparkSession,
        store: Store,
        coordinator: Coordinator,
        group_id: str | None,
        max_records: int | None,
        store_options: Mapping[str, str],
        version: Version | None = None,
        places: Sequence[str] = (),
    ) -> None:
        self._spark = spark
        self._store = store
        self._coordinator = coordinator
        self._group_id = group_id
        self._max_records = max_records
        self._store_options = dict(store_options)  # secrets among them
        self._version = version
        self._places = places
        self._already_committed = False
        self._phase = _Phase.NEW
        self._reads: list[PinnedRead] = []
        self._follows_group = True
        self._skips_damaged = False
        self._read_whole: list[str] = []
        self._lock = ProducerLock("transaction")  # writes may run in threads of the user's
        self._staged = StagedWrites(store)
        self._records = RecordBuffers(store.logs, lambda _: coordinator.state.ref)
        self._origin: Origin | None = None
        self._repeatable = RepeatableWrites()
        self._result: TransactionResult | None = None

    # -- the block -------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if self._phase is not _Phase.NEW:
            raise IllegalState(f"this transaction is {self._phase.value}; make a new one")
        self._lock.check()
        from txnlog.spark.registration import register

        register(self._spark)
        self._already_committed = take_over(self._coordinator, self._version)
        self._origin = provenance.origin_of_block(self._store, self._coordinator.state)
        self._phase = _Phase.OPEN
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._lock.inherited:
            # The block, and what was uploaded in it, stays with the parent.
            if kind is None:
                self._lock.check()
            return
        with self._lock.mutex:
            phase, self._phase = self._phase, _Phase.ENDED
            running = not self._staged.close()
        if phase not in (_Phase.OPEN, _Phase.FAILED):
            return
        has_changes = bool(self._staged.segments or self._consumed())
        stopped = has_changes and _is_stopped(self._spark)
        if kind is None and phase is _Phase.OPEN and not stopped and not running:
            if not self._already_committed:
                self._commit()
                self._publish()
            return
        self._discard()
        if kind is None and phase is _Phase.FAILED:
            raise InvalidTxnState(
                "a read or write of this transaction failed, so nothing was committed; let its "
                "exception leave the block"
            )
        if kind is None and running:
            raise InvalidTxnState(
                "a write() of this transaction still runs in another thread, so nothing was "
                "committed; wait for it inside the block"
            )
        if kind is None:
            raise InvalidTxnState(_STOPPED)

    @property
    def result(self) -> TransactionResult:
        """What was committed. Raises IllegalState if nothing was (yet)."""
        if self._result is None:
            raise IllegalState(f"the transaction is {self._phase.value}: there is no result")
        return self._result

    @property
    def consumed_records(self) -> int:
        """How many records the reads so far return: 0 means that the group has caught up.

        By their offsets: what compaction or a purge has taken away is counted, too.
        """
        return sum(read.record_count for read in self._reads)

    @property
    def has_read(self) -> bool:
        """True once a topic was read, even if there was nothing new in it."""
        return bool(self._reads)

    @property
    def follows_group(self) -> bool:
        """True unless a read was told where to start, instead of at the group's offsets."""
        return self._follows_group

    @property
    def already_committed(self) -> bool:
        """True if the version was committed before: there is nothing to do, and nothing is done."""
        return self._already_committed

    # -- reading and writing ---------------------------------------------------------------------

    def read(
        self,
        *topics: str,
        starting_offsets: OffsetsOption | None = None,
        columns: str | Sequence[str] | None = None,
        include_headers: bool = False,
        options: Mapping[str, bool | int | str] | None = None,
        native: bool | None = None,
        values: ValueReader | str | None = None,
    ) -> DataFrame:
        """Read topics from the group's committed offsets (or their start, if none) up to now.

        Topics that are given together are read at one consistent cut: every transaction is in it
        wholly or not at all. The range is pinned: the DataFrame returns the same records however
        often it is run. With ``max_records`` every partition gives an equal share, and what some do
        not have the others give. Such a range may end inside a transaction; the rest of it comes
        with the next run.

        All of it is consumed: rows that ``limit(10)`` or a filter leaves out do not come again. And
        each action reads the records once more, the same ones, and calls your functions again.

        Args:
            topics: their names; a topic can be read once in a transaction.
            starting_offsets: instead of the group's offsets: 'earliest', 'latest' or
                {topic: {partition: offset}}. The commit still moves the group.
            columns: only these columns: names, or a string as for the option ``columns``. Of a
                typed topic those of its schema and ``_topic``, ``_partition``, ``_offset``,
                ``_timestamp``, ``_headers``, ``_deleted``.
            include_headers: add the column ``headers``, for a typed topic ``_headers``.
            options: options of a batch read, as docs/SPARK.md lists them: how it is split into
                tasks, where it starts and ends by time, ``failOnDataLoss``.
            native: whether Spark itself reads the Parquet files, which is faster; None: it does if
                its JVM can reach them. The order of a partition's records is the same either way.
            values: decode values that begin with the id of a schema: 'avro', 'protobuf', 'json' or
                a ``txnlog.values.ValueReader``; see :func:`txnlog.spark.read`.

        Raises:
            UnknownTopicOrPartition: a topic does not exist.
            OffsetOutOfRange: records that the group had not read were deleted.
            InvalidOption: an argument is not valid here.
        """
        with self._using_session("read"):
            names = [check_topic(topic) for topic in topics]
            if self._read_whole:
                raise InvalidOption(
                    f"read({', '.join(map(repr, names))}) after read_whole("
                    f"{', '.join(map(repr, self._read_whole))}): it could return records newer "
                    "than that, whose counterparts are not in it. Read first what the transaction "
                    "consumes"
                )
            done = {where.topic for read in self._reads for where in read.offsets}
            for name in names:
                if name in done or names.count(name) > 1:
                    raise InvalidOption(
                        f"topic {name!r} is read twice in one transaction; use its DataFrame again"
                    )
            decoded = None
            if values is not None:
                decoded = ValueColumns.of(
                    values, self._store, names, columns, include_headers=include_headers
                )
                columns = decoded.to_read
            merged = merge_read_options(
                options or {},
                columns=columns,
                include_headers=include_headers,
                starting_offsets=starting_offsets,
                decoded=decoded is not None,
            )
            parsed = self._parse(names, merged)
            if parsed.starting is None and parsed.group_id is None:
                _logger.warning(
                    "read(%s) begins at the start, and so will the next run's: the transaction has "
                    "no group_id. Give it one to go on where the last run has ended. If each run "
                    "is to read everything, starting_offsets='earliest' says so, or read_whole()",
                    ", ".join(map(repr, names)),
                )
            pinned, frame = self._frame(parsed, merged, native)
            self._reads.append(pinned)
            self._follows_group &= parsed.starting is None
            self._skips_damaged |= parsed.skip_damaged
            return frame if decoded is None else decoded.frame(frame)

    def read_whole(
        self,
        *topics: str,
        columns: str | Sequence[str] | None = None,
        include_headers: bool = False,
        native: bool | None = None,
        latest: bool = False,
        values: ValueReader | str | None = None,
    ) -> DataFrame:
        """Read whole topics, from their start, without consuming them.

        For what records are joined with: customers, products, rates. ``read`` would consume them,
        and the next run would find none. Call it after the reads: it has everything that was
        committed when they were pinned, even behind transactions that are still open, and perhaps
        something that was committed since. It is pinned too, and topics that are given together
        are read at one consistent cut.

        It has every version of a key: what is joined by key needs ``latest``.

        Args:
            topics: their names.
            columns: as for :meth:`read`.
            include_headers: the same.
            native: the same.
            latest: only the newest record of each key, without those that it deletes; see
                :func:`txnlog.spark.read`.
            values: as for :meth:`read`.

        Raises:
            UnknownTopicOrPartition: a topic does not exist.
            InvalidOption: an argument is not valid here.
        """
        with self._using_session("read_whole"):
            if not topics:
                raise InvalidOption("read_whole() needs the name of a topic")
            decoded = None
            if values is not None:
                decoded = ValueColumns.of(
                    values, self._store, topics, columns, include_headers=include_headers
                )
                columns = decoded.to_read
            merged = merge_read_options(
                {}, columns=columns, include_headers=include_headers, starting_offsets="earliest"
            )
            # What is committed behind an open transaction too: an order that is read has its
            # customer, though somebody's transaction has been open in that topic for longer.
            merged["isolation.level"] = SNAPSHOT
            names = ",".join(check_topic(topic) for topic in topics)
            parsed = parse_read({**merged, "path": self._store.url, "subscribe": names})
            _, frame = self._frame(parsed, merged, native, latest=latest)
            self._read_whole += topics
            return frame if decoded is None else decoded.frame(frame)

    def write(
        self,
        frame: DataFrame,
        topic: str | None = None,
        *,
        include_headers: bool | None = None,
        compression_type: CompressionType | None = None,
        allow_nondeterministic: bool = False,
    ) -> None:
        """Run the DataFrame and upload its rows; they are committed when the block ends.

        Several writes may run at once, in threads of yours; wait for them inside the block. The
        records of a write follow those of writes that ended before it.

        Each write computes its frame. What two of them have in common must therefore be the same
        each time: where a function that is marked as non-deterministic tells rows apart, some
        would be in no write and others in both. Give rows a column ``topic`` and write them at
        once, or write what ``frame.localCheckpoint()`` returns.

        Args:
            frame: has the column ``value`` and optionally ``key``, ``topic``, ``partition``,
                ``timestamp`` and ``headers``; for a typed topic, the columns of its schema.
            topic: the topic to write to; None takes the column ``topic``.
            include_headers: False leaves the column ``headers`` out.
            compression_type: a codec for these records, in topics whose ``compression.type`` is
                ``producer``, the default.
            allow_nondeterministic: write it, though another write has computed the same function.

        Raises:
            InvalidOption: it is computed by a non-deterministic function, as an earlier write was.
            InvalidTxnState: the block is over, or can only be aborted.
        """
        from txnlog.spark.registration import register

        with self._using_session("write"):
            register(self._spark)  # also in a thread that has written nothing yet
            self._repeatable.check(frame, allowed=allow_nondeterministic)
            assert self._origin is not None
            path = self._staged.begin_write()
            options = {
                **self._store_options,
                STAGING: path,
                ORIGIN: provenance.format_origin(self._origin),
            }
            if topic is not None:
                options["topic"] = topic
            if include_headers is not None:
                options["includeHeaders"] = str(include_headers).lower()
            if compression_type is not None:
                options["compression.type"] = compression_type
            with unmeasured(frame) as (rows, filler):
                if filler is not None:
                    options[FILLER] = filler
                rows.write.format("txnlog").options(**options).mode("append").save()
            self._staged.end_write(path)

    def merge(
        self, frame: DataFrame, topic: str, *, compression_type: CompressionType | None = None
    ) -> None:
        """Write the newest rows of their keys to a typed topic that has a key: an upsert.

        As :meth:`write`, but of each key there may be one row only: Spark's rows have no order in
        which one of two could be the newest. A row with ``_deleted`` deletes its key; of columns
        that are left out the row has nulls, or their defaults. Spark shuffles the rows by key.

        What is merged counts for those who read with ``latest``, and for compaction. From this
        process :meth:`send_batch` does the like, as producers' does: rows in their order, the last
        one of a key counts, and one with ``_deleted`` deletes it. Call it after :meth:`merge`.

        Args:
            frame: has the columns of the topic's schema, and optionally ``_deleted``,
                ``_timestamp`` and ``_headers``.
            topic: the topic to write to.
            compression_type: as for :meth:`write`.

        Raises:
            PySparkException: several rows have the same key; it is named.
            InvalidOption: the topic has no key, the frame a column ``_partition``, or records of
                :meth:`send` or :meth:`send_batch` wait for the topic, which would follow the rows.
            InvalidRecord: a column is missing, unknown or of a wrong type.
        """
        with self._using_session("merge"):
            self._check_none_sent("merge", topic)
            rows = rows_to_merge(frame, self._store.logs.topic_spec(check_topic(topic)))
        self.write(rows, topic, compression_type=compression_type)

    def delete_keys(self, frame: DataFrame, topic: str) -> None:
        """Delete the keys of a frame's rows from a typed topic: write rows with ``_deleted``.

        Whether the topic has these keys is not looked at, nor are the frame's other columns; a key
        may come several times.

        Raises:
            InvalidOption: the topic has no key, or records wait for it; see :meth:`merge`.
            InvalidRecord: a column of the key is missing, or of a wrong type.
        """
        with self._using_session("delete_keys"):
            self._check_none_sent("delete_keys", topic)
            rows = rows_to_delete(frame, self._store.logs.topic_spec(check_topic(topic)))
        self.write(rows, topic)

    @exclusive
    def send(
        self,
        topic: str,
        value: Value,
        key: bytes | str | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
    ) -> None:
        """Write one record from this process, as :meth:`txnlog.Producer.send` does.

        For summaries, markers and alerts of the job itself. The record follows the DataFrames that
        are written to the same topic, and is committed with them.

        Raises:
            UnknownTopicOrPartition, InvalidRecord, RecordTooLarge: the record was not taken.
        """
        self._require_open("send")
        with self._fail_on_error():
            self._records.send(topic, value, key, partition, timestamp_ms, headers)

    @exclusive
    def send_batch(self, topic: str, batch: Batch, partition: int | None = None) -> None:
        """Write a batch from this process, as :meth:`txnlog.Producer.send_batch` does."""
        self._require_open("send_batch")
        with self._fail_on_error():
            self._records.send_batch(topic, batch, partition)

    @exclusive
    def discard_writes(self) -> None:
        """Drop everything written so far; what was read still counts as consumed."""
        self._require_open("discard_writes")
        self._repeatable.clear()
        self._discard()

    def _check_none_sent(self, call: str, topic: str) -> None:
        if count := self._records.unsent().get(topic):
            raise InvalidOption(
                f"{call}(): topic {topic!r}: {count} records of send() or send_batch() wait for it "
                "in this block; they are placed behind what DataFrames write, so they would be the "
                f"newest of their keys. Call {call}() first, or use a block for each"
            )

    def _parse(self, topics: Sequence[str], options: Mapping[str, str]) -> ReadOptions:
        if not topics:
            raise InvalidOption("read() needs the name of a topic")
        merged = {**options, "path": self._store.url, "subscribe": ",".join(topics)}
        if self._group_id is not None:
            merged["group.id"] = self._group_id
        if self._max_records is not None:
            merged["maxRecords"] = str(self._max_records)
        return parse_read(merged)

    def _frame(
        self,
        parsed: ReadOptions,
        options: Mapping[str, str],
        native: bool | None,
        *,
        latest: bool = False,
    ) -> tuple[PinnedRead, DataFrame]:
        """Pin a read, and make its frame."""
        if not self._reads and not self._read_whole:
            provenance.delete_notes(self._store, self._coordinator.transactional_id)
        pinned = pin_read(self._store, parsed)
        given = {**options, **self._store_options}
        of = self._spark, self._store.storage, pinned, parsed, given
        if latest:
            return pinned, read_latest(*of, native=native, origin=self._origin)
        # In order: a newer record of a key must not be written in front of an older one.
        return pinned, read_frame(*of, native=native, ordered=True, origin=self._origin)

    # -- the end ---------------------------------------------------------------------------------

    def _commit(self) -> None:
        consumed = self._consumed()
        skipped = self._finish()
        coordinator, segments = self._coordinator, self._staged.segments
        placed: Placed = {}
        try:
            with commit.abort_on_error(self._store, coordinator, segments):
                placed = coordinator.place(segments, commit.offset_commits(consumed))
                coordinator.commit(version=self._version)
        except BaseException:
            if coordinator.decided is not Outcome.COMMIT:
                raise
            # It is committed; an interrupt goes on all the same.
            self._set_result(placed, consumed, skipped)
            raise
        self._set_result(placed, consumed, skipped)

    def _publish(self) -> None:
        """Publish written topics that may be published here; the commit stands if that fails."""
        published: list[TablePublication] = []
        failed: dict[str, TxnlogError] = {}
        for topic in sorted({where.topic for where in self.result.written}):
            try:
                done = publish_as_set(self._store.logs, topic, self._places)
            except TxnlogError as error:
                _logger.warning("committed, but topic %r was not published: %s", topic, error)
                failed[topic] = error
            else:
                published += [] if done is None else [done]
        self._result = replace(self.result, published=published, unpublished=failed)

    def _set_result(
        self, placed: Placed, consumed: Sequence[ConsumedOffset], skipped: Sequence[DamagedRecords]
    ) -> None:
        self._result = TransactionResult(placed, self._spans(consumed), skipped)
        self._phase = _Phase.COMMITTED

    def _consumed(self) -> list[ConsumedOffset]:
        if self._group_id is None:
            return []
        return [item for read in self._reads for item in read.consumed(self._group_id)]

    def _spans(self, consumed: Sequence[ConsumedOffset]) -> dict[TopicPartition, range]:
        spans = {where: span for read in self._reads for where, span in read.offsets.items()}
        moved = [TopicPartition(item.topic, item.partition) for item in consumed]
        return {where: spans[where] for where in moved}

    def _finish(self) -> Sequence[DamagedRecords]:
        """Upload what was sent from this process; returns the damage that the reads have passed."""
        try:
            self._staged.add(self._records.finish())
            origin = self._origin if self._skips_damaged else None
            return take_notes(self._store.storage, origin.transaction) if origin else ()
        except BaseException:
            self._discard()
            raise

    def _discard(self) -> None:
        """Delete what was uploaded, before anything was placed; best effort."""
        self._records.discard()
        self._staged.discard()

    # -- phases ----------------------------------------------------------------------------------

    def _require_open(self, call: str) -> None:
        self._lock.check()
        if self._phase is not _Phase.OPEN:
            hint = "use it in a with statement" if self._phase is _Phase.NEW else "make a new one"
            raise InvalidTxnState(f"{call}(): the transaction is {self._phase.value}; {hint}")
        if self._already_committed:
            assert self._version is not None
            application_id, number = self._version
            raise InvalidTxnState(
                f"{call}(): version {number} of application {application_id!r}, or a greater one, "
                "was committed before; look at already_committed first"
            )

    @contextmanager
    def _using_session(self, call: str) -> Iterator[None]:
        """A call that needs the block to be open, and Spark."""
        self._require_open(call)
        if _is_stopped(self._spark):
            self._phase = _Phase.FAILED
            raise InvalidTxnState(_STOPPED)
        with self._fail_on_error():
            yield

    @contextmanager
    def _fail_on_error(self) -> Iterator[None]:
        """A failed read or write leaves only abort, as a failed send does in Kafka's producer."""
        try:
            yield
        except BaseException:
            with self._lock.mutex:
                if self._phase is _Phase.OPEN:
                    self._phase = _Phase.FAILED
            raise


def _is_stopped(spark: SparkSession) -> bool:
    """Spark Connect tells; elsewhere a stopped context has let go of its JVM's half."""
    told: bool | None = getattr(spark, "is_stopped", None)
    return getattr(spark.sparkContext, "_jsc", None) is None if told is None else told
