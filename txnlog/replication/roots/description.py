"""A description of a replicated store's roots: what the epochs say, and what each root says now."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby
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
from txnlog.replication.roots.placement import is_placed, is_share, places, topic_of
from txnlog.replication.roots.replicated_storage import ReplicatedStorage
from txnlog.replication.roots.scrub import ScrubNote, newest_scrub
from txnlog.replication.roots.slowness import time_for
from txnlog.replication.roots.soundness import (
    NamedFiles,
    Unnamed,
    names_nothing,
    unnames_nothing,
)
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
"""Programs read these words, and those of the two types above: only add new ones."""

_LONGEST_S: Final = 10.0
"""A description waits no longer for a root, even if its lag is set higher; in seconds."""


@dataclass(frozen=True, slots=True)
class Replica:
    """One root of a replicated store.

    ``state`` is the root's state in the newest epoch, ``member`` its current incarnation; None if
    it is out. ``answer`` is what the root says now: with 'mark gone' the folder is not the root's
    own, as where a disk is not mounted; with 'not asked' the store was opened without access to it.
    ``detail`` explains either. ``answered_ms`` is when the root last answered this process, in Unix
    milliseconds; None if it never did.

    ``objects_behind`` counts objects that the root should have, but lacks; ``bytes_behind`` their
    bytes. ``differing`` counts those of other sizes than the other roots have. These are None where
    they are unknown, or were not counted. ``since_epoch`` and ``since_ms`` say since when the root
    is out. ``old`` are earlier incarnations that can be forgotten; () if the root does not answer.
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

    ``condition`` is

    * 'offline': no root in sync answers.
    * 'no controller': the controller fails, and the roots' own notes of its epochs are described.
    * 'outdated controller': a root has an epoch that the controller lacks, so nothing here need be
      true.
    * 'read-only controller': it takes no epoch, and a root in sync does not answer.
    * 'below minimum': fewer roots in sync answer than ``min_insync``.
    * 'unknown': too few answer to tell, and others cannot be asked.
    * 'whole': all roots are in sync, answer, and lack nothing that was counted. Roots that were
      taken out and forgotten, or given up, do not count.
    * 'degraded': none of these.

    ``under_replicated`` counts data files at fewer roots in sync than ``replication.factor`` says,
    and ``under_replicated_bytes`` their bytes. ``only_out`` counts data files that logs name, but
    that no root in sync has: only an old incarnation, with which they would be lost.
    ``only_out_bytes`` are their bytes. All four are None if they were not requested, or a root in
    sync does not answer.

    ``scrub`` says how far maintenance has come in comparing all objects; None if it has not begun.
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
    """All epochs that still exist, oldest first. Raises StorageError, CorruptEntry."""
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


def describe(
    storage: ReplicatedStorage,
    *,
    with_lag: bool = False,
    named: NamedFiles = names_nothing,
    unnamed: Unnamed = unnames_nothing,
) -> ReplicasDescription:
    """Describe the newest epoch and its roots, which are asked in parallel.

    What joining roots lack is counted, and with ``with_lag`` what any root lacks, by names and
    sizes. ``named`` and ``unnamed`` tell what logs name, and name no more.

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
        compared = _compare(storage, epoch, named, unnamed, with_lag=with_lag)
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
    """Ask whether a root is there now, and which old incarnations it has."""
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
    """Why a root is not in sync; None if it is in sync, or the reason is no longer known."""
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
    lacks = lacking is not None and (lacking.under_replicated or lacking.only_out)
    return "degraded" if lacks or not is_whole else "whole"


# -- what roots have -----------------------------------------------------------------------------


@dataclass(slots=True)
class _Lag:
    """What a member lacks; None where that is not known."""

    objects: int | None = 0
    bytes: int | None = 0
    differing: int | None = None

    def add(self, size_bytes: int) -> None:
        self.objects, self.bytes = (self.objects or 0) + 1, (self.bytes or 0) + size_bytes


class Lacking(NamedTuple):
    """How many data files are at too few members in sync, or at none, and their bytes."""

    under_replicated: int = 0
    under_replicated_bytes: int = 0
    only_out: int = 0
    only_out_bytes: int = 0


class _Compared(NamedTuple):
    lags: dict[Member, _Lag]
    lacking: Lacking | None


def _compare(
    storage: ReplicatedStorage,
    epoch: Epoch,
    named: NamedFiles,
    unnamed: Unnamed,
    *,
    with_lag: bool,
) -> _Compared:
    """Compare members with those in sync. The result is empty if one of these fails."""
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
            for found in check_again(agreement, uneven, unnamed):
                for lag in (lags[member] for member in found.members if member in lags):
                    if found.kind == "missing":
                        lag.add(found.size_bytes)
                    elif found.kind != "extra":
                        lag.differing = (lag.differing or 0) + 1
            return _Compared(lags, count_lacking(listings, epoch, named))
        except (MemberFailed, NotEnoughReplicas):
            return _Compared({}, None)


def _old(epoch: Epoch) -> list[Member]:
    """Former members to compare: of each root that is out the last one; with placed data all."""
    if places(epoch):
        return by_last_in_sync(epoch)
    last = (last_in_sync(epoch, root) for root in _out(epoch))
    return [member for member in last if member is not None]


def _walk(
    listings: Listings, epoch: Epoch, of_set: Sequence[Member], lags: dict[Member, _Lag]
) -> Iterator[str]:
    """Count in ``lags`` the objects that other members lack; yield names that differ in the set."""
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


def count_lacking(listings: Listings, epoch: Epoch, named: NamedFiles = names_nothing) -> Lacking:
    """Count the listed data files that too few members in sync have, and those that none has.

    The latter only count if a log names them. Raises StorageError: a log fails.
    """
    under = under_bytes = only_out = only_out_bytes = 0
    in_sync = set(epoch.in_sync)
    placed = ((name, sizes) for name, sizes in listings.holders() if is_placed(epoch, name))
    for topic, files in groupby(placed, lambda one: topic_of(one[0])):
        needed: Collection[str] | None = None
        for name, sizes in files:
            there = len(in_sync.intersection(sizes))
            if there:
                if there < wanted_copies(epoch, name):
                    under, under_bytes = under + 1, under_bytes + max(sizes.values())
                continue
            needed = named(str(topic)) if needed is None else needed
            if name in needed:
                only_out, only_out_bytes = only_out + 1, only_out_bytes + max(sizes.values())
    return Lacking(under, under_bytes, only_out, only_out_bytes)
