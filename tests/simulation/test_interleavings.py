"""The real code of several processes, interleaved request by request: conditions 28, 31, 35, 50.

Exhaustive up to a bound of preemptions where two meet, random by seed where more do. Jobs copy
records from ``in`` to ``a`` and ``b`` and move one group; readers take snapshots all the while.
The judge knows only the input: every record comes out exactly once, no snapshot is torn.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytest

from txnlog.errors import CommitFailed, ConcurrentTransactions, ProducerFenced, TxnlogError
from txnlog.names import TopicPartition
from txnlog.store import Store
from txnlog.testing import Choose, Fault, Process, Simulation, preemptions, random_choice

pytestmark = pytest.mark.rule("G2", "L2", "S1", "T6")

SOURCE = TopicPartition("in", 0)
Body = Callable[[Process], None]


def prepare(records: int, seed: int = 5, **options: Any) -> Simulation:
    """A store with ``records`` records in topic ``in``, and nobody who does anything yet."""
    simulation = Simulation(seed, **options)
    store = simulation.store()
    store.topics.create("in")
    store.topics.create("a", partitions=2)
    store.topics.create("b")
    with store.producer() as producer:
        for number in range(records):
            producer.send("in", b"%d" % number)
    return simulation


def copy(store: Store, transactional_id: str, batch: int) -> None:
    """The job: takes the id over, and copies until nothing is left. Raises when it is fenced."""
    with store.producer(transactional_id=transactional_id) as producer:
        producer.init_transactions()
        while True:
            consumer = store.consumer(group_id="g", auto_offset_reset="earliest")
            consumer.assign([SOURCE])
            records = consumer.poll(max_records=batch)
            if not records:
                return
            try:
                with producer.transaction():
                    for record in records:
                        producer.send("a", record.value, key=record.value)
                        producer.send("b", record.value)
                    producer.send_offsets_to_transaction(
                        {SOURCE: records[-1].offset + 1}, consumer.group_metadata()
                    )
            except CommitFailed:
                continue
            except ConcurrentTransactions:
                # The other one may be stopped: wait, by the virtual clock, until it times out.
                store.logs.clock.sleep(20)


def job(transactional_id: str, faults: Mapping[int, Fault] | None = None) -> Body:
    """A process that runs the job once, and ends when somebody fences it."""

    def body(process: Process) -> None:
        process.storage.faults = dict(faults or {})
        with suppress(ProducerFenced):
            copy(process.store(), transactional_id, batch=2)

    return body


def reader(times: int = 3) -> Body:
    """A process that takes snapshots of both outputs and judges each."""

    def body(process: Process) -> None:
        store = process.store()
        for _ in range(times):
            snapshot = store.snapshot(["a", "b"], isolation_level="snapshot")
            seen = {
                topic: sorted(snapshot.scan(topic).to_arrow().column("value").to_pylist())
                for topic in ("a", "b")
            }
            assert seen["a"] == seen["b"], "a snapshot is torn"
            assert len(set(seen["a"])) == len(seen["a"]), "a snapshot has duplicates"

    return body


def run(simulation: Simulation, bodies: Sequence[Body], choose: Choose | None) -> int:
    """Run these processes to their ends; returns the number of steps."""
    for number, body in enumerate(bodies):
        simulation.spawn(f"process {number}", body)
    simulation.run(choose)
    return len(simulation.order)


def judge(simulation: Simulation, records: int, context: object) -> None:
    """After a last run to the end: every record exactly once, the group at the end."""
    simulation.clock.time_ms += 1_000_000
    store = simulation.store()
    copy(store, "judge", batch=100)
    expected = sorted(b"%d" % number for number in range(records))
    for topic in ("a", "b"):
        found = store.scan(topic).to_arrow().column("value").to_pylist()
        assert sorted(found) == expected, context
    assert [offset.offset for offset in store.groups.describe("g").offsets] == [records], context


@pytest.mark.few(1)
@pytest.mark.condition(50)
@pytest.mark.parametrize("every", [6, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("ids", [("same", "same"), ("one", "two")])
def test_two_jobs_with_every_pair_of_preemptions(ids: tuple[str, str], every: int) -> None:
    """All interleavings with one preemption, and a sample of those with two."""
    length = run(prepare(2), [job(name) for name in ids], preemptions([]))
    assert length > 40
    schedules: list[tuple[int, ...]] = [(first,) for first in range(length)]
    schedules += list(itertools.combinations(range(0, length, 3), 2))[::every]
    for switches in schedules:
        simulation = prepare(2)
        run(simulation, [job(name) for name in ids], preemptions(switches))
        judge(simulation, 2, switches)


@pytest.mark.condition(31, 50)
@pytest.mark.parametrize("stride", [18, pytest.param(4, marks=pytest.mark.slow)])
def test_a_job_and_a_reader_with_every_preemption(stride: int) -> None:
    """Snapshots of two topics at every point of a commit; a sample of orders with two."""
    length = run(prepare(4), [job("one"), reader(2)], preemptions([]))
    for switches in itertools.chain(
        ((first,) for first in range(length)),
        itertools.combinations(range(0, length, stride), 2),
    ):
        simulation = prepare(4)
        run(simulation, [job("one"), reader(2)], preemptions(switches))
        judge(simulation, 4, switches)


@pytest.mark.condition(50)
@pytest.mark.parametrize(
    "seeds",
    [
        range(20),
        pytest.param(range(20, 40), marks=pytest.mark.more),
        *(pytest.param(range(n, n + 40), marks=pytest.mark.slow) for n in range(40, 200, 40)),
    ],
)
def test_random_schedules_with_faults(seeds: range) -> None:
    """Four jobs and two readers; requests fail, responses get lost, processes stop."""
    for seed in seeds:
        rng = random.Random(seed)
        simulation = prepare(6, seed)
        bodies = []
        for number in range(rng.randint(2, 4)):
            faults = {
                rng.randint(0, 150): rng.choice(list(Fault)) for _ in range(rng.choice([0, 1, 2]))
            }
            name = rng.choice(["shared", f"job-{number}"])
            bodies.append(end_with_errors(job(name, faults)))
        bodies += [reader(), reader()]
        choose = random_choice(seed)

        def moving_clock(
            running: Sequence[int],
            rng: random.Random = rng,
            simulation: Simulation = simulation,
            choose: Choose = choose,
        ) -> int:
            if rng.random() < 0.02:
                simulation.clock.time_ms += rng.choice([100, 20_000, 61_000])
            return choose(running)

        run(simulation, bodies, moving_clock)
        judge(simulation, 6, f"seed {seed}")


def end_with_errors(body: Body) -> Body:
    """A process that ends with any error of ours, as a job that will be run again."""

    def outer(process: Process) -> None:
        with suppress(TxnlogError):
            body(process)

    return outer


@pytest.mark.rule("hazard 9")
@pytest.mark.condition(47)
def test_many_writers_on_one_log() -> None:
    """8 writers, 10 flushes each, in any order: all land once, densely (hazard 9)."""
    simulation = prepare(0)

    def writer(number: int) -> Body:
        def body(process: Process) -> None:
            with process.store().producer() as producer:
                for turn in range(10):
                    producer.send("b", b"%d-%d" % (number, turn))
                    producer.flush()

        return body

    run(simulation, [writer(number) for number in range(8)], random_choice(4))
    table = simulation.store().scan("b").to_arrow()
    assert table.column("offset").to_pylist() == list(range(80))
    expected = {b"%d-%d" % (number, turn) for number in range(8) for turn in range(10)}
    assert set(table.column("value").to_pylist()) == expected
