"""Some bytes of a file, for a library that reads files."""

from __future__ import annotations


class Pieces:
    """Some bytes of a file, at their positions, as pyarrow reads a file."""

    closed = False

    def __init__(self, size_bytes: int) -> None:
        self.held: dict[int, memoryview] = {}
        self._size_bytes = size_bytes
        self._position = 0

    def seek(self, position: int, whence: int = 0) -> int:
        base = (0, self._position, self._size_bytes)[whence]
        self._position = base + position
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, count: int = -1) -> memoryview:
        stop = self._size_bytes if count < 0 else self._position + count
        for start, data in self.held.items():
            if start <= self._position and stop <= start + len(data):
                found = data[self._position - start : stop - start]
                self._position = stop
                return found
        raise OSError(f"bytes {self._position} to {stop} are of no column of this row group")

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return True

    def size(self) -> int:
        return self._size_bytes

    def close(self) -> None:
        self.closed = True
