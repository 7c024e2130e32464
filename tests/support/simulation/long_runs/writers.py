"""Processes of a long run that transfer, copy, feed, reset a group or clean up.

They tell the judge what they mean to write before they do, and what they were told of it. One
that is stopped starts over; the judge stands outside of them and remembers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tests.support.simulation.long_runs.judge import Fate, Intent, Place, Violation
from tests.support.simulation.long_runs.world import PARTITIONS, TIMEOUT_MS, World, survived
from txnlog.admin.merge_topic import merge_topic
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
from txnlog.read.consumer_reads import ConsumerRecord
from txnlog.store import Store
from txnlog.testing import Process

_INPUT = [TopicPartition("in", number) for number in range(PARTITIONS["in"])]


def attempt(
    world: World, process: Process, producer: Producer, intent: Intent, fill: Callable[[], None]
) -> None:
    """One transaction from begin to end. Raises what makes the producer useless."""
    judge, chance = world.judge, process.chance
    try:
        producer.begin_transaction()
        fill()
        if chance.random() < 0.1:
            producer.abort_transaction()
            judge.aborted(intent)
            return
    except TxnlogError:
        judge.aborted(intent)
        producer.abort_transaction()
        raise
    intent.fate = Fate.COMMITTING
    intent.asked = judge.tick()
    unknown = False
    for _ in range(4):
        try:
            producer.commit_transaction()
            judge.committed(intent, world.simulation.clock.time_ms)
            return
        except CommitStateUnknown:
            unknown = True
            process.clock.sleep(1)
        except TxnlogError:
            # Nothing was committed, unless an earlier call may have.
            if not unknown:
                judge.aborted(intent)
                producer.abort_transaction()
            raise
    try:
        producer.abort_transaction()
        judge.aborted(intent)
    except InvalidTxnState:
        judge.committed(intent, world.simulation.clock.time_ms)


def take_turns(
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
    chance, judge = process.chance, world.judge

    def turn(store: Store, producer: Producer) -> None:
        intent = world.new_intent(process)

        def fill() -> None:
            for _ in range(chance.choice([1, 1, 2, 3])):
                amount = chance.randint(1, 9)
                for topic, change in (("left", -amount), ("right", amount)):
                    # Its own key in each topic, so that all records of a key share a partition.
                    key = f"{process.name}-{topic}"
                    value = judge.write(intent, topic, key, change)
                    producer.send(topic, value, key=key)
                if chance.random() < 0.2:
                    producer.flush()

        attempt(world, process, producer, intent, fill)

    take_turns(world, process, transactional_id or process.name, turn)


def copy(world: World, process: Process, transactional_id: str = "") -> None:
    """Consume, produce to two topics, and move the group, all in one transaction."""
    chance, judge = process.chance, world.judge

    def turn(store: Store, producer: Producer) -> None:
        consumer = store.consumer(group_id="g", auto_offset_reset="earliest")
        consumer.assign(_INPUT)
        records = consumer.poll(max_records=chance.randint(1, 8))
        if not records:
            process.clock.sleep(1)
            return
        intent = world.new_intent(process)
        ranges = consumed_ranges(records)

        def fill() -> None:
            for _ in records:
                producer.send("out", judge.write(intent, "out"))
            producer.send("left", judge.write(intent, "left"))
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

    take_turns(world, process, transactional_id or process.name, turn)


def consumed_ranges(records: list[ConsumerRecord]) -> dict[Place, range]:
    """By partition, what these records span; offsets of ``in`` have no gaps."""
    found: dict[Place, list[int]] = {}
    for record in records:
        found.setdefault((record.topic, record.partition), []).append(record.offset)
    for where, offsets in found.items():
        if offsets != list(range(offsets[0], offsets[-1] + 1)):
            raise Violation("gap", f"the consumer got {offsets} of {where}")
    return {place: range(offsets[0], offsets[-1] + 1) for place, offsets in found.items()}


def feed(world: World, process: Process) -> None:
    """Write without a transaction; each flush shows whole or not at all."""
    chance, judge = process.chance, world.judge
    while world.left_for(process):
        with survived():
            producer = process.store().producer()
            # What it gives up on, another may place yet: order holds for one producer.
            name = f"{process.name}-{world.names}"
            while world.left_for(process):
                intent = world.new_intent(process)
                try:
                    for _ in range(chance.randint(1, 6)):
                        partition = chance.randrange(PARTITIONS["in"])
                        value = judge.write(intent, "in", f"{name}-{partition}")
                        producer.send("in", value, partition=partition)
                except TxnlogError:
                    judge.aborted(intent)
                    raise
                if not flush(world, process, producer, intent):
                    break


def flush(world: World, process: Process, producer: Producer, intent: Intent) -> bool:
    """Flush, and again while the outcome is unknown: nothing may come twice."""
    intent.fate = Fate.COMMITTING
    for _ in range(4):
        try:
            producer.flush()
            world.judge.committed(intent, world.simulation.clock.time_ms)
            return True
        except CommitStateUnknown:
            process.clock.sleep(1)
        except TxnlogError:
            world.judge.aborted(intent)
            raise
    return False


def overlap(world: World, process: Process) -> None:
    """Transactions of several flushes with pauses in between, so that one reaches into the next."""
    chance, judge = process.chance, world.judge
    topics = chance.sample([("left", -1), ("right", 1)], 2)

    def turn(store: Store, producer: Producer) -> None:
        intent = world.new_intent(process)

        def fill() -> None:
            for _ in range(chance.randint(3, 5)):
                for topic, sign in topics:
                    value = judge.write(intent, topic, f"{process.name}-{topic}", sign)
                    producer.send(topic, value, key=f"{process.name}-{topic}")
                    producer.flush()
                process.clock.sleep(chance.random())

        attempt(world, process, producer, intent, fill)

    take_turns(world, process, process.name, turn, cost=5)


def recopy(world: World, process: Process) -> None:
    """Copy with one consumer for many transactions, while somebody resets its group."""
    chance, judge = process.chance, world.judge

    def turns(store: Store, producer: Producer) -> None:
        consumer = store.consumer(group_id="r", auto_offset_reset="earliest")
        consumer.assign(_INPUT)
        learnt: int | None = None
        while world.left_for(process):
            records = consumer.poll(max_records=chance.randint(1, 8))
            metadata = consumer.group_metadata()
            learnt = learnt or judge.tick()
            if not records:
                process.clock.sleep(1)
                continue
            intent = world.new_intent(process)
            intent.learnt = learnt
            moved = {TopicPartition(*p): at.stop for p, at in consumed_ranges(records).items()}
            process.clock.sleep(chance.choice([0, 0, 2]))

            def fill(
                intent: Intent = intent,
                moved: dict[TopicPartition, int] = moved,
                metadata: GroupMetadata = metadata,
            ) -> None:
                producer.send("again", judge.write(intent, "again"))
                producer.send_offsets_to_transaction(moved, metadata)

            try:
                attempt(world, process, producer, intent, fill)
                if intent.fate is not Fate.COMMITTED:
                    return
                learnt = judge.tick()
            except CommitFailed:
                # Begins again where the group is by now.
                for where in consumer.assignment():
                    found = consumer.committed(where)
                    consumer.seek(where, found.offset if found else 0)
                learnt = judge.tick()

    take_turns(world, process, process.name, turns)


def reset(world: World, process: Process) -> None:
    """Move the group of ``recopy`` back and forth, also to where it is."""
    chance, judge = process.chance, world.judge
    while world.running:
        with survived():
            store = process.store()
            while world.running:
                process.clock.sleep(chance.random() * 5)
                begun = judge.tick()
                how: list[dict[str, Any]] = [{"to": "earliest"}, {"to": "latest"}]
                how += [{"shift_by": chance.choice([0, -1, -5])}] * 2
                store.groups.reset_offsets("r", "in", **chance.choice(how))
                judge.reset(begun)


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
                if log.next_entry:
                    log.checkpoint()


def merge(world: World, process: Process) -> None:
    """Merge the small segments of topics now and then. Nobody notices; old ones stay for a week."""
    while world.left_for(process, 4):
        with survived():
            logs = process.store().logs
            topic = process.chance.choice([*PARTITIONS])
            for _ in merge_topic(logs, topic):
                pass
        process.clock.sleep(process.chance.uniform(0, 2))
