"""``txnlog records write``: records from stdin, all of them or none, or as they come."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from txnlog.cli.input.assignments import parse_headers
from txnlog.cli.input.durations import parse_duration
from txnlog.cli.input.options import CompressionOption
from txnlog.cli.input.places import Target, parse_target
from txnlog.cli.output.fields import Field, number, text
from txnlog.cli.output.streams import flush, warn
from txnlog.cli.session import Session

if TYPE_CHECKING:
    from io import BufferedReader

    import pyarrow as pa

    from txnlog.config import CompressionType
    from txnlog.names import TopicPartition
    from txnlog.producer import Producer
    from txnlog.store import Store
    from txnlog.write.paced_stream import PacedStream
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
ValueIsLineOption = Annotated[
    bool, typer.Option("--value-is-line", help="A whole line is the value; in jsonl, any JSON.")
]
HeaderDelimiterOption = Annotated[
    str | None,
    typer.Option(
        "--header-delimiter",
        metavar="TEXT",
        help="A line begins with headers name=value,name=value, and this.",
        show_default=False,
    ),
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
FlushEveryOption = Annotated[
    str | None,
    typer.Option(
        "--flush-every",
        metavar="TIME",
        help="Write as lines come, after this long at the latest: 1s, 500ms.",
        show_default=False,
    ),
]
BatchOption = Annotated[
    int | None,
    typer.Option(
        "--batch", metavar="N", min=1, help="Write as lines come, this many.", show_default=False
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
    value_is_line: ValueIsLineOption = False,
    header: HeaderOption = None,
    header_delimiter: HeaderDelimiterOption = None,
    null_marker: NullMarkerOption = None,
    flush_every: FlushEveryOption = None,
    batch: BatchOption = None,
    compression: CompressionOption = None,
    partitioner: PartitionerOption = "murmur2",
) -> None:
    """Write records from stdin, and show where they are. All become visible in one step.

    A mistake in a line, Ctrl-C or a failing storage: nothing is written. With --flush-every or
    --batch records are written as they come: what is shown stays, and an error says how many are
    written.

    In JSON a record has a value, null for a tombstone, and optionally key, headers, timestamp_ms
    and partition; a line of another shape is refused, or is a value with --value-is-line. It may be
    what `records read -o jsonl` has printed, and is then copied with its time, into the partition
    of the same number.

    \b
    Example:
      printf 'alice:tea\\nbob:milk\\n' | txnlog records write orders -K :
      txnlog records read orders -o jsonl | txnlog records write copy -i jsonl
      tail -F app.log | txnlog records write logs --flush-every 1s
    """
    where, headers = parse_target(target), parse_headers(header or ())
    pace = None
    if flush_every is not None or batch is not None:
        pace = _Pace(None if flush_every is None else parse_duration(flush_every) / 1000, batch)
    _check_partitioner(partitioner)
    encoded = (key_delimiter, null_marker, key, header_delimiter)
    _check_options(input_format, value_is_line, *encoded)
    store = session.open_store()
    shape = _Shape(
        _find_limits(store, where),
        None if input_format is InputFormat.LINES else "value" if value_is_line else "record",
        _make_line_format(*encoded, headers),
    )
    if sys.stdin.isatty() and pace is None:
        warn("one record a line: Ctrl-D writes them, Ctrl-C drops them")
    codec: CompressionType | None = None if compression is None else compression.value
    with store.producer(compression_type=codec, partitioner=partitioner) as producer:
        written: Iterable[Written]
        if pace is None:
            with open(sys.stdin.fileno(), "rb", closefd=False) as stdin:
                written = _write(producer, where, shape.read(stdin))
        else:
            from txnlog.write.paced_stream import PacedStream
            from txnlog.write.text_records import stop_before_large

            stream = PacedStream(sys.stdin.fileno())
            batches = stop_before_large(shape.read(stream), shape.limits.max_record_bytes)
            written = _write_paced(producer, where, batches, stream, pace)
        session.output.rows(FIELDS, written, streamed=pace is not None, live=pace is not None)


def _check_options(
    input_format: InputFormat,
    value_is_line: bool,
    key_delimiter: str | None,
    null_marker: str | None,
    key: str | None,
    header_delimiter: str | None,
) -> None:
    """Raises BadParameter where options contradict each other."""
    parts = (key_delimiter, null_marker, header_delimiter)
    if value_is_line and parts != (None, None, None):
        raise typer.BadParameter(
            "--value-is-line takes lines whole: leave --key-delimiter, --header-delimiter and "
            "--null-marker out"
        )
    of_lines = (*parts, None if value_is_line else key)
    if input_format is InputFormat.JSONL and of_lines != (None, None, None, None):
        raise typer.BadParameter(
            "--key-delimiter, --header-delimiter, --null-marker and --key are for --input lines "
            "(--key also for --value-is-line)"
        )
    if key_delimiter is not None and key is not None:
        raise typer.BadParameter("give either --key-delimiter or --key")
    for name, text_ in (("key", key_delimiter), ("header", header_delimiter)):
        if text_ == "":
            raise typer.BadParameter(f"--{name}-delimiter is empty")


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


def _make_line_format(
    key_delimiter: str | None,
    null_marker: str | None,
    key: str | None,
    header_delimiter: str | None,
    headers: Headers,
) -> LineFormat:
    from txnlog.write.text_records import LineFormat

    return LineFormat(
        _encode(key_delimiter),
        _encode(null_marker),
        _encode(key),
        headers,
        _encode(header_delimiter),
    )


@dataclass(frozen=True, slots=True)
class _Shape:
    """What a line is; of JSON a record, or a value."""

    limits: _Limits
    json: Literal["record", "value"] | None
    lines: LineFormat

    def read(self, stdin: BufferedReader | PacedStream) -> Iterator[pa.RecordBatch]:
        """The records of the input. Raises InvalidRecord, RecordTooLarge."""
        from txnlog.write.text_records import read_json_lines, read_json_values, read_lines

        max_bytes, headers = self.limits.max_record_bytes, self.lines.headers
        if self.json is None:
            return read_lines(stdin, self.lines, max_line_bytes=max_bytes)
        if self.json == "value":
            return read_json_values(
                stdin, key=self.lines.key, headers=headers, max_line_bytes=max_bytes
            )
        return read_json_lines(
            stdin,
            headers=headers,
            max_line_bytes=max_bytes,
            partition_count=self.limits.partition_count,
        )


@dataclass(frozen=True, slots=True)
class _Pace:
    """How long a record waits to be written, and for how many others; None: for ever."""

    interval_s: float | None
    record_count: int | None


def _write(producer: Producer, where: Target, batches: Iterator[pa.RecordBatch]) -> list[Written]:
    """All at once. Raises InvalidRecord, RecordTooLarge."""
    from txnlog.errors import InvalidRecord, RecordTooLarge

    # A flush without a transaction is one entry of one log: all of it shows at once, or nothing.
    try:
        for batch in batches:
            producer.send_batch(where.topic, batch, where.partition)
    except (InvalidRecord, RecordTooLarge) as error:
        raise type(error)(f"{error}; nothing was written") from error
    written = _list_written(producer.flush())
    if not written:
        warn("there were no records")
    return written


def _write_paced(
    producer: Producer,
    where: Target,
    batches: Iterator[pa.RecordBatch],
    stream: PacedStream,
    pace: _Pace,
) -> Iterator[Written]:
    """As they come; each flush is an entry of the log. Those before a wrong one are written.

    However it ends early, it says how many of the input's records are written.
    """
    from txnlog.errors import InvalidRecord, RecordTooLarge

    done = waiting = 0
    rest = "no others"

    def write_waiting() -> Iterator[Written]:
        nonlocal done, waiting, rest
        rest = f"perhaps the {waiting} behind them: look before you send them again"
        placed = producer.flush()
        rest = "no others"
        done, waiting, stream.deadline_s = done + waiting, 0, None
        yield from _list_written(placed)
        flush()  # whoever reads this sees it now

    def send(records: pa.RecordBatch) -> None:
        nonlocal waiting
        try:
            producer.send_batch(where.topic, records, where.partition)
        except InvalidRecord:  # none of them was taken
            if records.num_rows > 1:
                half = records.num_rows // 2
                send(records[:half])
                send(records[half:])
            raise
        waiting += records.num_rows

    try:
        try:
            for batch in batches:
                while batch.num_rows:
                    room = batch.num_rows
                    if pace.record_count is not None:
                        room = min(room, pace.record_count - waiting)
                    send(batch[:room])
                    batch = batch[room:]
                    if stream.deadline_s is None and pace.interval_s is not None:
                        stream.deadline_s = time.monotonic() + pace.interval_s
                    if waiting == pace.record_count:
                        yield from write_waiting()
                if stream.deadline_s is not None and time.monotonic() >= stream.deadline_s:
                    yield from write_waiting()
        except (InvalidRecord, RecordTooLarge):
            yield from write_waiting()
            raise
        yield from write_waiting()
    except BaseException:
        warn(f"the first {done} records of the input are written, and {rest}")
        raise


def _list_written(placed: Mapping[TopicPartition, Sequence[range]]) -> list[Written]:
    return [
        Written(at.topic, at.partition, offsets.start, offsets.stop)
        for at, ranges in sorted(placed.items())
        for offsets in ranges
    ]


def _encode(typed: str | None) -> bytes | None:
    return None if typed is None else typed.encode(errors="surrogateescape")
