"""Plain columns of one schema of Avro as the columns of another: its rules of schema resolution.

Fields are found by name, or by an alias of the reader's; those that the writer did not have get
their default; numbers become wider, texts bytes and bytes texts; an enum's unknown symbols its
default. What a value lacks for the reader's schema is a problem of that value; what no value can
have is :class:`Unresolvable`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txnlog.errors import InvalidSchema
from txnlog.segments.arrays import arrow_of, numbers_of
from txnlog.values.avro_columns import NO_BOOLEAN, Numbers, Problems, plain_type, spread
from txnlog.values.avro_schema import MOST_DEFAULT_VALUES, AvroField, AvroType, short_name
from txnlog.values.rows import BYTES_OF_FIELD

PROMOTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
"""What a reader may call what a writer has called so."""
_INT_LIMIT: Final = 1 << 31
_DAY: Final = {"time-millis": 86_400_000, "time-micros": 86_400_000_000}
_MILLIS: Final = ("timestamp-millis", "local-timestamp-millis")
_MOST_MS: Final = (1 << 63) // 1000
"""Others have times in microseconds."""
_DECIMAL_BYTES: Final = 16
_DECIMALS_AT_ONCE: Final = 1 << 16
"""Each takes several hundred bytes while it is made."""
_NO_DEFAULT: Final = (AttributeError, TypeError, ValueError, LookupError, OverflowError)
"""What comes of a default that is none of its type."""


class Unresolvable(InvalidSchema):
    """No value of the writer's schema can be one of the reader's."""


def same_name(writer: AvroType, reader: AvroType) -> bool:
    """Whether a reader knows the writer's type by its name, or by an alias."""
    return short_name(writer.name) in reader.known_as


def field_of(writer: AvroType, wanted: AvroField) -> int | None:
    """The number of the writer's field that a reader's stands for."""
    numbers = writer.numbers
    return next((numbers[n] for n in (wanted.name, *wanted.aliases) if n in numbers), None)


def may_read(writer: AvroType, reader: AvroType) -> bool:
    """Whether two types that are no unions are of one kind: what is in them is not looked at."""
    if writer.kind == reader.kind:
        if writer.kind == "fixed":
            return same_name(writer, reader) and writer.size == reader.size
        return writer.kind not in ("record", "enum") or same_name(writer, reader)
    return reader.kind in PROMOTIONS.get(writer.kind, ())


def part_for(writer: AvroType, reader: AvroType) -> AvroType | None:
    """The type of a reader's union that a value is read as, the first of several that may be.

    One of the same name comes before one that has it as an alias, and of the same kind before a
    wider one.
    """
    fitting = [part for part in reader.parts if may_read(writer, part)]
    return min(fitting, key=partial(_distance, writer), default=None)


def _distance(writer: AvroType, part: AvroType) -> int:
    if part.kind != writer.kind:
        return 3
    return (part.name != writer.name) + (short_name(part.name) != short_name(writer.name))


def resolve(
    column: pa.Array, writer: AvroType, reader: AvroType, rows: Numbers, problems: Problems
) -> pa.Array:
    """The plain column of the writer's type as one of the reader's type.

    ``rows`` has for each of its values the number of the whole value that it is in; what these lack
    is added to ``problems``. Raises Unresolvable: the types do not fit; TooManyFields: the values
    become too much together.
    """
    if writer.kind == "union":
        return _from_union(column, writer, reader, rows, problems)
    if reader.kind == "union":
        part = part_for(writer, reader)
        if part is None:
            raise Unresolvable(f"{_shown(writer)} is none of the types of a union")
        made = resolve(column, writer, part, rows, problems)
        return _in_union(made, part, reader)
    if writer.kind == reader.kind == "record":
        return _record(column, writer, reader, rows, problems)
    if writer.kind == reader.kind == "array":
        owners, values = _elements(column, writer, reader, rows, problems)
        made = resolve(values, writer.parts[0], reader.parts[0], owners, problems)
        return _lists(column, made, reader.arrow())
    if writer.kind == reader.kind == "map":
        return _map(column, writer, reader, rows, problems)
    if writer.kind == reader.kind == "enum":
        return _enum(column, writer, reader, rows, problems)
    if writer.kind == reader.kind == "null":
        return column
    if not may_read(writer, reader):
        raise Unresolvable(f"{_shown(writer)} was written, and {_shown(reader)} is read")
    return _scalar(column, writer, reader, rows, problems)


def default_column(field: AvroField) -> pa.Array:
    """A field's default, as a column of one value. Raises Unresolvable: it is none of its type.

    It is made once: values of many types, and many batches of them, may ask for it.
    """
    if not field.made_default:
        try:
            field.made_default.append(_make_default(field.type, field.default[0]))
        except Unresolvable as error:
            field.made_default.append(str(error))
    found = field.made_default[0]
    if isinstance(found, str):
        raise Unresolvable(found)
    return found


def is_default(field: AvroField) -> bool:
    """Whether a field's default is one of its type, as far as JSON can tell."""
    try:
        _plain_default(field.type, field.default[0], count(1))
    except _NO_DEFAULT:
        return False
    return True


def _make_default(kind: AvroType, default: object) -> pa.Array:
    try:
        plain = pa.array([_plain_default(kind, default, count(1))], plain_type(kind))
    except _NO_DEFAULT as error:
        raise Unresolvable(
            f"the default {default!r:.60} is no {_shown(kind)}, or has more than "
            f"{MOST_DEFAULT_VALUES} values"
        ) from error
    problems = Problems()
    made = resolve(plain, kind, kind, np.zeros(1, np.int64), problems)
    if problems.reasons:
        raise Unresolvable(f"the default {default!r:.60}: {problems.reasons[0]}")
    return made


def _plain_default(kind: AvroType, default: Any, counted: Iterator[int]) -> Any:  # noqa: ANN401
    """A default as the plain columns of its type have it; of a union the first type that fits.

    Raises ValueError, and others: it is none of its type, or has too many values: an item of a list
    may be a record whose own default is such a list.
    """
    if kind.kind == "union":
        return _plain_default_of_union(kind, default, counted)
    if next(counted) > MOST_DEFAULT_VALUES:
        raise ValueError(default)
    limit = _INT_LIMIT if kind.kind == "int" else 1 << 63
    match kind.kind:
        case "null":
            if default is not None:
                raise ValueError(default)
            return None
        case "fixed" if len(default) != kind.size:
            raise ValueError(default)
        case "bytes" | "fixed":
            return default.encode("latin-1")
        case "string":
            return default.encode()
        case "enum":
            return kind.numbers[default]
        case "array" if not isinstance(default, list):
            raise ValueError(default)
        case "array":
            return [_plain_default(kind.parts[0], item, counted) for item in default]
        case "map":
            part = kind.parts[0]
            return [
                {"key": key.encode(), "value": _plain_default(part, value, counted)}
                for key, value in default.items()
            ]
        case "record" if not isinstance(default, dict):
            raise ValueError(default)
        case "record":
            return {
                f"f{n}": _plain_default(
                    one.type,
                    default[one.name] if one.name in default else one.default[0],
                    counted,
                )
                for n, one in enumerate(kind.fields)
            }
        case "boolean" if not isinstance(default, bool):
            raise ValueError(default)
        case "boolean":
            return bytes([default])
        case "int" | "long" if type(default) is not int or not -limit <= default < limit:
            raise ValueError(default)
        case "float" | "double" if type(default) not in (int, float):
            raise ValueError(default)
    return default


def _plain_default_of_union(kind: AvroType, default: object, counted: Iterator[int]) -> Any:  # noqa: ANN401
    numbers = count()
    for part in kind.parts:
        member = None if part.kind == "null" else f"member{next(numbers)}"
        with suppress(*_NO_DEFAULT):
            made = _plain_default(part, default, counted)
            return made if member is None or len(kind.others) == 1 else {member: made}
    raise ValueError(default)


# -- unions ----------------------------------------------------------------------------------------


def _from_union(
    column: pa.Array, writer: AvroType, reader: AvroType, rows: Numbers, problems: Problems
) -> pa.Array:
    """Each value is of one of the writer's types: those of each type are resolved alone."""
    if not writer.others:
        return resolve(column, writer.parts[0], reader, rows, problems)
    columns = [column] if len(writer.others) == 1 else column.flatten()
    made: list[pa.Array] = []
    places = np.full(len(rows), -1, np.int64)
    nulls = np.ones(len(rows), bool)
    for part, values in zip(writer.others, columns, strict=True):
        mine = values.is_valid().to_numpy(zero_copy_only=False)
        if not mine.any():
            continue
        nulls &= ~mine
        chosen = values.filter(pa.array(mine)) if not mine.all() else values
        try:
            found = resolve(chosen, part, reader, rows[mine], problems)
        except Unresolvable as error:
            problems.add(rows[mine], str(error))
            continue
        places[mine] = np.arange(len(found)) + sum(map(len, made))
        made.append(found)
    if nulls.any() and not reader.is_nullable:
        problems.add(rows[nulls], f"a null was written, and {_shown(reader)} is read")
    if not made:
        return pa.nulls(len(rows), reader.arrow())
    if len(made) == 1:
        return spread(made[0], places >= 0)
    return pa.concat_arrays(made).take(pa.array(places, mask=places < 0))


def _in_union(made: pa.Array, part: AvroType, reader: AvroType) -> pa.Array:
    """A column of one of the types as that of the union."""
    if len(reader.others) <= 1:
        return made if part.kind != "null" else pa.nulls(len(made), reader.arrow())
    kind = reader.arrow()
    if part.kind == "null":
        return pa.nulls(len(made), kind)
    at = [id(one) for one in reader.others].index(id(part))
    columns = [
        made if n == at else pa.nulls(len(made), kind.field(n).type) for n in range(kind.num_fields)
    ]
    return pa.StructArray.from_arrays(columns, fields=[*kind])


# -- what has parts --------------------------------------------------------------------------------


def _record(
    column: pa.Array, writer: AvroType, reader: AvroType, rows: Numbers, problems: Problems
) -> pa.Array:
    made = []
    of_first = arrow_of(np.zeros(len(rows), np.int64))
    for one in reader.fields:
        number = field_of(writer, one)
        if number is not None:
            try:
                part = column.field(number)
                made.append(resolve(part, writer.fields[number].type, one.type, rows, problems))
            except Unresolvable as error:
                raise Unresolvable(f"field {one.name!r:.200}: {error}") from error
        elif one.default:
            value = default_column(one)
            problems.budget.spend(len(rows) * (value.nbytes // BYTES_OF_FIELD))
            made.append(value.take(of_first))
        else:
            raise Unresolvable(
                f"field {one.name!r:.200} was not written and has no default in the reader's schema"
            )
    if not made:
        return pa.array([{}] * len(rows), pa.struct([]))
    return pa.StructArray.from_arrays(made, fields=[*reader.arrow()])


def _elements(
    column: pa.Array, writer: AvroType, reader: AvroType, rows: Numbers, problems: Problems
) -> tuple[Numbers, pa.Array]:
    """The values of all lists, and for each the number of the value that it is in."""
    bounds = column.offsets.to_numpy()
    first, last = int(bounds[0]), int(bounds[-1])
    more = reader.parts[0].width - writer.parts[0].width
    problems.budget.spend(max(0, more) * (last - first))
    return np.repeat(rows, np.diff(bounds)), column.values.slice(first, last - first)


def _lists(column: pa.Array, values: pa.Array, kind: Any) -> pa.Array:  # noqa: ANN401
    bounds = column.offsets.to_numpy()
    offsets = arrow_of((bounds - bounds[0]).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, values, kind, mask=_nulls_of(column))


def _nulls_of(column: pa.Array) -> pa.Array | None:
    return column.is_null() if column.null_count else None


def _map(
    column: pa.Array, writer: AvroType, reader: AvroType, rows: Numbers, problems: Problems
) -> pa.Array:
    owners, pairs = _elements(column, writer, reader, rows, problems)
    keys = _texts(pairs.field("key"), owners, problems)
    values = resolve(pairs.field("value"), writer.parts[0], reader.parts[0], owners, problems)
    bounds = column.offsets.to_numpy()
    offsets = arrow_of((bounds - bounds[0]).astype(np.int32))
    return pa.MapArray.from_arrays(offsets, keys, values, reader.arrow(), mask=_nulls_of(column))


# -- single values ---------------------------------------------------------------------------------


def _scalar(
    column: pa.Array, writer: AvroType, reader: AvroType, rows: Numbers, problems: Problems
) -> pa.Array:
    _check_logical(writer, reader)
    if reader.is_decimal:
        return _decimals(column, reader, rows, problems)
    if writer.kind == "int" and not reader.logical:
        column = _within(column, -_INT_LIMIT, _INT_LIMIT, "an int of 32 bits", rows, problems)
    if reader.kind == "string":
        return _texts(column, rows, problems)
    if reader.kind == "boolean":
        return _booleans(column, rows, problems)
    target = reader.arrow()
    if reader.logical is None:
        return column if column.type == target else column.cast(target, safe=False)
    if reader.logical in _DAY:
        column = _within(column, 0, _DAY[reader.logical], "a time of a day", rows, problems)
    if reader.logical in _MILLIS:
        column = _within(column, -_MOST_MS, _MOST_MS, "a time", rows, problems)
    if reader.kind == "int":
        column = _within(column, -_INT_LIMIT, _INT_LIMIT, "an int of 32 bits", rows, problems)
        return column.cast(pa.int32(), safe=False).cast(target)
    return column.cast(target)


def _check_logical(writer: AvroType, reader: AvroType) -> None:
    """Numbers of one unit are not taken for another's."""
    one, other = writer.logical, reader.logical
    if one is None or other is None:
        return
    if one != other or (writer.is_decimal and writer.scale != reader.scale):
        raise Unresolvable(f"{_shown(writer)} was written, and {_shown(reader)} is read")


def _within(
    column: pa.Array, least: int, end: int, what: str, rows: Numbers, problems: Problems
) -> pa.Array:
    """Whole numbers, those outside null."""
    fits = pc.and_(pc.greater_equal(column, least), pc.less(column, end))
    if pc.all(fits).as_py() in (True, None):
        return column
    wrong = pc.invert(pc.fill_null(fits, True))
    problems.add(rows[wrong.to_numpy(zero_copy_only=False)], f"a number is not {what}")
    return pc.if_else(wrong, None, column)


def _booleans(column: pa.Array, rows: Numbers, problems: Problems) -> pa.Array:
    byte = column.view(pa.uint8())
    wrong = pc.greater(byte, 1).fill_null(False)
    problems.add(rows[wrong.to_numpy(zero_copy_only=False)], NO_BOOLEAN)
    return byte.cast(pa.bool_())


def _texts(column: pa.Array, rows: Numbers, problems: Problems) -> pa.Array:
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        made: list[bytes | None] = column.to_pylist()
        for number, value in enumerate(made):
            try:
                (value or b"").decode()
            except UnicodeDecodeError:
                problems.add(rows[number : number + 1], "a text is not valid UTF-8")
                made[number] = b""  # a map has no key that is null
        return pa.array(made, pa.binary()).cast(pa.string())


def _enum(
    column: pa.Array, writer: AvroType, reader: AvroType, rows: Numbers, problems: Problems
) -> pa.Array:
    column = _within(column, 0, len(writer.symbols), "that of a symbol", rows, problems)
    known, longest = _symbols(writer, reader)
    problems.budget.spend(len(column) * (longest // BYTES_OF_FIELD))
    made = known.take(column)
    lost = pc.and_(column.is_valid(), made.is_null())
    if pc.any(lost).as_py():
        problems.add(
            rows[lost.to_numpy(zero_copy_only=False)],
            f"a symbol of enum {writer.name!r:.200} is not in the reader's schema",
        )
    return made


def _symbols(writer: AvroType, reader: AvroType) -> tuple[pa.Array, int]:
    """What a reader has for each of a writer's symbols, and the bytes of the longest."""
    if reader not in writer.read_as:
        known = [s if s in reader.numbers else reader.default_symbol for s in writer.symbols]
        made = pa.array(known, pa.string())
        writer.read_as[reader] = made, pc.max(pc.binary_length(made)).as_py() or 0
    found: tuple[pa.Array, int] = writer.read_as[reader]
    return found


def _decimals(column: pa.Array, reader: AvroType, rows: Numbers, problems: Problems) -> pa.Array:
    made = [pa.nulls(0, reader.arrow())]
    for at in range(0, len(column), _DECIMALS_AT_ONCE):
        some = slice(at, at + _DECIMALS_AT_ONCE)
        made.append(_some_decimals(column[some], reader, rows[some], problems))
    return pa.concat_arrays(made)


def _some_decimals(
    column: pa.Array, reader: AvroType, rows: Numbers, problems: Problems
) -> pa.Array:
    """Whole numbers, the highest byte first, as Arrow's decimals.

    These have 16 bytes: what is longer is a number of ours if more bytes only repeat its sign.
    """
    lengths = numbers_of(pc.fill_null(pc.binary_length(column), 0)).astype(np.int64)
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    wrong = (lengths == 0) & valid
    _, ends, data = column.buffers()
    held = np.zeros(1, np.uint8) if data is None or not len(data) else np.frombuffer(data, np.uint8)
    bounds = np.frombuffer(ends, np.int32, len(column) + 1, column.offset * 4)[1:].astype(np.int64)
    places = bounds[:, None] - 1 - np.arange(_DECIMAL_BYTES)
    inside = np.arange(_DECIMAL_BYTES) < lengths[:, None]
    numbers = held[np.clip(places, 0, len(held) - 1)]
    first = held[np.clip(bounds - lengths, 0, len(held) - 1)]
    longer = np.flatnonzero((lengths > _DECIMAL_BYTES) & valid)
    wrong[longer] = ~_only_repeat(
        held, (bounds - lengths)[longer], (bounds - _DECIMAL_BYTES)[longer]
    )
    sign = np.where((first >= 0x80) & (lengths > 0), 0xFF, 0).astype(np.uint8)
    numbers = np.where(inside, numbers, sign[:, None])
    whole = pa.Array.from_buffers(
        pa.decimal128(38, reader.scale), len(column), [None, pa.py_buffer(numbers.tobytes())]
    )
    most = pa.scalar(10**reader.precision, pa.decimal256(60, 0))
    unscaled = pa.Array.from_buffers(
        pa.decimal128(38, 0), len(column), [None, pa.py_buffer(numbers.tobytes())]
    ).cast(pa.decimal256(60, 0))
    size = pc.abs(unscaled)
    wrong |= pc.greater_equal(size, most).to_numpy(zero_copy_only=False) & valid
    problems.add(rows[wrong], f"a decimal has more than {reader.precision} digits, or none")
    kept = pa.array(valid & ~wrong)
    return pc.if_else(kept, whole, None).cast(reader.arrow(), safe=False)


def _only_repeat(data: Any, starts: Numbers, stops: Numbers) -> Any:  # noqa: ANN401 - numpy
    """For each span, whether all its bytes only extend the sign of the byte after it.

    Spans are not empty.
    """
    if not len(starts):
        return np.zeros(0, np.bool_)
    bounds = np.column_stack([starts, stops]).ravel()
    zeros, ones = (np.logical_and.reduceat(data == one, bounds)[::2] for one in (0, 0xFF))
    return np.where(data[stops] >= 0x80, ones, zeros)


def _shown(kind: AvroType) -> str:
    name = f" {kind.name!r:.100}" if kind.name else ""
    logical = f" ({kind.logical})" if kind.logical else ""
    return f"{kind.kind}{name}{logical}"
