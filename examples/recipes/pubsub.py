"""Publish and subscribe: two services with a group each both get every order.

    python examples/recipes/pubsub.py --store shop-store

Members of one group share the records; groups know nothing of each other. Billing has two members
here and so shares its work, shipping has one and does all of its own.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import txnlog
from txnlog import ConsumerConfig
from txnlog.consumer import Consumer

ORDERS = 1_000


def run(root: str) -> dict[str, int]:
    """Publish orders; returns how many of them each member of each service was given."""
    store = txnlog.open(root, create=True)
    if "orders" not in store.topics.list():
        store.topics.create("orders", partitions=4)
    members = {
        "billing 1": subscribe(store, "billing"),
        "billing 2": subscribe(store, "billing"),
        "shipping": subscribe(store, "shipping"),
    }
    settle([*members.values()])
    with store.producer() as producer:
        for number in range(ORDERS):
            producer.send("orders", f"order {number}".encode(), key=f"customer {number % 97}")
    given = {}
    for name, member in members.items():
        given[name] = 0
        while records := member.poll():
            given[name] += len(records)
            member.commit()
        member.close()
    return given


def subscribe(store: txnlog.Store, service: str) -> Consumer:
    """A consumer for a service; real ones are processes of their own."""
    return store.consumer(
        "orders",
        group_id=service,
        auto_offset_reset="earliest",
        config=ConsumerConfig(heartbeat_interval_ms=200),
    )


def settle(consumers: Sequence[Consumer]) -> None:
    """Poll until each consumer has its share: in processes of their own they just go on polling."""
    while not all(consumer.poll() or consumer.assignment() for consumer in consumers):
        pass


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--store", default="shop-store", help="path or URL of the store")
    for name, count in run(parser.parse_args().store).items():
        print(f"{name}: {count:,} orders")
