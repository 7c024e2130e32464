"""Creates a replicated store, and finds one by its controller or by any of its roots."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import combinations

import msgspec

from txnlog.clock import Clock
from txnlog.errors import (
    InvalidOption,
    NotAStore,
    ObjectNotFound,
    StorageError,
    StoreExists,
    UnsupportedFilesystem,
)
from txnlog.replication import root_names
from txnlog.replication.roots.controller import Controller, list_epochs
from txnlog.replication.roots.controller_move import (
    Bounding,
    known_controllers,
    named_controller,
    put_pointer,
)
from txnlog.replication.roots.epochs import (
    Epoch,
    Member,
    Proposer,
    Root,
    check_settings,
    counted_roots,
    first_epoch,
    incarnation_of,
    next_incarnation,
    root_of,
)
from txnlog.replication.roots.kept_data import Kept
from txnlog.replication.roots.members import (
    MemberOpener,
    OwnerMark,
    check_outside,
    check_url,
    is_another_stores,
    is_nested,
    put_mark,
    read_mark,
    without_mark,
)
from txnlog.replication.roots.placement import is_share
from txnlog.replication.roots.recovery import kept_epochs
from txnlog.replication.roots.replicated_storage import ReplicatedStorage
from txnlog.replication.roots.root_join import Joined
from txnlog.storage import envelope
from txnlog.storage.base import Address, CannotReplace, Storage
from txnlog.storage.probe import probe
from txnlog.storage.registry import in_time
from txnlog.time_limits import run_within

GIVEN_TOGETHER = (
    "several roots and their controller are given together, and with create=True, to make a "
    "replicated store; to open it, its controller's URL or that of a root is enough"
)
Options = Mapping[str, object] | None


def make_replicas(
    roots: Sequence[str | os.PathLike[str]],
    controller: str | os.PathLike[str],
    options: Options,
    settings: Mapping[str, object],
    clock: Clock,
) -> ReplicatedStorage:
    """See :func:`txnlog.replication.open_replicas` with ``create``."""
    opener = MemberOpener(options, [*roots, controller])
    storages = [opener.root(url) for url in roots]
    control = opener.root(controller)
    epochs = Controller(control, opener.controller)
    urls = [storage.url for storage in storages]
    for one in (*storages, control):
        check_url(one.url)
        opener.allow(one.url)
        check_outside(one)
    if any(is_nested(*pair) for pair in combinations((*urls, control.url), 2)):
        raise InvalidOption(
            "the roots and the controller of a replicated store must all differ, and none may lie "
            "inside another"
        )
    checked = check_settings(settings, [f"r{number}" for number in range(len(urls))])
    if list_epochs(control):
        found = epochs.newest()
    else:
        named = {f"r{number}": url for number, url in enumerate(urls)}
        first = first_epoch(named, checked, Proposer(clock.token(), clock.now_ms(), "made"))
        _make(opener, control, dict(zip(named.values(), storages, strict=True)), first)
        found = epochs.newest()
    needed = {found.roots[root].url for root in counted_roots(found)}
    if not needed <= {*urls} <= {root.url for root in found.roots.values()}:
        there = ", ".join(root.url for root in found.roots.values())
        raise StoreExists(f"{control.url} is the controller of other roots: {there}")
    storage = _open(epochs.storage.url, opener, clock)
    storage.trust(probed=True)
    return storage


def find_replicas(
    url: str | os.PathLike[str], options: Options, clock: Clock
) -> ReplicatedStorage | None:
    """The replicas whose controller or root this is; None if it is neither."""
    opener = MemberOpener(options, [url])

    def look() -> tuple[Storage, str | None]:
        """What is there, and the controller if it is a root's; its own URL if it is that."""
        storage = opener.root(url)
        opener.allow(storage.url)
        try:
            return storage, named_controller(storage, read_mark(storage)).controller
        except ObjectNotFound:
            return storage, storage.url if list_epochs(storage) else None

    try:
        storage, named = in_time(url, look)
    except UnsupportedFilesystem:
        return None  # a filesystem for unsafe_single_writer holds no replicas
    if named is None:
        return None
    if named == storage.url:
        return _open(url, opener, clock)
    found = _open(named, opener, clock, storage)
    try:
        epoch = found.agreement.refresh()
    except (StorageError, NotAStore) as error:
        raise StorageError(
            f"{storage.url} names {named} as the controller, where no epochs can be read: {error}. "
            "If it was moved while this root was away, open the store by the new controller's URL "
            "or by another root; `txnlog replicas move-controller` then tells this one, too. "
            "If it is lost for good, `txnlog replicas recover` makes it anew"
        ) from error
    if in_time(url, lambda: is_another_stores(storage, epoch)):
        raise StorageError(
            f"{storage.url} names {named} as the controller, which is another store's: was its "
            "disk exchanged?"
        )
    return found


def _open(
    url: str | os.PathLike[str], opener: MemberOpener, clock: Clock, root: Storage | None = None
) -> ReplicatedStorage:
    control = opener.controller(url)
    address = Address(control.url, opener.options)
    return ReplicatedStorage(
        control,
        opener,
        address,
        clock,
        run_within=run_within,
        find_kept=partial(kept_epochs, opener, root),
    )


def _make(
    opener: MemberOpener, control: Storage, storages: Mapping[str, Storage], first: Epoch
) -> None:
    folders = {*filter(root_names.is_of_store, control.list_folders(""))}
    if folders - {root_names.EPOCHS} or control.list_names(""):
        raise NotAStore(f"{control.url} is not empty: a controller needs a folder of its own")
    if not control.was_probed():
        probe(control)
    for name, root in first.roots.items():
        _check_mark(storages[root.url], f"{name}-0", [control.url])  # before any is marked
    for name, root in first.roots.items():
        mark_root(opener, storages[root.url], root, f"{name}-0", [control.url], first.store)
    Controller(control).propose(first)


def mark_root(
    opener: MemberOpener,
    storage: Storage,
    root: Root,
    member: Member,
    controllers: Sequence[str],
    store: str,
    *,
    may_be_new: bool = True,
    bounding: Bounding | None = None,
) -> None:
    """Check that a root is empty, or this store's; write into it where the controller is.

    ``controllers`` are where it was, and last where it is.

    Unless it ``may_be_new`` an empty one is refused: a disk that is not mounted looks like that.

    Raises NotAStore, StoreExists, PutIfAbsentBroken, StorageError.
    """
    controller = controllers[-1]
    data = envelope.encode(OwnerMark(controller, root_of(member)))
    if _check_mark(storage, member, controllers, may_be_new=may_be_new):
        if not envelope.is_sound(storage.get(root_names.REPLICA_FILE)):
            with suppress(CannotReplace):  # its incarnations tell
                storage.replace(root_names.REPLICA_FILE, data)
    else:
        if not storage.was_probed():
            probe(storage)
        if not storage.put_if_absent(root_names.REPLICA_FILE, data) and (
            storage.get(root_names.REPLICA_FILE) != data
        ):
            raise StoreExists(f"{storage.url} is a replica of another store")
        storage.confirm(root_names.REPLICA_FILE)
    had = [root_names.parse_incarnation_folder(name) for name in storage.list_folders("")]
    if any(one is not None and one > incarnation_of(member) for one in had):
        raise StorageError(
            f"{storage.url} has had later incarnations than {member}: is {controller} what it was?"
        )
    inside = opener.at(root, member, store)
    if bounding is not None:
        inside = bounding(inside)
    if any(root_names.is_of_store(name) for name, _ in without_mark(inside).list_all("")):
        raise StorageError(f"{inside.url} is not empty, as a new replica must be")
    put_mark(inside, member, controller, store)


def _check_mark(
    storage: Storage, member: Member, controllers: Sequence[str], *, may_be_new: bool = True
) -> bool:
    """Whether a root is this store's already. Raises StoreExists, NotAStore, StorageError."""
    known = [OwnerMark(one, root_of(member)) for one in controllers]
    try:
        if read_mark(storage) not in known:
            raise StoreExists(
                f"{storage.url} is not root {root_of(member)} of {controllers[-1]}, or is a "
                "replica of another store"
            )
    except ObjectNotFound as error:
        if not may_be_new:
            where = f"{storage.url}/{root_names.REPLICA_FILE}"
            raise StorageError(f"{where} is not there: is its disk mounted?") from error
        folders = [*filter(root_names.is_of_store, storage.list_folders(""))]
        if folders or storage.list_names(""):
            raise NotAStore(f"{storage.url} is not empty: choose an empty folder") from None
        return False
    return True


def find_root(
    storage: ReplicatedStorage, url: str, *, is_typed: bool = True
) -> tuple[str, Storage]:
    """A root that may join: its name in the epochs, new or old, and its storage.

    Raises InvalidOption: it is in sync, or its URL may not be stored. NotAStore: it lies in another
    root's. UnnamedUrl unless it ``is_typed``, by the user.
    """
    opener = storage.open_member
    if not isinstance(opener, MemberOpener):
        raise InvalidOption(f"{storage.url} was opened with members of its own: join them by name")
    if is_typed:
        opener.allow(url)
    found = opener.root(url)
    check_url(found.url)
    if is_typed:
        opener.allow(found.url)
    epoch = storage.agreement.refresh()
    root = next((name for name, one in epoch.roots.items() if one.url == found.url), None)
    if any(root_of(member) == root for member in epoch.in_sync):
        raise InvalidOption(f"{found.url} is in sync already, as {root}")
    others = [one.url for one in epoch.roots.values()] if root is None else []
    for other in (*others, *known_controllers(storage.agreement, epoch)):
        if found.url == other:
            raise InvalidOption(f"{other} is the controller, or was: choose a folder of its own")
        if is_nested(found.url, other):
            raise InvalidOption(f"{found.url} and {other} are nested: choose a folder of its own")
    if is_typed:
        check_outside(found)
    return root or f"r{len(epoch.roots)}", found


def prepare_return(storage: ReplicatedStorage, url: str) -> tuple[str, str]:
    """:func:`prepare_root` for a root of this store, without an operator. Raises UnnamedUrl."""
    return prepare_root(storage, url, is_known=True)


def prepare_root(
    storage: ReplicatedStorage, url: str, *, is_known: bool = False
) -> tuple[str, str]:
    """Make a root ready to join: its name in the epochs, new or old, and its URL.

    One that ``is_known`` was a root before, and the epochs have named it.

    Raises InvalidOption, NotAStore, StoreExists, StorageError.
    """
    root, found = find_root(storage, url, is_typed=not is_known)
    agreement, opener, url = storage.agreement, storage.open_member, found.url
    epoch = agreement.epoch()
    assert isinstance(opener, MemberOpener)
    controllers = known_controllers(agreement, epoch)
    member = next_incarnation(epoch, root)
    bounding = partial(agreement.slowness.bounding, epoch=epoch)
    found = bounding(found)
    mark_root(
        opener,
        found,
        Root(url),
        member,
        controllers,
        epoch.store,
        may_be_new=not is_known,
        bounding=bounding,
    )
    put_pointer(epoch, root, found, controllers)
    return root, url


def plan_join(storage: ReplicatedStorage, url: str) -> Joined:
    """The cost of adding a root now, if what it has is whole. Raises the errors of joining."""
    root, found = find_root(storage, url)
    agreement = storage.agreement
    epoch = agreement.epoch()
    member = next_incarnation(epoch, root)
    # A root that cannot be reached, or holds something else, is reported now.
    reached = agreement.slowness.bounding(found, epoch)
    _check_mark(reached, member, known_controllers(agreement, epoch))
    known = msgspec.structs.replace(epoch, roots={**epoch.roots, root: Root(found.url)})
    counts, sizes = [0, 0], [0, 0]
    with Kept.of(agreement, known, member, lambda *_: None) as kept:
        for name, size in storage.list_all(""):
            if root_names.is_of_store(name) and is_share(known, name, member):
                is_kept = kept.may_keep(name, size)
                counts[is_kept] += 1
                sizes[is_kept] += size
    return Joined(member, epoch.number + 2, counts[0], sizes[0], counts[1], sizes[1])
