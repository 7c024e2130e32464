"""Consumers of one group that are polled step by step, over virtual time."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tests.support.groups.consumer_options import consumer_options
from txnlog.consumer import Consumer
from txnlog.groups.rebalance import ConsumerRebalanceListener
from txnlog.log.group_log import GroupLog
from txnlog.names import TopicPartition
from txnlog.read.consumer_reads import ConsumerRecord
from txnlog.store import Store, attach
from txnlog.testing.heap_storage import HeapStorage
from txnlog.testing.virtual_clock import VirtualClock

COOPERATIVE = "cooperative-sticky"
T = [TopicPartition("t", number) for number in range(4)]


def take_part(consumer: Consumer) -> None:
    """All that a poll does, but that it takes no record."""
    nothing: list[ConsumerRecord] = []
    consumer._polled(lambda: nothing, nothing, 0)


class Group:
    """Consumers of one group, each in a process of its own, with a common clock."""

    def __init__(self) -> None:
        self.heap = HeapStorage()
        self.clock = VirtualClock(seed=3)
        self.heap.time_ms = lambda: self.clock.time_ms
        self.store = attach(self.heap, create=True, clock=self.clock)
        self.store.topics.create("t", partitions=4)
        self.store.topics.create("out", partitions=1)
        self.send(10)
        self.told: list[tuple[str, str, list[int]]] = []

    def send(self, each: int) -> None:
        with self.store.producer() as producer:
            for number in range(each * 4):
                producer.send("t", b"%d" % number, partition=number % 4)

    def process(self, storage: Any = None) -> Store:
        return attach(storage or self.heap, clock=self.clock)

    def consumer(self, name: str = "", storage: Any = None, **options: Any) -> Consumer:
        chosen = {"partition_assignment_strategy": COOPERATIVE, "auto_offset_reset": "earliest"}
        consumer = self.process(storage).consumer(
            group_id="g", **consumer_options({**chosen, **options})
        )
        consumer.subscribe(["t"], listener=Told(self, name, consumer))
        return consumer

    def rounds(self, *consumers: Consumer, count: int = 6, records: int = 0) -> None:
        """Each polls now and then, as time passes."""
        for _ in range(count):
            for consumer in consumers:
                if records:
                    consumer.poll(max_records=records)
                else:
                    take_part(consumer)
            self.clock.time_ms += 3_000


class Told(ConsumerRebalanceListener):
    """Notes what it is told; commits what is revoked."""

    def __init__(self, group: Group, name: str, consumer: Consumer) -> None:
        self._group, self._name, self._consumer = group, name, consumer

    def _note(self, what: str, partitions: Collection[TopicPartition]) -> None:
        numbers = sorted(where.partition for where in partitions)
        self._group.told.append((self._name, what, numbers))

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        self._note("revoked", partitions)
        self._consumer.commit()

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        self._note("assigned", partitions)

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        self._note("lost", partitions)


def log_of(group: Group, storage: object = None) -> GroupLog:
    """The group's log, as a process that reads it now has it."""
    log = group.process(storage).logs.group("g")
    log.refresh()
    return log
