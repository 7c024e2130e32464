"""A stream of bytes whose reads can time out.

Not every platform can wait so for a pipe, so a thread reads it: a few pieces ahead, which bounds
memory.
"""

from __future__ import annotations

import os
import time
from queue import Empty, SimpleQueue
from threading import Semaphore, Thread
from typing import Final

_PIECE_BYTES: Final = 1 << 20
_PIECES_AHEAD: Final = 4


class PacedStream:
    """Bytes from a file descriptor, as they arrive. ``deadline_s`` is by ``time.monotonic``."""

    def __init__(self, descriptor: int) -> None:
        self.deadline_s: float | None = None
        self.is_stopped = False
        """Whether what had arrived when it was stopped has been read."""
        self._pieces: SimpleQueue[bytes | OSError | None] = SimpleQueue()
        self._room = Semaphore(_PIECES_AHEAD)
        # A daemon: the program can end without waiting for more input.
        Thread(target=self._feed, args=(descriptor,), daemon=True).start()

    def read(self) -> bytes | None:
        """The bytes that have arrived, empty at the end; None if there are none by the deadline.

        Raises OSError if the stream cannot be read.
        """
        left_s = None if self.deadline_s is None else max(self.deadline_s - time.monotonic(), 0)
        try:
            piece = self._pieces.get(timeout=left_s)
        except Empty:
            return None
        if piece is None:
            self.is_stopped = True
        elif not piece or isinstance(piece, OSError):
            self._pieces.put(piece)  # the next call gets the same
        else:
            self._room.release()
        if isinstance(piece, OSError):
            raise piece
        return piece

    def stop(self) -> None:
        """End the stream after what has arrived by now. A signal handler may call it."""
        self._pieces.put(None)  # of a SimpleQueue: another one's lock may be held just now

    def _feed(self, descriptor: int) -> None:
        # Not through a BufferedReader: its lock would be held here when the program ends.
        piece: bytes | OSError = b"-"
        while piece:
            self._room.acquire()
            try:
                piece = os.read(descriptor, _PIECE_BYTES)
            except OSError as error:
                piece = error
            self._pieces.put(piece)
            if isinstance(piece, OSError):
                return
