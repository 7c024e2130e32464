"""``txnlog replicas reassign``: data is brought to the roots where it belongs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from txnlog.cli.input.options import DryRunOption
from txnlog.cli.output.confirmation import note_dry_run
from txnlog.cli.output.fields import Field, number, size, text
from txnlog.cli.session import Session
from txnlog.replication.commands.roots import open_roots

if TYPE_CHECKING:
    from txnlog.replication import Reassigned

FIELDS: list[Field[Reassigned]] = [
    text("topic", "TOPIC", lambda done: done.topic),
    number("copied_count", "COPIED", lambda done: done.copied),
    size("copied_bytes", "BYTES COPIED", lambda done: done.copied_bytes),
    number("deleted_count", "DELETED", lambda done: done.deleted),
    size("deleted_bytes", "BYTES DELETED", lambda done: done.deleted_bytes),
    number("lacking_count", "LACKING", lambda done: done.lacking),
]


def reassign_replicas(
    session: Session,
    topics: Annotated[
        list[str] | None,
        typer.Argument(metavar="TOPIC", help="Only these.", show_default=False),
    ] = None,
    dry_run: DryRunOption = False,
) -> None:
    """Move data to the roots where it belongs.

    After replication.factor, racks or the set of roots have changed, or a root was put out: see
    `replicas config`. Copies are made first; then surplus ones are deleted. It may run while others
    write, and be killed anywhere: run it again. LACKING are files of which there are still too few
    copies, because no root that answers has them, or too few can take them.

    \b
    Example:
      txnlog replicas config replication.factor=2 replica.rack.r0=hall-1
      txnlog replicas reassign --dry-run
      txnlog replicas reassign orders
    """
    done = open_roots(session).reassign(topics or None, dry_run=dry_run)
    session.output.rows(FIELDS, done)
    note_dry_run(dry_run)
