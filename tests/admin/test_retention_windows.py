"""What retention finds by looking at a few segments at a time is what it would find in all."""

from __future__ import annotations

import random

import pytest

from tests.support.log.settling import settling_early
from tests.support.steps import another, append, begin, checkpoint, new_store, send
from txnlog.admin.retention import RetentionDeletion, retain
from txnlog.names import TopicPartition
from txnlog.results import SegmentDescription
from txnlog.store import Store
from txnlog.testing import HeapStorage, VirtualClock

PARTITIONS = 3


def grown(chance: random.Random) -> Store:
    """Appends of all ages and sizes, aborted ones too; settled, merged and trimmed in part."""
    store = new_store(HeapStorage(), VirtualClock(1_700_000_000_000), {"t": PARTITIONS})
    for _ in range(chance.randint(0, 60)):
        store.logs.clock.sleep(chance.random())
        partition = chance.randrange(PARTITIONS)
        value = b"v" * chance.randint(1, 200)
        if chance.random() < 0.1:
            producer = begin(store, "p")
            send(producer, value, partition=partition)
            producer.abort_transaction()
        elif chance.random() < 0.2:
            with store.producer() as producer:
                for number in range(PARTITIONS):
                    producer.send("t", value, partition=number)
        else:
            append(store, value, partition=partition)
        if chance.random() < 0.1:
            checkpoint(another(store))
        if chance.random() < 0.1:
            [*store.maintenance.merge("t")]
        if chance.random() < 0.05:
            end = store.logs.fresh_topic("t").whole_state().last_stable_offsets()[partition]
            below = chance.randint(0, end)
            store.topics.delete_records({TopicPartition("t", partition): below}) if below else None
    if chance.random() < 0.3:
        send(begin(store, "open"), b"undecided", partition=chance.randrange(PARTITIONS))
    return store


def expected(store: Store, now_ms: int, most_ms: int, most_bytes: int) -> list[RetentionDeletion]:
    """The same from a list of all segments."""
    state = store.logs.fresh_topic("t").whole_state()
    found = []
    for number, stable in enumerate(state.last_stable_offsets()):
        segments: list[SegmentDescription] = [
            s for s in store.topics.segments("t") if s.partition == number
        ]
        going = 0
        left = sum(s.size_bytes for s in segments)
        for segment in segments:
            left -= segment.size_bytes
            is_old = 0 <= most_ms < now_ms - segment.max_timestamp_ms
            if segment.end_offset > stable or not (is_old or 0 <= most_bytes <= left):
                break
            going += 1
        if going:
            end = stable if going == len(segments) else segments[going - 1].end_offset
            size = sum(s.size_bytes for s in segments[:going])
            start = state.partitions[number].log_start_offset
            found.append(RetentionDeletion("t", number, start, end, going, size))
    return found


@pytest.mark.more
@pytest.mark.parametrize("first_seed", [0, pytest.param(25, marks=pytest.mark.slow)])
def test_a_few_segments_at_a_time(first_seed: int) -> None:
    """Whatever is settled, merged, aborted, undecided or shared, by age and by size."""
    counts = 0
    for seed in range(first_seed, first_seed + 25):
        chance = random.Random(seed)
        with settling_early():
            store = grown(chance)
            now_ms = store.logs.clock.now_ms()
            for _ in range(6):
                most_ms = chance.choice([-1, chance.randint(0, 40_000)])
                most_bytes = chance.choice([-1, chance.randint(0, 1_000)])
                settings = {"retention.ms": str(most_ms), "retention.bytes": str(most_bytes)}
                store.topics.alter("t", config=settings)
                process = another(store)
                log = process.logs.fresh_topic("t")
                found = retain(process.logs, log, now_ms, dry_run=True)
                assert found == expected(store, now_ms, most_ms, most_bytes), seed
                counts += sum(deletion.segment_count for deletion in found)
    assert counts > 300
