"""Values of every type at which readers go wrong, and what predicates over them are true of.

The oracle is plain Python: three-valued logic over exact numbers, with one of three orders of
floats that engines document.
"""

from __future__ import annotations

import datetime as dt
import math
import operator
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Any, Literal, TypeAlias, get_args
from unittest.mock import patch

import pyarrow as pa

from txnlog import Store
from txnlog.segments import writer

NAN, INFINITY = math.nan, math.inf
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)

Order: TypeAlias = Literal["ieee", "largest", "total"]
"""The order of floats: NaN differs from all (Arrow), is the largest number and equal to itself
(Spark, DuckDB, Polars), or IEEE 754's total order, in which -0.0 is less than 0.0 (DataFusion).
"""


def utc(*parts: int) -> dt.datetime:
    return dt.datetime(*parts, tzinfo=dt.UTC)  # type: ignore[arg-type, misc] # day and the like


def micros(at: dt.datetime) -> int:
    """Microseconds since 1970."""
    return (at.replace(tzinfo=dt.UTC) - _EPOCH) // dt.timedelta(microseconds=1)


def is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def days(at: dt.date) -> int:
    """Days since 1970."""
    return (at - _EPOCH.date()).days


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the topic: its values, times as numbers, and the literals they are compared with.

    ``special`` is a value that stands beside each other one in a file.
    """

    name: str
    type: Any
    values: Sequence[Any]
    literals: Sequence[Any]
    special: Any = None

    def holds(self, literal: Any) -> bool:
        """Whether a literal is a value of the column's type."""
        if pa.types.is_timestamp(self.type):
            return micros(literal) % {"ms": 1000, "us": 1}[self.type.unit] == 0
        try:
            return bool(pa.scalar(literal, self.type).as_py() == literal or is_nan(literal))
        except (pa.ArrowException, OverflowError):
            return False

    def raw(self, values: Sequence[Any]) -> pa.Array:
        """Values as Arrow has them."""
        if pa.types.is_timestamp(self.type):
            per = {"ms": 1000, "us": 1}[self.type.unit]
            numbers = [None if value is None else value // per for value in values]
            return pa.array(numbers, pa.int64()).cast(self.type)
        if pa.types.is_date(self.type):
            return pa.array(values, pa.int32()).cast(self.type)
        return pa.array(values, self.type)


_FLOATS = (NAN, -0.0, 0.0, 3.0, -3.0, INFINITY, -INFINITY)
_DATES = (
    *(dt.date(1, 1, 1), dt.date(1582, 10, 4), dt.date(1582, 10, 15), dt.date(1969, 12, 31)),
    *(dt.date(1970, 1, 1), dt.date(9999, 12, 31)),
)
_TIMES = (
    utc(1, 1, 1),
    utc(1582, 10, 4, 23, 59, 59, 999_000),
    utc(1582, 10, 15),
    utc(1969, 12, 31, 23, 59, 59, 999_000),
    utc(1970, 1, 1),
    utc(2024, 3, 31, 1, 30, 0, 5000),
    utc(9999, 12, 31, 23, 59, 59, 999_000),
)
_FINER = (_TIMES[5] + dt.timedelta(microseconds=1), _TIMES[4] - dt.timedelta(microseconds=1))
_LONG = "x" * 300
_TEXTS = ("", "x", "xa", "X", _LONG + "a", _LONG + "b", "x\U0010ffff", "\uffff", "\U0001f600", "y")
_BYTES = [b"", b"\0", b"x", b"x\0", b"\x80", b"\xff\xff", _LONG.encode()]


def _integers(bits: int) -> list[int]:
    most = (1 << (bits - 1)) - 1
    return [-most - 1, -1, 0, 3, most]


def _single(number: float) -> float:
    found: float = struct.unpack("f", struct.pack("f", number))[0]
    return found


def _times(*, zone: bool) -> list[dt.datetime]:
    every = [*_TIMES, *_FINER]
    return every if zone else [at.replace(tzinfo=None) for at in every]


def _decimal(precision: int, scale: int) -> list[Decimal]:
    most = Decimal((0, (9,) * precision, -scale))
    return [most, most.copy_negate(), Decimal(0), Decimal(3), Decimal((1, (1,), -scale))]


_ALL_TIMES = [micros(at) for at in _TIMES]
COLUMNS = [
    Column("flag", pa.bool_(), [False, True], [False, True]),
    Column("i8", pa.int8(), _integers(8), [*_integers(8), 300, 2.5]),
    Column("i16", pa.int16(), _integers(16), [3, 1 << 15, -(1 << 15)]),
    Column("i32", pa.int32(), _integers(32), [*_integers(32), 1 << 31, 2.5]),
    Column("i64", pa.int64(), _integers(64), _integers(64)),
    Column(
        "f32",
        pa.float32(),
        [*_FLOATS, _single(0.1), _single(3.4028235e38), 2**-149],
        [*_FLOATS, 0.1, _single(0.1)],
        NAN,
    ),
    Column(
        "f64",
        pa.float64(),
        [*_FLOATS, 0.1, 1.7976931348623157e308, 5e-324],
        [*_FLOATS, 0.1, 1.7976931348623157e308],
        NAN,
    ),
    Column("d5", pa.decimal128(5, 2), _decimal(5, 2), [*_decimal(5, 2), Decimal("2.995")]),
    Column("d18", pa.decimal128(18, 3), _decimal(18, 3), _decimal(18, 3)),
    Column("d38", pa.decimal128(38, 10), _decimal(38, 10), _decimal(38, 10)),
    Column("text", pa.string(), _TEXTS, [*_TEXTS, _LONG, _LONG + "aa"]),
    Column("raw", pa.binary(), _BYTES, [*_BYTES, b"\x7f"]),
    Column("day", pa.date32(), [days(at) for at in _DATES], _DATES),
    Column("at_us", pa.timestamp("us", "UTC"), [*_ALL_TIMES, 1, -1], _times(zone=True)),
    Column("at_ms", pa.timestamp("ms", "UTC"), _ALL_TIMES, _times(zone=True)),
    Column("wall_us", pa.timestamp("us"), [*_ALL_TIMES, 1, -1], _times(zone=False)),
    Column("wall_ms", pa.timestamp("ms"), _ALL_TIMES, _times(zone=False)),
]
BY_NAME = {column.name: column for column in COLUMNS}
TIMESTAMP = Column("_timestamp", pa.timestamp("ms", "UTC"), _ALL_TIMES, _times(zone=True))
NESTED = pa.schema(
    [
        ("pair", pa.struct([("f", pa.float64()), ("at", pa.timestamp("ms", "UTC"))])),
        ("floats", pa.list_(pa.float64())),
        ("by_name", pa.map_(pa.string(), pa.float32())),
    ]
)
_EVER_MS = str((1 << 63) - 1)
CONFIG = {
    "message.timestamp.after.max.ms": _EVER_MS,
    "segment.ms": _EVER_MS,
    "retention.ms": "-1",
}
"""Times of records may be of any year, and in one segment."""
SCHEMA = pa.schema(
    [("id", pa.int64()), *((column.name, column.type) for column in COLUMNS), *NESTED]
)
PARTITIONS = 2 * max(len(column.values) for column in COLUMNS)


def rows_of(partition: int) -> list[dict[str, Any]]:
    """The two rows of a partition, and so of its file: a value, and null or the column's special.

    Of columns without a special one the second has the next value.
    """
    at, beside = divmod(partition, 2)
    first: dict[str, Any] = {"id": 2 * partition}
    second: dict[str, Any] = {"id": 2 * partition + 1}
    for column in (*COLUMNS, TIMESTAMP):
        values = column.values
        first[column.name] = values[at % len(values)]
        second[column.name] = None
        if beside or column is TIMESTAMP:
            after = values[(at + 1) % len(values)]
            second[column.name] = after if column.special is None else column.special
    for row in (first, second):
        floats = [row["f64"], row["f32"]]
        row["pair"] = {"f": row["f64"], "at": row["at_ms"]}
        row["floats"] = floats
        row["by_name"] = [("a", row["f32"])]
    return [first, second]


ROWS = [row for partition in range(PARTITIONS) for row in rows_of(partition)]


def table_of(rows: Sequence[dict[str, Any]]) -> pa.Table:
    """Rows as they are sent, with their times."""
    made = {"id": pa.array([row["id"] for row in rows], pa.int64())}
    for column in (*COLUMNS, TIMESTAMP):
        made[column.name] = column.raw([row[column.name] for row in rows])
    at_ms = made["at_ms"]
    pair = NESTED.field("pair").type
    made["pair"] = pa.StructArray.from_arrays([made["f64"], at_ms], fields=[*pair])
    for name in ("floats", "by_name"):
        made[name] = pa.array([row[name] for row in rows], NESTED.field(name).type)
    return pa.table(made)


Form: TypeAlias = Literal["written", "merged", "compacted", "mixed", "widened"]
"""How a topic's files have come to be."""
FORMS: Sequence[Form] = get_args(Form)


def fill(store: Store, topic: str, form: Form = "written") -> None:
    """Make the topic, with a file for each partition.

    Written: of two rows. Merged: of four, each of which was in a file, and is a row group.
    Compacted: of two behind and between older ones of the same keys. Mixed: there is a file for
    each row, a Parquet file or one of batches. Widened: there is a file for each row, of a schema
    with narrower columns if the row fits them.
    """
    if form == "widened":
        _widen(store, topic)
        return
    if form == "compacted":
        _compact(store, topic)
        return
    if form == "mixed":
        _mix(store, topic)
        return
    pieces = [rows_of(partition) for partition in range(PARTITIONS)]
    if form == "merged":
        pieces = [[*one, *other] for one, other in zip(pieces[::2], pieces[1::2], strict=True)]
    store.topics.create(topic, partitions=len(pieces), schema=SCHEMA, config=CONFIG)
    with store.producer() as producer:
        for partition, rows in enumerate(pieces):
            for some in [rows] if form == "written" else [[row] for row in rows]:
                producer.send_batch(topic, table_of(some), partition=partition)
                producer.flush()
    if form == "merged":
        with patch.object(writer, "DEFAULT_ROW_GROUP_BYTES", 1):
            store.maintenance.merge(topic)
    assert [s.record_count for s in store.topics.segments(topic)] == [len(rows) for rows in pieces]


def _mix(store: Store, topic: str) -> None:
    config = {**CONFIG, "record.format": "auto"}
    store.topics.create(topic, partitions=PARTITIONS, schema=SCHEMA, config=config)
    for partition in range(PARTITIONS):
        for number, row in enumerate(rows_of(partition)):
            # Both orders, and of each column's values both kinds of files.
            large = (number + partition // 2) % 2
            least = patch.object(writer, "PARQUET_FROM_BYTES", 1 if large else 1 << 20)
            with least, store.producer() as producer:
                producer.send_batch(topic, table_of([row]), partition=partition)
    files = [(s.partition, s.paths.is_parquet) for s in store.topics.segments(topic)]
    assert sorted(files) == [(n, kind) for n in range(PARTITIONS) for kind in (False, True)]


NARROW = {
    "i64": pa.int8(),
    "f64": pa.float32(),
    "d18": pa.decimal128(4, 3),
    "d38": pa.decimal128(12, 10),
}
"""The types of columns before they are widened."""


def _widen(store: Store, topic: str) -> None:
    narrow = pa.schema([field.with_type(NARROW.get(field.name, field.type)) for field in SCHEMA])

    def fits(row: dict[str, Any]) -> bool:
        columns = [Column(name, kind, [], []) for name, kind in NARROW.items()]
        return all(row[one.name] is None or one.holds(row[one.name]) for one in columns)

    store.topics.create(topic, partitions=PARTITIONS, schema=narrow, config=CONFIG)
    for schema in (narrow, SCHEMA):
        if schema is SCHEMA:
            store.topics.alter(topic, schema=SCHEMA)
        with store.producer() as producer:
            for partition in range(PARTITIONS):
                for row in rows_of(partition):
                    if fits(row) == (schema is narrow):
                        producer.send_batch(topic, table_of([row]), partition=partition)
                        producer.flush()


def _compact(store: Store, topic: str) -> None:
    config = {**CONFIG, "cleanup.policy": "compact"}
    store.topics.create(topic, partitions=PARTITIONS, schema=SCHEMA, key=["id"], config=config)
    with store.producer() as producer:
        for partition in range(PARTITIONS):
            first, second = rows_of(partition)
            others = rows_of((partition + 7) % PARTITIONS)
            old = [
                {**other, "id": row["id"]}
                for row, other in zip((first, second), others, strict=True)
            ]
            for some in (old, [first], old[1:], [second]):
                producer.send_batch(topic, table_of(some), partition=partition)
                producer.flush()
    store.maintenance.compact(topic)
    left = store.scan(topic, columns=["_offset"]).to_arrow()
    assert left["_offset"].to_pylist() == [2, 4] * PARTITIONS


# -- predicates ----------------------------------------------------------------------------------

Operator: TypeAlias = Literal["=", "<>", "<", "<=", ">", ">=", "<=>"]
_PYTHON: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<=>": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True, slots=True)
class Compare:
    """A comparison with a literal."""

    column: str
    operator: Operator
    literal: Any


@dataclass(frozen=True, slots=True)
class In:
    """Whether a value is one of several."""

    column: str
    literals: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class IsNull:
    """Whether there is no value."""

    column: str


@dataclass(frozen=True, slots=True)
class StartsWith:
    """SQL's LIKE 'prefix%'."""

    column: str
    prefix: str


@dataclass(frozen=True, slots=True)
class Not:
    """What is neither true nor null."""

    of: Predicate


Predicate: TypeAlias = Compare | In | IsNull | StartsWith | Not


def predicates(column: Column) -> Iterator[Predicate]:
    """Every predicate over a column."""
    name = column.name
    yield IsNull(name)
    yield Not(IsNull(name))
    for literal in column.literals:
        for sign in _PYTHON:
            yield Compare(name, sign, literal)  # type: ignore[arg-type] # they are these
        for sign in ("=", "<=", ">="):
            yield Not(Compare(name, sign, literal))  # type: ignore[arg-type]
    for one, other in pairwise(column.literals):
        if type(one) is type(other):
            yield In(name, (one, other))
            yield Not(In(name, (one, other)))
    if pa.types.is_string(column.type):
        for prefix in ("x", "", _LONG, "x\U0010ffff", "\uffff"):
            yield StartsWith(name, prefix)
            yield Not(StartsWith(name, prefix))


def matching(predicate: Predicate, order: Order, *, has_sets: bool = False) -> list[int]:
    """The ids of the rows for which a predicate is true.

    With ``has_sets`` the values of IN are a set, by their bits: null is not in it, so that this is
    false and not null, NaN may be, and -0.0 is another one than 0.0.
    """
    return [row["id"] for row in ROWS if _holds(predicate, row, order, has_sets) is True]


def _holds(predicate: Predicate, row: dict[str, Any], order: Order, is_set: bool) -> bool | None:
    if isinstance(predicate, Not):
        inner = _holds(predicate.of, row, order, is_set)
        return None if inner is None else not inner
    value: Any = row
    for part in predicate.column.split("."):
        value = value[part]
    if isinstance(predicate, IsNull):
        return value is None
    if value is None:
        if isinstance(predicate, Compare) and predicate.operator == "<=>":
            return False
        return False if is_set and isinstance(predicate, In) else None
    if isinstance(predicate, StartsWith):
        return bool(value.startswith(predicate.prefix))
    if isinstance(predicate, In):
        order = "total" if is_set else order
        return any(_compare("=", value, literal, order) for literal in predicate.literals)
    return _compare(predicate.operator, value, predicate.literal, order)


def _compare(sign: str, value: Any, literal: Any, order: Order) -> bool:
    return _PYTHON[sign](_exact(value, order), _exact(literal, order))


def _exact(value: Any, order: Order) -> Any:
    """A value that Python compares as an engine does."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dt.datetime):
        value = micros(value)
    elif isinstance(value, dt.date):
        value = days(value)
    if isinstance(value, Decimal):
        return Fraction(value)
    return value if isinstance(value, bool | bytes) else _number(value, order)


def _number(value: float, order: Order) -> Any:
    if order == "ieee":
        return value
    found = (is_nan(value), 0 if is_nan(value) else value)
    return found if order == "largest" else (*found, math.copysign(1, value))
