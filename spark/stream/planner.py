"""Plans a stream's micro-batches: reads the topics' logs at each trigger, and never a segment.

One planner lives as long as its query runs. It keeps the topics' logs open, so a trigger that finds
nothing new costs one listing per topic, however long their histories are.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from txnlog.columns.layouts import has_become
from txnlog.errors import (
    ConcurrentTransactions,
    InvalidOption,
    OffsetOutOfRange,
    SnapshotExpired,
    TxnlogError,
    UnknownTopicOrPartition,
)
from txnlog.log.named_folders import list_topics
from txnlog.log.topic_log import TopicLog
from txnlog.names import TopicPartition
from txnlog.read.changed_ranges import ChangedRanges, changed_ranges
from txnlog.read.isolation_levels import check_reading_on
from txnlog.read.pin import PinnedTopics
from txnlog.read.plan import SegmentRange
from txnlog.read.topic_view import LATEST, TopicView
from txnlog.schema import TopicSchema
from txnlog.segments.schema_columns import id_of
from txnlog.snapshot import Snapshot, take_snapshot
from txnlog.spark.batch.pinned_read import cut_ranges
from txnlog.spark.batch.spans import resolve_position, span_of, wanted_partitions
from txnlog.spark.options.stream_options import MicroBatchLimits, StreamOptions
from txnlog.spark.options.subscription import Partitions
from txnlog.spark.stream.offsets import StreamOffset, proportional_shares
from txnlog.state.group import OffsetCommit
from txnlog.store import Store

_logger = logging.getLogger(__name__)

_GROUP_RETRY_S = 10.0

_Mark = tuple[str, int]
"""A topic's id and next entry, if nothing is undecided: nothing is new while they stay."""


@dataclass(frozen=True, slots=True)
class _Topics:
    """The topics as the last look found them, at one consistent cut."""

    snapshot: Snapshot | None = None
    marks: Mapping[str, _Mark | None] | None = None
    subscribed: Partitions | None = None

    def view(self, topic: str) -> TopicView | None:
        if self.snapshot is None or topic not in self.snapshot.topics:
            return None
        return self.snapshot.view(topic)

    def wanted(self) -> list[TopicPartition]:
        """The subscribed partitions of the topics that there are."""
        if self.snapshot is None or self.subscribed is None:
            return []
        there = {t: parts for t, parts in self.subscribed.items() if self.view(t) is not None}
        return wanted_partitions(self.snapshot, there)


class StreamPlanner:
    """The possible end of a batch, and the segment ranges up to it."""

    def __init__(
        self, store: Store, options: StreamOptions, schema: TopicSchema | None = None
    ) -> None:
        self._store = store
        self._options = options
        self._schema = schema
        self._topics = _Topics()
        self._end_is_pinned = False
        self._initial: StreamOffset | None = None
        self._committed: StreamOffset | None = None
        self._try_group_at_s = 0.0
        self._batch_end: StreamOffset | None = None
        self._last_batch_s: float | None = None
        self._warned: set[str] = set()

    # -- for Spark -------------------------------------------------------------------------------

    def pin_end(self) -> None:
        """Look once, and ignore what comes later: for Trigger.AvailableNow."""
        self._refresh()
        self._end_is_pinned = True

    def initial(self) -> StreamOffset:
        """The start of a new query: the same at every call.

        Raises the errors of :func:`txnlog.spark.batch.pinned_read.pin_read`.
        """
        if self._initial is None:
            self._refresh()
            self._check_topics_exist({})
            self._initial = self._resolve_starts()
        return self._initial

    def latest(self, start: StreamOffset, rates: MicroBatchLimits) -> StreamOffset:
        """The end of the batch that starts at ``start``: see :meth:`_latest`."""
        self._batch_end = self._latest(start, rates)
        return self._batch_end

    def _latest(self, start: StreamOffset, rates: MicroBatchLimits) -> StreamOffset:
        """The end of the batch that starts at ``start``: ``start`` itself if it is empty.

        Without a limit the end is one consistent cut over all topics. With one it is what the
        shares give, so a batch may hold a part of a transaction; the rest comes with the next ones.

        Raises OffsetOutOfRange: records were lost (unless failOnDataLoss is false);
        SnapshotExpired: of a feed of changes, keys were purged (likewise);
        UnknownTopicOrPartition: a subscribed topic, never read, does not exist.
        """
        self._refresh()
        self._check_topics_exist(start.offsets)
        self._check_start(start)
        self._check_not_purged(start)
        begins = {where: self._start_of(start, where) for where in self._topics.wanted()}
        counts = {where: max(self._end(where) - at, 0) for where, at in begins.items()}
        total = sum(counts.values())
        if rates.least is not None and total < rates.least and not self._is_overdue(rates):
            return start
        shares = counts if rates.most is None else proportional_shares(counts, rates.most)
        kept = {w: at for w, at in start.partitions() if self._keeps_place(start, w)}
        topic_ids = {w.topic: start.topic_ids[w.topic] for w in kept} | self._topic_ids()
        offsets = kept | {where: at + shares[where] for where, at in begins.items()}
        since = None
        if start.begins and start.since is not None:
            since = {t: at for t, at in start.since.items() if topic_ids[t] == start.topic_ids[t]}
        # After a purge that is no error there may be a batch without records: it is past it then.
        end = StreamOffset.of(offsets, topic_ids, since, self._purge_end(start.purge_end))
        if replace(end, since=start.since) == start:
            return start
        self._last_batch_s = self._store.logs.clock.monotonic_s()
        return end

    def newest(self) -> StreamOffset | None:
        """The ends of all that was there at the last look; None before it."""
        if self._topics.snapshot is None:
            return None
        ends = {where: self._end(where) for where in self._topics.wanted()}
        return StreamOffset.of(ends, self._topic_ids())

    def behind(self) -> dict[str, int] | None:
        """How many offsets the last batch has left for later ones, by topic; None before one."""
        end, newest = self._batch_end, self.newest()
        if end is None or newest is None:
            return None
        left = dict.fromkeys(newest.topic_ids, 0)
        for where, latest in newest.partitions():
            done = end.at(where, newest.topic_ids[where.topic])
            # What was found since, or made again, is read from its start.
            left[where.topic] += max(latest - max(done or 0, self._partition(where)[0]), 0)
        return left

    def ranges(self, start: StreamOffset, end: StreamOffset) -> tuple[SegmentRange, ...]:
        """The content of the batch between two offsets: the same at every call.

        Raises OffsetOutOfRange: records were lost (unless failOnDataLoss is false); InvalidOption:
        a topic has other columns than the query.
        """
        spans = self._spans(start, end)
        if not spans:
            return ()
        found = cut_ranges(self._planned_topics(), spans)
        return tuple(part for where in sorted(found) for part in found[where])

    def changes(self, start: StreamOffset, end: StreamOffset) -> ChangedRanges | None:
        """The segments that tell the changes in a batch of one topic; None if the batch is empty.

        Raises what :meth:`ranges` does; SnapshotExpired: keys were purged since the batch began.
        """
        spans = self._spans(start, end)
        if not spans:
            return None
        (topic,) = {where.topic for where in spans}
        view = self._planned_topics().view(topic)
        begin = end.start_of_batch(start)
        self._check_not_purged(begin)
        # Also of partitions that have nothing new: a key may have its row there.
        starts = {
            number: begin.at(TopicPartition(topic, number), view.topic_id) or part.log_start_offset
            for number, part in enumerate(view.partitions)
        }
        ends = dict(starts)
        for where, span in spans.items():
            starts[where.partition], ends[where.partition] = span.start, span.stop
        return changed_ranges(view, starts, ends)

    def _spans(self, start: StreamOffset, end: StreamOffset) -> dict[TopicPartition, range]:
        """The offsets of a batch, by partition that has any."""
        if not self._covers(end):
            self._refresh()
        begin = end.start_of_batch(start)
        spans: dict[TopicPartition, range] = {}
        for where, stop in end.partitions():
            span = self._readable_span(where, end.topic_ids[where.topic], begin, stop)
            if span:
                spans[where] = span
        self._check_schemas({where.topic for where in spans})
        return spans

    def commit_group(self, done: StreamOffset) -> None:
        """Move the group's offsets to ``done``, for tools that show lag.

        The query's place is its checkpoint: nothing is read from the group, and if it cannot be
        moved that is logged and the query goes on. It is tried again after a while, since a group
        with a consumer keeps refusing, and triggers may follow each other within milliseconds.
        """
        group_id = self._options.read.group_id
        now_s = self._store.logs.clock.monotonic_s()
        is_moved = done.begins or done == self._committed
        if group_id is None or is_moved or now_s < self._try_group_at_s:
            return
        before = self._committed
        moved = [
            OffsetCommit(*where, offset, topic_id=done.topic_ids[where.topic])
            for where, offset in done.partitions()
            if before is None or before.at(where, done.topic_ids[where.topic]) != offset
        ]
        try:
            if moved:
                log = self._store.logs.fresh_group(group_id)
                log.commit(moved, refreshed=True)
                self._store.logs.tidy([log])
            self._committed = done
        except TxnlogError as error:
            self._try_group_at_s = now_s + _GROUP_RETRY_S
            if str(error) not in self._warned:
                self._warned.add(str(error))
                _logger.warning("the offsets of group %r were not moved: %s", group_id, error)

    # -- refreshing ------------------------------------------------------------------------------

    def _refresh(self) -> None:
        """Look at the topics again: one listing for each, and reads of entries that are new."""
        if self._end_is_pinned:
            return
        logs = self._store.logs
        subscribed = self._subscribed()
        topics = [logs.topic(topic) for topic in subscribed]
        logs.storage.gather([log.refresh for log in topics])
        marks = {log.name: _mark(log) for log in topics}
        if marks == self._topics.marks and None not in marks.values():
            return
        try:
            snapshot = self._snapshot(list(subscribed)) if any(map(_exists, topics)) else None
        except ConcurrentTransactions as error:
            if self._topics.snapshot is None:
                raise
            _logger.info("nothing new can be read yet: %s", error)
            return
        self._topics = _Topics(snapshot, marks, subscribed)

    def _snapshot(self, topics: list[str]) -> Snapshot:
        return take_snapshot(
            self._store.logs,
            topics,
            check_reading_on(self._options.read.isolation_level),
            leave_out_missing=True,
            refreshed=True,
        )

    def _subscribed(self) -> Partitions:
        subscription = self._options.read.subscription
        if subscription.pattern is None:
            return subscription.topics
        return subscription.match(list_topics(self._store.storage))

    def _topic_ids(self) -> dict[str, str]:
        topics = dict.fromkeys(where.topic for where in self._topics.wanted())
        assert self._topics.snapshot is not None or not topics
        return {t: view.topic_id for t in topics if (view := self._topics.view(t)) is not None}

    def _partition(self, where: TopicPartition) -> tuple[int, int]:
        """A partition's start, and its end at the cut."""
        view = self._topics.view(where.topic)
        assert view is not None
        partition = view.partitions[where.partition]
        return partition.log_start_offset, partition.end_offset

    def _planned_topics(self) -> Snapshot:
        """The topics without the newest cut, for batches that are planned: they have their ends.

        The cut may lie before these, since ends go back while a transaction is open.
        """
        snapshot = self._topics.snapshot
        assert snapshot is not None
        views = {topic: _without_cut(snapshot.view(topic)) for topic in snapshot.topics}
        return Snapshot(self._store.storage, PinnedTopics(views, "none"), snapshot.isolation_level)

    def _end(self, where: TopicPartition) -> int:
        return self._partition(where)[1]

    def _resolve_starts(self) -> StreamOffset:
        snapshot = self._topics.snapshot
        if snapshot is None:
            return StreamOffset.initial({}, {})
        read = self._options.read
        wanted = self._topics.wanted()
        chosen = resolve_position(
            self._store.storage,
            snapshot,
            wanted,
            "startingOffsets",
            self._options.starting,
            skip_damaged=read.skip_damaged,
        )
        starts = {w: span_of(snapshot, w, chosen[w], LATEST, read).start for w in wanted}
        return StreamOffset.initial(starts, self._topic_ids(), self._purge_end())

    def _start_of(self, start: StreamOffset, where: TopicPartition) -> int:
        """A batch's start in a partition; newly found partitions begin at their own start."""
        view = self._topics.view(where.topic)
        assert view is not None
        begin, _ = self._partition(where)
        known = start.at(where, view.topic_id)
        if known is None:
            self._check_added(where, start)
            return begin
        return min(max(known, begin), view.log_end_offsets[where.partition])

    def _is_overdue(self, rates: MicroBatchLimits) -> bool:
        """True if a batch must not wait for more; with Trigger.AvailableNow none ever waits."""
        if self._end_is_pinned or self._last_batch_s is None:
            return True
        waited_s = self._store.logs.clock.monotonic_s() - self._last_batch_s
        return waited_s * 1000 >= rates.max_delay_ms

    def _covers(self, end: StreamOffset) -> bool:
        for where, stop in end.partitions():
            view = self._topics.view(where.topic)
            if view is None or view.topic_id != end.topic_ids[where.topic]:
                return False
            if where.partition >= len(view.partitions) or _stable_end(view, where) < stop:
                return False
        return True

    # -- lost records ----------------------------------------------------------------------------

    def _check_topics_exist(self, known: Mapping[str, object]) -> None:
        for topic in self._topics.subscribed or ():
            if self._topics.view(topic) is None and topic not in known:
                if self._options.read.subscription.pattern is not None:
                    continue  # a folder of a topic that is gone
                raise UnknownTopicOrPartition(
                    f"topic {topic!r} does not exist in {self._store.url}; create it first"
                )

    def _check_start(self, start: StreamOffset) -> None:
        """Find records lost after ``start``."""
        wanted = {*self._topics.wanted()}
        for topic, topic_id in start.topic_ids.items():
            view = self._topics.view(topic)
            if topic not in (self._topics.subscribed or ()):
                self._report_loss(_unsubscribed_reason(f"topic {topic!r}"))
            elif view is None:
                self._report_loss(_deleted_reason(f"topic {topic!r}"))
            elif view.topic_id != topic_id:
                self._report_loss(_recreated_reason(topic, topic_id, view.topic_id))
            else:
                for partition, offset in start.offsets[topic].items():
                    where = TopicPartition(topic, partition)
                    if where in wanted:
                        self._check_in_log(where, offset, view)
                    else:
                        self._report_loss(_unsubscribed_reason(f"{where}"))

    def _keeps_place(self, start: StreamOffset, where: TopicPartition) -> bool:
        """True if the stream keeps its place in a partition that this batch has nothing of."""
        view = self._topics.view(where.topic)
        return view is None or view.topic_id == start.topic_ids[where.topic]

    def _check_in_log(self, where: TopicPartition, offset: int, view: TopicView) -> None:
        begin, end = self._partition(where)[0], view.log_end_offsets[where.partition]
        if offset < begin:
            self._report_loss(
                f"the records of {where} from offset {offset} to {begin - 1} were deleted before "
                f"the query had read them: its log starts at {begin} now"
            )
        elif offset > end:
            self._report_loss(
                f"{where} ends at offset {end}, but the query has read up to {offset}: the topic "
                "is shorter than it was. Was the store restored from an older copy?"
            )

    def _fed(self) -> TopicView | None:
        """The topic of a feed of changes, if this is one, and it is there."""
        read = self._options.read
        return self._topics.view(*read.subscription.topics) if read.pre_images else None

    def _purge_end(self, before: int | None = None) -> int | None:
        fed = self._fed()
        return before if fed is None else fed.purge_end

    def _check_not_purged(self, start: StreamOffset) -> None:
        """Find keys purged after ``start``: a feed cannot tell what was done to their rows.

        A query that begins with the first records misses nothing.
        """
        view = self._fed()
        if (
            view is None
            or view.topic_id != start.topic_ids.get(view.topic)
            or start.purge_end is None
            or start.purge_end >= view.purge_end
        ):
            return
        known = start.offsets[view.topic]
        if not start.begins or any(
            known.get(number, 0) > part.log_start_offset
            for number, part in enumerate(view.partitions)
        ):
            self._report_loss(
                f"keys were purged from topic {view.topic!r} since the last batch (entry "
                f"{view.purge_end - 1} of its log): what was done to their rows is not known any "
                "more",
                SnapshotExpired,
            )

    def _check_added(self, where: TopicPartition, start: StreamOffset) -> None:
        """Find records lost of a partition that ``start`` does not know.

        One that is assigned, or of a topic that is named and unknown, was added to the options: it
        may be an old one.
        """
        read = self._options.read.subscription
        is_assigned = read.topics.get(where.topic) is not None
        is_named = read.pattern is None and where.topic not in start.topic_ids
        view = self._topics.view(where.topic)
        assert view is not None
        partition = view.partitions[where.partition]
        begin, first = partition.log_start_offset, partition.first_offset
        if begin > first and not (is_named or is_assigned):
            self._report_loss(
                f"{where} was added while the query ran, and starts at offset {begin}, not "
                f"{first}: the records before it were deleted before the query had read them"
            )

    def _check_schemas(self, topics: Iterable[str]) -> None:
        """A pattern may come to match a topic of another kind, or one may be recreated."""
        for topic in topics:
            view = self._topics.view(topic)
            if view is not None and not may_read(self._schema, view.schema):
                raise InvalidOption(
                    f"topic {topic!r} does not have the columns that this query began with: its "
                    "schema was changed, it was recreated, or subscribePattern matches it too. "
                    "Load it and start it again; a topic of another kind needs a query of its own"
                )

    def _readable_span(
        self, where: TopicPartition, topic_id: str, begin: StreamOffset, stop: int
    ) -> range:
        """The offsets of a batch in one partition, as far as they are (still) there."""
        start = begin.at(where, topic_id)
        if start is not None and start >= stop:
            return range(0)
        view = self._topics.view(where.topic)
        if view is None or where.partition >= len(view.partitions):
            self._report_loss(_deleted_reason(f"{where}"))
            return range(0)
        if view.topic_id != topic_id:
            self._report_loss(_recreated_reason(where.topic, topic_id, view.topic_id))
            return range(0)
        log_start, end = self._partition(where)[0], _stable_end(view, where)
        if start is None:
            self._check_added(where, begin)
            start = log_start
        self._check_in_log(where, start, view)
        self._check_in_log(where, max(stop, log_start), view)
        if end < stop <= view.log_end_offsets[where.partition]:
            raise OffsetOutOfRange(
                f"a batch that was planned ends at offset {stop} of {where}, but only what is "
                f"below {end} is committed: give the isolation.level that the query was started "
                "with, until this batch is done"
            )
        return range(max(start, log_start), min(stop, end))

    def _report_loss(self, what: str, error: type[TxnlogError] = OffsetOutOfRange) -> None:
        if self._options.read.fail_on_data_loss:
            raise error(
                f"{what}. To go on with what is there, give failOnDataLoss=false; to start over, "
                "give the query a new checkpoint"
            )
        if what not in self._warned:
            self._warned.add(what)
            _logger.warning("%s; going on with what is there", what)


def _unsubscribed_reason(what: str) -> str:
    return f"the query has read {what}, which its options do not name any more"


def _deleted_reason(what: str) -> str:
    return f"{what} was deleted: what was not read of it is gone"


def _recreated_reason(topic: str, old: str, new: str) -> str:
    return (
        f"topic {topic!r} was deleted and recreated (its id was {old}, and is {new} now): what was "
        "not read of the old topic is gone, and the new one begins at its own start"
    )


def _stable_end(view: TopicView, where: TopicPartition) -> int:
    """How far a batch that was planned can reach."""
    end = view.partitions[where.partition].end_offset
    return max(end, view.last_stable_offsets[where.partition])


def _without_cut(view: TopicView) -> TopicView:
    return view.truncate(
        {p: _stable_end(view, TopicPartition(view.topic, p)) for p in view.end_offsets}
    )


def _mark(log: TopicLog) -> _Mark | None:
    with log.lock:
        state = log.state
        return None if state.undecided_entries() else (state.topic_id or "", state.next_entry)


def _exists(log: TopicLog) -> bool:
    with log.lock:
        state = log.state
        return state.exists


def may_read(began: TopicSchema | None, now: TopicSchema | None) -> bool:
    """Whether a query goes on with the columns that it began with: others may have been added."""
    if began is None or now is None:
        return began is now
    if not has_become(began, now):
        return False
    # Those that were dropped are null, or have their default; renamed ones are found by their ids.
    columns = {id_of(field): field.type for field in now.columns}
    return all(
        columns.get(id_of(field), field.type).equals(field.type, check_metadata=True)
        for field in began.columns
    )
