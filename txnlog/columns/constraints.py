"""Constraints of typed topics: expressions that no written row may make false.

They are settings, ``constraint.NAME``; nulls are SQL's, so a row for which one is unknown passes.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from txnlog.columns.bind import bind
from txnlog.columns.expressions import columns_of, evaluate, parse
from txnlog.config import CONSTRAINT
from txnlog.errors import InvalidConfig
from txnlog.schema import TopicSchema
from txnlog.segments.schema_columns import default_of


@dataclass(frozen=True, slots=True)
class Constraint:
    """One of a topic's constraints, bound to its columns."""

    name: str
    text: str
    columns: tuple[str, ...]
    expression: pc.Expression

    def first_refused(self, rows: pa.RecordBatch) -> int | None:
        """The first row for which it is false; None if there is none.

        Raises ArrowException: it has no value for some row, as where a sum overflows.
        """
        passes = evaluate(self.expression, rows).fill_null(True)
        at = pc.index(passes, pa.scalar(False)).as_py()
        return None if at < 0 else int(at)


def constraints_of(config: Mapping[str, str], schema: TopicSchema) -> tuple[Constraint, ...]:
    """The constraints of a topic, by name.

    Raises InvalidConfig: one is no expression over the columns that is true or false.
    """
    found = {key: text for key, text in config.items() if key.startswith(CONSTRAINT)}
    return _bound(tuple(sorted(found.items())), schema) if found else ()


def check_constraints(
    config: Mapping[str, str],
    schema: TopicSchema,
    known: Collection[str] = (),
    moved: Collection[str] = (),
    given: Container[str] = (),
) -> None:
    """Raise InvalidConfig: one does not fit, refuses defaults, or is of other columns than before.

    ``known`` are the names so far, ``moved`` those that meant others; ``given`` the settings that
    were made for these. What was there before with its columns may refuse their defaults.
    """
    constraints = constraints_of(config, schema)
    defaults = {field.name: default_of(field) for field in (schema.columns if constraints else ())}
    row = {name: pa.array([value]) for name, value in defaults.items() if value is not None}
    for one in constraints:
        key = CONSTRAINT + one.name
        for name in one.columns:
            if name in moved and key not in given:
                raise InvalidConfig(
                    f"topic config {key}: {one.text!r} is about column {name!r}, and this name is "
                    "another column's from now on: give the constraint in the same step"
                )
        is_old = key not in given and {*one.columns} <= {*known}
        if is_old or not {*one.columns} <= row.keys():
            continue
        try:
            refused = one.first_refused(pa.RecordBatch.from_pydict(row)) is not None
        except pa.ArrowException:
            refused = True
        if refused:
            raise InvalidConfig(
                f"topic config {key}: {one.text!r} does not hold for the defaults of "
                f"{', '.join(one.columns)}, so records without these are refused: change one of "
                "them"
            )


@lru_cache(maxsize=64)
def _bound(settings: tuple[tuple[str, str], ...], schema: TopicSchema) -> tuple[Constraint, ...]:
    columns = schema.scan_columns
    columns = pa.schema([columns.field(name) for name in schema.columns.names])
    nulls = pa.RecordBatch.from_arrays(
        [pa.nulls(1, field.type) for field in columns], names=columns.names
    )
    made = []
    for key, text in settings:
        try:
            node = parse(text)
            expression = bind(node, columns)
            kind = evaluate(expression, nulls).type
        except (ValueError, TypeError, ArithmeticError, pa.ArrowException) as error:
            why = str(error).splitlines()[0]
            raise InvalidConfig(f"topic config {key}: {text!r} does not fit: {why}") from error
        if not pa.types.is_boolean(kind):
            raise InvalidConfig(
                f"topic config {key}: {text!r} is {kind}, and must be true or false"
            )
        used = tuple(dict.fromkeys(columns_of(node)))
        if not used:
            raise InvalidConfig(f"topic config {key}: {text!r} uses no column")
        made.append(Constraint(key.removeprefix(CONSTRAINT), text, used, expression))
    return tuple(made)
