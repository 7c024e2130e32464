"""Append batching: writers that lose an entry number do not queue for the next one.

A writer that loses leaves a proposal beside the log, and looks again. Of those that wait, the one
whose proposal comes first puts the next entry with the appends of all proposals; the others find
themselves placed. No writer depends on another: if nothing comes, the next few may put it, then
all. A writer that is alone does none of this. An append of a transaction is placed like any other,
as an entry of its own in a bundle, which its transaction decides.

This only saves requests. That an append is placed once follows from the log alone, see PROTOCOL.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from itertools import takewhile

from txnlog import names
from txnlog.clock import Clock
from txnlog.errors import (
    CorruptEntry,
    LogTruncated,
    ObjectNotFound,
    StorageError,
    TxnlogError,
    UnsupportedVersion,
)
from txnlog.log.sequence_log import Turns
from txnlog.log.state_log import StateLog
from txnlog.log.uploads import RECHECK_AFTER_MS, UploadCheck
from txnlog.names import SegmentRef
from txnlog.state.proposal import (
    DECODER,
    MOST_BEHIND,
    MOST_TOGETHER,
    Proposal,
    combine,
    is_proposable,
    owner_of,
)
from txnlog.state.topic import TopicState
from txnlog.state.topic_entries import Append, TopicEntry
from txnlog.storage import envelope
from txnlog.storage.base import Storage

_logger = logging.getLogger(__name__)


class Proposals:
    """Puts, lists, reads and deletes the proposals of one topic. No failure here matters.

    They are a folder of small files, listed only by writers that have one there. Nothing depends on
    any of them: if one is missing, or shows late, its own writer places the append, and one that is
    left over is no longer placed (``state/proposal.py``), so any may be deleted at any time.

    Until ``busy_until_s``, by this process's monotonic clock, an append had better be proposed at
    once: others appended a moment ago. ``own_end`` is the number after the last entry that this
    process has put after it had proposed.
    """

    def __init__(self, storage: Storage, topic: str) -> None:
        self.folder = names.topic_proposals(topic)
        self.busy_until_s = 0.0
        self.own_end = -1
        self._storage = storage

    def is_busy(self, clock: Clock) -> bool:
        """Whether an append had better be proposed at once."""
        return clock.monotonic_s() <= self.busy_until_s

    def put(self, name: str, proposal: Proposal) -> None:
        """Put one. It need not be durable: its writer can do without."""
        try:
            data = envelope.encode(proposal)
            self._storage.without_fsync().put_if_absent(f"{self.folder}/{name}", data)
        except (StorageError, TypeError, ValueError) as error:
            _logger.debug("a proposal was not put into %s: %s", self.folder, error)

    def names(self, next_entry: int) -> list[str]:
        """The names of proposals that entry ``next_entry`` may place, the oldest first."""
        oldest = names.log_file_prefix(max(next_entry - MOST_BEHIND, 0))
        try:
            found = self._storage.list_names(self.folder, oldest)
        except StorageError as error:
            _logger.debug("%s was not listed: %s", self.folder, error)
            return []
        return [name for name in found if names.parse_proposal(name) is not None]

    def read(self, chosen: Sequence[str]) -> list[Proposal | None]:
        """Proposals by their names; None for one that is gone or cannot be read."""
        return self._storage.gather([partial(self._read, name) for name in chosen])

    def _read(self, name: str) -> Proposal | None:
        path = f"{self.folder}/{name}"
        try:
            return envelope.decode(self._storage.get(path), DECODER, path)
        except ObjectNotFound:
            return None
        except (StorageError, CorruptEntry, UnsupportedVersion) as error:
            _logger.debug("a proposal was passed over: %s", error)
            return None

    def delete(self, chosen: Sequence[str]) -> None:
        """Delete some that are no longer needed."""
        try:
            self._storage.delete([f"{self.folder}/{name}" for name in chosen])
        except StorageError as error:
            _logger.debug("proposals were left in %s: %s", self.folder, error)


MOST_AGE_MS = 60_000
"""An older proposal, by wall clocks, is left to its own writer."""
_BUSY_S = 2.0
"""For how long after a lost race an append is proposed at once."""
_FEW = 2
"""Up to this many proposals, writers had better put their own entries."""


class BatchedAppend:
    """One append on its way into a topic's log.

    ``build`` judges the append and builds it for a state; None if the state has it already.
    ``begun_ms``: when uploads of its segments began, by this process's clock. ``timeout_ms``: how
    long it goes on while others are faster.
    """

    def __init__(
        self,
        log: StateLog[TopicEntry, TopicState],
        proposals: Proposals,
        build: Callable[[TopicState], Append | None],
        begun_ms: Sequence[int | None],
        timeout_ms: int,
    ) -> None:
        self._log = log
        self._clock = log.clock
        self._proposals = proposals
        self._build = build
        self._begun_ms = [at_ms for at_ms in begun_ms if at_ms is not None]
        self._turns = Turns(log.clock, timeout_ms)
        self._own: Proposal | None = None
        self._own_name = ""
        self._is_sent = True
        self._known: dict[str, Proposal | None] = {}
        self._is_next = False
        """Whether its turn is the next but one: then it looks again at once."""

    def run(self, *, refreshed: bool = False) -> int | None:
        """Append it. With ``refreshed`` the log was refreshed just now.

        Returns:
            The entry's number if this process has put it; None if ``build`` has found it placed.

        Raises what ``StateLog.append`` does. While others may place it, any error is a
        StorageError: the outcome is unknown.
        """
        with self._log.lock:
            try:
                return self._go_on(refreshed=refreshed)
            except (StorageError, LogTruncated):
                raise
            except TxnlogError as error:
                if self._may_be_placed():
                    unknown = StorageError(
                        f"topic {self._log.name!r}: what was proposed to other writers may or "
                        f"may not be placed: {error}"
                    )
                    unknown.retriable = False
                    raise unknown from error
                if self._own is not None:
                    self._proposals.delete([self._own_name])
                raise

    def _go_on(self, *, refreshed: bool) -> int | None:
        turns = self._turns
        refreshed = not self._propose_if_busy() and refreshed
        while True:
            before = self._log.next_entry
            shown = [] if refreshed else self._refresh()
            refreshed = False
            if len(shown) > _FEW:
                self._note_others()
            with self._log.lock:
                state = self._log.state
                append = self._build(state)
                if append is None:
                    self._note_others()
                    return None
                self._check_own(state)
                turns.looked(has_gone_on=state.next_entry > before)
                is_my_turn = self._is_my_turn(state, shown)
                if is_my_turn:
                    number = self._put(state, append, shown)
                    if number is not None:
                        return number
                    turns.lose(state.next_entry)
                    if len(turns.lost) > 1:
                        self._note_others()
            outcome = "nothing was written" if self._own is None else "it may still be placed"
            turns.check_in_time(f"topic {self._log.name!r}", outcome)
            if not is_my_turn:
                turns.pause(asked=True, at_once=self._is_next)
            elif self._own is None:
                turns.pause(asked=False)

    def _note_others(self) -> None:
        self._proposals.busy_until_s = self._clock.monotonic_s() + _BUSY_S

    # -- its own proposal ------------------------------------------------------------------------

    def _propose_if_busy(self) -> bool:
        """Leave a proposal first if others were faster lately: a put would probably lose again."""
        if self._log.next_entry == 0 or not self._proposals.is_busy(self._clock):
            return False
        with self._log.lock:
            state = self._log.state
            try:
                append = self._build(state)
            except (StorageError, LogTruncated):
                raise
            except TxnlogError:
                return False  # as far as was known here; newer entries decide
            if append is not None:
                self._propose(state, append)
        return self._own is not None

    def _propose(self, state: TopicState, append: Append) -> None:
        """Propose an append that was built for a state, beside the next look at the log."""
        now_ms = self._clock.now_ms()
        is_young = all(abs(now_ms - at_ms) < RECHECK_AFTER_MS for at_ms in self._begun_ms)
        if not self._begun_ms or not is_young or not is_proposable(state, append):
            return
        assert state.topic_id is not None
        begun_ms = (min(self._begun_ms), max(self._begun_ms))
        number, time_ms = state.next_entry, state.append_time_ms
        history = self._log.log.storage.history()
        self._own = Proposal(state.topic_id, number, time_ms, begun_ms, append, history)
        self._own_name = names.proposal(number, append.segments[0].stored.name)
        self._is_sent = False

    def _check_own(self, state: TopicState) -> None:
        """Drop a proposal that nobody will place any more. Raises StorageError."""
        own = self._own
        if own is None or own.may_be_placed(state):
            return
        if owner_of(own.append) is None and own.may_be_deleted(state):
            error = StorageError(
                f"topic {self._log.name!r}: records that were proposed to other writers may have "
                "been placed, and deleted since"
            )
            error.retriable = False
            raise error
        self._own = None

    def _may_be_placed(self) -> bool:
        """Whether another writer may have placed it, or may still do so, as far as is known."""
        if self._own is None:
            return False
        try:
            with self._log.lock:
                state = self._log.state
                return self._own.may_be_placed(state)
        except TxnlogError:
            return True

    # -- others' proposals -----------------------------------------------------------------------

    def _refresh(self) -> list[str]:
        """Refresh the log; with a proposal of its own, list the proposals at the same time."""
        if self._own is None:
            self._log.refresh()
            return []
        own, shown = self._own, list[str]()
        number = self._log.next_entry
        calls: list[Callable[[], object]] = []
        if not self._is_sent:
            self._is_sent = True
            calls.append(lambda: self._proposals.put(self._own_name, own))
        calls.append(lambda: shown.extend(self._list(number)))
        with self._turns.looking():
            self._log.refresh_beside(*calls)
        return shown

    def _list(self, next_entry: int) -> list[str]:
        """The proposals, read at once if it is likely to be this process's turn."""
        shown = self._proposals.names(next_entry)
        if self._is_next:
            self._read([name for name in shown if name != self._own_name][:MOST_TOGETHER])
        return shown

    def _is_my_turn(self, state: TopicState, shown: Sequence[str]) -> bool:
        """Whether this append is among the first that wait, or proposes nothing."""
        if self._own is None:
            return True
        waiting = self._waiting(state, shown)
        earlier = [name for name in waiting if name < self._own_name]
        self._is_next = len(earlier) == 1
        return self._turns.may_put(len(earlier))

    def _put(self, state: TopicState, append: Append, shown: Sequence[str]) -> int | None:
        """Put the next entry with others' proposals; None if another process was first."""
        if self._own is None:
            number = self._log.put_next(append)
            if number is None:
                self._propose(state, append)
            return number
        others = self._read(self._waiting(state, shown)[:MOST_TOGETHER])
        entry, taken = combine(
            state, append, others, nonce=self._clock.token(), at_ms=self._clock.now_ms()
        )
        number = self._log.put_next(entry)
        if number is None:
            return None
        self._clean_up(state, shown)
        self._check_uploads(number, taken)
        if len(taken) > 1:
            self._note_others()
        elif not others and self._proposals.own_end == number:
            self._proposals.busy_until_s = 0.0  # alone again
        self._proposals.own_end = self._log.next_entry
        return number

    def _not_placed(self, state: TopicState, shown: Sequence[str]) -> list[str]:
        """The proposals of others that were not placed, as far as their names tell."""
        entries = {name: names.parse_proposal(name) for name in shown if name != self._own_name}
        oldest = min((found[0] for found in entries.values() if found), default=0)
        placed = _names_since(state, oldest)
        return [name for name, found in entries.items() if found and found[1] not in placed]

    def _waiting(self, state: TopicState, shown: Sequence[str]) -> list[str]:
        """The proposals that this process may place, as far as it has read them."""
        unread = True
        return [
            name
            for name in self._not_placed(state, shown)
            if self._known.get(name, unread) is not None
        ]

    def _read(self, chosen: Sequence[str]) -> list[Proposal]:
        """Proposals that may be placed, as far as clocks tell; each is read once."""
        history = self._log.log.storage.history()
        new = [name for name in chosen if name not in self._known]
        now_ms = self._clock.now_ms()
        for name, found in zip(new, self._proposals.read(new), strict=True):
            is_young = (
                found is not None
                and found.history == history
                and abs(now_ms - found.append.at_ms) < MOST_AGE_MS
                and all(abs(now_ms - at_ms) < RECHECK_AFTER_MS for at_ms in found.begun_ms)
            )
            self._known[name] = found if is_young else None
        return [found for name in chosen if (found := self._known[name]) is not None]

    def _clean_up(self, state: TopicState, shown: Sequence[str]) -> None:
        """Delete the proposals that nobody needs any more, its own among them."""
        kept = {
            name
            for name in self._not_placed(state, shown)
            if (found := self._known.get(name)) is None or found.may_be_placed(state)
        }
        self._proposals.delete(sorted({self._own_name, *shown} - kept))

    def _check_uploads(self, number: int, taken: Sequence[Proposal]) -> None:
        """Warn if this process has slept, and vacuum meanwhile deleted files that it has placed.

        Their writers notice too, if they are alive.
        """
        segments = [
            SegmentRef(self._log.name, at.partition, at.stored.name, at.stored.position)
            for found in taken
            for at in found.append.segments
        ]
        begun_ms = [at_ms for found in taken for at_ms in found.begun_ms]
        log = self._log.log
        try:
            UploadCheck(log.storage, self._clock, self._log.name, segments, begun_ms).after(number)
        except StorageError as error:
            _logger.warning("for other writers: %s", error)


def _names_since(state: TopicState, first_entry: int) -> set[str]:
    """The names of the segments that entries from ``first_entry`` on have placed."""
    found = set()
    since = takewhile(lambda entry: entry.number >= first_entry, reversed(state.recent))
    for partition in {number for entry in since for number in entry.first_offsets}:
        for segment in reversed(state.partitions[partition].segments):
            if segment.entry < first_entry:
                break
            found.add(segment.stored.name)
    return found
