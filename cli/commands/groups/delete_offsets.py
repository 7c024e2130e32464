"""``txnlog groups delete-offsets``: a group's offsets in some partitions go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from txnlog.cli.input.options import DryRunOption, GroupArgument, YesOption
from txnlog.cli.input.places import parse_target, to_partitions
from txnlog.cli.output.confirmation import confirm, note_dry_run
from txnlog.cli.output.group_fields import OFFSETS
from txnlog.cli.output.streams import warn
from txnlog.cli.session import Session

if TYPE_CHECKING:
    from txnlog.inspect.descriptions import GroupOffset
    from txnlog.names import TopicPartition


def delete_offsets(
    session: Session,
    group: GroupArgument,
    targets: Annotated[
        list[str], typer.Argument(metavar="TOPIC[:PARTITION]", help="Which partitions.")
    ],
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Delete a group's offsets in some partitions. All in one step; shows what they were.

    Asks first on a terminal; elsewhere it needs --yes. The topics may be gone already.

    \b
    Example:
      txnlog groups delete-offsets etl old-topic --yes
    """
    chosen = to_partitions(map(parse_target, targets))
    opened = session.open_store(dry_run=dry_run)
    found = opened.groups.describe(group)
    doomed = [at for at in found.offsets if {at.topic, (at.topic, at.partition)} & {*chosen}]
    if not doomed:
        warn(f"group {group} has no offsets there: nothing was changed")
    elif not dry_run:
        where = ", ".join(f"{at.topic}:{at.partition}" for at in doomed)
        what = f"delete the offsets of group {group} in {where}"
        confirm(what, yes=yes)
        # What was shown: none that came in while the user thought.
        opened.groups.delete_offsets(group, [*map(_place, doomed)])
    session.output.rows(OFFSETS, doomed)
    note_dry_run(dry_run)


def _place(offset: GroupOffset) -> TopicPartition:
    from txnlog.names import TopicPartition

    return TopicPartition(offset.topic, offset.partition)
