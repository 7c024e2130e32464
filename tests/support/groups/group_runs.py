"""Random runs of a group whose members join, stall, crash, come back and leave, with a judge.

The judge shares no code with the library: it reads the group's log as JSON, and is told by the
members' listeners what they believe they have.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from txnlog import ConsumerConfig
from txnlog.consumer import Consumer
from txnlog.errors import CommitFailed, FencedInstanceId, TxnlogError, UnknownTopicOrPartition
from txnlog.groups.rebalance import ConsumerRebalanceListener
from txnlog.names import TopicPartition
from txnlog.read.consumer_reads import ConsumerRecord
from txnlog.store import Store
from txnlog.testing import FaultRates, Process, Simulation

PARTITIONS, RECORDS = 6, 12
SESSION_MS = 10_000
CALM = FaultRates()


Where = tuple[str, int]
"""A topic and the number of a partition."""


class Violation(AssertionError):
    """Something that must never be; it begins with the name of the check."""


@dataclass
class GroupRun:
    """One run: what its members do, and what is known of it.

    Attributes:
        transactional: members copy in transactions; else they commit by themselves.
        assignors: of the members, in turn.
        static: whether members have instance ids.
        pattern: members subscribe by a pattern; topics that match are made, deleted and made again
            as long as faults happen.
        together_ms: so often all members leave at one instant, as long as faults happen; 0: never.
        rough_ms, calm_ms: for how long faults happen, and how long it goes on after that.
    """

    seed: int
    rates: FaultRates
    transactional: bool
    assignors: tuple[tuple[str, ...], ...]
    static: bool = False
    members: int = 3
    pattern: bool = False
    together_ms: int = 0
    rough_ms: int = 120_000
    calm_ms: int = 240_000
    processed: Counter[int] = field(default_factory=Counter)
    holding: dict[str, set[Where]] = field(default_factory=dict)
    rebalances: int = 0
    refused: int = 0

    def run(self) -> None:
        """Do it, and judge it. Raises Violation."""
        self.simulation = Simulation(self.seed, rates=self.rates, step_ms=(1, 20))
        store = self.simulation.store()
        store.topics.create("in", partitions=PARTITIONS)
        store.topics.create("out", partitions=1)
        self.sent = 0
        self._send(store, "in", PARTITIONS)
        self.began_ms = self.simulation.clock.time_ms
        for number in range(self.members):
            self.simulation.spawn(f"w{number}", partial(self._work, number), restart=True)
        if self.pattern:
            self.simulation.spawn("admin", self._change_topics, rates=CALM)
        self.simulation.run()
        self._judge_the_end()

    def _send(self, store: Store, topic: str, partitions: int) -> None:
        with store.producer() as producer:
            for number in range(partitions * RECORDS):
                producer.send(topic, b"%d" % self.sent, partition=number % partitions)
                self.sent += 1

    def _change_topics(self, process: Process) -> None:
        """Make topics and delete them, while members read."""
        chance, store = process.chance, process.store()
        made: list[str] = []
        while self._left_ms() > self.calm_ms:
            process.clock.sleep(chance.uniform(2.0, 12.0))
            topic = f"in-{chance.randrange(3)}"
            was_there = topic in made
            if was_there:
                store.topics.delete(topic)
                made.remove(topic)
            if not was_there or chance.random() < 0.5:  # made anew at once
                partitions = chance.randint(1, 3)
                store.topics.create(topic, partitions=partitions)
                self._send(store, topic, partitions)
                made.append(topic)

    def _left_ms(self) -> int:
        return self.began_ms + self.rough_ms + self.calm_ms - self.simulation.clock.time_ms

    def _work(self, number: int, process: Process) -> None:
        chance = process.chance
        store = consumer = producer = None
        while self._left_ms() > 0:
            if self._left_ms() < self.calm_ms:
                self.simulation._actors[number].rates = CALM
            try:
                store = store or process.store()
                if consumer is None:
                    consumer = self._consumer(store, number)
                if self.transactional and producer is None:
                    producer = store.producer(
                        transactional_id=f"w{number}", transaction_timeout_ms=20_000
                    )
                    producer.init_transactions()
                records = self._poll(consumer, chance.randint(1, 5))
                begun = [int(record.value or b"") for record in records]
                if chance.random() < 0.1 and self._left_ms() > self.calm_ms:
                    process.clock.sleep(chance.choice([2, 8, 15, 40]))
                if producer is not None and records:
                    with producer.transaction():
                        for value in begun:
                            producer.send("out", b"%d" % value)
                        producer.send_offsets_to_transaction(
                            {w: consumer.position(w) for w in positions_of(records)},
                            consumer.group_metadata(),
                        )
                elif records:
                    self.processed.update(begun)
                    consumer.commit()
                if self._leaves(process):
                    closed, consumer = consumer, None
                    closed.close()
            except FencedInstanceId:
                consumer = producer = None
            except TxnlogError as error:
                self.refused += isinstance(error, CommitFailed)
                producer = None
                # What was read and not committed is read again from where the group is.
                if consumer is not None and self.transactional:
                    consumer = self._start_over(consumer)
            process.clock.sleep(chance.uniform(0.2, 2.0))
        self.simulation._actors[number].rates = CALM
        if consumer is not None:
            consumer.close()

    def _poll(self, consumer: Consumer, most: int) -> list[ConsumerRecord]:
        try:
            return consumer.poll(max_records=most)
        except UnknownTopicOrPartition as error:
            # One of the topics is always there, and which partitions are is not the application's.
            raise Violation(f"gone: {error}") from error

    def _leaves(self, process: Process) -> bool:
        """Whether a member is to leave now; waits if the others do so, too, in a moment."""
        if self._left_ms() <= self.calm_ms:
            return False
        if process.chance.random() < 0.03:
            return True
        passed_ms = self.simulation.clock.time_ms - self.began_ms
        left_ms = self.together_ms - passed_ms % self.together_ms if self.together_ms else 0
        if not 0 < left_ms < 2_500:
            return False
        process.clock.sleep(left_ms / 1000)
        return True

    def _consumer(self, store: Store, number: int) -> Consumer:
        consumer = store.consumer(
            group_id="g",
            auto_offset_reset="earliest",
            config=ConsumerConfig(
                partition_assignment_strategy=self.assignors[number % len(self.assignors)],
                session_timeout_ms=SESSION_MS,
                heartbeat_interval_ms=3_000,
                max_poll_interval_ms=30_000,
                group_instance_id=f"i{number}" if self.static else None,
                metadata_max_age_ms=10_000,
            ),
        )
        listener = _Listener(self, consumer)
        if self.pattern:
            consumer.subscribe(pattern="in(-[0-9])?", listener=listener)
        else:
            consumer.subscribe(["in"], listener=listener)
        return consumer

    def _start_over(self, consumer: Consumer) -> Consumer | None:
        try:
            for where in consumer.assignment():
                found = consumer.committed(where)
                consumer.seek(where, found.offset if found else 0)
        except TxnlogError:
            return None  # it goes on as another member; this one falls silent
        return consumer

    # -- the judge -------------------------------------------------------------------------------

    def assigned(self, member_id: str, partitions: Collection[Where]) -> None:
        """A member believes from now on that these are its own."""
        self.rebalances += 1
        known = read_group(self.entries())
        if member_id in known.members:
            for other, held in self.holding.items():
                both = held.intersection(partitions)
                if other != member_id and other in known.members and both:
                    raise Violation(f"held twice: {both} by {other} and {member_id}")
        self.holding.setdefault(member_id, set()).update(partitions)

    def entries(self) -> list[dict[str, Any]]:
        """The group's log as it lies; entries of transactions with whether they were committed."""
        storage = self.simulation.storage
        names = storage.list_names("groups/g")
        found = []
        for name in names:
            if name.endswith(".json"):
                entry = json.loads(storage.get(f"groups/g/{name}"))
                stem = name.removesuffix(".json")
                entry["counts"] = not entry.get("transaction") or f"{stem}.commit" in names
                found.append(entry)
        return found

    def _judge_the_end(self) -> None:
        known = read_group(self.entries())
        store = self.simulation.store()
        there = [topic for topic in store.topics.list() if topic != "out"]
        ends = {
            (topic, number): (store.topics.describe(topic).topic_id, RECORDS)
            for topic in there
            for number in range(len(store.topics.describe(topic).partitions))
        }
        reached = {where: at for where, at in known.committed.items() if where in ends}
        if reached != ends:
            raise Violation(f"progress: the group is at {reached} in the end, not at {ends}")
        seen = values_in(store, "out") if self.transactional else self.processed
        missed = {value for topic in there for value in values_in(store, topic)} - {*seen}
        if missed:
            raise Violation(f"missed: {missed}")
        twice = {value: count for value, count in seen.items() if count > 1}
        if self.transactional and twice:
            raise Violation(f"twice: {twice}")
        if self._left_ms() < -SESSION_MS and not known.members:
            # Somebody slept past the end, with faults: what he has left is for who comes next.
            with store.consumer("in", group_id="g") as next_one:
                next_one.assignment()
        files = self.simulation.storage.list_names("groups/g/members")
        left = [name for name in files if name.partition(".")[0] not in known.members]
        if left and not known.members:
            raise Violation(f"left behind: {left}")
        findings = [found for found in store.examine() if found.rule is not None]
        if findings:
            raise Violation(f"doctor: {findings}")


def values_in(store: Store, topic: str) -> Counter[int]:
    """How often each value is in a topic."""
    return Counter(int(value) for value in store.scan(topic).to_arrow()["value"].to_pylist())


def positions_of(records: Collection[Any]) -> set[TopicPartition]:
    """The partitions of some records."""
    return {TopicPartition(record.topic, record.partition) for record in records}


class _Listener(ConsumerRebalanceListener):
    def __init__(self, run: GroupRun, consumer: Consumer) -> None:
        self._run = run
        self._consumer = consumer

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        committer = self._consumer._committer()
        assert committer is not None
        self._member_id = committer.member_id
        self._run.assigned(self._member_id, [(*where,) for where in partitions])

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        self._run.holding[self._member_id] -= {(*where,) for where in partitions}


@dataclass
class KnownGroup:
    """What the judge makes of a group's log."""

    members: dict[str, str] = field(default_factory=dict)
    """With their instance ids."""
    kinds: set[bool] = field(default_factory=set)
    """Whether assignors that members have are cooperative: of a mixed group less is known."""
    owned: dict[Where, str] = field(default_factory=dict)
    """As it was assigned last: a cooperative member lets go of such a partition only when asked."""
    holder: dict[Where, str] = field(default_factory=dict)
    inherited: set[Where] = field(default_factory=set)
    """Held by who has taken a fenced instance's place: it had let go of them, or will be asked."""
    committed: dict[Where, tuple[str, int]] = field(default_factory=dict)
    """With the ids of the topics that were read."""
    generation: int = 0


def read_group(entries: list[dict[str, Any]]) -> KnownGroup:
    """Read a log of a group. Raises Violation."""
    known = KnownGroup()
    for entry in entries:
        match entry["kind"]:
            case "members-joined":
                for member in entry["members"]:
                    instance = member.get("instance_id", "")
                    cooperative = member.get("cooperative", ())
                    known.kinds |= {name in cooperative for name in member["assignors"]}
                    for old in [m for m, i in known.members.items() if i and i == instance]:
                        del known.members[old]
                        for where in [w for w, m in known.holder.items() if m == old]:
                            known.holder[where] = member["member_id"]
                            known.inherited.add(where)
                        for where in [w for w, m in known.owned.items() if m == old]:
                            known.owned[where] = member["member_id"]
                    known.members[member["member_id"]] = instance
            case "members-left":
                _remove(known, entry["member_ids"])
            case "members-expired":
                _remove(known, [silence["member_id"] for silence in entry["expired"]])
            case "partitions-assigned":
                _assign(known, entry)
            case "offsets":
                _commit(known, entry)
    return known


def _remove(known: KnownGroup, member_ids: list[str]) -> None:
    for member_id in member_ids:
        known.members.pop(member_id, None)
        for where in [w for w, holder in known.holder.items() if holder == member_id]:
            del known.holder[where]


def _assign(known: KnownGroup, entry: dict[str, Any]) -> None:
    if entry["generation"] <= known.generation:
        raise Violation(f"generation: {entry['generation']} follows {known.generation}")
    known.generation = entry["generation"]
    given: dict[Where, str] = {}
    for member_id, topics in entry["owners"].items():
        for where in [(topic, number) for topic, numbers in topics.items() for number in numbers]:
            if where in given or member_id not in known.members:
                raise Violation(f"owners: {where} is given to {member_id} of {given}")
            given[where] = member_id
    for where, holder in [*known.holder.items()]:
        released = holder in entry["released"]
        was_asked = known.kinds == {False} or known.owned.get(where) != holder
        let_go = where in known.inherited or (
            released and (was_asked or known.kinds == {True, False})
        )
        if given.get(where, holder) != holder and not let_go:
            raise Violation(f"taken: {where} is {holder}'s, and given to {given[where]}")
        if released and where not in given:
            if was_asked:
                del known.holder[where]
            elif False in known.kinds:
                known.inherited.add(where)  # it may have let go of it
    known.owned = given
    known.holder |= given
    known.inherited -= {*given}


def _commit(known: KnownGroup, entry: dict[str, Any]) -> None:
    committer = entry["committer"]["member_id"]
    for moved in entry["offsets"]:
        where = moved["topic"], moved["partition"]
        if known.holder.get(where) != committer:
            raise Violation(f"fenced: {committer} commits {where} of {known.holder.get(where)}")
        if entry["counts"]:
            topic_id, before = known.committed.get(where, ("", 0))
            if moved["topic_id"] == topic_id and moved["offset"] < before:
                raise Violation(f"backwards: {where} to {moved['offset']}")
            known.committed[where] = moved["topic_id"], moved["offset"]
