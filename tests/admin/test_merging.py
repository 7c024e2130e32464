"""Merging: small segments become large ones, and nobody who reads notices."""

from __future__ import annotations

import itertools
import random
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.log.settling import settle_early
from tests.support.steps import another, append, begin, checkpoint, new_store, send, values
from tests.support.storage.disturbed_storages import HookedStorage
from txnlog import IsolationLevel, TopicPartition
from txnlog.admin.merge_topic import merge_topic
from txnlog.errors import (
    SnapshotExpired,
    StorageError,
    UnknownTopicOrPartition,
)
from txnlog.log.uploads import UploadCheck
from txnlog.results import FileDeletion, MaintenanceFailure, Merge
from txnlog.scan import Scan
from txnlog.state.segment import (
    Rewrite,
    RewrittenFile,
    Segment,
    SegmentEntry,
    StoredSegment,
    records_in,
    still_of_use,
    untrimmed,
)
from txnlog.storage.counting import CountingStorage
from txnlog.store import Store, attach
from txnlog.testing import (
    Fault,
    FaultyStorage,
    HeapStorage,
    Process,
    ProcessStopped,
    Simulation,
    VirtualClock,
    preemptions,
)

T0 = TopicPartition("t", 0)
DAY_MS = 86_400_000
WEEK_MS = 7 * DAY_MS


pytestmark = [pytest.mark.store(on="heap"), pytest.mark.rule("L13", "V3")]


def merge(store: Store, topic: str = "t") -> list[Merge]:
    """As a process that starts now."""
    return [*merge_topic(another(store).logs, topic)]


def segment_names(store: Store) -> list[str]:
    return [segment.name for segment in another(store).topics.segments("t")]


def data_files(store: Store) -> list[str]:
    return sorted(path for path, _ in store.storage.list_all("topics/t/data"))


def no_damage(store: Store) -> bool:
    found = another(store).examine(with_contents=True)
    wrong = [one for one in found if one.state in ("damage", "unreadable")]
    assert wrong == []
    return True


def test_no_offsets_are_in_no_segment(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read that ends where it starts has no ranges, though a segment holds both sides of it.

    A consumer asks so for the partitions of others: their views can end in what was merged since.
    """
    settle_early(monkeypatch)
    for first in range(0, 12, 3):
        append(store, *(b"%d" % number for number in range(first, first + 3)), partition=0)

    def ranges(store: Store) -> list[int]:
        snapshot = another(store).snapshot(["t"])
        return [len(snapshot.scan("t", {0: at}, {0: at}).ranges) for at in range(13)]

    assert ranges(store) == [0] * 13
    assert merge(store)
    assert len(segment_names(store)) == 1
    assert ranges(store) == [0] * 13
    for number in range(12):
        append(store, b"%d" % number, partition=0)
    checkpoint(store)
    assert ranges(store) == [0] * 13


def test_small_segments_become_one(store: Store) -> None:
    """Keys, values, headers, timestamps and offsets stay as they are."""
    with store.producer() as producer:
        for number in range(10):
            producer.send(
                "t",
                b"%d" % number if number % 3 else None,
                key=b"k%d" % number if number % 2 else None,
                timestamp_ms=1_000 + number,
                headers=[("h", b"%d" % number)] if number % 4 else [],
            )
            producer.flush()
    before = store.scan("t").to_arrow()
    (done,) = merge(store)
    assert (done.topic, done.partition, done.segment_count, done.merged_count) == ("t", 0, 10, 1)
    (segment,) = another(store).topics.segments("t")
    assert (segment.record_count, segment.base_offset, segment.end_offset) == (10, 0, 10)
    assert (segment.size_bytes, segment.paths.is_parquet) == (done.merged_bytes, True)
    assert another(store).scan("t").to_arrow() == before
    assert store.scan("t").to_arrow() == before
    assert another(store).scan("t", {0: 3}, {0: 7}).to_arrow() == before.slice(3, 4)
    assert another(store).scan("t").count() == {0: 10}
    assert merge(store) == []
    assert no_damage(store)


def test_a_dry_run_tells_and_does_nothing(store: Store) -> None:
    for number in range(5):
        append(store, b"%d" % number)
    names = segment_names(store)
    (told,) = (step for step in store.maintain(dry_run=True))
    assert isinstance(told, Merge)
    assert (told.segment_count, told.merged_count, told.merged_bytes) == (5, None, None)
    assert segment_names(store) == names


@pytest.mark.parametrize("record_format", ["columns", "kafka", "parquet"])
def test_maintain_merges_and_deletes_the_old_ones_a_week_later(
    store: Store, clock: VirtualClock, record_format: str
) -> None:
    """A reader pinned before reads them until then, and gets an error afterwards."""
    if record_format == "parquet":
        store.topics.delete("t")
        store.topics.create("t", config={"record.format": record_format})
    else:
        store.topics.alter("t", config={"record.format": record_format})
    for number in range(6):
        append(store, b"%d" % number)
    pinned = store.scan("t")
    expected = pinned.to_arrow()
    old = data_files(store)
    steps = another(store).maintain()
    assert [type(step) for step in steps] == [Merge]
    new = sorted({*data_files(store)} - {*old})
    assert len(new) == 1
    clock.time_ms += WEEK_MS - 1
    assert another(store).maintain() == []
    assert pinned.to_arrow() == expected
    clock.time_ms += 1
    (gone,) = another(store).maintain()
    assert isinstance(gone, FileDeletion)
    assert gone.reason == "rewritten"
    assert sorted(gone.paths) == old
    assert data_files(store) == new
    with pytest.raises(SnapshotExpired, match="plan the read again"):
        pinned.to_arrow()
    assert another(store).scan("t").to_arrow() == expected
    assert no_damage(store)


def test_a_crash_before_the_note_leaves_what_vacuum_finds(
    store: Store, heap: HeapStorage, clock: VirtualClock
) -> None:
    """Old segments without a note wait for the orphan age, and then for the delay."""
    for number in range(6):
        append(store, b"%d" % number)
    expected = values(store)
    old = data_files(store)
    hooked = HookedStorage(heap)
    hooked.fail_at("retired")
    assert len([*merge_topic(another(store, hooked).logs, "t")]) == 1
    clock.time_ms += WEEK_MS - DAY_MS
    assert another(store).maintain() == []
    clock.time_ms += DAY_MS
    another(store).maintain()
    assert {*old} < {*data_files(store)}
    clock.time_ms += WEEK_MS - DAY_MS
    another(store).maintain()
    assert {*old} < {*data_files(store)}
    clock.time_ms += DAY_MS
    another(store).maintain()
    assert {*old}.isdisjoint(data_files(store))
    assert values(another(store)) == expected


def test_old_segments_stay_while_the_new_one_is_not_there(
    store: Store, heap: HeapStorage, clock: VirtualClock
) -> None:
    """Whatever notes say: they are all that is left of the records."""
    for number in range(6):
        append(store, b"%d" % number)
    old = data_files(store)
    merge(store)
    (new,) = {*data_files(store)} - {*old}
    heap.delete([new])
    for _ in range(4):
        clock.time_ms += WEEK_MS
        another(store).maintain()
    assert {*old} <= {*data_files(store)}


@pytest.mark.store(on="heap", topics={"t": 2})
def test_merged_segments_stay_while_what_they_were_merged_into_is_not_there(
    store: Store, heap: HeapStorage, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the log does not tell any more that they ever held the records."""
    settle_early(monkeypatch)

    def add(partition: int) -> set[str]:
        before = {*data_files(store)}
        for number in range(4):
            append(store, b"%d" % number, partition=partition)
        appended = {*data_files(store)}
        merge(store)
        return {*data_files(store)} - appended - before

    (merged,) = add(0)
    (newest,) = add(0)
    heap.delete([newest])
    for _ in range(4):
        clock.time_ms += WEEK_MS
        add(1)
        another(store).maintain()
    log = another(store).logs.topic("t")
    log.refresh()
    rewrites = log.whole_segments().partitions[0].rewrites
    assert [one.segment.stored.name in newest for one in rewrites] == [True]
    assert merged in data_files(store)


def test_a_merger_that_slept_until_its_segments_were_vacuumed_takes_them_back(
    store: Store, heap: HeapStorage, clock: VirtualClock
) -> None:
    """It had looked just before, and slept then for longer than the orphan age."""
    for number in range(6):
        append(store, b"%d" % number)
    aborted = begin(store)
    send(aborted, b"aborted")
    aborted.abort_transaction()
    expected = values(store)
    hooked = HookedStorage(heap)

    def sleep(path: str) -> None:
        if path.endswith(".json") and "/log/" in path:
            hooked.rule = None
            clock.time_ms += 2 * WEEK_MS
            append(store, b"other")
            another(store).maintain(orphan_age_ms=DAY_MS)
            clock.time_ms += WEEK_MS
            another(store).maintain(orphan_age_ms=DAY_MS)

    hooked.rule = sleep
    slow = another(store, hooked)
    with suppress(StorageError):
        [*merge_topic(slow.logs, "t")]
    assert clock.time_ms > 3 * WEEK_MS
    assert values(another(store)) == [*expected, b"other"]
    assert no_damage(store)


def test_a_merger_whose_put_is_answered_when_all_is_vacuumed_takes_it_back(
    store: Store, heap: HeapStorage, clock: VirtualClock
) -> None:
    """Nobody else has put an entry, so its own stands."""
    for number in range(6):
        append(store, b"%d" % number)
    expected = values(store)
    hooked = HookedStorage(heap)

    def sleep(path: str) -> None:
        if path.endswith(".json") and "/log/" in path:
            hooked.rule = None
            for late in {path for path, _ in heap.list_all("topics/t/data")} - {*old}:
                heap.delete([late])
            clock.time_ms += 2 * WEEK_MS

    old = data_files(store)
    hooked.rule = sleep
    with pytest.raises(StorageError, match="vacuum took for left behind"):
        [*merge_topic(another(store, hooked).logs, "t")]
    assert values(another(store)) == expected
    assert data_files(store) == old
    assert no_damage(store)


@pytest.mark.parametrize("deletes", [False, True])
def test_a_merger_that_slept_takes_nothing_back_from_others(
    store: Store, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, deletes: bool
) -> None:
    """Its merged segments were merged again, or deleted, since: the old ones are rightly gone."""
    for number in range(4):
        append(store, b"%d" % number)
    check = UploadCheck.after

    def sleep(self: UploadCheck, entry: int | None) -> None:
        monkeypatch.setattr(UploadCheck, "after", check)
        for number in range(4, 40):
            append(another(store), b"%d" % number)
        if deletes:
            store.topics.delete_records({T0: 4})
        merge(store)
        for _ in range(3):
            clock.time_ms += WEEK_MS
            another(store).maintain()
        check(self, entry)

    monkeypatch.setattr(UploadCheck, "after", sleep)
    assert len(merge(store)) == 1
    expected = [b"%d" % number for number in range(4 if deletes else 0, 40)]
    assert values(another(store)) == expected
    for _ in range(4):
        clock.time_ms += WEEK_MS
        another(store).maintain()
    assert values(another(store)) == expected
    assert no_damage(store)


def test_old_segments_go_though_the_one_after_them_is_gone(
    store: Store, heap: HeapStorage, clock: VirtualClock
) -> None:
    """A third one holds the records: nothing is lost that the first ones would be kept for."""
    for number in range(6):
        append(store, b"%d" % number)
    old = data_files(store)
    hooked = HookedStorage(heap)
    hooked.fail_at("retired")
    [*merge_topic(another(store, hooked).logs, "t")]
    for number in range(6, 26):
        append(store, b"%d" % number)
    assert len(merge(store)) == 1
    for _ in range(5):
        clock.time_ms += WEEK_MS - DAY_MS
        another(store).maintain()
    assert {*old}.isdisjoint(data_files(store))
    assert len(data_files(store)) == 1
    assert values(another(store)) == [b"%d" % number for number in range(26)]


def test_what_later_rewrites_stand_for_together_is_left_out() -> None:
    """Segments of different generations end at different offsets: none is remembered for ever."""

    def rewrite(entry: int, start: int, end: int, purged_from: int = -1) -> Rewrite:
        special = RewrittenFile(end - start, purged_from=purged_from)
        return Rewrite(
            entry,
            0,
            Segment.of(
                entry, SegmentEntry(0, start, StoredSegment("s", 1, 1, 0, 0, rewritten=special))
            ),
        )

    def generation(entry: int) -> list[Rewrite]:
        ends = [0, *range(entry, 100, 10), 100]
        return [rewrite(entry, start, end) for start, end in itertools.pairwise(ends)]

    rewrites = [one for entry in range(1, 10) for one in generation(entry)]
    assert still_of_use(rewrites, [0], 1 << 62) == (generation(9), {0: 9})
    kept = [one for entry in (7, 8, 9) for one in generation(entry)]
    assert still_of_use(rewrites, [0], 8) == (kept, {0: 7})
    assert still_of_use(rewrites, [0], 0) == (rewrites, {})
    purges = [rewrite(2, 0, 50, 1), rewrite(4, 0, 20, 2), rewrite(4, 20, 50, 2)]
    others = [rewrite(n, 0, 50) for n in (1, 3, 5, 6)]
    kept = [*purges[1:], others[-1]]
    assert still_of_use([*others, *purges], [0], 1 << 62) == (kept, {0: 6})


@pytest.mark.parametrize("seed", range(300))
def test_each_offset_is_held_once_however_often_it_was_rewritten_and_trimmed(seed: int) -> None:
    """Runs of whole segments become others, which end elsewhere; then their beginning is deleted.

    What holds an offset is known from a list of all of them.
    """
    chance = random.Random(seed)

    def segments(entry: int, start: int, end: int, *, is_appended: bool = False) -> list[Segment]:
        most = chance.randint(0, 4)
        ends = sorted({start, *(chance.randint(start, end) for _ in range(most)), end})
        made = []
        for low, high in itertools.pairwise(ends):
            special = None if is_appended else RewrittenFile(high - low)
            stored = StoredSegment(f"{entry}-{low}", high - low, 1, 0, 0, rewritten=special)
            made.append(Segment.of(entry, SegmentEntry(0, low, stored)))
        return made

    end = chance.randint(1, 60)
    appended = segments(0, 0, end, is_appended=True)
    held, start, rewrites = [*appended], 0, list[Rewrite]()
    for entry in range(1, chance.randint(2, 12)):
        first = chance.randrange(len(held))
        last = chance.randrange(first, len(held)) + 1
        new = segments(entry, held[first].base_offset, held[last - 1].end_offset)
        held[first:last] = new
        rewrites += [Rewrite(entry, 0, segment) for segment in new]
        if chance.random() < 0.4:
            start = chance.randint(start, end - 1)
        held = [segment for segment in held if segment.end_offset > start]
        if chance.random() < 0.5:
            since = chance.randint(0, entry)
            rewrites, _ = still_of_use(rewrites, [start], since)
        else:
            rewrites = untrimmed(rewrites, [start])
        assert records_in(appended, rewrites, start, end) == held
    kept, _ = still_of_use(rewrites, [start], 1 << 62)
    assert {one.segment for one in kept} <= {*held}


def test_nothing_undecided_or_aborted_is_merged(store: Store) -> None:
    for number in range(5):
        append(store, b"%d" % number)
    aborted = begin(store, "a")
    send(aborted, b"aborted")
    aborted.abort_transaction()
    open_one = begin(store, "o")
    send(open_one, b"open")
    for number in range(5):
        append(store, b"late %d" % number)
    (done,) = merge(store)
    assert done.segment_count == 5
    assert values(store) == [b"%d" % number for number in range(5)]
    everything = values(store, isolation_level="read_uncommitted")
    assert everything[5:7] == [b"aborted", b"open"]
    open_one.commit_transaction()
    (done,) = merge(store)
    assert done.segment_count == 6


@pytest.mark.few(2)
@pytest.mark.parametrize("record_format", ["auto", "kafka", "parquet"])
@pytest.mark.parametrize("aborts", [2, 4])
def test_segments_stay_few_where_many_transactions_are_aborted(
    store: Store, clock: VirtualClock, tmp_path: Path, aborts: int, record_format: str
) -> None:
    """What was aborted a while ago is merged away. Who reads what was committed notices nothing."""
    config = {"record.format": record_format, "file.delete.delay.ms": WEEK_MS}
    store.topics.alter("t", config=config)
    producer = store.producer(transactional_id="p")
    producer.init_transactions()
    for number in range(40):
        producer.begin_transaction()
        send(producer, b"%d" % number)
        clock.time_ms += 1000
        if number == 20:
            token = store.snapshot("t").token()
        if number % aborts == 1:
            producer.abort_transaction()
        else:
            producer.commit_transaction()

    def seen(store: Store, name: str) -> list[object]:
        exported = store.kafka.export_topic("t", str(tmp_path / name), keep_offsets=True)
        return [
            store.scan("t").to_arrow(),
            [store.scan("t", {0: at}, {0: at + 9}).to_arrow().to_pylist() for at in range(32)],
            store.scan("t").count(),
            store.changes("t", token).to_arrow(),
            store.snapshot("t", at=token).scan("t").to_arrow(),
            polled(store, 3),
            exported.record_count,
        ]

    before = seen(store, "before")
    everything = values(store, isolation_level="read_uncommitted")
    merge(store)
    assert values(store, isolation_level="read_uncommitted") == everything
    clock.time_ms += WEEK_MS
    merge(store)
    assert seen(another(store), "after") == seen(store, "and") == before
    assert len(segment_names(store)) < 4
    assert no_damage(store)
    clock.time_ms += WEEK_MS
    assert not [s for s in store.maintain() if isinstance(s, MaintenanceFailure)]
    assert len(data_files(store)) < 4
    assert seen(another(store), "at last") == before
    assert no_damage(store)


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("key", [[], ["n"]], ids=["no key", "key"])
def test_aborted_records_of_typed_topics_are_merged_away(
    store: Store, key: list[str], partitions: int
) -> None:
    """A schema need not have a key: then nothing tells what is a tombstone, or at home."""
    schema = pa.schema([pa.field("n", pa.int32(), nullable=False)])
    config = {"file.delete.delay.ms": 0}
    store.topics.create("typed", partitions=partitions, schema=schema, key=key, config=config)
    producer = store.producer(transactional_id="p")
    producer.init_transactions()
    for number in range(24):
        producer.begin_transaction()
        producer.send("typed", {"n": number}, partition=number // 2 % partitions)
        producer.flush()
        if number % 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    before = store.scan("typed").to_arrow()
    assert len(merge(store, "typed")) == partitions
    assert another(store).scan("typed").to_arrow() == before
    assert no_damage(store)


def polled(store: Store, start: int) -> list[tuple[int, bytes]]:
    """What a consumer gets from an offset on."""
    with store.consumer() as consumer:
        consumer.assign([T0])
        consumer.seek(T0, start)
        return [(record.offset, record.value) for record in consumer.poll(max_records=100)]


def test_runs_that_do_not_touch_go_into_one_entry(store: Store) -> None:
    for number in range(5):
        append(store, b"%d" % number)
    aborted = begin(store, "a")
    send(aborted, b"aborted")
    aborted.abort_transaction()
    for number in range(5):
        append(store, b"late %d" % number)
    before = store.logs.topic("t").next_entry
    everything = values(store, isolation_level="read_uncommitted")
    assert [done.segment_count for done in merge(store)] == [5, 5]
    assert values(store, isolation_level="read_uncommitted") == everything
    assert store.logs.topic("t").next_entry == before + 1
    assert no_damage(store)


def test_a_deleted_topic_is_not_rewritten(store: Store, heap: HeapStorage) -> None:
    """Nor one that was recreated; what was uploaded for it is vacuumed."""
    for number in range(5):
        append(store, b"%d" % number)
    hooked = HookedStorage(heap)

    def delete(path: str) -> None:
        if path.endswith(".json") and "/log/" in path:
            hooked.rule = None
            store.topics.delete("t")
            store.topics.create("t")
            append(store, b"new")

    hooked.rule = delete
    with pytest.raises(UnknownTopicOrPartition):
        [*merge_topic(another(store, hooked).logs, "t")]
    assert values(store) == [b"new"]


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 8))]
)
def test_nobody_notices(
    heap: HeapStorage, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Writers, aborts, trims, merges, checkpoints and vacuums in any order; pins stay as they are.

    Some stores are ahead, some behind, and what they read is the same at every moment.
    """
    settle_early(monkeypatch)
    chance = random.Random(seed)
    store = new_store(heap, clock, {"t": 2}, config={"log.cleanup.age.ms": DAY_MS})
    stores = [store, *(another(store) for _ in range(3))]
    producers = [one.producer(transactional_id=f"p{n}") for n, one in enumerate(stores)]
    for producer in producers:
        producer.init_transactions()
    pins: list[tuple[int, Scan, pa.Table]] = []
    merged = 0
    for turn in range(150):
        clock.time_ms += chance.choice([0, 1000, 3_600_000])
        index = chance.randrange(len(stores))
        kind = chance.randrange(12)
        if kind < 4:
            append(stores[index], b"%d" % turn, partition=chance.randrange(2))
        elif kind < 6:
            producers[index].begin_transaction()
            send(producers[index], b"t%d" % turn, partition=chance.randrange(2))
            if chance.random() < 0.8:
                producers[index].commit_transaction()
            else:
                producers[index].abort_transaction()
        elif kind in (6, 10, 11):
            before = {level: read(stores[index], level) for level in LEVELS}
            merged += len([*merge_topic(stores[index].logs, "t")])
            for level in LEVELS:
                after = read(chance.choice(stores), level)
                assert after.to_pylist() == before[level].to_pylist(), (turn, level)
        elif kind == 7:
            one = chance.choice([stores[index], another(store)])
            scan = one.scan("t", isolation_level=chance.choice(LEVELS))
            pins.append((clock.time_ms, scan, scan.to_arrow()))
        elif kind == 8:
            failed = stores[index].maintain(orphan_age_ms=DAY_MS)
            assert not [step for step in failed if isinstance(step, MaintenanceFailure)]
        else:
            ends = stores[index].snapshot("t").end_offsets("t")
            low = stores[index].snapshot("t").beginning_offsets("t")[0]
            if turn % 3 == 0 and ends[0] > low:
                store.topics.delete_records({T0: chance.randint(low, ends[0])})
            checkpoint(stores[index])
    assert merged > 5
    for at_ms, scan, table in pins:
        if clock.time_ms - at_ms < WEEK_MS:
            assert scan.to_arrow() == table
    tables = [read(one, level) for level in LEVELS for one in (*stores, another(store))]
    assert all(table == tables[0] for table in tables[: len(stores) + 1])
    assert no_damage(store)


LEVELS: tuple[IsolationLevel, ...] = ("read_committed", "snapshot", "read_uncommitted")


def read(store: Store, level: IsolationLevel) -> pa.Table:
    return store.scan("t", isolation_level=level).to_arrow()


# -- crashes, and several at once ----------------------------------------------------------------


def test_a_crash_at_any_request(heap: HeapStorage, clock: VirtualClock) -> None:
    """Old records or new ones hold; a later run goes on, and nothing is left but what is needed."""
    store = new_store(heap, clock)
    for number in range(6):
        append(store, b"%d" % number)
    expected = store.scan("t").to_arrow()
    stops = 0
    for at in itertools.count():
        copied = heap.copy()
        copied.time_ms = lambda: clock.time_ms
        faulty = FaultyStorage(copied, {at: Fault.STOP_AFTER if at % 2 else Fault.STOP_BEFORE})
        try:
            [*merge_topic(attach(faulty, clock=clock).logs, "t")]
        except ProcessStopped:
            stops += 1
        else:
            break
        begun_ms = clock.time_ms
        fresh = attach(copied, clock=clock)
        assert fresh.scan("t").to_arrow() == expected
        for _ in range(3):
            attach(copied, clock=clock).maintain()
            clock.time_ms += WEEK_MS
        attach(copied, clock=clock).maintain()
        assert attach(copied, clock=clock).scan("t").to_arrow() == expected
        assert len([path for path, _ in copied.list_all("topics/t/data")]) == 1
        clock.time_ms = begun_ms
    assert stops > 5


def meet(switches: list[int]) -> int:
    """Two mergers and a writer with these preemptions; how many steps it took."""
    simulation = Simulation()
    store = simulation.store()
    store.topics.create("t")
    for number in range(5):
        append(store, b"%d" % number)

    def run(process: Process) -> None:
        [*merge_topic(process.store().logs, "t")]

    def write(process: Process) -> None:
        append(process.store(), b"late")

    simulation.spawn("a", run)
    simulation.spawn("b", run)
    simulation.spawn("w", write)
    simulation.run(preemptions(switches))
    left = simulation.store()
    assert values(left) == [*(b"%d" % number for number in range(5)), b"late"], switches
    assert len(left.topics.segments("t")) in (1, 2), switches
    placed = {segment.paths.log for segment in left.topics.segments("t")}
    assert placed <= {path for path, _ in simulation.storage.list_all("topics/t/data")}
    return len(simulation.order)


@pytest.mark.more
def test_two_mergers_at_once() -> None:
    """One of them wins; the other deletes what it has uploaded, and nothing else."""
    length = meet([])
    for step in range(length):
        meet([step])
    for pair in itertools.combinations(range(0, length, 7), 2):
        meet([*pair])


# -- how much ------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [{"retention.ms": DAY_MS}, {"segment.ms": DAY_MS // 8}])
def test_retention_bounds_what_is_merged(
    store: Store, clock: VirtualClock, config: dict[str, int]
) -> None:
    """Retention deletes whole segments: a merged one must not keep records for much longer."""
    store.topics.alter("t", config=config)
    for number in range(48):
        append(store, b"%d" % number)
        clock.time_ms += DAY_MS // 48
    another(store).maintain()
    spans = [s.max_timestamp_ms - s.min_timestamp_ms for s in another(store).topics.segments("t")]
    assert 1 < len(spans) < 20
    assert max(spans) <= DAY_MS // 8


def test_what_it_costs(store: Store, heap: HeapStorage) -> None:
    """A read for each old segment; for all of them together an upload, an entry and a note."""
    for number in range(100):
        append(store, b"%d" % number)
    counting = CountingStorage(heap)
    logs = attach(counting, clock=store.logs.clock).logs
    counting.counts.clear()
    assert len([*merge_topic(logs, "t")]) == 1
    assert counting.counts["get_range"] == 100
    assert counting.counts["put_if_absent"] <= 3
    assert counting.counts["list"] <= 8
