"""What a request to a replicated store goes through until the epochs agree with what it did.

A request is a *step* that is done under one epoch. When it has been done at every member, the
epochs are listed again: if there is no newer one, it counts, and else it is done again under that.
That look comes last. Made beside the requests to the followers it would prove nothing: one of them
may be elected, and another member may copy what it has, before the request reaches it. One look is
enough for all that was done before it, whatever it is made for.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from txnlog.clock import Clock
from txnlog.errors import (
    CorruptEntry,
    LogTruncated,
    NotAStore,
    NotEnoughReplicas,
    ObjectNotFound,
    StorageError,
    TxnlogError,
    UnsupportedFilesystem,
)
from txnlog.replication import root_names
from txnlog.replication.roots.bounded_requests import BoundedRequests
from txnlog.replication.roots.controller import Controller
from txnlog.replication.roots.epoch_notes import note_epoch, read_notes
from txnlog.replication.roots.epochs import (
    Epoch,
    Member,
    Proposer,
    by_last_in_sync,
    elected,
    elected_unclean,
    root_of,
    without,
)
from txnlog.replication.roots.members import MarkGone
from txnlog.replication.roots.placement import places
from txnlog.replication.roots.same_bytes import Diverged
from txnlog.replication.roots.slowness import MOST_LAGS, Slowness, TookTooLong, time_for
from txnlog.storage.base import Storage
from txnlog.storage.fork_safe_lock import ForkSafeLock
from txnlog.storage.probe import try_put
from txnlog.storage.reach import UnnamedUrl
from txnlog.storage.server_storage import ServerStorage
from txnlog.time_limits import RunWithin, run_whole

T = TypeVar("T")
Step = Callable[[Epoch], T]
Then = Callable[[Epoch], object]
OpenMember = Callable[[Epoch, Member], Storage]
FindKept = Callable[[Slowness, Epoch | None, int], list[Epoch]]
"""Finds the epochs from a number on that roots keep, and one that is known; in their order."""

_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0
_PATIENCE_LAGS = 3
"""How many times ``replica.lag.time.max.ms`` a request is tried for at least: a leader may have to
be found gone, and then the one that was elected in its place. It goes on while the epochs do.
"""


@dataclass(slots=True)
class _Wait:
    """Until when somebody waits for what he has asked for; over once it was waited for in vain."""

    until_s: float
    is_over: bool = False


_ONLY_OBSERVES = (
    " (who only reads puts out no root, though others in sync may answer: a process that writes "
    "does, or `txnlog maintain`, or `txnlog replicas remove {root}`)"
)
_MOST_LEFT = 64
"""So many puts wait for a look that something else makes; for more one is made at once."""

_logger = logging.getLogger(__name__)


class MemberFailed(Exception):
    """A request to one member failed.

    ``useless``: it is no use as it is, whatever time goes by. ``remedy``: what is done about it, in
    place of waiting; True if the step may be tried again at once. ``put_bytes``: it was a put of so
    many, which others may fail to take, too.
    """

    def __init__(
        self,
        member: Member,
        error: Exception,
        *,
        useless: bool = False,
        remedy: Callable[[], bool] | None = None,
        put_bytes: int | None = None,
    ) -> None:
        super().__init__(str(error))
        self.put_bytes = put_bytes
        self.remedy = remedy
        self.member = member
        self.error = error
        self.useless = useless
        self.is_slow = isinstance(error, TookTooLong)


class _Found(Exception):
    """Another member has answered first."""


def _late(member: Member) -> str:
    return f"{member}, one of several"


@dataclass(frozen=True, slots=True)
class _Failing:
    """A member's requests have failed since then, without one that went well."""

    since_s: float
    last_s: float


@dataclass(frozen=True, slots=True)
class _Done(Generic[T]):
    """A step that was done, and waits for a look at the epochs that begins after ``at``."""

    epoch: Epoch
    step: Step[T]
    result: T
    then: Then
    at: int


class Agreement:
    """The newest epoch that this process knows, its members' storages, and which of them fail."""

    def __init__(
        self,
        controller: Controller,
        open_member: OpenMember,
        clock: Clock,
        run_within: RunWithin = run_whole,
    ) -> None:
        self.controller = controller
        controller.find_noted = self._find_noted
        self.observes = True
        """Whether others decide who is in sync: who only reads may see less than they do.

        So it is until the handle is told that it will write.
        """
        self.clock = clock
        self.slowness = Slowness(run_within, clock)
        self._open_member = open_member
        self._storages: dict[tuple[Member, str], Storage] = {}
        self._failing: dict[Member, _Failing] = {}
        self.answered_s: dict[Member, float] = {}
        """When each last answered, by the clock's monotonic time."""
        self._epoch: Epoch | None = None
        self._history: int | None = None
        self._elected_among: tuple[int, tuple[Member, ...]] = (0, ())
        self._round = threading.local()
        self._waiting = threading.local()
        self._noted = -1, False
        """The epoch that was compared with what members keep, and whether all were made to."""
        self._moments = itertools.count()
        """What comes later has a greater number."""
        self._looked: dict[int, int] = {}
        """By epoch, when a look began by which it was the newest."""
        self.find_kept: FindKept | None = None
        """None for who writes: for him the controller alone tells."""
        self.lost: TxnlogError | None = None
        """Why the controller tells nothing; None if it did so when it was last asked."""
        self._asked_s = 0.0
        self._looking = ForkSafeLock()
        """Held while somebody asks beside a request whether its member is out."""
        self._beside: dict[Member, ForkSafeLock] = {}
        """Held while a member is asked for what another one should have given by then."""
        self.left_damaged: set[tuple[Member, str]] = set()
        """Objects that are not as they were written, and that nobody can do anything about."""

    def begin_as(self, other: Agreement) -> None:
        """Know what another one does: which epoch is the newest, who answers, how it is read."""
        self._epoch, self.find_kept = other._epoch, other.find_kept
        self.lost, self._asked_s = other.lost, other._asked_s
        self.slowness, self.answered_s = other.slowness, other.answered_s

    # -- epochs and members ----------------------------------------------------------------------

    def epoch(self) -> Epoch:
        """The newest epoch that is known here: it may have passed."""
        return self._epoch or self.refresh()

    @property
    def known(self) -> Epoch | None:
        """The newest epoch that is known here; None if the epochs were not asked for yet."""
        return self._epoch

    def refresh(self) -> Epoch:
        """The newest epoch there is."""
        began = next(self._moments)
        newest = self._find_newest(self._epoch)
        if self._epoch is None or newest.number >= self._epoch.number:
            self._epoch = newest  # else one that began later has ended before
        self._looked[newest.number] = max(began, self._looked.get(newest.number, -1))
        return newest

    def _find_newest(self, known: Epoch | None) -> Epoch:
        """Who only reads goes by what all roots keep, for as long as the controller fails."""
        now_s = self.clock.monotonic_s()
        if self.find_kept is None or not self.observes:
            self.lost = None
            return self.ask_controller(partial(self.controller.newest, known))
        lost = self.lost  # other threads ask, too
        if lost is None or known is None or now_s - self._asked_s > known.lag_s:
            self._asked_s = now_s
            try:
                newest = self.ask_controller(partial(self.controller.newest, known))
            except (CorruptEntry, NotAStore, StorageError) as error:
                if lost is None:
                    _logger.warning("replicas: reading goes on without the controller: %s", error)
                self.lost = lost = error
            else:
                self.lost = None
                return newest
        try:
            kept = self.find_kept(self.slowness, known, 0 if known is None else known.number)
        except TxnlogError as error:
            kind = CorruptEntry if isinstance(lost, CorruptEntry) else StorageError
            raise kind(
                f"{lost}. Without it everything can be read while all roots answer: {error}"
            ) from error
        found = kept[-1]
        if found.controller != ("" if known is None else known.controller):
            self.lost = None  # it is elsewhere
            return self._find_newest(found)
        return found

    def _find_noted(self, epoch: Epoch | None, number: int) -> list[Epoch]:
        """What members of one epoch, also former ones, have noted as that of a number.

        Of none: what all roots have as the newest.
        """
        if epoch is None:
            with suppress(TxnlogError):
                kept = self.find_kept(self.slowness, None, 0) if self.find_kept else []
                return [one for one in kept[-1:] if one.number == number]
            return []

        def read(member: Member) -> list[Epoch]:
            with suppress(MemberFailed, TxnlogError):
                read_it = partial(read_notes, numbers=[number])
                return self.ask(epoch, member, read_it, within_s=time_for(epoch))[0]
            return []

        reads = [partial(read, member) for member in (*epoch.members, *epoch.left)]
        return [one for found in self.controller.storage.gather(reads) for one in found]

    def ask_controller(self, call: Callable[[], T]) -> T:
        """Do something at the controller, within a time. Raises StorageError.

        What is left behind does no harm: it reads, it puts an epoch, which others see if it ever
        comes, or it deletes what nobody needs. Who only reads can go on without.
        """
        lag_s = time_for(self._epoch)
        within_s = lag_s if self.find_kept and self.observes else MOST_LAGS * lag_s
        where = f"the controller {self.controller.storage.url}"
        return self.slowness.ask(where, call, within_s, pause_s=lag_s)

    def every(self) -> list[Epoch]:
        """All epochs that are there, in their order; without the controller those that roots keep.

        Then those are missing under which nothing was written.
        """
        newest = self.refresh()
        if self.lost is None or self.find_kept is None:
            return self.ask_controller(self.controller.every)
        return self.find_kept(self.slowness, newest, 0)

    def is_newest(self, epoch: Epoch) -> bool:
        """Whether there was no newer epoch when this call began."""
        return self.refresh().number == epoch.number

    def history(self) -> int:
        """The last unclean election before anything was read or written here; -1 if there was none.

        All that this process learns and writes is of that history.
        """
        if self._history is None:
            self._history = self.epoch().last_unclean
        return self._history

    def _learn(self, epoch: Epoch) -> None:
        """From now on this process knows something of the epoch's history."""
        if self._history is None:
            self._history = epoch.last_unclean

    def _check_history(self, epoch: Epoch) -> None:
        """Raises LogTruncated: this process's knowledge of logs may be outdated."""
        if self._history is None:
            return  # it has none yet: perhaps it is here that an election is held
        if self._history != epoch.last_unclean:
            raise LogTruncated(
                f"{epoch.leader} leads by the unclean election of epoch {epoch.last_unclean}, and "
                "logs may have lost entries that this process knows: reopen the store"
            )

    def may_differ(self, epoch: Epoch) -> bool:
        """Whether a member may have other bytes under a name than the leader.

        A writer under an earlier leader may have given it what the new one never had, and be dead:
        so only members that were in sync when the leader was elected. Who came later was given
        nothing but what this leader has decided, and what everybody decides alike.
        """
        others = (member for member in epoch.members if member != epoch.leader)
        among = self._find_elected_among(epoch)
        return among is None or not set(among).isdisjoint(others)

    def had_other_leader(self, epoch: Epoch, former: Member) -> bool:
        """Whether one that has left the set may have what its present leader has not decided.

        As above: it was in sync when that one was elected, or left before.
        """
        among = self._find_elected_among(epoch)
        left = epoch.left[former].epoch
        return among is None or former in among or left < epoch.leader_since

    def _find_elected_among(self, epoch: Epoch) -> tuple[Member, ...] | None:
        """Who was in sync when the leader was elected; () if it always led, None if unknown."""
        since = epoch.leader_since
        if since == 0:
            return ()
        if self.lost is not None:
            return None
        if self._elected_among[0] != since:
            try:
                first = epoch
                if epoch.number != since:
                    first = self.ask_controller(partial(self.controller.at, since))
            except StorageError:
                return None
            self._elected_among = since, first.in_sync
        return self._elected_among[1]

    def storage(self, epoch: Epoch, member: Member) -> Storage:
        """The storage of one member."""
        # Of two that bring in different roots at once, both call them the same: one is refused.
        root = epoch.roots.get(root_of(member))
        which = (member, root.url if root else "")
        found = self._storages.get(which)
        if found is None:
            opening = partial(self._open_member, epoch, member)  # that may hang, too
            found = self._storages[which] = self.slowness.ask(member, opening, time_for(epoch))
        return found

    def ask(
        self,
        epoch: Epoch,
        member: Member,
        call: Callable[[Storage], T],
        *,
        within_s: float | None = None,
        may_be_large: bool = False,
        put_bytes: int | None = None,
    ) -> T:
        """Make a request of one member, or several that belong together.

        After ``within_s`` the member is slow; None if the call makes many requests, each of which
        has as long as others. If the answer ``may_be_large``, it is slow if it does not even show
        its mark within that time. The same holds while this process checks the member's server.
        ``put_bytes``: it is a put of so many, and has the time for that.

        Raises ObjectNotFound, MemberFailed.
        """
        if put_bytes is not None:
            within_s = time_for(epoch, size_bytes=put_bytes)

        def make(storage: Storage) -> T:
            if within_s is None:
                return call(BoundedRequests(storage, partial(self._within, epoch, member)))
            go_on = partial(self._goes_on, epoch, member, may_be_large)
            is_out = partial(self._is_out, epoch, member)
            return self.slowness.ask(
                member, partial(call, storage), within_s, go_on, is_over=is_out
            )

        return self._make(epoch, member, make, put_bytes)

    def ask_large(self, epoch: Epoch, member: Member, call: Callable[[Storage], T]) -> T:
        """:meth:`ask`, once, for what may be large: nobody is slow for that."""
        return self.ask(epoch, member, call, within_s=time_for(epoch), may_be_large=True)

    def ask_one_of(
        self,
        epoch: Epoch,
        members: Sequence[Member],
        member: Member,
        call: Callable[[Storage], T],
        size_bytes: int = 0,
    ) -> T:
        """:meth:`ask_late` for what all of these have: another one is asked then.

        Each is asked so for one object at a time: a slow link carries little twice. That it lacks
        the object proves nothing.
        """
        within_s = time_for(epoch, size_bytes=size_bytes)

        def ask_another() -> list[T]:
            for other in self.punctual_first(epoch, members):
                asking = self._beside.setdefault(other, ForkSafeLock()).mutex
                if other == member or not asking.acquire(timeout=epoch.lag_s):
                    continue
                try:
                    with suppress(ObjectNotFound, MemberFailed):
                        return [self.ask_beside(epoch, other, call, MOST_LAGS * within_s)]
                finally:
                    asking.release()
            return []

        return self.ask_late(epoch, member, call, ask_another, within_s)

    def ask_late(
        self,
        epoch: Epoch,
        member: Member,
        call: Callable[[Storage], T],
        ask_another: Callable[[], list[T]],
        within_s: float,
    ) -> T:
        """:meth:`ask_large`; if it takes longer than that, another one is asked beside it.

        One file may hang at a root that shows its mark. Whoever answers first has answered, and
        nobody is slow for that. Raises ObjectNotFound, MemberFailed.
        """
        found: list[T] = []
        looks = itertools.count()
        is_out = partial(self._is_out, epoch, member)
        go_on = partial(self.answers, epoch, member)

        def is_over() -> bool:
            if is_out():
                return True
            if next(looks):  # the first one comes before the time is over
                found.extend(ask_another())
            return bool(found)

        def left_as() -> str:
            return _late(member) if found else member

        def make(storage: Storage) -> T:
            try:
                return self.slowness.ask(
                    *(member, partial(call, storage), within_s, go_on),
                    is_over=is_over,
                    left_as=left_as,
                )
            except TookTooLong:
                if found:
                    raise _Found from None
                raise

        try:
            return self._make(epoch, member, make)
        except _Found:
            return found[0]

    def ask_beside(
        self, epoch: Epoch, member: Member, call: Callable[[Storage], T], within_s: float
    ) -> T:
        """Ask a member for what another one is late with; it may hang here, too.

        It is not slow for that, but asked no more beside others for as long. Raises ObjectNotFound,
        MemberFailed.
        """
        try:
            read = partial(call, self.storage(epoch, member))
            return self.slowness.ask(f"{member}, beside others", read, within_s)
        except ObjectNotFound:
            raise
        except (StorageError, UnnamedUrl, UnsupportedFilesystem) as error:
            raise MemberFailed(member, error) from error

    def punctual_first(self, epoch: Epoch, members: Sequence[Member]) -> list[Member]:
        """These members; those whose reads took too long lately come last."""
        pause_s = MOST_LAGS * epoch.lag_s
        return sorted(members, key=lambda one: self.slowness.is_left(_late(one), pause_s))

    def _make(
        self,
        epoch: Epoch,
        member: Member,
        make: Callable[[Storage], T],
        put_bytes: int | None = None,
    ) -> T:
        """Make a request, and note whether the member has answered."""
        began_s = self.clock.monotonic_s()
        try:
            result = make(self.storage(epoch, member))
        except (UnnamedUrl, UnsupportedFilesystem) as error:
            if member in epoch.members:
                raise  # without it nothing can be done
            raise MemberFailed(member, error) from error
        except ObjectNotFound:
            self._note_answer(member)
            raise
        except StorageError as error:
            self._note_failure(epoch, member, began_s)
            is_gone = isinstance(error, MarkGone)
            raise MemberFailed(member, error, useless=is_gone, put_bytes=put_bytes) from error
        self._note_answer(member)
        return result

    def _within(
        self,
        epoch: Epoch,
        member: Member,
        call: Callable[[], T],
        *,
        size_bytes: int = 0,
        count: int = 0,
    ) -> T:
        go_on = partial(self._goes_on, epoch, member, not (size_bytes or count))
        within_s = time_for(epoch, size_bytes=size_bytes, count=count)
        is_out = partial(self._is_out, epoch, member)
        return self.slowness.ask(member, call, within_s, go_on, is_over=is_out)

    def _is_out(self, epoch: Epoch, member: Member) -> bool:
        """Whether others have put a member out meanwhile: nobody waits for it any more."""
        if self.lost is not None or member not in epoch.members:
            return False
        looking = self._looking.mutex
        if looking.acquire(blocking=False):  # one look is enough for all that wait
            try:
                with suppress(TxnlogError):
                    self.refresh()
            finally:
                looking.release()
        return self._epoch is not None and member not in self._epoch.members

    def _goes_on(self, epoch: Epoch, member: Member, may_be_large: bool) -> bool:
        """Whether a request that takes long is waited for."""
        if not may_be_large:
            storage = self.storage(epoch, member)
            for_s = storage.checked_for_s if isinstance(storage, ServerStorage) else None
            if for_s is None or for_s > MOST_LAGS * epoch.lag_s:
                return False
        return self.answers(epoch, member)

    def _note_answer(self, member: Member) -> None:
        self._failing.pop(member, None)
        self.answered_s[member] = self.clock.monotonic_s()

    def answered_ms(self, member: Member) -> int | None:
        """When a member last answered this process, by the clock now; None if it never did."""
        at_s = self.answered_s.get(member)
        if at_s is None:
            return None
        return self.clock.now_ms() - round(1000 * (self.clock.monotonic_s() - at_s))

    def _note_failure(self, epoch: Epoch, member: Member, began_s: float) -> None:
        # What an adapter waits for an answer may be longer than a member may fail.
        since_s = max(began_s, self.answered_s.get(member, began_s))
        seen = self._failing.get(member)
        if seen is not None and since_s - seen.last_s <= epoch.lag_s:
            since_s = min(since_s, seen.since_s)
        self._failing[member] = _Failing(since_s, self.clock.monotonic_s())

    def ask_all(
        self,
        epoch: Epoch,
        members: Sequence[Member],
        call: Callable[[Member, Storage], T],
        *,
        within_s: float | None = None,
        may_be_large: bool = False,
        put_bytes: int | None = None,
    ) -> dict[Member, T]:
        """Make a request of several members side by side; all are waited for.

        Raises the first one's ObjectNotFound or MemberFailed.
        """
        ask = partial(self.ask, epoch, within_s=within_s, may_be_large=may_be_large)
        calls = [
            partial(ask, member, partial(call, member), put_bytes=put_bytes) for member in members
        ]
        return dict(zip(members, self.controller.storage.gather(calls), strict=True))

    def check_mark(self, epoch: Epoch, member: Member, *, within_s: float | None = None) -> None:
        """Make sure that a member is the folder it should be: an empty disk tells nothing.

        Raises MemberFailed: it cannot be reached, or what it holds is gone.
        """
        try:
            mark = root_names.member_mark(member, epoch.store)
            within_s = within_s or time_for(epoch)
            look = partial(self.slowness.ask, member)
            self._make(epoch, member, lambda one: look(partial(one.get, mark), within_s))
        except ObjectNotFound as error:
            raise MemberFailed(member, error, useless=True) from error

    # -- steps -----------------------------------------------------------------------------------

    def settle(self, step: Step[T], *, writes: bool = False, then: Then = lambda _: None) -> T:
        """Do a step until it was done under an epoch that is still the newest one afterwards.

        It may be done several times. It raises MemberFailed, and ObjectNotFound, which counts as a
        result. If it ``writes`` inside of a :meth:`round`, the look at the epochs is left to the
        round's end. ``then`` is called with the epoch under which it was done, when that has been
        looked at.

        Raises NotEnoughReplicas: not enough members are in sync, or answer. StorageError: the
        controller fails; in either case it is unknown what was done. LogTruncated: there was an
        unclean election since this process began.
        """
        began_s = self.clock.monotonic_s()
        if writes:
            self.find_kept = None
        pause: Callable[..., bool] | None = None
        since_s: dict[Member, float] = {}
        while True:
            try:
                epoch = self.epoch()
                self._check_history(epoch)
                missing: ObjectNotFound | None = None
                puts = writes or not self.observes
                if self._noted not in ((epoch.number, puts), (epoch.number, True)):
                    if puts:
                        note_epoch(self, epoch)
                    else:
                        looks = (partial(self._look_at_notes, epoch, one) for one in epoch.in_sync)
                        self.controller.storage.gather(looks)
                    self._noted = epoch.number, puts
                try:
                    result = step(epoch)
                except ObjectNotFound as error:
                    # Absence proves nothing: a disk that is not mounted has no object either.
                    self.check_mark(epoch, epoch.leader)
                    missing = error
                else:
                    if writes and (done := self._steps_of_round()) is not None:
                        self._learn(epoch)
                        done.append(_Done(epoch, step, result, then, next(self._moments)))
                        return result
                if not self.is_newest(epoch):
                    continue
                self._learn(epoch)
                if missing is not None:
                    raise missing
                then(epoch)
                return result
            except MemberFailed as error:
                failure, may_mend = self._say(epoch, error), True
                # Also if other requests go well meanwhile: a disk that is full can be read.
                first_s = since_s.setdefault(error.member, self.clock.monotonic_s())
                went_on = self._react(epoch, error, first_s)
            except NotEnoughReplicas as error:
                failure, went_on, may_mend = error, False, False
            # Somebody else may have been first to put it out.
            if not went_on and self.refresh().number == epoch.number:
                pause = pause or self.pauses(began_s)
                if not pause(epoch, may_mend=may_mend):
                    raise failure
            self.refresh()

    def _look_at_notes(self, epoch: Epoch, member: Member) -> None:
        """Raises OutdatedController: one that answers has a later epoch."""
        with suppress(MemberFailed):
            note_epoch(self, epoch, [member], puts=False)

    # -- for how long ----------------------------------------------------------------------------

    def _wait(self) -> _Wait | None:
        return getattr(self._waiting, "wait", None)

    @contextmanager
    def _waits(self, wait: _Wait) -> Iterator[None]:
        before = self._wait()
        self._waiting.wait = wait
        try:
            yield
        finally:
            self._waiting.wait = before

    def wait_up_to(self, for_s: float) -> AbstractContextManager[None]:
        """See :meth:`Storage.wait_up_to`."""
        return self._waits(_Wait(self.clock.monotonic_s() + for_s))

    def as_patient(self, call: Callable[[], T]) -> Callable[[], T]:
        """A call for another thread, which waits as long as this one."""
        wait = self._wait()

        def run() -> T:
            assert wait is not None
            with self._waits(wait):
                return call()

        return call if wait is None else run

    def _is_over(self, wait: _Wait | None, least_s: float) -> bool:
        """Whether a request that fails is given up; the others for which somebody waits are, too.

        A request that begins late has time enough for an election all the same.
        """
        now_s = self.clock.monotonic_s()
        if wait is None or wait.is_over:
            return wait is not None or now_s > least_s
        wait.is_over = now_s > max(least_s, wait.until_s)
        return wait.is_over

    def pauses(self, began_s: float) -> Callable[..., bool]:
        """Pauses between two looks at what began then; False: it is given up, without a pause.

        ``may_mend``: an election may, for which there must be time.
        """
        wait = self._wait()
        pause_s = _FIRST_PAUSE_S

        def pause(epoch: Epoch, *, may_mend: bool = True) -> bool:
            nonlocal pause_s
            lags = _PATIENCE_LAGS if may_mend or wait is None else 0
            if self._is_over(wait, began_s + lags * epoch.lag_s):
                return False
            self.clock.sleep(pause_s * (0.5 + self.clock.jitter()))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S, epoch.lag_s / 8)
            return True

        return pause

    # -- rounds ----------------------------------------------------------------------------------

    def _steps_of_round(self) -> list[_Done[object]] | None:
        return getattr(self._round, "done", None)

    def within(self, done: list[_Done[object]], call: Callable[[], object]) -> None:
        """Make a call of a round, in whichever thread: what it writes is added to ``done``."""
        before = self._steps_of_round()
        self._round.done = done
        try:
            call()
        finally:
            self._round.done = before

    @contextmanager
    def round(self) -> Iterator[list[_Done[object]]]:
        """One look at the epochs for all that was written within the block.

        Raises StorageError at its end: any of it may be there, or not count.
        """
        done: list[_Done[object]] = []
        yield done
        left: list[_Done[object]] | None = getattr(self._round, "left", None)
        if left is None:
            self._count(done)
            return
        left += done
        if len(left) > _MOST_LEFT:  # each keeps what it may have to put anew
            self._count(left)

    @contextmanager
    def rounds(self) -> Iterator[Callable[[], None]]:
        """Rounds of this thread within the block are left to whoever calls what is given.

        By then another look may have been made. What the call raises is what a round does.
        """
        before = getattr(self._round, "left", None)
        left: list[_Done[object]] = []
        self._round.left = left
        try:
            yield partial(self._count, left)
        finally:
            self._round.left = before

    def _count(self, done: list[_Done[object]]) -> None:
        """See to it that what was done counts; it is forgotten then."""
        if not all(self._is_counted(one) for one in done):
            self.refresh()
        for one in done:
            if self._is_counted(one):
                one.then(one.epoch)
            elif self.settle(one.step, then=one.then) != one.result:
                raise StorageError(
                    "the leader of the replicas changed while several objects were written, and "
                    "somebody else has put one of them meanwhile: try again"
                )
        done.clear()

    def _is_counted(self, done: _Done[object]) -> bool:
        """Whether its epoch was found to be the newest after it was done."""
        return self._looked.get(done.epoch.number, -1) > done.at

    # -- who is out ------------------------------------------------------------------------------

    def _say(self, epoch: Epoch, failed: MemberFailed) -> StorageError:
        where = epoch.roots[root_of(failed.member)].url
        role = "leader" if failed.member == epoch.leader else "replica"
        root = root_of(failed.member)
        advice = _ONLY_OBSERVES.format(root=root) if self.observes else ""
        return NotEnoughReplicas(
            f"the {role} {failed.member} at {where} fails in epoch {epoch.number}, in which "
            f"{', '.join(epoch.in_sync)} are in sync: {failed}{advice}"
        )

    def _react(self, epoch: Epoch, failed: MemberFailed, since_s: float) -> bool:
        """Propose the next epoch if a member has failed for too long; True if that was done."""
        if failed.remedy is not None:
            try:
                return failed.remedy()
            except ObjectNotFound:
                return True  # it was deleted meanwhile
            except MemberFailed as error:
                failed = error
        seen = self._failing.get(failed.member)
        for_s = self.clock.monotonic_s() - (since_s if seen is None else min(since_s, seen.since_s))
        if failed.is_slow:
            if not any(self.answers(epoch, one) for one in epoch.in_sync if one != failed.member):
                return False  # it may be this process that has no network
        elif not failed.useless and for_s < epoch.lag_s:
            for other in epoch.members:
                if other != failed.member:
                    # So that the time of each that fails counts from now, not one after the other.
                    with suppress(MemberFailed):
                        self.check_mark(epoch, other)
            return False
        if not self.is_newest(epoch):
            if failed.useless:
                return True  # perhaps not to the newer one's leader
            epoch = self.epoch()  # a root that has joined meanwhile makes this one no quicker
        if failed.member not in epoch.members:
            return True
        if failed.useless and failed.member != epoch.leader:
            try:
                # They differ: the leader is right, if it is the folder that it was.
                self.check_mark(epoch, epoch.leader)
            except MemberFailed as leaders:
                failed = leaders
        if self.observes and not isinstance(failed.error, Diverged):
            return False  # others may see what this process does not
        put_bytes = None if failed.useless else failed.put_bytes
        return self.put_out(
            epoch,
            failed.member,
            str(failed),
            may_lose=not failed.is_slow,
            put_bytes=put_bytes,
            diverged=isinstance(failed.error, Diverged),
        )

    def answers(self, epoch: Epoch, member: Member) -> bool:
        """Whether a member can be reached, and is the folder that it should be."""
        with suppress(MemberFailed):
            self.check_mark(epoch, member)
            return True
        return False

    def takes(self, epoch: Epoch, member: Member, put_bytes: int) -> bool:
        """Whether a member takes a put of so many bytes: it may be full, or read-only."""
        put = partial(try_put, token=self.clock.token(), size_bytes=put_bytes)
        with suppress(MemberFailed):
            self.ask(epoch, member, put, put_bytes=put_bytes)
            return True
        return False

    def put_out(
        self,
        epoch: Epoch,
        member: Member,
        why: str,
        *,
        may_lose: bool = True,
        put_bytes: int | None = None,
        diverged: bool = False,
    ) -> bool:
        """Propose an epoch without a member; False if nobody can take its place.

        ``may_lose``: an unclean election may be held for it, where one is allowed. ``put_bytes``:
        it has failed to take so many. Where all do, as when all disks are full, it stays: the set
        would shrink to the last of them, and be no better.
        """
        heirs = (
            one
            for one in epoch.members
            if one != member
            and one in epoch.in_sync
            and (put_bytes is None or self.takes(epoch, one, put_bytes))
        )
        if member != epoch.leader:
            if put_bytes is not None and next(heirs, None) is None:
                return False
            who = self.proposer(f"{member} fails: {why}")
            return self.propose(without(epoch, member, who, diverged=diverged))
        for candidate in heirs:
            if self.answers(epoch, candidate):
                who = self.proposer(f"the leader {member} fails: {why}")
                return self.propose(elected(epoch, candidate, who, diverged=diverged))
        if not (may_lose and epoch.allows_unclean):
            return False
        return self.elect_unclean(epoch, f"all in sync fail: {why}")

    def elect_unclean(self, epoch: Epoch, why: str) -> bool:
        """Propose a leader that was in sync last, of those that answer; False if none does.

        Nobody looks at what data its logs name: that takes too long here, and doctor tells it.
        """
        if places(epoch):
            why = f"{why}; data that no answering root has may be lost: doctor tells which"
        heir = next((one for one in by_last_in_sync(epoch) if self.answers(epoch, one)), None)
        # Others may have taken their time to answer.
        if heir is None or any(self.answers(epoch, one) for one in epoch.in_sync):
            return False
        return self.propose(elected_unclean(epoch, heir, self.proposer(why)))

    def proposer(self, why: str) -> Proposer:
        return Proposer(self.clock.token(), self.clock.now_ms(), why)

    def propose(self, epoch: Epoch, at: str = "") -> bool:
        """Put an epoch. Whoever was first, the newest one is known afterwards.

        ``at`` is where, if the epoch itself says another place for later ones.
        """
        put = self.ask_controller(partial(self.controller.propose, epoch, at))
        if put:
            _logger.warning(
                "replicas: epoch %d: leader %s, in sync %s, joining %s: %s",
                epoch.number,
                epoch.leader,
                ", ".join(epoch.in_sync),
                ", ".join(epoch.joining) or "none",
                epoch.why,
            )
        self.refresh()
        return put

    def propose_alone(self, epoch: Epoch) -> None:
        """Put an epoch that somebody has decided on by the one before it.

        Raises NotEnoughReplicas: somebody else was first.
        """
        if not self.propose(epoch):
            raise NotEnoughReplicas(
                f"the set has changed since epoch {epoch.number - 1}: look at it and try again"
            )
