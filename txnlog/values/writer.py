"""Columns as values in a registry's framing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from txnlog.columns.casts import Refusal, cast, may_cast
from txnlog.columns.python_values import make_array
from txnlog.errors import InvalidOption, InvalidRecord
from txnlog.segments.records import is_text
from txnlog.segments.schema_columns import elements
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

        Types may differ from those of :attr:`schema` if no value changes, as in typed topics.

        Raises InvalidRecord: a row is no value of the schema, or it has no such column.
        """
        _check_columns(pa.struct([*columns.schema]), pa.struct([*self.schema]))
        whole = columns.combine_chunks() if isinstance(columns, pa.Table) else columns
        batches = whole.to_batches() if isinstance(whole, pa.Table) else [whole]
        made = [value for batch in batches for value in self._encode(self._fit(batch))]
        return pa.array(made, pa.binary())

    def __call__(self, value: Mapping[str, Any]) -> bytes:
        """One value, of a mapping. Raises InvalidRecord: it is none of the schema."""
        if not isinstance(value, Mapping):
            raise self._refusal(f"a mapping of fields to values is needed, not {value!r:.60}")
        known = {*self.schema.names}
        for name in value:
            if name not in known:
                raise _unknown(str(name))
        try:
            given = self._codec.filled(value)
        except (ValueError, TypeError, OverflowError, AttributeError) as error:
            raise self._refusal(str(error)) from error
        fields = [field for field in self.schema if field.name in given]
        arrays = [
            make_array([given[field.name]], field, field.name, self._refusal) for field in fields
        ]
        row = (
            pa.RecordBatch.from_arrays(arrays, [field.name for field in fields])
            if fields
            else pa.RecordBatch.from_struct_array(pa.array([{}], pa.struct([])))
        )
        return self._encode(row)[0]

    def _fit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns as those of the schema; fields that are left out in them stay so."""
        names = batch.schema.names
        if not names:
            return batch
        fields = [self.schema.field(name) for name in names]
        arrays = [
            _fit(array, field, self._refusal)
            for array, field in zip(batch.columns, fields, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, names)

    def _encode(self, batch: pa.RecordBatch) -> list[bytes]:
        try:
            return [self._frame + value for value in self._codec.encode(batch)]
        except (ValueError, TypeError, LookupError, OverflowError, AttributeError) as error:
            raise self._refusal(str(error)) from error

    def _refusal(self, reason: str) -> InvalidRecord:
        return InvalidRecord(
            f"a value cannot be written under schema {self.registered.id} "
            f"({self.registered.subject}): {reason}"
        )


def _fit(array: pa.Array, field: pa.Field, refusal: Refusal) -> pa.Array:
    """A column as one of a field of the schema, if no value changes.

    What typed topics do not take: fields of structs may be left out, lists may be views, a struct
    be a map, whose keys are its fields, and Arrow's extensions are what they are stored as.
    """
    kind = field.type
    array = _stored(array, kind)
    found = array.type
    has_fields = pa.types.is_struct(kind) or pa.types.is_map(kind)
    if has_fields and pa.types.is_struct(found) and not found.num_fields:
        return array
    if may_cast(found, kind) or not pa.types.is_nested(kind):
        return cast(array, field, refusal)
    mask = array.is_null() if array.null_count else None

    def inner(values: pa.Array, name: str, kind: pa.DataType) -> pa.Array:
        return _fit(values, pa.field(f"{field.name}.{name}", kind), refusal)

    if has_fields and pa.types.is_struct(found):
        names = [found.field(number).name for number in range(found.num_fields)]
        is_map = pa.types.is_map(kind)
        kinds = [kind.item_type if is_map else kind.field(name).type for name in names]
        made = map(inner, array.flatten(), names, kinds)
        return pa.StructArray.from_arrays([*made], names, mask=mask)
    if pa.types.is_map(found) and pa.types.is_map(kind):
        offsets, (keys, items) = elements(array, array.keys, array.items)
        keys, items = inner(keys, "key", kind.key_type), inner(items, "value", kind.item_type)
        return pa.MapArray.from_arrays(offsets, keys, items, mask=mask)
    if _is_list(found) and pa.types.is_list(kind):
        lengths = pc.fill_null(pc.list_value_length(array), 0)
        ends = pc.cumulative_sum(lengths.cast(pa.int32()))
        offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
        items = inner(array.flatten(), "element", kind.value_type)
        return pa.ListArray.from_arrays(offsets, items, mask=mask)
    return cast(array, field, refusal)


def _stored(array: pa.Array, kind: Any) -> pa.Array:  # noqa: ANN401 - of pyarrow
    """A column as Arrow stores it, but a UUID for a text as its text, and each value of runs."""
    if pa.types.is_run_end_encoded(array.type):
        return _stored(pc.run_end_decode(array), kind)
    if not isinstance(array.type, pa.BaseExtensionType):
        return array
    if array.type.extension_name == "arrow.uuid" and is_text(kind):
        return pa.array([one and str(one) for one in array.to_pylist()], pa.string())
    return _stored(array.storage, kind)


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
    """Whether a type is one of Arrow's list types; Polars, for instance, has large lists."""
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
