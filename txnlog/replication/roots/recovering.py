"""A controller that is lost is made anew, from what the roots keep of its epochs.

1. The newest epoch that a root has is the newest one under which anything was acknowledged, if all
   members in sync by it answer; where unclean elections are allowed all roots must.
2. The next one says that later ones are decided at the new place. It is put at the leader first,
   which decides between two who recover at once; then at the others, then at the new place.
3. A file in each root says where the controller is now.

A process that is killed on the way leaves the epoch of 2 at the leader; the next attempt goes on.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from txnlog.clock import Clock
from txnlog.errors import (
    InvalidOption,
    NotEnoughReplicas,
    ObjectNotFound,
    StorageError,
    StoreExists,
    TxnlogError,
)
from txnlog.replication import root_names
from txnlog.replication.roots.controller import list_epochs
from txnlog.replication.roots.epochs import (
    Epoch,
    Member,
    Proposer,
    Root,
    decided_at,
    incarnation_of,
    root_of,
)
from txnlog.replication.roots.members import (
    MARK_DECODER,
    MarkGone,
    MemberOpener,
    check_url,
    is_nested,
)
from txnlog.replication.roots.moving import (
    ControllerMove,
    claim,
    named_controller,
    put_pointer_of,
)
from txnlog.replication.roots.noting import encode_epoch, notes, put_note
from txnlog.state import envelope
from txnlog.storage.base import Storage
from txnlog.storage.probe import probe
from txnlog.storage.reach import UnnamedUrl


def recover(
    url: str | os.PathLike[str],
    controller: str | os.PathLike[str],
    options: Mapping[str, object] | None,
    clock: Clock,
    *,
    dry_run: bool = False,
) -> ControllerMove:
    """See :func:`txnlog.replication.recover_controller`."""
    opener = MemberOpener(options, [url, controller])
    given, to = opener.root(url), opener.root(controller)
    for storage in (given, to):
        check_url(storage.url)
        opener.allow(storage.url)
    try:
        data = given.get(root_names.REPLICA_FILE)
    except ObjectNotFound as error:
        raise InvalidOption(
            f"{given.url} is no root of a replicated store, or is not mounted: name a root"
        ) from error
    first = envelope.decode(data, MARK_DECODER, f"{given.url}/{root_names.REPLICA_FILE}")
    old = named_controller(given, first).controller
    kept = _Kept(opener)
    kept.look(first.member, given)
    epoch = kept.newest()
    if epoch is None:
        raise InvalidOption(
            f"{given.url} has no epochs: it was never in sync while something was written. Name "
            "another root"
        )
    while epoch.roots.keys() - kept.asked:
        for root in epoch.roots.keys() - kept.asked:
            kept.open(root, epoch.roots[root])
        epoch = kept.newest() or epoch
    known = epoch.controllers or (old,)
    if epoch.controller != to.url:
        _check_lost(opener, known[-1], epoch)
        _check_free(to, epoch, known)
        _check_answered(epoch, kept)
        who = Proposer(
            clock.token(), clock.now_ms(), f"the controller {known[-1]} was lost: now {to.url}"
        )
        named = msgspec.structs.replace(epoch, controllers=known)
        recovered = decided_at(named, to.url, who)
    else:
        recovered = epoch  # an attempt before this one has decided it
        _check_answered(epoch, kept)
    if dry_run:
        return ControllerMove(to.url, recovered.number, (), ())
    if not to.was_probed():
        probe(to)
    _decide(opener, recovered)
    place = claim(to)
    older = {one.number: one for one in kept.all() if one.number < recovered.number}
    if 0 not in older:
        # By its first epoch a controller is known to be mounted.
        why = "the epochs before are lost with the controller"
        older[0] = msgspec.structs.replace(epoch, number=0, why=why)
    for one in (*older.values(), recovered):
        _put_epoch(place, one)
    told = [root for root in recovered.roots if _tell(opener, recovered, root)]
    untold = [root for root in recovered.roots if root not in told]
    return ControllerMove(to.url, recovered.number, tuple(told), tuple(untold))


class _Kept:
    """What the roots that answer have of the epochs."""

    def __init__(self, opener: MemberOpener) -> None:
        self._opener = opener
        self._found: dict[int, Epoch] = {}
        self.asked: set[str] = set()
        self.read: set[Member] = set()
        self.failed: dict[str, Exception] = {}
        """Roots that do not answer, and members whose folders are not there."""

    def open(self, name: str, root: Root) -> None:
        self.asked.add(name)
        try:
            self.look(name, self._opener.root(root.url))
        except UnnamedUrl:
            raise
        except (StorageError, TxnlogError) as error:
            self.failed[name] = error

    def look(self, name: str, storage: Storage) -> None:
        """Read what all incarnations of a root have. Raises StorageError."""
        self.asked.add(name)
        mark = storage.get(root_names.REPLICA_FILE)
        where = f"{storage.url}/{root_names.REPLICA_FILE}"
        if envelope.decode(mark, MARK_DECODER, where).member != name:
            raise StorageError(f"{storage.url} is not root {name}")
        numbers = map(root_names.parse_incarnation_folder, storage.list_folders(""))
        members = [f"{name}-{number}" for number in numbers if number is not None]
        root = Root(storage.url, 1 + max(map(incarnation_of, members), default=0))
        for member in members:
            try:
                found = notes(self._opener.at(root, member))
            except MarkGone as error:
                self.failed[member] = error  # it was about to join, or is no more
                continue
            self.read.add(member)
            self._found.update((epoch.number, epoch) for epoch in found)

    def newest(self) -> Epoch | None:
        return self._found[max(self._found)] if self._found else None

    def all(self) -> list[Epoch]:
        return [self._found[number] for number in sorted(self._found)]


def _check_lost(opener: MemberOpener, url: str, epoch: Epoch) -> None:
    try:
        numbers = list_epochs(opener.root(url))
    except UnnamedUrl:
        raise
    except TxnlogError:
        return
    if numbers and max(numbers) >= epoch.number:
        raise InvalidOption(
            f"the controller at {url} answers: `txnlog replicas move-controller` moves it"
        )


def _check_free(to: Storage, epoch: Epoch, known: tuple[str, ...]) -> None:
    taken = [*known, *(root.url for root in epoch.roots.values())]
    if any(is_nested(to.url, other) for other in taken):
        raise InvalidOption(
            f"{to.url} and a root, or an earlier controller, are nested: a controller needs a "
            "folder of its own"
        )
    if {*filter(root_names.is_of_store, [*to.list_folders(""), *to.list_names("")])}:
        raise StoreExists(f"{to.url} is not empty: a controller needs a folder of its own")


def _check_answered(epoch: Epoch, kept: _Kept) -> None:
    missing = {*map(root_of, {*epoch.in_sync} - kept.read)}
    if epoch.allows_unclean:
        missing |= kept.failed.keys() & epoch.roots.keys()
    if missing:
        whys = [
            str(error)
            for name, error in kept.failed.items()
            if name in missing or root_of(name) in missing
        ]
        raise NotEnoughReplicas(
            f"{', '.join(sorted(missing))} must answer, or a later epoch than {epoch.number} may "
            f"be known there alone: {'; '.join(whys) or 'their folders are gone'}"
        )


def _decide(opener: MemberOpener, epoch: Epoch) -> None:
    """Put the epoch at all members in sync, the leader first. Raises StoreExists."""
    data = encode_epoch(epoch)
    for member in epoch.members[: len(epoch.in_sync)]:
        if not put_note(opener(epoch, member), epoch.number, data):
            raise StoreExists(
                f"somebody else recovers the controller, or has done so: {member} has another "
                f"epoch {epoch.number}"
            )


def _put_epoch(place: Storage, epoch: Epoch) -> None:
    path, data = root_names.epoch_file(epoch.number), encode_epoch(epoch)
    if not place.put_if_absent(path, data) and epoch.number > 0 and place.get(path) != data:
        raise StoreExists(f"{place.url}/{path} is another one: is it another store's controller?")
    place.confirm(path)


def _tell(opener: MemberOpener, epoch: Epoch, root: str) -> bool:
    try:
        put_pointer_of(epoch, root, opener.root(epoch.roots[root].url), epoch.controllers)
    except TxnlogError:
        return False
    return True
