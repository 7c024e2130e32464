"""Damaged records that a read with ``onCorrupt=skip`` passes: tasks tell, the commit counts.

A task says in its log what it passes. Where the read belongs to a transaction, it also leaves a
note of it in staging/, before it returns what is behind: whoever commits knows of all that the
tasks have passed. Each attempt of a task, and each computing of the frame, leaves the same notes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

import msgspec

from txnlog.errors import TxnlogError
from txnlog.limits import Name, Offset, PartitionNumber, Text
from txnlog.names import STAGING, parse_skipped_note, read_note_owner, skipped_note
from txnlog.read.scan_reader import DamagedRecords
from txnlog.state.transaction import TransactionRef
from txnlog.storage import envelope
from txnlog.storage.base import Storage

_logger = logging.getLogger(__name__)

_NAMED = 5
"""How many places a warning names."""


class SkippedRecords(msgspec.Struct, frozen=True, tag_field="kind", tag="skipped"):
    """Offsets [offset, next_offset) of a partition that a read has passed, and why."""

    transaction: TransactionRef
    topic: Name
    partition: PartitionNumber
    offset: Offset
    next_offset: Offset
    reason: Text


_DECODER = msgspec.json.Decoder(SkippedRecords)


def reporter(
    storage: Storage, transaction: TransactionRef | None
) -> Callable[[DamagedRecords], None]:
    """A function for a task that logs each skipped range, and notes it for the transaction, if any.

    It raises StorageError.
    """

    def report(damaged: DamagedRecords) -> None:
        _logger.warning("skipped, %d at most: %s", damaged.offset_count, damaged)
        if transaction is not None:
            place = damaged.topic, damaged.partition, damaged.offset, damaged.next_offset
            note = SkippedRecords(transaction, *place, damaged.reason)
            name = skipped_note(transaction.transactional_id, f"{transaction} {place}")
            # The process that began the transaction has checked the server.
            storage.trust()
            storage.put_if_absent(name, envelope.encode(note))

    return report


def is_of(name: str, transactional_id: str) -> bool:
    """Whether a name in ``staging/`` is that of a note of this id's reads."""
    return parse_skipped_note(name) == read_note_owner(transactional_id)


def take_notes(
    storage: Storage, transaction: TransactionRef, names: Iterable[str] | None = None
) -> tuple[DamagedRecords, ...]:
    """The ranges that a transaction's reads have skipped, by partition and offset; logs a warning.

    ``names`` are the names of all files in ``staging/``; None: they are listed. The notes are
    deleted, best effort. Raises StorageError, CorruptEntry.
    """
    listed = storage.list_names(STAGING) if names is None else names
    paths = [f"{STAGING}/{name}" for name in listed if is_of(name, transaction.transactional_id)]
    if not paths:
        return ()
    notes = zip(storage.get_many(paths), paths, strict=True)
    decoded = [envelope.decode(data, _DECODER, path) for data, path in notes]
    mine = [note for note in decoded if note.transaction == transaction]
    found = [
        DamagedRecords(note.topic, note.partition, note.offset, note.next_offset, note.reason)
        for note in sorted(mine, key=lambda note: (note.topic, note.partition, note.offset))
    ]
    if found:
        places = "; ".join(map(str, found[:_NAMED]))
        _logger.warning(
            "reads of %r skip damaged records, %d at most: %s%s",
            transaction.transactional_id,
            sum(each.offset_count for each in found),
            places,
            f"; and {len(found) - _NAMED} more" if len(found) > _NAMED else "",
        )
    try:
        storage.delete(paths)
    except TxnlogError as error:
        _logger.info("notes of skipped records were left: %s", error)
    return tuple(found)
