"""The content of one manifest: an Arrow table with a row for each segment that entries placed.

Rows are sorted by partition and offset. Besides the segment a row tells when it was appended and
by whose transaction, and whether that was aborted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import itemgetter

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from txnlog.errors import CorruptEntry
from txnlog.limits import MOST_STATE_BYTES, SEGMENT_NAME
from txnlog.names import OWN_FILE
from txnlog.segments.arrays import numbers_of_column
from txnlog.segments.untrusted import read_table
from txnlog.state.manifest import ManifestRef, PartitionSpan
from txnlog.state.producers import ProducerState, SequenceRange, remember
from txnlog.state.segment import KafkaFile, Segment, StoredSegment
from txnlog.state.topic import RecentEntry
from txnlog.state.transaction import TransactionRef

MAX_SPANS = 256
"""Partitions that a list names for each manifest; with more it would be as large as they are."""

SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("base_offset", pa.int64()),
        ("entry", pa.int64()),
        ("name", pa.string()),
        ("record_count", pa.int64()),
        ("size_bytes", pa.int64()),
        ("min_timestamp_ms", pa.int64()),
        ("max_timestamp_ms", pa.int64()),
        ("batch_count", pa.int32()),
        ("producer_id", pa.int64()),
        ("producer_epoch", pa.int32()),
        ("base_sequence", pa.int64()),
        ("transaction", pa.int64()),
        ("tag", pa.int64()),
        ("kafka_offset_count", pa.int64()),
        ("kafka_aborted_count", pa.int64()),
        ("kafka_aborted_crc", pa.int64()),
        ("kafka_first_crc", pa.int64()),
        ("aborted", pa.bool_()),
        ("at_ms", pa.int64()),
        ("time_before_ms", pa.int64()),
        ("topic_time_ms", pa.int64()),
        ("transactional_id", pa.string()),
        ("position", pa.int64()),
    ]
)
_NAME = f"^{SEGMENT_NAME}$"
_NULLABLE = frozenset(
    field.name for field in SCHEMA if field.name.startswith(("kafka_", "transactional_"))
)
_SHARED_ROWS = 1 << 10
_MAX_ROW_BYTES = 1 << 10
"""More than a row takes in memory: two names of 250 bytes, and 200 bytes of numbers."""
_FRAME_BYTES = 64 << 10
"""More than buffers are padded by."""
_LEAST = {
    "partition": 0,
    "base_offset": 0,
    "entry": 0,
    "record_count": 0,
    "size_bytes": 0,
    "batch_count": 0,
    "position": OWN_FILE,
    "kafka_offset_count": 0,
}
"""The least numbers in columns by which others are found or summed."""
_MAX_SIZE = (1 << 48) - 1
"""What no count or size of a segment reaches: of a hundred thousand the sum is a number, too."""

_STORED = (
    "name",
    "record_count",
    "size_bytes",
    "min_timestamp_ms",
    "max_timestamp_ms",
    "batch_count",
    "tag",
    "position",
)
_PLACE = ("producer_id", "producer_epoch", "base_sequence", "transaction")
_KAFKA = ("kafka_offset_count", "kafka_aborted_count", "kafka_aborted_crc", "kafka_first_crc")


@dataclass(frozen=True, slots=True)
class ManifestTable:
    """The rows of a manifest, or of several, in the order of partitions and offsets."""

    table: pa.Table

    @classmethod
    def of(
        cls,
        placed: Iterable[tuple[int, Sequence[Segment]]],
        entries: Mapping[int, RecentEntry],
        aborted: Iterable[int],
    ) -> ManifestTable:
        """The rows of segments: partitions in order, each with its segments in order.

        ``entries``: what is known of the entries that placed them. ``aborted``: the numbers of
        those entries whose transactions were aborted.
        """
        partitions: list[int] = []
        segments: list[Segment] = []
        for partition, of_partition in placed:
            segments += of_partition
            partitions += [partition] * len(of_partition)
        by_segment = [entries[segment.entry] for segment in segments]
        gone = set(aborted)
        owners = [entry.transaction for entry in by_segment]
        imported = [segment.stored.kafka for segment in segments]
        columns: dict[str, list[object]] = {
            "partition": [*partitions],
            "entry": [segment.entry for segment in segments],
            "base_offset": [segment.base_offset for segment in segments],
            **{name: [getattr(segment.stored, name) for segment in segments] for name in _STORED},
            **{name: [getattr(segment, name) for segment in segments] for name in _PLACE},
            **{
                f"kafka_{name}": [getattr(kafka, name) if kafka else None for kafka in imported]
                for name in ("offset_count", "aborted_count", "aborted_crc", "first_crc")
            },
            "aborted": [segment.entry in gone for segment in segments],
            "at_ms": [entry.at_ms for entry in by_segment],
            "time_before_ms": [entry.time_before_ms for entry in by_segment],
            "topic_time_ms": [entry.topic_time_ms for entry in by_segment],
            "transactional_id": [owner.transactional_id if owner else None for owner in owners],
        }
        return cls(pa.table(columns, schema=SCHEMA))

    @classmethod
    def concat(cls, tables: Iterable[ManifestTable]) -> ManifestTable:
        """The rows of several, sorted again; in each partition they come one after the other."""
        rows = pa.concat_tables([part.table for part in tables]).combine_chunks()
        order = [("partition", "ascending"), ("base_offset", "ascending"), ("entry", "ascending")]
        return cls(rows.take(pc.sort_indices(rows, sort_keys=order)))

    @classmethod
    def decode(cls, data: bytes, ref: ManifestRef, path: str) -> ManifestTable:
        """Check and read a manifest. Raises CorruptEntry."""
        if len(data) != ref.size_bytes or crc32c(data) != ref.crc:
            raise CorruptEntry(
                f"{path} is damaged: it has {len(data)} bytes and checksum {crc32c(data):08x}, the "
                f"list says {ref.size_bytes} and {ref.crc:08x}; restore this file from a backup"
            )
        try:
            table = read_table(data, SCHEMA, ref.segment_count, _most_bytes(ref.segment_count))
            _check_rows(table)
        except (ValueError, pa.ArrowException, OSError) as error:
            raise CorruptEntry(
                f"{path} does not decode, though its checksum is right: {error}; restore this file "
                "from a backup, and ask who has written it"
            ) from error
        return cls(table.combine_chunks())

    def encode(self) -> bytes:
        """The bytes of a manifest: an Arrow IPC stream, its buffers compressed.

        Raises CorruptEntry: it is larger than what :meth:`decode` takes.
        """
        if self.nbytes > (most := _most_bytes(len(self))):
            raise CorruptEntry(
                f"a manifest of {len(self)} segments takes {self.nbytes} bytes, and none may take "
                f"more than {most}"
            )
        sink = pa.BufferOutputStream()
        # Compressing few rows in several threads takes longer than in one.
        threads = len(self) > _SHARED_ROWS
        options = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=threads)
        with pa.ipc.new_stream(sink, self.table.schema, options=options) as writer:
            writer.write_table(self.table)
        return bytes(sink.getvalue())

    def has_shared(self) -> bool:
        """Whether some of the segments lie in files that they share."""
        return bool((self.ints("position") != OWN_FILE).any())

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return int(self.table.nbytes)

    def ints(self, name: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """A column of whole numbers without nulls."""
        return numbers_of_column(self.table.column(name))

    def end_offsets(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """The offset after the last one of each segment."""
        counts = pc.coalesce(self.table.column("kafka_offset_count"), self.table["record_count"])
        return self.ints("base_offset") + numbers_of_column(counts)

    def is_of_kafka(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Which segments are files that a broker wrote."""
        return _flags(pc.is_valid(self.table.column("kafka_offset_count")))

    def ref(self, name: str, data: bytes, first_entry: int, end_entry: int) -> ManifestRef:
        """The manifest's description for a manifest list; ``data`` are its bytes."""
        partitions, starts = np.unique(self.ints("partition"), return_index=True)
        spans = None
        if len(partitions) <= MAX_SPANS and len(self):
            ends = np.append(starts[1:], len(self)) - 1
            spans = tuple(
                PartitionSpan(*map(int, row))
                for row in zip(
                    partitions,
                    self.ints("base_offset")[starts],
                    self.end_offsets()[ends],
                    ends - starts + 1,
                    np.add.reduceat(self.ints("size_bytes"), starts),
                    np.maximum.reduceat(self.ints("max_timestamp_ms"), starts),
                    strict=True,
                )
            )
        return ManifestRef(
            name=name,
            first_entry=first_entry,
            end_entry=end_entry,
            segment_count=len(self),
            size_bytes=len(data),
            crc=crc32c(data),
            max_at_ms=int(self.ints("at_ms").max(initial=-1)),
            topic_time_ms=int(self.ints("topic_time_ms").max(initial=-1)),
            has_transactions=bool((self.ints("transaction") >= 0).any()),
            spans=spans,
            has_shared=self.has_shared(),
        )

    # -- choosing rows ---------------------------------------------------------------------------

    def where(self, mask: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> ManifestTable:
        """The rows for which a mask is true."""
        if mask.all():
            return self
        return ManifestTable(self.table.filter(pa.array(mask)))

    def before(self, entry: int) -> ManifestTable:
        """The rows of entries before ``entry``."""
        return self.where(self.ints("entry") < entry)

    def of_producers(self, producer_ids: Sequence[int]) -> ManifestTable:
        return self.where(np.isin(self.ints("producer_id"), np.asarray(producer_ids, np.int64)))

    def first_time_before_ms(self) -> int:
        """The topic's own time before the first of these appends."""
        return int(self.ints("time_before_ms").min())

    def partitions_of_epoch(self, epoch: int) -> set[int]:
        """The partitions that were written to with a producer epoch."""
        return set(self.where(self.ints("producer_epoch") == epoch).ints("partition").tolist())

    def has_committed_below_epoch(self, epoch: int) -> bool:
        """Whether anything was committed with an older producer epoch."""
        return bool(((self.ints("producer_epoch") < epoch) & ~self.is_aborted()).any())

    def named(self, partition: int, name: str) -> ManifestTable:
        """The segment of this name, which is unique."""
        by_name = pc.equal(self.table.column("name"), name).to_numpy()
        return self.where(by_name & (self.ints("partition") == partition))

    def of_entry(self, entry: int) -> ManifestTable:
        return self.where(self.ints("entry") == entry)

    def shared_of(self, entries: Collection[int]) -> ManifestTable:
        """The rows that these entries have placed in shared files."""
        is_one = np.isin(self.ints("entry"), np.fromiter(entries, np.int64, len(entries)))
        return self.where(is_one & (self.ints("position") != OWN_FILE))

    def places(self) -> list[tuple[int, int, int]]:
        """The partition, base offset and end offset of each segment."""
        columns = self.ints("partition"), self.ints("base_offset"), self.end_offsets()
        return [*zip(*(column.tolist() for column in columns), strict=True)]

    def untrimmed(
        self, log_starts: Sequence[int], idle_since_ms: int | None = None
    ) -> ManifestTable:
        """The rows beyond the log starts of their partitions, or not older than a time.

        ``idle_since_ms`` is the topic's own time.
        """
        return self.where(self.is_kept(log_starts, idle_since_ms))

    def is_kept(
        self, log_starts: Sequence[int], idle_since_ms: int | None
    ) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Which rows :meth:`untrimmed` keeps. Raises CorruptEntry for an unknown partition."""
        starts = np.asarray(log_starts, dtype=np.int64)
        if self.ints("partition").max(initial=-1) >= len(starts):
            raise CorruptEntry(
                f"a manifest has segments of partition {self.ints('partition').max()} of a topic "
                f"with {len(starts)}: restore the topic's manifests from a backup"
            )
        kept: np.ndarray[tuple[int], np.dtype[np.bool_]]
        kept = self.end_offsets() > starts[self.ints("partition")]
        if idle_since_ms is not None:
            kept |= self.ints("topic_time_ms") >= idle_since_ms
        return kept

    def is_aborted(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """The rows that aborted transactions have placed."""
        return _flags(self.table.column("aborted"))

    def committed(self) -> ManifestTable:
        """The rows that were not aborted."""
        return self.where(~self.is_aborted())

    def aborted_entries(self) -> set[int]:
        """The entries whose transaction was aborted."""
        return set(self.ints("entry")[self.is_aborted()].tolist())

    def chunks(
        self, first_entry: int, end_entry: int, most: int
    ) -> Iterator[tuple[int, int, ManifestTable]]:
        """Split it into runs of entries of about ``most`` rows: (first entry, end, rows).

        All rows of an entry stay together, however many they are, and no run is without rows.
        """
        entries = np.sort(self.ints("entry"))
        low = first_entry
        for at in range(most, len(entries), most):
            end = int(entries[at])
            rows = self.where((self.ints("entry") >= low) & (self.ints("entry") < end))
            if len(rows):
                yield low, end, rows
                low = end
        rest = self.where(self.ints("entry") >= low)
        if len(rest):
            yield low, end_entry, rest

    def overlapping(self, partition: int, start: int, end: int) -> ManifestTable:
        """The rows of one partition that hold any offset of [start, end)."""
        partitions = self.ints("partition")
        low = int(np.searchsorted(partitions, partition, "left"))
        high = int(np.searchsorted(partitions, partition, "right"))
        # Offsets ascend in a partition, and so do ends.
        first = low + int(np.searchsorted(self.end_offsets()[low:high], start, "right"))
        last = low + int(np.searchsorted(self.ints("base_offset")[low:high], end, "left"))
        last = first if start >= end else last
        return ManifestTable(self.table.slice(first, max(last - first, 0)))

    # -- as values -------------------------------------------------------------------------------

    def segments(self) -> list[Segment]:
        """The segments, in order."""
        found = {name: self.table.column(name).to_pylist() for name in _STORED}
        # With a million segments each number takes 32 MB, unless equal ones share one object.
        sizes: dict[int, int] = {}
        found["size_bytes"] = [sizes.setdefault(size, size) for size in found["size_bytes"]]
        times = zip(found["min_timestamp_ms"], found["max_timestamp_ms"], strict=True)
        found["max_timestamp_ms"] = [low if low == high else high for low, high in times]
        kafka: Iterable[KafkaFile | None] = repeat(None)
        if self.table.column("kafka_offset_count").null_count < len(self):
            values = [self.table.column(name).to_pylist() for name in _KAFKA]
            kafka = [
                None if row[0] is None else KafkaFile(*row) for row in zip(*values, strict=True)
            ]
        stored = map(StoredSegment, *found.values(), kafka)
        entries, offsets = (self.table.column(n).to_pylist() for n in ("entry", "base_offset"))
        owners = (self.table.column(name).to_pylist() for name in _PLACE)
        return list(map(Segment, entries, offsets, stored, *owners))

    def size_bytes(self) -> int:
        """How large the segments are together."""
        return int(self.ints("size_bytes").sum())

    def by_partition(self) -> Iterator[tuple[int, ManifestTable]]:
        """The rows of each partition, in order."""
        if not len(self):
            return
        partitions, starts = np.unique(self.ints("partition"), return_index=True)
        ends = np.append(starts[1:], len(self))
        for partition, start, end in zip(partitions, starts, ends, strict=True):
            yield int(partition), ManifestTable(self.table.slice(int(start), int(end - start)))

    def entries(self) -> list[RecentEntry]:
        """The appends, in the order of their numbers."""
        found: dict[int, RecentEntry] = {}
        names = (
            "entry",
            "partition",
            "base_offset",
            "at_ms",
            "time_before_ms",
            "topic_time_ms",
            "transactional_id",
            "transaction",
            "producer_id",
            "producer_epoch",
        )
        for row in zip(*(self.table.column(name).to_pylist() for name in names), strict=True):
            number, partition, offset, at_ms, before_ms, after_ms, transactional_id, *owner = row
            known = found.get(number)
            if known is None:
                ref = TransactionRef(transactional_id, *owner) if transactional_id else None
                known = found[number] = RecentEntry(number, at_ms, {}, ref, before_ms, after_ms)
            known.first_offsets.setdefault(partition, offset)
        return [found[number] for number in sorted(found)]

    def producers(
        self,
        expiration_ms: int,
        before: Mapping[int, int] | None = None,
        *,
        log_starts: Sequence[int],
        now_ms: int,
        is_whole: bool = True,
    ) -> dict[int, ProducerState]:
        """The memory of producers after these appends.

        Producers idle for ``expiration_ms``, by the topic's own time ``now_ms``, were forgotten.
        ``before``: by producer, an entry: only those before it count. ``log_starts``: where
        partitions begin. Of appends below that are older than the expiry only the time is
        remembered: lists may leave them out. ``is_whole``: there are no older appends of them
        elsewhere.
        """
        found: dict[int, ProducerState] = {}
        rows = self.where(self.ints("producer_id") >= 0)
        columns = (
            "entry",
            "partition",
            "producer_id",
            "producer_epoch",
            "transaction",
            "at_ms",
            "time_before_ms",
            "topic_time_ms",
            "base_sequence",
            "record_count",
            "base_offset",
            "name",
        )
        # One entry may hold appends of several producers, but one of each.
        appends: dict[tuple[int, int], tuple[tuple[int, ...], dict[int, SequenceRange]]] = {}
        told = rows.is_kept(log_starts, now_ms - expiration_ms).tolist()
        listed = (rows.table.column(name).to_pylist() for name in columns)
        for row, is_told in zip(zip(*listed, strict=True), told, strict=True):
            number, partition, *owner, sequence, count, offset, name = row
            _, batches = appends.setdefault((number, owner[0]), (tuple(owner), {}))
            if not is_told:
                continue
            earlier = batches.get(partition)
            batches[partition] = (
                SequenceRange(sequence, count, offset, name)
                if earlier is None
                else msgspec.structs.replace(earlier, record_count=earlier.record_count + count)
            )
        for (number, producer_id), (known, batches) in sorted(appends.items(), key=itemgetter(0)):
            _, epoch, transaction, at_ms, before_ms, after_ms = known
            if before and number >= before.get(producer_id, number + 1):
                continue
            found[producer_id] = remember(
                found.pop(producer_id, None),
                epoch,
                transaction,
                batches,
                at_ms=at_ms,
                now_ms=after_ms,
                idle_since_ms=before_ms - expiration_ms,
                entry=number,
                is_whole=is_whole,
            )
        return found


def _flags(column: pa.ChunkedArray) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return numbers_of_column(column.cast(pa.uint8())).astype(np.bool_)


def _most_bytes(count: int) -> int:
    """How much a manifest of so many rows may take in memory."""
    return min(_FRAME_BYTES + count * _MAX_ROW_BYTES, MOST_STATE_BYTES)


def _check_rows(table: pa.Table) -> None:
    """Raise ValueError for values that no manifest has, whoever has written it."""
    for name in table.schema.names:
        column = table.column(name)
        if column.null_count and name not in _NULLABLE:
            raise ValueError(f"column {name} has nulls")
        is_name = pc.match_substring_regex(column, _NAME) if name == "name" else None
        if is_name is not None and not pc.all(is_name, min_count=0).as_py():
            raise ValueError("a segment's name has characters that no segment's has")
        if name not in _LEAST or not len(table):
            continue
        ends = pc.min_max(column).as_py()
        if ends["min"] is not None and not _LEAST[name] <= ends["min"] <= ends["max"] <= _MAX_SIZE:
            raise ValueError(f"column {name} has values from {ends['min']} to {ends['max']}")
    offsets, partitions = (
        numbers_of_column(table.column(name)) for name in ("base_offset", "partition")
    )
    ascends = (partitions[1:] > partitions[:-1]) | (
        (partitions[1:] == partitions[:-1]) & (offsets[1:] >= offsets[:-1])
    )
    if not bool(ascends.all()):
        raise ValueError("its segments are not in the order of partitions and offsets")
