"""``txnlog groups describe``: a group's offsets and lag, its members, or what it is about."""

from __future__ import annotations

from typing import Annotated

import typer

from txnlog.cli.input.options import GroupArgument
from txnlog.cli.output.group_fields import MEMBERS, MEMBERS_VERBOSE, OFFSETS, STATE, SUMMARY
from txnlog.cli.session import Session


def describe_group(
    session: Session,
    group: GroupArgument,
    members: Annotated[
        bool, typer.Option("--members", help="Its members instead of its offsets.")
    ] = False,
    state: Annotated[
        bool, typer.Option("--state", help="Its state instead of its offsets.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="With --members: the partitions of each, too.")
    ] = False,
) -> None:
    """Show a group's offsets and lag, its members or its state.

    OFFSET is the next one that the group will read. PENDING is an undecided transaction
    that is about to move it. REVOKING are partitions that a member has to give up.

    \b
    Example:
      txnlog groups describe etl
      txnlog groups describe etl --members --verbose
    """
    if verbose and not members:
        raise typer.BadParameter("--verbose needs --members")
    found = session.open_to_read().groups.describe(group)
    with session.output.document() as document:
        document.fields(STATE if members or state else SUMMARY, found)
        if members:
            fields = MEMBERS_VERBOSE if verbose else MEMBERS
            document.rows("members", "Members", fields, found.members)
        elif not state:
            document.rows("offsets", "Offsets", OFFSETS, found.offsets)
