"""The sequence log: a folder of entries numbered without gaps. All concurrency control is here.

Entry N is created with put-if-absent by a process that has read entry N-1, so its writer has seen
everything before it. Beside the entries lie control markers and checkpoints. Knows files and bytes;
the meaning of entries is left to their folds. A file may hold several entries: then it has the
number of the first, and no files have those of the others. Only a reader of the file knows.

Names of logs come and go, those of topics, groups and transactional ids. A process may live for
months, and meet any number of them: ``Recent`` is what it remembers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from txnlog import names
from txnlog.clock import Clock
from txnlog.errors import CorruptEntry, ObjectNotFound, StorageError, TxnlogError
from txnlog.log.chapters import Chapters, delete_files, marks_below
from txnlog.names import LogFile
from txnlog.state.transaction import Outcome
from txnlog.storage.base import PARALLEL_REQUESTS, Storage
from txnlog.storage.create_once import confirm, create_once
from txnlog.storage.threads import Waits

_LOOKED_FOR = 64
"""Up to this many names are asked for; for more a listing is cheaper."""
_AHEAD = 2
"""How many names beyond the end are asked for with the first ones, where requests wait."""
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

    @property
    def newest(self) -> int:
        """The highest number of any entry, marker or checkpoint; -1 if there is none."""
        return max([-1, *self.entries[-1:], *self.checkpoints[-1:], *self.outcomes])

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


def _entries(numbers: Iterable[int]) -> list[tuple[int, LogFile]]:
    return [(number, LogFile.ENTRY) for number in numbers]


def _markers(numbers: Iterable[int]) -> list[tuple[int, LogFile]]:
    return [(number, LogFile(outcome.value)) for number in numbers for outcome in Outcome]


class SequenceLog:
    """The files of one log folder."""

    def __init__(self, storage: Storage, folder: str, clock: Clock) -> None:
        self.storage = storage
        self.folder = folder
        self._clock = clock
        self.chapters = Chapters(storage, folder, clock)
        self.durable = -1
        """The newest entry that this process has put or confirmed; all before it are durable."""
        self._looks = Waits()
        self._listings: Waits | None = None

    def path(self, number: int, kind: LogFile = LogFile.ENTRY) -> str:
        """The name of a file of this log within the store."""
        return f"{self.folder}/{names.log_file(number, kind)}"

    def witness_path(self, number: int, at_ms: int) -> str:
        """The name of a witness of entry ``number`` within the store."""
        return f"{self.folder}/{names.witness_file(number, at_ms)}"

    def listing(self, first: int = 0) -> Listing:
        """Everything from entry ``first`` on, in one listing.

        Raises CorruptEntry: an entry has both a commit and an abort marker (invariant L3).
        """
        start_after = names.log_file_prefix(first) if first > 0 else ""
        entries: list[int] = []
        checkpoints: list[int] = []
        outcomes: dict[int, Outcome] = {}
        witnesses: dict[int, tuple[int, ...]] = {}
        begun_s = self._clock.monotonic_s()
        shown = self.storage.list_names(self.folder, start_after)
        took_s = self._clock.monotonic_s() - begun_s
        if self._listings is None:
            self._listings = Waits(took_s)
        self._listings.record(took_s)
        for name in shown:
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
        """The new files that :meth:`listing` would show, found by asking for names.

        For storages whose listings take longer the larger the folder is. Names are asked for one by
        one, or side by side where requests wait. A missing entry was not put yet only if its
        chapter is found open afterwards: then its name was never freed (hazard 3).

        ``next_entry``: the first one that is not known yet. ``newest_file``: the file of the one
        before it. ``undecided``: older entries whose markers are looked for, with their files.

        Returns no checkpoints, and of older entries only the undecided ones. If the last file that
        it shows holds several entries, there may be more after them. None if a listing is needed,
        since something is missing, or cheaper: much is new, or undecided.

        Raises CorruptEntry: an entry has both markers.
        """
        if len(undecided) > _LOOKED_FOR:
            return None
        files = sorted({*undecided.values()})
        asked = [newest_file, *files, *range(next_entry, next_entry + _AHEAD)]
        names = [*_entries(asked), *_markers(undecided)]
        if self._is_listing_cheaper(len(names)):
            return None
        look = _Look(self, names)
        if not look.shows(newest_file):
            return None
        known = [file for file in files if look.shows(file)]
        number = next_entry
        while look.shows(number):
            number += 1
            new = number - next_entry
            if new > _LOOKED_FOR:
                return None
            if new >= _AHEAD and new & (new - 1) == 0:  # twice as many each time
                look.ask(_entries(range(number, number + new)))
        found = [*range(next_entry, number)]
        if look.shows(number + 1):
            if not found:
                return None
            # Nothing is missing if the file before holds two entries; otherwise the next look
            # notices.
            number += 1
            found.append(number)
        look.ask(_markers(found))
        outcomes: dict[int, Outcome] = {}
        for entry in [*sorted(undecided), *found]:
            for outcome in Outcome:
                if look.shows(entry, LogFile(outcome.value)):
                    if entry in outcomes:
                        raise self._both_markers(entry)
                    outcomes[entry] = outcome
        return Listing((*known, *found), outcomes, (), {}, number)

    def checkpoints_in(self, first: int, end: int) -> list[int]:
        """The entries in [first, end) that have a checkpoint, ascending; see :meth:`look_on`."""
        if end - first > _LOOKED_FOR or self._is_listing_cheaper(end - first):
            return [number for number in self.listing(first).checkpoints if number < end]
        look = _Look(self, [(number, LogFile.CHECKPOINT) for number in range(first, end)])
        return [n for n in range(first, end) if look.shows(n, LogFile.CHECKPOINT)]

    def _is_listing_cheaper(self, names: int) -> bool:
        """Whether a listing takes less time than asking for ``names`` names, as measured so far."""
        if not self._looks.are_long or self._listings is None:
            return False
        rounds = -(-names // PARALLEL_REQUESTS)
        return self._listings.mean_s < rounds * self._looks.mean_s

    def ask(self, wanted: Sequence[tuple[int, LogFile]]) -> list[bool]:
        """Whether each of these files exists. Asks in parallel if requests have been slow."""
        rounds = len(wanted)
        begun_s = self._clock.monotonic_s()
        if self._looks.are_long:
            rounds = -(-len(wanted) // PARALLEL_REQUESTS)
            found = self.storage.gather(partial(self._is_there, *one) for one in wanted)
        else:
            found = [self._is_there(*one) for one in wanted]
        if wanted:
            self._looks.record((self._clock.monotonic_s() - begun_s) / rounds)
        return found

    @property
    def asks_ahead(self) -> bool:
        """Whether names had better be asked for side by side: requests wait."""
        return self._looks.are_long

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
        """Put file ``number`` behind ``newest_file``; see :func:`create_once`.

        That one is confirmed first unless this process has put or confirmed it: a power cut could
        take it alone, and leave a hole in the log. So only the newest entry may not be durable.

        Raises:
            ObjectNotFound: that one is gone, and was not freed: the storage has lost it since it
                was read. What was read of the log is to be read again.
        """
        before = number - 1 if newest_file is None else newest_file
        built_on = [self.path(before)] if before > self.durable else []
        put = partial(
            create_once, self.storage, self.path(number), data, self._clock, decided=decided
        )
        try:
            is_ours = put(built_on)
        except ObjectNotFound:
            if not self.chapters.is_closed(before):
                raise
            is_ours = put()  # behind a checkpoint
        if is_ours:
            self.durable = max(self.durable, number)
        return is_ours

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
        """Confirm entry ``number``, which was found in the log; see :func:`confirm`.

        One that this process has put or confirmed costs nothing.
        """
        if number > self.durable:
            try:
                self.storage.confirm(self.path(number))
            except ObjectNotFound:
                return  # it was freed behind a checkpoint: that says nothing of it
            self.durable = number

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
        closes later entries stays: the log may have gone on since the caller has looked. Of
        replicas all are listed, as a deletion that was cut short leaves files at some.
        """
        prefix = f"{self.folder}/"
        listed = [path.removeprefix(prefix) for path, _ in self.storage.list_all(self.folder)]
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


class _Look:
    """Remembers which files of a log exist; asks for several in parallel, or for each in turn."""

    def __init__(self, log: SequenceLog, wanted: Sequence[tuple[int, LogFile]]) -> None:
        self._log = log
        self._known: dict[tuple[int, LogFile], bool] = {}
        self.ask(wanted)

    def ask(self, wanted: Sequence[tuple[int, LogFile]]) -> None:
        """Ask for all of these together, if that takes less time than one after the other."""
        if self._log.asks_ahead:
            new = [one for one in wanted if one not in self._known]
            self._known.update(zip(new, self._log.ask(new), strict=True))

    def shows(self, number: int, kind: LogFile = LogFile.ENTRY) -> bool:
        """Whether a file exists."""
        if (number, kind) not in self._known:
            (self._known[number, kind],) = self._log.ask([(number, kind)])
        return self._known[number, kind]


_TURNS = (1, 1, 1, 4, 16)
"""How many waiting processes may put the next entry after 0, 1, ... looks without news; then all
may.
"""
_MOST_LOST = 3
"""After losing this many numbers, to whatever entries, a process leaves a request."""
_LEAST_PAUSE_S = 0.001
_MOST_PAUSE_S = 0.25


class Turns:
    """Whose turn it is, of many processes that want to put the next entry at the same time.

    What one of them knows of the others: the numbers lost to them, and whether they go on. There is
    no leader, and no process depends on another: if nothing comes for a while, more and more of
    those that wait may put the next one.

    ``timeout_ms``: how long it goes on while others are faster.
    """

    def __init__(self, clock: Clock, timeout_ms: int) -> None:
        self.lost: list[int] = []
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._deadline_s = clock.monotonic_s() + timeout_ms / 1000
        self._quiet = 0
        self._round_s = 0.0

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Measure how long a look takes: pauses are as long."""
        begun_s = self._clock.monotonic_s()
        yield
        self._round_s = self._clock.monotonic_s() - begun_s

    def looked(self, *, has_gone_on: bool) -> None:
        """Record whether an entry of the kind has come since the previous look."""
        # Commits do not count as a turn: the process whose turn it is may be dead.
        self._quiet = 0 if has_gone_on else self._quiet + 1

    def lose(self, number: int) -> None:
        """Record that another process has put the entry of this number."""
        self.lost.append(number)

    def is_crowd(self, newest: int) -> bool:
        """Whether the numbers were lost to entries of this kind; ``newest`` is their last one."""
        return bool(self.lost) and (len(self.lost) >= _MOST_LOST or newest >= self.lost[0])

    def may_put(self, before: int) -> bool:
        """Whether it is the turn of a process with this many others before it."""
        return self._quiet >= len(_TURNS) or before < _TURNS[self._quiet]

    def check_in_time(self, who: str, outcome: str) -> None:
        """Raise StorageError if it has taken too long. ``outcome`` is for the message."""
        if self._clock.monotonic_s() > self._deadline_s:
            raise StorageError(
                f"{who}: other writers were faster {len(self.lost)} times in "
                f"{self._timeout_ms} ms; {outcome}: try again later"
            )

    def pause(self, *, asked: bool, at_once: bool = False) -> None:
        """Wait until the next look; ``at_once``: its turn is the next but one.

        ``asked``: whether this process has left a request that others may carry out.
        """
        if asked:
            share = 0.0 if at_once else 0.5 + self._clock.jitter()
            pause_s = self._round_s * share * max(self._quiet, 1)
            self._clock.sleep(min(max(pause_s, _LEAST_PAUSE_S), _MOST_PAUSE_S))
        else:
            most_s = min(0.002 * 2 ** len(self.lost), _MOST_PAUSE_S)
            self._clock.sleep(self._clock.jitter() * most_s)


def check_case(storage: Storage, folder: str, what: str, error: type[TxnlogError]) -> None:
    """Raise ``error`` for the name of a log whose folder the disk treats as another's.

    On a disk that does not, `Orders` and `orders` share a folder: under the second name the log of
    the first one would be read and written, and decisions that name one would not be found under
    the other. All names of folders are ASCII, see ``names``: there is nothing else to fold.

    Costs nothing if the disk distinguishes them. Two processes that create both at the same moment
    are not noticed. ``folder``: the log's, such as ``topics/orders``. ``what``: what users call it.
    """
    if not storage.folds_case():
        return
    above, _, name = folder.rpartition("/")
    for other in storage.list_folders(above):
        if other != name and other.casefold() == name.casefold():
            raise error(
                f"{what} cannot be used in {storage.url}: the disk does not tell upper from lower "
                f"case, and {above}/{other} is there. Use that spelling, or another name, or move "
                "the store to a disk that tells them apart"
            )


KEPT_NAMES = 1_000
"""So many are always remembered ..."""
IDLE_S = 600.0
"""... and of more those that were asked for within this time."""

K = TypeVar("K")
V = TypeVar("V")


class _Entry(Generic[V]):
    __slots__ = ("used_s", "value")

    def __init__(self, value: V, used_s: float) -> None:
        self.value = value
        self.used_s = used_s


class Recent(Generic[K, V]):
    """A dictionary that forgets what was not asked for lately, if it has more than ``KEPT_NAMES``.

    For what is found out again, or begins again, at no more than a cost. Threads may share it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: dict[K, _Entry[V]] = {}
        self._most = KEPT_NAMES

    def get(self, key: K) -> V | None:
        """The value, None if it is not known."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        entry.used_s = self._clock.monotonic_s()
        return entry.value

    def __setitem__(self, key: K, value: V) -> None:
        if len(self._entries) >= self._most and key not in self._entries:
            self._forget_idle()
        self._entries[key] = _Entry(value, self._clock.monotonic_s())

    def pop(self, key: K) -> None:
        """Forget it, if it is known."""
        self._entries.pop(key, None)

    def _forget_idle(self) -> None:
        since_s = self._clock.monotonic_s() - IDLE_S
        for key, entry in self._entries.copy().items():  # one step, whatever other threads add
            if entry.used_s < since_s:
                self._entries.pop(key, None)
        # Looked through again only when as many have come: a step for each, whatever is in use.
        self._most = max(KEPT_NAMES, 2 * len(self._entries))
