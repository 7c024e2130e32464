"""The real code of several processes, interleaved request by request: conditions 28, 31, 35, 50.

Exhaustive up to a bound of preemptions where two meet, random by seed where more do. Jobs copy
records from ``in`` to ``a`` and ``b`` and move one group; readers take snapshots all the while.
The judge knows only the input: every record comes out exactly once, no snapshot is torn.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest
from faults import Fault, FaultyStorage, ProcessStopped, VirtualClock
from simulation import interleave, preemptions, random_choice

from txnlog.errors import CommitFailed, ConcurrentTransactions, ProducerFenced, TxnlogError
from txnlog.names import TopicPartition
from txnlog.storage import open_storage
from txnlog.storage.base import Storage
from txnlog.store import Store, attach

_STORES = itertools.count()
SOURCE = TopicPartition("in", 0)
Body = Callable[[Callable[[str], None]], None]


def prepare(records: int, clock: VirtualClock) -> Storage:
    """A store with ``records`` records in topic ``in``."""
    storage = open_storage(f"memory://interleaved-{next(_STORES)}")
    store = attach(storage, create=True, clock=clock)
    store.create_topic("in")
    store.create_topic("a", partitions=2)
    store.create_topic("b")
    with store.producer() as producer:
        for number in range(records):
            producer.send("in", b"%d" % number)
    return storage


def copy(store: Store, transactional_id: str, batch: int) -> None:
    """The job: takes the id over, and copies until nothing is left. Raises when it is fenced."""
    with store.producer(transactional_id=transactional_id) as producer:
        producer.init_transactions()
        while True:
            consumer = store.consumer("in", group_id="g", auto_offset_reset="earliest")
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


def job(storage: Storage, clock: VirtualClock, transactional_id: str, **options: object) -> Body:
    """A process that runs the job once, and ends when somebody fences it."""

    def body(wait: Callable[[str], None]) -> None:
        faulty = FaultyStorage(storage, before_request=wait, **options)  # type: ignore[arg-type]
        try:
            copy(attach(faulty, clock=clock), transactional_id, batch=2)
        except (ProducerFenced, ProcessStopped):
            return

    return body


def reader(storage: Storage, clock: VirtualClock, times: int = 3) -> Body:
    """A process that takes snapshots of both outputs and judges each."""

    def body(wait: Callable[[str], None]) -> None:
        store = attach(FaultyStorage(storage, before_request=wait), clock=clock)
        for _ in range(times):
            snapshot = store.snapshot(["a", "b"])
            seen = {
                topic: sorted(snapshot.scan(topic).to_arrow().column("value").to_pylist())
                for topic in ("a", "b")
            }
            assert seen["a"] == seen["b"], "a snapshot is torn"
            assert len(set(seen["a"])) == len(seen["a"]), "a snapshot has duplicates"

    return body


def judge(storage: Storage, records: int, context: object) -> None:
    """After a last run to the end: every record exactly once, the group at the end."""
    clock = VirtualClock(now_ms=1_700_001_000_000, seed=77)
    store = attach(storage, clock=clock)
    copy(store, "judge", batch=100)
    expected = sorted(b"%d" % number for number in range(records))
    for topic in ("a", "b"):
        found = store.scan(topic).to_arrow().column("value").to_pylist()
        assert sorted(found) == expected, context
    assert [offset.offset for offset in store.describe_group("g").offsets] == [records], context


@pytest.mark.parametrize("ids", [("same", "same"), ("one", "two")])
def test_two_jobs_with_every_pair_of_preemptions(ids: tuple[str, str]) -> None:
    """Goal (50): all interleavings with one preemption, and a sample of those with two."""
    clock = VirtualClock(seed=5)
    storage = prepare(2, clock)
    length = len(interleave([job(storage, clock, i) for i in ids], preemptions([])))
    assert length > 40
    schedules: list[tuple[int, ...]] = [(first,) for first in range(length)]
    schedules += list(itertools.combinations(range(0, length, 3), 2))[::2]
    for switches in schedules:
        clock = VirtualClock(seed=5)
        storage = prepare(2, clock)
        interleave([job(storage, clock, i) for i in ids], preemptions(switches))
        judge(storage, 2, switches)


def test_a_job_and_a_reader_with_every_preemption() -> None:
    """Goal (31, 50): snapshots of two topics at every point of a commit."""
    clock = VirtualClock(seed=5)
    storage = prepare(4, clock)
    bodies = [job(storage, clock, "one"), reader(storage, clock, 2)]
    length = len(interleave(bodies, preemptions([])))
    for switches in itertools.chain(
        ((first,) for first in range(length)),
        itertools.combinations(range(0, length, 4), 2),
    ):
        clock = VirtualClock(seed=5)
        storage = prepare(4, clock)
        interleave([job(storage, clock, "one"), reader(storage, clock, 2)], preemptions(switches))
        judge(storage, 4, switches)


@pytest.mark.parametrize("first_seed", range(0, 200, 50))
def test_random_schedules_with_faults(first_seed: int) -> None:
    """Goal (50): four jobs and two readers; requests fail, responses get lost, processes stop."""
    for seed in range(first_seed, first_seed + 50):
        rng = random.Random(seed)
        clock = VirtualClock(seed=seed)
        storage = prepare(6, clock)
        bodies = []
        for number in range(rng.randint(2, 4)):
            faults = {
                rng.randint(0, 150): rng.choice(list(Fault)) for _ in range(rng.choice([0, 1, 2]))
            }
            name = rng.choice(["shared", f"job-{number}"])
            bodies.append(surviving(job(storage, clock, name, faults=faults)))
        bodies += [reader(storage, clock), reader(storage, clock)]
        choose = random_choice(seed)

        def moving_clock(
            running: list[int],
            rng: random.Random = rng,
            clock: VirtualClock = clock,
            choose: Callable[..., int] = choose,
        ) -> int:
            if rng.random() < 0.02:
                clock.time_ms += rng.choice([100, 20_000, 61_000])
            return choose(running)

        interleave(bodies, moving_clock)  # type: ignore[arg-type]
        judge(storage, 6, f"seed {seed}")


def surviving(body: Body) -> Body:
    """A process that ends with any error of ours, as a job that will be run again."""

    def outer(wait: Callable[[str], None]) -> None:
        try:
            body(wait)
        except TxnlogError:
            return

    return outer


def test_the_same_seed_gives_the_same_run() -> None:
    """Schedules can be repeated."""
    traces = []
    for _ in range(2):
        clock = VirtualClock(seed=3)
        storage = prepare(4, clock)
        bodies = [job(storage, clock, "x"), job(storage, clock, "y"), reader(storage, clock)]
        traces.append(interleave(bodies, random_choice(11)))
    assert traces[0] == traces[1]


def test_many_writers_on_one_log() -> None:
    """Goal (47): 8 writers, 10 flushes each, in any order: all land once, densely (hazard 9)."""
    clock = VirtualClock(seed=1)
    storage = prepare(0, clock)

    def writer(number: int) -> Body:
        def body(wait: Callable[[str], None]) -> None:
            store = attach(FaultyStorage(storage, before_request=wait), clock=clock)
            with store.producer() as producer:
                for turn in range(10):
                    producer.send("b", b"%d-%d" % (number, turn))
                    producer.flush()

        return body

    interleave([writer(number) for number in range(8)], random_choice(4))
    table = attach(storage, clock=clock).scan("b").to_arrow()
    assert table.column("offset").to_pylist() == list(range(80))
    expected = {b"%d-%d" % (number, turn) for number in range(8) for turn in range(10)}
    assert set(table.column("value").to_pylist()) == expected
