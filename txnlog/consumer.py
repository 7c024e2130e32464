"""The consumer: reads records one by one or in small lists, as Kafka's consumer does.

It reads up to a consistent cut of all its topics, refreshes when it has read that far, and keeps
its positions itself. Offsets are committed when it is told to, alone or by a producer's
transaction. For columns at speed use :meth:`txnlog.Store.scan`.
"""

from __future__ import annotations

import inspect
import logging
import math
import operator
import os
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial, wraps
from itertools import islice
from typing import Concatenate, Final, NoReturn, ParamSpec, Self, TypeVar

import pyarrow as pa

from txnlog.arguments import names_wrong_arguments
from txnlog.config import check_whole_number
from txnlog.display import shorten
from txnlog.errors import (
    ConcurrentTransactions,
    IllegalState,
    InvalidOption,
)
from txnlog.groups.group_positions import CommitCallback, GroupPositions
from txnlog.groups.member import MemberSettings
from txnlog.groups.rebalance import ConsumerRebalanceListener, Rebalancer
from txnlog.log.group_metadata import GroupMetadata, OffsetAndMetadata
from txnlog.log.open_logs import Logs
from txnlog.metric import Meter, Metric
from txnlog.names import TopicPartition, check_group_id, check_topic
from txnlog.read.consumer_reads import (
    OUTDATED,
    ConsumerRecord,
    FetchSettings,
    Reading,
    StartPositions,
)
from txnlog.read.isolation_levels import check_reading_on
from txnlog.read.offset_for_time import OffsetAndTimestamp
from txnlog.read.plan import SegmentRange
from txnlog.read.poll_wait import AutoCommit, PollWait
from txnlog.read.topic_pattern import TopicPattern, check_metadata_age
from txnlog.read.topic_view import TopicView
from txnlog.serializers import Serializers
from txnlog.snapshot import Snapshot, take_snapshot
from txnlog.state.group import CommittedOffset, GroupState
from txnlog.state.membership import Committer

Taken = TypeVar("Taken", list[ConsumerRecord], dict[TopicPartition, list[pa.RecordBatch]])
_P = ParamSpec("_P")
_R = TypeVar("_R")

_MOST_RECORDS: Final = (1 << 31) - 1
"""Of one poll: as many as Kafka's setting may say."""
_PLANS: Final = 5
"""How often one look plans what to read."""

_ANYTIME: Final = ("wakeup", "metrics")
"""Calls for any thread, whatever others do."""

_logger = logging.getLogger(__name__)


def _alone(
    method: Callable[Concatenate[Consumer, _P], _R],
) -> Callable[Concatenate[Consumer, _P], _R]:
    """A method that is refused while another thread is in one: positions would be mixed up."""

    @wraps(method)
    def call(self: Consumer, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        if self._process != os.getpid():
            self._begin_in_child()
        before, me = self._user, threading.get_ident()
        if before not in (None, me):
            raise IllegalState(
                f"another thread is in a call of {self}, which is for one at a time; nothing was "
                "done. Wait for that call, which wakeup() ends, and take what it returns: the "
                "positions are behind that"
            )
        with self._in_use:  # who has come at the same moment waits
            try:
                self._user = me
                return method(self, *args, **kwargs)
            finally:
                self._user = before

    return call


def _for_one_at_a_time(cls: type[Consumer]) -> type[Consumer]:
    for name, method in [*vars(cls).items()]:
        if inspect.isfunction(method) and name[0] != "_" and name not in _ANYTIME:
            setattr(cls, name, _alone(method))
    return cls


@names_wrong_arguments("poll")
@_for_one_at_a_time
class Consumer:
    """Reads topics in the order of their offsets, partition by partition.

    Made by :meth:`txnlog.Store.consumer`; for one thread at a time, but for :meth:`wakeup` and
    :meth:`metrics`: any other call raises IllegalState while another thread is in one.
    Iterating yields records, and waits for more at the end; with ``stop_at_end`` it ends there, and
    iterating again goes on with what came since.

    A topic that is deleted is left out while there are others. If it is recreated, it is another
    topic: positions and committed offsets of the old one are ignored, and the reset policy holds.
    """

    def __init__(
        self,
        logs: Logs,
        *,
        group_id: str | None,
        isolation_level: str,
        auto_offset_reset: str,
        max_poll_records: int,
        fetch: FetchSettings,
        stop_at_end: bool,
        auto_commit: AutoCommit | None,
        metadata_max_age_ms: int,
        membership: MemberSettings | None = None,
        deserializers: Serializers | None = None,
    ) -> None:
        if auto_commit is not None and group_id is None:
            raise InvalidOption(
                "enable_auto_commit is for a group: give a group_id, or turn it off"
            )
        check_whole_number(
            max_poll_records, "max_poll_records", InvalidOption, least=1, most=_MOST_RECORDS
        )
        self._in_use = threading.RLock()  # again by who has it: a rebalance listener, say
        self._user: int | None = None  # the thread that is in a call
        self._process = os.getpid()
        self._logs = logs
        self._fetch = fetch
        self._max_poll_records = max_poll_records
        self._stop_at_end = stop_at_end
        self._auto_commit = auto_commit
        self._assigned: dict[TopicPartition, None] = {}
        self._topic_ids: dict[str, str] = {}
        self._deleted: set[str] = set()
        """Topics that it knew as a member of its group, and that are gone."""
        self._meter = Meter("txnlog_consumer", logs.clock)
        self._reading = Reading(logs.storage, fetch, self._meter, deserializers)
        self._as_records = True
        """Whether what is planned to be read becomes records, or batches of columns."""
        self._poll_wait = PollWait(logs.clock, logs.storage.url, fetch.max_wait_ms)
        self._held_back_since_s: float | None = None
        """Since when there have been too few bytes to be read."""
        self._closed = False
        self._group_id = None if group_id is None else check_group_id(group_id)
        if group_id is not None:
            logs.storage.will_write()  # as a member, or by its commits
        self._isolation_level = check_reading_on(isolation_level)
        self._start_positions = StartPositions.of(auto_offset_reset, group_id)
        self._first_partitions: dict[str, int] = {}
        """How many partitions each topic, by its id, had when it was first seen."""
        self._topics: tuple[str, ...] = ()
        self._metadata_max_age_ms = check_metadata_age(metadata_max_age_ms)
        self._pattern: TopicPattern | None = None
        """Finds more topics by pattern; None if they were named."""
        self._subscribed = False
        self._group_positions = (
            None
            if self._group_id is None
            else GroupPositions(logs, self._group_id, self._topic_ids)
        )
        self._paused: set[TopicPartition] = set()
        self._membership = membership
        self._rebalancer: Rebalancer | None = None
        """Its share of a group's partitions; None if its partitions were assigned by hand."""
        self._closing = False

    def __repr__(self) -> str:
        return f"Consumer(topics={list(self._topics)}, group_id={self._group_id!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a consumer belongs to its process: send the store, and make another one there, or a "
            "scan or a snapshot of what it is to read"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._close(commit=kind is None)

    def close(self) -> None:
        """Leave the group and forget everything.

        Closing commits only with ``enable_auto_commit``, and not if an exception leaves the
        ``with`` block. The listener's ``on_partitions_revoked`` is called before, and may commit.

        Raises:
            IllegalState: the listener called it.
        """
        if self._rebalancer is not None:
            self._rebalancer.check_may_close("close()")
        self._close(commit=True)

    @_alone
    def _close(self, *, commit: bool) -> None:
        self._closing = True  # the listener may commit, also where a close that failed is repeated
        try:
            if self._group_positions is not None:
                self._group_positions.report(wait=True)
            if commit and self._auto_commit is not None and not self._closed:
                self._auto_commit.commit_at_end(self.commit, self._positions)
        finally:
            try:
                if self._rebalancer is not None:
                    self._rebalancer.close(self)  # again, if it was interrupted
            finally:
                self._drop_buffered()
                self._closed, self._closing = True, False

    # -- what is read ----------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Iterable[str] = (),
        pattern: str | re.Pattern[str] | None = None,
        listener: ConsumerRebalanceListener | None = None,
    ) -> None:
        """Read these topics, with the partitions that are added later.

        A consumer with a group shares them with the group's other members from its first poll on,
        and polls tell ``listener`` what comes and goes. Without a group it reads all of them. Of
        other topics it returns nothing from now on; a member has their partitions until a poll
        revokes them.

        Args:
            topics: their names.
            pattern: instead of names, a regular expression that must match whole names. New topics
                that match are found within ``metadata_max_age_ms``; there may be none yet. Kafka's
                internal topics are left out.
            listener: see :class:`ConsumerRebalanceListener`.

        Raises:
            UnknownTopicOrPartition: a topic that is named does not exist.
            InvalidOption: names and a pattern, or neither, are given; or it is not a pattern.
        """
        if isinstance(topics, str):
            topics = [topics]
        self._open()
        if not isinstance(topics, Iterable):
            raise InvalidOption(f"topics must be names of topics, not {topics!r:.200}")
        named = (topic if isinstance(topic, str) else check_topic(topic) for topic in topics)
        wanted = tuple(dict.fromkeys(named))
        if bool(wanted) is (pattern is not None):
            raise InvalidOption("subscribe() needs at least one topic, or else a pattern for them")
        found = None
        if pattern is not None:
            found = TopicPattern(self._logs, pattern, self._metadata_max_age_ms)
            wanted = found.look()
            found.looked()
        snapshot = take_snapshot(
            self._logs,
            wanted,
            self._isolation_level,
            leave_out_missing=pattern is not None,
            may_be_none=pattern is not None,
            rounds=1,
        )
        self._topics = wanted
        self._pattern = found
        self._subscribed = True
        self._recognise(snapshot)
        if self._group_id is None or self._membership is None:
            self._assign(self._all_partitions(snapshot))
            return
        # A member keeps its partitions until the rebalance takes them: its listener may commit
        # them, and they stay its own if it subscribes to their topics again before that. Those set
        # by assign() are not its share.
        dropped = [*self._assigned] if self._rebalancer is None else []
        self._rebalancer = self._rebalancer or Rebalancer(
            self._logs, self._group_id, self._membership, self._poll_wait.look_now
        )
        self._hand_over(dropped)
        self._drop(dropped)
        self._rebalancer.subscribe(wanted, listener)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, without sharing: it is not a member of its group then."""
        self._open()
        wanted = [TopicPartition(*where) for where in partitions]
        if not wanted:
            raise InvalidOption("assign() needs at least one partition")
        topics = tuple(dict.fromkeys(where.topic for where in wanted))
        snapshot = take_snapshot(self._logs, topics, self._isolation_level, rounds=1)
        for where in wanted:
            snapshot.check_partition(where)
        if self._rebalancer is not None:
            self._rebalancer.check_may_close("assign()")
            self._hand_over(self._assigned.keys())
            self._rebalancer.close(self, reason="assign()")
            self._rebalancer = None
        self._topics = topics
        self._pattern = None
        self._subscribed = False
        self._recognise(snapshot)
        self._assign(wanted)

    def unsubscribe(self) -> None:
        """Stop reading, and leave the group as :meth:`close` does: the listener is called.

        It may subscribe or be assigned partitions again; where no offset was committed, the reset
        policy holds. Raises IllegalState if the listener calls it.
        """
        self._open()
        if self._rebalancer is not None:
            self._rebalancer.check_may_close("unsubscribe()")
        try:
            self._hand_over(self._assigned.keys())
            if self._rebalancer is not None:
                self._rebalancer.close(self, reason="unsubscribe()")
        finally:
            self._rebalancer = self._pattern = None
            self._topics, self._subscribed = (), False
            self._drop([*self._assigned])

    def _assign(self, partitions: Sequence[TopicPartition]) -> None:
        self._drop_buffered()
        self._assigned = dict.fromkeys(partitions)
        self._positions = {w: at for w, at in self._positions.items() if w in self._assigned}
        if self._group_positions is not None:
            self._group_positions.keep(self._assigned.keys())
        self._paused &= set(self._assigned)

    def _take(self, partitions: Collection[TopicPartition]) -> None:
        """Read these too, which the group has given to this consumer."""
        self._drop_buffered()
        self._assigned |= dict.fromkeys(partitions)
        if self._pattern is not None:  # other members may have found recreated topics
            self._topics = tuple(dict.fromkeys([*self._topics, *(w.topic for w in partitions)]))

    def _hand_over(self, partitions: Collection[TopicPartition]) -> None:
        """Commit the positions of partitions that are about to be taken away, with auto commit."""
        if self._group_positions is not None:
            self._group_positions.finish()
        if self._auto_commit is not None:
            positions = self._positions
            self._auto_commit.commit_before(
                self.commit, {w: positions[w] for w in partitions if w in positions}
            )

    def _drop(self, partitions: Collection[TopicPartition]) -> None:
        """Stop reading these: they were taken away."""
        if self._auto_commit is not None:
            self._auto_commit.forget(partitions)
        self._reading.forget(partitions)
        self._assign([where for where in self._assigned if where not in {*partitions}])

    def _join_in(self) -> None:
        """Take part in the group: join it, or take part in a rebalance."""
        if self._rebalancer is not None:
            self._rebalancer.poll(self)

    def _join_if_new(self) -> None:
        """Take part in the group, if it has none of the topics' partitions yet."""
        if not any(where.topic in self._topics for where in self._assigned):
            self._join_in()

    def _take_part(self) -> None:
        """Take part in the group. Raises IllegalState: nothing is subscribed to or assigned."""
        if self._group_positions is not None:
            self._group_positions.report()
        self._join_in()
        if self._pattern is not None and self._pattern.is_due():
            self._drop_buffered()  # so that it looks
        elif not self._assigned and self._rebalancer is None and self._pattern is None:
            raise IllegalState("poll(): subscribe to a topic or assign partitions first")

    def subscription(self) -> list[str]:
        """The topics that it has subscribed to, or that its pattern has found; else none."""
        return [*self._topics] if self._subscribed else []

    def assignment(self) -> list[TopicPartition]:
        """The partitions that it reads. If it has not polled yet, it joins its group first."""
        self._open()
        self._join_if_new()
        return list(self._assigned)

    def pause(self, *partitions: TopicPartition) -> None:
        """Return no records of these partitions until they are resumed."""
        self._check_assigned(partitions)
        self._paused.update(partitions)
        self._drop_buffered()

    def resume(self, *partitions: TopicPartition) -> None:
        """Read these partitions again."""
        self._check_assigned(partitions)
        self._paused.difference_update(partitions)
        self._drop_buffered()

    def paused(self) -> list[TopicPartition]:
        """The partitions that are paused."""
        return sorted(self._paused)

    # -- polling ---------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[ConsumerRecord]:
        reading = self._reading
        take_one = partial(reading.take_records, 1)
        timeout_ms = 0 if self._stop_at_end else None
        while True:
            # Each so many records are a poll of their own, as in Kafka's clients.
            first: list[ConsumerRecord] = self._polled(take_one, [], timeout_ms)
            if not first:
                return
            yield first[0]
            records = reading.records
            for record in islice(records, self._max_poll_records - 1):
                if self._process != os.getpid():
                    self._begin_in_child()
                # Leaving the loop leaves the position behind the last record seen.
                reading.seen = record
                yield record
                if reading.records is not records:  # they were dropped: it was moved, say
                    break

    def poll(
        self, *unnamed: object, timeout_ms: int = 0, max_records: int | None = None
    ) -> list[ConsumerRecord]:
        """The next records; an empty list if none came in time.

        Args:
            unnamed: not allowed: a bare number could be meant as a time or as a count.
            timeout_ms: how long to wait for the first record, in milliseconds. With 0 it looks
                once. Otherwise it sees at once what this process writes, and what others write
                within ``fetch_max_wait_ms``.
            max_records: the most that it returns; ``max_poll_records`` if left out.

        Raises:
            UnknownTopicOrPartition: all topics were deleted, or an assigned partition is gone.
            NoOffsetForPartition: no committed offset, and ``auto_offset_reset`` is none.
            OffsetOutOfRange: the position is gone, and ``auto_offset_reset`` is none.
            Wakeup: another thread called :meth:`wakeup`.
        """
        if unnamed:
            raise _ambiguous("poll", unnamed[0], "max_records=...")
        limit = self._max_poll_records
        if max_records is not None:
            limit = check_whole_number(
                max_records, "max_records", InvalidOption, least=1, most=_MOST_RECORDS
            )
        take = partial(self._reading.take_records, limit)
        return self._polled(take, [], _check_timeout(timeout_ms))

    def poll_batches(
        self, *unnamed: object, timeout_ms: int = 0
    ) -> dict[TopicPartition, list[pa.RecordBatch]]:
        """The next records as Arrow, by partition; an empty dict if none came in time.

        The fast way: records do not become Python objects. Batches have the columns of
        :meth:`txnlog.Store.scan`; those of typed topics have the schema's columns, ``_offset``,
        ``_timestamp``, ``_headers`` and, if there is a key, ``_deleted``. They are as long as they
        were stored. Together they have at most ``fetch_max_bytes``, and those of one partition
        ``max_partition_fetch_bytes``; but a single batch may be larger. Afterwards the positions
        are behind all of them: :meth:`commit` without offsets commits everything returned.

        Arguments and errors are those of :meth:`poll`.
        """
        if unnamed:
            raise _ambiguous("poll_batches", unnamed[0], "fetch_max_bytes=... of the consumer")
        take = self._reading.take_batches
        return self._polled(take, {}, _check_timeout(timeout_ms), as_records=False)

    def wakeup(self) -> None:
        """Make the poll that waits, or the next one, raise Wakeup. May be called by any thread."""
        self._poll_wait.wake()

    @_alone
    def _polled(
        self,
        take: Callable[[], Taken],
        nothing: Taken,
        timeout_ms: int | None,
        *,
        as_records: bool = True,
    ) -> Taken:
        """The result of ``take`` from fetched records, or those that exist or arrive in time."""
        self._open()
        self._poll_wait.check()
        self._take_part()
        if self._auto_commit is not None and not self._auto_commit.commit_if_due(
            self.commit, self._positions, is_member=self._rebalancer is not None
        ):
            self._take_part()  # partitions are somebody else's by now
        if as_records is not self._as_records:
            self._drop_buffered()
            self._as_records = as_records
        self._reading.begin_poll()
        try:
            return self._take_left(take, nothing) or self._poll_wait.until_found(
                partial(self._look, take), nothing, timeout_ms, self._attend
            )
        except BaseException:
            # The caller has not got them, so they must come again.
            self._positions = self._returned()
            self._drop_buffered()
            raise

    def _returned(self) -> dict[TopicPartition, int]:
        """The positions before this poll, and where it has begun in what had none to read from."""
        before = self._reading.before_poll()
        return {where: at for where, at in before.items() if where in self._assigned}

    def _attend(self) -> float:
        """Do what is due while a poll waits: commits, and its part in the group.

        Returns when it is to be called again, in s.
        """
        pause_s = math.inf
        if self._auto_commit is not None and (pause_s := self._auto_commit.due_in_s()) <= 0:
            self._auto_commit.commit_if_due(
                self.commit, self._returned(), is_member=self._rebalancer is not None
            )
            pause_s = self._auto_commit.due_in_s()
        if self._rebalancer is not None:
            if self._rebalancer.keep_up():
                self._poll_wait.look_soon()  # a look takes part
            pause_s = min(pause_s, self._rebalancer.pause_s())
        return pause_s

    def _take_left(self, take: Callable[[], Taken], nothing: Taken) -> Taken:
        """The rest of the planned ranges."""
        try:
            return take()
        except OUTDATED:
            return nothing  # refreshing tells what is left

    def _look(self, take: Callable[[], Taken]) -> Taken:
        self._reading.before_poll()
        for _ in range(_PLANS - 1):
            pinned = self._refresh()
            with suppress(*OUTDATED):  # files may go even between pinning and reading
                self._begin(pinned)
                return take()
        self._begin(self._refresh())
        return take()

    def _holds_back(self, ranges: Iterable[SegmentRange]) -> bool:
        """Whether a poll had better wait for more: so few bytes are found, and not for too long."""
        now_s = self._logs.clock.monotonic_s()
        found_bytes = sum(part.size_bytes for part in ranges) if self._fetch.min_bytes > 1 else 1
        if self._stop_at_end or not 0 < found_bytes < self._fetch.min_bytes:
            self._held_back_since_s = None
            return False
        if self._held_back_since_s is None:
            self._held_back_since_s = now_s
        if (now_s - self._held_back_since_s) * 1000 < self._fetch.max_wait_ms:
            return True
        self._held_back_since_s = None
        return False

    # -- reading ---------------------------------------------------------------------------------

    def _refresh(self) -> tuple[Snapshot, list[TopicPartition]] | None:
        """Pin a new snapshot, and give the partitions that are to be read in it positions.

        Returns None if nothing has changed since all was read.
        """
        group: GroupState | None = None
        while True:
            if (
                self._group_positions is not None
                and not self._positions.keys() >= self._assigned.keys()
            ):
                # The group first: its committed offsets then lie inside the snapshot.
                group = self._group_positions.read()
            snapshot = self._snapshot()
            views = {topic: snapshot.view(topic) for topic in snapshot.topics}
            if (self._rebalancer and self._rebalancer.saw(self, self._topics, views.values())) or (
                self._pattern and self._finds_topics(self._pattern, views)
            ):
                group = None
                continue
            if group is None and self._have_been_read(views.values()):
                return None
            if self._subscribed and self._rebalancer is None:
                for where in self._all_partitions(snapshot):
                    self._assigned.setdefault(where)
            partitions = [where for where in self._assigned if where.topic in views]
            if self._rebalancer is not None:
                # What a topic made anew lacks, the rebalance that is under way takes away.
                partitions = [w for w in partitions if w.partition < len(views[w.topic].partitions)]
            if group is not None and self._rebalancer is not None:
                # A former owner's transaction is about to move them: the start is not decided yet.
                held = group.held().keys() - self._positions.keys()
                partitions = [where for where in partitions if where not in held]
            located = self._positions.keys() >= {*partitions}
            if group is not None or self._group_id is None or located:
                break
        for where in partitions:
            snapshot.check_partition(where)
        # A paused one stays where it is until it is resumed, even out of range.
        paused = self._paused & self._positions.keys()
        self._locate(snapshot, [where for where in partitions if where not in paused], group)
        return snapshot, partitions

    def _begin(self, pinned: tuple[Snapshot, list[TopicPartition]] | None) -> None:
        """Begin to read these partitions from their positions to the snapshot's ends."""
        if pinned is None:
            return
        snapshot, partitions = pinned
        ranges = self._plan(snapshot, partitions)
        if not self._holds_back(ranges):
            views = {topic: snapshot.view(topic) for topic in snapshot.topics}
            ends = {where: views[where.topic].end_offsets[where.partition] for where in partitions}
            self._reading.begin([*views.values()], ranges, ends, as_records=self._as_records)

    def _finds_topics(self, pattern: TopicPattern, views: Collection[str]) -> bool:
        """Look for topics, if it is time: add new ones, and drop deleted ones.

        Returns whether there are new ones. Deleted ones cause no rebalance of their own: the group
        is told with the next new ones. ``views`` are those just read.
        """
        named = () if self._rebalancer is None else self._rebalancer.named_topics()
        if not pattern.calls_for_look(self._topics, named):
            return False
        found = pattern.look(self._topics, named)
        come = [topic for topic in found if topic not in self._topics]
        if come and self._rebalancer is not None:
            self._rebalancer.change_topics(found)
        # The group was told of topics that it has not seen: only such ones may be forgotten.
        kept = [topic for topic in self._topics if topic in found or topic in views]
        self._topics = (*kept, *come)
        pattern.looked(named)
        return bool(come)

    def _have_been_read(self, views: Collection[TopicView]) -> bool:
        """Whether these views are the ones that were read last, so there is nothing new."""
        before = self._reading.views
        return len(views) == len(before) > 0 and all(map(operator.is_, views, before))

    def _plan(self, snapshot: Snapshot, partitions: Iterable[TopicPartition]) -> list[SegmentRange]:
        """The ranges to read of ``partitions``, each from its position, topic by topic."""
        wanted: dict[str, list[TopicPartition]] = {topic: [] for topic in snapshot.topics}
        for where in partitions:
            wanted[where.topic].append(where)
        ranges: list[SegmentRange] = []
        for topic, mine in wanted.items():
            ends = snapshot.end_offsets(topic)
            starts = dict(ends)
            for where in mine:
                if where not in self._paused:
                    # Beyond the end of this snapshot there is nothing yet.
                    starts[where.partition] = min(self._positions[where], ends[where.partition])
            found = snapshot.scan(topic, starts).ranges
            ranges += found
            # If only aborted data is left, it is skipped here.
            filled = {part.partition for part in found}
            for where in mine:
                if where.partition not in filled and where not in self._paused:
                    at = self._positions[where]
                    self._positions[where] = max(at, ends[where.partition])
        return ranges

    def _locate(
        self, snapshot: Snapshot, partitions: Sequence[TopicPartition], group: GroupState | None
    ) -> None:
        """Give every partition a valid position: its own, the group's, or a reset one.

        ``group`` must have been read before the snapshot was taken: an offset that was committed
        since can lie beyond the snapshot's end, where it would be taken for out of range.
        """
        views = {topic: snapshot.view(topic) for topic in {w.topic for w in partitions}}
        located: dict[TopicPartition, int] = {}
        for where in partitions:
            topic_id = self._topic_ids[where.topic]
            before = at = self._positions.get(where)
            first = self._first_partitions[topic_id]
            if at is None and group is not None and self._group_positions is not None:
                found = group.logged_position(*where, topic_id)
                self._group_positions.start_from(where, found)
                at = found.offset
                first = min(first, group.first_partitions(where.topic, topic_id) or first)
            start = self._start_positions.start(views[where.topic], where, at, first)
            if start != before:
                located[where] = start
        for where, start in located.items():
            self._reading.place(where, start)

    # -- positions -------------------------------------------------------------------------------

    def position(self, where: TopicPartition) -> int:
        """The offset of the next record to read in a partition.

        Raises ConcurrentTransactions while a former owner's transaction is about to move it.
        """
        self._check_assigned([where])
        if where not in self._positions:
            group = None if self._group_positions is None else self._group_positions.read()
            if group is not None and self._rebalancer is not None and where in group.held():
                raise ConcurrentTransactions(
                    f"{where} has no position yet: {group.held()[where]} of its former owner is "
                    "about to move it and is not decided yet; keep polling, and ask later"
                )
            snapshot = self._snapshot()
            snapshot.check_partition(where)
            self._locate(snapshot, [where], group)
        return self._positions[where]

    def positions(self) -> dict[TopicPartition, int]:
        """The offset of the next record to read, by partition; :meth:`commit` commits the same.

        They are behind what was returned, and behind records that are not shown: aborted or
        compacted ones. Partitions that have none yet are left out.
        """
        self._open()
        return dict(self._positions)

    def seek(self, where: TopicPartition, offset: int) -> None:
        """Go on reading at an offset; ``auto_offset_reset`` decides if it is not in the log.

        To go on after somebody else moved the group's offsets: ask :meth:`committed`, and seek to
        what it says (or anywhere, if the group has no offset). What is read from then on can be
        committed in a transaction again.
        """
        self._check_assigned([where])
        what = "the offset to seek to"
        check_whole_number(offset, what, InvalidOption, least=0, most=(1 << 63) - 1)
        if self._group_positions is not None:
            self._group_positions.begin_anew(where, offset)
        self._drop_buffered()
        self._reading.place(where, offset)

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Go on at the log start; in all assigned partitions if none are named."""
        chosen = partitions or tuple(self.assignment())
        for where, offset in self.beginning_offsets(chosen).items():
            self.seek(where, offset)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Go on at the end; in all assigned partitions if none are named."""
        chosen = partitions or tuple(self.assignment())
        for where, offset in self.end_offsets(chosen).items():
            self.seek(where, offset)

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The log start offset of each partition."""
        wanted = list(partitions)
        snapshot = self._snapshot_of(wanted)
        begins = {topic: snapshot.beginning_offsets(topic) for topic in snapshot.topics}
        return {w: begins[w.topic][w.partition] for w in wanted}

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The end of each partition: its last stable offset under read_committed."""
        wanted = list(partitions)
        snapshot = self._snapshot_of(wanted)
        committed = self._isolation_level == "read_committed"
        ends = {}
        for where in wanted:
            view = snapshot.view(where.topic)
            found = view.last_stable_offsets if committed else view.log_end_offsets
            ends[where] = found[where.partition]
        return ends

    def highwater(self, where: TopicPartition) -> int | None:
        """The end of a partition, undecided records included, as it was seen last.

        Asks the storage for nothing; None if it has not been looked at since the consumer was
        assigned partitions or moved.
        """
        self._open()
        if where not in self._assigned:
            raise IllegalState(f"{where} is not assigned to this consumer")
        return self._end_seen(where)

    def _end_seen(self, where: TopicPartition) -> int | None:
        for view in self._reading.views:
            if view.topic == where.topic and where.partition < len(view.log_end_offsets):
                return view.log_end_offsets[where.partition]
        return None  # also of a partition that was added since

    def offsets_for_times(
        self, timestamps_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after a time, by partition; None where there is none."""
        snapshot = self._snapshot_of(list(timestamps_ms))
        return {
            where: snapshot.offset_for_time(where, timestamp_ms)
            for where, timestamp_ms in timestamps_ms.items()
        }

    # -- the group -------------------------------------------------------------------------------

    def commit(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
        metadata: str = "",
    ) -> None:
        """Commit offsets for the group: the positions, if none are given.

        Args:
            offsets: the next offset to read, by partition, each with or without metadata.
            metadata: the metadata for those without.

        Raises:
            InvalidOption, OffsetMetadataTooLarge: see the message.
            UnknownTopicOrPartition: one of the topics or partitions does not exist.
            CommitFailed: a partition was given to somebody else; the subclasses tell more.
            GroupNotEmpty: the group has members, and this consumer is not one of them: it has not
                polled yet, or has its partitions by ``assign``.
            ConcurrentTransactions: an undecided transaction is about to move one of them.
        """
        group = self._group()
        group.report(wait=True)  # first: who is told may seek
        given = self._to_commit(offsets)
        if given:
            with self._meter.timed("commit"):
                group.commit(given, metadata, self._committer())
        if self._auto_commit is not None:
            self._auto_commit.forget(given)

    def commit_async(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
        metadata: str = "",
        callback: CommitCallback | None = None,
    ) -> None:
        """Commit offsets in a thread, as :meth:`commit` does, and go on meanwhile.

        One at a time: the next commit waits for it, as does everything that asks what the group
        has. What became of it is told at a later poll or commit, or by :meth:`close`, in the thread
        that calls these: to ``callback``, or without one an error is logged.

        Args:
            offsets: the next offset to read, by partition; the positions if left out.
            metadata: the metadata for those without.
            callback: called with the offsets, and with the error or None.

        Raises:
            InvalidOption, OffsetMetadataTooLarge, UnknownTopicOrPartition: see the message.
        """
        group = self._group()
        if callback is not None and not callable(callback):
            raise InvalidOption(f"callback must be a function, not {shorten(callback)}")
        group.report(wait=True)
        given = dict(self._to_commit(offsets))
        self._meter.add("async_commit")
        group.commit_async(given, metadata, self._committer(), callback)
        if self._auto_commit is not None:
            self._auto_commit.forget(given)

    def committed(self, where: TopicPartition) -> CommittedOffset | None:
        """The group's committed offset of a partition, with its metadata; None if there is none."""
        return self._group().committed(where)

    def group_metadata(self) -> GroupMetadata:
        """For ``send_offsets_to_transaction``: the group, and where this consumer began.

        If it is a member of the group, its id and generation are part of it: offsets of partitions
        that others have been given in the meantime are refused.
        """
        positions = self._group()
        read: Iterable[TopicPartition] = self._assigned
        if self._rebalancer is not None and not self._rebalancer.has_joined:
            read = self._all_partitions(self._snapshot())
        return positions.metadata(read, self._committer())

    # -- monitoring ------------------------------------------------------------------------------

    def metrics(self) -> list[Metric]:
        """What it has done since it was made, as numbers for monitoring.

        ``txnlog_consumer_fetch_total`` and ``_fetch_seconds_total`` are of requests for the next
        batch, found or not; ``_records_total`` and ``_bytes_total`` what was in them.
        ``_commit_total``, ``_commit_error_total`` and ``_commit_seconds_total`` are of commits that
        it made itself, ``_async_commit_total`` of those in a thread. ``_records_lag`` is how far
        each partition's position lies behind the end that was seen last. What has not happened is
        left out. Asks the storage for nothing. May be called by any thread.
        """
        self._open()
        found = self._meter.metrics()
        for where, at in self._reading.peek().items():
            if (end := self._end_seen(where)) is not None:
                labels = {"topic": where.topic, "partition": str(where.partition)}
                found.append(Metric("txnlog_consumer_records_lag", labels, max(end - at, 0)))
        return found

    # -- helpers ---------------------------------------------------------------------------------

    @property
    def _positions(self) -> dict[TopicPartition, int]:
        return self._reading.positions

    @_positions.setter
    def _positions(self, positions: dict[TopicPartition, int]) -> None:
        self._reading.positions = positions

    def _begin_in_child(self) -> None:
        """A fork has copied it: who was in a call, and what was read, are the parent's."""
        self._process, self._in_use, self._user = os.getpid(), threading.RLock(), None
        if self._auto_commit is not None:
            self._auto_commit.leave(self._positions)

    def _open(self) -> None:
        if self._closed:
            raise IllegalState("the consumer is closed")

    def _drop_buffered(self) -> None:
        self._reading.drop()
        self._poll_wait.look_soon()

    def _group(self) -> GroupPositions:
        if not self._closing:
            self._open()
        if self._group_positions is None:
            raise IllegalState("this consumer has no group_id, so it has no committed offsets")
        return self._group_positions

    def _committer(self) -> Committer | None:
        """The committing member; None if it is not a member of its group."""
        return None if self._rebalancer is None else self._rebalancer.committer

    def _to_commit(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None
    ) -> Mapping[TopicPartition, int | OffsetAndMetadata]:
        """The offsets to commit: ``offsets``, or the positions if it is None.

        In a call of a rebalance listener, offsets of deleted topics are left out. The listener may
        have noted what it read of them, and its commit would be refused at each poll.
        """
        if offsets is None:
            return self._positions
        if not self._deleted or self._rebalancer is None or not self._rebalancer.is_calling:
            return offsets
        gone = sorted({topic for topic, _ in offsets} & self._deleted)
        if gone:
            _logger.warning("offsets of %s were not committed: deleted", ", ".join(gone))
        return {where: at for where, at in offsets.items() if where[0] not in self._deleted}

    def _check_assigned(self, partitions: Iterable[TopicPartition]) -> None:
        self._open()
        self._join_if_new()
        for where in partitions:
            if where not in self._assigned:
                raise IllegalState(f"{where} is not assigned to this consumer")

    def _snapshot(self) -> Snapshot:
        """Pin the remaining topics."""
        snapshot = take_snapshot(
            self._logs,
            self._topics,
            self._isolation_level,
            leave_out_missing=True,
            may_be_none=self._pattern is not None,
            rounds=1,
        )
        self._recognise(snapshot)
        return snapshot

    def _recognise(self, snapshot: Snapshot) -> None:
        """Forget the state of topics that were deleted, even if they were recreated."""
        found = {topic: snapshot.view(topic).topic_id for topic in snapshot.topics}
        for topic in self._topics:
            known = self._topic_ids.get(topic)
            if known is not None and known != found.get(topic):
                _logger.warning(
                    "topic %r was deleted%s; its positions are forgotten",
                    topic,
                    " and recreated" if topic in found else "",
                )
                self._forget(topic)
        self._topic_ids.update(found)
        self._deleted -= found.keys()
        for topic, topic_id in found.items():
            if topic_id not in self._first_partitions:
                self._first_partitions[topic_id] = len(snapshot.partitions(topic))

    def _forget(self, topic: str) -> None:
        self._drop_buffered()
        if self._rebalancer is not None:  # its listener may commit there
            self._deleted.add(topic)
        self._first_partitions.pop(self._topic_ids.pop(topic), None)
        gone = [where for where in self._assigned if where.topic == topic]
        if self._auto_commit is not None:
            self._auto_commit.forget(gone)
        self._reading.forget(gone)
        for where in gone:
            if self._group_positions is not None:
                self._group_positions.forget(where)
            if self._subscribed and self._rebalancer is None:
                del self._assigned[where]
                self._paused.discard(where)

    def _snapshot_of(self, partitions: Sequence[TopicPartition]) -> Snapshot:
        topics = list(dict.fromkeys(where.topic for where in partitions))
        snapshot = take_snapshot(self._logs, topics, self._isolation_level, rounds=1)
        for where in partitions:
            snapshot.check_partition(where)
        return snapshot

    def _all_partitions(self, snapshot: Snapshot) -> list[TopicPartition]:
        return [
            TopicPartition(topic, number)
            for topic in snapshot.topics
            for number in snapshot.partitions(topic)
        ]


def _check_timeout(timeout_ms: int) -> int:
    if isinstance(timeout_ms, float):
        raise InvalidOption(
            f"timeout_ms is {timeout_ms!r}; it is a whole number of milliseconds: for so many "
            f"seconds give timeout_ms={timeout_ms * 1000:.0f}"
        )
    return check_whole_number(timeout_ms, "timeout_ms", InvalidOption, least=0)


def _ambiguous(call: str, given: object, count: str) -> InvalidOption:
    return InvalidOption(
        f"{call}({given!r}): is that a time or a count? Say {call}(timeout_ms=...), in "
        f"milliseconds, or {count}"
    )
