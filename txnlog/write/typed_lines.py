"""JSON lines for typed topics: objects of columns, or what ``records read -o jsonl`` prints.

Each JSON value must be one of its column's type, in the form that ``json_records`` writes: times in
RFC 3339, bytes in base64, decimals and dates as strings, maps as lists of pairs, or as objects.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import cached_property, partial
from io import BufferedReader
from typing import TYPE_CHECKING, Annotated, Any, Final, TypedDict

import msgspec
import pyarrow as pa
from pyarrow import types

from txnlog.errors import InvalidRecord
from txnlog.schema import DELETED, HEADERS, PARTITION, TIMESTAMP, TopicSchema
from txnlog.segments.schema_columns import children
from txnlog.write.row_values import first_wrong, make_columns
from txnlog.write.text_records import (
    BINARY_FACTOR,
    Headers,
    JsonBytes,
    JsonEnvelope,
    JsonHeader,
    JsonPartition,
    JsonTimestamp,
    decode_bytes,
    may_repeat,
    read_line_chunks,
    refuse_repeated,
)
from txnlog.write.typed_records import TypedRecords

if TYPE_CHECKING:
    from txnlog.write.paced_stream import PacedStream

_AS_IS: Final = (bytes, dt.datetime, dt.date, Decimal)
Row = dict[str, Any]


def read_typed_lines(
    stream: BufferedReader | PacedStream,
    topic: str,
    schema: TopicSchema,
    *,
    headers: Headers = (),
    max_line_bytes: int,
    partition_count: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """One JSON object a line: a record's columns, or the record as ``records read`` prints it.

    Columns may be left out as in ``Producer.send``; besides them there may be ``_timestamp`` (in
    RFC 3339, or milliseconds), ``_headers``, ``_partition`` and ``_deleted``. No object may have a
    key twice. Empty lines are skipped. ``headers``: more for every record. ``partition_count``: if
    given, a line whose partition is not below it is refused. ``Producer.send_batch`` takes the
    batches.

    Raises InvalidRecord: a line is no such object; the message has its number. RecordTooLarge: a
    line is far longer than ``max_line_bytes``.
    """
    lines = _TypedLines(TypedRecords(topic, schema), headers, partition_count)
    number = 0
    for chunk in read_line_chunks(stream, max_line_bytes * BINARY_FACTOR):
        rows: list[Row] = []
        numbers, wrong = [], None
        for line in () if chunk is None else chunk.split(b"\n"):
            number += 1
            if not line.strip():
                continue
            try:
                rows.append(lines.row(line))
                numbers.append(number)
            except (msgspec.DecodeError, ValueError, RecursionError) as error:
                wrong = InvalidRecord(
                    f"line {number} is no record of topic {topic!r}: "
                    f"{error}{_advice(str(error), schema)}"
                )
                break
        if rows or chunk is None:
            batch, refused = lines.batch(rows, numbers)
            yield batch
            wrong = refused or wrong
        if wrong is not None:
            raise wrong


def read_typed_row(text: bytes, topic: str, schema: TopicSchema) -> Row:
    """One record as ``Producer.send`` takes it, of JSON as in :func:`read_typed_lines`.

    Raises InvalidRecord.
    """
    records = TypedRecords(topic, schema)
    try:
        row = _TypedLines(records, (), None).row(text)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise InvalidRecord(
            f"it is no record of topic {topic!r}: {error}{_advice(str(error), schema)}"
        ) from error
    _checked_columns(records, [row])
    return row


def _advice(why: str, schema: TopicSchema) -> str:
    """What to do about a line that the decoder refuses, where its own words do not tell."""
    if why.startswith("Object contains unknown field") and " at `$" not in why:
        return f"; the columns are {', '.join(schema.columns.names)}"
    if why.startswith(("Expected `datetime` with a timezone", "Invalid RFC3339 encoded datetime")):
        return "; write it as 2024-05-01T12:00:00Z"
    if why.startswith("Expected `datetime` with no timezone"):
        return "; write it as 2024-05-01T12:00:00"
    return ""


class _Envelope(JsonEnvelope, kw_only=True):
    """A record with what it has besides its columns."""

    value: msgspec.Raw


class _TypedLines:
    """Decodes lines, and checks them against the schema."""

    def __init__(
        self, records: TypedRecords, headers: Headers, partition_count: int | None
    ) -> None:
        self._records = records
        self._headers = [*headers]
        self._count = partition_count
        columns = records.columns
        columns_type = _struct_type("Columns", [*columns], _METADATA)
        self._columns = msgspec.json.Decoder(columns_type)
        names = (*_names([*columns]), *(name for name, _ in _METADATA), *_OF_HEADERS)
        self._names = frozenset(name.encode() for name in names)
        self._has_maps = any(map(_has_maps, columns))
        self._has_escaped = any(map(_is_escaped, names))
        self._envelope = msgspec.json.Decoder(_Envelope)
        self._bytes = msgspec.json.Decoder(JsonBytes)

    def row(self, line: bytes) -> Row:
        """The record of a line. Raises DecodeError, ValueError."""
        try:
            row = self._decode(line)
        except msgspec.ValidationError:
            try:
                envelope = self._envelope.decode(line)
            except msgspec.ValidationError:
                envelope = None
            if envelope is None:
                raise
            if may_repeat(line, envelope):
                refuse_repeated(line)
            row = self._of_envelope(envelope)
        else:
            given = row.get(HEADERS)
            if given is not None:
                found = msgspec.convert(given, list[JsonHeader])
                row[HEADERS] = [(h.key, decode_bytes(h.value)) for h in found]
        partition = row.get(PARTITION) or 0
        if self._count is not None and partition >= self._count:
            raise ValueError(
                f"there is no partition {partition}; the topic has {self._count}, numbered "
                "from 0; null, or no partition, chooses by key"
            )
        if self._headers:
            row[HEADERS] = [*(row.get(HEADERS) or ()), *self._headers]
        return row

    def _decode(self, data: bytes | msgspec.Raw) -> Row:
        row: Row = msgspec.to_builtins(self._columns.decode(data), builtin_types=_AS_IS)
        if self._has_escaped:
            columns = [*self._records.columns]
            others = [name for name, _ in _METADATA]
            _refuse_unknown(msgspec.json.decode(data), columns, others)
        if self._may_repeat(bytes(data)):
            refuse_repeated(bytes(data))
        return row

    def _may_repeat(self, data: bytes) -> bool:
        """Whether a key may occur twice; values that are a name, and nested objects, look so, too.

        Without a backslash each string is between quotes as it is.
        """
        if self._has_maps or b"\\" in data:
            return True
        found = [*filter(self._names.__contains__, data.split(b'"')[1::2])]
        return len({*found}) < len(found)

    def _of_envelope(self, found: _Envelope) -> Row:
        row = self._of_value(found.value)
        if row is None:
            row = {DELETED: True, **self._key(found.key)}
        if found.headers:
            row[HEADERS] = [(h.key, decode_bytes(h.value)) for h in found.headers]
        if found.timestamp_ms is not None:
            row[TIMESTAMP] = found.timestamp_ms
        if found.partition is not None:
            row[PARTITION] = found.partition
        return row

    def _of_value(self, value: msgspec.Raw) -> Row | None:
        """The columns of a value: an object, or the text or the bytes of one; None: a deletion."""
        text = bytes(value)
        if text == b"null":
            return None
        if text.startswith(b'"'):
            return self._decode(msgspec.json.decode(text, type=str).encode())
        try:
            encoded = self._bytes.decode(text)
        except msgspec.ValidationError:
            return self._decode(text)
        if encoded.base64 is None and encoded.hex is None:
            return self._decode(text)
        return self._decode(decode_bytes(encoded) or b"")

    def _key(self, key: str | JsonBytes | msgspec.UnsetType | None) -> Row:
        names = self._records.schema.key
        if not names or key is msgspec.UNSET or key is None:
            raise ValueError("a record without a value deletes its key, and there is no key")
        data = decode_bytes(key)
        assert data is not None
        fields = [self._records.columns.field(name) for name in names]
        if len(fields) == 1 and types.is_binary(fields[0].type):
            return {names[0]: data}
        if len(fields) == 1 and types.is_string(fields[0].type):
            return {names[0]: data.decode()}
        return dict(zip(names, self._key_list.decode(data), strict=True))

    @cached_property
    def _key_list(self) -> msgspec.json.Decoder[tuple[Any, ...]]:
        columns = self._records.columns
        kinds = [_json_type(columns.field(name).type) for name in self._records.schema.key]
        key_type = tuple[tuple(kinds)]  # type: ignore[misc, valid-type]
        return msgspec.json.Decoder(key_type)

    def batch(
        self, rows: Sequence[Row], numbers: Sequence[int]
    ) -> tuple[pa.RecordBatch, InvalidRecord | None]:
        """The records up to the first that the schema refuses, and the error for that one."""
        if not rows:
            return pa.RecordBatch.from_pylist([], schema=self._records.schema.scan_columns), None
        make = partial(_checked_columns, self._records)
        try:
            return pa.RecordBatch.from_pydict(make(rows)), None
        except InvalidRecord as error:
            at, why = first_wrong(rows, make, error)
        wrong = InvalidRecord(f"line {numbers[at]}: {why}")
        return self.batch(rows[:at], numbers)[0], wrong


def _checked_columns(records: TypedRecords, rows: Sequence[Row]) -> dict[str, pa.Array]:
    columns = make_columns(records, rows)
    batch = pa.RecordBatch.from_pydict(
        {name: array for name, array in columns.items() if name != PARTITION}
    )
    records.normalize(batch, 0)
    return columns


_METADATA: Final[Sequence[tuple[str, Any]]] = (
    (TIMESTAMP, JsonTimestamp | Annotated[dt.datetime, msgspec.Meta(tz=True)] | None),
    (HEADERS, list[JsonHeader] | None),
    (PARTITION, JsonPartition | None),
    (DELETED, bool | None),
)


_OF_HEADERS: Final = ("key", "value", "base64", "hex")


def _names(fields: Sequence[pa.Field]) -> Iterator[str]:
    """The names of columns, and of the fields of structs within them."""
    for field in fields:
        yield field.name
        yield from _names(children(field.type))


def _has_maps(field: pa.Field) -> bool:
    """Whether objects within it may have keys of any name."""
    return types.is_map(field.type) or any(map(_has_maps, children(field.type)))


def _struct_type(
    name: str, fields: Sequence[pa.Field], more: Sequence[tuple[str, Any]] = ()
) -> Any:  # noqa: ANN401 - a type made at run time
    """Objects with these members, each of which may be left out, and no others.

    Where a name is escaped in JSON others are passed over: structs of msgspec have no such names.
    """
    members = [*((field.name, _json_type(field.type) | None) for field in fields), *more]
    if any(_is_escaped(member) for member, _ in members):
        return TypedDict(name, dict(members), total=False)  # type: ignore[operator]
    return msgspec.defstruct(
        name,
        [
            (
                f"field_{number}",
                kind | msgspec.UnsetType,
                msgspec.field(default=msgspec.UNSET, name=member),
            )
            for number, (member, kind) in enumerate(members)
        ],
        forbid_unknown_fields=True,
    )


def _is_escaped(name: str) -> bool:
    return any(character in '"\\' or character < " " for character in name)


def _refuse_unknown(
    found: Mapping[str, object],
    fields: Sequence[pa.Field],
    others: Collection[str] = (),
    path: str = "$",
) -> None:
    """Raise ValidationError if an object, or one within it, has a member that is no field."""
    kinds = {field.name: field.type for field in fields}
    for name, value in found.items():
        if name in kinds:
            _refuse_unknown_within(value, kinds[name], f"{path}.{name}")
        elif name not in others:
            where = "" if path == "$" else f" - at `{path}`"
            raise msgspec.ValidationError(f"Object contains unknown field `{name}`{where}")


def _refuse_unknown_within(value: Any, kind: pa.DataType, path: str) -> None:  # noqa: ANN401
    if value is None:
        return
    if types.is_struct(kind):
        _refuse_unknown(value, children(kind), path=path)
    elif types.is_map(kind):
        items = value.items() if isinstance(value, dict) else value
        for key, item in items:
            if not isinstance(value, dict):
                _refuse_unknown_within(key, kind.key_type, f"{path}[...]")
            _refuse_unknown_within(item, kind.item_type, f"{path}[...]")
    elif types.is_list(kind):
        for item in value:
            _refuse_unknown_within(item, kind.value_type, f"{path}[...]")


_FLAT: Final[Sequence[tuple[Any, Any]]] = (
    (types.is_boolean, bool),
    (types.is_integer, int),
    (types.is_floating, float),
    (types.is_decimal, Decimal),
    (types.is_binary, bytes),
    (types.is_date, dt.date),
)


def _json_type(kind: pa.DataType) -> Any:  # noqa: ANN401 - a type made at run time
    """The type as which msgspec decodes a value, whatever Python would call it."""
    for check, python in _FLAT:
        if check(kind):
            return python
    if types.is_timestamp(kind):
        return Annotated[dt.datetime, msgspec.Meta(tz=kind.tz is not None)]
    if types.is_struct(kind):
        return _struct_type("Struct", [kind.field(n) for n in range(kind.num_fields)])
    if types.is_map(kind):
        key, item = _json_type(kind.key_type), _json_type(kind.item_type) | None
        return list[tuple[key, item]] | dict[str, item]  # type: ignore[valid-type]
    if types.is_list(kind):
        return list[_json_type(kind.value_type) | None]  # type: ignore[misc]
    return str
