"""Makes a lost controller anew, from the notes that the roots keep of its epochs.

1. If all roots answer, the newest epoch that any of them has noted is the newest one under which
   anything was acknowledged. All are needed: after an unclean election those that were in sync
   before do not know of it.
2. The new place is claimed. The next epoch says that later ones are decided there. It is put at the
   leader first, which decides between two processes that recover at once; then at the other
   members; then at the new place, before the older epochs.
3. A file in each root says where the controller is now.

A process that is killed on the way leaves the epoch of step 2 at the leader. The next attempt goes
on from there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TypeAlias, TypeVar

import msgspec

from txnlog.clock import Clock
from txnlog.errors import (
    CorruptEntry,
    InvalidOption,
    NotEnoughReplicas,
    ObjectNotFound,
    StorageError,
    StoreExists,
    TxnlogError,
)
from txnlog.replication import root_names
from txnlog.replication.roots.controller import Controller, list_epochs
from txnlog.replication.roots.controller_move import (
    GO_ON_WITHOUT,
    ControllerMove,
    claim,
    named_controller,
    tell_root,
)
from txnlog.replication.roots.epoch_notes import (
    encode_epoch,
    list_notes,
    put_note,
    read_notes,
)
from txnlog.replication.roots.epochs import (
    Epoch,
    Member,
    Proposer,
    Root,
    counted_roots,
    decided_again,
    decided_at,
    incarnation_of,
    root_of,
)
from txnlog.replication.roots.members import (
    MarkGone,
    MemberOpener,
    OwnerMark,
    check_outside,
    check_url,
    find_mark,
    is_nested,
)
from txnlog.replication.roots.same_bytes import Damaged, Diverged, put_same
from txnlog.replication.roots.slowness import Slowness, time_for
from txnlog.storage.base import Storage
from txnlog.storage.probe import probe
from txnlog.storage.reach import UnnamedUrl
from txnlog.time_limits import run_within

T = TypeVar("T")


def recover(
    url: str | os.PathLike[str],
    controller: str | os.PathLike[str],
    options: Mapping[str, object] | None,
    clock: Clock,
    *,
    lost: Sequence[str] = (),
    dry_run: bool = False,
) -> ControllerMove:
    """See :func:`txnlog.replication.recover_controller`."""
    opener = MemberOpener(options, [url, controller])
    given, to = opener.root(url), opener.root(controller)
    for storage in (given, to):
        check_url(storage.url)
        opener.allow(storage.url)
    check_outside(to)
    slowness = Slowness(run_within, clock)
    return recover_at(opener, given, to, slowness, clock, lost=lost, dry_run=dry_run)


def recover_at(
    opener: MemberOpener,
    given: Storage,
    to: Storage,
    slowness: Slowness,
    clock: Clock,
    *,
    lost: Sequence[str] = (),
    dry_run: bool = False,
) -> ControllerMove:
    """:func:`recover` with open storages: of the root to ask first, and of the new place."""
    old, kept, epoch = _ask_roots(opener, given, slowness)
    bounding = partial(slowness.bounding, epoch=epoch)
    target = bounding(to)
    _check_answered(epoch, kept, lost)
    if epoch.controller != to.url:
        epoch = _check_lost(opener, slowness, (epoch.controllers or (old,))[-1], epoch)
        _check_answered(epoch, kept, lost)
        known = epoch.controllers or (old,)
        _check_free(target, epoch, known)
        who = Proposer(
            clock.token(), clock.now_ms(), f"the controller {known[-1]} was lost: now {to.url}"
        )
        # Who was joining may have given up since, and then nobody reads before somebody writes.
        was = msgspec.structs.replace(epoch, controllers=known, joining={})
        recovered = decided_at(was, to.url, who, kept.next_number())
    elif root_names.CONTROLLER_FILE in target.list_names(""):
        recovered = epoch  # an attempt before this one has decided it
        if kept.is_in_the_way_of(epoch) and epoch.number not in list_epochs(target):
            who = Proposer(clock.token(), clock.now_ms(), epoch.why)
            recovered = decided_again(epoch, who, kept.next_number())
    else:
        raise InvalidOption(
            f"{to.url} was the controller, and what it held is gone: processes that know it would "
            "believe in what is put there. Choose another folder"
        )
    if dry_run:
        return ControllerMove(to.url, recovered.number, (), ())
    if not to.was_probed():
        probe(target)
    place = claim(to, epoch.store, bounding)
    _decide(opener, slowness, recovered, lost)
    older = {one.number: one for one in kept.all() if one.number < recovered.number}
    # By its first epoch a controller is known to be mounted.
    why = "the epochs before are lost with the controller"
    oldest = older.pop(0, None) or msgspec.structs.replace(epoch, number=0, why=why)
    # Nobody takes an older one for the newest. By the first one, which comes last, it is opened.
    _put_epoch(place, recovered)
    place.gather(partial(_put_epoch, place, one) for one in older.values())
    if 0 not in list_epochs(place):
        _put_epoch(place, oldest)
    tell = partial(tell_root, opener, slowness, recovered)
    told = [*filter(tell, recovered.roots)]
    untold = [root for root in counted_roots(recovered) if root not in told]
    return ControllerMove(to.url, recovered.number, tuple(told), tuple(untold))


def kept_epochs(
    opener: MemberOpener, given: Storage | None, slowness: Slowness, known: Epoch | None, first: int
) -> list[Epoch]:
    """Read the epochs that roots keep, from ``first`` on, and add the ``known`` one; ascending.

    ``given`` is a root to begin with, if no epoch is known. All roots must answer. So when the call
    began, nothing had been acknowledged under a later epoch than the last one returned.

    Raises InvalidOption, NotEnoughReplicas, CorruptEntry, StorageError.
    """
    if known is not None:
        given = opener.root(known.roots[root_of(known.leader)].url)
    elif given is None:
        raise InvalidOption("open the store by a root")
    _, kept, epoch = _ask_roots(opener, given, slowness, known, first)
    _check_answered(epoch, kept, ())
    return kept.all()


def _ask_roots(
    opener: MemberOpener,
    given: Storage,
    slowness: Slowness,
    known: Epoch | None = None,
    first: int = 0,
) -> tuple[str, _Kept, Epoch]:
    """Ask all roots: returns the controller that ``given`` names, all notes, and the newest epoch.

    Epochs before ``first`` are not asked for.

    Raises InvalidOption: ``given`` is no root, or has no epochs. StorageError: it fails.
    """
    try:
        mark, old = slowness.ask(given.url, partial(_names, given), time_for(known))
    except ObjectNotFound as error:
        raise InvalidOption(
            f"{given.url} is no root of a replicated store, or is not mounted: name a root"
        ) from error
    store = mark.store if known is None else known.store
    kept = _Kept(opener, store, slowness, known, first)
    kept.look(mark.member, given)
    epoch = kept.newest()
    if epoch is None:
        raise InvalidOption(
            f"{given.url} has no epochs: it was never in sync while something was written. Name "
            "another root"
        )
    # By the URLs that the epochs say: what was named may be an old copy.
    kept = _Kept(opener, store, slowness, known, first)
    while unasked := [one for one in counted_roots(epoch) if not kept.has_asked(one, epoch)]:
        for root in unasked:
            kept.open(root, epoch.roots[root])
        epoch = kept.newest() or epoch
    return old, kept, epoch


def _names(root: Storage) -> tuple[OwnerMark, str]:
    """A root's mark, and the URL of the controller that it names. Raises ObjectNotFound."""
    mark = find_mark(root)
    return mark, named_controller(root, mark)


_Place: TypeAlias = tuple[int, int]
"""An epoch's order: how many places the controller has had, then the epoch's number."""


def _place_of(epoch: Epoch) -> _Place:
    return len(epoch.controllers), epoch.number


class _Kept:
    """The notes of epochs of those roots that answer."""

    def __init__(
        self,
        opener: MemberOpener,
        store: str,
        slowness: Slowness,
        known: Epoch | None,
        first: int,
    ) -> None:
        self._opener = opener
        self._slowness = slowness
        self._found: dict[_Place, Epoch] = {} if known is None else {_place_of(known): known}
        self._first = first
        self._store = store
        self._asked: dict[str, str] = {}
        """By name, the URL where a root was last asked: a later epoch may say another one."""
        self.read: set[Member] = set()
        self.failed: dict[str, Exception] = {}
        """By name, roots that do not answer, and members whose folders are gone, with the error."""
        self.unread: dict[int, Member] = {}
        """By number, notes that are damaged, or of a newer txnlog, with their members."""
        self.conflicts: dict[_Place, Member] = {}
        """By epoch, a member whose note differs from another member's."""

    def has_asked(self, name: str, epoch: Epoch) -> bool:
        """Whether a root was asked where an epoch says that it is."""
        return self._asked.get(name) == epoch.roots[name].url

    def open(self, name: str, root: Root) -> None:
        self._asked[name] = root.url
        self.failed.pop(name, None)
        try:
            self.look(name, self._ask(root.url, lambda: self._opener.root(root.url)))
        except UnnamedUrl:
            raise
        except TxnlogError as error:
            self.failed[name] = error

    def _ask(self, url: str, call: Callable[[], T], *, count: int = 0) -> T:
        """Ask a root, within the usual time limit."""
        return self._slowness.ask(url, call, time_for(self.newest(), count=count))

    def look(self, name: str, storage: Storage) -> None:
        """Read the notes of all incarnations of a root. Raises StorageError."""
        owner, folders = self._ask(
            storage.url, lambda: (find_mark(storage), storage.list_folders(""))
        )
        if (owner.store, owner.member) != (self._store, name):
            raise StorageError(f"{storage.url} is not root {name}, or is another store's")
        numbers = map(root_names.parse_incarnation_folder, folders)
        members = [f"{name}-{number}" for number in numbers if number is not None]
        root = Root(storage.url, 1 + max(map(incarnation_of, members), default=0))
        for member in members:
            try:
                found, unread = self._notes(root, member)
            except MarkGone as error:
                self.failed[member] = error  # it was about to join, or is no more
                continue
            self.read.add(member)
            self.unread |= dict.fromkeys(unread, member)
            for epoch in found:
                if self._found.setdefault(_place_of(epoch), epoch) != epoch:
                    self.conflicts[_place_of(epoch)] = member

    def _notes(self, root: Root, member: Member) -> tuple[list[Epoch], list[int]]:
        def listed() -> tuple[Storage, list[int]]:
            storage = self._opener.at(root, member, self._store)
            return storage, list_notes(storage, self._first)

        storage, numbers = self._ask(root.url, listed)
        read = partial(read_notes, storage, numbers)
        return self._ask(root.url, read, count=len(numbers))

    def newest(self) -> Epoch | None:
        return self._found[max(self._found)] if self._found else None

    def all(self) -> list[Epoch]:
        """All epochs that were noted, ascending, without void ones, which were noted too late."""
        found: list[Epoch] = []
        for place in sorted(self._found, reverse=True):
            if not found or place[1] < found[-1].number:
                found.append(self._found[place])
        return found[::-1]

    def is_in_the_way_of(self, epoch: Epoch) -> bool:
        """Whether a root has a void note with a number that keeps it from noting a new epoch."""
        moves = len(epoch.controllers)
        return any(other < moves and number >= epoch.number for other, number in self._found)

    def next_number(self) -> int:
        """The lowest number that is higher than those of all notes, void ones included."""
        return 1 + max((number for _, number in self._found), default=-1)


def _check_lost(opener: MemberOpener, slowness: Slowness, url: str, epoch: Epoch) -> Epoch:
    """Check that the controller is lost; returns the newest epoch.

    That is a later one than ``epoch`` if a place that still answers has the epoch by which the
    controller moved to a place that is lost.

    Raises InvalidOption: the controller answers.
    """
    asked: set[str] = set()
    while True:
        asked.add(url)
        try:
            place = slowness.bounding(opener.root(url), epoch)
            numbers = list_epochs(place)
        except UnnamedUrl:
            raise
        except TxnlogError:
            return epoch
        if not numbers or max(numbers) < epoch.number:
            return epoch
        try:
            found = Controller(place).at(max(numbers))
        except TxnlogError as error:
            raise InvalidOption(
                f"the controller at {url} answers, and who knows an earlier epoch may go on there, "
                f"but its newest one cannot be read ({error}). Open the store by a root while all "
                f"answer: what they have of it is put there. Else {GO_ON_WITHOUT}"
            ) from error
        if found.controller in ("", *asked):  # places may name each other
            raise InvalidOption(
                f"the controller at {url} answers: `txnlog replicas move-controller` moves it. If "
                f"it takes no epoch any more, take it away for good: {GO_ON_WITHOUT}"
            )
        url, epoch = found.controller, found


def _check_free(to: Storage, epoch: Epoch, known: tuple[str, ...]) -> None:
    taken = [*known, *(root.url for root in epoch.roots.values())]
    if any(is_nested(to.url, other) for other in taken):
        raise InvalidOption(
            f"{to.url} and a root, or an earlier controller, are nested: a controller needs a "
            "folder of its own"
        )
    found = {*filter(root_names.is_of_store, [*to.list_folders(""), *to.list_names("")])}
    # A claim of an attempt before this one, or of a move that came no further.
    if found - {root_names.CONTROLLER_FILE, root_names.EPOCHS}:
        raise StoreExists(f"{to.url} is not empty: a controller needs a folder of its own")
    if numbers := list_epochs(to):
        newest = Controller(to).at(max(numbers))
        if newest.store != epoch.store or newest.number > epoch.number:
            raise StoreExists(
                f"{to.url} has an epoch {newest.number} that no root knows: choose an empty folder"
            )


def _check_answered(epoch: Epoch, kept: _Kept, lost: Collection[str]) -> None:
    """Check that enough roots have answered, and that their notes can be relied on.

    Raises NotEnoughReplicas, InvalidOption, CorruptEntry.
    """
    if unknown := {*lost} - epoch.roots.keys():
        raise InvalidOption(f"there is no root {', '.join(sorted(unknown))}")
    missing = {*map(root_of, {*epoch.in_sync} - kept.read)} | (
        kept.failed.keys() & {*counted_roots(epoch)}
    )
    missing -= {*lost}
    if missing:
        whys = [
            str(error)
            for name, error in kept.failed.items()
            if name in missing or root_of(name) in missing
        ]
        raise NotEnoughReplicas(
            f"{', '.join(sorted(missing))} must answer, or a later epoch than {epoch.number} may "
            f"be known there alone: {'; '.join(whys) or 'their folders are gone'}. Mount their "
            "disks, start their servers, and try again. A root that is lost for good is given up "
            "by `txnlog replicas recover --lost`, or lost=[...]"
        )
    # Of the newest one a sound copy is enough.
    later = {number: member for number, member in kept.unread.items() if number > epoch.number}
    if _place_of(epoch) in kept.conflicts:
        later[epoch.number] = kept.conflicts[_place_of(epoch)]
    if later:
        number = max(later)
        raise CorruptEntry(
            f"epoch {number} of {later[number]} cannot be relied on: it is damaged, of a newer "
            "txnlog, or of two histories"
        )


def _decide(opener: MemberOpener, slowness: Slowness, epoch: Epoch, lost: Collection[str]) -> None:
    """Put the recovered epoch at all members in sync, the leader first. Raises StoreExists."""
    data = encode_epoch(epoch)
    for member in epoch.members[: len(epoch.in_sync)]:
        if root_of(member) in lost:
            continue
        place = slowness.bounding(opener(epoch, member), epoch)
        if not put_note(place, epoch.number, data):
            raise StoreExists(
                f"somebody else recovers the controller, or has done so: {member} has another "
                f"epoch {epoch.number}"
            )


def _put_epoch(place: Storage, epoch: Epoch) -> None:
    path = root_names.epoch_file(epoch.number)
    try:
        put_same(place, path, encode_epoch(epoch))
    except (Damaged, Diverged) as error:
        raise StoreExists(
            f"{place.url}/{path} is another one: is it another store's controller?"
        ) from error
