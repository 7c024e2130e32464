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
    "ControllerMove": "roots.controller_move",
    "Election": "roots.election",
    "EpochCleaning": "roots.epoch_cleaning",
    "Followed": "standby.follower",
    "Follower": "standby.follower",
    "Forgotten": "roots.old_incarnations",
    "Joined": "roots.root_join",
    "LogVersion": "standby.rounds",
    "LogWatermark": "roots.watermarks",
    "LostRange": "roots.losses",
    "Promotion": "standby.promotion",
    "Reassigned": "roots.reassignment",
    "Replica": "roots.description",
    "ReplicaDifference": "roots.verification",
    "ReplicaEpoch": "roots.description",
    "ReplicaReturn": "roots.replica_return",
    "Replicas": "replicas",
    "ReplicasDescription": "roots.description",
    "Round": "standby.rounds",
    "ScrubNote": "roots.scrub",
    "ScrubPass": "roots.scrub",
    "Scrubbed": "roots.scrub",
    "Standby": "standbys",
    "open_replicas": "replicas",
    "recover_controller": "replicas",
}


HOOKS = {
    "command": "command",
    "doctor": "examination",
    "maintenance": "maintenance",
    "metrics": "monitoring",
    "old copies": "old_copies",
    "pages": "pages",
    "storage": "openers",
}
"""Where this part serves the hooks of :mod:`txnlog.hooks`."""


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name in _HOMES:
        return getattr(import_module(f"txnlog.replication.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'txnlog.replication' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
