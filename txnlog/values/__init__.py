"""Values in the framing of schema registries: Avro, Protobuf and JSON Schema as columns.

    from txnlog.values import ValueReader, ValueWriter

    store.schemas.add("orders-value", schema)
    writer = ValueWriter(store.schemas, "avro", subject="orders-value")
    with store.producer(value_serializer=writer) as producer:
        producer.send("orders", {"id": 1, "amount": 9.5})
    reader = ValueReader(store.schemas, "avro", subject="orders-value")
    for batch in reader.read(store.scan("orders").to_batches()): ...

Each value carries the id of the schema that it was written under. Schemas come from the store's own
topic (:attr:`txnlog.Store.schemas`), a folder of files, or a registry's HTTP API. See
docs/VALUES.md. Names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from txnlog.hooks import lazily

if TYPE_CHECKING:
    from txnlog.values.codecs import SubjectColumns, subject_columns
    from txnlog.values.compatibility import Compatibility
    from txnlog.values.folder import SchemaFolder
    from txnlog.values.reader import DecodedValues, ValueReader
    from txnlog.values.registry import SchemaRegistry
    from txnlog.values.schemas import RegisteredSchema, SchemaReference, Schemas
    from txnlog.values.writer import ValueWriter

__all__ = [
    "Compatibility",
    "DecodedValues",
    "RegisteredSchema",
    "SchemaFolder",
    "SchemaReference",
    "SchemaRegistry",
    "Schemas",
    "SubjectColumns",
    "ValueReader",
    "ValueWriter",
    "subject_columns",
]

_HOMES = {
    "codecs": ("SubjectColumns", "subject_columns"),
    "compatibility": ("Compatibility",),
    "folder": ("SchemaFolder",),
    "reader": ("DecodedValues", "ValueReader"),
    "registry": ("SchemaRegistry",),
    "schemas": ("RegisteredSchema", "SchemaReference", "Schemas"),
    "writer": ("ValueWriter",),
}

__getattr__, __dir__ = lazily(globals(), _HOMES)
