"""Programs of users under a strict type checker: the package brings its types."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

import pytest

RIGHT: Final = """\
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import txnlog
from txnlog.errors import ProducerFenced, TxnlogError
from txnlog.results import GroupDescription, TopicDescription
from txnlog.spark import transaction


def make(path: Path) -> txnlog.Store:
    store = txnlog.open(path, create=True, config={"log.cleanup.age.ms": 900_000})
    described: TopicDescription = store.topics.create("orders", partitions=4)
    print(described.partitions)
    store.topics.create("flights", schema=pa.schema([("id", pa.int64())]), key=["id"])
    return store


def produce(store: txnlog.Store) -> None:
    with store.producer(transactional_id="p", acks="all", compression_type="zstd") as producer:
        producer.init_transactions()
        try:
            with producer.transaction():
                producer.send("orders", value=b"1", key=b"k", headers=[("h", b"v")])
                producer.send_batch("flights", pa.record_batch({"id": [1, 2]}))
        except ProducerFenced as error:
            print(error.fatal)


def consume(store: txnlog.Store) -> Iterator[bytes | None]:
    with store.consumer(
        "orders", group_id="g", isolation_level="read_committed", auto_offset_reset="earliest"
    ) as consumer:
        for record in consumer.poll():
            yield record.value
        consumer.commit()


def look(store: txnlog.Store) -> list[int]:
    table: pa.Table = store.scan("orders").to_arrow()
    snapshot = store.snapshot(["orders"])
    print(snapshot.token(), table.num_rows)
    groups: list[GroupDescription] = [store.groups.describe("g")]
    return [group.lag for group in groups]


def run(spark: SparkSession, path: str) -> None:
    try:
        with transaction(spark, path, transactional_id="job", group_id="job") as txn:
            frame: DataFrame = txn.read("orders", columns=["value"])
            txn.write(frame, topic="copied")
    except TxnlogError as error:
        print(error.retriable)
"""

WRONG: Final = {
    'store.producer(acks="two")': "acks",
    'store.consumer("t", isolation_level="serializable")': "isolation_level",
    'store.consumer("t", auto_offset_reset="first")': "auto_offset_reset",
    'store.producer(compression_type="brotli")': "compression_type",
    "store.producer(transactional_id=7)": "transactional_id",
    'store.topics.create("t", partitions="4")': "partitions",
    'store.scan("t").to_arow()': "to_arow",
}
"""Calls on a store, and the argument or attribute that each is wrong in."""


def check(python: Path, folder: Path, program: str) -> list[str]:
    """What mypy says in the strictest way, without anything of this project's settings."""
    (folder / "program.py").write_text(program)
    done = subprocess.run(
        [python, "-P", "-m", "mypy", "--strict", "--config-file=", "program.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done
    return done.stdout.splitlines()


@pytest.mark.more
@pytest.mark.xdist_group("packaging")
def test_programs_are_checked_against_the_installed_types(python: Path, tmp_path: Path) -> None:
    """A right one has no error; of a wrong one each line has its own."""
    untyped = "# mypy: disable-error-code=import-untyped\n"  # pyarrow brings no types
    assert check(python, tmp_path, untyped + RIGHT) == ["Success: no issues found in 1 source file"]
    program = "\n".join(["import txnlog", 'store = txnlog.open("store")', *WRONG])
    *errors, total = check(python, tmp_path, program)
    assert total.startswith(f"Found {len(WRONG)} errors")
    for number, (error, told) in enumerate(zip(errors, WRONG.values(), strict=True), start=3):
        assert error.startswith(f"program.py:{number}: ")
        assert f'"{told}"' in error
