"""Data files that not every member has: finding one, and listing them all.

A file is first looked for where it belongs. It may have been put under another epoch, be in the
middle of a move, or be at a member that is out.
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
"""Whether nobody who begins now needs a data file that a storage has: its records are in others
since, or no log places it, and no writer will any more."""


def read_elsewhere(
    agreement: Agreement, epoch: Epoch, name: str, call: Callable[[Storage], T]
) -> T:
    """Read a data file that no member in sync had when asked one after the other.

    Where all should have all, it was deleted, or the last one in sync has lost it.

    Raises ObjectNotFound: no member has it, and all that may have it answer. NotEnoughReplicas: a
    member that is out may have it that is placed. MemberFailed: a member may have it.
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
    if unseen and is_placed(epoch, name):
        roots = ", ".join(f"{epoch.roots[root_of(one)].url} ({one})" for one in unseen)
        raise NotEnoughReplicas(
            f"no root in sync has {name}. It may be on a root that is out, and none of these "
            f"answers: {roots}"
        )
    raise ObjectNotFound(f"no root that is in sync, or was, has {name}")


def asks_all(epoch: Epoch, folder: str) -> bool:
    """Whether a listing of a folder takes those of all in sync."""
    if _is_of_id(folder):
        return True
    return may_hold_data(folder) and (places(epoch) or folder not in ("", names.TOPICS))


def list_placed(agreement: Agreement, epoch: Epoch, folder: str) -> Iterator[tuple[str, int]]:
    """The leader's objects below a folder, then data that only others in sync have.

    Below one topic's folder that is told also where all have all, and in that of a transactional
    id, which is removed as a whole, anything: a deletion begins at the leader, and if it ended
    there, whoever deletes must see what is left. Who only observes goes on without those that do
    not answer.

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
    """:func:`add_listing` of data files alone. Raises MemberFailed."""
    add_listing(listings, agreement, epoch, member, folder, counts=_is_data)


def _is_of_id(folder: str) -> bool:
    """Whether it is the log of a transactional id, or what its expiry has left."""
    above, _, last = folder.partition("/")
    return above in (names.TRANSACTIONS, names.EXPIRED) and last != ""


def _is_data(listed: tuple[str, int]) -> bool:
    return topic_of(listed[0]) is not None


def list_whole(agreement: Agreement, epoch: Epoch) -> Iterator[tuple[str, int]]:
    """All objects of the store. Raises MemberFailed, StorageError."""
    for name, size in list_placed(agreement, epoch, ""):
        if root_names.is_of_store(name):
            yield name, size


def source_of(agreement: Agreement, epoch: Epoch, name: str) -> Member:
    """A member to copy an object from. Raises ObjectNotFound, MemberFailed."""
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
    """A member that has data whole, former ones too; ``first`` if there is none.

    Then that is copied as it is: some of it can be read. Raises ObjectNotFound: ``first`` does not
    have it.
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
    """Copy data to a member from one that has it whole; returns its bytes.

    An index is not judged: it is another one's if the first one's cannot be read. Raises
    ObjectNotFound, MemberFailed.
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
    """Confirm that a data file is durable where it belongs.

    Raises ObjectNotFound, MemberFailed.
    """
    source = source_of(agreement, epoch, name)
    for member in targets(epoch, name):
        try:
            agreement.ask(epoch, member, lambda storage: storage.size(name))
        except ObjectNotFound:
            copy_between(agreement, epoch, source, member, name)
        agreement.ask(epoch, member, lambda storage: storage.confirm(name))
