"""Where one root of a store has a damaged file, another root's copy is read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from txnlog.errors import CorruptRecord, StorageError, TxnlogError
from txnlog.storage.base import Storage

if TYPE_CHECKING:
    from txnlog.segments.reader import SegmentBatch

T = TypeVar("T")

_logger = logging.getLogger(__name__)


def read_one_copy(
    storage: Storage,
    name: str,
    read: Callable[[Storage], T],
    damaged: tuple[type[TxnlogError], ...],
) -> T:
    """What ``read`` reads of a file; where it raises one of ``damaged``, of another copy.

    Raises what ``read`` does of the first copy if no other can be read.
    """
    try:
        return read(storage)
    except damaged as damage:
        for source in storage.copies_of(name):
            with suppress(StorageError, *damaged):
                found = read(source)
                warn_of_damage(name, source, damage)
                return found
        raise


def warn_of_damage(name: str, source: Storage, damage: TxnlogError) -> None:
    _logger.warning(
        "%s is read from %s, because it is damaged elsewhere (`txnlog replicas verify --deep "
        "--repair` mends it): %s",
        name,
        source.url,
        damage,
    )


def read_any_copy(
    storage: Storage,
    name: str,
    start_offset: int,
    read: Callable[[Storage | None, int], Iterator[SegmentBatch]],
) -> Iterator[SegmentBatch]:
    """The batches of a segment; after damage, the following ones from another copy.

    ``read``: from a storage (None: as planned) the batches from an offset on. Each copy is tried
    again after others have got further. Raises its errors; CorruptRecord if no copy has the damaged
    part.
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
