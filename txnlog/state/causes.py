"""What rests on something that a snapshot at level ``snapshot`` hides. Pure.

A unit rests on what its transaction consumed; and, as its writer may have known them, on those that
lie before it in a partition.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from txnlog.names import TopicPartition


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
    """Hide what rests on hidden units, until nothing changes.

    ``units``: that are committed, the hidden ones too. ``hidden``: those that are not whole, so
    they were committed after the reading had begun: what was known one reading earlier does not
    rest on them. ``ends``: of the partitions at the reading.

    Returns all that is hidden, and whether what is left is certain to rest on nothing of it.
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
