"""Rows that Spark reads itself come in the order of their offsets, task after task."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession

from tests.spark.spark_helpers import explained
from txnlog import Store
from txnlog.segments import writer
from txnlog.spark import read, transaction
from txnlog.spark.batch import native_read, planned_files, read_frame
from txnlog.spark.batch.native_read import in_runs
from txnlog.spark.batch.planned_files import Files, Planner

# -- what is planned, without Spark ----------------------------------------------------------------


def spark_tasks(files: Files) -> list[list[tuple[int, int]]]:
    """How Spark makes tasks of files: by their numbers, and where in a file a piece begins."""
    pieces = [
        (min(files.task_bytes, length - start), number, start)
        for number, length in enumerate(files.lengths)
        for start in range(0, length, files.task_bytes)
    ]
    tasks: list[list[tuple[int, int]]] = []
    left = 0
    for length, number, start in sorted(pieces, key=lambda piece: -piece[0]):
        if length > left or not tasks:
            tasks.append([])
            left = files.task_bytes
        tasks[-1].append((number, start))
        left -= length
    return tasks


def ranges_of(sizes: Iterable[Sequence[int]]) -> list[Any]:
    """Stand-ins for the ranges of a topic: by partition, the sizes of its files in order."""
    return [
        SimpleNamespace(
            topic="t",
            partition=partition,
            start_offset=number,
            segment=SimpleNamespace(stored=SimpleNamespace(size_bytes=size)),
            paths=SimpleNamespace(log=f"{partition}/{number}"),
        )
        for partition, mine in enumerate(sizes)
        for number, size in enumerate(mine)
    ]


@pytest.mark.parametrize("seed", range(60))
def test_tasks_have_files_in_order(seed: int) -> None:
    """Whatever sizes they have; and all of each file, in tasks that are not much too large."""
    chance = random.Random(seed)
    magnitudes = chance.choices([1, 1_000, 100_000, 5_000_000], k=2)
    planner = Planner(
        chance.choice([1, 2_000, 1 << 20]), chance.choice([0, 500]), chance.randint(1, 40)
    )
    sizes = [
        [chance.randint(1, chance.choice(magnitudes)) for _ in range(chance.randint(0, 30))]
        for _ in range(chance.randint(1, 4))
    ]
    # Spark would be given very many pieces.
    sizes = [[size for size in mine if size < 500 * planner.max_bytes] for mine in sizes]
    ranges = ranges_of(sizes)
    parts, files = planner.plan(ranges)
    assert sorted(map(id, parts)) == sorted(map(id, ranges))
    assert [*files.names] == [part.paths.log for part in parts]
    real = [part.segment.stored.size_bytes for part in parts]
    assert all(told >= size for told, size in zip(files.lengths, real, strict=True))
    seen = defaultdict[int, list[tuple[int, int]]](list)
    for task in spark_tasks(files):
        for number, start in task:
            seen[parts[number].partition].append((parts[number].start_offset, start))
        room = files.task_bytes
        assert sum(min(real[number] - start, room) for number, start in task) <= room
    assert all(places == sorted(places) for places in seen.values())


def test_tasks_are_as_many_as_sparks_own() -> None:
    """Files of one size fill tasks; after large ones small ones share them."""
    planner = Planner(128 << 20, 4 << 20, 2)
    for sizes, tasks in (
        ([[50 << 20] * 2] * 2, 2),
        ([[51 << 20, 49 << 20], [50 << 20] * 2], 2),
        ([[300 << 20, *[1 << 20] * 52]], 6),
        ([[1 << 10] * 500], 16),
    ):
        assert len(spark_tasks(planner.plan(ranges_of(sizes))[1])) == tasks


def test_tasks_take_no_more_turns_than_sparks_own() -> None:
    """Where files are of uneven sizes, as keys make them, no task is left over for one core."""
    chance = random.Random(1)
    for _ in range(300):
        cores = chance.choice([2, 4, 8, 16])
        planner = Planner(128 << 20, 4 << 20, cores)
        size, count = chance.choice([1, 5, 20]) << 20, chance.randint(1, 3)
        sizes = [
            [int(size * chance.uniform(0.7, 1.3)) for _ in range(count)]
            for _ in range(chance.choice([2, 4, 8, 16, 40]))
        ]
        total = sum(map(sum, sizes)) + len(sizes) * count * planner.open_bytes
        own = min(planner.max_bytes, max(planner.open_bytes, -(-total // cores)))
        turns = -(-total // (own * cores))
        found = -(-len(spark_tasks(planner.plan(ranges_of(sizes))[1])) // cores)
        assert found <= turns + turns // 4


@pytest.mark.parametrize("ordered", [True, False])
def test_runs_keep_the_order_of_each_partition(ordered: bool) -> None:
    """Ranges of one kind are read together as far as they may be."""
    for seed in range(50):
        chance = random.Random(seed)
        ranges = ranges_of([[1] * chance.randint(0, 9) for _ in range(3)])
        kinds = [chance.choice("ab") for _ in ranges]
        runs = in_runs(ranges, kinds, ordered=ordered)
        found = [part for _, run in runs for part in run]
        assert sorted(map(id, found)) == sorted(map(id, ranges))
        assert all(kinds[ranges.index(part)] == kind for kind, run in runs for part in run)
        if not ordered:
            assert len(runs) == len({*kinds})
            continue
        assert sorted(found, key=lambda part: part.partition) == ranges
        assert all(one[0] != other[0] for one, other in pairwise(runs))


# -- what is read and written ----------------------------------------------------------------------

KEYS = 40


def send_versions(store: Store, commits: int) -> None:
    """Records in commits of all sizes; each value begins with its number, and keys come again."""
    sizes = random.Random(1)
    number = 0
    for _ in range(commits):
        with store.producer() as producer:
            for _ in range(sizes.choice([3, 50, 700, 9000])):
                value = b"%09d" % number + sizes.randbytes(sizes.choice([1, 100]))
                producer.send("t", value, key=b"%d" % (number % KEYS))
                number += 1


def are_in_order(rows: pa.Table) -> bool:
    """Whether the versions of each key follow one another."""
    newest: dict[bytes, int] = {}
    for key, value in zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True):
        number = int(value[:9])
        if number <= newest.get(key, -1):
            return False
        newest[key] = number
    return True


def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows as they are; the first attempt of each other task fails when it has passed them."""
    yield from batches
    context = TaskContext.get()
    assert context is not None
    if context.attemptNumber() == 0 and context.partitionId() % 2:
        raise RuntimeError("the first attempt of this task fails")


@pytest.mark.parametrize("config", ["parquet", pytest.param("auto", marks=pytest.mark.more)])
def test_the_newest_version_of_a_key_is_written_last(
    spark: SparkSession, store: Store, config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every partition that is written, also when tasks fail and are repeated.

    The files are of all sizes, and with ``auto`` small appends lie between them. Where Spark reads
    the same files by itself, they come in another order.
    """
    monkeypatch.setattr(writer, "PARQUET_FROM_BYTES", 20_000)
    # Tasks of several files, and files of several tasks.
    monkeypatch.setattr(native_read, "planner", lambda _: Planner(300_000, 0, 4))
    monkeypatch.setattr(read_frame, "MOST_RUNS", 1000)
    store.topics.create("t", partitions=2, config={"record.format": config})
    store.topics.create("out", partitions=3)
    send_versions(store, commits=24 if config == "parquet" else 10)
    segments = store.topics.segments("t")
    assert {segment.paths.is_parquet for segment in segments} == {True, config == "parquet"}
    files = [f"{store.url}/{segment.paths.log}" for segment in segments if segment.paths.is_parquet]
    assert not are_in_order(spark.read.parquet(*files).select("key", "value").toArrow())
    with transaction(spark, store, transactional_id="t", group_id="g") as txn:
        frame = txn.read("t", columns=["key", "value"])
        assert "Scan parquet" in explained(frame)
        assert frame.rdd.getNumPartitions() > 4
        txn.write(frame.mapInArrow(fail_once, "key binary, value binary"), topic="out")
    written = store.scan("out", columns=["key", "value", "partition"]).to_arrow()
    assert written.num_rows == store.scan("t").to_arrow().num_rows
    for partition in range(3):
        mine = written.filter(pa.compute.field("partition") == partition)
        assert mine.num_rows
        assert are_in_order(mine)


def test_very_many_runs_are_read_by_the_data_source(
    spark: SparkSession, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where order needs them; a read without order has one for each kind."""
    monkeypatch.setattr(writer, "PARQUET_FROM_BYTES", 2_000)
    store.topics.create("t", config={"record.format": "auto"})
    with transaction(spark, store, transactional_id="t", group_id="g") as txn:
        for _ in range(native_read.MOST_RUNS):
            for value in (bytes(10_000), b"small"):
                with store.producer() as producer:
                    producer.send("t", value)
        frame = txn.read("t")
        assert "Scan parquet" not in explained(frame)
        assert [len(row["value"]) for row in frame.collect()] == [10_000, 5] * native_read.MOST_RUNS
    assert explained(read(spark, store, "t")).count("Scan parquet") == 2  # in the tree, and below


def test_a_spark_that_makes_tasks_in_another_way(
    spark: SparkSession, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data source reads; what such a Spark does with the files nobody knows."""
    store.topics.create("t", config={"record.format": "parquet"})
    with store.producer() as producer:
        producer.send("t", b"1")
    for name, why in ((planned_files.JavaClasses.__name__, "another Spark"), ("struct", "another")):
        monkeypatch.setattr(planned_files, "_answers", {})
        with monkeypatch.context() as broken:
            broken.setattr(planned_files, name, None)
            assert why in planned_files.why_not(spark)
            frame = read(spark, store, "t")
            assert "Scan parquet" not in explained(frame)
            assert frame.count() == 1
    monkeypatch.setattr(planned_files, "_answers", {})
    assert not planned_files.why_not(spark)
