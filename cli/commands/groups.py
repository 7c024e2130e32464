"""``txnlog groups``: consumer groups, their offsets, lag, members and history."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict, TypeVar

import typer

from txnlog.cli.input.options import DryRunOption, GroupArgument, IntervalOption, YesOption
from txnlog.cli.input.places import Offset, Time, parse_place, parse_target, to_partitions
from txnlog.cli.input.storage_options import KafkaConfigOption, KafkaOption, parse_kafka_options
from txnlog.cli.output.confirmation import confirm, note_dry_run
from txnlog.cli.output.damage import DamageReporter
from txnlog.cli.output.escape import Json, escape_text
from txnlog.cli.output.fields import Field, names, number, text, time, to_json
from txnlog.cli.output.group_fields import (
    MEMBERS,
    MEMBERS_VERBOSE,
    OFFSETS,
    PLACES,
    STATE,
    SUMMARY,
    list_places,
)
from txnlog.cli.output.streams import warn
from txnlog.cli.output.transaction_fields import transaction_ref
from txnlog.cli.output.watch import watch_rows
from txnlog.cli.session import Session
from txnlog.cli.verbs import verb_group

if TYPE_CHECKING:
    from txnlog.bridge import TranslatedOffset
    from txnlog.inspect.group_lag import GroupOffset, OffsetReset
    from txnlog.inspect.history import GroupLogEntry, LoggedOffset
    from txnlog.names import TopicPartition

T = TypeVar("T")


def list_groups(
    session: Session,
    every_partition: Annotated[
        bool, typer.Option("--all", help="Each partition of each group, with offset and lag.")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Repeat until Ctrl-C; see --interval.")
    ] = False,
    interval: IntervalOption = 2.0,
) -> None:
    """List groups with their lag and state. They have offsets or members.

    LAG counts the records up to the last stable offsets, over the partitions for which the
    group has an offset.

    \b
    Example:
      txnlog groups ls
      txnlog groups ls --all --watch
    """
    found = session.open_to_read().groups.describe_all()

    def show(fields: list[Field[T]], find: Callable[[], Iterable[T]]) -> None:
        if watch:
            watch_rows(session.output, fields, find, interval)
        session.output.rows(fields, find())

    with DamageReporter() as reporter:
        if every_partition:
            show(PLACES, lambda: list_places(reporter.skip_unreadable(found.with_errors())))
        else:
            show(SUMMARY, lambda: reporter.skip_unreadable(found.with_errors()))


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


_MOST_MEMBERS = 2
_MOST_DETAIL = 60

LOGGED_OFFSETS: list[Field[LoggedOffset]] = [
    text("topic", None, lambda at: at.topic),
    number("partition", None, lambda at: at.partition),
    number("offset", None, lambda at: at.offset),
    number("start", None, lambda at: at.start),
    text("metadata", None, lambda at: at.metadata),
]


def _get_moves(entry: GroupLogEntry) -> Json:
    return [to_json(LOGGED_OFFSETS, at) for at in entry.offsets]


def _show_moves(entry: GroupLogEntry) -> str:
    return ", ".join(_show_move(at) for at in entry.offsets) or "-"


def _show_move(at: LoggedOffset) -> str:
    before = "" if at.start is None else f"{at.start}>"
    return f"{at.topic}:{at.partition}" + ("" if at.offset is None else f"={before}{at.offset}")


def _glance_at_members(entry: GroupLogEntry) -> str:
    """One entry may be of all that joined, or left, at one instant."""
    if len(entry.members) <= _MOST_MEMBERS:
        return _MEMBERS.show(entry)
    return f"{escape_text(entry.members[0])} and {len(entry.members) - 1} more"


def _glance_at_detail(entry: GroupLogEntry) -> str:
    shown = _DETAIL.show(entry)
    return shown if len(shown) <= _MOST_DETAIL else f"{shown[: _MOST_DETAIL - 1]}…"


_MEMBERS: Field[GroupLogEntry] = names("members", "MEMBERS", lambda entry: entry.members, wide=True)
_DETAIL: Field[GroupLogEntry] = text(
    "detail", "DETAIL", lambda entry: entry.detail or None, wide=True
)

LOG: list[Field[GroupLogEntry]] = [
    number("entry", "ENTRY", lambda entry: entry.entry),
    text("kind", "KIND", lambda entry: entry.kind),
    time("at_ms", "AT", lambda entry: entry.at_ms),
    transaction_ref("TRANSACTION", lambda entry: entry.transaction, wide=True),
    text("marker", "MARKER", lambda entry: entry.marker),
    Field("offsets", "OFFSETS", _get_moves, _show_moves),
    number("generation", "GENERATION", lambda entry: entry.generation),
    replace(_MEMBERS, glance=_glance_at_members),
    replace(_DETAIL, glance=_glance_at_detail),
]


def show_log(
    session: Session,
    group: GroupArgument,
) -> None:
    """Show the entries of a group's log, oldest first. Changes nothing.

    An entry of a TRANSACTION counts if its MARKER is commit. OFFSETS shows where each partition
    went, and from where if the writer said so. GENERATION is the one that an assignment begins, or
    in which a member has committed. Old entries are deleted once a checkpoint covers them.

    \b
    Example:
      txnlog groups log etl
    """
    with DamageReporter() as reporter:
        history = reporter.skip_unreadable(
            session.open_to_read().groups.history(group).with_errors()
        )
        session.output.rows(LOG, history)


RESETS: list[Field[OffsetReset]] = [
    text("topic", "TOPIC", lambda reset: reset.topic),
    number("partition", "PARTITION", lambda reset: reset.partition),
    number("before", "BEFORE", lambda reset: reset.before),
    number("after", "AFTER", lambda reset: reset.after),
]


class _Target(TypedDict, total=False):
    to: str | int | Mapping[TopicPartition, int]
    timestamp_ms: int
    shift_by: int


def seek_group(
    session: Session,
    group: GroupArgument,
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TOPIC[:PARTITION]",
            help="Which partitions; those the group has offsets for if none are named.",
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="PLACE", help="earliest, latest, current, 42 or @TIME."),
    ] = None,
    to_current: Annotated[
        bool, typer.Option("--to-current", help="--to current: they stay where they are.")
    ] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", hidden=True)] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", hidden=True)] = False,
    shift_by: Annotated[
        int | None,
        typer.Option("--shift-by", metavar="N", help="By this many; back if negative."),
    ] = None,
    from_file: Annotated[
        Path | None,
        typer.Option(
            "--from-file",
            metavar="PATH",
            help="CSV lines topic,partition,offset, as kafka-consumer-groups exports them.",
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
    chosen = to_partitions(map(parse_target, targets or ()))
    if from_file is not None and chosen:
        raise typer.BadParameter("--from-file names the partitions itself")
    target = _choose_target(group, places[0] if places else None, shift_by, from_file)
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
    session.output.rows(RESETS, resets)
    note_dry_run(dry_run)


def _choose_target(
    group: str, to: str | None, shift_by: int | None, from_file: Path | None
) -> _Target:
    """The one that was typed, as the library takes it. Raises BadParameter."""
    if sum(option is not None for option in (to, shift_by, from_file)) != 1:
        raise typer.BadParameter("give one of --to PLACE, --shift-by N and --from-file PATH")
    if from_file is not None:  # read once: it may be a pipe
        from txnlog.admin.resets import read_offsets

        return _Target(to=read_offsets(from_file, group))
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


TRANSLATED: list[Field[TranslatedOffset]] = [
    text("topic", "TOPIC", lambda one: one.topic),
    number("partition", "PARTITION", lambda one: one.partition),
    number("source_offset", "READ TO", lambda one: one.source_offset),
    number("before", "BEFORE", lambda one: one.before),
    number("after", "AFTER", lambda one: one.after),
]


def translate_group(
    session: Session,
    group: GroupArgument,
    topics: Annotated[
        list[str],
        typer.Option("--topics", metavar="TOPIC,...", help="Which topics."),
    ],
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="kafka://HOST:PORT", help="It has read in this cluster."),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option("--to", metavar="kafka://HOST:PORT", help="It is to go on in this cluster."),
    ] = None,
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="Of the bridge that has copied them.")
    ] = "bridge",
    force: Annotated[
        bool, typer.Option("--force", help="Even if the group has members, there or here.")
    ] = False,
    kafka_option: KafkaOption = None,
    kafka_config: KafkaConfigOption = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Move a group's offsets to where it is in Kafka, or back.

    With --from it goes on here where it is in that cluster, with --to there where it is here. The
    topics were copied by `txnlog bridge`, with the same --from or --to, and by nobody else.
    What the group has not read is compared with the copies, record by record; what is not the same
    is refused. All offsets move in one step. Asks first on a terminal, where the group has offsets
    already to where it goes; elsewhere it needs --yes.

    \b
    Example:
      txnlog groups translate etl --from kafka://broker:9092 --topics orders
      txnlog groups translate etl --to kafka://broker:9092 --topics orders
    """
    from txnlog.bridge import translate_offsets

    if (source is None) == (target is None):
        raise typer.BadParameter("give --from or --to: which way the group goes")
    translate = partial(
        translate_offsets,
        session.open_store(dry_run=dry_run),
        source or target or "",
        group,
        [topic for several in topics for topic in several.split(",")],
        back=target is not None,
        name=name,
        options=parse_kafka_options(kafka_option, kafka_config),
        force=force,
    )
    # Each time all that is unread is compared: once is enough for who need not be asked.
    moved = translate(dry_run=dry_run or not yes)
    if not dry_run and not yes:
        lost = sum(one.before not in (None, one.after) for one in moved)
        if lost:
            confirm(f"move {lost} offset(s) of group {group}", yes=yes)
        moved = translate()
    session.output.rows(TRANSLATED, moved)
    note_dry_run(dry_run)


def remove_members(
    session: Session,
    group: GroupArgument,
    members: Annotated[
        list[str] | None,
        typer.Argument(metavar="MEMBER", help="Member or instance ids; all if none are named."),
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
        opened.groups.delete(group.group_id, dry_run=dry_run)
    session.output.rows(SUMMARY, doomed)
    note_dry_run(dry_run)


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
    else:
        if not dry_run:
            where = ", ".join(f"{at.topic}:{at.partition}" for at in doomed)
            what = f"delete the offsets of group {group} in {where}"
            confirm(what, yes=yes)
        # What was shown: none that came in while the user thought.
        opened.groups.delete_offsets(group, [*map(_place, doomed)], dry_run=dry_run)
    session.output.rows(OFFSETS, doomed)
    note_dry_run(dry_run)


def _place(offset: GroupOffset) -> TopicPartition:
    from txnlog.names import TopicPartition

    return TopicPartition(offset.topic, offset.partition)


app = verb_group(
    {
        "ls": list_groups,
        "describe": describe_group,
        "log": show_log,
        "seek": seek_group,
        "translate": translate_group,
        "remove-members": remove_members,
        "delete": delete_groups,
        "delete-offsets": delete_offsets,
    },
)
