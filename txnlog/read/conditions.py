"""Conditions on keys and values, as people type them: ``value.items[0].id >= 7``, a pattern."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Final

from txnlog.errors import InvalidOption

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

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
class Condition:
    """A comparison of one path in the JSON of a column with a typed value."""

    column: str
    path: Sequence[str | int]
    operator: str
    operand: object

    def holds_of(self, batch: pa.RecordBatch) -> list[bool]:
        """Whether each row meets it. Missing values, and text that is not JSON, count as null."""
        found = batch.column(self.column).to_pylist()
        return self._match(found) if self.operator == "~" else [*map(self._holds, found)]

    def _match(self, found: Sequence[bytes | None]) -> list[bool]:
        """By RE2, whose time does not explode, whatever the pattern and the text are."""
        import pyarrow as pa
        import pyarrow.compute as pc

        texts = pa.array([self._text_in(data) for data in found], pa.string())
        matches: list[bool] = (
            pc.match_substring_regex(texts, str(self.operand)).fill_null(False).to_pylist()
        )
        return matches

    def _text_in(self, data: bytes | None) -> str | None:
        text = _look_up(data, self.path) if self.path else _decode_text(data)
        return text.encode(errors="replace").decode() if isinstance(text, str) else None

    def _holds(self, data: bytes | None) -> bool:
        found = _look_up(data, self.path)
        alike = _kind(found) is _kind(self.operand)
        if self.operator in _ORDERS:
            ordered = alike and _kind(found) in (float, str)
            return ordered and _ORDERS[self.operator](found, self.operand)
        return (alike and found == self.operand) is (self.operator != "!=")


def keep_matching(batch: pa.RecordBatch, conditions: Sequence[Condition]) -> pa.RecordBatch:
    """The rows that meet all conditions, of a batch with a key and a value."""
    import pyarrow as pa

    for condition in conditions:
        batch = batch.filter(pa.array(condition.holds_of(batch), pa.bool_()))
    return batch


def parse_condition(text: str) -> Condition:
    """A condition as it is typed: ``value.items[0].id >= 7``. Raises InvalidOption."""
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
        _check_regex(operand)
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


def _check_regex(pattern: str) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        pc.match_substring_regex(pa.array([b""]), pattern)
    except pa.ArrowInvalid as error:
        raise InvalidOption(f"{pattern!r} is not a regular expression: {error}") from error


def _bad(text: str, why: str) -> InvalidOption:
    return InvalidOption(
        f"{text!r}: {why}; it is a place in the JSON of key or value, an operator, and "
        "what to compare with: value.id=7, 'value.items[0].name = tea', 'key ~ ^a'"
    )


def key_and_text_filter(key: bytes | None, pattern: str | None) -> pc.Expression | None:
    """A filter over ``key`` and ``value``: this key, and a match in either; None if all match.

    ``key``: None: any. ``pattern``: a regular expression in RE2's syntax; None: anything.

    Raises InvalidOption: it is not a regular expression.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    wanted = []
    if key is not None:
        wanted.append(pc.field("key") == key)
    if pattern is not None:
        try:
            pc.match_substring_regex(pa.array([b""]), pattern)
        except pa.ArrowInvalid as error:
            raise InvalidOption(f"{pattern!r} is not a regular expression: {error}") from error
        in_key, in_value = (
            pc.match_substring_regex(pc.field(name), pattern) for name in ("key", "value")
        )
        wanted.append(in_key | in_value)
    return reduce(and_, wanted) if wanted else None
