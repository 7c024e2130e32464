"""The consistent cut of several topics: each transaction lies before it in whole or not at all.

A reader of several topics compares what it knew of them at one reading with the next one, and looks
up which records young transactions have consumed: for snapshots of topics that others write to all
the while. What one reading lacks came after the last round of readings had begun; so what the round
before knew as committed rests on none of it, and only younger transactions are looked up.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TypeAlias

from txnlog.errors import CorruptEntry
from txnlog.log.open_logs import SKEW_MS, Logs
from txnlog.log.topic_log import TopicLog
from txnlog.names import TopicPartition
from txnlog.read.topic_view import TopicView
from txnlog.state.cut import CommittedUnit, Part, consistent_cut
from txnlog.state.topic import RecentEntry, TopicState
from txnlog.state.transaction import EntryRef, TransactionKey

# -- readings ------------------------------------------------------------------------------------

Standing: TypeAlias = tuple[int, frozenset[int]]
"""A log's next entry, and its undecided ones."""


class FirstReading:
    """What is known of topics at one reading of their logs, before these are listed once more.

    Transactions that were committed then had placed all their entries. So if this reading shows a
    part of one, the next listing shows the rest.
    """

    def __init__(self) -> None:
        self._undecided: set[TransactionKey] = set()
        self._committed: set[TransactionKey] = set()
        self.next_entries: dict[str, int] = {}
        """By topic, the entry that came next."""
        self._log_ends: dict[str, tuple[int, ...]] = {}
        self.reaching: dict[str, int] = {}
        """By topic, the first entry that may lie at or beyond an end of its view."""
        self.left_out_ms: list[int] = []
        """The times of appends hidden because their transactions are not whole."""
        self.may_lack_entries = False
        """True if a listing has decided something: it may lack entries of that transaction."""
        self._standing: dict[str, Standing] = {}

    @property
    def ends(self) -> dict[TopicPartition, int]:
        """The log end offset of each partition."""
        return {
            TopicPartition(topic, number): end
            for topic, ends in self._log_ends.items()
            for number, end in enumerate(ends)
        }

    def add(self, log: TopicLog, view: TopicView, *, with_outcomes: bool) -> None:
        """Record what is known about one topic, which was pinned just now."""
        with log.lock:
            state = log.state
            self._standing[log.name] = standing_of(log)
            self.may_lack_entries = self.may_lack_entries or log.ahead
            self.next_entries[log.name] = state.next_entry
            self.reaching[log.name] = min([state.next_entry, *state.undecided])
            self._undecided |= {ref.key for ref in state.undecided.values()}
            self._log_ends[log.name] = view.log_end_offsets
            if not with_outcomes:
                return
            unseen = {*state.undecided, *state.aborted}
            self._committed |= {
                entry.transaction.key
                for entry in state.recent
                if entry.transaction is not None and entry.number not in unseen
            }

    def look_back(self, opened: Sequence[TopicLog]) -> None:
        """Find which of the relevant transactions had been committed, and were settled."""
        asked = {ref.key for log in opened for ref in log.undecided().values()}
        for log in opened:
            # Newer appends may be settled by now, if this process slept.
            asked |= {
                entry.transaction.key
                for entry in log.appends_since(self.next_entries[log.name])
                if entry.transaction is not None
            }
        asked -= self._committed | self._undecided
        for log in opened:
            self._committed |= {
                entry.transaction.key
                for entry in log.settled_appends_of(asked)
                if entry.transaction is not None and entry.number < self.next_entries[log.name]
            }

    def knew(self, unit: Hashable, entries: Iterable[tuple[str, int]]) -> bool:
        """Whether a unit with these entries (topics and numbers) was known to be committed."""
        return unit not in self._undecided and any(
            number < self.next_entries.get(topic, 0) for topic, number in entries
        )

    def stands_as(self, settled: Mapping[str, Standing]) -> bool:
        """Whether the topics stood as when they were settled: no other thread has gone on."""
        return all(settled[name] == standing for name, standing in self._standing.items())

    def has_grown(self, log: TopicLog) -> bool:
        """True if the log has entries that came after this reading."""
        with log.lock:
            state = log.state
            return state.next_entry != self.next_entries[log.name]

    def has_missed(self, log: TopicLog) -> bool:
        """True if an append after this reading is no longer known separately.

        This process stalled for long: other parts of that append's transaction may be unknown.
        """
        new = self.next_entries[log.name]
        with log.lock:
            settled = log.state.settled
            if settled is None or settled.end <= new:
                return False
        return log.kept_apart().first_entry > new

    def finds_part(self, log: TopicLog) -> bool:
        """True if an entry is undecided whose transaction is known to be committed."""
        return any(ref.key in self._committed for ref in log.undecided().values())

    def pin_whole(self, log: TopicLog, left_out: AbstractSet[Hashable]) -> TopicView:
        """Copy what a topic held at this reading, less what was uncommitted or is left out."""
        with log.lock:
            state = log.state
            new = self.next_entries[log.name]
            settled_end = state.settled.end if state.settled else 0
            keys = {unit for unit in left_out if isinstance(unit, TransactionKey)}
            appends = [*log.settled_appends_of(self._undecided | keys), *state.recent]
            if settled_end > new:
                appends += [e for e in log.appends_since(new) if e.number < settled_end]
            unfinished = [
                entry
                for entry in appends
                if entry.number >= new
                or (unit := unit_of(log, entry)) in left_out
                or unit in self._undecided
            ]
            # Undecided appends are shown nowhere, and one without a transaction is whole.
            self.left_out_ms += [
                entry.at_ms
                for entry in unfinished
                if entry.transaction is not None and entry.number not in state.undecided
            ]
            hidden = {*state.aborted, *state.undecided, *(entry.number for entry in unfinished)}
            begins: dict[int, list[int]] = {}
            for entry in unfinished:
                for partition, offset in entry.first_offsets.items():
                    begins.setdefault(partition, []).append(offset)
            return TopicView.of(
                log.name,
                state,
                log.manifests,
                frozenset(hidden),
                to_stable_offsets=False,
                hides_aborted=True,
                unfinished=begins,
            )


def standing_of(log: TopicLog) -> Standing:
    """How far a log is known, and what is undecided in it."""
    with log.lock:
        state = log.state
        return state.next_entry, frozenset(state.undecided)


def unit_of(log: TopicLog, entry: RecentEntry) -> Hashable:
    """The unit that becomes visible with this append: its transaction, or the append alone."""
    return entry.transaction.key if entry.transaction else (log.name, entry.number)


# -- what transactions rest on -------------------------------------------------------------------

MOST_LOOKED_UP = 256
"""With more transactions than this the offsets that they consumed are not looked up."""

Needs = dict[TransactionKey, dict[TopicPartition, int]]


@dataclass(frozen=True, slots=True)
class Younger:
    """The appends since a reading, by unit, with their topics."""

    units: Mapping[Hashable, Sequence[tuple[str, RecentEntry]]]

    @classmethod
    def since(cls, opened: Sequence[TopicLog], reading: FirstReading) -> Younger:
        """The appends of units that have one at or after the reading's first undecided entry."""
        found: dict[Hashable, dict[tuple[str, int], RecentEntry]] = {}
        for log in opened:
            for entry in log.appends_since(reading.reaching[log.name]):
                found.setdefault(unit_of(log, entry), {})[log.name, entry.number] = entry
        keys = [unit for unit in found if isinstance(unit, TransactionKey)]
        for log in opened:
            with log.lock:
                state = log.state
                aborted = {*state.aborted}
                recent = [e for e in state.recent if e.number not in aborted]
            for entry in [*log.settled_appends_of(keys), *recent]:
                if entry.transaction is not None and entry.transaction.key in found:
                    found[entry.transaction.key][log.name, entry.number] = entry
        return cls({u: [(t, e) for (t, _), e in of.items()] for u, of in found.items()})

    def knew(self, reading: FirstReading, unit: Hashable) -> bool:
        """Whether a unit was known to be committed at a reading."""
        return reading.knew(unit, [(topic, entry.number) for topic, entry in self.units[unit]])

    def partial(self, reading: FirstReading) -> set[Hashable]:
        """The units of which a reading lacks an append."""
        return {
            unit
            for unit, appends in self.units.items()
            if any(entry.number >= reading.next_entries[topic] for topic, entry in appends)
        }

    def shown(self, last: FirstReading, before: FirstReading, needs: Needs) -> list[CommittedUnit]:
        """The units that were committed at the last reading."""
        return [
            CommittedUnit(
                unit,
                self.knew(before, unit),
                _least_offsets(appends),
                _offsets(
                    (topic, entry)
                    for topic, entry in appends
                    if entry.number >= before.next_entries[topic]
                ),
                needs.get(unit, {}) if isinstance(unit, TransactionKey) else {},
            )
            for unit, appends in self.units.items()
            if self.knew(last, unit)
        ]


def _offsets(
    appends: Iterable[tuple[str, RecentEntry]],
) -> list[tuple[TopicPartition, int]]:
    return [
        (TopicPartition(topic, number), offset)
        for topic, entry in appends
        for number, offset in entry.first_offsets.items()
    ]


def _least_offsets(appends: Iterable[tuple[str, RecentEntry]]) -> dict[TopicPartition, int]:
    least: dict[TopicPartition, int] = {}
    for where, offset in _offsets(appends):
        least[where] = min(offset, least.get(where, offset))
    return least


def look_up_needs(
    logs: Logs,
    opened: Sequence[TopicLog],
    younger: Younger,
    readings: Sequence[FirstReading],
) -> Needs | None:
    """The offsets that young transactions consumed, of the partitions of these topics.

    Two requests for each transactional id, one more for each further transaction of it, and one for
    each that has moved a group's offsets. Offsets beyond the ends were set, not read up to. None if
    that cannot be found out: too many, or cleaned up already.
    """
    last, longer = readings[-1], readings[-3]
    asked: dict[str, set[TransactionKey]] = {}
    for unit in younger.units:
        if (
            isinstance(unit, TransactionKey)
            and younger.knew(last, unit)
            and not younger.knew(longer, unit)
        ):
            asked.setdefault(unit.transactional_id, set()).add(unit)
    if sum(map(len, asked.values())) > MOST_LOOKED_UP:
        return None
    ends: dict[TopicPartition, int] = {}
    topic_ids: dict[str, str | None] = {}
    for log in opened:
        with log.lock:
            state = log.state
            topic_ids[log.name] = state.topic_id
            for number, of_it in enumerate(state.partitions):
                ends[TopicPartition(log.name, number)] = of_it.end_offset
    found = logs.storage.gather([partial(logs.transactions.commits, *ids) for ids in asked.items()])
    commits = {key: state for states in found for key, state in states.items()}
    if len(commits) < sum(map(len, asked.values())):
        return None
    entries: list[tuple[TransactionKey, EntryRef]] = [
        (key, ref) for key, state in commits.items() for ref in state.entries if ref.log == "group"
    ]
    try:
        moved = logs.storage.gather(
            [partial(logs.group(ref.name).read_moved, ref.number, key) for key, ref in entries]
        )
    except CorruptEntry:
        return None
    needs: Needs = {}
    for (key, _), offsets in zip(entries, moved, strict=True):
        if offsets is None:
            return None
        mine = needs.setdefault(key, {})
        for to in offsets:
            where = TopicPartition(to.topic, to.partition)
            same = not to.topic_id or to.topic_id == topic_ids.get(to.topic)
            if same and 0 < to.offset <= ends.get(where, 0):
                mine[where] = max(to.offset, mine.get(where, 0))
    return needs


# -- the cut -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CutViews:
    """Topics at a consistent cut, and the committed units that it hides below a stable offset."""

    views: dict[str, TopicView]
    cut_off: frozenset[Hashable] = frozenset()


def cut_views(
    logs: Logs,
    opened: Sequence[TopicLog],
    views: Mapping[str, TopicView],
    reaching: Mapping[str, int],
    needs: Mapping[TransactionKey, Mapping[TopicPartition, int]] | None = None,
) -> CutViews | None:
    """The views cut so that each transaction shows whole or not at all; None if impossible.

    It is also impossible where a cut lies before records for which compaction has left out older
    ones, and the older ones were purged, or are deleted, or soon may be.

    ``opened``: the topics, read a second time. ``views``: as first pinned. ``reaching``: by topic,
    the first entry that may lie at or beyond an end of its view, or belong to a transaction with
    needs. ``needs``: the offsets that transactions consumed: they are hidden with what they
    consumed.
    """
    resting = [Part(key, {}, needs=offsets) for key, offsets in (needs or {}).items()]
    ends = {
        TopicPartition(view.topic, number): partition.end_offset
        for view in views.values()
        for number, partition in enumerate(view.partitions)
    }
    if all(log.next_entry <= reaching[log.name] for log in opened):
        return CutViews(dict(views))
    since = dict(reaching)
    while True:
        parts = [part for log in opened for part in _parts(log, since[log.name])]
        cut = consistent_cut(ends, [*parts, *resting])
        hidden = [p for p in parts if isinstance(p.unit, TransactionKey) and p.reaches(cut)]
        if not _look_further_back(opened, {part.unit for part in hidden}, since):
            break
    if not is_kept_apart(logs, opened, (part.at_ms for part in hidden)):
        return None
    if not _is_fresh(logs, opened, parts, ends, cut):
        return None
    cut_off = {
        part.unit
        for part in parts
        for where, offset in part.first_offsets.items()
        if where in cut and cut[where] <= offset < ends[where]
    }
    truncated = {
        topic: view.truncate({p: cut[TopicPartition(topic, p)] for p in view.end_offsets})
        for topic, view in views.items()
    }
    # What is about to be deleted would be gone before it is read.
    soon_ms = logs.clock.now_ms() + SKEW_MS
    for topic, view in truncated.items():
        shorter = [p for p, end in view.end_offsets.items() if end < views[topic].end_offsets[p]]
        if view.needs_lost_segments(shorter, soon_ms):
            return None
    return CutViews(truncated, frozenset(cut_off))


def _look_further_back(
    opened: Sequence[TopicLog], hidden: AbstractSet[Hashable], since: dict[str, int]
) -> bool:
    """Move ``since`` back to the first appends of hidden transactions; False if not needed."""
    keys = [unit for unit in hidden if isinstance(unit, TransactionKey)]
    moved = False
    for log in opened:
        with log.lock:
            state = log.state
            in_head = [
                e.number for e in state.recent if e.transaction and e.transaction.key in hidden
            ]
        older = [entry.number for entry in log.settled_appends_of(keys)]
        first = min([*in_head, *older], default=since[log.name])
        if first < since[log.name]:
            since[log.name] = first
            moved = True
    return moved


def _parts(log: TopicLog, first_entry: int) -> list[Part]:
    """The appends of a topic before which a cut may have to fall: all but aborted ones."""
    with log.lock:
        state = log.state
        entries = log.appends_since(first_entry)
        return [
            Part(
                unit_of(log, entry),
                {TopicPartition(log.name, p): offset for p, offset in entry.first_offsets.items()},
                at_ms,
            )
            for entry, at_ms in zip(entries, _bounded_times(state, entries), strict=True)
        ]


def _bounded_times(state: TopicState, entries: Sequence[RecentEntry]) -> list[int]:
    """When appends were made, by the latest before and the earliest after each.

    Of these and its own the median. Unlike the times of time travel, which one wrong clock must not
    move, none is later than its own if nothing before it is: what is kept apart is told by these.
    """
    times = [entry.at_ms for entry in entries]
    before_all_ms = max(state.created_at_ms, entries[0].time_before_ms if entries else -1)
    latest_before = accumulate(times[:-1], max, initial=before_all_ms)
    earliest_after = [*[*accumulate(reversed(times), min)][-2::-1], *times[-1:]]
    return [sorted(three)[1] for three in zip(latest_before, times, earliest_after, strict=False)]


def is_kept_apart(logs: Logs, opened: Sequence[TopicLog], at_ms: Iterable[int]) -> bool:
    """True if all appends of transactions with these times are still known separately.

    Otherwise one of them might show while others do not (invariant L6).
    """
    times = [*at_ms]
    if not times:
        return True
    kept_since_ms = max(log.kept_apart().kept_since_ms for log in opened)
    longest_ms = logs.config.transaction_max_timeout_ms + SKEW_MS
    return kept_since_ms < 0 or all(time - longest_ms > kept_since_ms for time in times)


def _is_fresh(
    logs: Logs,
    opened: Sequence[TopicLog],
    parts: Sequence[Part],
    ends: Mapping[TopicPartition, int],
    cut: Mapping[TopicPartition, int],
) -> bool:
    """True unless the cut hides appends from long before the oldest open transaction.

    If each transaction overlaps the next one, it could fall back before all of them.
    """
    lost_ms = [part.at_ms for part in parts if part.reaches(cut) and not part.reaches(ends)]
    if not lost_ms:
        return True
    beyond = {part.unit for part in parts if part.reaches(ends)}
    began_ms: dict[Hashable, int] = {}
    for part in parts:
        if part.unit in beyond:
            began_ms[part.unit] = min(part.at_ms, began_ms.get(part.unit, part.at_ms))
    if not began_ms:
        return True  # what is hidden rests on offsets that nobody's records explain
    undecided = {ref.key for log in opened for ref in log.undecided().values()}
    timeouts_ms = {key: logs.settlement.timeout_ms(key) for key in undecided if key in began_ms}
    # Appends since the topics were settled are younger.
    known = [
        (began_ms[key], at_most) for key, at_most in timeouts_ms.items() if at_most is not None
    ]
    if not known:
        longest_ms = logs.config.transaction_max_timeout_ms
        known = [(at_ms, longest_ms) for at_ms in began_ms.values()]
    oldest_ms, timeout_ms = min(known)
    return min(lost_ms) >= oldest_ms - timeout_ms
