"""What a reader knew of several topics at one reading, to compare it with the next one."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TypeAlias

from txnlog.log.topic_log import TopicLog
from txnlog.names import TopicPartition
from txnlog.read.topic_view import TopicView
from txnlog.state.topic import RecentEntry
from txnlog.state.transaction import TransactionKey

Standing: TypeAlias = tuple[int, frozenset[int]]
"""A log's next entry, and its undecided ones."""


class FirstReading:
    """What was known at a reading of the topics, before the logs were listed once more.

    Transactions committed then had placed all their entries, so the next listing shows the rest of
    those which this one has shown in part.
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
        """True if there is an entry that came after this reading."""
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
