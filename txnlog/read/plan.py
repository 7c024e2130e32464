"""Plans of reads: columns of a scan, ranges of pinned segments, and which are read at once.

The columns are the row of Spark's Kafka source, or a typed topic's own. A range is plain data: it
can be pickled and read anywhere, which is what Spark's tasks do; of some it is known that a filter
keeps none of their rows. Small segments near each other in a file that they share are read by one
request: a plan has one partition after the other, while such a file holds a segment of each. What a
request has brought for later ranges waits for their turn, in bounded memory.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import compress
from typing import TYPE_CHECKING, TypeAlias

import msgspec
import pyarrow as pa

from txnlog.errors import InvalidOption
from txnlog.names import OWN_FILE, SegmentPaths, SegmentRef
from txnlog.schema import DELETED, HEADERS, OFFSET, PARTITION, TIMESTAMP, TOPIC, TopicSchema
from txnlog.segments.parquet.statistics import ValueRange
from txnlog.segments.records import HEADERS_TYPE
from txnlog.segments.segment_file import ReadRange, SegmentFile
from txnlog.state.segment import Segment
from txnlog.storage.base import Storage
from txnlog.storage.threads import MAX_AHEAD_BYTES, work_ahead

if TYPE_CHECKING:
    from txnlog.read.row_filter import Known, RowFilter


# -- columns -------------------------------------------------------------------------------------

SCAN_SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestampType", pa.int32()),
        pa.field("headers", HEADERS_TYPE),
    ]
)
"""The columns that a scan can return: the row of Spark's Kafka source. timestampType: 0 create, 1
append.
"""

TYPED_METADATA = pa.schema(
    [
        pa.field(TOPIC, pa.string()),
        pa.field(PARTITION, pa.int32()),
        pa.field(OFFSET, pa.int64()),
        pa.field(TIMESTAMP, pa.timestamp("us", tz="UTC")),
        pa.field(HEADERS, HEADERS_TYPE),
        pa.field(DELETED, pa.bool_()),
    ]
)
"""The further columns that a scan of a typed topic returns if asked for."""

_MEANING = {TOPIC: "topic", PARTITION: "partition", OFFSET: "offset", TIMESTAMP: "timestamp"}


@dataclass(frozen=True, slots=True)
class ScanColumns:
    """Columns of a scan, in order; ``topic_schema`` is that of a typed topic.

    With ``as_json`` its records are shown like those of untyped topics: see ``json_records``. With
    ``as_rows`` too their values are not JSON but structs of the columns. Only rows for which
    ``row_filter`` is true are returned; it may need more columns than are returned.
    """

    names: tuple[str, ...]
    topic_schema: TopicSchema | None = None
    as_json: bool = False
    row_filter: RowFilter | None = field(default=None, compare=False)
    as_rows: bool = False

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the result."""
        return pa.schema([self.field(name) for name in self.names])

    def field(self, name: str) -> pa.Field:
        """The Arrow field of an available column."""
        typed = self.topic_schema
        if typed is not None and self.as_rows and name == "value":
            return pa.field(name, pa.struct(row_fields(typed)))
        if typed is None or self.as_json:
            return SCAN_SCHEMA.field(name)
        if name in TYPED_METADATA.names:
            return TYPED_METADATA.field(name)
        return typed.scan_columns.field(name)

    @property
    def stored(self) -> list[str] | pa.Schema:
        """The columns stored in segments; for a typed topic with their ids and types."""
        if self.topic_schema is None:
            return [name for name in ("key", "value", "timestamp", "headers") if name in self.names]
        stored = self.topic_schema.record_columns
        if not self.as_json:
            return pa.schema([field for field in stored if field.name in self.names])
        needed = {"timestamp": TIMESTAMP, "headers": HEADERS}
        wanted = {needed[name] for name in self.names if name in needed}
        if "key" in self.names:
            wanted.update(self.topic_schema.key)
        if "value" in self.names:
            wanted.update((*self.topic_schema.columns.names, DELETED))
        return pa.schema([field for field in stored if field.name in wanted])

    @property
    def looked_at(self) -> ScanColumns:
        """The columns that the filter needs."""
        names = self.row_filter.names if self.row_filter else ()
        return replace(self, names=names, row_filter=None)

    @property
    def with_looked_at(self) -> ScanColumns:
        """All columns to read: those returned, and those that the filter needs."""
        more = [name for name in self.looked_at.names if name not in self.names]
        return replace(self, names=(*self.names, *more), row_filter=None)

    def meaning(self, name: str) -> str:
        """A built-in column's name in scans of topics without a schema."""
        return name if self._is_plain else _MEANING.get(name, "")

    @property
    def _is_plain(self) -> bool:
        return self.topic_schema is None or self.as_json

    @property
    def offset(self) -> str:
        """The name of the column with the records' offsets, whether requested or not."""
        return "offset" if self._is_plain else OFFSET

    @property
    def timestamp(self) -> str:
        """The name of the column with the records' times, whether requested or not."""
        return "timestamp" if self._is_plain else TIMESTAMP

    def with_timestamp(self) -> ScanColumns:
        """These columns and the records' times."""
        if self.timestamp in self.names:
            return self
        return replace(self, names=(*self.names, self.timestamp))

    def only(self, *meanings: str) -> ScanColumns:
        """Columns by their meaning, such as ``offset``."""
        if self._is_plain:
            return replace(self, names=meanings)
        by_meaning = {meaning: name for name, meaning in _MEANING.items()}
        return replace(self, names=tuple(by_meaning[meaning] for meaning in meanings))


def row_fields(schema: TopicSchema) -> list[pa.Field]:
    """What a record is as a row: its columns and, if there is a key, whether it deletes."""
    names = [*schema.columns.names, *([DELETED] if schema.key else [])]
    return [schema.scan_columns.field(name) for name in names]


def scan_columns(
    columns: Sequence[str] | None,
    topic_schema: TopicSchema | None = None,
    *,
    as_json: bool = False,
    as_rows: bool = False,
    row_filter: object = None,
) -> ScanColumns:
    """The columns to read. If None, all of Spark's row, or a typed topic's own.

    ``row_filter`` is a pyarrow expression, over any available column.

    Raises InvalidOption.
    """
    if as_json and topic_schema is not None:
        plain = scan_columns(columns, row_filter=row_filter)
        return replace(plain, topic_schema=topic_schema, as_json=True, as_rows=as_rows)
    every = SCAN_SCHEMA.names if topic_schema is None else topic_schema.columns.names
    default = tuple(every)
    if topic_schema is not None:
        more = [name for name in TYPED_METADATA.names if name != DELETED or topic_schema.key]
        every = [*every, *more]
    if isinstance(columns, str):
        raise InvalidOption(f"columns must be a list of names, not the string {columns!r}")
    chosen = default if columns is None else tuple(columns)
    for name in chosen:
        if name not in every:
            raise InvalidOption(f"unknown column {name!r}; a scan has {', '.join(every)}")
    if not chosen or len(set(chosen)) != len(chosen):
        raise InvalidOption("columns must name at least one column, and none twice")
    made = ScanColumns(chosen, topic_schema)
    if row_filter is None:
        return made
    from txnlog.read.row_filter import parse_filter

    return replace(made, row_filter=parse_filter(row_filter, every, made.field))


# -- ranges --------------------------------------------------------------------------------------


class SegmentRange(msgspec.Struct, frozen=True, gc=False):
    """The offsets [start_offset, stop_offset) of one partition, all in one segment.

    A struct, because a plan may have a million of them.
    """

    topic: str
    partition: int
    segment: Segment
    start_offset: int
    stop_offset: int
    log_append_time: bool = False
    topic_id: str = ""
    hides_aborted: bool = False

    @property
    def paths(self) -> SegmentPaths:
        """The files of the segment."""
        return self._ref.paths

    @property
    def has_own_file(self) -> bool:
        """Whether the segment is a Parquet file of its own, of which this may be a part."""
        stored = self.segment.stored
        return self.paths.is_parquet and stored.position == OWN_FILE and stored.kafka is None

    @property
    def is_indexed(self) -> bool:
        """Whether an offset index and a time index lie beside the segment."""
        stored = self.segment.stored
        return self._ref.is_indexed(stored.batch_count, stored.size_bytes)

    @property
    def _ref(self) -> SegmentRef:
        segment = self.segment
        return SegmentRef(self.topic, self.partition, segment.stored.name, segment.stored.position)

    def read_bytes(self, storage: Storage, start: int, stop: int) -> bytes:
        """Bytes [start, stop) of the segment. Raises ObjectNotFound."""
        ref = self._ref
        return storage.get_range(ref.paths.log, ref.start + start, ref.start + stop)

    def place(self, size_bytes: int) -> tuple[str, int, int]:
        """The location of the segment's first ``size_bytes``: name, start and stop."""
        ref = self._ref
        return ref.paths.log, ref.start, ref.start + size_bytes

    def open(
        self,
        storage: Storage,
        read: ReadRange | None = None,
        ahead_bytes: int = MAX_AHEAD_BYTES,
    ) -> SegmentFile:
        """The segment's file, as its log entry describes it. Requests nothing yet.

        ``read`` gets its bytes, instead of the storage.
        """
        segment = self.segment
        return SegmentFile(
            read or partial(self.read_bytes, storage),
            segment.stored.size_bytes,
            self._ref.label,
            base_offset=segment.base_offset - segment.offset_shift,
            identity=segment.identity,
            is_parquet=self.paths.is_parquet,
            read_ahead=partial(self._read_ahead, storage, ahead_bytes),
            work_ahead=work_ahead,
        )

    def _read_ahead(
        self, storage: Storage, ahead_bytes: int, pieces: Iterable[range]
    ) -> Generator[bytes]:
        calls = (
            (len(piece), partial(self.read_bytes, storage, piece.start, piece.stop))
            for piece in pieces
        )
        return storage.run_ahead(calls, ahead_bytes)

    @property
    def record_count(self) -> int:
        """The most records that it may hold: one for each offset; fewer if there are gaps."""
        return self.stop_offset - self.start_offset

    @property
    def is_whole(self) -> bool:
        """Whether it is all of its segment."""
        segment = self.segment
        return (segment.base_offset, segment.end_offset) == (self.start_offset, self.stop_offset)

    @property
    def exact_count(self) -> int | None:
        """How many records it holds; None if it must be read to find out."""
        stored = self.segment.stored
        if self.is_whole and stored.kafka is None:
            return stored.record_count
        return self.record_count if stored.is_dense else None

    @property
    def size_bytes(self) -> int:
        """The range's approximate size in bytes."""
        offsets = self.segment.end_offset - self.segment.base_offset
        return self.segment.stored.size_bytes * self.record_count // max(offsets, 1)


# -- ranges that a filter keeps ------------------------------------------------------------------


def known_of(
    columns: ScanColumns,
    partition: int,
    offsets: tuple[int, ...],
    timestamps_ms: tuple[int, int],
) -> dict[str, ValueRange]:
    """The facts about the columns with positions and times, by the least and the largest.

    If the largest time is -1 they may be unknown.
    """
    microseconds = tuple(time * 1000 for time in timestamps_ms) if timestamps_ms[1] >= 0 else ()
    told = {"partition": (partition, partition), "offset": offsets, "timestamp": microseconds}
    known = {}
    for name in columns.names:
        ends = told.get(columns.meaning(name), ())
        if ends and all(-(1 << 63) <= end < 1 << 63 for end in ends):
            kind = columns.field(name).type
            least, most = (pa.scalar(end, kind) for end in ends)
            known[name] = ValueRange(least, most, 0, 1)
    return known


_TOGETHER = 32
"""How many adjacent ranges are judged as one before each is judged by itself."""


def matching_ranges(parts: Sequence[SegmentRange], columns: ScanColumns) -> Sequence[SegmentRange]:
    """The ranges in which a scan's filter may keep rows, by offsets, times, partitions.

    No segment is read.
    """
    row_filter = columns.row_filter
    if row_filter is None:
        return parts
    looked_at = columns.looked_at
    if not known_of(looked_at, 0, (0, 0), (0, 0)):
        return parts if row_filter.can_match([{}]) == [True] else []
    groups = [parts[at : at + _TOGETHER] for at in range(0, len(parts), _TOGETHER)]
    # A group may span several partitions: then these facts are unknown.
    matching = row_filter.can_match([_known(group, looked_at) for group in groups])
    left = [part for group in compress(groups, matching) for part in group]
    return [*compress(left, row_filter.can_match([_known([part], looked_at) for part in left]))]


def _known(parts: Sequence[SegmentRange], columns: ScanColumns) -> Known:
    """The facts known about the records of several ranges together."""
    offsets = min(p.start_offset for p in parts), max(p.stop_offset for p in parts) - 1
    least_ms = min(part.segment.stored.min_timestamp_ms for part in parts)
    most_ms = max(part.segment.stored.max_timestamp_ms for part in parts)
    partitions = {part.partition for part in parts}
    known = known_of(columns, min(partitions), offsets, (least_ms, most_ms))
    if len(partitions) > 1:
        known = {n: b for n, b in known.items() if columns.meaning(n) != "partition"}
    return known


# -- ranges that one request reads ---------------------------------------------------------------

MOST_JOINED_BYTES = 1 << 20
"""About so much of a file is read by one request."""
MOST_GAP_BYTES = 64 << 10
"""So much is read in vain between two ranges: what comes while another request would wait."""
MOST_WAITING_BYTES = 16 << 20
"""So much may wait for its turn; further ranges of the same files are read by other requests."""

Place: TypeAlias = tuple[tuple[str, str], int, int]
"""A file by its topic and name, and the first byte and the one after the last."""


def join_reads(places: Sequence[Place | None]) -> list[list[int]]:
    """The ranges that each request reads, by their numbers, in the order of their places.

    The requests are in the order in which their first ranges are needed. A range whose place is
    None is read by itself.
    """
    joined: list[list[int]] = []
    by_file: dict[tuple[str, str], list[int]] = {}
    waiting_bytes = 0
    for number, place in enumerate(places):
        if place is None:
            joined.append([number])
            continue
        file, start, stop = place
        waiting_bytes += stop - start
        if waiting_bytes > MOST_WAITING_BYTES:
            by_file, waiting_bytes = {}, stop - start
        if file not in by_file:
            by_file[file] = []
            joined.append(by_file[file])
        by_file[file].append(number)
    return sorted((cut for numbers in joined for cut in _cut(numbers, places)), key=min)


def _cut(numbers: list[int], places: Sequence[Place | None]) -> Iterator[list[int]]:
    """Ranges of one file, cut where too much lies between them or they are too large together."""
    if len(numbers) == 1:
        yield numbers
        return
    near: list[int] = []
    begin = end = 0
    for start, stop, number in sorted((*_span(places[n]), n) for n in numbers):
        far = start - end > MOST_GAP_BYTES or max(stop, end) - begin > MOST_JOINED_BYTES
        if near and far:
            yield near
            near = []
        if not near:
            begin = end = start
        near.append(number)
        end = max(end, stop)
    yield near


def _span(place: Place | None) -> tuple[int, int]:
    assert place is not None
    return place[1], place[2]
