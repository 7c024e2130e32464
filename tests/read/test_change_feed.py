"""Feeds of changes: their rows, the columns and filters they take, what they refuse."""

from __future__ import annotations

from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.support.admin.compacted_topics import compact
from tests.support.steps import another, checkpoint
from txnlog import ChangeFeed, Scan, Snapshot, Store
from txnlog.admin import purge_topic
from txnlog.errors import InvalidOption, OffsetOutOfRange, SnapshotExpired
from txnlog.names import TopicPartition
from txnlog.read import changed_rows
from txnlog.read.scan_reader import read_each
from txnlog.store import attach
from txnlog.testing import Fault, FaultyStorage, HeapStorage, ProcessStopped, VirtualClock

PEOPLE = pa.schema([("id", pa.int64()), ("name", pa.string()), ("age", pa.int32())])


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(1_700_000_000_000)


@pytest.fixture
def store(clock: VirtualClock) -> Store:
    storage = HeapStorage()
    storage.time_ms = lambda: clock.time_ms
    made = attach(storage, create=True, clock=clock)
    made.topics.create("people", schema=PEOPLE, key=["id"])
    made.topics.create("plain")
    return made


def put(store: Store, *rows: tuple[int, str | None, int | None]) -> None:
    """Rows of people; one without a name is deleted."""
    ids, names, ages = ([*column] for column in zip(*rows, strict=True))
    table = {
        "id": ids,
        "name": names,
        "age": pa.array(ages, pa.int32()),
        "_deleted": [name is None for name in names],
    }
    with store.producer() as producer:
        producer.send_batch("people", pa.table(table))


def rows(feed: ChangeFeed | Scan) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in feed.to_arrow().to_pylist()]


def test_each_kind_of_change_and_its_row(store: Store) -> None:
    put(store, (1, "Ada", 36), (2, "Bob", 20))
    since = store.snapshot(["people", "plain"]).token()
    put(store, (3, "Cyd", 1), (1, "Ada", 37), (2, None, None), (4, None, None))
    put(store, (2, "Bea", 5), (1, "Ada L", 37))
    until = store.snapshot(["people", "plain"])
    put(store, (1, "later", 0))
    feed = store.changes(
        "people", since, until, ["_change", "_offset", "id", "name", "age"], pre_images=True
    )
    assert rows(feed) == [
        ("insert", 2, 3, "Cyd", 1),
        ("update_before", 3, 1, "Ada", 36),
        ("update_after", 3, 1, "Ada", 37),
        ("delete", 4, 2, "Bob", 20),
        ("insert", 6, 2, "Bea", 5),
        ("update_before", 7, 1, "Ada", 37),
        ("update_after", 7, 1, "Ada L", 37),
    ]
    assert feed.record_count == 6
    assert (feed.start_offsets, feed.end_offsets) == ({0: 2}, {0: 8})


def test_the_columns_are_where_it_was_and_the_topics_own(store: Store) -> None:
    since = store.snapshot(["people", "plain"])
    put(store, (1, "Ada", 36))
    with store.producer() as producer:
        producer.send("plain", b"v", b"k", timestamp_ms=5)
        producer.send("plain", b"without a key")
    place = ["_change", "_partition", "_offset", "_timestamp"]
    feed = store.changes("people", since, pre_images=True)
    assert feed.schema.names == [*feed.columns] == [*place, "id", "name", "age"]
    assert feed.to_pandas()["name"].tolist() == ["Ada"]
    plain = store.changes("plain", since, pre_images=True)
    assert [*plain.columns] == ["_change", "partition", "offset", "timestamp", "key", "value"]
    assert [row[:3] + row[4:] for row in rows(plain)] == [("insert", 0, 0, b"k", b"v")]
    alone = store.changes("plain", since, columns=["_change"], pre_images=True)
    assert rows(alone) == [("insert",)]
    others = ["headers", "_change", "timestampType", "topic"]
    assert rows(store.changes("plain", since, columns=others, pre_images=True)) == [
        ([], "insert", 0, "plain")
    ]
    assert "ChangeFeed('people', of 1 records at most" in repr(feed)


def test_a_filter_is_of_the_rows_of_the_feed(store: Store) -> None:
    put(store, (1, "Ada", 36))
    since = store.snapshot("people")
    put(store, (1, "Ada", 37), (2, "Bob", 1))
    for kept, found in (
        (pc.field("_change") == "update_before", [(36,)]),
        ((pc.field("_change") != "update_before") & (pc.field("name") == "Bob"), [(1,)]),
        (pc.field("_offset") == 1, [(36,), (37,)]),
    ):
        feed = store.changes("people", since, columns=["age"], filter=kept, pre_images=True)
        assert rows(feed) == found
    feed = store.changes(
        "people", since, columns=["_change"], filter=pc.field("age") > 36, pre_images=True
    )
    assert rows(feed) == [("update_after",)]


def test_what_it_refuses(store: Store) -> None:
    store.topics.create("keyless", schema=PEOPLE)
    since = store.snapshot(["people", "keyless"])
    put(store, (1, "Ada", 36))
    with pytest.raises(InvalidOption, match="the schema of keyless has no key"):
        store.changes("keyless", since, pre_images=True)
    for columns, why in (
        (["nothing"], "unknown column 'nothing'; a feed of changes has _change, id, name, age, _t"),
        (["_deleted"], "unknown column '_deleted'"),
        (["id", "id"], "none twice"),
        (["_change", "_change"], "none twice"),
        ([], "at least one"),
        ("id", "not the string"),
    ):
        with pytest.raises(InvalidOption, match=why):
            store.changes("people", since, columns=columns, pre_images=True)
    store.topics.create(
        "own", schema=pa.schema([("id", pa.int64()), ("_change", pa.int8())]), key=["id"]
    )
    with pytest.raises(InvalidOption, match="a column '_change' of its own"):
        store.changes("own", store.snapshot("own"), pre_images=True)
    with pytest.raises(InvalidOption, match="more than until"):
        store.changes("people", store.snapshot("people"), since, pre_images=True)


def test_a_schema_that_has_changed_since(store: Store) -> None:
    """Both rows have the columns of the later moment."""
    put(store, (1, "Ada", 36))
    since = store.snapshot("people").token()
    columns = pa.schema([PEOPLE.field("id"), pa.field("called", pa.string())])
    store.topics.alter("people", rename={"name": "called"}, schema=columns)
    with store.producer() as producer:
        producer.send_batch("people", pa.table({"id": [1], "called": ["Ada L"]}))
    feed = store.changes("people", since, columns=["_change", "called"], pre_images=True)
    assert rows(feed) == [("update_before", "Ada"), ("update_after", "Ada L")]


@pytest.mark.parametrize("topic", ["people", "plain"])
def test_from_the_earliest_moment(store: Store, clock: VirtualClock, topic: str) -> None:
    """What is there to be told since the topic was made: as from a token of that moment."""
    store.topics.alter(topic, config={"cleanup.policy": "compact"})
    made = store.snapshot(topic).token()

    def put_one(name: str | None) -> None:
        if topic == "people":
            put(store, (1, name, 36))
        else:
            with store.producer() as producer:
                producer.send("plain", key="1", value=name)

    put_one("Ada")
    put_one("Bea")
    early = store.snapshot(topic)
    put_one(None)
    store.topics.alter(topic, partitions=3)

    def kinds(since: str, until: Snapshot | None = None) -> list[Any]:
        feed = store.changes(topic, since, until, pre_images=True)
        return [*feed.to_arrow()["_change"].to_pylist()]

    changes = ["insert", "update_before", "update_after", "delete"]
    assert kinds("earliest") == kinds(made) == changes
    assert kinds("earliest", early) == changes[:3]
    assert store.changes(topic, "earliest").to_arrow().num_rows == 3
    compact(store, topic)
    assert kinds("earliest") == changes  # while the segments before are there
    clock.time_ms += 30 * 86_400_000
    store.maintain(topic)
    with pytest.raises(SnapshotExpired):
        kinds("earliest")


@pytest.mark.parametrize("until", ["now", "a token", "its snapshot", "a time"])
def test_rows_that_retention_deleted_are_an_error(
    store: Store, clock: VirtualClock, until: str
) -> None:
    """Up to now, and up to a moment at which they were still there."""
    put(store, (1, "Ada", 36))
    since = store.snapshot("people").token()
    put(store, (1, "Ada", 37))
    token, time_ms = store.snapshot("people").token(), clock.time_ms
    store.topics.delete_records({TopicPartition("people", 0): 1})
    clock.time_ms += 1000
    ends = {"now": None, "a token": token, "a time": time_ms}
    end = ends[until] if until in ends else store.snapshot("people", at=token)
    with pytest.raises(OffsetOutOfRange, match="people:0 from offset 0 to 0"):
        store.changes("people", since, end, pre_images=True)
    for pre_images in (False, True):
        with pytest.raises(OffsetOutOfRange, match="people:0 from offset 0 to 0"):
            store.changes("people", "earliest", end, pre_images=pre_images)
    later = store.snapshot("people")
    put(store, (1, None, None))
    feed = store.changes("people", later, columns=["_change", "age"], pre_images=True)
    assert rows(feed) == [("delete", 37)]


@pytest.mark.parametrize("until", ["now", "a token"])
def test_a_purge_since_is_an_error(store: Store, clock: VirtualClock, until: str) -> None:
    """It takes deletes with it. Who begins with nothing, or what is left, misses none of them."""
    made = store.snapshot("people").token()
    put(store, (1, "Ada", 36), (2, "Bob", 1))
    since, time_ms = store.snapshot("people").token(), clock.time_ms
    clock.time_ms += 1000
    put(store, (1, None, None))
    end = None if until == "now" else store.snapshot("people").token()
    store.maintenance.purge("people", [{"id": 1}])
    with pytest.raises(SnapshotExpired, match=r"purged from topic 'people'.*go on from its token"):
        store.changes("people", since, end, pre_images=True)
    assert rows(store.changes("people", since, end, ["id"])) == []
    columns = ["_change", "id"]
    for begin in ("earliest", made):
        feed = store.changes("people", begin, end, columns, pre_images=True)
        assert rows(feed) == [("insert", 2)]
    later = store.snapshot("people").token()
    put(store, (1, "Ada", 37))
    for begin_at in (time_ms, later):
        feed = store.changes("people", begin_at, None, columns, pre_images=True)
        assert rows(feed) == [("insert", 1)]


@pytest.mark.parametrize("rewrite", ["none", "merge", "compaction"])
def test_a_purge_that_finds_nothing_ends_no_feed(store: Store, rewrite: str) -> None:
    """Such as the second one, which looks whether a file is left."""
    for age in range(20):
        put(store, (1, "Ada", age), (2, "Bob", age))
    store.maintenance.purge("people", [{"id": 1}])
    since = store.snapshot("people").token()
    put(store, (2, "Bob", None))
    if rewrite == "merge":
        store.maintenance.merge("people")
    elif rewrite == "compaction":
        store.topics.alter("people", config={"cleanup.policy": "compact"})
        compact(store, "people")
    report = store.maintenance.purge("people", [{"id": 1}])
    assert (report.partitions, report.waiting_files > 0) == ((), True)
    feed = store.changes("people", since, columns=["_change", "id"], pre_images=True)
    assert rows(feed) == [("update_before", 2), ("update_after", 2)]


def test_beside_a_purge_that_dies_a_feed_is_as_it_was_or_an_error(
    store: Store, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, between and after its entries; the next one finds nothing where vacuum has been."""
    monkeypatch.setattr(purge_topic, "_BYTES_PER_ENTRY", 1)
    put(store, (1, "Ada", 36), (2, "Bob", 1))
    put(store, (1, "Ada", 37))
    since = store.snapshot("people").token()
    put(store, (1, "Ada", 38))
    told = rows(store.changes("people", since, pre_images=True))
    assert isinstance(store.storage, HeapStorage)
    requests: list[str] = []
    whole = FaultyStorage(store.storage.copy(), before_request=requests.append)
    attach(whole, clock=clock).maintenance.purge("people", [{"id": 1}])
    start = "put_if_absent topics/people/log/"
    puts = [number for number, one in enumerate(requests) if one.startswith(start)]
    assert len(puts) == 3
    outcomes = set()
    for at, fault in product(puts, (Fault.STOP_BEFORE, Fault.STOP_AFTER)):
        copied = store.storage.copy()
        dies = attach(FaultyStorage(copied, {at: fault}), clock=clock)
        with pytest.raises(ProcessStopped):
            dies.maintenance.purge("people", [{"id": 1}])
        died = attach(copied, clock=clock)
        with suppress(SnapshotExpired):
            assert rows(died.changes("people", since, pre_images=True)) == told
            outcomes.add("as it was")
        middle = died.snapshot("people").token()
        is_left = 1 in died.scan("people", latest=True).to_arrow()["id"].to_pylist()
        copied.time_ms = lambda: clock.time_ms
        clock.time_ms += 30 * 86_400_000
        died.maintain("people")
        assert bool(died.maintenance.purge("people", [{"id": 1}]).partitions) == is_left
        with pytest.raises(SnapshotExpired, match="purged from topic 'people'"):
            died.changes("people", since, pre_images=True)
        if is_left:
            with pytest.raises(SnapshotExpired, match="purged from topic 'people'"):
                died.changes("people", middle, pre_images=True)
        else:
            assert rows(died.changes("people", middle, pre_images=True)) == []
        outcomes.add(f"left: {is_left}")
    assert outcomes == {"as it was", "left: True", "left: False"}


@pytest.mark.parametrize("start", [0, 3])
def test_what_was_imported_begins_where_its_log_does(
    store: Store, tmp_path: Path, start: int
) -> None:
    """What lies before was never there; what is deleted after the import was."""
    for number in range(6):
        with store.producer() as producer:
            producer.send("plain", key=str(number % 2), value=str(number))
    store.topics.delete_records({TopicPartition("plain", 0): start})
    store.kafka.export_topic("plain", str(tmp_path), keep_offsets=True)
    store.topics.create("imported")
    empty = store.snapshot("imported").token()
    store.kafka.import_topic("imported", str(tmp_path / "plain-0"))
    checkpoint(store, "imported")
    reader = another(store)
    for since in ("earliest", empty):
        added = reader.changes("imported", since, columns=["offset"]).to_arrow()
        assert added["offset"].to_pylist() == [*range(start, 6)]
        feed = reader.changes("imported", since, columns=["_change"], pre_images=True)
        assert [kind for (kind,) in rows(feed)].count("insert") == 2
        assert rows(reader.changes("imported", since, empty, pre_images=True)) == []
    reader.topics.delete_records({TopicPartition("imported", 0): start + 1})
    for since in ("earliest", empty):
        for pre_images in (False, True):
            with pytest.raises(OffsetOutOfRange, match=f"from offset {start} to {start} were"):
                reader.changes("imported", since, pre_images=pre_images)


def test_changes_that_were_compacted_away_are_an_error(store: Store, clock: VirtualClock) -> None:
    """As long as their segments are there they are read from these."""
    store.topics.alter("people", config={"cleanup.policy": "compact"})
    put(store, (1, "Ada", 36))
    since = store.snapshot("people").token()
    put(store, (1, "Ada", 37))
    put(store, (1, "Ada", 38))
    compact(store, "people")
    feed = store.changes("people", since, columns=["_change", "age"], pre_images=True)
    expected = rows(feed)
    assert [age for _, age in expected] == [36, 37, 37, 38]
    clock.time_ms += 30 * 86_400_000
    store.maintain("people")
    with pytest.raises(SnapshotExpired, match=r"not known any more.*go on from its token"):
        feed.to_arrow()
    # What came later is known.
    later = store.snapshot("people").token()
    put(store, (1, None, None))
    feed = store.changes("people", later, columns=["_change", "age"], pre_images=True)
    assert rows(feed) == [("delete", 38)]


def test_compaction_that_left_nothing_out_of_the_range_is_no_error(
    store: Store, clock: VirtualClock
) -> None:
    since = store.snapshot("people").token()
    store.topics.alter("people", config={"cleanup.policy": "compact"})
    put(store, (1, "Ada", 36), (2, "Bob", 1))
    put(store, (3, "Cyd", 1))
    compact(store, "people")
    clock.time_ms += 30 * 86_400_000
    store.maintain("people")
    feed = store.changes("people", since, columns=["_change", "id"], pre_images=True)
    assert rows(feed) == [("insert", 1), ("insert", 2), ("insert", 3)]


def test_several_topics_at_one_cut(store: Store) -> None:
    """Of a transaction the feeds of all topics have everything, or nothing."""
    since = store.snapshot(["people", "plain"]).token()
    producer = store.producer(transactional_id="both")
    producer.init_transactions()
    tokens = [since]
    for number in range(3):
        producer.begin_transaction()
        table = pa.table({"id": [number], "name": ["x"], "age": pa.array([number], pa.int32())})
        producer.send_batch("people", table)
        producer.send("plain", b"%d" % number, b"key")
        producer.flush()
        tokens.append(store.snapshot(["people", "plain"]).token())
        if number == 1:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
        tokens.append(store.snapshot(["people", "plain"]).token())
    for first, begin in enumerate(tokens):
        for end in tokens[first:]:
            people = store.changes("people", begin, end, ["age"], pre_images=True).to_arrow()
            kept = pc.field("_change") != "update_before"
            plain = store.changes("plain", begin, end, ["value"], filter=kept, pre_images=True)
            values = [int(value) for value in plain.to_arrow()["value"].to_pylist()]
            assert people["age"].to_pylist() == values


def test_only_what_the_range_has_changed_is_read_of_what_was_before(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the rest the key's columns, and no other."""
    for start in range(0, 5000, 1000):
        put(store, *((number, "x" * 50, 1) for number in range(start, start + 1000)))
    since = store.snapshot("people")
    put(store, (4700, "y", 2), (1, None, None))
    read: list[tuple[tuple[str, ...], int]] = []

    def note(storage: Any, parts: Any, columns: Any) -> Any:
        read.extend((columns.names, part.record_count) for part in parts)
        return read_each(storage, parts, columns)

    monkeypatch.setattr("txnlog.read.changed_rows.read_each", note)
    found = rows(store.changes("people", since, columns=["_change", "name"], pre_images=True))
    assert found == [("update_before", "x" * 50), ("update_after", "y"), ("delete", "x" * 50)]
    keys = [count for names, count in read if names == ("id", "_offset")]
    others = [count for names, count in read if names != ("id", "_offset")]
    assert keys == [1000] * 5
    assert others == [2, 1, 1]


def test_large_rows_before_small_records_that_delete_them(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are read in parts, and each part of what was before once, or little more."""
    for start in range(0, 200, 50):
        put(store, *((number, "x" * 10_000, 1) for number in range(start, start + 50)))
    since = store.snapshot("people")
    put(store, *((number * 77 % 200, None, None) for number in range(200)))
    feed = store.changes("people", since, columns=["_change", "id", "name"], pre_images=True)
    expected = feed.to_arrow().sort_by("id")
    assert expected["id"].to_pylist() == [*range(200)]
    together: list[int] = []
    read = 0

    tell = changed_rows._images

    def note_size(rows: pa.Table, *more: Any) -> Any:
        together.append(rows.nbytes)
        return tell(rows, *more)

    def note(storage: Any, parts: Any, columns: Any) -> Any:
        nonlocal read
        for part, batches in read_each(storage, parts, columns):
            read += part.record_count if "name" in columns.names else 0
            yield part, batches

    most = 200_000
    with monkeypatch.context() as patched:
        patched.setattr("txnlog.read.changed_rows._MOST_OLDER_BYTES", most)
        patched.setattr("txnlog.read.changed_rows.read_each", note)
        patched.setattr("txnlog.read.changed_rows._images", note_size)
        assert feed.to_arrow().sort_by("id").equals(expected)
    assert max(together) < most + 20_000  # and what deletes them
    assert read < 200 + 3 * 200


def test_from_a_time_to_a_token_with_fewer_partitions(store: Store, clock: VirtualClock) -> None:
    """At a time a partition that was added since is there, and empty."""
    put(store, (1, "Ada", 36))
    clock.time_ms += 10_000
    since_ms = clock.time_ms
    clock.time_ms += 10_000
    put(store, (1, "Ada", 37))
    until = store.snapshot("people").token()
    store.topics.alter("people", partitions=3)
    put(store, *((number, "x", 1) for number in range(10)))
    feed = store.changes("people", since_ms, until, ["age"], pre_images=True)
    assert rows(feed) == [(36,), (37,)]
    added = store.changes("people", since_ms, until, ["age"])
    assert added.to_arrow()["age"].to_pylist() == [37]
    later = store.snapshot("people").token()
    with pytest.raises(InvalidOption, match=r"people:0 ended at 5 and 2"):
        store.changes("people", later, until, pre_images=True)


def test_from_a_time_to_a_token_before_what_was_aborted(store: Store, clock: VirtualClock) -> None:
    """Aborted records have no time, so what shows at the time ends behind them; merged ones too."""
    store.topics.alter("people", config={"file.delete.delay.ms": "0"})
    put(store, (1, "Ada", 36))
    clock.time_ms += 10_000
    since_ms = clock.time_ms
    clock.time_ms += 10_000
    until = store.snapshot("people").token()
    with store.producer(transactional_id="aborts") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("people", {"id": 1, "name": "never"})
        producer.flush()
        producer.abort_transaction()
    for is_merged in (False, True):
        assert store.snapshot("people", at=since_ms).end_offsets("people") == {0: 2}
        assert rows(store.changes("people", since_ms, until, pre_images=True)) == []
        assert store.changes("people", since_ms, until).count() == {0: 0}
        if not is_merged:
            for age in range(5):
                put(store, (1, "Ada", age))
            clock.time_ms += 10_000
            (merge,) = store.maintenance.merge("people")
            assert merge.segment_count == 7, "not all of them"
    clock.time_ms += 10_000
    with pytest.raises(InvalidOption, match=r"people:0 ended at 7 and 1"):
        store.changes("people", clock.time_ms, until, pre_images=True)


def test_a_feed_goes_into_a_file(store: Store, tmp_path: Path) -> None:
    since = store.snapshot("people")
    put(store, (1, "Ada", 36))
    feed = store.changes("people", since, columns=["_change", "id"], pre_images=True)
    assert feed.to_file(tmp_path / "feed.csv") == 1
    assert (tmp_path / "feed.csv").read_text().splitlines()[1] in ("insert,1", '"insert",1')
