"""The sequence log: a folder of entries numbered without gaps. All concurrency control is here.

Entry N is created with put-if-absent by a process that has read entry N-1, so its writer has seen
everything before it. Beside the entries lie control markers and checkpoints. Knows files and bytes;
the meaning of entries is left to their folds. A file may hold several entries: then it has the
number of the first, and no files have those of the others. Only a reader of the file knows.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from txnlog import names
from txnlog.clock import Clock
from txnlog.errors import CorruptEntry, ObjectNotFound
from txnlog.log.chapters import Chapters, delete_files, marks_below
from txnlog.log.create_once import confirm, create_once
from txnlog.names import LogFile
from txnlog.state.transaction import Outcome
from txnlog.storage.base import Storage

_LOOKED_FOR = 64
"""Up to this many names are asked for one by one; for more a listing is cheaper."""
_OUTCOMES = {LogFile.COMMIT: Outcome.COMMIT, LogFile.ABORT: Outcome.ABORT}


@dataclass(frozen=True, slots=True)
class Listing:
    """What one listing of a log folder shows. Numbers ascend; those of entries are their files'.

    ``witnesses`` are the times (ms, by several clocks) at which a process has seen an entry.
    ``end`` is None if nothing was left out; else the first entry that was not looked for.
    """

    entries: tuple[int, ...]
    outcomes: dict[int, Outcome]
    checkpoints: tuple[int, ...]
    witnesses: dict[int, tuple[int, ...]]
    end: int | None = None

    def files_from(self, first: int) -> tuple[int, ...]:
        """The files of the entries from ``first`` on.

        A listing is not a snapshot: an entry may show while one before it does not yet.
        """
        return self.entries[bisect_left(self.entries, first) :]

    def end_of_numbers(self, first: int) -> int:
        """The first number from ``first`` on that has no file: a gap, an end, or in a bundle."""
        files = self.files_from(first)
        return next(
            (n for n, file in enumerate(files, start=first) if n != file), first + len(files)
        )

    def file_of(self, number: int) -> int:
        """The file that holds entry ``number``, if it exists and the listing reaches to it."""
        at = bisect_right(self.entries, number) - 1
        return self.entries[at] if at >= 0 else number


class SequenceLog:
    """The files of one log folder."""

    def __init__(self, storage: Storage, folder: str, clock: Clock) -> None:
        self.storage = storage
        self.folder = folder
        self._clock = clock
        self.chapters = Chapters(storage, folder, clock)

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
                outcome = _OUTCOMES[kind]
                if outcomes.setdefault(number, outcome) is not outcome:
                    raise self._both_markers(number)
        return Listing(tuple(entries), outcomes, tuple(checkpoints), witnesses)

    def look_on(
        self, next_entry: int, newest_file: int, undecided: Mapping[int, int]
    ) -> Listing | None:
        """The new files that :meth:`listing` would show, found by asking for names one by one.

        For storages whose listings take longer the larger the folder is. A missing entry was not
        put yet only if its chapter is found open afterwards: then its name was never freed (hazard
        3).

        Args:
            next_entry: the first entry that is not known yet.
            newest_file: the file of the one before it.
            undecided: older entries whose markers are looked for, with their files.

        Returns:
            No checkpoints, and of older entries only the undecided ones. If the last file that it
                shows holds several entries, there may be more after them. None if a listing is
                needed: much is new, or something is missing.

        Raises:
            CorruptEntry: an entry has both markers.
        """
        if len(undecided) > _LOOKED_FOR or not self._is_there(newest_file):
            return None
        known = [file for file in sorted({*undecided.values()}) if self._is_there(file)]
        number = next_entry
        while self._is_there(number):
            number += 1
            if number - next_entry > _LOOKED_FOR:
                return None
        found = [*range(next_entry, number)]
        if self._is_there(number + 1):
            if not found:
                return None
            # Nothing is missing if the file before holds two entries; otherwise the next look
            # notices.
            number += 1
            found.append(number)
        outcomes: dict[int, Outcome] = {}
        for entry in [*sorted(undecided), *found]:
            for outcome in Outcome:
                if self._is_there(entry, LogFile(outcome.value)):
                    if entry in outcomes:
                        raise self._both_markers(entry)
                    outcomes[entry] = outcome
        return Listing((*known, *found), outcomes, (), {}, number)

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

    def create(
        self,
        number: int,
        data: bytes,
        newest_file: int | None = None,
        *,
        decided: bool = False,
    ) -> bool:
        """Put file ``number`` behind ``newest_file``; see :func:`create_once`."""
        before = number - 1 if newest_file is None else newest_file
        built_on = [self.path(before)] if number else []
        path = self.path(number)
        return create_once(self.storage, path, data, self._clock, built_on, decided=decided)

    def mark(self, number: int, outcome: Outcome, data: bytes) -> None:
        """Put the control marker of an entry. Idempotent: every writer writes the same outcome.

        It is durable when this returns, whichever process put it.
        """
        path = self.path(number, LogFile(outcome.value))
        # Of an abort they differ: who finds that it was one does not know by which epoch.
        decided = outcome is Outcome.COMMIT
        if not create_once(self.storage, path, data, self._clock, decided=decided):
            confirm(self.storage, path)

    def confirm(self, number: int) -> None:
        """Confirm entry ``number``, which was found in the log; see :func:`confirm`."""
        confirm(self.storage, self.path(number))

    def read_checkpoint(self, number: int) -> bytes:
        """The bytes of the checkpoint after entry ``number``."""
        return self.storage.get(self.path(number, LogFile.CHECKPOINT))

    def put_checkpoint(self, number: int, data: bytes) -> bool:
        """Put the checkpoint after entry ``number``; False if there is one already."""
        return self.storage.put_if_absent(self.path(number, LogFile.CHECKPOINT), data)

    def delete_checkpoints(self, numbers: Sequence[int]) -> None:
        """Delete the checkpoints after these entries, which newer ones supersede."""
        self.storage.delete([self.path(number, LogFile.CHECKPOINT) for number in numbers])

    def delete_below(self, number: int) -> None:
        """Delete every file of the entries below ``number``, once something replaces them.

        In the order of :func:`delete_files`, then the marks that close chapters. A mark that also
        closes later entries stays: the log may have gone on since the caller has looked.
        """
        listed = self.storage.list_names(self.folder)
        delete_files(self.storage, self.folder, listed, number)
        marks = marks_below(listed, number)
        if marks:
            self.storage.delete([f"{self.folder}/{name}" for name in marks])

    def delete_entries(self, first: int, end: int) -> None:
        """Delete the entries [first, end) by their names, without listing."""
        self.storage.delete([self.path(number) for number in range(first, end)])

    def is_stray(self, number: int, before: int, behind: int) -> bool:
        """True if file ``number`` certainly has a name that cleaning had freed: nobody reads it.

        Then it has no neighbours. Cleaning deletes everything below a checkpoint, so if the name
        was freed, the file ``before`` it was too, or (for entry 0) later ones stand without
        ``behind``, the entry after its own.
        """
        listing = self.listing(max(before, 0))
        if number not in listing.entries:
            return True
        if number > 0 and listing.entries[:1] != (before,):
            return True
        later = [n for n in (*listing.entries, *listing.checkpoints) if n >= behind]
        return bool(later) and behind not in listing.entries
