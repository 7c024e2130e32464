"""``txnlog records write``: records from stdin, all of them in one step or none."""

# ruff: noqa: D301 - the help keeps lines as they are after a real backspace
from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from txnlog.cli.input.options import CompressionOption
from txnlog.cli.input.places import Target, parse_target
from txnlog.cli.output.fields import Field, number, text
from txnlog.cli.output.output import warn
from txnlog.cli.session import OutputOption, StorageOptions, StoreOption, open_session

if TYPE_CHECKING:
    import pyarrow as pa

    from txnlog.store import Store
    from txnlog.write.record_input import Headers


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


WRITTEN: list[Field[Written]] = [
    text("topic", "TOPIC", lambda part: part.topic),
    number("partition", "PART", lambda part: part.partition),
    number("start_offset", "START", lambda part: part.start_offset),
    number("end_offset", "END", lambda part: part.end_offset),
    number("record_count", "RECORDS", lambda part: part.end_offset - part.start_offset),
]


def write_records(
    ctx: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            metavar="TOPIC[:PARTITION]", help="Where to; without a partition the keys decide."
        ),
    ],
    input_format: Annotated[
        InputFormat,
        typer.Option(
            "-i", "--input", help="lines: text, one value a line; jsonl: one JSON object a line."
        ),
    ] = InputFormat.LINES,
    key_delimiter: Annotated[
        str | None,
        typer.Option(
            "-K",
            "--key-delimiter",
            metavar="TEXT",
            help="A line is key, this, value.",
            show_default=False,
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("-k", "--key", metavar="KEY", help="The key of all.", show_default=False),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "-H",
            "--header",
            metavar="NAME=VALUE",
            help="A header of all; may be repeated.",
            show_default=False,
        ),
    ] = None,
    null_marker: Annotated[
        str | None,
        typer.Option(
            "--null-marker",
            metavar="TEXT",
            help="In lines this stands for null.",
            show_default=False,
        ),
    ] = None,
    compression: CompressionOption = None,
    store: StoreOption = None,
    storage_option: StorageOptions = None,
    output: OutputOption = None,
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
    where, headers = parse_target(target), _headers(header or ())
    if input_format is InputFormat.JSONL and (key_delimiter, key, null_marker) != (
        None,
        None,
        None,
    ):
        raise typer.BadParameter("--key-delimiter, --key and --null-marker are for --input lines")
    if key_delimiter is not None and key is not None:
        raise typer.BadParameter("give either --key-delimiter or --key")
    if key_delimiter == "":
        raise typer.BadParameter("--key-delimiter is empty")
    session = open_session(ctx, store, storage_option, output)
    opened = session.open_store()
    max_line_bytes, partition_count = _limits(opened, where)
    if sys.stdin.isatty():
        warn("one record a line: Ctrl-D writes them, Ctrl-C drops them")
    from txnlog.write.record_input import LineFormat, read_json_lines, read_lines

    with open(sys.stdin.fileno(), "rb", closefd=False) as stdin:
        batches: Iterator[pa.RecordBatch]
        if input_format is InputFormat.JSONL:
            batches = read_json_lines(
                stdin,
                headers=headers,
                max_line_bytes=max_line_bytes,
                # A partition on the command line overrules those of the lines.
                partition_count=partition_count if where.partition is None else None,
            )
        else:
            given = (_encoded(key_delimiter), _encoded(null_marker), _encoded(key))
            layout = LineFormat(*given, headers)
            batches = read_lines(stdin, layout, max_line_bytes=max_line_bytes)
        written = _write(opened, where, batches, None if compression is None else compression.value)
    if not written:
        warn("there were no records")
    session.output.rows(WRITTEN, written)


def _write(
    store: Store, where: Target, batches: Iterator[pa.RecordBatch], compression: str | None
) -> list[Written]:
    # A flush without a transaction is one entry of one log: all of it shows at once, or nothing.
    with store.producer(compression_type=compression) as producer:
        for batch in batches:
            producer.send_batch(where.topic, batch, where.partition)
        placed = producer.flush()
    return [
        Written(at.topic, at.partition, offsets.start, offsets.stop)
        for at, ranges in sorted(placed.items())
        for offsets in ranges
    ]


def _limits(store: Store, where: Target) -> tuple[int, int]:
    """How many bytes a record may have, and how many partitions there are.

    Raises UnknownTopicOrPartition.
    """
    from txnlog.config import TopicConfig
    from txnlog.errors import UnknownTopicOrPartition

    spec = store.topic_spec(where.topic)
    if where.partition is not None and where.partition >= spec.partitions:
        raise UnknownTopicOrPartition(
            f"topic {where.topic!r} has no partition {where.partition}; it has "
            f"{spec.partitions}, numbered from 0"
        )
    return TopicConfig.of(spec.config).max_message_bytes, spec.partitions


def _headers(headers: list[str] | tuple[()]) -> Headers:
    parsed = []
    for header in headers:
        name, separator, value = header.partition("=")
        if not separator or not name:
            raise typer.BadParameter(f"--header {header!r} is not of the form NAME=VALUE")
        parsed.append((name, value.encode(errors="surrogateescape")))
    return parsed


def _encoded(given: str | None) -> bytes | None:
    return None if given is None else given.encode(errors="surrogateescape")
