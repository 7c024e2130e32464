"""What an Iceberg table that is published again and again keeps of its earlier versions."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest

from tests.tables.published import IcebergPublished
from txnlog import TopicPartition
from txnlog.storage.adapters.local import LocalStorage
from txnlog.store import Store, attach
from txnlog.tables.iceberg_expiry import Expired
from txnlog.testing import VirtualClock

_DAY_MS = 24 * 60 * 60 * 1000


@pytest.fixture
def store(tmp_path: Path, clock: VirtualClock) -> Store:
    store = attach(LocalStorage(str(tmp_path / "store")), create=True, clock=clock)
    columns = pa.schema([("n", pa.int32())])
    store.topics.create("f", schema=columns, config={"record.format": "auto"})
    clock.set_wall(int(time.time() * 1000))  # by which pyiceberg dates snapshots
    return store


@pytest.fixture
def table(store: Store, tmp_path: Path) -> IcebergPublished:
    return IcebergPublished(store, tmp_path)


def publish_some(table: IcebergPublished, numbers: range) -> None:
    """Each with a row more; the topic keeps the last five, in copies."""
    store = table.store
    for number in numbers:
        with store.producer() as producer:
            producer.send_batch("f", pa.table([[number]], pa.schema([("n", pa.int32())])))
        if number >= 5:
            store.topics.delete_records({TopicPartition("f", 0): number - 4})
        table.publish()


def held(table: IcebergPublished) -> Counter[str]:
    """The files in the table's folder by kind, the manifests and the snapshots."""
    found = Counter(path.suffix for path in table.folder.rglob("*") if path.suffix != ".db")
    opened = table.catalog.load_table("sales.f")
    current = opened.current_snapshot()
    assert current is not None
    found["manifests"] = len(current.manifests(opened.io))
    found["snapshots"] = len(opened.snapshots())
    return found


def test_it_does_not_grow_with_each_publication(
    table: IcebergPublished, clock: VirtualClock
) -> None:
    """Neither in its metadata, nor in copies that were replaced: which may be of a person."""
    clock.set_wall(clock.now_ms() + 8 * _DAY_MS)
    publish_some(table, range(24))
    early = held(table)
    publish_some(table, range(24, 40))
    assert held(table) == early
    assert (early["snapshots"], early["manifests"], early[".parquet"]) == (2, 6, 6)
    table.publish()
    assert held(table)[".parquet"] == held(table)["manifests"] - 1 == 5
    assert sorted(table.read(["n"])["n"].to_pylist()) == [*range(35, 40)]


def test_versions_are_kept_for_their_time(table: IcebergPublished, clock: VirtualClock) -> None:
    publish_some(table, range(12))
    clock.set_wall(clock.now_ms() + 6 * _DAY_MS)
    publish_some(table, range(12, 13))
    opened = table.catalog.load_table("sales.f")
    found = [opened.scan(snapshot_id=one.snapshot_id).to_arrow() for one in opened.snapshots()]
    assert [sorted(one["n"].to_pylist()) for one in found] == [
        [*range(max(0, last - 4), last + 1)] for last in range(13)
    ]


def test_versions_that_others_have_named_are_kept(
    table: IcebergPublished, clock: VirtualClock
) -> None:
    publish_some(table, range(7))
    opened = table.catalog.load_table("sales.f")
    named = opened.snapshots()[2].snapshot_id
    opened.manage_snapshots().create_tag(named, "mine").commit()
    clock.set_wall(clock.now_ms() + 8 * _DAY_MS)
    publish_some(table, range(7, 9))
    opened = table.catalog.load_table("sales.f")
    assert len(opened.snapshots()) == 3
    assert opened.scan(snapshot_id=named).to_arrow()["n"].to_pylist() == [2, 1, 0]


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("after", [0, 1, 2, 5, 9, 14])
def test_killed_while_files_are_deleted(
    table: IcebergPublished, clock: VirtualClock, after: int
) -> None:
    """The next publication deletes the rest."""
    publish_some(table, range(9))
    clock.set_wall(clock.now_ms() + 8 * _DAY_MS)
    real, numbers = Expired._delete, itertools.count()

    def dies(expired: Expired, url: str) -> None:
        if next(numbers) == after:
            raise Killed
        real(expired, url)

    with patch.object(Expired, "_delete", dies), pytest.raises(Killed):
        table.publish()
    table.publish()
    found = held(table)
    assert (found["snapshots"], found[".parquet"], found[".avro"]) == (1, 5, 1 + 5 + 1)
