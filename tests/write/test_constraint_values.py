"""Expressions of constraints give what Spark gives: every type with every other, at their edges."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, time
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.support.columns import edges
from tests.support.columns.edges import COMPARISONS, LITERALS, TYPES, Refused, Value, compare, is_in
from txnlog.columns.bind import bind
from txnlog.columns.expressions import evaluate, parse

_SOME = ("bigint", "float", "decimal(38,10)")
_NUMBERS = [n if n in _SOME else pytest.param(n, marks=pytest.mark.more) for n in TYPES]
_SIGNS = ["*", *(pytest.param(sign, marks=pytest.mark.more) for sign in "+-")]


def _column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """A column in which something lies beneath each null, as in a slice of a result."""
    known = [one for one in values if one is not None]
    full = pa.array([known[-1] if one is None else one for one in values], kind)
    valid = np.packbits([one is not None for one in values], bitorder="little")
    buffers = [pa.py_buffer(valid.tobytes()), *full.buffers()[1:]]
    return pa.Array.from_buffers(kind, len(full), buffers)


def _results(text: str, rows: pa.RecordBatch) -> list[bool | None]:
    return evaluate(bind(parse(text), rows.schema), rows).to_pylist()  # type: ignore[no-any-return]


def _rows(columns: dict[str, tuple[str, Sequence[Any]]]) -> pa.RecordBatch:
    arrays = [_column(values, TYPES[name]) for name, values in columns.values()]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _judge(text: str, rows: pa.RecordBatch, expected: Iterable[Callable[[], bool | None]]) -> None:
    """Compares all rows at once, but one by one those that have no value."""
    wanted: dict[int, bool | None] = {}
    for row, right in enumerate(expected):
        try:
            wanted[row] = right()
        except Refused:
            with pytest.raises(pa.ArrowInvalid, match="overflow"):
                _results(text, rows.slice(row, 1))
    found = _results(text, rows.take(pa.array(list(wanted), pa.int64())))
    wrong = [
        f"{rows.slice(row, 1).to_pylist()}: {one}, not {right}"
        for one, (row, right) in zip(found, wanted.items(), strict=True)
        if one is not right
    ]
    assert not wrong, f"{text}: {wrong[:5]}"


def _alone(name: str) -> tuple[pa.RecordBatch, list[Value]]:
    """A column ``a`` of a type, and its values."""
    column = edges.edges(name)
    return _rows({"a": (name, column)}), [edges.value(name, one) for one in column]


def _paired(name: str, other: str) -> tuple[pa.RecordBatch, list[tuple[Value, Value]]]:
    """Columns ``a`` and ``b`` of two types, and their values: each with each."""
    pairs = list(product(edges.edges(name), edges.edges(other)))
    rows = _rows({"a": (name, [a for a, _ in pairs]), "b": (other, [b for _, b in pairs])})
    return rows, [(edges.value(name, a), edges.value(other, b)) for a, b in pairs]


@pytest.mark.parametrize("name", _NUMBERS)
def test_columns_with_columns(name: str) -> None:
    for other, sign in product(TYPES, COMPARISONS):
        rows, pairs = _paired(name, other)
        _judge(f"a {sign} b", rows, [partial(compare, sign, a, b) for a, b in pairs])


@pytest.mark.parametrize("name", _NUMBERS)
def test_columns_with_constants(name: str) -> None:
    rows, values = _alone(name)
    for text, sign in product(LITERALS, COMPARISONS):
        constant = edges.literal(text)
        _judge(f"a {sign} {text}", rows, [partial(compare, sign, a, constant) for a in values])
        _judge(f"{text} {sign} a", rows, [partial(compare, sign, constant, a) for a in values])
    for text, other in product(LITERALS, ("0", "1.5", "1e0", "9" * 38)):
        constants = [edges.literal(text), edges.literal(other)]
        _judge(f"a IN ({text}, {other})", rows, [partial(is_in, a, constants) for a in values])


def _is_between(one: Value, low: Value, high: Value) -> bool | None:
    found = compare(">=", one, low)
    return found and compare("<=", one, high)


def _is_none_of(one: Value, others: Sequence[Value]) -> bool | None:
    found = is_in(one, others)
    return None if found is None else not found


@pytest.mark.parametrize("name", _NUMBERS)
def test_between_and_not_in(name: str) -> None:
    rows, values = _alone(name)
    for one, other in product(LITERALS[::3], LITERALS[1::3]):
        ends = edges.literal(one), edges.literal(other)
        between = [partial(_is_between, a, *ends) for a in values]
        _judge(f"a BETWEEN {one} AND {other}", rows, between)
        _judge(f"a NOT IN ({one}, {other})", rows, [partial(_is_none_of, a, ends) for a in values])


@pytest.mark.parametrize("sign", _SIGNS)
@pytest.mark.parametrize("name", _NUMBERS)
def test_sums_and_products(name: str, sign: str) -> None:
    def is_greater(one: Value, other: Value, constant: Value) -> bool | None:
        return compare(">", edges.compute(sign, one, other), constant)

    for other in TYPES:
        rows, pairs = _paired(name, other)
        for text in ("0", "1.5", "9007199254740993", "0.1", "1e18"):
            expression = f"a {sign} b > {text}"
            if edges.is_too_long(name, sign, other, text):
                with pytest.raises(ValueError, match="more than 76 digits"):
                    _results(expression, rows)
            else:
                constant = edges.literal(text)
                _judge(expression, rows, [partial(is_greater, a, b, constant) for a, b in pairs])


@pytest.mark.parametrize("name", _NUMBERS)
def test_sums_with_constants(name: str) -> None:
    def is_small(sign: str, one: Value, other: Value) -> bool | None:
        return compare("<=", edges.compute(sign, one, other), edges.literal("1"))

    rows, values = _alone(name)
    for text, sign in product(LITERALS, "+-*"):
        expression = f"a {sign} {text} <= 1"
        if edges.is_too_long(name, sign, text, "1"):
            with pytest.raises(ValueError, match="more than 76 digits"):
                _results(expression, rows)
        else:
            constant = edges.literal(text)
            _judge(expression, rows, [partial(is_small, sign, a, constant) for a in values])


@pytest.mark.parametrize("name", _NUMBERS)
def test_signs(name: str) -> None:
    def is_less_turned(one: Value, other: Value) -> bool | None:
        return compare("<", edges.negative(one), other)

    def is_as_far(one: Value, other: Value) -> bool | None:
        return compare("=", edges.absolute(one), other)

    rows, values = _alone(name)
    for text in LITERALS:
        constant = edges.literal(text)
        _judge(f"-a < {text}", rows, [partial(is_less_turned, a, constant) for a in values])
        _judge(f"abs(a) = {text}", rows, [partial(is_as_far, a, constant) for a in values])


_TEXTS = ["", "A", "a", "aa", "ä", "\U0001f600", "\uffff"]
_MOMENTS = ["1969-12-31T23:59:59.999Z", "1970-01-01T00:00:00Z", "2024-02-29T12:00:00.001Z"]
_TIMES = [one.removesuffix("Z") for one in _MOMENTS]
_DAYS = ["1969-12-31", "1970-01-01", "2024-02-29", "9999-12-31"]
_PLAIN: dict[str, tuple[pa.DataType, list[str], Callable[[str], Any]]] = {
    "text": (pa.string(), _TEXTS, lambda text: text.encode()),
    "binary": (pa.binary(), _TEXTS, lambda text: text.encode()),
    "day": (pa.date32(), _DAYS, date.fromisoformat),
    "ms": (pa.timestamp("ms"), _TIMES, datetime.fromisoformat),
    "us": (pa.timestamp("us"), _TIMES, datetime.fromisoformat),
    "ms UTC": (pa.timestamp("ms", "UTC"), _MOMENTS, datetime.fromisoformat),
    "us UTC": (pa.timestamp("us", "UTC"), _MOMENTS, datetime.fromisoformat),
}


def _in_order(sign: str, one: Any, other: Any) -> bool | None:
    if one is None or other is None:
        return None
    if type(one) is not type(other):  # a day begins at midnight
        one, other = (
            each if isinstance(each, datetime) else datetime.combine(each, time())
            for each in (one, other)
        )
    is_equal = {"=": one == other, "<>": one != other, "<": one < other}
    found: bool = (is_equal | {"<=": one <= other, ">": one > other, ">=": one >= other})[sign]
    return found


@pytest.mark.parametrize("name", list(_PLAIN))
def test_texts_and_times(name: str) -> None:
    def is_one_of(one: Any, others: Sequence[Any]) -> bool | None:
        return None if one is None else one in others

    kind, texts, read = _PLAIN[name]
    values = [None, *map(read, texts)]
    rows = pa.RecordBatch.from_arrays([pa.array([None, *texts]).cast(kind)], ["a"])
    for text, sign in product(texts, COMPARISONS):
        constant = read(text)
        _judge(f"a {sign} '{text}'", rows, [partial(_in_order, sign, a, constant) for a in values])
    for one, other in product(texts, repeat=2):
        constants = [read(one), read(other)]
        expected = [partial(is_one_of, a, constants) for a in values]
        _judge(f"a IN ('{one}', '{other}')", rows, expected)


@pytest.mark.parametrize("name", list(_PLAIN))
def test_columns_of_texts_and_times(name: str) -> None:
    """They are compared with their like; a day is a time without a zone."""
    likes = [{"text"}, {"binary"}, {"day", "ms", "us"}, {"ms UTC", "us UTC"}]
    for other, sign in product(_PLAIN, COMPARISONS):
        pairs = list(product([None, *_PLAIN[name][1]], [None, *_PLAIN[other][1]]))
        arrays = [
            pa.array([a for a, _ in pairs]).cast(_PLAIN[name][0]),
            pa.array([b for _, b in pairs]).cast(_PLAIN[other][0]),
        ]
        rows = pa.RecordBatch.from_arrays(arrays, ["a", "b"])
        if any({name, other} <= alike for alike in likes):
            read, other_read = _PLAIN[name][2], _PLAIN[other][2]
            values = [
                (None if a is None else read(a), None if b is None else other_read(b))
                for a, b in pairs
            ]
            _judge(f"a {sign} b", rows, [partial(_in_order, sign, a, b) for a, b in values])
        else:
            with pytest.raises(ValueError, match="no type in common"):
                _results(f"a {sign} b", rows)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("n > 'a'", "int64 and string have no type in common"),
        ("flag = 1", "bool and int32 have no type in common"),
        ("n IN (1, 'a')", "int64 and string have no type in common"),
        ("flag + 1 = 2", "bool is found where a number is needed"),
        ("day - day = day - day", "a number is needed"),
        ("-name = 'a'", "string is found where a number is needed"),
        ("n AND flag", "int64 is found where true or false is needed"),
        ("NOT n", "true or false is needed"),
        ("n LIKE 'a'", "a text is needed"),
        ("length(n) = 1", "a text is needed"),
        ("isnan(n)", "a float is needed"),
        ("many = many", "are not compared, but fields of them are"),
        ("n < 0." + "1" * 39, "a number in it has more than 38 digits"),
        ("n < 1" + "0" * 38, "a number in it has more than 38 digits"),
        ("x < 1e309", "1e309 is greater than any float"),
    ],
)
def test_types_that_do_not_fit(text: str, why: str) -> None:
    columns = pa.schema(
        [
            ("n", pa.int64()),
            ("x", pa.float32()),
            ("flag", pa.bool_()),
            ("name", pa.string()),
            ("day", pa.date32()),
            ("many", pa.list_(pa.int8())),
        ]
    )
    with pytest.raises(ValueError, match=why):
        bind(parse(text), columns)


def test_like() -> None:
    """Short patterns of all signs, by what SQLite says of each text."""
    texts = ["".join(some) for n in range(4) for some in product("a%\\\n", repeat=n)]
    rows = pa.RecordBatch.from_arrays([pa.array([None, *texts])], ["a"])
    signs = ["%", "_", "a", "\n", r"\%", r"\_", "\\\\"]
    patterns = ["".join(some) for n in range(4) for some in product(signs, repeat=n)]
    other = sqlite3.connect(":memory:")
    other.execute("CREATE TABLE t (a)")
    other.executemany("INSERT INTO t VALUES (?)", [(text,) for text in texts])
    for pattern in [*patterns, r"%\\a%", r"a\\.*(%"]:
        found = other.execute("SELECT a LIKE ? ESCAPE '\\' FROM t ORDER BY rowid", (pattern,))
        expected = [None, *(bool(one) for (one,) in found)]
        assert _results(f"a LIKE '{pattern}'", rows) == expected, pattern
    other.close()


def test_truth_values() -> None:
    values = [None, False, True]
    pairs = list(product(values, repeat=2))
    arrays = [pa.array([a for a, _ in pairs]), pa.array([b for _, b in pairs])]
    rows = pa.RecordBatch.from_arrays(arrays, ["a", "b"])
    for sign in COMPARISONS:
        _judge(f"a {sign} b", rows, [partial(_in_order, sign, a, b) for a, b in pairs])
        _judge(f"a {sign} TRUE", rows, [partial(_in_order, sign, a, True) for a, _ in pairs])
    assert _results("a IN (FALSE)", rows) == [None if a is None else not a for a, _ in pairs]


def test_what_is_no_number() -> None:
    """``isnan`` is false for a null."""
    values = [None, math.nan, 0.0, math.inf]
    for kind in (pa.float32(), pa.float64()):
        rows = pa.RecordBatch.from_arrays([pa.array(values, kind)], ["a"])
        assert _results("isnan(a)", rows) == [False, True, False, False]
        assert _results("a IS NULL", rows) == [True, False, False, False]
        assert _results("a - a = a - a AND NOT isnan(a)", rows) == [None, False, True, True]
