"""``txnlog txns``: transactional ids, their transactions, and producers."""

from __future__ import annotations

import shlex
import time as clock
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, repeat
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated

import typer

from txnlog.cli.input.options import (
    DryRunOption,
    TargetArgument,
    TransactionalIdArgument,
    YesOption,
)
from txnlog.cli.input.places import parse_duration, parse_target
from txnlog.cli.output.confirmation import confirm, note_dry_run
from txnlog.cli.output.damage import DamageReporter
from txnlog.cli.output.escape import escape_text
from txnlog.cli.output.fields import Field, duration, names, number, show_time, text, time, to_json
from txnlog.cli.output.streams import HANGING, warn
from txnlog.cli.output.transaction_fields import REF, SUMMARY, print_transaction, transaction_ref
from txnlog.cli.session import Session
from txnlog.cli.verbs import verb_group
from txnlog.errors import CorruptTransactionState, TxnlogError, UnknownTopicOrPartition

if TYPE_CHECKING:
    from txnlog.inspect.descriptions import (
        HangingTransaction,
        ProducerDescription,
        StableOffset,
        StableOffsetHolder,
        TransactionDescription,
    )
    from txnlog.store import Store


def list_fields(now_ms: int) -> list[Field[TransactionDescription]]:
    """What a list shows: the age is that of an open transaction, else of the last change."""
    age: Field[TransactionDescription] = duration(
        "age_ms", "AGE", lambda txn: now_ms - txn.since_ms
    )
    # People see the age in place of the time, which would not fit.
    rest = [
        replace(field, title=None) if field.key == "updated_at_ms" else field
        for field in SUMMARY[3:]
    ]
    return [*SUMMARY[:3], age, *rest]


def list_transactions(
    session: Session,
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            metavar="STATE",
            help="Only this state: Empty, Ongoing, PrepareCommit, PrepareAbort, "
            "CompleteCommit, CompleteAbort or Dead; may be repeated.",
        ),
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than", metavar="TIME", help="Only what is older than 90s, 10m, 1h30m, 7d."
        ),
    ] = None,
) -> None:
    """List transactional ids and the states that they are in.

    AGE is how long a transaction is open; where none is, how long ago the state changed.

    \b
    Example:
      txnlog txns ls --state Ongoing --older-than 10m
    """
    states = [_parse_state(name) for name in state or ()] or None
    older_than_ms = None if older_than is None else parse_duration(older_than)
    with DamageReporter() as reporter:
        found = session.open_to_read().transactions.list(states=states, older_than_ms=older_than_ms)
        session.output.rows(
            list_fields(clock.time_ns() // 1_000_000),
            reporter.skip_unreadable(found.with_errors()),
        )


def _parse_state(state: str) -> str:
    """The state in its own spelling, whatever case it was typed in. Raises BadParameter."""
    from txnlog.state.transaction import Status

    for status in Status:
        if status.value.lower() == state.lower():
            return status.value
    known = ", ".join(status.value for status in Status)
    raise typer.BadParameter(f"--state {state!r} is not one of {known}")


def describe_transaction(
    session: Session,
    transactional_id: TransactionalIdArgument,
) -> None:
    """Show the newest transaction of an id, and what it covers.

    REASON tells why somebody other than its producer aborted it. VERSIONS are the last
    idempotence versions that applications have committed with this id.

    \b
    Example:
      txnlog txns describe etl-1
    """
    found = session.open_to_read().transactions.describe(transactional_id)
    print_transaction(session.output, found)


PRODUCERS: list[Field[ProducerDescription]] = [
    text("topic", None, lambda producer: producer.topic),
    number("partition", "PART", lambda producer: producer.partition),
    number("producer_id", "PRODUCER", lambda producer: producer.producer_id),
    number("producer_epoch", "EPOCH", lambda producer: producer.producer_epoch),
    number("last_sequence", "LAST SEQ", lambda producer: producer.last_sequence),
    time("last_at_ms", "LAST WRITE", lambda producer: producer.last_at_ms, wide=True),
    transaction_ref("OPEN TXN", lambda producer: producer.transaction),
    number("transaction_start_offset", "FROM", lambda known: known.transaction_start_offset),
]


def list_producers(
    session: Session,
    target: TargetArgument,
) -> None:
    """List the producers that a topic remembers, by partition.

    FROM is the first offset of the producer's open transaction. A producer is forgotten when
    it was idle for producer.id.expiration.ms.

    \b
    Example:
      txnlog txns producers orders:0
    """
    where = parse_target(target)
    found = session.open_to_read().transactions.producers(where.topic, where.partition)
    session.output.rows(PRODUCERS, found)


LOG: list[Field[TransactionDescription]] = [
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


def show_log(
    session: Session,
    transactional_id: TransactionalIdArgument,
) -> None:
    """Show the states of a transactional id, oldest first. Changes nothing.

    Old ones are deleted in time.

    \b
    Example:
      txnlog txns log etl-1
    """
    with DamageReporter() as reporter:
        history = reporter.skip_unreadable(
            session.open_to_read().transactions.history(transactional_id).with_errors()
        )
        session.output.rows(LOG, history)


HUNG: list[Field[HangingTransaction]] = [
    text("transactional_id", "TRANSACTIONAL ID", lambda hung: hung.transaction.transactional_id),
    text("state", "STATE", lambda hung: hung.transaction.status),
    number("number", "NUMBER", lambda hung: hung.transaction.number),
    number("producer_id", "PRODUCER", lambda hung: hung.transaction.producer_id, wide=True),
    number("producer_epoch", "EPOCH", lambda hung: hung.transaction.producer_epoch, wide=True),
    time("started_at_ms", "STARTED", lambda hung: hung.transaction.started_at_ms, wide=True),
    number("timeout_ms", None, lambda hung: hung.transaction.timeout_ms),
    duration("overdue_ms", "OVERDUE", lambda hung: hung.overdue_ms),
    names("topics", "TOPICS", lambda hung: hung.transaction.topics),
    names("groups", "GROUPS", lambda hung: hung.transaction.groups, wide=True),
    text("reason", "WHY", lambda hung: hung.reason, wide=True),
    text("ended_by", None, lambda hung: hung.ended_by),
]


def find_hanging(session: Session) -> None:
    """Find transactions that should have ended. Exit code 4 if there are any. Changes nothing.

    Open past their timeout, or decided and not finished: their producer is gone. Nobody has to be
    woken up: the next reader or writer of one of their topics that may write ends them, if it finds
    something undecided there. `txnlog maintain` ends them all, `txnlog txns abort` one. OVERDUE is
    how long ago each should have ended. One whose times lie in the future (OVERDUE 0) was begun
    under a clock that runs ahead: before its timeout has passed by the storage's clock only
    `txns abort` ends it. An id whose state is damaged is named on stderr: exit code 3.

    \b
    Example:
      txnlog txns find-hanging
    """
    with DamageReporter() as reporter:
        hung = [
            *reporter.skip_unreadable(session.open_to_read().transactions.hanging().with_errors())
        ]
        session.output.rows(HUNG, hung)
    if hung:
        raise typer.Exit(HANGING)


HOLDERS: list[Field[StableOffsetHolder]] = [
    Field("transaction", None, lambda at: to_json(REF, at.transaction), str),
    number("entry", None, lambda at: at.entry),
    number("offset", None, lambda at: at.offset),
    time("placed_at_ms", None, lambda at: at.placed_at_ms),
    text("state", None, lambda at: at.status),
    time("started_at_ms", None, lambda at: at.started_at_ms),
    time("ends_by_ms", None, lambda at: at.ends_by_ms),
    text("ended_by", None, lambda at: at.ended_by),
]


STABLE_OFFSET: list[Field[StableOffset]] = [
    text("topic", "TOPIC", lambda stable: stable.topic),
    number("partition", "PART", lambda stable: stable.partition),
    number("log_start_offset", "START", lambda stable: stable.log_start_offset),
    number("last_stable_offset", "STABLE", lambda stable: stable.last_stable_offset),
    number("end_offset", "END", lambda stable: stable.end_offset),
    number("held_back", "WAITING", lambda at: at.end_offset - at.last_stable_offset),
    Field("holders", None, lambda at: [to_json(HOLDERS, one) for one in at.holders], lambda _: ""),
]


def explain_stable_offset(
    session: Session,
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="TOPIC[:PARTITION]",
            help="A topic or one partition of it; else all partitions in which anything waits.",
        ),
    ] = None,
) -> None:
    """Explain why a last stable offset is where it is.

    Who holds it there, since when, and what ends that. WAITING counts the offsets behind it,
    which read_committed does not show yet.

    \b
    Example:
      txnlog txns why
      txnlog txns why orders:0
    """
    store = session.open_to_read()
    if target is not None:
        where = parse_target(target)
        found = store.transactions.stable_offsets(where.topic, where.partition)
        session.output.rows(STABLE_OFFSET, found, below=_explain)
        return
    with DamageReporter() as reporter:
        held = reporter.skip_unreadable(_find_held(store))
        session.output.rows(STABLE_OFFSET, held, below=_explain)


def _find_held(store: Store) -> Iterator[StableOffset | TxnlogError]:
    """All partitions of all topics whose stable offset is before their end."""
    for topic in store.topics.list():
        try:
            yield from (
                stable for stable in store.transactions.stable_offsets(topic) if stable.holders
            )
        except UnknownTopicOrPartition:
            continue  # deleted meanwhile
        except TxnlogError as error:
            yield error


def _explain(stable: StableOffset) -> Iterator[str]:
    if not stable.holders:
        yield "held by nobody: the stable offset is the end"
    for position, holder in enumerate(stable.holders):
        ref = holder.transaction
        who = f"transaction {ref.number} of {escape_text(ref.transactional_id)}"
        held = "held by" if position == 0 else "then by"
        yield f"{held} {who}"
        yield f"  by producer {ref.producer_id}, epoch {ref.producer_epoch}"
        since = show_time(holder.placed_at_ms)
        yield f"  from offset {holder.offset} (log entry {holder.entry}, written {since})"
        if holder.status is not None:
            yield f"  {holder.status} since {show_time(holder.started_at_ms)}"
        if holder.ends_by_ms is not None:
            yield f"  ends by {show_time(holder.ends_by_ms)} at the latest, when somebody reads"
        for begin, way in zip(
            chain(["ended by:"], repeat("      or:")), _list_ways(holder), strict=False
        ):
            yield from wrap(way, 74, initial_indent=f"  {begin} ", subsequent_indent=" " * 12)


def _list_ways(holder: StableOffsetHolder) -> list[str]:
    """What ends a transaction, each way for itself."""
    if holder.status is None:
        return [holder.ended_by]  # a sentence, or an error that may have any characters
    ways = holder.ended_by.split("; ")
    if holder.status == "Ongoing":
        name = escape_text(shlex.quote(holder.transaction.transactional_id))
        ways[-1] = f"at once: txnlog txns abort {name}"
    return ways


def abort_transaction(
    session: Session,
    transactional_id: TransactionalIdArgument,
    reason: Annotated[
        str,
        typer.Option(
            "--reason", metavar="TEXT", help="Kept with the id, and shown to the fenced producer."
        ),
    ] = "an operator ended it with txnlog txns abort",
    number: Annotated[
        int | None,
        typer.Option(
            "--number", metavar="N", help="Only this transaction of the id, no later one."
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Also where the id's state is damaged: see below."),
    ] = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Abort the open transaction of an id, and show it.

    Its producer is fenced: if it still lives, its next call fails and says why. Asks first on
    a terminal; elsewhere it needs --yes. Repeating it does no harm. A transaction that was decided
    and never completed is completed, and it says so if it was committed: then nothing is aborted.

    Where the newest state of the id is damaged nobody can tell whether that transaction is open,
    committed or aborted: it is treated as aborted when the store's longest timeout has passed.
    Restore that file from a backup if you can. Otherwise --force aborts it at once: if it was
    committed, those of its records that no marker shows as committed are lost for good. --force
    changes nothing where the state can be read.

    \b
    Example:
      txnlog txns abort etl-1 --reason "its host is gone" --yes
      txnlog txns abort etl-1 --force
    """
    from txnlog.state.transaction import Status

    store = session.open_store(dry_run=dry_run)
    abort = partial(store.transactions.abort, transactional_id, reason=reason)
    try:
        found = abort(number=number, dry_run=True)
    except CorruptTransactionState as damage:
        # It names --force as the remedy, but not its price.
        if not force:
            raise CorruptTransactionState(
                f"{damage}; what it may have committed is given up then (see --help)"
            ) from damage
        if not dry_run:
            warn(str(damage))
            confirm(
                f"abort the transaction of {transactional_id} whose state is damaged, fence its "
                "producer, and give up for ever what it committed if no marker shows that it did",
                yes=yes,
            )
        found = abort(number=number, dry_run=dry_run, force=True)
    else:
        if not dry_run:
            what = f"abort transaction {found.number} of {transactional_id} and fence its producer"
            confirm(what, yes=yes or found.status != Status.ONGOING.value)
            # By its number: no transaction that begins while the user thinks is hit.
            found = abort(number=found.number)
    print_transaction(session.output, found)
    which = f"transaction {found.number} of {transactional_id} was committed"
    if found.status == Status.COMPLETE_COMMIT.value:
        warn(f"{which}, now complete; nothing was aborted")
    elif found.status == Status.PREPARE_COMMIT.value:
        warn(f"{which}, and is not complete yet; it cannot be aborted")
    note_dry_run(dry_run)


app = verb_group(
    {
        "ls": list_transactions,
        "describe": describe_transaction,
        "producers": list_producers,
        "log": show_log,
        "find-hanging": find_hanging,
        "why": explain_stable_offset,
        "abort": abort_transaction,
    },
)
