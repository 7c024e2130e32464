"""Going on past what cannot be read, until it is the storage itself that fails."""

from __future__ import annotations

from dataclasses import dataclass

from txnlog.doctor.finding import Finding
from txnlog.errors import StorageError

LOG_LIMIT = 16
"""After so many objects in a row that cannot be read, the rest of their log is left out."""
STORE_LIMIT = 64
"""After so many in a row, wherever they are, the examination ends: nothing can be read."""


@dataclass(slots=True)
class Patience:
    """Makes findings of what cannot be read, and gives up where nothing can be read any more."""

    in_a_row: int = 0
    given_up: StorageError | None = None

    def worked(self) -> None:
        """Something could be read."""
        self.in_a_row = 0

    def finding(self, check: str, subject: str, path: str | None, error: StorageError) -> Finding:
        """What to say of an object that cannot be read. Raises StorageError to give up."""
        if error is self.given_up:
            raise error
        self.in_a_row += 1
        if self.in_a_row >= STORE_LIMIT:
            self.given_up = StorageError(
                f"gave up after {self.in_a_row} objects in a row could not be read; the last: "
                f"{error}"
            )
            self.given_up.retriable = error.retriable
            raise self.given_up from error
        return Finding(check, subject, "unreadable", f"it could not be read: {error}", path=path)
