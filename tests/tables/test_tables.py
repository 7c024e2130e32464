"""Topics as Delta and Iceberg tables: the rows of the topic, and what becomes of both."""

from __future__ import annotations

import datetime as dt
import itertools
import math
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow import parquet
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.table import Table

import txnlog
from tests.kafka import folder_bytes
from tests.kafka.folder_bytes import batch, marker
from tests.tables.foreign_deletes import delete_two_rows
from tests.tables.published import (
    SCHEMA,
    DeltaPublished,
    IcebergPublished,
    Published,
    check_lost,
    check_same,
    commit_some_of,
    rows,
)
from txnlog import TopicPartition
from txnlog.errors import ConcurrentTransactions, InvalidOption, InvalidSchema, StorageError
from txnlog.results import TablePublication
from txnlog.segments.parquet import writer
from txnlog.storage import open_storage
from txnlog.storage.adapters.local import LocalStorage
from txnlog.store import Store, attach
from txnlog.tables import delta, iceberg
from txnlog.tables.columns import defaults_lacked
from txnlog.tables.delta import publish_delta
from txnlog.tables.iceberg_columns import iceberg_schema, table_name
from txnlog.tables.pinned_topic import PinnedTopic
from txnlog.tables.publication import reported
from txnlog.tables.table_files import check_apart, iceberg_url
from txnlog.testing import VirtualClock

COLUMNS = [*SCHEMA.names, "_timestamp", "_headers", "_deleted"]
PLAIN = ["key", "value", "timestamp", "headers"]


@pytest.fixture
def store(tmp_path: Path, clock: VirtualClock) -> Store:
    """A store whose path must be encoded, with a topic ``f`` of three partitions."""
    folder = tmp_path / "st o%re #1?ü"
    folder.mkdir()
    store = attach(LocalStorage(str(folder)), create=True, clock=clock)
    store.topics.create("f", partitions=3, schema=SCHEMA, key=["carrier"])
    return store


@pytest.fixture(params=[DeltaPublished, IcebergPublished])
def table(request: pytest.FixtureRequest, store: Store, tmp_path: Path) -> Published:
    made: Published = request.param(store, tmp_path)
    return made


def send(store: Store, batch: Any, topic: str = "f") -> None:
    with store.producer() as producer:
        producer.send_batch(topic, batch)


def segments(store: Store, topic: str = "f") -> set[Path]:
    return set((Path(store.url) / "topics" / topic / "data").rglob("*.parquet"))


def test_the_table_has_the_rows_of_the_topic(store: Store, table: Published) -> None:
    """Every type, nulls and tombstones; of transactions those that are committed, whole."""
    still_open = commit_some_of(store)
    done = table.publish()
    # Those of the aborted and of the open one are not among them.
    assert (done.added_files, done.removed_files, done.copied_files) == (6, 0, 0)
    assert check_same(store, table, COLUMNS) == 51
    assert {*map(len, (table.files(), segments(store)))} == {6, 12}
    still_open.commit_transaction()
    assert table.publish().added_files == 3
    assert check_same(store, table, COLUMNS) == 91


def test_again_it_adds_what_is_new(store: Store, table: Published) -> None:
    send(store, rows(0, 30))
    first = table.publish()
    nothing = table.publish()
    assert (nothing.version, nothing.added_files, nothing.removed_files) == (first.version, 0, 0)
    send(store, rows(30, 31))
    second = table.publish()
    assert (second.added_files, second.removed_files) == (1, 0)
    assert second.version != first.version
    assert sum(second.end_offsets.values()) == check_same(store, table, COLUMNS) == 31


def test_an_empty_topic_is_an_empty_table(store: Store, table: Published) -> None:
    done = table.publish()
    assert (done.added_files, table.files()) == (0, [])
    send(store, rows(0, 1))
    assert table.publish().added_files == 1
    assert check_same(store, table, COLUMNS) == 1


def test_what_the_topic_lets_go_is_taken_away(store: Store, table: Published) -> None:
    """Merged segments for small ones; of one that a trim cut through, a copy of the rest."""
    for turn in range(6):
        send(store, rows(turn * 10, turn * 10 + 10))
    assert table.publish().added_files == 18
    store.maintenance.merge("f")
    done = table.publish()
    assert (done.added_files, done.removed_files, done.copied_files) == (3, 18, 0)
    assert check_same(store, table, COLUMNS) == 60
    store.topics.delete_records({TopicPartition("f", 1): 5})
    done = table.publish()
    assert (done.added_files, done.removed_files, done.copied_files) == (1, 1, 1)
    left = check_same(store, table, COLUMNS)
    assert 0 < left < 60
    # The same copy does as long as the same rows are left.
    assert table.publish().added_files == 0
    store.topics.delete_records({TopicPartition("f", 1): done.end_offsets[1]})
    done = table.publish()
    assert (done.added_files, done.removed_files) == (0, 1)
    assert check_same(store, table, COLUMNS) == left - (done.end_offsets[1] - 5)


def test_a_range_without_rows_is_no_file(store: Store, table: Published) -> None:
    """Of a segment from which a purge took the one record that a trim has left."""
    with store.producer() as producer:
        producer.send_batch("f", rows(0, 3), partition=0)
        producer.send_batch("f", rows(3, 4), partition=1)
    store.maintenance.purge("f", [{"carrier": "c2"}])
    store.topics.delete_records({TopicPartition("f", 0): 2})
    assert table.publish().copied_files == 0
    there = {*table.folder.rglob("*.parquet")}
    assert table.publish().added_files == 0
    assert {*table.folder.rglob("*.parquet")} == there == set()
    place = f"delta:{table.folder}"
    if isinstance(table, DeltaPublished):
        store.topics.alter("f", config={"table.publish": place})
        foretold = store.maintain(dry_run=True, publish=place)
        assert not any(isinstance(one, TablePublication) for one in foretold)
    assert check_same(store, table, COLUMNS) == 1


@pytest.fixture
def read_bytes(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many bytes were read, by the suffix of files."""
    counted: Counter[str] = Counter()
    real = LocalStorage._read

    def read(storage: LocalStorage, name: str, start: int, stop: int | None) -> bytes:
        data = real(storage, name, start, stop)
        counted[Path(name).suffix] += len(data)
        return data

    monkeypatch.setattr(LocalStorage, "_read", read)
    return counted


def test_a_range_is_looked_at_without_its_values(
    store: Store, tmp_path: Path, read_bytes: Counter[str]
) -> None:
    """Whether a trim has left any row is told by offsets, also where a purge made gaps."""
    raws = np.random.default_rng(7)
    many = [rows(number, number + 1, raw=raws.bytes(20_000)) for number in range(300)]
    with store.producer() as producer:
        producer.send_batch("f", pa.concat_tables(many), partition=0)
    store.maintenance.purge("f", [{"carrier": "c5"}])
    store.topics.delete_records({TopicPartition("f", 0): 10})
    table = DeltaPublished(store, tmp_path)
    size = sum(path.stat().st_size for path in segments(store))
    read_bytes.clear()
    assert publish_delta(store.logs, "f", str(table.folder), None, dry_run=True).copied_files == 1
    assert read_bytes[".parquet"] < size / 10
    assert table.publish().copied_files == 1
    assert check_same(store, table, COLUMNS) == 290


@pytest.mark.parametrize("commit", [False, True], ids=["aborted", "committed"])
def test_a_segment_of_kafkas_is_looked_at_if_it_has_aborted_records(
    store: Store, tmp_path: Path, read_bytes: Counter[str], *, commit: bool
) -> None:
    store.topics.create("k", config={"record.format": "auto"})
    log = batch(0, b"mine", producer=7) + marker(1, 7, commit=commit)
    store.kafka.import_topic("k", [folder_bytes.folder(tmp_path / "k", {0: log})])
    read_bytes.clear()
    foretold = publish_delta(store.logs, "k", str(tmp_path / "t"), None, dry_run=True)
    assert foretold.copied_files == int(commit)
    assert bool(read_bytes[".log"]) is not commit
    assert store.tables.publish_delta("k", str(tmp_path / "t")).copied_files == int(commit)


def test_compaction_is_an_upsert(tmp_path: Path, clock: VirtualClock) -> None:
    """The newest row of each key, as after a MERGE, in both tables."""
    store = attach(LocalStorage(str(tmp_path)), create=True, clock=clock)
    config = {"cleanup.policy": "compact", "min.compaction.lag.ms": 0}
    store.topics.create("f", schema=SCHEMA, key=["carrier"], config=config)
    folder = tmp_path.parent / f"{tmp_path.name}-tables"
    folder.mkdir()
    tables: list[Published] = [DeltaPublished(store, folder), IcebergPublished(store, folder)]
    send(store, rows(0, 10))
    send(store, rows(5, 15, small=99))
    for table in tables:
        table.publish()
        assert check_same(store, table, COLUMNS) == 20
    store.maintenance.compact("f")
    for table in tables:
        table.publish()
        assert check_same(store, table, COLUMNS) == 15
        assert table.read(["small"])["small"].to_pylist().count(99) == 10


def test_columns_follow_the_topic(store: Store, table: Published) -> None:
    """Added, dropped, wider, in another order: older rows are read under the new schema."""
    send(store, rows(0, 20))
    table.publish()
    kept = [field for field in SCHEMA if field.name not in ("price", "flight", "local")]
    changed = pa.schema([("later", pa.timestamp("us")), *kept, ("flight", pa.int64())])
    store.topics.alter("f", schema=changed)
    done = table.publish()
    assert (done.added_files, done.copied_files) == (0, 0)
    columns = [*changed.names, "_deleted"]
    assert check_same(store, table, columns) == 20
    send(store, pa.table({"carrier": ["new"], "flight": [1 << 40], "legs": [[]]}))
    table.publish()
    assert check_same(store, table, columns) == 21


def test_a_default_is_in_older_rows(store: Store, table: Published) -> None:
    """Engines do not know it, so older files are copied, in the version that has the column."""
    send(store, rows(0, 20))
    table.publish()
    send(store, rows(20, 30))
    columns = pa.schema([*SCHEMA, pa.field("gate", pa.string(), nullable=False)])
    store.topics.alter("f", schema=columns, defaults={"gate": "?"})
    done = table.publish()
    assert (done.copied_files, done.removed_files) == (6, 3)
    assert check_same(store, table, [*COLUMNS, "gate"]) == 30
    if isinstance(table, DeltaPublished):
        assert table.table.version() == 1
    assert table.publish().added_files == 0
    store.topics.alter("f", schema=pa.schema([*columns, ("n", pa.int8())]), defaults={"n": 1})
    send(store, rows(30, 40).append_column("gate", pa.array(["A"] * 10)))
    table.publish()
    assert check_same(store, table, [*COLUMNS, "gate", "n"]) == 40


@pytest.mark.parametrize("between", [False, True])
def test_a_name_that_another_column_had(store: Store, tmp_path: Path, between: bool) -> None:
    """Values of the one that is gone never show in the other."""
    store.topics.alter("f", config={"schema.compatibility": "NONE"})
    tables: list[Published] = [DeltaPublished(store, tmp_path), IcebergPublished(store, tmp_path)]

    def publish() -> None:
        for table in tables:
            table.publish()

    send(store, rows(0, 10))
    publish()
    without = SCHEMA.remove(SCHEMA.get_field_index("flight"))
    store.topics.alter("f", schema=without)
    if between:
        send(store, rows(10, 20).drop_columns("flight"))
    publish()
    store.topics.alter("f", schema=SCHEMA)
    if between:
        with pytest.raises(InvalidSchema, match="publish to another folder"):
            tables[0].publish()
        tables[0] = DeltaPublished(store, tmp_path / "other")
    send(store, rows(20, 30))
    publish()
    for table in tables:
        assert check_same(store, table, ["carrier", "flight"]) == (30 if between else 20)
        assert table.read(["flight"])["flight"].null_count > 10


def test_a_column_may_bring_a_feature_of_the_table(tmp_path: Path, clock: VirtualClock) -> None:
    """Times without a zone need one of Delta's, that a table has only where it is needed."""
    store = attach(LocalStorage(str(tmp_path / "s")), create=True, clock=clock)
    store.topics.create("f", schema=pa.schema([("a", pa.int32())]))
    table = DeltaPublished(store, tmp_path)
    send(store, pa.table({"a": pa.array([1], pa.int32())}))
    table.publish()
    assert table.table.protocol().min_reader_version == 1
    store.topics.alter("f", schema=pa.schema([("a", pa.int32()), ("t", pa.timestamp("ms"))]))
    table.publish()
    assert table.table.protocol().reader_features == ["timestampNtz"]
    assert check_same(store, table, ["a", "t"]) == 1


def test_topics_of_keys_and_values(store: Store, tmp_path: Path) -> None:
    store.topics.create("bytes", config={"record.format": "parquet"})
    with store.producer() as producer:
        producer.send("bytes", b"value", b"key", headers=[("h", b"1")])
        producer.send("bytes", None, b"key")
    for table in (
        DeltaPublished(store, tmp_path, "bytes"),
        IcebergPublished(store, tmp_path, "bytes"),
    ):
        assert table.publish().copied_files == 0
        assert check_same(store, table, PLAIN, "bytes") == 2


def test_times_of_appends_are_left_out(store: Store, tmp_path: Path) -> None:
    """They are in the log, and not in the files."""
    config = {"message.timestamp.type": "LogAppendTime"}
    store.topics.create("g", schema=pa.schema([("a", pa.int32())]), config=config)
    send(store, pa.table({"a": pa.array([1], pa.int32())}), "g")
    table = DeltaPublished(store, tmp_path, "g")
    table.publish()
    assert table.table.schema().to_arrow().names == ["a", "_headers", "_partition"]
    assert check_same(store, table, ["a", "_headers"], "g") == 1


@pytest.mark.parametrize("record_format", ["auto", "parquet"])
def test_times_come_when_they_are_those_of_the_records(
    store: Store, table: Published, record_format: str
) -> None:
    """The copies that a table without times had did not have them, either; nothing else is new."""
    kinds = ["LogAppendTime", "CreateTime", "LogAppendTime", "CreateTime"]
    for number, kind in enumerate(kinds):
        config = {"message.timestamp.type": kind, "record.format": record_format}
        store.topics.alter("f", config=config)
        send(store, rows(number, number + 1))
        done = table.publish()
        columns = ["carrier", "flight"] + ["_timestamp"] * (kind == "CreateTime")
        assert check_same(store, table, columns) == number + 1
        untimed = [n for n in range(number) if kind == "CreateTime" and kinds[n] != kind]
        copied = 0 if record_format == "parquet" else 1 + len(untimed) - (number == 3)
        assert done.copied_files == copied
        assert table.publish().added_files == 0


def test_a_file_whose_columns_would_not_be_found_is_copied(store: Store, tmp_path: Path) -> None:
    """Iceberg goes by ids: a file in which a column has none is not referred to."""
    with patch.object(writer, "with_record_ids", lambda schema: schema):
        send(store, rows(0, 9))
    table = IcebergPublished(store, tmp_path)
    assert table.publish().copied_files == 3
    assert check_same(store, table, COLUMNS) == 9
    assert table.publish().added_files == 0
    by_name = DeltaPublished(store, tmp_path)
    assert by_name.publish().copied_files == 0
    assert check_same(store, by_name, COLUMNS) == 9


def test_a_copy_has_row_groups_as_its_segment(store: Store, tmp_path: Path) -> None:
    """However small the pieces are in which that is read."""
    schema = pa.schema([(f"n{number}", pa.int64()) for number in range(8)])
    store.topics.create("n", partitions=1, schema=schema)
    numbers = np.random.default_rng(1).integers(0, 1 << 60, 500_000)
    send(store, pa.table([numbers] * 8, schema), "n")
    store.topics.delete_records({TopicPartition("n", 0): 3})
    table = IcebergPublished(store, tmp_path, "n")
    table.publish()
    [url] = table.files()
    [whole] = segments(store, "n")
    copy = Path(url.removeprefix("file://"))
    assert copy != whole
    copied, groups = (parquet.ParquetFile(path).num_row_groups for path in (copy, whole))
    assert 1 < groups == copied


def test_a_copy_has_no_dictionary_of_floats(store: Store, tmp_path: Path) -> None:
    """In which Iceberg would look for -0.0, and leave out rows with 0.0."""
    with patch.object(writer, "with_record_ids", lambda schema: schema):
        send(store, rows(0, 9))
    table = IcebergPublished(store, tmp_path)
    assert table.publish().copied_files == 3
    copies = [path for path in tmp_path.rglob("*.parquet") if "topics" not in path.parts]
    assert len(copies) == 3
    for path in copies:
        group = parquet.ParquetFile(path).metadata.row_group(0)
        chunks = [group.column(number) for number in range(group.num_columns)]
        found = {chunk.path_in_schema: chunk.has_dictionary_page for chunk in chunks}
        assert (found["delay"], found["carrier"]) == (False, True)


# -- what engines leave out ----------------------------------------------------------------------


def test_bounds_hold(store: Store, tmp_path: Path) -> None:
    """What the tables' logs say of files, against their rows. Floats with NaN have none."""
    send(store, rows(0, 50))
    store.topics.delete_records({TopicPartition("f", 0): 3})  # one is a copy
    store.topics.alter("f", schema=pa.schema([*SCHEMA, ("more", pa.int8())]))
    table = DeltaPublished(store, tmp_path)
    table.publish()
    actions = pa.table(table.table.get_add_actions(flatten=True)).to_pylist()
    assert len(actions) == 3
    for action in actions:
        where = f"_partition = {action['partition._partition']}"
        held = pa.table(table.table.scan(predicate=where))
        assert action["num_records"] == action["null_count.more"] == len(held)
        for name in ("carrier", "flight", "at", "local", "day", "small"):
            values = [v for v in held[name].to_pylist() if v is not None]
            assert action[f"null_count.{name}"] == len(held) - len(values)
            assert action[f"min.{name}"] <= min(values) <= max(values) <= action[f"max.{name}"]
        assert any(map(math.isnan, held["delay"].to_pylist()))
        assert action.get("min.delay") is action.get("max.delay") is None


@pytest.mark.parametrize("inner", [pa.int64(), pa.string()], ids=str)
def test_a_column_that_is_called_as_the_path_to_another(
    store: Store, tmp_path: Path, inner: pa.DataType
) -> None:
    """Bounds are of the column itself; Iceberg cannot have both, and says so."""
    nested = pa.struct([("b", inner), ("c", pa.int8())])
    store.topics.create("g", schema=pa.schema([("a", nested), ("a.b", pa.int64())]))
    first = pa.array(range(500, 600)).cast(inner)
    with store.producer() as producer:
        column = pa.StructArray.from_arrays([first, pa.nulls(100, pa.int8())], fields=[*nested])
        producer.send_batch("g", pa.table({"a": column, "a.b": range(100)}))
    table = DeltaPublished(store, tmp_path, "g")
    table.publish()
    (action,) = pa.table(table.table.get_add_actions(flatten=True)).to_pylist()
    assert (action["min.a.b"], action["max.a.b"]) == (0, 99)
    with pytest.raises(InvalidSchema, match=r"multiple fields for name a.b.*rename one of them"):
        IcebergPublished(store, tmp_path, "g").publish()


@pytest.mark.parametrize("days", [999_999_999, 1_000_000_000, 2**31 - 1, -(2**31)])
def test_a_date_that_no_calendar_has(tmp_path: Path, clock: VirtualClock, days: int) -> None:
    """It is a bound in Iceberg, and none in Delta."""
    store = attach(LocalStorage(str(tmp_path / "s")), create=True, clock=clock)
    store.topics.create("f", schema=pa.schema([("d", pa.date32())]))
    send(store, pa.table({"d": pa.array([days, 0], pa.int32()).view(pa.date32())}))
    tables: list[Published] = [DeltaPublished(store, tmp_path), IcebergPublished(store, tmp_path)]
    for table in tables:
        table.publish()
        found = table.read(["d"])["d"].combine_chunks().view(pa.int32())
        assert sorted(found.to_pylist()) == sorted([days, 0])


def test_files_are_left_out(store: Store, tmp_path: Path) -> None:
    """A filter on a column, by both libraries; rows with NaN are found by a filter for large."""
    for turn in range(3):
        send(store, rows(turn * 100, turn * 100 + 20))
    delta_table, iceberg_table = DeltaPublished(store, tmp_path), IcebergPublished(store, tmp_path)
    delta_table.publish()
    iceberg_table.publish()
    opened = iceberg_table.catalog.load_table("sales.f")
    assert len([*opened.scan(row_filter="small >= 0").plan_files()]) == 9
    assert len([*opened.scan(row_filter="flight >= 200").plan_files()]) == 3
    assert len([*opened.scan(row_filter="delay > 1000").plan_files()]) == 9
    assert opened.scan(row_filter="flight >= 200").to_arrow().num_rows == 16
    gone = [path for path in segments(store) if "200" not in str(path)]
    found = pa.table(delta_table.table.scan(predicate="flight >= 200"))
    assert found.num_rows == 16
    # Files that are left out need not even be there.
    kept = {task.file.file_path for task in opened.scan(row_filter="flight >= 200").plan_files()}
    for path in gone:
        if str(path) not in kept:
            path.unlink()
    assert pa.table(delta_table.table.scan(predicate="flight >= 200")).num_rows == 16


def test_engines_split_files_where_a_task_is_worth_it(store: Store, tmp_path: Path) -> None:
    """A small file is one task, however many row groups it has; a large one is several."""
    schema = pa.schema([(f"n{number}", pa.int64()) for number in range(8)])
    for topic, most, count in (("small", 2, 900_000), ("large", 1 << 60, 700_000)):
        store.topics.create(topic, partitions=1, schema=schema)
        numbers = np.random.default_rng(1).integers(0, most, count)
        send(store, pa.table([numbers] * 8, schema), topic)
        [path] = segments(store, topic)
        found = parquet.ParquetFile(path)
        chunks = [found.metadata.row_group(n).column(0) for n in range(found.num_row_groups)]
        begins = [chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks]
        assert len(begins) > 1
        folder = tmp_path / topic
        folder.mkdir()
        table = IcebergPublished(store, folder, topic)
        table.publish()
        [task] = table.catalog.load_table("sales.f").scan().plan_files()
        assert task.file.split_offsets == (begins if topic == "large" else begins[:1])


def test_cleaning_a_table_deletes_no_segment(store: Store, tmp_path: Path) -> None:
    """Delta's VACUUM deletes what lies in the table's own folder alone."""
    send(store, rows(0, 30))
    table = DeltaPublished(store, tmp_path)
    table.publish()
    store.topics.delete_records({TopicPartition("f", 0): 3, TopicPartition("f", 1): 10_000 % 5})
    table.publish()
    (table.folder / "left over.parquet").write_bytes(b"x")
    before = segments(store)
    table.table.vacuum(
        retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True
    )
    assert segments(store) == before
    assert not (table.folder / "left over.parquet").exists()
    check_same(store, table, COLUMNS)


# -- crashes and company -------------------------------------------------------------------------


class Killed(BaseException):
    """The process ends here."""


STEPS: list[tuple[type, Any, str]] = [
    (DeltaPublished, delta, "plan_files"),
    (DeltaPublished, delta, "copy_files"),
    (DeltaPublished, DeltaTable, "create_write_transaction"),
    (IcebergPublished, iceberg, "plan_files"),
    (IcebergPublished, iceberg, "copy_files"),
    (IcebergPublished, iceberg._OtherColumns, "_commit"),
    (IcebergPublished, Table, "_do_commit"),
]


@pytest.mark.parametrize("after", [pytest.param(False, marks=pytest.mark.more), True])
@pytest.mark.parametrize(("kind", "owner", "step"), STEPS)
def test_killed_at_any_step(
    kind: Callable[..., Published],
    owner: Any,
    step: str,
    after: bool,
    store: Store,
    tmp_path: Path,
) -> None:
    """The next one goes on: each row once, whatever the one that was killed has left."""
    table = kind(store, tmp_path)
    send(store, rows(0, 10))
    table.publish()
    send(store, rows(10, 20))
    store.topics.delete_records({TopicPartition("f", 0): 1})
    store.topics.alter("f", schema=pa.schema([*SCHEMA, ("more", pa.string())]))
    real = getattr(owner, step)
    calls = 0

    def dies(*args: Any, **arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if after:
            real(*args, **arguments)
        raise Killed

    killed = 0
    for _ in range(2):  # the first commit is that of the columns
        with patch.object(owner, step, dies):
            try:
                table.publish()
            except Killed:
                killed += 1
    assert killed == calls >= 1
    table.publish()
    assert check_same(store, table, [*COLUMNS, "more"]) == 19
    assert table.publish().added_files == 0


@pytest.mark.parametrize("made", [pytest.param(False, marks=pytest.mark.more), True])
def test_two_at_once(made: bool, store: Store, table: Published) -> None:
    """One plans, another publishes more meanwhile: the first starts over, adds no file twice."""
    module: Any = delta if isinstance(table, DeltaPublished) else iceberg
    send(store, rows(0, 10))
    if made:
        table.publish()
        send(store, rows(10, 20))
    real = module.plan_files
    others: list[int] = []

    def overtaken(*args: Any, **named: Any) -> Any:
        planned = real(*args, **named)
        if not others:
            others.append(1)
            send(store, rows(20, 30))
            table.publish()
        return planned

    with patch.object(module, "plan_files", overtaken):
        done = table.publish()
    assert (others, done.added_files) == ([1], 0)
    assert check_same(store, table, COLUMNS) == (30 if made else 20)


def test_another_process_comes_between_the_two_commits(store: Store, tmp_path: Path) -> None:
    """A change of columns is a commit of its own: what is published behind it is not seen yet."""
    store.topics.alter("f", config={"record.format": "auto"})
    send(store, rows(0, 10))
    table = DeltaPublished(store, tmp_path)
    table.publish()
    store.topics.alter("f", schema=SCHEMA.append(pa.field("more", pa.int8())))
    real = delta._overtaken
    others: list[int] = []

    @contextmanager
    def overtaken() -> Generator[None]:
        with real():
            yield
        if not others:
            others.append(1)
            table.publish()

    send(store, rows(20, 30))
    with patch.object(delta, "_overtaken", overtaken):
        table.publish()
    assert others
    assert check_same(store, table, [*COLUMNS, "more"]) == 20


@pytest.mark.more
def test_somebody_always_interferes(store: Store, table: Published) -> None:
    """Whenever we have planned somebody else publishes, before us, and less than there is."""
    module: Any = delta if isinstance(table, DeltaPublished) else iceberg
    send(store, rows(0, 3))
    table.publish()
    real = module.plan_files
    numbers = itertools.count(3)

    def overtaken(*args: Any, **named: Any) -> Any:
        number = next(numbers)
        send(store, rows(number, number + 1))
        with patch.object(module, "plan_files", real):
            table.publish()
        send(store, rows(1000 + number, 1001 + number))
        return real(*args, **named)

    send(store, rows(1000, 1001))
    with (
        patch.object(module, "plan_files", overtaken),
        pytest.raises(ConcurrentTransactions, match="try again"),
    ):
        table.publish()
    table.publish()
    assert check_same(store, table, COLUMNS) == 4 + 20


def test_the_table_is_read_before_the_topic(store: Store, table: Published) -> None:
    """What is published between the two is noticed: a trim, which no offset of ends would tell."""
    module: Any = delta if isinstance(table, DeltaPublished) else iceberg
    send(store, rows(0, 30))
    table.publish()
    real = module.PinnedTopic.of

    def overtaken(*args: Any) -> Any:
        pinned = real(*args)
        if not others:
            others.append(1)
            store.topics.delete_records({TopicPartition("f", 0): 2})
            table.publish()
        return pinned

    others: list[int] = []
    send(store, rows(30, 31))
    with patch.object(module.PinnedTopic, "of", overtaken):
        table.publish()
    assert check_same(store, table, COLUMNS) == 29


def test_what_a_store_has_lost_goes_from_its_table(
    store: Store, table: Published, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A backup is restored: no partition need reach as far as before. What is purged goes, too."""
    send(store, rows(0, 3))
    folder = tmp_path / "backup"
    shutil.copytree(Path(store.url), folder)
    with store.producer() as producer:
        producer.send_batch("f", rows(3, 9), partition=1)
    newest = table.publish()
    restored = type(table)(attach(LocalStorage(str(folder))), tmp_path)  # type: ignore[call-arg]
    check_lost(restored, newest, caplog)


@pytest.mark.more
def test_what_others_did_to_the_table_is_undone(store: Store, tmp_path: Path) -> None:
    """It is the topic's: what they take away comes back."""
    send(store, rows(0, 30))
    table = DeltaPublished(store, tmp_path)
    table.publish()
    schema = table.table.schema()
    table.table.create_write_transaction([], "overwrite", schema, ["_partition"])
    assert len(table.read(["flight"])) == 0
    table.publish()
    assert check_same(store, table, COLUMNS) == 30


def test_single_rows_that_others_deleted_come_back(store: Store, table: Published) -> None:
    """Merge-on-read, which leaves files where they are: with deletion vectors, or by position."""
    send(store, rows(0, 30))
    table.publish()
    delete_two_rows(table)
    assert len(table.read(["flight"])) == 28
    done = table.publish()
    assert (done.added_files, done.removed_files, done.copied_files) == (3, 3, 0)
    assert check_same(store, table, COLUMNS) == 30
    assert table.publish() == replace(done, added_files=0, removed_files=0)


# -- what is refused -----------------------------------------------------------------------------


def test_another_table_is_left_alone(store: Store, table: Published) -> None:
    """One that was there, or that of an earlier topic of this name."""
    send(store, rows(0, 3))
    table.publish()
    before = table.files()
    store.topics.delete("f")
    store.topics.create("f", partitions=3, schema=SCHEMA, key=["carrier"])
    with pytest.raises(InvalidOption, match="not of this topic"):
        table.publish()
    assert table.files() == before


def test_a_delta_table_that_others_have_partitioned(store: Store, tmp_path: Path) -> None:
    send(store, rows(0, 3))
    table = DeltaPublished(store, tmp_path)
    table.publish()
    row = pa.table({"carrier": ["x"], "n": [1]})
    folder = str(table.folder)
    write_deltalake(folder, row, mode="overwrite", schema_mode="overwrite", partition_by=["n"])
    with pytest.raises(InvalidOption, match=r"partitioned .* by n, .*publish to another folder"):
        table.publish()


def test_an_iceberg_table_that_others_have_partitioned(store: Store, tmp_path: Path) -> None:
    """Until they take that back; what they have added meanwhile goes."""
    send(store, rows(0, 3))
    table = IcebergPublished(store, tmp_path)
    table.publish()
    opened = table.catalog.load_table("sales.f")
    with opened.update_spec() as spec:
        spec.add_identity("small")
    opened.append(rows(7, 8).select(["carrier", "small"]))
    with pytest.raises(InvalidOption, match=r"partitioned .* by small, .*remove these fields"):
        table.publish()
    with opened.update_spec() as spec:
        spec.remove_field("small")
    send(store, rows(3, 4))
    table.publish()
    assert check_same(store, table, COLUMNS) == 4


@pytest.mark.few(1)
@pytest.mark.parametrize("kept", [4, 16])
def test_iceberg_manifests_do_not_grow_with_each_publication(
    store: Store, tmp_path: Path, kept: int
) -> None:
    """Those without a live file are left out, and others are joined some day.

    pyiceberg takes snapshots away, and no file of the table's or the store's.
    """
    config = {"record.format": "auto"}
    store.topics.create("g", schema=SCHEMA, key=["carrier"], config=config)
    table = IcebergPublished(store, tmp_path, "g")
    table.publish()
    few = {"commit.manifest.min-count-to-merge": "8"}
    table.catalog.load_table("sales.f").transaction().set_properties(few).commit_transaction()
    for number in range(16):
        send(store, rows(number, number + 1), "g")
        store.topics.delete_records({TopicPartition("g", 0): max(0, number + 1 - kept)})
        table.publish()
    opened = table.catalog.load_table("sales.f")
    current = opened.current_snapshot()
    assert current is not None
    assert len(current.manifests(opened.io)) <= 8
    files = {path for path in tmp_path.rglob("*") if path.suffix != ".db"}
    late = dt.datetime(3000, 1, 1, tzinfo=dt.UTC)
    opened.maintenance.expire_snapshots().older_than(late).commit()
    assert files <= {*tmp_path.rglob("*")}
    table.publish()
    there = table.catalog.load_table("sales.f")
    assert [one.snapshot_id for one in there.snapshots()] == [current.snapshot_id]
    assert check_same(store, table, COLUMNS, "g") == kept


def test_a_catalog_that_drops_properties_gets_no_commit_without_news(
    store: Store, tmp_path: Path
) -> None:
    table = IcebergPublished(store, tmp_path)
    table.publish()
    transaction = table.catalog.load_table("sales.f").transaction()
    dropped = iceberg._PROPERTIES.keys() - {iceberg._RETRIES}
    transaction.remove_properties(*dropped).commit_transaction()
    before = table.catalog.load_table("sales.f").metadata_location
    table.publish()
    assert table.catalog.load_table("sales.f").metadata_location == before


def test_what_files_lack_is_looked_up_once(store: Store) -> None:
    """Each answer of a catalog asks for all earlier schemas, which may be many."""
    more = SCHEMA.append(pa.field("gate", pa.int8()))
    store.topics.alter("f", schema=more, defaults={"gate": 7})
    schema = PinnedTopic.of(store.logs, "f").schema
    assert schema is not None
    found = [defaults_lacked(schema, schema.version - 1) for _ in range(2)]
    assert found[0] is found[1]
    assert found[0] == {"gate"}


def test_only_parquet_files_can_be_referred_to(store: Store, tmp_path: Path) -> None:
    for topic, schema in (("columns", None), ("typed", SCHEMA)):
        store.topics.create(topic, schema=schema, config={"record.format": "columns"})
    for topic in ("columns", "typed"):
        with pytest.raises(InvalidOption, match=r"set its record\.format to auto"):
            store.tables.publish_delta(topic, str(tmp_path / "t"))
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("place", ["", "s3:/lake/t", "file:/tmp/t", None, 7])
def test_a_place_that_is_neither_url_nor_path(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Any
) -> None:
    """It becomes no folder where the process happens to be."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    with pytest.raises(InvalidOption, match=r"two slashes|a path or URL must"):
        store.tables.publish_delta("f", place)
    assert [*work.iterdir()] == []
    assert store.tables.publish_delta("f", work / "t").url == str(work / "t")


@pytest.mark.parametrize("name", ["out%20x", "a\\b"])
def test_a_folder_that_deltalake_takes_for_another_is_refused(
    store: Store, tmp_path: Path, name: str
) -> None:
    """Nothing was written to it, nor to the one that it would have read."""
    for place in (str(tmp_path / name), (tmp_path / name).as_uri()):
        with pytest.raises(InvalidOption, match="reads another one"):
            store.tables.publish_delta("f", place)
    assert not {"out%20x", "out x", "a\\b", "a"} & {path.name for path in tmp_path.iterdir()}
    assert store.tables.publish_delta("f", (tmp_path / "out x").as_uri()).version == 0


def test_table_and_store_lie_apart(store: Store, tmp_path: Path) -> None:
    """Cleaning the table would delete the store's files."""
    (tmp_path / "link").symlink_to(store.url)
    inside = (f"{store.url}/topics/f", f"{tmp_path}/link/t", f"{Path(store.url).as_uri()}/t")
    for folder in (store.url, *inside, str(tmp_path), f"file://{tmp_path}", "/"):
        with pytest.raises(InvalidOption, match="are nested"):
            store.tables.publish_delta("f", folder)
    table = IcebergPublished(store, tmp_path)
    for location in (f"file://{store.url}/t", f"{store.url}/t", f"file:{store.url}/t"):
        with pytest.raises(InvalidOption, match="are nested"):
            store.tables.publish_iceberg("f", table.catalog, "sales.f", location=location)
    assert not table.catalog.table_exists("sales.f")
    memory = txnlog.open("memory://tables", create=True)
    memory.topics.create("f", schema=SCHEMA)
    with pytest.raises(InvalidOption, match="cannot read the files of memory"):
        memory.tables.publish_delta("f", str(tmp_path / "t"))


@pytest.mark.parametrize("name", ["flights", "", ".", "a..b", ".b", "a.", "a. ", 7, None])
def test_a_name_that_is_of_no_table(store: Store, tmp_path: Path, name: Any) -> None:
    catalog = IcebergPublished(store, tmp_path).catalog
    with pytest.raises(InvalidOption, match=r"give it as NAMESPACE\.TABLE"):
        store.tables.publish_iceberg("f", catalog, name)
    assert catalog.list_namespaces() == []


@pytest.mark.parametrize("name", ["_tombstone", "_Tombstone"])
def test_a_column_cannot_take_a_name_of_icebergs(store: Store, tmp_path: Path, name: str) -> None:
    """Spark could not tell names apart that differ in case alone."""
    store.topics.create("g", schema=pa.schema([(name, pa.int8())]))
    table = IcebergPublished(store, tmp_path, "g")
    with pytest.raises(InvalidSchema, match=f"has a column '{name}'"):
        table.publish()


def test_columns_are_icebergs(store: Store) -> None:
    """What pyiceberg makes of the same columns, with every type that a topic may have."""
    kinds = [
        *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()),
        *(pa.string(), pa.binary(), pa.date32(), pa.decimal128(38, 9), pa.decimal128(1, 0)),
        *(pa.timestamp("s"), pa.timestamp("ms", "UTC"), pa.timestamp("us"), pa.large_string()),
    ]
    nested = pa.struct([pa.field(f"n{number}", kind, False) for number, kind in enumerate(kinds)])
    kinds += [nested, pa.list_(nested), pa.map_(pa.int16(), pa.list_(pa.list_(nested)))]
    named = [pa.field(f"c{number}", kind) for number, kind in enumerate(kinds)]
    key = pa.field("k", pa.string(), False)
    store.topics.create("every", schema=pa.schema([key, *named]), key=["k"])
    store.topics.create("plain")
    for topic in ("every", "plain", "f"):
        columns = PinnedTopic.of(store.logs, topic).columns
        renamed = [field.with_name(table_name(field.name)) for field in columns]
        wanted = pyarrow_to_schema(pa.schema(renamed))
        assert iceberg_schema(columns).model_dump() == wanted.model_dump()


def test_a_catalog_loads_no_datasets() -> None:
    """Arrow's take 50 MB of its server."""
    code = "import sys, txnlog.ui.catalog.protocol; print('pyarrow.dataset' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_the_names_of_segments_are_paths_where_pyiceberg_would_cut_urls(tmp_path: Path) -> None:
    """Elsewhere they are URLs; where neither leads to the file, nothing is published."""
    for name, expected in (("a b%20ü", f"file://{tmp_path}/a b%20ü"), ("a#b", f"{tmp_path}/a#b")):
        assert iceberg_url(LocalStorage(str(tmp_path / name))) == expected
    assert iceberg_url(open_storage("s3://bucket/a b")) == "s3://bucket/a b"
    with pytest.raises(InvalidOption, match="because of the '#'"):
        iceberg_url(open_storage("s3://bucket/a#b"))


def test_a_table_is_apart_however_its_library_reads_the_url(tmp_path: Path) -> None:
    """Pyiceberg cuts it and does not decode it, deltalake decodes it."""
    storage = LocalStorage(str(tmp_path / "st"))
    for folder in ("st/t", "s%74/t", "st#/../t", "st?t"):
        with pytest.raises(InvalidOption, match="are nested"):
            check_apart(storage, f"file://{tmp_path}/{folder}")
    for folder in ("store", "sttt", "st-t"):
        check_apart(storage, f"file://{tmp_path}/{folder}")
        check_apart(storage, f"{tmp_path}/{folder}")
    check_apart(LocalStorage(str(tmp_path / "a#b" / "st")), f"{tmp_path}/a#b/t")
    check_apart(LocalStorage(str(tmp_path / "a#b")), f"{tmp_path}/a%23b")


def test_names_are_what_delta_goes_by() -> None:
    """A column that was renamed, or whose name is another's now, would show wrong values."""

    def table(**names: int) -> dict[str, Any]:
        inner = [
            {"name": name, "type": "long", "metadata": {"txnlog.column.id": str(number)}}
            for name, number in names.items()
        ]
        nested = {"type": "array", "elementType": {"type": "struct", "fields": inner}}
        return {"fields": [*inner[:1], {"name": "l", "type": nested, "metadata": {}}]}

    delta._check_change(table(a=1, b=2), table(a=1, c=3), "")
    for changed in (table(z=1, b=2), table(a=1, z=2), table(a=1, b=3), table(a=3, b=2)):
        with pytest.raises(InvalidSchema, match="publish to another folder"):
            delta._check_change(table(a=1, b=2), changed, "")


def test_errors_of_libraries_are_ours(store: Store, tmp_path: Path) -> None:
    """With what to do; a secret among the options does not show."""
    table = DeltaPublished(store, tmp_path)
    send(store, rows(0, 1))
    table.publish()
    for name in (table.folder / "_delta_log").iterdir():
        name.write_bytes(b"{broken secret-of-mine")
    with pytest.raises(StorageError, match="publish again") as failed:
        store.tables.publish_delta(
            "f", str(table.folder), storage_options={"key": "secret-of-mine"}
        )
    assert "secret-of-mine" not in str(failed.value)
    with (
        patch.dict("sys.modules", {"deltalake": None}),
        pytest.raises(InvalidOption, match="delta"),
    ):
        store.tables.publish_delta("f", str(table.folder))


def test_causes_that_a_library_shows_as_a_tree_stand_in_one_line() -> None:
    """In colours, which are nothing for logs."""
    said = "Generic S3 error\n  \x1b[31m↳\x1b[0m Server returned 404\n   \x1b[31m↳\x1b[0m no bucket"
    with pytest.raises(StorageError) as failed, reported("publishing to", "s3://a/t"):
        raise OSError(said)
    assert str(failed.value) == (
        "publishing to s3://a/t failed: Generic S3 error: Server returned 404: no bucket; "
        "publish again, which goes on from what is there"
    )


@pytest.mark.more
def test_deltas_own_reader_agrees(store: Store, tmp_path: Path) -> None:
    """An older version of the table shows what it has shown."""
    send(store, rows(0, 10))
    table = DeltaPublished(store, tmp_path)
    first = table.publish().version
    send(store, rows(10, 20))
    store.maintenance.merge("f")
    table.publish()
    assert first is not None
    old = DeltaTable(str(table.folder), version=first)
    assert pa.table(old.scan(columns=["carrier"])).num_rows == 10
    assert check_same(store, table, COLUMNS) == 20


@pytest.mark.parametrize("kind", [DeltaPublished, IcebergPublished])
def test_what_is_published_is_durable_first(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Callable[..., Published]
) -> None:
    """A power cut would take it from the log, and leave it in the table."""
    send(store, rows(0, 9))
    table = kind(attach(LocalStorage(store.url)), tmp_path)
    asked: list[str] = []

    def confirm(_: LocalStorage, name: str) -> None:
        asked.append(name)
        raise StorageError("the device is gone")

    monkeypatch.setattr(LocalStorage, "confirm", confirm)
    with pytest.raises(StorageError, match="the device is gone"):
        table.publish()
    assert asked
    assert all(name.startswith("topics/f/log/") for name in asked)
