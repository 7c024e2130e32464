"""The sequence log: a folder of entries numbered without gaps. All concurrency control is here.

Entry N is created with put-if-absent by somebody who has read entry N-1, so whoever creates N has
seen everything before it. Beside the entries lie control markers and checkpoints. Knows files and
bytes; what an entry means is the business of those who fold it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from txnlog import names
from txnlog.clock import Clock
from txnlog.errors import CorruptEntry, ObjectNotFound
from txnlog.log.create_once import confirm, create_once
from txnlog.names import LogFile
from txnlog.state.transaction import Outcome
from txnlog.storage.base import Storage

_LOOKED_FOR = 64
"""So many names are asked for one by one; where there are more a listing is cheaper."""


@dataclass(frozen=True, slots=True)
class Listing:
    """What one listing of a log folder shows. Numbers ascend.

    ``witnesses`` are the times (ms, by several clocks) at which somebody has seen an entry.
    """

    entries: tuple[int, ...]
    outcomes: dict[int, Outcome]
    checkpoints: tuple[int, ...]
    witnesses: dict[int, tuple[int, ...]]

    def contiguous(self, first: int) -> tuple[int, ...]:
        """The entries from ``first`` on, up to the first gap.

        A listing is not one instant: an entry may show while one before it does not yet.
        """
        wanted = [number for number in self.entries if number >= first]
        return tuple(n for expected, n in enumerate(wanted, start=first) if n == expected)


class SequenceLog:
    """The files of one log folder."""

    def __init__(self, storage: Storage, folder: str, clock: Clock) -> None:
        self.storage = storage
        self.folder = folder
        self._clock = clock

    def path(self, number: int, kind: LogFile = LogFile.ENTRY) -> str:
        """The name of a file of this log within the store."""
        return f"{self.folder}/{names.log_file(number, kind)}"

    def witness_path(self, number: int, at_ms: int) -> str:
        """The name of a witness of entry ``number`` within the store."""
        return f"{self.folder}/{names.witness_file(number, at_ms)}"

    def listing(self, first: int = 0) -> Listing:
        """Everything from entry ``first`` on, in one listing.

        Raises:
            CorruptEntry: an entry has both a commit and an abort marker (invariant L3).
        """
        start_after = names.log_file_prefix(first) if first > 0 else ""
        entries: list[int] = []
        checkpoints: list[int] = []
        outcomes: dict[int, Outcome] = {}
        witnesses: dict[int, tuple[int, ...]] = {}
        for name in self.storage.list_names(self.folder, start_after):
            parsed = names.parse_log_file(name)
            if parsed is None:
                continue
            number, kind = parsed
            if kind is LogFile.ENTRY:
                entries.append(number)
            elif kind is LogFile.CHECKPOINT:
                checkpoints.append(number)
            elif kind is LogFile.SEEN:
                seen_ms = names.witness_time_ms(name)
                witnesses[number] = (*witnesses.get(number, ()), seen_ms)
            else:
                outcome = Outcome(kind.value)
                if outcomes.setdefault(number, outcome) is not outcome:
                    raise self._both_markers(number)
        return Listing(tuple(entries), outcomes, tuple(checkpoints), witnesses)

    def look_on(self, next_entry: int, undecided: Collection[int]) -> Listing | None:
        """What :meth:`listing` would show that is new, found by asking for names one by one.

        For storages whose listings cost what the folder holds. That an entry is not there says
        that it was not put yet only to those who have looked a short time ago: before anybody can
        have cleaned up what came since (hazard 3).

        Args:
            next_entry: the first entry that is not known yet.
            undecided: older entries, whose markers are looked for.

        Returns:
            No checkpoints, and of older entries the undecided ones alone. None if a listing is
            needed: there is much that is new, or something is missing.

        Raises:
            CorruptEntry: an entry has both markers.
        """
        if len(undecided) > _LOOKED_FOR or not self._is_there(next_entry - 1):
            return None
        known = [number for number in sorted(undecided) if self._is_there(number)]
        number = next_entry
        while self._is_there(number):
            number += 1
            if number - next_entry > _LOOKED_FOR:
                return None
        if self._is_there(number + 1):
            return None
        entries = [*known, *range(next_entry, number)]
        outcomes = {}
        for entry in entries:
            for outcome in Outcome:
                if self._is_there(entry, LogFile(outcome.value)):
                    if entry in outcomes:
                        raise self._both_markers(entry)
                    outcomes[entry] = outcome
        return Listing(tuple(entries), outcomes, (), {})

    def checkpoints_in(self, first: int, end: int) -> list[int]:
        """The entries in [first, end) that have a checkpoint, ascending; see :meth:`look_on`."""
        if end - first > _LOOKED_FOR:
            return [number for number in self.listing(first).checkpoints if number < end]
        return [n for n in range(first, end) if self._is_there(n, LogFile.CHECKPOINT)]

    def _is_there(self, number: int, kind: LogFile = LogFile.ENTRY) -> bool:
        try:
            self.storage.size(self.path(number, kind))
        except ObjectNotFound:
            return False
        return True

    def _both_markers(self, number: int) -> CorruptEntry:
        return CorruptEntry(
            f"{self.path(number)} has both a commit and an abort marker; "
            "run `txnlog log dump` and keep the store as it is"
        )

    def read(self, numbers: Sequence[int]) -> list[bytes]:
        """The bytes of these entries, read in parallel. Raises ObjectNotFound if one is gone."""
        return self.storage.get_many([self.path(number) for number in numbers])

    def create(self, number: int, data: bytes) -> bool:
        """Put entry ``number``; see :func:`create_once`."""
        before = [self.path(number - 1)] if number else []
        return create_once(self.storage, self.path(number), data, self._clock, before)

    def mark(self, number: int, outcome: Outcome, data: bytes) -> None:
        """Put the control marker of an entry. Idempotent: every writer writes the same outcome.

        Whoever put it, it is durable when this returns.
        """
        path = self.path(number, LogFile(outcome.value))
        if not create_once(self.storage, path, data, self._clock):
            confirm(self.storage, path)

    def confirm(self, number: int) -> None:
        """Make sure of entry ``number``, which was found in the log; see :func:`confirm`."""
        confirm(self.storage, self.path(number))

    def read_checkpoint(self, number: int) -> bytes:
        """The bytes of the checkpoint after entry ``number``."""
        return self.storage.get(self.path(number, LogFile.CHECKPOINT))

    def put_checkpoint(self, number: int, data: bytes) -> bool:
        """Put the checkpoint after entry ``number``; False if there is one already."""
        return self.storage.put_if_absent(self.path(number, LogFile.CHECKPOINT), data)

    def delete_checkpoints(self, numbers: Sequence[int]) -> None:
        """Delete the checkpoints after these entries, which newer ones stand for."""
        self.storage.delete([self.path(number, LogFile.CHECKPOINT) for number in numbers])

    def delete_below(self, number: int) -> int:
        """Delete every file of the entries below ``number``; returns how many there were.

        The entries go first, and the rest only when all of them are gone: a deletion has no order
        and may fail in part, and an entry without its marker would pass for one that was never
        decided. So who finds an entry finds its marker too, or there never was one.
        """
        doomed = [
            (kind, f"{self.folder}/{name}")
            for name in self.storage.list_names(self.folder)
            if (kind := names.parse_log_file(name)) is not None and kind[0] < number
        ]
        self.storage.delete([path for kind, path in doomed if kind[1] is LogFile.ENTRY])
        self.storage.delete([path for kind, path in doomed if kind[1] is not LogFile.ENTRY])
        return len(doomed)

    def delete_entries(self, first: int, end: int) -> None:
        """Delete the entries [first, end) by their names, without listing."""
        self.storage.delete([self.path(number) for number in range(first, end)])

    def was_freed(self, number: int) -> bool:
        """True if entry ``number``, which we have put, may fill a name that cleaning had freed.

        Cleaning deletes what lies below a checkpoint. So where there is one at this entry or
        beyond, nobody can tell any more, and the answer is yes (hazard 3).
        """
        listing = self.listing(max(number - 1, 0))
        return any(n >= number for n in listing.checkpoints) or _is_stray(listing, number)

    def is_stray(self, number: int) -> bool:
        """True if entry ``number`` surely fills a name that cleaning had freed: nobody reads it."""
        return _is_stray(self.listing(max(number - 1, 0)), number)


def _is_stray(listing: Listing, number: int) -> bool:
    """Whether an entry has no neighbours, in a listing from the entry before it on.

    Cleaning deletes everything below a checkpoint, so if the name was freed, the entry before it
    was too, or (for entry 0) later ones stand without entry 1.
    """
    if number not in listing.entries:
        return True
    if number > 0 and listing.entries[:1] != (number - 1,):
        return True
    later = [n for n in (*listing.entries, *listing.checkpoints) if n > number]
    return bool(later) and number + 1 not in listing.entries
