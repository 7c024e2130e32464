"""Records that a producer was sent and has not placed: checked, gathered, uploaded as they grow.

Knows one topic at a time, and nothing of transactions.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from txnlog.config import TopicConfig, WriterCodec
from txnlog.errors import (
    InvalidRecord,
    RecordTooLarge,
    StorageError,
    UnknownTopicOrPartition,
    UnsupportedRecordFormat,
)
from txnlog.logs import Logs
from txnlog.partitioner import DEFAULT_PARTITIONER, Int32Array, make_partitioner
from txnlog.segments.records import RECORD_SCHEMA, normalize
from txnlog.storage.base import Storage
from txnlog.topic_log import TopicSpec, UploadedSegment
from txnlog.uploads import SegmentUploader, UploadBudget, discard_segments

METADATA_MAX_AGE_S = 300.0
"""How long a producer relies on what it knows of a topic: Kafka's metadata.max.age.ms."""

_logger = logging.getLogger(__name__)

Headers = Sequence[tuple[str, bytes | None]]


class Rows:
    """Records that were sent one by one and are not Arrow yet."""

    def __init__(self) -> None:
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.timestamps: list[int | None] = []
        self.headers: list[list[tuple[str, bytes | None]]] = []
        self.partitions: list[int] = []
        self.size_bytes = 0

    def to_batch(self) -> pa.RecordBatch:
        types = {field.name: field.type for field in RECORD_SCHEMA}
        return pa.RecordBatch.from_arrays(
            [
                pa.array(self.keys, types["key"]),
                pa.array(self.values, types["value"]),
                pa.array(self.timestamps, pa.int64()),
                pa.array(
                    [[{"key": k, "value": v} for k, v in row] for row in self.headers],
                    types["headers"],
                ),
            ],
            names=["key", "value", "timestamp", "headers"],
        )


class TopicBuffer:
    """What is buffered for one topic: rows, and the uploader that bounds memory."""

    def __init__(
        self,
        logs: Logs,
        spec: TopicSpec,
        memory_bytes: int,
        codec: WriterCodec | None = None,
        storage: Storage | None = None,
        partitioner: str = DEFAULT_PARTITIONER,
    ) -> None:
        self.rows = Rows()
        self._logs = logs
        self._storage = storage or logs.storage
        self._memory_bytes = memory_bytes
        self._codec = codec
        self._partitioner = partitioner
        self._uploader: SegmentUploader | None = None
        self._finished: list[UploadedSegment] = []
        self._use(spec)

    def _use(self, spec: TopicSpec) -> None:
        self._written = spec.written_with(self._codec)
        self.spec = spec
        self.partitioner = make_partitioner(self._partitioner, spec.partitions)
        self._max_record_bytes = TopicConfig.of(spec.config).max_message_bytes
        self._looked_at_s = self._logs.clock.monotonic_s()

    def successor(self) -> TopicBuffer:
        """An empty buffer that goes on with what is known of the topic."""
        after = TopicBuffer(
            self._logs,
            self.spec,
            self._memory_bytes,
            self._codec,
            self._storage,
            self._partitioner,
        )
        after._looked_at_s = self._looked_at_s
        return after

    @property
    def outdated(self) -> bool:
        """True if it is long since that the topic was looked at."""
        return self._logs.clock.monotonic_s() - self._looked_at_s > METADATA_MAX_AGE_S

    def is_current(self) -> bool:
        """True if the topic, which was refreshed just now, is as this buffer knows it."""
        self._looked_at_s = self._logs.clock.monotonic_s()
        try:
            return self._logs.topic(self.spec.topic).spec() == self.spec
        except UnknownTopicOrPartition:
            return False

    def look_again(self) -> TopicSpec:
        """The topic as it is now; as it was known, if it cannot be read or was made anew.

        What is buffered for a topic that was made anew is refused when it is placed.

        Raises:
            UnknownTopicOrPartition: the topic was deleted.
        """
        self._looked_at_s = self._logs.clock.monotonic_s()
        try:
            spec = self._logs.topic_spec(self.spec.topic)
        except StorageError as error:
            _logger.warning("topic %r is used as it was known: %s", self.spec.topic, error)
            return self.spec
        return spec if spec.topic_id == self.spec.topic_id else self.spec

    def change(self, spec: TopicSpec) -> None:
        """Go on with the topic's new partitions and settings; uploads what is gathered so far."""
        if self._uploader:
            self._finished += self._uploader.finish()
            self._uploader = None
        self._use(spec)

    def check_size(self, size_bytes: int) -> None:
        if size_bytes > self._max_record_bytes:
            raise RecordTooLarge(
                f"a record of {size_bytes} bytes is larger than the {self._max_record_bytes} that "
                f"max.message.bytes of topic {self.spec.topic!r} allows"
            )

    def records_of(
        self, batch: pa.RecordBatch, partition: int | None
    ) -> tuple[pa.RecordBatch, Int32Array | None]:
        """A user's batch as records, and the partitions that are named. Raises InvalidRecord."""
        explicit = partition_column(batch, partition, self.spec)
        if "partition" in batch.schema.names:
            batch = batch.drop_columns(["partition"])
        try:
            return normalize(batch, now_ms=self._logs.clock.now_ms()), explicit
        except UnsupportedRecordFormat as error:
            raise InvalidRecord(f"topic {self.spec.topic!r}: {error}") from error

    def add(self, batch: pa.RecordBatch, partitions: Int32Array) -> None:
        if self._uploader is None:
            self._uploader = SegmentUploader(
                self._storage,
                self._written,
                self._logs.clock,
                UploadBudget(self._memory_bytes),
            )
        self._uploader.write(batch, partitions)

    def finish(self) -> list[UploadedSegment]:
        uploader, self._uploader = self._uploader, None
        finished, self._finished = self._finished, []
        return [*finished, *(uploader.finish() if uploader else [])]

    def discard(self) -> None:
        self.rows = Rows()
        uploader, self._uploader = self._uploader, None
        if uploader:
            uploader.discard()
        discard_segments(self._storage, self._finished)
        self._finished = []


def to_bytes(value: bytes | str | None, what: str) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise InvalidRecord(f"a record's {what} is no text: {error}") from None
    raise InvalidRecord(f"a record's {what} must be bytes, a string or None, not {value!r:.60}")


def check_timestamp(timestamp_ms: int | None) -> int | None:
    if timestamp_ms is None:
        return None
    whole = isinstance(timestamp_ms, int) and not isinstance(timestamp_ms, bool)
    if whole and -1 <= timestamp_ms < 1 << 53:
        return timestamp_ms
    raise InvalidRecord(f"timestamp_ms must be milliseconds since the epoch, not {timestamp_ms!r}")


def check_headers(headers: Headers) -> list[tuple[str, bytes | None]]:
    checked = []
    if headers is None or isinstance(headers, str | bytes | dict):
        raise InvalidRecord(f"headers must be a list of pairs, not {headers!r:.60}")
    for header in headers:
        if not (isinstance(header, tuple) and len(header) == 2 and isinstance(header[0], str)):
            raise InvalidRecord(
                f"a header must be a pair of a string and bytes, not {header!r:.60}"
            )
        to_bytes(header[0], "header's name")
        checked.append((header[0], to_bytes(header[1], "header")))
    return checked


def check_partition(partition: int | None, spec: TopicSpec) -> int:
    if partition is None:
        return -1
    if isinstance(partition, bool) or not isinstance(partition, int):
        raise InvalidRecord(f"partition must be a whole number, not {partition!r}")
    if not 0 <= partition < spec.partitions:
        raise InvalidRecord(
            f"topic {spec.topic!r} has no partition {partition}; it has {spec.partitions}"
        )
    return partition


def partition_column(
    batch: pa.RecordBatch, partition: int | None, spec: TopicSpec
) -> Int32Array | None:
    """The explicit partition of each record, -1 where there is none; None if all have none."""
    if partition is not None:
        return np.full(batch.num_rows, check_partition(partition, spec), dtype=np.int32)
    if "partition" not in batch.schema.names:
        return None
    column = batch.column("partition")
    if not pa.types.is_integer(column.type):
        raise InvalidRecord(f"column 'partition' is {column.type}; an integer type is needed")
    chosen = column.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
    if chosen.size and (int(chosen.min()) < -1 or int(chosen.max()) >= spec.partitions):
        raise InvalidRecord(
            f"column 'partition' holds {int(chosen.min())} to {int(chosen.max())}, but topic "
            f"{spec.topic!r} has {spec.partitions} partitions"
        )
    partitions: Int32Array = chosen.astype(np.int32)
    return partitions
