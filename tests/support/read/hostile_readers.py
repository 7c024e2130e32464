"""Every way out of a topic that knows nothing of Spark: each runs a predicate, by its own means."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import expressions as pyiceberg_expressions

from tests.support.read.hostile_values import (
    BY_NAME,
    INFINITY,
    Compare,
    In,
    IsNull,
    Not,
    Order,
    Predicate,
    StartsWith,
    is_nan,
    matching,
    micros,
)

Literal = Callable[[Any], str]
expressions: Any = pyiceberg_expressions  # which does not say what its classes take


@dataclass(frozen=True, slots=True)
class Reader:
    """A way out. ``ids`` of the rows for which a predicate is true, in any order.

    ``meanings`` are those that it may give to a predicate: the order of floats, and whether IN has
    sets (see ``matching``). ``knows``: whether it can say the predicate at all.
    """

    name: str
    meanings: Sequence[tuple[Order, bool]]
    ids: Callable[[Predicate], list[int]]
    knows: Callable[[Predicate], bool] = lambda _: True


IEEE: Sequence[tuple[Order, bool]] = [("ieee", True)]
LARGEST: Sequence[tuple[Order, bool]] = [("largest", False)]
TOTAL: Sequence[tuple[Order, bool]] = [("total", False)]


# -- SQL -----------------------------------------------------------------------------------------


def sql(predicate: Predicate, literal: Literal) -> str:
    """A predicate in SQL, as all engines understand it."""
    if isinstance(predicate, Not):
        return f"NOT ({sql(predicate.of, literal)})"
    if isinstance(predicate, IsNull):
        return f"{predicate.column} IS NULL"
    if isinstance(predicate, StartsWith):
        return f"{predicate.column} LIKE '{predicate.prefix}%'"
    if isinstance(predicate, In):
        return f"{predicate.column} IN ({', '.join(map(literal, predicate.literals))})"
    sign = "IS NOT DISTINCT FROM" if predicate.operator == "<=>" else predicate.operator
    return f"{predicate.column} {sign} {literal(predicate.literal)}"


def _plain(value: Any) -> str | None:
    """A literal that is written alike everywhere."""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, int):
        return str(value) if abs(value) < 1 << 31 else f"CAST('{value}' AS BIGINT)"
    if isinstance(value, float):
        return f"CAST('{value!r}' AS DOUBLE)"
    if isinstance(value, Decimal):
        _, digits, exponent = value.as_tuple()
        scale = -int(exponent)
        return f"CAST('{value:f}' AS DECIMAL({max(len(digits), scale)}, {scale}))"
    if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        return f"DATE '{value.isoformat()}'"
    return f"'{value}'" if isinstance(value, str) else None


def duckdb_literal(value: Any) -> str:
    if isinstance(value, dt.datetime):
        kind = "make_timestamp" if value.tzinfo is None else "make_timestamptz"
        return f"{kind}({micros(value)}::BIGINT)"
    return _plain(value) or f"from_hex('{value.hex()}')"


def spark_literal(value: Any) -> str:
    if isinstance(value, dt.datetime):
        at = f"timestamp_micros({micros(value)}L)"
        # As a wall clock: the session's zone is not UTC.
        return at if value.tzinfo else f"TIMESTAMP_NTZ '{value.isoformat(sep=' ')}'"
    return _plain(value) or f"X'{value.hex()}'"


def trino_literal(value: Any) -> str:
    if isinstance(value, dt.datetime):
        at = value.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")
        return f"TIMESTAMP '{at} UTC'" if value.tzinfo else f"TIMESTAMP '{at}'"
    if isinstance(value, float):
        words = {"nan": "nan()", "inf": "infinity()", "-inf": "-infinity()"}
        return words.get(f"{value!r}") or f"DOUBLE '{value!r}'"
    return _plain(value) or f"X'{value.hex()}'"


def datafusion_literal(value: Any) -> str:
    if isinstance(value, dt.datetime):
        zone = "None" if value.tzinfo is None else 'Some("UTC")'
        return f"arrow_cast({micros(value)}, 'Timestamp(Microsecond, {zone})')"
    return _plain(value) or f"X'{value.hex()}'"


# -- expressions ---------------------------------------------------------------------------------


def _arrow_scalar(value: Any) -> pa.Scalar:
    if isinstance(value, dt.datetime):
        return pa.scalar(value, pa.timestamp("us", None if value.tzinfo is None else "UTC"))
    return pa.scalar(value)


def arrow(predicate: Predicate) -> pc.Expression:
    """A predicate as pyarrow's expression."""
    if isinstance(predicate, Not):
        return ~arrow(predicate.of)
    field = pc.field(*predicate.column.split("."))
    if isinstance(predicate, IsNull):
        return field.is_null()
    if isinstance(predicate, StartsWith):
        return pc.starts_with(field, predicate.prefix)
    if isinstance(predicate, In):
        values = predicate.literals
        if isinstance(values[0], dt.datetime):
            return field.isin(pa.array(values, _arrow_scalar(values[0]).type))
        return field.isin(pa.array(values, BY_NAME[predicate.column].type))
    return _compared(field, predicate, _arrow_scalar(predicate.literal))


def polars_expression(predicate: Predicate) -> pl.Expr:
    """A predicate as that of Polars."""
    if isinstance(predicate, Not):
        return ~polars_expression(predicate.of)
    first, *inner = predicate.column.split(".")
    column = pl.col(first)
    for part in inner:
        column = column.struct.field(part)
    if isinstance(predicate, IsNull):
        return column.is_null()
    if isinstance(predicate, StartsWith):
        return column.str.starts_with(predicate.prefix)
    if isinstance(predicate, In):
        return column.is_in([*predicate.literals])
    literal = predicate.literal
    made = pl.lit(literal)
    if predicate.operator == "<=>":
        return column.eq_missing(made)
    found: pl.Expr = _compared(column, predicate, made)
    return found


def _compared(column: Any, predicate: Compare, literal: Any) -> Any:
    signs: dict[str, Callable[[], Any]] = {
        "=": lambda: column == literal,
        "<=>": lambda: (column == literal) & column.is_valid(),
        "<>": lambda: column != literal,
        "<": lambda: column < literal,
        "<=": lambda: column <= literal,
        ">": lambda: column > literal,
        ">=": lambda: column >= literal,
    }
    return signs[predicate.operator]()


def arrow_knows(predicate: Predicate) -> bool:
    """Whether pyarrow can evaluate it: values of a set are of the column's type.

    It makes 32-bit integers floats of 32 bits beside a float.
    """
    if isinstance(predicate, Not):
        return arrow_knows(predicate.of)
    if isinstance(predicate, In):
        column = BY_NAME[predicate.column]
        return all(column.holds(literal) for literal in predicate.literals)
    if isinstance(predicate, Compare) and predicate.column == "i32":
        return not isinstance(predicate.literal, float)
    return True


def arrow_knows_of_files(predicate: Predicate) -> bool:
    """The same of files with bounds: beside those Arrow takes ``not x <= NaN`` for false."""
    of = predicate.of if isinstance(predicate, Not) else None
    return arrow_knows(predicate) and not (isinstance(of, Compare) and is_nan(of.literal))


def iceberg(predicate: Predicate) -> Any:
    """A predicate as that of pyiceberg, which has NaN as a predicate of its own."""
    if isinstance(predicate, Not):
        return expressions.Not(iceberg(predicate.of))
    name = predicate.column
    if isinstance(predicate, IsNull):
        return expressions.IsNull(name)
    if isinstance(predicate, StartsWith):
        return expressions.StartsWith(name, predicate.prefix)
    kind = BY_NAME[name].type
    if isinstance(predicate, In):
        return expressions.In(name, [_scaled(literal, kind) for literal in predicate.literals])
    literal = predicate.literal
    if is_nan(literal):
        return expressions.NotNaN(name) if predicate.operator == "<>" else expressions.IsNaN(name)
    return _ICEBERG[predicate.operator](name, _scaled(literal, kind))


def _scaled(literal: Any, kind: pa.DataType) -> Any:
    """The decimal as pyiceberg takes it: of the column's very scale."""
    return pa.scalar(literal, kind).as_py() if isinstance(literal, Decimal) else literal


_ICEBERG: dict[str, Any] = {
    "=": expressions.EqualTo,
    "<=>": expressions.EqualTo,
    "<>": expressions.NotEqualTo,
    "<": expressions.LessThan,
    "<=": expressions.LessThanOrEqual,
    ">": expressions.GreaterThan,
    ">=": expressions.GreaterThanOrEqual,
}


def datafusion_knows(predicate: Predicate) -> bool:
    """Its ``NOT IN`` tells -0.0 from 0.0 in rows, and not in bounds."""
    return not (
        isinstance(predicate, Not)
        and isinstance(predicate.of, In)
        and any(isinstance(literal, float) and literal == 0 for literal in predicate.of.literals)
    )


def iceberg_knows(predicate: Predicate) -> bool:
    """Its literals are of the column's type, and NaN is less and greater than nothing."""
    if isinstance(predicate, Not):
        return iceberg_knows(predicate.of)
    if isinstance(predicate, Compare):
        literal = predicate.literal
        if is_nan(literal) and predicate.operator not in ("=", "<>", "<=>"):
            return False
        # An infinity it takes for a number beyond all of a float's.
        is_infinite = predicate.column == "f32" and abs(literal) == INFINITY
        return BY_NAME[predicate.column].holds(literal) and not is_infinite
    if isinstance(predicate, In):
        every = [Compare(predicate.column, "=", literal) for literal in predicate.literals]
        return all(map(iceberg_knows, every)) and not any(map(is_nan, predicate.literals))
    return True


def duckdb_ids(relation: Any, predicate: Predicate) -> list[int]:
    """By DuckDB over something that it knows: it finds the variable by its name."""
    with duckdb.connect() as connection:
        connection.register("found", relation)
        query = f"SELECT id FROM found WHERE {sql(predicate, duckdb_literal)}"
        return [number for (number,) in connection.sql(query).fetchall()]


def polars_knows(predicate: Predicate) -> bool:
    """Arrow evaluates what it is given of it; Polars cuts a literal to the type of a column."""
    if isinstance(predicate, Compare) and predicate.column in ("at_ms", "wall_ms", "f32"):
        return BY_NAME[predicate.column].holds(predicate.literal)
    if isinstance(predicate, Not) and isinstance(predicate.of, Compare):
        # In its own order of floats "not x <= y" is "x > y", which Arrow then evaluates in another.
        is_turned = predicate.of.column in ("f32", "f64") and predicate.of.operator in ("<=", ">=")
        return not is_turned and polars_knows(predicate.of)
    return arrow_knows(predicate)


def polars_ids(dataset: Any, predicate: Predicate, *, pushes: bool = True) -> list[int]:
    """By Polars over a dataset, which evaluates what Polars ``pushes`` down to it."""
    frame = pl.scan_pyarrow_dataset(dataset, allow_pyarrow_filter=pushes)
    found = frame.filter(polars_expression(predicate)).select("id").collect()
    ids: list[int] = found["id"].to_list()
    return ids


# -- comparing -----------------------------------------------------------------------------------


def differences(reader: Reader, some: Iterable[Predicate]) -> tuple[int, list[str]]:
    """How many of some predicates a reader was asked for, and what it got wrong, each in a line."""
    count, wrong = 0, []
    for predicate in filter(reader.knows, some):
        count += 1
        wanted = [matching(predicate, order, has_sets=sets) for order, sets in reader.meanings]
        got = sorted(reader.ids(predicate))
        if got not in wanted:
            missing, extra = {*wanted[0]} - {*got}, {*got} - {*wanted[0]}
            wrong.append(f"{reader.name}: {predicate}: without {missing}, with {extra}")
    return count, wrong
