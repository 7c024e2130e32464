"""What is tried again: putting an object once, though responses are lost, and a producer's calls.

The first has to do with hazards 1 and 2 of docs/PROTOCOL.md. The second goes by Kafka's settings of
a producer: of which errors, after which pause, for how long.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import TypeVar

from txnlog.clock import Clock
from txnlog.config import check_whole_number
from txnlog.errors import CommitStateUnknown, InvalidConfig, ObjectNotFound, StorageError
from txnlog.storage.base import Storage

T = TypeVar("T")

_logger = logging.getLogger("txnlog.retries")
"""Logs what is tried again, and why. docs/CLIENTS.md has the names of loggers."""

_PUT_ATTEMPTS = 5
_FIRST_PAUSE_S = 0.05
_PATIENCE_S = 2.0
"""After this no other attempt begins: where requests take long, the caller's patience counts."""
_JITTER = 0.2
_MAX_MS = (1 << 31) - 1


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
        _logger.info("%s: tried again in %.2f s: %s", name, wait_s, failure)
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


@dataclass(frozen=True, slots=True)
class Retries:
    """How a producer retries calls that failed because of the storage. Milliseconds.

    Only for idempotent calls, which recognise their earlier work. The pause doubles from
    ``backoff_ms`` up to ``backoff_max_ms``, each time give or take a fifth.
    """

    delivery_timeout_ms: int = 120_000
    backoff_ms: int = 100
    backoff_max_ms: int = 1000

    @classmethod
    def of(cls, delivery_timeout_ms: int, backoff_ms: int, backoff_max_ms: int) -> Retries:
        """Check the settings. Raises InvalidConfig."""
        named = {
            "delivery.timeout.ms": delivery_timeout_ms,
            "retry.backoff.ms": backoff_ms,
            "retry.backoff.max.ms": backoff_max_ms,
        }
        for key, value in named.items():
            what = f"{key} of a producer"
            check_whole_number(value, what, InvalidConfig, least=0, most=_MAX_MS)
        return cls(delivery_timeout_ms, min(backoff_ms, backoff_max_ms), backoff_max_ms)

    def waiting(self, storage: Storage) -> AbstractContextManager[None]:
        """Roots of a replicated store are waited for as long, where a call cannot be repeated."""
        return storage.wait_up_to(self.delivery_timeout_ms / 1000)

    def run(
        self,
        clock: Clock,
        storage: Storage,
        call: Callable[[], T],
        *,
        at_most_ms: int | None = None,
    ) -> T:
        """Call until it succeeds, fails for another reason, or there is no time for another try.

        ``storage``: what is called; it waits itself for roots of a replicated store. ``call``: may
        be repeated after a StorageError or CommitStateUnknown. ``at_most_ms``: a shorter time than
        the delivery timeout.
        """
        limit_ms = self.delivery_timeout_ms
        if at_most_ms is not None:
            limit_ms = min(limit_ms, at_most_ms)
        deadline_s = clock.monotonic_s() + limit_ms / 1000
        pause_s = self.backoff_ms / 1000
        with storage.wait_up_to(limit_ms / 1000):
            while True:
                try:
                    return call()
                except (StorageError, CommitStateUnknown) as error:
                    wait_s = pause_s * (1 - _JITTER + 2 * _JITTER * clock.jitter())
                    if not error.retriable or clock.monotonic_s() + wait_s >= deadline_s:
                        raise
                    _logger.info("tried again in %.2f s: %s", wait_s, error)
                clock.sleep(wait_s)
                pause_s = min(2 * pause_s, self.backoff_max_ms / 1000)
