"""Causes before effects, by the real code of several processes, interleaved request by request.

Processes read one topic in a group and write what they make of it to others, or append without a
transaction. Each notes what it had seen acknowledged before it began, and what it has consumed.
Readers take snapshots at both levels all the while; the judge compares each with these notes, by
what the snapshot says that it is (invariants S1 and S3).
"""

from __future__ import annotations

import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from txnlog import IsolationLevel, Snapshot
from txnlog.errors import CommitFailed, ConcurrentTransactions
from txnlog.names import TopicPartition
from txnlog.testing import Choose, Process, Simulation

pytestmark = pytest.mark.rule("S3")

TOPICS = ["t0", "t1", "t2"]
WORKERS = 4
LEVELS: list[IsolationLevel] = ["read_committed", "snapshot"]


@dataclass
class Unit:
    """One transaction or append: its value shows in each of its topics."""

    topics: tuple[str, ...]
    begun: int
    consumed: frozenset[int] = frozenset()
    committing: int | None = None
    acknowledged: int | None = None


@dataclass
class Notes:
    """What everybody has done, on one time line."""

    ticks: itertools.count[int] = field(default_factory=itertools.count)
    units: list[Unit] = field(default_factory=list)
    said: Counter[tuple[str, str]] = field(default_factory=Counter)
    missing: list[tuple[int, int]] = field(default_factory=list)
    """What a causal snapshot shows, and what it lacks that was acknowledged before that began."""

    def begin(self, topics: tuple[str, ...], consumed: frozenset[int] = frozenset()) -> int:
        self.units.append(Unit(topics, next(self.ticks), consumed))
        return len(self.units) - 1


def worker(notes: Notes, turns: int) -> Callable[[Process], None]:
    """Reads a topic and writes to one or two, in transactions; or appends to one."""

    def body(process: Process) -> None:
        store, chance = process.store(), process.chance
        producer = store.producer(transactional_id=process.name)
        producer.init_transactions()
        for _ in range(turns):
            outputs = tuple(chance.sample(TOPICS, chance.choice([1, 1, 2])))
            if chance.random() < 0.3:
                number = notes.begin(outputs[:1])
                with store.producer() as plain:
                    plain.send(outputs[0], b"%d" % number)
                    notes.units[number].committing = next(notes.ticks)
                    plain.flush()
                notes.units[number].acknowledged = next(notes.ticks)
                continue
            source = TopicPartition(chance.choice(TOPICS), chance.choice([0, 1]))
            consumer = store.consumer(
                group_id=f"{process.name}-{source.topic}", auto_offset_reset="earliest"
            )
            consumer.assign([source])
            records = consumer.poll(max_records=100)
            consumed = frozenset(int(record.value or b"0") for record in records)
            number = notes.begin(outputs, consumed)
            with suppress(CommitFailed, ConcurrentTransactions), producer.transaction():
                for topic in outputs:
                    producer.send(topic, b"%d" % number)
                    if chance.random() < 0.5:
                        producer.flush()
                if records:
                    producer.send_offsets_to_transaction(
                        {source: records[-1].offset + 1}, consumer.group_metadata()
                    )
                notes.units[number].committing = next(notes.ticks)
            notes.units[number].acknowledged = next(notes.ticks)

    return body


def reader(notes: Notes, level: IsolationLevel, times: int) -> Callable[[Process], None]:
    def body(process: Process) -> None:
        store = process.store()
        for _ in range(times):
            begun = next(notes.ticks)
            snapshot = store.snapshot(TOPICS, isolation_level=level)
            judge(notes, snapshot, begun)

    return body


def judge(notes: Notes, snapshot: Snapshot, begun: int) -> None:
    level, said = snapshot.isolation_level, snapshot.consistency
    notes.said[level, said] += 1
    shown = _places(snapshot)
    units = {number: notes.units[number] for number in shown}
    for number, places in shown.items():
        topics = {where.topic for where in places}
        assert topics == {*units[number].topics}, f"{number} is torn"
    missing = {
        number: unit.acknowledged
        for number, unit in enumerate(notes.units)
        if unit.acknowledged is not None and number not in shown
    }
    if level == "snapshot":
        late = [number for number, at in missing.items() if at < begun]
        assert not late, f"{late}, acknowledged before it, are missing"
    if said not in ("instant", "causal"):
        return
    for number, unit in units.items():
        assert unit.consumed <= shown.keys(), f"{number} shows, and not all that it consumed"
        if level == "snapshot" and said == "instant":
            assert unit.committing is not None
            earlier = [other for other, at in missing.items() if at < unit.committing]
            assert not earlier, f"{number} shows, and not {earlier}, acknowledged before"
        if level == "snapshot":
            before = [other for other, at in missing.items() if at < unit.begun]
            notes.missing += [(number, other) for other in before]


def in_bursts(seed: int) -> Choose:
    """Readers go on by one request, and between these a worker by many: whole transactions."""
    rng = random.Random(seed)
    current, left = -1, 0

    def choose(running: Sequence[int]) -> int:
        nonlocal current, left
        left -= 1
        if left < 0 or current not in running:
            readers = [number for number in running if number >= WORKERS]
            current = rng.choice(readers if readers and rng.random() < 0.5 else running)
            left = 0 if current >= WORKERS else rng.choice([2, 10, 25, 40])
        return current

    return choose


def run(seed: int) -> Notes:
    simulation = Simulation(seed)
    store = simulation.store()
    for topic in TOPICS:
        store.topics.create(topic, partitions=2)
    notes = Notes()
    for number in range(WORKERS):
        simulation.spawn(f"worker-{number}", worker(notes, turns=16))
    for level in LEVELS:
        simulation.spawn(f"reader-{level}", reader(notes, level, times=3))
    simulation.run(in_bursts(seed))
    places = _places(store.snapshot(TOPICS))
    for number, other in notes.missing:
        for where, offset in places[number].items():
            behind = places[other].get(where, offset) < offset
            assert not behind, f"{number} shows in {where}, and not {other} before it"
    return notes


def _places(snapshot: Snapshot) -> dict[int, dict[TopicPartition, int]]:
    """By value, its offset in each partition that has it."""
    found: dict[int, dict[TopicPartition, int]] = defaultdict(dict)
    for topic in TOPICS:
        table = snapshot.scan(topic, columns=["value", "partition", "offset"]).to_arrow()
        for row in table.to_pylist():
            found[int(row["value"])][TopicPartition(topic, row["partition"])] = row["offset"]
    return found


@pytest.mark.parametrize(
    "seeds",
    [
        range(4),
        pytest.param(range(100, 105), marks=pytest.mark.more),
        pytest.param(range(1000, 1500), marks=pytest.mark.slow),
    ],
    ids=["few", "more", "many"],
)
def test_each_snapshot_is_what_it_says(seeds: range) -> None:
    said: Counter[tuple[str, str]] = Counter()
    for seed in seeds:
        try:
            said.update(run(seed).said)
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
    for level in LEVELS:
        assert said[level, "instant"] > len(seeds)
        assert said[level, "causal"] >= len(seeds) // 4
    assert said["snapshot", "none"] == said["read_committed", "none"] == 0
