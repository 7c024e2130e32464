"""Lists of mappings and dataclasses as batches: each record is as ``send`` makes it."""

from __future__ import annotations

import datetime as dt
import random
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from tests.support.runtime.call_counts import calls_of
from tests.support.tiers import more
from txnlog.errors import InvalidRecord
from txnlog.store import Store, attach
from txnlog.testing import HeapStorage, VirtualClock

TIME = dt.datetime(2023, 5, 6, 7, 8, 9, 123000, dt.UTC)


@dataclass
class Order:
    """A record of keys and values."""

    value: bytes | str | None
    key: bytes | str | None = None
    headers: list[tuple[str, bytes | None]] = field(default_factory=list)


@dataclass(slots=True)
class Place:
    """A struct."""

    x: float
    y: int | None = None


@dataclass(slots=True)
class Flight:
    """A record of a typed topic."""

    carrier: str
    flight: int
    place: Place | None = None
    seats: dict[str, int] | None = None


FLIGHTS = pa.schema(
    [
        pa.field("carrier", pa.string(), nullable=False),
        ("flight", pa.int32()),
        ("delay", pa.float64()),
        ("price", pa.decimal128(10, 2)),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("day", pa.date32()),
        ("raw", pa.binary()),
        ("tags", pa.list_(pa.string())),
        ("seats", pa.map_(pa.string(), pa.int64())),
        ("place", pa.struct([pa.field("x", pa.float64(), nullable=False), ("y", pa.int8())])),
        ("legs", pa.list_(pa.struct([("to", pa.string()), ("at", pa.list_(pa.int64()))]))),
        ("gate", pa.string()),
    ]
)


@pytest.fixture
def store(clock: VirtualClock) -> Store:
    store = attach(HeapStorage(), create=True, clock=clock)
    store.topics.create("t", partitions=2)
    defaults = {"gate": "?"}
    for name in ("one", "many"):
        store.topics.create(name, schema=FLIGHTS, defaults=defaults)
    return store


def rows_of(store: Store, topic: str) -> list[dict[str, Any]]:
    columns = ["key", "value", "timestamp", "headers", "partition"] if topic == "t" else None
    rows: list[dict[str, Any]] = store.scan(topic, columns=columns).to_arrow().to_pylist()
    return rows


def test_keys_and_values(store: Store, clock: VirtualClock) -> None:
    """What is left out is as send leaves it out; all of it may be there for some only."""
    with store.producer() as producer:
        producer.send_batch(
            "t",
            [
                {"value": "text", "key": b"k", "partition": 0},
                {"value": None, "key": "k", "partition": 0, "timestamp": 5},
                {"key": b"k", "partition": 0, "timestamp": TIME, "headers": [("h", b"1")]},
                {"value": b"v", "headers": [("h", None), ("h", b"2")], "partition": 0},
            ],
        )
        producer.send_batch("t", (Order("a", "k"), Order(None, headers=[("n", None)])), 1)
        producer.send_batch("t", [])
    now = dt.datetime.fromtimestamp(clock.now_ms() / 1000, dt.UTC)
    found = [tuple(row.values()) for row in rows_of(store, "t")]
    assert [row[:3] for row in found] == [
        (b"k", b"text", now),
        (b"k", None, dt.datetime.fromtimestamp(0.005, dt.UTC)),
        (b"k", None, TIME),
        (None, b"v", now),
        (b"k", b"a", now),
        (None, None, now),
    ]
    headers = [[(one["key"], one["value"]) for one in row[3]] for row in found]
    assert headers == [[], [], [("h", b"1")], [("h", None), ("h", b"2")], [], [("n", None)]]
    assert [row[4] for row in found] == [0, 0, 0, 0, 1, 1]


def test_dataclasses_are_rows_and_structs(store: Store) -> None:
    """With slots too; what the class does not have is null, or its default."""
    flights = [
        Flight("a", 1),
        Flight("b", 2, Place(1.5)),
        Flight("c", 3, Place(2, 3), {"first": 4}),
    ]
    with store.producer() as producer:
        producer.send_batch("many", flights)
    found = rows_of(store, "many")
    assert [(row["carrier"], row["flight"], row["gate"]) for row in found] == [
        ("a", 1, "?"),
        ("b", 2, "?"),
        ("c", 3, "?"),
    ]
    assert [row["place"] for row in found] == [None, {"x": 1.5, "y": None}, {"x": 2.0, "y": 3}]
    assert [row["seats"] for row in found] == [None, None, [("first", 4)]]


NAIVE = dt.datetime(2024, 1, 1)  # noqa: DTZ001 - a wall clock
FAR = dt.datetime(2024, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=2)))
RIGHT: dict[str, list[Any]] = {
    "carrier": ["a", "ü"],
    "flight": [1, None, -7],
    "delay": [1, 2.5, None],
    "price": [1, Decimal("2.25"), None],
    "at": [TIME, FAR, None],
    "local": [NAIVE, None],
    "day": [NAIVE.date(), None],
    "raw": [b"", b"x", None],
    "tags": [[], ["a", None], ("b",), None],
    "seats": [{}, {"a": 1, "b": None}, [("c", 2)], None],
    "place": [{"x": 1}, {"x": 1.5, "y": 2}, None],
    "legs": [[], [{"to": "a"}, None, {"at": [1, None]}], [{"at": []}], None],
    "gate": ["B7", None],
}
WRONG: dict[str, list[Any]] = {
    "carrier": [None, b"a", 1],
    "flight": ["1", 1.5, 1 << 40, True],
    "delay": [True, "x", (1 << 60) + 1],
    "price": [1.5, Decimal("0.001")],
    "at": [NAIVE, NAIVE.date(), 5],
    "local": [TIME],
    "day": [NAIVE, "2024-01-01"],
    "raw": ["text"],
    "tags": ["x", [b"a"], [1]],
    "seats": [{"a": "x"}, [("a",)], 1],
    "place": [{"y": 1}, {"z": 1}, [1]],
    "legs": [[{"at": ["x"]}], {}],
    "gate": [1],
    "nothing": [1],
}


def make_row(rng: random.Random, wrong: float) -> dict[str, Any]:
    names = [name for name in FLIGHTS.names if name == "carrier" or rng.random() < 0.6]
    row = {name: rng.choice(RIGHT[name]) for name in names}
    if rng.random() < wrong:
        name = rng.choice([*WRONG])
        row[name] = rng.choice(WRONG[name])
    return row


def send_each(store: Store, rows: list[dict[str, Any]]) -> int | None:
    """Send each alone, up to the first that is refused, whose number is returned."""
    with store.producer() as producer:
        for number, row in enumerate(rows):
            try:
                producer.send("one", row)
            except InvalidRecord:
                return number
    return None


@pytest.mark.parametrize("seed", [*range(10), *more(range(10, 40))])
def test_a_list_is_taken_as_its_records_are_alone(seed: int, store: Store) -> None:
    """Random rows: the same records, or the same one is refused and named, and nothing is sent."""
    rng = random.Random(seed)
    wrong = rng.choice((0, 0.1, 0.5))
    rows = [make_row(rng, wrong) for _ in range(rng.choice((1, 3, 12)))]
    refused = send_each(store, rows)
    with store.producer() as producer:
        if refused is None:
            producer.send_batch("many", rows)
        else:
            with pytest.raises(InvalidRecord, match=rf"\brecord {refused} of|in row {refused}\b"):
                producer.send_batch("many", rows)
    if refused is None:
        assert rows_of(store, "many") == rows_of(store, "one")
    assert store.scan("many").record_count == (len(rows) if refused is None else 0)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"value": 5}, "record 2 of 4: 'value' cannot be 5: .*'int'"),
        ({"value": "\ud800"}, r"record 2 of 4: 'value' cannot be '\\ud800'"),
        ({"value": b"", "headers": ["h"]}, "record 2 of 4: 'headers' cannot be"),
        ({"value": b"", "headers": [None]}, "a pair of a name and a value is needed, not None"),
        ({"value": b"", "headers": [(None, b"")]}, "a pair of a name and a value is needed"),
        ({"value": b"", "headers": [("a",)]}, "a pair of a name and a value is needed"),
        ({"value": b"", "timestamp": 1.5}, "'timestamp' cannot be 1.5: milliseconds or a"),
        ({"value": b"", "timestamp": True}, "'timestamp' cannot be True"),
        ({"value": b"", "partition": "0"}, "record 2 of 4: 'partition' cannot be '0'"),
        ({"value": b"", "partition": 2}, "has 2, but topic 't' has 2 partitions"),
        ({"value": b"", "vlaue": 1}, "record 2 of 4: 'vlaue' is not part of a record, .* 't' has"),
        ({"value": b"", 1: 1}, "record 2 of 4: a column is named 1, which is no string"),
        (Order("a"), "record 2 of 4: .* of one class: not both dict and Order"),
        (b"value", "record 2 of 4: .*: not bytes"),
    ],
)
def test_a_wrong_record_is_named_and_nothing_is_sent(store: Store, row: Any, reason: str) -> None:
    """Neither those before it nor those after it."""
    good = {"value": b"v", "key": b"k"}
    with store.producer() as producer:
        with pytest.raises(InvalidRecord, match=reason):
            producer.send_batch("t", [good, good, row, good])
        producer.send("t", b"sent")
    assert [row["value"] for row in rows_of(store, "t")] == [b"sent"]


def test_a_list_costs_no_call_for_each_record(store: Store) -> None:
    """Of Python's functions: columns are made by Arrow."""
    producer = store.producer()
    lists: list[tuple[str, Any]] = [
        ("t", lambda number: {"key": b"k", "value": b"%d" % number}),
        ("t", lambda number: Order(b"%d" % number, b"k")),
        ("many", lambda number: {"carrier": "a", "flight": number, "tags": ["x"], "gate": "B"}),
        ("many", lambda number: Flight("a", number, Place(number))),
    ]
    for topic, make in lists:
        rows = [make(number) for number in range(3000)]
        producer.send_batch(topic, rows)
        few, many = (
            calls_of(partial(producer.send_batch, topic, some)) for some in (rows[:10], rows)
        )
        assert many < few + 100
    producer.flush()


@pytest.mark.parametrize("pairs", [[None], [(None, 1)], [("a",)], {None: 1}, [5]], ids=str)
def test_maps_that_arrow_would_end_the_process_for(store: Store, pairs: Any) -> None:
    """As headers and as a column, one by one and together."""
    kind = pa.map_(pa.string(), pa.int64())
    store.topics.create("maps", schema=pa.schema([("m", kind), ("n", pa.list_(kind))]))
    with store.producer() as producer:
        for row in ({"m": pairs}, {"n": [pairs]}, {"_headers": pairs}):
            with pytest.raises(InvalidRecord):
                producer.send_batch("maps", [row])
            if "_headers" not in row:
                with pytest.raises(InvalidRecord):
                    producer.send("maps", row)
    assert store.scan("maps").record_count == 0
