"""``txnlog records read``: what is in a topic, to a terminal, a pipe or a file."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from txnlog.cli.input.options import Format, TargetArgument
from txnlog.cli.input.places import Target, parse_target
from txnlog.cli.input.record_filter import (
    FindKeyOption,
    GrepOption,
    RecordFilter,
    WhereOption,
)
from txnlog.cli.input.record_options import (
    AsOfOption,
    ColumnsOption,
    Encoding,
    EncodingOption,
    EscapeFormulasOption,
    FromOption,
    Isolation,
    IsolationOption,
    LatestOption,
    RangeOption,
    ShortTemplateOption,
    SkipDamagedOption,
    TemplateOption,
    ToFileOption,
    ToOption,
    join_range,
    parse_moment,
)
from txnlog.cli.input.scan_plan import plan_scan
from txnlog.cli.input.value_options import ValueChoice
from txnlog.cli.output.damage import DamageReporter
from txnlog.cli.output.decoded_text import DecodedText
from txnlog.cli.output.record_fields import convert_consumed, read_scanned
from txnlog.cli.output.record_files import FileFormat, RecordFile
from txnlog.cli.output.record_template import RecordPrinter
from txnlog.cli.output.streams import first, flush
from txnlog.cli.session import Session

if TYPE_CHECKING:
    from txnlog.config import OnCorrupt
    from txnlog.consumer import Consumer
    from txnlog.store import Store


class RecordOutput(str, Enum):
    """The formats of other verbs, and those of files."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    PARQUET = "parquet"
    ARROW = "arrow"
    CSV = "csv"


_Output = Annotated[
    RecordOutput | None,
    typer.Option(
        "--output",
        "-o",
        help="table for people, json one document, jsonl one JSON object a line; parquet, csv and "
        "arrow (a stream) have columns. [default: table]",
    ),
]
_MaxRecords = Annotated[
    int | None,
    typer.Option("-n", "--max-records", "--max", min=0, help="At most this many."),
]
_NamedFormat = Annotated[
    FileFormat | None,
    typer.Option("--file-format", help="If the name does not tell."),
]
_Group = Annotated[
    str | None,
    typer.Option(
        "--group",
        metavar="GROUP",
        help="From the group's committed offsets on; all where it has none.",
    ),
]
_Commit = Annotated[
    bool, typer.Option("--commit", help="Then commit, for the group, what was printed.")
]


def read_records(
    session: Session,
    target: TargetArgument,
    offset: RangeOption = None,
    from_: FromOption = None,
    to: ToOption = None,
    as_of: AsOfOption = None,
    max_records: _MaxRecords = None,
    latest: LatestOption = False,
    key: FindKeyOption = None,
    grep: GrepOption = None,
    where: WhereOption = None,
    isolation_level: IsolationOption = Isolation.COMMITTED,
    encoding: EncodingOption = Encoding.TEXT,
    template: TemplateOption = None,
    short_template: ShortTemplateOption = None,
    to_file: ToFileOption = None,
    file_format: _NamedFormat = None,
    escape_formulas: EscapeFormulasOption = False,
    columns: ColumnsOption = None,
    group: _Group = None,
    commit: _Commit = False,
    skip_damaged: SkipDamagedOption = False,
    values: ValueChoice | None = None,
    file_output: _Output = None,
) -> None:
    """Read records, one a line. Partition by partition, in the order of their offsets.

    A PLACE is earliest, latest, an offset, or @TIME, the first record at or after it: ISO 8601
    (UTC if it has no zone), milliseconds, or how long ago, as @-1h30m. Without a partition it
    applies to each of them; an offset outside of a partition means its nearest end. --offset gives
    both ends at once.

    Bytes are shown as UTF-8; what is not is \\xNN, and \\N is null. In JSON it is
    {"base64": "..."}. Use -o jsonl in pipes: `records write` takes it. On a terminal a table
    cuts what does not fit; a pipe, JSON and --format show all.

    -o parquet, csv and arrow, and --to-file, write columns: those of a typed topic and _partition,
    _offset, _timestamp, _headers and _deleted, or those that --columns names. `records write` takes
    them.

    --latest shows of each key the newest record in the range, if that does not delete it: the last
    one of a partition, and the one with the greatest time of several partitions. --key, --grep and
    --where apply to these.

    --value-format shows the fields of values that begin with the id of a schema, as registries'
    serializers write them: in JSON, and in files as columns. What cannot be decoded is a dead
    letter: it is shown as it is, with the reason on stderr, and in files in _value and _error.

    \b
    Example:
      txnlog records read orders:0 --from 100 --to 200
      txnlog records read orders --from @2024-05-01T12:00 -n 10 -o jsonl
      txnlog records read orders --offset @-1h --format '%p:%o %k=%v\\n'
      txnlog records read orders --key alice --where 'value.items[0].price > 9.5'
      txnlog records read orders --as-of @2024-05-01 --to-file orders.parquet
      txnlog records read orders --latest
      txnlog records read orders --value-format avro -o jsonl
      txnlog records read orders --group audit --commit
    """
    place, chosen = parse_target(target), join_range(offset, from_, to)
    wanted = RecordFilter.of(key, grep, where)
    printer = RecordPrinter.of(encoding, short_template if template is None else template)
    file = None
    if to_file is None and file_format is not None:
        raise typer.BadParameter("--file-format needs --to-file")
    piped = None if file_output is None else FileFormat.__members__.get(file_output.name)
    if to_file is not None or piped is not None:
        if printer.template is not None or (to_file is not None and file_output is not None):
            raise typer.BadParameter("say once how records are shown: --format, -o or --to-file")
        file = RecordFile.of(
            to_file, file_format or piped, encoding.value, columns, escape_formulas=escape_formulas
        )
    elif escape_formulas or columns is not None:
        raise typer.BadParameter("--escape-formulas and --columns need --to-file or -o csv")
    elif file_output is not None:
        session = session.printing(Format(file_output.value))
    if commit and group is None:
        raise typer.BadParameter("--commit needs --group")
    if group is not None:
        if (offset, from_, to, as_of, file) != (None,) * 5 or wanted or latest:
            raise typer.BadParameter(
                "--group says where to begin, and prints all from there: leave --offset, --from, "
                "--to, --as-of, --to-file, -o parquet, --latest, --key, --grep and --where out"
            )
        if isolation_level is Isolation.SNAPSHOT:
            raise typer.BadParameter("a group has no offsets at --isolation-level snapshot")
        on_corrupt: OnCorrupt = "skip" if skip_damaged else "raise"
        opened = session.open_store()
        decoded = DecodedText.of(values, opened, place.topic)
        consumer = _consume(opened, place, group, isolation_level, on_corrupt, decoded)
        _print_consumed(session, printer, consumer, max_records, commit=commit)
        return
    opened = session.open_to_read()
    snapshot = opened.snapshot(
        [place.topic], isolation_level=isolation_level.value, at=parse_moment(as_of)
    )
    decoded = DecodedText.of(values, opened, place.topic)
    if file is not None:
        schema = snapshot.view(place.topic).schema
        scan = plan_scan(
            snapshot,
            place,
            chosen,
            row_filter=wanted.of_scan if schema is None and decoded is None else None,
            columns=None if decoded is not None else file.to_read(schema, wanted),
            as_json=False,
            latest=latest,
        )
        file.write(scan, schema, wanted, max_records, skip_damaged=skip_damaged, decoded=decoded)
        return
    of_scan = wanted.of_scan if decoded is None else RecordFilter.of(key, None, None).of_scan
    scan = plan_scan(snapshot, place, chosen, row_filter=of_scan, latest=latest)
    with DamageReporter() as reporter:
        report = reporter.report_records(skip_damaged)
        batches = scan.sound_batches(report, skip_damaged=skip_damaged)
        if decoded is not None:
            batches = decoded.wanted_texts(batches, wanted)
        scanned = read_scanned(wanted.keep(batches))
        printer.print(session.output, first(scanned, max_records))
    if decoded is not None:
        decoded.summary()


def _print_consumed(
    session: Session,
    printer: RecordPrinter,
    consumer: Consumer,
    max_records: int | None,
    *,
    commit: bool,
) -> None:
    """Print what a group has yet to read, and commit it when all of that is out."""
    printer.print(session.output, map(convert_consumed, first(consumer, max_records)))
    if commit:
        flush()  # what could not be printed is not committed
        consumer.commit()


def _consume(
    store: Store,
    where: Target,
    group_id: str,
    isolation_level: Isolation,
    on_corrupt: OnCorrupt,
    decoded: DecodedText | None,
) -> Consumer:
    """A consumer that shares nothing with the group's members, and ends with what there is."""
    from txnlog.names import TopicPartition
    from txnlog.read.isolation_levels import check_reading_on

    consumer = store.consumer(
        group_id=group_id,
        isolation_level=check_reading_on(isolation_level.value),
        auto_offset_reset="earliest",
        on_corrupt=on_corrupt,
        as_json=True,
        stop_at_end=True,
        value_deserializer=None if decoded is None else decoded.text,
    )
    numbers = range(store.logs.topic_spec(where.topic).partitions)
    chosen = numbers if where.partition is None else [where.partition]
    consumer.assign([TopicPartition(where.topic, number) for number in chosen])
    return consumer
