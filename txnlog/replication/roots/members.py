"""A member's own storage: a folder of its root, known by a mark.

A disk that is not mounted is an empty folder which takes every write, or another store's disk. So
members on this machine's disks are asked for their mark before and after each write, after each
folder that is listed, and after each name that is not found: who looks later may find the disk
mounted again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import filterfalse
from typing import ClassVar

import msgspec

from txnlog.errors import CorruptEntry, InvalidOption, NotAStore, ObjectNotFound, StorageError
from txnlog.limits import MOST_MARK_BYTES, Name, Text
from txnlog.replication import root_names
from txnlog.replication.roots.bounded_requests import BoundedRequests
from txnlog.replication.roots.epochs import Epoch, Member, Root, incarnation_of, root_of
from txnlog.storage import envelope, open_storage
from txnlog.storage.adapters.local import LocalStorage
from txnlog.storage.base import Storage, Upload
from txnlog.storage.failure_messages import split_url
from txnlog.storage.forwarding import ForwardingStorage
from txnlog.storage.reach import Reach
from txnlog.storage.server_storage import ServerStorage


class OwnerMark(msgspec.Struct, frozen=True, tag_field="kind", tag="replica"):
    """The mark of a folder's owner: in a root, and in each of its incarnations."""

    most_bytes: ClassVar[int] = MOST_MARK_BYTES

    controller: Text
    """Its URL, without credentials."""
    member: Name = ""


MARK_DECODER = msgspec.json.Decoder(OwnerMark)


def read_mark(root: Storage) -> OwnerMark:
    """The mark of a root; by its newest incarnation's if it is damaged. Raises ObjectNotFound."""
    data, where = root.get(root_names.REPLICA_FILE), f"{root.url}/{root_names.REPLICA_FILE}"
    for path in () if envelope.is_sound(data) else _incarnations_marks(root):
        with suppress(ObjectNotFound, CorruptEntry):  # it is something else
            found = envelope.decode(root.get(path), MARK_DECODER, path)
            return OwnerMark(found.controller, root_of(found.member))
    return envelope.decode(data, MARK_DECODER, where)


def _incarnations_marks(root: Storage) -> Iterator[str]:
    parsed = map(root_names.parse_incarnation_folder, root.list_folders(""))
    for number in sorted((one for one in parsed if one is not None), reverse=True):
        inside = f"{root_names.incarnation_folder(number)}/{root_names.MEMBER_MARKS}"
        marks = filterfalse(root_names.is_trim_note, root.list_names(inside))
        yield from (f"{inside}/{name}" for name in marks)


def is_another_stores(root: Storage, epoch: Epoch) -> bool:
    """Whether a root that was opened is none of an epoch's, under another URL either.

    It takes one request to a root that has been nowhere else. Raises StorageError.
    """
    for name, known in epoch.roots.items():
        if known.url == root.url:
            newest = known.incarnations - 1
            mark = root_names.member_mark(f"{name}-{newest}", epoch.store)
            with suppress(ObjectNotFound):
                root.size(f"{root_names.incarnation_folder(newest)}/{mark}")
                return False
    marks = [*_incarnations_marks(root)]
    return bool(marks) and not any(path.endswith(f"-{epoch.store}.json") for path in marks)


class MarkGone(StorageError):
    """A member's folder is not the same any more."""


class MarkedDisk(ForwardingStorage):
    """Refuses to write, and to report absence, if the mark is not found."""

    def __init__(self, inner: Storage, mark: str) -> None:
        super().__init__(inner)
        self._mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return MarkedDisk, (self.inner, self._mark)

    def local_path(self, name: str) -> str | None:
        return self.inner.local_path(name)

    def open_file(self, name: str) -> int | None:
        return self.inner.open_file(name)

    def check(self) -> None:
        if self.inner.local_path(self._mark) is None:
            return
        try:
            self.inner.size(self._mark)
        except StorageError as error:
            if not isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
                raise
            raise MarkGone(
                f"{self.url} is not the folder that it was: {self._mark} is gone. Is its disk "
                "mounted, or another one in its place?"
            ) from error

    def put_if_absent(self, name: str, data: bytes) -> bool:
        self.check()
        put = super().put_if_absent(name, data)
        self.check()
        return put

    def put(self, name: str, data: bytes) -> None:
        self.check()
        super().put(name, data)
        self.check()

    def replace(self, name: str, data: bytes) -> None:
        self.check()
        super().replace(name, data)
        self.check()

    def take_over(self, name: str, source: Storage) -> bool:
        self.check()
        done = super().take_over(name, source)
        self.check()
        return done

    def list_names(self, folder: str, start_after: str = "") -> list[str]:
        # Checked afterwards: the listing was made while it existed.
        found = super().list_names(folder, start_after)
        self.check()
        return found

    def list_folders(self, folder: str) -> list[str]:
        found = super().list_folders(folder)
        self.check()
        return found

    def list_all(self, folder: str) -> Iterator[tuple[str, int]]:
        if isinstance(self.inner, LocalStorage):
            yield from self.inner.list_all(folder, self.check)
            return
        yield from super().list_all(folder)
        self.check()

    @contextmanager
    def _absence_checked(self) -> Iterator[None]:
        try:
            yield
        except ObjectNotFound:
            self.check()
            raise

    def get(self, name: str) -> bytes:
        with self._absence_checked():
            return super().get(name)

    def get_range(self, name: str, start: int, stop: int) -> bytes:
        with self._absence_checked():
            return super().get_range(name, start, stop)

    def size(self, name: str) -> int:
        with self._absence_checked():
            return super().size(name)

    def modified_ms(self, name: str) -> int | None:
        with self._absence_checked():
            return super().modified_ms(name)

    def confirm(self, name: str) -> None:
        with self._absence_checked():
            super().confirm(name)

    def delete(self, names: Iterable[str]) -> None:
        self.check()
        super().delete(names)
        self.check()

    def upload(self, name: str) -> Upload:
        self.check()
        return _MarkedUpload(super().upload(name), self.check)


def without_mark(storage: Storage) -> Storage:
    """A member's storage as it is before it is marked, or when its mark is gone."""
    if isinstance(storage, BoundedRequests):
        return BoundedRequests(without_mark(storage.inner), storage.within)
    return storage.inner if isinstance(storage, MarkedDisk) else storage


class ControllerDisk(MarkedDisk):
    """The controller's own mark: its first epoch always exists."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner, root_names.epoch_file(0))

    def __reduce__(self) -> tuple[object, ...]:
        return ControllerDisk, (self.inner,)

    def check(self) -> None:
        try:
            super().check()
        except MarkGone as error:
            where = f"{self.url}/{root_names.epoch_file(0)}"
            raise StorageError(
                f"{where} is gone: is the controller's disk mounted? Nothing is acknowledged "
                "without it"
            ) from error


class _MarkedUpload(Upload):
    def __init__(self, inner: Upload, check: Callable[[], None]) -> None:
        self._inner = inner
        self._check = check
        self.write = inner.write  # type: ignore[method-assign]

    def write(self, data: bytes) -> int:
        return self._inner.write(data)

    def close(self) -> None:
        self._check()
        self._inner.close()
        self._check()

    def discard(self) -> None:
        self._inner.discard()


class MemberOpener:
    """Opens members by the URLs of their roots, with the given options: see :class:`Reach`.

    Plain data, so it travels to other processes. The options may hold secrets.
    """

    def __init__(
        self,
        options: Mapping[str, object] | None = None,
        typed: Iterable[str | os.PathLike[str]] = (),
    ) -> None:
        self._reach = Reach(options, typed)

    def __repr__(self) -> str:
        return "MemberOpener()"

    def root(self, url: str | os.PathLike[str]) -> Storage:
        """The storage of a root, or of the controller. Raises UnnamedUrl."""
        return open_storage(url, self._reach.options_for(url))

    def controller(self, url: str | os.PathLike[str]) -> Storage:
        """The storage of a controller that has epochs."""
        storage = self.root(url)
        return storage if storage.local_path("") is None else ControllerDisk(storage)

    @property
    def options(self) -> Mapping[str, object]:
        """All options, for a process that opens the same storages."""
        return self._reach.named

    def allow(
        self, url: str | os.PathLike[str], options: Mapping[str, object] | None = None
    ) -> None:
        """The user has given a URL, and perhaps options for it."""
        self._reach.allow(url, options)

    def at(self, root: Root, member: Member, store: str) -> Storage:
        """The storage of a member of a root; "" if it is unknown of which ``store``."""
        folder = root_names.incarnation_folder(incarnation_of(member))
        url = f"{root.url.rstrip('/')}/{folder}"
        storage = open_storage(url, self._reach.options_for(root.url))
        if isinstance(storage, ServerStorage):
            storage.probe_in(self.root(root.url))  # it may be deleted while it is written to
        if storage.local_path("") is None or not store:
            return storage
        return MarkedDisk(storage, root_names.member_mark(member, store))

    def __call__(self, epoch: Epoch, member: Member) -> Storage:
        return self.at(epoch.roots[root_of(member)], member, epoch.store)


def check_url(url: str) -> None:
    """Raises InvalidOption: it cannot be written down."""
    parts = split_url(url, "the URL of a replica's root, or of the controller,")
    if "://" in url and ("@" in parts.netloc or parts.query):
        raise InvalidOption(
            "the URL of a replica's root, or of the controller, is written down, and must hold no "
            "credentials: give them in storage_options"
        )


def check_marks(storage: Storage, url: str) -> None:
    """Raise NotAStore if a folder, with what lies at a URL in it, is a root's own."""
    for name in storage.list_names(root_names.MEMBER_MARKS):
        if root_names.is_trim_note(name):
            continue
        path = f"{root_names.MEMBER_MARKS}/{name}"
        mark = envelope.decode(storage.get(path), MARK_DECODER, f"{storage.url}/{path}")
        raise NotAStore(
            f"{url} is what one root of a replicated store holds ({mark.member}), and the "
            f"others would not have what is written there: open the store by {mark.controller}. "
            "To look at this folder alone use txnlog.open(..., salvage=True), which writes nothing"
        )


def check_outside(storage: Storage) -> None:
    """Raise NotAStore if a place on a disk is, or lies in, a root's folder, and would go with it.

    Its mark goes first. A root that hangs is not waited for, as no other folder is looked at.
    """
    for folder in root_names.incarnations_around(storage.local_path("")):
        check_marks(open_storage(folder), storage.url)
        root = open_storage(folder.parent)
        with suppress(ObjectNotFound):
            root.size(root_names.REPLICA_FILE)
            raise NotAStore(
                f"{storage.url} is what is left of an incarnation of a replicated store: open that "
                f"by {root.url}; `txnlog replicas forget` deletes the rest. To look at this folder "
                "alone use txnlog.open(..., salvage=True), which writes nothing"
            )


def is_nested(one: str, other: str) -> bool:
    """Whether one of two URLs is the other, or below it: then a cleanup there would find it."""
    inner, outer = sorted((f"{one.rstrip('/')}/", f"{other.rstrip('/')}/"), key=len, reverse=True)
    return inner.startswith(outer)


def put_mark(storage: Storage, member: Member, controller: str, store: str) -> None:
    """Mark a member's folder as its own, before it takes part. Raises StorageError."""
    inner, mark = without_mark(storage), root_names.member_mark(member, store)
    inner.put_if_absent(mark, envelope.encode(OwnerMark(controller, member)))
    inner.confirm(mark)
