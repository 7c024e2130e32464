"""Records sent to one topic and not placed yet, uploaded as they grow; a writer's settings.

Knows nothing of transactions.
"""

from __future__ import annotations

import logging
import re
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from txnlog.columns.constraints import constraints_of
from txnlog.config import Acks, TopicConfig, WriterCodec
from txnlog.errors import (
    InvalidConfig,
    InvalidRecord,
    InvalidTxnState,
    RecordTooLarge,
    StorageError,
    TxnlogError,
    UnknownTopicOrPartition,
    UnsupportedRecordFormat,
)
from txnlog.log.open_logs import Logs
from txnlog.log.uploads import TopicSpec, UploadedSegment
from txnlog.schema import PARTITION
from txnlog.segments.records import (
    EMPTY_RECORD_BYTES,
    HEADERS_TYPE,
    normalize,
    record_size,
    record_sizes,
    split_large,
    timestamps_ms,
)
from txnlog.state.producers import ProducerRef
from txnlog.state.transaction import TransactionRef
from txnlog.storage.base import Storage
from txnlog.storage.create_once import Retries
from txnlog.write.deliveries import (
    Flush,
    FutureRecordMetadata,
    SentBatch,
    living,
    number,
    refuse,
    refusing,
)
from txnlog.write.partitioner import (
    DEFAULT_PARTITIONER,
    PartitionFunction,
    choose_partitions,
    make_partitioner,
)
from txnlog.write.record_checks import (
    Headers,
    KeyCheck,
    TimestampLimits,
    Value,
    check_headers,
    check_partition,
    check_timestamp,
    explicit_partitions,
    to_bytes,
)
from txnlog.write.row_values import make_columns, make_record, make_rows, plain_columns
from txnlog.write.segment_uploads import (
    DEFAULT_MEMORY_BYTES,
    SegmentUploader,
    UploadBudget,
    discard_segments,
)
from txnlog.write.typed_records import TypedRecords

WritesAs: TypeAlias = Callable[[str], ProducerRef | TransactionRef]
"""Tells as whom records of a topic will be placed, as far as that is known at their upload."""

METADATA_MAX_AGE_S = 300.0
"""How long a producer relies on a topic's metadata: Kafka's metadata.max.age.ms."""

MAX_WORK_BYTES = 256 << 20
"""How much of a batch becomes records at once: Arrow's columns of bytes end at 2 GiB, and casts,
and gathering by partition, hold it in memory twice.
"""

_logger = logging.getLogger(__name__)

ROWS_PER_BATCH: Final = 10_000
"""After this many single sends to one topic the records become an Arrow batch ..."""

BYTES_PER_BATCH: Final = 4 << 20
"""... or after this many bytes of what was sent."""

_TYPED_ROWS_PER_BATCH = 500
"""Fewer of a typed topic, where each takes some hundred bytes for each column meanwhile."""


_PANDAS_INDEX = re.compile(r"__index_level_\d+__")
"""The column name that pandas gives to an unnamed index."""


@dataclass(frozen=True, slots=True)
class WriterSettings:
    """A writer's settings for all topics, chosen once; Kafka's defaults.

    ``codec`` None: each topic's own; ``memory_bytes``: of buffered records; ``linger_ms`` None:
    only a flush sends.
    """

    codec: WriterCodec | None = None
    partitioner: str | PartitionFunction = DEFAULT_PARTITIONER
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    acks: Acks = Acks.ALL
    retries: Retries = field(default_factory=Retries)
    linger_ms: int | None = None

    def uploads_to(self, storage: Storage) -> Storage:
        """The storage for uploads of segments: durable at once only with acks=all."""
        return storage if self.acks is Acks.ALL else storage.without_fsync()


class SentRows:
    """Records sent one by one, not in Arrow yet.

    Rare attributes are kept by the record's number: explicit timestamps, headers and partitions.
    """

    __slots__ = (
        "headers",
        "keys",
        "partitions",
        "size_bytes",
        "timestamps",
        "values",
    )

    def __init__(self) -> None:
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.timestamps: dict[int, int] = {}
        self.headers: dict[int, list[tuple[str, bytes | None]]] = {}
        self.partitions: dict[int, int] = {}
        self.size_bytes = 0

    def to_batch(self) -> pa.RecordBatch:
        """The columns in use: a missing one means its default."""
        kind = pa.binary()
        columns = {"key": pa.array(self.keys, kind), "value": pa.array(self.values, kind)}
        numbers = range(len(self.keys))
        if self.timestamps:
            columns["timestamp"] = pa.array(map(self.timestamps.get, numbers), pa.int64())
        if self.headers:
            pairs = (self.headers.get(number, ()) for number in numbers)
            listed = [[{"key": name, "value": value} for name, value in row] for row in pairs]
            columns["headers"] = pa.array(listed, HEADERS_TYPE)
        return pa.RecordBatch.from_pydict(columns)

    def explicit_partitions(self) -> pa.Array | None:
        """The explicit partitions, int32; None if there are none."""
        if not self.partitions:
            return None
        return pa.array(map(self.partitions.get, range(len(self.keys))), pa.int32())


class TopicBuffer:
    """The buffer of one topic: rows, and the uploader that bounds memory.

    It is ``lost`` once an error has lost records that were sent. :meth:`Producer.send` adds to
    ``rows`` itself until the metadata is older than ``fresh_until_s``, on the monotonic clock:
    records of ``most_bytes`` of key and value at most, and if it ``needs_keys`` only those that
    have one. ``sent`` is the batch that records become that are sent one by one now. Until
    ``judged_until_s`` it refuses records without another look at the topic.
    """

    def __init__(
        self,
        logs: Logs,
        spec: TopicSpec,
        settings: WriterSettings,
        budget: UploadBudget,
        writes_as: WritesAs,
        flush: Flush,
    ) -> None:
        self.lost = False
        self._writes_as = writes_as
        self.rows = SentRows()
        self.fresh_until_s = 0.0
        self.judged_until_s = 0.0
        self._records: list[tuple[pa.RecordBatch, int | None]] = []
        """Records of a typed topic that were sent one by one, and their explicit partitions."""
        self._records_bytes = 0
        self._flush = flush
        self._held: set[SentBatch] = set()
        self.sent = SentBatch(flush, self._held)
        self._batches: list[weakref.ref[SentBatch]] = []
        """Earlier ones, whose records are not handed out yet."""
        self._counts: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        """How many records were added, by partition, since segments were handed out."""
        self._logs = logs
        self._settings = settings
        self._storage = settings.uploads_to(logs.storage)
        self._budget = budget
        self._uploader: SegmentUploader | None = None
        self._finished: list[UploadedSegment] = []
        self._use_spec(spec)

    def _use_spec(self, spec: TopicSpec) -> None:
        self._written = spec.with_codec(self._settings.codec)
        self.spec = spec
        self._partitioner = make_partitioner(
            self._settings.partitioner, spec.partitions, token=self._logs.clock.token
        )
        config = TopicConfig.of(spec.config)
        self._max_record_bytes = config.max_message_bytes
        self._timestamps = TimestampLimits(spec.topic, config)
        self._keys = KeyCheck(spec.topic, config)
        self.needs_keys = config.compacts
        self._typed = None
        if spec.schema is not None:
            constraints = constraints_of(spec.config, spec.schema)
            self._typed = TypedRecords(spec.topic, spec.schema, constraints)
        self.most_bytes = -1 if self._typed else config.max_message_bytes - EMPTY_RECORD_BYTES
        self._note_refresh()

    def _note_refresh(self) -> None:
        self.fresh_until_s = self._logs.clock.monotonic_s() + METADATA_MAX_AGE_S

    def successor(self, budget: UploadBudget) -> TopicBuffer:
        """An empty buffer with the same metadata of the topic."""
        after = TopicBuffer(
            self._logs, self.spec, self._settings, budget, self._writes_as, self._flush
        )
        after.fresh_until_s = self.fresh_until_s
        after.judged_until_s = self.judged_until_s
        return after

    @property
    def record_count(self) -> int:
        """How many records were sent, and are not in a segment that was handed out."""
        uploading = self._uploader.record_count if self._uploader else 0
        finished = sum(segment.stored.record_count for segment in self._finished)
        return len(self.rows.keys) + len(self._records) + uploading + finished

    @property
    def is_empty(self) -> bool:
        """True if nothing waits here, nobody for it, and nothing was lost."""
        return not (self.lost or self.record_count or self._batches)

    @property
    def outdated(self) -> bool:
        """True if the metadata is older than METADATA_MAX_AGE_S."""
        return self._logs.clock.monotonic_s() > self.fresh_until_s

    def is_current(self) -> bool:
        """True if the metadata matches the topic, which was refreshed just now."""
        self._note_refresh()
        try:
            return self._logs.topic(self.spec.topic).spec() == self.spec
        except UnknownTopicOrPartition:
            return False

    def refresh_spec(self) -> TopicSpec:
        """The topic's metadata, refreshed unless it cannot be read.

        Records buffered for a topic that was recreated are refused when they are placed: while
        there are any, it stays that of the old one. Raises UnknownTopicOrPartition: the topic was
        deleted.
        """
        self._note_refresh()
        try:
            spec = self._logs.topic_spec(self.spec.topic)
        except StorageError as error:
            _logger.warning("topic %r is used as it was known: %s", self.spec.topic, error)
            return self.spec
        return spec if spec.topic_id == self.spec.topic_id or self.is_empty else self.spec

    def change_spec(self, spec: TopicSpec) -> None:
        """Upload the buffer, and go on with the topic's new partitions and settings."""
        try:
            spec.with_codec(self._settings.codec)
        except InvalidConfig as error:
            # It was chosen for what the topic was: what is sent to it is not to be lost for that.
            _logger.warning("the codec of topic %r is its own from now on: %s", spec.topic, error)
            self._settings = replace(self._settings, codec=None)
        self.upload()  # what waits was accepted under the old schema and settings
        with self._lost_on_error():
            self._use_spec(spec)

    def follow(self) -> bool:
        """Go on with the topic as it is known by now; False if it was deleted or recreated."""
        self._note_refresh()
        try:
            spec = self._logs.topic(self.spec.topic).spec()
        except UnknownTopicOrPartition:
            return False
        if spec.topic_id != self.spec.topic_id:
            return False
        if spec != self.spec:
            self.change_spec(spec)
        return True

    def send(
        self,
        value: Value,
        key: bytes | str | None,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Headers | None,
    ) -> FutureRecordMetadata:
        """Take one record. Raises InvalidRecord, InvalidTimestamp, RecordTooLarge."""
        if self._typed is not None:
            return self._send_typed(self._typed, value, key, partition, timestamp_ms, headers)
        if key is None:
            self._keys.check_one(None)
        elif type(key) is not bytes:
            key = to_bytes(key, "key")
        if value is not None and type(value) is not bytes:
            value = to_bytes(value, "value")
        if timestamp_ms is not None:
            check_timestamp(timestamp_ms)
            self._timestamps.check_one(timestamp_ms, self._logs.clock.now_ms())
        pairs = None if headers is None else check_headers(headers)
        if partition is not None:
            check_partition(partition, self.spec)
        size_bytes = len(key or b"") + len(value or b"")
        whole_bytes = size_bytes + (record_size(None, None, pairs) if pairs else EMPTY_RECORD_BYTES)
        if whole_bytes > self._max_record_bytes:
            self._check_size(whole_bytes)
        rows = self.rows
        future = FutureRecordMetadata(self.sent, len(rows.keys))
        try:
            if timestamp_ms is not None:
                rows.timestamps[len(rows.keys)] = timestamp_ms
            if pairs:
                rows.headers[len(rows.keys)] = pairs
            if partition is not None:
                rows.partitions[len(rows.keys)] = partition
            rows.values.append(value)
            rows.keys.append(key)
            rows.size_bytes += whole_bytes if pairs else size_bytes
        except BaseException:  # an interrupt
            self.lost = True
            raise
        if len(rows.keys) >= ROWS_PER_BATCH or rows.size_bytes >= BYTES_PER_BATCH:
            self.flush_rows()
        return future

    def _send_typed(
        self,
        typed: TypedRecords,
        value: Value,
        key: bytes | str | None,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Headers | None,
    ) -> FutureRecordMetadata:
        if key is not None:
            raise InvalidRecord(
                f"topic {self.spec.topic!r} has a schema, whose columns are the key: leave key out"
            )
        checked = check_partition(partition, self.spec)
        now_ms = self._logs.clock.now_ms()
        record = make_record(
            typed, value, check_timestamp(timestamp_ms), check_headers(headers), now_ms
        )
        self._timestamps.check(timestamps_ms(record), now_ms)
        size_bytes = record.nbytes
        if size_bytes > self._max_record_bytes:  # which measures a little more, at once
            self._check_size(int(record_sizes(record)[0]))
        future = FutureRecordMetadata(self.sent, len(self._records))
        self._records.append((record, checked))
        self._records_bytes += size_bytes
        if len(self._records) >= _TYPED_ROWS_PER_BATCH or self._records_bytes >= BYTES_PER_BATCH:
            self.flush_rows()
        return future

    def _check_size(self, size_bytes: int, which: str = "a record") -> None:
        if size_bytes > self._max_record_bytes:
            raise RecordTooLarge(
                f"{which}, of {size_bytes} bytes, is larger than the {self._max_record_bytes} that "
                f"max.message.bytes of topic {self.spec.topic!r} allows"
            )

    def send_rows(self, rows: Sequence[object], partition: int | None) -> None:
        """Take a list of mappings or dataclasses, or none of them. Raises as send_batches does."""
        rows = [*rows]  # another thread may change the list
        if rows:
            if self._typed is not None:
                batch = make_rows(rows, partial(make_columns, self._typed))
            else:
                batch = make_rows(rows, partial(plain_columns, self.spec.topic))
            self.send_batches([batch], partition)

    def send_batches(self, batches: Sequence[pa.RecordBatch], partition: int | None) -> None:
        """Take batches of any size, or none of them.

        Raises InvalidRecord, InvalidTimestamp, RecordTooLarge; then none was taken.
        """
        pieces = [piece for batch in batches for piece in split_large(batch, MAX_WORK_BYTES)]
        ends = accumulate(batch.num_rows for batch in pieces)
        for batch, first in zip(pieces[1:], ends, strict=False):
            # Checked before any is taken: all of a table is sent, or nothing.
            try:
                self._to_records(batch, partition)
            except TxnlogError as error:
                error.args = (f"from row {first} on, counted from 0 there: {error}",)
                raise
        self.flush_rows()
        for batch in pieces:
            records, explicit = self._to_records(batch, partition)
            self._add(records, explicit)

    def _to_records(
        self, batch: pa.RecordBatch, partition: int | None
    ) -> tuple[pa.RecordBatch, pa.Array | None]:
        """A user's batch as records, and their explicit partitions. Raises as send_batches does."""
        column = "partition" if self._typed is None else PARTITION
        explicit = explicit_partitions(batch, partition, self.spec, column)
        if column in batch.schema.names:
            batch = batch.drop_columns([column])
        batch = _without_index(batch, self._typed)
        now_ms = self._logs.clock.now_ms()
        if self._typed is not None:
            records = self._typed.normalize(batch, now_ms)
        else:
            try:
                records = normalize(batch, now_ms=now_ms)
            except UnsupportedRecordFormat as error:
                raise InvalidRecord(f"topic {self.spec.topic!r}: {error}") from error
            self._keys.check(records.column("key"))
        self._timestamps.check(timestamps_ms(records), now_ms)
        if records.nbytes > self._max_record_bytes:
            sizes = record_sizes(records)
            row = int(sizes.argmax())
            self._check_size(int(sizes[row]), f"record {row} of the batch")
        return records, explicit

    def flush_rows(self) -> None:
        """Make an Arrow batch of the records sent one by one."""
        if not (self._records or self.rows.keys):
            return
        # Weakly: an error that nobody asks for would hold the frames that it came through.
        sent = weakref.ref(self.sent)
        with self._lost_on_error(), refusing(living([sent])):
            self.sent = SentBatch(self._flush, self._held)
            if self._records:
                typed, self._records, self._records_bytes = self._records, [], 0
                table = pa.Table.from_batches([record for record, _ in typed]).combine_chunks()
                chosen = pa.array([partition for _, partition in typed], pa.int32())
                self._add(table.to_batches()[0], chosen, sent)
                return
            rows, self.rows = self.rows, SentRows()
            records = normalize(rows.to_batch(), now_ms=self._logs.clock.now_ms())
            self._add(records, rows.explicit_partitions(), sent)

    def _add(
        self,
        records: pa.RecordBatch,
        explicit: pa.Array | None,
        sent: weakref.ref[SentBatch] | None = None,
    ) -> None:
        """Upload records, to their explicit partitions or where the partitioner sends them."""
        with self._lost_on_error():
            keys = records.column("key") if self._typed is None else self._typed.keys(records)
            partitions = choose_partitions(keys, explicit, self._partitioner, records)
            if self._uploader is None:
                self._uploader = SegmentUploader(
                    self._storage,
                    self._written,
                    self._logs.clock,
                    self._budget,
                    self._writes_as(self.spec.topic),
                )
            if sent is not None:
                number(sent, partitions, self._counts)
                self._batches.append(sent)
            # A new array: what is placed before a batch stays as it was.
            counts = np.bincount(partitions, minlength=self.spec.partitions)
            counts[: len(self._counts)] += self._counts
            self._counts = counts
            self._uploader.write(records, partitions)

    @property
    def batches(self) -> list[SentBatch]:
        """The batches returned by :meth:`finish` whose futures still exist.

        They are kept until :meth:`forget_batches`.
        """
        return [*living(self._batches)]

    def forget_batches(self) -> None:
        """Others tell where they are placed."""
        self._batches = []

    def upload(self) -> None:
        """Upload all buffered records."""
        self.flush_rows()
        with self._lost_on_error():
            self._end_uploads()

    def finish(self) -> list[UploadedSegment]:
        """Upload all buffered records; returns segments in the order they are to be placed.

        On an error they stay here, for :meth:`discard`.
        """
        self.upload()
        finished, self._finished = self._finished, []
        self._counts = np.zeros(0, np.int64)
        return finished

    def _end_uploads(self) -> None:
        if self._uploader:
            self._finished += self._uploader.finish()
            self._uploader = None

    def refuse_batches(self) -> None:
        """Tell those who wait for records that these are not written any more."""
        why = (
            f"a record for topic {self.spec.topic!r} was dropped before it was written: its "
            "transaction was aborted, or its producer has failed or was closed without a flush"
        )
        refuse([self.sent, *self.batches], InvalidTxnState(why))
        self.sent = SentBatch(self._flush, self._held)

    def discard(self) -> None:
        """Drop everything, best effort."""
        self.lost = False
        self.refuse_batches()
        self._batches = []
        self._counts = np.zeros(0, np.int64)
        self.rows = SentRows()
        self._records, self._records_bytes = [], 0
        uploader, self._uploader = self._uploader, None
        if uploader:
            uploader.discard()
        discard_segments(self._storage, self._finished)
        self._finished = []

    @contextmanager
    def _lost_on_error(self) -> Iterator[None]:
        """Around uploads, which cannot be repeated: what was sent is no longer in memory."""
        try:
            with self._settings.retries.waiting(self._storage):
                yield
        except BaseException:
            self.lost = True
            raise


def _without_index(batch: pa.RecordBatch, typed: TypedRecords | None) -> pa.RecordBatch:
    """Without the unnamed index of a pandas frame: filtered frames have one."""
    if b"pandas" not in (batch.schema.metadata or {}):
        return batch
    known = () if typed is None else typed.columns.names
    index = [
        name for name in batch.schema.names if _PANDAS_INDEX.fullmatch(name) and name not in known
    ]
    return batch.drop_columns(index) if index else batch
