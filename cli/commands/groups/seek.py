"""``txnlog groups seek``: a group's offsets are moved."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

from txnlog.cli.input.options import DryRunOption, GroupArgument, YesOption
from txnlog.cli.input.places import Offset, Time, parse_place, parse_target, to_partitions
from txnlog.cli.output.confirmation import confirm, note_dry_run
from txnlog.cli.output.fields import Field, number, text
from txnlog.cli.session import Session

if TYPE_CHECKING:
    from txnlog.inspect.descriptions import OffsetReset


FIELDS: list[Field[OffsetReset]] = [
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
    session: Session,
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
            "--to",
            metavar="PLACE",
            help="earliest, latest, current, 42 or @TIME.",
            show_default=False,
        ),
    ] = None,
    to_current: Annotated[
        bool, typer.Option("--to-current", help="--to current: they stay where they are.")
    ] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", hidden=True)] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", hidden=True)] = False,
    shift_by: Annotated[
        int | None,
        typer.Option(
            "--shift-by", metavar="N", help="By this many; back if negative.", show_default=False
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
    force: Annotated[
        bool, typer.Option("--force", help="Even if the group has members: they are not told.")
    ] = False,
    yes: YesOption = False,
    execute: Annotated[bool, typer.Option("--execute", hidden=True)] = False,
    dry_run: DryRunOption = False,
) -> None:
    """Move a group's offsets, all of them in one step.

    A PLACE is earliest, latest, current (where the group is; latest where it has no offset), an
    offset, or @TIME, the first record at or after it: ISO 8601, milliseconds, or how long ago, as
    @-1h. Offsets outside of a partition become its nearest end.
    A group that does not exist yet is created. A job that reads meanwhile notices: its next
    commit in a transaction is refused. A group with members is moved only with --force.
    Asks first on a terminal, where it has offsets already; elsewhere it needs --yes.

    \b
    Example:
      txnlog groups seek etl --to earliest --dry-run
      txnlog groups seek etl orders:0 --to @2024-05-01 --yes
      txnlog groups seek etl --shift-by -100 --yes
    """
    named = {"current": to_current, "earliest": to_earliest, "latest": to_latest}
    places = [place for place in (to, *(name for name in named if named[name])) if place]
    if len(places) > 1:
        raise typer.BadParameter(f"give one place to go to, not {' and '.join(places)}")
    target = _choose_target(places[0] if places else None, shift_by, from_file)
    chosen = to_partitions(map(parse_target, targets or ()))
    if from_file is not None and chosen:
        raise typer.BadParameter("--from-file names the partitions itself")
    reset = partial(
        session.open_store(dry_run=dry_run).groups.reset_offsets,
        group,
        chosen or None,
        metadata=metadata,
        force=force,
        **target,
    )
    resets = reset(dry_run=True)
    if not dry_run:
        lost = sum(one.before not in (None, one.after) for one in resets)
        if lost:
            confirm(f"move {lost} offset(s) of group {group}", yes=yes or execute)
        resets = reset()
    session.output.rows(FIELDS, resets)
    note_dry_run(dry_run)


def _choose_target(to: str | None, shift_by: int | None, from_file: Path | None) -> _Target:
    """The one that was typed, as the library takes it. Raises BadParameter."""
    if sum(option is not None for option in (to, shift_by, from_file)) != 1:
        raise typer.BadParameter("give one of --to PLACE, --shift-by N and --from-file PATH")
    if from_file is not None:
        return _Target(from_file=from_file)
    if shift_by is not None:
        return _Target(shift_by=shift_by)
    if to == "current":
        return _Target(to=to)
    match parse_place(to or ""):
        case Offset(offset):
            return _Target(to=offset)
        case Time(timestamp_ms):
            return _Target(timestamp_ms=timestamp_ms)
        case end:
            return _Target(to=end)
