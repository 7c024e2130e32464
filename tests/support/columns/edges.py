"""Numbers at the edges of their types, and what Spark's SQL makes of them.

The oracle computes with Fraction, and shares no code with what it judges.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction
from operator import add, mul, sub
from typing import Any

import numpy as np
import pyarrow as pa

NAN, INFINITY = math.nan, math.inf
FLOAT, DOUBLE = "float", "double"
INTEGERS = ("tinyint", "smallint", "int", "bigint")
_COMPUTED: dict[str, Callable[[Any, Any], Any]] = {"+": add, "-": sub, "*": mul}
COMPARISONS = ("=", "<>", "<", "<=", ">", ">=")

TYPES: dict[str, pa.DataType] = {
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "decimal(9,2)": pa.decimal128(9, 2),
    "decimal(18,18)": pa.decimal128(18, 18),
    "decimal(38,0)": pa.decimal128(38, 0),
    "decimal(38,10)": pa.decimal128(38, 10),
    "decimal(38,38)": pa.decimal128(38, 38),
}
"""Of columns, by Spark's names."""

LITERALS = (
    *("0", "1", "2", "-1", "127", "128", "-128", "-129", "32768", "2147483647", "2147483648"),
    *("16777216", "16777217", "9007199254740992", "9007199254740993", "9223372036854775807"),
    *("-9223372036854775808", "9223372036854775808", "99999999999999999999", "9" * 38),
    *("1.5", "-0.0", "0.1", "0.10", "0.5", "9007199254740992.5", "9223372036854775806.5"),
    *(
        "9999999.99",
        "9999999.991",
        "0." + "0" * 37 + "1",
        "-0." + "9" * 38,
        "0.1000000000000000055",
    ),
    *(
        "0.100000001490116119384765625",
        "1e0",
        "-1E0",
        "1e-1",
        "1.5e0",
        "1e18",
        "9.007199254740993e15",
    ),
    *("1e39", "1.7976931348623157e308", "5e-324", "1e-400", "3.4028234663852886e38"),
)


@dataclass(frozen=True, slots=True)
class Value:
    """A number of SQL; None is null."""

    type: str
    value: Fraction | float | None


class Refused(Exception):
    """There is no value: a sum overflows."""


def literal(text: str) -> Value:
    """A number as it is typed."""
    if "e" in text.lower():
        return Value(DOUBLE, float(text))
    number = Fraction(text)
    if "." in text:
        return Value("decimal", number)
    for name, bits in (("int", 32), ("bigint", 64)):
        if -(1 << (bits - 1)) <= number < 1 << (bits - 1):
            return Value(name, number)
    return Value("decimal", number)


def edges(name: str) -> list[Any]:
    """Values of a column of a type, as Python has them; null is among them."""
    if name in INTEGERS:
        bits = TYPES[name].bit_width
        most = (1 << (bits - 1)) - 1
        near = [2**24, 2**24 + 1, 2**53 - 1, 2**53, 2**53 + 1, -(2**53) - 1, 2**31, 10**18 + 1]
        found = {0, 1, -1, 2, most, most - 1, -most, -most - 1, *near}
        return [None, *sorted(one for one in found if -most - 1 <= one <= most)]
    if name in (FLOAT, DOUBLE):
        dtype = np.float32 if name == FLOAT else np.float64
        limits = np.finfo(dtype)
        floats = [0.0, 1.0, 1.5, 0.1, 2.0, 2.0**24, 2.0**53, 2.0**53 + 2, 2.0**63, 1e18]
        floats += [float(limits.max), float(limits.smallest_subnormal), 1e20, INFINITY]
        rounded = [float(dtype(one)) for one in floats]
        return [None, NAN, *rounded, *(-one for one in rounded)]
    kind = TYPES[name]
    unit = Decimal(1).scaleb(-kind.scale)
    most = Decimal((0, (9,) * kind.precision, -kind.scale))
    some = [Decimal(0), unit, unit * 3, most, most.next_minus(Context(prec=kind.precision))]
    for text in ("0.1", "1", "1.5", "2", "9007199254740993", "9223372036854775807"):
        one = Decimal(text)
        if one <= most and Fraction(one) % Fraction(unit) == 0:
            some.append(one)
    return [None, *some, *(one.copy_negate() for one in some)]


def value(name: str, one: Any) -> Value:
    """A value of a column."""
    if one is None or isinstance(one, float):
        return Value(name, one)
    return Value(name, Fraction(one))


def _double(one: Value) -> float:
    if one.value is None or isinstance(one.value, float):
        assert one.value is not None
        return one.value
    return float(one.value)  # the nearest one


def _order(one: Value, *, as_double: bool) -> tuple[int, Fraction]:
    number = _double(one) if as_double else one.value
    assert number is not None
    if isinstance(number, float):
        if math.isnan(number):
            return 2, Fraction(0)
        if math.isinf(number):
            return (1 if number > 0 else -1), Fraction(0)
        number = Fraction(number)
    return 0, number


def compare(operator: str, one: Value, other: Value) -> bool | None:
    """``one operator other``."""
    if one.value is None or other.value is None:
        return None
    as_double = bool({FLOAT, DOUBLE} & {one.type, other.type})
    left, right = (_order(each, as_double=as_double) for each in (one, other))
    return {
        "=": left == right,
        "<>": left != right,
        "<": left < right,
        "<=": left <= right,
        ">": left > right,
        ">=": left >= right,
    }[operator]


def is_in(one: Value, others: Sequence[Value]) -> bool | None:
    """``one IN others``, all of which meet as one type."""
    if one.value is None:
        return None
    is_double = any(each.type == DOUBLE for each in others)
    others = [Value(DOUBLE, _double(each)) if is_double else each for each in others]
    return any(compare("=", one, each) for each in others)


def compute(sign: str, one: Value, other: Value) -> Value:
    """A sum, difference or product."""
    types = {one.type, other.type}
    if types & {FLOAT, DOUBLE}:
        name = FLOAT if types == {FLOAT} else DOUBLE
    elif types <= set(INTEGERS):
        name = max(types, key=INTEGERS.index)
    else:
        name = "decimal"
    if one.value is None or other.value is None:
        return Value(name, None)
    if name in (FLOAT, DOUBLE):
        dtype = np.float32 if name == FLOAT else np.float64
        left, right = dtype(_double(one)), dtype(_double(other))
        with np.errstate(all="ignore"):
            computed = (
                left + right if sign == "+" else left - right if sign == "-" else left * right
            )
        return Value(name, float(computed))
    assert isinstance(one.value, Fraction)
    assert isinstance(other.value, Fraction)
    exact = {
        "+": one.value + other.value,
        "-": one.value - other.value,
        "*": one.value * other.value,
    }[sign]
    return _checked(name, exact)


def negative(one: Value) -> Value:
    """``-one``."""
    if one.value is None or isinstance(one.value, float):
        return Value(one.type, None if one.value is None else -one.value)
    return _checked(one.type, -one.value)


def absolute(one: Value) -> Value:
    """``abs(one)``."""
    if one.value is None or isinstance(one.value, float):
        return Value(one.type, None if one.value is None else abs(one.value))
    return _checked(one.type, abs(one.value))


def _checked(name: str, exact: Fraction) -> Value:
    if name in INTEGERS:
        most = (1 << (TYPES[name].bit_width - 1)) - 1
        if not -most - 1 <= exact <= most:
            raise Refused
    return Value(name, exact)


def _digits(text: str) -> tuple[int, int] | None:
    """Before and behind the point: of a type's numbers, or of a literal. None: it is a float."""
    if text in TYPES and text not in (FLOAT, DOUBLE):
        if text in INTEGERS:
            return len(str(1 << (TYPES[text].bit_width - 1))), 0
        return TYPES[text].precision - TYPES[text].scale, TYPES[text].scale
    if "e" in text.lower() or text == FLOAT:
        return None
    whole, _, part = text.lstrip("-").partition(".")
    return len(whole.lstrip("0")) or (0 if part else 1), len(part)


def is_longer(most: int, *kinds: str) -> bool:
    """Whether a type for all these types and literals has more digits than so many."""
    digits = [_digits(kind) for kind in kinds]
    exact = [each for each in digits if each is not None]
    if len(exact) < len(digits):
        return False
    return max(whole for whole, _ in exact) + max(scale for _, scale in exact) > most


def is_too_long(one: str, sign: str, other: str, third: str) -> bool:
    """Whether ``one sign other``, compared with a third, may have more than 76 digits.

    Each is the name of a type, or a literal.
    """
    left, right, beside = _digits(one), _digits(other), _digits(third)
    if left is None or right is None or {one, other} <= set(INTEGERS):
        return False
    (a, b), (c, d) = left, right
    whole, scale = (a + c + 1, b + d) if sign == "*" else (max(a, c) + 1, max(b, d))
    above, beneath = beside or (0, 0)
    return whole + scale > 76 or max(whole, above) + max(scale, beneath) > 76
