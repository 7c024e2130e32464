"""A replicated store's set, as one looks at it."""

from __future__ import annotations

from dataclasses import dataclass

from txnlog import names
from txnlog.errors import NotEnoughReplicas
from txnlog.replicas.agreement import MemberFailed
from txnlog.replicas.epochs import Epoch, Member, root_of
from txnlog.replicas.replicated_storage import ReplicatedStorage


@dataclass(frozen=True, slots=True)
class Replica:
    """One root of a replicated store.

    ``state`` is 'leader', 'in sync', 'joining' or 'out'. ``objects_behind`` and ``bytes_behind``
    are what one that is joining does not have yet; None where that is not known.
    """

    root: str
    url: str
    member: str | None
    state: str
    objects_behind: int | None
    bytes_behind: int | None


@dataclass(frozen=True, slots=True)
class Replicas:
    """Who is in sync, as of one epoch. ``replicas`` are in the order of their roots' names."""

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


def describe(storage: ReplicatedStorage) -> Replicas:
    """The newest epoch, with what those that are joining lack.

    Raises StorageError: the controller fails, or the leader.
    """
    epoch = storage.agreement.refresh()
    replicas = tuple(_replica(storage, epoch, root) for root in sorted(epoch.roots))
    return Replicas(
        storage.url,
        epoch.number,
        epoch.leader,
        epoch.leader_since,
        epoch.in_sync,
        tuple(epoch.joining),
        tuple(replica.root for replica in replicas if replica.state == "out"),
        epoch.min_insync,
        epoch.at_ms,
        epoch.why,
        replicas,
    )


def _replica(storage: ReplicatedStorage, epoch: Epoch, root: str) -> Replica:
    url = epoch.roots[root].url
    member = next((member for member in epoch.members if root_of(member) == root), None)
    if member is None:
        return Replica(root, url, None, "out", None, None)
    if member in epoch.in_sync:
        state = "leader" if member == epoch.leader else "in sync"
        return Replica(root, url, member, state, 0, 0)
    return Replica(root, url, member, "joining", *_behind(storage, epoch, member))


def _behind(
    storage: ReplicatedStorage, epoch: Epoch, member: Member
) -> tuple[int, int] | tuple[None, None]:
    def all_of(which: Member) -> dict[str, int]:
        return storage.agreement.ask(epoch, which, lambda found: dict(found.list_all("")))

    try:
        has = all_of(member)
    except MemberFailed:
        return None, None
    try:
        lacks = {name: size for name, size in all_of(epoch.leader).items() if name not in has}
    except MemberFailed as failed:
        raise NotEnoughReplicas(f"the leader {epoch.leader} fails: {failed}") from failed
    marks = f"{names.MEMBER_MARKS}/"
    sizes = [size for name, size in lacks.items() if not name.startswith(marks)]
    return len(sizes), sum(sizes)
