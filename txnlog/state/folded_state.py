"""What the states of topics and of groups share: both are folds over a sequence log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Generic, Literal, TypeVar

import msgspec

from txnlog.errors import CorruptEntry
from txnlog.limits import MOST_STATE_BYTES, Counter, TimeMs
from txnlog.state.transaction import Outcome, TransactionRef

EntryT = TypeVar("EntryT", bound=msgspec.Struct)

Unsettled = Literal["undecided", "gone"]
"""A state's answers about an entry besides its outcome; see ``FoldedState.outcome_of``."""


class FoldedState(msgspec.Struct, Generic[EntryT]):
    """Everything that a log says before entry ``next_entry``; also the content of a checkpoint.

    ``log_time_ms`` is the latest wall-clock time in any entry.
    """

    most_bytes: ClassVar[int] = MOST_STATE_BYTES

    next_entry: Counter = 0
    log_time_ms: TimeMs = 0

    @property
    def newest_file(self) -> int:
        """The number of the newest entry's file; -1 if there is no entry yet."""
        return self.next_entry - 1

    def file_of(self, number: int) -> int:
        """The number of the file that holds an entry, if undecided or among the newest."""
        return number

    def undecided_entries(self) -> dict[int, TransactionRef]:
        """The transactional entries whose outcome is not known yet, by entry number."""
        raise NotImplementedError

    def time_of_undecided_ms(self, number: int) -> int:
        """The wall-clock time in an undecided entry."""
        raise NotImplementedError

    def has_transactions(self) -> bool:
        """True if it may hold the outcome of a transaction that is still of interest."""
        return True

    def fold(self, entry: EntryT, number: int) -> int:
        """Fold ``entry`` in; returns its wall-clock time."""
        raise NotImplementedError

    def outcome_of(self, number: int) -> Outcome | Unsettled:
        """How a transactional entry before ``next_entry`` was decided.

        "gone" if nothing of it is left, so its outcome no longer matters.
        """
        raise NotImplementedError

    def decide(self, number: int, outcome: Outcome) -> None:
        """Record the outcome of entry ``number``; known outcomes are not changed."""
        raise NotImplementedError

    def expire(self) -> None:
        """Drop facts that were kept only for a time which is over, by the log's time.

        To be called when everything in a listing is folded in and decided.
        """
        raise NotImplementedError

    def apply(self, number: int, entry: EntryT) -> None:
        """Fold file ``number`` in. Entries come in order and without gaps (invariant L1)."""
        if number != self.next_entry:
            raise ValueError(f"entry {number} folded where {self.next_entry} is next")
        for one in unbundled(entry):
            self.next_entry += 1
            self.log_time_ms = max(self.log_time_ms, self.fold(one, self.next_entry - 1))


def apply_file(state: FoldedState[EntryT], number: int, entry: EntryT, path: str) -> None:
    """Fold file ``number`` of a log in. Raises CorruptEntry: what it says cannot be so."""
    try:
        state.apply(number, entry)
    except (IndexError, KeyError, ValueError) as error:
        raise CorruptEntry(
            f"{path} contradicts the entries before it: {error!r}; restore this folder from a "
            "backup, or see `txnlog doctor`"
        ) from error


def unbundled(entry: EntryT) -> Sequence[EntryT]:
    """The entries that a file holds, in the order of their numbers: one, or those of a bundle."""
    bundled: Sequence[EntryT] = getattr(entry, "bundled", ())
    return bundled or (entry,)
