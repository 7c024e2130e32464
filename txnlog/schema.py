"""The schema of a typed topic, as its log has it: its columns, and those that are the key.

Knows Arrow's types, and nothing of files. Every column, nested ones too, has an id of its own for
as long as the topic lives: it is written into the files, as engines that read tables expect.
"""

from __future__ import annotations

import base64
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from txnlog.display import shorten
from txnlog.errors import CorruptEntry
from txnlog.limits import AnyNumber, ColumnId, Counter, EncodedSchema, LongName

if TYPE_CHECKING:
    import pyarrow as pa

TIMESTAMP: Final = "_timestamp"
HEADERS: Final = "_headers"
DELETED: Final = "_deleted"
PARTITION: Final = "_partition"
OFFSET: Final = "_offset"
TOPIC: Final = "_topic"
RESERVED: Final = (TOPIC, PARTITION, OFFSET, TIMESTAMP, HEADERS, DELETED)
"""The names of a record's fields besides its columns, reserved for them."""


class FormerName(msgspec.Struct, frozen=True, array_like=True):
    """A former name of a column, in use up to a version of the schema.

    ``parent`` is the id of the struct that it is a field of; 0: of none. It has another name since,
    or was dropped.
    """

    id: ColumnId
    parent: ColumnId
    name: LongName
    until: Counter


class TopicSchema(msgspec.Struct, frozen=True, omit_defaults=True):
    """The columns of a typed topic, and by which of them records are told apart.

    ``arrow`` is the Arrow schema as Arrow's IPC format has it, in base64. ``newest_id`` is the
    largest id that any column has had; ``earlier`` is what that was under each schema before this
    one. ``former`` are names of earlier schemas.
    """

    arrow: EncodedSchema
    key: Annotated[tuple[LongName, ...], AnyNumber] = ()
    newest_id: ColumnId = 0
    earlier: Annotated[tuple[ColumnId, ...], AnyNumber] = ()
    former: Annotated[tuple[FormerName, ...], AnyNumber] = ()

    def __repr__(self) -> str:
        try:
            shown = ", ".join(f"{field.name} {field.type}" for field in self.columns)
        except CorruptEntry:
            shown = "no columns that can be read"
        return f"TopicSchema({shorten(shown)}, key={shorten(self.key)}, version={self.version})"

    @property
    def version(self) -> int:
        """How many schemas the topic had before this one. Names of its files tell it."""
        return len(self.earlier)

    @property
    def columns(self) -> pa.Schema:
        """The columns, as they were asked for. Raises CorruptEntry: the log has no such schema."""
        return _decode(self)

    @property
    def record_columns(self) -> pa.Schema:
        """The stored fields of each record: its columns, its time and headers, whether it deletes.

        What is not a key may be null there: a record that deletes has its key alone. So may what is
        nested; that is checked when it is written.
        """
        return _record_columns(self)

    @property
    def scan_columns(self) -> pa.Schema:
        """The schema for readers: the stored columns, without the ids of files."""
        return _scan_columns(self)


def encode_columns(columns: pa.Schema) -> str:
    """Encode columns as text, which ``TopicSchema.arrow`` keeps."""
    return base64.b64encode(columns.serialize().to_pybytes()).decode("ascii")


@lru_cache(maxsize=64)
def _decode(schema: TopicSchema) -> pa.Schema:
    from txnlog.segments.schema_columns import default_of
    from txnlog.segments.untrusted import read_schema

    try:
        columns = read_schema(base64.b64decode(schema.arrow, validate=True))
        names = columns.names
        for field in columns:
            default_of(field)
    except Exception as error:  # Arrow raises a dozen classes for bytes that it cannot read
        raise CorruptEntry(f"the schema in a topic's log does not decode: {error}") from error
    missing = [name for name in schema.key if name not in names]
    if missing:
        raise CorruptEntry(f"the schema in a topic's log has no column {missing[0]!r}, its key")
    return columns


@lru_cache(maxsize=64)
def _record_columns(schema: TopicSchema) -> pa.Schema:
    import pyarrow as pa

    from txnlog.segments.records import HEADERS_TYPE, TIMESTAMP_TYPE

    fields = [_relax(field) for field in schema.columns]
    fields = [
        field.with_nullable(field.name not in schema.key if schema.key else declared.nullable)
        for field, declared in zip(fields, schema.columns, strict=True)
    ]
    fields += [
        pa.field(TIMESTAMP, TIMESTAMP_TYPE, nullable=False),
        pa.field(HEADERS, HEADERS_TYPE),
    ]
    if schema.key:
        fields.append(pa.field(DELETED, pa.bool_(), nullable=False))
    return pa.schema(fields)


@lru_cache(maxsize=64)
def _scan_columns(schema: TopicSchema) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([without_ids(field) for field in _record_columns(schema)])


def without_ids(field: pa.Field) -> pa.Field:
    """The field as users see it, nested ones too."""
    from txnlog.segments.schema_columns import children, with_children

    kind = with_children(field.type, [without_ids(child) for child in children(field.type)])
    return field.with_type(kind).remove_metadata()


def _relax(field: pa.Field) -> pa.Field:
    """The field with nested ones that may be null: below a null in Arrow there is another."""
    from pyarrow import types

    from txnlog.segments.schema_columns import children, with_children

    inner = [_relax(child).with_nullable(True) for child in children(field.type)]
    if types.is_map(field.type):
        inner[0] = inner[0].with_nullable(False)
    return field.with_type(with_children(field.type, inner))
