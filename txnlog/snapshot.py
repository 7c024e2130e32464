"""Snapshots: topics pinned at one consistent cut, from which any number of scans can be made."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from txnlog.errors import ConcurrentTransactions, InvalidOption, UnknownTopicOrPartition
from txnlog.log.logs import SKEW_MS, Logs
from txnlog.log.topic_log import TopicLog
from txnlog.names import TopicPartition
from txnlog.scan import Offsets, Scan, first_at_or_after, plan_scan
from txnlog.state.cut import Part, consistent_cut
from txnlog.state.topic import Partition, RecentEntry, TopicState
from txnlog.state.transaction import TransactionKey

IsolationLevel = Literal["read_committed", "snapshot", "read_uncommitted"]
ISOLATION_LEVELS: tuple[IsolationLevel, ...] = ("read_committed", "snapshot", "read_uncommitted")
"""``read_committed``: what lies before the first undecided record of each partition. ``snapshot``:
every committed transaction, whole, wherever undecided ones lie. ``read_uncommitted``: all."""


_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class OffsetAndTimestamp:
    """The first offset at or after a time, and the timestamp (ms) of its record."""

    offset: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class TopicView:
    """One topic as a snapshot has pinned it.

    ``partitions`` end at the snapshot's cut; ``last_stable_offsets`` and ``log_end_offsets``
    are what the log itself had; ``hidden_entries`` are those whose data does not show: it was
    aborted, or (at level ``snapshot``) is not committed yet.
    """

    topic: str
    topic_id: str
    config: Mapping[str, str]
    partitions: tuple[Partition, ...]
    last_stable_offsets: tuple[int, ...]
    log_end_offsets: tuple[int, ...]
    hidden_entries: frozenset[int]


class Snapshot:
    """Topics as they were at one time. What it shows never changes.

    It holds the places of segments, and reads no record itself. ``is_atomic`` tells whether of
    each transaction all or nothing is in it. That holds at level ``snapshot``, and at level
    ``read_committed`` unless transactions overlap so long that no such cut is fresh enough: then
    each partition shows what lies before its own last stable offset, as in Kafka.
    """

    def __init__(
        self,
        logs: Logs,
        views: Mapping[str, TopicView],
        isolation_level: IsolationLevel,
        *,
        is_atomic: bool,
    ) -> None:
        self._logs = logs
        self._views = dict(views)
        self.isolation_level = isolation_level
        self.is_atomic = is_atomic

    @property
    def topics(self) -> list[str]:
        """The names of the topics, in the order they were asked for."""
        return list(self._views)

    def view(self, topic: str) -> TopicView:
        """One pinned topic. Raises UnknownTopicOrPartition if the snapshot does not have it."""
        try:
            return self._views[topic]
        except KeyError:
            raise UnknownTopicOrPartition(
                f"topic {topic!r} is not in this snapshot of {', '.join(self._views)}"
            ) from None

    def partitions(self, topic: str) -> list[int]:
        """The numbers of the topic's partitions."""
        return list(range(len(self.view(topic).partitions)))

    def check_partition(self, where: TopicPartition) -> None:
        """Raise UnknownTopicOrPartition unless the snapshot has this partition."""
        known = len(self.view(where.topic).partitions)
        if not 0 <= where.partition < known:
            raise UnknownTopicOrPartition(
                f"topic {where.topic!r} has no partition {where.partition}; it has {known}, "
                "numbered from 0. If it was deleted and made anew, subscribe or assign again"
            )

    def beginning_offsets(self, topic: str) -> dict[int, int]:
        """The log start offset of each partition."""
        return {p: part.log_start_offset for p, part in enumerate(self.view(topic).partitions)}

    def end_offsets(self, topic: str) -> dict[int, int]:
        """Where the snapshot ends in each partition: the offset after its last record."""
        return {p: part.end_offset for p, part in enumerate(self.view(topic).partitions)}

    def scan(
        self,
        topic: str,
        starting_offsets: Offsets = None,
        ending_offsets: Offsets = None,
        columns: Sequence[str] | None = None,
    ) -> Scan:
        """Plan a scan of one topic within this snapshot; see :meth:`txnlog.Store.scan`."""
        view = self.view(topic)
        return plan_scan(
            self._logs.storage,
            topic,
            view.topic_id,
            view.config,
            view.partitions,
            view.hidden_entries,
            starting_offsets,
            ending_offsets,
            columns,
            hides_aborted=self.isolation_level != "read_uncommitted",
        )

    def offset_for_time(
        self, where: TopicPartition, timestamp_ms: int
    ) -> OffsetAndTimestamp | None:
        """The first record of a partition at or after a time; None if there is none.

        Reads only segments whose newest record is not older.
        """
        if isinstance(timestamp_ms, bool) or not isinstance(timestamp_ms, int):
            raise InvalidOption(f"a time is milliseconds since the epoch, not {timestamp_ms!r}")
        for part in self.scan(where.topic).ranges:
            if part.partition == where.partition and part.segment.max_timestamp_ms >= timestamp_ms:
                found = first_at_or_after(self._logs.storage, part, timestamp_ms)
                if found is not None:
                    return OffsetAndTimestamp(*found)
        return None


def check_isolation_level(isolation_level: str) -> IsolationLevel:
    """Return the level if there is such a one, else raise InvalidOption."""
    for level in ISOLATION_LEVELS:
        if isolation_level == level:
            return level
    raise InvalidOption(
        f"isolation_level {isolation_level!r} is not one of {', '.join(ISOLATION_LEVELS)}"
    )


def check_reading_on(isolation_level: str) -> IsolationLevel:
    """The same for whoever keeps offsets to read on from. Raises InvalidOption."""
    level = check_isolation_level(isolation_level)
    if level == "snapshot":
        raise InvalidOption(
            "isolation_level 'snapshot' is for scans and snapshots, not for reading on from "
            "offsets: it leaves out what is undecided wherever that lies, so what is committed "
            "later would be passed over. Use read_committed"
        )
    return level


def take_snapshot(
    logs: Logs,
    topics: Sequence[str],
    isolation_level: IsolationLevel = "read_committed",
    *,
    leave_out_missing: bool = False,
    refreshed: bool = False,
    attempts: int = _ATTEMPTS,
) -> Snapshot:
    """Read every topic once, list each again, and leave out what is not whole (invariant S1).

    A listing is not one instant, and several are not one either. The second one finds what belongs
    to a transaction that the first has shown in part. It is left out for a single topic whose
    listing has decided nothing: what it shows was there before it began, or is not decided.

    Args:
        logs: of the store.
        topics: their names.
        isolation_level: which transactions show.
        leave_out_missing: go on with the other topics where some do not exist.
        refreshed: the topics' logs were refreshed just now, so that this is their first reading.
        attempts: how often to try at level ``snapshot``.

    Raises:
        UnknownTopicOrPartition: one of the topics does not exist, or none of them.
        ConcurrentTransactions: at level ``snapshot``, if it cannot be told what is whole.
    """
    names = list(dict.fromkeys(topics))
    if not names:
        raise InvalidOption("a snapshot needs at least one topic")
    opened = [logs.topic(name) for name in names]
    if not refreshed:
        logs.storage.gather([log.refresh for log in opened])
    if isolation_level != "read_uncommitted":
        logs.settlement.settle(opened)
    views: dict[str, TopicView] = {}
    first = _FirstReading()
    missing: list[UnknownTopicOrPartition] = []
    once = len(opened) == 1
    for log in opened:
        try:
            with log.lock:
                views[log.name] = _pin(log, isolation_level)
                first.add(log, with_outcomes=isolation_level == "snapshot")
                once = once and not log.ahead
        except UnknownTopicOrPartition as error:
            missing.append(error)
    if missing and not (leave_out_missing and views):
        raise missing[0]
    if isolation_level == "read_uncommitted":
        return Snapshot(logs, views, isolation_level, is_atomic=False)
    opened = [log for log in opened if log.name in views]
    if not once:
        logs.storage.gather([log.refresh for log in opened])
    if any(_topic_id(log) != views[log.name].topic_id for log in opened):
        # Deleted since it was pinned: what its log says now is of another topic, or of none.
        return take_snapshot(logs, names, isolation_level, leave_out_missing=leave_out_missing)
    if isolation_level == "snapshot":
        logs.settlement.settle([log for log in opened if first.finds_part(log)])
        whole = {log.name: first.pin_whole(log) for log in opened}
        if (
            any(map(first.finds_part, opened))
            or any(map(first.missed, opened))
            or not _is_kept_apart(logs, opened, first.left_out_ms)
        ):
            # We stood still between the readings for so long that what came meanwhile is not kept
            # apart any more, or an id's log could not be read.
            return _again(logs, names, leave_out_missing=leave_out_missing, attempts=attempts)
        return Snapshot(logs, whole, isolation_level, is_atomic=True)
    # Of a topic that was read once and has nothing undecided there is nothing to cut.
    is_atomic = (once and _is_stable(views[opened[0].name])) or (
        not any(map(first.missed, opened)) and _cut(logs, opened, views)
    )
    return Snapshot(logs, views, isolation_level, is_atomic=is_atomic)


def _again(
    logs: Logs, topics: Sequence[str], *, leave_out_missing: bool, attempts: int
) -> Snapshot:
    if attempts <= 1:
        raise ConcurrentTransactions(
            f"what {', '.join(topics)} hold changed so fast, or was read so slowly, that nobody "
            "can tell which transactions are whole: read again, or use read_committed"
        )
    return take_snapshot(
        logs, topics, "snapshot", leave_out_missing=leave_out_missing, attempts=attempts - 1
    )


def _pin(log: TopicLog, isolation_level: IsolationLevel) -> TopicView:
    """Copy what a reader may see of a topic at this moment, each partition up to its own end."""
    with log.reading() as state:
        committed = isolation_level != "read_uncommitted"
        hidden = frozenset(state.aborted) if committed else frozenset()
        return _view(log.name, state, hidden, to_stable_offsets=committed)


def _view(
    topic: str, state: TopicState, hidden_entries: frozenset[int], *, to_stable_offsets: bool
) -> TopicView:
    state.check_exists(topic)
    assert state.topic_id is not None
    stable = state.last_stable_offsets()
    log_ends = [partition.end_offset for partition in state.partitions]
    return TopicView(
        topic=topic,
        topic_id=state.topic_id,
        config=dict(state.config),
        partitions=tuple(
            Partition(partition.log_start_offset, end, list(partition.segments))
            for partition, end in zip(
                state.partitions, stable if to_stable_offsets else log_ends, strict=True
            )
        ),
        last_stable_offsets=tuple(stable),
        log_end_offsets=tuple(log_ends),
        hidden_entries=hidden_entries,
    )


def _is_stable(view: TopicView) -> bool:
    return view.last_stable_offsets == view.log_end_offsets


def _topic_id(log: TopicLog) -> str | None:
    with log.reading() as state:
        return state.topic_id


# -- what two readings tell together ------------------------------------------------------------


class _FirstReading:
    """What was known when the topics were read first.

    What was committed then had placed all its entries, so the second reading shows it whole. What
    was decided since may be there in part, and is left out at level ``snapshot``.
    """

    def __init__(self) -> None:
        self._undecided: set[TransactionKey] = set()
        self._committed: set[TransactionKey] = set()
        self._next_entries: dict[str, int] = {}
        self.left_out_ms: list[int] = []
        """The times of the appends that do not show because they are not whole."""

    def add(self, log: TopicLog, *, with_outcomes: bool) -> None:
        """Take note of what is known of one topic."""
        with log.reading() as state:
            self._next_entries[log.name] = state.next_entry
            if not with_outcomes:
                return
            self._undecided |= {ref.key for ref in state.undecided.values()}
            unseen = {*state.undecided, *state.aborted}
            self._committed |= {
                entry.transaction.key
                for entry in state.recent
                if entry.transaction is not None and entry.number not in unseen
            }

    def missed(self, log: TopicLog) -> bool:
        """True if something has come since that is not kept apart any more.

        We stood still for long: nobody knows what else belongs to it.
        """
        with log.reading() as state:
            return state.let_go_entry >= self._next_entries[log.name]

    def finds_part(self, log: TopicLog) -> bool:
        """True if an entry is undecided whose transaction is known to be committed."""
        return any(ref.key in self._committed for ref in log.undecided().values())

    def pin_whole(self, log: TopicLog) -> TopicView:
        """Copy what a topic holds now, without what was not committed at the first reading."""
        with log.reading() as state:
            new = self._next_entries[log.name]
            unfinished = [
                entry
                for entry in state.recent
                if entry.transaction is not None
                and (
                    entry.transaction.key in self._undecided
                    or (entry.number >= new and entry.transaction.key not in self._committed)
                )
            ]
            # What is undecided still shows nowhere.
            self.left_out_ms += [e.at_ms for e in unfinished if e.number not in state.undecided]
            hidden = {*state.aborted, *state.undecided, *(entry.number for entry in unfinished)}
            return _view(log.name, state, frozenset(hidden), to_stable_offsets=False)


# -- a prefix of each partition: isolation level "read_committed" ---------------------------------


def _cut(logs: Logs, opened: Sequence[TopicLog], views: Mapping[str, TopicView]) -> bool:
    """Cut the views so that each transaction shows whole or not at all; True if that can be had.

    Otherwise each partition is left as it is, up to its last stable offset.
    """
    ends = {
        TopicPartition(view.topic, number): partition.end_offset
        for view in views.values()
        for number, partition in enumerate(view.partitions)
    }
    parts = [part for log in opened for part in _parts(log)]
    cut = consistent_cut(ends, parts)
    hidden = (p for p in parts if isinstance(p.unit, TransactionKey) and p.reaches(cut))
    if not _is_kept_apart(logs, opened, (part.at_ms for part in hidden)):
        return False
    if not _is_fresh(logs, opened, parts, ends, cut):
        return False
    for where, end in cut.items():
        partition = views[where.topic].partitions[where.partition]
        partition.end_offset = max(end, partition.log_start_offset)
    return True


def _parts(log: TopicLog) -> list[Part]:
    """The appends of a topic that a cut may have to fall before; those aborted are nobody's."""
    with log.reading() as state:
        aborted = set(state.aborted)
        return [
            Part(
                _unit(log, entry),
                {TopicPartition(log.name, p): offset for p, offset in entry.first_offsets.items()},
                at_ms,
            )
            for entry, at_ms in zip(state.recent, _probable_times(state), strict=True)
            if entry.number not in aborted
        ]


def _probable_times(state: TopicState) -> list[int]:
    """When the recent appends were made, as far as one can tell with clocks that are wrong.

    One was not made before the ones before it, nor after the ones after it: of their times and its
    own the middle one is taken, so no single clock can be far off.
    """
    times = [entry.at_ms for entry in state.recent]
    before_all_ms = max(state.created_at_ms, state.kept_since_ms)
    latest_before = accumulate(times[:-1], max, initial=before_all_ms)
    earliest_after = [*[*accumulate(reversed(times), min)][-2::-1], *times[-1:]]
    return [sorted(three)[1] for three in zip(latest_before, times, earliest_after, strict=False)]


def _is_kept_apart(logs: Logs, opened: Sequence[TopicLog], at_ms: Iterable[int]) -> bool:
    """True if all that belongs to transactions with appends of these times is kept apart still.

    Else one of their appends might show while others do not (invariant L6).
    """
    kept_since_ms = -1
    for log in opened:
        with log.reading() as state:
            kept_since_ms = max(kept_since_ms, state.kept_since_ms)
    longest_ms = logs.config.transaction_max_timeout_ms + SKEW_MS
    return kept_since_ms < 0 or all(time - longest_ms > kept_since_ms for time in at_ms)


def _is_fresh(
    logs: Logs,
    opened: Sequence[TopicLog],
    parts: Sequence[Part],
    ends: Mapping[TopicPartition, int],
    cut: Mapping[TopicPartition, int],
) -> bool:
    """True unless the cut hides what was there long before the oldest transaction that is open.

    Where each transaction overlaps the next one, it could fall back behind all of them.
    """
    lost_ms = [part.at_ms for part in parts if part.reaches(cut) and not part.reaches(ends)]
    if not lost_ms:
        return True
    beyond = {part.unit for part in parts if part.reaches(ends)}
    began_ms: dict[Hashable, int] = {}
    for part in parts:
        if part.unit in beyond:
            began_ms[part.unit] = min(part.at_ms, began_ms.get(part.unit, part.at_ms))
    undecided = {ref.key for log in opened for ref in log.undecided().values()}
    timeouts_ms = {key: logs.settlement.timeout_ms(key) for key in undecided if key in began_ms}
    # Those that have come since the topics were settled are younger.
    known = [
        (began_ms[key], at_most) for key, at_most in timeouts_ms.items() if at_most is not None
    ]
    if not known:
        longest_ms = logs.config.transaction_max_timeout_ms
        known = [(at_ms, longest_ms) for at_ms in began_ms.values()]
    oldest_ms, timeout_ms = min(known)
    return min(lost_ms) >= oldest_ms - timeout_ms


def _unit(log: TopicLog, entry: RecentEntry) -> Hashable:
    """What becomes visible together with this append: its transaction, or it alone."""
    return entry.transaction.key if entry.transaction else (log.name, entry.number)
