"""The keys of records, and which records are tombstones, with or without a schema."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from txnlog.columns.keys import encode_keys
from txnlog.schema import DELETED, TopicSchema
from txnlog.segments.records import RECORD_SCHEMA


@dataclass(frozen=True, slots=True)
class RecordKeys:
    """How compaction looks at the records of a topic; ``schema`` is None if they have a value."""

    schema: TopicSchema | None

    @property
    def columns(self) -> pa.Schema:
        """The schema of a whole record."""
        return RECORD_SCHEMA if self.schema is None else self.schema.record_columns

    @property
    def key_columns(self) -> pa.Schema:
        """The columns of its key."""
        names = ("key",) if self.schema is None else self.schema.key
        return pa.schema([self.columns.field(name) for name in names])

    def keys(self, records: pa.RecordBatch) -> pa.Array:
        """The keys as bytes, from the key columns."""
        if self.schema is None:
            return records.column("key")
        return encode_keys([records.column(name) for name in self.schema.key], records.num_rows)

    def deleting(self, records: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Which records are tombstones; none are in a topic without a key."""
        if self.schema is not None and not self.schema.key:
            return np.zeros(records.num_rows, dtype=np.bool_)
        column = records.column("value" if self.schema is None else DELETED)
        mask = column.is_null() if self.schema is None else column
        found: npt.NDArray[np.bool_] = mask.to_numpy(zero_copy_only=False)
        return found
