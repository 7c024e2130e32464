"""A writer's settings for all topics, chosen once for a whole producer, and how it retries.

Of which errors, after which pause, for how long: Kafka's producer settings.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TypeVar

from txnlog.clock import Clock
from txnlog.config import Acks, WriterCodec, check_whole_number
from txnlog.errors import CommitStateUnknown, InvalidConfig, StorageError
from txnlog.storage.base import Storage
from txnlog.storage.create_once import retries_logger
from txnlog.write.partitioner import DEFAULT_PARTITIONER, PartitionFunction
from txnlog.write.segment_uploads import DEFAULT_MEMORY_BYTES

T = TypeVar("T")

_JITTER = 0.2
_MAX_MS = (1 << 31) - 1


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
                    retries_logger.info("tried again in %.2f s: %s", wait_s, error)
                clock.sleep(wait_s)
                pause_s = min(2 * pause_s, self.backoff_max_ms / 1000)


@dataclass(frozen=True, slots=True)
class WriterSettings:
    """Kafka's defaults.

    ``codec`` None: each topic's own; ``memory_bytes``: of buffered records; ``linger_ms`` None:
    only a flush sends.
    """

    codec: WriterCodec | None = None
    partitioner: str | PartitionFunction = DEFAULT_PARTITIONER
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    acks: Acks = Acks.ALL
    retries: Retries = field(default_factory=Retries)
    linger_ms: int | None = None

    def uploads_to(self, storage: Storage) -> Storage:
        """The storage for uploads of segments: durable at once only with acks=all."""
        return storage if self.acks is Acks.ALL else storage.without_fsync()
