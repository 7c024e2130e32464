"""A member's own storage: a folder of its root, known by a mark.

A disk that is not mounted looks like an empty folder, and takes every write; or another store's
disk is in its place. So a member on a disk of this machine is asked for its mark before and after
each write, after each listing, and after each name that is not found. A later check would not do:
by then the disk may be mounted again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import filterfalse
from typing import ClassVar

import msgspec

from txnlog.errors import (
    CorruptEntry,
    InvalidOption,
    NotAStore,
    ObjectNotFound,
    StorageError,
    StoreExists,
)
from txnlog.limits import MOST_MARK_BYTES, Name, Text
from txnlog.replication import root_names
from txnlog.replication.roots.bounded_requests import BoundedRequests
from txnlog.replication.roots.epochs import Epoch, Member, Root, incarnation_of, root_of
from txnlog.storage import envelope, open_storage
from txnlog.storage.adapters.local import LocalStorage
from txnlog.storage.base import CannotReplace, Storage, Upload
from txnlog.storage.failure_messages import split_url
from txnlog.storage.forwarding import ForwardingStorage
from txnlog.storage.reach import Reach
from txnlog.storage.server_storage import ServerStorage


class OwnerMark(msgspec.Struct, frozen=True, tag_field="kind", tag="replica"):
    """The mark of a folder's owner: in a root, in incarnations, at a place of a moved controller.

    It says to which store the folder belongs, by whatever URL it is reached.
    """

    most_bytes: ClassVar[int] = MOST_MARK_BYTES

    controller: Text
    """The controller's URL when the mark was written, without credentials."""
    store: Name
    """The store's identity: see ``Epoch.store``."""
    member: Name = ""
    """The name of the root, or of the incarnation; "" for a controller."""


MARK_DECODER = msgspec.json.Decoder(OwnerMark)


def find_mark(root: Storage) -> OwnerMark:
    """Read a root's mark; if it is missing or damaged, make it from a mark in an incarnation.

    Raises ObjectNotFound: there is no mark. CorruptEntry: the mark is damaged, and no incarnation
    has one. StorageError.
    """
    where = f"{root.url}/{root_names.REPLICA_FILE}"
    try:
        return envelope.decode(root.get(root_names.REPLICA_FILE), MARK_DECODER, where)
    except (ObjectNotFound, CorruptEntry):
        for number in _incarnations(root):
            for path in _marks_in(root, number):
                with suppress(ObjectNotFound, CorruptEntry):  # it is something else
                    found = envelope.decode(root.get(path), MARK_DECODER, path)
                    return OwnerMark(found.controller, found.store, root_of(found.member))
        raise


def check_owner(storage: Storage, mark: OwnerMark, epoch: Epoch, root: str) -> None:
    """Raise StoreExists if a mark shows another store, or another root than ``root``."""
    if mark.store != epoch.store:
        raise StoreExists(f"{storage.url} is a replica of another store: was its disk exchanged?")
    if mark.member != root:
        raise StoreExists(f"{storage.url} is {mark.member or 'no root'} of this store, not {root}")


def renew_mark(root: Storage, mark: OwnerMark) -> None:
    """Put a root's mark if it is missing, damaged, or for another name. Raises StorageError."""
    data = envelope.encode(mark)
    if not root.put_if_absent(root_names.REPLICA_FILE, data):
        found = None
        with suppress(CorruptEntry):
            found = envelope.decode(root.get(root_names.REPLICA_FILE), MARK_DECODER, root.url)
        if found is None or (found.store, found.member) != (mark.store, mark.member):
            put_over(root, root_names.REPLICA_FILE, data)
    root.confirm(root_names.REPLICA_FILE)


def drop_other_marks(root: Storage, name: str) -> None:
    """Delete the marks of other names in a root's incarnations, in which nothing was written.

    Else it would get such a name back if its own mark is lost. Raises StorageError.
    """
    for number in _incarnations(root):
        inside = _marks_in(root, number)
        root.delete([path for path in inside if _marks_other(path, name)])


def _marks_other(path: str, name: str) -> bool:
    return not path.rpartition("/")[2].startswith(f"{name}-")


def put_over(root: Storage, path: str, data: bytes) -> None:
    """Put an object in place of another one, which may be gone meanwhile. Raises StorageError."""
    try:
        root.replace(path, data)
    except CannotReplace:
        root.delete([path])
        root.put_if_absent(path, data)


def _incarnations(root: Storage) -> list[int]:
    """The numbers of the incarnations that have a folder in a root, newest first."""
    parsed = map(root_names.parse_incarnation_folder, root.list_folders(""))
    return sorted((number for number in parsed if number is not None), reverse=True)


def _marks_in(root: Storage, number: int) -> list[str]:
    inside = f"{root_names.incarnation_folder(number)}/{root_names.MEMBER_MARKS}"
    marks = filterfalse(root_names.is_trim_note, root.list_names(inside))
    return [f"{inside}/{name}" for name in marks]


def holds_incarnations(root: Storage) -> bool:
    """Whether anything was written in an incarnation of a root."""
    return any(
        holds_objects(root, root_names.incarnation_folder(number)) for number in _incarnations(root)
    )


def has_later_incarnations(root: Storage, number: int) -> bool:
    """Whether anything was written in an incarnation of a root that is later than a given one.

    Empty folders prove nothing: the process that made one may have been killed at once.
    """
    later = (one for one in _incarnations(root) if one > number)
    return any(holds_objects(root, root_names.incarnation_folder(one)) for one in later)


def newest_member(root: Storage, name: str, store: str) -> int | None:
    """The newest incarnation of a named root that a folder holds; None if there is none.

    Incarnations in which nothing was written do not count: the process that made one may have been
    killed at once.
    """
    for number in _incarnations(root):
        folder = root_names.incarnation_folder(number)
        mark = f"{folder}/{root_names.member_mark(f'{name}-{number}', store)}"
        if mark in _marks_in(root, number) and holds_objects(root, folder):
            return number
    return None


def holds_objects(storage: Storage, folder: str = "") -> bool:
    """Whether a folder, or one below it, holds anything of a store."""
    prefix = f"{folder}/" if folder else ""
    listed = (name.removeprefix(prefix) for name, _ in storage.list_all(folder))
    return any(map(root_names.is_of_store, listed))


class MarkGone(StorageError):
    """A member's folder is not the one that it was: its mark is gone."""


class MarkedDisk(ForwardingStorage):
    """A member on a disk: refuses to write, or to report absence, if its mark is not found."""

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
    """A member's storage without the checks of its mark, which is not there yet, or is gone."""
    if isinstance(storage, BoundedRequests):
        return BoundedRequests(without_mark(storage.inner), storage.within)
    return storage.inner if isinstance(storage, MarkedDisk) else storage


class ControllerDisk(MarkedDisk):
    """A controller on a disk: its mark is the first epoch, which always exists."""

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

    Holds plain data, so it can be sent to other processes. The options may contain secrets.
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
        """Open a root or a controller by its URL. Raises UnnamedUrl."""
        return open_storage(url, self._reach.options_for(url))

    def controller(self, url: str | os.PathLike[str]) -> Storage:
        """Open a controller that already has epochs. Raises UnnamedUrl."""
        storage = self.root(url)
        return storage if storage.local_path("") is None else ControllerDisk(storage)

    @property
    def options(self) -> Mapping[str, object]:
        """All options, for another process that opens the same storages."""
        return self._reach.named

    def allow(
        self, url: str | os.PathLike[str], options: Mapping[str, object] | None = None
    ) -> None:
        """Allow a URL that the user has given, perhaps with options."""
        self._reach.allow(url, options)

    def at(self, root: Root, member: Member, store: str) -> Storage:
        """Open a member of a root; ``store`` is "" if it is unknown, and then no mark is checked.

        Raises UnnamedUrl.
        """
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
    """Raise InvalidOption if a URL may hold credentials: it is going to be written down."""
    parts = split_url(url, "the URL of a replica's root, or of the controller,")
    if "://" in url and ("@" in parts.netloc or parts.query):
        raise InvalidOption(
            "the URL of a replica's root, or of the controller, is written down, and must hold no "
            "credentials: give them in storage_options"
        )


def check_marks(storage: Storage, url: str) -> None:
    """Raise NotAStore if a folder is an incarnation of a root; ``url`` lies in it, or is it."""
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
    """Raise NotAStore if a place on a disk is, or lies in, an incarnation of a root.

    It would be deleted with the incarnation. Incarnations whose marks are already deleted count as
    well. Only folders on the path itself are looked at, so no hanging root elsewhere is waited for.
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
    """Whether one of two URLs is the other, or lies below it, where a cleanup would find it."""
    inner, outer = sorted((f"{one.rstrip('/')}/", f"{other.rstrip('/')}/"), key=len, reverse=True)
    return inner.startswith(outer)


def put_mark(storage: Storage, member: Member, controller: str, store: str) -> None:
    """Mark a member's folder before the member takes part. Raises StorageError."""
    inner, mark = without_mark(storage), root_names.member_mark(member, store)
    inner.put_if_absent(mark, envelope.encode(OwnerMark(controller, store, member)))
    inner.confirm(mark)
