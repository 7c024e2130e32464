"""``txnlog groups``: consumer groups, their offsets and their lag."""

# ruff: noqa: D301 - the help keeps lines as they are after a real backspace
from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from txnlog.cli.damage import Reporter
from txnlog.cli.fields import Field, Json, as_json, number, printable, text, time
from txnlog.cli.grammar import HELP_NAMES
from txnlog.cli.owners import owner_fields
from txnlog.cli.session import OutputOption, StorageOptions, StoreOption, open_session

if TYPE_CHECKING:
    from txnlog.descriptions import GroupDescription, GroupOffset

app = typer.Typer(
    help="Consumer groups: how far they have read.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings=HELP_NAMES,
)

SUMMARY: list[Field[GroupDescription]] = [
    text("group_id", "GROUP", lambda group: group.group_id),
    number("topic_count", "TOPICS", lambda group: len({at.topic for at in group.offsets})),
    number("partition_count", "PARTITIONS", lambda group: len(group.offsets)),
    number("lag", "LAG", lambda group: group.lag),
]


def _pending(offset: GroupOffset) -> Json:
    return None if offset.pending is None else as_json(owner_fields(), offset.pending)


def _pending_line(offset: GroupOffset) -> str:
    return "-" if offset.pending is None else printable(offset.pending.transactional_id)


OFFSETS: list[Field[GroupOffset]] = [
    text("topic", "TOPIC", lambda at: at.topic),
    number("partition", "PARTITION", lambda at: at.partition),
    number("offset", "OFFSET", lambda at: at.offset),
    number("end_offset", "STABLE", lambda at: at.end_offset),
    number("lag", "LAG", lambda at: at.lag),
    time("committed_at_ms", "COMMITTED", lambda at: at.committed_at_ms),
    text("metadata", "METADATA", lambda at: at.metadata, wide=True),
    Field("pending", "PENDING", _pending, _pending_line, wide=True),
]


@app.command("ls")
def list_groups(
    ctx: typer.Context,
    store: StoreOption = None,
    storage_option: StorageOptions = None,
    output: OutputOption = None,
) -> None:
    """List the groups that have offsets, with their lag.

    LAG counts the records up to the last stable offsets, over the partitions for which the
    group has an offset.

    \b
    Example:
      txnlog groups ls
    """
    session = open_session(ctx, store, storage_option, output)
    with Reporter() as reporter:
        session.output.rows(SUMMARY, reporter.healthy(session.open_store().describe_groups()))


@app.command("describe")
def describe_group(
    ctx: typer.Context,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The group's id.")],
    store: StoreOption = None,
    storage_option: StorageOptions = None,
    output: OutputOption = None,
) -> None:
    """Show a group's offset and lag in each partition.

    OFFSET is the next one that the group will read. PENDING is an undecided transaction
    that is about to move it.

    \b
    Example:
      txnlog groups describe etl
    """
    session = open_session(ctx, store, storage_option, output)
    found = session.open_store().describe_group(group)
    with session.output.document() as document:
        document.fields(SUMMARY, found)
        document.rows("offsets", "Offsets", OFFSETS, found.offsets)
