"""``txnlog replicas move-controller``: the epochs are decided at another place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from txnlog.cli.input.options import DryRunOption
from txnlog.cli.output.confirmation import note_dry_run
from txnlog.cli.output.fields import Field, names, number, text
from txnlog.cli.output.streams import warn
from txnlog.cli.session import Session
from txnlog.replication.commands.roots import open_roots

if TYPE_CHECKING:
    from txnlog.replication import ControllerMove

FIELDS: list[Field[ControllerMove]] = [
    text("controller", "CONTROLLER", lambda moved: moved.url),
    number("epoch", "EPOCH", lambda moved: moved.epoch),
    names("told", "TOLD", lambda moved: moved.told),
    names("untold", "NOT TOLD", lambda moved: moved.untold),
]


def move_controller(
    session: Session,
    url: Annotated[str, typer.Argument(metavar="URL", help="Path or URL of an empty folder.")],
    dry_run: DryRunOption = False,
) -> None:
    """Move the controller to another place, while others write. It must still be reachable.

    Every process that uses the store moves there by itself; it must already have what is needed to
    reach a new server. TOLD are the roots that name the new place: by these, or by its own URL, the
    store is found when the old place is gone. Leave that as it is until no process can be asleep
    that knows no other. If this is killed or fails, or a root was not told, run it again.

    \b
    Example:
      txnlog replicas move-controller /data/control2 --dry-run
      txnlog replicas move-controller /data/control2
    """
    options = session.storage_options_of(url)
    moved = open_roots(session).move_controller(url, storage_options=options, dry_run=dry_run)
    with session.output.document() as document:
        document.fields(FIELDS, moved)
    if moved.untold:
        warn(f"not told, since they did not answer: {', '.join(moved.untold)}. Run it again later")
    note_dry_run(dry_run)
