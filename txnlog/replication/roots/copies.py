"""Gives every member the same bytes: for a writer, or for a process that helps one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial

from crc32c import crc32c

from txnlog.errors import ObjectNotFound
from txnlog.replication.roots.agreement import Agreement, MemberFailed
from txnlog.replication.roots.epochs import Epoch, Member
from txnlog.replication.roots.same_bytes import (
    Damaged,
    Diverged,
    is_sound,
    put_same,
    says_the_same,
)
from txnlog.replication.roots.slowness import time_for
from txnlog.replication.roots.soundness import damaged_at, diverged_at
from txnlog.storage.base import Storage
from txnlog.storage.forwarding import ForwardingStorage

CHUNK_BYTES = 8 << 20


def put_at(agreement: Agreement, epoch: Epoch, member: Member, name: str, data: bytes) -> bool:
    """Put an object at a member, by :func:`put_same`; returns whether it was missing there.

    Raises MemberFailed: the put failed, or this member or the leader has wrong bytes, and which.
    """
    try:
        return agreement.ask(
            epoch, member, lambda storage: put_same(storage, name, data), put_bytes=len(data)
        )
    except MemberFailed as failed:
        if isinstance(failed.error, Diverged) and member != epoch.leader:
            raise diverged_at(agreement, epoch, member, name) from failed.error
        if isinstance(failed.error, Damaged) and member != epoch.leader:
            if (member, name) in agreement.left_damaged:
                return False
            raise damaged_at(agreement, epoch, member, name, data) from failed.error
        raise


def put_at_all(
    agreement: Agreement, epoch: Epoch, members: Sequence[Member], name: str, data: bytes
) -> None:
    """Put the same bytes at several members, in parallel. Raises MemberFailed."""
    if members:
        puts = [partial(put_at, agreement, epoch, member, name, data) for member in members]
        agreement.controller.storage.gather(puts)


def help_out(
    agreement: Agreement, epoch: Epoch, name: str, data: bytes, among: Iterable[Member]
) -> None:
    """Give an object of the leader to members that lack it, before it is shown or built on.

    If the leader has deleted it meanwhile, it is deleted again where it was put here.

    Raises ObjectNotFound: the leader no longer has it. MemberFailed: a member fails, or has other
    bytes.
    """
    sound = is_sound(name, data)
    ask = partial(agreement.ask, epoch, within_s=time_for(epoch, size_bytes=len(data)))
    missing = []
    for member in among:
        if sound is False and member in epoch.joining:
            continue  # whoever brings it in may find it whole, with one that has left
        try:
            found = ask(member, lambda storage: storage.get(name))
        except ObjectNotFound:
            missing.append(member)
            continue
        if sound is False or says_the_same(name, found, data):
            continue  # of two that are damaged neither is right
        if (member, name) in agreement.left_damaged:
            continue
        if is_sound(name, found) is False:
            raise damaged_at(agreement, epoch, member, name, data)
        raise diverged_at(agreement, epoch, member, name)
    if not missing:
        return
    # What others have the leader must not lose, or another race for the name would be decided.
    ask(epoch.leader, lambda storage: storage.confirm(name))
    put = []
    for member in missing:
        agreement.check_mark(epoch, member)
        if put_at(agreement, epoch, member, name, data):
            put.append(member)
    try:
        ask(epoch.leader, lambda storage: storage.size(name))
    except ObjectNotFound:
        for member in put:
            with suppress(MemberFailed):
                ask(member, lambda storage: storage.delete([name]))
        raise


def copy_object(
    source: Storage,
    target: Storage,
    name: str,
    checksum: int | None = None,
    first: bytes | None = None,
) -> int:
    """Copy one object of any size; returns its bytes. An object that is already there stays.

    ``first``: its first ``CHUNK_BYTES``, if they have been read already.

    Raises ObjectNotFound: the source lacks the object, or its bytes do not match ``checksum``
    (CRC-32C).
    """

    def check(read: int) -> None:
        if checksum not in (None, read):
            raise ObjectNotFound(f"{source.url} has {name} damaged")

    first = source.get_range(name, 0, CHUNK_BYTES) if first is None else first
    read = crc32c(first)
    if len(first) < CHUNK_BYTES:  # so it is whole: most are, and nobody need ask how large
        check(read)
        put_same(target, name, first)
        return len(first)
    size = source.size(name)
    with suppress(ObjectNotFound):
        if target.size(name) == size:
            target.confirm(name)
            return size
    with target.upload(name) as upload:
        upload.write(first)
        for start in range(CHUNK_BYTES, size, CHUNK_BYTES):
            more = source.get_range(name, start, min(start + CHUNK_BYTES, size))
            read = crc32c(more, read)
            upload.write(more)
        check(read)
    return size


def copy_between(
    agreement: Agreement,
    epoch: Epoch,
    source: Member,
    target: Member,
    name: str,
    checksum: int | None = None,
) -> int:
    """Copy one object from a member to another, by :func:`copy_object`.

    Raises ObjectNotFound: the source lacks it, or has it damaged. MemberFailed: names the one of
    the two that failed, so that the other one is not put out.
    """
    asked = _Asked(agreement, epoch, source)
    return agreement.ask(epoch, target, lambda storage: copy_object(asked, storage, name, checksum))


class _Asked(ForwardingStorage):
    """Reads from one member, so that a failure is charged to that member, not to the target."""

    def __init__(self, agreement: Agreement, epoch: Epoch, member: Member) -> None:
        super().__init__(agreement.storage(epoch, member))
        self._ask = partial(agreement.ask, epoch, member)

    def size(self, name: str) -> int:
        return self._ask(lambda storage: storage.size(name))

    def get(self, name: str) -> bytes:
        return self._ask(lambda storage: storage.get(name))

    def get_range(self, name: str, start: int, stop: int) -> bytes:
        return self._ask(lambda storage: storage.get_range(name, start, stop))
