"""How records are shown, by ``txnlog records`` and ``segments dump`` alike."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from txnlog.cli.output.fields import (
    Field,
    Json,
    json_bytes,
    number,
    printable,
    printable_bytes,
    text,
    time,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from txnlog.consumer import ConsumerRecord

_ROWS = 1000
"""So many records are Python objects at a time."""

Header = tuple[str, bytes | None]


@dataclass(frozen=True, slots=True)
class Content:
    """What a producer gave, and the record's time."""

    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]


@dataclass(frozen=True, slots=True)
class Record:
    """One record. ``topic``, ``partition`` and ``timestamp_type`` are None where nobody knows."""

    topic: str | None
    partition: int | None
    timestamp_type: str | None
    offset: int
    content: Content


def _headers_json(record: Record) -> Json:
    return [{"key": key, "value": json_bytes(value)} for key, value in record.content.headers]


def _headers_line(record: Record) -> str:
    return ", ".join(
        f"{printable(key)}={printable_bytes(value)}" for key, value in record.content.headers
    )


CONTENT: list[Field[Record]] = [
    number("offset", "OFFSET", lambda record: record.offset),
    time("timestamp_ms", "TIMESTAMP", lambda record: record.content.timestamp_ms),
    Field(
        "key",
        "KEY",
        lambda record: json_bytes(record.content.key),
        lambda record: printable_bytes(record.content.key),
    ),
    Field(
        "value",
        "VALUE",
        lambda record: json_bytes(record.content.value),
        lambda record: printable_bytes(record.content.value),
    ),
    Field("headers", "HEADERS", _headers_json, _headers_line),
]

PAYLOAD = [field for field in CONTENT if field.key in ("key", "value")]

RECORD: list[Field[Record]] = [
    text("topic", None, lambda record: record.topic),
    number("partition", "PARTITION", lambda record: record.partition),
    text("timestamp_type", None, lambda record: record.timestamp_type),
    *CONTENT,
]


class Encoding(str, Enum):
    """How bytes are shown: as text where they are UTF-8, or always in one of these."""

    TEXT = "text"
    HEX = "hex"
    BASE64 = "base64"


def record_fields(encoding: Encoding) -> list[Field[Record]]:
    """What is shown of a record, with its bytes in this encoding."""
    if encoding is Encoding.TEXT:
        return RECORD

    def show(data: bytes | None) -> str:
        if data is None:
            return printable_bytes(None)
        if encoding is Encoding.HEX:
            return data.hex()
        return b64encode(data).decode("ascii")

    def to_json(data: bytes | None) -> Json:
        return None if data is None else {encoding.value: show(data)}

    own: dict[str, Field[Record]] = {
        "key": Field(
            "key", "KEY", lambda at: to_json(at.content.key), lambda at: show(at.content.key)
        ),
        "value": Field(
            "value",
            "VALUE",
            lambda at: to_json(at.content.value),
            lambda at: show(at.content.value),
        ),
        "headers": Field(
            "headers",
            "HEADERS",
            lambda at: [{"key": k, "value": to_json(v)} for k, v in at.content.headers],
            lambda at: ", ".join(f"{printable(k)}={show(v)}" for k, v in at.content.headers),
        ),
    }
    return [own.get(field.key, field) for field in RECORD]


def content_line(record: Record, *, metadata: bool = True) -> str:
    """A record on one line, where a table's columns are taken by something else."""
    if not metadata:
        return "  ".join(f"{field.key}: {field.show(record)}" for field in PAYLOAD)
    shown = [f"{field.key.removesuffix('_ms')}: {field.show(record)}" for field in CONTENT]
    return "  ".join(shown if record.content.headers else shown[:-1])


def scan_records(batch: pa.RecordBatch) -> Iterator[Record]:
    """The records of a batch that has all columns of a scan."""
    for start in range(0, batch.num_rows, _ROWS):
        rows = batch.slice(start, _ROWS)
        places = zip(
            rows.column("topic").to_pylist(),
            rows.column("partition").to_pylist(),
            rows.column("timestampType").to_pylist(),
            rows.column("offset").to_pylist(),
            strict=True,
        )
        contents = _contents(rows, ticks_per_ms=1000)
        for (topic, partition, kind, offset), content in zip(places, contents, strict=True):
            timestamp_type = "LogAppendTime" if kind else "CreateTime"
            yield Record(topic, partition, timestamp_type, offset, content)


def consumed_record(record: ConsumerRecord) -> Record:
    """A record as a consumer returns it."""
    content = Content(record.timestamp, record.key, record.value, record.headers)
    kind = "LogAppendTime" if record.timestamp_type else "CreateTime"
    return Record(record.topic, record.partition, kind, record.offset, content)


def stored_contents(batch: pa.RecordBatch) -> Iterator[Content]:
    """The records of a batch as a segment stores it."""
    for start in range(0, batch.num_rows, _ROWS):
        yield from _contents(batch.slice(start, _ROWS), ticks_per_ms=1)


def _contents(rows: pa.RecordBatch, ticks_per_ms: int) -> Iterator[Content]:
    columns = zip(
        rows.column("timestamp").view("int64").to_pylist(),
        rows.column("key").to_pylist(),
        rows.column("value").to_pylist(),
        rows.column("headers").to_pylist(),
        strict=True,
    )
    for ticks, key, value, headers in columns:
        pairs = [(header["key"], header["value"]) for header in headers or ()]
        yield Content(ticks // ticks_per_ms, key, value, pairs)
