"""A random life of transactions that overlap, so that ends of snapshots go back at times."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

from txnlog.producer import Producer
from txnlog.store import Store


def overlap(store: Store, topics: Sequence[str], seed: int, steps: int = 40) -> Iterator[int]:
    """Append new keys to random topics, in transactions of which a few are open.

    After each step it yields how many records are committed by then; none is open when it ends.
    """
    rng, keys = random.Random(seed), itertools.count()
    idle = [store.producer(transactional_id=f"id-{number}") for number in range(3)]
    for producer in idle:
        producer.init_transactions()
    running: list[tuple[Producer, int]] = []
    committed = 0
    for _ in range(steps):
        if idle and rng.random() < 0.6:
            producer = idle.pop(rng.randrange(len(idle)))
            producer.begin_transaction()
            chosen = rng.sample(topics, rng.randint(1, 2))
            for topic in chosen:
                producer.send(topic, b"v", key=b"%d" % next(keys))
            producer.flush()
            running.append((producer, len(chosen)))
        elif running:
            committed += _end(running, idle, rng)
        yield committed
    while running:
        committed += _end(running, idle, rng)
        yield committed


def _end(running: list[tuple[Producer, int]], idle: list[Producer], rng: random.Random) -> int:
    """End one of them; returns how many records it has committed."""
    producer, count = running.pop(rng.randrange(len(running)))
    idle.append(producer)
    if rng.random() < 0.3:
        producer.abort_transaction()
        return 0
    producer.commit_transaction()
    return count
