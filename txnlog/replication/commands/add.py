"""``txnlog replicas add``: a root comes in, a new one or one that was out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from txnlog.cli.input.options import DryRunOption
from txnlog.cli.output.confirmation import note_dry_run
from txnlog.cli.output.fields import Field, number, size, text
from txnlog.cli.session import Session
from txnlog.replication.commands.roots import open_roots

if TYPE_CHECKING:
    from txnlog.replication import Joined

FIELDS: list[Field[Joined]] = [
    text("member", "MEMBER", lambda joined: joined.member),
    number("epoch", "IN SYNC SINCE EPOCH", lambda joined: joined.epoch),
    number("object_count", "OBJECTS", lambda joined: joined.objects),
    size("size_bytes", "BYTES", lambda joined: joined.bytes),
    number("kept_count", "KEPT OBJECTS", lambda joined: joined.kept_objects),
    size("kept_bytes", "KEPT BYTES", lambda joined: joined.kept_bytes),
]


def add_replica(
    session: Session,
    url: Annotated[str, typer.Argument(metavar="ROOT", help="Path or URL of the root.")],
    rack: Annotated[
        str | None,
        typer.Option(metavar="LABEL", help="Its rack: data is spread over racks."),
    ] = None,
    dry_run: DryRunOption = False,
) -> None:
    """Bring in a root, new or old; wait until it is in sync.

    It starts with a new folder beside what it has, and everything, or its share where
    replication.factor says so, is copied through this command, while others write. Of what it had
    it keeps the data that is whole. If it is killed or fails, run it again.

    \b
    Example:
      txnlog replicas add /data/disk3/store --dry-run
      txnlog replicas add /data/disk3/store
    """
    joined = open_roots(session).add(url, rack=rack, dry_run=dry_run)
    with session.output.document() as document:
        document.fields(FIELDS, joined)
    note_dry_run(dry_run)
