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
    from txnlog.replicas.description import Replica, ReplicaEpoch, ReplicasDescription
    from txnlog.replicas.electing import Election
    from txnlog.replicas.forgetting import Forgotten
    from txnlog.replicas.joining import Joined
    from txnlog.replicas.losses import LostRange
    from txnlog.replicas.moving import ControllerMove
    from txnlog.replicas.reassigning import Reassigned
    from txnlog.replicas.returning import ReplicaReturn
    from txnlog.replicas.verifying import ReplicaDifference
    from txnlog.replicas.watermarks import LogWatermark
    from txnlog.replication.replicas import Replicas, open_replicas
    from txnlog.replication.standbys import Standby
    from txnlog.standby.following import Followed, Follower
    from txnlog.standby.promoting import Promotion
    from txnlog.standby.rounds import LogVersion, Round

__all__ = [
    "ControllerMove",
    "Election",
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
    "Standby",
    "open_replicas",
]

_HOMES = {
    "ControllerMove": "replicas.moving",
    "Election": "replicas.electing",
    "Followed": "standby.following",
    "Follower": "standby.following",
    "Forgotten": "replicas.forgetting",
    "Joined": "replicas.joining",
    "LogVersion": "standby.rounds",
    "LogWatermark": "replicas.watermarks",
    "LostRange": "replicas.losses",
    "Promotion": "standby.promoting",
    "Reassigned": "replicas.reassigning",
    "Replica": "replicas.description",
    "ReplicaDifference": "replicas.verifying",
    "ReplicaEpoch": "replicas.description",
    "ReplicaReturn": "replicas.returning",
    "Replicas": "replication.replicas",
    "ReplicasDescription": "replicas.description",
    "Round": "standby.rounds",
    "Standby": "replication.standbys",
    "open_replicas": "replication.replicas",
}


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name in _HOMES:
        return getattr(import_module(f"txnlog.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'txnlog.replication' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
