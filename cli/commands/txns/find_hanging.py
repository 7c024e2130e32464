"""``txnlog txns find-hanging``: transactions that should have ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from txnlog.cli.output.damage import DamageReporter
from txnlog.cli.output.exits import HANGING
from txnlog.cli.output.fields import Field, duration, names, number, text, time
from txnlog.cli.session import Session

if TYPE_CHECKING:
    from txnlog.inspect.descriptions import HangingTransaction


FIELDS: list[Field[HangingTransaction]] = [
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
    under a clock that runs ahead. An id whose state is damaged is named on stderr: exit code 3.

    \b
    Example:
      txnlog txns find-hanging
    """
    with DamageReporter() as reporter:
        hung = [
            *reporter.skip_unreadable(session.open_to_read().transactions.hanging().with_errors())
        ]
        session.output.rows(FIELDS, hung)
    if hung:
        raise typer.Exit(HANGING)
