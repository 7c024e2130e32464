"""``txnlog txns find-hanging``, ``why`` and ``abort``: what holds readers up, and how to end it."""

# ruff: noqa: D301 - the help keeps lines as they are after a real backspace
from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated

import typer

from txnlog.cli.commands.txns import DETAILS, ENTRIES, IdArgument
from txnlog.cli.input.durations import show_duration
from txnlog.cli.input.places import parse_target
from txnlog.cli.output.confirmation import DryRunOption, YesOption, require_consent, tell_dry_run
from txnlog.cli.output.damage import Reporter
from txnlog.cli.output.exits import HANGING
from txnlog.cli.output.fields import (
    Field,
    Json,
    as_json,
    names,
    number,
    printable,
    show_time,
    text,
    time,
)
from txnlog.cli.output.output import warn
from txnlog.cli.output.transaction_refs import owner_fields
from txnlog.cli.session import OutputOption, StorageOptions, StoreOption, open_session

if TYPE_CHECKING:
    from txnlog.inspect.descriptions import HangingTransaction, StableOffset, StableOffsetHolder

HUNG: list[Field[HangingTransaction]] = [
    text("transactional_id", "TRANSACTIONAL ID", lambda hung: hung.transaction.transactional_id),
    text("state", "STATE", lambda hung: hung.transaction.status),
    number("number", "NUMBER", lambda hung: hung.transaction.number),
    number("producer_id", "PRODUCER", lambda hung: hung.transaction.producer_id, wide=True),
    number("producer_epoch", "EPOCH", lambda hung: hung.transaction.producer_epoch, wide=True),
    time("started_at_ms", "STARTED", lambda hung: hung.transaction.started_at_ms, wide=True),
    number("timeout_ms", None, lambda hung: hung.transaction.timeout_ms),
    Field(
        "overdue_ms",
        "OVERDUE",
        lambda hung: hung.overdue_ms,
        lambda hung: show_duration(hung.overdue_ms),
        numeric=True,
    ),
    names("topics", "TOPICS", lambda hung: hung.transaction.topics),
    names("groups", "GROUPS", lambda hung: hung.transaction.groups, wide=True),
    text("reason", "WHY", lambda hung: hung.reason, wide=True),
    text("ended_by", None, lambda hung: hung.ended_by),
]

HOLDERS: list[Field[StableOffsetHolder]] = [
    Field("transaction", None, lambda at: as_json(owner_fields(), at.transaction), str),
    number("entry", None, lambda at: at.entry),
    number("offset", None, lambda at: at.offset),
    time("placed_at_ms", None, lambda at: at.placed_at_ms),
    text("state", None, lambda at: at.status),
    time("started_at_ms", None, lambda at: at.started_at_ms),
    time("ends_by_ms", None, lambda at: at.ends_by_ms),
    text("ended_by", None, lambda at: at.ended_by),
]


def _holders(stable: StableOffset) -> Json:
    return [as_json(HOLDERS, holder) for holder in stable.holders]


STABLE: list[Field[StableOffset]] = [
    text("topic", "TOPIC", lambda stable: stable.topic),
    number("partition", "PART", lambda stable: stable.partition),
    number("log_start_offset", "START", lambda stable: stable.log_start_offset),
    number("last_stable_offset", "STABLE", lambda stable: stable.last_stable_offset),
    number("end_offset", "END", lambda stable: stable.end_offset),
    number("held_back", "HELD BACK", lambda at: at.end_offset - at.last_stable_offset),
    Field("holders", None, _holders, lambda _: ""),
]


def find_hanging(
    ctx: typer.Context,
    store: StoreOption = None,
    storage_option: StorageOptions = None,
    output: OutputOption = None,
) -> None:
    """Find transactions that should have ended: exit code 4 if there are any. Changes nothing.

    Open past their timeout, or decided and not finished: their producer is gone. Nobody has to
    be woken up: the next reader or writer of one of their topics that may write ends them, and
    so does `txnlog txns abort`. OVERDUE is for how long that could have happened. One whose
    times lie in the future (OVERDUE 0) was begun under a clock that runs ahead. An id whose
    state is damaged is named on stderr: exit code 3.

    \b
    Example:
      txnlog txns find-hanging
    """
    session = open_session(ctx, store, storage_option, output)
    with Reporter() as reporter:
        hung = [*reporter.healthy(session.open_store().hanging_transactions())]
        session.output.rows(HUNG, hung)
    if hung:
        raise typer.Exit(HANGING)


def explain_stable_offset(
    ctx: typer.Context,
    target: Annotated[
        str, typer.Argument(metavar="TOPIC[:PARTITION]", help="A topic or one partition of it.")
    ],
    store: StoreOption = None,
    storage_option: StorageOptions = None,
    output: OutputOption = None,
) -> None:
    """Explain why a partition's last stable offset stands where it stands.

    Who holds it there, since when, and what ends that. HELD BACK counts the offsets behind it,
    which read_committed does not show yet.

    \b
    Example:
      txnlog txns why orders:0
    """
    where = parse_target(target)
    session = open_session(ctx, store, storage_option, output)
    found = session.open_store().stable_offsets(where.topic, where.partition)
    session.output.rows(STABLE, found, below=_explanation)


def abort_transaction(
    ctx: typer.Context,
    transactional_id: IdArgument,
    reason: Annotated[
        str,
        typer.Option(
            "--reason", metavar="TEXT", help="Kept with the id, and told to the fenced producer."
        ),
    ] = "an operator ended it with txnlog txns abort",
    transaction: Annotated[
        int | None,
        typer.Option(
            "--number",
            metavar="N",
            help="Only this transaction of the id, no later one.",
            show_default=False,
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Also where the id's state is damaged: see below."),
    ] = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    store: StoreOption = None,
    storage_option: StorageOptions = None,
    output: OutputOption = None,
) -> None:
    """Abort the open transaction of a transactional id, and show it.

    Its producer is fenced: if it still lives, its next call fails and says why. Asks first on
    a terminal; elsewhere it needs --yes. Repeating it is no error.

    Where the newest state of the id is damaged nobody can tell whether that transaction is
    open, committed or aborted: it is taken for aborted when the store's longest timeout has
    passed. Restore that file from a backup if you can. Else --force aborts it at once: if it
    was committed, its records that no marker shows to be are given up for ever. --force
    changes nothing where the state can be read.

    \b
    Example:
      txnlog txns abort etl-1 --reason "its host is gone" --yes
      txnlog txns abort etl-1 --force
    """
    from txnlog.errors import CorruptEntry

    session = open_session(ctx, store, storage_option, output)
    opened = session.open_store()
    try:
        found = opened.abort_transaction(
            transactional_id, reason=reason, number=transaction, dry_run=True
        )
        damaged = None
    except CorruptEntry as error:
        if not force:
            raise CorruptEntry(
                f"{error}; without a backup `txnlog txns abort --force` aborts the transaction, "
                "and gives up what it may have committed (see --help)"
            ) from error
        damaged = error
    if damaged is not None:
        if not dry_run:
            warn(f"{damaged}")
            require_consent(
                f"abort the transaction of {transactional_id} whose state is damaged, fence its "
                "producer, and give up for ever what it committed if no marker shows that it did",
                yes=yes,
            )
        found = opened.abort_transaction(
            transactional_id, reason=reason, number=transaction, dry_run=dry_run, force=True
        )
    elif not dry_run:
        what = f"abort transaction {found.number} of {transactional_id} and fence its producer"
        require_consent(what, yes=yes or found.ends_by_ms is None)
        # By its number: no transaction that begins while the user thinks is hit.
        found = opened.abort_transaction(transactional_id, reason=reason, number=found.number)
    with session.output.document() as document:
        document.fields(DETAILS, found)
        document.rows("entries", "Entries of the commit", ENTRIES, found.entries)
    tell_dry_run(dry_run)


def _explanation(stable: StableOffset) -> Iterator[str]:
    if not stable.holders:
        yield "held by nobody: the stable offset is the end"
    for number_, holder in enumerate(stable.holders):
        ref = holder.transaction
        who = f"transaction {ref.number} of {printable(ref.transactional_id)}"
        held = "held by" if number_ == 0 else "then by"
        yield f"{held} {who} (producer {ref.producer_id}, epoch {ref.producer_epoch})"
        since = show_time(holder.placed_at_ms)
        yield f"  from offset {holder.offset} (entry {holder.entry}, placed {since})"
        if holder.status is not None:
            yield f"  {holder.status} since {show_time(holder.started_at_ms)}"
        if holder.ends_by_ms is not None:
            yield f"  ends by {show_time(holder.ends_by_ms)} at the latest, when somebody reads"
        ways = holder.ended_by.split("; ")
        if holder.status == "Ongoing":
            ways[-1] = f"at once by: txnlog txns abort {printable(ref.transactional_id)}"
        for begin, way in zip(["ended by:", *["      or:"] * len(ways)], ways, strict=False):
            yield from wrap(way, 74, initial_indent=f"  {begin} ", subsequent_indent=" " * 12)
