"""What ``txnlog records write`` takes: the form of its input, and how lines become records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from txnlog.cli.input.places import Target
from txnlog.errors import InvalidOption, InvalidRecord, UnknownTopicOrPartition

if TYPE_CHECKING:
    from io import BufferedReader

    import pyarrow as pa

    from txnlog.schema import TopicSchema
    from txnlog.store import Store
    from txnlog.write.paced_stream import PacedStream
    from txnlog.write.text_records import Headers, LineFormat


class InputFormat(str, Enum):
    """The format of the input."""

    LINES = "lines"
    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"
    ARROW = "arrow"

    @property
    def has_lines(self) -> bool:
        """Whether records can be taken as they come, line by line."""
        return self in (InputFormat.LINES, InputFormat.JSONL)


_ENDINGS: Final = {
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), InputFormat.JSONL),
    ".csv": InputFormat.CSV,
    **dict.fromkeys((".parquet", ".pq"), InputFormat.PARQUET),
    **dict.fromkeys((".arrow", ".arrows", ".feather", ".ipc"), InputFormat.ARROW),
}

InputOption = Annotated[
    InputFormat | None,
    typer.Option(
        "-i",
        "--input",
        help="lines: text, one value a line; jsonl: one JSON object a line; or a whole file. "
        "[default: by the file's ending, or lines]",
    ),
]
FromFileOption = Annotated[
    Path | None,
    typer.Option("--from-file", metavar="PATH", help="This file instead of stdin."),
]
KeyDelimiterOption = Annotated[
    str | None,
    typer.Option("-K", "--key-delimiter", metavar="TEXT", help="A line is key, this, value."),
]
KeyOption = Annotated[
    str | None,
    typer.Option("-k", "--key", metavar="KEY", help="The key of all."),
]
ValueIsLineOption = Annotated[
    bool, typer.Option("--value-is-line", help="A whole line is the value; in jsonl, any JSON.")
]
HeaderDelimiterOption = Annotated[
    str | None,
    typer.Option(
        "--header-delimiter",
        metavar="TEXT",
        help="A line begins with headers name=value,name=value, and this.",
    ),
]
HeaderOption = Annotated[
    list[str] | None,
    typer.Option("-H", "--header", metavar="NAME=VALUE", help="A header of all; may be repeated."),
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
    typer.Option("--null-marker", metavar="TEXT", help="In lines and CSV this stands for null."),
]


def find_format(named: InputFormat | None, path: Path | None) -> InputFormat:
    """The format that is named, or that of the file's ending."""
    if named is not None:
        return named
    return (
        InputFormat.LINES if path is None else _ENDINGS.get(path.suffix.lower(), InputFormat.LINES)
    )


def check_options(
    input_format: InputFormat,
    value_is_line: bool,
    key_delimiter: str | None,
    null_marker: str | None,
    key: str | None,
    header_delimiter: str | None,
    *,
    with_headers: bool,
    paced: bool,
) -> None:
    """Raises BadParameter where options contradict each other."""
    if not input_format.has_lines and (value_is_line or with_headers or paced):
        raise typer.BadParameter(
            f"--value-is-line, --header, --flush-every and --batch are for lines, not for "
            f"{input_format.value}"
        )
    parts = (key_delimiter, null_marker, header_delimiter)
    if value_is_line and parts != (None, None, None):
        raise typer.BadParameter(
            "--value-is-line takes lines whole: leave --key-delimiter, --header-delimiter and "
            "--null-marker out"
        )
    marker_of_lines = None if input_format is InputFormat.CSV else null_marker
    of_lines = (key_delimiter, marker_of_lines, header_delimiter, None if value_is_line else key)
    if input_format is not InputFormat.LINES and of_lines != (None, None, None, None):
        raise typer.BadParameter(
            "--key-delimiter, --header-delimiter, --null-marker and --key are for --input lines "
            "(--null-marker also for csv, --key for --value-is-line)"
        )
    if key_delimiter is not None and key is not None:
        raise typer.BadParameter("give either --key-delimiter or --key")
    for name, text_ in (("key", key_delimiter), ("header", header_delimiter)):
        if text_ == "":
            raise typer.BadParameter(f"--{name}-delimiter is empty")


def check_partitioner(name: str) -> None:
    """Raises BadParameter before a line is read."""
    from txnlog.write.partitioner import check_partitioner

    try:
        check_partitioner(name)
    except InvalidOption as error:
        raise typer.BadParameter(f"--partitioner: {error}") from error


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits that the topic sets for records.

    A record's own partition must be below ``partition_count``; with None the partition is given on
    the command line, and overrides those of records. ``schema`` is None unless the topic is typed.
    """

    max_record_bytes: int
    partition_count: int | None
    schema: TopicSchema | None


def find_limits(store: Store, where: Target) -> Limits:
    """Raises UnknownTopicOrPartition."""
    from txnlog.config import TopicConfig

    spec = store.logs.topic_spec(where.topic)
    if where.partition is not None and where.partition >= spec.partitions:
        raise UnknownTopicOrPartition(
            f"topic {where.topic!r} has no partition {where.partition}; it has "
            f"{spec.partitions}, numbered from 0"
        )
    return Limits(
        TopicConfig.of(spec.config).max_message_bytes,
        spec.partitions if where.partition is None else None,
        spec.schema,
    )


def make_line_format(
    key_delimiter: str | None,
    null_marker: str | None,
    key: str | None,
    header_delimiter: str | None,
    headers: Headers,
) -> LineFormat:
    """How a line becomes a record."""
    from txnlog.write.text_records import LineFormat

    return LineFormat(
        _encode(key_delimiter),
        _encode(null_marker),
        _encode(key),
        headers,
        _encode(header_delimiter),
    )


@dataclass(frozen=True, slots=True)
class RecordInput:
    """The input of one run, for one topic.

    ``keys_alone``: JSON lines of records of which only the keys are needed, if there is no schema.
    """

    format: InputFormat
    topic: str
    limits: Limits
    value_is_line: bool
    lines: LineFormat
    keys_alone: bool = False

    def read_lines(self, stream: BufferedReader | PacedStream) -> Iterator[pa.RecordBatch]:
        """Records of lines, or JSON lines. Raises InvalidRecord, RecordTooLarge."""
        from txnlog.write import text_records
        from txnlog.write.typed_lines import read_typed_lines

        max_bytes, headers = self.limits.max_record_bytes, self.lines.headers
        schema = self.limits.schema
        if schema is not None:
            if self.format is InputFormat.LINES:
                raise InvalidRecord(
                    f"topic {self.topic!r} has columns {', '.join(schema.columns.names)}, so lines "
                    "of text are no records of it: use --input jsonl, csv, parquet or arrow"
                )
            return read_typed_lines(
                stream,
                self.topic,
                schema,
                headers=headers,
                max_line_bytes=max_bytes,
                partition_count=self.limits.partition_count,
            )
        if self.value_is_line and self.format is InputFormat.JSONL:
            return text_records.read_json_values(
                stream, key=self.lines.key, headers=headers, max_line_bytes=max_bytes
            )
        if self.format is InputFormat.LINES:
            return text_records.read_lines(stream, self.lines, max_line_bytes=max_bytes)
        return text_records.read_json_lines(
            stream,
            headers=headers,
            max_line_bytes=max_bytes,
            partition_count=self.limits.partition_count,
            keys_alone=self.keys_alone,
        )

    def read(self, stream: BufferedReader) -> Iterator[pa.RecordBatch]:
        """All records of the input. Raises InvalidRecord, RecordTooLarge."""
        if self.format.has_lines:
            return self.read_lines(stream)
        from txnlog.write import table_input

        marker = self.lines.null_marker
        reading: dict[
            InputFormat, Callable[[BufferedReader, TopicSchema | None], Iterator[pa.RecordBatch]]
        ] = {
            InputFormat.CSV: partial(
                table_input.read_csv,
                null_marker=_decode(marker),
                max_record_bytes=self.limits.max_record_bytes,
            ),
            InputFormat.PARQUET: table_input.read_parquet,
            InputFormat.ARROW: table_input.read_arrow,
        }
        return reading[self.format](stream, self.limits.schema)


def _decode(given: bytes | None) -> str | None:
    return None if given is None else given.decode(errors="surrogateescape")


def _encode(typed: str | None) -> bytes | None:
    return None if typed is None else typed.encode(errors="surrogateescape")
