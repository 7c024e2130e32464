"""The clocks of a simulated machine: wrong by an offset, drifting, and set now and then."""

from __future__ import annotations

import random
from typing import Protocol

from txnlog.clock import Signal
from txnlog.testing.faults import ClockFaults
from txnlog.testing.virtual_clock import VirtualClock


class MachineClock:
    """A wall clock and a monotonic one, both derived from the true time.

    They outlive the process: one that restarts on the same machine finds them as they are.
    """

    def __init__(
        self, true: VirtualClock, faults: ClockFaults, ahead_ms: int, chance: random.Random
    ) -> None:
        self._true = true
        self._faults = faults
        self._most_ms = max(faults.most_ms, abs(ahead_ms))
        self._chance = chance
        self._since_ms = true.time_ms
        self._ahead_ms = ahead_ms
        self._drift = 1e-6 * chance.uniform(-faults.drift_ppm, faults.drift_ppm)
        self._monotonic_drift = 1e-6 * chance.uniform(-faults.monotonic_ppm, faults.monotonic_ppm)
        self._counted_ms = 0.0
        self._counted_to_ms = true.time_ms
        self._asleep_until_ms = true.time_ms

    def now_ms(self) -> int:
        """The wall clock."""
        elapsed_ms = self._true.time_ms - self._since_ms
        ahead_ms = round(self._ahead_ms + elapsed_ms * self._drift)
        return self._true.time_ms + max(-self._most_ms, min(self._most_ms, ahead_ms))

    def monotonic_s(self) -> float:
        """The monotonic clock: it counts no time in which the machine sleeps."""
        now_ms = self._true.time_ms
        awake_ms = now_ms - max(self._counted_to_ms, min(self._asleep_until_ms, now_ms))
        self._counted_ms += max(0, awake_ms) * (1 + self._monotonic_drift)
        self._counted_to_ms = max(self._counted_to_ms, now_ms)
        return self._counted_ms / 1000

    def jump(self) -> int:
        """Set the wall clock if it is due; returns by how many ms, 0 if it is not."""
        if not self._faults.jump or self._chance.random() >= self._faults.jump:
            return 0
        before_ms = self.now_ms()
        self._since_ms = self._true.time_ms
        self._ahead_ms = self._chance.randint(-self._most_ms, self._most_ms)
        return self.now_ms() - before_ms

    def fall_asleep(self, for_ms: int) -> bool:
        """Let the machine sleep in a pause that begins now, or not; returns whether it does."""
        if not self._faults.asleep or self._chance.random() >= self._faults.asleep:
            return False
        self.monotonic_s()
        self._asleep_until_ms = self._true.time_ms + for_ms
        return True

    def wake_up(self) -> None:
        """It is switched on again, after a sleep or a power cut."""
        self.monotonic_s()
        self._asleep_until_ms = self._true.time_ms


class Waiter(Protocol):
    """Can wait, and lets others go on meanwhile."""

    def wait(self, for_ms: int = 0) -> None: ...


class ProcessClock:
    """The clocks of its machine as one process sees them, and a process's own randomness."""

    def __init__(self, actor: Waiter, machine: MachineClock, chance: random.Random) -> None:
        self._actor = actor
        self._machine = machine
        self._chance = chance

    def now_ms(self) -> int:
        return self._machine.now_ms()

    def monotonic_s(self) -> float:
        return self._machine.monotonic_s()

    def sleep(self, seconds: float) -> None:
        self._actor.wait(max(0, round(seconds * 1000)))

    def wait(self, event: Signal, seconds: float) -> None:
        if not event.is_set():
            self.sleep(seconds)

    def token(self) -> str:
        return f"{self._chance.getrandbits(128):032x}"

    def jitter(self) -> float:
        return self._chance.random()
