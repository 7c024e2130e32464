"""Casts Arrow's values to a column's type, if no value changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from txnlog.errors import InvalidRecord
from txnlog.segments.records import CONVERSION_ERRORS, is_bytes, is_text
from txnlog.segments.schema_columns import elements

Refusal: TypeAlias = Callable[[str], InvalidRecord]
"""Makes the error of a reason: it says whose values they are."""


def cast(array: pa.Array, field: pa.Field, refusal: Refusal) -> pa.Array:
    """The values cast to a column's type, if none changes. Raises what ``refusal`` makes."""
    if array.type == field.type:
        return array
    if not (may_cast(array.type, field.type) or _may_be_whole(array.type, field.type)):
        raise refusal(
            f"column {field.name!r} is {array.type}, its type is {field.type}"
            + _hint(array.type, field.type)
        )
    try:
        return _convert(array, field.type)
    except CONVERSION_ERRORS as error:
        row = first_wrong(array, field.type)
        shown = "" if row is None else f" in row {row}{show(array, row)}"
        raise refusal(
            f"column {field.name!r}: a value{shown} of type {array.type} is not valid as "
            f"{field.type}: {error}"
        ) from error


def may_cast(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of one type are accepted for another, if none of them changes."""
    if found == wanted or types.is_null(found):
        return True
    if types.is_dictionary(found):
        return may_cast(found.value_type, wanted)
    if types.is_struct(wanted):
        return types.is_struct(found) and _may_cast_fields(found, wanted)
    if types.is_map(wanted):
        return (
            types.is_map(found)
            and may_cast(found.key_type, wanted.key_type)
            and may_cast(found.item_type, wanted.item_type)
        )
    if types.is_list(wanted):
        # Views of lists are not among them: Arrow's cast of these leaves out the last offset.
        lists = (types.is_list, types.is_large_list, types.is_fixed_size_list)
        is_list = any(check(found) for check in lists)
        return is_list and may_cast(found.value_type, wanted.value_type)
    return any(check(found) and check(wanted) for check in _FAMILIES) or bool(
        types.is_integer(found) and (types.is_floating(wanted) or types.is_decimal(wanted))
    )


def _may_be_whole(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether decimals are accepted for numbers: DuckDB's sums and literals are decimals."""
    if types.is_list(found) and types.is_list(wanted):
        return _may_be_whole(found.value_type, wanted.value_type)
    return bool(types.is_decimal(found) and (types.is_integer(wanted) or types.is_floating(wanted)))


def _may_cast_fields(found: pa.DataType, wanted: pa.DataType) -> bool:
    by_name = {found.field(n).name: found.field(n) for n in range(found.num_fields)}
    if len(by_name) != wanted.num_fields:
        return False
    fields = [wanted.field(n) for n in range(wanted.num_fields)]
    return all(f.name in by_name and may_cast(by_name[f.name].type, f.type) for f in fields)


def _is_moment(kind: pa.DataType) -> bool:
    return bool(types.is_timestamp(kind) and kind.tz is not None)


def _is_wall_clock(kind: pa.DataType) -> bool:
    return bool(types.is_timestamp(kind) and kind.tz is None)


_FAMILIES: Final = (
    types.is_integer,
    types.is_floating,
    types.is_decimal,
    types.is_date,
    is_text,
    is_bytes,
    _is_moment,
    _is_wall_clock,
    types.is_time,
)
"""Types of one family hold the same kind of values, in different widths or units."""


def _convert(array: pa.Array, target: pa.DataType) -> pa.Array:
    """The values as another type; raises Arrow's errors, and ValueError, if a value changes.

    Floats are rounded to narrower ones.
    """
    if types.is_dictionary(array.type):
        # First the values: Arrow cannot gather views by indices.
        values = _convert(array.dictionary, target)
        return values.take(array.indices)
    if types.is_integer(array.type) and types.is_decimal(target):
        # In one step Arrow would require room for any integer, whatever the values are.
        array = array.cast(pa.decimal256(76, target.scale))
    if types.is_list(target) and _may_be_whole(array.type, target):
        offsets, (items,) = elements(array, array.values)
        items = _convert(items, target.value_type)
        return pa.ListArray.from_arrays(offsets, items, target, mask=array.is_null())
    if types.is_decimal(array.type) and types.is_floating(target):
        # By way of text, since Arrow's cast is not to the nearest: -0.7 is -0.7000000000000001.
        made = array.cast(pa.string()).cast(target)
        if not made.cast(pa.string()).cast(array.type).equals(array):
            raise ValueError("it has more digits than that holds")
        return made
    made = array.cast(target)
    if _has_overflown(array, made):
        raise ValueError("it is too large")
    return made


def _has_overflown(before: pa.Array, after: pa.Array) -> bool:
    """Whether a float became infinite, which Arrow's casts do not report."""
    kind = after.type
    if before.type == kind or types.is_null(before.type):
        return False
    if types.is_floating(kind) and types.is_floating(before.type):
        lost = pc.and_(pc.is_inf(after), pc.is_finite(before))
        return bool(pc.any(lost).as_py())
    if types.is_list(kind) or types.is_map(kind):
        return _has_overflown(as_list(before).flatten(), as_list(after).flatten())
    if types.is_struct(kind):
        names = [kind.field(number).name for number in range(kind.num_fields)]
        by_name = dict(zip(names, after.flatten(), strict=True))
        fields = [before.type.field(number).name for number in range(before.type.num_fields)]
        return any(
            _has_overflown(child, by_name[name])
            for name, child in zip(fields, before.flatten(), strict=True)
            if name in by_name
        )
    return False


def _hint(found: pa.DataType, wanted: pa.DataType) -> str:
    if types.is_floating(found) and types.is_integer(wanted):
        return (
            ". Whole numbers with gaps are floats in pandas: make them numbers that can be null, "
            f"as astype('{str(wanted).title()}') does; in Spark cast them"
        )
    if _is_wall_clock(found) and _is_moment(wanted):
        return (
            ". Say in which zone it is, as dt.tz_localize('UTC') does in pandas, and a cast to "
            "timestamp in Spark"
        )
    return ""


def show(array: pa.Array, row: int) -> str:
    try:
        return f" ({array[row].as_py()!r:.60})"
    except (OverflowError, ValueError):  # a time that Python does not know
        return ""


def first_wrong(array: pa.Array, target: pa.DataType) -> int | None:
    """The first row whose value cannot be cast; None if each can be cast alone."""
    low, high = 0, len(array)
    while low < high:
        middle = (low + high + 1) // 2
        try:
            _convert(array.slice(0, middle), target)
        except CONVERSION_ERRORS:
            high = middle - 1
        else:
            low = middle
    return low if low < len(array) else None


def as_list(array: pa.Array) -> pa.Array:
    """A map as a list of structs."""
    if not types.is_map(array.type):
        return array
    # Arrow's cast to a list refuses null structs whose fields may not be null, as Spark's have.
    fields = [array.type.key_field, array.type.item_field]
    offsets, parts = elements(array, array.keys, array.items)
    entries = pa.StructArray.from_arrays(parts, fields=fields)
    mask = array.is_null() if array.null_count else None
    return pa.ListArray.from_arrays(offsets, entries, mask=mask)
