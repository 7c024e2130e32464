"""Stores on several roots, and copies that follow a store. See docs/REPLICAS.md.

    from txnlog.replication import Follower, Replicas, Standby, open_replicas

    replicas = open_replicas(["/disk1/store", "/disk2/store"], controller="/control", create=True)
    replicas.store.topics.create("orders")
    Replicas(txnlog.open("/disk1/store")).describe()

    Follower(replicas.store, "/data/standby").follow()
    Standby(txnlog.open("/data/standby")).promote()

Names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from txnlog.hooks import lazily

if TYPE_CHECKING:
    from txnlog.replication.replicas import Replicas, open_replicas, recover_controller
    from txnlog.replication.roots.controller_move import ControllerMove
    from txnlog.replication.roots.description import Replica, ReplicaEpoch, ReplicasDescription
    from txnlog.replication.roots.election import Election
    from txnlog.replication.roots.epoch_cleaning import EpochCleaning
    from txnlog.replication.roots.losses import LostRange
    from txnlog.replication.roots.old_incarnations import Forgotten
    from txnlog.replication.roots.reassignment import Reassigned
    from txnlog.replication.roots.replica_return import ReplicaReturn
    from txnlog.replication.roots.root_join import Joined
    from txnlog.replication.roots.scrub import Scrubbed, ScrubNote, ScrubPass
    from txnlog.replication.roots.verification import ReplicaDifference
    from txnlog.replication.roots.watermarks import LogWatermark
    from txnlog.replication.standby.follower import Followed, Follower
    from txnlog.replication.standby.promotion import Promotion
    from txnlog.replication.standby.rounds import LogVersion, Round
    from txnlog.replication.standbys import Standby

__all__ = [
    "ControllerMove",
    "Election",
    "EpochCleaning",
    "Followed",
    "Follower",
    "Forgotten",
    "Joined",
    "LogVersion",
    "LogWatermark",
    "LostRange",
    "Promotion",
    "Reassigned",
    "Replica",
    "ReplicaDifference",
    "ReplicaEpoch",
    "ReplicaReturn",
    "Replicas",
    "ReplicasDescription",
    "Round",
    "ScrubNote",
    "ScrubPass",
    "Scrubbed",
    "Standby",
    "open_replicas",
    "recover_controller",
]

_HOMES = {
    "replicas": ("Replicas", "open_replicas", "recover_controller"),
    "roots.controller_move": ("ControllerMove",),
    "roots.description": ("Replica", "ReplicaEpoch", "ReplicasDescription"),
    "roots.election": ("Election",),
    "roots.epoch_cleaning": ("EpochCleaning",),
    "roots.losses": ("LostRange",),
    "roots.old_incarnations": ("Forgotten",),
    "roots.reassignment": ("Reassigned",),
    "roots.replica_return": ("ReplicaReturn",),
    "roots.root_join": ("Joined",),
    "roots.scrub": ("ScrubNote", "ScrubPass", "Scrubbed"),
    "roots.verification": ("ReplicaDifference",),
    "roots.watermarks": ("LogWatermark",),
    "standby.follower": ("Followed", "Follower"),
    "standby.promotion": ("Promotion",),
    "standby.rounds": ("LogVersion", "Round"),
    "standbys": ("Standby",),
}


HOOKS = {
    "command": "command",
    "doctor": "examination",
    "maintenance": "maintenance",
    "metrics": "maintenance",
    "old copies": "replaced_data",
    "pages": "pages",
    "storage": "openers",
}
"""Where this part serves the hooks of :mod:`txnlog.hooks`."""

__getattr__, __dir__ = lazily(globals(), _HOMES)
