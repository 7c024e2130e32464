"""Maintenance deletes old epochs at the controller, and the notes of them at roots.

The newest epoch says everything. Each look lists all epochs that exist, so without cleaning its
cost would grow with every election. A process that slept may take a name that has become free: then
its proposal does not count, as :mod:`controller` finds out.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar, Final

from txnlog.admin.storage_step import StorageStep
from txnlog.replication import root_names
from txnlog.replication.roots.agreement import Agreement, MemberFailed
from txnlog.replication.roots.controller import list_epochs
from txnlog.replication.roots.epoch_notes import list_notes
from txnlog.replication.roots.epochs import Epoch, Member
from txnlog.replication.roots.slowness import time_for
from txnlog.storage.base import Storage

KEPT: Final = 100
"""So many of the newest epochs stay, for operators who look back."""
_AT_ONCE: Final = 1000


@dataclass(frozen=True, slots=True)
class EpochCleaning(StorageStep):
    """How many old epochs, and notes of epochs at roots, were deleted, or would be."""

    done: ClassVar = "epochs deleted"
    why: ClassVar = "later ones say everything"

    epochs: int
    notes: int

    @property
    def file_count(self) -> int:
        """The number of files."""
        return self.epochs + self.notes


def clean_epochs(
    agreement: Agreement, *, kept: int = KEPT, dry_run: bool = False
) -> EpochCleaning | None:
    """Delete old epochs, and the notes of them at roots in sync that answer.

    The newest ``kept`` stay at each place. Returns None if there was nothing to delete.

    Raises StorageError: the controller fails.
    """
    epoch = agreement.refresh()
    controller = agreement.controller.storage
    doomed = _doomed(epoch, agreement.ask_controller(lambda: list_epochs(controller)), kept)
    if not dry_run:
        gone = [root_names.epoch_file(number) for number in doomed]
        agreement.ask_controller(lambda: _delete(controller, gone))
    notes = 0
    for member in epoch.in_sync:
        with suppress(MemberFailed):
            notes += _clean_notes(agreement, epoch, member, kept, dry_run=dry_run)
    return EpochCleaning(len(doomed), notes) if doomed or notes else None


def _doomed(epoch: Epoch, numbers: Iterable[int], kept: int) -> list[int]:
    """Old epochs to delete: not the first one, nor one since which a member leads or joins."""
    needed = {0, epoch.leader_since, *epoch.joining.values()}
    return [number for number in numbers if number <= epoch.number - kept and number not in needed]


def _clean_notes(
    agreement: Agreement, epoch: Epoch, member: Member, kept: int, *, dry_run: bool
) -> int:
    """Delete a member's notes, except the newest ``kept``; returns how many.

    A lost controller is made anew from the newest note, so that one stays, whatever its number.
    """

    def clean(storage: Storage) -> None:
        _delete(storage, map(root_names.epoch_note, doomed))

    listed = agreement.ask(epoch, member, list_notes, within_s=time_for(epoch))
    doomed = listed[:-kept]
    if doomed and not dry_run:
        agreement.ask(epoch, member, clean, within_s=time_for(epoch, count=len(doomed)))
    return len(doomed)


def _delete(storage: Storage, names: Iterable[str]) -> None:
    rest = iter(names)
    while some := list(islice(rest, _AT_ONCE)):
        storage.delete(some)
