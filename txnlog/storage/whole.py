"""How large an object may be that is read whole: whoever writes to a store decides how large it is.

Entries, checkpoints, manifests and indexes are smaller; of segments ranges are read.
"""

from __future__ import annotations

import errno

MOST_WHOLE_BYTES = 256 << 20


class TooLarge(OSError):
    """An object is larger than what is read whole, and was not read."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(
            errno.EFBIG,
            f"it has {size_bytes:,} bytes, and is none of the small files that are read whole",
        )

    def __str__(self) -> str:
        return str(self.strerror)


def check_whole(size_bytes: int | str | None) -> None:
    """Raise TooLarge for the size of an object that is to be read whole; None: nobody knows it."""
    if size_bytes is not None and int(size_bytes) > MOST_WHOLE_BYTES:
        raise TooLarge(int(size_bytes))
