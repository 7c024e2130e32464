"""Reads on from another root's copy when a segment is damaged on one root."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TypeAlias, TypeVar

from txnlog.errors import CorruptRecord, ObjectNotFound, StorageError
from txnlog.segments.reader import SegmentBatch
from txnlog.storage.base import Storage

ReadFrom: TypeAlias = Callable[[Storage | None, int], Iterator[SegmentBatch]]
"""Reads from a storage (None: as planned) the batches from an offset on."""

ReadT = TypeVar("ReadT")

_logger = logging.getLogger(__name__)


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
        _warn(name, source, damage)


def read_one_copy(storage: Storage, name: str, read: Callable[[Storage], ReadT]) -> ReadT:
    """What ``read`` reads of a segment; after damage, from another copy.

    Raises the errors of ``read``; CorruptRecord if every copy that can be read is damaged.
    """
    try:
        return read(storage)
    except CorruptRecord as damage:
        for source in storage.copies_of(name):
            _warn(name, source, damage)
            with suppress(CorruptRecord, ObjectNotFound, StorageError):
                return read(source)
        raise


def _warn(name: str, source: Storage, damage: CorruptRecord) -> None:
    _logger.warning(
        "%s is read from %s, because it is damaged elsewhere (`txnlog replicas verify --deep "
        "--repair` mends it): %s",
        name,
        source.url,
        damage,
    )
