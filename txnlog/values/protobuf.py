"""Values of Protobuf as columns, and columns as values: messages of descriptors, without code.

A schema is a descriptor: of a .proto with all that it imports (``protoc --include_imports
--descriptor_set_out``), or of one file whose imports are references, as registries give it. Or it
is the text of a .proto, of which Protobuf's compiler makes a descriptor. A value begins with the
place of its message in the schema: indexes, as Confluent's serializers write it, or its name, as
Apicurio's do. It is read as the reader's message of the same name, by field numbers.
"""

from __future__ import annotations

import base64
import binascii
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import cached_property
from importlib import import_module
from itertools import islice
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from txnlog.errors import InvalidOption, InvalidSchema
from txnlog.segments.parquet.compact_values import varint
from txnlog.segments.records import CONVERSION_ERRORS
from txnlog.values.avro_columns import Numbers, Problems
from txnlog.values.proto_text import compile_proto
from txnlog.values.proto_wire import most_fields, spend_fields
from txnlog.values.rows import MOST_FIELDS, RowColumns
from txnlog.values.schemas import MOST_DEPTH, MOST_NODES, check_text

_KNOWN: Final = (
    *("any", "descriptor", "duration", "empty", "field_mask", "source_context", "struct"),
    *("timestamp", "type", "wrappers", "api"),
)
"""The files that Protobuf itself has."""
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_MAIN: Final = "schema.proto"
"""What a schema's own file is called, unless something that it imports is called so."""
_MOST_INDEXES: Final = 32
_MOST_NAMES: Final = 10
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DOUBLE, _FLOAT, _INT64, _UINT64, _INT32, _FIXED64, _FIXED32, _BOOL, _STRING = range(1, 10)
_GROUP, _MESSAGE, _BYTES, _UINT32, _ENUM, _SFIXED32, _SFIXED64, _SINT32, _SINT64 = range(10, 19)
"""How descriptors number the types of fields."""
_OWN: Final[Mapping[str, Mapping[str, int]]] = {
    _TIMESTAMP: {"seconds": _INT64, "nanos": _INT32},
    **{
        f"google.protobuf.{name}Value": {"value": kind}
        for name, kind in (
            *(("Double", _DOUBLE), ("Float", _FLOAT), ("Int64", _INT64), ("UInt64", _UINT64)),
            *(("Int32", _INT32), ("UInt32", _UINT32), ("Bool", _BOOL)),
            *(("String", _STRING), ("Bytes", _BYTES)),
        )
    },
}
"""Messages of Protobuf's own that become single values: the types of their fields by name."""
_ARROW: Final[Mapping[int, Any]] = {
    **dict.fromkeys((_INT32, _SINT32, _SFIXED32), pa.int32()),
    **dict.fromkeys((_INT64, _SINT64, _SFIXED64, _UINT32, _FIXED32), pa.int64()),
    **dict.fromkeys((_UINT64, _FIXED64), pa.decimal128(20, 0)),
    _DOUBLE: pa.float64(),
    _FLOAT: pa.float32(),
    _BOOL: pa.bool_(),
    _STRING: pa.string(),
    _BYTES: pa.binary(),
    _ENUM: pa.string(),
}
_ALIKE: Final[Mapping[int, str]] = {
    **dict.fromkeys((_INT32, _INT64, _UINT32, _UINT64, _BOOL, _ENUM), "a varint"),
    **dict.fromkeys((_SINT32, _SINT64), "a zigzag varint"),
    **dict.fromkeys((_FIXED32, _SFIXED32), "32 bits"),
    **dict.fromkeys((_FIXED64, _SFIXED64), "64 bits"),
    **dict.fromkeys((_STRING, _BYTES), "bytes"),
    _FLOAT: "a float",
    _DOUBLE: "a double",
    _MESSAGE: "a message",
    _GROUP: "a group",
}
"""Types that Protobuf reads as each other."""


class ProtobufCodec:
    """A :class:`Codec` whose columns are the fields of one message; None: the schema's first one.

    Raises InvalidOption: it has no such message.
    """

    def __init__(self, file: Any, message: str | None = None) -> None:  # noqa: ANN401 - protobuf's
        from google.protobuf.message_factory import GetMessageClass

        self._file = file
        self._outermost = [*file.message_types_by_name.values()]
        self._named = {_place_by_name(one): one for one in self._outermost}
        self._indexes, self._message = _find(self._outermost, message)
        try:
            self._class = GetMessageClass(self._message)
        except RecursionError as error:  # for each message it makes those of its fields
            raise InvalidSchema(_TOO_DEEP) from error
        self._most_fields = most_fields(self._message)

    @cached_property
    def columns(self) -> pa.Schema:
        """The fields of the message. Raises InvalidSchema: they cannot be columns."""
        return pa.schema(_Columns().fields(self._message, 1))

    @property
    def defaults(self) -> Mapping[str, pa.Scalar]:
        """Empty: a field that was not written is null, or has its type's own default."""
        return {}

    def decode(
        self,
        data: npt.NDArray[np.uint8],
        starts: Numbers,
        ends: Numbers,
        problems: Problems,
        reader: ProtobufCodec,
    ) -> pa.StructArray:
        from google.protobuf.message import DecodeError

        wanted = reader._message
        held = memoryview(data)  # type: ignore[arg-type]  # it is one
        rows = RowColumns(reader.columns)
        for row, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
            found = None
            rows.begin(end - start)
            try:
                message, body = self._at(bytes(held[start:end]))
                if message.full_name != wanted.full_name:
                    raise ValueError(f"it is a {message.full_name}, not a {wanted.full_name}")
                if len(body) * reader._most_fields > MOST_FIELDS:
                    spend_fields(body, wanted, rows.spend)
                    rows.begin(end - start)
                found = _to_row(reader._class.FromString(body), wanted, rows)
            except (DecodeError, *CONVERSION_ERRORS) as error:
                problems.tell(row, str(error))
            rows.add(found)
        return rows.columns()

    def by_message(
        self, data: npt.NDArray[np.uint8], starts: Numbers, ends: Numbers
    ) -> Iterator[tuple[ProtobufCodec, Numbers]]:
        """For each message of the schema that has values, its codec and their numbers.

        Those that name no message are left out.
        """
        held = memoryview(data)  # type: ignore[arg-type]  # it is one
        found: dict[str, list[int]] = {}
        for number, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
            with suppress(ValueError):
                message, _ = self._at(bytes(held[start:end]))
                found.setdefault(message.full_name, []).append(number)
        for name, numbers in found.items():
            yield ProtobufCodec(self._file, name), np.array(numbers, np.int64)

    def _at(self, value: bytes) -> tuple[Any, bytes]:
        """The message of a value, and the bytes behind its place. Raises ValueError."""
        named = self._by_name(value)
        if named is not None:
            return named
        count, at = _index(value, 0)
        if not 0 <= count <= _MOST_INDEXES:
            raise ValueError("it does not begin with the place of a message")
        indexes = [0]
        if count:
            indexes = []
            for _ in range(count):
                index, at = _index(value, at)
                indexes.append(index)
        found, inside = None, self._outermost
        for index in indexes:
            if not 0 <= index < len(inside):
                raise ValueError(f"there is no message at {indexes} of the schema")
            found = inside[index]
            inside = found.nested_types
        return found, value[at:]

    def _by_name(self, value: bytes) -> tuple[Any, bytes] | None:
        """The result of :meth:`_at` for a value that begins with a message's name.

        The name is a message with nothing else in it, after its length. If the schema has a message
        of this name it is taken for one: as indexes these bytes would mean a message nested five
        levels deep.
        """
        if not value:
            return None
        length, head = value[0], 1
        if length > 0x7F and len(value) > 1:
            length, head = length & 0x7F | value[1] << 7, 2
        end = head + length
        found = self._named.get(value[:end])
        return None if found is None else (found, value[end:])

    def encode(self, columns: pa.RecordBatch) -> list[bytes]:
        from google.protobuf.message import EncodeError

        made = []
        for row in columns.to_pylist():
            message = self._class()
            _fill(message, row, self._message)
            try:
                made.append(self._class.SerializeToString(message))
            except EncodeError as error:  # without a field that is required
                raise ValueError(str(error)) from error
        return made

    def filled(self, value: Mapping[str, Any]) -> Mapping[str, Any]:
        """The value as it is: nothing has a default that is written."""
        return value

    def place(self, id_bytes: int) -> bytes:
        """The message's indexes; behind ids of eight bytes its name, as Apicurio has it."""
        if id_bytes == 4:
            # That of the first message is written as a single 0.
            place = [0] if self._indexes == [0] else [len(self._indexes), *self._indexes]
            return b"".join(varint(index << 1) for index in place)  # zigzag
        if len(self._indexes) > 1:
            raise InvalidOption(
                f"{self._message.full_name} is within another message: behind ids of eight bytes "
                "only the names of others are written"
            )
        return _place_by_name(self._message)

    def why_not(self, writer: ProtobufCodec) -> Iterator[str]:
        mine = {one.full_name: one for _, one in _messages(self._outermost)}
        compared: set[tuple[str, str]] = set()
        for _, other in _messages(writer._outermost):
            if other.full_name not in mine:
                yield f"message {other.full_name} is gone"
            else:
                yield from _why_not(mine[other.full_name], other, compared)


def read_protobuf(
    text: str, references: Sequence[tuple[str, str]] = (), message: str | None = None
) -> ProtobufCodec:
    """The codec of a schema; see :class:`ProtobufCodec`. Raises InvalidSchema: it is none."""
    from google.protobuf.descriptor_pool import DescriptorPool

    files = _all_files(text, references)
    pool = DescriptorPool()
    try:
        for file in _imported_first(files):
            pool.AddSerializedFile(file.SerializeToString())
        found = pool.FindFileByName(files[-1].name)
    except (TypeError, ValueError, KeyError) as error:
        raise InvalidSchema(f"it is not a descriptor of Protobuf: {error!s:.300}") from error
    if not found.message_types_by_name:
        raise InvalidSchema(f"{found.name} has no message")
    return ProtobufCodec(found, message)


def _imported_first(files: Sequence[Any]) -> Iterator[Any]:
    """The descriptors that the last file needs, each after the ones that it imports.

    The library's own versions replace copies of Protobuf's own files.
    """
    known = {file.name: file for file in (*_known_files(()), *files)}
    left, begun, done = [files[-1].name], set[str](), set[str]()
    while left:
        file = known.get(name := left[-1])
        if file is not None and name not in begun:
            begun.add(name)
            left += [one for one in file.dependency if one not in begun]
            continue
        left.pop()
        if file is not None and name not in done:
            done.add(name)
            yield file


def _known_files(have: Collection[str]) -> Iterator[Any]:
    """The descriptors of Protobuf's own files that are not there."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    for known in _KNOWN:
        if f"google/protobuf/{known}.proto" not in have:
            data = import_module(f"google.protobuf.{known}_pb2").DESCRIPTOR.serialized_pb
            yield FileDescriptorProto.FromString(data)


def _all_files(text: str, references: Sequence[tuple[str, str]]) -> list[Any]:
    """The descriptors of a schema and of what it refers to, each behind what it imports."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    texts: dict[str, str] = {}
    imported: list[Any] = []
    named: list[Any] = []
    for name, used in references:
        found = _files(used, name)
        if found is None:
            texts[name] = used
        else:
            imported += found[:-1]
            named.append(found[-1])
    own = _files(text, None)
    # Of one name the last is taken: a reference before what came along in another one's set.
    files = [*imported, *named, *(own or ())]
    if own is not None and not texts:
        return files
    main = _MAIN
    while main in texts or any(file.name == main for file in files):
        main = f"_{main}"
    if own is None:
        texts[main] = text
    else:
        own[-1].name = main
    have = {file.name: file for file in files}
    known = _known_files({*have, *texts})
    descriptors = FileDescriptorSet(file=[*known, *have.values()]).SerializeToString()
    compiled = compile_proto(main, tuple(texts.items()), descriptors)
    return [*FileDescriptorSet.FromString(compiled).file]


def _files(text: str, name: str | None) -> list[Any] | None:
    """The descriptors of files in a base64 text; None if it is not base64.

    ``name`` is the name under which others import the last one.
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
    from google.protobuf.message import DecodeError

    try:
        data = base64.b64decode(check_text(text), validate=True)
    except (binascii.Error, ValueError):
        return None
    try:
        file = FileDescriptorProto.FromString(data)
        # A text that is not valid UTF-8 comes as bytes.
        is_one = isinstance(file.name, str) and file.name.isprintable() and bool(file.name)
    except (DecodeError, UnicodeDecodeError):
        is_one = False
    try:
        found = [file] if is_one else [*FileDescriptorSet.FromString(data).file]
    except (DecodeError, UnicodeDecodeError) as error:
        raise InvalidSchema(f"it is not a descriptor of Protobuf: {error}") from error
    if not found:
        raise InvalidSchema("a descriptor set has no file")
    if name is not None:
        found[-1].name = name
    return found


def _messages(outermost: Sequence[Any]) -> Iterator[tuple[list[int], Any]]:
    """All messages of a file with their indexes, nested ones included."""
    found = deque(([index], message) for index, message in enumerate(outermost))
    while found:
        place, message = found.popleft()
        yield place, message
        found += [
            ([*place, index], inner)
            for index, inner in enumerate(message.nested_types)
            if not inner.GetOptions().map_entry
        ]


def _find(outermost: Sequence[Any], name: str | None) -> tuple[list[int], Any]:
    """A message by its full name, or the first. Raises InvalidOption."""
    for place, message in _messages(outermost):
        if name is None or message.full_name == name:
            return place, message
    known = [message.full_name for _, message in islice(_messages(outermost), _MOST_NAMES)]
    raise InvalidOption(
        f"the schema has no message {name!r:.200}; it has {', '.join(known)!s:.300}"
    )


def _place_by_name(message: Any) -> bytes:  # noqa: ANN401 - protobuf's
    name: bytes = message.name.encode()
    named = b"\x0a" + varint(len(name)) + name
    return varint(len(named)) + named


def _index(value: bytes, at: int) -> tuple[int, int]:
    """A zigzag varint, and where it ends. Raises ValueError."""
    number = 0
    for step in range(5):
        if at + step >= len(value):
            raise ValueError("it ends within the place of its message")
        byte = value[at + step]
        number |= (byte & 0x7F) << (7 * step)
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at + step + 1
    raise ValueError("it does not begin with the place of a message")


# -- columns ---------------------------------------------------------------------------------------


class _Columns:
    """The columns of a message, counted."""

    def __init__(self) -> None:
        self._nodes = 0
        self._open: list[str] = []

    def fields(self, message: Any, depth: int) -> list[pa.Field]:  # noqa: ANN401 - protobuf's
        if message.full_name in self._open:
            raise InvalidSchema(
                f"message {message.full_name} contains itself, and so can have no columns: read "
                "the values as bytes"
            )
        self._open.append(message.full_name)
        made = []
        for field in message.fields:
            self._nodes += 1
            if self._nodes > MOST_NODES or depth > MOST_DEPTH:
                raise InvalidSchema(_TOO_DEEP)
            nullable = depth > 1 or field.has_presence or _is_message(field)
            made.append(pa.field(field.name, self._type(field, depth), nullable))
        self._open.pop()
        return made

    def _type(self, field: Any, depth: int) -> Any:  # noqa: ANN401 - protobuf's and pyarrow's
        if _is_map(field):
            key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
            return pa.map_(_ARROW[key.type], self._single(value, depth))
        single = self._single(field, depth)
        return pa.list_(pa.field("element", single)) if field.is_repeated else single

    def _single(self, field: Any, depth: int) -> Any:  # noqa: ANN401 - protobuf's and pyarrow's
        if not _is_message(field):
            return _ARROW[field.type]
        name = field.message_type.full_name
        if name in _OWN:
            found = {one.name: one.type for one in field.message_type.fields if not one.is_repeated}
            if found != _OWN[name]:
                raise InvalidSchema(f"{name} of this schema is not Protobuf's own")
            return pa.timestamp("us", "UTC") if name == _TIMESTAMP else _ARROW[found["value"]]
        return pa.struct(self.fields(field.message_type, depth + 1))


def _is_message(field: Any) -> bool:  # noqa: ANN401 - protobuf's
    return field.type in (_MESSAGE, _GROUP)


def _is_map(field: Any) -> bool:  # noqa: ANN401 - protobuf's
    if not _is_message(field) or not field.message_type.GetOptions().map_entry:
        return False
    if not field.is_repeated or not {"key", "value"} <= {*field.message_type.fields_by_name}:
        raise InvalidSchema(
            f"field {field.full_name} is of a map's entries, which are repeated and have a key and "
            "a value"
        )
    return True


_TOO_DEEP = (
    f"a schema of Protobuf has more than {MOST_NODES} fields, or {MOST_DEPTH} levels of them"
)


# -- rows ------------------------------------------------------------------------------------------


# Methods are called by their class: a field of the same name stands before them.


def _to_row(message: Any, kind: Any, rows: RowColumns) -> dict[str, Any]:  # noqa: ANN401 - protobuf's
    row: dict[str, Any] = {}
    rows.spend(len(kind.fields))
    for field in kind.fields:
        value = getattr(message, field.name)
        if _is_map(field):
            inner = field.message_type.fields_by_name["value"]
            row[field.name] = [(_text(key), _to_value(value[key], inner, rows)) for key in value]
        elif field.is_repeated:
            row[field.name] = [_to_value(item, field, rows) for item in value]
        elif field.has_presence and not type(message).HasField(message, field.name):
            row[field.name] = None
        else:
            row[field.name] = _to_value(value, field, rows)
    return row


def _to_value(value: Any, field: Any, rows: RowColumns) -> Any:  # noqa: ANN401 - any value of Protobuf
    if field.type == _ENUM:
        known = field.enum_type.values_by_number.get(value)
        return str(value) if known is None else known.name
    if not _is_message(field):
        return _text(value) if field.type == _STRING else value
    kind = field.message_type
    if kind.full_name == _TIMESTAMP:
        return _EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
    if kind.full_name in _OWN:
        return _to_value(value.value, kind.fields_by_name["value"], rows)
    return _to_row(value, kind, rows)


def _text(value: Any) -> Any:  # noqa: ANN401 - any value of Protobuf
    """A text. Raises ValueError: it came as bytes, since it is not valid UTF-8 (proto2)."""
    if isinstance(value, bytes):
        raise ValueError("a text is not valid UTF-8")  # noqa: TRY004 - of a value
    return value


def _fill(message: Any, row: Mapping[str, Any], kind: Any) -> None:  # noqa: ANN401 - protobuf's
    chosen: dict[str, str] = {}
    for field in kind.fields:
        value = row.get(field.name)
        if value is None:
            continue
        if field.containing_oneof is not None:
            other = chosen.setdefault(field.containing_oneof.full_name, field.name)
            if other != field.name:
                raise ValueError(
                    f"{field.full_name}: of a oneof only one can be written, and {other} is there"
                )
        if _is_map(field):
            pairs = value.items() if isinstance(value, Mapping) else value
            inner = field.message_type.fields_by_name["value"]
            outer = field.message_type.fields_by_name["key"]
            target = getattr(message, field.name)
            for given, item in pairs:
                key = _from_value(given, outer)
                if _is_message(inner):
                    _fill_message(target[key], item, inner.message_type)
                else:
                    target[key] = _from_value(item, inner)
            if len(target) < len(pairs):
                raise ValueError(f"{field.full_name}: a key of the map is there twice")
        elif field.is_repeated:
            target = getattr(message, field.name)
            for item in value:
                if _is_message(field):
                    _fill_message(target.add(), item, field.message_type)
                else:
                    target.append(_from_value(item, field))
        elif _is_message(field):
            inner_message = getattr(message, field.name)
            type(inner_message).SetInParent(inner_message)
            _fill_message(inner_message, value, field.message_type)
        else:
            setattr(message, field.name, _from_value(value, field))


def _fill_message(message: Any, value: Any, kind: Any) -> None:  # noqa: ANN401 - protobuf's
    if value is None:
        raise ValueError(f"a {kind.full_name} in a list or a map is null: Protobuf has no nulls")
    if kind.full_name == _TIMESTAMP:
        since = value - _EPOCH
        message.seconds = since.days * 86_400 + since.seconds
        message.nanos = since.microseconds * 1000
    elif kind.full_name in _OWN:
        message.value = _from_value(value, kind.fields_by_name["value"])
    else:
        _fill(message, value, kind)


def _from_value(value: Any, field: Any) -> Any:  # noqa: ANN401 - any value of Protobuf
    if field.type == _ENUM:
        if value in field.enum_type.values_by_name:
            return field.enum_type.values_by_name[value].number
        return int(value)
    return int(value) if field.type in (_UINT64, _FIXED64) else value


# -- compatibility ---------------------------------------------------------------------------------


def _why_not(reader: Any, writer: Any, compared: set[tuple[str, str]]) -> Iterator[str]:  # noqa: ANN401
    """By the numbers of fields, since these are what is written; two messages once."""
    if (reader.full_name, writer.full_name) in compared:
        return
    compared.add((reader.full_name, writer.full_name))
    mine = reader.fields_by_number
    for number, other in writer.fields_by_number.items():
        field = mine.get(number)
        if field is None:
            continue
        place = f"{reader.full_name}.{field.name}"
        if _ALIKE[field.type] != _ALIKE[other.type]:
            yield f"{place}: field {number} was {_ALIKE[other.type]}, and is {_ALIKE[field.type]}"
        elif field.is_repeated != other.is_repeated:
            yield f"{place}: it is repeated in one of them"
        elif _is_message(field):
            yield from _why_not(field.message_type, other.message_type, compared)
    for number, field in mine.items():
        if field.is_required and number not in writer.fields_by_number:
            yield f"{reader.full_name}.{field.name}: the writer lacks what is required"
