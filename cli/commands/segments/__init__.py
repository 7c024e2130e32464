"""``txnlog segments``: the files that hold the records, and what is in them."""

# ruff: noqa: D301 - the help keeps lines as they are after a real backspace
from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from txnlog.cli.input.places import HELP_NAMES, parse_target
from txnlog.cli.input.segment_choice import (
    FileOption,
    SegmentOption,
    TargetArgument,
    check_source,
    choose_segments,
    open_files,
)
from txnlog.cli.output.batch_fields import (
    Batch,
    batch_fields,
    file_batches,
    placed_batches,
    record_lines,
)
from txnlog.cli.output.damage import Reporter
from txnlog.cli.output.fields import Field, flag, names, number, text, time
from txnlog.cli.session import OutputOption, Session, StorageOptions, StoreOption, open_session

if TYPE_CHECKING:
    from txnlog.admin.disk_usage import PartitionUsage
    from txnlog.inspect.descriptions import SegmentDescription
    from txnlog.inspect.segments import SegmentCheck

app = typer.Typer(
    help="Segments: the files that hold the records.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings=HELP_NAMES,
)


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
    text("path", None, lambda segment: segment.paths.log),
]

CHECKS: list[Field[SegmentCheck]] = [
    flag("ok", "STATE", lambda check: not check.damages, "ok", "DAMAGED"),
    number("batch_count", "BATCHES", lambda check: check.batch_count, wide=True),
    number("record_count", "RECORDS", lambda check: check.record_count, wide=True),
    number("size_bytes", "BYTES", lambda check: check.size_bytes),
    text("path", "PATH", lambda check: check.path),
    names("damages", None, lambda check: check.damages),
]
USAGE: list[Field[PartitionUsage]] = [
    text("topic", "TOPIC", lambda usage: usage.topic),
    number("partition", "PART", lambda usage: usage.partition),
    number("file_count", "FILES", lambda usage: usage.file_count),
    number("segment_bytes", "SEGMENTS", lambda usage: usage.segment_bytes),
    number("index_bytes", "INDEXES", lambda usage: usage.index_bytes),
    number("log_bytes", "LOG", lambda usage: usage.log_bytes),
    number("unreferenced_bytes", "UNREFERENCED", lambda usage: usage.unreferenced_bytes),
    number("size_bytes", "BYTES", lambda usage: usage.size_bytes),
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
    target: TargetArgument = None,
    segment: SegmentOption = None,
    file: FileOption = None,
    records: Annotated[bool, typer.Option("--records", help="Show the records too.")] = False,
    no_metadata: Annotated[
        bool, typer.Option("--no-metadata", help="Show records as keys and values alone.")
    ] = False,
    max_batches: Annotated[
        int | None,
        typer.Option("--max-batches", min=0, help="At most so many.", show_default=False),
    ] = None,
    max_bytes: Annotated[
        int | None,
        typer.Option(
            "--max-bytes", min=0, help="No batch behind so many bytes.", show_default=False
        ),
    ] = None,
    store: StoreOption = None,
    storage_option: StorageOptions = None,
    output: OutputOption = None,
) -> None:
    """Show the batches of segments as they lie in their files. Changes nothing.

    Offsets and sequences are those of the topic; with --file they are those in the file,
    where txnlog's own begin at 0. A file may be one of Kafka's. Damage is reported with its
    position, all that can be decoded is shown, and the exit code is 3.

    \b
    Example:
      txnlog segments dump orders:0 --max-batches 5
      txnlog segments dump --file /var/kafka/data/orders-0/00000000000000000000.log --records
    """
    check_source(target, segment, file)
    session = open_session(ctx, store, storage_option, output)
    batches = _file_batches(session, file) if file else _store_batches(session, target, segment)
    with Reporter() as reporter:
        session.output.rows(
            batch_fields(with_records=records or no_metadata, metadata=not no_metadata),
            _reported(_within(islice(batches, max_batches), max_bytes), reporter),
            streamed=True,
            live=records or no_metadata,  # no table is measured ahead: a batch holds its records
            heading=lambda batch: f"# {batch.path}",
            below=partial(record_lines, metadata=not no_metadata)
            if records or no_metadata
            else None,
        )


@app.command("verify")
def verify_segments(
    ctx: typer.Context,
    target: TargetArgument = None,
    segment: SegmentOption = None,
    file: FileOption = None,
    store: StoreOption = None,
    storage_option: StorageOptions = None,
    output: OutputOption = None,
) -> None:
    """Read segments whole and check every batch, and the file against the topic's log.

    Damage is reported with its position and the exit code is 3.

    \b
    Example:
      txnlog segments verify orders
      txnlog segments verify --file copy-of-a-segment.log
    """
    check_source(target, segment, file)
    session = open_session(ctx, store, storage_option, output)
    checks = _file_checks(session, file) if file else _store_checks(session, target, segment)
    with Reporter() as reporter:

        def reported() -> Iterator[SegmentCheck]:
            for check in checks:
                yield check
                for damage in check.damages:
                    reporter.report(damage)

        session.output.rows(CHECKS, reported(), streamed=True)


@app.command("du")
def show_usage(
    ctx: typer.Context,
    topic: Annotated[
        str | None,
        typer.Argument(metavar="TOPIC", help="Which; all topics if none.", show_default=False),
    ] = None,
    store: StoreOption = None,
    storage_option: StorageOptions = None,
    output: OutputOption = None,
) -> None:
    """Show what topics take on the storage, by partition. A listing per topic, no more.

    PART is - for the topic's log: entries, markers, checkpoints. UNREFERENCED is what no entry
    places: uploads on their way, what was trimmed, orphans; `doctor` tells more.

    \b
    Example:
      txnlog segments du orders
    """
    session = open_session(ctx, store, storage_option, output)
    with Reporter() as reporter:
        found = reporter.healthy(session.open_store().disk_usage(topic))
        session.output.rows(USAGE, found, streamed=True)


def _within(batches: Iterator[Batch], max_bytes: int | None) -> Iterator[Batch]:
    left = max_bytes
    for batch in batches:
        if left is not None and left <= 0:
            return
        yield batch
        if left is not None:
            left -= batch.dumped.size_bytes


def _reported(batches: Iterator[Batch], reporter: Reporter) -> Iterator[Batch]:
    for batch in batches:
        yield batch
        if batch.dumped.damage is not None:
            reporter.report(batch.dumped.damage)


def _file_batches(session: Session, files: list[str]) -> Iterator[Batch]:
    for file in open_files(session, files):
        yield from file_batches(file)


def _store_batches(session: Session, target: str | None, name: str | None) -> Iterator[Batch]:
    store, found = choose_segments(session, target, name)
    for segment in found:
        yield from placed_batches(store.storage, segment)


def _file_checks(session: Session, files: list[str]) -> Iterator[SegmentCheck]:
    from txnlog.inspect.segments import check_segment_file

    for file in open_files(session, files):
        yield check_segment_file(file)


def _store_checks(session: Session, target: str | None, name: str | None) -> Iterator[SegmentCheck]:
    from txnlog.inspect.segments import check_placed_segment

    store, found = choose_segments(session, target, name)
    for segment in found:
        yield check_placed_segment(store.storage, segment)
