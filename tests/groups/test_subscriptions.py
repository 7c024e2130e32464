"""Members that subscribe to one thing and another, at any time: random lives, over virtual time."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection

import pytest

from tests.support.groups.consumer_options import consumer_options
from tests.support.groups.group_in_steps import Group
from txnlog.consumer import Consumer
from txnlog.groups.rebalance import ConsumerRebalanceListener
from txnlog.names import TopicPartition

TOPICS = ("a", "b", "c")
Read = tuple[str, int, int]


class Commits(ConsumerRebalanceListener):
    """Commits what was read before it is taken away."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:  # noqa: ARG002
        self._consumer.commit()


class Life:
    """One or two members, with what they have read; ``chance`` says what happens next."""

    def __init__(self, group: Group, chance: random.Random, assignor: str, *, auto: bool) -> None:
        self.group, self.chance, self.auto = group, chance, auto
        self.seen: Counter[Read] = Counter()
        self.sent = dict.fromkeys((TopicPartition(t, n) for t in TOPICS for n in range(2)), 0)
        for topic in TOPICS:
            group.store.topics.create(topic, partitions=2)
        self.members = [self._member(assignor) for _ in range(chance.randint(1, 2))]

    def _member(self, assignor: str) -> Consumer:
        return self.group.process().consumer(
            group_id="g",
            auto_offset_reset="earliest",
            enable_auto_commit=self.auto,
            **consumer_options({"partition_assignment_strategy": assignor}),
        )

    def subscribe(self, member: Consumer) -> None:
        listener = None if self.auto else Commits(member)
        topics = self.chance.sample(TOPICS, self.chance.randint(1, 3))
        if self.chance.random() < 0.3:
            member.subscribe(pattern="|".join(topics), listener=listener)
        else:
            member.subscribe(topics, listener=listener)

    def send(self) -> None:
        with self.group.store.producer() as producer:
            for where in self.chance.choices([*self.sent], k=5):
                producer.send(where.topic, b"x", partition=where.partition)
                self.sent[where] += 1

    def poll(self, member: Consumer, most: int) -> None:
        for record in member.poll(max_records=most):
            assert record.topic in member.subscription()
            self.seen[record.topic, record.partition, record.offset] += 1

    def step(self) -> None:
        member = self.chance.choice(self.members)
        match self.chance.choice(["subscribe", "send", "poll", "poll", "time"]):
            case "subscribe":
                self.subscribe(member)
            case "send":
                self.send()
            case "poll":
                self.poll(member, self.chance.randint(1, 10))
            case _:
                self.group.clock.time_ms += 3_000


@pytest.mark.few(2)
@pytest.mark.parametrize("auto", [False, True], ids=["listener commits", "auto commit"])
@pytest.mark.parametrize("assignor", ["cooperative-sticky", "range"])
def test_what_a_group_gives_is_read_once(assignor: str, auto: bool) -> None:
    """However often its members change their minds, and wherever they do so between two polls."""
    for seed in range(10):
        life = Life(Group(), random.Random(seed), assignor, auto=auto)
        for member in life.members:
            life.subscribe(member)
        for _ in range(30):
            life.step()
        for member in life.members:
            member.subscribe(TOPICS, listener=None if auto else Commits(member))
        for _ in range(10):
            for member in life.members:
                life.poll(member, 1_000)
            life.group.clock.time_ms += 3_000
        given = [{*m.partitions} for m in life.group.store.groups.describe("g").members]
        held = [{*member.assignment()} for member in life.members]
        assert sorted(map(sorted, given)) == sorted(map(sorted, held)), f"seed {seed}"
        sent = {(*where, at): 1 for where, count in life.sent.items() for at in range(count)}
        assert life.seen == sent, f"seed {seed}"
