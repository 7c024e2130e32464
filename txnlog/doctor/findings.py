"""What an examination finds: also of objects that cannot be read, unless the storage fails."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from txnlog.errors import StorageError, TxnlogError, UnknownTopicOrPartition

State: TypeAlias = Literal["ok", "note", "orphan", "hanging", "damage", "unreadable"]
"""Not persisted, but read by programs: append only."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was checked, or something that is wrong with it.

    ``check`` says what was checked: probe, replicas, transactions, topic, data, group, files or
    hanging. An ``unreadable`` one was not: the storage failed, or denied it. ``rule`` is that of
    docs/PROTOCOL.md, if one is broken. ``path`` is within the store. ``size_bytes`` is an orphan's
    size.
    """

    check: str
    subject: str
    state: State
    detail: str
    rule: str | None = None
    path: str | None = None
    size_bytes: int | None = None


LOG_LIMIT = 16
"""After this many unreadable objects in a row the rest of their log is skipped."""
STORE_LIMIT = 64
"""After this many in a row, in any logs, the examination ends: nothing can be read."""


def guarded(check: str, subject: str, path: str, findings: Iterator[Finding]) -> Iterator[Finding]:
    """The findings of a check; an unexpected exception becomes a finding of its own.

    So the checks after it still run. Raises StorageError and UnknownTopicOrPartition.
    """
    try:
        yield from findings
    except (StorageError, UnknownTopicOrPartition):
        raise
    except Exception as error:  # noqa: BLE001 - it is somebody else's bytes
        yield unexpected(check, subject, path, error)


def unexpected(check: str, subject: str, path: str, error: Exception) -> Finding:
    """The finding for an error that ended the examination of one thing."""
    told = str(error) if isinstance(error, TxnlogError) else f"{error!r:.500}"
    detail = f"it cannot be examined any further: {told}; restore it from a backup"
    return Finding(check, subject, "damage", detail, path=path)


@dataclass(slots=True)
class ReadFailures:
    """Counts the reads that failed in a row, over all logs and files of a store."""

    in_a_row: int = 0
    final: StorageError | None = None

    def reset(self) -> None:
        """Record a successful read."""
        self.in_a_row = 0

    def add(self, check: str, subject: str, path: str | None, error: StorageError) -> Finding:
        """The finding for an object that cannot be read.

        Raises StorageError if it is one too many: the examination ends.
        """
        if error is self.final:
            raise error
        self.in_a_row += 1
        if self.in_a_row >= STORE_LIMIT:
            self.final = StorageError(
                f"gave up after {self.in_a_row} objects in a row could not be read; the last: "
                f"{error}"
            )
            self.final.retriable = error.retriable
            raise self.final from error
        return Finding(check, subject, "unreadable", f"it could not be read: {error}", path=path)
