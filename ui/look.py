"""A look at the records of some partitions together, newest or oldest first, in bounded steps.

Within a partition the order is that of offsets. Partitions are merged by the greatest time that was
reached: a record whose time runs backwards counts as of the latest one before it, as far as the
look knows. So what was looked at is one span of offsets in each partition, without gaps, and the
next look goes on from there: every record is met once, whatever its time is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, inf
from time import process_time
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from msgspec.structs import replace
from pyarrow.compute import Expression

from txnlog.clock import Clock
from txnlog.errors import CorruptRecord
from txnlog.names import TopicPartition
from txnlog.read.conditions import Condition, keep_matching
from txnlog.read.consumer_reads import ConsumerRecord, each_record
from txnlog.read.plan import ScanColumns, SegmentRange, matching_ranges, scan_columns
from txnlog.read.scan_reader import read_each
from txnlog.read.topic_view import TopicView
from txnlog.segments.arrays import numbers_of
from txnlog.storage.base import Storage

_MOST_CPU_S: Final = 0.5
_MOST_S: Final = 1.5
"""No look goes on for longer: then it says how far it has come."""
_PIECE_BYTES: Final = 4 << 20
_PIECE_OFFSETS: Final = 1 << 17
"""So much is read between two looks at the clock, or one record. Less would be no quicker where
batches are large: each is decoded as a whole."""
_FIRST_SEARCHED: Final = _PIECE_OFFSETS
_MOST_WIDTH: Final = 1 << 20
"""So many offsets of each partition are planned at once."""
_AHEAD_BYTES: Final = 2 * _PIECE_BYTES
_MOST_DAMAGED: Final = 20


@dataclass(frozen=True, slots=True)
class SoughtRecords:
    """Which records are looked for: those that match all of it."""

    expression: Expression | None = None
    conditions: Sequence[Condition] = ()

    def __bool__(self) -> bool:
        return self.expression is not None or bool(self.conditions)

    def keep(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a batch, of which the scan has kept what the expression matches."""
        return keep_matching(batch, self.conditions)


@dataclass(frozen=True, slots=True)
class Look:
    """What a look has found, in its order, and from where to where it has come.

    ``begin`` and ``end`` are offsets by partition. Looking backwards every record of ``found`` lies
    below ``begin`` and not below ``end``; forwards the other way round. ``damaged`` says what of it
    cannot be read. ``is_complete``: nothing lies beyond.
    """

    found: Sequence[ConsumerRecord]
    begin: Mapping[int, int]
    end: Mapping[int, int]
    is_complete: bool
    damaged: Sequence[str] = ()


class _Piece(NamedTuple):
    """A range to read, and the offset that the look has reached after it.

    ``rank`` is the least rank that a record in it can have; ``floor_ms`` the greatest time before
    it.
    """

    rank: float
    side: _Side
    part: SegmentRange
    floor_ms: int
    done: int


class _Row(NamedTuple):
    rank: float
    record: ConsumerRecord


@dataclass(slots=True, eq=False)
class _Side:
    """One partition: where the look is in it, and what is planned to be read next.

    Ranks ascend on the way: times, or looking backwards their negatives. ``least`` is that of what
    was found so far, ``beyond`` the least that what is not planned yet can have besides.
    """

    partition: int
    at: int
    far: int
    width: int
    least: float = -inf
    beyond: float = -inf
    planned: deque[_Piece] = field(default_factory=deque)

    @property
    def window(self) -> tuple[int, int]:
        """The next offsets to plan."""
        if self.far <= self.at:
            return max(self.at - self.width, self.far), self.at
        return self.at, min(self.at + self.width, self.far)


def look_at(
    storage: Storage,
    clock: Clock,
    view: TopicView,
    begin: Mapping[int, int],
    wanted: SoughtRecords,
    *,
    count: int,
    older: bool,
) -> Look:
    """The first ``count`` records that are wanted on the way from ``begin``, in each partition.

    Partitions that ``begin`` leaves out are not looked at. With ``older`` the way leads back, from
    what lies before it. The clock tells when it has taken long enough.
    """
    return _Looking(storage, clock, view, begin, wanted, count, older=older).look()


class _Looking:
    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        view: TopicView,
        begin: Mapping[int, int],
        wanted: SoughtRecords,
        count: int,
        *,
        older: bool,
    ) -> None:
        self._storage, self._clock, self._view = storage, clock, view
        self._begin, self._wanted, self._count, self._older = begin, wanted, count, older
        self._columns: ScanColumns = scan_columns(
            None, view.schema, as_json=True, row_filter=wanted.expression
        )
        fars = view.beginning_offsets if older else view.end_offsets
        width = _FIRST_SEARCHED if wanted else count
        self._sides = {p: _Side(p, at, fars[p], width) for p, at in begin.items()}
        self._found: list[_Row] = []
        self._ends: dict[int, int] = {}
        """Of partitions of which something was found that is not shown."""
        self._damaged: list[str] = []
        self._until_s = clock.monotonic_s() + _MOST_S
        self._until_cpu_s = process_time() + _MOST_CPU_S

    def look(self) -> Look:
        """Look."""
        while not self._is_late() or not self._ends_differ():
            self._plan()
            pieces = [piece for side in self._sides.values() for piece in side.planned]
            pieces.sort(key=lambda piece: piece.rank)
            if not pieces or not self._read(pieces):
                break
        end = {p: self._ends.get(p, side.at) for p, side in self._sides.items()}
        is_complete = all(end[p] == side.far for p, side in self._sides.items())
        found = [row.record for row in self._found]
        return Look(found, dict(self._begin), end, is_complete, self._damaged)

    def _is_late(self) -> bool:
        return self._clock.monotonic_s() > self._until_s or process_time() > self._until_cpu_s

    def _ends_differ(self) -> bool:
        """Whether the look has advanced in any partition. It goes on until it has."""
        return any(side.at != self._begin[p] for p, side in self._sides.items())

    # -- planning ----------------------------------------------------------------------------------

    def _plan(self) -> None:
        """Plan the next window of each partition of which nothing is planned any more."""
        while not self._is_late() or not self._ends_differ():
            idle = [s for s in self._sides.values() if not s.planned and s.at != s.far]
            if not idle:
                return
            spans = {side.partition: side.window for side in idle}
            starts, stops = ({p: span[at] for p, span in spans.items()} for at in (0, 1))
            parts = matching_ranges(self._view.visible_ranges(starts, stops), self._columns)
            for side in idle:
                own = [part for part in parts if part.partition == side.partition]
                self._plan_window(side, own, spans[side.partition])

    def _plan_window(
        self, side: _Side, parts: Sequence[SegmentRange], window: tuple[int, int]
    ) -> None:
        side.width = min(2 * side.width, _MOST_WIDTH)
        pieces = [piece for part in parts for piece in _cut(part)]
        if not pieces:
            side.at = window[0] if self._older else window[1]
        elif self._older:
            self._plan_back(side, pieces, window[0])
        else:
            self._plan_on(side, pieces, window[1])

    def _plan_back(self, side: _Side, parts: Sequence[SegmentRange], start: int) -> None:
        floor_ms, reached_ms, done = -1, -1, start
        before = parts[0].segment
        for part in parts:
            if part.segment is not before:  # what is left of its own times is not known
                before, floor_ms = part.segment, reached_ms
            reached_ms = max(reached_ms, part.segment.stored.max_timestamp_ms)
            side.planned.appendleft(_Piece(-reached_ms, side, part, floor_ms, done))
            done = part.stop_offset
        side.beyond = -parts[0].segment.stored.max_timestamp_ms

    def _plan_on(self, side: _Side, parts: Sequence[SegmentRange], stop: int) -> None:
        for part, following in pairwise([*parts, None]):
            assert part is not None
            side.beyond = max(side.beyond, part.segment.stored.min_timestamp_ms)
            done = stop if following is None else following.start_offset
            side.planned.append(_Piece(side.beyond, side, part, -1, done))

    def _beyond(self) -> float:
        """The least rank that anything can have that is not planned yet."""
        more = [s for s in self._sides.values() if s.planned and s.planned[-1].done != s.far]
        return min((max(s.least, s.beyond) for s in more), default=inf)

    # -- reading -----------------------------------------------------------------------------------

    def _read(self, pieces: Sequence[_Piece]) -> bool:
        """Read planned pieces in the order of their ranks; returns whether to plan more.

        A search leaves a piece for later if something that is not planned yet may come before it.
        So all partitions are searched back to about the same time.
        """
        beyond = self._beyond()
        if self._wanted:
            pieces = [piece for piece in pieces if piece.rank <= beyond]
        while pieces:
            number = 0
            parts = [piece.part for piece in pieces]
            ahead = read_each(
                self._storage, parts, self._columns, _AHEAD_BYTES, by_page=not self._wanted
            )
            with closing(ahead) as reads:
                try:
                    for number, piece in enumerate(pieces):
                        if self._has(max(piece.rank, piece.side.least)) or (
                            number and self._is_late()
                        ):
                            return False
                        self._take(piece, next(reads)[1])
                except CorruptRecord as error:
                    self._pass(pieces[number], error)
            pieces = pieces[number + 1 :]
        return not self._has(beyond)

    def _has(self, rank: float) -> bool:
        """Whether enough is found up to a rank. A search needs only enough records, of any rank."""
        is_full = len(self._found) >= self._count
        return is_full and (bool(self._wanted) or self._found[-1].rank <= rank)

    def _pass(self, piece: _Piece, error: CorruptRecord) -> None:
        """Note a damaged piece, and go on after it."""
        if len(self._damaged) < _MOST_DAMAGED:
            self._damaged.append(str(error))
        piece.side.planned.popleft()
        piece.side.at = piece.done

    def _take(self, piece: _Piece, batches: Iterable[pa.RecordBatch]) -> None:
        """Keep what a piece has, as far as it may be among the first ones."""
        side, part = piece.side, piece.part
        where = TopicPartition(part.topic, part.partition)
        nearest = self._nearest(map(self._wanted.keep, batches))
        rows = [row for batch in nearest for row in self._rows(where, batch, piece)]
        if self._older:
            rows.reverse()
        if rows:
            side.least = rows[-1].rank
        side.planned.popleft()
        side.at = piece.done
        merged = sorted([*self._found, *rows], key=lambda row: row.rank)
        self._found = merged[: self._count]
        self._leave(merged[self._count :])

    def _nearest(self, batches: Iterator[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """The rows of a piece that come first on the way, one more than can be shown."""
        kept: deque[pa.RecordBatch] = deque()
        rows = 0
        for batch in batches:
            if not batch.num_rows:
                continue
            kept.append(batch)
            rows += batch.num_rows
            if self._older:
                while rows - kept[0].num_rows > self._count:
                    rows -= kept.popleft().num_rows
            elif rows > self._count:
                break
        spare = rows - self._count - 1
        if spare > 0 and self._older:
            kept[0] = kept[0][spare:]
        elif spare > 0:
            kept[-1] = kept[-1][: kept[-1].num_rows - spare]
        return [*kept]

    def _rows(self, where: TopicPartition, batch: pa.RecordBatch, piece: _Piece) -> Iterator[_Row]:
        times_ms = numbers_of(batch.column("timestamp").view(pa.int64())) // 1000
        reached = np.maximum(np.maximum.accumulate(times_ms), piece.floor_ms).astype(float)
        ranks = np.maximum(-reached if self._older else reached, piece.side.least)
        return map(_Row, ranks.tolist(), each_record(where, batch))

    def _leave(self, left: Sequence[_Row]) -> None:
        """Leave found records that are not shown to the next look."""
        for _, record in left:
            partition, offset = record.partition, record.offset
            known = self._ends.get(partition)
            if self._older:
                self._ends[partition] = max(offset + 1, known or 0)
            else:
                self._ends[partition] = offset if known is None else min(offset, known)


def _cut(part: SegmentRange) -> list[SegmentRange]:
    """A range in pieces that can be held in memory, as far as its average tells."""
    most = max(part.size_bytes / _PIECE_BYTES, part.record_count / _PIECE_OFFSETS)
    count = min(ceil(most), part.record_count)
    if count <= 1:
        return [part]
    bounds = np.linspace(part.start_offset, part.stop_offset, count + 1).astype(int).tolist()
    return [replace(part, start_offset=start, stop_offset=stop) for start, stop in pairwise(bounds)]
