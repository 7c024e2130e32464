"""Putting an object once, though responses are lost: hazards 1 and 2 of docs/PROTOCOL.md."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress

from txnlog.clock import Clock
from txnlog.errors import ObjectNotFound, StorageError
from txnlog.storage.base import Storage

retries_logger = logging.getLogger("txnlog.retries")
"""Logs what is tried again, and why. docs/CLIENTS.md has the names of loggers."""

_PUT_ATTEMPTS = 5
_FIRST_PAUSE_S = 0.05
_PATIENCE_S = 2.0
"""After this no other attempt begins: where requests take long, the caller's patience counts."""


def create_once(
    storage: Storage,
    name: str,
    data: bytes,
    clock: Clock,
    built_on: Sequence[str] = (),
    *,
    decided: bool = False,
) -> bool:
    """Put-if-absent that survives a lost response (hazard 1): whether the object is ours.

    After a conflict or an error the object is read back: if it holds exactly ``data``, which
    carries a nonce of ours, the put was ours, and counts once it is certainly durable: the error
    may have been a failed sync. Putting the same bytes again is harmless, even if an earlier
    request lands late.

    ``built_on``: names on which it depends, and which may not be durable: confirmed first, since a
    power cut could take them and leave it. ``decided``: every process that puts this object gives
    it these bytes; see :meth:`Storage.put_decided`.

    Raises ObjectNotFound: one of ``built_on`` is gone; nothing was put, or only with an error.
    StorageError: the outcome is unknown (hazard 2): it may be there now or appear later.
    """
    put = storage.put_decided if decided else storage.put_if_absent
    pause_s = _FIRST_PAUSE_S
    failure: StorageError | None = None
    deadline_s = clock.monotonic_s() + _PATIENCE_S
    for attempt in range(_PUT_ATTEMPTS):
        if attempt and clock.monotonic_s() >= deadline_s:
            break
        taken = False
        try:
            for found in built_on:
                storage.confirm(found)
            if put(name, data):
                return True
            taken = True
        except ObjectNotFound:
            raise
        except StorageError as error:
            failure = error
        try:
            if storage.get(name) != data:
                return False
            for found in (*built_on, name):
                confirm(storage, found)
            return True
        except ObjectNotFound as error:
            if taken:
                # The name was taken and is free again: it was cleaned up.
                return False
            failure = failure or error
            if not failure.retriable:
                break  # permission is denied, or the disk is full: waiting does not help
        except StorageError as error:
            failure = error
        wait_s = pause_s * (0.5 + clock.jitter())
        retries_logger.info("%s: tried again in %.2f s: %s", name, wait_s, failure)
        clock.sleep(wait_s)
        pause_s *= 2
    assert failure is not None
    raise failure


def confirm(storage: Storage, name: str) -> None:
    """Make sure that an object of a log, which was there a moment ago, is durable.

    Does nothing if it is gone: logs are cleaned only once a checkpoint replaces the entries. Raises
    StorageError: it may not be durable.
    """
    with suppress(ObjectNotFound):
        storage.confirm(name)
