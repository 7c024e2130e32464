"""Columns as values in a registry's framing."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from txnlog.errors import InvalidOption, InvalidRecord
from txnlog.values.codecs import make_codec
from txnlog.values.framing import check_id_bytes, frame
from txnlog.values.schemas import Schemas, check_schema_type


class ValueWriter:
    """Encodes values under one schema, whose id they carry.

        writer = ValueWriter(store.schemas, "avro", subject="orders-value")
        with store.producer(value_serializer=writer) as producer:
            producer.send("orders", {"id": 1, "amount": 9.5})

    Args:
        schemas: where the schema comes from; nothing is registered.
        value_format: 'avro', 'protobuf' or 'json'.
        subject: whose schema it is.
        version: of the subject; None: the newest.
        message: of a .proto the full name of the message that is written; None: the first.
        id_bytes: how long the id is: 4, or 8 as Apicurio's deserializers can read it.

    Raises:
        InvalidOption, InvalidSchema, UnknownSchema, StorageError: as :class:`ValueReader`.
    """

    def __init__(
        self,
        schemas: Schemas,
        value_format: str,
        *,
        subject: str,
        version: int | None = None,
        message: str | None = None,
        id_bytes: int = 4,
    ) -> None:
        self.registered = schemas.version(subject, version)
        """The schema under which values are written."""
        wanted = check_schema_type(value_format)
        if self.registered.schema_type != wanted:
            raise InvalidOption(
                f"the schema of {subject!r:.200} is {self.registered.schema_type}, not {wanted}"
            )
        self._codec = make_codec(schemas, self.registered, message)
        head = frame(self.registered.id, check_id_bytes(id_bytes))
        self._frame = head + self._codec.place(id_bytes)
        self.schema = self._codec.columns
        """The columns that are encoded."""

    def encode(self, columns: pa.RecordBatch | pa.Table) -> pa.BinaryArray:
        """A value for each row. Fields with a default may be left out.

        Raises InvalidRecord: a row is no value of the schema, or it has no such column.
        """
        try:
            _check_columns(pa.struct([*columns.schema]), pa.struct([*self.schema]))
            made = self._codec.encode(columns)
        except (ValueError, TypeError, LookupError, OverflowError, AttributeError) as error:
            raise InvalidRecord(
                f"a row cannot be written under schema {self.registered.id} "
                f"({self.registered.subject}): {error}"
            ) from error
        return pa.array([self._frame + value for value in made], pa.binary())

    def __call__(self, value: dict[str, Any]) -> bytes:
        """One value, of a dict. Raises InvalidRecord: it is none of the schema."""
        try:
            _check_names(value, pa.struct([*self.schema]))
            given = self._codec.filled(value)
            kind = pa.struct([field for field in self.schema if field.name in given])
            row = pa.RecordBatch.from_struct_array(pa.array([given], kind))
        except (ValueError, TypeError, OverflowError, AttributeError) as error:
            raise InvalidRecord(f"a value does not fit its schema: {error}") from error
        made: bytes = self.encode(row)[0].as_py()
        return made


def _check_names(value: Any, kind: Any, place: str = "") -> None:  # noqa: ANN401 - of any type
    """Raises InvalidRecord: a value has a field that its type has not, which Arrow leaves out."""
    if pa.types.is_struct(kind) and isinstance(value, dict):
        for name, item in value.items():
            number = kind.get_field_index(name)
            if number < 0:
                raise _unknown(f"{place}{name}")
            _check_names(item, kind.field(number).type, f"{place}{name}.")
    elif not pa.types.is_nested(_item_of(kind)):
        return
    elif pa.types.is_map(kind) and isinstance(value, dict | list | tuple):
        for _, item in value.items() if isinstance(value, dict) else value:
            _check_names(item, kind.item_type, place)
    elif pa.types.is_list(kind) and isinstance(value, list | tuple):
        for item in value:
            _check_names(item, kind.value_type, place)


def _item_of(kind: Any) -> Any:  # noqa: ANN401 - of pyarrow
    """The type of what a map or list has; of others itself."""
    if pa.types.is_map(kind):
        return kind.item_type
    return kind.value_type if pa.types.is_list(kind) else kind


def _check_columns(given: Any, kind: Any, place: str = "") -> None:  # noqa: ANN401 - of pyarrow
    """Raises InvalidRecord: a type has a field that the schema's has not."""
    if pa.types.is_struct(given) and pa.types.is_struct(kind):
        for field in given:
            number = kind.get_field_index(field.name)
            if number < 0:
                raise _unknown(f"{place}{field.name}")
            _check_columns(field.type, kind.field(number).type, f"{place}{field.name}.")
    elif pa.types.is_map(given) and pa.types.is_map(kind):
        _check_columns(given.item_type, kind.item_type, place)
    elif pa.types.is_struct(given) and pa.types.is_map(kind):  # its fields are the keys
        for field in given:
            _check_columns(field.type, kind.item_type, place)
    elif _is_list(given) and pa.types.is_list(kind):
        _check_columns(given.value_type, kind.value_type, place)


def _is_list(kind: Any) -> bool:  # noqa: ANN401 - of pyarrow
    """Whether it is any of Arrow's lists, as those of Polars' frames are large ones."""
    tests = (
        pa.types.is_list,
        pa.types.is_large_list,
        pa.types.is_fixed_size_list,
        pa.types.is_list_view,
        pa.types.is_large_list_view,
    )
    return any(test(kind) for test in tests)


def _unknown(name: str) -> InvalidRecord:
    return InvalidRecord(f"the schema has no field {name!r:.200}")
