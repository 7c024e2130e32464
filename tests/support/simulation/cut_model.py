"""A random model of snapshots over several logs: when one is a state at an instant, or causal.

Writers put transactions and plain appends into topics of one or two partitions; some first read a
topic and commit the offsets they have read up to. Each ``yield`` is one request. A reader lists all
logs, looks undecided ids up, and lists again, in rounds (what the real thing keeps):
 1. Ids are looked up again until no lookup decides anything while another id stays open: then the
    outcomes of the listed entries are those of one moment, after all listings.
 2. If the next listing of every log finds nothing new, that moment is an instant of the store.
 3. If not, it is the first one of the next round. After the last round the snapshot is made of what
    was listed in it, and what is not whole there is hidden, with what is known to rest on it: the
    transactions that are new since two rounds have their groups' offsets looked up.
 4. A partition that was not listed ends at 0.

The judge knows the step at which everything happened: a snapshot that calls itself an instant is
compared with the store at every step since it began; one that calls itself causal has, of each
transaction, all that it had consumed, and in each partition all that was acknowledged before
anything shown was put. It shares no code with the library.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Iterable
from typing import NamedTuple, TypeAlias

Place: TypeAlias = tuple[str, int]
"""A partition: its log, and its number."""
Steps: TypeAlias = Generator[None, None, None]
TOPICS = ("t0", "t1", "t2")
LEVELS = ("read_committed", "snapshot")
ROUNDS = 3
BROKEN = (
    "ignores partitions that were added",
    "reads once",
    "calls it an instant whatever the second reading finds",
    "looks ids up once",
    "completes transactions from the second reading",
    "closes nothing",
    "looks up no offsets",
    "shows what lies behind what it hides",
    "never says that it is only atomic",
)


class Violation(AssertionError):
    """A promise was broken."""


class Entry(NamedTuple):
    """One entry of a log: the first offset in each of its partitions; None adds a partition."""

    unit: int | None
    offsets: dict[int, int]


class Unit:
    """A transaction, or one append without one."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.places: dict[Place, int] = {}
        """Its first offsets."""
        self.appends: list[tuple[Place, int, int]] = []
        """Its appends: where, at which offset, and when they were put."""
        self.needs: dict[Place, int] = {}
        """Up to which offsets its group has read, known with its offsets entry."""
        self.committed_at: int | None = None
        self.marked: set[tuple[str, int]] = set()
        self.ended = False


class Listed(NamedTuple):
    """What a reader knows after a round's lookups."""

    entries: dict[str, int]
    committed: set[int]
    undecided: set[int]


class Shown(NamedTuple):
    """A snapshot: its units, and where partitions end (at level ``snapshot`` nothing is meant)."""

    units: set[int]
    ends: dict[Place, int]
    consistency: str


class Model:
    """One run. ``broken`` names a rule that is left out, one of BROKEN."""

    def __init__(self, seed: int, broken: str = "") -> None:
        self.chance = random.Random(seed)
        self.broken = broken
        self.logs: dict[str, list[Entry]] = {name: [] for name in TOPICS}
        self.partitions = dict.fromkeys(TOPICS, 1)
        self.ends: dict[Place, int] = {(name, 0): 0 for name in TOPICS}
        self.units: list[Unit] = []
        self.step = 0
        self.history: list[dict[str, int]] = []
        """How many entries each log had after each step."""
        self.said: dict[tuple[str, str], int] = {}

    # -- writers ---------------------------------------------------------------------------------

    def new_unit(self) -> Unit:
        self.units.append(Unit(len(self.units)))
        return self.units[-1]

    def put(self, unit: Unit, topic: str, partitions: Iterable[int]) -> None:
        entry = Entry(unit.number, {p: self.ends[topic, p] for p in partitions})
        self.logs[topic].append(entry)
        for partition, offset in entry.offsets.items():
            where = topic, partition
            unit.places.setdefault(where, offset)
            unit.appends.append((where, offset, self.step))
            self.ends[where] += 1

    def some_partitions(self, topic: str) -> list[int]:
        count = self.partitions[topic]
        return self.chance.sample(range(count), self.chance.randint(1, count))

    def stable(self, topic: str, entries: int, step: int) -> dict[Place, int]:
        """The last stable offsets of a log's first entries, by what is decided at a step."""
        found = {(topic, 0): 0}
        for entry in self.logs[topic][:entries]:
            if entry.unit is None:
                found[topic, 1] = 0
            for partition in entry.offsets:
                found[topic, partition] += 1
        for entry in reversed(self.logs[topic][:entries]):
            if entry.unit is not None and not self.is_committed(entry.unit, step):
                found |= {(topic, p): offset for p, offset in entry.offsets.items()}
        return found

    def is_committed(self, unit: int, step: int) -> bool:
        at = self.units[unit].committed_at
        return at is not None and at <= step

    def writer(self) -> Steps:
        chance = self.chance
        for _ in range(chance.randint(2, 5)):
            kind = chance.random()
            if kind < 0.1:
                topic = chance.choice(TOPICS)
                yield
                if self.partitions[topic] == 1:
                    self.logs[topic].append(Entry(None, {}))
                    self.partitions[topic] = 2
                    self.ends[topic, 1] = 0
                continue
            unit = self.new_unit()
            if kind < 0.3:
                topic = chance.choice(TOPICS)
                yield
                self.put(unit, topic, self.some_partitions(topic))
                unit.committed_at = self.step
                unit.ended = True
                continue
            yield from self.transaction(unit)

    def transaction(self, unit: Unit) -> Steps:
        chance = self.chance
        outputs = [chance.choice(TOPICS) for _ in range(chance.randint(1, 3))]
        early = outputs.pop() if chance.random() < 0.3 else None
        if early:
            yield
            self.put(unit, early, self.some_partitions(early))
        source = chance.choice(TOPICS) if chance.random() < 0.6 else None
        if source:
            yield
            read = self.stable(source, len(self.logs[source]), self.step)
            unit.needs = {where: end for where, end in read.items() if end}
        for topic in outputs:
            yield
            self.put(unit, topic, self.some_partitions(topic))
        yield
        unit.committed_at = self.step
        for topic in TOPICS:
            for number, entry in enumerate(self.logs[topic]):
                if entry.unit == unit.number:
                    yield
                    unit.marked.add((topic, number))
        unit.ended = True

    # -- the reader ------------------------------------------------------------------------------

    def listing(self, known: dict[str, int], committed: set[int]) -> Steps:
        """List all logs, side by side: entries, and the outcomes that markers tell."""
        for topic in self.chance.sample(TOPICS, len(TOPICS)):
            yield
            known[topic] = len(self.logs[topic])
            for number, entry in enumerate(self.logs[topic]):
                if entry.unit is not None:
                    unit = self.units[entry.unit]
                    if (topic, number) in unit.marked or (unit.places and self.is_plain(unit)):
                        committed.add(entry.unit)

    @staticmethod
    def is_plain(unit: Unit) -> bool:
        """Whether it needs no decision."""
        return unit.ended and not unit.marked

    def settle(self, known: dict[str, int], committed: set[int]) -> Steps:
        """Rule 1."""
        while True:
            open_ids = self.units_in(known) - committed
            decided = False
            for number in self.chance.sample(sorted(open_ids), len(open_ids)):
                yield
                if self.units[number].committed_at is not None:
                    committed.add(number)
                    decided = True
            if not decided or not self.units_in(known) - committed:
                return
            if self.broken == "looks ids up once":
                return

    def units_in(self, known: dict[str, int]) -> set[int]:
        return {
            entry.unit
            for topic, count in known.items()
            for entry in self.logs[topic][:count]
            if entry.unit is not None
        }

    def reader(self, level: str) -> Steps:
        begun = self.step
        known: dict[str, int] = {}
        committed: set[int] = set()
        rounds: list[Listed] = []
        yield from self.listing(known, committed)
        still = False
        for _ in range(ROUNDS):
            yield from self.settle(known, committed)
            here = self.units_in(known)
            rounds.append(Listed(dict(known), committed & here, here - committed))
            if self.broken == "reads once":
                still = True
                break
            yield from self.listing(known, committed)
            still = known == rounds[-1].entries
            if self.broken == "calls it an instant whatever the second reading finds":
                still = True
            if still:
                break
        shown = self.cut(rounds, known, level, still)
        self.judge(shown, level, begun)

    def cut(self, rounds: list[Listed], known: dict[str, int], level: str, still: bool) -> Shown:
        last = rounds[-1]
        before = rounds[-2].committed if len(rounds) > 1 else set()
        longer = rounds[-3].committed if len(rounds) > 2 else set()
        if level == "snapshot":
            return self.whole(rounds, known, still, before, longer)
        ends: dict[Place, int] = {}
        for topic in TOPICS:
            count = last.entries[topic]
            ends |= self.by_outcome(topic, count, last.committed)
        cut = dict(ends)
        looked_up = last.committed - longer
        if self.broken != "reads once":
            self.shrink(cut, known, set() if still else looked_up)
        behind = {
            unit
            for unit in last.committed
            for where, at in self.parts(unit, last.entries)
            if cut[where] <= at < ends[where]
        }
        if still:
            consistency = "instant" if not behind else "atomic"
        else:
            consistency = "causal" if not behind & before and len(rounds) == ROUNDS else "atomic"
            if self.broken == "never says that it is only atomic":
                consistency = "causal"
        units = {
            u for u in last.committed if all(o < cut.get(w, 0) for w, o in self.parts(u, known))
        }
        torn = {
            u for u in last.committed if any(o < cut.get(w, 0) for w, o in self.parts(u, known))
        }
        return Shown(torn | units, cut, consistency)

    def by_outcome(self, topic: str, count: int, committed: set[int]) -> dict[Place, int]:
        found = {(topic, 0): 0}
        for entry in self.logs[topic][:count]:
            if entry.unit is None:
                found[topic, 1] = 0
            for partition in entry.offsets:
                found[topic, partition] += 1
        for entry in reversed(self.logs[topic][:count]):
            if entry.unit is not None and entry.unit not in committed:
                found |= {(topic, p): offset for p, offset in entry.offsets.items()}
        return found

    def parts(self, unit: int, known: dict[str, int]) -> list[tuple[Place, int]]:
        """Where a unit lies, as far as entries are known."""
        return [
            ((topic, partition), offset)
            for topic, count in known.items()
            for entry in self.logs[topic][:count]
            if entry.unit == unit
            for partition, offset in entry.offsets.items()
        ]

    def shrink(self, cut: dict[Place, int], known: dict[str, int], looked_up: set[int]) -> None:
        """Hide what lies beyond an end, or needs what does, and cut before it."""
        hidden: set[int] = set()
        ignores = self.broken == "ignores partitions that were added"
        closes = self.broken not in ("closes nothing", "looks up no offsets")
        units = sorted(self.units_in(known))
        places = {unit: self.parts(unit, known) for unit in units}
        changed = True
        while changed:
            changed = False
            for unit in units:
                if unit in hidden:
                    continue
                needs = self.units[unit].needs if closes and unit in looked_up else {}
                if any(
                    offset >= cut.get(where, 1 << 30 if ignores else 0)
                    for where, offset in places[unit]
                ) or any(end > cut.get(where, 0) for where, end in needs.items()):
                    hidden.add(unit)
                    changed = True
                    for where, offset in places[unit]:
                        if where in cut:
                            cut[where] = min(cut[where], offset)

    def whole(
        self,
        rounds: list[Listed],
        known: dict[str, int],
        still: bool,
        before: set[int],
        longer: set[int],
    ) -> Shown:
        """Level ``snapshot``: what is committed and whole in the last round, less what rests on it.

        What is not whole was committed after that round began, so what the round before knew as
        committed rests on none of it.
        """
        last = rounds[-1]
        if self.broken in ("completes transactions from the second reading", "reads once"):
            consistency = "instant" if still else "causal"
            return Shown(set(last.committed), {}, consistency)
        if still:
            return Shown(set(last.committed), {}, "instant")
        later = {unit for unit in self.units_in(known) if self.grew(unit, last, known)}
        hidden = later & last.committed
        consistency = "causal" if len(rounds) == ROUNDS else "atomic"
        looked_up = last.committed - longer
        changed = self.broken != "closes nothing"
        certain = set(hidden)
        while changed:
            changed = False
            for unit in sorted(last.committed - hidden):
                lacks = self.lacks_cause(unit, last, hidden) and unit in looked_up
                if self.broken == "looks up no offsets":
                    lacks = False
                behind = self.lies_behind(unit, rounds, hidden)
                if self.broken == "shows what lies behind what it hides":
                    behind = False
                if not lacks and not behind:
                    continue
                if unit not in before:
                    hidden.add(unit)
                    changed = True
                elif lacks or self.lies_behind(unit, rounds, hidden - certain):
                    consistency = "atomic"
        if self.broken == "never says that it is only atomic":
            consistency = "causal"
        return Shown(last.committed - hidden, {}, consistency)

    def grew(self, unit: int, last: Listed, known: dict[str, int]) -> bool:
        return len(self.parts(unit, known)) > len(self.parts(unit, last.entries))

    def lacks_cause(self, unit: int, last: Listed, hidden: set[int]) -> bool:
        for where, end in self.units[unit].needs.items():
            listed = self.by_outcome(where[0], last.entries[where[0]], set(range(len(self.units))))
            if end > listed.get(where, 0):
                return True
            for other in hidden:
                if any(w == where and at < end for w, at in self.parts(other, last.entries)):
                    return True
        return False

    def lies_behind(self, unit: int, rounds: list[Listed], hidden: set[int]) -> bool:
        """Whether an append of this round lies behind a hidden one in its partition."""
        last, earlier = rounds[-1], rounds[-2].entries if len(rounds) > 1 else {}
        for topic, count in last.entries.items():
            for entry in self.logs[topic][earlier.get(topic, 0) : count]:
                if entry.unit != unit:
                    continue
                for partition, offset in entry.offsets.items():
                    for other in hidden:
                        for where, at in self.parts(other, last.entries):
                            if where == (topic, partition) and at < offset:
                                return True
        return False

    # -- the judge -------------------------------------------------------------------------------

    def judge(self, shown: Shown, level: str, begun: int) -> None:
        self.said[level, shown.consistency] = self.said.get((level, shown.consistency), 0) + 1
        if level == "read_committed":
            self.judge_prefix(shown, begun)
        older = {unit.number for unit in self.units if self.is_committed(unit.number, begun)}
        if level == "snapshot" and not older <= shown.units:
            raise Violation("what was acknowledged before it is missing")
        if shown.consistency == "instant" and not any(
            self.is_state_at(step, shown, level) for step in range(begun, self.step)
        ):
            raise Violation("it was never so")
        if shown.consistency in ("instant", "causal"):
            for number in shown.units:
                self.judge_causes(self.units[number], shown)

    def judge_prefix(self, shown: Shown, begun: int) -> None:
        for unit in self.units:
            sides = {at < shown.ends.get(where, 0) for where, at in unit.places.items()}
            if len(sides) > 1:
                raise Violation("it is torn")
        then = self.cut_at(begun)
        if any(shown.ends.get(where, 0) < end for where, end in then.items()):
            raise Violation("what was shown before it is missing")

    def judge_causes(self, unit: Unit, shown: Shown) -> None:
        for other in self.units:
            if other.number in shown.units or other.committed_at is None:
                continue
            if any(at < unit.needs.get(where, 0) for where, at in other.places.items()):
                raise Violation("something consumed is missing")
            if any(
                other.places.get(where, at) < at and other.committed_at < put_at
                for where, at, put_at in unit.appends
            ):
                raise Violation("something acknowledged earlier is missing before it")

    def is_state_at(self, step: int, shown: Shown, level: str) -> bool:
        if level == "snapshot":
            return shown.units == {
                unit.number for unit in self.units if self.is_committed(unit.number, step)
            }
        stable = self.stable_at(step)
        return shown.ends == stable or (
            {w: e for w, e in shown.ends.items() if e} == {w: e for w, e in stable.items() if e}
        )

    def stable_at(self, step: int) -> dict[Place, int]:
        counts = self.history[step]
        found: dict[Place, int] = {}
        for topic in TOPICS:
            found |= self.stable(topic, counts[topic], step)
        return found

    def cut_at(self, step: int) -> dict[Place, int]:
        """The consistent cut of the store as it was after a step."""
        cut = self.stable_at(step)
        counts = self.history[step]
        broken, self.broken = self.broken, ""
        self.shrink(cut, counts, set())
        self.broken = broken
        return cut

    # -- running ---------------------------------------------------------------------------------

    def run(self) -> None:
        chance = self.chance
        active: list[Steps] = [self.writer() for _ in range(chance.randint(2, 5))]
        active += [self.reader(level) for level in LEVELS for _ in range(2)]
        weights = [chance.choice([1, 1, 3]) for _ in active]
        self.history.append(dict.fromkeys(TOPICS, 0))
        running = list(range(len(active)))
        while running:
            self.step += 1
            at = chance.choices(running, [weights[n] for n in running])[0]
            try:
                next(active[at])
            except StopIteration:
                running.remove(at)
            self.history.append({topic: len(log) for topic, log in self.logs.items()})
