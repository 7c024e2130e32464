"""Values in a registry's framing: Avro as columns, beside fastavro value by value."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa
from fastavro.types import Schema

from txnlog.values import RegisteredSchema, ValueReader, ValueWriter

_STATE = {"type": "enum", "name": "State", "symbols": ["NEW", "PAID", "SENT"]}
_FLAT: list[dict[str, Any]] = [
    {"name": "id", "type": "long"},
    {"name": "customer", "type": "string"},
    {"name": "amount", "type": "double"},
    {"name": "quantity", "type": "int"},
    {"name": "note", "type": ["null", "string"], "default": None},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    {
        "name": "state",
        "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID", "SENT"]},
    },
    {"name": "gift", "type": "boolean"},
]
_TAGS = {"name": "tags", "type": {"type": "array", "items": "string"}}
_KINDS = {
    "8 fields": _FLAT,
    "with a nested record": [
        *_FLAT,
        {
            "name": "place",
            "type": {
                "type": "record",
                "name": "Place",
                "fields": [{"name": "city", "type": "string"}, {"name": "zip", "type": "int"}],
            },
        },
    ],
    "with an array": [*_FLAT, _TAGS],
}
_COLUMNS = (
    "values",
    "bytes",
    "ours, M values/s",
    "fastavro, M values/s",
    "ours / fastavro",
    "ours / fastavro to Arrow",
)
_BATCH = 10_000
"""As Spark gives them to a worker."""


class _One:
    """A single schema."""

    def __init__(self, fields: list[dict[str, Any]]) -> None:
        self.text = json.dumps({"type": "record", "name": "Order", "fields": fields})

    def by_id(self, schema_id: int) -> RegisteredSchema:
        return RegisteredSchema(schema_id, "AVRO", self.text)

    def version(self, subject: str, version: int | None = None) -> RegisteredSchema:
        return RegisteredSchema(1, "AVRO", self.text, (), subject, version or 1)


def measure(count: int, repetitions: int) -> list[str]:
    """Lines of Markdown: values of several schemas."""
    head = (
        f"{count:,} values in batches of {_BATCH:,}, as Spark gives them to a worker. CPU is the "
        f"least of {repetitions} runs. fastavro: `schemaless_reader` for each value, to dicts; to "
        "Arrow: columns made of these too. (Target: 5 or more.)"
    )
    lines = [
        head,
        "",
        f"| {' | '.join(_COLUMNS)} |",
        "|---" * len(_COLUMNS) + "|",
    ]
    for name, fields in _KINDS.items():
        schemas = _One(fields)
        values = _values(schemas, fields, count)
        batches = [values.slice(start, _BATCH) for start in range(0, count, _BATCH)]
        reader = ValueReader(schemas, "avro", subject="orders")
        parsed = fastavro.parse_schema(json.loads(schemas.text))

        def by_columns(reader: ValueReader = reader, batches: list[Any] = batches) -> None:
            for batch in batches:
                assert reader.decode(batch).errors.null_count == len(batch)

        def one_by_one(parsed: Schema = parsed, batches: list[Any] = batches) -> list[Any]:
            found = []
            for batch in batches:
                rows = [
                    fastavro.schemaless_reader(BytesIO(value[5:]), parsed, None)
                    for value in batch.to_pylist()
                ]
                found.append(rows)
            return found

        def as_rows(
            reader: ValueReader = reader, read: Callable[[], list[Any]] = one_by_one
        ) -> None:
            for rows in read():
                pa.RecordBatch.from_pylist(rows, reader.schema)

        ours, theirs, whole = (
            min(_cpu_s(call) for _ in range(repetitions))
            for call in (by_columns, one_by_one, as_rows)
        )
        size = values.nbytes // count
        lines.append(
            f"| {name} | {size} | {count / ours / 1e6:.2f} | {count / theirs / 1e6:.3f} | "
            f"{theirs / ours:.1f} | {whole / ours:.1f} |"
        )
    return lines


def _values(schemas: _One, fields: list[dict[str, Any]], count: int) -> pa.Array:
    """Values that differ in length: ids, texts and nulls."""
    more = {"place": {"city": "Rome", "zip": 118}, "tags": ["a", "bcd", "ef"]}
    rows = [
        {
            "id": number * 7,
            "customer": f"customer-{number % 1000}",
            "amount": number * 0.25,
            "quantity": number % 200,
            "note": "gift wrapped, please" if number % 3 == 0 else None,
            "at": 1_700_000_000_000_000 + number * 1000,
            "state": ("NEW", "PAID", "SENT")[number % 3],
            "gift": number % 2 == 0,
            **more,
        }
        for number in range(count)
    ]
    writer = ValueWriter(schemas, "avro", subject="orders")
    columns = {
        field.name: pa.array([row[field.name] for row in rows]).cast(field.type)
        for field in writer.schema
    }
    assert len(columns) == len(fields)
    return writer.encode(pa.record_batch(columns))


def _cpu_s(call: Callable[[], object]) -> float:
    begun = time.process_time()
    call()
    return time.process_time() - begun


if __name__ == "__main__":
    print("\n".join(measure(100_000, 3)))
