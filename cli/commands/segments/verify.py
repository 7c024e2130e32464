"""``txnlog segments verify``: every batch of segments is checked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from txnlog.cli.input.segment_choice import (
    FileOption,
    OptionalTargetArgument,
    SegmentChoice,
    SegmentOption,
    choose_segments,
)
from txnlog.cli.output.damage import DamageReporter
from txnlog.cli.output.fields import Field, flag, names, number, size, text
from txnlog.cli.session import Session

if TYPE_CHECKING:
    from txnlog.inspect.segments import SegmentCheck


FIELDS: list[Field[SegmentCheck]] = [
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
        session.output.rows(FIELDS, watched, streamed=True)


def _check_files(session: Session, choice: SegmentChoice) -> Iterator[SegmentCheck]:
    from txnlog.inspect.files import open_segment_file
    from txnlog.inspect.segments import check_segment_file

    for path in choice.files:
        with open_segment_file(path, session.storage_options) as file:
            yield check_segment_file(file)


def _check_placed(session: Session, choice: SegmentChoice) -> Iterator[SegmentCheck]:
    from txnlog.inspect.segments import check_placed_segment

    store = session.open_to_read()
    for segment in choice.find(store):
        yield check_placed_segment(store.storage, segment)
