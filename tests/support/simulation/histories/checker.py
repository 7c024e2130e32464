"""Checks a history by published definitions. Knows nothing of txnlog but what it promises.

The anomalies are those of Adya, Liskov and O'Neil ("Generalized Isolation Level Definitions", ICDE
2000) over list-append histories (Kingsbury and Alvaro, "Elle", VLDB 2020): each partition is a
list, a write appends to it, and where its values stand in the end is their version order. G0 (two
transactions whose records lie in one order here and in the other there) is ordinary, as in Kafka,
so edges between writes alone prove nothing; what counts is who has seen whom, and what was over
before something else began.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import pairwise

from tests.support.simulation.histories.history import Operation, Shown, Taken

COMMITTED = ("read_committed", "snapshot")


@dataclass(frozen=True)
class Anomaly:
    """Something that must not be; ``kind`` is one of the names in :data:`CHECKS`."""

    kind: str
    text: str


class History:
    """Operations, and what follows from the final reads: where each value stands, who committed."""

    def __init__(self, operations: Sequence[Operation], patience_ns: float = float("inf")) -> None:
        """``patience_ns`` is how long a transaction of unknown outcome may hold back others."""
        self.operations = operations
        self.patience_ns = patience_ns
        self.writer = {value: op for op in operations for _, value in op.writes}
        self.aborted = {v for op in operations if op.outcome == "aborted" for _, v in op.writes}
        self.home = {value: where for op in operations for where, value in op.writes}
        final = {op.level: op for op in operations if op.is_final and op.kind == "read"}
        self.placed = final["read_uncommitted"].shown
        self.committed = final["snapshot"].shown
        self.finally_ends = final["read_uncommitted"].ends
        self.offset = {value: offset for shown in self.placed.values() for offset, value in shown}
        self.visible = {value for shown in self.committed.values() for _, value in shown}
        self.final_offsets = {
            op.group: op.ends for op in operations if op.is_final and op.kind == "offsets"
        }

    def reads(self, *levels: str) -> Iterator[Operation]:
        """Reads at these levels that have ended; those at the end too."""
        return (
            op
            for op in self.operations
            if op.kind == "read" and op.returned is not None and op.level in levels
        )

    def has_committed(self, op: Operation) -> bool:
        """By what it was told, else by what there is in the end."""
        if op.outcome != "unknown":
            return op.outcome == "ok"
        if op.writes:
            return any(value in self.visible for _, value in op.writes)
        return False


def check(operations: Sequence[Operation], patience_ns: float = float("inf")) -> list[Anomaly]:
    """All anomalies of a history, at most a few of each kind."""
    history = History(operations, patience_ns)
    return [
        Anomaly(kind, text)
        for kind, finds in CHECKS.items()
        for text, _ in zip(finds(history), range(3), strict=False)
    ]


# -- values and offsets --------------------------------------------------------------------------


def garbage(history: History) -> Iterator[str]:
    """Shown or taken, and never written; or written to another partition."""
    for op, where, shown in _all_shown(history):
        for offset, value in shown:
            if history.home.get(value) != where:
                yield f"{op}: {where}@{offset} is {value}, of {history.home.get(value)}"


def doubled(history: History) -> Iterator[str]:
    """One value at two offsets of one read."""
    for op, where, shown in _all_shown(history):
        for value, count in Counter(value for _, value in shown).items():
            if count > 1:
                yield f"{op}: {where} shows {value} {count} times"


def changed(history: History) -> Iterator[str]:
    """A value that stands elsewhere in the end, or not at all."""
    for op, where, shown in _all_shown(history):
        for offset, value in shown:
            if history.offset.get(value) != offset:
                yield f"{op}: {where}@{offset} is {value}, in the end @{history.offset.get(value)}"


def disordered(history: History) -> Iterator[str]:
    """Offsets of one read that do not go up."""
    for op, where, shown in _all_shown(history):
        for (first, _), (second, value) in pairwise(shown):
            if second <= first:
                yield f"{op}: {where} shows {value} @{second} after @{first}"


def lost(history: History) -> Iterator[str]:
    """Acknowledged, and not there in the end."""
    for op in history.operations:
        for where, value in op.writes if op.outcome == "ok" else ():
            if value not in history.visible:
                yield f"{op}: {value} of {where} is lost"


def _all_shown(history: History) -> Iterator[tuple[Operation, str, Shown]]:
    for op in history.operations:
        for where, shown in op.shown.items():
            yield op, where, shown


# -- Adya's phenomena ----------------------------------------------------------------------------


def g1a(history: History) -> Iterator[str]:
    """Aborted reads: what was aborted is shown, at a level that must not, or is taken."""
    for op in history.reads(*COMMITTED):
        for shown in op.shown.values():
            for _, value in shown:
                if value in history.aborted:
                    yield f"{op} shows {value}, aborted"
    for op in history.operations:
        for where, taken in op.taken.items():
            for value in taken.values:
                if value not in history.visible:
                    yield f"{op} has taken {value} of {where}, which was not committed"


def g1b(history: History) -> Iterator[str]:
    """Intermediate reads: of what an operation has written to a partition, a part is shown.

    Where a read is not atomic, its end in a partition may lie between two writes of one
    transaction: another one is open there.
    """
    for op, seen, writer, missing in _partly_shown(history):
        there = {where for where, value in writer.writes if value in seen}
        for value, where in missing.items():
            below = history.offset.get(value, 0) < op.ends.get(where, 0)
            if below or (op.is_atomic and where in there):
                yield f"{op} shows {writer} without {value} in {where}"


def torn(history: History) -> Iterator[str]:
    """Fractured reads: a transaction is shown in one partition, and not in another."""
    for op, _, writer, missing in _partly_shown(history):
        if op.is_atomic:
            yield f"{op} shows {writer} without {', '.join(missing)}"


def _partly_shown(
    history: History,
) -> Iterator[tuple[Operation, AbstractSet[str], Operation, dict[str, str]]]:
    """Reads, their values, operations that they show in part, and what is missing of these.

    A partition that a read does not know yet, as it was added meanwhile, ends at 0 there.
    """
    for op in history.reads(*COMMITTED):
        seen = _values(op)
        for writer in _writers(history, seen):
            missing = {value: where for where, value in writer.writes if value not in seen}
            if missing:
                yield op, seen, writer, missing


def g1c(history: History) -> Iterator[str]:
    """Circular information flow: somebody has seen what could only come after himself.

    Edges go from who wrote to who has taken, and from what was over to what began after it.
    """
    for op in history.operations:
        for taken in op.taken.values():
            for value in taken.values:
                writer = history.writer.get(value)
                if writer is not None and writer.invoked > op.over:
                    yield f"{op} has taken {value} before {writer}"
    sees = {
        op.process + str(op.invoked): [
            history.writer[value].process + str(history.writer[value].invoked)
            for taken in op.taken.values()
            for value in taken.values
            if value in history.writer
        ]
        for op in history.operations
        if op.kind == "transaction"
    }
    for cycle in _cycles(sees):
        yield f"each has seen the one before it: {' '.join(cycle)}"


def _cycles(edges: dict[str, list[str]]) -> Iterator[list[str]]:
    """One cycle for each node from which a walk comes back to the walk's own path."""
    done: set[str] = set()
    for start in edges:
        path: list[str] = []
        walk = [iter([start])]
        while walk:
            node = next(walk[-1], None)
            if node is None:
                walk.pop()
                if path:
                    done.add(path.pop())
            elif node in path:
                yield path[path.index(node) :]
            elif node in edges and node not in done:
                path.append(node)
                walk.append(iter(edges[node]))


def g_single(history: History) -> Iterator[str]:
    """Read skew: an effect is shown, and its cause is not (one edge goes back, others forward).

    Causes of a transaction are those whose records it has taken, with the offsets in the same
    transaction; in a partition also whatever was over when it began. At level ``snapshot``, for one
    that says it is of one instant, whatever was over when something shown began, in all partitions
    (``read_committed`` may hold it back).
    """
    for op in history.reads(*COMMITTED):
        if op.consistency not in ("causal", "instant"):
            continue
        seen = _values(op)
        writers = _writers(history, seen)
        for writer in writers:
            for where, taken in writer.taken.items():
                for value in taken.values:
                    if value not in seen:
                        yield f"{op} shows {writer}, which has taken {value} of {where}, not shown"
        newest = max((writer.invoked for writer in writers), default=-1)
        for cause, values in _missing(history, op, seen):
            if op.level == "snapshot" and op.consistency == "instant" and cause.over < newest:
                yield f"{op} shows what began at {newest}, and not {cause}, over by then"
            for where, value in values:
                later = [
                    other
                    for _, other in op.shown.get(where, [])
                    if other in history.writer and history.writer[other].invoked > cause.over
                ]
                if later:
                    yield f"{op} shows {later[0]} of {where}, and not {value}, over by then"


def _missing(
    history: History, op: Operation, seen: AbstractSet[str]
) -> Iterator[tuple[Operation, list[tuple[str, str]]]]:
    """Committed operations that a read of everything does not show."""
    for cause in history.operations:
        values = [(where, value) for where, value in cause.writes if value not in seen]
        if values and history.has_committed(cause):
            yield cause, values


# -- real time -----------------------------------------------------------------------------------


def stale(history: History) -> Iterator[str]:
    """Not shown, though it was acknowledged before the read began.

    ``read_committed`` may hold it back for as long as a transaction is open.
    """
    spans = [
        (op.invoked, min(op.over, op.invoked + history.patience_ns))
        for op in history.operations
        if op.kind == "transaction"
    ]
    for op in history.reads("read_committed", "snapshot", "read_uncommitted"):
        if op.level == "read_committed" and any(
            invoked <= (op.returned or 0) and over >= op.invoked for invoked, over in spans
        ):
            continue
        seen = _values(op)
        for cause in history.operations:
            if cause.outcome == "ok" and cause.over < op.invoked:
                for where, value in cause.writes:
                    if value not in seen:
                        yield f"{op} does not show {value} of {where}, of {cause}"


def retracted(history: History) -> Iterator[str]:
    """What one snapshot has shown, a later one does not."""
    for level in ("snapshot", "read_uncommitted"):
        reads = sorted(history.reads(level), key=lambda op: op.over)
        seen: set[str] = set()
        ended: list[tuple[float, set[str]]] = []
        for op in reads:
            seen = seen | _values(op)
            ended.append((op.over, seen))
        for op in reads:
            before = bisect_left(ended, float(op.invoked), key=lambda of_one: of_one[0])
            gone = (ended[before - 1][1] if before else set()) - _values(op)
            if gone:
                yield f"{op} does not show {sorted(gone)[:3]}, which an earlier one had shown"


def reordered(history: History) -> Iterator[str]:
    """Of two operations one was over before the other began, and its records lie behind.

    What was aborted may still be placed by somebody who slept.
    """
    for where, shown in history.placed.items():
        newest, by = -1.0, ""
        for _, value in shown:
            writer = history.writer.get(value)
            if writer is None:
                continue
            if writer.outcome == "ok" and writer.over < newest:
                yield f"{where}: {value} of {writer} lies behind {by}, which began later"
            if writer.invoked > newest:
                newest, by = writer.invoked, value


# -- consumers -----------------------------------------------------------------------------------


def skipped(history: History) -> Iterator[str]:
    """A consumer has taken of a range something else than what is committed there."""
    offsets = {where: [at for at, _ in shown] for where, shown in history.committed.items()}
    for op in history.operations:
        for where, taken in op.taken.items():
            at = offsets.get(where, [])
            first, last = bisect_left(at, taken.start), bisect_left(at, taken.stop)
            there = [value for _, value in history.committed.get(where, [])[first:last]]
            if taken.values != there:
                yield f"{op} of {where} {taken.start} to {taken.stop}: {taken.values}, not {there}"


def not_once(history: History) -> Iterator[str]:
    """What the committed transactions of a group have taken overlaps, or leaves a gap."""
    moves: dict[tuple[str, str], list[tuple[Taken, Operation]]] = defaultdict(list)
    for op in history.operations:
        if op.kind == "transaction" and op.group and history.has_committed(op):
            for where, taken in op.taken.items():
                moves[op.group, where].append((taken, op))
    for (group, where), taken_by in moves.items():
        position = 0
        for taken, op in sorted(taken_by, key=lambda of_one: (of_one[0].start, of_one[0].stop)):
            if taken.start != position:
                yield f"{group} goes on in {where} at {taken.start} with {op}, was at {position}"
            position = taken.stop
        committed = history.final_offsets.get(group, {}).get(where)
        if committed != position:
            yield f"{group} has taken {where} up to {position}, and committed {committed}"


def unseen(history: History) -> Iterator[str]:
    """A group's offset has passed records that none of its members was given."""
    taken: dict[tuple[str, str], set[str]] = defaultdict(set)
    for op in history.operations:
        if op.kind == "poll" and op.group:
            for where, of_one in op.taken.items():
                taken[op.group, where] |= {*of_one.values}
    for group in {group for group, _ in taken}:
        for where, end in history.final_offsets.get(group, {}).items():
            there = {v for at, v in history.committed.get(where, []) if at < end}
            if missed := there - taken[group, where]:
                yield f"{group} has passed {sorted(missed)[:3]} of {where}, and nobody took them"


def endless(history: History) -> Iterator[str]:
    """In the end something committed is held back for ever."""
    for op in history.reads("read_committed"):
        if op.is_final and _values(op) != history.visible:
            yield f"{op} does not show {sorted(history.visible - _values(op))[:3]}"


def _values(op: Operation) -> set[str]:
    return {value for shown in op.shown.values() for _, value in shown}


def _writers(history: History, values: AbstractSet[str]) -> list[Operation]:
    found = {id(op): op for op in map(history.writer.get, values) if op is not None}
    return list(found.values())


CHECKS = {
    "garbage": garbage,
    "doubled": doubled,
    "changed": changed,
    "disordered": disordered,
    "lost": lost,
    "G1a": g1a,
    "G1b": g1b,
    "torn": torn,
    "G1c": g1c,
    "G-single": g_single,
    "stale": stale,
    "retracted": retracted,
    "reordered": reordered,
    "skipped": skipped,
    "not once": not_once,
    "unseen": unseen,
    "endless": endless,
}
