"""``txnlog txns``: transactional ids, their transactions, and producers."""

from __future__ import annotations

from txnlog.cli.commands.txns import abort, describe, find_hanging, log, ls, producers, why
from txnlog.cli.verbs import verb_group

app = verb_group(
    "Transactions: which are open, who waits, how they ended.",
    {
        "ls": ls.list_transactions,
        "describe": describe.describe_transaction,
        "producers": producers.list_producers,
        "log": log.show_log,
        "find-hanging": find_hanging.find_hanging,
        "why": why.explain_stable_offset,
        "abort": abort.abort_transaction,
    },
)
