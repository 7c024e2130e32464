"""Histories made up without any log: a clean one, and each anomaly planted into it.

The clean one is drawn by a seed: everything takes effect at one instant of a list per partition,
and is noted with times around that instant, so operations overlap as those of processes do.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from itertools import count

from tests.support.simulation.histories.history import Operation, Shown, Taken

PARTITIONS = ("a:0", "a:1", "b:0", "c:0")
SOURCE, TARGET = "a:0", "c:0"
GROUP = "copy"


class _Script:
    """Partitions as lists, and what is open, at one instant after the other."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.operations: list[Operation] = []
        self.at = 1_000_000
        self.names = count()
        self.log: dict[str, list[tuple[str, Operation]]] = {where: [] for where in PARTITIONS}
        self.undecided: list[Operation] = []
        self.position = 0
        """How far the group has come in its source."""

    def begin(self, kind: str, **what: object) -> Operation:
        self.at += 100
        op = Operation(f"p{next(self.names)}", kind, self.at - self.chance.randrange(250))
        for name, value in what.items():
            setattr(op, name, value)
        self.operations.append(op)
        return op

    def end(self, op: Operation, outcome: str = "ok") -> None:
        self.at += 100
        op.returned = self.at + self.chance.randrange(250)
        op.outcome = outcome

    def place(self, op: Operation, where: str) -> None:
        self.at += 100
        value = f"{op.process}#{len(op.writes)}"
        op.writes.append((where, value))
        self.log[where].append((value, op))

    def visible(self, op: Operation) -> bool:
        return op not in self.undecided and op.outcome != "aborted"

    def stable(self, where: str) -> Shown:
        """What ``read_committed`` shows of a partition."""
        shown: Shown = []
        for offset, (value, op) in enumerate(self.log[where]):
            if op in self.undecided:
                break
            if self.visible(op):
                shown.append((offset, value))
        return shown

    def stable_end(self, where: str) -> int:
        open_ones = (n for n, (_, op) in enumerate(self.log[where]) if op in self.undecided)
        return next(open_ones, len(self.log[where]))

    # -- operations ------------------------------------------------------------------------------

    def append(self) -> None:
        op = self.begin("append")
        for where in self.chance.sample(PARTITIONS, self.chance.choice([1, 1, 2])):
            self.place(op, where)
        self.end(op)

    def transact(self) -> None:
        """Place something of a transaction, or decide it."""
        if self.undecided and self.chance.random() < 0.5:
            op = self.undecided[-1]
            if len(op.writes) < 4 and self.chance.random() < 0.6:
                self.place(op, self.chance.choice(PARTITIONS))
                return
            self.undecided.remove(op)
            self.end(op, self.chance.choice(["ok", "ok", "ok", "aborted"]))
        elif len(self.undecided) < 2:
            op = self.begin("transaction")
            self.undecided.append(op)
            for where in self.chance.sample(PARTITIONS, 2):
                self.place(op, where)

    def copy(self) -> None:
        stop = self.stable_end(SOURCE)
        start = self.position
        values = [value for offset, value in self.stable(SOURCE) if offset >= start]
        if not values:
            return
        self.position = stop
        taken = {SOURCE: Taken(start, stop, values)}
        op = self.begin("transaction", group=GROUP, taken=taken)
        for _ in values:
            self.place(op, TARGET)
        self.end(op)

    def poll(self) -> None:
        """By a process that begins at the beginning."""
        where = self.chance.choice(PARTITIONS)
        stop = self.stable_end(where)
        taken = {where: Taken(0, stop, [value for _, value in self.stable(where)])}
        self.end(self.begin("poll", taken=taken))

    def read(self, level: str, *, is_final: bool = False) -> None:
        if level == "read_committed":
            shown = {where: self.stable(where) for where in PARTITIONS}
            ends = {where: self.stable_end(where) for where in PARTITIONS}
        else:
            shown = {
                where: [
                    (offset, value)
                    for offset, (value, op) in enumerate(self.log[where])
                    if level == "read_uncommitted" or self.visible(op)
                ]
                for where in PARTITIONS
            }
            ends = {where: len(log) for where, log in self.log.items()}
        whole = level == "snapshot" or (level == "read_committed" and not self.undecided)
        op = self.begin("read", level=level, shown=shown, ends=ends)
        op.consistency = "instant" if whole else "none"
        op.is_final = is_final
        self.end(op)


@cache
def clean_history(seed: int, steps: int = 250) -> list[Operation]:
    """Nothing is wrong with it. It is the same object each time: see :func:`planted`."""
    script = _Script(seed)
    script.append()
    does = [script.append, script.transact, script.transact, script.copy, script.poll]
    for _ in range(steps):
        if script.chance.random() < 0.2:
            levels = ["snapshot", "snapshot", "read_committed", "read_uncommitted"]
            script.read(script.chance.choice(levels))
        else:
            script.chance.choice(does)()
    for op in [*script.undecided]:
        script.undecided.remove(op)
        script.end(op)
    script.copy()
    script.at += 10_000
    for level in ("read_uncommitted", "snapshot", "read_committed"):
        script.read(level, is_final=True)
    ends = {SOURCE: script.position}
    script.end(script.begin("offsets", group=GROUP, ends=ends, is_final=True))
    return script.operations


# -- anomalies -----------------------------------------------------------------------------------

Plant = Callable[[list[Operation]], None]


def _reads(history: list[Operation], level: str) -> list[Operation]:
    return [op for op in history if op.kind == "read" and op.level == level and not op.is_final]


def _forget(history: list[Operation], value: str) -> None:
    """Nobody has ever seen it."""
    for op in history:
        for where in op.shown:
            op.shown[where] = [one for one in op.shown[where] if one[1] != value]
        for taken in op.taken.values():
            taken.values = [one for one in taken.values if one != value]


def _shown_twice(history: list[Operation]) -> tuple[Operation, Operation]:
    """A transaction with records in two partitions, and a snapshot that shows it."""
    return next(
        (writer, op)
        for op in reversed(_reads(history, "snapshot"))
        for writer in history
        if writer.kind == "transaction"
        and not writer.taken
        and len({where for where, _ in writer.writes}) > 1
        and writer.writes[0][1] in {value for _, value in op.shown[writer.writes[0][0]]}
    )


def _hide(op: Operation, where: str, value: str) -> None:
    op.shown[where] = [one for one in op.shown[where] if one[1] != value]


def lose(history: list[Operation]) -> None:
    value = next(op for op in history if op.kind == "append").writes[0][1]
    _forget(history, value)


def double(history: list[Operation]) -> None:
    final = next(op for op in history if op.is_final)
    shown = final.shown[TARGET]
    shown.append((final.ends[TARGET], shown[0][1]))


def invent(history: list[Operation]) -> None:
    op = _reads(history, "snapshot")[-1]
    op.shown[TARGET].append((op.ends[TARGET], "nobody's"))


def move(history: list[Operation]) -> None:
    op = _reads(history, "snapshot")[-1]
    (_, value), *others = op.shown[SOURCE]
    op.shown[SOURCE] = [*others, (op.ends[SOURCE], value)]


def turn_round(history: list[Operation]) -> None:
    _reads(history, "read_uncommitted")[-1].shown[SOURCE].reverse()


def show_aborted(history: list[Operation]) -> None:
    op = next(op for op in history if op.outcome == "aborted")
    where, value = op.writes[0]
    offsets = {v: n for final in history if final.is_final for n, v in final.shown.get(where, [])}
    read = _reads(history, "snapshot")[-1]
    read.shown[where] = sorted([*read.shown[where], (offsets[value], value)])


def take_aborted(history: list[Operation]) -> None:
    value = next(op for op in history if op.outcome == "aborted").writes[0][1]
    next(op for op in history if op.kind == "poll").taken[PARTITIONS[0]] = Taken(0, 1, [value])


def show_half_of_a_partition(history: list[Operation]) -> None:
    for read in reversed(_reads(history, "snapshot")):
        for op in history:
            places = [where for where, _ in op.writes]
            if op.kind == "transaction" and len(places) > len({*places}):
                where, value = next(w for w in op.writes if places.count(w[0]) > 1)
                if value in {shown for _, shown in read.shown[where]}:
                    _hide(read, where, value)
                    return
    raise AssertionError("no transaction has two records in one partition")


def show_half(history: list[Operation]) -> None:
    writer, read = _shown_twice(history)
    hidden = writer.writes[0][0]
    for where, value in writer.writes:
        if where == hidden:
            _hide(read, where, value)


def leave_out_an_added_partition(history: list[Operation]) -> None:
    """As if the read did not know of the partition."""
    writer, read = _shown_twice(history)
    del read.shown[writer.writes[0][0]], read.ends[writer.writes[0][0]]


def see_the_future(history: list[Operation]) -> None:
    copies = [op for op in history if op.group and op.kind == "transaction"]
    copies[0].taken[SOURCE].values.append(copies[-1].writes[0][1])


def see_each_other(history: list[Operation]) -> None:
    copies = [op for op in history if op.group and op.kind == "transaction"]
    first, second = copies[0], copies[1]
    first.returned, second.invoked = second.returned, first.invoked
    first.taken[TARGET] = Taken(0, 0, [second.writes[0][1]])
    second.taken[TARGET] = Taken(0, 0, [first.writes[0][1]])


def show_an_effect_alone(history: list[Operation]) -> None:
    """A copy without its original, in a snapshot that says that it is of no single instant."""
    read = next(op for op in reversed(_reads(history, "snapshot")) if op.shown[TARGET])
    read.consistency = "causal"
    shown = {value for _, value in read.shown[TARGET]}
    copy = next(op for op in history if op.taken and op.writes and op.writes[0][1] in shown)
    _hide(read, SOURCE, copy.taken[SOURCE].values[0])


def show_what_began_later(history: list[Operation]) -> None:
    """At one instant, the later of two without the earlier, in different partitions."""
    read = _reads(history, "snapshot")[-1]
    read.invoked = 0  # it does not tell by itself what it must show
    early = next(op for op in history if op.kind == "append" and op.over < 1_010_000)
    for where, value in early.writes:
        _hide(read, where, value)
        later = (o for o, v in read.shown[where] if v)
        read.shown[where] = [one for one in read.shown[where] if one[0] not in {*later}]


def skip_within(history: list[Operation]) -> None:
    """Something acknowledged left out behind something that began later, in one partition."""
    read = _reads(history, "snapshot")[-1]
    read.invoked, read.consistency = 0, "causal"
    early = next(op for op in history if op.kind == "append" and op.over < 1_010_000)
    _hide(read, *early.writes[0])


def read_the_past(history: list[Operation]) -> None:
    reads = _reads(history, "snapshot")
    reads[-1].shown, reads[-1].ends = reads[0].shown, reads[0].ends


def take_back(history: list[Operation]) -> None:
    """What one has shown of an operation of unknown outcome, the next does not."""
    *reads, second = _reads(history, "snapshot")
    first = next(op for op in reversed(reads) if op.over < second.invoked)
    where, (_, value) = next((where, shown[-1]) for where, shown in first.shown.items() if shown)
    for op in history:
        if (where, value) in op.writes:
            op.outcome = "unknown"
    _hide(second, where, value)


def exchange(history: list[Operation]) -> None:
    """Two appends of one partition, far apart in time, stand in the wrong order everywhere."""
    found = [v for op in history if op.kind == "append" for w, v in op.writes if w == SOURCE]
    first, last = found[0], found[-1]
    for op in history:
        op.shown = {
            where: [(n, {first: last, last: first}.get(v, v)) for n, v in shown]
            for where, shown in op.shown.items()
        }


def skip(history: list[Operation]) -> None:
    poll = next(op for op in history if op.kind == "poll" and len(_only(op).values) > 2)
    del _only(poll).values[1]


def take_twice(history: list[Operation]) -> None:
    copies = [op for op in history if op.group and op.kind == "transaction"]
    copies[1].taken[SOURCE].start = copies[0].taken[SOURCE].start


def leave_a_gap(history: list[Operation]) -> None:
    next(op for op in history if op.group and op.kind == "transaction").outcome = "aborted"


def lose_an_offset(history: list[Operation]) -> None:
    next(op for op in history if op.kind == "offsets").ends[SOURCE] -= 1


def pass_unseen(history: list[Operation]) -> None:
    """A group that polls has committed more than it was given."""
    taken = {SOURCE: Taken(0, 0, [])}
    history.append(Operation("m", "poll", 0, 1, "ok", group="members", taken=taken))
    history.append(
        Operation("m", "offsets", 2, 3, "ok", group="members", ends={SOURCE: 2}, is_final=True)
    )


def hold_back(history: list[Operation]) -> None:
    final = next(op for op in history if op.is_final and op.level == "read_committed")
    final.shown[SOURCE].pop()


def _only(op: Operation) -> Taken:
    (taken,) = op.taken.values()
    return taken


PLANTS: dict[str, list[Plant]] = {
    "garbage": [invent],
    "doubled": [double],
    "changed": [move],
    "disordered": [turn_round],
    "lost": [lose],
    "G1a": [show_aborted, take_aborted],
    "G1b": [show_half_of_a_partition],
    "torn": [show_half, leave_out_an_added_partition],
    "G1c": [see_the_future, see_each_other],
    "G-single": [show_an_effect_alone, show_what_began_later, skip_within],
    "stale": [read_the_past],
    "retracted": [take_back],
    "reordered": [exchange],
    "skipped": [skip],
    "not once": [take_twice, leave_a_gap, lose_an_offset],
    "unseen": [pass_unseen],
    "endless": [hold_back],
}
"""By kind of anomaly, ways to plant it."""


def planted(history: list[Operation], plant: Plant) -> list[Operation]:
    """A copy of the history in which something is wrong."""
    changed = deepcopy(history)
    plant(changed)
    return changed
