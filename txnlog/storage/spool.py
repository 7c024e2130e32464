"""A local temporary file in which an upload waits until it is complete.

It belongs to the process that made it: in a forked child neither closing it nor dropping it writes
or deletes anything, since the parent goes on with the same file.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path


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
