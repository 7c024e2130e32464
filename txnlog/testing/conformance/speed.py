"""How fast a storage is: small creates one by one and together, reads, listings."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from txnlog.storage.base import PARALLEL_REQUESTS, Storage

_ONE_BY_ONE = 100
_TOGETHER = 400
_BODY = b"x" * 500
"""About the size of a log entry."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Times of single requests, one after the other, in milliseconds; parallel puts per second."""

    create_p50_ms: float
    create_p99_ms: float
    read_p50_ms: float
    list_p50_ms: float
    creates_per_s: float

    def __str__(self) -> str:
        return (
            f"a create takes {self.create_p50_ms:.1f} ms (p99 {self.create_p99_ms:.1f}), a read "
            f"{self.read_p50_ms:.1f} ms, a listing of {_ONE_BY_ONE} names {self.list_p50_ms:.1f} "
            f"ms; {self.creates_per_s:.0f} creates a second in {PARALLEL_REQUESTS} threads"
        )


def measure_speed(storage: Storage) -> Speed:
    """Measure, and leave nothing behind."""
    names = [f"speed/one/{number:04d}" for number in range(_ONE_BY_ONE)]
    creates = [_timed_ms(partial(storage.put_if_absent, name, _BODY)) for name in names]
    reads = [_timed_ms(partial(storage.get, name)) for name in names]
    listings = [_timed_ms(partial(storage.list_names, "speed/one")) for _ in range(20)]
    together = [f"speed/many/{number:04d}" for number in range(_TOGETHER)]
    took_ms = _timed_ms(
        partial(storage.gather, [partial(storage.put_if_absent, name, _BODY) for name in together])
    )
    storage.delete([*names, *together])
    return Speed(
        create_p50_ms=_quantile(creates, 0.5),
        create_p99_ms=_quantile(creates, 0.99),
        read_p50_ms=_quantile(reads, 0.5),
        list_p50_ms=_quantile(listings, 0.5),
        creates_per_s=_TOGETHER * 1000 / took_ms,
    )


def _timed_ms(call: Callable[[], object]) -> float:
    begun_s = time.perf_counter()
    call()
    return (time.perf_counter() - begun_s) * 1000


def _quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]
