"""The logs of transactional ids: finding the newest state of an id, and putting the next one.

Every entry is the whole state, so only the newest counts. Knows nothing of topics or groups.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from txnlog import names
from txnlog.clock import Clock, Moment
from txnlog.config import DAY_MS
from txnlog.errors import (
    CorruptEntry,
    CorruptTransactionState,
    InvalidTransactionalId,
    ObjectNotFound,
    StorageError,
    TransactionalIdNotFound,
)
from txnlog.limits import TimeMs
from txnlog.log.chapters import FreeingRule
from txnlog.log.named_folders import list_transactional_ids
from txnlog.log.sequence_log import Recent, SequenceLog, check_case
from txnlog.state.transaction import (
    DECODER,
    Outcome,
    TransactionKey,
    TransactionState,
    may_follow,
)
from txnlog.storage import envelope
from txnlog.storage.base import Storage, lasts

_KEPT_ENTRIES = 64
"""How many of the newest entries of an id's log stay, whatever their age."""
_ATTEMPTS = 20
_READ_ONLY = FreeingRule(DAY_MS)


@dataclass(frozen=True, slots=True)
class Head:
    """The newest state of a transactional id, and its place in the id's log.

    ``witnesses`` are the times (ms, by several clocks) at which others have seen it.
    """

    number: int
    state: TransactionState
    witnesses: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class UnreadableState:
    """A newest state that cannot be read (``number`` -1: all of the id's log is gone).

    ``before`` is the state before it, as far as that is there.
    """

    number: int
    reason: str
    before: Head | None
    witnesses: tuple[int, ...] = ()


@dataclass(slots=True)
class _KnownId:
    """What saves a process requests about an id that it has met.

    ``newest`` was its newest state, and when: entries before it need not be listed. ``durable``:
    see ``SequenceLog.durable``. ``told_apart``: its folder is no other id's on a disk that folds
    case. ``cleaned`` knows which chapters were closed last time.
    """

    newest: tuple[int, Moment] | None = None
    durable: int = -1
    told_apart: bool = False
    cleaned: SequenceLog | None = None
    cleaned_at: int | None = None


class Witness(msgspec.Struct, frozen=True, tag_field="kind", tag="seen"):
    """The content of a witness, for people: its name alone counts. By its writer's clock."""

    at_ms: TimeMs


class TransactionLog:
    """The states of all transactional ids of a store."""

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        freeing: FreeingRule = _READ_ONLY,
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._freeing = freeing
        self._ids: Recent[str, _KnownId] = Recent(clock)

    def ids(self) -> list[str]:
        """Every transactional id that has a log, in the order of their names."""
        return list_transactional_ids(self._storage)

    def head(self, transactional_id: str) -> Head | None:
        """The newest state: one listing and one read; None if the id has none.

        Entries older than one that was the newest a moment ago are not listed again. If the oldest
        are gone, one more listing tells whether the id has expired since.

        Raises CorruptTransactionState: the newest state is damaged; other ids are not affected.
        """
        log = self._log(transactional_id)
        id_ = self._known(transactional_id)
        for _ in range(_ATTEMPTS):
            since = self.now()
            known = self._still_known(id_)
            listing = log.listing(known)
            if not listing.entries:
                if known == 0:
                    return None
                id_.newest = None
                continue
            number = listing.entries[-1]
            begun = listing.entries[0] == known and number > 0
            if known == 0 and self._storage.kind() == "replicated":
                begun = False  # a root that leads later may have the beginning of a removed log
            if not begun and self._is_stray(transactional_id, number):
                return None
            id_.newest = number, since
            try:
                state = self._decode(log, number)
            except ObjectNotFound:
                continue
            except CorruptEntry as error:
                raise CorruptTransactionState(
                    f"{error}. Until then nobody can tell what became of a transaction of "
                    f"{transactional_id!r} that is not marked; it is treated as aborted when the "
                    "store's longest timeout has passed, or at once by "
                    f"`txnlog txns abort --force {shlex.quote(transactional_id)}`"
                ) from error
            if self._may_be_freed(since) and self._is_stray(transactional_id, number):
                continue
            return Head(number, state, listing.witnesses.get(number, ()))
        raise CorruptEntry(f"{log.folder} shows entries that cannot be read")

    def damage(self, transactional_id: str, *, force: bool = False) -> UnreadableState | None:
        """What is wrong with the newest state of an id that has one; None if it can be read.

        Raises StorageError: only with ``force`` a file that the storage refuses is damaged.
        """
        log = self._log(transactional_id)
        listing = log.listing()
        if not listing.entries:
            reason = f"{log.folder} is gone"
            return UnreadableState(-1, reason, None, listing.witnesses.get(0, ()))
        number = listing.entries[-1]
        try:
            self._decode(log, number)
        except (CorruptEntry, StorageError) as error:
            if isinstance(error, StorageError) and not (force and lasts(error)):
                raise
            before = None
            if number - 1 in listing.entries:
                try:
                    before = Head(number - 1, self._decode(log, number - 1))
                except (CorruptEntry, ObjectNotFound):
                    pass
                except StorageError as refused:
                    if not (force and lasts(refused)):
                        raise
            return UnreadableState(number, str(error), before, listing.witnesses.get(number, ()))
        return None

    def created_ms(self, transactional_id: str, number: int) -> int | None:
        """When a state was put, by the storage's clock; None if it does not tell.

        Raises StorageError, ObjectNotFound.
        """
        return self._storage.modified_ms(self._log(transactional_id).path(number))

    def commits(
        self, transactional_id: str, keys: Collection[TransactionKey]
    ) -> dict[TransactionKey, TransactionState]:
        """The PrepareCommit states of these transactions, as far as the id's log still has them.

        One listing, and reads back from the newest state to the oldest of them.
        """
        log, missing = self._log(transactional_id), {*keys}
        found: dict[TransactionKey, TransactionState] = {}
        for number in reversed(log.listing().entries):
            if not missing:
                break
            try:
                state = self._decode(log, number)
            except (CorruptEntry, ObjectNotFound):
                break
            if state.ref.key in missing and state.outcome is Outcome.COMMIT:
                found[state.ref.key] = state
                missing.discard(state.ref.key)
        return found

    def find_beginning(self, head: Head) -> int:
        """The number of the state with which the open transaction of ``head`` began.

        It is put again with each topic that the transaction joins. Reads the states before it, as
        far as they are there.
        """
        log, number = self._log(head.state.transactional_id), head.number
        with suppress(CorruptEntry, ObjectNotFound):
            while number > 0:
                before = self._decode(log, number - 1)
                if not before.open or before.ref.key != head.state.ref.key:
                    break
                number -= 1
        return number

    def witness(self, transactional_id: str, number: int, now_ms: int) -> int | None:
        """Tell others that a state is there; returns the storage's time, None if it is not told."""
        path = self._log(transactional_id).witness_path(max(number, 0), now_ms)
        if not self._storage.put_if_absent(path, envelope.encode(Witness(now_ms))):
            return None
        return self._storage.modified_ms(path)

    def _still_known(self, id_: _KnownId) -> int:
        """The number from which an id's log is listed; 0 if what is known of it is too old.

        By then the log may have been removed, and a stray may have the newest entry's name.
        """
        if id_.newest is None or self._may_be_freed(id_.newest[1]):
            return 0
        return id_.newest[0]

    def _is_stray(self, transactional_id: str, number: int) -> bool:
        """True if the id has expired since entry ``number`` was due.

        Its writer slept while the id expired, and put it under a name that was freed (hazard 3).
        """
        expired = self.expired(transactional_id)
        return expired is not None and expired.number > number

    def describe(self, transactional_id: str) -> Head:
        """The id's newest state, see :meth:`head`. Raises TransactionalIdNotFound: none."""
        found = self.head(transactional_id)
        if found is None:
            raise TransactionalIdNotFound(
                f"transactional id {transactional_id!r} is not known in {self._storage.url}"
            )
        return found

    def expired(self, transactional_id: str) -> Head | None:
        """The last state of an id whose log was removed, None if it never had one.

        Numbers go on from there. If they started over, a state that a stalled instance puts long
        after would pass for the newest one.
        """
        log = SequenceLog(self._storage, names.expired_log(transactional_id), self._clock)
        for _ in range(_ATTEMPTS):
            listing = log.listing()
            if not listing.entries:
                return None
            try:
                head = Head(listing.entries[-1], self._decode(log, listing.entries[-1]))
            except ObjectNotFound:
                continue  # replaced by a later one
            # What follows is put behind the copy, which was durable before the entry was deleted.
            known = self._known(transactional_id)
            known.durable = max(known.durable, head.number)
            return head
        raise CorruptEntry(f"{log.folder} shows entries that cannot be read")

    def remove(self, head: Head) -> None:
        """Remove the log of a dead id, after a copy of its last state was put into ``expired/``.

        Repeating it does no harm, wherever it was interrupted. Nor does a stall: whatever the id
        does meanwhile has higher numbers, and only what lies up to this state is deleted. Raises
        StorageError: it may be half done.
        """
        transactional_id = head.state.transactional_id
        kept = SequenceLog(self._storage, names.expired_log(transactional_id), self._clock)
        kept.create(head.number, envelope.encode(head.state), -1)  # it stands alone
        kept.delete_below(head.number)
        log = self._log(transactional_id)
        if log.listing(head.number).entries[-1:] > (head.number,):
            return  # it lives again
        # The newest is deleted last: nobody may take an older one for the newest and go on from it.
        log.delete_below(head.number)
        log.delete_entries(head.number, head.number + 1)

    def put(
        self, number: int, state: TransactionState, since: Moment, *, decided: bool = False
    ) -> bool:
        """Put ``state`` as entry ``number`` of its id's log: True if it is ours.

        Its nonce distinguishes it from all others. ``since``: :meth:`now` from before the entry
        that it follows was read, to notice a stall (hazard 3). ``decided``: it completes that
        entry. Nobody puts anything else there (invariant T10), so it is ours also if somebody else
        has put it.

        Raises StorageError: the outcome is unknown (hazard 2).
        """
        log = self._log(state.transactional_id)
        what = f"transactional id {state.transactional_id!r}"
        data = envelope.encode_readable(state, DECODER, what, log.path(number))
        try:
            if not log.create(number, data, decided=decided):
                return False
        except ObjectNotFound:
            return False  # the entry before it is gone: what the caller has read is no more
        known = self._known(state.transactional_id)
        known.durable = log.durable
        looks = self._may_be_freed(since) or self._storage.lists_whole_folders()
        # In this order: the marks are deleted once the copy that an expiry leaves exists.
        if looks and (
            log.chapters.is_closed(number) or self._is_stray(state.transactional_id, number - 1)
        ):
            return False
        known.newest = number, since
        return True

    def confirm(self, head: Head) -> None:
        """Make sure that a state which was found in its log is durable.

        For callers that report it as reached, or put something elsewhere that follows from it.
        Raises StorageError: it may not be durable.
        """
        log = self._log(head.state.transactional_id)
        log.confirm(head.number)
        self._known(head.state.transactional_id).durable = log.durable

    def has_counted(self, number: int, state: TransactionState, *, in_doubt: bool) -> bool | None:
        """Whether a decision, whose :meth:`put` returned False, was the id's state; None: unknown.

        It was if its completion follows, which has its nonce. It was not if the entry is somebody
        else's, or ours without a successor that follows from it: then the name had been freed by
        cleaning. If the entry is gone, it may have been; also if an earlier put of it is
        ``in_doubt``, since that one may have come before the cleaning.
        """
        log = self._log(state.transactional_id)
        try:
            found = self._decode(log, number)
        except ObjectNotFound:
            return None
        if found.nonce != state.nonce:
            # Who has slept may have put another one there since.
            return None if in_doubt and self._is_stray(state.transactional_id, number) else False
        try:
            later = self._decode(log, number + 1)
        except ObjectNotFound:
            return None if in_doubt else False
        if later.nonce == state.nonce:
            return True
        return None if may_follow(later, state) else False

    def now(self) -> Moment:
        """This moment: anything read from now on may be built on; see :meth:`put`."""
        return Moment.now(self._clock)

    def _may_be_freed(self, since: Moment) -> bool:
        """Whether names that were in use at a moment may have been freed since (hazard 3)."""
        return since.stalled_past(self._freeing.age_ms, self._clock)

    def clean(self, transactional_id: str, newest: int) -> None:
        """Close and free what lies before ``newest``, a state of an id that was found the newest.

        Raises StorageError: nothing is lost; the next time does it.
        """
        known = self._known(transactional_id)
        known.cleaned_at = newest
        if known.cleaned is None:
            known.cleaned = self._log(transactional_id)
        known.cleaned.chapters.clean(newest - _KEPT_ENTRIES, self._freeing)

    def cleaned_at(self, transactional_id: str) -> int | None:
        """The newest state of an id when :meth:`clean` was last called; None if not lately."""
        return self._known(transactional_id).cleaned_at

    def _log(self, transactional_id: str) -> SequenceLog:
        folder = names.transaction_log(transactional_id)
        known = self._known(transactional_id)
        if not known.told_apart:
            what = f"transactional id {transactional_id!r}"
            check_case(self._storage, folder, what, InvalidTransactionalId)
            known.told_apart = True
        log = SequenceLog(self._storage, folder, self._clock)
        log.durable = known.durable
        return log

    def _known(self, transactional_id: str) -> _KnownId:
        known = self._ids.get(transactional_id)
        if known is None:
            known = self._ids[transactional_id] = _KnownId()
        return known

    @staticmethod
    def _decode(log: SequenceLog, number: int) -> TransactionState:
        return envelope.decode(log.read([number])[0], DECODER, log.path(number))
