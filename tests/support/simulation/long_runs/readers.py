"""Processes of a long run that read, and the last reader of all: the judge sees all views."""

from __future__ import annotations

from tests.support.simulation.long_runs.judge import Place, Violation
from tests.support.simulation.long_runs.world import (
    OUTPUTS,
    PARTITIONS,
    TIMEOUT_MS,
    World,
    survived,
)
from txnlog.errors import ConcurrentTransactions
from txnlog.log.settlement import CLOCK_MARGIN_MS
from txnlog.names import TopicPartition
from txnlog.store import Store
from txnlog.testing import Process


class Reader:
    """Reads topics bit by bit: what was settled once is not read again, mostly."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[Place, list[tuple[int, str]]] = {}
        self._read_to: dict[Place, int] = {}

    def view(
        self, topics: list[str], *, afresh: bool
    ) -> tuple[dict[Place, list[tuple[int, str]]], bool]:
        """All that a snapshot of these topics shows, and whether it promises to be atomic."""
        snapshot = self._store.snapshot(topics)
        found: dict[Place, list[tuple[int, str]]] = {}
        for topic in topics:
            ends = snapshot.end_offsets(topic)
            known = {} if afresh else self._read_to
            starts = {p: min(known.get((topic, p), 0), end) for p, end in ends.items()}
            fresh = records_of(snapshot.scan(topic, starts).to_arrow(), topic, len(ends))
            for partition, end in ends.items():
                place = (topic, partition)
                before = [] if afresh else self._known.get(place, [])
                whole = [r for r in before if r[0] < starts[partition]] + fresh[place]
                if end >= self._read_to.get(place, 0):
                    self._known[place], self._read_to[place] = whole, end
                found[place] = whole
        return found, snapshot.is_atomic

    def latest(self, topics: list[str]) -> dict[Place, list[tuple[int, str]]]:
        """All that is committed now, whatever is open beside it."""
        snapshot = self._store.snapshot(topics, isolation_level="snapshot")
        assert snapshot.is_atomic
        return {
            place: records
            for topic in topics
            for place, records in records_of(
                snapshot.scan(topic).to_arrow(), topic, PARTITIONS[topic]
            ).items()
        }


def records_of(table: object, topic: str, partitions: int) -> dict[Place, list[tuple[int, str]]]:
    """Offsets and values by partition."""
    found: dict[Place, list[tuple[int, str]]] = {(topic, p): [] for p in range(partitions)}
    columns = [table.column(name).to_pylist() for name in ("partition", "offset", "value")]  # type: ignore[attr-defined]
    for partition, offset, value in zip(*columns, strict=True):
        found[topic, partition].append((offset, value.decode()))
    return found


def read(world: World, process: Process) -> None:
    """Look at the outputs in all ways until all writers are done."""
    keep_looking(world, process, 2)


def doze(world: World, process: Process) -> None:
    """A reader that sleeps between its looks, for longer than it takes to clean behind it."""
    keep_looking(world, process, min(1.5 * world.cleanup_age_ms, 60_000) / 1000)


def keep_looking(world: World, process: Process, most_s: float) -> None:
    """A look of some kind, again and again, with at most so many seconds in between."""
    while world.running:
        with survived():
            store = process.store()
            reader = Reader(store)
            while world.running:
                process.clock.sleep(process.chance.random() * most_s)
                try:
                    look(world, process, store, reader)
                except ConcurrentTransactions:
                    world.refused += 1


def look(world: World, process: Process, store: Store, reader: Reader) -> None:
    """One look, of a kind that chance picks."""
    chance, judge, who = process.chance, world.judge, process.name
    begun_ms, faults = world.simulation.clock.time_ms, process.faults
    # The oldest open transaction, and what it overlaps.
    late_ms = begun_ms - 2 * TIMEOUT_MS - CLOCK_MARGIN_MS - 2 * world.skew_ms
    kind = chance.random()
    if kind < 0.4:
        topics = chance.sample(OUTPUTS, chance.choice([2, 3, 3]))
        view, atomic = reader.view(topics, afresh=chance.random() < 0.1)
        judge.saw(view, who, atomic=atomic)
    elif kind < 0.7:
        # Of one partition: nothing waits for a chain.
        topic = chance.choice(["right", "out", "again"])
        view, atomic = reader.view([topic], afresh=False)
        judge.saw(view, who, atomic=atomic)
        if process.faults == faults:
            judge.saw_by(values_of(view), topic, late_ms, who)
    elif kind < 0.8:
        # One topic of several partitions, in which transactions have several entries.
        view, atomic = reader.view(["left"], afresh=False)
        judge.saw(view, who, atomic=atomic)
    elif kind < 0.9:
        consumer = store.consumer("in", group_id="g", auto_offset_reset="earliest")
        offsets = {}
        for partition in range(PARTITIONS["in"]):
            found = consumer.committed(TopicPartition("in", partition))
            offsets["in", partition] = found.offset if found else 0
        if process.faults == faults:
            judge.saw_offsets(offsets, who, begun_ms)
    elif kind < 0.97:
        topics = chance.sample(OUTPUTS, chance.choice([1, 2, 3]))
        view = reader.latest(topics)
        judge.saw(view, who, prefix=False)
        if process.faults == faults:
            for topic in topics:
                judge.saw_by(values_of(view), topic, begun_ms, who)
    else:
        topic = chance.choice(OUTPUTS)
        table = store.scan(topic, isolation_level="read_uncommitted").to_arrow()
        judge.saw_everything(records_of(table, topic, PARTITIONS[topic]), who)


def values_of(view: dict[Place, list[tuple[int, str]]]) -> list[str]:
    return [value for records in view.values() for _, value in records]


def settle(world: World) -> None:
    """An hour later somebody new reads everything, for the last judgement."""
    world.simulation.clock.time_ms += 3_600_000
    store = world.simulation.store()
    try:
        view, atomic = Reader(store).view(list(PARTITIONS), afresh=True)
    except ConcurrentTransactions as error:
        raise Violation("blocked", f"an hour later there is still no cut: {error}") from error
    assert atomic, "nothing is open any more"
    everything: dict[Place, list[tuple[int, str]]] = {}
    for topic, partitions in PARTITIONS.items():
        table = store.scan(topic, isolation_level="read_uncommitted").to_arrow()
        everything |= records_of(table, topic, partitions)
        waiting = store.topics.describe(topic).open_transactions
        if waiting:
            raise Violation("blocked", f"an hour later {topic} waits for {waiting}")
    consumer = store.consumer("in", group_id="g", auto_offset_reset="earliest")
    offsets = {}
    for partition in range(PARTITIONS["in"]):
        found = consumer.committed(TopicPartition("in", partition))
        offsets["in", partition] = found.offset if found else 0
    assert Reader(store).latest(list(PARTITIONS)) == view
    world.judge.settle(view, everything, offsets)
