"""Finds and lists data files that not every member has.

A file is first looked for where it belongs. It may be elsewhere: it was put under another epoch, is
being moved, or is at a member that is out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import TypeAlias, TypeVar

from txnlog import names
from txnlog.errors import NotEnoughReplicas, ObjectNotFound, TxnlogError
from txnlog.replication import root_names
from txnlog.replication.roots.agreement import Agreement, MemberFailed
from txnlog.replication.roots.copies import copy_between
from txnlog.replication.roots.epochs import Epoch, Member, by_last_in_sync, root_of
from txnlog.replication.roots.listings import Listings, add_listing, portions
from txnlog.replication.roots.placement import is_placed, may_hold_data, places, targets, topic_of
from txnlog.replication.roots.soundness import IsSound, judged
from txnlog.storage.base import Storage

T = TypeVar("T")

IsReplaced: TypeAlias = Callable[[Storage, str], bool]
"""Whether a storage's data file is not needed by anybody who begins now.

Other files have its records since, or no log places it, and no writer will.
"""


def read_elsewhere(
    agreement: Agreement, epoch: Epoch, name: str, call: Callable[[Storage], T]
) -> T:
    """Read a data file that no member in sync had when they were asked one after the other.

    Where every member should have all data, the file was deleted, or the last one in sync has lost
    it.

    Raises ObjectNotFound: no member has it, and all that may have it answer. NotEnoughReplicas: a
    member that is out may have it. MemberFailed: a member in sync, or joining, may have it.
    """
    ask = partial(agreement.ask_large, epoch, call=call)
    for member in (*epoch.in_sync, *epoch.joining):  # it may have been moved meanwhile
        with suppress(ObjectNotFound):
            return ask(member)
    for member in epoch.in_sync:
        agreement.check_mark(epoch, member)  # a disk that is not mounted has nothing
    unseen = []
    for member in by_last_in_sync(epoch):
        try:
            return ask(member)
        except ObjectNotFound:
            try:
                agreement.check_mark(epoch, member)
            except MemberFailed:
                unseen.append(member)
        except (MemberFailed, TxnlogError):
            unseen.append(member)
    if unseen:
        roots = ", ".join(f"{epoch.roots[root_of(one)].url} ({one})" for one in unseen)
        raise NotEnoughReplicas(
            f"no root in sync has {name}. It may be on a root that is out, and none of these "
            f"answers: {roots}"
        )
    raise ObjectNotFound(f"no root that is in sync, or was, has {name}")


def asks_all(epoch: Epoch, folder: str) -> bool:
    """Whether a folder must be listed at all members in sync, and not at the leader alone."""
    if _is_of_id(folder):
        return True
    return may_hold_data(folder) and (places(epoch) or folder not in ("", names.TOPICS))


def list_placed(agreement: Agreement, epoch: Epoch, folder: str) -> Iterator[tuple[str, int]]:
    """The leader's objects below a folder, then those that only other members in sync list.

    The others are listed if data is placed, or if the folder is within a topic's; then their data
    files count. They are listed, too, in the folder of a transactional id, which is deleted
    entirely; there all their files count. A deletion begins at the leader and may have ended there,
    so a process that deletes must see the files that are left.

    A process that only reads goes on without members that do not answer, unless data is placed.

    Raises MemberFailed, ObjectNotFound.
    """
    followers = [member for member in epoch.in_sync if member != epoch.leader]
    if not (followers and asks_all(epoch, folder)):
        for some in portions(agreement, epoch, epoch.leader, folder):
            yield from some
        return
    counts = None if _is_of_id(folder) else _is_data
    with Listings(epoch.in_sync) as listings:
        for some in portions(agreement, epoch, epoch.leader, folder):
            listings.add(epoch.leader, filter(counts, some))
            yield from some
        for member in followers:
            within = folder or names.TOPICS
            try:
                add_listing(listings, agreement, epoch, member, within, counts=counts)
            except MemberFailed:
                if places(epoch) or not agreement.observes:
                    raise
        yield from listings.lacked_by(epoch.leader)


def add_data(
    listings: Listings, agreement: Agreement, epoch: Epoch, member: Member, folder: str
) -> None:
    """:func:`add_listing` of data files only. Raises MemberFailed."""
    add_listing(listings, agreement, epoch, member, folder, counts=_is_data)


def _is_of_id(folder: str) -> bool:
    """Whether a folder is the log of a transactional id, or the copy that its expiry has left."""
    above, _, last = folder.partition("/")
    return above in (names.TRANSACTIONS, names.EXPIRED) and last != ""


def _is_data(listed: tuple[str, int]) -> bool:
    return topic_of(listed[0]) is not None


def list_whole(agreement: Agreement, epoch: Epoch) -> Iterator[tuple[str, int]]:
    """List all objects of the store, by name and size. Raises MemberFailed, StorageError."""
    for name, size in list_placed(agreement, epoch, ""):
        if root_names.is_of_store(name):
            yield name, size


def source_of(agreement: Agreement, epoch: Epoch, name: str) -> Member:
    """Find a member to copy an object from. Raises ObjectNotFound, MemberFailed."""
    if not is_placed(epoch, name):
        return epoch.leader
    for member in sorted(epoch.in_sync, key=lambda one: one not in targets(epoch, name)):
        with suppress(ObjectNotFound):
            agreement.ask(epoch, member, lambda storage: storage.size(name))
            return member
    raise ObjectNotFound(f"no root in sync has {name}")


def sound_source(
    agreement: Agreement, epoch: Epoch, name: str, first: Member, is_sound: IsSound
) -> Member:
    """Find a member that has a data file intact, former ones included; ``first`` if there is none.

    Then the damaged file of ``first`` is copied, since some of it can be read.

    Raises ObjectNotFound: ``first`` does not have it.
    """
    if names.is_accelerator(name):
        return first  # to judge it takes its whole segment, and readers do so at each entry
    judge = partial(agreement.ask, epoch, call=lambda storage: judged(is_sound, storage, name))
    with suppress(MemberFailed):  # a part of it cannot be read, mostly
        if judge(first) is not False:
            return first
    for member in (*epoch.in_sync, *by_last_in_sync(epoch)):
        with suppress(ObjectNotFound, MemberFailed):
            if member != first and judge(member):
                return member
    return first


def copy_sound(
    agreement: Agreement, epoch: Epoch, name: str, first: Member, target: Member, is_sound: IsSound
) -> int:
    """Copy a data file to a member, from one that has it intact; returns its bytes.

    An index is not judged. If it cannot be read at its source, another member's is copied.

    Raises ObjectNotFound, MemberFailed.
    """
    source = sound_source(agreement, epoch, name, first, is_sound)
    try:
        return copy_between(agreement, epoch, source, target, name)
    except MemberFailed as failed:
        others = [one for one in epoch.in_sync if one != source and names.is_accelerator(name)]
        for other in others if failed.member == source else ():
            with suppress(ObjectNotFound, MemberFailed):
                return copy_between(agreement, epoch, other, target, name)
        raise


def confirm_placed(agreement: Agreement, epoch: Epoch, name: str) -> None:
    """Confirm that a data file is durable where it belongs; copy it where it is missing.

    Raises ObjectNotFound, MemberFailed.
    """
    source = source_of(agreement, epoch, name)
    for member in targets(epoch, name):
        try:
            agreement.ask(epoch, member, lambda storage: storage.size(name))
        except ObjectNotFound:
            copy_between(agreement, epoch, source, member, name)
        agreement.ask(epoch, member, lambda storage: storage.confirm(name))
