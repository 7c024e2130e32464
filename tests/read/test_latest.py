"""``latest=True``: the newest record of each key, against plain Python over all records."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.support.admin.compacted_topics import compact
from tests.support.tiers import more
from txnlog.errors import CorruptRecord, InvalidOption
from txnlog.read.latest import NewestFold, _which
from txnlog.read.scan_reader import read_each
from txnlog.results import DamagedRecords
from txnlog.scan import Scan
from txnlog.segments import writer
from txnlog.storage.base import Storage
from txnlog.store import Store, attach
from txnlog.testing import HeapStorage, VirtualClock

Row = dict[str, Any]
PLAIN = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
SCHEMA = pa.schema(
    [
        pa.field("name", pa.string()),
        pa.field("n", pa.int32()),
        pa.field("day", pa.date32()),
        pa.field("v", pa.int64()),
        pa.field("tags", pa.list_(pa.string())),
    ]
)
TYPED = ["v", "_partition", "_offset", "_timestamp", "_deleted", *SCHEMA.names[:3], "tags"]


@pytest.fixture
def small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of millions of keys, and of gigabytes: groups are merged, and their columns are wide.

    Ranges are read in pieces.
    """
    monkeypatch.setattr("txnlog.read.latest._LEAST_ROWS", 8)
    monkeypatch.setattr("txnlog.read.latest._LEAST_GAP", 2)
    monkeypatch.setattr("txnlog.read.latest._MOST_BYTES", 110)


def make_store() -> Store:
    clock = VirtualClock(1_700_000_000_000)
    storage = HeapStorage()
    storage.time_ms = lambda: clock.time_ms
    return attach(storage, create=True, clock=clock)


def transactions(store: Store, rng: random.Random, send: Callable[[Any], None]) -> None:
    """Some, a third of them aborted, the last one open; partitions are added meanwhile."""
    writer, holder = (store.producer(transactional_id=name) for name in ("writer", "holder"))
    writer.init_transactions()
    for number in range(16):
        if number in (6, 11):
            store.topics.alter("t", partitions=3 + number // 10)
        writer.begin_transaction()
        for _ in range(rng.randrange(1, 3)):
            send(writer)
            writer.flush()
        if rng.random() < 0.3:
            writer.abort_transaction()
        else:
            writer.commit_transaction()
    holder.init_transactions()
    holder.begin_transaction()
    send(holder)
    holder.flush()


def plain_history(record_format: str, seed: int) -> Store:
    """Keys in several partitions, times out of order and equal ones, tombstones, no keys."""
    store, rng = make_store(), random.Random(seed)
    store.topics.create("t", partitions=2, config={"record.format": record_format})

    def send(producer: Any) -> None:
        for _ in range(rng.randrange(1, 12)):
            value = None if rng.random() < 0.3 else b"%d" % rng.randrange(1000)
            key = rng.choice([None, b"", *(b"k%d" % n for n in range(25))])
            partition = rng.choice([None, None, 0])
            stamp = 1_600_000_000_000 + rng.randrange(40)
            producer.send("t", value, key, partition, stamp, headers=[("h", b"1")])

    transactions(store, rng, send)
    return store


def typed_history(record_format: str, seed: int) -> Store:
    """The same with a key of three columns."""
    store, rng = make_store(), random.Random(seed)
    config = {"record.format": record_format}
    store.topics.create("t", partitions=2, schema=SCHEMA, key=["name", "n", "day"], config=config)

    def send(producer: Any) -> None:
        count = rng.randrange(1, 12)
        stamps = [1_600_000_000_000 + rng.randrange(40) for _ in range(count)]
        deleted = [rng.random() < 0.3 for _ in range(count)]
        rows = {
            "name": [rng.choice(["", "a", "b"]) for _ in range(count)],
            "n": [rng.randrange(3) for _ in range(count)],
            "day": pa.array([rng.randrange(2) for _ in range(count)], pa.date32()),
            "v": [None if gone else rng.randrange(1000) for gone in deleted],
            "tags": pa.array([None if gone else ["x", None] for gone in deleted], SCHEMA[4].type),
            "_deleted": deleted,
            "_timestamp": pa.array(stamps, pa.timestamp("ms", "UTC")),
        }
        producer.send_batch("t", pa.table(rows), partition=rng.choice([None, 0]))

    transactions(store, rng, send)
    return store


def newest(rows: Sequence[Row], keys: Sequence[str], typed: str = "") -> list[Row]:
    """Of all rows of a scan: of each key the last one in each partition, of these the latest."""
    partition, offset, timestamp = (typed + n for n in ("partition", "offset", "timestamp"))
    last: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        key = tuple(row[name] for name in keys)
        if None not in key:
            last[*key, row[partition]] = row
    found: dict[tuple[Any, ...], Row] = {}
    for row in sorted(last.values(), key=lambda row: (row[timestamp], row[partition])):
        found[tuple(row[name] for name in keys)] = row
    left = (r for r in found.values() if not (r["_deleted"] if typed else r["value"] is None))
    return sorted(left, key=lambda row: (row[partition], row[offset]))


def rows_of(scan: Scan) -> list[Row]:
    rows: list[Row] = scan.to_arrow().to_pylist()
    return rows


def test_large_keys_are_grouped_before_they_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """So memory is about the keys that there are, not about half a million rows of them."""
    monkeypatch.setattr("txnlog.read.latest._LEAST_BYTES", 10_000)
    sizes: list[int] = []
    group = NewestFold._newest_of

    def newest_of(fold: NewestFold, tables: Sequence[pa.Table]) -> pa.Table:
        sizes.append(sum(table.nbytes for table in tables))
        return group(fold, tables)

    monkeypatch.setattr(NewestFold, "_newest_of", newest_of)
    store = make_store()
    store.topics.create("t", config={"record.format": "columns"})
    for _ in range(9):
        with store.producer() as producer:
            for number in range(10, 22):
                producer.send("t", b"1", b"%d" % number * 500)
    assert store.scan("t", latest=True).count() == {0: 12}
    assert max(sizes) < 50_000 < sum(sizes)


@pytest.mark.few(1)
@pytest.mark.usefixtures("small_sizes")
@pytest.mark.parametrize("record_format", ["columns", "kafka", "parquet"])
@pytest.mark.parametrize("seed", [0, *more([1, 2, 3])])
def test_newest_records_of_plain_topics(record_format: str, seed: int) -> None:
    """All of it and ranges, at every level, with filters, of any columns, at a token."""
    store = plain_history(record_format, seed)
    everything = rows_of(store.scan("t", columns=PLAIN))
    expected = newest(everything, ["key"])
    assert 5 < len(expected) < 26 < len(everything)
    assert len({row["partition"] for row in expected}) > 1
    assert rows_of(store.scan("t", columns=PLAIN, latest=True)) == expected
    for columns in (["value"], ["timestamp", "key"], ["partition"]):
        found = rows_of(store.scan("t", columns=columns, latest=True))
        assert found == [{name: row[name] for name in columns} for row in expected]
    for level in ("read_uncommitted", "snapshot"):
        rows = rows_of(store.scan("t", columns=PLAIN, isolation_level=level))
        scan = store.scan("t", columns=PLAIN, isolation_level=level, latest=True)
        assert rows_of(scan) == newest(rows, ["key"])
    rng = random.Random(seed)
    ends = store.snapshot(["t"]).end_offsets("t")
    for _ in range(3):
        starts = {p: rng.randrange(end + 1) for p, end in ends.items()}
        stops = {p: rng.randrange(starts[p], end + 1) for p, end in ends.items()}
        rows = rows_of(store.scan("t", starts, stops, PLAIN))
        assert rows_of(store.scan("t", starts, stops, PLAIN, latest=True)) == newest(rows, ["key"])
    token = store.snapshot(["t"]).token()
    with store.producer() as producer:
        for row in everything:
            producer.send("t", b"later", row["key"], timestamp_ms=1_700_000_000_000)
    then = store.snapshot(["t"], at=token).scan("t", columns=PLAIN, latest=True)
    assert rows_of(then) == expected
    now = rows_of(store.scan("t", isolation_level="snapshot", latest=True))
    assert {row["value"] for row in now} == {b"later"}


@pytest.mark.few(1)
@pytest.mark.parametrize("record_format", [*more(["columns"]), "kafka", "parquet"])
def test_a_filter_is_for_the_newest_records(record_format: str) -> None:
    """An older record that matches does not take the place of a newer one that does not."""
    store = plain_history(record_format, 1)
    expected = newest(rows_of(store.scan("t", columns=PLAIN)), ["key"])
    in_the_middle = sorted(row["value"] for row in expected)[len(expected) // 2]
    filters: list[tuple[pc.Expression, Callable[[Row], bool]]] = [
        (pc.field("value") < in_the_middle, lambda row: row["value"] < in_the_middle),
        (pc.field("offset") < 20, lambda row: row["offset"] < 20),
        (pc.field("partition") == 1, lambda row: row["partition"] == 1),
        (pc.field("key") == b"k3", lambda row: row["key"] == b"k3"),
        (pc.field("value").is_null(), lambda row: row["value"] is None),
    ]
    for expression, holds in filters:
        for columns in (PLAIN, ["offset"]):
            scan = store.scan("t", columns=columns, filter=expression, latest=True)
            kept = [row for row in expected if holds(row)]
            assert rows_of(scan) == [{name: row[name] for name in columns} for row in kept]
            assert sum(scan.count().values()) == len(kept) < len(expected)


@pytest.mark.usefixtures("small_sizes")
@pytest.mark.parametrize("record_format", ["columns", "parquet"])
@pytest.mark.parametrize("seed", [0, *more([1, 2, 3])])
def test_newest_records_of_typed_topics(record_format: str, seed: int) -> None:
    store = typed_history(record_format, seed)
    keys = ["name", "n", "day"]
    everything = rows_of(store.scan("t", columns=TYPED))
    expected = newest(everything, keys, "_")
    assert 3 < len(expected) < 18 < len(everything)
    assert rows_of(store.scan("t", columns=TYPED, latest=True)) == expected
    assert rows_of(store.scan("t", latest=True)) == [
        {name: row[name] for name in SCHEMA.names} for row in expected
    ]
    assert rows_of(store.scan("t", columns=["v"], filter=pc.field("v") < 500, latest=True)) == [
        {"v": row["v"]} for row in expected if row["v"] < 500
    ]
    as_json = store.snapshot("t").scan("t", columns=["offset"], as_json=True, latest=True)
    assert rows_of(as_json) == [{"offset": row["_offset"]} for row in expected]


def test_all_ways_to_read_a_scan(tmp_path: Path) -> None:
    store = plain_history("columns", 2)
    scan = store.scan("t", columns=PLAIN, latest=True)
    expected = newest(rows_of(store.scan("t", columns=PLAIN)), ["key"])
    assert scan.record_count >= len(expected)
    assert "newest of each key" in repr(scan)
    by_partition = {
        number: [*rows] for number, rows in groupby(expected, lambda row: row["partition"])
    }
    counts = {number: len(by_partition.get(number, [])) for number in scan.start_offsets}
    assert scan.count() == counts
    assert scan.to_reader().read_all().to_pylist() == expected
    assert pa.table(scan).to_pylist() == expected
    assert scan.to_pandas()["value"].tolist() == [row["value"] for row in expected]
    assert scan.to_polars()["offset"].to_list() == [row["offset"] for row in expected]
    assert len(scan.to_duckdb().fetchall()) == len(expected)
    assert scan.to_file(tmp_path / "a.parquet") == len(expected)
    assert pq.read_table(tmp_path / "a.parquet")["key"].to_pylist() == [r["key"] for r in expected]
    # By the greatest time so far in each partition, as without ``latest``.
    ordered: list[tuple[Any, int, Row]] = []
    for number, rows in by_partition.items():
        time = rows[0]["timestamp"]
        for row in rows:
            time = max(time, row["timestamp"])
            ordered.append((time, number, row))
    ordered.sort(key=lambda item: item[:2])
    in_order = [row for _, _, row in ordered]
    for count in (0, 1, 4, len(expected), len(expected) + 1):
        assert scan.head(count).to_pylist() == in_order[:count]
        last = scan.tail(count).to_pylist()
        assert len(last) == min(count, len(expected))
        for number, rows in by_partition.items():
            mine = [row for row in last if row["partition"] == number]
            assert mine == rows[len(rows) - len(mine) :]


@pytest.mark.parametrize("make", [plain_history, typed_history])
def test_compaction_does_not_change_the_answer(make: Callable[[str, int], Store]) -> None:
    store = make("columns", 4)
    store.topics.alter("t", config={"cleanup.policy": "compact"})
    columns = PLAIN if make is plain_history else TYPED
    before = rows_of(store.scan("t", columns=columns, latest=True))
    count = sum(store.scan("t").count().values())
    compact(store)
    assert sum(store.scan("t").count().values()) < count
    assert rows_of(store.scan("t", columns=columns, latest=True)) == before


def test_a_tombstone_that_compaction_removed_covers_no_other_partition() -> None:
    """As the documents say: where a key is in two partitions, its older record shows again."""
    store = make_store()
    store.topics.create("t", config={"cleanup.policy": "compact"})

    def values() -> list[bytes]:
        return [row["value"] for row in rows_of(store.scan("t", latest=True))]

    def send(partition: int, value: bytes | None, timestamp_ms: int) -> None:
        with store.producer() as producer:
            producer.send("t", value, b"k", partition, timestamp_ms)

    send(0, b"old", 1)
    store.topics.alter("t", partitions=2)
    send(1, None, 2)
    assert values() == []
    compact(store)
    assert values() == []
    assert isinstance(store.logs.clock, VirtualClock)
    store.logs.clock.time_ms += 2 * 86_400_000
    compact(store)
    assert store.scan("t").count() == {0: 1, 1: 0}
    assert values() == [b"old"]
    send(0, None, 3)
    assert values() == []


def test_an_empty_topic_and_one_without_keys() -> None:
    store = make_store()
    store.topics.create("t")
    assert rows_of(store.scan("t", latest=True)) == []
    assert store.scan("t", latest=True).head(3).num_rows == 0
    with store.producer() as producer:
        producer.send("t", b"v", None)
    assert rows_of(store.scan("t", latest=True)) == []
    assert store.scan("t", latest=True).count() == {0: 0}
    store.topics.create("typed", schema=pa.schema([("a", pa.int64())]))
    with pytest.raises(InvalidOption, match="the schema of typed has no key"):
        store.scan("typed", latest=True)


def test_segments_without_newest_records_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second reading is of those alone that hold one of the newest."""
    store = make_store()
    store.topics.create("t")
    for number in range(5):
        with store.producer() as producer:
            producer.send("t", b"%d" % number, b"k" if number < 4 else b"other")
    read: list[int] = []

    def noting(storage: Storage, parts: Any, columns: Any) -> Iterator[Any]:
        read.extend(part.start_offset for part in parts)
        return read_each(storage, parts, columns)

    monkeypatch.setattr("txnlog.read.latest.read_each", noting)
    assert [row["value"] for row in rows_of(store.scan("t", latest=True))] == [b"3", b"4"]
    assert read == [0, 1, 2, 3, 4, 3, 4]


@pytest.mark.parametrize("record_format", ["columns", "kafka", "parquet"])
def test_long_stretches_without_newest_records_are_read_once(
    record_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the first, behind the last, and between them; a short one is read with its ends."""
    monkeypatch.setattr("txnlog.read.latest._LEAST_GAP", 10)
    store = make_store()
    store.topics.create("t", config={"record.format": record_format})
    keys = ["again"] * 20 + ["a"] + ["again"] * 9 + ["b"] + ["again"] * 10 + ["c", "again", "gone"]
    rows = {"key": keys, "value": [f"{number}" for number in range(len(keys))]}
    with store.producer() as producer:
        producer.send_batch("t", pa.record_batch(rows))
        producer.send("t", None, "gone")
    read: list[tuple[int, int]] = []

    def noting(storage: Storage, parts: Any, columns: Any) -> Iterator[Any]:
        read.extend((part.start_offset, part.stop_offset) for part in parts)
        return read_each(storage, parts, columns)

    monkeypatch.setattr("txnlog.read.latest.read_each", noting)
    found = rows_of(store.scan("t", columns=["value"], latest=True))
    assert [int(row["value"]) for row in found] == [20, 30, 41, 42]
    assert read[-2:] == [(20, 31), (41, 45)]


def test_a_newest_record_that_is_damaged_leaves_its_flag_to_no_other() -> None:
    """Its offset is not among those that the second reading finds."""
    here = np.array([3, 5, 8, 9])
    assert _which(here, np.array([1, 3, 4, 8, 11])).tolist() == [True, False, True, False]
    assert _which(here[:0], here).tolist() == []


@pytest.mark.parametrize("partitions", [1, 3])
def test_of_what_is_compacted_no_key_is_read_first(
    partitions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first reading is of what came since; nothing came, and there is no first reading."""
    store = make_store()
    store.topics.create("t", partitions=partitions, config={"cleanup.policy": "compact"})
    with store.producer() as producer:
        for number in range(60):
            producer.send("t", b"old", b"%d" % number)
    compact(store)
    read: list[list[bool]] = []

    def noting(storage: Storage, parts: Any, columns: Any) -> Iterator[Any]:
        read.append([bool(part.segment.stored.rewritten) for part in parts])
        return read_each(storage, parts, columns)

    monkeypatch.setattr("txnlog.read.latest.read_each", noting)
    assert store.scan("t", latest=True).to_arrow().num_rows == 60
    assert read == [[], [True] * partitions]
    with store.producer() as producer:
        for key, value in ((b"7", None), (b"8", b"new"), (b"60", None)):
            producer.send("t", value, key)
    read.clear()
    rows = rows_of(store.scan("t", latest=True))
    assert {row["key"]: row["value"] for row in rows} == {
        b"%d" % n: b"new" if n == 8 else b"old" for n in range(60) if n != 7
    }
    dirty = len(read[0])
    assert sorted(read[0]) == [False] * dirty
    assert sorted(read[1]) == [False] * dirty + [True] * partitions
    assert len(read) == 2


@pytest.mark.parametrize("where", ["compacted", "newer", "moved"])
def test_a_key_that_may_be_in_two_partitions_is_looked_for_in_all(where: str) -> None:
    """It was sent elsewhere before compaction or since, or partitions were added."""
    store = make_store()
    store.topics.create("t", partitions=2, config={"cleanup.policy": "compact"})
    keys = [b"%d" % number for number in range(20)]
    with store.producer() as producer:
        for key in keys:
            producer.send("t", b"old", key, timestamp_ms=5)
    if where != "compacted":
        compact(store)
    if where == "moved":
        store.topics.alter("t", partitions=3)
    rows = rows_of(store.scan("t", latest=True, columns=["key", "partition"]))
    home = {row["key"]: row["partition"] for row in rows}
    with store.producer() as producer:
        for number, key in enumerate(keys[:9]):
            partition = None if where == "moved" else 1 - home[key]
            producer.send("t", b"new", key, partition, timestamp_ms=number)
    if where != "newer":
        compact(store)
    everything = rows_of(store.scan("t", columns=PLAIN))
    assert len(everything) > 20
    assert rows_of(store.scan("t", columns=PLAIN, latest=True)) == newest(everything, ["key"])


@pytest.mark.usefixtures("small_sizes")
@pytest.mark.parametrize("is_typed", [False, True], ids=["plain", "typed"])
def test_rows_wait_until_they_are_looked_up_together(
    is_typed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small batches, and many newer keys, in wide columns."""
    monkeypatch.setattr(writer, "DEFAULT_BATCH_BYTES", 300)
    monkeypatch.setattr("txnlog.read.latest._MOST_WAITING_BYTES", 2000)
    store = make_store()
    config = {"cleanup.policy": "compact", "record.format": "columns"}
    given: dict[str, Any] = {"schema": SCHEMA, "key": ["name", "n"]} if is_typed else {}
    store.topics.create("t", config=config, **given)

    def send(numbers: range, value: int) -> None:
        with store.producer() as producer:
            for number in numbers:
                if is_typed:
                    row = {"name": f"k{number % 7}", "n": number, "v": value}
                    producer.send_batch("t", [row])
                else:
                    producer.send("t", b"%d" % value, b"k%d" % number)

    send(range(300), 1)
    compact(store)
    send(range(150, 400), 2)
    rows = rows_of(store.scan("t", latest=True))
    values = [int(row["v" if is_typed else "value"]) for row in rows]
    assert values == [1] * 150 + [2] * 250


@pytest.mark.parametrize("record_format", ["columns", "kafka"])
def test_damage_is_an_error_unless_it_is_skipped(
    record_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The damaged record may be the newest of its key: an older one is not shown for it."""
    monkeypatch.setattr(writer, "DEFAULT_BATCH_BYTES", 2000)
    store = make_store()
    config = {"compression.type": "none", "record.format": record_format}
    store.topics.create("t", config=config)
    for values in ([b"old" * 500], [b"new" * 500, b"other" * 300]):
        keys = [b"k", b"o"][: len(values)]
        with store.producer() as producer:
            producer.send_batch("t", pa.record_batch({"key": keys, "value": values}))
    files = [
        (n, bytearray(store.storage.get(n))) for n, _ in store.storage.list_all("topics/t/data")
    ]
    [(name, data)] = [file for file in files if b"new" * 500 in file[1]]
    data[data.index(b"new" * 500)] ^= 1
    store.storage.delete([name])
    store.storage.put(name, bytes(data))
    scan = store.scan("t", columns=["offset"], latest=True)
    found: list[DamagedRecords] = []
    with pytest.raises(CorruptRecord):
        [*scan.sound_batches(found.append)]
    with pytest.raises(CorruptRecord):
        scan.to_arrow()
    assert found == []

    def read_past(read: Callable[[], Any]) -> None:
        assert pa.concat_tables(read()).to_pylist() == [{"offset": 0}, {"offset": 2}]
        assert [(damaged.offset, damaged.next_offset) for damaged in found] == [(1, 2)]
        found.clear()

    read_past(lambda: [pa.Table.from_batches(scan.sound_batches(found.append, skip_damaged=True))])
    read_past(lambda: [scan.head(2, report=found.append)])
    read_past(lambda: [scan.tail(2, report=found.append)])
