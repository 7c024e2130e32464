"""How values of each kind of schema become columns, and columns values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, Self

import pyarrow as pa

from txnlog.errors import InvalidOption, require_package
from txnlog.values.avro_columns import Problems
from txnlog.values.schemas import RegisteredSchema, SchemaType


class Codec(Protocol):
    """One schema."""

    @property
    def columns(self) -> pa.Schema:
        """The columns of its values."""
        ...

    @property
    def defaults(self) -> Mapping[str, pa.Scalar]:
        """What columns have of values that were written without them, but for null."""
        ...

    def decode(
        self,
        data: Any,  # noqa: ANN401 - arrays of numpy
        starts: Any,  # noqa: ANN401
        ends: Any,  # noqa: ANN401
        problems: Problems,
        reader: Self,
    ) -> pa.StructArray:
        """The columns of ``reader``, of values of this schema behind the ids in their frames.

        Raises InvalidSchema: no value of this schema is one of the reader's.
        """
        ...

    def why_not(self, writer: Self) -> Iterator[str]:
        """What stands against reading the values of another schema as this one's."""
        ...

    def encode(self, columns: pa.RecordBatch) -> list[bytes]:
        """The values of rows, each as it is behind the id in its frame.

        Raises ValueError, TypeError, LookupError: one cannot be written.
        """
        ...


def make_codec(schema: RegisteredSchema, references: Sequence[tuple[str, str]]) -> Codec:
    """The codec of a schema. Raises InvalidSchema; InvalidOption: a library is missing."""
    return parse_schema(schema.schema_type, schema.text, references)


def parse_schema(
    schema_type: SchemaType, text: str, references: Sequence[tuple[str, str]] = ()
) -> Codec:
    """The codec of a schema that may not be registered yet.

    Raises InvalidSchema: it is none. InvalidOption: a library is missing.
    """
    if schema_type == "AVRO":
        require_package("fastavro", "registry", "values of Avro")
        from txnlog.values.avro import read_avro

        return read_avro(text, references)
    raise InvalidOption(f"values of {schema_type} are not known")
