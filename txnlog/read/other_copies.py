"""Reads on from another root's copy when a segment is damaged on one root."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from txnlog.errors import CorruptRecord, StorageError
from txnlog.log.other_copies import warn_of_damage
from txnlog.segments.reader import SegmentBatch
from txnlog.storage.base import Storage

ReadFrom: TypeAlias = Callable[[Storage | None, int], Iterator[SegmentBatch]]
"""Reads from a storage (None: as planned) the batches from an offset on."""


def read_any_copy(
    storage: Storage, name: str, start_offset: int, read: ReadFrom
) -> Iterator[SegmentBatch]:
    """The batches of a segment; after damage, the following ones from another copy.

    Each copy is tried again after others have got further. Raises the errors of ``read``;
    CorruptRecord if no copy has the damaged part.
    """
    at = damaged_at = start_offset
    damage: CorruptRecord | None = None
    source: Storage | None = None
    others: list[Storage] = []
    while True:
        try:
            for batch in read(source, at):
                at = batch.last_offset + 1
                yield batch
            return
        except CorruptRecord as error:
            if damage is None or at > damaged_at:
                damage, damaged_at = error, at
                others = [*storage.copies_of(name)]
        except StorageError:
            if source is None or damage is None:
                raise
        if not others:
            raise damage
        source = others.pop(0)
        warn_of_damage(name, source, damage)
