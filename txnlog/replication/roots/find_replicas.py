"""Makes a replicated store, or finds one by the URL of its controller or of any of its roots."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
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
    last_in_sync,
    member_of,
    moved_to,
    next_incarnation,
    root_of,
)
from txnlog.replication.roots.kept_data import Kept
from txnlog.replication.roots.members import (
    MemberOpener,
    OwnerMark,
    check_outside,
    check_owner,
    check_url,
    drop_other_marks,
    find_mark,
    has_later_incarnations,
    holds_incarnations,
    holds_objects,
    is_nested,
    newest_member,
    put_mark,
    renew_mark,
    without_mark,
)
from txnlog.replication.roots.placement import is_share
from txnlog.replication.roots.recovery import kept_epochs
from txnlog.replication.roots.replicated_storage import ReplicatedStorage
from txnlog.replication.roots.root_join import Joined
from txnlog.storage import envelope
from txnlog.storage.base import Address, Storage
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
    if not list_epochs(control):
        named = {f"r{number}": url for number, url in enumerate(urls)}
        _make(opener, control, dict(zip(named, storages, strict=True)), checked, clock)
    found = epochs.newest()
    given = {_root_at(storage, found) for storage in storages}
    if not {*counted_roots(found)} <= given <= found.roots.keys():
        there = ", ".join(root.url for root in found.roots.values())
        raise StoreExists(f"{control.url} is the controller of other roots: {there}")
    storage = _open(epochs.storage.url, opener, clock)
    storage.trust(probed=True)
    return storage


def find_replicas(
    url: str | os.PathLike[str], options: Options, clock: Clock
) -> ReplicatedStorage | None:
    """Open the replicated store whose controller or root is at a URL; None if there is neither.

    Raises StorageError: the controller that a root names cannot be read, or is another store's.
    """
    opener = MemberOpener(options, [url])

    def look() -> tuple[Storage, OwnerMark | None, str | None]:
        """The storage, its mark if it is a root, and the controller's URL, if there is one."""
        storage = opener.root(url)
        opener.allow(storage.url)
        try:
            mark = find_mark(storage)
            return storage, mark, named_controller(storage, mark)
        except ObjectNotFound:
            return storage, None, storage.url if list_epochs(storage) else None

    try:
        storage, mark, named = in_time(url, look)
    except UnsupportedFilesystem:
        return None  # a filesystem for unsafe_single_writer holds no replicas
    if named is None:
        return None
    if mark is None:
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
    if mark.store != epoch.store:
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
    opener: MemberOpener,
    control: Storage,
    storages: Mapping[str, Storage],
    settings: Mapping[str, str],
    clock: Clock,
) -> None:
    """Make a store of roots, given by name; finish one that another process has begun."""
    folders = {*filter(root_names.is_of_store, control.list_folders(""))}
    if folders - {root_names.EPOCHS} or control.list_names(""):
        raise NotAStore(f"{control.url} is not empty: a controller needs a folder of its own")
    if not control.was_probed():
        probe(control)
    # Whoever marks the first root decides what the store is told by.
    root, first = next(iter(storages.items()))
    claimed = OwnerMark(control.url, clock.token(), root)
    own = _mark_if_any(first) or claimed
    for name, storage in storages.items():  # before any is marked
        if (there := _mark_if_any(storage)) is None:
            check_empty(storage)
        elif there != OwnerMark(control.url, own.store, name):
            raise StoreExists(f"{storage.url} is a replica of another store")
    mark = _mark_empty(first, claimed)
    if mark.controller != control.url:
        raise StoreExists(f"{first.url} has just become a replica of another store")
    urls = {name: storage.url for name, storage in storages.items()}
    epoch = first_epoch(urls, settings, Proposer(mark.store, clock.now_ms(), "made"))
    for name, storage in storages.items():
        mark_root(opener, storage, epoch.roots[name], f"{name}-0", control.url, epoch)
    Controller(control).propose(epoch)


def _mark_if_any(storage: Storage) -> OwnerMark | None:
    try:
        return find_mark(storage)
    except ObjectNotFound:
        return None


def _root_at(storage: Storage, epoch: Epoch) -> str:
    """The name of the root that a storage is, by its URL or its mark; "" if it is none."""
    for name, root in epoch.roots.items():
        if root.url == storage.url:
            return name
    mark = _mark_if_any(storage)
    return mark.member if mark is not None and mark.store == epoch.store else ""


def mark_root(
    opener: MemberOpener,
    storage: Storage,
    root: Root,
    member: Member,
    controller: str,
    epoch: Epoch,
    *,
    may_be_new: bool = True,
    bounding: Bounding | None = None,
) -> None:
    """Check that a root is empty, or is this store's; mark it, and the folder of its new member.

    Unless it ``may_be_new``, an empty root is refused: a disk that is not mounted looks like that.

    Raises NotAStore, StoreExists, PutIfAbsentBroken, StorageError.
    """
    mark = OwnerMark(controller, epoch.store, root_of(member))
    if may_be_new:
        _mark_empty(storage, mark)
    if check_mark(storage, epoch, mark.member, may_be_new=may_be_new) != mark.member:
        drop_other_marks(storage, mark.member)
    renew_mark(storage, mark)
    if has_later_incarnations(storage, incarnation_of(member)):
        raise StorageError(
            f"{storage.url} has had later incarnations than {member}: is {controller} what it was?"
        )
    inside = opener.at(root, member, epoch.store)
    if bounding is not None:
        inside = bounding(inside)
    if holds_objects(without_mark(inside)):
        raise StorageError(f"{inside.url} is not empty, as a new replica must be")
    put_mark(inside, member, controller, epoch.store)


def check_empty(storage: Storage) -> None:
    """Raise NotAStore if a folder without a mark is not empty."""
    folders = [*filter(root_names.is_of_store, storage.list_folders(""))]
    if folders or storage.list_names(""):
        raise NotAStore(f"{storage.url} is not empty: choose an empty folder")


def _mark_empty(storage: Storage, mark: OwnerMark) -> OwnerMark:
    """Mark an empty root, unless it has a mark; returns its mark now. Raises NotAStore."""
    if (there := _mark_if_any(storage)) is not None:
        return there
    check_empty(storage)
    if not storage.was_probed():
        probe(storage)
    storage.put_if_absent(root_names.REPLICA_FILE, envelope.encode(mark))
    storage.confirm(root_names.REPLICA_FILE)
    return find_mark(storage)


def check_mark(storage: Storage, epoch: Epoch, root: str, *, may_be_new: bool = True) -> str:
    """Check that a folder is a root of this store, or may become one; returns the name it has.

    It may have a mark for another name if nothing was written in it: then the process that was to
    add it was killed, and the name was given to another root.

    Raises StoreExists, NotAStore, StorageError.
    """
    if (mark := _mark_if_any(storage)) is None:
        if not may_be_new:
            where = f"{storage.url}/{root_names.REPLICA_FILE}"
            raise StorageError(f"{where} is not there: is its disk mounted?")
        check_empty(storage)
        return root
    if mark.member == root or mark.store != epoch.store or holds_incarnations(storage):
        check_owner(storage, mark, epoch, root)
    return mark.member


def find_root(
    storage: ReplicatedStorage, url: str, *, is_typed: bool = True
) -> tuple[str, Storage]:
    """Find a root that may join: returns its name, known or new, and its storage.

    ``is_typed``: the user has given the URL, which allows access to it.

    Raises InvalidOption: the root is in sync, or its URL may not be stored. NotAStore: it lies in
    another root. StoreExists: it is an earlier copy of a root. UnnamedUrl: nobody has given the
    URL.
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
    others = [one.url for one in epoch.roots.values()] if root is None else []
    for other in (*others, *known_controllers(storage.agreement, epoch)):
        if found.url == other:
            raise InvalidOption(f"{other} is the controller, or was: choose a folder of its own")
        if is_nested(found.url, other):
            raise InvalidOption(f"{found.url} and {other} are nested: choose a folder of its own")
    if is_typed:
        check_outside(found)
    root = root or _moved(storage.agreement.slowness.bounding(found, epoch), epoch)
    if any(root_of(member) == root for member in epoch.in_sync):
        raise InvalidOption(f"{found.url} is in sync already, as {root}")
    return root or f"r{len(epoch.roots)}", found


def _moved(found: Storage, epoch: Epoch) -> str | None:
    """The root whose disk is at another URL now; None if it is no root of this store.

    Raises StoreExists: it is an earlier copy of that root.
    """
    if (mark := _mark_if_any(found)) is None:
        return None
    root = mark.member
    if mark.store != epoch.store or root not in epoch.roots or not holds_incarnations(found):
        return None
    member = member_of(epoch, root)
    if member not in epoch.in_sync:  # one that joins may have nothing yet, and has only copies
        member = last_in_sync(epoch, root)
    newest = newest_member(found, root, epoch.store)
    # Without a former member nothing is left to be earlier than, but what a killed `forget` left.
    if member is not None and (newest is None or newest < incarnation_of(member)):
        raise StoreExists(
            f"{found.url} is an earlier copy of {root}, which is at {epoch.roots[root].url}: add "
            "that, or an empty folder"
        )
    return root


def prepare_return(storage: ReplicatedStorage, url: str) -> tuple[str, str]:
    """:func:`prepare_root` for a root of this store, when no operator asks. Raises UnnamedUrl."""
    return prepare_root(storage, url, is_known=True)


def prepare_root(
    storage: ReplicatedStorage, url: str, *, is_known: bool = False
) -> tuple[str, str]:
    """Make a root ready to join; returns its name, known or new, and its URL.

    ``is_known``: it was a root before, and the epochs name it.

    Raises InvalidOption, NotAStore, StoreExists, StorageError.
    """
    root, found = find_root(storage, url, is_typed=not is_known)
    agreement, opener, url = storage.agreement, storage.open_member, found.url
    epoch = agreement.epoch()
    assert isinstance(opener, MemberOpener)
    controller = known_controllers(agreement, epoch)[-1]
    if root in epoch.roots and epoch.roots[root].url != url:
        who = agreement.proposer(f"{root} is at {url} now")
        agreement.propose(moved_to(epoch, root, url, who))
        epoch = agreement.epoch()
    member = next_incarnation(epoch, root)
    bounding = partial(agreement.slowness.bounding, epoch=epoch)
    found = bounding(found)
    mark_root(
        opener,
        found,
        Root(url),
        member,
        controller,
        epoch,
        may_be_new=not is_known,
        bounding=bounding,
    )
    put_pointer(epoch, root, found)
    return root, url


def plan_join(storage: ReplicatedStorage, url: str) -> Joined:
    """The cost of adding a root now, if its own data is intact. Raises what joining does."""
    root, found = find_root(storage, url)
    agreement = storage.agreement
    epoch = agreement.epoch()
    member = next_incarnation(epoch, root)
    # A root that cannot be reached, or holds something else, is reported now.
    reached = agreement.slowness.bounding(found, epoch)
    check_mark(reached, epoch, root)
    known = msgspec.structs.replace(epoch, roots={**epoch.roots, root: Root(found.url)})
    counts, sizes = [0, 0], [0, 0]
    with Kept.of(agreement, known, member, lambda *_: None) as kept:
        for name, size in storage.list_all(""):
            if root_names.is_of_store(name) and is_share(known, name, member):
                is_kept = kept.may_keep(name, size)
                counts[is_kept] += 1
                sizes[is_kept] += size
    return Joined(member, epoch.number + 2, counts[0], sizes[0], counts[1], sizes[1])
