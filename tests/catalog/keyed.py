"""A typed topic whose key has two columns, and the newest record of each key."""

from __future__ import annotations

import random

import pyarrow as pa

from txnlog.store import Store

SCHEMA = pa.schema(
    [
        pa.field("ke`y", pa.string(), nullable=False),
        pa.field("part", pa.int32(), nullable=False),
        ("number", pa.int64()),
    ]
)


def wanted(store: Store, topic: str = "f") -> list[str]:
    scan = store.scan(topic, columns=SCHEMA.names, isolation_level="snapshot", latest=True)
    return sorted(map(repr, scan.to_arrow().to_pylist()))


def fill(store: Store, seed: int, topic: str = "f") -> None:
    """Commits of random keys in partitions of their own and in others; some delete, some abort."""
    chance = random.Random(seed)
    partitions = range(len(store.topics.describe(topic).partitions))
    with store.producer(transactional_id=f"{topic} {seed}") as producer:
        producer.init_transactions()
        for number in range(30):
            producer.begin_transaction()
            count = chance.randrange(1, 8)
            rows = {
                "ke`y": [chance.choice("abcdé") for _ in range(count)],
                "part": [chance.randrange(-1, 2) for _ in range(count)],
                "number": [number] * count,
                "_deleted": [chance.random() < 0.2 for _ in range(count)],
            }
            partition = chance.choice([None, None, *partitions])
            producer.send_batch(topic, pa.table(rows), partition)
            store.logs.clock.time_ms += chance.choice([0, 0, 1])  # type: ignore[attr-defined]
            if chance.random() < 0.2:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
