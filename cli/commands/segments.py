"""``txnlog segments``: the files that hold the records, and what is in them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from txnlog.cli.input.options import TargetArgument
from txnlog.cli.input.places import parse_target
from txnlog.cli.input.segment_choice import (
    FileOption,
    OptionalTargetArgument,
    SegmentChoice,
    SegmentOption,
    choose_segments,
)
from txnlog.cli.output.batch_fields import (
    Batch,
    batch_fields,
    read_file_batches,
    read_placed_batches,
    show_records,
)
from txnlog.cli.output.damage import DamageReporter
from txnlog.cli.output.fields import Field, flag, names, number, size, text, time
from txnlog.cli.output.streams import first
from txnlog.cli.session import Session
from txnlog.cli.verbs import verb_group

if TYPE_CHECKING:
    from txnlog.admin.disk_usage import PartitionUsage
    from txnlog.inspect.descriptions import SegmentDescription
    from txnlog.inspect.segments import SegmentCheck


def _hide_unknown(producer: int) -> int | None:
    return None if producer < 0 else producer


SEGMENTS: list[Field[SegmentDescription]] = [
    text("topic", None, lambda segment: segment.topic),
    number("partition", "PART", lambda segment: segment.partition),
    number("base_offset", "BASE", lambda segment: segment.base_offset),
    number("end_offset", "END", lambda segment: segment.end_offset, wide=True),
    number("record_count", "RECORDS", lambda segment: segment.record_count),
    size("size_bytes", "BYTES", lambda segment: segment.size_bytes),
    number("batch_count", "BATCHES", lambda segment: segment.batch_count, wide=True),
    number("entry", "ENTRY", lambda segment: segment.entry, wide=True),
    text("outcome", "OUTCOME", lambda segment: segment.outcome),
    time("min_timestamp_ms", "FROM", lambda segment: segment.min_timestamp_ms, wide=True),
    time("max_timestamp_ms", "TO", lambda segment: segment.max_timestamp_ms, wide=True),
    number("producer_id", None, lambda segment: _hide_unknown(segment.producer_id)),
    number("producer_epoch", None, lambda segment: _hide_unknown(segment.producer_epoch)),
    number("base_sequence", None, lambda segment: _hide_unknown(segment.base_sequence)),
    text("segment", "SEGMENT", lambda segment: segment.name),
    number("position", "POSITION", lambda segment: segment.ref.start, wide=True),
    text("path", None, lambda segment: segment.paths.log),
]


def list_segments(
    session: Session,
    target: TargetArgument,
) -> None:
    """List the segments of a topic in the order of their offsets. No segment is read.

    ENTRY is the entry of the topic's log that placed the segment; OUTCOME is committed,
    aborted or undecided; POSITION where it begins in its file: small ones of several
    partitions may share one.

    \b
    Example:
      txnlog segments ls orders:0
    """
    where = parse_target(target)
    found = session.open_to_read().topics.segments(where.topic, where.partition)
    session.output.rows(SEGMENTS, found)


def dump_segments(
    session: Session,
    target: OptionalTargetArgument = None,
    segment: SegmentOption = None,
    file: FileOption = None,
    records: Annotated[bool, typer.Option("--records", help="Show the records too.")] = False,
    no_metadata: Annotated[
        bool, typer.Option("--no-metadata", help="Show records as keys and values alone.")
    ] = False,
    max_batches: Annotated[
        int | None,
        typer.Option("--max-batches", min=0, help="At most this many."),
    ] = None,
    max_bytes: Annotated[
        int | None,
        typer.Option("--max-bytes", min=0, help="No batch after this many bytes."),
    ] = None,
) -> None:
    """Show the batches of segments as they lie in their files. Changes nothing.

    Offsets and sequences are those of the topic; with --file they are those in the file,
    where txnlog's own begin at 0. A file may be one of Kafka's. Damage is reported with its
    position, all that can be decoded is shown, and the exit code is 3.

    \b
    Example:
      txnlog segments dump orders:0 --max-batches 5
      txnlog segments dump --file orders-0/00000000000000000000.log --records
    """
    choice = choose_segments(target, segment, file)
    with_records = records or no_metadata
    batches = _stop_after(max_bytes, first(_read_batches(session, choice), max_batches))
    with DamageReporter() as reporter:
        session.output.rows(
            batch_fields(with_records=with_records, metadata=not no_metadata),
            reporter.watch(batches, lambda batch: [batch.dumped.damage]),
            streamed=True,
            live=with_records,  # no table is measured ahead: a batch holds its records
            heading=lambda batch: f"# {batch.source}",
            below=partial(show_records, metadata=not no_metadata) if with_records else None,
            cut=True,
        )


def _stop_after(max_bytes: int | None, batches: Iterator[Batch]) -> Iterator[Batch]:
    left = max_bytes
    for batch in batches:
        if left is not None and left <= 0:
            return
        yield batch
        if left is not None:
            left -= batch.dumped.size_bytes


def _read_batches(session: Session, choice: SegmentChoice) -> Iterator[Batch]:
    for path in choice.files:
        yield from read_file_batches(path, session.storage_options)
    if not choice.files:
        store = session.open_to_read()
        for segment in choice.find(store):
            yield from read_placed_batches(store.storage, segment)


CHECKS: list[Field[SegmentCheck]] = [
    flag("ok", "STATE", lambda check: not check.damages, "ok", "DAMAGED"),
    number("batch_count", "BATCHES", lambda check: check.batch_count, wide=True),
    number("record_count", "RECORDS", lambda check: check.record_count, wide=True),
    size("size_bytes", "BYTES", lambda check: check.size_bytes),
    text("path", "PATH", lambda check: check.path),
    number("position", "POSITION", lambda check: max(check.position, 0), wide=True),
    names("damages", None, lambda check: check.damages),
]


def verify_segments(
    session: Session,
    target: OptionalTargetArgument = None,
    segment: SegmentOption = None,
    file: FileOption = None,
) -> None:
    """Read whole segments, and check them against the topic's log.

    Damage is reported with its position and the exit code is 3. POSITION is where a segment
    begins in its file: small ones of several partitions may share one.

    \b
    Example:
      txnlog segments verify orders
      txnlog segments verify --file copy-of-a-segment.log
    """
    choice = choose_segments(target, segment, file)
    checks = _check_files(session, choice) if choice.files else _check_placed(session, choice)
    with DamageReporter() as reporter:
        watched = reporter.watch(checks, lambda check: check.damages)
        session.output.rows(CHECKS, watched, streamed=True)


def _check_files(session: Session, choice: SegmentChoice) -> Iterator[SegmentCheck]:
    from txnlog.inspect.files import open_segment_file
    from txnlog.inspect.segments import check_segment_file

    for path in choice.files:
        with open_segment_file(path, session.storage_options) as file:
            yield check_segment_file(file)


def _check_placed(session: Session, choice: SegmentChoice) -> Iterator[SegmentCheck]:
    from txnlog.inspect.segments import check_placed_segment

    store = session.open_to_read()
    check = partial(check_placed_segment, store.storage)
    return choice.check_each(
        store, choice.find(store), check, is_sound=lambda found: not found.damages
    )


USAGE: list[Field[PartitionUsage]] = [
    text("topic", "TOPIC", lambda usage: usage.topic),
    number("partition", "PART", lambda usage: usage.partition),
    number("file_count", "FILES", lambda usage: usage.file_count, wide=True),
    size("segment_bytes", "SEGMENTS", lambda usage: usage.segment_bytes),
    size("index_bytes", "INDEXES", lambda usage: usage.index_bytes, wide=True),
    size("log_bytes", "LOG", lambda usage: usage.log_bytes),
    size("unreferenced_bytes", "UNREFERENCED", lambda usage: usage.unreferenced_bytes),
    size("size_bytes", "BYTES", lambda usage: usage.size_bytes),
]


def show_usage(
    session: Session,
    topic: Annotated[
        str | None,
        typer.Argument(metavar="TOPIC", help="Which; all topics if none."),
    ] = None,
) -> None:
    """Show what topics take on the storage, by partition. A listing per topic, no more.

    PART is - for the topic's log: entries, markers, checkpoints. UNREFERENCED is what no log entry
    refers to: uploads that still run, what was trimmed, orphans; `doctor` tells more.

    \b
    Example:
      txnlog segments du orders
    """
    with DamageReporter() as reporter:
        found = reporter.skip_unreadable(
            session.open_to_read().topics.disk_usage(topic).with_errors()
        )
        session.output.rows(USAGE, found, streamed=True)


app = verb_group(
    {
        "ls": list_segments,
        "dump": dump_segments,
        "verify": verify_segments,
        "du": show_usage,
    },
)
