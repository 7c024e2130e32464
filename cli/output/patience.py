"""A storage that fails for a while does not end a verb that goes on for ever."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from txnlog.cli.output.streams import warn

if TYPE_CHECKING:
    from txnlog.errors import StorageError

_PATIENCE_S: Final = 60.0
"""A storage that fails for longer is not tried again."""


class Patience:
    """How long a storage has been failing."""

    def __init__(self) -> None:
        self._since_s: float | None = None

    def bear(self, error: StorageError) -> None:
        """Say it the first time. Raises the error if it will not end, or has lasted a minute."""
        now_s = time.monotonic()
        if self._since_s is None:
            warn(f"{error}; trying again")
            self._since_s = now_s
        if not error.retriable or now_s - self._since_s > _PATIENCE_S:
            raise error

    def end(self) -> None:
        """It has worked."""
        self._since_s = None
