"""Chapters of a log: names are freed only after a permanent mark says that they are closed.

A writer that slept can put an entry under a name that cleaning has freed (hazard 3). So before any
name of a chapter, 64 numbers, is freed, a mark is put that closes it. A writer checks *after* its
put whether the entry's chapter is closed. If it is not, none of its names had been freed when the
entry was put: so it was the first of its name, whatever time has passed. A closed chapter stays
closed, so a mark that is put late, or twice, misleads nobody; marks have no hazard 3.

Many marks become one of a wider level, which is put before they are deleted. So a process that
looks for the narrow one first misses none. Chapters are closed in the order of their numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import msgspec

from txnlog import names
from txnlog.clock import Clock, Moment
from txnlog.errors import ObjectNotFound
from txnlog.limits import MOST_MARK_BYTES, TimeMs
from txnlog.names import LogFile
from txnlog.storage import envelope
from txnlog.storage.base import Storage
from txnlog.storage.create_once import confirm

CHAPTER = 64
"""How many numbers are closed, and later freed, together.

No fewer than lie between two checkpoints. Names are freed when a later chapter is closed: so who
finds a stray under the name that comes next finds a checkpoint that far behind it, to begin at.
"""
FANOUT = 256
"""How many marks become one wider mark."""
LEVELS = 3
"""Marks of the widest level stay: one in four million entries."""
MOST_CLOSED = 16
"""How many closed chapters stay where names may be freed before their age."""
STAY_OPEN = 12
"""There, so many of them are left open behind a checkpoint instead.

A look at a log ends with the question whether what it has found is in a closed chapter: so this
many chapters may pass during one look.
"""
_MOST_AT_ONCE = 64
"""One cleaning puts no more marks; the next one goes on."""


class ClosingMark(msgspec.Struct, frozen=True, tag_field="kind", tag="closed"):
    """The content of a closing mark. Its name alone closes; the time is by its writer's clock."""

    most_bytes: ClassVar[int] = MOST_MARK_BYTES

    at_ms: TimeMs


_DECODER = msgspec.json.Decoder(ClosingMark)


@dataclass(frozen=True, slots=True)
class FreeingRule:
    """When the names of a closed chapter are freed.

    ``age_ms``: this long after it was closed, by the storage's clock if it reports the time.
    ``most_closed``: or when more than this many are closed; None: by age only. ``stay_open``: so
    many chapters are not closed yet.
    """

    age_ms: int
    most_closed: int | None = None
    stay_open: int = 0


def chapter_of(number: int) -> int:
    """Which chapter entry ``number`` is in."""
    return number // CHAPTER


def _size(level: int) -> int:
    """How many entries a mark of a level closes."""
    return int(CHAPTER * FANOUT ** (level - 1))


def first_of_widest(number: int) -> int:
    """The first entry of the mark of the widest level that would close entry ``number``."""
    return number - number % _size(LEVELS)


class _Marks:
    """The closing marks that a listing has shown."""

    def __init__(self, listed: Sequence[str]) -> None:
        self.firsts: dict[int, set[int]] = {level: set() for level in range(1, LEVELS + 1)}
        for name in listed:
            mark = names.parse_closing_mark(name)
            if mark is not None and mark[1] in self.firsts:
                self.firsts[mark[1]].add(mark[0])

    @property
    def end(self) -> int:
        """The first entry that is not closed: they are closed in order."""
        ends = (max(of, default=-_size(level)) + _size(level) for level, of in self.firsts.items())
        return max(ends)

    def covering(self, number: int) -> tuple[int, int] | None:
        """The narrowest mark that closes an entry: its first entry and its level."""
        for level, firsts in self.firsts.items():
            first = number - number % _size(level)
            if first in firsts:
                return first, level
        return None


def closed_end(listed: Sequence[str]) -> int:
    """The first entry that is not closed, by a listing of a log's folder."""
    return _Marks(listed).end


def marks_below(listed: Sequence[str], number: int) -> list[str]:
    """The closing marks in a listing of a log's folder that close nothing from ``number`` on."""
    found = ((name, names.parse_closing_mark(name)) for name in listed)
    return [name for name, mark in found if mark and mark[0] + _size(mark[1]) <= number]


def is_closed(number: int, listed: Sequence[str]) -> bool:
    """Whether a listing of a log's folder has a mark that closes entry ``number``."""
    return _Marks(listed).covering(number) is not None


def is_widened(mark: str, listed: Sequence[str]) -> bool:
    """Whether a listing of a log's folder has a wider mark that closes all that this one does."""
    first, level = names.parse_closing_mark(mark) or (0, LEVELS)
    firsts = _Marks(listed).firsts
    return any(first - first % _size(wide) in firsts[wide] for wide in range(level + 1, LEVELS + 1))


class Chapters:
    """The chapters of one log folder."""

    def __init__(self, storage: Storage, folder: str, clock: Clock) -> None:
        self._storage = storage
        self._folder = folder
        self._clock = clock
        self._listed_at: Moment | None = None  # when the whole folder was listed
        self._waiting = 0  # how many closed chapters still had names then
        self._closed_end = 0  # the first entry that is not known to be closed

    def path(self, first: int, level: int) -> str:
        """The name of a closing mark within the store."""
        return f"{self._folder}/{names.closing_mark(first, level)}"

    def is_closed(self, number: int) -> bool:
        """Whether the name of entry ``number`` may have been freed: a few looks for names.

        If not, it had never been freed by the moment of this call.
        """
        # From narrow to wide, one after the other: the wide mark is put before the narrow ones are
        # deleted.
        return any(
            self._is_there(number - number % _size(level), level) for level in range(1, LEVELS + 1)
        )

    def _is_there(self, first: int, level: int) -> bool:
        try:
            self._storage.size(self.path(first, level))
        except ObjectNotFound:
            return False
        return True

    def clean(self, end: int, rule: FreeingRule) -> None:
        """Close the chapters that lie before entry ``end``, and free the names of older ones.

        Nobody needs an entry before ``end``, or a marker of one. ``rule``: when names of closed
        chapters are freed. If they are closed already, this only lists: the process that closed
        them has cleaned up. Where names wait for their age they may be many: then the whole folder
        is listed, and names are freed, only once in a quarter of that age.

        Raises StorageError: nothing is lost; the next cleaning does it.
        """
        end -= end % CHAPTER + rule.stay_open * CHAPTER
        if end <= 0:
            return
        if rule.most_closed is None and self._knows_what_waits(rule):
            self._close_on(end)
            return
        self._listed_at = Moment.now(self._clock)
        listed = self._storage.list_names(self._folder)
        marks = _Marks(listed)
        begin = self._closed_end = marks.end
        closed = sorted(n for n in map(_number, listed) if 0 <= n < begin)
        self._waiting = len({n // CHAPTER for n in closed})
        newest = self._close(begin, end) if begin < end else None
        if newest is None:
            return
        freed_end = self._freed_end(closed, marks, newest, rule)
        # Marks that are built on must survive a power cut.
        for mark in {marks.covering(n) for n in closed if n < freed_end}:
            if mark is not None:
                confirm(self._storage, self.path(*mark))
        delete_files(self._storage, self._folder, listed, freed_end)
        self._widen(marks, freed_end)

    def _knows_what_waits(self, rule: FreeingRule) -> bool:
        """Whether too many names wait for the folder to be listed again so soon."""
        at = self._listed_at
        many = self._waiting > MOST_CLOSED
        return many and at is not None and not at.stalled_past(rule.age_ms, self._clock)

    def _close_on(self, end: int) -> None:
        """Close the chapters before entry ``end``, by a listing of those not known to be closed.

        Chapters that others have closed since the whole folder was listed have not reached the age,
        so their marks are still narrow, and the listing shows them.
        """
        prefix = names.log_file_prefix(self._closed_end)
        marks = _Marks(self._storage.list_names(self._folder, prefix))
        self._closed_end = max(self._closed_end, marks.end)
        if self._closed_end < end:
            self._close(self._closed_end, end)

    def _close(self, begin: int, end: int) -> tuple[int, int] | None:
        """Put the marks for [begin, end), in order, as wide as they can be.

        Returns the last one; None if another process is doing the same.
        """
        mark = None
        for _ in range(_MOST_AT_ONCE):
            if begin >= end:
                break
            level = max(
                n
                for n in range(1, LEVELS + 1)
                if begin % _size(n) == 0 and (n == 1 or begin + _size(n) <= end)
            )
            mark = begin, level
            if not self._put(*mark):
                return None
            begin += _size(level)
            self._closed_end = begin
        return mark

    def _put(self, first: int, level: int) -> bool:
        data = envelope.encode(ClosingMark(self._clock.now_ms()))
        return self._storage.put_if_absent(self.path(first, level), data)

    def _freed_end(
        self, closed: Sequence[int], marks: _Marks, newest: tuple[int, int], rule: FreeingRule
    ) -> int:
        """Before which entry names may be freed.

        ``closed`` are the numbers of files in closed chapters, ascending; ``newest`` is the mark
        that was put just now.
        """
        if not closed:
            return 0
        # Those that hold names: a stray of a writer that slept may lie far behind.
        waiting = sorted({n - n % CHAPTER for n in closed})
        try:
            now_ms = self._storage.modified_ms(self.path(*newest))
        except ObjectNotFound:
            return 0  # widened since, by a process that frees old names
        freed = 0 if rule.most_closed is None else max(len(waiting) - rule.most_closed, 0)
        # Usually one has reached the age since the last time.
        while freed < len(waiting):
            if self._age_ms(marks.covering(waiting[freed]), now_ms) < rule.age_ms:
                break
            freed += 1
        return waiting[freed - 1] + CHAPTER if freed else 0

    def _age_ms(self, mark: tuple[int, int] | None, now_ms: int | None) -> int:
        """A mark's age: by the storage's clock, which says ``now_ms``, else by ours."""
        if mark is None:
            return 0
        path = self.path(*mark)
        try:
            closed_ms = None if now_ms is None else self._storage.modified_ms(path)
            if now_ms is not None and closed_ms is not None:
                return now_ms - closed_ms
            found = envelope.decode(self._storage.get(path), _DECODER, path)
        except ObjectNotFound:
            return 0  # widened since
        return self._clock.now_ms() - found.at_ms

    def _widen(self, marks: _Marks, freed_end: int) -> None:
        """Replace marks whose entries are freed by wider ones."""
        for level in range(1, LEVELS):
            narrow, wide = marks.firsts[level], _size(level + 1)
            for first in sorted({n - n % wide for n in narrow}):
                if first + wide > freed_end:
                    break
                if not self._put(first, level + 1):
                    confirm(self._storage, self.path(first, level + 1))
                marks.firsts[level + 1].add(first)
                gone = sorted(n for n in narrow if first <= n < first + wide)
                self._storage.delete([self.path(n, level) for n in gone])


def _number(name: str) -> int:
    """The number of a file in a log folder, except for closing marks; -1 if it has none."""
    parsed = names.parse_log_file(name)
    return parsed[0] if parsed is not None else -1


def delete_files(storage: Storage, folder: str, listed: Sequence[str], end: int) -> None:
    """Delete the files of the entries below ``end`` that a listing has shown.

    A file that also holds entry ``end`` stays. Entries are deleted first, and the rest only when
    all of them are gone: a deletion has no order and may fail in part, and an entry without its
    marker would look as if it was never decided. So a reader that finds an entry finds its marker
    too, if there ever was one.
    """
    found = [
        (kind, f"{folder}/{name}")
        for name in listed
        if (kind := names.parse_log_file(name)) is not None and kind[0] <= end
    ]
    kept = max((at for (at, what), _ in found if what is LogFile.ENTRY), default=end)
    doomed = [(kind, path) for kind, path in found if kind[0] < kept]
    for is_entry in (True, False):
        paths = [path for kind, path in doomed if (kind[1] is LogFile.ENTRY) is is_entry]
        if paths:
            storage.delete(paths)
