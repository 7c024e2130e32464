"""Roots keep notes of the epochs under which they were in sync, in case the controller is lost.

Before a process writes under an epoch, all members in sync have noted it. The next epoch has one of
these members in sync, too, unless it began with an unclean election. Before a root is copied to,
the leader has noted the epoch in which it joins. So if all roots that an epoch names answer, and
none has noted a later one, nothing was acknowledged under a later one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

from txnlog.errors import ObjectNotFound, OutdatedController, TxnlogError
from txnlog.replication import root_names
from txnlog.replication.roots.controller import Controller, list_numbers
from txnlog.replication.roots.epochs import DECODER, Epoch, Member, check_epoch, is_over
from txnlog.replication.roots.members import MarkGone
from txnlog.replication.roots.same_bytes import Damaged, Diverged, put_same
from txnlog.replication.roots.slowness import time_for
from txnlog.storage import envelope
from txnlog.storage.base import CannotReplace, Storage


class Asks(Protocol):
    """The part of :class:`Agreement` that notes need."""

    @property
    def controller(self) -> Controller: ...

    def is_newest(self, epoch: Epoch) -> bool: ...

    def ask_all(
        self,
        epoch: Epoch,
        members: Sequence[Member],
        call: Callable[[Member, Storage], Epoch | None],
        *,
        within_s: float | None = None,
        put_bytes: int | None = None,
    ) -> dict[Member, Epoch | None]: ...


def note_epoch(
    agreement: Asks, epoch: Epoch, members: Sequence[Member] = (), *, puts: bool = True
) -> None:
    """Have members note an epoch, by default all in sync; two requests to each, in parallel.

    Unless it ``puts`` notes, it only checks that the members have no other ones.

    Raises MemberFailed. OutdatedController: a member has noted another epoch of this number, or a
    later one.
    """
    data = encode_epoch(epoch)

    def note(_: Member, storage: Storage) -> Epoch | None:
        if puts and put_note(storage, epoch.number, data):
            return _newest_note(storage, epoch, epoch.number + 1)
        found = _newest_note(storage, epoch, epoch.number)
        if puts and found is None:  # somebody has noted late what is over: its name is never free
            with suppress(CannotReplace):
                storage.replace(root_names.epoch_note(epoch.number), data)
        return found

    asked = members or epoch.in_sync
    if puts:
        found = agreement.ask_all(epoch, asked, note, put_bytes=len(data))
    else:
        found = agreement.ask_all(epoch, asked, note, within_s=time_for(epoch))
    for member, noted in found.items():
        if noted is None or noted == epoch or not agreement.is_newest(epoch):
            continue
        raise unknown_epoch(agreement, member, noted)


def unknown_epoch(agreement: Asks, member: Member, noted: Epoch) -> OutdatedController:
    """Make the error for a member that has noted an epoch which the controller lacks."""
    return OutdatedController(
        f"{member} has an epoch {noted.number} that the controller at "
        f"{agreement.controller.storage.url} does not have: was that one restored from a "
        "backup? Then take it away: `txnlog replicas recover` makes it anew. If that was done, "
        "open the store by that one's URL, or by a root's"
    )


def encode_epoch(epoch: Epoch) -> bytes:
    path = root_names.epoch_file(epoch.number)
    return envelope.encode_readable(epoch, DECODER, "replicas", path)


def put_note(storage: Storage, number: int, data: bytes) -> bool:
    """Put a note of an epoch; False if there is a damaged one, or one of another epoch."""
    try:
        put_same(storage, root_names.epoch_note(number), data)
    except (Damaged, Diverged):
        return False
    return True


def _newest_note(storage: Storage, epoch: Epoch, first: int) -> Epoch | None:
    """The newest intact note of a member, from ``first`` on, that ``epoch`` has not made void.

    Raises MarkGone: the member is another store's.
    """
    found, _ = read_notes(storage, list_notes(storage, first))
    if any(one.store != epoch.store for one in found):
        raise MarkGone(f"{storage.url} is another store's: was its disk exchanged?")
    there = (one for one in found if not is_over(one, epoch))
    return max(there, key=lambda one: one.number, default=None)


def list_notes(storage: Storage, first: int = 0) -> list[int]:
    """The numbers of the epochs that a member has noted, from ``first`` on; ascending."""
    return list_numbers(storage, root_names.EPOCH_NOTES, first)


def read_notes(storage: Storage, numbers: Sequence[int]) -> tuple[list[Epoch], list[int]]:
    """Read a member's notes; returns the epochs, and the numbers that cannot be read."""
    read = storage.gather(partial(_read, storage, number) for number in numbers)
    unread = [number for number, epoch in zip(numbers, read, strict=True) if epoch is None]
    return [epoch for epoch in read if epoch is not None], unread


def _read(storage: Storage, number: int) -> Epoch | None:
    """Read one note; None if it is missing, damaged, or of a newer txnlog."""
    path = root_names.epoch_note(number)
    try:
        data = storage.get(path)
    except ObjectNotFound:
        return None
    try:
        epoch = envelope.decode(data, DECODER, f"{storage.url}/{path}")
        check_epoch(epoch, number)
    except (ValueError, TxnlogError):
        return None
    return epoch
