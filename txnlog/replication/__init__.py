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
    from txnlog.replication.roots.cleaning import EpochCleaning
    from txnlog.replication.roots.description import Replica, ReplicaEpoch, ReplicasDescription
    from txnlog.replication.roots.electing import Election
    from txnlog.replication.roots.forgetting import Forgotten
    from txnlog.replication.roots.joining import Joined
    from txnlog.replication.roots.losses import LostRange
    from txnlog.replication.roots.moving import ControllerMove
    from txnlog.replication.roots.reassigning import Reassigned
    from txnlog.replication.roots.returning import ReplicaReturn
    from txnlog.replication.roots.scrubbing import Scrubbed, ScrubNote, ScrubPass
    from txnlog.replication.roots.verifying import ReplicaDifference
    from txnlog.replication.roots.watermarks import LogWatermark
    from txnlog.replication.standby.following import Followed, Follower
    from txnlog.replication.standby.promoting import Promotion
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
    "ControllerMove": "roots.moving",
    "Election": "roots.electing",
    "EpochCleaning": "roots.cleaning",
    "Followed": "standby.following",
    "Follower": "standby.following",
    "Forgotten": "roots.forgetting",
    "Joined": "roots.joining",
    "LogVersion": "standby.rounds",
    "LogWatermark": "roots.watermarks",
    "LostRange": "roots.losses",
    "Promotion": "standby.promoting",
    "Reassigned": "roots.reassigning",
    "Replica": "roots.description",
    "ReplicaDifference": "roots.verifying",
    "ReplicaEpoch": "roots.description",
    "ReplicaReturn": "roots.returning",
    "Replicas": "replicas",
    "ReplicasDescription": "roots.description",
    "Round": "standby.rounds",
    "ScrubNote": "roots.scrubbing",
    "ScrubPass": "roots.scrubbing",
    "Scrubbed": "roots.scrubbing",
    "Standby": "standbys",
    "open_replicas": "replicas",
    "recover_controller": "replicas",
}


HOOKS = {
    "command": "command",
    "doctor": "examination",
    "maintenance": "maintenance",
    "metrics": "monitoring",
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
