"""A random model of data files on some of the members: written, moved, forgotten, put out.

Everything happens in single steps between which anybody may sleep, or be killed, and a deletion
whose answer was lost may be done much later. It shares no code with the library.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Iterable
from typing import NamedTuple, TypeAlias

Member: TypeAlias = tuple[str, int]
Steps: TypeAlias = Generator[str]
ROOTS = "abc"
FILES = 2
"""Few, so that those who move them are in each other's way."""


BROKEN = (
    "notes nothing",
    "counts what is noted",
    "deletes before it looks",
    "forgets the last copy",
)


class Lost(AssertionError):
    """No member, and nothing that was one, has a file that was acknowledged."""


class Killed(Exception):
    """The process does nothing more."""


class Epoch(NamedTuple):
    """The in-sync set, former members, and the placement's inputs."""

    members: frozenset[Member]
    left: frozenset[Member]
    factor: int
    turn: int
    """Stands for whatever else the placement depends on."""


class Model:
    """One run. ``broken`` names a rule that is left out, one of BROKEN."""

    def __init__(self, seed: int, broken: str = "") -> None:
        self.chance = random.Random(seed)
        self.broken = broken
        self.files: dict[Member, set[int]] = {(root, 0): set() for root in ROOTS}
        self.notes: dict[Member, dict[int, set[int]]] = {member: {} for member in self.files}
        self.epochs = [Epoch(frozenset(self.files), frozenset(), self.chance.choice([1, 1, 2]), 0)]
        self.acked: set[int] = set()
        self.number = FILES
        self.late: list[tuple[Member, int]] = []
        self.trimmed = 0
        self.forgotten = 0

    # -- what all agree on -----------------------------------------------------------------------

    def propose(self, known: int, epoch: Epoch) -> bool:
        if len(self.epochs) != known + 1:
            return False
        self.epochs.append(epoch)
        return True

    def newest(self) -> int:
        return len(self.epochs) - 1

    def placed(
        self, epoch: Epoch, file: int, doomed: frozenset[Member] = frozenset()
    ) -> list[Member]:
        turn = (file + epoch.turn) % len(ROOTS)
        ring = sorted(epoch.members, key=lambda m: (ROOTS.index(m[0]) - turn) % len(ROOTS))
        return [member for member in ring if member not in doomed][: epoch.factor]

    def noted(self, member: Member, file: int, *, but: int = -1) -> bool:
        notes = self.notes[member]
        return any(file in names for whose, names in notes.items() if whose != but)

    def fresh(self) -> int:
        self.number += 1
        return self.number

    # -- processes -------------------------------------------------------------------------------

    def write(self) -> Steps:
        for file in range(FILES):
            yield ""
            number = self.newest()
            epoch = self.epochs[number]
            for member in self.placed(epoch, file):
                yield ""
                self.files[member].add(file)
            yield ""
            if self.newest() == number:
                self.acked.add(file)

    def change(self) -> Steps:
        """Roots go out and come back with their share, and the placement changes."""
        while True:
            yield ""
            number = self.newest()
            epoch = self.epochs[number]
            what = self.chance.random()
            if what < 0.6:
                turn, factor = self.chance.randrange(len(ROOTS)), self.chance.choice([1, 1, 2])
                self.propose(number, epoch._replace(turn=turn, factor=factor))
            elif what < 0.8 and len(epoch.members) > 1:
                gone = self.chance.choice(sorted(epoch.members))
                changed = epoch._replace(members=epoch.members - {gone}, left=epoch.left | {gone})
                self.propose(number, changed)
            else:
                yield from self.come_back(number, epoch)

    def come_back(self, number: int, epoch: Epoch) -> Steps:
        away = sorted(set(ROOTS) - {root for root, _ in epoch.members})
        if not away:
            return
        root = self.chance.choice(away)
        member = root, max(number for name, number in self.files if name == root) + 1
        self.files[member], self.notes[member] = set(), {}
        after = epoch._replace(members=epoch.members | {member})
        for file in sorted(set().union(*(self.files[one] for one in epoch.members))):
            yield ""
            if member in self.placed(after, file):
                self.files[member].add(file)
        self.propose(number, after)

    def copy(self, epoch: Epoch, file: int) -> Steps:
        """Give a file to whom it belongs to, of those that nobody is about to delete it at."""
        yield ""
        there = [m for m in (*epoch.members, *epoch.left) if file in self.files[m]]
        doomed = frozenset(m for m in epoch.members if self.noted(m, file))
        for member in self.placed(epoch, file, doomed) if there else ():
            yield ""
            self.files[member].add(file)

    def without_note(self, members: Iterable[Member], file: int, own: int) -> list[Member]:
        if self.broken == "counts what is noted":
            return [*members]
        return [member for member in members if not self.noted(member, file, but=own)]

    def reassign(self) -> Steps:
        while True:
            yield ""
            number = self.newest()
            epoch = self.epochs[number]
            known = (*epoch.members, *epoch.left)
            for file in sorted(set().union(*(self.files[m] for m in known))):
                yield from self.copy(epoch, file)
                yield ""
                surplus = {m for m in epoch.members if file in self.files[m]}
                surplus -= {*self.placed(epoch, file)}
                if surplus:
                    yield from self.trim(number, epoch, file, surplus)

    def trim(self, number: int, epoch: Epoch, file: int, surplus: set[Member]) -> Steps:
        own = self.fresh()
        if self.broken != "notes nothing":
            for member in sorted(surplus):
                yield ""
                self.notes[member][own] = {file}
        yield ""
        others = [m for m in epoch.members if m not in surplus]
        others = self.without_note(others, file, own)
        yield ""
        there = [m for m in others if file in self.files[m]]
        needed = min(epoch.factor, len(epoch.members) - len(surplus))
        enough = len(there) >= max(needed, 1) or self.broken == "deletes before it looks"
        yield ""
        if enough and self.newest() == number:
            for member in sorted(surplus):
                yield "about to delete"
                if self.chance.random() < 0.2:  # its answer is lost, and it is done later
                    self.late.append((member, file))
                    raise Killed
                self.files[member].discard(file)
                self.trimmed += 1
        for member in sorted(surplus):
            yield ""
            self.notes[member].pop(own, None)

    def forget(self) -> Steps:
        while True:
            yield ""
            number = self.newest()
            epoch = self.epochs[number]
            if not epoch.left:
                continue
            old = self.chance.choice(sorted(epoch.left))
            whole = True
            for file in sorted(self.files[old]):
                yield ""
                others = self.without_note(epoch.members, file, -1)
                yield ""
                whole = whole and any(file in self.files[member] for member in others)
            yield ""
            if self.newest() != number or not (whole or self.broken == "forgets the last copy"):
                continue
            if self.propose(number, epoch._replace(left=epoch.left - {old})):
                yield ""
                self.files[old].clear()
                self.forgotten += 1

    # -- the run ---------------------------------------------------------------------------------

    def judge(self) -> None:
        epoch = self.epochs[-1]
        there = set().union(*(self.files[member] for member in (*epoch.members, *epoch.left)))
        if lost := self.acked - there:
            raise Lost(f"{sorted(lost)} in {epoch}")

    def run(self, steps: int = 1200) -> Model:
        kinds = (self.write, self.change, self.reassign, self.reassign, self.reassign, self.forget)
        running = [kind() for kind in kinds]
        weights = (2, 1, 4, 4, 4, 0.5)
        asleep = [0] * len(kinds)
        for step in range(steps):
            which = self.chance.choices(range(len(kinds)), weights)[0]
            if asleep[which] > step:
                continue
            if self.chance.random() < 0.003:
                running[which] = kinds[which]()
            try:
                if self.chance.random() < (0.4 if next(running[which]) else 0.02):
                    asleep[which] = step + self.chance.randrange(400)
            except Killed:
                running[which] = kinds[which]()
            except StopIteration:
                continue
            if self.late and self.chance.random() < 0.01:
                member, file = self.late.pop()
                self.files[member].discard(file)
            self.judge()
        return self
