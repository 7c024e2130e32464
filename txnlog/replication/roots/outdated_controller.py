"""Finds out that a controller is outdated: roots have noted an epoch that it does not have.

It was restored from a backup, or another one was made in its place. A process that writes asks only
the roots that the controller says are in sync. An operator's command asks all roots, and does
nothing if any that answers has such a note.
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
    """Raise OutdatedController if the controller is outdated, StorageError if it fails."""
    if error := why_outdated(agreement, opener):
        raise error


def why_outdated(agreement: Agreement, opener: OpenMember) -> OutdatedController | None:
    """The error that says why the controller is outdated; None if nothing shows that it is.

    None as well if this process goes by what roots keep, while the controller fails.

    Raises StorageError: the controller fails.
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
    """Look at the folder of a root, within a time limit.

    Raises TxnlogError: the look did, or took too long; or the root's member hangs, which is not
    waited for twice. A slow look does not make the member slow.
    """
    member = member_of(epoch, root)
    if member is not None:
        agreement.slowness.ask(member, lambda: None, time_for(epoch))
    return agreement.slowness.ask(root, look, time_for(epoch))


def _newest_of(
    agreement: Agreement, opener: MemberOpener, epoch: Epoch, root: str
) -> list[tuple[Member, Epoch]]:
    """The newest epoch that each incarnation of a root has noted; [] if there is no answer."""
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
    """Whether the controller has an epoch that a root has noted, or need not have it."""
    if is_over(noted, epoch):
        return True
    if noted.number >= epoch.number:
        return noted == epoch
    if noted.number <= epoch.number - KEPT:
        return True  # its name may have been free since, and taken by a process that slept
    with suppress(StorageError):
        return agreement.ask_controller(lambda: agreement.controller.at(noted.number)) == noted
    return True  # not every epoch is made anew with the controller
