"""Stores whose records have every kind of column, random filters, and what each is to keep."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from txnlog.storage.base import Storage
from txnlog.store import Store, attach
from txnlog.testing import HeapStorage, VirtualClock

START_MS = 1_700_000_000_000
TYPED = pa.schema(
    [
        pa.field("id", pa.int32(), nullable=False),
        ("number", pa.int64()),
        ("small", pa.int8()),
        ("price", pa.float64()),
        ("cost", pa.float32()),
        ("amount", pa.decimal128(10, 2)),
        ("name", pa.string()),
        ("raw", pa.binary()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("flag", pa.bool_()),
        ("place.x", pa.int64()),
        ("place", pa.struct([("x", pa.int64())])),
    ]
)
DAY = dt.date(2024, 1, 1)
MOMENT = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


def _value(name: str, number: int) -> Any:
    """What a column has in a row; the same for the same number."""
    if number % 7 == 3 and name != "id":
        return None
    if number % 5 == 4 and name in ("price", "cost"):
        return math.nan
    return {
        "id": number,
        "number": number * 10 - 50,
        "small": number % 100 - 50,
        "price": number / 4 - 3,
        "cost": -number / 2,
        "amount": Decimal(number) / 4,
        "name": f"n{number:03}",
        "raw": b"%03d" % number,
        "day": DAY + dt.timedelta(days=number),
        "at": MOMENT + dt.timedelta(hours=number),
        "flag": number % 2 == 0,
        "place.x": number + 1000,
        "place": {"x": number},
    }[name]


def typed_store(record_format: str = "parquet", storage: Storage | None = None) -> Store:
    """Two partitions of typed records, some in one row group each, written under two schemas."""
    clock = VirtualClock(START_MS)
    store = attach(storage or HeapStorage(), create=True, clock=clock)
    older = pa.schema([f for f in TYPED if f.name not in ("day", "flag")])
    older = older.set(older.get_field_index("number"), pa.field("number", pa.int32()))
    config = {"record.format": record_format}
    store.topics.create("typed", partitions=2, schema=older, key=["id"], config=config)
    for batch in range(6):
        if batch == 2:
            store.topics.alter("typed", schema=TYPED)
        columns = older if batch < 2 else TYPED
        numbers = range(batch * 12, batch * 12 + 12)
        rows = {f.name: [_value(f.name, n) for n in numbers] for f in columns}
        rows["_timestamp"] = [START_MS + n * 1000 for n in numbers]
        kinds = pa.schema([*columns, ("_timestamp", pa.int64())])
        clock.sleep(12_000)
        with store.producer() as producer:
            producer.send_batch("typed", pa.table(rows, schema=kinds), partition=batch % 2)
    return store


def plain_store(record_format: str) -> Store:
    """Two partitions of keys and values, in four segments each, with aborted records between."""
    clock = VirtualClock(START_MS)
    store = attach(HeapStorage(), create=True, clock=clock)
    store.topics.create("plain", partitions=2, config={"record.format": record_format})
    for batch in range(8):
        clock.sleep(1)
        with store.producer(transactional_id="t") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            for number in range(batch * 10, batch * 10 + 10):
                key = None if number % 4 == 0 else b"k%d" % (number % 3)
                value = None if number % 6 == 5 else b"%03d" % number
                when = START_MS + number * 1000
                producer.send("plain", value, key=key, partition=batch % 2, timestamp_ms=when)
            if batch == 5:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    return store


def time_of(number: int) -> pa.Scalar:
    return pa.scalar((START_MS + number * 1000) * 1000, pa.timestamp("us", tz="UTC"))


def _literals(name: str) -> Callable[[int], Any]:
    special = {
        "_timestamp": time_of,
        "timestamp": time_of,
        "_offset": lambda number: number // 2,
        "offset": lambda number: number // 2,
        "_partition": lambda number: number % 3,
        "partition": lambda number: number % 3,
        "key": lambda number: b"k%d" % (number % 4),
        "value": lambda number: b"%03d" % number,
        "amount": lambda number: pa.scalar(Decimal(number) / 4, pa.decimal128(10, 2)),
    }
    return special.get(name, lambda number: _value(name, number - number % 7))


def _leaf(names: list[str]) -> st.SearchStrategy[pc.Expression]:
    def make(name: str, kind: str, number: int) -> pc.Expression:
        field, value = pc.field(name), _literals(name)(number)
        if kind == "isin":
            return field.isin([value, _literals(name)(number + 21)])
        if kind == "is_null":
            return field.is_null()
        if kind == "is_nan" and name in ("price", "cost"):
            return field.is_nan()
        compare = {
            "<": field.__lt__,
            "<=": field.__le__,
            ">": field.__gt__,
            ">=": field.__ge__,
            "!=": field.__ne__,
        }
        return compare.get(kind, field.__eq__)(value)

    kinds = ["==", "!=", "<", "<=", ">", ">=", "isin", "is_null", "is_nan"]
    return st.builds(make, st.sampled_from(names), st.sampled_from(kinds), st.integers(0, 75))


def filters_of(names: list[str]) -> st.SearchStrategy[pc.Expression]:
    return st.recursive(
        _leaf(names),
        lambda inner: st.one_of(
            st.builds(lambda a, b: a & b, inner, inner),
            st.builds(lambda a, b: a | b, inner, inner),
            st.builds(lambda a: ~a, inner),
        ),
        max_leaves=5,
    )


def check_filter(store: Store, topic: str, columns: list[str], kept: pc.Expression) -> None:
    everything = store.scan(topic, columns=ALL[topic]).to_arrow()
    expected = everything.filter(kept).select(columns)
    scan = store.scan(topic, columns=columns, filter=kept)
    found = scan.to_arrow()
    place = "_partition" if topic == "typed" else "partition"
    # NaN is not itself, but its text is.
    assert str(found.to_pylist()) == str(expected.to_pylist())
    assert found.schema == scan.schema == expected.schema
    counts = everything.filter(kept)[place].to_pylist()
    assert scan.count() == {number: counts.count(number) for number in (0, 1)}


ALL = {
    "typed": [*TYPED.names, "_partition", "_offset", "_timestamp"],
    "plain": ["key", "value", "partition", "offset", "timestamp"],
}
SOME = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
MORE = settings(SOME, max_examples=75)
FLAT = [name for name in ALL["typed"] if name != "place"]


def some_of(names: list[str]) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(names), min_size=1, unique=True)
