"""``txnlog groups describe``: a group's offset and lag in each partition."""

from __future__ import annotations

from txnlog.cli.input.options import GroupArgument
from txnlog.cli.output.group_fields import OFFSETS, SUMMARY
from txnlog.cli.session import Session


def describe_group(
    session: Session,
    group: GroupArgument,
) -> None:
    """Show a group's offset and lag in each partition.

    OFFSET is the next one that the group will read. PENDING is an undecided transaction
    that is about to move it.

    \b
    Example:
      txnlog groups describe etl
    """
    found = session.open_store().describe_group(group)
    with session.output.document() as document:
        document.fields(SUMMARY, found)
        document.rows("offsets", "Offsets", OFFSETS, found.offsets)
