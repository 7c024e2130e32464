"""``txnlog replicas``: the roots of a replicated store, and who of them is in sync."""

from __future__ import annotations

from txnlog.cli.verbs import verb_group
from txnlog.replication.commands import changes, roots, standbys

app = verb_group(
    {
        "create": changes.create_replicas,
        "describe": roots.describe_replicas,
        "add": changes.add_replica,
        "remove": changes.remove_replica,
        "elect": changes.elect_leader,
        "config": changes.configure_replicas,
        "reassign": changes.reassign_replicas,
        "verify": roots.verify_replicas,
        "move-controller": changes.move_controller,
        "recover": changes.recover,
        "forget": changes.forget_incarnations,
        "follow": standbys.follow_store,
        "promote": standbys.promote_standby,
    },
)
