"""Bytes of Avro as plain Arrow columns: a field of all values at a time, or value by value.

A value of Avro has no lengths by which a reader could skip: each field begins where the one before
it has ended. So each value has a cursor, and a step reads one field of all values with numpy.
Arrays and maps, whose lengths differ, are left to fastavro, value by value.

*Plain* columns have what is in the bytes: whole numbers are 64-bit, texts are bytes, booleans a
byte, enums their numbers, maps lists of pairs, unions the column of their only type or a struct.
``avro_resolution`` makes the columns of a schema of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from txnlog.segments.arrays import arrow_of
from txnlog.values.avro_fields import TOO_SHORT, most_fields, too_many_fields
from txnlog.values.avro_schema import AvroType, named_types
from txnlog.values.rows import BYTES_OF_FIELD, MOST_FIELDS, Budget

Numbers = npt.NDArray[np.int64]
_FIXED: Final[Mapping[str, np.dtype[Any]]] = {"float": np.dtype("<f4"), "double": np.dtype("<f8")}
_VARINT_BYTES: Final = 10
_NUMBERS: Final = ("int", "long", "enum")
_BYTES: Final = ("bytes", "string", "fixed")
NO_BOOLEAN: Final = "a boolean is neither 0 nor 1"
MOST_SHOWN: Final = 300
"""Characters of the reason of a dead letter."""


class Problems:
    """Which values could not be decoded: the first reason of each, by its number."""

    def __init__(self) -> None:
        self.reasons: dict[int, str] = {}
        self.budget = Budget()

    def add(self, rows: Numbers, reason: str) -> None:
        for row in rows.tolist():
            self.tell(row, reason)

    def tell(self, row: int, reason: str) -> None:
        """One value's: many long ones would fill memory."""
        self.reasons.setdefault(row, reason[:MOST_SHOWN])


def plain_type(kind: AvroType) -> Any:  # noqa: ANN401 - pyarrow has no types
    """The Arrow type of a type's plain column."""
    if kind.kind in _NUMBERS:
        return pa.int64()
    if kind.kind in _BYTES:
        return pa.binary()
    match kind.kind:
        case "null":
            return pa.null()
        case "boolean":
            return pa.binary(1)
        case "float":
            return pa.float32()
        case "double":
            return pa.float64()
        case "record":
            return pa.struct([(f"f{n}", plain_type(f.type)) for n, f in enumerate(kind.fields)])
        case "array":
            return pa.list_(plain_type(kind.parts[0]))
        case "map":
            return pa.list_(pa.struct([("key", pa.binary()), ("value", plain_type(kind.parts[0]))]))
    if len(kind.others) <= 1:
        return plain_type(kind.others[0]) if kind.others else pa.null()
    members = enumerate(kind.others)
    return pa.struct([pa.field(f"member{n}", plain_type(part)) for n, part in members])


def decode_plain(
    kind: AvroType, data: npt.NDArray[np.uint8], starts: Numbers, ends: Numbers, problems: Problems
) -> pa.Array:
    """The plain column of values that lie in ``data`` from ``starts`` to ``ends``, ascending.

    Values that are not of this type are added to ``problems``; their rows in the column mean
    nothing.
    """
    if any(part.kind in ("array", "map") for part in named_types(kind)):
        return _one_by_one(kind, data, starts, ends, problems)
    cursors = _Cursors(data, starts, ends, problems)
    column = cursors.read(kind, np.arange(len(starts)))
    over = np.flatnonzero(cursors.at != cursors.ends)
    for row in over.tolist():
        left = int(cursors.ends[row] - cursors.at[row])
        problems.add(np.array([row]), f"{left} bytes are left behind the value")
    return column


class _Cursors:
    """The position at which each value is read next."""

    def __init__(
        self, data: npt.NDArray[np.uint8], starts: Numbers, ends: Numbers, problems: Problems
    ) -> None:
        self._data = data if len(data) else np.zeros(1, np.uint8)
        self.at = starts.astype(np.int64)
        self.ends = ends.astype(np.int64)
        self._problems = problems

    def read(self, kind: AvroType, rows: Numbers) -> pa.Array:
        """The next field of these values, which are in ascending order."""
        if kind.kind in _NUMBERS:
            return arrow_of(self._varints(rows))
        if kind.kind in _FIXED:
            return self._floats(_FIXED[kind.kind], rows)
        match kind.kind:
            case "null":
                return pa.nulls(len(rows))
            case "boolean":
                return self._booleans(rows)
            case "bytes" | "string":
                return self._bytes(self._varints(rows), rows)
            case "fixed":
                return self._bytes(np.full(len(rows), kind.size, np.int64), rows)
            case "record":
                columns = [self.read(one.type, rows) for one in kind.fields]
                if not columns:
                    return pa.array([{}] * len(rows), pa.struct([]))
                return pa.StructArray.from_arrays(columns, [f"f{n}" for n in range(len(columns))])
        return self._union(kind, rows)

    def _fail(self, rows: Numbers, reason: str) -> None:
        """Note a problem of these values, and read nothing more of them."""
        self._problems.add(rows, reason)
        self.at[rows] = self.ends[rows]

    def _varints(self, rows: Numbers) -> Numbers:
        found = np.zeros(len(rows), np.uint64)
        at, ends = self.at[rows], self.ends[rows]
        last = len(self._data) - 1
        open_: Any = slice(None)  # those whose number goes on
        for step in range(_VARINT_BYTES):
            position = at[open_]
            inside = position < ends[open_]
            byte = self._data[np.minimum(position, last)]
            byte = np.where(inside, byte, 0) if not inside.all() else byte
            found[open_] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * step)
            at[open_] = position + 1
            goes_on = byte >= 0x80
            if not goes_on.any():
                break
            mine = np.arange(len(rows)) if isinstance(open_, slice) else open_
            open_ = mine[goes_on]
        else:
            at[open_] = np.iinfo(np.int64).max
        self._advance(rows, at, "it ends within a number, or has one of more than 64 bits")
        return (found >> np.uint64(1)).view(np.int64) ^ -((found & np.uint64(1)).view(np.int64))

    def _advance(self, rows: Numbers, at: Numbers, reason: str) -> npt.NDArray[np.bool_]:
        """Move on; returns which of the values end before that."""
        over = at > self.ends[rows]
        self.at[rows] = at
        if over.any():
            self._fail(rows[over], reason)
        return over

    def _floats(self, kind: np.dtype[Any], rows: Numbers) -> pa.Array:
        at = self.at[rows]
        over = self._advance(rows, at + kind.itemsize, "it ends within a number")
        at[over] = 0
        places = at[:, None] + np.arange(kind.itemsize)
        if over.any():
            places = np.minimum(places, len(self._data) - 1)
        return arrow_of(self._data[places].reshape(-1).view(kind).astype(kind.newbyteorder("=")))

    def _booleans(self, rows: Numbers) -> pa.Array:
        at = self.at[rows]
        over = self._advance(rows, at + 1, "it ends before a boolean")
        at[over] = 0
        byte = self._data[at]
        self._fail(rows[(byte > 1) & ~over], NO_BOOLEAN)
        return arrow_of(byte).view(pa.binary(1))

    def _bytes(self, lengths: Numbers, rows: Numbers) -> pa.Array:
        """Read texts or bytes of these lengths, one in each of the rows, as slices of the data."""
        at = self.at[rows]
        wrong = (lengths < 0) | (lengths > self.ends[rows] - at)
        if wrong.any():
            self._fail(rows[wrong], "it ends within a text or bytes, or their length is negative")
            lengths = np.where(wrong, 0, lengths)
        self.at[rows] = np.where(wrong, self.at[rows], at + lengths)
        bounds = np.empty(2 * len(rows) + 1, np.int32)
        bounds[0:-1:2], bounds[1::2] = at, at + lengths
        bounds[-1] = bounds[-2] if len(rows) else 0
        between = pa.Array.from_buffers(
            pa.binary(), 2 * len(rows), [None, pa.py_buffer(bounds), pa.py_buffer(self._data)]
        )
        return between.take(arrow_of(np.arange(0, 2 * len(rows), 2)))

    def _union(self, kind: AvroType, rows: Numbers) -> pa.Array:
        branches = self._varints(rows)
        wrong = (branches < 0) | (branches >= len(kind.parts))
        if wrong.any():
            self._fail(rows[wrong], f"a union of {len(kind.parts)} types has no such one")
        columns = []
        for number, part in enumerate(kind.parts):
            mine = branches == number
            column = self.read(part, rows[mine])
            if part.kind != "null":
                columns.append(spread(column, mine))
        return _of_union(columns, len(rows))


def spread(column: pa.Array, where: npt.NDArray[np.bool_]) -> pa.Array:
    """The values of a column where it is true, in their order, and null elsewhere."""
    if len(column) == len(where):
        return column
    numbers = np.cumsum(where) - 1
    indices = pa.array(np.where(where, numbers, 0), pa.int64(), mask=~where)
    return column.take(indices)


def _of_union(columns: list[pa.Array], count: int) -> pa.Array:
    if not columns:
        return pa.nulls(count)
    if len(columns) == 1:
        return columns[0]
    names = [f"member{n}" for n in range(len(columns))]
    return pa.StructArray.from_arrays(columns, names)


# -- value by value --------------------------------------------------------------------------------


def _one_by_one(
    kind: AvroType, data: npt.NDArray[np.uint8], starts: Numbers, ends: Numbers, problems: Problems
) -> pa.Array:
    """Decode each value with fastavro, under a schema that gives plain values for its bytes."""
    from fastavro import parse_schema, schemaless_reader

    schema = parse_schema(_Plain().schema(kind))
    held = memoryview(data)  # type: ignore[arg-type]  # it is one
    sizes = ends - starts
    fields = most_fields(kind, sizes)
    ends = ends.copy()
    doubtful = (fields > MOST_FIELDS + sizes) | _may_have_long_numbers(data, starts, ends)
    for row in np.flatnonzero(doubtful).tolist():
        reason = too_many_fields(kind, held[starts[row] : ends[row]])
        if reason is not None:
            problems.tell(row, reason)
            ends[row] = starts[row]
    plain = plain_type(kind)
    made: list[pa.Array] = []
    for piece in _pieces(fields):
        values: list[object] = []
        bounds = zip(piece.tolist(), starts[piece].tolist(), ends[piece].tolist(), strict=True)
        for row, start, end in bounds:
            stream = BytesIO(held[start:end])
            try:
                values.append(schemaless_reader(stream, schema, None))
            except (EOFError, IndexError):  # fastavro's words name an object by its address
                values.append(None)
                problems.tell(row, TOO_SHORT)
                continue
            except (ValueError, OverflowError, TypeError) as error:
                values.append(None)
                problems.tell(row, f"it is of another type: {error}")
                continue
            if stream.tell() != end - start:
                left = end - start - stream.tell()
                problems.tell(row, f"{left} bytes are left behind the value")
        made.append(pa.array(values, plain))
        own = int(sizes[piece].sum())
        problems.budget.spend(max(0, made[-1].nbytes - own) // BYTES_OF_FIELD)
    return made[0] if len(made) == 1 else pa.concat_arrays(made)


def _may_have_long_numbers(
    data: npt.NDArray[np.uint8], starts: Numbers, ends: Numbers
) -> npt.NDArray[np.bool_]:
    """For each value, whether some of its bytes could be a number of more than 64 bits.

    fastavro reads such a number to its end and cuts it off, so these values are checked first. Text
    in other scripts looks like such numbers, too: values with it take two to four times as long.
    """
    found = np.zeros(len(starts), np.bool_)
    if len(starts):
        first = int(starts[0])
        run = data[first : int(ends[-1])] >= 0x80
        for more in (1, 2, 4, 2):  # of two bytes, of four, of eight, and of ten
            run = run[:-more] & run[more:]
        at = np.flatnonzero(run) + first
        rows = np.searchsorted(starts, at, side="right") - 1
        found[rows[at + _VARINT_BYTES <= ends[rows]]] = True
    return found


def _pieces(fields: Numbers) -> list[Numbers]:
    """Values that are read together, before they are columns: objects of Python are larger."""
    together = np.cumsum(fields) // MOST_FIELDS
    return np.split(np.arange(len(fields)), np.flatnonzero(np.diff(together)) + 1)


class _Plain:
    """A schema for fastavro of which no value is of a logical type, and no type is recursive."""

    def __init__(self) -> None:
        self._names: dict[AvroType, str] = {}
        self._count = 0

    def schema(self, kind: AvroType) -> Any:  # noqa: ANN401 - JSON
        if kind.kind in _NUMBERS:
            return "long"
        match kind.kind:
            case "string":
                return "bytes"
            case "fixed" | "record" | "boolean":
                return self._once(kind)
            case "array":
                return {"type": "array", "items": self.schema(kind.parts[0])}
            case "map":
                value = self.schema(kind.parts[0])
                return {"type": "array", "items": self._record({"key": "bytes", "value": value})}
            case "union":
                return self._union(kind)
        return kind.kind

    def _union(self, kind: AvroType) -> list[Any]:
        if len(kind.others) <= 1:
            return [self.schema(part) for part in kind.parts]
        # A record has the bytes of its fields: these say which of the types it is.
        numbers = {id(part): n for n, part in enumerate(kind.others)}
        return [
            "null"
            if part.kind == "null"
            else self._record({f"member{numbers[id(part)]}": self.schema(part)})
            for part in kind.parts
        ]

    def _once(self, kind: AvroType) -> Any:  # noqa: ANN401 - JSON
        if kind in self._names:
            return self._names[kind]
        if kind.kind != "record":
            # Of a boolean fastavro would take any byte that is not 0 for true.
            size = kind.size if kind.kind == "fixed" else 1
            made: dict[str, Any] = {"type": "fixed", "size": size, "name": self._name()}
        else:
            fields = {f"f{n}": self.schema(one.type) for n, one in enumerate(kind.fields)}
            made = self._record(fields)
        self._names[kind] = made["name"]
        return made

    def _record(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        listed = [{"name": name, "type": kind} for name, kind in fields.items()]
        return {"type": "record", "name": self._name(), "fields": listed}

    def _name(self) -> str:
        self._count += 1
        return f"t{self._count}"
