"""``transaction(...)``: reads, transforms and writes of Spark, committed with the group's offsets.

The transaction is held by the user's own process. Writes only upload and leave manifests; when the
block ends everything is placed and decided at once, so nothing shows and nobody waits before.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Self

from txnlog.errors import (
    IllegalState,
    InvalidOption,
    InvalidTxnState,
    ObjectNotFound,
    TxnlogError,
)
from txnlog.log.topic_log import UploadedSegment
from txnlog.names import TopicPartition, check_group_id, check_topic, staging_file
from txnlog.spark.batch import commit
from txnlog.spark.batch.manifests import read_manifest
from txnlog.spark.batch.pinned_read import PinnedRead, pin_read
from txnlog.spark.options.option_names import PINNED_TOPICS, STAGING
from txnlog.spark.options.positions import offsets_json
from txnlog.spark.options.read_options import parse_read
from txnlog.spark.options.store_options import store_options
from txnlog.spark.stream.versions import take_over
from txnlog.state.transaction import ConsumedOffset, Version, check_version
from txnlog.store import Store, open_store
from txnlog.write.coordinator import Coordinator
from txnlog.write.record_buffers import RecordBuffers
from txnlog.write.record_checks import Headers

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from txnlog.spark.options.positions import OffsetsOption
    from txnlog.spark.options.read_options import ReadOptions

_logger = logging.getLogger(__name__)


_STOPPED = (
    "the SparkSession was stopped inside this transaction's block, so nothing was committed; stop "
    "it after the block"
)


class _Phase(Enum):
    NEW = "not entered yet"
    OPEN = "open"
    FAILED = "failed: it can only be aborted"
    COMMITTED = "committed"
    ENDED = "ended without a commit"


@dataclass(frozen=True, slots=True)
class TransactionResult:
    """What a transaction has committed.

    ``written`` has the offsets that its records were given, ``consumed`` the offsets [start, stop)
    that it read, both by partition.
    """

    written: Mapping[TopicPartition, Sequence[range]]
    consumed: Mapping[TopicPartition, range]

    @property
    def written_records(self) -> int:
        """How many records were written, to all topics together."""
        return sum(len(span) for spans in self.written.values() for span in spans)


def transaction(
    spark: SparkSession,
    path: str | Store,
    *,
    transactional_id: str,
    group_id: str | None = None,
    max_records: int | None = None,
    storage_options: Mapping[str, object] | None = None,
    transaction_timeout_ms: int = 60_000,
    application_id: str | None = None,
    version: int | None = None,
) -> SparkTransaction:
    """Read, transform and write in one transaction.

        with transaction(spark, "/data/store", transactional_id="etl", group_id="etl") as txn:
            orders = txn.read("orders")
            txn.write(orders.where(...), topic="paid")

    Leaving the block commits everything that was written and the group's offsets, at the same
    instant; an exception commits nothing.

    Args:
        spark: the session that reads and writes.
        path: the store's folder or URL, or an open store: Spark's tasks open it as it was opened.
        transactional_id: names the job: entering the block ends what an earlier run left behind,
            and fences it off.
        group_id: the consumer group whose offsets say where to read from.
        max_records: the most that one ``read`` returns; see :meth:`SparkTransaction.read`.
        storage_options: for the filesystem, also of Spark's tasks, as ``txnlog.open`` takes them.
            Beside an open store: for the tasks, over those that it was opened with.
        transaction_timeout_ms: the most that placing and deciding at the end may take; how long the
            block runs does not matter.
        application_id: with ``version``: makes the commit idempotent, and says who counts.
        version: say, a day's number; it grows with each commit of the application.
            ``txn.already_committed`` tells if it, or a greater one, was committed before with this
            transactional id.

    Raises:
        StoreNotFound, InvalidOption, InvalidTransactionalId, InvalidTransactionTimeout.
    """
    options = dict(storage_options or {})
    store = path if isinstance(path, Store) else open_store(path, storage_options=options)
    if store.url.startswith("memory:"):
        raise InvalidOption(f"{store.url} is in this process only; Spark's tasks cannot reach it")
    if group_id is not None:
        check_group_id(group_id)
    if max_records is not None and max_records < 1:
        raise InvalidOption(f"max_records must be a whole number above 0, not {max_records!r}")
    checked = check_version(application_id, version)
    reached = store_options(store, options)
    coordinator = Coordinator(store.logs, transactional_id, transaction_timeout_ms)
    return SparkTransaction(spark, store, coordinator, group_id, max_records, reached, checked)


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
    ) -> None:
        self._spark = spark
        self._store = store
        self._coordinator = coordinator
        self._group_id = group_id
        self._max_records = max_records
        self._store_options = dict(store_options)  # secrets among them
        self._version = version
        self._already_committed = False
        self._token = store.logs.clock.token()
        self._phase = _Phase.NEW
        self._reads: list[PinnedRead] = []
        self._follows_group = True
        self._writes = 0
        self._manifests: set[str] = set()  # of writes that run, or have failed
        self._lock = Lock()  # writes may run in threads of the user's
        self._segments: dict[str, list[UploadedSegment]] = {}
        self._records = RecordBuffers(store.logs)
        self._result: TransactionResult | None = None

    # -- the block -------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if self._phase is not _Phase.NEW:
            raise IllegalState(f"this transaction is {self._phase.value}; make a new one")
        from txnlog.spark.registration import register

        register(self._spark)
        self._already_committed = take_over(self._coordinator, self._version)
        self._phase = _Phase.OPEN
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        with self._lock:
            phase, self._phase = self._phase, _Phase.ENDED
            running = bool(self._manifests)
        if phase not in (_Phase.OPEN, _Phase.FAILED):
            return
        stopped = self._has_changes() and _is_stopped(self._spark)
        if kind is None and phase is _Phase.OPEN and not stopped and not running:
            if not self._already_committed:
                self._commit()
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
        """How many records the reads so far return: 0 means that the group has caught up."""
        return sum(read.record_count for read in self._reads)

    @property
    def has_read(self) -> bool:
        """True once a topic was read, also if there was nothing new in it."""
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
        columns: Sequence[str] | None = None,
        include_headers: bool = False,
        options: Mapping[str, bool | int | str] | None = None,
    ) -> DataFrame:
        """Topics from the group's committed offsets (where none, from the start) to now.

        Topics that are given together are read at one consistent cut: of every transaction all or
        nothing is in it. The range is pinned: the DataFrame returns the same records however often
        it is run. With ``max_records`` every partition gives an equal share, and those with less
        leave theirs to the others; such a cut may fall inside a transaction, whose rest comes with
        the next run.

        Args:
            topics: their names; a topic can be read once in a transaction.
            starting_offsets: in place of the group's: 'earliest', 'latest' or
                {topic: {partition: offset}}. The group is moved all the same.
            columns: of the row schema, to bring less over to Spark.
            include_headers: add the column ``headers``.
            options: of a batch read, with the names that docs/SPARK.md lists: how it is split into
                tasks, where it starts and ends by time, ``failOnDataLoss``.

        Raises:
            UnknownTopicOrPartition, OffsetOutOfRange, InvalidOption.
        """
        self._require_open("read")
        self._require_session()
        with self._fail_on_error():
            names = [check_topic(topic) for topic in topics]
            done = {where.topic for read in self._reads for where in read.offsets}
            for name in names:
                if name in done or names.count(name) > 1:
                    raise InvalidOption(
                        f"topic {name!r} is read twice in one transaction; use its DataFrame again"
                    )
            read_options = {name: _format_option(value) for name, value in (options or {}).items()}
            _refuse_decided(read_options)
            if columns is not None:
                read_options["columns"] = ",".join(columns)
            if include_headers:
                read_options["includeHeaders"] = "true"
            if starting_offsets is not None:
                read_options["startingOffsets"] = (
                    starting_offsets
                    if isinstance(starting_offsets, str)
                    else offsets_json(starting_offsets)
                )
            parsed = self._parse(names, read_options)
            pinned = pin_read(self._store, parsed)
            frame = self._load(pinned, read_options)
            self._reads.append(pinned)
            self._follows_group &= parsed.starting is None
            return frame

    def write(
        self,
        frame: DataFrame,
        topic: str | None = None,
        *,
        include_headers: bool | None = None,
        compression_type: str | None = None,
    ) -> None:
        """Run the DataFrame and upload its rows; they are committed when the block ends.

        Several may run at once, in threads of yours; wait for them inside the block. The records of
        one follow those of the writes that have ended before it.

        Args:
            frame: with the columns value and, as wanted, key, topic, partition, timestamp, headers.
            topic: where to; None takes the column ``topic``.
            include_headers: False leaves the column ``headers`` out.
            compression_type: a codec for these records instead of the topics' own.
        """
        self._require_open("write")
        self._require_session()
        from txnlog.spark.registration import register

        with self._fail_on_error():
            register(self._spark)  # also in a thread that has written nothing yet
            path = self._next_manifest()
            options = {**self._store_options, STAGING: path}
            if topic is not None:
                options["topic"] = topic
            if include_headers is not None:
                options["includeHeaders"] = str(include_headers).lower()
            if compression_type is not None:
                options["compression.type"] = compression_type
            frame.write.format("txnlog").options(**options).mode("append").save()
            self._take_manifest(path)

    def send(
        self,
        topic: str,
        value: bytes | str | None,
        key: bytes | str | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
    ) -> None:
        """Write one record from this process, as :meth:`txnlog.Producer.send` does.

        For what a job says of itself: a summary, a marker, an alert. It follows the DataFrames that
        are written to the same topic, and is committed with them.

        Raises:
            UnknownTopicOrPartition, InvalidRecord, RecordTooLarge.
        """
        self._require_open("send")
        with self._fail_on_error():
            self._records.send(topic, value, key, partition, timestamp_ms, headers)

    def send_batch(
        self, topic: str, batch: pa.RecordBatch | pa.Table, partition: int | None = None
    ) -> None:
        """Write Arrow data from this process, as :meth:`txnlog.Producer.send_batch` does."""
        self._require_open("send_batch")
        with self._fail_on_error():
            self._records.send_batch(topic, batch, partition)

    def discard_writes(self) -> None:
        """Drop what was written so far, as if it had not been; what was read stays consumed."""
        self._require_open("discard_writes")
        self._discard()
        self._segments = {}

    def _parse(self, topics: Sequence[str], options: Mapping[str, str]) -> ReadOptions:
        if not topics:
            raise InvalidOption("read() needs the name of a topic")
        merged = {**options, "path": self._store.url, "subscribe": ",".join(topics)}
        if self._group_id is not None:
            merged["group.id"] = self._group_id
        if self._max_records is not None:
            merged["maxRecords"] = str(self._max_records)
        return parse_read(merged)

    def _load(self, pinned: PinnedRead, options: Mapping[str, str]) -> DataFrame:
        """The DataFrame of exactly the pinned offsets; Spark's own process resolves them again."""
        starts: dict[str, dict[int, int]] = {}
        stops: dict[str, dict[int, int]] = {}
        for where, span in pinned.offsets.items():
            starts.setdefault(where.topic, {})[where.partition] = span.start
            stops.setdefault(where.topic, {})[where.partition] = span.stop
        options = {
            **{name: value for name, value in options.items() if not _is_position(name)},
            **self._store_options,
            "subscribe": ",".join(starts),
            "startingOffsets": offsets_json(starts),
            "endingOffsets": offsets_json(stops),
            PINNED_TOPICS: json.dumps(dict(pinned.topic_ids)),
        }
        return self._spark.read.format("txnlog").options(**options).load()

    # -- the end ---------------------------------------------------------------------------------

    def _commit(self) -> None:
        consumed = self._consumed()
        self._take_records()
        placed = commit.place_and_commit(
            self._store,
            self._coordinator,
            self._segments,
            commit.offset_commits(consumed),
            version=self._version,
        )
        self._result = TransactionResult(placed, self._spans(consumed))
        self._phase = _Phase.COMMITTED

    def _has_changes(self) -> bool:
        return bool(self._segments or self._consumed())

    def _consumed(self) -> list[ConsumedOffset]:
        if self._group_id is None:
            return []
        return [item for read in self._reads for item in read.consumed(self._group_id)]

    def _spans(self, consumed: Sequence[ConsumedOffset]) -> dict[TopicPartition, range]:
        spans = {where: span for read in self._reads for where, span in read.offsets.items()}
        moved = [TopicPartition(item.topic, item.partition) for item in consumed]
        return {where: spans[where] for where in moved}

    def _next_manifest(self) -> str:
        with self._lock:
            path = staging_file(self._token, self._writes)
            self._writes += 1
            self._manifests.add(path)
        return path

    def _take_manifest(self, path: str) -> None:
        """Note what a write has uploaded, and delete its manifest: a kill later leaves none."""
        staged = read_manifest(self._store.storage, path)
        with self._lock:
            in_time = self._phase in (_Phase.OPEN, _Phase.FAILED)
            self._manifests.discard(path)
            if in_time:
                for topic, uploaded in staged.segments.items():
                    self._segments.setdefault(topic, []).extend(uploaded)
        self._delete_manifest(path)
        if not in_time:
            commit.discard(self._store, staged.segments)
            raise InvalidTxnState(
                "write(): the transaction's block had ended before this write did, so its records "
                "were dropped; wait for it inside the block"
            )

    def _take_records(self) -> None:
        """Upload what was sent from this process."""
        try:
            for topic, uploaded in self._records.finish().items():
                self._segments.setdefault(topic, []).extend(uploaded)
        except BaseException:
            self._discard()
            raise

    def _discard(self) -> None:
        """Delete what was uploaded, before anything was placed; best effort."""
        self._records.discard()
        for path in sorted(self._manifests):
            try:
                staged = read_manifest(self._store.storage, path)
            except ObjectNotFound:
                continue  # this write failed, and has deleted its files itself; or it still runs
            except TxnlogError as error:
                _logger.warning("the files that %s names were left: %s", path, error)
                continue
            self._delete_manifest(path)
            commit.discard(self._store, staged.segments)
        commit.discard(self._store, self._segments)

    def _delete_manifest(self, path: str) -> None:
        try:
            self._store.storage.delete([path])
        except TxnlogError as error:
            _logger.warning("a manifest was left in staging/: %s", error)

    # -- phases ----------------------------------------------------------------------------------

    def _require_open(self, call: str) -> None:
        if self._phase is not _Phase.OPEN:
            hint = "use it in a with statement" if self._phase is _Phase.NEW else "make a new one"
            raise InvalidTxnState(f"{call}(): the transaction is {self._phase.value}; {hint}")
        if self._already_committed:
            raise InvalidTxnState(
                f"{call}(): version {self._version} was committed before; look at "
                "already_committed first"
            )

    def _require_session(self) -> None:
        if _is_stopped(self._spark):
            self._phase = _Phase.FAILED
            raise InvalidTxnState(_STOPPED)

    @contextmanager
    def _fail_on_error(self) -> Iterator[None]:
        """A failed read or write leaves only abort, as a failed send does in Kafka's producer."""
        try:
            yield
        except BaseException:
            with self._lock:
                if self._phase is _Phase.OPEN:
                    self._phase = _Phase.FAILED
            raise


def _is_stopped(spark: SparkSession) -> bool:
    """Spark Connect tells; elsewhere a stopped context has let go of its JVM's half."""
    told: bool | None = getattr(spark, "is_stopped", None)
    return getattr(spark.sparkContext, "_jsc", None) is None if told is None else told


_DECIDED = (
    "path",
    "subscribe",
    "subscribepattern",
    "assign",
    "group.id",
    "maxrecords",
    "unsafesinglewriter",
)
_NEVER = ("transactional.id", "transaction.timeout.ms", "isolation.level")


def _format_option(value: bool | int | str) -> str:
    """As Spark makes it of what ``.option(...)`` is given."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _refuse_decided(options: Mapping[str, str]) -> None:
    """Raise InvalidOption for options that a transaction decides itself."""
    for option in options:
        name = option.lower().removeprefix("kafka.")
        if name in (*_DECIDED, *_NEVER) or name.startswith("storage."):
            raise InvalidOption(
                f"option {option}: it is decided by transaction(...) and the names given to read()"
            )


def _is_position(option: str) -> bool:
    """True for options that choose offsets: they have done so."""
    return option.lower().startswith(("starting", "ending"))
