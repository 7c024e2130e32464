"""What a server takes over of the metadata that another one has put into the store.

Somebody else may have put it: so all of it has a type and a limit, and what a client would act on,
such as properties, is not among it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, TypeAlias
from zlib import crc32

import msgspec
from msgspec import Meta

from txnlog.limits import AnyNumber, ColumnId, Counter, LongName, Name, Text, TimeMs
from txnlog.tables.iceberg_properties import SHOWN_AT

MOST_SNAPSHOTS = 100
"""Of one answer: each is sent to every client, and put with the next one."""
MOST_METADATA_BYTES = 64 << 20

_PRIMITIVE = r"\A[a-z]{1,20}(\[[0-9]{1,9}\]|\([0-9]{1,2}, ?[0-9]{1,2}\))?\Z"
_Primitive: TypeAlias = Annotated[str, Meta(max_length=40, pattern=_PRIMITIVE)]
_Type: TypeAlias = "_Primitive | _Struct | _List | _Map"
_Whole: TypeAlias = Annotated[int, Meta(ge=-(1 << 63) + 1, le=(1 << 63) - 1)]
_Default: TypeAlias = Text | _Whole | float | bool


class _Strict(msgspec.Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """What has another field is none of ours."""


class _Field(_Strict, frozen=True):
    id: ColumnId
    name: LongName
    type: _Type
    required: bool
    doc: LongName | None = None
    initial_default: _Default | None = None
    write_default: _Default | None = None


class _Struct(_Strict, frozen=True, tag_field="type", tag="struct"):
    fields: Annotated[tuple[_Field, ...], AnyNumber]


class _List(_Strict, frozen=True, tag_field="type", tag="list"):
    element_id: ColumnId
    element: _Type
    element_required: bool


class _Map(_Strict, frozen=True, tag_field="type", tag="map"):
    key_id: ColumnId
    key: _Type
    value_id: ColumnId
    value: _Type
    value_required: bool


class _Schema(_Strict, frozen=True, tag_field="type", tag="struct"):
    fields: Annotated[tuple[_Field, ...], AnyNumber]
    schema_id: ColumnId
    identifier_field_ids: Annotated[tuple[ColumnId, ...], AnyNumber] = ()


class PutSnapshot(msgspec.Struct, frozen=True, rename="kebab"):
    """A snapshot as Iceberg's metadata has it."""

    snapshot_id: Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]
    sequence_number: Counter
    timestamp_ms: TimeMs
    manifest_list: LongName
    schema_id: ColumnId
    summary: Annotated[dict[Name, Annotated[str, Meta(max_length=16 << 20)]], Meta(max_length=100)]

    @property
    def shown_at_ms(self) -> int:
        """When it was shown first, as far as it says so."""
        said = self.summary.get(SHOWN_AT, "")
        return int(said) if re.fullmatch("[0-9]{1,15}", said) else self.timestamp_ms


class PutTable(msgspec.Struct, frozen=True, rename="kebab"):
    """A table's metadata, as far as a later one takes it over."""

    snapshots: Annotated[tuple[PutSnapshot, ...], Meta(max_length=MOST_SNAPSHOTS)]
    schemas: Annotated[tuple[msgspec.Raw, ...], Meta(max_length=MOST_SNAPSHOTS + 1)]
    last_updated_ms: TimeMs

    def schemas_by_number(self) -> dict[int, msgspec.Raw]:
        """Raises MsgspecError: one of them is no schema."""
        try:
            return {_SCHEMA_DECODER.decode(one).schema_id: one for one in self.schemas}
        except RecursionError as error:
            raise msgspec.DecodeError("a schema is too deep") from error


_TABLE_DECODER = msgspec.json.Decoder(PutTable)
_SCHEMA_DECODER = msgspec.json.Decoder(_Schema)


def decode_table(data: bytes) -> PutTable:
    """Raises MsgspecError: it is none that a server has put."""
    try:
        return _TABLE_DECODER.decode(data)
    except RecursionError as error:
        raise msgspec.DecodeError("it is too deep") from error


@dataclass(frozen=True, slots=True)
class NumberedSchema:
    """A schema in Iceberg's JSON, with the number that its content decides."""

    number: int
    data: msgspec.Raw

    @classmethod
    def of(cls, fields: Mapping[str, object]) -> NumberedSchema:
        """Make one from JSON's fields; the number follows from the content, not from theirs."""
        plain = {name: value for name, value in fields.items() if name != "schema-id"}
        number = crc32(msgspec.json.encode(plain)) >> 1
        return cls(number, msgspec.Raw(msgspec.json.encode({**plain, "schema-id": number})))
