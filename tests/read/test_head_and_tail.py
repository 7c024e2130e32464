"""The ends of a scan, against what plain Python makes of the same data."""

from __future__ import annotations

import random

import pytest

from txnlog.errors import InvalidOption
from txnlog.storage.base import Storage
from txnlog.store import Store, attach
from txnlog.testing import HeapStorage, VirtualClock

PARTITIONS = 3


@pytest.fixture
def store(memory_storage: Storage) -> Store:
    """``t``: segments of a few records, times that run backwards too, aborted records between."""
    store = attach(memory_storage, create=True)
    store.topics.create("t", partitions=PARTITIONS)
    chance = random.Random(7)
    for round_ in range(12):
        with store.producer(transactional_id="w") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            for number in range(chance.randrange(1, 9)):
                producer.send(
                    "t",
                    f"{round_}-{number}",
                    None,
                    chance.randrange(PARTITIONS),
                    chance.randrange(99),
                )
            producer.flush()
            if round_ % 3 == 1:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    return store


def merge_by_time(store: Store) -> list[tuple[int, int]]:
    """Partition and offset of every record, by the greatest time seen so far in its partition."""
    rows = store.scan("t", columns=["partition", "offset", "timestamp"]).to_arrow().to_pylist()
    keyed = []
    newest: dict[int, object] = {}
    for row in rows:
        number = row["partition"]
        newest[number] = max(newest.get(number, row["timestamp"]), row["timestamp"])
        keyed.append((newest[number], number, row["offset"]))
    return [(number, offset) for _, number, offset in sorted(keyed)]


def test_head_is_the_oldest_in_the_order_of_times(store: Store) -> None:
    """For every count; offsets ascend in each partition; only the columns asked for."""
    everything = merge_by_time(store)
    scan = store.scan("t", columns=["partition", "offset"])
    for count in (0, 1, 5, len(everything), len(everything) + 5):
        found = scan.head(count)
        assert found.schema == scan.schema
        assert [tuple(row.values()) for row in found.to_pylist()] == everything[:count]
    with pytest.raises(InvalidOption):
        scan.head(-1)


def test_tail_is_a_suffix_of_each_partition(store: Store) -> None:
    """So many as are asked for, none twice, and in each partition the last ones in their order."""
    rows = store.scan("t", columns=["partition", "offset"]).to_arrow().to_pylist()
    by_partition = {
        number: [row["offset"] for row in rows if row["partition"] == number]
        for number in range(PARTITIONS)
    }
    for count in (0, 1, 5, len(rows) - 1, len(rows), len(rows) + 5):
        found = store.scan("t", columns=["partition", "offset"]).tail(count).to_pylist()
        assert len(found) == min(count, len(rows))
        for number, offsets in by_partition.items():
            mine = [row["offset"] for row in found if row["partition"] == number]
            assert mine == offsets[len(offsets) - len(mine) :]


def test_count_is_exact(store: Store) -> None:
    """As many of each partition as are read, also of a part of it."""
    for start in (None, {0: 3, 2: 1}):
        scan = store.scan("t", start)
        found = scan.to_arrow().column("partition").to_pylist()
        assert scan.count() == {number: found.count(number) for number in range(PARTITIONS)}


@pytest.mark.parametrize("record_format", ["columns", "parquet", "kafka"])
def test_a_segment_with_gaps_is_followed_by_others(record_format: str) -> None:
    """How many records it has is not known before it is read: what follows is not cut short."""
    store = attach(HeapStorage(), create=True, clock=VirtualClock())
    config = {"cleanup.policy": "compact", "record.format": record_format}
    store.topics.create("t", config=config)

    def put(*keys: int) -> None:
        with store.producer() as producer:
            for key in keys:
                producer.send("t", b"v", f"{key}")

    put(*[1] * 6, 2)
    store.maintenance.compact("t")
    put(*range(10, 30))
    put(*range(40, 60))
    scan = store.scan("t", columns=["offset"])
    everything = scan.to_arrow()["offset"].to_pylist()
    assert everything == [*range(5, 47)]
    for count in range(len(everything) + 2):
        assert scan.head(count)["offset"].to_pylist() == everything[:count]
        assert scan.tail(count)["offset"].to_pylist() == everything[max(42 - count, 0) :]
