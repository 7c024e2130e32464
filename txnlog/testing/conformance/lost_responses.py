"""Creates through a proxy that cuts connections: none is lost, none is taken for another's.

Hazard 1 of docs/PROTOCOL.md. The client below repeats requests that it believes have failed, and
the server refuses the repetition; only reading the object back tells whose it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from txnlog.clock import SystemClock
from txnlog.errors import StorageError
from txnlog.storage.base import Storage
from txnlog.storage.create_once import create_once
from txnlog.testing.conformance.expectations import expect
from txnlog.testing.conformance.fault_proxy import FaultProxy, ProxyFaults
from txnlog.testing.conformance.ways import Way

T = TypeVar("T")

CREATES = 40
_FAULTS = ProxyFaults(refuse=0.05, lose=0.15, truncate=0.05)
_READ_ATTEMPTS = 10


@dataclass(frozen=True, slots=True)
class LostResponses:
    """Counts: ``creates`` made, unknown outcomes, and ``cut`` connections."""

    creates: int
    unknown: int
    cut: str

    def __str__(self) -> str:
        unknown = f", {self.unknown} reported as unknown" if self.unknown else ""
        return f"{self.creates} creates over connections that are cut ({self.cut}){unknown}"


def create_over_cut_connections(
    storage: Storage, disturbed: Storage, creates: int = CREATES
) -> tuple[int, int]:
    """Create through the proxy and check directly; returns how many were made, and unknown.

    Raises NotConforming.
    """
    clock = SystemClock()
    disturbed.trust()
    unknown = 0
    for number in range(creates):
        name = f"lossy/{number:04d}"
        body = b"mine %04d\n" % number * (1 if number % 4 else 2000)
        try:
            mine = create_once(disturbed, name, body, clock)
        except StorageError:
            unknown += 1
            continue
        expect(mine, f"{name}: a create whose response was lost was taken for somebody else's")
        expect(storage.get(name) == body, f"{name}: created, and something else is there")
        again = _until_known(partial(create_once, disturbed, name, b"other\n", clock))
        expect(not again, f"{name}: created twice")
        expect(storage.get(name) == body, f"{name}: a refused create changed the object")
        read = _until_known(partial(disturbed.get, name))
        expect(read == body, f"{name}: {len(read)} bytes were read of {len(body)}")
    expect(unknown < creates, "none of the creates became known")
    return creates, unknown


def _until_known(call: Callable[[], T]) -> T:
    for _ in range(_READ_ATTEMPTS - 1):
        try:
            return call()
        except StorageError:
            continue
    return call()


@contextmanager
def through_proxy(
    way: Way, faults: ProxyFaults = _FAULTS, seed: int = 0
) -> Iterator[tuple[Way, FaultProxy] | None]:
    """The way through a proxy that cuts connections; None if impossible."""
    server = way.server()
    if server is None:
        yield None
        return
    with FaultProxy(*server, faults, seed).running() as proxy:
        yield way.through("127.0.0.1", proxy.port), proxy


def describe_cuts(proxy: FaultProxy) -> str:
    """A proxy's counts, for people."""
    kinds = ("refused", "lost", "truncated")
    cuts = ", ".join(f"{proxy.counts[kind]} {kind}" for kind in kinds)
    return f"{proxy.counts['requests']} requests: {cuts}"
