"""Python's values as columns of a type, if none of them changes.

Values become columns by Arrow and by iterators in C: only maps, and values of several kinds in one
column, take a loop of Python's.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Mapping, Sequence
from itertools import chain, repeat
from operator import attrgetter, is_not, methodcaller
from types import NoneType
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from txnlog.columns.casts import Refusal, cast
from txnlog.errors import InvalidRecord
from txnlog.segments.records import CONVERSION_ERRORS

Values: TypeAlias = Sequence[Any]
"""Whatever a user has put there."""

_ALIKE: Final = {int, float}
"""Kinds of values that Arrow takes together as it takes each of them."""
_UNITS: Final = ("s", "ms", "us", "ns")
_UNIT_NAMES: Final = {"ms": "millisecond", "us": "microsecond"}
_WHOLE: Final = pa.decimal256(76, 0)
_TEXTS: Final = (str, bytes)
"""Sequences that are no lists."""


def make_array(values: Values, field: pa.Field, path: str, refusal: Refusal) -> pa.Array:
    """At least one value as an array of the field's type. Raises what ``refusal`` makes.

    Structs are mappings or dataclasses, maps mappings or lists of pairs, lists also numpy's arrays.
    """
    kind = field.type
    if not types.is_nested(kind):
        return _make_flat(values, field.with_name(path), refusal)
    valid = np.fromiter(map(is_not, values, repeat(None)), bool, len(values))
    if not valid.any():
        return pa.nulls(len(values), kind)
    if not valid.all():
        there = make_array([v for v in values if v is not None], field, path, refusal)
        return there.take(pa.array(np.cumsum(valid) - 1, mask=~valid))
    if types.is_struct(kind):
        return _make_struct(values, kind, path, refusal)
    if types.is_map(kind):
        return _make_map(values, kind, path, refusal)
    sequences = all(
        issubclass(kind, Sequence) and not issubclass(kind, _TEXTS) for kind in kinds_of(values)
    )
    if not (sequences or all(map(is_list, values))):
        wrong = next(value for value in values if not is_list(value))
        raise refusal(f"column {path!r} is not a list but {wrong!r:.60}")
    items = _make_items(values, kind.value_field, path, refusal)
    return pa.ListArray.from_arrays(_ends(values), items, type=kind)


def infer(values: Values, path: str, refusal: Refusal, kind: pa.DataType | None = None) -> pa.Array:
    """At least one value as Arrow takes it, of a type if there is one."""
    try:
        array = pa.array(values, kind)
    except CONVERSION_ERRORS as error:
        raise refusal(f"column {path!r} cannot be {values[0]!r:.60}: {error}") from error
    if isinstance(array, pa.ChunkedArray):
        raise refusal(f"column {path!r} is larger than 2 GiB: send fewer records at once")
    return array


def _make_flat(values: Values, field: pa.Field, refusal: Refusal) -> pa.Array:
    """Values that are of one kind at once; others, which Arrow would make alike, each for itself.

    A date beside a time, a time with a zone beside one without, bytes beside text: what is not
    valid alone is not taken in a batch either.
    """
    kinds = kinds_of(values)
    alike = len(kinds) < 2 or kinds == _ALIKE
    if alike and any(issubclass(kind, dt.datetime) for kind in kinds):
        zones = set(map(attrgetter("tzinfo"), filter(None, values)))
        alike = len(zones) == 1 or None not in zones
    if alike and not (kinds == _ALIKE and types.is_integer(field.type)):
        return cast(_infer_flat(values, field, refusal), field, refusal)
    each = [cast(_infer_flat([value], field, refusal), field, refusal) for value in values]
    return pa.concat_arrays(each)


def _infer_flat(values: Values, field: pa.Field, refusal: Refusal) -> pa.Array:
    """Make an array as Arrow infers it, but of times in the column's unit.

    They are rounded down, to the earlier time, also before 1970. Whole numbers for decimals may
    have more than 64 bits.
    """
    whole = types.is_decimal(field.type) and kinds_of(values) == {int}
    array = infer(values, field.name, refusal, _WHOLE if whole else None)
    of_days = types.is_time(array.type) and types.is_time(field.type)
    if not of_days and not (types.is_timestamp(array.type) and types.is_timestamp(field.type)):
        return array
    unit = array.type.unit
    if _UNITS.index(unit) <= _UNITS.index(field.type.unit):
        return array
    # Without its zone: Arrow would look for a database of them.
    bare = array if of_days else array.view(pa.timestamp(unit))
    return pc.floor_temporal(bare, unit=_UNIT_NAMES[field.type.unit]).view(array.type)


def _make_struct(values: Values, kind: pa.DataType, path: str, refusal: Refusal) -> pa.Array:
    fields = [kind.field(number) for number in range(kind.num_fields)]
    try:
        given = values_by_name(values)
    except InvalidRecord:
        wrong = next((value for value in values if not isinstance(value, Mapping)), values[0])
        raise refusal(f"column {path!r} is not a mapping but {wrong!r:.60}") from None
    unknown = [name for name in given if name not in {field.name for field in fields}]
    if unknown:
        raise refusal(f"column {path!r} has no field {unknown[0]!r}")
    if not fields:
        return pa.array([{}] * len(values), kind)
    nothing = [None] * len(values)
    made = [
        make_array(given.get(one.name, nothing), one, f"{path}.{one.name}", refusal)
        for one in fields
    ]
    return pa.StructArray.from_arrays(made, fields=fields)


def _make_map(values: Values, kind: pa.DataType, path: str, refusal: Refusal) -> pa.Array:
    lists = [[*value.items()] if isinstance(value, Mapping) else value for value in values]
    for value, pairs in zip(values, lists, strict=True):
        if not is_list(pairs) or not all(is_list(pair) and len(pair) == 2 for pair in pairs):
            raise refusal(f"column {path!r} is not a mapping but {value!r:.60}")
        if any(pair[0] is None for pair in pairs):
            raise refusal(f"column {path!r} has a key that is null: {value!r:.60}")
    keys, items = ([[pair[side] for pair in pairs] for pairs in lists] for side in (0, 1))
    return pa.MapArray.from_arrays(
        _ends(lists),
        _make_items(keys, kind.key_field, path, refusal),
        _make_items(items, kind.item_field, path, refusal),
        type=kind,
    )


def _make_items(lists: Values, field: pa.Field, path: str, refusal: Refusal) -> pa.Array:
    items = [*chain.from_iterable(lists)]
    if not items:
        return pa.nulls(0, field.type)
    return make_array(items, field, f"{path}.{field.name}", refusal)


def _ends(lists: Values) -> pa.Array:
    """Where each list begins and ends among the items of all."""
    ends = np.zeros(len(lists) + 1, dtype=np.int64)
    np.cumsum(np.fromiter(map(len, lists), np.int64, len(lists)), out=ends[1:])
    return pa.array(ends).cast(pa.int32())


def is_list(value: object) -> bool:
    """Whether it is a sequence other than a text, or a numpy array of one dimension."""
    if isinstance(value, np.ndarray):
        return value.ndim == 1
    return isinstance(value, Sequence) and not isinstance(value, _TEXTS)


def values_by_name(rows: Sequence[Any]) -> dict[str, list[Any]]:
    """Of at least one row the values of each column; None where a mapping has none.

    Raises InvalidRecord: they are neither mappings nor dataclasses of one class.
    """
    kinds = {*map(type, rows)}
    if all(issubclass(kind, Mapping) for kind in kinds):
        names = dict.fromkeys(chain.from_iterable(rows))
        for name in names:
            if not isinstance(name, str):
                raise InvalidRecord(f"a column is named {name!r:.60}, which is no string")
        return {name: [*map(methodcaller("get", name), rows)] for name in names}
    if len(kinds) == 1 and dataclasses.is_dataclass(kind := kinds.pop()):
        fields = [field.name for field in dataclasses.fields(kind)]
        return {name: [*map(attrgetter(name), rows)] for name in fields}
    first, last = type(rows[0]).__name__, type(rows[-1]).__name__
    raise InvalidRecord(
        "a list of records has mappings, or dataclasses of one class: "
        + (f"not {last}" if len(rows) == 1 else f"not both {first} and {last}")
    )


def kinds_of(values: Sequence[Any]) -> set[type]:
    """The classes of the values that are not None."""
    return {*map(type, values)} - {NoneType}
