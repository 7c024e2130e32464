"""``txnlog segments du``: what topics take on the storage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from txnlog.cli.output.damage import DamageReporter
from txnlog.cli.output.fields import Field, number, size, text
from txnlog.cli.session import Session

if TYPE_CHECKING:
    from txnlog.admin.disk_usage import PartitionUsage


FIELDS: list[Field[PartitionUsage]] = [
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
        typer.Argument(metavar="TOPIC", help="Which; all topics if none.", show_default=False),
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
        session.output.rows(FIELDS, found, streamed=True)
