"""A random model of a controller that moves: epochs, the places they lie at, and nothing else.

Rules (what the real thing keeps):
 1. Each epoch says where the next one is decided, or nothing while the controller has never moved:
    then where it was found. A put-if-absent there decides.
 2. A move says so in an epoch of its own first, gives the new place the newest epoch, then all
    others, and then puts the next epoch at the OLD place, by which the new one decides.
 3. Who finds an epoch that says another place gives it that epoch if it has the one before, and
    goes on there. Who knows none and finds one that says nothing lists once more.

A place whose disk is not mounted is an empty one that takes every put; so the first epoch, which is
always there, is looked for with each request; before it is copied, a file that claims the place.
"""

from __future__ import annotations

import random
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]

PLACES = "abc"
CLAIM = -1
"""A file that a move puts first at the new place."""


class Lost(Exception):
    """A request cannot be answered; who made it starts over."""


class Violation(AssertionError):
    """A promise was broken."""


@dataclass(frozen=True)
class Epoch:
    """What the model knows of one."""

    number: int
    at: str
    """Where the next one is decided; "" where it was found."""
    by: str


@dataclass
class Model:
    """One run; ``broken`` names a rule that is left out."""

    seed: int
    broken: str = ""
    mounted: dict[str, dict[int, Epoch]] = field(default_factory=dict)
    bare: dict[str, dict[int, Epoch]] = field(default_factory=dict)
    away: set[str] = field(default_factory=set)
    decided: list[Epoch] = field(default_factory=list)
    acknowledged: int = 0
    moves: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.mounted = {place: {} for place in PLACES}
        self.bare = {place: {} for place in PLACES}
        self.decided.append(Epoch(0, "", "made"))
        self.mounted["a"][0] = self.decided[0]

    # -- requests --------------------------------------------------------------------------------

    def disk(self, place: str) -> dict[int, Epoch]:
        return (self.bare if place in self.away else self.mounted)[place]

    def put(self, place: str, epoch: Epoch, *, copies: bool = False) -> Steps[bool]:
        yield
        if (CLAIM if copies else 0) not in self.disk(place) and self.broken != "unmarked":
            raise Lost("not the place that it was")
        found = self.disk(place).setdefault(epoch.number, epoch)
        return found == epoch

    def listing(self, place: str) -> Steps[set[int]]:
        """No instant: what comes meanwhile shows or not."""
        yield
        disk = self.disk(place)
        first = set(disk)
        for _ in range(self.chance.choice((1, 1, 1, 20))):
            yield
        later = set(disk)
        if 0 not in self.disk(place) and self.broken != "unmarked":
            raise Lost("not the place that it was any more")
        came = {number for number in later - first if self.chance.random() < 0.5}
        return (first | came) - {CLAIM}

    def read(self, place: str, number: int) -> Steps[Epoch]:
        yield
        if number not in self.disk(place):
            raise Lost(f"{number} is gone at {place}")
        return self.disk(place)[number]

    # -- the protocol ----------------------------------------------------------------------------

    def here(self, place: str, known: Epoch | None) -> Steps[Epoch]:
        there = yield from self.listing(place)
        if known is None and 0 not in there:
            raise Lost("nothing tells that it is a controller")
        if known is not None and known.number not in there:
            raise Lost("what was known is gone")
        newest = yield from self.read(place, max(there))
        if known is None and not newest.at:
            return (yield from self.here(place, newest))
        return newest

    def newest(self, opened: str, known: Epoch | None) -> Steps[tuple[str, Epoch]]:
        place = (known.at if known else "") or opened
        epoch = yield from self.here(place, known)
        while epoch.at not in ("", place) and self.broken != "stay":
            place = epoch.at
            there = yield from self.listing(place)
            if epoch.number not in there:
                if epoch.number - 1 not in there:
                    raise Lost("not the place that it was")
                if not (yield from self.put(place, epoch)):
                    raise Violation(f"{place} has another epoch {epoch.number}")
            epoch = yield from self.here(place, epoch)
        return place, epoch

    def propose(self, place: str, epoch: Epoch) -> Steps[bool]:
        if not (yield from self.put(place, epoch)):
            return False
        if place not in self.away:
            self.decide(epoch)
        return True

    def decide(self, epoch: Epoch) -> None:
        if len(self.decided) == epoch.number:
            self.decided.append(epoch)
        if len(self.decided) < epoch.number:
            raise Violation(f"{epoch} comes after one that nobody has decided")
        if self.decided[epoch.number] != epoch:
            raise Violation(f"two epochs {epoch.number}: {self.decided[epoch.number]}, {epoch}")

    def move(self, opened: str, to: str, name: str) -> Steps[None]:
        place, epoch = yield from self.newest(opened, None)
        if place == to or to in self.away:
            return
        self.disk(to).setdefault(CLAIM, Epoch(CLAIM, "", name))
        yield
        if not epoch.at and self.broken != "unsaid":
            said = Epoch(epoch.number + 1, place, name)
            if not (yield from self.propose(place, said)):
                return
            epoch = said
        for _ in range(3):
            order = [epoch.number, *range(epoch.number)]
            if self.broken == "oldestfirst":
                order.sort()
            for number in order:
                one = yield from self.read(place, number)
                if not (yield from self.put(to, one, copies=True)):
                    raise Lost(f"{to} has another history")
            if (yield from self.listing(to)) < set(order):
                raise Lost(f"{to} is not the place that it was")
            at_once = to if self.broken == "decidethere" else place
            if (yield from self.propose(at_once, Epoch(epoch.number + 1, to, name))):
                self.moves += 1
                return
            place, epoch = yield from self.newest(place, epoch)
            if epoch.at != place:
                return

    # -- processes -------------------------------------------------------------------------------

    def writer(self, name: str) -> Steps[None]:
        """Acknowledges what was done under an epoch that is the newest one afterwards."""
        opened, known = self.chance.choice(PLACES), None
        while True:
            try:
                opened, known = yield from self.newest(opened, known)
                for _ in range(self.chance.randrange(8)):
                    yield
                began = len(self.decided) - 1
                opened, after = yield from self.newest(opened, known)
                if after.number == known.number:
                    self.acknowledged += 1
                    if known.number < began:
                        raise Violation(f"{name}: {known} was acknowledged, {began} was decided")
                known = after
                if self.chance.random() < 0.2:
                    one = Epoch(known.number + 1, known.at, name)
                    yield from self.propose(known.at or opened, one)
            except Lost:
                yield
                if self.chance.random() < 0.3:
                    opened, known = self.chance.choice(PLACES), None

    def mover(self, name: str) -> Steps[None]:
        while True:
            for _ in range(self.chance.randrange(60)):
                yield
            try:
                where = self.chance.choice(PLACES)
                yield from self.move(where, self.chance.choice(PLACES), name)
            except Lost:
                yield

    def run(self, steps: int = 800) -> Model:
        processes = [self.writer(f"w{n}") for n in range(4)]
        processes += [self.mover(f"m{n}") for n in range(2)]
        for step in range(steps):
            if self.chance.random() < 0.02:
                place = self.chance.choice(PLACES)
                self.away = set() if self.away else {place}
            number = self.chance.randrange(len(processes))
            if self.chance.random() < 0.01:  # killed, anywhere
                processes[number].close()
                make = self.writer if number < 4 else self.mover
                processes[number] = make(f"p{number}s{step}")
            next(processes[number])
            for place, disk in self.mounted.items():
                for one in disk.values():
                    if one.number == CLAIM:
                        continue
                    if one.number >= len(self.decided) or one != self.decided[one.number]:
                        raise Violation(f"{place} has {one}, which nobody has decided")
        return self
