"""Where one root of a store has a damaged file, another root's copy is read."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from txnlog.errors import StorageError, TxnlogError
from txnlog.storage.base import Storage

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
