"""Whether roots know an epoch that the controller does not have: then it is not what it was.

It was restored from a backup, or another one was made anew. Who writes compares it with the roots
that are in sync as it says. Operators are told, and stopped, by whatever root that answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import TypeVar

from txnlog.errors import OutdatedController, StorageError, TxnlogError
from txnlog.replication import root_names
from txnlog.replication.roots.agreement import Agreement, OpenMember
from txnlog.replication.roots.epoch_cleaning import KEPT
from txnlog.replication.roots.epoch_notes import list_notes, read_notes, unknown_epoch
from txnlog.replication.roots.epochs import Epoch, Member, is_over, member_of
from txnlog.replication.roots.members import MemberOpener
from txnlog.replication.roots.slowness import time_for

T = TypeVar("T")


def check_controller(agreement: Agreement, opener: OpenMember) -> None:
    """Raises OutdatedController; StorageError: it fails."""
    if error := why_outdated(agreement, opener):
        raise error


def why_outdated(agreement: Agreement, opener: OpenMember) -> OutdatedController | None:
    """What tells that the controller is not what it was; None if nothing does.

    Who goes by what roots keep does not ask the controller. Raises StorageError: it fails.
    """
    if not isinstance(opener, MemberOpener):
        return None
    while True:
        epoch = agreement.refresh()
        if agreement.lost is not None:
            return None
        asks = [partial(_newest_of, agreement, opener, epoch, root) for root in epoch.roots]
        found = [one for some in agreement.controller.storage.gather(asks) for one in some]
        unknown = [one for one in found if not _knows(agreement, epoch, one[1])]
        if not unknown:
            return None
        if agreement.is_newest(epoch):
            return unknown_epoch(agreement, *unknown[0])


def ask_root(agreement: Agreement, epoch: Epoch, root: str, look: Callable[[], T]) -> T:
    """Look at a root's own folder; not if its member hangs, which is not waited for twice.

    A folder that takes long is not its member's failure. Raises TxnlogError, as the look does.
    """
    member = member_of(epoch, root)
    if member is not None:
        agreement.slowness.ask(member, lambda: None, time_for(epoch))
    return agreement.slowness.ask(root, look, time_for(epoch))


def _newest_of(
    agreement: Agreement, opener: MemberOpener, epoch: Epoch, root: str
) -> list[tuple[Member, Epoch]]:
    """The newest epoch that each incarnation of a root has, as far as they answer."""
    known = epoch.roots[root]

    def look() -> Iterator[tuple[Member, Epoch]]:
        folders = opener.root(known.url).list_folders("")
        for number in map(root_names.parse_incarnation_folder, folders):
            if number is None:
                continue
            member = f"{root}-{number}"
            with suppress(StorageError):  # it is being deleted, or about to join
                storage = opener.at(known, member, epoch.store)
                for noted in read_notes(storage, list_notes(storage)[-1:])[0]:
                    yield member, noted

    with suppress(TxnlogError):
        found = ask_root(agreement, epoch, root, lambda: [*look()])
        # Else another store's root is in its place.
        return [one for one in found if one[1].store == epoch.store]
    return []


def _knows(agreement: Agreement, epoch: Epoch, noted: Epoch) -> bool:
    """Whether an epoch that a root has is one of the controller's, or need not be."""
    if is_over(noted, epoch):
        return True
    if noted.number >= epoch.number:
        return noted == epoch
    if noted.number <= epoch.number - KEPT:
        return True  # its name may have been free since, and taken by a process that slept
    with suppress(StorageError):
        return agreement.ask_controller(lambda: agreement.controller.at(noted.number)) == noted
    return True  # not every epoch is made anew with the controller
