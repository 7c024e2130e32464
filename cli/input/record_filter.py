"""Filters of records: ``--key``, ``--grep`` and ``--where``, all of which must match."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

    from txnlog.schema import TopicSchema

FindKeyOption = Annotated[
    str | None,
    typer.Option("-k", "--key", metavar="KEY", help="Only with this key.", show_default=False),
]
GrepOption = Annotated[
    str | None,
    typer.Option(
        "-g",
        "--grep",
        metavar="REGEX",
        help="Only where this is found in the key or the value.",
        show_default=False,
    ),
]
WhereOption = Annotated[
    list[str] | None,
    typer.Option(
        "-w",
        "--where",
        metavar="CONDITION",
        help="Only where this holds of JSON, as value.id=7; may be repeated.",
        show_default=False,
    ),
]

_STEP: Final = r"\.([^.\[\]\"=!<>~\s]+)|\.\"([^\"]*)\"|\[(-?\d+)\]"
_CONDITION: Final = re.compile(
    rf"\s*(?P<column>key|value)(?P<path>(?:{_STEP})*)"
    r"\s*(?P<operator>!=|<=|>=|==|=|<|>|~)\s*(?P<operand>.*?)\s*",
    re.DOTALL,
)
_OF_RECORDS: Final = re.compile(r"\s*(topic|partition|offset|timestamp|headers)\b")
_ORDERS: Final[Mapping[str, Callable[[object, object], bool]]] = {
    "<": lambda left, right: left < right,  # type: ignore[operator]
    "<=": lambda left, right: left <= right,  # type: ignore[operator]
    ">": lambda left, right: left > right,  # type: ignore[operator]
    ">=": lambda left, right: left >= right,  # type: ignore[operator]
}


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """The filter of records.

    ``of_scan`` is for the scan that reads them; ``conditions`` are checked on its results.
    """

    of_scan: pc.Expression | None
    conditions: Sequence[Condition]

    @classmethod
    def of(cls, key: str | None, grep: str | None, where: Sequence[str] | None) -> RecordFilter:
        """The filter of the options. Raises BadParameter."""
        of_scan = None
        if key is not None or grep is not None:
            from txnlog.errors import InvalidOption
            from txnlog.read.search import find_records

            encoded = None if key is None else key.encode(errors="surrogateescape")
            try:
                of_scan = find_records(encoded, grep)
            except InvalidOption as error:
                raise typer.BadParameter(f"--grep {error}") from error
        return cls(of_scan, [parse_condition(text) for text in where or ()])

    def __bool__(self) -> bool:
        return self.of_scan is not None or bool(self.conditions)

    def keep(
        self, batches: Iterable[pa.RecordBatch], schema: TopicSchema | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of each batch of the scan that meet all conditions.

        With a ``schema`` these are the columns of a typed topic, all of them, which ``of_scan`` was
        not used for: keys and values are made of them to look into.
        """
        if schema is not None and self:
            return (self._keep_typed(batch, schema) for batch in batches)
        return map(self._keep, batches) if self.conditions else iter(batches)

    def _keep(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow as pa

        for condition in self.conditions:
            batch = batch.filter(pa.array(condition.holds_of(batch), pa.bool_()))
        return batch

    def _keep_typed(self, batch: pa.RecordBatch, schema: TopicSchema) -> pa.RecordBatch:
        import numpy as np
        import pyarrow as pa

        from txnlog.read.json_records import json_keys, json_values

        shown = pa.record_batch(
            {
                "key": json_keys(batch, schema),
                "value": json_values(batch, schema),
                "row": pa.array(np.arange(batch.num_rows)),
            }
        )
        if self.of_scan is not None:
            shown = shown.filter(self.of_scan)
        return batch.take(self._keep(shown).column("row"))


@dataclass(frozen=True, slots=True)
class Condition:
    """A comparison of one path in the JSON of a column with a typed value."""

    column: str
    path: Sequence[str | int]
    operator: str
    operand: object

    def holds_of(self, batch: pa.RecordBatch) -> list[bool]:
        """Whether each row meets it. Missing values, and text that is not JSON, count as null."""
        return [self._holds(data) for data in batch.column(self.column).to_pylist()]

    def _holds(self, data: bytes | None) -> bool:
        if self.operator == "~":
            text = _look_up(data, self.path) if self.path else _decode_text(data)
            return isinstance(text, str) and re.search(str(self.operand), text) is not None
        found = _look_up(data, self.path)
        alike = _kind(found) is _kind(self.operand)
        if self.operator in _ORDERS:
            ordered = alike and _kind(found) in (float, str)
            return ordered and _ORDERS[self.operator](found, self.operand)
        return (alike and found == self.operand) is (self.operator != "!=")


def parse_condition(text: str) -> Condition:
    """A condition as it is typed: ``value.items[0].id >= 7``. Raises BadParameter."""
    typed = _CONDITION.fullmatch(text)
    if typed is None:
        if not _OF_RECORDS.match(text) and _CONDITION.fullmatch(f"value.{text.strip()}"):
            raise _bad(text, f"columns and fields are within value: 'value.{text.strip()}'")
        raise _bad(text, "that is not a condition")
    path = [
        int(index) if index else quoted or name
        for name, quoted, index in re.findall(_STEP, typed["path"])
    ]
    operator, operand = typed["operator"].replace("==", "="), typed["operand"]
    if not operand:
        raise _bad(text, 'there is nothing to compare with (the empty string is "")')
    if operator == "~":
        _check_regex("--where", operand)
        return Condition(typed["column"], path, operator, operand)
    parsed = _parse_operand(operand)
    if operator in _ORDERS and _kind(parsed) not in (float, str):
        raise _bad(text, "only numbers and strings have an order")
    return Condition(typed["column"], path, operator, parsed)


def _parse_operand(operand: str) -> object:
    """JSON, or a string, which needs no quotes and may have SQL's."""
    import msgspec

    if len(operand) > 1 and operand[0] == operand[-1] == "'":
        return operand[1:-1].replace("''", "'")
    try:
        return msgspec.json.decode(operand)
    except (msgspec.DecodeError, RecursionError):
        return operand


def _look_up(data: bytes | None, path: Sequence[str | int]) -> object:
    import msgspec

    if data is None:
        return None
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            found = json.loads(data)  # also accepts lone surrogates and numbers of any size
        except (ValueError, RecursionError):
            return None if path else _decode_text(data)
    for step in path:
        if isinstance(step, str):
            found = found.get(step) if isinstance(found, dict) else None
        else:
            inside = isinstance(found, list) and -len(found) <= step < len(found)
            found = found[step] if inside else None
    return found


def _decode_text(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="surrogateescape")


def _kind(value: object) -> type:
    """Whether values are comparable: integers with floats are, booleans with numbers are not."""
    return float if type(value) is int else type(value)


def _check_regex(option: str, pattern: str) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        pc.match_substring_regex(pa.array([b""]), pattern)
        re.compile(pattern)
    except (pa.ArrowInvalid, re.error) as error:
        raise typer.BadParameter(
            f"{option} {pattern!r} is not a regular expression: {error}"
        ) from error


def _bad(text: str, why: str) -> typer.BadParameter:
    return typer.BadParameter(
        f"--where {text!r}: {why}; it is a place in the JSON of key or value, an operator, and "
        "what to compare with: value.id=7, 'value.items[0].name = tea', 'key ~ ^a'"
    )
