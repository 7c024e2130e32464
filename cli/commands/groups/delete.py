"""``txnlog groups delete``: groups go with all their offsets."""

from __future__ import annotations

from typing import Annotated

import typer

from txnlog.cli.input.options import DryRunOption, YesOption
from txnlog.cli.output.confirmation import confirm, note_dry_run
from txnlog.cli.output.group_fields import SUMMARY
from txnlog.cli.session import Session


def delete_groups(
    session: Session,
    groups: Annotated[list[str], typer.Argument(metavar="GROUP", help="The groups' ids.")],
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Delete groups with all their offsets. Shows what they were; there is no way back.

    Asks first on a terminal; elsewhere it needs --yes. A group that an open transaction is
    about to move is refused.

    \b
    Example:
      txnlog groups delete etl --dry-run
      txnlog groups delete etl --yes
    """
    opened = session.open_store(dry_run=dry_run)
    doomed = [opened.groups.describe(group) for group in dict.fromkeys(groups)]
    if not dry_run:
        count = sum(len(group.offsets) for group in doomed)
        named = ", ".join(group.group_id for group in doomed)
        what = f"delete {named} with offsets in {count} partition{'s' * (count != 1)}"
        confirm(what, yes=yes)
        for group in doomed:
            opened.groups.delete(group.group_id)
    session.output.rows(SUMMARY, doomed)
    note_dry_run(dry_run)
