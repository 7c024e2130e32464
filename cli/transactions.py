"""``txnlog txns``: the newest state of each transactional id."""

# ruff: noqa: D301 - the help keeps lines as they are after a real backspace
from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from txnlog.cli.damage import Reporter
from txnlog.cli.fields import Field, names, number, text, time
from txnlog.cli.grammar import HELP_NAMES
from txnlog.cli.session import OutputOption, StorageOptions, StoreOption, open_session

if TYPE_CHECKING:
    from txnlog.descriptions import TransactionDescription
    from txnlog.state.transaction import EntryRef

app = typer.Typer(
    help="Transactions: which are open, and how they ended.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings=HELP_NAMES,
)

FIELDS: list[Field[TransactionDescription]] = [
    text("transactional_id", "TRANSACTIONAL ID", lambda txn: txn.transactional_id),
    text("state", "STATE", lambda txn: txn.status),
    number("number", "NUMBER", lambda txn: txn.number),
    number("producer_id", "PRODUCER", lambda txn: txn.producer_id, wide=True),
    number("producer_epoch", "EPOCH", lambda txn: txn.producer_epoch, wide=True),
    time("started_at_ms", "STARTED", lambda txn: txn.started_at_ms, wide=True),
    time("updated_at_ms", "UPDATED", lambda txn: txn.updated_at_ms),
    number("timeout_ms", "TIMEOUT MS", lambda txn: txn.timeout_ms, wide=True),
    names("topics", "TOPICS", lambda txn: txn.topics),
    names("groups", "GROUPS", lambda txn: txn.groups, wide=True),
]

DETAILS: list[Field[TransactionDescription]] = [
    *FIELDS,
    number("log_entry", "LOG ENTRY", lambda txn: txn.log_entry),
]

ENTRIES: list[Field[EntryRef]] = [
    text("log", "LOG", lambda entry: entry.log),
    text("name", "NAME", lambda entry: entry.name),
    number("entry", "ENTRY", lambda entry: entry.number),
]


@app.command("ls")
def list_transactions(
    ctx: typer.Context,
    state: Annotated[
        str | None,
        typer.Option(
            "--state",
            metavar="STATE",
            help="Only this state: Empty, Ongoing, PrepareCommit, PrepareAbort, "
            "CompleteCommit, CompleteAbort or Dead.",
            show_default=False,
        ),
    ] = None,
    store: StoreOption = None,
    storage_option: StorageOptions = None,
    output: OutputOption = None,
) -> None:
    """List transactional ids with the state of their newest transaction.

    \b
    Example:
      txnlog txns ls --state Ongoing
    """
    wanted = None if state is None else _known_state(state)
    session = open_session(ctx, store, storage_option, output)
    with Reporter() as reporter:
        found = reporter.healthy(session.open_store().transactions())
        session.output.rows(FIELDS, (txn for txn in found if wanted in (None, txn.status)))


@app.command("describe")
def describe_transaction(
    ctx: typer.Context,
    transactional_id: Annotated[
        str, typer.Argument(metavar="ID", help="The transactional id.", show_default=False)
    ],
    store: StoreOption = None,
    storage_option: StorageOptions = None,
    output: OutputOption = None,
) -> None:
    """Show the newest transaction of a transactional id, and what its commit covers.

    \b
    Example:
      txnlog txns describe etl-1
    """
    session = open_session(ctx, store, storage_option, output)
    found = session.open_store().describe_transaction(transactional_id)
    with session.output.document() as document:
        document.fields(DETAILS, found)
        document.rows("entries", "Entries of the commit", ENTRIES, found.entries)


def _known_state(state: str) -> str:
    """The state in its own spelling, whatever case it was typed in. Raises BadParameter."""
    from txnlog.state.transaction import Status

    for status in Status:
        if status.value.lower() == state.lower():
            return status.value
    known = ", ".join(status.value for status in Status)
    raise typer.BadParameter(f"--state {state!r} is not one of {known}")
