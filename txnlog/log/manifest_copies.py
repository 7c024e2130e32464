"""Manifests, and files of rewrites, that are damaged on one root are read from another.

They have one writer, and the list that names them, or they themselves, have a checksum: so any copy
that it fits is right.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from txnlog.errors import CorruptEntry, StorageError, UnsupportedVersion
from txnlog.storage.base import Storage

T = TypeVar("T")

_logger = logging.getLogger(__name__)


def decode_any_copy(storage: Storage, path: str, data: bytes, decode: Callable[[bytes], T]) -> T:
    """Decode what was read; or, where that is damaged, what other roots have.

    Raises what ``decode`` does of the first copy: CorruptEntry if no copy is sound.
    """
    try:
        return decode(data)
    except (CorruptEntry, UnsupportedVersion) as damage:
        for copy in storage.copies_of(path):
            with suppress(StorageError, CorruptEntry, UnsupportedVersion):
                found = decode(copy.get(path))
                _logger.warning(
                    "%s is read from %s, because it is damaged elsewhere (`txnlog replicas verify "
                    "--deep --repair` mends it): %s",
                    path,
                    copy.url,
                    damage,
                )
                return found
        raise
