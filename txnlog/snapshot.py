"""Snapshots: topics pinned at one consistent cut, from which any number of scans can be made."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from txnlog.errors import ConcurrentTransactions, InvalidOption, UnknownTopicOrPartition
from txnlog.logs import Logs
from txnlog.names import TopicPartition
from txnlog.scan import Offsets, Scan, first_at_or_after, plan_scan
from txnlog.state.cut import Part, consistent_cut
from txnlog.state.topic import Partition, RecentEntry
from txnlog.state.transaction import TransactionKey
from txnlog.topic_log import TopicLog

IsolationLevel = Literal["read_committed", "read_uncommitted"]
ISOLATION_LEVELS: tuple[IsolationLevel, ...] = ("read_committed", "read_uncommitted")


@dataclass(frozen=True, slots=True)
class OffsetAndTimestamp:
    """The first offset at or after a time, and the timestamp (ms) of its record."""

    offset: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class TopicView:
    """One topic as a snapshot has pinned it.

    ``partitions`` end at the snapshot's cut; ``last_stable_offsets`` and ``log_end_offsets``
    are what the log itself had;
    ``hidden_entries`` are those whose data was aborted (none under read_uncommitted).
    """

    topic: str
    topic_id: str
    config: Mapping[str, str]
    partitions: tuple[Partition, ...]
    last_stable_offsets: tuple[int, ...]
    log_end_offsets: tuple[int, ...]
    hidden_entries: frozenset[int]


class Snapshot:
    """Topics at one consistent cut: of each transaction, all or nothing is in it.

    What it shows never changes; it holds the places of segments, and reads no record itself.
    """

    def __init__(
        self, logs: Logs, views: Mapping[str, TopicView], isolation_level: IsolationLevel
    ) -> None:
        self._logs = logs
        self._views = dict(views)
        self.isolation_level = isolation_level

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
            hides_aborted=self.isolation_level == "read_committed",
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


def take_snapshot(
    logs: Logs,
    topics: Sequence[str],
    isolation_level: IsolationLevel = "read_committed",
    *,
    leave_out_missing: bool = False,
    refreshed: bool = False,
) -> Snapshot:
    """Read every topic once, list each again, and cut (invariant S1).

    The second listing finds the transactions that reached a topic only after it was read. It is
    left out for a single topic whose listing has decided all: it cannot disagree with itself.

    Args:
        logs: of the store.
        topics: their names.
        isolation_level: whether open and aborted transactions show.
        leave_out_missing: go on with the other topics where some do not exist.
        refreshed: the topics' logs were refreshed just now, so that this is their first reading.

    Raises:
        UnknownTopicOrPartition: one of the topics does not exist, or none of them.
        ConcurrentTransactions: a cut would have to fall so far back that it could tear.
    """
    names = list(dict.fromkeys(topics))
    if not names:
        raise InvalidOption("a snapshot needs at least one topic")
    opened = [logs.topic(name) for name in names]
    if not refreshed:
        logs.storage.gather([log.refresh for log in opened])
    if isolation_level == "read_committed":
        logs.settlement.settle(opened)
    views: dict[str, TopicView] = {}
    missing: list[UnknownTopicOrPartition] = []
    once = len(opened) == 1
    for log in opened:
        try:
            with log.lock:
                views[log.name] = _pin(log, isolation_level)
                once = once and not log.ahead
        except UnknownTopicOrPartition as error:
            missing.append(error)
    if missing and not (leave_out_missing and views):
        raise missing[0]
    if isolation_level == "read_uncommitted":
        return Snapshot(logs, views, isolation_level)
    opened = [log for log in opened if log.name in views]
    if not once:
        logs.storage.gather([log.refresh for log in opened])
    if any(_topic_id(log) != views[log.name].topic_id for log in opened):
        # Deleted since it was pinned: what its log says now is of another topic, or of none.
        return take_snapshot(logs, names, isolation_level, leave_out_missing=leave_out_missing)
    parts = [part for log in opened for part in _parts(log)]
    cut = consistent_cut(
        {
            TopicPartition(view.topic, number): partition.end_offset
            for view in views.values()
            for number, partition in enumerate(view.partitions)
        },
        parts,
    )
    _check_cut(opened, cut, parts)
    for where, end in cut.items():
        partition = views[where.topic].partitions[where.partition]
        partition.end_offset = max(end, partition.log_start_offset)
    return Snapshot(logs, views, isolation_level)


def _pin(log: TopicLog, isolation_level: IsolationLevel) -> TopicView:
    """Copy what a reader may see of a topic at this moment, each partition up to its own end."""
    with log.reading() as state:
        state.check_exists(log.name)
        assert state.topic_id is not None
        committed = isolation_level == "read_committed"
        stable = state.last_stable_offsets()
        log_ends = [partition.end_offset for partition in state.partitions]
        return TopicView(
            topic=log.name,
            topic_id=state.topic_id,
            config=dict(state.config),
            partitions=tuple(
                Partition(partition.log_start_offset, end, list(partition.segments))
                for partition, end in zip(
                    state.partitions, stable if committed else log_ends, strict=True
                )
            ),
            last_stable_offsets=tuple(stable),
            log_end_offsets=tuple(log_ends),
            hidden_entries=frozenset(state.aborted) if committed else frozenset(),
        )


def _topic_id(log: TopicLog) -> str | None:
    with log.reading() as state:
        return state.topic_id


def _parts(log: TopicLog) -> list[Part]:
    """The appends of a topic that a cut may have to fall before; those aborted are nobody's."""
    with log.reading() as state:
        aborted = set(state.aborted)
        return [
            Part(
                _unit(log, entry),
                {TopicPartition(log.name, p): offset for p, offset in entry.first_offsets.items()},
            )
            for entry in state.recent
            if entry.number not in aborted
        ]


def _check_cut(
    logs: Sequence[TopicLog], cut: Mapping[TopicPartition, int], parts: Sequence[Part]
) -> None:
    """Raise unless all appends that this cut hides, and what belongs to them, were kept apart."""
    hidden = {
        part.unit
        for part in parts
        for where, offset in part.first_offsets.items()
        if where in cut and offset >= cut[where]
    }
    for log in logs:
        with log.reading() as state:
            torn = any(
                isinstance(unit, TransactionKey)
                and state.let_go.get(unit.producer_id, -1) >= unit.number
                for unit in hidden
            )
            torn = torn or any(
                max(cut[where], partition.log_start_offset) < partition.cut_floor
                for number, partition in enumerate(state.partitions)
                if (where := TopicPartition(log.name, number)) in cut
            )
        if torn:
            waiting = sorted({str(ref) for other in logs for ref in other.undecided().values()})
            raise ConcurrentTransactions(
                f"no consistent cut of {', '.join(other.name for other in logs)}: transactions lie "
                f"behind open ones, and topic {log.name!r} has let go of where they began; read "
                f"again when what is open has ended: {', '.join(waiting) or 'nothing any more'}"
            )


def _unit(log: TopicLog, entry: RecentEntry) -> Hashable:
    """What becomes visible together with this append: its transaction, or it alone."""
    return entry.transaction.key if entry.transaction else (log.name, entry.number)
