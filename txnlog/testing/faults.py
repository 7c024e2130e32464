"""What can go wrong at a storage request, and how often it shall."""

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


@dataclass(frozen=True, slots=True)
class FaultRates:
    """How often each thing happens, as a probability per request; times in milliseconds.

    ``stop`` is divided evenly between before and after the request. A delay lasts for any time
    between the two numbers of ``delay_ms``, and so a pause and a late landing.
    """

    fail: float = 0.0
    lose_response: float = 0.0
    land_late: float = 0.0
    delay: float = 0.0
    pause: float = 0.0
    stop: float = 0.0
    delay_ms: tuple[int, int] = (50, 5_000)
    pause_ms: tuple[int, int] = (1_000, 120_000)
    landing_ms: tuple[int, int] = (10, 30_000)

    def __post_init__(self) -> None:
        rates = [rate for _, rate in self._rates()]
        if min(rates) < 0 or sum(rates) > 1:
            raise ValueError(f"rates must not be negative and add up to at most 1: {rates}")

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

    def draw(self, chance: random.Random) -> Fault | None:
        """What happens at one request; None if nothing does."""
        drawn = chance.random()
        for fault, rate in self._rates():
            if drawn < rate:
                return fault
            drawn -= rate
        return None

    def duration_ms(self, fault: Fault, chance: random.Random) -> int:
        """How long the fault lasts."""
        ranges = {
            Fault.DELAY: self.delay_ms,
            Fault.PAUSE: self.pause_ms,
            Fault.LAND_LATE: self.landing_ms,
        }
        return chance.randint(*ranges[fault])
