"""``txnlog index dump``: the entries of index files, as they lie."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from txnlog.cli.commands.index.placed_segments import find_placed_segments
from txnlog.cli.input.segment_choice import (
    FileOption,
    OptionalTargetArgument,
    SegmentChoice,
    SegmentOption,
    choose_segments,
)
from txnlog.cli.output.damage import DamageReporter
from txnlog.cli.output.fields import Field, number, text, time
from txnlog.cli.output.streams import warn
from txnlog.cli.session import Session

if TYPE_CHECKING:
    from txnlog.inspect.placed_indexes import IndexEntry


FIELDS: list[Field[IndexEntry]] = [
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


def dump_indexes(
    session: Session,
    target: OptionalTargetArgument = None,
    segment: SegmentOption = None,
    file: FileOption = None,
) -> None:
    """Show the entries of index files as they lie.

    Segments of one batch, or of less than 1 MiB, have none. Of Parquet files the page index is
    shown: with which offsets pages begin.

    Offsets are those of the topic; with --file they are counted from the one that the file is
    named for. --file may be a segment, then it is all indexes beside it, or an index.

    \b
    Example:
      txnlog index dump orders:0
      txnlog index dump --file orders-0/00000000000000000000.timeindex
    """
    choice = choose_segments(target, segment, file, indexes=True)
    entries = _dump_files(session, choice) if choice.files else _dump_placed(session, choice)
    with DamageReporter() as reporter:
        session.output.rows(
            FIELDS,
            reporter.watch(entries, lambda entry: [entry.damage]),
            streamed=True,
            heading=lambda entry: f"# {entry.path}",
        )


def _dump_files(session: Session, choice: SegmentChoice) -> Iterator[IndexEntry]:
    from txnlog.inspect.file_indexes import dump_file_indexes

    for path in choice.files:
        entries, padding = dump_file_indexes(path, session.storage_options)
        yield from entries
        if padding:
            warn(f"{path}: {padding} bytes of zeros at the end, made by a broker ahead of time")


def _dump_placed(session: Session, choice: SegmentChoice) -> Iterator[IndexEntry]:
    from txnlog.inspect.placed_indexes import dump_placed_indexes

    store = session.open_to_read()
    for segment in find_placed_segments(choice, store, shows_pages=True):
        yield from dump_placed_indexes(store.storage, segment)
