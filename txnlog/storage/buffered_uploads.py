"""Uploads that are buffered until they are complete: in memory, or in a local temporary file."""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from txnlog.storage.base import Upload
from txnlog.storage.failure_messages import failure


class Spool:
    """Bytes in a file that is deleted when it is closed, or garbage-collected."""

    def __init__(self) -> None:
        descriptor, self.name = tempfile.mkstemp(prefix="txnlog-")
        self.size_bytes = 0
        self._descriptor = descriptor
        self._end = weakref.finalize(self, _remove, descriptor, self.name, os.getpid())

    @property
    def closed(self) -> bool:
        return not self._end.alive

    def write(self, data: bytes) -> int:
        """Add every byte, unbuffered. Raises OSError, and ValueError if it is closed."""
        if self.closed:
            raise ValueError("the upload is closed")
        write_all(self._descriptor, data)
        self.size_bytes += len(data)
        return len(data)

    def read(self) -> bytes:
        """Everything written. Raises OSError."""
        return Path(self.name).read_bytes()

    def close(self) -> None:
        """Delete the file. A second call does nothing."""
        self._end()


def _remove(descriptor: int, name: str, process_id: int) -> None:
    with suppress(OSError):
        os.close(descriptor)
    if os.getpid() == process_id:
        with suppress(OSError):
            Path(name).unlink()


def write_all(descriptor: int, data: bytes) -> None:
    """Write every byte; one write takes at most 2 GiB, and may be interrupted."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


class BufferedUpload(Upload):
    """Kept in memory. ``create`` is called with all of it when it is closed."""

    def __init__(self, create: Callable[[bytes], object]) -> None:
        self._create = create
        self._data: bytearray | None = bytearray()

    def write(self, data: bytes) -> int:
        if self._data is None:
            raise ValueError("the upload is closed")
        self._data += data
        return len(data)

    def close(self) -> None:
        data, self._data = self._data, None
        if data is not None:
            self._create(bytes(data))

    def discard(self) -> None:
        self._data = None


class SpooledUpload(Upload):
    """Kept in a local temporary file, so that memory stays small.

    Args:
        url: the storage's, for messages.
        name: the object's.
        create: called with the file when the upload is closed. An OSError there means that reading
            the file failed.
    """

    def __init__(self, url: str, name: str, create: Callable[[Spool], object]) -> None:
        self._url = url
        self._name = name
        self._create = create
        with self._spooling():
            self._spool = Spool()

    def write(self, data: bytes) -> int:
        with self._spooling():
            return self._spool.write(data)

    def close(self) -> None:
        if not self._spool.closed:
            with closing(self._spool), self._spooling():
                self._create(self._spool)

    def discard(self) -> None:
        self._spool.close()

    @contextmanager
    def _spooling(self) -> Iterator[None]:
        """Raise StorageError if the local disk fails."""
        try:
            yield
        except OSError as error:
            what = f"spooling to {tempfile.gettempdir()} (set TMPDIR for another folder) for"
            raise failure(what, self._url, self._name, error) from error
