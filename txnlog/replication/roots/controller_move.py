"""Moves the controller to another place while the store is in use.

1. An epoch says that the next one is decided at the old place. From then on every epoch names the
   place of the next one. So a process that finds a copy of an epoch goes to the right place.
2. The new place is claimed. It gets the newest epoch, then all others, unchanged.
3. The next epoch is put at the OLD place, and says that later ones are decided at the new one. Any
   process that looks at the epochs goes to the new place from then on, so nothing acknowledged in
   between is lost.
4. That epoch is put at the new place. A file in each root says where the controller is now.

A process that is killed on the way leaves epochs that say where the controller is. The next attempt
goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from txnlog.errors import (
    CorruptEntry,
    InvalidOption,
    NotAStore,
    NotEnoughReplicas,
    ObjectNotFound,
    StorageError,
    StoreExists,
    TxnlogError,
)
from txnlog.replication import root_names
from txnlog.replication.roots.agreement import Agreement
from txnlog.replication.roots.controller import list_epochs
from txnlog.replication.roots.epochs import Epoch, counted_roots, decided_at
from txnlog.replication.roots.members import (
    MARK_DECODER,
    MarkedDisk,
    MemberOpener,
    OwnerMark,
    check_outside,
    check_owner,
    check_url,
    find_mark,
    is_nested,
    put_over,
    renew_mark,
)
from txnlog.replication.roots.replicated_storage import ReplicatedStorage
from txnlog.replication.roots.slowness import Slowness
from txnlog.storage import envelope
from txnlog.storage.base import Storage
from txnlog.storage.probe import probe

Bounding: TypeAlias = Callable[[Storage], Storage]
_TRIES: Final = 20
GO_ON_WITHOUT: Final = (
    "unmount or rename it, so that it does not answer, and `txnlog replicas recover` makes a "
    "controller from the roots"
)
"""What to do without a place that answers but takes no epoch; ends an error message."""


@dataclass(frozen=True, slots=True)
class ControllerMove:
    """A controller that was moved, or would be.

    ``epoch`` is the one that moves it. ``told`` are the roots that name the new place now;
    ``untold`` the others, which did not answer.
    """

    url: str
    epoch: int
    told: tuple[str, ...]
    untold: tuple[str, ...]


def known_controllers(agreement: Agreement, epoch: Epoch) -> tuple[str, ...]:
    """The URLs of the controller's earlier places, and last of the current one."""
    return epoch.controllers or (agreement.controller.storage.url,)


def move_controller(
    storage: ReplicatedStorage,
    url: str,
    options: Mapping[str, object] | None = None,
    *,
    dry_run: bool = False,
) -> ControllerMove:
    """See :meth:`txnlog.replication.Replicas.move_controller`. Roots that answer are told."""
    opener, agreement = storage.open_member, storage.agreement
    if not isinstance(opener, MemberOpener):
        raise InvalidOption(f"{storage.url} was opened with members of its own")
    opener.allow(url, options)
    to = opener.root(url)
    check_url(to.url)
    epoch = agreement.refresh()
    place = agreement.slowness.bounding(to, epoch)
    if epoch.controller != to.url:
        _check_place(agreement, epoch, place)
        check_outside(to)
        if not dry_run:
            if not to.was_probed():
                probe(place)
            epoch = move(agreement, to)
    elif len(epoch.controllers) == 1:
        raise InvalidOption(f"{to.url} is the controller already")
    if dry_run:
        ahead = 0 if epoch.controller == to.url else 1 if epoch.controllers else 2
        return ControllerMove(to.url, epoch.number + ahead, (), ())
    tell = partial(tell_root, opener, agreement.slowness, epoch)
    told = [*filter(tell, epoch.roots)]
    untold = [root for root in counted_roots(epoch) if root not in told]
    return ControllerMove(to.url, epoch.number, tuple(told), tuple(untold))


def _check_place(agreement: Agreement, epoch: Epoch, to: Storage) -> None:
    old = agreement.controller.storage
    if to.url == old.url:
        raise InvalidOption(f"{to.url} is the controller already")
    for root in epoch.roots.values():
        if is_nested(root.url, to.url):
            is_what = "is a root" if root.url == to.url else f"and the root {root.url} are nested"
            raise InvalidOption(f"{to.url} {is_what}: a controller needs a folder of its own")
    for other in known_controllers(agreement, epoch):
        if to.url != other and is_nested(to.url, other):
            raise InvalidOption(f"{to.url} and {other} are nested: it could never move back there")
    folders = {*filter(root_names.is_of_store, to.list_folders(""))}
    if folders - {root_names.EPOCHS} or {*to.list_names("")} - {root_names.CONTROLLER_FILE}:
        raise NotAStore(f"{to.url} is not empty: a controller needs a folder of its own")
    if longer := [number for number in list_epochs(to) if number > epoch.number]:
        raise StoreExists(
            f"{to.url} has an epoch {max(longer)}, and the newest one is {epoch.number}: it is the "
            "controller of another store"
        )


def move(agreement: Agreement, to: Storage) -> Epoch:
    """Have later epochs decided at another place; returns the epoch that says so.

    Raises NotEnoughReplicas, StoreExists, StorageError.
    """
    moves, bounding = max(len(agreement.refresh().controllers), 1), agreement.slowness.bounding
    for _ in range(_TRIES):
        epoch, old = agreement.refresh(), agreement.controller.storage
        if to.url == (epoch.controller or old.url):
            return epoch  # the process that was first wanted the same
        if len(epoch.controllers) > moves:
            break
        if not epoch.controllers:
            why = f"the controller, {old.url}, is about to move"
            _propose(agreement, decided_at(epoch, old.url, agreement.proposer(why)))
            continue
        copy_epochs(old, to, epoch, partial(bounding, epoch=epoch))
        who = agreement.proposer(f"the controller moves to {to.url}")
        if _propose(agreement, moved := decided_at(epoch, to.url, who), at=epoch.controller):
            return moved
    raise NotEnoughReplicas(
        f"the controller was not moved to {to.url}: somebody else has moved it, or the set keeps "
        "changing. Look at it and try again"
    )


def _propose(agreement: Agreement, epoch: Epoch, at: str = "") -> bool:
    """Put an epoch at the old place; whether it was first. Raises StorageError, with advice."""
    try:
        return agreement.propose(epoch, at)
    except StorageError as error:
        raise StorageError(
            f"{error}. It is the old place that decides whether the controller moves. If that can "
            "be read and takes no epoch any more (its disk is full, or read-only), take it away "
            f"for good: {GO_ON_WITHOUT}"
        ) from error


def copy_epochs(old: Storage, to: Storage, epoch: Epoch, bounding: Bounding) -> None:
    """Copy all epochs up to the newest one to a place, unchanged, that one first.

    The newest epoch says where epochs are decided, and the oldest do not. So no process may find
    those alone. ``bounding`` limits the time of requests to both places.

    Raises StoreExists, StorageError.
    """
    old, to, newest = bounding(old), claim(to, epoch.store, bounding), epoch.number
    numbers = sorted(list_epochs(old))
    if newest not in numbers:
        raise StorageError(f"{old.url}/{root_names.epoch_file(newest)} is gone")
    _copy_epoch(old, to, newest)
    to.gather(partial(_copy_epoch, old, to, number) for number in numbers if number < newest)
    there = list_epochs(to)
    if not {number for number in numbers if number <= newest}.issubset(there):
        raise StorageError(f"{to.url} is not the folder that it was. Is its disk mounted?")


def claim(to: Storage, store: str, bounding: Bounding) -> Storage:
    """Claim a place for the controller, so that it is noticed if the place is gone later.

    ``bounding`` limits the time of requests, also of those to the returned storage.

    Raises StoreExists: the place is another store's. CorruptEntry, StorageError.
    """
    path, place = root_names.CONTROLLER_FILE, bounding(to)
    if not place.put_if_absent(path, envelope.encode(OwnerMark(to.url, store))):
        there = envelope.decode(place.get(path), MARK_DECODER, f"{to.url}/{path}")
        if there.store != store:
            raise StoreExists(f"{to.url} was claimed for another store's controller")
    place.confirm(path)
    if to.local_path("") is None:
        return place
    return bounding(MarkedDisk(to, path))


def _copy_epoch(old: Storage, to: Storage, number: int) -> None:
    path = root_names.epoch_file(number)
    try:
        data = old.get(path)
        if not to.put_if_absent(path, data) and to.get(path) != data:
            raise StoreExists(
                f"{to.url}/{path} is not what {old.url} has: it is the controller of another store"
            )
        to.confirm(path)
    except ObjectNotFound as error:
        raise StorageError(f"{path} disappeared while it was copied") from error


# -- roots ---------------------------------------------------------------------------------------


def _mark_of(storage: Storage) -> OwnerMark:
    try:
        return find_mark(storage)
    except ObjectNotFound as error:
        where = f"{storage.url}/{root_names.REPLICA_FILE}"
        raise StorageError(f"{where} is not there: is its disk mounted?") from error


def tell_root(opener: MemberOpener, slowness: Slowness, epoch: Epoch, root: str) -> bool:
    """Put the controller's pointer in a root, by :func:`put_pointer`; False if that fails.

    The pointer is only needed to open the store by that root once the old place is gone for good.
    """
    try:
        there = slowness.bounding(opener.root(epoch.roots[root].url), epoch)
        put_pointer(epoch, root, there)
    except TxnlogError:
        return False
    return True


def put_pointer(epoch: Epoch, root: str, storage: Storage) -> None:
    """Make a root name an epoch's controller, if the controller has ever moved.

    Raises StorageError. StoreExists: the folder is another root, or of another store.
    """
    mark = _mark_of(storage)
    check_owner(storage, mark, epoch, root)
    renew_mark(storage, mark)
    moves = len(epoch.controllers) - 1
    if moves < 1:
        return
    path = root_names.controller_pointer(moves)
    data = envelope.encode(OwnerMark(epoch.controller, epoch.store, root))
    if not storage.put_if_absent(path, data) and storage.get(path) != data:
        put_over(storage, path, data)  # it is damaged, or of a place that was lost with its epochs
    storage.confirm(path)


def named_controller(storage: Storage, mark: OwnerMark) -> str:
    """The URL of the controller that a root names, by its newest intact pointer or its mark."""
    found = map(root_names.parse_controller_pointer, storage.list_names(""))
    for moves in sorted((number for number in found if number is not None), reverse=True):
        path = root_names.controller_pointer(moves)
        with suppress(CorruptEntry, ObjectNotFound):
            pointer = envelope.decode(storage.get(path), MARK_DECODER, f"{storage.url}/{path}")
            if pointer.store == mark.store:
                return pointer.controller
    return mark.controller


def names_controller(storage: Storage, epoch: Epoch) -> bool:
    """Whether a root names the controller of an epoch. Raises StorageError."""
    return named_controller(storage, _mark_of(storage)) == epoch.controller
