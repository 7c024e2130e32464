"""Puts rewrites into a topic's log, and finds where records are by now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

import msgspec

from txnlog.clock import SystemClock
from txnlog.config import DAY_MS
from txnlog.errors import StorageError
from txnlog.limits import NEVER_MS
from txnlog.log.chapters import FreeingRule
from txnlog.log.state_log import LogPolicy
from txnlog.log.topic_log import TopicLog
from txnlog.log.uploads import UploadCheck
from txnlog.names import OWN_FILE, SegmentRef, TopicPartition
from txnlog.state.segment import (
    Rewritten,
    RewrittenFile,
    Segment,
    SegmentEntry,
    StoredSegment,
    overlapping,
)
from txnlog.state.topic import TopicState
from txnlog.storage.base import Storage

_PUT_MS = 60_000
"""A process whose entry took longer has slept."""
_FRACTION = 8


@dataclass(frozen=True, slots=True)
class TombstoneStay:
    """How long tombstones stay after the entry that makes them clean: ``stay_ms`` from its put.

    ``latest_ms`` tells the time by the latest clock available.
    """

    latest_ms: Callable[[], int]
    stay_ms: int

    def horizon_ms(self) -> int:
        """The time from which they may be removed, if the entry is put now."""
        return min(self.latest_ms() + self.stay_ms, NEVER_MS)

    def is_early(self, horizon_ms: int) -> bool:
        """Whether a horizon was taken so long before its entry was put that they could go early.

        Those that stay for no time at all never do.
        """
        late_ms = self.horizon_ms() - horizon_ms
        return self.stay_ms > 0 and late_ms > min(_PUT_MS, self.stay_ms // _FRACTION)


@dataclass(frozen=True, slots=True)
class ReadRun:
    """A run read from a partition: the segments that hold the records of [start, end), by name."""

    partition: int
    start: int
    end: int
    segments: tuple[str, ...]


def rewrite(
    log: TopicLog,
    topic_id: str,
    new: Sequence[SegmentEntry],
    read: Sequence[ReadRun],
    begun_ms: int | None = None,
    stay: TombstoneStay | None = None,
    *,
    purges: bool = False,
) -> int | None:
    """Replace the segments that hold the records at some offsets, in one entry.

    ``new``: the segments uploaded for them, with the offsets that each covers. ``read``: the runs
    that they were made of, all decided. ``begun_ms``: when the first upload began, by the log's
    clock. ``stay``: how long the tombstones in ``new`` stay; None: as ``new`` says. ``purges``: see
    :class:`Rewritten`. Returns the entry's number; None if other segments hold the records of some
    run by now: then nothing was done.

    Raises UnknownTopicOrPartition. UploadExpired: vacuum took the new segments for left behind;
    nothing was done. StorageError: the outcome is unknown; or this process slept, and vacuum took
    the new segments for left behind meanwhile: then the old ones hold the records again. If keys
    were purged meanwhile, they may have records of these, and it says so.
    """
    placed = [place for place in new if place.stored.record_count]
    refs = [
        SegmentRef(log.name, place.partition, place.stored.name, place.stored.position)
        for place in placed
    ]
    uploads = UploadCheck(log.log.storage, log.clock, log.name, refs, [begun_ms])
    uploads.before()
    nonce = log.clock.token()
    replaced: list[SegmentEntry] = []
    horizon_ms, more_ms = -1, 0

    def put_now() -> tuple[SegmentEntry, ...]:
        nonlocal horizon_ms
        if stay is None:
            return tuple(new)
        horizon_ms = stay.horizon_ms() + more_ms
        return tuple(_until(horizon_ms, place) for place in new)

    def build(state: TopicState) -> Rewritten | None:
        state.check_exists(log.name, topic_id)
        found = _find(log, state, read)
        replaced[:] = found or ()
        if found is None:
            return None
        return Rewritten(nonce, log.clock.now_ms(), put_now(), purges)

    number = log.append(build)
    try:
        uploads.after(number)
    except StorageError as error:
        if error.retriable:
            raise
        if _place_again(log, topic_id, new, lambda: replaced, read):
            _check_not_purged_since(log, number, error)
            raise
        # Others have rewritten, or deleted, its records since: nothing is lost.
        return number
    while number is not None and stay is not None and stay.is_early(horizon_ms):
        # This process slept before its entry, which says that they may go too early. Or puts take
        # so long: the next one may take twice as long as this one.
        more_ms = min(2 * (stay.horizon_ms() - horizon_ms + more_ms), _PUT_MS)
        _place_again(log, topic_id, new, put_now, read)
    return number


def _until(horizon_ms: int, place: SegmentEntry) -> SegmentEntry:
    """Have the segment's tombstones, if it has any, stay until this time."""
    special = place.stored.rewritten
    if special is None or special.delete_horizon_ms < 0:
        return place
    later = msgspec.structs.replace(special, delete_horizon_ms=horizon_ms)
    stored = msgspec.structs.replace(place.stored, rewritten=later)
    return msgspec.structs.replace(place, stored=stored)


def _find(log: TopicLog, state: TopicState, read: Sequence[ReadRun]) -> list[SegmentEntry] | None:
    """The entry by which the segments of these runs hold their records, as they do now.

    What stands for offsets without records is among them as it is: it tells who emptied them, a
    purge or a compaction, and what had superseded their records. None if others hold the records.
    """
    whole: dict[int, tuple[int, int]] = {}
    for run in read:
        low, high = whole.get(run.partition, (run.start, run.end))
        whole[run.partition] = min(low, run.start), max(high, run.end)
    starts = [partition.log_start_offset for partition in state.partitions]
    left = {n: (max(low, starts[n]), high) for n, (low, high) in whole.items() if starts[n] < high}
    found = log.find_records(state, left)
    aborted = found.aborted | frozenset(state.aborted)
    places: list[SegmentEntry] = []
    for run in read:
        segments = overlapping(found.segments.get(run.partition, ()), run.start, run.end)
        if tuple(segment.stored.name for segment in segments) != run.segments:
            return None
        emptied = overlapping(found.emptied.get(run.partition, ()), run.start, run.end)
        inside = [e for e in emptied if run.start <= e.base_offset and e.end_offset <= run.end]
        places += [
            _as_it_stands(run.partition, segment, is_aborted=segment.entry in aborted)
            for segment in sorted((*segments, *inside), key=attrgetter("base_offset"))
        ]
    return places


def _as_it_stands(partition: int, segment: Segment, *, is_aborted: bool) -> SegmentEntry:
    """The entry by which a segment holds its records, that tells by which one it did first.

    It is no compaction since then, and aborted records are none that anybody was shown.
    """
    source, special = segment.source_entry, segment.stored.rewritten
    if is_aborted:
        return _emptied(partition, segment.base_offset, segment.end_offset, source)
    stored = segment.stored
    if special is None and stored.position != OWN_FILE:
        # The others in its file have another entry: who lets go of it must know that.
        special = RewrittenFile(stored.offset_count)
        stored = msgspec.structs.replace(stored, rewritten=special)
    elif special is not None and special.is_compacted:
        special = msgspec.structs.replace(special, purged_from=source)
        stored = msgspec.structs.replace(stored, rewritten=special)
    return SegmentEntry(partition, segment.base_offset, stored)


def _emptied(partition: int, start: int, end: int, purged_from: int = -1) -> SegmentEntry:
    """Says that no offset of [start, end) has a record."""
    special = RewrittenFile(end - start, purged_from=purged_from)
    return SegmentEntry(partition, start, StoredSegment.emptied(special))


def _place_again(
    log: TopicLog,
    topic_id: str,
    new: Sequence[SegmentEntry],
    by: Callable[[], Sequence[SegmentEntry]],
    read: Sequence[ReadRun],
) -> bool:
    """Let other segments, which exist, hold the records of new ones that were placed just now.

    The old ones if the new ones are missing. Only for runs whose records are in the new ones: later
    rewrites of others stay, since the old segments may be gone by then. Returns whether any of the
    new ones held records still.
    """
    nonce = log.clock.token()
    is_needed = False

    def build(state: TopicState) -> Rewritten | None:
        nonlocal is_needed
        state.check_exists(log.name, topic_id)
        is_needed = False
        places: list[SegmentEntry] = []
        chosen = by()
        for run in read:
            log_start = state.partitions[run.partition].log_start_offset
            if run.end <= log_start:
                continue
            span = {run.partition: (max(run.start, log_start), run.end)}
            found = [segment.stored.name for segment in log.placed(state, span)[run.partition]]
            made = [
                place.stored.name
                for place in _within(new, run, log_start)
                if place.stored.record_count
            ]
            is_needed = is_needed or not set(made).isdisjoint(found)
            if made and found == made:
                places += _without_gaps(run, _within(chosen, run, log_start))
        return Rewritten(nonce, log.clock.now_ms(), tuple(places)) if places else None

    log.append(build)
    return is_needed


def _check_not_purged_since(log: TopicLog, entry: int | None, error: StorageError) -> None:
    """Raises StorageError if keys were purged after an entry whose segments were taken back.

    It has seen what the new segments held. The old ones may hold more: what was superseded.
    """
    with log.lock:
        is_purged = entry is not None and log.state.purge_end > entry + 1
    if is_purged:
        more = StorageError(
            f"topic {log.name!r}: what entry {entry} has rewritten was lost, because this process "
            "slept, and the segments before it hold the records again. Keys were purged meanwhile, "
            "and these segments may have older records of them, which show again: purge these keys "
            "again"
        )
        more.retriable = False
        raise more from error


def _within(places: Sequence[SegmentEntry], run: ReadRun, log_start: int) -> list[SegmentEntry]:
    """The segments of a run, from the log start on."""
    return [
        place
        for place in places
        if place.partition == run.partition
        and run.start <= place.base_offset < run.end
        and place.end_offset > log_start
    ]


def _without_gaps(run: ReadRun, places: Iterable[SegmentEntry]) -> Iterator[SegmentEntry]:
    """The segments of a run, with emptied ones for offsets in between that no segment has.

    A rewrite must cover the segments that it replaces wholly, or both would be in force.
    """
    at = run.start
    for place in places:
        if at < place.base_offset:
            yield _emptied(run.partition, at, place.base_offset)
        yield place
        at = place.end_offset
    if at < run.end:
        yield _emptied(run.partition, at, run.end)


@dataclass(frozen=True, slots=True)
class CurrentRecords:
    """Where some offsets of a partition are now, according to its log.

    ``topic_id`` is None if there is no topic of this name (any more). ``segments`` are the names of
    those that hold the records.
    """

    topic_id: str | None
    log_start_offset: int = 0
    segments: frozenset[str] = frozenset()


def current_records(
    storage: Storage, where: TopicPartition, start: int, end: int
) -> CurrentRecords:
    """Find where the records of [start, end) are now, from the topic's log."""
    policy = LogPolicy(FreeingRule(DAY_MS), recent_ms=0)
    log = TopicLog(storage, where.topic, SystemClock(), policy, 0)
    log.refresh()
    with log.lock:
        state = log.state
        if state.topic_id is None or where.partition >= len(state.partitions):
            return CurrentRecords(state.topic_id)
        log_start = state.partitions[where.partition].log_start_offset
        found: Sequence[Segment] = ()
        if max(start, log_start) < end:
            found = log.placed(state, {where.partition: (max(start, log_start), end)})[
                where.partition
            ]
        return CurrentRecords(state.topic_id, log_start, frozenset(s.stored.name for s in found))
