"""Uploads one large object to every member at once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Event, Lock

from crc32c import crc32c

from txnlog.errors import ObjectNotFound, StorageError
from txnlog.replication.roots.agreement import Agreement, MemberFailed
from txnlog.replication.roots.copies import CHUNK_BYTES, copy_between
from txnlog.replication.roots.epochs import Epoch, Member
from txnlog.replication.roots.placement import targets
from txnlog.replication.roots.slowness import TookTooLong, time_for
from txnlog.storage.base import Upload


class ReplicatedUpload(Upload):
    """An upload to each member. A member that fails on the way gets a copy from another at the end.

    ``need`` raises NotEnoughReplicas under an epoch with too few members in sync.
    """

    def __init__(self, agreement: Agreement, name: str, need: Callable[[Epoch], None]) -> None:
        self._agreement = agreement
        self._name = name
        self._need = need
        self._uploads: dict[Member, Upload] = {}
        self._whole: set[Member] = set()
        self._size = 0
        self._checksum = 0
        """CRC-32C of everything written; a member's bytes may be damaged by now."""
        self._ended = False
        with suppress(MemberFailed):
            self._begin(agreement.epoch())
        if not self._uploads:
            agreement.settle(self._begin)

    def _begin(self, epoch: Epoch) -> None:
        """Begin uploads at members that should have the object.

        Raises MemberFailed: none of them takes it.
        """
        failed: MemberFailed | None = None
        for member in targets(epoch, self._name):
            if member in self._uploads:
                continue
            try:
                self._uploads[member] = self._agreement.ask(
                    epoch,
                    member,
                    lambda storage: storage.upload(self._name),
                    put_bytes=self._size,
                )
            except MemberFailed as error:
                failed = error
        if failed is not None and not self._uploads:
            raise failed

    def _put_out(self) -> None:
        """All uploads have failed: put out members that are gone, so that a retry finds others."""

        def check(epoch: Epoch) -> None:
            for member in targets(epoch, self._name):
                self._agreement.check_mark(epoch, member)

        with suppress(StorageError):
            self._agreement.settle(check)

    def write(self, data: bytes) -> int:
        if self._ended:
            raise ValueError("the upload is closed")
        self._size += len(data)
        self._checksum = crc32c(data, self._checksum)
        error = self._each(lambda upload: upload.write(data), len(data))
        if error is not None and not self._uploads:
            self._put_out()
            raise error
        return len(data)

    def _each(
        self, call: Callable[[Upload], object], size_bytes: int, *, waits: bool = True
    ) -> StorageError | None:
        """Make a call of every upload, in parallel; drop uploads that fail or are slow.

        If all are slow, and ``waits`` is true, the first one that ends is waited for: no other
        member has the data, so it could not be written again. Returns the last failure, if there
        was one.
        """
        agreement = self._agreement
        began_s, epoch = agreement.clock.monotonic_s(), agreement.epoch()
        within_s = time_for(epoch, size_bytes=size_bytes)
        slowness = agreement.slowness
        calls = {
            member: _Call(partial(call, upload), upload) for member, upload in self._uploads.items()
        }

        def run(member: Member) -> StorageError | None:
            try:
                slowness.ask(member, calls[member].run, within_s)
            except StorageError as error:
                return error
            return None

        gather = agreement.controller.storage.gather
        errors = dict(zip(calls, gather(partial(run, member) for member in calls), strict=True))
        pause = agreement.pauses(began_s)
        while waits and None not in errors.values():
            slow = [member for member, error in errors.items() if isinstance(error, TookTooLong)]
            if not slow or not pause(epoch):
                break
            for member in slow:
                one = calls[member]
                errors[member] = one.outcome(errors[member]) if one.begun else run(member)
        failed = None
        for member, error in errors.items():
            if error is not None:
                failed = error
                del self._uploads[member]
                calls[member].drop()
        return failed

    def close(self) -> None:
        if self._ended:
            return
        self._ended = True
        error = self._each(lambda upload: upload.close(), self._size)
        self._whole.update(self._uploads)
        if not self._whole and error is not None:
            self._put_out()
            raise error
        self._agreement.settle(self._complete, writes=True)

    def _complete(self, epoch: Epoch) -> int:
        """Copy the object to members of an epoch that should have it; returns its bytes."""
        self._need(epoch)
        for member in targets(epoch, self._name):
            if member not in self._whole:
                self._copy_to(epoch, member)
                self._whole.add(member)
        return self._size

    def _copy_to(self, epoch: Epoch, target: Member) -> None:
        self._agreement.check_mark(epoch, target)
        failed: MemberFailed | None = None
        for source in sorted(self._whole, key=lambda member: (member not in epoch.members, member)):
            try:
                copy_between(self._agreement, epoch, source, target, self._name, self._checksum)
            except MemberFailed as error:
                failed = error
                if error.member == target:
                    # A whole one would take a lot of memory to try.
                    failed.put_bytes = min(self._size, CHUNK_BYTES)
            except ObjectNotFound:
                continue
            else:
                return
        raise failed or StorageError(f"no member has {self._name} whole any more")

    def discard(self) -> None:
        if not self._ended:
            self._ended = True
            self._each(lambda upload: upload.discard(), 0, waits=False)


class _Call:
    """A call of one upload, which may go on after it is abandoned."""

    def __init__(self, call: Callable[[], object], upload: Upload) -> None:
        self._call = call
        self._upload = upload
        self._once = Lock()
        self._left = Event()
        self._ended = Event()
        self._error: BaseException | None = None

    @property
    def begun(self) -> bool:
        return self._once.locked()

    def run(self) -> None:
        """Make the call, once. If it is abandoned meanwhile, the upload is dropped at its end."""
        if not self._once.acquire(blocking=False):
            raise TookTooLong("it began late, and goes on")
        try:
            if not self._left.is_set():
                self._call()
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._ended.set()
            if self._left.is_set():
                self._upload.discard()

    def outcome(self, slow: StorageError | None) -> StorageError | None:
        """The StorageError that the call has raised, or None; ``slow`` while it still runs.

        Raises any other error that the call has raised.
        """
        if not self._ended.is_set():
            return slow
        if self._error is None or isinstance(self._error, StorageError):
            return self._error
        raise self._error

    def drop(self) -> None:
        """Drop the upload: now, or when the running call has ended."""
        self._left.set()
        if self._ended.is_set() or not self.begun:  # just then: it may not have seen it
            with suppress(StorageError):
                self._upload.discard()
