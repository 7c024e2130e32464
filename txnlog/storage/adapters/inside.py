"""Files below a root folder, opened so that no link leads out of it.

The parts of a name are opened one by one, each relative to the folder before and none through a
symbolic link: so what somebody puts in a folder's place meanwhile leads nowhere either. This is the
only place where files of a local store are opened. Knows names, and nothing of what they mean.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from txnlog.errors import InvalidOption


def _flags(*names: str) -> int:
    """The flags of ``os.open`` with these names that the system has."""
    found = 0
    for name in names:
        found |= getattr(os, name, 0)
    return found


_NO_LINK: Final = _flags("O_NOFOLLOW", "O_CLOEXEC", "O_BINARY")
_MUST_LOOK: Final = not hasattr(os, "O_NOFOLLOW")
# A FIFO without a writer would be waited for, a terminal would become the process's own.
_READ: Final = os.O_RDONLY | _flags("O_NONBLOCK", "O_NOCTTY")
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_LIST: Final = os.O_RDONLY | _flags("O_DIRECTORY")
_PASS: Final = os.O_RDONLY | _flags("O_DIRECTORY", "O_PATH")
_IS_OTHER: Final = (errno.ELOOP, errno.EMLINK, errno.ENOTDIR, errno.ENXIO)
"""What systems say of a link, and of a socket, that was to be opened as a file or as a folder."""
_KINDS: Final = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_RELATIVE: Final = {os.open, os.link, os.unlink, os.mkdir, os.rmdir, os.stat}
BY_DESCRIPTOR: bool = os.supports_dir_fd >= _RELATIVE and os.scandir in os.supports_fd
"""Whether names can be relative to an open folder; on Windows the way to one is looked at first."""


OPENS_FOLDERS: bool = hasattr(os, "O_DIRECTORY")
"""Whether a folder can be opened, and so synced: not on Windows."""


class NotAFile(OSError):
    """Something else than a regular file, or a folder, is where one is needed."""


class OpenedName:
    """Where a name is: relative to an open folder, which is closed after the block."""

    __slots__ = ("folder", "name")

    def __init__(self, folder: int | None, name: str) -> None:
        self.folder = folder
        self.name = name

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self.folder is not None:
            os.close(self.folder)


def open_inside(name: str, flags: int, folder: int | None) -> int:
    """A descriptor of what has a name in an open folder, itself and not through a link.

    Raises OSError.
    """
    try:
        if _MUST_LOOK and not flags & os.O_CREAT:
            _refuse_other_kinds(name, folder)
        return os.open(name, flags | _NO_LINK, 0o666, dir_fd=folder)
    except OSError as error:
        if error.errno in _IS_OTHER:
            _refuse_other_kinds(name, folder)
        raise


def _refuse_other_kinds(name: str, folder: int | None) -> None:
    about = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if stat.S_IFMT(about.st_mode) in _KINDS:
        check_regular(about, name)


def check_regular(about: os.stat_result, name: str) -> None:
    """Raises IsADirectoryError, and NotAFile: it is a FIFO, a device, a link."""
    kind = stat.S_IFMT(about.st_mode)
    if kind == stat.S_IFREG:
        return
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    number = errno.ELOOP if kind == stat.S_IFLNK else errno.ENXIO
    raise NotAFile(number, f"{name} is {_KINDS.get(kind, 'no file')}, and not a file")


def absolute(path: str) -> str:
    """A path from the root of all.

    Raises InvalidOption: it is relative, and there is no working directory any more.
    """
    try:
        return str(Path(path).absolute())
    except FileNotFoundError:
        raise InvalidOption(
            f"{path} is a relative path, and the folder that this process works in was removed: "
            "give an absolute one"
        ) from None


class Inside:
    """The files and folders below ``root``, by names with '/' between their parts.

    The root is an absolute path without links. ``links_to`` are folders outside to which links
    below it may lead, absolute and without links. Behind such a link no other one is followed, so
    there are no circles.

    Every method raises OSError.
    """

    def __init__(self, root: str, links_to: Sequence[str] = ()) -> None:
        self.root = root
        self._links_to = links_to

    def place(self, name: str) -> OpenedName:
        """Open the folder of a name. The root, "", is given by its path instead."""
        if not name:
            return OpenedName(None, self.root)
        *folders, last = name.split("/")
        if not BY_DESCRIPTOR:
            return OpenedName(None, str(self._checked(folders) / last))
        has_followed = not self._links_to
        held: list[int] = []
        try:
            held.append(open_inside(self.root, _PASS, None))
            for depth, part in enumerate(folders):
                try:
                    held.append(open_inside(part, _PASS, held[0]))
                except NotAFile:
                    if has_followed:
                        raise
                    held.append(self._follow(folders[: depth + 1]))
                    has_followed = True
                # Out of the list first: closed twice, it could be a file of another thread.
                os.close(held.pop(0))
            return OpenedName(held[0], last)
        except BaseException:
            while held:
                os.close(held.pop())
            raise

    def _follow(self, parts: Sequence[str]) -> int:
        """The folder that a link leads to, if it may. Raises NotAFile."""
        link = Path(self.root, *parts)
        target = Path(os.path.realpath(link))
        for allowed in self._links_to:
            if target.is_relative_to(allowed):
                folder = open_inside(allowed, _PASS, None)
                for part in target.relative_to(allowed).parts:
                    with OpenedName(folder, part) as at:
                        folder = open_inside(part, _PASS, at.folder)
                return folder
        raise NotAFile(errno.ELOOP, f"{link} is a symbolic link to {target}, which is not allowed")

    def _checked(self, folders: Sequence[str]) -> Path:
        """The path of a folder after a look for symbolic links, where safer ways are missing.

        Raises NotAFile: it leads through a link that is not allowed.
        """
        path, has_followed = Path(self.root), not self._links_to
        for part in folders:
            path /= part
            real = Path(os.path.realpath(path))
            if real != path:
                if has_followed or not any(real.is_relative_to(one) for one in self._links_to):
                    raise NotAFile(errno.ELOOP, f"{path} is a symbolic link to {real}")
                path, has_followed = real, True
        return path

    # -- files -----------------------------------------------------------------------------------

    def open_file(self, name: str) -> tuple[int, os.stat_result]:
        """Open a regular file for reading; returns its descriptor and its status."""
        with self.place(name) as at:
            descriptor = open_inside(at.name, _READ, at.folder)
        try:
            about = os.fstat(descriptor)
            check_regular(about, name)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor, about

    def create(self, name: str) -> int:
        """A new empty file, to be written."""
        with self.place(name) as at:
            return open_inside(at.name, _CREATE, at.folder)

    def stat(self, name: str) -> os.stat_result:
        """What a regular file is like."""
        about = self._look(name)
        check_regular(about, name)
        return about

    def exists(self, name: str) -> bool:
        """Whether a name is taken, by whatever it is."""
        try:
            self._look(name)
        except FileNotFoundError:
            return False
        return True

    def are_same(self, name: str, other: str) -> bool:
        """Whether two names are of one file or folder."""
        return os.path.samestat(self._look(name), self._look(other))

    def _look(self, name: str) -> os.stat_result:
        with self.place(name) as at:
            return os.stat(at.name, dir_fd=at.folder, follow_symlinks=False)

    def link(self, source: str, target: str, below: Inside | None = None) -> None:
        """Give a file a second name. Raises FileExistsError.

        ``below`` has the source, if it is below another root.
        """
        with (below or self).place(source) as one, self.place(target) as other:
            if not BY_DESCRIPTOR:
                os.link(one.name, other.name)
                return
            os.link(
                one.name,
                other.name,
                src_dir_fd=one.folder,
                dst_dir_fd=other.folder,
                follow_symlinks=False,
            )

    def rename(self, source: str, target: str) -> None:
        """Put a file in another one's place, in one step."""
        with self.place(source) as one, self.place(target) as other:
            if not BY_DESCRIPTOR:
                os.replace(one.name, other.name)  # noqa: PTH105 - a name of this module's
                return
            os.replace(one.name, other.name, src_dir_fd=one.folder, dst_dir_fd=other.folder)

    def unlink(self, name: str) -> None:
        with self.place(name) as at:
            os.unlink(at.name, dir_fd=at.folder)

    # -- folders ---------------------------------------------------------------------------------

    def open_folder(self, name: str) -> int:
        """A descriptor of a folder, to sync it."""
        with self._folder_place(name) as at:
            return open_inside(at.name, _LIST, at.folder)

    @contextmanager
    def scan(self, folder: str) -> Iterator[Iterator[os.DirEntry[str]]]:
        """What is in a folder, to be looked at within the block."""
        with self._folder_place(folder) as at:
            if not BY_DESCRIPTOR:
                with os.scandir(at.name) as entries:
                    yield entries
                return
            with OpenedName(open_inside(at.name, _LIST, at.folder), "") as inner:
                assert inner.folder is not None
                with os.scandir(inner.folder) as entries:
                    yield entries

    def is_folder(self, entry: os.DirEntry[str], folder: str) -> bool:
        """Whether an entry of a scan is a folder, or a link to one that may be followed."""
        if entry.is_dir(follow_symlinks=False):
            return True
        if not self._links_to or not entry.is_symlink():
            return False
        try:
            with self._folder_place(f"{folder}/{entry.name}" if folder else entry.name):
                return True
        except OSError:
            return False

    def _folder_place(self, folder: str) -> OpenedName:
        """Where a folder is, which may be a link that is followed."""
        if not self._links_to or not folder:
            return self.place(folder)
        return self.place(f"{folder}/.")  # then the folder itself is on the way

    def make_folder(self, folder: str) -> None:
        """Make a folder, and those above it. Raises FileExistsError."""
        if not folder:
            Path(self.root).mkdir(parents=True)
            return
        try:
            self._mkdir(folder)
        except FileNotFoundError:
            self.make_folder(folder.rpartition("/")[0])
            self._mkdir(folder)

    def _mkdir(self, folder: str) -> None:
        with self.place(folder) as at:
            os.mkdir(at.name, dir_fd=at.folder)

    def rmdir(self, folder: str) -> None:
        with self.place(folder) as at:
            os.rmdir(at.name, dir_fd=at.folder)


def open_named(path: str) -> tuple[int, os.stat_result]:
    """A regular file that a user has named, to be read, through links or not. Raises OSError."""
    descriptor = os.open(path, _READ | _flags("O_CLOEXEC", "O_BINARY"))
    try:
        about = os.fstat(descriptor)
        check_regular(about, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, about


def open_folder_above(path: str) -> int:
    """A descriptor of a folder above a store's root, to sync it."""
    return open_inside(path, _LIST, None)
