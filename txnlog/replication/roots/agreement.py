"""Settles requests to a replicated store: each counts only under the newest epoch.

A request is a *step* that is done under one epoch, at every member. Then the process looks: it
lists the epochs. If there is no newer epoch the step counts, else it is done again under the newer
one. The look must come last. A look beside the requests to the followers would prove nothing:
before such a request arrives, its follower may be elected, and another member may copy the objects
that it has. One look is enough for all steps that were done before it.
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
"""Reads the epochs that the roots keep, from a number on, and adds a known one; ascending."""

_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0
_PATIENCE_LAGS = 3
"""A failing request is retried for at least so many times ``replica.lag.time.max.ms``.

In that time the leader may have to be found gone, and then the next one. The retries go on while
new epochs are found.
"""


@dataclass(slots=True)
class _Wait:
    """A caller's deadline, in monotonic seconds; ``is_over`` once a request has missed it."""

    until_s: float
    is_over: bool = False


_ONLY_OBSERVES = (
    " (who only reads puts out no root, though others in sync may answer: a process that writes "
    "does, or `txnlog maintain`, or `txnlog replicas remove {root}`)"
)
_MOST_LEFT = 64
"""So many puts wait for the look of a later request; if there are more, one is made at once."""

_logger = logging.getLogger(__name__)


class MemberFailed(Exception):
    """A request to one member failed.

    ``useless``: the member cannot be used as it is, and waiting does not help. ``remedy``: is
    called instead of waiting, and returns whether the step may be tried again at once.
    ``put_bytes``: the size of the put that failed, if it was one; other members may fail to take as
    many bytes.
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
    """Stops waiting for a member: another one has answered first."""


def _late(member: Member) -> str:
    return f"{member}, one of several"


@dataclass(frozen=True, slots=True)
class _Failing:
    """The time in which all requests to a member have failed, in monotonic seconds."""

    since_s: float
    last_s: float


@dataclass(frozen=True, slots=True)
class _Done(Generic[T]):
    """A step that is done but does not count yet: a look must begin after the moment ``at``."""

    epoch: Epoch
    step: Step[T]
    result: T
    then: Then
    at: int


class Agreement:
    """What this process knows of a replicated store: its newest epoch, and how members answer."""

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
        """Whether this process only reads, and leaves it to others to change the in-sync set.

        It may reach fewer members than they do. True until the handle is told that it will write.
        """
        self.clock = clock
        self.slowness = Slowness(run_within, clock)
        self.open_member = open_member
        self._storages: dict[tuple[Member, str], Storage] = {}
        self._failing: dict[Member, _Failing] = {}
        self.answered_s: dict[Member, float] = {}
        """When each member last answered, in monotonic seconds."""
        self._epoch: Epoch | None = None
        self._history: int | None = None
        self._elected_among: tuple[int, tuple[Member, ...]] = (0, ())
        self._round = threading.local()
        self._waiting = threading.local()
        self._noted = -1, False
        """The epoch last compared with the members' notes; whether missing notes were put."""
        self._moments = itertools.count()
        """Numbers the moments of this process: a later one has a greater number."""
        self._looked: dict[int, int] = {}
        """By epoch, the last moment at which a look began that found it to be the newest."""
        self.find_kept: FindKept | None = None
        """Reads the epochs that roots keep; None once this process writes."""
        self.lost: TxnlogError | None = None
        """Why the controller could not be read when it was last asked; None if it could."""
        self._asked_s = 0.0
        self._looking = ForkSafeLock()
        """Held while one thread looks whether a member is out, so that others need not."""
        self._beside: dict[Member, ForkSafeLock] = {}
        """By member, held while it is asked for an object with which another member is late."""
        self.left_damaged: set[tuple[Member, str]] = set()
        """Damaged objects, by member and name, that stay: the storage cannot replace them."""

    def begin_as(self, other: Agreement) -> None:
        """Start from what another agreement knows: the newest epoch, and which members answer."""
        self._epoch, self.find_kept = other._epoch, other.find_kept
        self.lost, self._asked_s = other.lost, other._asked_s
        self.slowness, self.answered_s = other.slowness, other.answered_s

    # -- epochs and members ----------------------------------------------------------------------

    def epoch(self) -> Epoch:
        """The newest epoch known here, which is read if there is none. There may be newer ones."""
        return self._epoch or self.refresh()

    @property
    def known(self) -> Epoch | None:
        """The newest epoch known here; None if no epoch has been read yet."""
        return self._epoch

    def refresh(self) -> Epoch:
        """Look at the epochs, and return the newest one.

        Raises StorageError, NotAStore, CorruptEntry, UnsupportedVersion.
        """
        began = next(self._moments)
        newest = self._find_newest(self._epoch)
        if self._epoch is None or newest.number >= self._epoch.number:
            self._epoch = newest  # else one that began later has ended before
        self._looked[newest.number] = max(began, self._looked.get(newest.number, -1))
        return newest

    def _find_newest(self, known: Epoch | None) -> Epoch:
        """Read the newest epoch at the controller; a process that only reads may ask the roots.

        The roots are asked only while the controller fails, and then all of them must answer.
        """
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
        """The epochs of a number that the members of one epoch have noted, former members included.

        If no epoch is given: the newest epoch that all roots keep, if it has that number.
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
        """Make a request to the controller, within a time limit. Raises StorageError.

        A request that is abandoned does no harm. It reads, it deletes what nobody needs, or it puts
        an epoch, which others see if it ever arrives. A process that only reads can do without the
        controller, and waits for less time.
        """
        lag_s = time_for(self._epoch)
        within_s = lag_s if self.find_kept and self.observes else MOST_LAGS * lag_s
        where = f"the controller {self.controller.storage.url}"
        return self.slowness.ask(where, call, within_s, pause_s=lag_s)

    def every(self) -> list[Epoch]:
        """All epochs that still exist, ascending; from the roots while the controller fails.

        Roots keep no epoch under which nothing was written.
        """
        newest = self.refresh()
        if self.lost is None or self.find_kept is None:
            return self.ask_controller(self.controller.every)
        return self.find_kept(self.slowness, newest, 0)

    def is_newest(self, epoch: Epoch) -> bool:
        """Whether there was no newer epoch when this call began."""
        return self.refresh().number == epoch.number

    def history(self) -> int:
        """The last unclean election before this process read or wrote anything; -1: none.

        Everything that this process reads and writes later must belong to that history.
        """
        if self._history is None:
            self._history = self.epoch().last_unclean
        return self._history

    def _learn(self, epoch: Epoch) -> None:
        """Set the history of this process to the epoch's, if it has none yet."""
        if self._history is None:
            self._history = epoch.last_unclean

    def _check_history(self, epoch: Epoch) -> None:
        """Raise LogTruncated if an unclean election may have removed entries known here."""
        if self._history is None:
            return  # it has none yet: perhaps it is here that an election is held
        if self._history != epoch.last_unclean:
            raise LogTruncated(
                f"{epoch.leader} leads by the unclean election of epoch {epoch.last_unclean}, and "
                "logs may have lost entries that this process knows: reopen the store"
            )

    def may_differ(self, epoch: Epoch) -> bool:
        """Whether a member may have other bytes under a name than the leader.

        A writer may have put bytes at a member under an earlier leader, and died before the present
        leader got them. So a member may differ only if it was in sync when this leader was elected.
        A member that joined later was given what this leader has decided, and bytes that are equal
        whoever puts them.
        """
        others = (member for member in epoch.members if member != epoch.leader)
        among = self._find_elected_among(epoch)
        return among is None or not set(among).isdisjoint(others)

    def had_other_leader(self, epoch: Epoch, former: Member) -> bool:
        """Whether a former member may have objects that the present leader has not decided.

        True if it was in sync when this leader was elected, or left before that, or if this is
        unknown.
        """
        among = self._find_elected_among(epoch)
        left = epoch.left[former].epoch
        return among is None or former in among or left < epoch.leader_since

    def _find_elected_among(self, epoch: Epoch) -> tuple[Member, ...] | None:
        """The members in sync when the leader was elected; () if it always led, None if unknown."""
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
        """The storage of a member, which is opened once. Raises StorageError, UnnamedUrl."""
        # Of two that bring in different roots at once, both call them the same: one is refused.
        root = epoch.roots.get(root_of(member))
        which = (member, root.url if root else "")
        found = self._storages.get(which)
        if found is None:
            opening = partial(self.open_member, epoch, member)  # that may hang, too
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
        """Make one request of a member, or several that belong together; returns the answer.

        A member that does not answer within ``within_s`` seconds is slow. If that is None, the call
        makes several requests, each with a limit of its own. If the answer ``may_be_large``, the
        member is asked for its mark when the time is over, and has more time if it shows it. It has
        more time, too, while this process checks the member's server. ``put_bytes``: the request
        puts so many bytes, and has more time for that.

        Raises ObjectNotFound, MemberFailed. UnnamedUrl, UnsupportedFilesystem: a member of the
        epoch cannot be opened.
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
        """Make one request whose answer may be large; raises what :meth:`ask` does.

        A member that shows its mark is not slow, however long the answer takes.
        """
        return self.ask(epoch, member, call, within_s=time_for(epoch), may_be_large=True)

    def ask_one_of(
        self,
        epoch: Epoch,
        members: Sequence[Member],
        member: Member,
        call: Callable[[Storage], T],
        size_bytes: int = 0,
    ) -> T:
        """Read an object from a member; if it is late, from another of ``members`` as well.

        All of ``members`` should have the object; if one lacks it, that proves nothing. Each of the
        others is asked for one late object at a time, since a slow link carries little twice.
        ``size_bytes``: how much is read, for which there is more time.

        Raises ObjectNotFound, MemberFailed.
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
        """Make one request whose answer may be large; once it is late, call ``ask_another``, too.

        The request is late after ``within_s`` seconds: one file may hang at a root that shows its
        mark. The first answer counts, and nobody is slow for having been late. ``ask_another``
        returns its answer in a list, or [] if it got none.

        Raises ObjectNotFound, MemberFailed.
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
        """Ask a member for an object with which another member is late.

        It may hang here, too. Then it is not slow, but is not asked beside others for ``within_s``
        seconds.

        Raises ObjectNotFound, MemberFailed.
        """
        try:
            read = partial(call, self.storage(epoch, member))
            return self.slowness.ask(f"{member}, beside others", read, within_s)
        except ObjectNotFound:
            raise
        except (StorageError, UnnamedUrl, UnsupportedFilesystem) as error:
            raise MemberFailed(member, error) from error

    def punctual_first(self, epoch: Epoch, members: Sequence[Member]) -> list[Member]:
        """Sort members: those that were late with a read recently come last."""
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
        """Whether others have put a member out meanwhile, so that it is no use to wait for it."""
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
        """Whether to wait longer for a request that has missed its time limit."""
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
        """When a member last answered this process, in Unix milliseconds; None if it never did."""
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
        """Make a request of several members in parallel; returns their answers by member.

        Waits for all members. Raises the first ObjectNotFound or MemberFailed.
        """
        ask = partial(self.ask, epoch, within_s=within_s, may_be_large=may_be_large)
        calls = [
            partial(ask, member, partial(call, member), put_bytes=put_bytes) for member in members
        ]
        return dict(zip(members, self.controller.storage.gather(calls), strict=True))

    def check_mark(self, epoch: Epoch, member: Member, *, within_s: float | None = None) -> None:
        """Check that a member's folder has its mark: the folder of an unmounted disk has none.

        Raises MemberFailed: the member cannot be reached, or its mark is gone.
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

        The step may be done several times. It may raise MemberFailed, and ObjectNotFound, which
        counts as a result. If it ``writes`` inside of a :meth:`round`, the look at the epochs is
        left to the end of the round. Once a look has found the step's epoch to be the newest,
        ``then`` is called with that epoch.

        Raises NotEnoughReplicas: too few members are in sync, or answer. StorageError: the
        controller fails. After either it is unknown what was done. LogTruncated: there was an
        unclean election since this process began. ObjectNotFound: the step did.
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
        """Raise OutdatedController if a member has noted an epoch that the controller lacks."""
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
        """Wrap a call for another thread, so that it has the deadline of this thread."""
        wait = self._wait()

        def run() -> T:
            assert wait is not None
            with self._waits(wait):
                return call()

        return call if wait is None else run

    def _is_over(self, wait: _Wait | None, least_s: float) -> bool:
        """Whether to give up a failing request: after ``least_s``, and after the caller's deadline.

        Once one request has missed the deadline, the others under it are given up at once. Until
        then each has time enough for an election, even if it begins late.
        """
        now_s = self.clock.monotonic_s()
        if wait is None or wait.is_over:
            return wait is not None or now_s > least_s
        wait.is_over = now_s > max(least_s, wait.until_s)
        return wait.is_over

    def pauses(self, began_s: float) -> Callable[..., bool]:
        """Return a function that pauses before a request is tried again.

        It returns False, without a pause, if the request is to be given up. ``began_s`` is when the
        request began, in monotonic seconds. The function takes the epoch, and whether an election
        ``may_mend`` what failed: then there must be time for one.
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
        """Make a call that belongs to a round, in any thread; its steps are added to ``done``."""
        before = self._steps_of_round()
        self._round.done = done
        try:
            call()
        finally:
            self._round.done = before

    @contextmanager
    def round(self) -> Iterator[list[_Done[object]]]:
        """Make one look at the epochs for everything that is written within the block.

        At the end of the block it raises StorageError if any of that may not count, or not be
        there.
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
        """Let the rounds of this thread within the block end without a look.

        Yields a function that makes them count, which the caller calls when it needs that. The
        function looks at the epochs, unless there was another look meanwhile. It raises what
        :meth:`round` does.
        """
        before = getattr(self._round, "left", None)
        left: list[_Done[object]] = []
        self._round.left = left
        try:
            yield partial(self._count, left)
        finally:
            self._round.left = before

    def _count(self, done: list[_Done[object]]) -> None:
        """Make finished steps count by one look; repeat those whose epoch has passed."""
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
        """Whether a look that began after a step has found its epoch to be the newest."""
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
        """React to a failure: apply its remedy, or put a member out that has failed for too long.

        Returns whether the step may be tried again at once.
        """
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
        """Whether a member can be reached, and its folder has its mark."""
        with suppress(MemberFailed):
            self.check_mark(epoch, member)
            return True
        return False

    def takes(self, epoch: Epoch, member: Member, put_bytes: int) -> bool:
        """Whether a member takes a test put of so many bytes: it may be full, or read-only."""
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
        """Propose an epoch without a member; False if it must stay, or another epoch came first.

        ``may_lose``: an unclean election may be held for it, if the settings allow one.
        ``put_bytes``: the member has failed to take a put of so many bytes. It stays if no other
        member in sync takes as many: when all disks are full, the set would shrink to the last of
        them, and be no better. ``diverged``: it has other bytes than the others.
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
        """Propose the former member as leader that was in sync last and answers.

        Returns False if none answers, if a member in sync does, or if another epoch came first.
        Data that the new leader's logs name is not looked for, which would take too long here;
        doctor does that.
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
        """Put an epoch; False if another process was first. The newest one is known afterwards.

        ``at``: the URL of the place to put it at, if the epoch itself names another place for later
        ones.
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
        """Put an epoch that was decided on by looking at the one before it.

        Raises NotEnoughReplicas: another process has put an epoch meanwhile. StorageError.
        """
        if not self.propose(epoch):
            raise NotEnoughReplicas(
                f"the set has changed since epoch {epoch.number - 1}: look at it and try again"
            )
