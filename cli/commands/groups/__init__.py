"""``txnlog groups``: consumer groups, their offsets, their lag and their history."""

# ruff: noqa: D301 - the help keeps lines as they are after a real backspace
from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from txnlog.cli.input.places import HELP_NAMES
from txnlog.cli.output.damage import Reporter
from txnlog.cli.output.fields import Field, Json, as_json, number, printable, text, time
from txnlog.cli.output.transaction_refs import owner_fields
from txnlog.cli.session import OutputOption, StorageOptions, StoreOption, open_session

if TYPE_CHECKING:
    from txnlog.inspect.descriptions import GroupDescription, GroupOffset
    from txnlog.inspect.history import GroupLogEntry, LoggedOffset

app = typer.Typer(
    help="Consumer groups: how far they have read.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings=HELP_NAMES,
)

GroupArgument = Annotated[
    str, typer.Argument(metavar="GROUP", help="The group's id.", show_default=False)
]

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


def _transaction(entry: GroupLogEntry) -> Json:
    return None if entry.transaction is None else as_json(owner_fields(), entry.transaction)


def _transaction_line(entry: GroupLogEntry) -> str:
    ref = entry.transaction
    return "-" if ref is None else f"{printable(ref.transactional_id)} {ref.number}"


LOGGED: list[Field[LoggedOffset]] = [
    text("topic", None, lambda at: at.topic),
    number("partition", None, lambda at: at.partition),
    number("offset", None, lambda at: at.offset),
    number("start", None, lambda at: at.start),
    text("metadata", None, lambda at: at.metadata),
]


def _moves(entry: GroupLogEntry) -> Json:
    return [as_json(LOGGED, at) for at in entry.offsets]


def _moves_line(entry: GroupLogEntry) -> str:
    return ", ".join(_move(at) for at in entry.offsets) or "-"


def _move(at: LoggedOffset) -> str:
    before = "" if at.start is None else f"{at.start}>"
    return f"{at.topic}:{at.partition}" + ("" if at.offset is None else f"={before}{at.offset}")


ENTRIES: list[Field[GroupLogEntry]] = [
    number("entry", "ENTRY", lambda entry: entry.entry),
    text("kind", "KIND", lambda entry: entry.kind),
    time("at_ms", "AT", lambda entry: entry.at_ms),
    Field("transaction", "TRANSACTION", _transaction, _transaction_line, wide=True),
    text("marker", "MARKER", lambda entry: entry.marker),
    Field("offsets", "OFFSETS", _moves, _moves_line),
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
        session.output.rows(SUMMARY, reporter.healthy(session.open_store().each_group()))


@app.command("describe")
def describe_group(
    ctx: typer.Context,
    group: GroupArgument,
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


@app.command("log")
def show_log(
    ctx: typer.Context,
    group: GroupArgument,
    store: StoreOption = None,
    storage_option: StorageOptions = None,
    output: OutputOption = None,
) -> None:
    """Show the entries of a group's log as they lie, oldest first. Changes nothing.

    An entry of a TRANSACTION counts if its MARKER is commit. OFFSETS shows where each
    partition went, and from where if the writer said it. Old entries are cleaned away behind
    checkpoints.

    \b
    Example:
      txnlog groups log etl
    """
    session = open_session(ctx, store, storage_option, output)
    with Reporter() as reporter:
        history = reporter.healthy(session.open_store().group_history(group))
        session.output.rows(ENTRIES, history)
