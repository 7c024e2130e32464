"""How values of each kind of schema become columns, and columns values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from txnlog.errors import InvalidOption, require_package
from txnlog.values.avro_columns import Numbers, Problems
from txnlog.values.schemas import RegisteredSchema, Schemas, SchemaType, with_references


class Codec(Protocol):
    """One schema."""

    @property
    def columns(self) -> pa.Schema:
        """The columns of its values."""
        ...

    @property
    def defaults(self) -> Mapping[str, pa.Scalar]:
        """Defaults, by column, for values that were written without it; else they are null."""
        ...

    def decode(
        self,
        data: npt.NDArray[np.uint8],
        starts: Numbers,
        ends: Numbers,
        problems: Problems,
        reader: Self,
    ) -> pa.StructArray:
        """The columns of ``reader``, of values of this schema behind the ids in their frames.

        Raises InvalidSchema: no value of this schema is one of the reader's; TooManyFields: several
        values become too much together.
        """
        ...

    def why_not(self, writer: Self) -> Iterator[str]:
        """Reasons why another schema's values cannot be read with this one; none if they can."""
        ...

    def encode(self, columns: pa.RecordBatch) -> list[bytes]:
        """The values of rows, each as it is behind the id in its frame and :meth:`place`.

        Raises ValueError, TypeError, LookupError: one cannot be written.
        """
        ...

    def filled(self, value: Mapping[str, Any]) -> Mapping[str, Any]:
        """A value with the defaults of what is left out."""
        ...

    def place(self, id_bytes: int) -> bytes:
        """The bytes after the id that say which part of the schema a value is of.

        ``id_bytes``: the length of the id. Raises InvalidOption: ids of this length cannot be
        followed by such bytes.
        """
        ...


def make_codec(schemas: Schemas, schema: RegisteredSchema, message: str | None = None) -> Codec:
    """The codec of a schema; ``message``: of a .proto the one that is read, None: its first.

    Raises InvalidSchema; UnknownSchema: one that it refers to is not there; InvalidOption: there is
    no such message, or a library is missing.
    """
    references = with_references(schemas, schema)
    return parse_schema(schema.schema_type, schema.text, references, message)


def parse_schema(
    schema_type: SchemaType,
    text: str,
    references: Sequence[tuple[str, str]] = (),
    message: str | None = None,
) -> Codec:
    """The codec of a schema that may not be registered yet.

    Raises InvalidSchema: it is none. InvalidOption: see :func:`make_codec`.
    """
    if message is not None and schema_type != "PROTOBUF":
        raise InvalidOption(
            f"message={message!r:.200} is for Protobuf; the schema is {schema_type}"
        )
    if schema_type == "AVRO":
        require_package("fastavro", "registry", "values of Avro")
        from txnlog.values.avro import read_avro

        return read_avro(text, references)
    if schema_type == "PROTOBUF":
        require_package("google.protobuf", "registry", "values of Protobuf")
        from txnlog.values.protobuf import read_protobuf

        return read_protobuf(text, references, message)
    from txnlog.values.json_schema import read_json_schema

    return read_json_schema(text, references)


@dataclass(frozen=True, slots=True)
class SubjectColumns:
    """Columns, and by name the defaults of some: as ``store.topics.create`` takes them."""

    columns: pa.Schema
    defaults: Mapping[str, pa.Scalar]


def subject_columns(
    schemas: Schemas, subject: str, version: int | None = None, *, message: str | None = None
) -> SubjectColumns:
    """The columns of a schema.

    Args:
        schemas: where it comes from.
        subject: whose schema.
        version: which; None: the newest.
        message: of a .proto the full name of the message whose fields they are; None: the first.

    Raises:
        UnknownSchema, InvalidSchema, StorageError: as :class:`ValueReader`.
    """
    found = schemas.version(subject, version)
    codec = make_codec(schemas, found, message)
    return SubjectColumns(codec.columns, codec.defaults)
