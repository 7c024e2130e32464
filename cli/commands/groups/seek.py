"""``txnlog groups seek``, ``delete`` and ``delete-offsets``: what changes a group's offsets."""

# ruff: noqa: D301 - the help keeps lines as they are after a real backspace
from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

from txnlog.cli.commands.groups import OFFSETS, SUMMARY, GroupArgument
from txnlog.cli.input.places import Offset, Time, parse_place, parse_target
from txnlog.cli.output.confirmation import DryRunOption, YesOption, require_consent, tell_dry_run
from txnlog.cli.output.fields import Field, number, text
from txnlog.cli.output.output import warn
from txnlog.cli.session import OutputOption, StorageOptions, StoreOption, open_session

if TYPE_CHECKING:
    from txnlog.inspect.descriptions import OffsetReset
    from txnlog.names import TopicPartition

RESETS: list[Field[OffsetReset]] = [
    text("topic", "TOPIC", lambda reset: reset.topic),
    number("partition", "PARTITION", lambda reset: reset.partition),
    number("before", "BEFORE", lambda reset: reset.before),
    number("after", "AFTER", lambda reset: reset.after),
]


class _Target(TypedDict, total=False):
    to: str | int
    timestamp_ms: int
    shift_by: int
    from_file: Path


def seek_group(
    ctx: typer.Context,
    group: GroupArgument,
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TOPIC[:PARTITION]",
            help="Which partitions; those the group has offsets for if none are named.",
            show_default=False,
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="PLACE", help="earliest, latest, 42 or @time.", show_default=False
        ),
    ] = None,
    shift_by: Annotated[
        int | None,
        typer.Option(
            "--shift-by", metavar="N", help="By so many, back if negative.", show_default=False
        ),
    ] = None,
    from_file: Annotated[
        Path | None,
        typer.Option(
            "--from-file",
            metavar="PATH",
            help="CSV lines topic,partition,offset, as kafka-consumer-groups exports them.",
            show_default=False,
        ),
    ] = None,
    metadata: Annotated[
        str, typer.Option("--metadata", metavar="TEXT", help="A note to keep with the offsets.")
    ] = "",
    execute: Annotated[
        bool, typer.Option("--execute", help="Do it; without it this only shows what would be.")
    ] = False,
    store: StoreOption = None,
    storage_option: StorageOptions = None,
    output: OutputOption = None,
) -> None:
    """Move a group's offsets, all of them in one step. Shows what it would do; --execute does it.

    A PLACE is earliest, latest, an offset, or the first record at or after a time (@ and
    milliseconds, or @ and ISO 8601). Offsets outside of a partition become its nearest end.
    A group that does not exist yet is made. A job that reads meanwhile notices: its next
    commit in a transaction is refused.

    \b
    Example:
      txnlog groups seek etl --to earliest
      txnlog groups seek etl orders:0 --to @2024-05-01 --execute
      txnlog groups seek etl --shift-by -100 --execute
    """
    target = _target(to, shift_by, from_file)
    chosen = _partitions(targets or ())
    if from_file is not None and chosen:
        raise typer.BadParameter("--from-file names the partitions itself")
    session = open_session(ctx, store, storage_option, output)
    resets = session.open_store().reset_group_offsets(
        group, chosen or None, metadata=metadata, dry_run=not execute, **target
    )
    session.output.rows(RESETS, resets)
    if not execute:
        warn("dry run: nothing was changed; add --execute to do it")


def delete_groups(
    ctx: typer.Context,
    groups: Annotated[list[str], typer.Argument(metavar="GROUP", help="The groups' ids.")],
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    store: StoreOption = None,
    storage_option: StorageOptions = None,
    output: OutputOption = None,
) -> None:
    """Delete groups with all their offsets, and show what they were. There is no way back.

    Asks first on a terminal; elsewhere it needs --yes. A group that an open transaction is
    about to move is refused.

    \b
    Example:
      txnlog groups delete etl --dry-run
      txnlog groups delete etl --yes
    """
    session = open_session(ctx, store, storage_option, output)
    opened = session.open_store()
    doomed = [opened.describe_group(group) for group in dict.fromkeys(groups)]
    if not dry_run:
        count = sum(len(group.offsets) for group in doomed)
        named = ", ".join(group.group_id for group in doomed)
        what = f"delete {named} with offsets in {count} partition{'s' * (count != 1)}"
        require_consent(what, yes=yes)
        for group in doomed:
            opened.delete_group(group.group_id)
    session.output.rows(SUMMARY, doomed)
    tell_dry_run(dry_run)


def delete_offsets(
    ctx: typer.Context,
    group: GroupArgument,
    targets: Annotated[
        list[str], typer.Argument(metavar="TOPIC[:PARTITION]", help="Which partitions.")
    ],
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    store: StoreOption = None,
    storage_option: StorageOptions = None,
    output: OutputOption = None,
) -> None:
    """Delete a group's offsets in some partitions, all in one step, and show what they were.

    Asks first on a terminal; elsewhere it needs --yes. The topics may be gone already.

    \b
    Example:
      txnlog groups delete-offsets etl old-topic --yes
    """
    chosen = _partitions(targets)
    session = open_session(ctx, store, storage_option, output)
    opened = session.open_store()
    found = opened.describe_group(group)
    doomed = [at for at in found.offsets if {at.topic, (at.topic, at.partition)} & {*chosen}]
    if not doomed:
        warn(f"group {group} has no offsets there: nothing was changed")
    elif not dry_run:
        where = ", ".join(f"{at.topic}:{at.partition}" for at in doomed)
        what = f"delete the offsets of group {group} in {where}"
        require_consent(what, yes=yes)
        opened.delete_group_offsets(group, chosen)
    session.output.rows(OFFSETS, doomed)
    tell_dry_run(dry_run)


def _target(to: str | None, shift_by: int | None, from_file: Path | None) -> _Target:
    """The one that is given, as the library takes it. Raises BadParameter."""
    if sum(given is not None for given in (to, shift_by, from_file)) != 1:
        raise typer.BadParameter("give one of --to PLACE, --shift-by N and --from-file PATH")
    if from_file is not None:
        return _Target(from_file=from_file)
    if shift_by is not None:
        return _Target(shift_by=shift_by)
    match parse_place(to or ""):
        case Offset(offset):
            return _Target(to=offset)
        case Time(timestamp_ms):
            return _Target(timestamp_ms=timestamp_ms)
        case end:
            return _Target(to=end)


def _partitions(targets: list[str] | tuple[()]) -> list[str | TopicPartition]:
    parsed = [parse_target(target) for target in targets]
    from txnlog.names import TopicPartition

    return [
        target.topic if target.partition is None else TopicPartition(target.topic, target.partition)
        for target in parsed
    ]
