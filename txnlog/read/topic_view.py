"""A topic as pinned by a reader: plain data, from which ranges of segments are planned."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from txnlog.config import TopicConfig, check_whole_number, is_whole_number
from txnlog.errors import (
    InvalidOption,
    OffsetOutOfRange,
    SnapshotExpired,
    UnknownTopicOrPartition,
)
from txnlog.log.manifests import Manifests
from txnlog.log.placed_records import PartitionHead, PlacedRecords, find_records, ignored_rewrites
from txnlog.names import SegmentRef, TopicPartition
from txnlog.read.plan import SegmentRange
from txnlog.schema import TopicSchema
from txnlog.state.manifest import Settled
from txnlog.state.segment import Segment
from txnlog.state.topic import TopicState

EARLIEST = -2
LATEST = -1

Offsets = Literal["earliest", "latest"] | Mapping[int, int] | Mapping[TopicPartition, int] | None
"""Where to start or end: by partition; -2 is earliest, -1 latest; partitions left out default."""


@dataclass(frozen=True, slots=True)
class PartitionView:
    """One partition: its start and end for the reader, and its unsettled segments.

    Of a view of the past, records below ``deleted_below`` are gone by now. Below ``first_offset``
    there never were any.
    """

    log_start_offset: int
    end_offset: int
    head: PartitionHead
    deleted_below: int = 0
    first_offset: int = 0

    @property
    def left_from(self) -> int:
        """The offset below which nothing is left."""
        return max(self.log_start_offset, self.deleted_below)


@dataclass(frozen=True, slots=True)
class PlacedSegments:
    """Segments by partition, in order; ``hidden_entries`` are those whose data is hidden.

    ``emptied`` is as in :class:`PlacedRecords`.
    """

    segments: Mapping[int, Sequence[Segment]]
    hidden_entries: frozenset[int]
    emptied: Mapping[int, Sequence[Segment]]


@dataclass(frozen=True, slots=True)
class TopicView:
    """One topic as pinned by a snapshot.

    ``partitions`` end at the snapshot's cut; ``last_stable_offsets`` and ``log_end_offsets`` are
    the log's own; ``hidden_entries`` are the unsettled ones whose data is hidden: aborted, or (at
    level ``snapshot``) not committed yet. ``hides_aborted``: aborted data is hidden, also data
    aborted in Kafka before an import. ``settled`` is looked up in ``manifests``. ``unfinished``
    are, by partition, the starts of hidden appends that are committed by now, and may have been
    merged with others. ``schema`` is that of a typed topic before entry ``next_entry``; if it was
    changed since, that was in entry ``schema_end``. Compactions from entry ``compactions_end`` on
    are ignored. ``purge_end`` follows the entry of the topic's last purge. ``log_time_ms`` is the
    latest time in any entry of the log.
    """

    topic: str
    topic_id: str
    config: Mapping[str, str]
    partitions: tuple[PartitionView, ...]
    last_stable_offsets: tuple[int, ...]
    log_end_offsets: tuple[int, ...]
    hidden_entries: frozenset[int]
    hides_aborted: bool
    settled: Settled | None
    manifests: Manifests = field(compare=False, repr=False)
    unfinished: Mapping[int, Sequence[int]] = field(default_factory=dict)
    schema: TopicSchema | None = None
    next_entry: int = 0
    log_time_ms: int = 0
    schema_end: int | None = None
    compactions_end: int | None = None
    purge_end: int = 0

    def __repr__(self) -> str:
        return f"TopicView({self.topic!r}, {len(self.partitions)} partitions)"

    @classmethod
    def of(
        cls,
        topic: str,
        state: TopicState,
        manifests: Manifests,
        hidden_entries: frozenset[int],
        *,
        to_stable_offsets: bool,
        hides_aborted: bool,
        unfinished: Mapping[int, Sequence[int]] | None = None,
    ) -> TopicView:
        """Copy a state, each partition up to its own end. Raises UnknownTopicOrPartition."""
        state.check_exists(topic)
        assert state.topic_id is not None
        stable = state.last_stable_offsets()
        log_ends = [partition.end_offset for partition in state.partitions]
        return cls(
            topic=topic,
            topic_id=state.topic_id,
            config=state.config,
            partitions=tuple(
                PartitionView(
                    partition.log_start_offset,
                    end,
                    PartitionHead.of(state, number),
                    first_offset=partition.first_offset,
                )
                for number, (partition, end) in enumerate(
                    zip(state.partitions, stable if to_stable_offsets else log_ends, strict=True)
                )
            ),
            last_stable_offsets=tuple(stable),
            log_end_offsets=tuple(log_ends),
            hidden_entries=hidden_entries,
            hides_aborted=hides_aborted,
            settled=state.settled,
            manifests=manifests,
            unfinished=unfinished or {},
            schema=state.schema,
            next_entry=state.next_entry,
            log_time_ms=state.log_time_ms,
            purge_end=state.purge_end,
        )

    @property
    def is_stable(self) -> bool:
        """Whether nothing in the topic was undecided."""
        return self.last_stable_offsets == self.log_end_offsets

    @property
    def beginning_offsets(self) -> dict[int, int]:
        """The log start offset of each partition."""
        return {p: part.log_start_offset for p, part in enumerate(self.partitions)}

    @property
    def end_offsets(self) -> dict[int, int]:
        """The view's end in each partition: the offset after its last record."""
        return {p: part.end_offset for p, part in enumerate(self.partitions)}

    def check_partition(self, partition: int) -> None:
        """Raise UnknownTopicOrPartition unless the topic has this partition."""
        known = len(self.partitions)
        if not 0 <= partition < known:
            raise UnknownTopicOrPartition(
                f"topic {self.topic!r} has no partition {partition}; it has {known}, "
                "numbered from 0. If it was deleted and recreated, subscribe or assign again"
            )

    def truncate(self, ends: Mapping[int, int]) -> TopicView:
        """A view that ends at these offsets, though not before a partition starts."""
        partitions = tuple(
            replace(part, end_offset=max(ends[number], part.log_start_offset))
            for number, part in enumerate(self.partitions)
        )
        return replace(self, partitions=partitions)

    def without_deleted(self) -> TopicView:
        """A view of the past that starts where records are left, at its end if none are."""
        partitions = tuple(
            replace(
                part,
                log_start_offset=max(
                    part.log_start_offset, min(part.deleted_below, part.end_offset)
                ),
            )
            for part in self.partitions
        )
        return replace(self, partitions=partitions)

    def placed(self, spans: Mapping[int, tuple[int, int]]) -> PlacedSegments:
        """The segments that hold the records at some offsets, those with hidden data too.

        Settled ones are read from manifests, only if the offsets reach back that far. ``spans``: by
        partition, offsets [start, end). Raises what ``find_records`` does.
        """
        found = self._find(spans)
        hidden = self.hidden_entries | found.aborted if self.hides_aborted else self.hidden_entries
        return PlacedSegments(found.segments, hidden, found.emptied)

    def placed_rows(self) -> PlacedRecords:
        """All of the view's segments, those with hidden data too; settled ones as rows.

        Raises what :meth:`placed` does.
        """
        ends = self.end_offsets
        spans = {number: (start, ends[number]) for number, start in self.beginning_offsets.items()}
        self._check_not_deleted(self.beginning_offsets, ends)
        return self._find(spans, as_rows=True)

    def _find(
        self, spans: Mapping[int, tuple[int, int]], *, as_rows: bool = False
    ) -> PlacedRecords:
        heads = {number: self.partitions[number].head for number in spans}
        return find_records(
            self.manifests,
            self.settled,
            self.topic_id,
            heads,
            spans,
            {number: self.partitions[number].end_offset for number in spans},
            self.unfinished,
            self.schema_end,
            self.compactions_end,
            self.purge_end,
            as_rows=as_rows,
        )

    def needs_lost_segments(self, numbers: Iterable[int], now_ms: int) -> bool:
        """Whether some partitions end before what a rewrite has seen, and nothing else is left.

        Then what was replaced has records that were purged, or may be gone by ``now_ms``. Or it is
        gone already: the delay may have been shorter when it was deleted. Raises
        UnknownTopicOrPartition, CorruptEntry, StorageError.
        """
        ends = {number: self.partitions[number].end_offset for number in numbers}
        heads = {number: self.partitions[number].head for number in ends}
        gone_ms = now_ms - TopicConfig.of(self.config).file_delete_delay_ms
        spans = {}
        for number, ignored in ignored_rewrites(
            self.manifests, self.settled, self.topic_id, heads, ends
        ).items():
            log_start, end = self.partitions[number].log_start_offset, ends[number]
            old = [rewrite for rewrite in ignored if rewrite.overlaps(log_start, end)]
            if any(one.entry < self.purge_end for one in ignored) or any(
                one.at_ms <= gone_ms for one in old
            ):
                return True
            if old:
                start = max(min(one.start for one in old), log_start)
                spans[number] = start, min(max(one.end for one in old), end)
        return bool(spans) and not self._has_files(spans)

    def _has_files(self, spans: Mapping[int, tuple[int, int]]) -> bool:
        """Whether the files of the segments at some offsets exist, if readers need them."""
        try:
            placed = self.placed(spans)
            paths = frozenset(
                SegmentRef(self.topic, number, one.stored.name, one.stored.position).paths.log
                for number, segments in placed.segments.items()
                for one in segments
                if one.entry not in placed.hidden_entries
            )
        except (OffsetOutOfRange, SnapshotExpired):
            return False
        return self.manifests.files_exist(paths, self.config)

    def visible_ranges(
        self, start: Mapping[int, int], end: Mapping[int, int]
    ) -> list[SegmentRange]:
        """The ranges of segments between two offsets in each partition; no segment is touched.

        Raises what :meth:`placed` does.
        """
        log_append_time = TopicConfig.of(self.config).log_append_time
        self._check_not_deleted(start, end)
        placed = self.placed({number: (start[number], end[number]) for number in sorted(start)})
        return [
            SegmentRange(
                self.topic,
                number,
                segment,
                max(segment.base_offset, start[number]),
                stop_offset,
                log_append_time,
                self.topic_id,
                self.hides_aborted and segment.stored.has_aborted,
            )
            for number, segments in placed.segments.items()
            for segment, stop_offset in zip(segments, _stops(segments, end[number]), strict=True)
            if segment.entry not in placed.hidden_entries
        ]

    def _check_not_deleted(self, start: Mapping[int, int], end: Mapping[int, int]) -> None:
        gone = [
            f"{self.topic}:{number} from offset {at} to {min(below, end[number]) - 1}"
            for number, at in sorted(start.items())
            if at < (below := self.partitions[number].deleted_below) and at < end[number]
        ]
        if gone:
            more = f" and of {len(gone) - 3} other partitions" if len(gone) > 3 else ""
            raise OffsetOutOfRange(
                f"records that this snapshot had were deleted since: {', '.join(gone[:3])}{more}. "
                "Give later starting offsets to read what is left"
            )

    def starting_offsets(self, offsets: Offsets) -> dict[int, int]:
        """Resolve where a read starts. Raises OffsetOutOfRange, InvalidOption."""
        return self._resolve(offsets, "starting_offsets", EARLIEST)

    def ending_offsets(self, offsets: Offsets) -> dict[int, int]:
        """Resolve where a read ends. Raises OffsetOutOfRange, InvalidOption."""
        return self._resolve(offsets, "ending_offsets", LATEST)

    def _resolve(self, offsets: Offsets, what: str, default: int) -> dict[int, int]:
        topic, partitions = self.topic, self.partitions
        if isinstance(offsets, str):
            if offsets not in ("earliest", "latest"):
                raise InvalidOption(f"{what} is {offsets!r}; it can be 'earliest' or 'latest'")
            default, offsets = (EARLIEST if offsets == "earliest" else LATEST), None
        resolved = dict.fromkeys(range(len(partitions)), default)
        for where, offset in (offsets or {}).items():
            number = where.partition if isinstance(where, TopicPartition) else where
            if isinstance(where, TopicPartition) and where.topic != topic:
                raise InvalidOption(f"{what} has {where}, but the scan is of topic {topic!r}")
            if not is_whole_number(number) or number not in resolved:
                raise InvalidOption(
                    f"{what}: topic {topic!r} has no partition {number!r}; it has {len(partitions)}"
                )
            offset_of = f"{what}: the offset of partition {number}"
            check_whole_number(offset, offset_of, InvalidOption, least=EARLIEST)
            resolved[number] = offset
        for number, offset in resolved.items():
            partition = partitions[number]
            if offset == EARLIEST:
                resolved[number] = partition.log_start_offset
            elif offset == LATEST:
                resolved[number] = partition.end_offset
            elif not partition.log_start_offset <= offset <= partition.end_offset:
                raise OffsetOutOfRange(
                    f"{what}: offset {offset} of {topic}:{number} is out of range; "
                    f"the log has {partition.log_start_offset} to {partition.end_offset}"
                )
        return resolved


def _stops(segments: Sequence[Segment], end: int) -> Iterator[int]:
    """The offset at which to stop reading each segment of a partition.

    Usually the next one's start, and then the same object: for a million ranges these numbers would
    take 32 MB.
    """
    for at, segment in enumerate(segments, start=1):
        stop = min(segment.end_offset, end)
        following = segments[at].base_offset if at < len(segments) else end
        yield following if following == stop else stop
