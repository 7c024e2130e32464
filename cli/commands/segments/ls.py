"""``txnlog segments ls``: the files that hold a topic's records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txnlog.cli.input.options import TargetArgument
from txnlog.cli.input.places import parse_target
from txnlog.cli.output.fields import Field, number, size, text, time
from txnlog.cli.session import Session

if TYPE_CHECKING:
    from txnlog.inspect.descriptions import SegmentDescription


def _hide_unknown(producer: int) -> int | None:
    return None if producer < 0 else producer


FIELDS: list[Field[SegmentDescription]] = [
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
    session.output.rows(FIELDS, found)
