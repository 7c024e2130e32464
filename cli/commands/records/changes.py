"""``txnlog records changes``: what was done to the rows of a topic's keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from txnlog.cli.commands.records.read import RecordOutput
from txnlog.cli.input.options import Format, TargetArgument
from txnlog.cli.input.places import parse_target
from txnlog.cli.input.record_filter import FindKeyOption, GrepOption, RecordFilter, WhereOption
from txnlog.cli.input.record_options import (
    ColumnsOption,
    Encoding,
    EncodingOption,
    EscapeFormulasOption,
    ToFileOption,
    parse_moment,
)
from txnlog.cli.input.value_options import ValueChoice
from txnlog.cli.output.decoded_text import DecodedText
from txnlog.cli.output.fields import Field, text
from txnlog.cli.output.record_fields import Record, read_scanned, record_fields
from txnlog.cli.output.record_files import FileFormat, RecordFile
from txnlog.cli.output.streams import first, flush, warn
from txnlog.cli.session import Session

if TYPE_CHECKING:
    import pyarrow as pa


_Since = Annotated[
    str,
    typer.Option(
        "--since",
        metavar="MOMENT",
        help="From where: earliest, @TIME, or the token that an earlier call has printed.",
    ),
]
_Until = Annotated[
    str | None,
    typer.Option("--until", metavar="MOMENT", help="To where; now if left out."),
]
_MaxRows = Annotated[
    int | None,
    typer.Option("-n", "--max-rows", "--max", min=0, help="At most this many."),
]
_Output = Annotated[
    RecordOutput | None,
    typer.Option(
        "--output",
        "-o",
        help="table, json, jsonl; parquet, csv and arrow (a stream) have columns. [default: table]",
    ),
]


@dataclass(frozen=True, slots=True)
class ShownChange:
    """A row of the feed: the kind of change, and the row as a record."""

    change: str
    record: Record


CHANGE: Field[ShownChange] = text("change", "CHANGE", lambda shown: shown.change)
_COLUMNS = (
    *("_change", "key", "value", "topic", "partition", "offset", "timestamp", "timestampType"),
    "headers",
)


def show_changes(
    session: Session,
    target: TargetArgument,
    since: _Since,
    until: _Until = None,
    max_rows: _MaxRows = None,
    key: FindKeyOption = None,
    grep: GrepOption = None,
    where: WhereOption = None,
    encoding: EncodingOption = Encoding.TEXT,
    to_file: ToFileOption = None,
    columns: ColumnsOption = None,
    escape_formulas: EscapeFormulasOption = False,
    file_output: _Output = None,
    values: ValueChoice | None = None,
) -> None:
    """Show inserts, updates and deletes, by key.

    An update is two rows: update_before has the row before, update_after the new one. A delete has
    the row that is gone. Several changes of a key come one after the other. The topic has a schema
    with a key, or its records are keys and values.

    --value-format shows the fields of values, as `records read` does, in tables and JSON.

    When all is printed, and without -n, stderr has a token: with it as --since the next call goes
    on from there.

    \b
    Example:
      txnlog records changes orders --since earliest
      txnlog records changes orders --since @-1s --key alice -o jsonl
    """
    place = parse_target(target)
    if place.partition is not None:
        raise typer.BadParameter("a key may be in several partitions: name the topic alone")
    wanted = RecordFilter.of(key, grep, where)
    piped = None if file_output is None else FileFormat.__members__.get(file_output.name)
    file = None
    if to_file is not None or piped is not None:
        if (to_file is not None and file_output is not None) or wanted or values is not None:
            raise typer.BadParameter(
                "say once how rows are shown, -o or --to-file; --key, --grep, --where and "
                "--value-format are for tables and JSON"
            )
        file = RecordFile.of(
            to_file, piped, encoding.value, columns, escape_formulas=escape_formulas
        )
    elif escape_formulas or columns is not None:
        raise typer.BadParameter("--escape-formulas and --columns need --to-file or -o csv")
    elif file_output is not None:
        session = session.printing(Format(file_output.value))
    from txnlog.snapshot import take_feed

    store = session.open_to_read()
    later = store.snapshot(place.topic, at=parse_moment(until))
    begin = parse_moment(since)
    decoded = DecodedText.of(values, store, place.topic)
    if file is not None:
        feed = take_feed(store.logs, place.topic, begin, later, file.columns)
        file.write_rows(feed, max_rows)
    else:
        of_feed = wanted.of_scan if decoded is None else RecordFilter.of(key, None, None).of_scan
        feed = take_feed(store.logs, place.topic, begin, later, _COLUMNS, of_feed, as_json=True)
        batches: Iterable[pa.RecordBatch] = feed.to_batches()
        if decoded is not None:
            batches = decoded.wanted_texts(batches, wanted)
        shown = first(_read(wanted.keep(batches)), max_rows)
        fields = [CHANGE, *map(_of_record, record_fields(encoding))]
        session.output.rows(fields, shown, streamed=True)
        if decoded is not None:
            decoded.summary()
    if max_rows is None:
        _say_where(feed.until)


def _say_where(end: str | None) -> None:
    flush()  # what could not be printed was not shown
    warn(f"to go on from here: --since {end}")


def _read(batches: Iterable[pa.RecordBatch]) -> Iterator[ShownChange]:
    """The rows of batches of a feed that have all columns of a scan."""
    for batch in batches:
        kinds = batch.column("_change").to_pylist()
        yield from map(ShownChange, kinds, read_scanned([batch]))


def _of_record(field: Field[Record]) -> Field[ShownChange]:
    """A field of the record that a change has."""
    glance = field.glance
    return Field(
        field.key,
        field.title,
        lambda shown: field.value(shown.record),
        lambda shown: field.show(shown.record),
        field.numeric,
        field.wide,
        field.elastic,
        None if glance is None else lambda shown: glance(shown.record),
        field.seldom,
    )
