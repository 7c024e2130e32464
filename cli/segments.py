"""``txnlog segments``: the files that hold the records, and what is in them."""

# ruff: noqa: D301 - the help keeps lines as they are after a real backspace
from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from txnlog.cli.batch_fields import Batch, batch_fields, file_batches, placed_batches, record_lines
from txnlog.cli.damage import Reporter
from txnlog.cli.fields import Field, number, text, time
from txnlog.cli.grammar import HELP_NAMES, parse_target
from txnlog.cli.session import OutputOption, Session, StorageOptions, StoreOption, open_session

if TYPE_CHECKING:
    from txnlog.descriptions import SegmentDescription
    from txnlog.store import Store

app = typer.Typer(
    help="Segments: the files that hold the records.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings=HELP_NAMES,
)


def _path(segment: SegmentDescription) -> str:
    from txnlog.segment_dump import segment_path

    return segment_path(segment)


def _known(producer: int) -> int | None:
    return None if producer < 0 else producer


FIELDS: list[Field[SegmentDescription]] = [
    text("topic", None, lambda segment: segment.topic),
    number("partition", "PART", lambda segment: segment.partition),
    number("base_offset", "BASE", lambda segment: segment.base_offset),
    number("end_offset", "END", lambda segment: segment.end_offset, wide=True),
    number("record_count", "RECORDS", lambda segment: segment.record_count),
    number("size_bytes", "BYTES", lambda segment: segment.size_bytes),
    number("batch_count", "BATCHES", lambda segment: segment.batch_count, wide=True),
    number("entry", "ENTRY", lambda segment: segment.entry, wide=True),
    text("outcome", "OUTCOME", lambda segment: segment.outcome),
    time("min_timestamp_ms", "FROM", lambda segment: segment.min_timestamp_ms, wide=True),
    time("max_timestamp_ms", "TO", lambda segment: segment.max_timestamp_ms, wide=True),
    number("producer_id", None, lambda segment: _known(segment.producer_id)),
    number("producer_epoch", None, lambda segment: _known(segment.producer_epoch)),
    number("base_sequence", None, lambda segment: _known(segment.base_sequence)),
    text("segment", "SEGMENT", lambda segment: segment.name),
    text("path", None, _path),
]


@app.command("ls")
def list_segments(
    ctx: typer.Context,
    target: Annotated[
        str, typer.Argument(metavar="TOPIC[:PARTITION]", help="A topic or one partition of it.")
    ],
    store: StoreOption = None,
    storage_option: StorageOptions = None,
    output: OutputOption = None,
) -> None:
    """List the segments of a topic in the order of their offsets. No segment is read.

    ENTRY is the entry of the topic's log that placed the segment; OUTCOME is committed,
    aborted or undecided.

    \b
    Example:
      txnlog segments ls orders:0
    """
    where = parse_target(target)
    session = open_session(ctx, store, storage_option, output)
    found = session.open_store().segments(where.topic, where.partition)
    session.output.rows(FIELDS, found)


@app.command("dump")
def dump_segments(
    ctx: typer.Context,
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[TOPIC[:PARTITION]]",
            help="A topic or one partition of it.",
            show_default=False,
        ),
    ] = None,
    segment: Annotated[
        str | None,
        typer.Option("--segment", metavar="NAME", help="Only this segment.", show_default=False),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", metavar="PATH", help="A single file; needs no store.", show_default=False
        ),
    ] = None,
    records: Annotated[bool, typer.Option("--records", help="Show the records too.")] = False,
    max_batches: Annotated[
        int | None,
        typer.Option("--max-batches", min=0, help="At most so many.", show_default=False),
    ] = None,
    store: StoreOption = None,
    storage_option: StorageOptions = None,
    output: OutputOption = None,
) -> None:
    """Show the batches of segments as they lie in their files. Changes nothing.

    Offsets and sequences are those of the topic; with --file they are those in the file,
    where txnlog's own begin at 0. Damage is reported with its position, all that can be
    decoded is shown, and the exit code is 3.

    \b
    Example:
      txnlog segments dump orders:0 --max-batches 5
      txnlog segments dump --file copy-of-a-segment.log --records
    """
    if (target is None) == (file is None):
        raise typer.BadParameter("name either TOPIC[:PARTITION] or --file PATH")
    session = open_session(ctx, store, storage_option, output)
    if file is not None:
        if segment is not None:
            raise typer.BadParameter("--segment chooses among a topic's segments, not with --file")
        batches = file_batches(file)
    else:
        batches = _store_batches(session, target or "", segment)
    with Reporter() as reporter:
        session.output.rows(
            batch_fields(with_records=records),
            _reported(islice(batches, max_batches), reporter),
            streamed=True,
            heading=lambda batch: f"# {batch.path}",
            below=record_lines if records else None,
        )


def _reported(batches: Iterator[Batch], reporter: Reporter) -> Iterator[Batch]:
    for batch in batches:
        yield batch
        if batch.dumped.damage is not None:
            reporter.report(batch.dumped.damage)


def _store_batches(session: Session, target: str, name: str | None) -> Iterator[Batch]:
    where = parse_target(target)
    opened = session.open_store()
    found = opened.segments(where.topic, where.partition)
    if name is not None:
        found = [segment for segment in found if segment.name == name.removesuffix(".log")]
        if not found:
            _refuse_segment(opened, target, name)
    for segment in found:
        yield from placed_batches(opened.storage, segment)


def _refuse_segment(store: Store, target: str, name: str) -> None:
    from txnlog.errors import ObjectNotFound

    raise ObjectNotFound(
        f"{target} has no segment {name!r} in {store.url}; `txnlog segments ls {target}` lists them"
    )
