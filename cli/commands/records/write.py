"""``txnlog records write``: records from stdin, all of them or none, or as they come."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from txnlog.cli.input.assignments import parse_headers
from txnlog.cli.input.interrupts import stopping
from txnlog.cli.input.options import CompressionOption
from txnlog.cli.input.places import Target, parse_duration, parse_target
from txnlog.cli.input.record_input import (
    FromFileOption,
    HeaderDelimiterOption,
    HeaderOption,
    InputOption,
    KeyDelimiterOption,
    KeyOption,
    NullMarkerOption,
    PartitionerOption,
    RecordInput,
    ValueIsLineOption,
    check_options,
    check_partitioner,
    find_format,
    find_limits,
    make_line_format,
)
from txnlog.cli.output.fields import Field, number, text
from txnlog.cli.output.streams import flush, warn
from txnlog.cli.session import Session
from txnlog.errors import InvalidRecord, RecordTooLarge

if TYPE_CHECKING:
    from io import BufferedReader

    import pyarrow as pa

    from txnlog.config import CompressionType
    from txnlog.names import TopicPartition
    from txnlog.producer import Producer
    from txnlog.write.paced_stream import PacedStream


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


FlushEveryOption = Annotated[
    str | None,
    typer.Option(
        "--flush-every",
        metavar="TIME",
        help="Write as lines come, after this long at the latest: 1s, 500ms.",
    ),
]
BatchOption = Annotated[
    int | None,
    typer.Option("--batch", metavar="N", min=1, help="Write as lines come, this many."),
]


def write_records(
    session: Session,
    target: Annotated[
        str,
        typer.Argument(
            metavar="TOPIC[:PARTITION]", help="Where to; without a partition the keys decide."
        ),
    ],
    input_format: InputOption = None,
    from_file: FromFileOption = None,
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
    """Write records from stdin or a file, and show where they are. All show in one step.

    A mistake in a line, Ctrl-C or a failing storage: nothing is written. With --flush-every or
    --batch records are written as they come: what is shown stays, an error says how many are
    written, and Ctrl-C or SIGTERM writes the lines that were read; a second one drops them.

    In JSON a record has a value, null for a tombstone, and optionally key, headers, timestamp_ms
    and partition; a line of another shape is refused, or is a value with --value-is-line. It may be
    what `records read -o jsonl` has printed, and is then copied with its time, into the partition
    of the same number. For a typed topic a line is an object of its columns, or what was printed.

    CSV, Parquet and Arrow have the topic's columns; those of other topics are key, value, headers,
    timestamp and partition. What `records read -o csv`, parquet or arrow has written is taken too.

    \b
    Example:
      printf 'alice:tea\\nbob:milk\\n' | txnlog records write orders -K :
      txnlog records read orders -o jsonl | txnlog records write copy -i jsonl
      txnlog records write flights --from-file flights.parquet
      echo '{"carrier":"AA","flight":1}' | txnlog records write flights -i jsonl
      tail -F app.log | txnlog records write logs --flush-every 1s
    """
    where, headers = parse_target(target), parse_headers(header or ())
    pace = None
    if flush_every is not None or batch is not None:
        pace = _Pace(None if flush_every is None else parse_duration(flush_every) / 1000, batch)
    check_partitioner(partitioner)
    encoded = (key_delimiter, null_marker, key, header_delimiter)
    chosen = find_format(input_format, from_file)
    check_options(
        chosen, value_is_line, *encoded, with_headers=bool(headers), paced=pace is not None
    )
    store = session.open_store()
    records = RecordInput(
        chosen,
        where.topic,
        find_limits(store, where),
        value_is_line,
        make_line_format(*encoded, headers),
    )
    if from_file is None and sys.stdin.isatty() and pace is None:
        warn("one record a line: Ctrl-D writes them, Ctrl-C drops them")
    codec: CompressionType | None = None if compression is None else compression.value
    with (
        _open_input(from_file) as stdin,
        store.producer(compression_type=codec, partitioner=partitioner) as producer,
        ExitStack() as stops,
    ):
        written: Iterable[Written]
        if pace is None:
            written = _write(producer, where, records.read(stdin))
        else:
            from txnlog.write.paced_stream import PacedStream
            from txnlog.write.text_records import stop_before_large

            stream = PacedStream(stdin.fileno())
            batches = stop_before_large(records.read_lines(stream), records.limits.max_record_bytes)
            written = _write_paced(producer, where, batches, stream, pace)
            stops.enter_context(stopping(stream.stop))
        session.output.rows(FIELDS, written, streamed=pace is not None, live=pace is not None)


def _open_input(path: Path | None) -> BufferedReader:
    """The file, or stdin, which stays open. Raises BadParameter."""
    if path is None:
        return open(sys.stdin.fileno(), "rb", closefd=False)
    try:
        return path.open("rb")
    except OSError as error:
        raise typer.BadParameter(f"--from-file {path}: {error.strerror or error}") from error


@dataclass(frozen=True, slots=True)
class _Pace:
    """How long a record waits to be written, and for how many others; None: for ever."""

    interval_s: float | None
    record_count: int | None


def _write(producer: Producer, where: Target, batches: Iterator[pa.RecordBatch]) -> list[Written]:
    """All at once. Raises InvalidRecord, RecordTooLarge."""
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
    """Write records as they come; each flush is an entry of the log. Those before a wrong one stay.

    However it ends early, it says how many of the input's records are written.
    """
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
                if stream.is_stopped:
                    yield from write_waiting()
                    raise KeyboardInterrupt  # there is more of the input
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
