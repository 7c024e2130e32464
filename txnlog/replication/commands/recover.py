"""``txnlog replicas recover``: a controller that is lost is made anew."""

from __future__ import annotations

from typing import Annotated

import typer

from txnlog.cli.input.options import DryRunOption
from txnlog.cli.output.confirmation import note_dry_run
from txnlog.cli.output.streams import warn
from txnlog.cli.session import Session
from txnlog.replication.commands.move_controller import FIELDS


def recover(
    session: Session,
    controller: Annotated[
        str, typer.Option(metavar="URL", help="Path or URL of an empty folder for it.")
    ],
    lost: Annotated[
        list[str] | None,
        typer.Option(metavar="ROOT", help="A root that is lost for good; may be repeated."),
    ] = None,
    dry_run: DryRunOption = False,
) -> None:
    """Make a controller that is lost anew.

    At another place. Name a root as the store. What the roots keep of the controller is enough, and
    nothing that was acknowledged is lost if all of them answer. One that is lost for good is given
    up by --lost, with what it alone had. Jobs must reopen the store. Should the old place come
    back, delete it. If this is killed or fails, or a root was not told, run it again.

    \b
    Example:
      txnlog replicas recover --controller /data/control2 --dry-run
      txnlog replicas recover --controller /data/control2
    """
    from txnlog.replication import recover_controller

    options = {
        **session.storage_options_of(controller),
        **session.storage_options,
    }
    done = recover_controller(
        *(session.named_url(), controller),
        storage_options=options,
        lost=lost or (),
        dry_run=dry_run,
    )
    with session.output.document() as document:
        document.fields(FIELDS, done)
    if done.untold:
        warn(f"not told, since they did not answer: {', '.join(done.untold)}. Run it again later")
    note_dry_run(dry_run)
