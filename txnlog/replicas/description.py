"""A description of a replicated store's roots."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from txnlog import names
from txnlog.config import Setting
from txnlog.errors import NotEnoughReplicas, TxnlogError
from txnlog.replicas.agreement import MemberFailed
from txnlog.replicas.comparing import Listings, add_listing
from txnlog.replicas.epochs import Epoch, Member, last_in_sync, list_settings, member_of, root_of
from txnlog.replicas.forgetting import old_incarnations
from txnlog.replicas.placed_data import add_data, latest_left
from txnlog.replicas.placement import copies as wanted_copies
from txnlog.replicas.placement import is_placed, is_share, places
from txnlog.replicas.replicated_storage import ReplicatedStorage


@dataclass(frozen=True, slots=True)
class Replica:
    """One root of a replicated store.

    ``state`` is 'leader', 'in sync', 'joining' or 'out'. ``objects_behind`` and ``bytes_behind``
    are what a joining root lacks so far; None if not known. ``since_epoch`` and ``since_ms`` tell
    since when it is out. ``old`` are earlier incarnations that can be forgotten; () also if the
    root does not answer.
    """

    root: str
    url: str
    member: str | None
    state: str
    objects_behind: int | None
    bytes_behind: int | None
    since_epoch: int | None = None
    since_ms: int | None = None
    old: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Replicas:
    """The roots as of one epoch. ``replicas`` are in the order of their roots' names.

    ``under_replicated`` are data files at fewer roots in sync than ``replication.factor`` says, and
    ``under_replicated_bytes`` their sizes; None if not requested, or a root does not answer.
    ``only_out`` are data files, of ``only_out_bytes``, that no root in sync has, but one that is
    out and answers: lost with it, or deleted since it was out.
    """

    controller: str
    epoch: int
    leader: str
    leader_since: int
    in_sync: tuple[str, ...]
    joining: tuple[str, ...]
    out: tuple[str, ...]
    min_insync: int
    since_ms: int
    why: str
    replicas: tuple[Replica, ...]
    settings: tuple[Setting, ...]
    under_replicated: int | None = None
    under_replicated_bytes: int | None = None
    only_out: int | None = None
    only_out_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ReplicaEpoch:
    """A past epoch. ``unclean``: writes acknowledged from that epoch on may be lost."""

    epoch: int
    at_ms: int
    leader: str
    in_sync: tuple[str, ...]
    joining: tuple[str, ...]
    out: tuple[str, ...]
    unclean: int | None
    why: str


def history(storage: ReplicatedStorage) -> list[ReplicaEpoch]:
    """The history of epochs. Raises StorageError, CorruptEntry."""
    return [
        ReplicaEpoch(
            epoch.number,
            epoch.at_ms,
            epoch.leader,
            epoch.in_sync,
            tuple(epoch.joining),
            _out(epoch),
            epoch.unclean,
            epoch.why,
        )
        for epoch in storage.agreement.controller.every()
    ]


def _out(epoch: Epoch) -> tuple[str, ...]:
    known = {root_of(member) for member in epoch.members}
    return tuple(root for root in sorted(epoch.roots) if root not in known)


def describe(storage: ReplicatedStorage, *, with_lag: bool = False) -> Replicas:
    """The newest epoch, with what joining roots, and those that are out, lack.

    Raises StorageError: the controller fails, or the leader.
    """
    epoch = storage.agreement.refresh()
    lacking = _look_for_lacking(storage, epoch) if with_lag else None
    replicas = tuple(
        _replica(storage, epoch, root, with_lag=with_lag) for root in sorted(epoch.roots)
    )
    return Replicas(
        storage.agreement.controller.storage.url,
        epoch.number,
        epoch.leader,
        epoch.leader_since,
        epoch.in_sync,
        tuple(epoch.joining),
        _out(epoch),
        epoch.min_insync,
        epoch.at_ms,
        epoch.why,
        replicas,
        list_settings(epoch.settings),
        *(lacking or (None, None, None, None)),
    )


class Lacking(NamedTuple):
    """Data files at too few members in sync, or at none: how many, and their bytes."""

    under_replicated: int = 0
    under_replicated_bytes: int = 0
    only_out: int = 0
    only_out_bytes: int = 0


def _look_for_lacking(storage: ReplicatedStorage, epoch: Epoch) -> Lacking | None:
    """Lists all data. None: a member in sync does not answer."""
    if not places(epoch):
        return Lacking()
    old = latest_left(epoch)
    with Listings([*epoch.in_sync, *old]) as listings:
        try:
            for member in epoch.in_sync:
                add_data(listings, storage.agreement, epoch, member, names.TOPICS)
        except MemberFailed:
            return None
        for member in old:
            with suppress(MemberFailed, TxnlogError):
                add_data(listings, storage.agreement, epoch, member, names.TOPICS)
        return count_lacking(listings, epoch)


def count_lacking(listings: Listings, epoch: Epoch) -> Lacking:
    """Of what was listed, the data files that too few members in sync have."""
    under = under_bytes = only_out = only_out_bytes = 0
    in_sync = set(epoch.in_sync)
    for name, sizes in listings.holders():
        if not is_placed(epoch, name):
            continue
        there = len(in_sync.intersection(sizes))
        if not there:
            only_out, only_out_bytes = only_out + 1, only_out_bytes + max(sizes.values())
        elif there < wanted_copies(epoch, name):
            under, under_bytes = under + 1, under_bytes + max(sizes.values())
    return Lacking(under, under_bytes, only_out, only_out_bytes)


def _replica(storage: ReplicatedStorage, epoch: Epoch, root: str, *, with_lag: bool) -> Replica:
    url = epoch.roots[root].url
    old: tuple[str, ...] = ()
    with suppress(TxnlogError):  # perhaps not even its adapter is installed
        old = old_incarnations(storage, epoch, root)
    member = member_of(epoch, root)
    if member is None:
        last = last_in_sync(epoch, root)
        if last is None:
            return Replica(root, url, None, "out", None, None, old=old)
        objects, size = _behind(storage, epoch, last) if with_lag else (None, None)
        left = epoch.left[last]
        return Replica(root, url, None, "out", objects, size, left.epoch + 1, left.at_ms, old)
    if member in epoch.in_sync:
        state = "leader" if member == epoch.leader else "in sync"
        return Replica(root, url, member, state, 0, 0, old=old)
    objects, size = _behind(storage, epoch, member)
    return Replica(root, url, member, "joining", objects, size, old=old)


def _behind(
    storage: ReplicatedStorage, epoch: Epoch, member: Member
) -> tuple[int, int] | tuple[None, None]:
    """What a member should have but lacks: objects and bytes."""
    agreement = storage.agreement
    with Listings([member, *epoch.in_sync]) as listings:
        try:
            add_listing(listings, agreement, epoch, member)
        except MemberFailed:
            return None, None
        try:
            add_listing(listings, agreement, epoch, epoch.leader)
            for other in epoch.in_sync if places(epoch) else ():
                if other != epoch.leader:
                    add_data(listings, agreement, epoch, other, names.TOPICS)
        except MemberFailed as failed:
            raise NotEnoughReplicas(f"{failed.member} is in sync, and fails: {failed}") from failed
        lacked = listings.sum_lacked_by(member, lambda name: is_share(epoch, name, member))
    return lacked.count, lacked.size_bytes
