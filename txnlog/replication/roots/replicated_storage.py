"""A storage over the storages of several roots: acknowledged objects are at all in sync.

All layers above treat it as one storage. The leader decides races. An object that other members may
lack is given to them before it is shown or built on. docs/REPLICATION.md has the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

from txnlog import names
from txnlog.clock import Clock, SystemClock
from txnlog.errors import NotEnoughReplicas, ObjectNotFound, StorageError, TxnlogError
from txnlog.replication import root_names
from txnlog.replication.roots.agreement import Agreement, FindKept, MemberFailed, OpenMember
from txnlog.replication.roots.controller import Controller, OpenPlace
from txnlog.replication.roots.copies import help_out, put_at_all
from txnlog.replication.roots.election import change_settings
from txnlog.replication.roots.epoch_notes import encode_epoch
from txnlog.replication.roots.epochs import FACTOR, Epoch, Member, by_last_in_sync, root_of
from txnlog.replication.roots.members import MemberOpener
from txnlog.replication.roots.outdated_controller import check_controller
from txnlog.replication.roots.placed_data import (
    asks_all,
    confirm_placed,
    list_placed,
    read_elsewhere,
)
from txnlog.replication.roots.placement import is_placed, may_hold_data, places, targets, topic_of
from txnlog.replication.roots.puts import Everywhere, PutIfAbsent
from txnlog.replication.roots.same_bytes import Diverged, is_sound
from txnlog.replication.roots.slowness import Slowness, time_for
from txnlog.replication.roots.soundness import (
    bring_back_lost,
    bring_back_mark,
    leaders_bytes,
)
from txnlog.replication.roots.uploads import ReplicatedUpload
from txnlog.storage.base import Address, Kind, Storage, Upload, check_name, is_name
from txnlog.storage.forwarding import ForwardingStorage
from txnlog.storage.probe import try_put
from txnlog.storage.threads import MAX_AHEAD_BYTES, SizedCall
from txnlog.time_limits import RunWithin, run_whole

T = TypeVar("T")

_LOOKS: Final = 3
"""How often a folder is listed at most, if objects disappear meanwhile."""
_OF_LOGS: Final = (names.TOPICS, names.GROUPS, names.TRANSACTIONS, names.EXPIRED)
"""Each folder in these is a log, or has one."""


class ReplicatedStorage(Storage):
    """Stores objects at every member of a set, which the epochs at a controller name.

    ``open_member`` opens a member's own storage, which is its folder in its root. ``open_place``
    opens the place to which a controller has moved. ``address`` says how to open this storage
    elsewhere. ``run_within`` abandons requests that take too long. ``find_kept`` lets a process
    that only reads go on without the controller. ``writes``: begin as after :meth:`will_write`.

    Requests: a put-if-absent makes one to the leader, then one to each other member in parallel,
    then a listing of the epochs. A put of decided bytes makes one to each member, then that
    listing. A listing makes one to each member, and that listing.

    Names are found by listings, even where all roots are disks (``lists_whole_folders``). Otherwise
    it would depend on the members which names exist, and when they are freed. Objects that need not
    be durable at once are durable all the same, since members must not differ after a power cut.
    """

    def __init__(
        self,
        controller: Storage,
        open_member: OpenMember,
        address: Address | None = None,
        clock: Clock | None = None,
        open_place: OpenPlace | None = None,
        run_within: RunWithin = run_whole,
        writes: bool = False,
        find_kept: FindKept | None = None,
    ) -> None:
        if open_place is None and isinstance(open_member, MemberOpener):
            open_place = open_member.controller
        self._arguments = (open_member, address, clock, open_place, run_within)
        epochs = Controller(controller, open_place)
        self.agreement = Agreement(epochs, open_member, clock or SystemClock(), run_within)
        """For code that describes or changes the set."""
        self.agreement.find_kept = find_kept
        self._ask = self.agreement.ask_large
        self.open_member = open_member
        self._address = address
        self._everywhere = Everywhere()
        self._folding: dict[Member, bool] = {}
        self._was_probed = False
        if writes:
            self.will_write()

    def __reduce__(self) -> tuple[object, ...]:
        find_kept, known = self.agreement.find_kept, self.agreement.known
        if find_kept is not None and known is not None:
            # The other process knows none yet, by which the roots are found.
            find_kept = partial(_find_kept_after, find_kept, known)
        return ReplicatedStorage, (
            self._controller,
            *self._arguments,
            not self.agreement.observes,
            find_kept,
        )

    @property
    def _controller(self) -> Storage:
        return self.agreement.controller.storage

    @property
    def url(self) -> str:  # type: ignore[override]
        return self._controller.url

    def address(self) -> Address:
        """The controller's address; while that is lost the address of a root that answers."""
        if self._address is None:
            return self._controller.address()
        epoch, url = self.agreement.refresh(), self.url
        if self.agreement.lost is not None:
            answering = (one for one in epoch.in_sync if self.agreement.answers(epoch, one))
            url = next((epoch.roots[root_of(one)].url for one in answering), url)
        return replace(self._address, url=url)

    def urls(self) -> Sequence[str]:
        epoch = self.agreement.epoch()
        return [self.url, *epoch.controllers, *(root.url for root in epoch.roots.values())]

    def folds_case(self) -> bool:
        epoch = self.agreement.epoch()
        for member in epoch.members:
            if member not in self._folding:
                with suppress(ObjectNotFound, MemberFailed):  # it is asked when it answers again
                    self._folding[member] = self._member_folds_case(epoch, member)
        return any(self._folding.get(member) for member in epoch.members)

    def _member_folds_case(self, epoch: Epoch, member: Member) -> bool:
        def look(storage: Storage) -> bool:
            # Of an empty disk nothing can be told.
            storage.size(root_names.member_mark(member, epoch.store))
            return storage.folds_case()

        return self.agreement.ask(epoch, member, look, within_s=time_for(epoch))

    def trust(self, *, probed: bool = False) -> None:
        self._was_probed |= probed
        epoch = self.agreement.epoch()
        for member in epoch.members:
            with suppress(StorageError):  # not even its server answers: it is probed later
                self.agreement.storage(epoch, member).trust(probed=probed)
        self._controller.trust(probed=probed)

    def was_probed(self) -> bool:
        return self._was_probed

    def will_write(self) -> None:
        self.agreement.observes = False

    def check_writable(self) -> None:
        agreement = self.agreement
        epoch = agreement.refresh()
        if agreement.lost is not None:
            raise NotEnoughReplicas(
                f"the controller at {self.url} does not answer, and nothing is acknowledged "
                f"without it: {agreement.lost}"
            )
        token, size_bytes = agreement.clock.token(), len(encode_epoch(epoch))
        try:
            agreement.ask_controller(lambda: try_put(self._controller, token, size_bytes))
        except StorageError as error:
            raise NotEnoughReplicas(
                f"the controller at {self.url} answers and takes no epoch, so that nothing is "
                f"acknowledged from when a root fails: {error}"
            ) from error

    def history(self) -> int:
        return self.agreement.history()

    # -- writing ---------------------------------------------------------------------------------

    def _need(self, epoch: Epoch) -> None:
        if len(epoch.in_sync) < epoch.min_insync:
            out = sorted({*epoch.roots} - {*epoch.taken_out, *map(root_of, epoch.members)})
            add = [f"`txnlog replicas add {epoch.roots[one].url}`" for one in out]
            advice = ", ".join(add) or "`txnlog replicas add` brings one in"
            raise NotEnoughReplicas(
                f"{len(epoch.in_sync)} of the replicas of {self.url} are in sync in epoch "
                f"{epoch.number} ({', '.join(epoch.in_sync)}), and min.insync.replicas is "
                f"{epoch.min_insync}: nothing is acknowledged before others are back: {advice}"
            )

    def put_if_absent(self, name: str, data: bytes) -> bool:
        put = PutIfAbsent(self.agreement, check_name(name), bytes(data), self._need)
        return self.agreement.settle(put.leader_first, writes=True, then=self._knows_now(name))

    def put_decided(self, name: str, data: bytes) -> bool:
        put = PutIfAbsent(self.agreement, check_name(name), bytes(data), self._need)
        return self.agreement.settle(put.side_by_side, writes=True, then=self._knows_now(name))

    def _knows_now(self, name: str) -> Callable[[Epoch], None]:
        return lambda epoch: self._everywhere.add(epoch, [name])

    def _know_one(self, name: str) -> Callable[[Epoch, object], None]:
        return lambda epoch, _: self._everywhere.add(epoch, [name])

    def put(self, name: str, data: bytes) -> None:
        check_name(name)
        data = bytes(data)

        def step(epoch: Epoch) -> None:
            self._need(epoch)
            try:
                put_at_all(self.agreement, epoch, targets(epoch, name), name, data)
            except MemberFailed as failed:
                if failed.member == epoch.leader and isinstance(failed.error, Diverged):
                    raise failed.error from failed  # the name is not unique, which is a bug
                raise

        self.agreement.settle(step, writes=True, then=self._knows_now(name))

    def upload(self, name: str) -> Upload:
        return ReplicatedUpload(self.agreement, check_name(name), self._need)

    def confirm(self, name: str) -> None:
        self.agreement.find_kept = None

        def step(epoch: Epoch) -> None:
            # Who has found an object that he may have put acknowledges it, or builds on it.
            self._need(epoch)
            if is_placed(epoch, name):
                confirm_placed(self.agreement, epoch, name)
                return
            self._ask(epoch, epoch.leader, lambda storage: storage.confirm(name))
            if not self._knows(epoch, name):
                self._help(epoch, name)
            for member in epoch.members[1:]:
                try:
                    self._ask(epoch, member, lambda storage: storage.confirm(name))
                except ObjectNotFound:
                    self._help(epoch, name)

        self._settle_shown(step, self._know_one(name))

    def delete(self, names: Iterable[str]) -> None:
        doomed = [check_name(name) for name in names]
        if not doomed:
            return
        self._everywhere.drop(doomed)
        self.agreement.find_kept = None

        def step(epoch: Epoch) -> None:
            # The leader's first: who copies from it looks there again when it has copied.
            for members in ([epoch.leader], epoch.members[1:]):
                self.agreement.ask_all(
                    epoch,
                    members,
                    lambda _, storage: storage.delete(doomed),
                    within_s=time_for(epoch, count=len(doomed)),
                )

        self.agreement.settle(step)
        self._everywhere.drop(doomed)

    # -- reading ---------------------------------------------------------------------------------

    def _knows(self, epoch: Epoch, name: str) -> bool:
        self._everywhere.follow(epoch)
        return self._everywhere.has(name)

    def _help(self, epoch: Epoch, name: str) -> bytes:
        try:
            data = leaders_bytes(self.agreement, epoch, name)
        except ObjectNotFound:
            if not bring_back_mark(self.agreement, epoch, name):
                raise
            data = leaders_bytes(self.agreement, epoch, name)
        help_out(self.agreement, epoch, name, data, epoch.members[1:])
        return data

    def _settle_shown(self, step: Callable[[Epoch], T], know: Callable[[Epoch, T], None]) -> T:
        """Do a step that gives every member what it shows; call ``know`` once it counts."""
        done: list[T] = []

        def kept(epoch: Epoch) -> T:
            done.append(step(epoch))
            return done[-1]

        return self.agreement.settle(kept, then=lambda epoch: know(epoch, done[-1]))

    def _read_unique(self, name: str, call: Callable[[Storage], T], size_bytes: int = 0) -> T:
        """Read an object that has one writer, from any member; the nearest is asked first."""
        epoch = self.agreement.epoch()
        members = self._by_nearness(epoch, name)
        if name == names.STORE_FILE and epoch.allows_unclean:
            members += by_last_in_sync(epoch)  # one of those may lead next
        for member in self.agreement.punctual_first(epoch, members):
            try:
                return self.agreement.ask_one_of(epoch, members, member, call, size_bytes)
            except (ObjectNotFound, MemberFailed):
                continue
        # None of those that were members once: it is the newest epoch's that tell.
        return self.agreement.settle(partial(self._read_of_any, name, call))

    def copies_of(self, name: str) -> Sequence[Storage]:
        check_name(name)
        if not names.is_unique(name):
            return ()  # which of two entries is right is for the leader alone to say
        epoch = self.agreement.epoch()
        found = []
        others = by_last_in_sync(epoch) if topic_of(name) is not None else []
        for member in (*self._by_nearness(epoch, name), *others):
            with suppress(TxnlogError):  # not even its server answers
                found.append(self.agreement.storage(epoch, member))
        return found

    def _by_nearness(self, epoch: Epoch, name: str) -> list[Member]:
        def is_far(member: Member) -> bool:
            try:
                return self.agreement.storage(epoch, member).local_path("") is None
            except TxnlogError:
                return True  # not even its server answers: the others are asked

        # A joining member may not have it yet.
        found = sorted(sorted(epoch.in_sync, key=lambda member: member != epoch.leader), key=is_far)
        if is_placed(epoch, name):
            placed = targets(epoch, name)
            found.sort(key=lambda member: member not in placed)
        return found

    def _read_of_any(self, name: str, call: Callable[[Storage], T], epoch: Epoch) -> T:
        failed: MemberFailed | None = None
        for member in self._by_nearness(epoch, name):
            try:
                return self._ask(epoch, member, call)
            except ObjectNotFound:
                continue
            except MemberFailed as error:
                failed = error
        if failed is not None:
            raise failed  # that one may have it
        if topic_of(name) is not None:
            return read_elsewhere(self.agreement, epoch, name, call)
        for member in by_last_in_sync(epoch) if name == names.STORE_FILE else ():
            with suppress(ObjectNotFound, MemberFailed):  # it has never changed
                return self._ask(epoch, member, call)
        raise ObjectNotFound(f"no replica of {self.url} in sync has {name}")

    def _read(self, name: str, call: Callable[[Storage], T], size_bytes: int = 0) -> T:
        """Read an object that all members have, or are given before it is shown."""
        check_name(name)
        if names.is_unique(name):
            return self._read_unique(name, call, size_bytes)
        epoch = self.agreement.epoch()
        if self._knows(epoch, name):
            for member in self.agreement.punctual_first(epoch, epoch.in_sync):
                try:
                    return self.agreement.ask_one_of(epoch, epoch.in_sync, member, call, size_bytes)
                except ObjectNotFound:
                    break  # deleted, or never there: the newest epoch tells
                except MemberFailed:
                    continue

        def step(epoch: Epoch) -> T:
            self._help(epoch, name)
            return self._ask(epoch, epoch.leader, call)

        return self._settle_shown(step, self._know_one(name))

    def get(self, name: str) -> bytes:
        check_name(name)
        if name == names.STORE_FILE:
            # Decided when the store was made. So a store can be opened while no leader answers,
            # if all roots may be asked: who lacks what that takes is told now.
            epoch = self.agreement.epoch()
            for member in epoch.in_sync:
                with suppress(StorageError):
                    self.agreement.storage(epoch, member)
            data = self._read_unique(name, lambda storage: storage.get(name))
            if is_sound(name, data) is not False:
                return data
        elif names.is_unique(name) or self._knows(self.agreement.epoch(), name):
            data = self._read(name, lambda storage: storage.get(name))
            if names.is_unique(name) or is_sound(name, data) is not False:
                return data
            whole = self._whole_where_it_is_left(name)
            if whole is not None:
                return whole
        return self._settle_shown(partial(self._help, name=name), self._know_one(name))

    def _whole_where_it_is_left(self, name: str) -> bytes | None:
        """The intact bytes of an object that stays damaged at another root; None if there are none.

        The object is known to be everywhere, so no other member need lead because of it.
        """
        epoch = self.agreement.epoch()
        left = {(member, name) for member in epoch.in_sync} & self.agreement.left_damaged
        for member in epoch.in_sync if left and self._knows(epoch, name) else ():
            with suppress(ObjectNotFound, MemberFailed):
                data = self._ask(epoch, member, lambda storage: storage.get(name))
                if is_sound(name, data):
                    return data
        return None

    def get_range(self, name: str, start: int, stop: int) -> bytes:
        size_bytes = max(stop - start, 0)
        return self._read(name, lambda one: one.get_range(name, start, stop), size_bytes)

    def small_reads_at_once(self) -> int:
        return self._controller.small_reads_at_once()

    def size(self, name: str) -> int:
        return self._read(name, lambda storage: storage.size(name))

    def modified_ms(self, name: str) -> int | None:
        return self._read(name, lambda storage: storage.modified_ms(name))

    def _is_everywhere(self, name: str) -> bool:
        """Whether a member may lack an object: all members had it, or it has one writer."""
        return self._everywhere.has(name) or names.is_unique(name)

    def _show(self, epoch: Epoch, name: str, lacking: list[Member]) -> bool:
        """Give members an object that a listing shows; False if it was deleted meanwhile."""
        if self._is_everywhere(name):
            return True
        try:
            data = leaders_bytes(self.agreement, epoch, name)
            help_out(self.agreement, epoch, name, data, lacking)
        except ObjectNotFound:
            return False
        return True

    def _listings(
        self, epoch: Epoch, folder: str, start_after: str
    ) -> tuple[dict[Member, list[str]], MemberFailed | None]:
        """The listing of each member, and the failure of a member that did not answer.

        A process that only reads may go on without a follower; other failures are raised.
        """
        unseen: list[MemberFailed] = []

        def listing(member: Member) -> list[str] | None:
            try:
                shown = self._ask(epoch, member, lambda one: one.list_names(folder, start_after))
                return [*filter(is_name, shown)]  # what is shown is given to the others, too
            except MemberFailed as failed:
                if member == epoch.leader or not self.agreement.observes:
                    raise
                unseen.append(failed)
                return None

        calls = [partial(listing, member) for member in epoch.members]
        listed = zip(epoch.members, self._controller.gather(calls), strict=True)
        found = {member: shown for member, shown in listed if shown is not None}
        return found, unseen[0] if unseen else None

    def list_names(self, folder: str, start_after: str = "") -> list[str]:
        prefix = f"{folder}/" if folder else ""

        def step(epoch: Epoch) -> list[str]:
            for _ in range(_LOOKS):
                listed, gone = look(epoch)
                if not gone:
                    break
            return [last for last in listed if last not in gone]

        def look(epoch: Epoch) -> tuple[list[str], set[str]]:
            self._everywhere.follow(epoch)
            found, unseen = self._listings(epoch, folder, start_after)
            if places(epoch) and may_hold_data(folder):
                if unseen is not None:
                    raise unseen  # that one may have what no other has
                return sorted(set().union(*(found[member] for member in epoch.in_sync))), set()
            listed = found[epoch.leader]
            there = set(listed)
            others = {member: set(found[member]) for member in epoch.members[1:] if member in found}
            if unseen is not None or any(not there.issuperset(one) for one in others.values()):
                # Being put or deleted, or never acknowledged; or the leader's disk is not mounted.
                self.agreement.check_mark(epoch, epoch.leader)
                more = bring_back_lost(self.agreement, epoch, folder, listed, others)
                if more:
                    there |= more
                    listed = sorted(there)
            if unseen is not None and not all(self._is_everywhere(prefix + last) for last in there):
                raise unseen  # that one may lack what is shown, and lead
            lacked = set().union(*(there - theirs for theirs in others.values()))
            gone = set()
            for last in sorted(lacked):
                lacking = [member for member, theirs in others.items() if last not in theirs]
                if not self._show(epoch, prefix + last, lacking):
                    gone.add(last)
            return listed, gone

        def know(epoch: Epoch, listed: list[str]) -> None:
            if not self.agreement.may_differ(epoch):
                found = (prefix + last for last in listed)
                self._everywhere.add(epoch, filter(_tells_all, found))

        return self._settle_shown(step, know)

    def list_folders(self, folder: str) -> list[str]:
        def step(epoch: Epoch) -> tuple[list[str], set[str]]:
            self.agreement.check_mark(epoch, epoch.leader)
            followers = [one for one in epoch.in_sync if one != epoch.leader]
            found, *others = self._controller.gather(
                [
                    partial(self._folders_at, epoch, epoch.leader, folder),
                    *(partial(self._folders_seen, epoch, one, folder) for one in followers),
                ]
            )
            if places(epoch) and folder and may_hold_data(folder) and folder != names.TOPICS:
                theirs = self.agreement.ask_all(
                    epoch,
                    epoch.in_sync,
                    lambda _, storage: storage.list_folders(folder),
                    within_s=time_for(epoch),
                    may_be_large=True,
                )
                found = sorted(set().union(*theirs.values()))
            lacked = set().union(*others).difference(found)
            return [name for name in found if folder or name != root_names.MEMBER_MARKS], lacked

        found, lacked = self.agreement.settle(step)
        # The leader may have lost one: that is told by its log.
        log = "/log" if folder == names.TOPICS else ""
        lost = [one for one in sorted(lacked) if self.list_names(f"{folder}/{one}{log}")]
        return sorted([*found, *lost]) if lost else found

    def _folders_at(self, epoch: Epoch, member: Member, folder: str) -> list[str]:
        return self._ask(epoch, member, lambda storage: storage.list_folders(folder))

    def _folders_seen(self, epoch: Epoch, member: Member, folder: str) -> list[str]:
        """A follower's folders, if they have logs in them; [] if it does not answer."""
        with suppress(MemberFailed, ObjectNotFound):  # whoever lists a log asks it again
            if folder in _OF_LOGS:
                return self._folders_at(epoch, member, folder)
        return []

    def list_all(self, folder: str) -> Iterator[tuple[str, int]]:
        def begin(epoch: Epoch) -> Epoch:
            must_all = asks_all(epoch, folder) and (places(epoch) or not self.agreement.observes)
            asked = epoch.in_sync if must_all else [epoch.leader]
            for member in asked:  # who has failed before this is passed over
                self.agreement.check_mark(epoch, member)
            return epoch

        epoch = self.agreement.settle(begin)
        marks = f"{root_names.MEMBER_MARKS}/"
        try:
            for name, size_bytes in list_placed(self.agreement, epoch, folder):
                if not name.startswith(marks):
                    yield name, size_bytes
            self.agreement.check_mark(epoch, epoch.leader)
        except MemberFailed as failed:
            raise failed.error from failed
        if not self.agreement.is_newest(epoch):
            raise StorageError(
                f"the replicas of {self.url} have changed while {folder or 'the store'} was "
                "listed: list it again"
            )

    # -- together --------------------------------------------------------------------------------

    def gather(self, calls: Iterable[Callable[[], T]]) -> list[T]:
        return self._controller.gather(map(self.agreement.as_patient, calls))

    def put_round(self, calls: Iterable[Callable[[], object]]) -> None:
        with self.agreement.round() as done:
            self.gather(partial(self.agreement.within, done, call) for call in calls)

    def count_later(self) -> AbstractContextManager[Callable[[], None]]:
        return self.agreement.rounds()

    def wait_up_to(self, for_s: float) -> AbstractContextManager[None]:
        return self.agreement.wait_up_to(for_s)

    def kind(self) -> Kind:
        return "replicated"

    def may_be_unlisted(self, name: str) -> bool:
        return is_placed(self.agreement.epoch(), name)

    def set_replication_factor(
        self, topic: str, factor: int | None, *, dry_run: bool = False
    ) -> None:
        key = f"{FACTOR}.{topic}"
        if factor is None and key not in self.agreement.refresh().settings:
            return
        check_controller(self.agreement, self.open_member)
        change_settings(self.agreement, {key: factor}, dry_run=dry_run)

    def run_ahead(
        self, calls: Iterable[SizedCall[T]], most_bytes: int = MAX_AHEAD_BYTES
    ) -> Generator[T]:
        return self._controller.run_ahead(calls, most_bytes)

    def race(self, call: Callable[[int, int], T], rounds: int) -> list[list[T]]:
        return self._controller.race(call, rounds)


def _find_kept_after(
    find_kept: FindKept, before: Epoch, slowness: Slowness, known: Epoch | None, first: int
) -> list[Epoch]:
    """The epochs that roots keep; ``before`` is used while this process knows no epoch."""
    return find_kept(slowness, known or before, first)


def _tells_all(name: str) -> bool:
    """Whether an object that all members list is the same at all of them.

    A completion need not be: a member may have it before the leader does, and the leader may get
    another one, because the decision was damaged.
    """
    return not (names.is_unique(name) or names.is_state(name))


def find_replicated(storage: Storage) -> ReplicatedStorage | None:
    """The replicated storage that a storage is, or wraps; None if it is none."""
    while isinstance(storage, ForwardingStorage):  # one that counts requests, for example
        storage = storage.inner
    return storage if isinstance(storage, ReplicatedStorage) else None
