"""``txnlog index``: the offset and time indexes beside segments."""

# ruff: noqa: D301 - the help keeps lines as they are after a real backspace
from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import typer

from txnlog.cli.input.places import HELP_NAMES
from txnlog.cli.input.segment_choice import (
    FileOption,
    SegmentOption,
    TargetArgument,
    check_source,
    choose_segments,
)
from txnlog.cli.output.confirmation import DryRunOption, tell_dry_run
from txnlog.cli.output.damage import Reporter
from txnlog.cli.output.fields import Field, names, number, text, time
from txnlog.cli.output.output import warn
from txnlog.cli.session import OutputOption, Session, StorageOptions, StoreOption, open_session

if TYPE_CHECKING:
    from txnlog.inspect.indexes import IndexCheck, IndexEntry, IndexRebuild

app = typer.Typer(
    help="Indexes: what finds offsets and times in segments.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings=HELP_NAMES,
)

ENTRIES: list[Field[IndexEntry]] = [
    text("path", None, lambda entry: entry.path),
    text("kind", "KIND", lambda entry: entry.kind),
    number("number", "ENTRY", lambda entry: entry.number),
    number("offset", "OFFSET", lambda entry: entry.offset),
    number("position", "POSITION", lambda entry: entry.position),
    time("timestamp_ms", "TIMESTAMP", lambda entry: entry.timestamp_ms),
    number("producer_id", "PRODUCER", lambda entry: entry.producer_id, wide=True),
    number("first_offset", "FIRST", lambda entry: entry.first_offset, wide=True),
    number("last_stable_offset", "STABLE", lambda entry: entry.last_stable_offset, wide=True),
    text("damage", None, lambda entry: entry.damage),
]
CHECKS: list[Field[IndexCheck]] = [
    text("state", "STATE", lambda check: check.state),
    text("kind", None, lambda check: check.kind),
    number("entry_count", "ENTRIES", lambda check: check.entry_count, wide=True),
    text("path", "PATH", lambda check: check.path),
    names("damages", None, lambda check: check.damages),
]
REBUILDS: list[Field[IndexRebuild]] = [
    text("before", "BEFORE", lambda done: done.before),
    text("action", "ACTION", lambda done: done.action),
    text("kind", None, lambda done: done.kind),
    number("entry_count", "ENTRIES", lambda done: done.entry_count, wide=True),
    text("path", "PATH", lambda done: done.path),
]


@app.command("dump")
def dump_indexes(
    ctx: typer.Context,
    target: TargetArgument = None,
    segment: SegmentOption = None,
    file: FileOption = None,
    store: StoreOption = None,
    storage_option: StorageOptions = None,
    output: OutputOption = None,
) -> None:
    """Show the entries of index files as they lie. Segments of a single batch have none.

    Offsets are those of the topic; with --file they are counted from the one that the file is
    named for. --file may be a segment, then it is all indexes beside it, or an index.

    \b
    Example:
      txnlog index dump orders:0
      txnlog index dump --file /var/kafka/data/orders-0/00000000000000000000.timeindex
    """
    check_source(target, segment, file, indexes=True)
    session = open_session(ctx, store, storage_option, output)
    entries = _file_entries(session, file) if file else _store_entries(session, target, segment)
    with Reporter() as reporter:

        def reported() -> Iterator[IndexEntry]:
            for entry in entries:
                yield entry
                if entry.damage is not None:
                    reporter.report(entry.damage)

        session.output.rows(
            ENTRIES, reported(), streamed=True, heading=lambda entry: f"# {entry.path}"
        )


@app.command("verify")
def verify_indexes(
    ctx: typer.Context,
    target: TargetArgument = None,
    segment: SegmentOption = None,
    file: FileOption = None,
    store: StoreOption = None,
    storage_option: StorageOptions = None,
    output: OutputOption = None,
) -> None:
    """Check offset and time indexes against the batches of their segments.

    With a damaged or missing index nothing is lost, it only takes longer to find it; the exit
    code is 3 all the same (a file that is missing beside --file is none).

    \b
    Example:
      txnlog index verify orders
      txnlog index verify --file /var/kafka/data/orders-0/00000000000000000000.log
    """
    check_source(target, segment, file, indexes=True)
    session = open_session(ctx, store, storage_option, output)
    with Reporter() as reporter:
        checks = (
            _file_checks(session, file, reporter)
            if file
            else _store_checks(session, target, segment, reporter)
        )
        session.output.rows(CHECKS, checks, streamed=True)


@app.command("rebuild")
def rebuild_indexes(
    ctx: typer.Context,
    target: TargetArgument = None,
    segment: SegmentOption = None,
    file: FileOption = None,
    dry_run: DryRunOption = False,
    store: StoreOption = None,
    storage_option: StorageOptions = None,
    output: OutputOption = None,
) -> None:
    """Make offset and time indexes anew that are missing or damaged; sound ones are kept.

    Safe at any time: readers check an index and do without. In a store a damaged file is
    deleted and put again; with --file, a local segment, the files beside it are replaced. No
    segment is changed, and no transaction index, which only a backup brings back.

    \b
    Example:
      txnlog index rebuild orders --dry-run
      txnlog index rebuild --file copy-of-a-segment.log
    """
    check_source(target, segment, file, indexes=True)
    session = open_session(ctx, store, storage_option, output)
    with Reporter() as reporter:
        done = (
            _file_rebuilds(file, reporter, dry_run=dry_run)
            if file
            else _store_rebuilds(session, target, segment, reporter, dry_run=dry_run)
        )
        session.output.rows(REBUILDS, done, streamed=True)
        tell_dry_run(dry_run)


def _store_entries(
    session: Session, target: str | None, segment: str | None
) -> Iterator[IndexEntry]:
    from txnlog.inspect.indexes import dump_placed_indexes

    store, found = choose_segments(session, target, segment)
    for item in found:
        yield from dump_placed_indexes(store.storage, item)


def _file_entries(session: Session, files: list[str]) -> Iterator[IndexEntry]:
    from txnlog.inspect.file_indexes import dump_file_indexes

    for path in files:
        entries, padding = dump_file_indexes(path, session.storage_options)
        yield from entries
        if padding:
            warn(f"{path}: {padding} bytes of zeros at the end, made by a broker ahead of time")


def _store_checks(
    session: Session, target: str | None, segment: str | None, reporter: Reporter
) -> Iterator[IndexCheck]:
    from txnlog.inspect.indexes import check_placed_indexes

    store, found = choose_segments(session, target, segment)
    for item in found:
        checks, damage = check_placed_indexes(store.storage, item)
        yield from _reported(checks, damage, reporter)
        for check in checks:
            if check.state == "missing":
                reporter.report(f"{check.path} is missing; `txnlog index rebuild` makes it anew")


def _file_checks(session: Session, files: list[str], reporter: Reporter) -> Iterator[IndexCheck]:
    from txnlog.inspect.file_indexes import check_file_indexes

    for path in files:
        checks, damage = check_file_indexes(path, session.storage_options)
        yield from _reported(checks, damage, reporter)


def _reported(
    checks: Iterable[IndexCheck], damage: str | None, reporter: Reporter
) -> Iterator[IndexCheck]:
    for check in checks:
        yield check
        for reason in check.damages:
            reporter.report(reason)
    if damage is not None:
        reporter.report(damage)


def _store_rebuilds(
    session: Session,
    target: str | None,
    segment: str | None,
    reporter: Reporter,
    *,
    dry_run: bool,
) -> Iterator[IndexRebuild]:
    from txnlog.config import TopicConfig
    from txnlog.inspect.indexes import rebuild_placed_indexes

    store, found = choose_segments(session, target, segment)
    if not found:
        return
    interval = TopicConfig.of(store.topic_spec(found[0].topic).config).index_interval_bytes
    for item in found:
        done, damage = rebuild_placed_indexes(store.storage, item, interval, dry_run=dry_run)
        yield from done
        if damage is not None:
            reporter.report(damage)


def _file_rebuilds(
    files: list[str], reporter: Reporter, *, dry_run: bool
) -> Iterator[IndexRebuild]:
    from txnlog.inspect.file_indexes import rebuild_file_indexes

    for path in files:
        done, damage = rebuild_file_indexes(path, dry_run=dry_run)
        yield from done
        if damage is not None:
            reporter.report(damage)
