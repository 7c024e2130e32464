"""What a rebalance of many members costs: requests, and how long it takes one after the other."""

from __future__ import annotations

from collections import Counter

import pytest

from txnlog import ConsumerConfig
from txnlog.consumer import Consumer
from txnlog.storage.counting import CountingStorage
from txnlog.store import attach
from txnlog.testing.heap_storage import HeapStorage
from txnlog.testing.virtual_clock import VirtualClock

REQUEST_MS = 30


class Large:
    """Consumers of one group, each of which counts its own requests."""

    def __init__(self, members: int, partitions: int, assignor: str) -> None:
        self.clock = VirtualClock(seed=5)
        self.heap = HeapStorage()
        attach(self.heap, create=True, clock=self.clock).topics.create("t", partitions=partitions)
        self.assignor = assignor
        self.storages: list[CountingStorage] = []
        self.consumers: list[Consumer] = []
        for _ in range(members):
            self.add()
            self.consumers[-1].assignment()
        self.settle()

    def add(self) -> None:
        storage = CountingStorage(self.heap)
        consumer = attach(storage, clock=self.clock).consumer(
            "t", group_id="g", config=ConsumerConfig(partition_assignment_strategy=self.assignor)
        )
        self.storages.append(storage)
        self.consumers.append(consumer)

    def settle(self) -> int:
        """Let all go on until they are at rest; returns how many ms after the beginning."""
        begun_ms = self.clock.time_ms
        at_rest = 0
        while at_rest < 3:
            before = [consumer.assignment() for consumer in self.consumers]
            self.clock.time_ms += 250
            for consumer in self.consumers:
                consumer._join_in()
            at_rest = at_rest + 1 if self.is_even() and before == self.owned() else 0
        return self.clock.time_ms - begun_ms

    def owned(self) -> list[object]:
        return [consumer.assignment() for consumer in self.consumers]

    def is_even(self) -> bool:
        counts = Counter(len(consumer.assignment()) for consumer in self.consumers)
        return max(counts) - min(counts) <= 1

    def take(self) -> list[int]:
        return [sum(storage.take().values()) for storage in self.storages]


@pytest.mark.more
@pytest.mark.parametrize("assignor", ["cooperative-sticky", "range"])
@pytest.mark.parametrize(
    ("members", "partitions"), [(20, 200), pytest.param(100, 1000, marks=pytest.mark.slow)]
)
def test_a_rebalance_costs_each_member_a_few_requests(
    assignor: str, members: int, partitions: int
) -> None:
    """One joins. At 30 ms a request it is over within 5 s, however many partitions there are."""
    large = Large(members, partitions, assignor)
    large.take()
    large.add()
    took_ms = large.settle()
    requests = large.take()
    # Each looks four times in a heartbeat interval while it goes on.
    looks = took_ms / 750 + 1
    assert sum(requests) < (members + 1) * (8 + 3 * looks), (requests, took_ms)
    assert took_ms + max(requests) * REQUEST_MS < 5_000, (requests, took_ms)
