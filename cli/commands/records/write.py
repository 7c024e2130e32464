"""``txnlog records write``: records from stdin, all of them in one step or none."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from txnlog.cli.input.assignments import parse_headers
from txnlog.cli.input.options import CompressionOption
from txnlog.cli.input.places import Target, parse_target
from txnlog.cli.output.fields import Field, number, text
from txnlog.cli.output.streams import warn
from txnlog.cli.session import Session

if TYPE_CHECKING:
    from io import BufferedReader

    import pyarrow as pa

    from txnlog.config import CompressionType
    from txnlog.store import Store
    from txnlog.write.text_records import Headers, LineFormat


class InputFormat(str, Enum):
    """What a line of stdin is."""

    LINES = "lines"
    JSONL = "jsonl"


@dataclass(frozen=True, slots=True)
class Written:
    """Where records have gone."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int


FIELDS: list[Field[Written]] = [
    text("topic", "TOPIC", lambda part: part.topic),
    number("partition", "PART", lambda part: part.partition),
    number("start_offset", "START", lambda part: part.start_offset),
    number("end_offset", "END", lambda part: part.end_offset),
    number("record_count", "RECORDS", lambda part: part.end_offset - part.start_offset),
]


InputOption = Annotated[
    InputFormat,
    typer.Option(
        "-i", "--input", help="lines: text, one value a line; jsonl: one JSON object a line."
    ),
]
KeyDelimiterOption = Annotated[
    str | None,
    typer.Option(
        "-K",
        "--key-delimiter",
        metavar="TEXT",
        help="A line is key, this, value.",
        show_default=False,
    ),
]
KeyOption = Annotated[
    str | None,
    typer.Option("-k", "--key", metavar="KEY", help="The key of all.", show_default=False),
]
HeaderOption = Annotated[
    list[str] | None,
    typer.Option(
        "-H",
        "--header",
        metavar="NAME=VALUE",
        help="A header of all; may be repeated.",
        show_default=False,
    ),
]
PartitionerOption = Annotated[
    str,
    typer.Option(
        "--partitioner",
        metavar="NAME",
        help="murmur2, crc32, sticky, round_robin, random, or package.module:function.",
    ),
]
NullMarkerOption = Annotated[
    str | None,
    typer.Option(
        "--null-marker", metavar="TEXT", help="In lines this stands for null.", show_default=False
    ),
]


def write_records(
    session: Session,
    target: Annotated[
        str,
        typer.Argument(
            metavar="TOPIC[:PARTITION]", help="Where to; without a partition the keys decide."
        ),
    ],
    input_format: InputOption = InputFormat.LINES,
    key_delimiter: KeyDelimiterOption = None,
    key: KeyOption = None,
    header: HeaderOption = None,
    null_marker: NullMarkerOption = None,
    compression: CompressionOption = None,
    partitioner: PartitionerOption = "murmur2",
) -> None:
    """Write records from stdin, and show where they are. All become visible in one step.

    A mistake in a line, Ctrl-C or a failing storage: nothing is written. In JSON a record has a
    value, null for a tombstone, and as wanted key, headers, timestamp_ms and partition; a line
    of another shape is refused. It may be what `records read -o jsonl` has printed, and is then
    copied with its time, into the partition of the same number.

    \b
    Example:
      printf 'alice:tea\\nbob:milk\\n' | txnlog records write orders -K :
      txnlog records read orders -o jsonl | txnlog records write copy -i jsonl
    """
    where, headers = parse_target(target), parse_headers(header or ())
    _check_partitioner(partitioner)
    _check_options(input_format, key_delimiter, key, null_marker)
    store = session.open_store()
    limits = _find_limits(store, where)
    if sys.stdin.isatty():
        warn("one record a line: Ctrl-D writes them, Ctrl-C drops them")
    from txnlog.write.text_records import LineFormat

    encoded = (_encode(key_delimiter), _encode(null_marker), _encode(key))
    line_format = None if input_format is InputFormat.JSONL else LineFormat(*encoded, headers)
    with open(sys.stdin.fileno(), "rb", closefd=False) as stdin:
        batches = _read_batches(stdin, line_format, headers, limits)
        codec: CompressionType | None = None if compression is None else compression.value
        written = _write(store, where, batches, codec, partitioner)
    if not written:
        warn("there were no records")
    session.output.rows(FIELDS, written)


def _check_options(
    input_format: InputFormat, key_delimiter: str | None, key: str | None, null_marker: str | None
) -> None:
    """Raises BadParameter where options contradict each other."""
    of_lines = (key_delimiter, key, null_marker)
    if input_format is InputFormat.JSONL and of_lines != (None, None, None):
        raise typer.BadParameter("--key-delimiter, --key and --null-marker are for --input lines")
    if key_delimiter is not None and key is not None:
        raise typer.BadParameter("give either --key-delimiter or --key")
    if key_delimiter == "":
        raise typer.BadParameter("--key-delimiter is empty")


def _check_partitioner(name: str) -> None:
    """Raises BadParameter before a line is read."""
    from txnlog.errors import InvalidOption
    from txnlog.write.partitioner import check_partitioner

    try:
        check_partitioner(name)
    except InvalidOption as error:
        raise typer.BadParameter(f"--partitioner: {error}") from error


@dataclass(frozen=True, slots=True)
class _Limits:
    """How many bytes a record may have, and below what number a line's own partition must be."""

    max_record_bytes: int
    partition_count: int | None
    """None: a partition on the command line overrules those of the lines."""


def _find_limits(store: Store, where: Target) -> _Limits:
    """Raises UnknownTopicOrPartition."""
    from txnlog.config import TopicConfig
    from txnlog.errors import UnknownTopicOrPartition

    spec = store.topic_spec(where.topic)
    if where.partition is not None and where.partition >= spec.partitions:
        raise UnknownTopicOrPartition(
            f"topic {where.topic!r} has no partition {where.partition}; it has "
            f"{spec.partitions}, numbered from 0"
        )
    return _Limits(
        TopicConfig.of(spec.config).max_message_bytes,
        spec.partitions if where.partition is None else None,
    )


def _read_batches(
    stdin: BufferedReader, line_format: LineFormat | None, headers: Headers, limits: _Limits
) -> Iterator[pa.RecordBatch]:
    """The records of lines, in JSON if there is no format. Raises InvalidRecord, RecordTooLarge."""
    from txnlog.write.text_records import read_json_lines, read_lines

    if line_format is not None:
        return read_lines(stdin, line_format, max_line_bytes=limits.max_record_bytes)
    return read_json_lines(
        stdin,
        headers=headers,
        max_line_bytes=limits.max_record_bytes,
        partition_count=limits.partition_count,
    )


def _write(
    store: Store,
    where: Target,
    batches: Iterator[pa.RecordBatch],
    compression: CompressionType | None,
    partitioner: str,
) -> list[Written]:
    # A flush without a transaction is one entry of one log: all of it shows at once, or nothing.
    with store.producer(compression_type=compression, partitioner=partitioner) as producer:
        for batch in batches:
            producer.send_batch(where.topic, batch, where.partition)
        placed = producer.flush()
    return [
        Written(at.topic, at.partition, offsets.start, offsets.stop)
        for at, ranges in sorted(placed.items())
        for offsets in ranges
    ]


def _encode(typed: str | None) -> bytes | None:
    return None if typed is None else typed.encode(errors="surrogateescape")
