"""Eight processes that transfer, copy, feed and read, and tell a ledger what they mean and see.

In some runs more of them overlap their transactions, reset a group, clean up, or sleep for long.
Everything runs in a :class:`txnlog.testing.Simulation`. Processes that are stopped begin anew; the
ledger stands outside of them and remembers what each was told.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from ledger import Fate, Intent, Place
from readers import doze, read, settle
from world import MOST_SKEW_MS, PARTITIONS, TIMEOUT_MS, Body, World, prepare, survived

from txnlog.consumer import ConsumerRecord
from txnlog.errors import (
    CommitFailed,
    CommitStateUnknown,
    ConcurrentTransactions,
    InvalidTxnState,
    TxnlogError,
)
from txnlog.log.group_log import GroupLog
from txnlog.log.group_metadata import GroupMetadata
from txnlog.log.topic_log import TopicLog
from txnlog.names import TopicPartition
from txnlog.producer import Producer
from txnlog.storage.base import Storage
from txnlog.store import Store
from txnlog.testing import ClockFaults, FaultRates, Process, Simulation

TURNS = 60
DAY_MS = 86_400_000
LEAST_AGE_MS = TIMEOUT_MS

CALM = FaultRates(tear_listing=0.1, tear_delete=0.5, tear_ms=(0, 300))
ROUGH = replace(
    CALM,
    fail=0.004,
    lose_response=0.004,
    land_late=0.002,
    delay=0.004,
    pause=0.0005,
    stop=0.0005,
    partial=0.05,
)
STORMY = replace(
    CALM,
    fail=0.02,
    lose_response=0.02,
    land_late=0.01,
    delay=0.01,
    pause=0.002,
    stop=0.003,
    partial=0.2,
)
STALLING = replace(
    CALM,
    delay=0.01,
    pause=0.004,
    stop=0.001,
    partial=0.05,
    delay_ms=(1_000, 200_000),
)
FAILING = replace(
    CALM,
    sync_fails=0.1,
    lose_response=0.004,
    stop=0.001,
    delay=0.01,
    power_cut=0.002,
)
CLOCKS = ClockFaults(most_ms=2_000, drift_ppm=200, monotonic_ppm=50, jump=0.0005, asleep=0.5)
TURNS = 60
DAY_MS = 86_400_000


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
    intent.asked = ledger.tick()
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
    *,
    cost: int = 1,
) -> None:
    """Take turns until there are enough, with a new store and producer after each error."""
    while world.left_for(process, cost):
        with survived():
            store = process.store()
            producer = store.producer(
                transactional_id=transactional_id, transaction_timeout_ms=TIMEOUT_MS
            )
            producer.init_transactions()
            turn(store, producer)
            while process.chance.random() < 0.95 and world.left_for(process, cost):
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


def named(body: Callable[[World, Process, str], None], transactional_id: str) -> Body:
    """The same for several processes that share a transactional id."""

    def shared(world: World, process: Process) -> None:
        body(world, process, transactional_id)

    return shared


def overlap(world: World, process: Process) -> None:
    """Transactions of several flushes with pauses in between, so that one reaches into the next."""
    chance, ledger = process.chance, world.ledger
    topics = chance.sample([("left", -1), ("right", 1)], 2)

    def turn(store: Store, producer: Producer) -> None:
        intent = world.new_intent(process)

        def fill() -> None:
            for _ in range(chance.randint(3, 5)):
                for topic, sign in topics:
                    value = ledger.write(intent, topic, f"{process.name}-{topic}", sign)
                    producer.send(topic, value, key=f"{process.name}-{topic}")
                    producer.flush()
                process.clock.sleep(chance.random())

        attempt(world, process, producer, intent, fill)

    insistent(world, process, process.name, turn, cost=5)


def recopy(world: World, process: Process) -> None:
    """Copy with one consumer for many transactions, while somebody resets its group."""
    chance, ledger = process.chance, world.ledger

    def turns(store: Store, producer: Producer) -> None:
        consumer = store.consumer("in", group_id="r", auto_offset_reset="earliest")
        learnt: int | None = None
        while world.left_for(process):
            records = consumer.poll(chance.randint(1, 8))
            metadata = consumer.group_metadata()
            learnt = learnt or ledger.tick()
            if not records:
                process.clock.sleep(1)
                continue
            intent = world.new_intent(process)
            intent.learnt = learnt
            moved = {TopicPartition(*p): at.stop for p, at in consumed(records).items()}
            process.clock.sleep(chance.choice([0, 0, 2]))

            def fill(
                intent: Intent = intent,
                moved: dict[TopicPartition, int] = moved,
                metadata: GroupMetadata = metadata,
            ) -> None:
                producer.send("again", ledger.write(intent, "again"))
                producer.send_offsets_to_transaction(moved, metadata)

            try:
                attempt(world, process, producer, intent, fill)
                if intent.fate is not Fate.COMMITTED:
                    return
                learnt = ledger.tick()
            except CommitFailed:
                # Begins anew where the group is by now.
                for where in consumer.assignment():
                    found = consumer.committed(where)
                    consumer.seek(where, found.offset if found else 0)
                learnt = ledger.tick()

    insistent(world, process, process.name, turns)


def reset(world: World, process: Process) -> None:
    """Move the group of ``recopy`` back and forth, also to where it is."""
    chance, ledger = process.chance, world.ledger
    while world.running:
        with survived():
            store = process.store()
            while world.running:
                process.clock.sleep(chance.random() * 5)
                begun = ledger.tick()
                how: list[dict[str, Any]] = [{"to": "earliest"}, {"to": "latest"}]
                how += [{"shift_by": chance.choice([0, -1, -5])}] * 2
                store.reset_group_offsets("r", "in", **chance.choice(how))
                ledger.reset(begun)


def tidy(world: World, process: Process) -> None:
    """Leave checkpoints and clean up much more often than writers do."""
    chance = process.chance
    while world.running:
        with survived():
            logs = process.store().logs
            while world.running:
                process.clock.sleep(chance.random() * min(world.cleanup_age_ms, 10_000) / 1000)
                opened: list[Callable[[], TopicLog | GroupLog]] = [
                    *[partial(logs.topic, name) for name in PARTITIONS],
                    partial(logs.group, "g"),
                ]
                log = chance.choice(opened)()
                log.refresh()
                if chance.random() < 0.7:
                    logs.settlement.settle([log])
                if log.state.next_entry:
                    log.checkpoint()


def long_run(
    seed: int,
    rates: FaultRates,
    *,
    storage: Storage | None = None,
    cleanup_ages_ms: tuple[int, ...] = (DAY_MS, 40_000, LEAST_AGE_MS),
    skew_ms: int = MOST_SKEW_MS,
    storage_ahead_ms: int | None = 0,
) -> World:
    """Eight processes and some more, each with so many turns, then the last judgement.

    The seed casts them: some share a transactional id, some clocks are wrong at the beginning, and
    all of them later. A quarter of the cleaning age must be more than clocks differ.
    """
    cast = random.Random(seed)
    age_ms = cast.choice(cleanup_ages_ms)
    skew_ms = min(skew_ms, age_ms // 10)
    simulation = Simulation(
        seed,
        storage=storage,
        rates=rates,
        step_ms=(0, 30),
        clocks=replace(CLOCKS, most_ms=skew_ms),
        storage_ahead_ms=storage_ahead_ms,
    )
    world = prepare(simulation, age_ms, TURNS, skew_ms)
    banks: list[Body] = [transfer] * 3
    copiers: list[Body] = [copy] * 2
    if cast.random() < 0.3:
        banks[:2] = [named(transfer, "bank")] * 2
    if cast.random() < 0.3:
        copiers = [named(copy, "copy")] * 2
    bodies: list[Body] = [*banks, *copiers, feed, read, read]
    bodies += cast.choice([[], [overlap, overlap], [recopy, recopy, reset]])
    bodies += cast.choice([[], [doze], [doze, tidy], [tidy]])
    for number, body in enumerate(bodies):
        ahead_ms = cast.choice([0, 0, cast.randint(-skew_ms, skew_ms)])
        world.spawn(
            f"{body.__name__}-{number}",
            body,
            writes=body not in (read, doze, tidy, reset),
            skew_ms=ahead_ms,
        )
    simulation.run()
    settle(world)
    return world
