"""Retries for verbs that run until stopped: a storage may fail for a while."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from txnlog.cli.output.streams import warn

if TYPE_CHECKING:
    from txnlog.errors import StorageError

_PATIENCE_S: Final = 60.0
"""After failing this long a storage is not tried again."""


class Patience:
    """How long a storage has been failing."""

    def __init__(self) -> None:
        self._since_s: float | None = None

    def bear(self, error: StorageError) -> None:
        """Report the first failure. Raises a permanent error, or one that has lasted a minute."""
        now_s = time.monotonic()
        if self._since_s is None:
            warn(f"{error}; trying again")
            self._since_s = now_s
        if not error.retriable or now_s - self._since_s > _PATIENCE_S:
            raise error

    def end(self) -> None:
        """Record a success."""
        self._since_s = None
