"""librdkafka's own mock cluster, for the tests of bridges.

Its reads show aborted records too; a real broker judges with tests/stores/test_real_kafka.py.
"""

from __future__ import annotations

import confluent_kafka

from txnlog.bridge.client import Cluster, take

PARTITIONS = 4
"""Of a topic that the mock cluster makes when it is asked for."""
Row = tuple[int, bytes | None, bytes | None, int, tuple[tuple[str, bytes | None], ...]]


class MockKafka:
    """A cluster in this process, as long as the client that has it."""

    def __init__(self) -> None:
        self._owner = confluent_kafka.Producer(
            {"bootstrap.servers": "mock", "test.mock.num.brokers": 1, "log_level": 2}
        )
        (broker,) = self._owner.list_topics(timeout=10).brokers.values()
        self.servers = f"{broker.host}:{broker.port}"
        self.producer = confluent_kafka.Producer(
            {"bootstrap.servers": self.servers, "log_level": 2}
        )

    def make(self, *topics: str) -> None:
        for topic in topics:
            self.producer.list_topics(topic, timeout=10)

    def send(self, topic: str, rows: list[Row]) -> None:
        for partition, key, value, time, headers in rows:
            self.producer.produce(
                topic, value, key, partition, timestamp=time, headers=[*headers] or None
            )
        assert self.producer.flush(10) == 0

    def rows(self, topic: str) -> list[Row]:
        """All records, by partition."""
        consumer = Cluster(self.servers).consumer("judge")
        ends = set(range(PARTITIONS))
        begin = confluent_kafka.OFFSET_BEGINNING
        consumer.assign([confluent_kafka.TopicPartition(topic, p, begin) for p in ends])
        found: dict[int, list[Row]] = {p: [] for p in ends}
        while ends:
            for message in take(consumer, 1000, 0.2):
                if message.error():
                    assert message.error().name() == "_PARTITION_EOF"
                    ends.discard(message.partition())
                    continue
                found[message.partition()].append(
                    (
                        message.partition(),
                        message.key(),
                        message.value(),
                        message.timestamp()[1],
                        tuple(message.headers() or ()),
                    )
                )
        consumer.close()
        return [row for p in sorted(found) for row in found[p]]
