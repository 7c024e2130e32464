"""A topic that is published, as Delta and as Iceberg, and what others read of the tables."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import Catalog, load_catalog

from txnlog import Producer
from txnlog.results import TablePublication
from txnlog.store import Store

SCHEMA = pa.schema(
    [
        pa.field("carrier", pa.string(), nullable=False),
        ("flight", pa.int32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("ms")),
        ("day", pa.date32()),
        ("price", pa.decimal128(12, 2)),
        ("delay", pa.float64()),
        ("small", pa.int8()),
        ("on", pa.bool_()),
        ("raw", pa.binary()),
        (
            "legs",
            pa.list_(pa.struct([("to", pa.string()), ("seats", pa.map_(pa.string(), pa.int16()))])),
        ),
    ]
)
Rows = list[dict[str, Any]]


def rows(first: int, stop: int, **same: object) -> pa.Table:
    """Rows of SCHEMA with keys ``c<first>`` to ``c<stop - 1>``, and nulls among them."""
    return pa.Table.from_pylist([_row(number) | same for number in range(first, stop)], SCHEMA)


def _row(number: int) -> dict[str, object]:
    moment = dt.datetime(2024, 1, 1, tzinfo=dt.UTC) + dt.timedelta(hours=number, microseconds=7)
    return {
        "carrier": f"c{number}",
        "flight": None if number % 5 == 3 else number,
        "at": moment,
        "local": moment.replace(tzinfo=None, microsecond=1000),
        "day": None if number % 3 else moment.date(),
        "price": Decimal(number) / 4,
        "delay": float("nan") if number % 4 == 1 else number / 2,
        "small": number % 100,
        "on": number % 2 == 0,
        "raw": b"%d" % number,
        "legs": [{"to": "X", "seats": [("a", number)]}],
    }


def commit_some_of(store: Store) -> Producer:
    """51 committed rows in ``f``, and others that were aborted.

    Returns a producer whose open transaction has sent 40 more.
    """
    with store.producer(transactional_id="a") as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send_batch("f", rows(0, 40))
        producer.begin_transaction()
        producer.send_batch("f", rows(100, 140))
        producer.flush()
        producer.abort_transaction()
        still_open = store.producer(transactional_id="b")
        still_open.init_transactions()
        still_open.begin_transaction()
        still_open.send_batch("f", rows(200, 240))
        still_open.flush()
        with producer.transaction():
            producer.send_batch("f", rows(40, 50))
            producer.send_batch("f", pa.table({"carrier": ["c1"], "_deleted": [True]}))
    return still_open


class Published(Protocol):
    """A table of a topic."""

    store: Store

    def publish(self) -> TablePublication: ...

    def read(self, columns: list[str]) -> pa.Table:
        """By a library that knows nothing of txnlog."""
        ...

    def files(self) -> list[str]:
        """The URLs of its files, or the names in its own folder."""
        ...

    @property
    def folder(self) -> Path: ...


class DeltaPublished:
    """By deltalake."""

    def __init__(self, store: Store, folder: Path, topic: str = "f") -> None:
        self.store, self._topic = store, topic
        self.folder = folder / "del ta"

    def publish(self) -> TablePublication:
        return self.store.tables.publish_delta(self._topic, str(self.folder))

    @property
    def table(self) -> DeltaTable:
        return DeltaTable(str(self.folder))

    def read(self, columns: list[str]) -> pa.Table:
        return pa.table(self.table.scan(columns=columns))

    def files(self) -> list[str]:
        return sorted(pa.table(self.table.get_add_actions())["path"].to_pylist())


class IcebergPublished:
    """By pyiceberg, with a catalog in a file. It takes null lists of structs for empty ones."""

    def __init__(self, store: Store, folder: Path, topic: str = "f") -> None:
        self.store, self._topic = store, topic
        self.folder = folder / "ware house"
        self.folder.mkdir(exist_ok=True)

    @property
    def catalog(self) -> Catalog:
        place = self.folder / "catalog.db"
        return load_catalog("default", uri=f"sqlite:///{place}", warehouse=f"file://{self.folder}")

    def publish(self) -> TablePublication:
        return self.store.tables.publish_iceberg(self._topic, self.catalog, "sales.f")

    def read(self, columns: list[str]) -> pa.Table:
        names = ["_tombstone" if name == "_deleted" else name for name in columns]
        found = self.catalog.load_table("sales.f").scan(selected_fields=(*names,)).to_arrow()
        table = found.select(names).rename_columns(columns)
        return table.drop_columns([name for name in ("legs",) if name in columns])

    def files(self) -> list[str]:
        planned = self.catalog.load_table("sales.f").scan().plan_files()
        return sorted(task.file.file_path for task in planned)


def check_same(store: Store, table: Published, columns: list[str], topic: str = "f") -> int:
    """Assert that the table has the rows of the topic; returns how many. NaN is equal to NaN."""
    found = table.read(columns)
    wanted = store.scan(topic, columns=found.column_names, isolation_level="snapshot").to_arrow()
    found = found.cast(wanted.schema)
    assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, wanted.to_pylist()))
    return len(found)


def check_lost(
    table: Published, before: TablePublication, caplog: pytest.LogCaptureFixture
) -> None:
    """Assert that a table follows a store that has lost records of its partition 1.

    It has the rows of c0 to c2, and ``before`` was published before it lost the others.
    """
    store = table.store
    store.maintenance.purge("f", [{"carrier": "c1"}])
    for number in range(20, 30):  # of one partition it has more again
        with store.producer() as producer:
            producer.send_batch("f", rows(number, number + 1), partition=0)
    done = table.publish()
    assert "a standby promoted, or a backup restored" in caplog.text
    assert done.end_offsets[1] < before.end_offsets[1]
    assert check_same(store, table, ["carrier", "flight", "_timestamp"]) == 2 + 10
    caplog.clear()
    assert table.publish() == replace(done, added_files=0, removed_files=0, copied_files=0)
    assert not caplog.text
