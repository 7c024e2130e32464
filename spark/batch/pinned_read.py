"""Resolves a read's options into pinned segment ranges, on the driver's side.

Opens logs, never a segment. The result is plain data that gives the same records wherever and
however often it is read.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter

import msgspec

from txnlog.errors import InvalidOption, OffsetOutOfRange, UnknownTopicOrPartition
from txnlog.names import TopicPartition
from txnlog.read.isolation_levels import check_isolation_level
from txnlog.read.pin import PinnedTopics
from txnlog.read.plan import SegmentRange
from txnlog.read.snapshot_token import SnapshotToken
from txnlog.read.topic_view import EARLIEST, LATEST
from txnlog.schema import TopicSchema
from txnlog.snapshot import Snapshot, take_again, take_snapshot
from txnlog.spark.batch.spans import resolve_position, span_of, wanted_partitions
from txnlog.spark.options.read_options import ReadOptions
from txnlog.spark.options.subscription import Subscription
from txnlog.state.group import GroupState
from txnlog.state.transaction import ConsumedOffset
from txnlog.store import Store

Committed = Mapping[TopicPartition, int | None]


@dataclass(frozen=True, slots=True)
class PinnedRead:
    """A pinned read: segment ranges, and by partition the offsets [start, stop) they span.

    Aborted records lie inside the offsets and outside the ranges. ``topic_ids`` distinguish the
    topics from others of their names, ``entries`` are those that had last moved the group's
    committed offsets. ``moved`` are partitions in which a group without an offset would begin
    elsewhere than this read has. ``schema`` is that of typed topics, all of them; ``snapshot``
    tells where the topics were pinned, of which the ranges are a part.
    """

    ranges: tuple[SegmentRange, ...]
    offsets: Mapping[TopicPartition, range]
    committed: Committed
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    entries: Mapping[TopicPartition, int | None] = field(default_factory=dict)
    moved: Collection[TopicPartition] = ()
    schema: TopicSchema | None = None
    snapshot: SnapshotToken | None = None

    @property
    def record_count(self) -> int:
        return sum(part.record_count for part in self.ranges)

    def consumed(self, group_id: str) -> list[ConsumedOffset]:
        """The partitions that a transaction of this group must compare and move."""
        return [
            ConsumedOffset(
                group_id,
                where.topic,
                where.partition,
                self.committed[where],
                span.stop,
                topic_id=self.topic_ids.get(where.topic, ""),
                start_entry=self.entries.get(where),
            )
            for where, span in sorted(self.offsets.items())
            if span or self._moves(where, span.stop)
        ]

    def _moves(self, where: TopicPartition, stop: int) -> bool:
        """Whether a partition of which nothing is read has another place for the group."""
        committed = self.committed[where]
        return where in self.moved if committed is None else committed != stop


def committed_offsets(
    state: GroupState, wanted: Sequence[TopicPartition], topic_ids: Mapping[str, str]
) -> Committed:
    """The group's committed offset of each partition, None where there is none."""
    found = {where: state.offset_of(*where, topic_ids[where.topic]) for where in wanted}
    return {where: at.offset if at else None for where, at in found.items()}


def pin_read(store: Store, options: ReadOptions) -> PinnedRead:
    """Take a snapshot of the subscribed topics and choose the range between both ends.

    Raises UnknownTopicOrPartition; OffsetOutOfRange: an offset is not in the log (unless
    failOnDataLoss is false); InvalidOption: offsets for topics or partitions other than those
    subscribed.
    """
    # The group first: what it has committed then lies inside the logs that the snapshot finds.
    group = _read_group(store, options.group_id) if options.group_id else None
    subscribed = options.subscription.resolve(store)
    snapshot = _take(store, list(subscribed), options)
    if not options.fail_on_data_loss:
        snapshot = _without_deleted(store, snapshot)
    wanted = wanted_partitions(snapshot, subscribed)
    topic_ids = {topic: snapshot.view(topic).topic_id for topic in snapshot.topics}
    committed = committed_offsets(group, wanted, topic_ids) if group else {}
    resolve = partial(
        resolve_position, store.storage, snapshot, wanted, skip_damaged=options.skip_damaged
    )
    if options.starting is not None or group is None:
        starting = options.starting or "earliest"
        starts = resolve("startingOffsets", starting)
    else:
        if options.fail_on_data_loss:
            _check_not_recreated(options.group_id, group, wanted, topic_ids)
        starts = {w: EARLIEST if (at := committed[w]) is None else at for w in wanted}
    stops = resolve("endingOffsets", options.ending)
    spans = {
        where: span_of(snapshot, where, starts[where], stops[where], options, committed.get(where))
        for where in wanted
    }
    ranges = cut_ranges(snapshot, spans)
    if options.spans is not None:
        ranges = {
            where: clip(parts, options.spans.get(where.topic, {}).get(where.partition, ()))
            for where, parts in ranges.items()
        }
    pinned = limit_records(ranges, spans, committed, options.max_records)
    entries = (
        {w: group.logged_position(*w, topic_ids[w.topic]).entry for w in wanted} if group else {}
    )
    schema = common_schema({topic: snapshot.view(topic).schema for topic in snapshot.topics})
    return replace(
        pinned,
        topic_ids=topic_ids,
        entries=entries,
        moved=_moved(snapshot, spans, group) if group else (),
        schema=schema,
        snapshot=SnapshotToken.of(map(snapshot.view, snapshot.topics), snapshot.consistency),
    )


def _take(store: Store, topics: Sequence[str], options: ReadOptions) -> Snapshot:
    """The topics as they are now, as of a moment, or as the driver has pinned them."""
    level = check_isolation_level(options.isolation_level)
    if options.snapshot is not None:
        pinned = SnapshotToken.decode(options.snapshot)
        try:
            return take_again(store.logs, topics, pinned, level)
        except UnknownTopicOrPartition as error:
            raise UnknownTopicOrPartition(
                "a topic was deleted, and maybe made again, since this DataFrame was pinned; read "
                f"again ({error})"
            ) from error
    return take_snapshot(
        store.logs,
        topics,
        level,
        leave_out_missing=options.subscription.pattern is not None,
        at=options.at,
    )


def _without_deleted(store: Store, snapshot: Snapshot) -> Snapshot:
    """A snapshot of the past that starts where records are left: deleted ones are not missed."""
    left = {topic: snapshot.view(topic).without_deleted() for topic in snapshot.topics}
    pinned = PinnedTopics(left, snapshot.consistency)
    return Snapshot(store.storage, pinned, snapshot.isolation_level)


def common_schema(schemas: Mapping[str, TopicSchema | None]) -> TopicSchema | None:
    """The schema of topics that are read together, None if they have none.

    Raises InvalidOption: their schemas differ.
    """
    found = [*schemas.items()]
    for topic, schema in found[1:]:
        first, expected = found[0]
        if schema != expected:
            one, other = _describe(expected), _describe(schema)
            if one == other:
                other += ", but their files have them in other ways, since one was altered"
            raise InvalidOption(
                f"topics {first!r} and {topic!r} cannot be read at once: {first!r} {one}, and "
                f"{topic!r} {other}. Read each by itself; unionByName puts the frames together"
            )
    return found[0][1] if found else None


def topic_schema(store: Store, subscription: Subscription) -> TopicSchema | None:
    """The schema of the subscribed topics that exist, None if they have none, or none exists.

    Raises InvalidOption: their schemas differ.
    """
    found: dict[str, TopicSchema | None] = {}
    with suppress(UnknownTopicOrPartition):  # no topic matches
        for topic in subscription.resolve(store):
            with suppress(UnknownTopicOrPartition):
                found[topic] = store.logs.topic_spec(topic).schema
    return common_schema(found)


def _describe(schema: TopicSchema | None) -> str:
    if schema is None:
        return "has no schema"
    columns = ", ".join(f"{field.name} {field.type}" for field in schema.columns)
    key = f"the key {', '.join(schema.key)}" if schema.key else "no key"
    return f"has the columns {columns} and {key}"


def _check_not_recreated(
    group_id: str | None,
    group: GroupState,
    wanted: Sequence[TopicPartition],
    topic_ids: Mapping[str, str],
) -> None:
    for where in wanted:
        known = group.offset_of(*where)
        if known and group.offset_of(*where, topic_ids[where.topic]) is None:
            raise OffsetOutOfRange(
                f"topic {where.topic!r} was deleted and recreated since group {group_id!r} "
                f"committed offset {known.offset} of partition {where.partition}: what the group "
                "had not read of the old topic is lost. To go on with the new topic from its "
                "start, give failOnDataLoss=false, startingOffsets, or reset the group's offsets"
            )


def _moved(
    snapshot: Snapshot, spans: Mapping[TopicPartition, range], group: GroupState
) -> set[TopicPartition]:
    """The partitions that are not read from the log's start, or that the group has offsets in.

    The offsets may be those of an older topic of the same name.
    """
    return {
        where
        for where, span in spans.items()
        if span.start > snapshot.view(where.topic).partitions[where.partition].log_start_offset
        or group.offset_of(*where) is not None
    }


def _read_group(store: Store, group_id: str) -> GroupState:
    """A copy of the group's committed offsets as they are now."""
    log = store.logs.fresh_group(group_id)
    with log.lock:
        state = log.state
        return state.copy_positions()


def cut_ranges(
    snapshot: Snapshot, spans: Mapping[TopicPartition, range]
) -> dict[TopicPartition, list[SegmentRange]]:
    """The visible segment ranges inside each span."""
    found: dict[TopicPartition, list[SegmentRange]] = {where: [] for where in spans}
    read = {where: span for where, span in spans.items() if span}
    for topic in dict.fromkeys(where.topic for where in read):
        mine = {w.partition: span for w, span in read.items() if w.topic == topic}
        scan = snapshot.scan(
            topic,
            {p: span.start for p, span in mine.items()} | _skip_others(snapshot, topic, mine),
            {p: span.stop for p, span in mine.items()} | _skip_others(snapshot, topic, mine),
        )
        for part in scan.ranges:
            found[TopicPartition(topic, part.partition)].append(part)
    return found


def spans_of(ranges: Iterable[SegmentRange]) -> dict[str, dict[int, list[tuple[int, int]]]]:
    """The offsets of ranges, which are in order in each partition; those without a gap are one."""
    spans: dict[str, dict[int, list[tuple[int, int]]]] = {}
    for part in ranges:
        mine = spans.setdefault(part.topic, {}).setdefault(part.partition, [])
        start = part.start_offset
        if mine and mine[-1][1] == start:
            start, _ = mine.pop()
        mine.append((start, part.stop_offset))
    return spans


def clip(ranges: Iterable[SegmentRange], spans: Sequence[tuple[int, int]]) -> list[SegmentRange]:
    """The parts of a partition's ranges inside spans that are in order."""
    found = []
    for part in ranges:
        first = bisect_right(spans, part.start_offset, key=itemgetter(1))
        for at in range(first, len(spans)):
            start, stop = spans[at]
            if start >= part.stop_offset:
                break
            start, stop = max(start, part.start_offset), min(stop, part.stop_offset)
            found.append(msgspec.structs.replace(part, start_offset=start, stop_offset=stop))
    return found


def limit_records(
    ranges: Mapping[TopicPartition, Sequence[SegmentRange]],
    spans: Mapping[TopicPartition, range],
    committed: Committed,
    max_records: int | None,
) -> PinnedRead:
    """Take at most ``max_records``, shared out so that no partition waits for another one.

    Each partition gets an equal share; what one does not use goes to the others.
    """
    counts = {where: sum(part.record_count for part in parts) for where, parts in ranges.items()}
    turn = sum(span.start for span in spans.values())
    shares = counts if max_records is None else fair_shares(counts, max_records, turn)
    taken: list[SegmentRange] = []
    offsets: dict[TopicPartition, range] = {}
    for where in sorted(spans):
        span, left = spans[where], shares[where]
        if left == counts[where]:
            taken += ranges[where]
            offsets[where] = span
            continue
        stop = span.start
        for part in ranges[where]:
            if left == 0:
                break
            count = min(left, part.record_count)
            left -= count
            stop = part.start_offset + count
            taken.append(msgspec.structs.replace(part, stop_offset=stop))
        offsets[where] = range(span.start, stop)
    return PinnedRead(tuple(taken), offsets, committed)


def fair_shares(
    counts: Mapping[TopicPartition, int], limit: int, turn: int
) -> dict[TopicPartition, int]:
    """Share ``limit`` out: none gets more than its count, nor less than another one's share.

    With a limit below the number of partitions that have any, as many are drawn by ``turn``, which
    moves with each read: so each comes to be drawn, whatever the others get meanwhile.
    """
    shares = dict.fromkeys(counts, 0)
    left = limit
    waiting = sorted((where for where in counts if counts[where]), key=lambda w: (counts[w], w))
    if limit < len(waiting):
        # Not one after the other: turns may move by a multiple of what would be gone round.
        waiting = random.Random(turn).sample(waiting, limit)
    for position, where in enumerate(waiting):
        # Rounded up, so that all of the limit is used.
        share = -(-left // (len(waiting) - position))
        shares[where] = min(counts[where], share)
        left -= shares[where]
    return shares


def _skip_others(snapshot: Snapshot, topic: str, wanted: Mapping[int, object]) -> dict[int, int]:
    """Partitions that are not read: an empty range at their end."""
    return {p: LATEST for p in snapshot.partitions(topic) if p not in wanted}
