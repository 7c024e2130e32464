"""``txnlog replicas``: the roots of a replicated store, and who of them is in sync."""

from __future__ import annotations

from txnlog.cli.verbs import verb_group
from txnlog.replication.commands import (
    add,
    config,
    create,
    describe,
    elect,
    follow,
    forget,
    move_controller,
    promote,
    reassign,
    recover,
    remove,
    verify,
)

app = verb_group(
    "Replicas: who leads, who is in sync, what differs; standbys.",
    {
        "create": create.create_replicas,
        "describe": describe.describe_replicas,
        "add": add.add_replica,
        "remove": remove.remove_replica,
        "elect": elect.elect_leader,
        "config": config.configure_replicas,
        "reassign": reassign.reassign_replicas,
        "verify": verify.verify_replicas,
        "move-controller": move_controller.move_controller,
        "recover": recover.recover,
        "forget": forget.forget_incarnations,
        "follow": follow.follow_store,
        "promote": promote.promote_standby,
    },
)
