"""``txnlog groups ls``: consumer groups with their lag, state and members."""

from __future__ import annotations

from txnlog.cli.output.damage import DamageReporter
from txnlog.cli.output.group_fields import SUMMARY
from txnlog.cli.session import Session


def list_groups(session: Session) -> None:
    """List the groups that have offsets or members, with their lag and state.

    LAG counts the records up to the last stable offsets, over the partitions for which the
    group has an offset.

    \b
    Example:
      txnlog groups ls
    """
    with DamageReporter() as reporter:
        session.output.rows(SUMMARY, reporter.skip_unreadable(session.open_store().each_group()))
