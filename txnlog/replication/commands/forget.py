"""``txnlog replicas forget``: what roots had before they were put out is deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from txnlog.cli.input.options import DryRunOption, YesOption
from txnlog.cli.output.confirmation import confirm, note_dry_run
from txnlog.cli.output.fields import Field, number, size, text
from txnlog.cli.output.streams import warn
from txnlog.cli.session import Session
from txnlog.replication.commands.roots import open_roots

if TYPE_CHECKING:
    from txnlog.replication import Forgotten

FIELDS: list[Field[Forgotten]] = [
    text("member", "MEMBER", lambda old: old.member),
    text("url", "ROOT", lambda old: old.url),
    number("object_count", "OBJECTS", lambda old: old.objects),
    size("size_bytes", "BYTES", lambda old: old.bytes),
]


def forget_incarnations(
    session: Session,
    members: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MEMBER",
            help="Old incarnations, such as r1-0; all if none are named.",
            show_default=False,
        ),
    ] = None,
    lost: Annotated[
        bool, typer.Option("--lost", help="Their root is gone for good: do not wait for it.")
    ] = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Delete what roots had before they were put out. There is no way back.

    It may hold what was never acknowledged, and is what an unclean election falls back on. One
    that takes part is refused, and one that has the only copy of data. --lost is for named ones
    whose root does not answer and never will: what only they had is given up. Asks first on a
    terminal; elsewhere it needs --yes.

    \b
    Example:
      txnlog replicas forget --dry-run
      txnlog replicas forget r1-0 --yes
    """
    replicas = open_roots(session)
    if lost and not members:
        raise typer.BadParameter("--lost needs the names of what is given up")
    if not members:
        members = [member for replica in replicas.describe().replicas for member in replica.old]
    doomed = [replicas.forget(one, lost=lost, dry_run=True) for one in members]
    if not doomed:
        warn("there are no old incarnations: nothing was changed")
    elif not dry_run:
        confirm(f"delete what {', '.join(one.member for one in doomed)} held", yes=yes)
        doomed = [replicas.forget(one.member, lost=lost) for one in doomed]
    session.output.rows(FIELDS, doomed)
    note_dry_run(dry_run)
