"""``txnlog index rebuild``: missing and damaged indexes are rebuilt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeAlias

from txnlog.cli.commands.index.placed_segments import find_placed_segments
from txnlog.cli.input.options import DryRunOption
from txnlog.cli.input.segment_choice import (
    FileOption,
    OptionalTargetArgument,
    SegmentChoice,
    SegmentOption,
    choose_segments,
)
from txnlog.cli.output.confirmation import note_dry_run
from txnlog.cli.output.damage import DamageReporter
from txnlog.cli.output.fields import Field, number, text
from txnlog.cli.session import Session

if TYPE_CHECKING:
    from txnlog.inspect.placed_indexes import IndexRebuild

    _Rebuilt: TypeAlias = tuple[list[IndexRebuild], str | None]

FIELDS: list[Field[IndexRebuild]] = [
    text("before", "BEFORE", lambda done: done.before),
    text("action", "ACTION", lambda done: done.action),
    text("kind", None, lambda done: done.kind),
    number("entry_count", "ENTRIES", lambda done: done.entry_count, wide=True),
    text("path", "PATH", lambda done: done.path),
]


def rebuild_indexes(
    session: Session,
    target: OptionalTargetArgument = None,
    segment: SegmentOption = None,
    file: FileOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Rebuild missing or damaged offset and time indexes. Sound ones are kept.

    Safe at any time: readers check an index, and can do without it. In a store a damaged file is
    deleted and put again; with --file, a local segment, the files beside it are replaced. No
    segment is changed, and no transaction index, which only a backup brings back.

    \b
    Example:
      txnlog index rebuild orders --dry-run
      txnlog index rebuild --file copy-of-a-segment.log
    """
    choice = choose_segments(target, segment, file, indexes=True)
    if choice.files:
        rebuilds = _rebuild_files(choice, dry_run=dry_run)
    else:
        rebuilds = _rebuild_placed(session, choice, dry_run=dry_run)
    with DamageReporter() as reporter:
        session.output.rows(FIELDS, _pass_on(rebuilds, reporter), streamed=True)
        note_dry_run(dry_run)


def _rebuild_files(choice: SegmentChoice, *, dry_run: bool) -> Iterator[_Rebuilt]:
    from txnlog.inspect.file_indexes import rebuild_file_indexes

    for path in choice.files:
        yield rebuild_file_indexes(path, dry_run=dry_run)


def _rebuild_placed(
    session: Session, choice: SegmentChoice, *, dry_run: bool
) -> Iterator[_Rebuilt]:
    from txnlog.config import TopicConfig
    from txnlog.inspect.placed_indexes import rebuild_placed_indexes

    store = session.open_store(dry_run=dry_run)
    segments = find_placed_segments(choice, store)
    if not segments:
        return
    interval = TopicConfig.of(store.logs.topic_spec(segments[0].topic).config).index_interval_bytes
    for segment in segments:
        yield rebuild_placed_indexes(store.storage, segment, interval, dry_run=dry_run)


def _pass_on(rebuilds: Iterable[_Rebuilt], reporter: DamageReporter) -> Iterator[IndexRebuild]:
    """What was done to each index; a segment's damage is reported after its indexes."""
    for done, damage in rebuilds:
        yield from done
        reporter.report(damage)
