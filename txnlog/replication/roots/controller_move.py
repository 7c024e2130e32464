"""The controller moves to another place while the store is in use.

1. An epoch says where the next one is decided: here. From then on all do, so no copy misleads.
2. The new place is claimed, and given the newest epoch, then all others, as they are.
3. The next epoch is put HERE, and says that those after it are decided there. Processes that look
   at the epochs after that go there; so nothing acknowledged in between is lost.
4. It is put there; a file in each root says where the controller is now.

A process that is killed on the way leaves copies that say where the controller is; the next attempt
goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from txnlog.errors import (
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
from txnlog.replication.roots.epochs import Epoch, counted_roots, decided_at, root_of
from txnlog.replication.roots.members import (
    MARK_DECODER,
    MarkedDisk,
    MemberOpener,
    OwnerMark,
    check_outside,
    check_url,
    is_nested,
    read_mark,
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
"""Attempts to put the epoch that moves: another process put one first in all but the last."""


@dataclass(frozen=True, slots=True)
class ControllerMove:
    """A controller that was moved, or would be.

    ``epoch`` is the one by which it moves. ``untold`` are roots without the file yet, since they
    did not answer; ``told`` are the others.
    """

    url: str
    epoch: int
    told: tuple[str, ...]
    untold: tuple[str, ...]


def known_controllers(agreement: Agreement, epoch: Epoch) -> tuple[str, ...]:
    """The controller's current and earlier places, which files in roots may name."""
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
        _check_named(agreement, opener, epoch)
        if not dry_run:
            if not to.was_probed():
                probe(place)
            epoch = move(agreement, to)
    elif len(epoch.controllers) == 1:
        raise InvalidOption(f"{to.url} is the controller already")
    if dry_run:
        ahead = 0 if epoch.controller == to.url else 1 if epoch.controllers else 2
        return ControllerMove(to.url, epoch.number + ahead, (), ())
    known = known_controllers(agreement, epoch)
    tell = partial(tell_root, opener, agreement.slowness, epoch, known)
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


def _check_named(agreement: Agreement, opener: MemberOpener, epoch: Epoch) -> None:
    """The URL for the old place in later epochs is the one in the roots."""
    root = root_of(epoch.leader)
    mark = _mark_of(agreement.slowness.bounding(opener.root(epoch.roots[root].url), epoch))
    known = known_controllers(agreement, epoch)
    if mark.controller not in known:
        raise InvalidOption(
            f"the roots name {mark.controller} as the controller, and not {known[-1]}: open the "
            "store by that URL, or by a root's"
        )


def _mark_of(storage: Storage) -> OwnerMark:
    try:
        return read_mark(storage)
    except ObjectNotFound as error:
        where = f"{storage.url}/{root_names.REPLICA_FILE}"
        raise StorageError(f"{where} is not there: is its disk mounted?") from error


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
        copy_epochs(old, to, epoch.number, partial(bounding, epoch=epoch))
        who = agreement.proposer(f"the controller moves to {to.url}")
        if _propose(agreement, moved := decided_at(epoch, to.url, who), at=epoch.controller):
            return moved
    raise NotEnoughReplicas(
        f"the controller was not moved to {to.url}: somebody else has moved it, or the set keeps "
        "changing. Look at it and try again"
    )


def _propose(agreement: Agreement, epoch: Epoch, at: str = "") -> bool:
    """Put an epoch at the old place. Raises StorageError, which says what to do without."""
    try:
        return agreement.propose(epoch, at)
    except StorageError as error:
        raise StorageError(
            f"{error}. It is the old place that decides whether the controller moves. If that can "
            "be read and takes no epoch any more (its disk is full, or read-only), take it away "
            f"for good: {GO_ON_WITHOUT}"
        ) from error


def copy_epochs(old: Storage, to: Storage, newest: int, bounding: Bounding) -> None:
    """Give a place all epochs, as they are, the newest one first.

    It says where epochs are decided, which the oldest do not: a process that finds those finds it,
    too. ``bounding`` limits the time of requests to both.

    Raises StoreExists, StorageError.
    """
    old, to = bounding(old), claim(to, bounding)
    numbers = sorted(list_epochs(old))
    if newest not in numbers:
        raise StorageError(f"{old.url}/{root_names.epoch_file(newest)} is gone")
    _copy_epoch(old, to, newest)
    to.gather(partial(_copy_epoch, old, to, number) for number in numbers if number < newest)
    there = list_epochs(to)
    if not {number for number in numbers if number <= newest}.issubset(there):
        raise StorageError(f"{to.url} is not the folder that it was. Is its disk mounted?")


def claim(to: Storage, bounding: Bounding) -> Storage:
    """Make a place the controller's, which is noticed to be gone. Raises StoreExists.

    ``bounding`` limits the time of requests to it, then also.
    """
    mark, place = envelope.encode(OwnerMark(to.url)), bounding(to)
    if not place.put_if_absent(root_names.CONTROLLER_FILE, mark) and (
        place.get(root_names.CONTROLLER_FILE) != mark
    ):
        raise StoreExists(f"{to.url} was claimed under another URL")
    place.confirm(root_names.CONTROLLER_FILE)
    if to.local_path("") is None:
        return place
    return bounding(MarkedDisk(to, root_names.CONTROLLER_FILE))


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


def tell_root(
    opener: MemberOpener, slowness: Slowness, epoch: Epoch, known: Sequence[str], root: str
) -> bool:
    """:func:`put_pointer`; False if the root does not answer.

    It is only needed to open the store by that root when the old place is gone for good.
    """
    try:
        there = slowness.bounding(opener.root(epoch.roots[root].url), epoch)
        put_pointer(epoch, root, there, known)
    except TxnlogError:
        return False
    return True


def put_pointer(epoch: Epoch, root: str, storage: Storage, known: Sequence[str]) -> None:
    """Make a root name an epoch's controller if it names one that is known.

    Raises StorageError, StoreExists.
    """
    moves = len(epoch.controllers) - 1
    mark = _mark_of(storage)
    if mark.controller not in known or mark.member != root:
        raise StoreExists(f"{storage.url} is not root {root}, or is of another store")
    if moves < 1:
        return
    path, data = (
        root_names.controller_pointer(moves),
        envelope.encode(OwnerMark(epoch.controller, root)),
    )
    if not storage.put_if_absent(path, data) and storage.get(path) != data:
        raise StoreExists(f"{storage.url}/{path} names another controller")
    storage.confirm(path)


def named_controller(storage: Storage, first: OwnerMark) -> OwnerMark:
    """The controller that a root names: by its newest pointer, or its original file."""
    found = map(root_names.parse_controller_pointer, storage.list_names(""))
    moves = max((number for number in found if number is not None), default=0)
    if not moves:
        return first
    path = root_names.controller_pointer(moves)
    return envelope.decode(storage.get(path), MARK_DECODER, f"{storage.url}/{path}")


def names_controller(storage: Storage, epoch: Epoch) -> bool:
    """Whether a root names the controller as of an epoch. Raises StorageError."""
    return named_controller(storage, _mark_of(storage)).controller == epoch.controller
