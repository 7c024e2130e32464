"""``txnlog index``: the offset and time indexes beside segments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

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
from txnlog.cli.output.fields import Field, names, number, text, time
from txnlog.cli.output.streams import warn
from txnlog.cli.session import Session
from txnlog.cli.verbs import verb_group

if TYPE_CHECKING:
    from txnlog.inspect.descriptions import SegmentDescription
    from txnlog.inspect.placed_indexes import IndexCheck, IndexEntry, IndexRebuild
    from txnlog.store import Store

    _Rebuilt: TypeAlias = tuple[list[IndexRebuild], str | None]

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
            ENTRIES,
            reporter.watch(entries, lambda entry: [entry.damage]),
            streamed=True,
            heading=lambda entry: f"# {entry.path}",
        )


def _dump_files(session: Session, choice: SegmentChoice) -> Iterator[IndexEntry]:
    from txnlog.inspect.files import dump_file_indexes

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


CHECKS: list[Field[IndexCheck]] = [
    text("state", "STATE", lambda check: check.state),
    text("kind", None, lambda check: check.kind),
    number("entry_count", "ENTRIES", lambda check: check.entry_count, wide=True),
    text("path", "PATH", lambda check: check.path),
    names("damages", None, lambda check: check.damages),
]


def verify_indexes(
    session: Session,
    target: OptionalTargetArgument = None,
    segment: SegmentOption = None,
    file: FileOption = None,
) -> None:
    """Check offset and time indexes against their segments.

    With a damaged or missing index nothing is lost, it only takes longer to find it; the exit
    code is 3 all the same (with --file a missing index is not damage).

    \b
    Example:
      txnlog index verify orders
      txnlog index verify --file /var/kafka/data/orders-0/00000000000000000000.log
    """
    choice = choose_segments(target, segment, file, indexes=True)
    check = _check_files if choice.files else _check_placed
    with DamageReporter() as reporter:
        session.output.rows(CHECKS, check(session, choice, reporter), streamed=True)


def _check_files(
    session: Session, choice: SegmentChoice, reporter: DamageReporter
) -> Iterator[IndexCheck]:
    from txnlog.inspect.files import check_file_indexes

    for path in choice.files:
        checks, damage = check_file_indexes(path, session.storage_options)
        yield from reporter.watch(checks, lambda check: check.damages)
        reporter.report(damage)


def _check_placed(
    session: Session, choice: SegmentChoice, reporter: DamageReporter
) -> Iterator[IndexCheck]:
    from txnlog.inspect.placed_indexes import check_placed_indexes

    store = session.open_to_read()

    def is_sound(found: tuple[list[IndexCheck], str | None]) -> bool:
        checks, damage = found
        return damage is None and all(index.state == "ok" for index in checks)

    segments = find_placed_segments(choice, store)
    check_one = partial(check_placed_indexes, store.storage)
    for checks, damage in choice.check_each(store, segments, check_one, is_sound=is_sound):
        yield from reporter.watch(checks, lambda check: check.damages)
        reporter.report(damage)
        for check in checks:
            if check.state == "missing":
                rebuild = f"`txnlog index rebuild {segments[0].topic}`"
                reporter.report(f"{check.path} is missing; {rebuild} rebuilds it")


REBUILDS: list[Field[IndexRebuild]] = [
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
        session.output.rows(REBUILDS, _pass_on(rebuilds, reporter), streamed=True)
        note_dry_run(dry_run)


def _rebuild_files(choice: SegmentChoice, *, dry_run: bool) -> Iterator[_Rebuilt]:
    from txnlog.inspect.files import rebuild_file_indexes

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

    def rebuild(segment: SegmentDescription) -> _Rebuilt:
        return rebuild_placed_indexes(store.storage, segment, interval, dry_run=dry_run)

    yield from choice.check_each(store, segments, rebuild, is_sound=lambda found: found[1] is None)


def _pass_on(rebuilds: Iterable[_Rebuilt], reporter: DamageReporter) -> Iterator[IndexRebuild]:
    """What was done to each index; a segment's damage is reported after its indexes."""
    for done, damage in rebuilds:
        yield from done
        reporter.report(damage)


def find_placed_segments(
    choice: SegmentChoice, store: Store, *, shows_pages: bool = False
) -> list[SegmentDescription]:
    """The segments that are meant; people are told why none of some shows.

    Raises BadParameter, ObjectNotFound if none has the name.
    """
    from txnlog.inspect.placed_indexes import index_paths

    found = choice.find(store)
    if any(segment.paths.is_parquet for segment in found):
        if not shows_pages:
            warn(
                f"{choice.target}: segments that are Parquet files have their index in themselves, "
                "and no index files: there is nothing to do. `txnlog segments verify` checks it"
            )
    elif found and not any(map(index_paths, found)):
        warn(
            f"{choice.target}: there are no index files: segments of one batch, or of less than "
            "1 MiB, have none"
        )
    return found


app = verb_group(
    {
        "dump": dump_indexes,
        "verify": verify_indexes,
        "rebuild": rebuild_indexes,
    },
)
