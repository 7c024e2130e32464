"""Records for ``txnlog records`` and ``segments dump``, and their sources."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from txnlog.cli.input.record_options import Encoding
from txnlog.cli.output.escape import Json, bytes_to_json, escape_bytes, escape_text
from txnlog.cli.output.fields import Field, number, text, time

if TYPE_CHECKING:
    import pyarrow as pa

    from txnlog.read.consumer_reads import ConsumerRecord

_ROWS = 1000
"""How many records are Python objects at a time."""
_GLANCE_BYTES = 16_384

Header = tuple[str, bytes | None]


@dataclass(frozen=True, slots=True)
class Content:
    """The producer's fields, and the record's time."""

    timestamp_ms: int | None
    """None: of a file that tells no times."""
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]


@dataclass(frozen=True, slots=True)
class Record:
    """One record. ``topic``, ``partition`` and ``timestamp_type`` are None if unknown."""

    topic: str | None
    partition: int | None
    timestamp_type: str | None
    offset: int
    content: Content


def _list_bytes_fields(
    show: Callable[[bytes | None], str], encode: Callable[[bytes | None], Json]
) -> list[Field[Record]]:
    """Key, value and headers; how their bytes are shown to people, and what they are in JSON."""

    def get_headers(record: Record) -> Json:
        return [{"key": key, "value": encode(value)} for key, value in record.content.headers]

    def show_headers(record: Record, show: Callable[[bytes | None], str] = show) -> str:
        return ", ".join(
            f"{escape_text(key)}={show(value)}" for key, value in record.content.headers
        )

    def glance(data: bytes | None) -> str:
        # No terminal is wider, and text that will be truncated need not be escaped first.
        if data is None or len(data) <= _GLANCE_BYTES:
            return show(data)
        return f"{show(data[:_GLANCE_BYTES])}\u2026"

    return [
        Field(
            *("key", "KEY"),
            lambda record: encode(record.content.key),
            lambda record: show(record.content.key),
            elastic=1,
            glance=lambda record: glance(record.content.key),
        ),
        Field(
            *("value", "VALUE"),
            lambda record: encode(record.content.value),
            lambda record: show(record.content.value),
            elastic=2,
            glance=lambda record: glance(record.content.value),
        ),
        Field(
            *("headers", "HEADERS", get_headers, show_headers),
            elastic=1,
            glance=lambda record: show_headers(record, glance),
            seldom=True,
        ),
    ]


_PLACE: list[Field[Record]] = [
    text("topic", None, lambda record: record.topic),
    number("partition", "PARTITION", lambda record: record.partition),
    text("timestamp_type", None, lambda record: record.timestamp_type),
]
_POSITION: list[Field[Record]] = [
    number("offset", "OFFSET", lambda record: record.offset),
    time("timestamp_ms", "TIMESTAMP", lambda record: record.content.timestamp_ms),
]
CONTENT = [*_POSITION, *_list_bytes_fields(escape_bytes, bytes_to_json)]
PAYLOAD = [field for field in CONTENT if field.key in ("key", "value")]
RECORD = [*_PLACE, *CONTENT]


def record_fields(encoding: Encoding) -> list[Field[Record]]:
    """A record's fields, with its bytes in this encoding."""
    if encoding is Encoding.TEXT:
        return RECORD

    def show(data: bytes | None) -> str:
        if data is None:
            return escape_bytes(None)
        if encoding is Encoding.HEX:
            return data.hex()
        return b64encode(data).decode("ascii")

    def encode(data: bytes | None) -> Json:
        return None if data is None else {encoding.value: show(data)}

    return [*_PLACE, *_POSITION, *_list_bytes_fields(show, encode)]


def show_content(record: Record, *, metadata: bool = True) -> str:
    """A record on one line, if the table's columns show something else."""
    if not metadata:
        return "  ".join(f"{field.key}: {field.show(record)}" for field in PAYLOAD)
    shown = [f"{field.key.removesuffix('_ms')}: {field.show(record)}" for field in CONTENT]
    return "  ".join(shown if record.content.headers else shown[:-1])


def read_scanned(batches: Iterable[pa.RecordBatch]) -> Iterator[Record]:
    """The records of batches that have all columns of a scan."""
    for rows in _slice_all(batches):
        places = zip(
            rows.column("topic").to_pylist(),
            rows.column("partition").to_pylist(),
            rows.column("timestampType").to_pylist(),
            rows.column("offset").to_pylist(),
            strict=True,
        )
        contents = _read_contents(rows, ticks_per_ms=1000)
        for (topic, partition, kind, offset), content in zip(places, contents, strict=True):
            timestamp_type = "LogAppendTime" if kind else "CreateTime"
            yield Record(topic, partition, timestamp_type, offset, content)


def convert_consumed(record: ConsumerRecord) -> Record:
    """A record as a consumer returns it."""
    content = Content(record.timestamp, record.key, record.value, record.headers)
    kind = "LogAppendTime" if record.timestamp_type else "CreateTime"
    return Record(record.topic, record.partition, kind, record.offset, content)


def read_stored(batch: pa.RecordBatch) -> Iterator[Content]:
    """The records of a batch as a segment stores it; of a typed topic with values in JSON."""
    from txnlog.read.json_records import without_schema

    for rows in _slice_all([without_schema(batch)]):
        yield from _read_contents(rows, ticks_per_ms=1)


def _slice_all(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for start in range(0, batch.num_rows, _ROWS):
            yield batch.slice(start, _ROWS)


def _read_contents(rows: pa.RecordBatch, ticks_per_ms: int) -> Iterator[Content]:
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
