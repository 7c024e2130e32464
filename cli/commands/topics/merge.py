"""``txnlog topics merge``: many small segments become few large ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from txnlog.cli.input.options import DryRunOption
from txnlog.cli.output.confirmation import note_dry_run
from txnlog.cli.output.fields import Field, number, size, text
from txnlog.cli.session import Session

if TYPE_CHECKING:
    from txnlog.results import Merge


FIELDS: list[Field[Merge]] = [
    text("topic", "TOPIC", lambda merge: merge.topic),
    number("partition", "PART", lambda merge: merge.partition),
    number("segment_count", "SEGMENTS", lambda merge: merge.segment_count),
    size("size_bytes", "BYTES", lambda merge: merge.size_bytes),
    number("merged_count", "MERGED", lambda merge: merge.merged_count),
    size("merged_bytes", "BYTES NOW", lambda merge: merge.merged_bytes),
]


def merge_segments(
    session: Session,
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC", help="Whose.")],
    dry_run: DryRunOption = False,
) -> None:
    """Merge small neighbouring segments into large ones. These have up to segment.bytes.

    `maintain` does it too. Records and offsets stay as they are; readers that are at work go on
    with the old files, which `maintain` deletes file.delete.delay.ms later. May run beside writers,
    and on several machines.

    \b
    Example:
      txnlog topics merge orders --dry-run
    """
    store = session.open_store(dry_run=dry_run)

    def merges() -> Iterator[Merge]:
        for topic in topics:
            yield from store.maintenance.merge(topic, dry_run=dry_run)

    session.output.rows(FIELDS, merges())
    note_dry_run(dry_run)
