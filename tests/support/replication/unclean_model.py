"""A random model of unclean elections where data is at some of the members only.

Records are in files, which entries of a log place, merge into others and so let go of. Every member
in sync has the whole log; files are at some, are moved, and deleted by whoever may sleep before he
does. Then all who are in sync are gone, and one that is out leads with the log that it had. What it
announces is all that may be lost. It shares no code with the library.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterable
from typing import NamedTuple, TypeAlias

Member: TypeAlias = tuple[str, int]
Steps: TypeAlias = Generator[str]
ROOTS = "abcd"

BROKEN = (
    "announces epochs alone",
    "counts what is noted",
    "counts who was out later",
    "counts who does not answer",
)


class Lost(AssertionError):
    """A record that was acknowledged is nowhere, and no election has said so."""


class Entry(NamedTuple):
    """Places a file with these records, in place of others."""

    file: int
    records: frozenset[int]
    merged: frozenset[int] = frozenset()


class Epoch(NamedTuple):
    """The in-sync set, former members and their last epochs, and the placement's inputs."""

    members: tuple[Member, ...]
    left: dict[Member, int]
    factor: int
    turn: int


def live(log: Iterable[Entry]) -> dict[int, frozenset[int]]:
    """The files that a log leads to, with their records."""
    found: dict[int, frozenset[int]] = {}
    for entry in log:
        for file in entry.merged:
            found.pop(file, None)
        found[entry.file] = entry.records
    return found


class Model:
    """One run. ``broken`` names a rule that is left out, one of BROKEN."""

    def __init__(self, seed: int, broken: str = "") -> None:
        self.chance = random.Random(seed)
        self.broken = broken
        first = tuple((root, 0) for root in ROOTS)
        self.files: dict[Member, set[int]] = {member: set() for member in first}
        self.logs: dict[Member, tuple[Entry, ...]] = dict.fromkeys(first, ())
        self.notes: dict[Member, dict[int, set[int]]] = {member: {} for member in first}
        self.epochs = [Epoch(first, {}, self.chance.choice([1, 2]), 0)]
        self.acked: dict[int, int] = {}
        """By record the epoch that it was acknowledged under; what was announced is not here."""
        self.numbers = 0
        self.elections = 0
        self.announced = 0
        self.kept = 0

    # -- what all agree on -----------------------------------------------------------------------

    def newest(self) -> int:
        return len(self.epochs) - 1

    def propose(self, known: int, epoch: Epoch) -> bool:
        if self.newest() != known:
            return False
        self.epochs.append(epoch)
        return True

    def fresh(self) -> int:
        self.numbers += 1
        return self.numbers

    def placed(
        self, epoch: Epoch, file: int, doomed: frozenset[Member] = frozenset()
    ) -> list[Member]:
        turn = (file + epoch.turn) % len(ROOTS)
        ring = sorted(epoch.members, key=lambda m: (ROOTS.index(m[0]) - turn) % len(ROOTS))
        return [member for member in ring if member not in doomed][: epoch.factor]

    def noted(self, member: Member, file: int, *, but: int = -1) -> bool:
        return any(file in some for whose, some in self.notes[member].items() if whose != but)

    def append(self, number: int, entry: Entry) -> bool:
        """An entry at every member in sync, whole or not at all: that is another model's."""
        if self.newest() != number:
            return False
        members = self.epochs[number].members
        if not entry.merged <= {*live(self.logs[members[0]])}:
            return False  # somebody else has merged them
        for member in members:
            self.logs[member] += (entry,)
        return True

    # -- processes -------------------------------------------------------------------------------

    def put(self, epoch: Epoch, file: int) -> Steps:
        for member in self.placed(epoch, file):
            yield ""
            self.files[member].add(file)

    def write(self) -> Steps:
        while True:
            yield ""
            number, file, record = self.newest(), self.fresh(), self.fresh()
            yield from self.put(self.epochs[number], file)
            yield ""
            if self.append(number, Entry(file, frozenset({record}))):
                self.acked[record] = number

    def merge(self) -> Steps:
        while True:
            yield ""
            number = self.newest()
            epoch = self.epochs[number]
            there = live(self.logs[epoch.members[0]])
            if len(there) < 2:
                continue
            merged = frozenset(self.chance.sample(sorted(there), 2))
            if not all(any(f in self.files[m] for m in epoch.members) for f in merged):
                continue  # it cannot be read
            file = self.fresh()
            yield from self.put(epoch, file)
            yield ""
            self.append(number, Entry(file, frozenset().union(*(there[f] for f in merged)), merged))

    def vacuum(self) -> Steps:
        while True:
            yield ""
            epoch = self.epochs[self.newest()]
            log = self.logs[epoch.members[0]]
            doomed = {entry.file for entry in log} - {*live(log)}
            for member in epoch.members:
                yield "about to delete"
                self.files[member] -= doomed

    def reassign(self) -> Steps:
        while True:
            yield ""
            number = self.newest()
            epoch = self.epochs[number]
            known = (*epoch.members, *epoch.left)
            for file in sorted(set().union(*(self.files[m] for m in known))):
                yield ""
                doomed = frozenset(m for m in epoch.members if self.noted(m, file))
                for member in self.placed(epoch, file, doomed):
                    yield ""
                    if any(file in self.files[m] for m in known):
                        self.files[member].add(file)
                surplus = {m for m in epoch.members if file in self.files[m]}
                surplus -= {*self.placed(epoch, file)}
                if surplus:
                    yield from self.trim(number, epoch, file, surplus)

    def trim(self, number: int, epoch: Epoch, file: int, surplus: set[Member]) -> Steps:
        own = self.fresh()
        for member in sorted(surplus):
            yield ""
            self.notes[member][own] = {file}
        yield ""
        others = [m for m in epoch.members if m not in surplus]
        others = [m for m in others if not self.noted(m, file, but=own)]
        yield ""
        there = [m for m in others if file in self.files[m]]
        enough = len(there) >= max(min(epoch.factor, len(epoch.members) - len(surplus)), 1)
        yield ""
        if enough and self.newest() == number:
            for member in sorted(surplus):
                yield "about to delete"
                self.files[member].discard(file)
        for member in sorted(surplus):
            yield ""
            self.notes[member].pop(own, None)

    def change(self) -> Steps:
        while True:
            yield ""
            number = self.newest()
            epoch = self.epochs[number]
            what = self.chance.random()
            if what < 0.3:
                turn, factor = self.chance.randrange(len(ROOTS)), self.chance.choice([1, 1, 2])
                self.propose(number, epoch._replace(turn=turn, factor=factor))
            elif what < 0.7 and len(epoch.members) > 1:
                gone = self.chance.choice(epoch.members)
                rest = tuple(member for member in epoch.members if member != gone)
                left = {**epoch.left, gone: number}
                self.propose(number, epoch._replace(members=rest, left=left))
            elif what < 0.85:
                yield from self.come_back(number, epoch)
            elif epoch.left:
                yield from self.elect(number, epoch)

    def come_back(self, number: int, epoch: Epoch) -> Steps:
        away = sorted(set(ROOTS) - {root for root, _ in epoch.members})
        if not away:
            return
        root = self.chance.choice(away)
        member = root, max(number for name, number in self.files if name == root) + 1
        self.files[member], self.notes[member] = set(), {}
        after = epoch._replace(members=(*epoch.members, member))
        for file in sorted(set().union(*(self.files[one] for one in epoch.members))):
            yield ""
            if member in self.placed(after, file):
                self.files[member].add(file)
        self.logs[member] = self.logs[epoch.members[0]]
        if not self.propose(number, after):
            self.logs[member] = ()

    # -- the election ----------------------------------------------------------------------------

    def elect(self, number: int, epoch: Epoch) -> Steps:
        """All in sync are gone, and perhaps others; one that is out leads."""
        leader = self.chance.choice(sorted(epoch.left))
        gone = {root for root, _ in epoch.members} - {leader[0]}
        gone |= {root for root in ROOTS if root != leader[0] and self.chance.random() < 0.3}
        if any(root == leader[0] for root, _ in epoch.members):
            return  # its root is in sync as another incarnation, and answers
        named = live(self.logs[leader])
        sure: set[int] = set()
        for member in (leader, *sorted(epoch.left)):
            yield ""
            if self.counts(epoch, leader, member, gone):
                for file in self.files[member]:
                    if self.broken == "counts what is noted" or not self.noted(member, file):
                        sure.add(file)
        announced = frozenset().union(*(named[file] for file in named if file not in sure))
        yield ""
        left = {m: at for m, at in epoch.left.items() if m != leader}
        left |= dict.fromkeys(epoch.members, number)
        if not self.propose(number, epoch._replace(members=(leader,), left=left)):
            return
        since = epoch.left[leader] + 1
        for member in self.files:
            if member[0] in gone and self.chance.random() < 0.7:
                self.files[member].clear()  # its disk is lost for good
        if self.broken == "announces epochs alone":
            announced = frozenset()
        kept = {r: at for r, at in self.acked.items() if at < since and r not in announced}
        self.announced += len(self.acked) - len(kept)
        self.kept += len(kept)
        self.acked = kept
        self.elections += 1

    def counts(self, epoch: Epoch, leader: Member, member: Member, gone: set[str]) -> bool:
        """Whether what a member has will be there, as far as its log goes."""
        if member[0] in gone and self.broken != "counts who does not answer":
            return False
        # Who was in sync for longer has been told of deletions that the leader knows nothing of.
        is_later = epoch.left[member] > epoch.left[leader]
        return not is_later or self.broken == "counts who was out later"

    # -- the run ---------------------------------------------------------------------------------

    def judge(self) -> None:
        epoch = self.epochs[-1]
        there = set().union(*(self.files[member] for member in (*epoch.members, *epoch.left)))
        for member in epoch.members:
            found = live(self.logs[member])
            readable = frozenset().union(*(found[file] for file in found if file in there))
            if lost := {*self.acked} - readable:
                raise Lost(f"{sorted(lost)} at {member} in epoch {len(self.epochs) - 1}: {epoch}")

    def run(self, steps: int = 900) -> Model:
        kinds: tuple[Callable[[], Steps], ...] = (
            self.write,
            self.merge,
            self.vacuum,
            self.vacuum,
            self.reassign,
            self.reassign,
            self.change,
        )
        weights = (3, 1.5, 3, 3, 8, 8, 2)
        running = [kind() for kind in kinds]
        asleep = [0] * len(kinds)
        for step in range(steps):
            which = self.chance.choices(range(len(kinds)), weights)[0]
            if asleep[which] > step:
                continue
            if self.chance.random() < 0.003:
                running[which] = kinds[which]()
            if next(running[which]):
                if self.chance.random() < 0.5:
                    asleep[which] = step + self.chance.randrange(500)
            elif self.chance.random() < 0.01:
                asleep[which] = step + self.chance.randrange(50)
            self.judge()
        return self
