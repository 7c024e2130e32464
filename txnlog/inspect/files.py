"""Single files that belong to no store, or are looked at as if they did: a copy, a broker's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from os import SEEK_END
from pathlib import Path
from typing import BinaryIO

from txnlog.errors import StorageError
from txnlog.segments.window import ReadRange
from txnlog.storage import open_storage


@dataclass(frozen=True, slots=True)
class LooseFile:
    """A file that is open for reading; ``path`` is as it was named."""

    path: str
    size_bytes: int
    read: ReadRange

    def content(self) -> bytes:
        """All of it: for small files."""
        return bytes(self.read(0, self.size_bytes))


@contextmanager
def open_loose_file(
    path: str, storage_options: Mapping[str, object] | None = None
) -> Iterator[LooseFile]:
    """Open a path on the local disk, or the URL of an object.

    Raises StorageError if it cannot be read, also amid the block.
    """
    if "://" in path:
        folder, _, name = path.rpartition("/")
        storage = open_storage(folder, storage_options)
        yield LooseFile(path, storage.size(name), partial(storage.get_range, name))
        return
    try:
        with Path(path).open("rb") as file:
            yield LooseFile(path, file.seek(0, SEEK_END), partial(_read, file))
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from error


def _read(file: BinaryIO, start: int, stop: int) -> bytes:
    file.seek(start)
    return file.read(stop - start)
