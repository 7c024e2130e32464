"""Values that carry the id of one of the store's schemas, as people read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from txnlog.errors import TxnlogError
from txnlog.read.json_columns import json_objects
from txnlog.values.own_schemas import decode_each

if TYPE_CHECKING:
    from txnlog.read.consumer_record import ConsumerRecord
    from txnlog.values import Schemas


def fields_of(
    schemas: Schemas, records: Sequence[ConsumerRecord]
) -> list[tuple[int, bytes] | None]:
    """Of each record the id of its schema and its fields as JSON; None: it has none.

    Schemas are looked for only if a value begins as one that carries an id.
    """
    found: list[tuple[int, bytes] | None] = [None] * len(records)
    values = [record.value for record in records]
    if not any(value is not None and value[:1] == b"\0" and len(value) > 5 for value in values):
        return found
    try:
        for schema_id, rows, columns in decode_each(schemas, pa.array(values, pa.binary())):
            texts = json_objects(columns.schema.names, columns.columns, columns.num_rows)
            for row, text in zip(rows.tolist(), texts.to_pylist(), strict=True):
                found[row] = (schema_id, text.encode())
    except TxnlogError:  # the page is of records, which are shown as they are
        return found
    return found
