"""``txnlog replicas``: the roots of a replicated store, and who of them is in sync."""

from __future__ import annotations

from txnlog.cli.commands.replicas import follow, promote
from txnlog.cli.verbs import verb_group

app = verb_group(
    "A store on several roots, and standbys of any store.",
    {
        "follow": follow.follow_store,
        "promote": promote.promote_standby,
    },
)
