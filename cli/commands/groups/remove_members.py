"""``txnlog groups remove-members``: members that are dead, or hang, are taken out of a group."""

from __future__ import annotations

from typing import Annotated

import typer

from txnlog.cli.input.options import DryRunOption, GroupArgument, YesOption
from txnlog.cli.output.confirmation import confirm, note_dry_run
from txnlog.cli.output.group_fields import MEMBERS
from txnlog.cli.output.streams import warn
from txnlog.cli.session import Session


def remove_members(
    session: Session,
    group: GroupArgument,
    members: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MEMBER",
            help="Member or instance ids; all if none are named.",
            show_default=False,
        ),
    ] = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Take members out of a group, and show what they had. The others share it out.

    For members that died or hang, and would otherwise be missed only when their session times out.
    One that lives notices, and joins again. Asks first on a terminal; elsewhere it needs --yes.

    \b
    Example:
      txnlog groups remove-members workers --yes
      txnlog groups remove-members workers worker-3 --dry-run
    """
    opened = session.open_store(dry_run=dry_run)
    chosen = {*members} if members else None
    doomed = [
        member
        for member in opened.groups.describe(group).members
        if chosen is None or chosen & {member.member_id, member.instance_id}
    ]
    if not doomed:
        warn(f"group {group} has no such members: nothing was changed")
    elif not dry_run:
        confirm(f"remove {len(doomed)} member(s) of group {group}", yes=yes)
        opened.groups.remove_members(group, [member.member_id for member in doomed])
    session.output.rows(MEMBERS, doomed)
    note_dry_run(dry_run)
