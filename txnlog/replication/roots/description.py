"""A description of a replicated store's roots: what the epochs say, and what each root says now."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, NamedTuple, TypeAlias

from txnlog.config import Setting
from txnlog.errors import InvalidOption, NotEnoughReplicas, StorageError, StoreExists, TxnlogError
from txnlog.replication.roots.agreement import MemberFailed
from txnlog.replication.roots.epochs import (
    Epoch,
    Left,
    Member,
    by_last_in_sync,
    counted_roots,
    last_in_sync,
    list_settings,
    member_of,
    root_of,
)
from txnlog.replication.roots.listings import Listings, add_listing
from txnlog.replication.roots.old_incarnations import check_root, old_incarnations
from txnlog.replication.roots.outdated_controller import why_outdated
from txnlog.replication.roots.placement import copies as wanted_copies
from txnlog.replication.roots.placement import is_placed, is_share, places
from txnlog.replication.roots.replicated_storage import ReplicatedStorage
from txnlog.replication.roots.scrub import ScrubNote, newest_scrub
from txnlog.replication.roots.slowness import time_for
from txnlog.replication.roots.verification import check_again
from txnlog.storage.failure_messages import is_denied
from txnlog.storage.reach import UnnamedUrl

RootState: TypeAlias = Literal["leader", "in sync", "joining", "out"]
Answer: TypeAlias = Literal["answers", "no answer", "mark gone", "not asked"]
Condition: TypeAlias = Literal[
    "whole",
    "degraded",
    "below minimum",
    "offline",
    "unknown",
    "no controller",
    "outdated controller",
    "read-only controller",
]
"""Read by programs, like the two above: append only."""

_LONGEST_S: Final = 10.0
"""For how long a root is waited for, however long it may take elsewhere."""


@dataclass(frozen=True, slots=True)
class Replica:
    """One root of a replicated store.

    ``state`` is what the newest epoch says. ``answer`` is what the root says now: 'mark gone' is a
    folder that is not its own, as where a disk is not mounted; 'not asked' is one that cannot be
    asked as the store was opened. ``detail`` tells more of either. ``answered_ms`` is when it last
    answered this process; None if it never did.

    ``objects_behind`` and ``bytes_behind`` are what it should have and lacks, ``differing`` its
    objects that are not what the others have, by their sizes; None where that is not known, or was
    not counted. ``since_epoch`` and ``since_ms`` tell since when it is out. ``old`` are earlier
    incarnations that can be forgotten; () also if the root does not answer.
    """

    root: str
    url: str
    member: str | None
    state: RootState
    answer: Answer
    detail: str | None = None
    answered_ms: int | None = None
    objects_behind: int | None = None
    bytes_behind: int | None = None
    differing: int | None = None
    since_epoch: int | None = None
    since_ms: int | None = None
    old: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplicasDescription:
    """The roots as of one epoch. ``replicas`` are in the order of their roots' names.

    ``condition`` is 'offline' if no root in sync answers, 'no controller' if it fails, and this is
    what all roots keep of its epochs, 'outdated controller' if a root has an epoch that it lacks,
    so that nothing here need be true, 'read-only controller' if it takes no epoch, and a root in
    sync does not answer, 'below minimum' if fewer do than ``min_insync``, and 'whole'
    if all roots are in sync, answer, and lack nothing that was counted, but for those that were
    taken out and forgotten, or given up.

    ``under_replicated`` are data files at fewer roots in sync than ``replication.factor`` says, and
    ``under_replicated_bytes`` their sizes; None if not requested, or a root does not answer.
    ``only_out`` are data files, of ``only_out_bytes``, that no root in sync has, but one that is
    out and answers: lost with it, or deleted since it was out.

    ``scrub`` is how far maintenance has compared all objects; None if it has not begun.
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
    condition: Condition
    replicas: tuple[Replica, ...]
    settings: tuple[Setting, ...]
    scrub: ScrubNote | None = None
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
    """The history of epochs, as far as it is there. Raises StorageError, CorruptEntry."""
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
        for epoch in storage.agreement.every()
    ]


def _out(epoch: Epoch) -> tuple[str, ...]:
    known = {root_of(member) for member in epoch.members}
    return tuple(root for root in sorted(epoch.roots) if root not in known)


def describe(storage: ReplicatedStorage, *, with_lag: bool = False) -> ReplicasDescription:
    """The newest epoch, and what each root answers; of those that are joining what they lack.

    ``with_lag``: of all roots, compared by names and sizes. Roots are asked side by side.

    Raises StorageError: the controller fails.
    """
    agreement = storage.agreement
    epoch = agreement.refresh()
    roots = sorted(epoch.roots)
    asks = [partial(_ask, storage, epoch, root) for root in roots]
    asked = dict(zip(roots, agreement.controller.storage.gather(asks), strict=True))
    compared = _Compared({}, None)
    answering = [one for one in epoch.in_sync if asked[root_of(one)].answer == "answers"]
    if len(answering) == len(epoch.in_sync):
        compared = _compare(storage, epoch, with_lag=with_lag)
    found = tuple(_replica(storage, epoch, root, asked[root], compared.lags) for root in roots)
    lacking = compared.lacking
    controller: Condition | None = None
    if agreement.lost is not None:
        controller = "no controller"
    elif len(answering) < len(epoch.in_sync):  # the next epoch says so, if it is taken
        try:
            storage.check_writable()
        except NotEnoughReplicas as error:
            if not is_denied(error):  # who may only read cannot tell what it takes of others
                controller = "read-only controller"
    if why_outdated(agreement, storage.open_member):
        controller = "outdated controller"
    return ReplicasDescription(
        agreement.controller.storage.url,
        epoch.number,
        epoch.leader,
        epoch.leader_since,
        epoch.in_sync,
        tuple(epoch.joining),
        _out(epoch),
        epoch.min_insync,
        epoch.at_ms,
        epoch.why,
        _condition(epoch, found, lacking, controller),
        found,
        list_settings(epoch.settings),
        newest_scrub(agreement, epoch, answering) if answering else None,
        *(lacking or (None, None, None, None)),
    )


# -- what roots answer ---------------------------------------------------------------------------


class _Asked(NamedTuple):
    answer: Answer
    detail: str | None = None
    old: tuple[Member, ...] = ()


def _ask(storage: ReplicatedStorage, epoch: Epoch, root: str) -> _Asked:
    """Whether a root is there now, and which incarnations it has."""
    agreement, member = storage.agreement, member_of(epoch, root)
    within_s = min(time_for(epoch), _LONGEST_S)
    try:
        if member is not None:
            agreement.check_mark(epoch, member, within_s=within_s)
        else:
            check = partial(check_root, storage, epoch, root)
            agreement.slowness.ask(root, check, within_s)
    except MemberFailed as failed:
        return _Asked("mark gone" if failed.useless else "no answer", str(failed))
    except StorageError as error:
        return _Asked("no answer", str(error))
    except UnnamedUrl as error:
        return _Asked("not asked", str(error))
    except (InvalidOption, StoreExists) as error:
        return _Asked("mark gone", str(error))
    except TxnlogError as error:  # perhaps not even its adapter is installed
        return _Asked("not asked", str(error))
    try:
        look = partial(old_incarnations, storage, epoch, root)
        return _Asked("answers", old=agreement.slowness.ask(root, look, within_s))
    except TxnlogError as error:
        return _Asked("answers", str(error))


def _replica(
    storage: ReplicatedStorage, epoch: Epoch, root: str, asked: _Asked, lags: dict[Member, _Lag]
) -> Replica:
    member = member_of(epoch, root)
    known = member or last_in_sync(epoch, root)
    lag = lags.get(known or "", _Lag(None, None))
    left = epoch.left[known] if known is not None and member is None else None
    return Replica(
        root,
        epoch.roots[root].url,
        member,
        _state(epoch, member),
        asked.answer,
        asked.detail or _why(storage, epoch, root, member, left),
        None if known is None else storage.agreement.answered_ms(known),
        lag.objects,
        lag.bytes,
        lag.differing,
        None if left is None else left.epoch + 1,
        None if left is None else left.at_ms,
        asked.old,
    )


def _state(epoch: Epoch, member: Member | None) -> RootState:
    if member is None:
        return "out"
    if member in epoch.joining:
        return "joining"
    return "leader" if member == epoch.leader else "in sync"


def _why(
    storage: ReplicatedStorage, epoch: Epoch, root: str, member: Member | None, left: Left | None
) -> str | None:
    """Why a root is not in sync; None if it is, or nobody knows any more."""
    if member in epoch.joining:
        again = f"`txnlog replicas add {epoch.roots[root].url}` starts over"
        return f"it copies; if what it lacks does not become less, nobody goes on: {again}"
    if member is not None:
        return None
    if root in epoch.taken_out:
        return "an operator took it out"
    whys, agreement = [], storage.agreement
    if left is not None and agreement.lost is None:
        at = partial(agreement.controller.at, left.epoch + 1)
        with suppress(TxnlogError):  # it was cleaned
            whys.append(f"by epoch {left.epoch + 1}: {agreement.ask_controller(at).why}")
    if tried := epoch.failed_joins.get(root):
        whys.append(f"failed tries to bring it back: {tried.count}")
    return "; ".join(whys) or None


def _condition(
    epoch: Epoch, found: Sequence[Replica], lacking: Lacking | None, controller: Condition | None
) -> Condition:
    of_set = [one.answer for one in found if one.member in epoch.in_sync]
    answering = of_set.count("answers")
    perhaps = answering + of_set.count("not asked")
    if controller == "outdated controller":
        return controller
    if not perhaps:
        return "offline"
    if controller is not None:
        return controller
    if perhaps < epoch.min_insync:
        return "below minimum"
    if answering < max(1, epoch.min_insync):
        return "unknown"
    is_whole = len(of_set) == answering == len(counted_roots(epoch)) and not any(
        one.objects_behind or one.differing for one in found
    )
    return "degraded" if not is_whole or (lacking and lacking.under_replicated) else "whole"


# -- what roots have -----------------------------------------------------------------------------


@dataclass(slots=True)
class _Lag:
    """None where it is not known."""

    objects: int | None = 0
    bytes: int | None = 0
    differing: int | None = None

    def add(self, size_bytes: int) -> None:
        self.objects, self.bytes = (self.objects or 0) + 1, (self.bytes or 0) + size_bytes


class Lacking(NamedTuple):
    """Data files at too few members in sync, or at none: how many, and their bytes."""

    under_replicated: int = 0
    under_replicated_bytes: int = 0
    only_out: int = 0
    only_out_bytes: int = 0


class _Compared(NamedTuple):
    lags: dict[Member, _Lag]
    lacking: Lacking | None


def _compare(storage: ReplicatedStorage, epoch: Epoch, *, with_lag: bool) -> _Compared:
    """What members lack that those in sync have. Nothing is known if one of these fails."""
    if not (with_lag or epoch.joining):
        return _Compared({}, None)
    agreement = storage.agreement
    of_set = epoch.in_sync if with_lag or places(epoch) else (epoch.leader,)
    others = [*epoch.joining, *(_old(epoch) if with_lag else ())]
    lags = {}
    with Listings([*of_set, *others]) as listings:
        try:
            for member in of_set:
                add_listing(listings, agreement, epoch, member)
            for member in others:
                with suppress(MemberFailed, TxnlogError):
                    add_listing(listings, agreement, epoch, member)
                    lags[member] = _Lag()
            uneven = _walk(listings, epoch, of_set, dict(lags))
            if not with_lag:
                for _ in uneven:
                    pass
                return _Compared(lags, None)
            lags |= {member: _Lag(differing=0) for member in of_set}
            for found in check_again(agreement, uneven):
                for lag in (lags[member] for member in found.members if member in lags):
                    if found.kind == "missing":
                        lag.add(found.size_bytes)
                    elif found.kind != "extra":
                        lag.differing = (lag.differing or 0) + 1
        except (MemberFailed, NotEnoughReplicas):
            return _Compared({}, None)
        return _Compared(lags, count_lacking(listings, epoch) if places(epoch) else Lacking())


def _old(epoch: Epoch) -> list[Member]:
    """Of roots that are out, what was in sync last; where data is placed, all that was."""
    if places(epoch):
        return by_last_in_sync(epoch)
    last = (last_in_sync(epoch, root) for root in _out(epoch))
    return [member for member in last if member is not None]


def _walk(
    listings: Listings, epoch: Epoch, of_set: Sequence[Member], lags: dict[Member, _Lag]
) -> Iterator[str]:
    """Count what others lack of what the set has; yield what is not alike in the set."""
    for name, sizes in listings.holders():
        there = [sizes[member] for member in of_set if member in sizes]
        if not there:
            continue
        for member, lag in lags.items():
            if member not in sizes and is_share(epoch, name, member):
                lag.add(max(there))
        lacked = len(there) < len(of_set) and not is_placed(epoch, name)
        if lacked or min(there) < max(there):
            yield name


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
