"""``txnlog records read``: what is in a topic, to a terminal, a pipe or a file."""

from __future__ import annotations

from enum import Enum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from txnlog.cli.input.options import TargetArgument
from txnlog.cli.input.places import Target, parse_target
from txnlog.cli.input.record_filter import (
    FindKeyOption,
    GrepOption,
    RecordFilter,
    WhereOption,
)
from txnlog.cli.input.record_options import (
    Encoding,
    EncodingOption,
    FromOption,
    Isolation,
    IsolationOption,
    RangeOption,
    TemplateOption,
    ToOption,
    join_range,
)
from txnlog.cli.input.scan_plan import plan_scan
from txnlog.cli.output.progress import progress_bar
from txnlog.cli.output.record_fields import convert_consumed, read_scanned
from txnlog.cli.output.record_printer import RecordPrinter
from txnlog.cli.output.streams import flush, warn
from txnlog.cli.session import Session

if TYPE_CHECKING:
    from txnlog.consumer import Consumer
    from txnlog.store import Store


class FileFormat(str, Enum):
    """What ``--to-file`` writes."""

    PARQUET = "parquet"
    ARROW = "arrow"
    CSV = "csv"


def read_records(
    session: Session,
    target: TargetArgument,
    offset: RangeOption = None,
    from_: FromOption = None,
    to: ToOption = None,
    max_records: Annotated[
        int | None,
        typer.Option("-n", "--max-records", min=0, help="At most so many.", show_default=False),
    ] = None,
    key: FindKeyOption = None,
    grep: GrepOption = None,
    where: WhereOption = None,
    isolation_level: IsolationOption = Isolation.COMMITTED,
    encoding: EncodingOption = Encoding.TEXT,
    template: TemplateOption = None,
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
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            metavar="GROUP",
            help="From the group's committed offsets on; all where it has none.",
            show_default=False,
        ),
    ] = None,
    commit: Annotated[
        bool, typer.Option("--commit", help="Then commit, for the group, what was printed.")
    ] = False,
) -> None:
    """Read records, one a line, partition by partition in the order of their offsets.

    A PLACE is earliest, latest, an offset, or the first record at or after a time: @ and
    milliseconds, or @ and ISO 8601 (UTC if it has no zone). Without a partition it is taken
    in each, and an offset that lies outside of one begins or ends there at its edge. --offset
    says both ends at once.

    Bytes are shown as UTF-8; what is not is \\xNN, and \\N is null. In JSON it is
    {"base64": "..."}. Use -o jsonl in pipes: `records write` takes it. On a terminal a table
    cuts what does not fit; a pipe, JSON and --format show all.

    \b
    Example:
      txnlog records read orders:0 --from 100 --to 200
      txnlog records read orders --from @2024-05-01T12:00 -n 10 -o jsonl
      txnlog records read orders --offset @-1h -f '%p:%o %k=%v\\n'
      txnlog records read orders --key alice --where 'value.items[0].price > 9.5' -n 1
      txnlog records read orders --to-file orders.parquet
      txnlog records read orders --group audit --commit
    """
    place, chosen = parse_target(target), join_range(offset, from_, to)
    wanted = RecordFilter.of(key, grep, where)
    printer = RecordPrinter.of(encoding, template)
    named_format = None if file_format is None else file_format.value
    if to_file is not None:
        if template is not None or max_records is not None or wanted:
            raise typer.BadParameter(
                "--to-file takes whole ranges: use --offset, not -n, --format, --key, --grep or "
                "--where"
            )
        _check_file(to_file, named_format)
    elif file_format is not None:
        raise typer.BadParameter("--file-format needs --to-file")
    if commit and group is None:
        raise typer.BadParameter("--commit needs --group")
    if group is not None:
        if (offset, from_, to, to_file) != (None, None, None, None) or wanted:
            raise typer.BadParameter(
                "--group says where to begin, and prints all from there: leave --offset, --from, "
                "--to, --to-file, --key, --grep and --where out"
            )
        if isolation_level is Isolation.SNAPSHOT:
            raise typer.BadParameter("a group has no offsets at --isolation-level snapshot")
        consumer = _consume(session.open_store(), place, group, isolation_level)
        records = map(convert_consumed, islice(consumer, max_records))
        printer.print(session.output, records)
        if commit:
            flush()  # what could not be printed is not committed
            consumer.commit()
        return
    snapshot = session.open_store().snapshot([place.topic], isolation_level=isolation_level.value)
    scan = plan_scan(snapshot, place, chosen, row_filter=wanted.of_scan, as_json=to_file is None)
    if to_file is None:
        scanned = read_scanned(wanted.keep(scan.to_batches()))
        printer.print(session.output, islice(scanned, max_records))
        return
    with progress_bar(f"writing {to_file.name}", unit="records") as progress:
        count = scan.to_file(to_file, named_format, encoding=encoding.value, progress=progress)
    warn(f"wrote {count} records to {to_file}")


def _consume(store: Store, where: Target, group_id: str, isolation_level: Isolation) -> Consumer:
    """A consumer that shares nothing with the group's members, and ends with what there is."""
    from txnlog.names import TopicPartition

    consumer = store.consumer(
        group_id=group_id,
        isolation_level=isolation_level.value,
        auto_offset_reset="earliest",
        stop_at_end=True,
    )
    numbers = range(store.topic_spec(where.topic).partitions)
    chosen = numbers if where.partition is None else [where.partition]
    consumer.assign([TopicPartition(where.topic, number) for number in chosen])
    return consumer


def _check_file(path: Path, file_format: str | None) -> None:
    from txnlog.errors import InvalidOption
    from txnlog.read.record_files import check_file_format

    try:
        check_file_format(path, file_format)
    except InvalidOption as error:
        raise typer.BadParameter(f"--to-file: {error}") from error
