"""Consumers that are no members of their groups: each reads all that it is told to."""

from __future__ import annotations

from typing import Any

from txnlog.consumer import Consumer
from txnlog.names import TopicPartition
from txnlog.store import Store


def read_alone(store: Store, topic: str, **options: Any) -> Consumer:
    """A consumer of all partitions that a topic has now, whoever else reads them."""
    consumer = store.consumer(**options)
    count = len(store.topics.describe(topic).partitions)
    consumer.assign([TopicPartition(topic, number) for number in range(count)])
    return consumer
