"""How values of each kind of schema become columns, and columns values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from txnlog.errors import require_package
from txnlog.values.avro_columns import Numbers, Problems
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
        data: npt.NDArray[np.uint8],
        starts: Numbers,
        ends: Numbers,
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
    if schema_type == "PROTOBUF":
        require_package("google.protobuf", "registry", "values of Protobuf")
        from txnlog.values.protobuf import read_protobuf

        return read_protobuf(text, references)
    from txnlog.values.json_schema import read_json_schema

    return read_json_schema(text, references)
