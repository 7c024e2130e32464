"""The consistent cut: ends of partitions such that each transaction shows whole or not at all.

Pure. The last stable offsets alone tear: a commit can be visible in one partition and lie behind
somebody's open transaction in another. So a transaction beyond an end is hidden everywhere, which
may hide others, until nothing changes. Ends only shrink, so it stops (invariant S1).

At level ``snapshot`` what rests on something hidden is hidden, too. A unit rests on what its
transaction consumed; and, as its writer may have known them, on those that lie before it in a
partition.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from txnlog.names import TopicPartition


@dataclass(frozen=True, slots=True)
class Part:
    """One append, as a unit of visibility.

    ``unit`` is the same for all appends of one transaction, and its own for any other append.
    ``first_offsets`` holds the first offset that the append wrote, by partition; ``at_ms`` is its
    time. ``needs`` are the offsets that partitions must reach if the unit is to show, because it
    was made of what lies before them.
    """

    unit: Hashable
    first_offsets: Mapping[TopicPartition, int]
    at_ms: int = 0
    needs: Mapping[TopicPartition, int] = field(default_factory=dict)

    def reaches(self, ends: Mapping[TopicPartition, int]) -> bool:
        """True if any of it lies at or beyond these ends."""
        return any(at >= ends.get(where, 0) for where, at in self.first_offsets.items())


def consistent_cut(
    ends: Mapping[TopicPartition, int], parts: Iterable[Part]
) -> dict[TopicPartition, int]:
    """Shrink ``ends`` until every unit lies wholly below or wholly beyond them.

    Any other partition was added later, and ends at 0. ``parts``: the visible and undecided appends
    that may lie on both sides; aborted ones are left out, because nobody sees them.
    """
    cut = dict(ends)
    by_unit: dict[Hashable, list[Part]] = {}
    by_partition: dict[TopicPartition, list[tuple[int, Hashable]]] = {}
    for part in parts:
        by_unit.setdefault(part.unit, []).append(part)
        for where, offset in part.first_offsets.items():
            by_partition.setdefault(where, []).append((offset, part.unit))
        for where, end in part.needs.items():
            # It rests on the last record before that.
            by_partition.setdefault(where, []).append((end - 1, part.unit))
    hidden: set[Hashable] = set()
    todo = [
        unit
        for where, items in by_partition.items()
        for offset, unit in items
        if offset >= cut.get(where, 0)
    ]
    while todo:
        unit = todo.pop()
        if unit in hidden:
            continue
        hidden.add(unit)
        for part in by_unit[unit]:
            for where, offset in part.first_offsets.items():
                if offset < cut.get(where, 0):
                    cut[where] = offset
                    todo += [other for at, other in by_partition[where] if at >= offset]
    return cut


def cut_at_time(
    ends: Mapping[TopicPartition, int], parts: Iterable[Part], at_ms: int
) -> dict[TopicPartition, int]:
    """Shrink ``ends`` until nothing before them is later than a time, and units are whole.

    The time of a transaction is that of its last append. Later ones are hidden, with those that
    this hides in turn: so each lies before the cut in whole or not at all, whatever clocks say.
    Any other partition was added later, and ends at 0. ``parts``: all appends that may be later,
    and those of their units that may be earlier; without aborted ones. ``at_ms``: by their clock.
    """
    known = [*parts]
    cut = dict(ends)
    for part in known:
        if part.at_ms > at_ms:
            for where, offset in part.first_offsets.items():
                if offset < cut.get(where, 0):
                    cut[where] = offset
    return consistent_cut(cut, known)


@dataclass(frozen=True, slots=True)
class CommittedUnit:
    """A unit that is committed.

    ``was_known``: one reading earlier, too. ``first_offsets`` are its least by partition, and
    ``new`` those of its appends that the reading before did not have. ``needs`` are the offsets
    before which it has consumed all that is committed, by partition.
    """

    unit: Hashable
    was_known: bool
    first_offsets: Mapping[TopicPartition, int]
    new: Sequence[tuple[TopicPartition, int]]
    needs: Mapping[TopicPartition, int]


def hide_effects(
    units: Iterable[CommittedUnit], hidden: set[Hashable], ends: Mapping[TopicPartition, int]
) -> tuple[set[Hashable], bool]:
    """Hide the units that rest on hidden ones, and those that rest on these, and so on.

    ``units``: the committed ones, hidden or not. ``hidden``: units that the reading shows in part.
    They were committed after it had begun, so nothing that was known one reading earlier rests on
    them. ``ends``: the partitions' ends at the reading.

    Returns all hidden units, and whether it is certain that no other unit rests on one of them.
    """
    known = [*units]
    least: dict[TopicPartition, int] = {}
    guessed: dict[TopicPartition, int] = {}
    """The first hidden offset of each partition: of all, and without those hidden to begin with."""

    def lies_behind(shown: CommittedUnit, before: Mapping[TopicPartition, int]) -> bool:
        return any(offset > before.get(where, offset) for where, offset in shown.new)

    def lacks(shown: CommittedUnit) -> bool:
        return any(
            end > ends.get(where, 0) or end > least.get(where, end)
            for where, end in shown.needs.items()
        )

    found = set(hidden)
    for shown in known:
        if shown.unit in hidden:
            _lower(least, shown)
    changed = True
    while changed:
        changed = False
        for shown in known:
            if shown.unit in found or shown.was_known:
                continue
            if lacks(shown) or lies_behind(shown, least):
                found.add(shown.unit)
                _lower(least, shown)
                _lower(guessed, shown)
                changed = True
    left = [shown for shown in known if shown.unit not in found]
    return found, not any(lacks(shown) or lies_behind(shown, guessed) for shown in left)


def _lower(least: dict[TopicPartition, int], shown: CommittedUnit) -> None:
    for where, offset in shown.first_offsets.items():
        least[where] = min(offset, least.get(where, offset))
