"""``txnlog replicas``: the roots of a replicated store, and who of them is in sync."""

from __future__ import annotations

from txnlog.cli.commands.replicas import (
    add,
    config,
    describe,
    elect,
    follow,
    forget,
    promote,
    reassign,
    remove,
    verify,
)
from txnlog.cli.verbs import verb_group

app = verb_group(
    "A store on several roots: who leads, who is in sync, what differs; and standbys.",
    {
        "describe": describe.describe_replicas,
        "add": add.add_replica,
        "remove": remove.remove_replica,
        "elect": elect.elect_leader,
        "config": config.configure_replicas,
        "reassign": reassign.reassign_replicas,
        "verify": verify.verify_replicas,
        "forget": forget.forget_incarnations,
        "follow": follow.follow_store,
        "promote": promote.promote_standby,
    },
)
