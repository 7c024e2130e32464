"""``txnlog txns log``: the states of an id, as they lie."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txnlog.cli.input.options import TransactionalIdArgument
from txnlog.cli.output.damage import DamageReporter
from txnlog.cli.output.fields import Field, names, number, text, time
from txnlog.cli.session import Session

if TYPE_CHECKING:
    from txnlog.inspect.descriptions import TransactionDescription


FIELDS: list[Field[TransactionDescription]] = [
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
        session.output.rows(FIELDS, history)
