"""What transactions rest on: the records that they consumed, as far as groups' logs tell.

For snapshots of topics that others write to all the while. What one of them lacks came after its
last round of readings had begun; so what the round before knew as committed rests on none of it,
and only younger transactions are looked up here.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from txnlog.errors import CorruptEntry
from txnlog.log.open_logs import Logs
from txnlog.log.topic_log import TopicLog
from txnlog.names import TopicPartition
from txnlog.read.first_reading import FirstReading, unit_of
from txnlog.state.causes import CommittedUnit
from txnlog.state.topic import RecentEntry
from txnlog.state.transaction import EntryRef, TransactionKey

MOST_LOOKED_UP = 256
"""With more transactions than this the offsets that they consumed are not looked up."""

Needs = dict[TransactionKey, dict[TopicPartition, int]]


@dataclass(frozen=True, slots=True)
class Younger:
    """The appends since a reading, by unit, with their topics."""

    units: Mapping[Hashable, Sequence[tuple[str, RecentEntry]]]

    @classmethod
    def since(cls, opened: Sequence[TopicLog], reading: FirstReading) -> Younger:
        """Those of units that had an append at or after the first undecided one of then."""
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
