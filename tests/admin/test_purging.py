"""Purging keys: what goes, what stays where it is, and that no file has them in the end."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from msgspec.structs import replace

from tests.support.admin.compacted_topics import compact, standing
from tests.support.log.settling import settle_early
from tests.support.steps import another, begin
from txnlog import TopicPartition
from txnlog.admin import purge_topic
from txnlog.errors import (
    CorruptRecord,
    InvalidOption,
    InvalidRecord,
    SnapshotExpired,
    StorageError,
    UnknownTopicOrPartition,
)
from txnlog.log.uploads import UploadCheck
from txnlog.results import PurgeReport
from txnlog.state.segment import StoredSegment, resolve
from txnlog.store import Store, attach
from txnlog.testing import Fault, FaultyStorage, HeapStorage, ProcessStopped, VirtualClock

DAY_MS = 86_400_000
FORMATS = ["columns", "kafka", "parquet", "auto"]
PERSON = "mallory"
"""The key to purge. Nothing is compressed, so its records can be looked for in bytes of files."""
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("note", pa.string())])


def new_store(heap: HeapStorage, clock: VirtualClock, partitions: int = 1, **config: Any) -> Store:
    settings = {"compression.type": "none", **{k.replace("_", "."): v for k, v in config.items()}}
    heap.time_ms = lambda: clock.time_ms
    store = attach(heap, create=True, clock=clock)
    store.topics.create("t", partitions=partitions, config=settings)
    return store


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(1_700_000_000_000)


@pytest.fixture
def heap() -> HeapStorage:
    return HeapStorage()


def put(store: Store, *keys: str, width: int = 0) -> None:
    """A record of each key, in one entry; its value has the key in it, and ``width`` bytes."""
    with store.producer() as producer:
        for number, key in enumerate(keys):
            value = f"said by {key}, {number}".ljust(width)
            producer.send("t", value, key, headers=[("of", key.encode())])


def rows(store: Store, **options: Any) -> list[dict[str, Any]]:
    columns = ["partition", "offset", "key", "value", "timestamp", "headers"]
    found = store.scan("t", columns=columns, **options).to_arrow().to_pylist()
    return sorted(found, key=lambda row: (row["partition"], row["offset"]))


def purge(store: Store, *keys: str, **options: Any) -> PurgeReport:
    return store.maintenance.purge("t", [{"key": key} for key in keys], **options)


def holding(heap: HeapStorage, word: str = PERSON) -> list[str]:
    """The files with this in them."""
    found = [path for path, _ in heap.list_all("")]
    return [path for path in found if word.encode() in heap.get(path)]


def clean_up(store: Store, clock: VirtualClock) -> None:
    """What maintenance does within a month."""
    for _ in range(4):
        clock.time_ms += 8 * DAY_MS
        another(store).maintain()


@pytest.mark.parametrize("record_format", FORMATS)
def test_all_records_of_a_key_go_and_the_others_stay(
    heap: HeapStorage, clock: VirtualClock, record_format: str
) -> None:
    """At their offsets, with times and headers; the files go after their delay."""
    store = new_store(heap, clock, record_format=record_format)
    for _ in range(3):
        put(store, "ann", PERSON, "bob", PERSON)
        clock.time_ms += 7
    put(store, "ann", "bob")
    before = rows(store)
    told = purge(store, PERSON, dry_run=True)
    assert rows(store) == before
    report = purge(store, PERSON)
    (done,) = report.partitions
    assert (done.record_count, done.segment_count) == (6, 3)
    assert told.partitions[0].record_count == 6
    assert told.partitions[0].purged_bytes is None
    assert rows(store) == [row for row in before if row["key"] != PERSON.encode()]
    assert rows(another(store)) == rows(store)
    assert report.waiting_files == 3
    assert holding(heap)
    again = purge(store, PERSON)
    assert (again.partitions, again.waiting_files) == ((), 3)
    clean_up(store, clock)
    assert not holding(heap)
    assert purge(store, PERSON) == PurgeReport("t", (), 0, 0)
    put(store, "ann")
    assert rows(store)[-1]["offset"] == 14


def test_stopped_anywhere_it_brings_nothing_back(
    heap: HeapStorage, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never is a tombstone gone and the value before it there; the next purge does the rest."""
    monkeypatch.setattr(purge_topic, "_BYTES_PER_ENTRY", 1)
    store = new_store(heap, clock, cleanup_policy="compact")
    for _ in range(3):
        put(store, PERSON, "ann")
        compact(store)
    put(store, PERSON, "bob")
    with store.producer() as producer:
        producer.send("t", None, PERSON)
    done = set()
    for at in range(1000):
        copied = heap.copy()
        faulty = FaultyStorage(copied, {at: Fault.STOP_AFTER if at % 2 else Fault.STOP_BEFORE})
        try:
            purge(attach(faulty, clock=clock), PERSON)
        except ProcessStopped:
            found = attach(copied, clock=clock)
            newest = found.scan("t", columns=["key"], latest=True).to_arrow()
            assert PERSON.encode() not in newest["key"].to_pylist()
            done.add(sum(row["key"] == PERSON.encode() for row in rows(found)))
            purge(found, PERSON)
            assert [row["key"] for row in rows(found)] == [b"ann", b"bob"]
        else:
            break
    assert len(done) > 2  # some of it was done, and not all


@pytest.mark.parametrize("is_typed", [False, True], ids=["plain", "typed"])
def test_stopped_between_partitions_it_brings_nothing_back(
    heap: HeapStorage, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, *, is_typed: bool
) -> None:
    """Of two keys each has its newest tombstone where the other has an older value.

    In the end the tombstones are gone, too.
    """
    monkeypatch.setattr(purge_topic, "_BYTES_PER_ENTRY", 1)
    heap.time_ms = lambda: clock.time_ms
    store = attach(heap, create=True, clock=clock)
    schema = pa.schema([("k", pa.string()), ("v", pa.string())]) if is_typed else None
    name = "k" if is_typed else "key"
    store.topics.create("t", partitions=2, schema=schema, key=["k"] if is_typed else None)

    def send(partition: int, key: str, value: str | None) -> None:
        clock.time_ms += 1000
        with store.producer() as producer:
            if is_typed:
                row = {"k": key, "v": value, "_deleted": value is None}
                producer.send_batch("t", [row], partition=partition)
            else:
                producer.send("t", value, key, partition=partition, timestamp_ms=clock.time_ms)

    def keys(latest: bool) -> list[Any]:
        return [*store.scan("t", columns=[name], latest=latest).to_arrow()[name].to_pylist()]

    send(0, "ann", "a value")
    send(1, PERSON, "a value")
    send(1, "bob", "a value")
    send(0, PERSON, None)
    send(1, "ann", None)
    (bob,) = keys(latest=True)
    shown = []

    def look(request: str) -> None:
        if request.startswith("put_if_absent topics/t/log/"):
            shown.append((keys(latest=True), len(keys(latest=False))))

    watched = attach(FaultyStorage(heap, before_request=look), clock=clock)
    report = watched.maintenance.purge("t", [{name: "ann"}, {name: PERSON}])
    assert [part.record_count for part in report.partitions] == [2, 2]
    assert keys(latest=False) == [bob]
    assert len({left for _, left in shown}) == 4
    assert {*map(tuple, (newest for newest, _ in shown))} == {(bob,)}


@pytest.mark.parametrize("record_format", FORMATS)
@pytest.mark.parametrize("word", ["dan", "said by dan"], ids=["key", "value"])
def test_a_damaged_segment_stays_and_keeps_no_other(
    heap: HeapStorage, clock: VirtualClock, record_format: str, word: str
) -> None:
    """It is named. Where a value is damaged, that may only show when it is written again."""
    store = new_store(heap, clock, record_format=record_format)
    for keys in ([PERSON], ["dan", PERSON], [PERSON], ["ann"]):
        put(store, *keys)
    (path,) = holding(heap, "said by dan")
    content = heap.get(path)
    heap.delete([path])
    heap.put_if_absent(path, content.replace(word.encode(), word[::-1].encode()))
    options: dict[str, Any]
    for options in ({"dry_run": True}, {}, {}):
        report = purge(another(store), PERSON, **options)
        found = [(one.partition, one.offset, one.next_offset) for one in report.damaged]
        if not options or found:
            assert found == [(0, 1, 3)]
    assert report.partitions == ()
    heap.delete([path])
    heap.put_if_absent(path, content)
    report = purge(another(store), PERSON)
    assert ([part.record_count for part in report.partitions], report.damaged) == ([1], ())
    assert [row["key"] for row in rows(store)] == [b"dan", b"ann"]


@pytest.mark.parametrize("record_format", FORMATS)
@pytest.mark.parametrize("word", [PERSON, f"said by {PERSON}"], ids=["key", "value"])
def test_a_tombstone_stays_where_what_it_deletes_may_be_restored(
    heap: HeapStorage, clock: VirtualClock, record_format: str, word: str
) -> None:
    store = new_store(heap, clock, record_format=record_format)
    put(store, "ann")
    put(store, PERSON)
    with store.producer() as producer:
        producer.send("t", None, PERSON)
    (path,) = holding(heap, f"said by {PERSON}")
    content = heap.get(path)
    heap.delete([path])
    heap.put_if_absent(path, content.replace(word.encode(), word[::-1].encode()))
    assert purge(another(store), PERSON).damaged
    heap.delete([path])
    heap.put_if_absent(path, content)
    newest = another(store).scan("t", columns=["key"], latest=True).to_arrow()["key"].to_pylist()
    assert newest == [b"ann"]
    purge(another(store), PERSON)
    assert [row["key"] for row in rows(store)] == [b"ann"]


@pytest.mark.parametrize("is_shared", [False, True])
def test_what_was_trimmed_goes_too(heap: HeapStorage, clock: VirtualClock, is_shared: bool) -> None:
    """It lies in a file that others need, where no reader sees it."""
    store = new_store(heap, clock, partitions=2, record_format="columns")
    with store.producer() as producer:
        producer.send("t", f"said by {PERSON}", PERSON, partition=0)
        producer.send("t", b"said by ann", b"ann", partition=int(is_shared))
    store.topics.delete_records({TopicPartition("t", 0): 1})
    clean_up(store, clock)
    assert holding(heap)
    assert [row["key"] for row in rows(store)] == [b"ann"]
    (done,) = purge(store, PERSON).partitions
    assert (done.record_count, done.segment_count) == (0, 1)
    clean_up(store, clock)
    assert not holding(heap)
    assert [row["key"] for row in rows(store)] == [b"ann"]


def test_what_was_aborted_goes_too(heap: HeapStorage, clock: VirtualClock) -> None:
    """It stays in the topic's files as long as what is around it."""
    store = new_store(heap, clock)
    put(store, "ann")
    producer = begin(store)
    producer.send("t", f"said by {PERSON}", PERSON)
    producer.flush()
    producer.abort_transaction()
    put(store, "bob")
    clean_up(store, clock)
    assert holding(heap)
    purge(store, PERSON)
    clean_up(store, clock)
    assert not holding(heap)
    assert [row["key"] for row in rows(store)] == [b"ann", b"bob"]


@pytest.mark.parametrize("is_shared", [False, True])
def test_what_was_aborted_may_be_gone(
    heap: HeapStorage, clock: VirtualClock, is_shared: bool
) -> None:
    """A writer that slept has placed what vacuum had deleted: nobody needs it."""
    store = new_store(heap, clock, partitions=2)
    put(store, "ann", PERSON, "bob")
    before = {path for path, _ in heap.list_all("topics/t/data")}
    producer = begin(store)
    for key in ("ann", PERSON, "bob")[: None if is_shared else 1]:
        producer.send("t", f"said by {key}", key)
    producer.flush()
    producer.abort_transaction()
    heap.delete({path for path, _ in heap.list_all("topics/t/data")} - before)
    put(store, "ann", PERSON, "bob")
    for with_contents in (False, True):
        found = another(store).examine(with_probe=False, with_contents=with_contents)
        assert {one.state for one in found if one.check == "data"} == {"note", "ok"}
    told = [purge(another(store), PERSON, dry_run=dry_run) for dry_run in (True, False)]
    assert [sum(part.record_count for part in one.partitions) for one in told] == [2, 2]
    assert [row["key"] for row in rows(store)].count(PERSON.encode()) == 0
    assert len(rows(store)) == 4


def test_what_is_compacted_stays_so(heap: HeapStorage, clock: VirtualClock) -> None:
    """With how long its tombstones stay, and up to where newer records were looked for."""
    store = new_store(heap, clock, cleanup_policy="compact")
    put(store, "ann", PERSON)
    with store.producer() as producer:
        producer.send("t", None, "bob")
    put(store, "ann", PERSON)
    compact(store)
    put(store, "ann", PERSON)

    def placed() -> list[Any]:
        state = another(store).logs.fresh_topic("t").whole_segments()
        return [s.stored.rewritten for s in state.partitions[0].record_segments()]

    before = placed()
    assert before[0].judged_end > 0 <= before[0].delete_horizon_ms
    purge(store, PERSON)
    after = placed()
    assert after[0] == replace(before[0], purged_from=after[0].purged_from)
    assert after[0].purged_from > 0
    assert not after[1].is_compacted
    assert compact(store)[0].segment_count > 0
    assert [row["key"] for row in rows(store)] == [b"bob", b"ann"]


KEYS = ("ann", "bob", "cy", PERSON)


def _happen(store: Store, chance: random.Random, clock: VirtualClock, history: str) -> None:
    """One thing that may happen to the topic."""
    keys = chance.choices(KEYS, k=chance.randrange(1, 6))
    match history:
        case "write":
            put(store, *keys, width=chance.choice([0, 500]))
        case "commit" | "abort":
            producer = begin(store)
            for key in keys:
                producer.send("t", f"said by {key}", key)
            producer.flush()
            if history == "commit":
                producer.commit_transaction()
            else:
                producer.abort_transaction()
        case "delete":
            with store.producer() as producer:
                producer.send("t", None, chance.choice(KEYS))
        case "compact":
            with suppress(InvalidOption):
                store.maintenance.compact("t")
        case "merge":
            store.maintenance.merge("t")
        case "trim":
            for part in store.topics.describe("t").partitions:
                start, end = part.log_start_offset, part.last_stable_offset
                if chance.random() < 0.5:
                    at = {TopicPartition("t", part.partition): chance.randint(start, end)}
                    store.topics.delete_records(at)
        case "purge":
            purge(store, chance.choice(KEYS[:2]))
        case "resize":  # then what was one segment is rewritten as several, or several as one
            store.topics.alter("t", config={"segment.bytes": chance.choice([1 << 10, 1 << 20])})
        case "maintain":
            clock.time_ms += chance.choice([0, 8 * DAY_MS])
            store.maintain()
    clock.time_ms += 11


def _newest(store: Store) -> list[dict[str, Any]]:
    found = store.scan("t", columns=["key", "value"], latest=True).to_arrow().to_pylist()
    return sorted(found, key=lambda row: row["key"])


SELDOM = ("delete", "compact", "merge", "trim", "purge", "resize", "maintain")
HISTORIES = {"write": 6, "commit": 3, "abort": 2, **dict.fromkeys(SELDOM, 1)}
"""What may happen, and how often."""


@pytest.mark.few(2)
@pytest.mark.parametrize("record_format", FORMATS)
@pytest.mark.parametrize(
    "seeds", [range(6), pytest.param(range(6, 60), marks=pytest.mark.more)], ids=["few", "many"]
)
def test_after_any_history(clock: VirtualClock, record_format: str, seeds: range) -> None:
    """What was trimmed, aborted, compacted, merged and purged before, in files shared or not."""
    for seed in seeds:
        chance = random.Random(seed)
        heap = HeapStorage()
        policy = chance.choice(["delete", "compact"])
        store = new_store(
            heap, clock, chance.choice([1, 3]), record_format=record_format, cleanup_policy=policy
        )
        for _ in range(chance.randrange(3, 25)):
            happens = chance.choices([*HISTORIES], weights=[*HISTORIES.values()])[0]
            _happen(chance.choice([store, another(store)]), chance, clock, happens)
        before = rows(store)
        newest = _newest(store)
        told = purge(store, PERSON, dry_run=True)
        report = purge(another(store), PERSON)
        assert _newest(store) == [row for row in newest if row["key"] != PERSON.encode()], seed
        gone = [row for row in before if row["key"] == PERSON.encode()]
        assert rows(store) == [row for row in before if row not in gone], seed
        counts = [sum(part.record_count for part in one.partitions) for one in (told, report)]
        assert counts == [len(gone)] * 2, seed
        clean_up(store, clock)
        assert not holding(heap), seed
        if policy == "delete":
            assert rows(store) == [row for row in before if row not in gone], seed
        assert not sum(part.record_count for part in purge(store, PERSON).partitions), seed


@pytest.mark.parametrize("is_settled", [False, True], ids=["head", "settled"])
@pytest.mark.parametrize("how", ["compact", "purge"])
def test_a_part_of_what_took_a_segments_place_is_trimmed(
    heap: HeapStorage,
    clock: VirtualClock,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
    *,
    is_settled: bool,
) -> None:
    """One merged segment is rewritten as several: it stays replaced when the first of them goes."""
    if is_settled:
        settle_early(monkeypatch)
    policy = "compact,delete" if how == "compact" else "delete"
    store = new_store(heap, clock, cleanup_policy=policy, min_cleanable_dirty_ratio=0)
    keys = [f"k{number}" for number in range(20)]
    for key in keys:
        put(store, key, width=500)
    store.maintenance.merge("t")
    store.topics.alter("t", config={"segment.bytes": 2000})
    purge(store, keys[-1]) if how == "purge" else store.maintenance.compact("t")
    left = rows(store)
    assert len([*store.topics.segments("t")]) > 3
    for start in range(3, 20, 3):
        store.topics.delete_records({TopicPartition("t", 0): start})
        assert rows(another(store)) == [row for row in left if row["offset"] >= start]
    clean_up(store, clock)
    assert rows(store) == [row for row in left if row["offset"] >= 18]


def test_what_is_not_decided_is_said(heap: HeapStorage, clock: VirtualClock) -> None:
    """It is purged the next time."""
    store = new_store(heap, clock, partitions=2)
    older = begin(store, "older")
    older.send("t", b"of another", b"ann", partition=1)
    older.flush()
    with store.producer() as producer:
        producer.send("t", f"said by {PERSON}", PERSON, partition=0)
        producer.send("t", b"said by bob", b"bob", partition=1)
    assert purge(store, PERSON) == PurgeReport("t", (), 3, 0)
    older.commit_transaction()
    report = purge(store, PERSON)
    # They share a file, which would stay with the other one's record.
    assert [(p.partition, p.record_count) for p in report.partitions] == [(0, 1), (1, 0)]
    assert report.undecided_count == 0
    clean_up(store, clock)
    assert not holding(heap)
    assert [row["key"] for row in rows(store)] == [b"ann", b"bob"]


@pytest.mark.parametrize("others", [1, 99])
def test_others_that_rewrite_at_the_same_time(
    heap: HeapStorage, clock: VirtualClock, others: int
) -> None:
    """It begins again, and gives up only if they never end."""
    store = new_store(heap, clock)
    put(store, "ann", PERSON, *(f"n{n}" for n in range(others)))
    left = list(range(others))

    def overtake(request: str) -> None:
        if request.startswith("put_if_absent topics/t/log/") and left:
            purge(another(store), f"n{left.pop()}")

    racing = attach(FaultyStorage(heap, before_request=overtake), clock=clock)
    if others > 1:
        with pytest.raises(StorageError, match="again and again"):
            purge(racing, PERSON)
        assert PERSON.encode() in [row["key"] for row in rows(store)]
        left = []
    # A stream of keys is there once, however often it begins again.
    keys = pa.table({"key": [PERSON]}).to_reader()
    (done,) = racing.maintenance.purge("t", keys).partitions
    assert done.record_count == 1
    assert PERSON.encode() not in [row["key"] for row in rows(store)]


def test_a_topic_that_is_recreated_between_two_turns_is_left_alone(
    heap: HeapStorage, clock: VirtualClock
) -> None:
    """Who has asked meant the old one."""
    store = new_store(heap, clock)
    put(store, "ann", PERSON, "bob")
    done: list[str] = []

    def happen(request: str) -> None:
        if request.startswith("put_if_absent topics/t/log/") and not done:
            done.append("another rewrites it first")
            purge(another(store), "bob")
        elif request == "delete 1 objects" and len(done) == 1:
            done.append("a turn is over")
            another(store).topics.delete("t")
            another(store).topics.create("t")
            put(another(store), PERSON)

    racing = attach(FaultyStorage(heap, before_request=happen), clock=clock)
    with pytest.raises(UnknownTopicOrPartition, match="'t' was deleted and recreated since"):
        purge(racing, PERSON)
    assert len(done) == 2
    assert [row["key"] for row in rows(another(store))] == [PERSON.encode()]


def test_typed_topics(heap: HeapStorage, clock: VirtualClock) -> None:
    """By the columns of the key, whatever the table of keys has besides."""
    heap.time_ms = lambda: clock.time_ms
    store = attach(heap, create=True, clock=clock)
    store.topics.create("t", schema=SCHEMA, key=["id"])
    with store.producer() as producer:
        producer.send_batch("t", [{"id": n, "note": f"note {n}"} for n in range(6)])
        producer.send_batch("t", [{"id": 3, "_deleted": True}])
    purged: list[Any] = [
        [{"id": 3, "name": "whoever"}],
        pa.table({"id": pa.array([4], pa.int32())}),
        {"id": [0, 1]},
    ]
    counts = []
    for keys in purged:
        report = store.maintenance.purge("t", keys)
        counts.append(sum(part.record_count for part in report.partitions))
    assert counts == [2, 1, 2]
    assert store.scan("t").to_arrow()["id"].to_pylist() == [2, 5]
    for wrong, why in (
        ([{"note": "x"}], "null"),
        ({"note": ["x"]}, "columns id"),
        ({"id": ["x"]}, "id"),
        (7, "a table, or a list"),
        ([7], "mappings"),
    ):
        with pytest.raises(InvalidRecord, match=why):
            store.maintenance.purge("t", wrong)
    store.topics.create("keyless", schema=SCHEMA)
    with pytest.raises(InvalidOption, match="without a key"):
        store.maintenance.purge("keyless", [{"id": 1}])
    with pytest.raises(UnknownTopicOrPartition):
        store.maintenance.purge("nowhere", [{"key": "k"}])


MOMENT = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
KEY_KINDS: dict[str, pa.DataType | None] = {
    "no schema": None,
    "text": pa.string(),
    "bytes": pa.binary(),
    "number": pa.int64(),
    "small number": pa.int8(),
    "truth": pa.bool_(),
    "day": pa.date32(),
    "moment": pa.timestamp("us", "UTC"),
    "moment in ms": pa.timestamp("ms", "UTC"),
    "wall clock": pa.timestamp("us"),
    "wall clock in ms": pa.timestamp("ms"),
}
KEY_VALUES: list[Any] = [
    *("a", b"a", "", b"", "5", "2024-01-01", "\ud800", b"\xff"),
    *(5, 0, 1, -1, 300, 1 << 70, True, False, 5.0, 5.5, float("nan"), Decimal(5)),
    *(MOMENT, MOMENT.replace(tzinfo=None), MOMENT.replace(microsecond=1), MOMENT.date()),
    *(MOMENT.replace(hour=13, tzinfo=None), dt.time(1), dt.timedelta(1), 1_704_067_200_000),
    *(pa.scalar(1 << 62, pa.timestamp("ms")), pa.scalar(1 << 62, pa.timestamp("ms", "UTC"))),
    *(pa.scalar(5, pa.int8()), [5], {"k": 5}, object()),
]


@pytest.mark.few(6)
@pytest.mark.parametrize("kind", KEY_KINDS)
def test_a_key_is_what_it_is_when_it_is_sent(
    heap: HeapStorage, clock: VirtualClock, kind: str
) -> None:
    """What send refuses names no other key either: what was purged does not come back."""
    heap.time_ms = lambda: clock.time_ms
    store = attach(heap, create=True, clock=clock)
    of = KEY_KINDS[kind]
    name, other = ("key", "value") if of is None else ("k", "v")
    schema = None if of is None else pa.schema([("k", of), ("v", pa.int64())])
    store.topics.create("t", schema=schema, key=None if of is None else ["k"])
    taken: list[Any] = []
    refused: list[Any] = [None]
    for value in KEY_VALUES:
        try:
            with store.producer() as producer:
                producer.send_batch("t", [{name: value, other: None}])
            taken.append(value)
        except InvalidRecord:
            refused.append(value)
    written = store.scan("t", columns=[name]).to_arrow()[name]
    assert len(written) == len(taken) > 0

    def count(keys: Any) -> int:
        report = store.maintenance.purge("t", keys, dry_run=True)
        return sum(part.record_count for part in report.partitions)

    for value, key in zip(taken, written, strict=True):
        there = pc.sum(pc.equal(written, key)).as_py()
        assert [count([{name: value}]), count({name: [value]})] == [there, there]
    for value in refused:
        for keys in (
            *([{name: value}], [{name: taken[0]}, {name: value}]),
            *({name: [value]}, {name: [taken[0], value]}, {name: (value, taken[-1])}),
        ):
            with pytest.raises(InvalidRecord):
                count(keys)


def test_keys_that_cannot_be(heap: HeapStorage, clock: VirtualClock) -> None:
    """They are refused before anything is read."""
    store = new_store(heap, clock)
    wrongs: list[Any] = [{"key": [1]}, [{"key": None}], [{}], {"value": ["x"]}, None, "key"]
    for wrong in wrongs:
        with pytest.raises(InvalidRecord):
            store.maintenance.purge("t", wrong)
    # Of which letters, or numbers, would be keys; or that have no order among columns.
    one: list[Any] = ["ann", b"ann", bytearray(b"ann"), memoryview(b"ann"), {"ann": 1}, {"ann"}]
    for column in (*one, pa.scalar("ann"), None, 7, iter(["ann"])):
        with pytest.raises(InvalidRecord, match=r"the keys' column 'key' is a .*give \{'key': \["):
            store.maintenance.purge("t", {"key": column})
    with pytest.raises(InvalidOption, match="fewer"):
        store.maintenance.purge("t", {"key": ["x" * (65 << 20)]})
    assert store.maintenance.purge("t", []) == PurgeReport("t", (), 0, 0)


def test_the_keys_of_another_topic(heap: HeapStorage, clock: VirtualClock) -> None:
    """All that are committed in it, tombstones too; those without a key name nobody."""
    store = new_store(heap, clock)
    put(store, "ann", "bob", "cy", "dan", "eve")
    store.topics.create("gone", partitions=2)
    with store.producer() as producer:
        producer.send("gone", b"at her request", "ann", partition=0)
        producer.send("gone", None, "bob", partition=1)
        producer.send("gone", b"a remark", partition=1)
    aborted = begin(store, "aborted")
    aborted.send("gone", b"", "cy")
    aborted.abort_transaction()
    being_made = begin(store, "open")
    being_made.send("gone", b"", "dan")
    being_made.flush()
    before = store.scan("gone").to_arrow()
    (done,) = store.maintenance.purge("t", store.scan("gone")).partitions
    assert done.record_count == 2
    assert [row["key"] for row in rows(store)] == [b"cy", b"dan", b"eve"]
    assert store.scan("gone").to_arrow() == before
    being_made.commit_transaction()
    gone = store.scan("gone", columns=["key"])
    assert sum(part.record_count for part in store.maintenance.purge("t", gone).partitions) == 1
    store.maintenance.purge("gone", gone)
    assert store.scan("gone").to_arrow()["key"].to_pylist() == [None]
    assert store.maintenance.purge("t", store.scan("gone")).partitions == ()


def test_the_keys_of_another_typed_topic(heap: HeapStorage, clock: VirtualClock) -> None:
    """Of narrower types, and deleted ones; one that has other columns is an error."""
    store = new_store(heap, clock)
    store.topics.create("people", schema=SCHEMA, key=["id"])
    narrow = pa.schema([("why", pa.string()), ("id", pa.int16())])
    store.topics.create("gone", schema=narrow, key=["id"])
    with store.producer() as producer:
        producer.send_batch("people", [{"id": n, "note": "n"} for n in range(4)])
        producer.send_batch("gone", [{"id": 1, "why": None}, {"id": 3, "_deleted": True}])
    store.maintenance.purge("people", store.scan("gone"))
    assert store.scan("people").to_arrow()["id"].to_pylist() == [0, 2]
    for topic, of in (("t", "gone"), ("people", "t")):
        with pytest.raises(InvalidRecord, match=f"topic '{topic}': the keys must be .* columns"):
            store.maintenance.purge(topic, store.scan(of))


def test_keys_count_once_however_often_they_come(
    heap: HeapStorage, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic with many records of few keys is within the limit; beyond it no more are read."""
    monkeypatch.setattr(purge_topic, "MOST_KEY_BYTES", 250)
    monkeypatch.setattr(purge_topic, "_MOST_NEW_BYTES", 100)
    store = new_store(heap, clock)
    put(store, "ann", PERSON)
    store.topics.create("gone", partitions=2, config={"compression.type": "none"})

    def send(partition: int, *keys: str) -> None:
        with store.producer() as producer:
            for key in keys:
                producer.send("gone", b"", key, partition=partition)

    for _ in range(40):
        send(0, *(f"k{number}" for number in range(20)))
    send(1, PERSON)
    (done,) = store.maintenance.purge("t", store.scan("gone")).partitions
    assert done.record_count == 1
    (path,) = (path for path in holding(heap) if path.startswith("topics/gone/data"))
    content = heap.get(path)
    heap.delete([path])
    heap.put_if_absent(path, content.replace(PERSON.encode(), PERSON[::-1].encode()))
    with pytest.raises(CorruptRecord, match="gone"):
        store.maintenance.purge("t", store.scan("gone"))
    for ten in range(30):
        send(0, *(f"n{ten}{number}" for number in range(10)))
    with pytest.raises(InvalidOption, match="more than the 0 MiB that a purge takes: give it fewe"):
        store.maintenance.purge("t", store.scan("gone"))


def test_many_segments_are_written_as_few(heap: HeapStorage, clock: VirtualClock) -> None:
    """Those side by side become one, up to what one entry may rewrite."""
    store = new_store(heap, clock)
    for _ in range(30):
        put(store, "ann", PERSON)
    (done,) = purge(store, PERSON).partitions
    assert (done.segment_count, done.record_count) == (30, 30)
    state = another(store).logs.fresh_topic("t").whole_segments()
    (segment,) = state.partitions[0].record_segments()
    assert done.purged_bytes == segment.stored.size_bytes
    assert [row["offset"] for row in rows(store)] == [*range(0, 60, 2)]


@pytest.mark.parametrize(
    "config", [{"retention_ms": DAY_MS}, {"segment_ms": DAY_MS // 8}, {"retention_bytes": 8000}]
)
def test_retention_bounds_what_becomes_one(
    heap: HeapStorage, clock: VirtualClock, config: dict[str, int]
) -> None:
    """It deletes whole segments: others' records must not stay longer because of a purge.

    It goes by the newest ones, so those that come late change nothing, unless ``segment.ms`` does.
    """
    late_ms = 0 if "segment_ms" in config else DAY_MS
    store = new_store(heap, clock, **config)
    for _ in range(48):
        with store.producer() as producer:
            producer.send("t", "", "ann", timestamp_ms=clock.time_ms - late_ms)
            producer.send("t", "", PERSON)
            producer.send("t", "", "bob")
        clock.time_ms += DAY_MS // 48
    size_bytes = sum(segment.size_bytes for segment in store.topics.segments("t"))
    purge(store, PERSON)
    segments = another(store).topics.segments("t")
    assert 1 < len(segments) < 48
    if "retention_bytes" in config:  # a file's frame is more than its few records
        assert len(segments) >= size_bytes // (8000 // 8)
    else:
        spreads = [one.max_timestamp_ms - one.min_timestamp_ms for one in segments]
        assert max(spreads) <= late_ms + DAY_MS // 8
    assert [row["offset"] % 3 for row in rows(store)] == [0, 2] * 48


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_segments_of_which_nothing_is_left_keep_no_others_apart(
    heap: HeapStorage, clock: VirtualClock, policy: str
) -> None:
    """What is rewritten next covers their offsets, too: by merging or by compaction."""
    store = new_store(heap, clock, cleanup_policy=policy, retention_ms=-1)
    for number in range(60):
        put(store, f"k{number}")
        put(store, PERSON)
    purge(store, PERSON)
    before = rows(store)
    another(store).maintain()
    assert rows(another(store)) == before
    assert len(another(store).topics.segments("t")) <= 2
    state = another(store).logs.fresh_topic("t").whole_segments()
    assert len(resolve(state.partitions[0].rewrites)) <= 3


REWRITERS: dict[str, Callable[[Store], object]] = {
    "merge": lambda store: store.maintenance.merge("t"),
    "compaction": compact,
    "purge": lambda store: purge(store, "pet"),
}


@pytest.mark.parametrize(
    ("policy", "rewriter"),
    [("delete", "merge"), ("delete", "purge"), *(("compact", name) for name in REWRITERS)],
)
def test_what_a_rewrite_that_slept_takes_back_counts_as_purged(
    heap: HeapStorage,
    clock: VirtualClock,
    monkeypatch: pytest.MonkeyPatch,
    policy: str,
    rewriter: str,
) -> None:
    """Vacuum took its segments for left behind. Feeds go on, and the next rewrite does as much.

    Of what was compacted before, too, and beside aborted records.
    """
    store = new_store(heap, clock, cleanup_policy=policy, retention_ms=-1)
    put(store, "x", "y", "x", "dog")
    put(store, "pet", "dog")
    if policy == "compact":
        compact(store)
    token, since_ms = another(store).snapshot("t").token(), clock.time_ms
    clock.time_ms += 1000
    put(store, "pet", "cat")
    _happen(store, random.Random(0), clock, "abort")
    _, aborted = standing(store)[-1]
    for number in range(12):
        put(store, f"k{number}", "cat")
        put(store, PERSON)
    purge(store, PERSON)

    def feed(*without: str) -> list[dict[str, Any]]:
        changed = another(store).changes("t", since=since_ms, pre_images=True)
        found = changed.to_arrow().to_pylist()
        return [row for row in found if row["key"].decode() not in without]

    def past() -> list[bytes]:
        found = another(store).snapshot("t", at=token).scan("t").to_arrow()
        return [*found["key"].to_pylist()]

    def stands() -> list[tuple[int, StoredSegment]]:
        """What holds records that show."""
        return [(at, one) for at, one in standing(store) if one.record_count and one != aborted]

    told, before, shown = feed(), stands(), past()
    old = {path for path, _ in heap.list_all("topics/t/data")}
    check = UploadCheck.after

    def sleep(self: UploadCheck, entry: int | None) -> None:
        monkeypatch.setattr(UploadCheck, "after", check)
        heap.delete({path for path, _ in heap.list_all("topics/t/data")} - old)
        clock.time_ms += 14 * DAY_MS
        check(self, entry)

    monkeypatch.setattr(UploadCheck, "after", sleep)
    with pytest.raises(StorageError, match="vacuum took for left behind"):
        REWRITERS[rewriter](another(store))
    assert stands() == before
    assert (feed(), past()) == (told, shown)
    another(store).maintenance.merge("t")
    assert len(another(store).topics.segments("t")) <= 3
    assert (feed(), past()) == (told, shown)
    if rewriter != "compaction":  # since the token
        purge(store, "pet")
        assert feed() == feed("pet") == [row for row in told if row["key"] != b"pet"]
        assert past() == [key for key in shown if key != b"pet"]
    assert [one for one in another(store).examine() if one.state == "damage"] == []


def test_a_purge_while_a_compaction_slept_has_to_be_repeated(
    heap: HeapStorage, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the compaction takes back has records that it had left out: nobody has purged them."""
    store = new_store(heap, clock, cleanup_policy="compact")
    put(store, PERSON, "ann")
    compact(store)
    put(store, PERSON, "bob")
    old = {path for path, _ in heap.list_all("topics/t/data")}
    check = UploadCheck.after

    def sleep(self: UploadCheck, entry: int | None) -> None:
        monkeypatch.setattr(UploadCheck, "after", check)
        made = {path for path, _ in heap.list_all("topics/t/data")} - old
        clock.time_ms += 14 * DAY_MS
        purge(store, PERSON)
        assert PERSON.encode() not in [row["key"] for row in rows(another(store))]
        heap.delete(made)
        check(self, entry)

    monkeypatch.setattr(UploadCheck, "after", sleep)
    with pytest.raises(StorageError, match="purge these keys again"):
        compact(another(store))
    purge(another(store), PERSON)
    assert [row["key"] for row in rows(another(store))] == [b"ann", b"bob"]


@pytest.mark.parametrize("record_format", FORMATS)
def test_what_was_purged_is_merged_with_what_is_beside_it(
    heap: HeapStorage, clock: VirtualClock, record_format: str
) -> None:
    """Its gaps stay: every record keeps its offset, time and headers."""
    store = new_store(heap, clock, record_format=record_format, retention_ms=-1)
    for number in range(60):
        put(store, "ann", PERSON if number % 5 == 0 else "bob", "ann")
        clock.time_ms += 1000
    purge(store, PERSON)
    before = rows(store)
    assert len(store.topics.segments("t")) == 60
    another(store).maintain()
    assert len(another(store).topics.segments("t")) == 1
    assert rows(another(store)) == before
    put(store, *["bob"] * 200)
    for _ in range(4):
        put(store, "bob", "ann")
    wanted = rows(store)
    another(store).maintain()
    purge(store, "ann")
    assert rows(another(store)) == [row for row in wanted if row["key"] != b"ann"]
    clean_up(store, clock)
    assert not holding(heap)
    assert [one for one in another(store).examine() if one.state == "damage"] == []


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_a_token_from_before(heap: HeapStorage, clock: VirtualClock, policy: str) -> None:
    """Shows what is left, of a topic that was compacted before, too."""
    store = new_store(heap, clock, cleanup_policy=policy)
    put(store, "ann", PERSON)
    if policy == "compact":
        compact(store)
    token = store.snapshot("t").token()
    purge(store, PERSON)

    def keys() -> list[bytes]:
        found = another(store).snapshot("t", at=token).scan("t").to_arrow()
        return [*found["key"].to_pylist()]

    assert keys() == [b"ann"]
    clean_up(store, clock)
    assert keys() == [b"ann"]


STEPS = ("nothing", "merge", "compact", "columns", "tombstone")
"""What may happen to a topic around a token and a purge."""


@pytest.mark.few(5)
@pytest.mark.parametrize("after", STEPS)
@pytest.mark.parametrize("between", STEPS)
@pytest.mark.parametrize("before", STEPS)
def test_no_reader_of_the_past_finds_what_was_purged(
    heap: HeapStorage, clock: VirtualClock, before: str, between: str, after: str
) -> None:
    """Whatever came before, in between and after: it finds what is left, or says that it cannot."""
    columns = pa.schema([("k", pa.string()), ("v", pa.int64())])
    heap.time_ms = lambda: clock.time_ms
    store = attach(heap, create=True, clock=clock)
    store.topics.create("t", schema=columns, key=["k"], config={"cleanup.policy": "compact"})
    tokens: list[str] = []

    def write(*keys: str, deleted: bool = False) -> None:
        rows = [{"k": key, "v": n, "_deleted": deleted} for n, key in enumerate(keys)]
        with store.producer() as producer:
            producer.send_batch("t", rows)
        clock.time_ms += 1000

    def step(name: str) -> None:
        nonlocal columns
        if name == "columns":
            columns = columns.append(pa.field(f"w{len(columns)}", pa.int64()))
            store.topics.alter("t", schema=columns)
        elif name == "tombstone":
            write(PERSON, deleted=True)
            store.topics.alter("t", config={"delete.retention.ms": "0"})
            clock.time_ms += 1000
            compact(store)
            clock.time_ms += 1000
            compact(store)
        elif name == "merge":
            store.maintenance.merge("t")
        elif name == "compact":
            compact(store)

    def expect_nobody() -> None:
        may_expire = not {"compact", "tombstone", "columns"}.isdisjoint([before, between])
        for token in tokens:
            for read in (
                partial(store.snapshot("t", at=token).scan, "t"),
                partial(store.snapshot("t", at=token).scan, "t", latest=True),
                partial(store.changes, "t", token),
                partial(store.changes, "t", tokens[0], token),
                partial(store.changes, "t", token, pre_images=True),
                partial(store.changes, "t", tokens[0], token, pre_images=True),
            ):
                try:
                    assert PERSON not in read().to_arrow()["k"].to_pylist()
                except SnapshotExpired:
                    assert may_expire or "pre_images" in read.keywords

    for _ in range(4):
        write(PERSON, "ann")
    tokens.append(store.snapshot("t").token())
    write(PERSON, "bob")
    step(before)
    tokens.append(store.snapshot("t").token())
    write("bob")
    step(between)
    store.maintenance.purge("t", [{"k": PERSON}])
    expect_nobody()
    step(after)
    expect_nobody()


def adds_entry(store: Store, key: str, **options: Any) -> bool:
    """Whether a purge does that finds nothing."""
    before = another(store).logs.fresh_topic("t").state.next_entry
    assert not purge(store, key, **options).partitions
    return another(store).logs.fresh_topic("t").state.next_entry > before


def delete(store: Store, clock: VirtualClock, key: str) -> None:
    """By a tombstone, which compaction takes, too."""
    store.topics.alter("t", config={"cleanup.policy": "compact", "delete.retention.ms": "0"})
    with store.producer() as producer:
        producer.send("t", None, key)
    for _ in range(2):
        clock.time_ms += 1000
        compact(store)


def test_a_purge_that_finds_nothing_adds_an_entry_if_old_files_have_the_key(
    heap: HeapStorage, clock: VirtualClock
) -> None:
    """Those of before a compaction, once, as long as they are there."""
    store = new_store(heap, clock)
    put(store, "ann", "bob", PERSON)
    delete(store, clock, PERSON)
    assert not adds_entry(store, "cy")
    assert not adds_entry(store, PERSON, dry_run=True)
    assert adds_entry(store, PERSON)
    assert not adds_entry(store, PERSON)
    put(store, "bob", "cy")
    delete(store, clock, "cy")
    put(store, "ann")
    store.maintenance.merge("t")
    assert not adds_entry(store, PERSON)
    assert adds_entry(store, "cy")
    put(store, "dan")
    delete(store, clock, "dan")
    clean_up(store, clock)
    assert not adds_entry(store, "dan")


def test_a_purge_that_finds_nothing_adds_an_entry_if_what_was_merged_has_the_key(
    heap: HeapStorage, clock: VirtualClock
) -> None:
    """What was appended is gone; what was made of it is there, and was replaced as well."""
    store = new_store(heap, clock, retention_ms=-1)
    put(store, PERSON)
    with store.producer() as producer:
        producer.send("t", None, PERSON)
    for _ in range(20):
        put(store, "ann")
    store.maintenance.merge("t")
    clean_up(store, clock)
    delete(store, clock, "ann")
    assert not rows(store)
    assert adds_entry(store, PERSON)


def test_a_purge_that_finds_nothing_adds_an_entry_if_an_old_file_is_damaged(
    heap: HeapStorage, clock: VirtualClock
) -> None:
    """It may have the key."""
    store = new_store(heap, clock)
    put(store, PERSON)
    delete(store, clock, PERSON)
    (path,) = (path for path in holding(heap, f"said by {PERSON}") if path.startswith("topics"))
    content = heap.get(path)
    heap.delete([path])
    heap.put_if_absent(path, content[:-9])
    assert adds_entry(store, "ann")


def test_times_of_the_log_stay(heap: HeapStorage, clock: VirtualClock) -> None:
    """Records that have the time of their append keep it."""
    store = new_store(heap, clock, message_timestamp_type="LogAppendTime")
    put(store, "ann", PERSON)
    before = rows(store)
    clock.time_ms += DAY_MS
    purge(another(store), PERSON)
    assert rows(store) == before[:1]
