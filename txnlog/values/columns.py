"""The columns of a subject's schema, for a typed topic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from txnlog.values.codecs import make_codec
from txnlog.values.schemas import Schemas


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
