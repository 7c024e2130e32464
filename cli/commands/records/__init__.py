"""``txnlog records read`` and ``count``: what is in a topic, to a terminal, a pipe or a file."""

# ruff: noqa: D301 - the help keeps lines as they are after a real backspace
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from txnlog.cli.input.places import HELP_NAMES, parse_place, parse_target
from txnlog.cli.input.ranges import Range, parse_range
from txnlog.cli.input.record_options import (
    TEMPLATE_HELP,
    EncodingOption,
    Isolation,
    IsolationOption,
    RangeOption,
    TargetArgument,
    make_template,
    plan_scan,
    print_records,
)
from txnlog.cli.output.fields import Field, number, text
from txnlog.cli.output.output import warn
from txnlog.cli.output.progress import progress_bar
from txnlog.cli.output.record_fields import Encoding, Record, scan_records
from txnlog.cli.session import OutputOption, StorageOptions, StoreOption, open_session

if TYPE_CHECKING:
    from txnlog.scan import Scan

app = typer.Typer(
    help="Records: what is in a topic.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings=HELP_NAMES,
)

FromOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="PLACE",
        help="Where to begin: earliest (the default), latest, 42, @TIME.",
        show_default=False,
    ),
]
ToOption = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="PLACE",
        help="Where to end, latest if left out; that offset is not read.",
        show_default=False,
    ),
]


class FileFormat(str, Enum):
    """What ``--to-file`` writes."""

    PARQUET = "parquet"
    ARROW = "arrow"
    CSV = "csv"


@dataclass(frozen=True, slots=True)
class CountedPartition:
    """How many records a range of a partition has."""

    partition: int
    start_offset: int
    end_offset: int
    record_count: int


@dataclass(frozen=True, slots=True)
class Counted:
    """How many records a range of a topic has."""

    topic: str
    parts: list[CountedPartition]


COUNT: list[Field[Counted]] = [
    text("topic", "TOPIC", lambda counted: counted.topic),
    number("record_count", "RECORDS", lambda counted: sum(p.record_count for p in counted.parts)),
]
COUNTS: list[Field[CountedPartition]] = [
    number("partition", "PART", lambda part: part.partition),
    number("start_offset", "START", lambda part: part.start_offset),
    number("end_offset", "END", lambda part: part.end_offset),
    number("record_count", "RECORDS", lambda part: part.record_count),
]


@app.command("read")
def read_records(
    ctx: typer.Context,
    target: TargetArgument,
    offset: RangeOption = None,
    from_: FromOption = None,
    to: ToOption = None,
    max_records: Annotated[
        int | None,
        typer.Option("-n", "--max-records", min=0, help="At most so many.", show_default=False),
    ] = None,
    isolation_level: IsolationOption = Isolation.COMMITTED,
    encoding: EncodingOption = Encoding.TEXT,
    template: Annotated[
        str | None,
        typer.Option("-f", "--format", metavar="TEMPLATE", help=TEMPLATE_HELP, show_default=False),
    ] = None,
    to_file: Annotated[
        Path | None,
        typer.Option(
            "--to-file",
            metavar="PATH",
            help="Into a new .parquet, .arrow or .csv file.",
            show_default=False,
        ),
    ] = None,
    file_format: Annotated[
        FileFormat | None,
        typer.Option("--file-format", help="If the name does not tell.", show_default=False),
    ] = None,
    store: StoreOption = None,
    storage_option: StorageOptions = None,
    output: OutputOption = None,
) -> None:
    """Read records, one a line, partition by partition in the order of their offsets.

    A PLACE is earliest, latest, an offset, or the first record at or after a time: @ and
    milliseconds, or @ and ISO 8601 (UTC if it has no zone). Without a partition it is taken
    in each, and an offset that lies outside of one begins or ends there at its edge. --offset
    says both ends at once.

    Bytes are shown as UTF-8; what is not is \\xNN, and \\N is null. In JSON it is
    {"base64": "..."}. Use -o jsonl in pipes: `records write` takes it.

    \b
    Example:
      txnlog records read orders:0 --from 100 --to 200
      txnlog records read orders --from 2024-05-01T12:00 -n 10 -o jsonl
      txnlog records read orders --offset @-1h -f '%p:%o %k=%v\\n'
      txnlog records read orders --to-file orders.parquet
    """
    where, chosen, layout = parse_target(target), _range(offset, from_, to), make_template(template)
    if to_file is None and file_format is not None:
        raise typer.BadParameter("--file-format goes with --to-file")
    if to_file is not None and (layout is not None or max_records is not None):
        raise typer.BadParameter("--to-file takes whole ranges: use --offset, not -n or --format")
    named = None if file_format is None else file_format.value
    if to_file is not None:
        _check_file(to_file, named)
    session = open_session(ctx, store, storage_option, output)
    snapshot = session.open_store().snapshot([where.topic], isolation_level=isolation_level.value)
    scan = plan_scan(snapshot, where, chosen)
    if to_file is None:
        records = islice(_records(scan), max_records)
        print_records(session.output, records, encoding, layout)
        return
    with progress_bar(f"writing {to_file.name}", unit="records") as progress:
        count = scan.to_file(to_file, named, encoding=encoding.value, progress=progress)
    warn(f"wrote {count} records to {to_file}")


@app.command("count")
def count_records(
    ctx: typer.Context,
    target: TargetArgument,
    offset: RangeOption = None,
    from_: FromOption = None,
    to: ToOption = None,
    isolation_level: IsolationOption = Isolation.COMMITTED,
    store: StoreOption = None,
    storage_option: StorageOptions = None,
    output: OutputOption = None,
) -> None:
    """Count the records that a read would show. Reads only segments that came from Kafka.

    END minus START can be more than RECORDS: aborted records are not counted, unless the
    isolation level is read_uncommitted.

    \b
    Example:
      txnlog records count orders
      txnlog records count orders --offset @-24h
    """
    where, chosen = parse_target(target), _range(offset, from_, to)
    session = open_session(ctx, store, storage_option, output)
    snapshot = session.open_store().snapshot([where.topic], isolation_level=isolation_level.value)
    scan = plan_scan(snapshot, where, chosen)
    partitions = snapshot.partitions(where.topic) if where.partition is None else [where.partition]
    counts = scan.count()
    counted = Counted(
        where.topic,
        [
            CountedPartition(p, scan.start_offsets[p], scan.end_offsets[p], counts[p])
            for p in partitions
        ],
    )
    with session.output.document() as document:
        document.fields(COUNT, counted)
        document.rows("partitions", "Partitions", COUNTS, counted.parts)


def _check_file(path: Path, file_format: str | None) -> None:
    from txnlog.errors import InvalidOption
    from txnlog.read.record_files import check_file_format

    try:
        check_file_format(path, file_format)
    except InvalidOption as error:
        raise typer.BadParameter(f"--to-file: {error}") from error


def _records(scan: Scan) -> Iterator[Record]:
    for batch in scan.to_batches():
        yield from scan_records(batch)


def _range(offset: str | None, from_: str | None, to: str | None) -> Range:
    if offset is not None:
        if from_ is not None or to is not None:
            raise typer.BadParameter("--offset says both ends: leave --from and --to out")
        return parse_range(offset)
    return Range(parse_place(from_ or "earliest"), parse_place(to or "latest"))
