"""Eight processes that transfer, copy, feed and read, and tell a ledger what they mean and see.

Everything runs in a :class:`txnlog.testing.Simulation`. Processes that are stopped begin anew; the
ledger stands outside of them and remembers what each was told.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from ledger import Fate, Intent, Ledger, Place, Violation

from txnlog.consumer import ConsumerRecord
from txnlog.errors import (
    CommitStateUnknown,
    ConcurrentTransactions,
    CorruptEntry,
    CorruptRecord,
    InvalidTxnState,
    TxnlogError,
)
from txnlog.names import TopicPartition
from txnlog.producer import Producer
from txnlog.storage.base import Storage
from txnlog.store import Store
from txnlog.testing import ClockFaults, FaultRates, Process, Simulation

CALM = FaultRates(tear_listing=0.1, tear_delete=0.5)
ROUGH = FaultRates(
    fail=0.004,
    lose_response=0.004,
    land_late=0.002,
    delay=0.004,
    pause=0.0005,
    stop=0.0005,
    partial=0.002,
    tear_listing=0.1,
    tear_delete=0.5,
)
STORMY = FaultRates(
    fail=0.02,
    lose_response=0.02,
    land_late=0.01,
    delay=0.01,
    pause=0.002,
    stop=0.003,
    partial=0.01,
    tear_listing=0.1,
    tear_delete=0.5,
)
STALLING = FaultRates(
    delay=0.01,
    pause=0.004,
    stop=0.001,
    partial=0.002,
    tear_listing=0.1,
    tear_delete=0.5,
    delay_ms=(1_000, 200_000),
)
CLOCKS = ClockFaults(most_ms=2_000, drift_ppm=200, monotonic_ppm=50, jump=0.0005, asleep=0.5)
TURNS = 60
DAY_MS = 86_400_000

PARTITIONS = {"left": 2, "right": 1, "in": 2, "out": 1}
OUTPUTS = ("left", "right", "out")
TIMEOUT_MS = 10_000
MOST_SKEW_MS = 2_000


Body = Callable[["World", Process], None]


@dataclass
class World:
    """One store and all that its processes share besides it."""

    simulation: Simulation
    transactions: int
    skew_ms: int = MOST_SKEW_MS
    ledger: Ledger = field(default_factory=Ledger)
    done: dict[str, int] = field(default_factory=dict)
    running: int = 0
    names: int = 0
    refused: int = 0

    def new_intent(self, process: Process) -> Intent:
        self.names += 1
        return self.ledger.begin(f"{process.name}.{self.names}")

    def left_for(self, process: Process) -> bool:
        """Count one more turn of a process, over all its incarnations."""
        self.done[process.name] = self.done.get(process.name, 0) + 1
        return self.done[process.name] <= self.transactions

    def spawn(self, name: str, body: Callable[[World, Process], None], *, skew_ms: int = 0) -> None:
        """Add a process that begins anew when it is stopped; writers keep readers going."""
        writes = body is not read
        self.running += writes

        def outer(process: Process) -> None:
            body(self, process)
            self.running -= writes

        self.simulation.spawn(name, outer, restart=True, skew_ms=skew_ms)


def prepare(simulation: Simulation, cleanup_age_ms: int, transactions: int, skew_ms: int) -> World:
    """A store with the topics of all these processes."""
    store = simulation.store(
        config={
            "transaction.max.timeout.ms": TIMEOUT_MS,
            "log.cleanup.age.ms": cleanup_age_ms,
        }
    )
    for topic, partitions in PARTITIONS.items():
        store.create_topic(topic, partitions=partitions)
    return World(simulation, transactions, skew_ms)


@contextmanager
def survived() -> Iterator[None]:
    """Errors are a part of life, and the next turn begins anew; damage is not."""
    try:
        yield
    except (CorruptEntry, CorruptRecord) as error:
        raise Violation("damage", repr(error)) from error
    except TxnlogError:
        pass


def attempt(
    world: World, process: Process, producer: Producer, intent: Intent, fill: Callable[[], None]
) -> None:
    """One transaction from begin to end. Raises what makes the producer useless."""
    ledger, chance = world.ledger, process.chance
    try:
        producer.begin_transaction()
        fill()
        if chance.random() < 0.1:
            producer.abort_transaction()
            ledger.aborted(intent)
            return
    except TxnlogError:
        ledger.aborted(intent)
        producer.abort_transaction()
        raise
    intent.fate = Fate.COMMITTING
    unknown = False
    for _ in range(4):
        try:
            producer.commit_transaction()
            ledger.committed(intent, world.simulation.clock.time_ms)
            return
        except CommitStateUnknown:
            unknown = True
            process.clock.sleep(1)
        except TxnlogError:
            # Nothing was committed, unless an earlier call may have.
            if not unknown:
                ledger.aborted(intent)
                producer.abort_transaction()
            raise
    try:
        producer.abort_transaction()
        ledger.aborted(intent)
    except InvalidTxnState:
        ledger.committed(intent, world.simulation.clock.time_ms)


def insistent(
    world: World,
    process: Process,
    transactional_id: str,
    turn: Callable[[Store, Producer], None],
) -> None:
    """Take turns until there are enough, with a new store and producer after each error."""
    while world.left_for(process):
        with survived():
            store = process.store()
            producer = store.producer(
                transactional_id=transactional_id, transaction_timeout_ms=TIMEOUT_MS
            )
            producer.init_transactions()
            turn(store, producer)
            while process.chance.random() < 0.95 and world.left_for(process):
                turn(store, producer)
            if process.chance.random() < 0.5:
                producer.close()


def transfer(world: World, process: Process, transactional_id: str = "") -> None:
    """Move amounts between accounts whose records lie in two topics."""
    chance, ledger = process.chance, world.ledger

    def turn(store: Store, producer: Producer) -> None:
        intent = world.new_intent(process)

        def fill() -> None:
            for _ in range(chance.choice([1, 1, 2, 3])):
                amount = chance.randint(1, 9)
                for topic, change in (("left", -amount), ("right", amount)):
                    # Its own key in each topic, so that all records of a key share a partition.
                    key = f"{process.name}-{topic}"
                    value = ledger.write(intent, topic, key, change)
                    producer.send(topic, value, key=key)
                if chance.random() < 0.2:
                    producer.flush()

        attempt(world, process, producer, intent, fill)

    insistent(world, process, transactional_id or process.name, turn)


def copy(world: World, process: Process, transactional_id: str = "") -> None:
    """Consume, produce to two topics, and move the group, all in one transaction."""
    chance, ledger = process.chance, world.ledger

    def turn(store: Store, producer: Producer) -> None:
        consumer = store.consumer("in", group_id="g", auto_offset_reset="earliest")
        records = consumer.poll(chance.randint(1, 8))
        if not records:
            process.clock.sleep(1)
            return
        intent = world.new_intent(process)
        ranges = consumed(records)

        def fill() -> None:
            for _ in records:
                producer.send("out", ledger.write(intent, "out"))
            producer.send("left", ledger.write(intent, "left"))
            intent.consumed = ranges
            producer.send_offsets_to_transaction(
                {TopicPartition(*place): offsets.stop for place, offsets in ranges.items()},
                consumer.group_metadata(),
            )

        try:
            attempt(world, process, producer, intent, fill)
        except ConcurrentTransactions:
            process.clock.sleep(chance.randint(1, 10))
            raise

    insistent(world, process, transactional_id or process.name, turn)


def consumed(records: list[ConsumerRecord]) -> dict[Place, range]:
    """By partition, what these records span; offsets of ``in`` have no gaps."""
    found: dict[Place, list[int]] = {}
    for record in records:
        found.setdefault((record.topic, record.partition), []).append(record.offset)
    for offsets in found.values():
        assert offsets == list(range(offsets[0], offsets[-1] + 1)), "the consumer left a gap"
    return {place: range(offsets[0], offsets[-1] + 1) for place, offsets in found.items()}


def feed(world: World, process: Process) -> None:
    """Write without a transaction; each flush shows whole or not at all."""
    chance, ledger = process.chance, world.ledger
    while world.left_for(process):
        with survived():
            producer = process.store().producer()
            while world.left_for(process):
                intent = world.new_intent(process)
                try:
                    for _ in range(chance.randint(1, 6)):
                        partition = chance.randrange(PARTITIONS["in"])
                        value = ledger.write(intent, "in", f"feed-{partition}")
                        producer.send("in", value, partition=partition)
                except TxnlogError:
                    ledger.aborted(intent)
                    raise
                if not flush(world, process, producer, intent):
                    break


def flush(world: World, process: Process, producer: Producer, intent: Intent) -> bool:
    """Flush, and again while the outcome is unknown: nothing may come twice."""
    intent.fate = Fate.COMMITTING
    for _ in range(4):
        try:
            producer.flush()
            world.ledger.committed(intent, world.simulation.clock.time_ms)
            return True
        except CommitStateUnknown:
            process.clock.sleep(1)
        except TxnlogError:
            world.ledger.aborted(intent)
            raise
    return False


class Reader:
    """Reads topics bit by bit: what was settled once is not read again, mostly."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[Place, list[tuple[int, str]]] = {}
        self._read_to: dict[Place, int] = {}

    def view(self, topics: list[str], *, afresh: bool) -> dict[Place, list[tuple[int, str]]]:
        """All that a snapshot of these topics shows."""
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
        return found


def records_of(table: object, topic: str, partitions: int) -> dict[Place, list[tuple[int, str]]]:
    """Offsets and values by partition."""
    found: dict[Place, list[tuple[int, str]]] = {(topic, p): [] for p in range(partitions)}
    columns = [table.column(name).to_pylist() for name in ("partition", "offset", "value")]  # type: ignore[attr-defined]
    for partition, offset, value in zip(*columns, strict=True):
        found[topic, partition].append((offset, value.decode()))
    return found


def read(world: World, process: Process) -> None:
    """Look at the outputs in all ways until all writers are done."""
    chance = process.chance
    while world.running:
        with survived():
            store = process.store()
            reader = Reader(store)
            while world.running:
                process.clock.sleep(chance.random() * 2)
                try:
                    look(world, process, store, reader)
                except ConcurrentTransactions:
                    world.refused += 1


def look(world: World, process: Process, store: Store, reader: Reader) -> None:
    """One look, of a kind that chance picks."""
    chance, ledger, who = process.chance, world.ledger, process.name
    begun_ms, faults = world.simulation.clock.time_ms, process.faults
    late_ms = begun_ms - TIMEOUT_MS - 2 * world.skew_ms
    kind = chance.random()
    if kind < 0.5:
        topics = chance.sample(OUTPUTS, chance.choice([2, 3, 3]))
        ledger.saw(reader.view(topics, afresh=chance.random() < 0.1), who)
    elif kind < 0.8:
        topic = chance.choice(["right", "out"])  # of one partition: nothing waits for a chain
        view = reader.view([topic], afresh=False)
        ledger.saw(view, who)
        if process.faults == faults:
            ledger.saw_by((v for _, v in view[topic, 0]), topic, late_ms, who)
    elif kind < 0.9:
        consumer = store.consumer("in", group_id="g", auto_offset_reset="earliest")
        offsets = {}
        for partition in range(PARTITIONS["in"]):
            found = consumer.committed(TopicPartition("in", partition))
            offsets["in", partition] = found.offset if found else 0
        if process.faults == faults:
            ledger.saw_offsets(offsets, who, begun_ms)
    else:
        topic = chance.choice(OUTPUTS)
        table = store.scan(topic, isolation_level="read_uncommitted").to_arrow()
        ledger.saw_everything(records_of(table, topic, PARTITIONS[topic]), who)


def settle(world: World) -> None:
    """An hour later somebody new reads everything, and the ledger judges."""
    world.simulation.clock.time_ms += 3_600_000
    store = world.simulation.store()
    view = Reader(store).view(list(PARTITIONS), afresh=True)
    everything: dict[Place, list[tuple[int, str]]] = {}
    for topic, partitions in PARTITIONS.items():
        table = store.scan(topic, isolation_level="read_uncommitted").to_arrow()
        everything |= records_of(table, topic, partitions)
        assert not store.describe_topic(topic).open_transactions, topic
    consumer = store.consumer("in", group_id="g", auto_offset_reset="earliest")
    offsets = {}
    for partition in range(PARTITIONS["in"]):
        found = consumer.committed(TopicPartition("in", partition))
        offsets["in", partition] = found.offset if found else 0
    world.ledger.settle(view, everything, offsets)


def long_run(
    seed: int,
    rates: FaultRates,
    *,
    storage: Storage | None = None,
    cleanup_ages_ms: tuple[int, ...] = (DAY_MS, 40_000),
    skew_ms: int = MOST_SKEW_MS,
) -> World:
    """Eight processes, each with so many turns, then the last judgement.

    The seed casts them too: some share a transactional id, some clocks are wrong. A quarter of the
    cleaning age must be more than clocks differ.
    """
    cast = random.Random(seed)
    simulation = Simulation(
        seed, storage=storage, rates=rates, step_ms=(0, 30), clocks=replace(CLOCKS, most_ms=skew_ms)
    )
    world = prepare(simulation, cast.choice(cleanup_ages_ms), TURNS, skew_ms)
    banks, copiers = [transfer] * 3, [copy] * 2
    if cast.random() < 0.3:
        banks[:2] = [named(transfer, "bank")] * 2
    if cast.random() < 0.3:
        copiers = [named(copy, "copy")] * 2
    bodies = [*banks, *copiers, feed, read, read]
    for number, body in enumerate(bodies):
        ahead_ms = cast.choice([0, 0, cast.randint(-skew_ms, skew_ms)])
        world.spawn(f"{body.__name__}-{number}", body, skew_ms=ahead_ms)
    simulation.run()
    settle(world)
    return world


def named(body: Callable[[World, Process, str], None], transactional_id: str) -> Body:
    """The same for several processes that share a transactional id."""

    def shared(world: World, process: Process) -> None:
        body(world, process, transactional_id)

    return shared
