"""Trees of expressions over the columns of a topic, as expressions of Arrow.

Values are Spark's, since it reads the same rows. Numbers become one type before they meet: Arrow
alone would round some of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from txnlog.columns.expressions import ARITHMETIC, COMPARISONS, ColumnNode, Literal, Node

_SIGNS: Final = re.compile(r"\\?.", re.DOTALL)
"""Of LIKE: a sign, or one behind a backslash."""
_MOST_DIGITS: Final = 38
"""Of a number that is typed, and of a stored decimal."""
_MOST_COMPUTED_DIGITS: Final = 76
_DIGITS: Final = {8: 3, 16: 5, 32: 10, 64: 19}
"""How many an integer has, by its bits."""


@dataclass(frozen=True, slots=True)
class _Bound:
    """A node over known columns: its values, and their type."""

    node: Node
    value: pc.Expression
    kind: pa.DataType

    def cast(self, kind: pa.DataType) -> pc.Expression:
        """The values as another type, which holds them; for a float the nearest ones."""
        if isinstance(self.node, Literal):
            return pc.scalar(_constant(self.node.value, kind))
        if kind == self.kind:
            return self.value
        if types.is_floating(kind):
            # Arrow's floats of decimals are not always the nearest ones; those of their text are.
            is_decimal = types.is_decimal(self.kind)
            value = self.value.cast(pa.string()) if is_decimal else self.value
            return value.cast(kind, safe=False)
        return self.value.cast(kind)


def bind(node: Node, columns: pa.Schema) -> pc.Expression:
    """Arrow's expression for a tree over some columns.

    Raises ValueError: there is no such column, or types do not fit each other.
    """
    return _bind(node, columns).value


def _bind(node: Node, columns: pa.Schema) -> _Bound:
    if isinstance(node, ColumnNode):
        return _Bound(node, pc.field(*node.path), _column_type(node, columns))
    if isinstance(node, Literal):
        kind = _literal_type(node.value)
        return _Bound(node, pc.scalar(_constant(node.value, kind)), kind)
    name = node.name
    operands = [_bind(argument, columns) for argument in node.arguments]
    first = operands[0]
    if name in COMPARISONS.values():
        left, right = operands
        return _Bound(node, _compare(name, left, right), pa.bool_())
    if name == "in":
        return _Bound(node, _is_in(operands), pa.bool_())
    if name in ARITHMETIC.values():
        left, right = operands
        kind, *parts = _computed_types(name, left, right)
        value = _call(name, *(one.cast(part) for one, part in zip(operands, parts, strict=True)))
        return _Bound(node, value, kind)
    if name in ("is_null", "is_valid"):
        return _Bound(node, _call(name, first.value), pa.bool_())
    if name in ("and_kleene", "or_kleene", "invert"):
        for one in operands:
            _check(types.is_boolean(one.kind), one, "true or false")
        return _Bound(node, _call(name, *(one.value for one in operands)), pa.bool_())
    if name in ("negate_checked", "abs_checked"):
        _check(_is_number(first.kind), first, "a number")
        return _Bound(node, _call(name, first.value), first.kind)
    if name == "is_nan":
        _check(types.is_floating(first.kind), first, "a float")
        found = pc.coalesce(pc.is_nan(first.value), pc.scalar(pa.scalar(False)))
        return _Bound(node, found, pa.bool_())
    _check(types.is_string(first.kind), first, "a text")
    if name == "like":
        pattern = node.arguments[1]
        assert isinstance(pattern, Literal)
        return _Bound(node, _like(first.value, str(pattern.value)), pa.bool_())
    kind = pa.int32() if name == "utf8_length" else pa.string()
    return _Bound(node, _call(name, first.value), kind)


def _call(name: str, *arguments: pc.Expression) -> pc.Expression:
    function: Callable[..., pc.Expression] = getattr(pc, name)
    return function(*arguments)


def _check(fits: bool, found: _Bound, wanted: str) -> None:
    if not fits:
        raise ValueError(f"{found.kind} is found where {wanted} is needed")


def _like(value: pc.Expression, pattern: str) -> pc.Expression:
    """SQL's LIKE. Arrow's own leaves backslashes doubled where it needs no regular expression."""
    if "\\" not in pattern:
        return pc.match_like(value, pattern)
    signs = {"%": ".*", "_": "."}
    parts = [signs.get(part) or re.escape(part[-1]) for part in _SIGNS.findall(pattern)]
    return pc.match_substring_regex(value, f"(?s)^{''.join(parts)}$")


def _compare(name: str, left: _Bound, right: _Bound) -> pc.Expression:
    """NaN equals itself, and is greater than everything else."""
    kind = _common_type([left, right])
    one, other = left.cast(kind), right.cast(kind)
    if not types.is_floating(kind):
        return _call(name, one, other)
    if name in ("equal", "not_equal"):
        found = pc.equal(one, other) | (pc.is_nan(one) & pc.is_nan(other))
        return ~found if name == "not_equal" else found
    is_negated = name in ("less_equal", "greater_equal")
    low, high = (one, other) if name in ("less", "greater_equal") else (other, one)
    found = pc.less(low, high) | (pc.is_nan(high) & ~pc.is_nan(low))
    return ~found if is_negated else found


def _is_in(operands: Sequence[_Bound]) -> pc.Expression:
    """Whether the first one equals one of the others, which are constants."""
    kind = _common_type(operands)
    first, *others = operands
    value = first.cast(kind)
    constants = [_constant(one.node.value, kind) for one in others if isinstance(one.node, Literal)]
    if types.is_floating(kind):  # the two zeros are equal, but Arrow looks for their bits
        value = pc.add(value, pc.scalar(pa.scalar(0.0, kind)))
        constants = [pa.scalar(one.as_py() + 0.0, kind) for one in constants]
    found = value.isin(pa.array(constants, kind))
    return pc.if_else(value.is_null(), pc.scalar(pa.scalar(None, pa.bool_())), found)


def _common_type(operands: Sequence[_Bound]) -> pa.DataType:
    """The type in which values are compared. A text takes that of times or bytes beside it."""
    texts = [isinstance(one.node, Literal) and isinstance(one.node.value, str) for one in operands]
    kinds = [one.kind for one, text in zip(operands, texts, strict=True) if not text]
    kind = reduce(_wider, kinds) if kinds else pa.string()
    if any(texts) and not (types.is_temporal(kind) or types.is_binary(kind)):
        kind = _wider(kind, pa.string())
    if types.is_nested(kind):
        raise ValueError(f"values of {kind} are not compared, but fields of them are")
    return kind


def _wider(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The type that holds the values of two; of a float and another number a float64."""
    if one == other:
        return one
    if _is_number(one) and _is_number(other):
        if types.is_floating(one) or types.is_floating(other):
            return pa.float64()
        if types.is_integer(one) and types.is_integer(other):
            return max(one, other, key=lambda kind: int(kind.bit_width))
        one, other = _as_decimal(one), _as_decimal(other)
        scale = max(one.scale, other.scale)
        return _decimal(
            max(one.precision - one.scale, other.precision - other.scale) + scale, scale
        )
    if types.is_temporal(one) and types.is_temporal(other):
        times = [kind for kind in (one, other) if types.is_timestamp(kind)]
        if {getattr(kind, "tz", None) for kind in (one, other)} == {times[0].tz}:
            return pa.timestamp(
                "us" if "us" in [kind.unit for kind in times] else "ms", times[0].tz
            )
    raise ValueError(f"{one} and {other} have no type in common")


def _computed_types(name: str, left: _Bound, right: _Bound) -> tuple[pa.DataType, ...]:
    """The type of a sum, difference or product, and those that its operands are to have.

    Integers and floats have the wider one, and decimals as many digits as they may need.
    """
    for one in (left, right):
        _check(_is_number(one.kind), one, "a number")
    kind = _wider(left.kind, right.kind)
    if not types.is_decimal(kind):
        return kind, kind, kind
    one, other = (
        _literal_type(Decimal(operand.node.value))
        if isinstance(operand.node, Literal)
        else _as_decimal(operand.kind)
        for operand in (left, right)
    )
    if name == ARITHMETIC["*"]:
        kind = _decimal(one.precision + other.precision + 1, one.scale + other.scale)
    else:
        scale = max(one.scale, other.scale)
        whole = max(one.precision - one.scale, other.precision - other.scale) + 1
        kind = _decimal(whole + scale, scale)
    is_wide = types.is_decimal256(kind)
    return kind, *(_decimal(k.precision, k.scale, is_wide=is_wide) for k in (one, other))


def _is_number(kind: pa.DataType) -> bool:
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))


def _as_decimal(kind: pa.DataType) -> pa.DataType:
    return _decimal(_DIGITS[kind.bit_width], 0) if types.is_integer(kind) else kind


def _decimal(precision: int, scale: int, *, is_wide: bool = False) -> pa.DataType:
    if precision > _MOST_COMPUTED_DIGITS:
        raise ValueError(f"its decimals may have more than {_MOST_COMPUTED_DIGITS} digits")
    is_wide = is_wide or precision > _MOST_DIGITS
    return (pa.decimal256 if is_wide else pa.decimal128)(precision, scale)


def _column_type(node: ColumnNode, columns: pa.Schema) -> pa.DataType:
    name, *fields = node.path
    if name not in columns.names:
        raise ValueError(f"there is no column {name!r}; there are {', '.join(columns.names)}")
    kind = columns.field(name).type
    for field in fields:
        if not types.is_struct(kind) or kind.get_field_index(field) < 0:
            raise ValueError(f"{'.'.join(node.path)} does not exist: there is no field {field!r}")
        kind = kind.field(field).type
    return kind


def _literal_type(value: float | Decimal | str) -> pa.DataType:
    """The type of a literal; of an integer the first of int32, int64 and a decimal that fits."""
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, str):
        return pa.string()
    if isinstance(value, int):
        for kind in (pa.int32(), pa.int64()):
            limit = 1 << (kind.bit_width - 1)
            if -limit <= value < limit:
                return kind
    elif isinstance(value, float):
        return pa.float64()
    _, digits, exponent = Decimal(value).as_tuple()
    assert isinstance(exponent, int)
    scale = max(0, -exponent)
    precision = max(len(digits), scale)
    if precision > _MOST_DIGITS:
        raise ValueError(f"a number in it has more than {_MOST_DIGITS} digits")
    return _decimal(precision, scale)


def _constant(value: float | Decimal | str, kind: pa.DataType) -> pa.Scalar:
    """A constant as a value of a type that holds it."""
    if isinstance(value, str) and types.is_temporal(kind):
        try:
            return pa.scalar(value).cast(kind)
        except pa.ArrowException as error:
            raise ValueError(f"{value!r} is no {kind}: {error}") from None
    if isinstance(value, str) and types.is_binary(kind):
        return pa.scalar(value.encode(), kind)
    if types.is_decimal(kind):
        return pa.scalar(Decimal(value), kind)
    return pa.scalar(float(value) if types.is_floating(kind) else value, kind)
