"""A sequence log together with the state that it folds into: what topics and groups share.

Refreshing is one listing and the new entries. Appending means: refresh, let the caller build an
entry for the current state, put it under the next number, and start over if another process was
first. Every few dozen entries a writer puts a checkpoint, and cleans up behind an old one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import msgspec

from txnlog.clock import Clock, Moment
from txnlog.errors import (
    CorruptEntry,
    ObjectNotFound,
    StorageError,
    TxnlogError,
)
from txnlog.log.chapters import FreeingRule, chapter_of
from txnlog.log.sequence_log import Listing, SequenceLog, Turns
from txnlog.names import LogFile
from txnlog.state.folded_state import FoldedState, Unsettled, apply_file, unbundled
from txnlog.state.transaction import HELP_AFTER_MS, EntryRef, Marker, Outcome, TransactionRef
from txnlog.storage import envelope

CHECKPOINT_INTERVAL = 32
"""Entries between checkpoints: opening a log reads at most about this many small files."""
KEPT_CHECKPOINTS = 8
"""How many of the newest checkpoints stay: readers of a listing may be so far behind."""
DELIVERY_TIMEOUT_MS = 120_000
"""How long one append goes on losing races before it gives up: Kafka's delivery.timeout.ms."""
_ATTEMPTS = 20
"""How many listings in a row may contradict themselves before a log is called damaged."""
_MOST_OVERTAKEN = 200
"""How often a refresh may be overtaken by writers before it gives up."""

Look = Literal["complete", "torn", "overtaken"]
"""What one look at a log may be. Torn: it contradicts itself. Overtaken: what it has shown was
cleaned away before it was read, so the next one begins at a newer checkpoint.
"""

_logger = logging.getLogger(__name__)

EntryT = TypeVar("EntryT", bound=msgspec.Struct)
StateT = TypeVar("StateT", bound=FoldedState)  # type: ignore[type-arg]


@dataclass(frozen=True, slots=True)
class LogPolicy:
    """How logs of a store age. Milliseconds.

    ``freeing``: when names are freed. ``recent_ms``: consistent cuts look at no older appends than
    this.
    """

    freeing: FreeingRule
    recent_ms: int


class StateLog(Generic[EntryT, StateT]):
    """One log and its state in this process. Safe to use from several threads."""

    def __init__(
        self,
        log: SequenceLog,
        kind: Literal["topic", "group"],
        name: str,
        *,
        new_state: Callable[[], StateT],
        entry_decoder: msgspec.json.Decoder[EntryT],
        checkpoint_decoder: msgspec.json.Decoder[StateT],
        clock: Clock,
        policy: LogPolicy,
    ) -> None:
        self.log = log
        self.kind: Literal["topic", "group"] = kind
        self.name = name
        self.lock = threading.RLock()
        self.clock = clock
        self._state: StateT = new_state()
        self._dropped = False
        """Whether it must be read again: also while it changes, since an interrupt may come."""
        self.ahead = False
        """True if an outcome was learnt by the last listing, from a marker or a checkpoint that it
        has shown, or since: it is not a snapshot, so it may lack entries of that transaction.
        """
        self._new_state = new_state
        self._entry_decoder = entry_decoder
        self._checkpoint_decoder = checkpoint_decoder
        self._policy = policy
        self._listed_at = Moment.now(clock)
        self._seen = False
        """Whether the log was listed, so that ``_listed_at`` is when its end was last seen."""
        self._shown_end = 0
        """The newest number that the last look has shown."""
        self._newest_checkpoint = -1
        self._seen_checkpoints: set[int] = set()
        self._cleaned_chapter = 0
        self._looked_at = (-1, 0.0)
        self._beside: list[Callable[[], object]] = []
        self._read_file = -1
        """The newest file that was read, for those who do not wait for a thread that reads on."""

    def ref(self, number: int) -> EntryRef:
        """How a decision's list names entry ``number`` of this log."""
        return EntryRef(self.kind, self.name, number)

    def undecided(self) -> dict[int, TransactionRef]:
        """The entries whose outcome is not known yet, as they are now."""
        with self.lock:
            return dict(self.state.undecided_entries())

    @property
    def next_entry(self) -> int:
        """A number that the log has not passed yet, as far as is known here; 0 if unknown."""
        with self.lock:
            return 0 if self._dropped else self._state.next_entry

    @property
    def folded(self) -> int:
        """The number of the next entry, at once: does not wait for a thread that reads the log."""
        return self._state.next_entry

    def looks_stuck(self) -> bool:
        """True if the oldest undecided entry is so old that its writer may be dead.

        Then False for a while, so that a long transaction costs others next to nothing.
        """
        with self.lock:
            oldest = None if self._dropped else min(self._state.undecided_entries(), default=None)
            if oldest is None:
                return False
            now_s, now_ms = self.clock.monotonic_s(), self.clock.now_ms()
            known, since_s = self._looked_at
            if known >= 0 and (now_s - since_s) * 1000 < HELP_AFTER_MS:
                return False
            self._looked_at = oldest, now_s
            return (
                known == oldest
                or self._state.next_entry - oldest >= CHECKPOINT_INTERVAL
                or abs(now_ms - self._state.time_of_undecided_ms(oldest)) > HELP_AFTER_MS
            )

    @property
    def state(self) -> StateT:
        """The state as last refreshed, by whichever thread: ``with log.lock`` it stays as it is.

        A change of it that failed or was interrupted has dropped it; then it is read again. It is
        no context manager, whose lock Ctrl-C would leave held; see ForkSafeLock.
        """
        with self.lock:
            if self._dropped:
                self.refresh()
            return self._state

    def _drop(self) -> None:
        """Start from nothing next time: the state in memory cannot be relied on."""
        self._dropped = True
        self._state = self._new_state()

    def _change(self, change: Callable[[StateT], object]) -> None:
        """Change the state, which must be whole; if the change is left, it is dropped."""
        self._dropped = True
        change(self._state)
        self._dropped = False
        self._read_file = self._state.newest_file

    # -- reading ---------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Fold in the entries since the last time: one listing and the new entries.

        Raises CorruptEntry: an entry is missing or damaged, and no checkpoint replaces it.
        StorageError: others append faster than this process reads.
        """
        with self.lock:
            if self._dropped:
                self._drop()  # perhaps it was only begun
            attempts, reached, end = 0, self._state.next_entry, self._shown_end
            for _ in range(_MOST_OVERTAKEN):
                look = self._catch_up()
                if look == "complete":
                    return
                goes_on = look == "overtaken" and self._shown_end > end
                is_further = self._state.next_entry > reached
                attempts = 0 if goes_on or is_further else attempts + 1
                if attempts == _ATTEMPTS:
                    raise CorruptEntry(
                        f"{self.log.path(self._state.next_entry)} is missing, though later files "
                        "exist; restore it from a backup"
                    )
                reached = max(reached, self._state.next_entry)
                end = max(end, self._shown_end)
            raise StorageError(
                f"{self.kind} {self.name!r}: others append faster than this process reads: "
                f"{_MOST_OVERTAKEN} times in a row, what a listing of {self.log.folder} showed was "
                "cleaned up before it was read; try again when less is written, or from nearer by"
            )

    def refresh_beside(self, *calls: Callable[[], object]) -> None:
        """Refresh, with other requests made beside the first listing. Raises what they raise."""
        with self.lock:
            self._beside = [*calls]
            try:
                self.refresh()
            finally:
                self._beside = []

    def _catch_up(self) -> Look:
        """One attempt to refresh."""
        state = self._state
        listed_at = Moment.now(self.clock)
        listing = self._look_beside(state)
        if not self._shows_undecided(listing, state):
            # Cleaned away, perhaps with its marker: only a newer checkpoint knows the outcome.
            self._drop()
            return "overtaken"
        loaded = False
        newest = listing.checkpoints[-1] if listing.checkpoints else -1
        self._shown_end = max(listing.newest, listing.end or 0)
        self._newest_checkpoint = max(self._newest_checkpoint, newest)
        seen = self._seen_checkpoints.union(listing.checkpoints)
        self._seen_checkpoints = {*sorted(seen)[-16 * KEPT_CHECKPOINTS :]}
        self._dropped = True
        try:
            # Also if there is a gap before the checkpoint: an entry before that gap is a stray that
            # a stalled writer put under a freed name.
            end = listing.end_of_numbers(state.next_entry)
            if newest >= min(end, state.next_entry + CHECKPOINT_INTERVAL) or (
                state.next_entry == 0 and newest >= 0
            ):
                state = self._load_checkpoint(listing) or state
                loaded = state is not self._state
                self._decide_cleaned(state, listing)
            begin = state.next_entry
            self._fold(state, listing.files_from(begin))
            if self._may_be_freed(begin, listed_at):
                # What was read may be strays, and a missing name is not the end.
                self._drop()
                return "overtaken"
        except ObjectNotFound:
            self._drop()
            return "overtaken"
        undecided = state.undecided_entries()
        decided = [(n, outcome) for n, outcome in listing.outcomes.items() if n in undecided]
        for number, outcome in decided:
            state.decide(number, outcome)
        self.ahead = bool(decided) or (loaded and state.has_transactions())
        self._listed_at = listed_at
        # A marker or checkpoint, too, tells of an entry: whoever puts one has read it.
        gap = listing.newest >= state.next_entry
        self._seen = not gap  # asking for names would show no file behind a missing one
        passed = listing.end is not None and state.next_entry > listing.end
        complete = not (gap or passed) and self._shows_undecided(listing, state)
        if complete:
            state.expire()
        self._state = state
        self._dropped = False
        self._read_file = state.newest_file
        return "complete" if complete else "torn"

    @staticmethod
    def _shows_undecided(listing: Listing, state: StateT) -> bool:
        """Whether all entries that a state calls undecided are there."""
        return {*map(state.file_of, state.undecided_entries())} <= {*listing.entries}

    def _look_beside(self, state: StateT) -> Listing:
        if not self._beside:
            return self._look(state)
        found: list[Listing] = []
        calls, self._beside = self._beside, []
        self.log.storage.gather([lambda: found.append(self._look(state)), *calls])
        return found[0]

    def _look(self, state: StateT) -> Listing:
        """The new files, by a listing or, if that is cheaper, by asking for the possible names."""
        if (
            state.next_entry > 0
            and self._seen
            and self.log.storage.lists_whole_folders()
            and not self._stalled()
        ):
            undecided = {number: state.file_of(number) for number in state.undecided_entries()}
            found = self.log.look_on(state.next_entry, state.newest_file, undecided)
            if found is not None:
                return found
        first = min([state.next_entry, *map(state.file_of, state.undecided_entries())])
        begin = self._find_beginning() if state.next_entry == 0 else 0
        found = self.log.listing(max(first, begin))
        if begin > 0 and not found.checkpoints:
            found = self.log.listing(first)
        self._seen = True
        return found

    def _find_beginning(self) -> int:
        """An entry after which there may be a checkpoint, for a process new to the log."""
        return 0

    def _load_checkpoint(self, listing: Listing) -> StateT | None:
        """The newest readable checkpoint ahead of us; None if there is none."""
        for number in reversed(listing.checkpoints):
            if number < self._state.next_entry:
                break
            state = self._read_checkpoint(number)
            if state is not None:
                return state
        return None

    def _read_checkpoint(self, number: int) -> StateT | None:
        """The state after entry ``number``; None if the checkpoint is damaged."""
        path = self.log.path(number, LogFile.CHECKPOINT)
        try:
            return envelope.decode(self.log.read_checkpoint(number), self._checkpoint_decoder, path)
        except CorruptEntry as error:
            _logger.warning("%s; going on from an older checkpoint", error)
            return None

    def _decide_cleaned(self, state: StateT, listing: Listing) -> None:
        """Decide entries that a checkpoint calls undecided but that cleaning has deleted.

        The cleaner knew the outcome, and has put it into an older checkpoint: the newest one may
        come from a process that knew less.
        """
        gone = [n for n in state.undecided_entries() if state.file_of(n) not in listing.entries]
        for number, outcome in self.outcomes_in_checkpoints(gone, listing).items():
            if isinstance(outcome, Outcome):
                state.decide(number, outcome)
            elif outcome == "gone":
                # Nothing of it is left there, so nothing of it is shown here.
                state.decide(number, Outcome.ABORT)

    def outcomes_in_checkpoints(
        self, numbers: Iterable[int], listing: Listing
    ) -> dict[int, Outcome | Unsettled]:
        """What the checkpoints in a listing say about undecided entries, newest first.

        Returns, by entry, its outcome in any of them; else what the newest one says. An entry
        beyond them all is left out.
        """
        found: dict[int, Outcome | Unsettled] = {}
        wanted = set(numbers)
        for number in reversed(listing.checkpoints):
            asked = {n for n in wanted if n <= number}
            if not asked:
                break
            try:
                state = self._read_checkpoint(number)
            except ObjectNotFound:
                continue  # cleaned up, with the entries that it knew of
            if state is None:
                continue
            for entry in asked:
                outcome = self._outcome_in(state, entry)
                if isinstance(outcome, Outcome) or outcome == "gone":
                    found[entry] = outcome
                    wanted.discard(entry)
                else:
                    found.setdefault(entry, outcome)
        return found

    def _outcome_in(self, state: StateT, number: int) -> Outcome | Unsettled:
        """How an entry was decided according to a state, perhaps of an older checkpoint."""
        return state.outcome_of(number)

    def _fold(self, state: StateT, files: tuple[int, ...]) -> None:
        """Fold these files in, up to the first gap."""
        if files[:1] != (state.next_entry,):
            return
        for number, data in zip(files, self.log.read(files), strict=True):
            if number != state.next_entry:
                return
            entry = self._decode(number, data)
            apply_file(state, number, entry, self.log.path(number))

    def _decode(self, number: int, data: bytes) -> EntryT:
        path = self.log.path(number)
        return envelope.decode(data, self._entry_decoder, path)

    # -- writing ---------------------------------------------------------------------------------

    def append(
        self,
        build: Callable[[StateT], EntryT | None],
        *,
        refreshed: bool = False,
        timeout_ms: int = DELIVERY_TIMEOUT_MS,
    ) -> int | None:
        """Add the entry that ``build`` makes for the newest state, retrying lost races.

        ``build`` validates and returns an entry, or None to add nothing; raises to refuse. If its
        chapter was closed before we looked, our entry may count or not, and ``build`` is called
        again. If it has nothing to add then, the work is done, by us or by another process.

        ``refreshed``: just now; the first attempt does without a listing. ``timeout_ms``: how long
        it goes on losing races. Returns the entry's number, None if ``build`` returned None.

        Raises InvalidOption: the entry could not be read again; nothing was written. StorageError:
        the entry may be there or appear later. The storage failed, or ``build`` refuses an entry
        that may have been placed already.
        """
        with self.lock:
            turns = Turns(self.clock, timeout_ms)
            in_doubt: int | None = None
            while True:
                if not refreshed or self._dropped:
                    self.refresh()
                refreshed = False
                try:
                    entry = build(self._state)
                except StorageError:
                    raise
                except TxnlogError as error:
                    if in_doubt is None:
                        raise
                    # The reason for the refusal may be our own entry.
                    unknown = StorageError(
                        f"{self.log.path(in_doubt)}, which was put, may or may not count: it was "
                        f"closed before that was known, and is refused now: {error}"
                    )
                    unknown.retriable = False
                    raise unknown from error
                if entry is None:
                    return in_doubt
                attempted = self._state.next_entry
                number = self.put_next(entry)
                if number is not None:
                    return number
                if self._dropped:
                    in_doubt = attempted
                turns.lose(attempted)
                outcome = "nothing was written"
                if in_doubt is not None:
                    outcome = f"{self.log.path(in_doubt)}, which was put, may or may not count"
                turns.check_in_time(f"{self.kind} {self.name!r}", outcome)
                turns.pause(asked=False)

    def put_next(self, entry: EntryT) -> int | None:
        """Put an entry that was built for the current state, and fold it in; returns its number.

        None if another process was first: then the state must be refreshed. Raises what
        :meth:`append` does. The caller must hold the lock.
        """
        number, newest_file = self._state.next_entry, self._state.newest_file
        try:
            if not self.log.create(number, self._encode(number, entry), newest_file):
                return None
        except ObjectNotFound as error:
            _logger.warning("%s; %s is read again", error, self.log.folder)
            self._drop()
            self.refresh()  # nothing of ours is in doubt
            self._check_newest(newest_file)
            return None
        if self._may_be_freed(number, self._listed_at):
            _logger.warning("%s was put, and its name may have been freed", self.log.path(number))
            self._drop()
            return None
        self._change(lambda state: state.apply(number, entry))
        return number

    def _check_newest(self, missed: int) -> None:
        """Raise StorageError if the missed file is the log's newest, and is still missing.

        Only a checkpoint tells of it then. A process that has not read the checkpoint may put
        another file at its number, so nobody goes on.
        """
        if self._state.newest_file != missed or all(self.log.ask([(missed, LogFile.ENTRY)])):
            return
        if not self.log.chapters.is_closed(missed):
            lost = StorageError(
                f"{self.log.path(missed)} is missing, though a checkpoint tells of it, and nothing "
                "can be put behind it; restore it from a backup"
            )
            lost.retriable = False
            raise lost

    def confirm_read(self) -> None:
        """Make durable what was read of the log: something elsewhere follows from it.

        Without a request if nothing was read since the last time, or since an entry of ours. At
        once: does not wait for a thread that reads the log.

        Raises StorageError: it may not be durable.
        """
        self.log.confirm(self._read_file)

    def _encode(self, number: int, entry: EntryT) -> bytes:
        """The entry's bytes. An unreadable entry would make the log useless.

        Raises InvalidOption: a value in it, given by a caller, has the wrong type.
        """
        return envelope.encode_readable(
            entry,
            self._entry_decoder,
            f"{self.kind} {self.name!r}",
            self.log.path(number),
        )

    def preview(self, build: Callable[[StateT], EntryT | None]) -> StateT:
        """The state as it would be after :meth:`append`; nothing is written."""
        with self.lock:
            self.refresh()
            entry = build(self._state)
            state = self._checkpoint_decoder.decode(msgspec.json.encode(self._state))
            if entry is not None:
                self._encode(state.next_entry, entry)
                state.apply(state.next_entry, entry)
            return state

    def reload(self) -> None:
        """Start over from the newest checkpoint: entries before it may not be readable any more."""
        with self.lock:
            self._drop()

    def file_of(self, number: int) -> int:
        """The file that holds an entry which is undecided, or among the newest."""
        with self.lock:
            return self.state.file_of(number)

    def is_entry_of(self, number: int, file: int, transaction: TransactionRef) -> bool:
        """True if entry ``number`` is in a file and belongs to a transaction. Reads it."""
        try:
            data = self.log.read([file])[0]
        except ObjectNotFound:
            return False
        entries = unbundled(self._decode(file, data))
        if number - file >= len(entries):
            return False
        owner: TransactionRef | None = getattr(entries[number - file], "transaction", None)
        return owner is not None and owner.key == transaction.key

    def mark(self, number: int, outcome: Outcome, transaction: TransactionRef) -> None:
        """Put the control marker of an entry, and record it."""
        self.log.mark(number, outcome, envelope.encode(Marker(outcome, transaction)))
        self.decide(number, outcome)

    def decide(self, number: int, outcome: Outcome) -> None:
        """Record an outcome that was found elsewhere than in a marker."""
        with self.lock:
            self.ahead = True
            if not self._dropped:
                self._change(lambda state: state.decide(number, outcome))

    def checkpoint_if_due(self) -> bool:
        """Put a checkpoint if the last one is old, and clean up; failures only delay it.

        Returns whether it was due.
        """
        return self._checkpoint_if(self._checkpoint_is_due)

    def checkpoint_at_end(self) -> bool:
        """Put a checkpoint beside the newest entry unless there is one; see above.

        For a log to which little will be added: from then on it is read by two requests.
        """
        return self._checkpoint_if(lambda number: number > self._newest_checkpoint)

    def _checkpoint_if(self, is_due: Callable[[int], bool]) -> bool:
        with self.lock:
            try:
                if not self._dropped and is_due(self._state.next_entry - 1):
                    self.checkpoint()
                    return True
            except TxnlogError as error:
                _logger.warning("no checkpoint was left in %s: %s", self.log.folder, error)
            return False

    def _checkpoint_is_due(self, number: int) -> bool:
        interval = self._checkpoint_interval()
        if number - self._newest_checkpoint >= interval and self.log.storage.lists_whole_folders():
            # The end was found by names, which shows no checkpoints of others.
            found = self.log.checkpoints_in(self._newest_checkpoint + 1, number + 1)
            self._seen_checkpoints |= {*found}
            self._newest_checkpoint = max([self._newest_checkpoint, *found])
        return number - self._newest_checkpoint >= interval

    def _checkpoint_interval(self) -> int:
        """How many entries there are between checkpoints."""
        return CHECKPOINT_INTERVAL

    def checkpoint(self) -> None:
        """Put the state as it is beside the newest entry, and clean up behind an old checkpoint."""
        with self.lock:
            number = self.state.next_entry - 1
            self._newest_checkpoint = max(self._newest_checkpoint, number)
            data = envelope.encode(self._state)
            # Only behind a checkpoint that knows what we know: readers that miss entries ask it.
            if self.log.put_checkpoint(number, data):
                self._clean(number)
                self._delete_superseded(number)

    def _delete_superseded(self, newest: int) -> None:
        """Delete the checkpoints that ``newest``, just put, supersedes; the last few are kept.

        Not those that may know the outcome of an entry which the newest calls undecided: it could
        be cleaned up behind one of them (invariant L10).
        """
        undecided = min(self._state.undecided_entries(), default=newest)
        older = sorted(self._seen_checkpoints)[: -KEPT_CHECKPOINTS + 1]
        doomed = [number for number in older if number < min(undecided, newest)]
        self._seen_checkpoints = {newest, *self._seen_checkpoints.difference(doomed)}
        self.log.delete_checkpoints(doomed)

    def _clean(self, number: int) -> None:
        """Close and free the entries before checkpoint ``number``, just put (hazard 3).

        Not those that it calls undecided: their markers may come, or exist.
        """
        end = min([number, *self._state.undecided_entries()])
        # Not compared with the last checkpoint: if something is always undecided, the end never
        # gets that far.
        if chapter_of(end) > self._cleaned_chapter:
            self.log.chapters.clean(end, self._policy.freeing)
            self._cleaned_chapter = chapter_of(end)

    def _may_be_freed(self, number: int, since: Moment) -> bool:
        """Whether the name of entry ``number`` may have been freed since then (hazard 3).

        On disks, where it is cheap, the log is asked each time; elsewhere only if time has passed.
        """
        if not self.log.storage.lists_whole_folders() and not self._stalled_since(since):
            return False
        return self.log.chapters.is_closed(number)

    def _stalled(self) -> bool:
        """True if the listing we built on is so old that cleaning may have overtaken us."""
        return self._stalled_since(self._listed_at)

    def _stalled_since(self, moment: Moment) -> bool:
        """True if enough time has passed for a name to have been cleaned up since."""
        return moment.stalled_past(self._policy.freeing.age_ms, self.clock)
