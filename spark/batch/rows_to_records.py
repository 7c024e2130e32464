"""Spark's Arrow batches become records: by topic, in the segments' schema, with partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types
from pyspark import TaskContext

from txnlog.clock import Clock, SystemClock
from txnlog.config import TopicConfig
from txnlog.errors import InvalidRecord, UnsupportedRecordFormat
from txnlog.log.uploads import TopicSpec
from txnlog.schema import PARTITION
from txnlog.segments.records import normalize, split_large, timestamps_ms
from txnlog.segments.writer import DEFAULT_ROW_GROUP_BYTES
from txnlog.write.partitioner import (
    DEFAULT_PARTITIONER,
    Int32Array,
    Partitioner,
    choose_partitions,
    make_keyed_partitioner,
    make_partitioner,
)
from txnlog.write.record_checks import KeyCheck, TimestampLimits, explicit_partitions
from txnlog.write.topic_buffer import MAX_WORK_BYTES

_RECORD_COLUMNS = ("key", "value", "timestamp", "headers")


_WORK_BYTES = 2 << 20
"""The least that is processed at once: Spark's batches of 10,000 rows by themselves take 6 % more
CPU time for 8 partitions, 8 MiB take 10 to 30 % more.
"""

_MAX_WORK_BYTES = 8 << 20
"""It is in memory three times: as received, joined, and gathered by partition."""

_BYTES_PER_PARTITION = 64 << 10
"""Many partitions need more at once, or each gets next to nothing of it: with 200 of them 8 MiB
take a quarter less CPU time than 4 MiB, with 500 of them 40 % less."""


def work_bytes(partitions: int) -> int:
    """How much to process at once for this many partitions."""
    return min(max(partitions * _BYTES_PER_PARTITION, _WORK_BYTES), _MAX_WORK_BYTES)


def without_fillers(
    batches: Iterable[pa.RecordBatch], filler: str | None
) -> Iterator[pa.RecordBatch]:
    """The rows of ``batches`` that are not fillers, in their order.

    Fillers have the text ``filler`` in the first column of texts or bytes. None: there are none.
    """
    if filler is None:
        yield from batches
        return
    for batch in batches:
        texts = next(n for n, field in enumerate(batch.schema) if _is_text(field.type))
        if not pc.any(pc.equal(batch.column(texts), filler)).as_py():
            yield batch
            continue
        for piece in split_large(batch, MAX_WORK_BYTES):
            yield piece.filter(pc.fill_null(pc.not_equal(piece.column(texts), filler), True))


def _is_text(kind: pa.DataType) -> bool:
    is_text: bool = types.is_string(kind) or types.is_large_string(kind)
    return is_text or bool(types.is_binary(kind) or types.is_large_binary(kind))


def coalesce(batches: Iterable[pa.RecordBatch], least_bytes: int) -> Iterator[pa.RecordBatch]:
    """The rows of ``batches``, joined until they have ``least_bytes``.

    Later steps have a fixed cost per batch and partition, for which Spark's 10,000 rows are few.
    Many more would not fit into the processor's caches. None is larger than ``MAX_WORK_BYTES``, or
    one row: Arrow's columns of bytes end at 2 GiB.
    """
    held: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in (piece for whole in batches for piece in split_large(whole, MAX_WORK_BYTES)):
        if held and size_bytes + batch.nbytes > MAX_WORK_BYTES:
            yield _concatenate(held)
            held, size_bytes = [], 0
        held.append(batch)
        size_bytes += batch.nbytes
        if size_bytes >= least_bytes:
            yield _concatenate(held)
            held, size_bytes = [], 0
    if held:
        yield _concatenate(held)


def _concatenate(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def split_by_topic(
    batch: pa.RecordBatch, topic: str | None
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The parts of a batch by topic, rows in their order.

    ``topic`` is that of all rows; None takes the column ``topic``, which is dropped. Raises
    InvalidRecord: a row's topic is null, or no text.
    """
    if topic is not None:
        yield topic, batch
        return
    rows = batch.drop_columns(["topic"])
    for name, mine in _rows_by_topic(batch.column("topic")):
        yield name, rows if mine is None else rows.take(pa.array(mine))


def _rows_by_topic(column: pa.Array) -> Iterator[tuple[str, npt.NDArray[np.int64] | None]]:
    """The topics of a column and the rows of each; None: all."""
    if column.null_count:
        raise InvalidRecord(
            f"column 'topic' is null in {column.null_count} rows; give every row a topic, or the "
            "option topic for all"
        )
    encoded = column.dictionary_encode()
    try:
        names = encoded.dictionary.to_pylist()
    except UnicodeDecodeError as error:
        raise InvalidRecord(
            f"column 'topic' has a name that is not UTF-8: {error.object!r:.60}"
        ) from error
    if len(names) == 1:
        yield names[0], None
        return
    codes = encoded.indices.to_numpy()
    for code, name in enumerate(names):
        yield name, np.flatnonzero(codes == code)


def partition_column(spec: TopicSpec | None) -> str:
    """The column with a row's partition."""
    return "partition" if spec is None or spec.schema is None else PARTITION


def _task() -> int:
    context = TaskContext.get()
    return context.partitionId() if context else 0


def _first_partition(partitions: int, seed: int) -> int:
    """Tasks with a few keyless rows each must not all begin in one partition."""
    return (seed + _task()) % partitions


class _Partitions:
    """Chooses the partitions of one topic's rows: by their column, else by key."""

    def __init__(
        self, spec: TopicSpec, partitioner: str, seed: int, keyless: Partitioner | None = None
    ) -> None:
        self._spec = spec
        self._partitioner = keyless or make_partitioner(
            partitioner,
            spec.partitions,
            _first_partition(spec.partitions, seed),
            token=lambda: f"{seed:x}{_task():08x}",
        )

    def __call__(self, rows: pa.RecordBatch, keys: pa.Array, records: pa.RecordBatch) -> Int32Array:
        """The partition of each row (int32).

        ``keys`` are the rows' keys, binary; ``records`` is what a user's own partitioner sees.
        """
        explicit = explicit_partitions(rows, None, self._spec, partition_column(self._spec))
        return choose_partitions(keys, explicit, self._partitioner, records)


class _ByRowGroup:
    """For rows that have no key: one partition until it has got about a row group, then the next.

    So rows are not gathered one by one, small writes make one file per task, and neighbouring rows
    stay together, so engines can skip files by least and largest values.
    """

    def __init__(self, partitions: int, seed: int = 0) -> None:
        self._partitions = partitions
        self._partition = _first_partition(partitions, seed)
        self._taken_bytes = 0

    def __call__(self, keys: pa.Array, _: pa.RecordBatch | None = None, /) -> Int32Array:
        return np.full(len(keys), self._partition, dtype=np.int32)

    def add(self, size_bytes: int) -> None:
        """Bytes written to the partition so far."""
        self._taken_bytes += size_bytes
        if self._taken_bytes >= DEFAULT_ROW_GROUP_BYTES:
            self._partition = (self._partition + 1) % self._partitions
            self._taken_bytes = 0


class TopicRecords:
    """Normalises the rows of one topic and chooses their partitions."""

    def __init__(self, spec: TopicSpec, clock: Clock, partitioner: str, seed: int = 0) -> None:
        self._topic = spec.topic
        self._clock = clock
        self._typed = None
        if spec.schema is not None:
            from txnlog.spark.batch.typed_rows import TypedRows

            self._typed = TypedRows(spec)
        self._by_group = None
        if spec.schema is not None and not spec.schema.key and partitioner == DEFAULT_PARTITIONER:
            self._by_group = _ByRowGroup(spec.partitions, seed)
        config = TopicConfig.of(spec.config)
        self._timestamps = TimestampLimits(spec.topic, config)
        self._keys = KeyCheck(spec.topic, config)
        self._partitions = _Partitions(spec, partitioner, seed, self._by_group)

    def __call__(self, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, Int32Array]:
        """Records of RECORD_SCHEMA, or of the topic's own, and for each its partition (int32).

        Raises InvalidRecord, InvalidTimestamp.
        """
        if self._typed is not None:
            now_ms = self._clock.now_ms()
            records, keys = self._typed(rows, now_ms)
            self._timestamps.check(timestamps_ms(records), now_ms)
            chosen = self._partitions(rows, keys, records)
            if self._by_group is not None:
                self._by_group.add(records.nbytes)
            return records, chosen
        columns = [name for name in _RECORD_COLUMNS if name in rows.schema.names]
        now_ms = self._clock.now_ms()
        try:
            records = normalize(rows.select(columns), now_ms=now_ms)
        except UnsupportedRecordFormat as error:
            raise InvalidRecord(f"topic {self._topic!r}: {error}") from error
        self._keys.check(records.column("key"))
        self._timestamps.check(timestamps_ms(records), now_ms)
        return records, self._partitions(rows, records.column("key"), records)


class PartitionColumn:
    """Fills the column ``partition`` of rows that are to be shuffled by it.

    If an executor is lost Spark runs some tasks once more, and takes the rest of the rows from the
    first run: a row must go where it went before. Its partition depends on nothing but its content,
    the number of its task and what the driver has drawn (``seed``), so neither on the order of
    rows, which is another one behind a shuffle, nor on time: ``now_ms`` is that of rows without
    one, for a partitioner of the user's.

    Without ``topic`` the column of this name has it. The column ``content`` has a hash of each row,
    for those that have no key; it is dropped.
    """

    def __init__(
        self,
        spec_of: Callable[[str], TopicSpec],
        topic: str | None,
        partitioner: str,
        *,
        seed: int,
        now_ms: int,
        content: str | None = None,
    ) -> None:
        self._spec_of = spec_of
        self._topic = topic
        self._spec = None if topic is None else spec_of(topic)
        self._partitioner = partitioner
        self._seed = seed
        self._clock = _Stopped(now_ms)
        self._content = content
        self._topics: dict[str, Callable[[pa.RecordBatch, pa.Array], Int32Array]] = {}

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with its column of partitions (int32, the last one) filled."""
        chosen = np.empty(batch.num_rows, dtype=np.int32)
        keys = _binary_keys(batch, self._spec)
        if self._topic is not None:
            chosen[:] = self._of(self._topic)(batch, keys)
        elif batch.num_rows:
            for name, mine in _rows_by_topic(batch.column("topic")):
                if mine is None:
                    chosen[:] = self._of(name)(batch, keys)
                else:
                    at = pa.array(mine)
                    chosen[mine] = self._of(name)(batch.take(at), keys.take(at))
        filled = partition_column(self._spec)
        rest = [name for name in batch.schema.names if name not in (filled, self._content)]
        arrays = [*(batch.column(name) for name in rest), pa.array(chosen)]
        return pa.RecordBatch.from_arrays(arrays, names=[*rest, filled])

    def _of(self, topic: str) -> Callable[[pa.RecordBatch, pa.Array], Int32Array]:
        if topic not in self._topics:
            self._topics[topic] = self._make(self._spec_of(topic))
        return self._topics[topic]

    def _make(self, spec: TopicSpec) -> Callable[[pa.RecordBatch, pa.Array], Int32Array]:
        if ":" in self._partitioner:  # a user's partitioner, which sees records, as in a write
            records = TopicRecords(spec, self._clock, self._partitioner, self._seed)
            content = self._content

            def by_function(rows: pa.RecordBatch, _: pa.Array) -> Int32Array:
                return records(rows if content is None else rows.drop_columns([content]))[1]

            return by_function
        partitioner = make_keyed_partitioner(self._partitioner, spec.partitions)

        def by_key_or_content(rows: pa.RecordBatch, keys: pa.Array) -> Int32Array:
            explicit = explicit_partitions(rows, None, spec, partition_column(spec))
            chosen = np.array(choose_partitions(keys, explicit, partitioner))
            keyless = np.flatnonzero(chosen < 0)
            if keyless.size:
                chosen[keyless] = self._by_content(rows, spec.partitions)[keyless]
            return chosen

        return by_key_or_content

    def _by_content(self, rows: pa.RecordBatch, partitions: int) -> Int32Array:
        """The partition of each row if it has no key; equal rows of a task go together."""
        assert self._content is not None
        hashes = rows.column(self._content).to_numpy().view(np.uint64)
        drawn = np.uint64(self._seed << 32 | _task())
        # Spark's hash is good, and must only be another one in another task: multiply and fold.
        mixed = (hashes ^ drawn) * np.uint64(0x9E3779B97F4A7C15)
        chosen: Int32Array = ((mixed ^ mixed >> np.uint64(32)) % np.uint64(partitions)).astype(
            np.int32
        )
        return chosen


class _Stopped(SystemClock):
    """A clock that shows one time."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms


def _binary_keys(rows: pa.RecordBatch, spec: TopicSpec | None) -> pa.Array:
    if spec is not None and spec.schema is not None:
        from txnlog.spark.batch.typed_rows import TypedRows

        return TypedRows(spec).keys(rows)
    if "key" not in rows.schema.names:
        return pa.nulls(rows.num_rows, pa.binary())
    return rows.column("key").cast(pa.binary())


def select_used(batch: pa.RecordBatch, names: Sequence[str], used: Sequence[str]) -> pa.RecordBatch:
    """The columns to write, found by their positions in ``names``."""
    return pa.RecordBatch.from_arrays(
        [batch.column(names.index(name)) for name in used], names=list(used)
    )
