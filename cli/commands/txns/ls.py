"""``txnlog txns ls``: transactional ids with the state of their newest transaction."""

from __future__ import annotations

import time as clock
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from txnlog.cli.input.durations import parse_duration
from txnlog.cli.output.damage import DamageReporter
from txnlog.cli.output.fields import Field, duration
from txnlog.cli.output.transaction_fields import SUMMARY
from txnlog.cli.session import Session

if TYPE_CHECKING:
    from txnlog.inspect.descriptions import TransactionDescription


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
            list_fields(clock.time_ns() // 1_000_000), reporter.skip_unreadable(found.with_errors())
        )


def _parse_state(state: str) -> str:
    """The state in its own spelling, whatever case it was typed in. Raises BadParameter."""
    from txnlog.state.transaction import Status

    for status in Status:
        if status.value.lower() == state.lower():
            return status.value
    known = ", ".join(status.value for status in Status)
    raise typer.BadParameter(f"--state {state!r} is not one of {known}")
