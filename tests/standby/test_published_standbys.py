"""Tables of a standby's topics, before and after its promotion, and of a folder looked at alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import txnlog
from tests.tables.published import (
    SCHEMA,
    DeltaPublished,
    IcebergPublished,
    check_lost,
    check_same,
    rows,
)
from txnlog import TopicPartition
from txnlog.replication import Follower, Standby
from txnlog.store import Store

COLUMNS = [*SCHEMA.names, "_timestamp", "_headers", "_deleted"]
KINDS = [DeltaPublished, IcebergPublished]


def write_some(folder: Path) -> Store:
    store = txnlog.open(folder, create=True)
    store.topics.create("f", partitions=3, schema=SCHEMA, key=["carrier"])
    with store.producer() as producer:
        producer.send_batch("f", rows(0, 3))
    return store


@pytest.mark.parametrize("salvage", [False, True], ids=["shown", "salvaged"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_can_be_read_only_is_published(
    tmp_path: Path, kind: type[DeltaPublished | IcebergPublished], *, salvage: bool
) -> None:
    """Its files lie on a disk, where engines read them."""
    store = write_some(tmp_path / "source")
    Follower(store, str(tmp_path / "standby")).follow()
    shown = txnlog.open(tmp_path / ("source" if salvage else "standby"), salvage=salvage)
    table = kind(shown, tmp_path)
    table.publish()
    assert check_same(store, table, COLUMNS) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_standby_takes_nothing_from_the_table_of_its_source(
    tmp_path: Path, kind: type[DeltaPublished | IcebergPublished], caplog: pytest.LogCaptureFixture
) -> None:
    """It is a little late, and has lost nothing; when it was promoted it has."""
    store = write_some(tmp_path / "source")
    Follower(store, str(tmp_path / "standby")).follow()
    with store.producer() as producer:
        producer.send_batch("f", rows(3, 9), partition=1)
    table = kind(store, tmp_path)
    newest = table.publish()
    late = kind(txnlog.open(tmp_path / "standby"), tmp_path).publish()
    assert (late.version, late.added_files, late.removed_files) == (newest.version, 0, 0)
    assert check_same(store, table, COLUMNS) == 9
    Standby(txnlog.open(tmp_path / "standby")).promote()
    check_lost(kind(txnlog.open(tmp_path / "standby"), tmp_path), newest, caplog)


def send_more(store: Store) -> None:
    with store.producer() as producer:
        producer.send_batch("f", rows(3, 9), partition=1)


CHANGES: dict[str, Callable[[Store], object]] = {
    "send": send_more,
    "purge": lambda store: store.maintenance.purge("f", [{"carrier": "c1"}]),
    "trim": lambda store: store.topics.delete_records(
        {TopicPartition("f", number): 1 for number in range(3)}
    ),
    "drop": lambda store: store.topics.alter("f", schema=pa.schema([SCHEMA.field("carrier")])),
    "add": lambda store: store.topics.alter("f", schema=SCHEMA.append(pa.field("n", pa.int8()))),
    "merge": lambda store: store.maintenance.merge("f"),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_standby_that_is_late_by_any_change(
    tmp_path: Path, kind: type[DeltaPublished | IcebergPublished], change: str
) -> None:
    """Most of them change no end of a partition. One that has them all names its own files."""
    store = write_some(tmp_path / "source")
    for _ in range(6):
        send_more(store)
    table = kind(store, tmp_path)
    table.publish()
    Follower(store, str(tmp_path / "standby")).follow()
    CHANGES[change](store)
    columns = [name for name in SCHEMA.names if name == "carrier" or change != "drop"]
    newest, count = table.publish().version, check_same(store, table, columns)
    late = kind(txnlog.open(tmp_path / "standby"), tmp_path).publish()
    assert (late.version, late.added_files, late.removed_files) == (newest, 0, 0)
    assert check_same(store, table, columns) == count
    Follower(store, str(tmp_path / "standby")).follow()
    assert kind(txnlog.open(tmp_path / "standby"), tmp_path).publish().added_files
