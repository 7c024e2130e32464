"""``txnlog txns describe``: the newest transaction of an id."""

from __future__ import annotations

from txnlog.cli.input.options import TransactionalIdArgument
from txnlog.cli.output.transaction_fields import print_transaction
from txnlog.cli.session import Session


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
