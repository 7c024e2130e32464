"""Records from CSV, Parquet and Arrow: batches with a topic's columns, for a producer.

A file that ``records read`` has written is taken as it is: what it says of topic and offsets, which
the records will get anew, is left out.
"""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader, RawIOBase
from tempfile import TemporaryFile
from typing import IO, Final

import pyarrow as pa

from txnlog.errors import InvalidRecord
from txnlog.schema import DELETED, HEADERS, OFFSET, PARTITION, TIMESTAMP, TOPIC, TopicSchema
from txnlog.segments.records import HEADERS_TYPE
from txnlog.write.text_records import decode_json_headers

_PLACED: Final = frozenset(("topic", "offset", "timestampType"))
_PLACED_TYPED: Final = frozenset((TOPIC, OFFSET))
_MOMENT: Final = pa.timestamp("us", "UTC")
_PLAIN_TYPES: Final[Mapping[str, pa.DataType]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": pa.string(),
    "timestamp": _MOMENT,
    "partition": pa.int32(),
}
_METADATA_TYPES: Final[Mapping[str, pa.DataType]] = {
    HEADERS: pa.string(),
    TIMESTAMP: _MOMENT,
    PARTITION: pa.int32(),
    DELETED: pa.bool_(),
}
_IPC_MAGIC: Final = b"ARROW1"
_ROWS: Final = 65_536
_BLOCK_BYTES: Final = 4 << 20


def read_csv(
    stream: BufferedReader,
    schema: TopicSchema | None,
    null_marker: str | None = None,
    *,
    max_record_bytes: int = 0,
) -> Iterator[pa.RecordBatch]:
    """CSV with columns of the topic, named in its first line.

    Those of a topic without a schema are key, value, headers, timestamp and partition. Nothing
    between two commas is null, so is a ``null_marker`` that is not quoted, and ``""`` an empty
    text. So an empty line is a null where there is one column; with several it is none of the
    records. Headers are JSON, as in what ``records read`` writes. Records may be as large as
    ``max_record_bytes``, which then is read at once.

    Raises InvalidRecord: it is not CSV, or a value is not of its column's type.
    """
    from pyarrow import csv as arrow_csv

    known = dict(_PLAIN_TYPES)
    if schema is not None:
        flat = [field for field in schema.columns if not pa.types.is_nested(field.type)]
        known = {**{field.name: field.type for field in flat}, **_METADATA_TYPES}
    convert = arrow_csv.ConvertOptions(
        column_types=known,
        null_values=[""] if null_marker is None else ["", null_marker],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    # In one thread, or errors do not say in which row. Quotes in a text are doubled.
    block_bytes = max(_BLOCK_BYTES, 2 * max_record_bytes)
    read = arrow_csv.ReadOptions(use_threads=False, block_size=block_bytes)

    def batches() -> Iterator[pa.RecordBatch]:
        first = _read_names(stream)
        parse = arrow_csv.ParseOptions(
            newlines_in_values=True, ignore_empty_lines=_count_names(first) != 1
        )
        try:
            reader = arrow_csv.open_csv(
                _Unread(first, stream),
                read_options=read,
                parse_options=parse,
                convert_options=convert,
            )
        except pa.ArrowInvalid as error:
            if "Empty CSV" in str(error):
                return
            raise
        name = "headers" if schema is None else HEADERS
        yield from (_with_headers(batch, name) for batch in reader)

    return _read("CSV", batches, schema)


def read_parquet(stream: BufferedReader, schema: TopicSchema | None) -> Iterator[pa.RecordBatch]:
    """A Parquet file; one that comes through a pipe is laid down first.

    Raises InvalidRecord: it is none.
    """
    from pyarrow import parquet

    def batches() -> Iterator[pa.RecordBatch]:
        with _seekable(stream) as file:
            opened = parquet.ParquetFile(file)
            for number in range(opened.num_row_groups):
                group = opened.metadata.row_group(number)
                # So many rows would be gathered across groups, however large they are.
                fitting = _BLOCK_BYTES * group.num_rows // max(group.total_byte_size, 1)
                rows = min(max(fitting, 1), _ROWS)
                yield from opened.iter_batches(rows, row_groups=[number])

    return _read("Parquet", batches, schema)


def read_arrow(stream: BufferedReader, schema: TopicSchema | None) -> Iterator[pa.RecordBatch]:
    """A stream of Arrow's, or a file. Raises InvalidRecord: it is neither."""

    def batches() -> Iterator[pa.RecordBatch]:
        if stream.peek(len(_IPC_MAGIC))[: len(_IPC_MAGIC)] != _IPC_MAGIC:
            with pa.ipc.open_stream(stream) as reader:
                yield from reader
            return
        with _seekable(stream) as file:
            reader = pa.ipc.open_file(file)
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)

    return _read("Arrow", batches, schema)


def _read(
    name: str, batches: Callable[[], Iterator[pa.RecordBatch]], schema: TopicSchema | None
) -> Iterator[pa.RecordBatch]:
    placed = _PLACED if schema is None else _PLACED_TYPED
    try:
        for batch in batches():
            names = batch.schema.names
            if len({*names}) < len(names):
                twice = next(name for name in names if names.count(name) > 1)
                raise InvalidRecord(f"the input has column {twice!r:.60} twice")
            chosen = [name for name in names if name not in placed]
            yield batch.select(chosen)
    except OSError as error:
        raise InvalidRecord(f"the input cannot be read: {error.strerror or error}") from error
    except (pa.ArrowException, csv.Error, ValueError) as error:
        hint = ""
        if "In CSV column" in str(error):  # a value is not of its type
            hint = " (null is nothing between two commas, or what --null-marker names)"
        raise InvalidRecord(
            f"the input is not {name} with columns of the topic: {error}{hint}"
        ) from error


def _read_names(stream: BufferedReader) -> bytes:
    """The first line that is not empty, or the beginning of it."""
    while (line := stream.readline(_BLOCK_BYTES)) and not line.strip():
        pass
    return line


def _count_names(line: bytes) -> int:
    text = line.decode(errors="replace")
    return len(next(csv.reader(text.splitlines(keepends=True)), []))


class _Unread(RawIOBase):
    """A stream that first returns bytes that were read from it before."""

    def __init__(self, first: bytes, rest: BufferedReader) -> None:
        self._first = first
        self._rest = rest

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        first, self._first = self._first, b""
        return first or self._rest.read(size)


def _with_headers(batch: pa.RecordBatch, name: str) -> pa.RecordBatch:
    """Replace the JSON of headers by headers as they are sent."""
    at = batch.schema.get_field_index(name)
    if at < 0:
        return batch
    texts = batch.column(at).dictionary_encode()  # most are the same: [], or a source's
    made = [_headers(text) for text in texts.dictionary.to_pylist()]
    return batch.set_column(at, name, pa.array(made, HEADERS_TYPE).take(texts.indices))


def _headers(text: str) -> list[dict[str, object]]:
    return [{"key": name, "value": value} for name, value in decode_json_headers(text)]


@contextmanager
def _seekable(stream: BufferedReader) -> Iterator[IO[bytes]]:
    """The stream itself, or a nameless file with what comes through a pipe."""
    if stream.seekable():
        yield stream
        return
    with TemporaryFile() as laid_down:
        shutil.copyfileobj(stream, laid_down, _BLOCK_BYTES)
        laid_down.seek(0)
        yield laid_down
