"""What maintenance does for roots: those that answer again rejoin, data goes where it belongs.

Old epochs are deleted.
"""

from __future__ import annotations

from collections.abc import Iterator

from txnlog.log.open_logs import Logs
from txnlog.replication.roots.cleaning import EpochCleaning, clean_epochs
from txnlog.replication.roots.opening import prepare_return
from txnlog.replication.roots.placement import places
from txnlog.replication.roots.reassigning import Reassigned, reassign
from txnlog.replication.roots.replicated_storage import find_replicated
from txnlog.replication.roots.returning import ReplicaReturn, return_roots
from txnlog.replication.sound_copies import SoundCopies

PART = "replicas"


def steps(logs: Logs, *, dry_run: bool) -> Iterator[ReplicaReturn | Reassigned | EpochCleaning]:
    """Yield each root that came back, then what was moved; nothing for a store on one root."""
    storage = find_replicated(logs.storage)
    if storage is None:
        return
    cleaned = clean_epochs(storage.agreement, dry_run=dry_run)
    if cleaned is not None:
        yield cleaned
    came_back = False
    for one in return_roots(storage, prepare_return, SoundCopies(logs), dry_run=dry_run):
        came_back |= one.member is not None
        yield one
    if came_back and places(storage.agreement.epoch()):
        yield from reassign(storage.agreement)
