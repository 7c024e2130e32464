"""``txnlog topics compact``: of each key the newest record stays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from txnlog.cli.input.options import DryRunOption
from txnlog.cli.output.confirmation import note_dry_run
from txnlog.cli.output.fields import Field, number, size, text
from txnlog.cli.session import Session

if TYPE_CHECKING:
    from txnlog.results import Compaction

FIELDS: list[Field[Compaction]] = [
    text("topic", "TOPIC", lambda done: done.topic),
    number("partition", "PART", lambda done: done.partition),
    text("dirty_ratio", "DIRTY", lambda done: f"{done.dirty_ratio:.2f}"),
    number("segment_count", "SEGMENTS", lambda done: done.segment_count),
    size("size_bytes", "BYTES", lambda done: done.size_bytes),
    number("record_count", "RECORDS", lambda done: done.record_count, wide=True),
    number("compacted_count", "SEGMENTS AFTER", lambda done: done.compacted_count),
    size("compacted_bytes", "BYTES AFTER", lambda done: done.compacted_bytes),
    number(
        "compacted_record_count",
        "RECORDS AFTER",
        lambda done: done.compacted_record_count,
        wide=True,
    ),
]


def compact_topic(
    session: Session,
    topic: Annotated[str, typer.Argument(help="A topic whose cleanup.policy says compact.")],
    dry_run: DryRunOption = False,
) -> None:
    """Compact a topic by key now. The newest record of each key stays; offsets are kept.

    Whatever is new is compacted, however little that is; `maintain` waits until it is worthwhile.
    Records younger than min.compaction.lag.ms stay, tombstones for delete.retention.ms. The old
    files stay where they are, for readers that are at work; `maintain` deletes them later.

    \b
    Example:
      txnlog topics compact orders --dry-run
    """
    session.output.rows(
        FIELDS, session.open_store(dry_run=dry_run).maintenance.compact(topic, dry_run=dry_run)
    )
    note_dry_run(dry_run)
