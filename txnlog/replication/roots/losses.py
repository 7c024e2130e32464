"""Finds the records that an uncleanly elected leader may lose, if data is at some roots only.

The leader's logs name data files that it need not have. A copy at another root that answers will
do, if it is safe. A copy may not be safe, because a process that moves data or cleans up may sleep
before it deletes. Copies at roots that left the set no later than the new leader are safe from
cleaning, since a process that deletes there knows the same logs. Of these, copies that no note
names are safe from moving, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from txnlog.replication.roots.agreement import Agreement
from txnlog.replication.roots.epochs import Epoch, Member
from txnlog.replication.roots.listings import Listings
from txnlog.replication.roots.trim import Noted, read_notes
from txnlog.storage.base import Storage


class NamedSegment(NamedTuple):
    """A segment that a log names: its offsets, its records, its file, and its bytes.

    ``end`` is exclusive. The file must be ``end_byte`` bytes long. ``path`` is "" if the topic's
    log cannot be read, so that its segments are unknown.
    """

    topic: str
    partition: int = -1
    start: int = 0
    end: int = 0
    record_count: int = 0
    path: str = ""
    end_byte: int = 0
    size_bytes: int = 0


NameSegments: TypeAlias = Callable[[Storage], Iterator[NamedSegment]]
"""Yields the segments that the logs in a storage name, by topic, partition and offset."""


@dataclass(frozen=True, slots=True)
class LostRange:
    """A range of offsets, which a new leader's logs have, and whose records may be lost.

    ``end`` is exclusive. ``members`` still have the records, which can be copied from there, but a
    process may be about to delete them; () if no root that answers has them.
    """

    topic: str
    partition: int
    start: int
    end: int
    record_count: int
    size_bytes: int
    members: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Losses:
    """What may be lost. ``ranges`` are the first ones, the numbers count all.

    ``unread`` are topics whose logs cannot be read at the new leader.
    """

    ranges: tuple[LostRange, ...] = ()
    range_count: int = 0
    record_count: int = 0
    size_bytes: int = 0
    unread: tuple[str, ...] = ()


class Copies:
    """Tells which members certainly keep a data file, if a member that is out becomes the leader.

    ``listings`` are those of the members that answer; ``leader`` is out in ``epoch``.
    """

    def __init__(self, listings: Listings, epoch: Epoch, leader: Member) -> None:
        self._listings = listings
        self._epoch = epoch
        self._leader = leader
        self._notes: Noted = {}

    def read_notes(self, agreement: Agreement, member: Member) -> None:
        """Read which files a process may be about to delete at a member. Raises MemberFailed."""
        if member in self._epoch.left:
            self._notes.update(read_notes(agreement, self._epoch, [member]))

    def doubtful(self, segment: NamedSegment) -> tuple[Member, ...] | None:
        """The members that have a segment but may lose it; None if a member certainly keeps it."""
        sizes = self._listings.sizes_of(segment.path)
        having = [m for m in sizes if sizes[m] >= segment.end_byte and m in self._notes]
        return None if any(self._keeps(m, segment.path) for m in having) else tuple(having)

    def _keeps(self, member: Member, path: str) -> bool:
        # A member that was in sync for longer may have got deletions of files that this leader's
        # logs still name.
        left = self._epoch.left
        is_later = left[member].epoch > left[self._leader].epoch
        return not is_later and path not in self._notes[member]


def find_losses(named: Iterator[NamedSegment], copies: Copies, most_ranges: int) -> Losses:
    """Find the records of named segments that may be lost; adjacent ranges are joined."""
    found: list[LostRange] = []
    unread: list[str] = []
    count = records = size_bytes = 0
    last: LostRange | None = None
    for segment in named:
        if not segment.path:
            unread.append(segment.topic)
            continue
        members = copies.doubtful(segment)
        if members is None:
            continue
        records, size_bytes = records + segment.record_count, size_bytes + segment.size_bytes
        if last is not None and _goes_on(last, segment, members):
            last = replace(
                last,
                end=segment.end,
                record_count=last.record_count + segment.record_count,
                size_bytes=last.size_bytes + segment.size_bytes,
            )
            found[count - 1 :] = [last] if count <= most_ranges else []
            continue
        count += 1
        where = segment.topic, segment.partition, segment.start, segment.end
        last = LostRange(*where, segment.record_count, segment.size_bytes, members)
        if count <= most_ranges:
            found.append(last)
    return Losses(tuple(found), count, records, size_bytes, tuple(unread))


def _goes_on(last: LostRange, segment: NamedSegment, members: tuple[Member, ...]) -> bool:
    return (last.topic, last.partition, last.end, last.members) == (
        segment.topic,
        segment.partition,
        segment.start,
        members,
    )
