"""``txnlog txns abort``: the open transaction of an id is ended."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from txnlog.cli.input.options import DryRunOption, TransactionalIdArgument, YesOption
from txnlog.cli.output.confirmation import confirm, note_dry_run
from txnlog.cli.output.streams import warn
from txnlog.cli.output.transaction_fields import print_transaction
from txnlog.cli.session import Session


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
    from txnlog.errors import CorruptTransactionState
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
