"""Random schemas of Avro with values of them: as fastavro takes each, and as Arrow has it."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Sequence
from decimal import Decimal
from io import BytesIO
from typing import Any, NamedTuple

import fastavro
import numpy as np
from hypothesis import strategies as st

from txnlog.values.avro import AvroCodec
from txnlog.values.avro_columns import Problems

DAY = dt.date(1970, 1, 1)
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
LOCAL = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - without a zone


class Kind(NamedTuple):
    """A schema, and pairs of a value for fastavro and the one that is expected from Arrow."""

    schema: Any
    values: st.SearchStrategy[tuple[Any, Any]]
    name: str
    """What fastavro calls the type in a union."""


def same(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, Any]]:
    return strategy.map(lambda value: (value, value))


LONGS = st.integers(-(1 << 63), (1 << 63) - 1)
INTS = st.integers(-(1 << 31), (1 << 31) - 1)
MICROS = st.integers(-(10**15), 10**16)
FLOATS = st.floats(width=32, allow_nan=False)
PRIMITIVES = (
    Kind("null", st.just((None, None)), "null"),
    Kind("boolean", same(st.booleans()), "boolean"),
    Kind("int", same(INTS), "int"),
    Kind("long", same(LONGS), "long"),
    Kind("float", same(FLOATS), "float"),
    Kind("double", same(st.floats(allow_nan=False)), "double"),
    Kind("bytes", same(st.binary(max_size=20)), "bytes"),
    Kind("string", same(st.text(max_size=20)), "string"),
)
LOGICAL = (
    Kind(
        {"type": "int", "logicalType": "date"},
        same(st.dates(dt.date(1, 1, 2), dt.date(9999, 1, 1))),
        "int",
    ),
    Kind(
        {"type": "long", "logicalType": "timestamp-micros"},
        same(MICROS.map(lambda n: EPOCH + dt.timedelta(microseconds=n))),
        "long",
    ),
    Kind(
        {"type": "long", "logicalType": "timestamp-millis"},
        same(MICROS.map(lambda n: EPOCH + dt.timedelta(milliseconds=n // 1000))),
        "long",
    ),
    Kind(
        {"type": "long", "logicalType": "local-timestamp-micros"},
        same(MICROS.map(lambda n: LOCAL + dt.timedelta(microseconds=n))),
        "long",
    ),
    Kind(
        {"type": "long", "logicalType": "local-timestamp-millis"},
        same(MICROS.map(lambda n: LOCAL + dt.timedelta(milliseconds=n // 1000))),
        "long",
    ),
    Kind(
        {"type": "int", "logicalType": "time-millis"},
        same(
            st.integers(0, 86_399_999).map(
                lambda n: (EPOCH + dt.timedelta(milliseconds=n)).time().replace(tzinfo=None)
            )
        ),
        "int",
    ),
    Kind(
        {"type": "long", "logicalType": "time-micros"},
        same(
            st.integers(0, 86_399_999_999).map(
                lambda n: (EPOCH + dt.timedelta(microseconds=n)).time().replace(tzinfo=None)
            )
        ),
        "long",
    ),
    Kind(
        {"type": "string", "logicalType": "uuid"},
        st.uuids().map(lambda value: (value, str(value))),
        "string",
    ),
    Kind(
        {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3},
        same(st.integers(-(10**12) + 1, 10**12 - 1).map(lambda n: Decimal(n).scaleb(-3))),
        "bytes",
    ),
)
_NAMES = itertools.count()


def _name() -> str:
    return f"n{next(_NAMES)}"


@st.composite
def named(draw: st.DrawFn) -> Kind:
    """An enum, a fixed, or a decimal in one."""
    name = _name()
    match draw(st.sampled_from(["enum", "fixed", "decimal"])):
        case "enum":
            symbols = [f"s{n}" for n in range(draw(st.integers(1, 5)))]
            schema: dict[str, Any] = {"type": "enum", "name": name, "symbols": symbols}
            return Kind(schema, same(st.sampled_from(symbols)), name)
        case "fixed":
            size = draw(st.integers(1, 9))
            schema = {"type": "fixed", "name": name, "size": size}
            return Kind(schema, same(st.binary(min_size=size, max_size=size)), name)
    schema = {"type": "fixed", "name": name, "size": 9, "logicalType": "decimal"}
    schema |= {"precision": 20, "scale": 2}
    numbers = st.integers(-(10**20) + 1, 10**20 - 1)
    return Kind(schema, same(numbers.map(lambda n: Decimal(n).scaleb(-2))), name)


def _array(item: Kind) -> Kind:
    values = st.lists(item.values, max_size=4).map(
        lambda pairs: ([one for one, _ in pairs], [other for _, other in pairs])
    )
    return Kind({"type": "array", "items": item.schema}, values, "array")


def _map(item: Kind) -> Kind:
    values = st.dictionaries(st.text(max_size=5), item.values, max_size=4).map(
        lambda found: (
            {key: one for key, (one, _) in found.items()},
            [(key, other) for key, (_, other) in found.items()],
        )
    )
    return Kind({"type": "map", "values": item.schema}, values, "map")


def _nullable(item: Kind) -> Kind:
    of_item = item.values.map(lambda pair: ((item.name, pair[0]), pair[1]))
    values = st.one_of(st.just((None, None)), of_item)
    return Kind(["null", item.schema], values, "union")


def _record(fields: list[Kind]) -> Kind:
    name = _name()
    schema = {
        "type": "record",
        "name": name,
        "fields": [{"name": f"f{n}", "type": one.schema} for n, one in enumerate(fields)],
    }
    values = st.tuples(*(one.values for one in fields)).map(
        lambda pairs: tuple({f"f{n}": p[side] for n, p in enumerate(pairs)} for side in (0, 1))
    )
    return Kind(schema, values, name)  # type: ignore[arg-type]  # of two


def _union(items: list[Kind]) -> Kind:
    """Of several types and null: Arrow has a struct of them."""

    def member(number: int, item: Kind) -> st.SearchStrategy[tuple[Any, Any]]:
        nothing = {f"member{n}": None for n in range(len(items))}
        return item.values.map(
            lambda pair: ((item.name, pair[0]), {**nothing, f"member{number}": pair[1]})
        )

    chosen = [member(number, item) for number, item in enumerate(items)]
    values = st.one_of(st.just((None, None)), *chosen)
    schema = ["null", *(item.schema for item in items)]
    return Kind(schema, values, "union")


def _has_bytes(schema: Any) -> bool:
    """Whether each value of a type has a byte: else an array could have any number of them."""
    if isinstance(schema, dict) and schema["type"] == "record":
        return any(_has_bytes(one["type"]) for one in schema["fields"])
    return bool(schema != "null")


def _of_parts(inner: st.SearchStrategy[Kind], *, with_lists: bool) -> st.SearchStrategy[Kind]:
    plain = inner.filter(lambda one: one.name not in ("union", "null"))
    with_bytes = inner.filter(lambda one: _has_bytes(one.schema))
    several = st.lists(plain, min_size=2, max_size=4, unique_by=lambda one: one.name)
    made = [
        st.lists(inner, min_size=1, max_size=5).map(_record),
        plain.map(_nullable),
        several.map(_union),
    ]
    if with_lists:
        made += [with_bytes.map(_array), with_bytes.map(_map)]
    return st.one_of(*made)


def kinds(*, with_lists: bool) -> st.SearchStrategy[Kind]:
    """Records of anything, three levels deep."""
    leaves = st.one_of(st.sampled_from(PRIMITIVES), st.sampled_from(LOGICAL), named())
    inner = st.recursive(
        leaves, lambda below: _of_parts(below, with_lists=with_lists), max_leaves=6
    )
    return st.lists(inner, min_size=1, max_size=6).map(_record)


def encoded(schema: Any, values: Sequence[Any]) -> list[bytes]:
    """Each value by fastavro."""
    parsed = fastavro.parse_schema(schema, _force=True)
    made = []
    for value in values:
        stream = BytesIO()
        fastavro.schemaless_writer(stream, parsed, value)
        made.append(stream.getvalue())
    return made


def decoded(
    values: Sequence[bytes], writer: AvroCodec, reader: AvroCodec | None = None
) -> tuple[list[Any], dict[int, str]]:
    """The rows of values, and what is wrong with some."""
    problems = Problems()
    lengths = [len(value) for value in values]
    ends = np.cumsum(lengths, dtype=np.int64)
    data = np.frombuffer(b"".join(values), np.uint8)
    column = writer.decode(data, ends - lengths, ends, problems, reader or writer)
    column.validate(full=True)
    assert len(column) == len(values)
    return column.to_pylist(), problems.reasons


def record(**fields: Any) -> dict[str, Any]:
    """A record ``R`` with fields of these types; ``(type, default)`` for one with a default."""
    made = []
    for name, kind in fields.items():
        default = {"default": kind[1]} if isinstance(kind, tuple) else {}
        made.append({"name": name, "type": kind[0] if default else kind, **default})
    return {"type": "record", "name": "R", "fields": made}
