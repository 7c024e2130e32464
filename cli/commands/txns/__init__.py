"""``txnlog txns``: transactional ids with the state of their newest transaction, and producers."""

# ruff: noqa: D301 - the help keeps lines as they are after a real backspace
from __future__ import annotations

import time as clock
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from txnlog.cli.input.durations import parse_duration, show_duration
from txnlog.cli.input.places import HELP_NAMES, parse_target
from txnlog.cli.output.damage import Reporter
from txnlog.cli.output.fields import Field, Json, as_json, names, number, printable, text, time
from txnlog.cli.output.transaction_refs import owner_fields
from txnlog.cli.session import OutputOption, StorageOptions, StoreOption, open_session

if TYPE_CHECKING:
    from txnlog.inspect.descriptions import ProducerDescription, TransactionDescription
    from txnlog.state.transaction import EntryRef

app = typer.Typer(
    help="Transactions: which are open, who waits for them, and how they ended.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings=HELP_NAMES,
)

IdArgument = Annotated[
    str, typer.Argument(metavar="ID", help="The transactional id.", show_default=False)
]

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


def _versions(txn: TransactionDescription) -> Json:
    return dict(txn.versions)


def _versions_line(txn: TransactionDescription) -> str:
    shown = (f"{printable(name)}={version}" for name, version in sorted(txn.versions.items()))
    return ", ".join(shown) or "-"


DETAILS: list[Field[TransactionDescription]] = [
    *FIELDS,
    number("log_entry", "LOG ENTRY", lambda txn: txn.log_entry),
    text("reason", "REASON", lambda txn: txn.reason or None),
    Field("versions", "VERSIONS", _versions, _versions_line),
]

ENTRIES: list[Field[EntryRef]] = [
    text("log", "LOG", lambda entry: entry.log),
    text("name", "NAME", lambda entry: entry.name),
    number("entry", "ENTRY", lambda entry: entry.number),
]


def listed(now_ms: int) -> list[Field[TransactionDescription]]:
    """What a list shows: the age is that of an open transaction, else of the last change."""
    age: Field[TransactionDescription] = Field(
        "age_ms",
        "AGE",
        lambda txn: now_ms - txn.since_ms,
        lambda txn: show_duration(now_ms - txn.since_ms),
        numeric=True,
    )
    # People see the age in place of the time, which would not fit.
    rest = [
        replace(field, title=None) if field.key == "updated_at_ms" else field
        for field in FIELDS[3:]
    ]
    return [*FIELDS[:3], age, *rest]


def _open(producer: ProducerDescription) -> Json:
    ref = producer.transaction
    return None if ref is None else as_json(owner_fields(), ref)


def _open_line(producer: ProducerDescription) -> str:
    ref = producer.transaction
    return "-" if ref is None else f"{printable(ref.transactional_id)} {ref.number}"


PRODUCERS: list[Field[ProducerDescription]] = [
    text("topic", None, lambda producer: producer.topic),
    number("partition", "PART", lambda producer: producer.partition),
    number("producer_id", "PRODUCER", lambda producer: producer.producer_id),
    number("producer_epoch", "EPOCH", lambda producer: producer.producer_epoch),
    number("last_sequence", "LAST SEQ", lambda producer: producer.last_sequence),
    time("last_at_ms", "LAST WRITE", lambda producer: producer.last_at_ms, wide=True),
    Field("transaction", "OPEN TXN", _open, _open_line),
    number("transaction_start_offset", "FROM", lambda known: known.transaction_start_offset),
]

LOGGED: list[Field[TransactionDescription]] = [
    number("log_entry", "ENTRY", lambda txn: txn.log_entry),
    text("state", "STATE", lambda txn: txn.status),
    number("number", "NUMBER", lambda txn: txn.number),
    time("updated_at_ms", "AT", lambda txn: txn.updated_at_ms),
    number("producer_id", "PRODUCER", lambda txn: txn.producer_id, wide=True),
    number("producer_epoch", "EPOCH", lambda txn: txn.producer_epoch),
    number("timeout_ms", "TIMEOUT MS", lambda txn: txn.timeout_ms, wide=True),
    names("topics", "TOPICS", lambda txn: txn.topics),
    names("groups", "GROUPS", lambda txn: txn.groups, wide=True),
    number("entry_count", "COVERS", lambda txn: len(txn.entries), wide=True),
    text("reason", "REASON", lambda txn: txn.reason or None, wide=True),
]


@app.command("ls")
def list_transactions(
    ctx: typer.Context,
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            metavar="STATE",
            help="Only this state: Empty, Ongoing, PrepareCommit, PrepareAbort, "
            "CompleteCommit, CompleteAbort or Dead; may be repeated.",
            show_default=False,
        ),
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than",
            metavar="TIME",
            help="Only what is older than 90s, 10m, 1h30m, 7d.",
            show_default=False,
        ),
    ] = None,
    store: StoreOption = None,
    storage_option: StorageOptions = None,
    output: OutputOption = None,
) -> None:
    """List transactional ids with the state of their newest transaction.

    AGE is how long a transaction is open; where none is, how long ago the state changed.

    \b
    Example:
      txnlog txns ls --state Ongoing --older-than 10m
    """
    states = [_known_state(name) for name in state or ()] or None
    older_than_ms = None if older_than is None else parse_duration(older_than)
    session = open_session(ctx, store, storage_option, output)
    with Reporter() as reporter:
        found = session.open_store().each_transaction(states=states, older_than_ms=older_than_ms)
        session.output.rows(listed(clock.time_ns() // 1_000_000), reporter.healthy(found))


@app.command("describe")
def describe_transaction(
    ctx: typer.Context,
    transactional_id: IdArgument,
    store: StoreOption = None,
    storage_option: StorageOptions = None,
    output: OutputOption = None,
) -> None:
    """Show the newest transaction of a transactional id, and what its commit covers.

    REASON tells why somebody else than its producer aborted it. VERSIONS are the last
    idempotence versions that applications have committed with this id.

    \b
    Example:
      txnlog txns describe etl-1
    """
    session = open_session(ctx, store, storage_option, output)
    found = session.open_store().describe_transaction(transactional_id)
    with session.output.document() as document:
        document.fields(DETAILS, found)
        document.rows("entries", "Entries of the commit", ENTRIES, found.entries)


@app.command("producers")
def list_producers(
    ctx: typer.Context,
    target: Annotated[
        str, typer.Argument(metavar="TOPIC[:PARTITION]", help="A topic or one partition of it.")
    ],
    store: StoreOption = None,
    storage_option: StorageOptions = None,
    output: OutputOption = None,
) -> None:
    """List the producers that a topic remembers, partition by partition.

    FROM is the first offset of the producer's open transaction. A producer is forgotten when
    it was idle for producer.id.expiration.ms.

    \b
    Example:
      txnlog txns producers orders:0
    """
    where = parse_target(target)
    session = open_session(ctx, store, storage_option, output)
    found = session.open_store().describe_producers(where.topic, where.partition)
    session.output.rows(PRODUCERS, found)


@app.command("log")
def show_log(
    ctx: typer.Context,
    transactional_id: IdArgument,
    store: StoreOption = None,
    storage_option: StorageOptions = None,
    output: OutputOption = None,
) -> None:
    """Show the states of a transactional id as they lie, oldest first. Changes nothing.

    Old ones are cleaned away.

    \b
    Example:
      txnlog txns log etl-1
    """
    session = open_session(ctx, store, storage_option, output)
    with Reporter() as reporter:
        history = reporter.healthy(session.open_store().transaction_history(transactional_id))
        session.output.rows(LOGGED, history)


def _known_state(state: str) -> str:
    """The state in its own spelling, whatever case it was typed in. Raises BadParameter."""
    from txnlog.state.transaction import Status

    for status in Status:
        if status.value.lower() == state.lower():
            return status.value
    known = ", ".join(status.value for status in Status)
    raise typer.BadParameter(f"--state {state!r} is not one of {known}")
