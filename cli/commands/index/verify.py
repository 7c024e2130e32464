"""``txnlog index verify``: indexes are checked against their segments."""

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
from txnlog.cli.output.fields import Field, names, number, text
from txnlog.cli.session import Session

if TYPE_CHECKING:
    from txnlog.inspect.placed_indexes import IndexCheck


FIELDS: list[Field[IndexCheck]] = [
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
        session.output.rows(FIELDS, check(session, choice, reporter), streamed=True)


def _check_files(
    session: Session, choice: SegmentChoice, reporter: DamageReporter
) -> Iterator[IndexCheck]:
    from txnlog.inspect.file_indexes import check_file_indexes

    for path in choice.files:
        checks, damage = check_file_indexes(path, session.storage_options)
        yield from reporter.watch(checks, lambda check: check.damages)
        reporter.report(damage)


def _check_placed(
    session: Session, choice: SegmentChoice, reporter: DamageReporter
) -> Iterator[IndexCheck]:
    from txnlog.inspect.placed_indexes import check_placed_indexes

    store = session.open_to_read()
    for segment in find_placed_segments(choice, store):
        checks, damage = check_placed_indexes(store.storage, segment)
        yield from reporter.watch(checks, lambda check: check.damages)
        reporter.report(damage)
        for check in checks:
            if check.state == "missing":
                rebuild = f"`txnlog index rebuild {segment.topic}`"
                reporter.report(f"{check.path} is missing; {rebuild} rebuilds it")
