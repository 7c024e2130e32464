"""What can go wrong at a storage request or with a clock, and how often it does."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum


class Fault(Enum):
    """What happens at a request. Reads have no effect, so some faults are the same for them."""

    STOP_BEFORE = "the process stops before the request is sent"
    STOP_AFTER = "the request takes effect, then the process stops"
    LOSE_RESPONSE = "the request takes effect, and the caller is told that it failed"
    FAIL = "the request has no effect, and the caller is told that it failed"
    LAND_LATE = "the caller is told that it failed, and it takes effect later (puts; others fail)"
    DELAY = "the request takes effect, and the answer comes late"
    PAUSE = "the process stands still before the request is sent, and goes on later"
    PARTIAL = "some of the objects are deleted, and the caller is told that it failed (others fail)"
    SYNC_FAILS = "the object shows, but a power cut may take it; the caller is told (others fail)"


_SYNCED = ("put", "put_if_absent", "upload", "confirm")


def is_synced(request: str) -> bool:
    """Whether a failing sync can hit a request, by its text."""
    return request.partition(" ")[0] in _SYNCED


@dataclass(frozen=True, slots=True)
class FaultRates:
    """How often each thing happens, as a probability per request; times in milliseconds.

    ``stop`` is divided evenly between before and after the request. A delay takes any time between
    the two numbers of ``delay_ms``; likewise a pause and a late landing.

    ``partial`` is a probability per deletion, ``sync_fails`` per put, upload and confirmation.
    Behaviour that is normal for storages has its own rates: ``tear_listing`` for listings and
    ``tear_delete`` for deletions that take several steps, each at least ``tear_ms`` after the one
    before it, with other processes in between. ``power_cut`` is a probability per step of the whole
    simulation, see :meth:`~txnlog.testing.Simulation.power_cut`, and so is ``sync_outage``, see
    :meth:`~txnlog.testing.Simulation.fail_syncs`, which takes ``outage_ms``; they are not taken
    from the rates of single processes.
    """

    fail: float = 0.0
    lose_response: float = 0.0
    land_late: float = 0.0
    delay: float = 0.0
    pause: float = 0.0
    stop: float = 0.0
    partial: float = 0.0
    sync_fails: float = 0.0
    tear_listing: float = 0.0
    tear_delete: float = 0.0
    power_cut: float = 0.0
    sync_outage: float = 0.0
    delay_ms: tuple[int, int] = (50, 5_000)
    pause_ms: tuple[int, int] = (1_000, 120_000)
    tear_ms: tuple[int, int] = (0, 0)
    landing_ms: tuple[int, int] = (10, 30_000)
    outage_ms: tuple[int, int] = (1_000, 60_000)

    def __post_init__(self) -> None:
        rates = [rate for _, rate in self._rates()]
        if min(rates) < 0 or sum(rates) > 1:
            raise ValueError(f"rates must not be negative and add up to at most 1: {rates}")
        others = [
            self.partial,
            self.sync_fails,
            self.tear_listing,
            self.tear_delete,
            self.power_cut,
            self.sync_outage,
        ]
        if min(others) < 0 or max(others) > 1:
            raise ValueError(f"a rate is a probability from 0 to 1: {others}")

    def _rates(self) -> tuple[tuple[Fault, float], ...]:
        return (
            (Fault.FAIL, self.fail),
            (Fault.LOSE_RESPONSE, self.lose_response),
            (Fault.LAND_LATE, self.land_late),
            (Fault.DELAY, self.delay),
            (Fault.PAUSE, self.pause),
            (Fault.STOP_BEFORE, self.stop / 2),
            (Fault.STOP_AFTER, self.stop / 2),
        )

    def draw(self, chance: random.Random, request: str = "") -> Fault | None:
        """The fault at one request, by its text; None if there is none."""
        drawn = chance.random()
        for fault, rate in self._rates():
            if drawn < rate:
                return fault
            drawn -= rate
        kind = request.partition(" ")[0]
        if kind == "delete" and self.partial and chance.random() < self.partial:
            return Fault.PARTIAL
        if self.sync_fails and is_synced(request) and chance.random() < self.sync_fails:
            return Fault.SYNC_FAILS
        return None

    def duration_ms(self, fault: Fault, chance: random.Random) -> int:
        """How long the fault lasts."""
        ranges = {
            Fault.DELAY: self.delay_ms,
            Fault.PAUSE: self.pause_ms,
            Fault.LAND_LATE: self.landing_ms,
        }
        return chance.randint(*ranges[fault])


@dataclass(frozen=True, slots=True)
class ClockFaults:
    """How wrong the clocks of a simulation's processes are: each has a wall and a monotonic one.

    Args: most_ms: no jump or drift takes a wall clock further than this from the true time; if
    :meth:`~txnlog.testing.Simulation.spawn` sets a clock further off, it stays so. drift_ppm: a
    wall clock is fast or slow by up to this. monotonic_ppm: a monotonic clock is fast or slow by up
    to this. It never goes backwards. jump: how often, per request, a wall clock is set to another
    time, back or forth. asleep: the share of pauses in which the machine sleeps: its monotonic
    clock stands still, and its wall clock goes on.
    """

    most_ms: int = 0
    drift_ppm: float = 0.0
    monotonic_ppm: float = 0.0
    jump: float = 0.0
    asleep: float = 0.0
