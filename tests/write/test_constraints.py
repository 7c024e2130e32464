"""``constraint.NAME``: expressions that no written row may make false."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from txnlog.admin import topics
from txnlog.columns.checks import make_schema
from txnlog.columns.constraints import constraints_of
from txnlog.columns.expressions import Literal, parse
from txnlog.errors import InvalidConfig, InvalidRecord
from txnlog.store import Store, attach
from txnlog.testing import HeapStorage

COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("small", pa.int8()),
        pa.field("price", pa.decimal128(9, 2)),
        pa.field("rate", pa.float64()),
        pa.field("name", pa.string()),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("place", pa.struct([("city", pa.string())])),
        pa.field("is on", pa.bool_()),
    ]
)
SCHEMA = make_schema(COLUMNS, ["id"], None)


@pytest.fixture
def store() -> Store:
    return attach(HeapStorage(), create=True)


@pytest.mark.parametrize(
    ("text", "passes", "fails"),
    [
        ("small > 0", {"small": 1}, {"small": 0}),
        ("small < 300", {"small": 100}, None),
        ("small >= -1.5", {"small": -1}, {"small": -2}),
        ("price <= 0.1", {"price": Decimal("0.10")}, {"price": Decimal("0.11")}),
        ("price <> 3", {"price": Decimal(2)}, {"price": Decimal(3)}),
        ("name IN ('a', 'it''s')", {"name": "it's"}, {"name": "b"}),
        ("small not in (1, 2)", {"small": 3}, {"small": 2}),
        ("name LIKE 'A%' OR name = lower(name)", {"name": "Ab"}, {"name": "Bb"}),
        (r"name LIKE '_\%\_\\'", {"name": "b%_\\"}, {"name": "b%b\\"}),
        (r"name LIKE '%\\'", {"name": "C:\\"}, {"name": "C:"}),
        ("length(name) BETWEEN 2 AND 3", {"name": "äöü"}, {"name": "a"}),
        ("NOT (small = 1 AND rate = 2)", {"small": 1, "rate": 1.0}, {"small": 1, "rate": 2.0}),
        ("rate IS NOT NULL", {"rate": 0.0}, {"rate": None}),
        ("rate IS NULL OR name IS NULL", {"rate": 1.0}, {"rate": 1.0, "name": "a"}),
        ("day >= '2024-01-01'", {"day": 19_800}, {"day": 19_000}),
        ("at < '1970-01-02T00:00:00Z'", {"at": 1}, {"at": 86_400_000_000}),
        ("place.city = 'Rom'", {"place": {"city": "Rom"}}, {"place": {"city": "Ulm"}}),
        ('"is on"', {"is on": True}, {"is on": False}),
        ('"is on" = TRUE', {"is on": True}, {"is on": False}),
        ("abs(small) + 2 * -3 = -1", {"small": -5}, {"small": 4}),
        ("id > small", {"small": 0}, {"small": 2}),
    ],
)
def test_what_passes_and_what_does_not(
    store: Store, text: str, passes: dict[str, Any], fails: dict[str, Any] | None
) -> None:
    """A row of nulls passes, unless nulls are what it asks for; a deleting one always."""
    store.topics.create("t", schema=COLUMNS, key=["id"], config={"constraint.c": text})
    row = dict.fromkeys(COLUMNS.names) | {"id": 1}

    def table(*rows: dict[str, Any]) -> pa.Table:
        return pa.Table.from_pylist([{**row, **one} for one in rows], schema=COLUMNS)

    with store.producer() as producer:
        nothing: list[dict[str, Any]] = [] if "IS NOT NULL" in text else [{}]
        producer.send_batch("t", table(passes, *nothing))
        producer.send_batch("t", pa.table({"id": [2], "_deleted": [True]}))
        if fails is not None:
            with pytest.raises(InvalidRecord, match=r"row 2 violates constraint 'c' \("):
                producer.send_batch("t", table(passes, passes, fails, fails))
            with pytest.raises(InvalidRecord, match="row 0 violates constraint 'c'"):
                producer.send("t", table(fails).to_pylist()[0])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("nothing > 0", "there is no column 'nothing'; there are id, small"),
        ("place.street = 'a'", "no field 'street'"),
        ("small", "is int8, and must be true or false"),
        ("1 = 1", "uses no column"),
        ("small > ", "a value is missing at its end"),
        ("small > 0 small", "'small' is not expected there"),
        ("small > 0 AND", "a value is missing at its end"),
        ("(small > 0", r"\) is missing"),
        ("small NOT 3", "behind NOT there is"),
        ("small IN (id)", "IN needs constants"),
        ("small = NULL", "a value is missing before 'NULL'"),
        ("name > 3", "does not fit"),
        ("day > 'yesterday'", "'yesterday' is no date32"),
        ("name LIKE name", "LIKE needs a text"),
        ("name LIKE 'a\\b'", "behind a"),
        ("name LIKE 'a\\'", "behind a"),
        ("small > 0; x", "it is not clear from '; x' on"),
        ("__import__('os')", "'\\(' is not expected there"),
        ("(" * 60 + "small > 0" + ")" * 60, "nested more than 50 deep"),
        ("small>0 and " * 200 + "small>0", "more than 500 words and signs"),
        ("id > 1" + "0" * 400, "does not fit"),
        ("", "an expression of at most"),
    ],
)
def test_expressions_that_do_not_fit(store: Store, text: str, why: str) -> None:
    with pytest.raises(InvalidConfig, match=why):
        store.topics.create("t", schema=COLUMNS, key=["id"], config={"constraint.c": text})
    assert store.topics.list() == []


def test_constraints_are_settings(store: Store) -> None:
    with pytest.raises(InvalidConfig, match="the topic has no schema"):
        store.topics.create("plain", config={"constraint.c": "id > 0"})
    with pytest.raises(InvalidConfig, match="a constraint of a topic has a name of letters"):
        store.topics.create("t", schema=COLUMNS, config={"constraint.a b": "id > 0"})
    store.topics.create("t", schema=COLUMNS)
    with store.producer() as producer:
        producer.send("t", {"id": -1})
    with store.producer() as producer:
        store.topics.alter("t", config={"constraint.b": "id > 0", "constraint.a": "id < 9"})
        assert store.topics.describe("t").config["constraint.a"] == "id < 9"
        with pytest.raises(InvalidRecord, match=r"'b' \(id > 0\): id \(-1\)"):
            producer.send("t", {"id": -1})
    store.topics.alter("t", config={"constraint.b": None})
    with store.producer() as producer:
        producer.send("t", {"id": -1})
        with pytest.raises(InvalidRecord, match="'a'"):
            producer.send("t", {"id": 9})
    assert store.scan("t").to_arrow()["id"].to_pylist() == [-1, -1]


def test_a_schema_does_not_change_under_a_constraint(store: Store) -> None:
    """In one step with it, it does."""
    store.topics.create("t", schema=COLUMNS, config={"constraint.c": "rate > 0"})
    fewer = pa.schema([field for field in COLUMNS if field.name != "rate"])
    with pytest.raises(InvalidConfig, match=r"constraint\.c.*no column 'rate'"):
        store.topics.alter("t", schema=fewer)
    with pytest.raises(InvalidConfig, match=r"constraint\.c.*no column 'rate'"):
        store.topics.alter("t", rename={"rate": "ratio"})
    store.topics.alter("t", rename={"rate": "ratio"}, config={"constraint.c": "ratio > 0"})
    with store.producer() as producer, pytest.raises(InvalidRecord, match="ratio"):
        producer.send("t", {"id": 1, "ratio": -1.0})


def test_a_constraint_stays_with_its_column() -> None:
    """Where names are exchanged, or a column is made anew; it may be given for the new ones."""
    store = attach(HeapStorage(), create=True)
    columns = pa.schema([("id", pa.int64()), ("a", pa.int64()), ("b", pa.int64())])
    config = {"constraint.c": "a > 0", "schema.compatibility": "NONE"}
    store.topics.create("t", schema=columns, key=["id"], config=config)
    swap = {"a": "b", "b": "a"}
    with pytest.raises(InvalidConfig, match=r"'a > 0' is about column 'a', and this name is"):
        store.topics.alter("t", rename=swap)
    anew = pa.schema([("id", pa.int64()), ("a", pa.float32()), ("b", pa.int64())])
    with pytest.raises(InvalidConfig, match="in the same step"):
        store.topics.alter("t", schema=anew)
    store.topics.alter("t", rename=swap, config={"constraint.c": "b > 0"})
    store.topics.alter("t", rename={"a": "c"})
    assert store.topics.describe("t").config["constraint.c"] == "b > 0"


@pytest.mark.parametrize("text", ["a > 0", "a + b > 9", "a + 1 > -5 AND a + a > 0", "b + b > 0"])
def test_defaults_pass_the_constraints(text: str) -> None:
    """What has them all would be refused, whoever writes it."""
    store = attach(HeapStorage(), create=True)
    columns = pa.schema([(name, pa.int64()) for name in ("id", "a", "b")])
    defaults = {"a": -1, "b": 2**63 - 1 if text.startswith("b") else 5}
    config = {"constraint.c": text}
    with pytest.raises(InvalidConfig, match=r"constraint\.c.*does not hold for the defaults of"):
        store.topics.create("t", schema=columns, defaults=defaults, config=config)
    store.topics.create("t", schema=columns.remove(2).remove(1))
    with pytest.raises(InvalidConfig, match="records without these are refused"):
        store.topics.alter("t", schema=columns, defaults=defaults, config=config)
    known = {"constraint.c": f"({text}) OR id > 0"}
    store.topics.alter("t", schema=columns, defaults=defaults, config=known)


def test_a_constraint_that_was_made_before_stops_no_change(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic may have one from when defaults were not judged; set anew, it is."""
    columns = pa.schema([("id", pa.int64()), ("a", pa.int64())])
    config = {"constraint.c": "a > 0"}
    with monkeypatch.context() as before:
        before.setattr(topics, "check_constraints", lambda *_: None)
        store.topics.create("t", schema=columns, defaults={"a": -1}, config=config)
    store.topics.alter("t", config={"retention.ms": 5}, partitions=3)
    store.topics.alter("t", schema=columns.append(pa.field("n", pa.int64())))
    with pytest.raises(InvalidConfig, match="does not hold for the defaults of a,"):
        store.topics.alter("t", config=config)
    store.topics.alter("t", config={"constraint.c": None})


def test_a_sum_that_overflows_is_refused(store: Store) -> None:
    store.topics.create("t", schema=COLUMNS, config={"constraint.c": "small + small > 0"})
    with store.producer() as producer, pytest.raises(InvalidRecord, match="has no value for some"):
        producer.send("t", {"id": 1, "small": 100})


def test_operands_that_are_used_twice_do_not_double_each_time() -> None:
    """Twenty times BETWEEN within BETWEEN would be a million values."""
    text = "small"
    for _ in range(20):
        text = f"({text}) BETWEEN 1 AND 2"
    with pytest.raises(ValueError, match="too much within IN and BETWEEN"):
        parse(text)
    text = "small IN (1)"
    for _ in range(12):
        text = f"({text}) IN (TRUE)"
    with pytest.raises(ValueError, match="too much within IN and BETWEEN"):
        parse(text)


def test_negative_decimals_keep_their_digits() -> None:
    """A minus sign in front rounds nothing."""
    digits = "1234567890123456789012345678901234.5678"
    assert parse(f"-{digits}") == Literal(Decimal(f"-{digits}"))


def test_constraints_are_bound_once() -> None:
    settings = {"constraint.c": "id > 0", "retention.ms": "1"}
    assert constraints_of(settings, SCHEMA) is constraints_of(dict(settings), SCHEMA)
    assert constraints_of({"retention.ms": "1"}, SCHEMA) == ()
