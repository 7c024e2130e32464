"""The result of publishing a topic, and how it fails: errors of the table libraries as our own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from txnlog.errors import (
    ConcurrentTransactions,
    OffsetOutOfRange,
    SnapshotExpired,
    TxnlogError,
)
from txnlog.storage.failure_messages import failure

T = TypeVar("T")

_ATTEMPTS = 10


class Conflict(Exception):
    """The table was changed since it was read; nothing was committed."""


def until_nobody_interferes(attempt: Callable[[], T], url: str) -> T:
    """The result of an attempt that nobody has overtaken: at the table, or at the topic's files.

    Raises ConcurrentTransactions.
    """
    for _ in range(_ATTEMPTS):
        try:
            return attempt()
        except (Conflict, OffsetOutOfRange, SnapshotExpired):
            continue
    raise ConcurrentTransactions(
        f"others changed the table at {url}, or deleted files of the topic, during each of "
        f"{_ATTEMPTS} attempts to publish it; nothing was published: try again"
    )


@contextmanager
def reported(operation: str, url: str, secrets: Collection[str] = ()) -> Generator[None]:
    """A library's errors as StorageError without secrets. Our own errors stay."""
    try:
        yield
    except (TxnlogError, Conflict):
        raise
    except Exception as error:  # each library has its own classes, and lets others through
        hint = "publish again, which goes on from what is there"
        raise failure(operation, url, "", error, hint=hint, secrets=secrets) from error


@dataclass(frozen=True, slots=True)
class TablePublication:
    """A topic as a table, after a publication.

    ``version`` is the table's: Delta's version, or the id of Iceberg's snapshot (None: it never had
    any rows). ``added_files`` and ``removed_files`` count this publication's changes;
    ``copied_files`` of the added ones hold copied rows. Both 0: the table was up to date.
    ``end_offsets`` is, by partition, how far it reaches: every record committed before that is in
    it, if the topic still had it.
    """

    topic: str
    url: str
    version: int | None
    added_files: int
    removed_files: int
    copied_files: int
    end_offsets: Mapping[int, int]
