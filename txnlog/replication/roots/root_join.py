"""How a root joins, or rejoins: as a new incarnation that copies the leader's objects.

1. The incarnation's folder is marked. The next epoch names it as joining, and from then on writers
   write to it.
2. The leader is listed AFTER that, and everything listed is copied. Data that an earlier
   incarnation of the root has undamaged is kept instead.
3. Objects that the leader has lost are given to both, by members in sync or former ones that have
   them; files of logs only if they were decided. Objects that are damaged at the leader come from
   such members, too.
4. Objects that were deleted meanwhile are deleted at the new member as well.
5. If the leader is still the same, and the member was joining all the time, the next epoch puts it
   in sync.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, filterfalse
from typing import TypeVar

import msgspec

from txnlog import names
from txnlog.errors import NotEnoughReplicas, ObjectNotFound, TxnlogError
from txnlog.replication import root_names
from txnlog.replication.roots.agreement import Agreement, MemberFailed
from txnlog.replication.roots.copies import copy_between, put_at
from txnlog.replication.roots.epoch_notes import note_epoch
from txnlog.replication.roots.epochs import (
    Epoch,
    Member,
    Root,
    by_last_in_sync,
    gave_up_joining,
    joined,
    joining,
    may_be_asked,
    next_incarnation,
    root_of,
    without,
)
from txnlog.replication.roots.former_members import first_of_former
from txnlog.replication.roots.kept_data import Kept
from txnlog.replication.roots.listings import Listings, add_listing, portions
from txnlog.replication.roots.members import put_mark
from txnlog.replication.roots.old_incarnations import delete_incarnation, remove_folder
from txnlog.replication.roots.placed_data import copy_sound, list_whole, sound_source, source_of
from txnlog.replication.roots.placement import is_placed, targets
from txnlog.replication.roots.slowness import time_for
from txnlog.replication.roots.soundness import (
    STORE,
    IsSound,
    NamedFiles,
    bring_back_lost,
    bytes_to_join_with,
    lost_by_leader,
    names_nothing,
)

T = TypeVar("T")

_PAUSE_S = 0.1
_ATTEMPTS = 3
_AT_ONCE = 64
"""How many objects are copied in parallel."""


class _HandedOver(NotEnoughReplicas):
    """Another member leads now, though nobody has left: the old leader had damage, say."""


@dataclass(frozen=True, slots=True)
class Joined:
    """What it cost to add a root, or would cost."""

    member: str
    epoch: int
    """The epoch that puts the root in sync."""
    objects: int
    """How many objects were copied; ``bytes`` is their size."""
    bytes: int
    kept_objects: int = 0
    """How many objects the root had already, so that they were not copied."""
    kept_bytes: int = 0


def join(
    agreement: Agreement,
    root: str,
    url: str,
    is_sound: IsSound = lambda *_: None,
    named: NamedFiles = names_nothing,
) -> Joined:
    """Bring a root into the in-sync set, as a new incarnation.

    ``is_sound`` judges data files: one that is damaged at a member is copied from another member.
    ``named`` returns the files that must exist: those that the leader has lost are copied from
    others.

    Raises NotEnoughReplicas: the set has changed too much meanwhile, or a member fails: try again.
    StorageError: the controller fails.
    """
    for _ in range(_ATTEMPTS - 1):
        with suppress(_HandedOver):
            return _join(agreement, root, url, is_sound, named)
    return _join(agreement, root, url, is_sound, named)


def _join(
    agreement: Agreement, root: str, url: str, is_sound: IsSound, named: NamedFiles
) -> Joined:
    member = next_incarnation(agreement.refresh(), root)
    try:
        epoch, member = _begin(agreement, agreement.epoch(), root, url)
        try:
            # If this one is in sync alone, and the controller is lost, its root is to be asked.
            _patiently(agreement, lambda: note_epoch(agreement, epoch, [epoch.leader]))
            with Kept.of(agreement, epoch, member, is_sound) as kept:
                copied = _copy(agreement, epoch, member, is_sound, named, kept)
            after = _finish(agreement, epoch, member)
        except Exception as error:
            _give_up(agreement, member, f"{member} gives up joining: {error}")
            raise
    except MemberFailed as failed:
        raise NotEnoughReplicas(
            f"{failed.member} failed while {member} joined: {failed}"
        ) from failed
    return Joined(member, after.number, *copied)


def _give_up(agreement: Agreement, member: Member, why: str) -> None:
    """End a member's joining, and delete its objects, since its disk may be small; best effort."""
    with suppress(TxnlogError, MemberFailed):
        while member in (epoch := agreement.refresh()).joining:
            agreement.propose(gave_up_joining(epoch, member, agreement.proposer(why)))
        # It may be in sync, by an epoch whose put had an unknown outcome.
        if member not in epoch.members and member not in epoch.left:
            agreement.check_mark(epoch, member)  # another store's disk may be in its place
            mark = root_names.member_mark(member, epoch.store)
            agreement.ask(epoch, member, lambda found: delete_incarnation(found, mark))
            remove_folder(agreement, epoch, member)


def _begin(agreement: Agreement, epoch: Epoch, root: str, url: str) -> tuple[Epoch, Member]:
    """Put the epoch in which a root's next incarnation joins; returns it, and that member."""
    if root in epoch.roots and epoch.roots[root].url != url:
        raise NotEnoughReplicas(f"{root} has become {epoch.roots[root].url}: try again")
    for other in epoch.joining:
        if root_of(other) == root:  # an earlier process was killed while joining
            who = agreement.proposer(f"{other} is replaced by another incarnation")
            agreement.propose(without(epoch, other, who))
            epoch = agreement.epoch()
    if any(root_of(other) == root for other in epoch.members):
        raise NotEnoughReplicas(f"{root} takes part already, as of epoch {epoch.number}")
    member = next_incarnation(epoch, root)
    known = msgspec.structs.replace(epoch, roots={**epoch.roots, root: Root(url)})
    controller = agreement.controller.storage.url
    agreement.ask(known, member, lambda storage: put_mark(storage, member, controller, epoch.store))
    proposed = joining(epoch, member, url, agreement.proposer(f"{member} joins"))
    if not agreement.propose(proposed):
        raise NotEnoughReplicas(f"epoch {proposed.number} was somebody else's: try again")
    return proposed, member


def _listing(agreement: Agreement, epoch: Epoch) -> Iterator[tuple[str, int]]:
    agreement.check_mark(epoch, epoch.leader)
    yield from list_whole(agreement, epoch)
    agreement.check_mark(epoch, epoch.leader)


def _find_lacked(agreement: Agreement, epoch: Epoch, member: Member) -> Iterator[str]:
    """Find files of logs that the member lacks because the leader lacked them, too.

    The leader has got them back since, from other members: through this process, or through another
    one that noticed the loss. Former members are asked, too.
    """
    lost: dict[str, dict[Member, set[str]]] = {}
    others = [one for one in epoch.in_sync if one != epoch.leader]
    with Listings([*others, *may_be_asked(epoch), epoch.leader, member]) as listings:
        add = partial(add_listing, listings, agreement, epoch, counts=_is_framed)
        for one in others:
            with suppress(MemberFailed):
                add(one)
        first_of_former(epoch, partial(add, within_s=time_for(epoch)))
        for one in (epoch.leader, member):
            add(one)
        for name, _ in listings.lacked_by(member):
            holders = listings.sizes_of(name)
            if epoch.leader in holders:
                yield name
                continue
            folder, _, last = name.rpartition("/")
            for one in holders:
                lost.setdefault(folder, {}).setdefault(one, set()).add(last)
    for folder, having in lost.items():
        theirs = set().union(*having.values())
        there = bring_back_lost(agreement, epoch, folder, (), having)
        yield from (f"{folder}/{last}" for last in sorted(theirs & there))


def _is_framed(listed: tuple[str, int]) -> bool:
    return names.is_framed(listed[0])


def _named_now(epoch: Epoch, inside: Iterable[str], named: NamedFiles) -> dict[str, set[str]]:
    """The files that must exist, by topic, as its log names them now; without placed data."""
    return {
        topic: {*filterfalse(partial(is_placed, epoch), named(topic))}
        for topic in (*sorted(inside), STORE)
    }


def _give_back_lost(
    agreement: Agreement,
    epoch: Epoch,
    there: AbstractSet[str],
    needed: Mapping[str, set[str]],
    is_sound: IsSound,
    named: NamedFiles,
) -> set[str]:
    """Give the leader files that it has lost; returns those that it has got since the listing.

    A file is lost if the leader lacks it while a log names it, both before and after: so nobody has
    deleted it. If the log no longer names a file after it was copied, the file is deleted again,
    since a deletion may have come in between.

    ``needed`` are the files that must exist, by topic, read before the listing, which shows
    ``there``. ``named`` returns those that must exist now.
    """
    give = partial(_give_back, agreement, epoch, is_sound)
    given: set[str] = set()
    for topic, wanted in needed.items():
        found, tried = wanted - there, set[str]()
        while found:
            lost = _lacked_by_leader(agreement, epoch, found)
            given |= found - lost  # by another process, which does not know who joins here
            lost.intersection_update(named(topic))
            if not lost:
                break
            tried |= lost
            _round(agreement, [partial(give, name) for name in sorted(lost)])
            now = {*filterfalse(partial(is_placed, epoch), named(topic))}
            _delete(agreement, epoch, epoch.leader, lost - now)
            given |= lost & now
            # A manifest that is back tells of more.
            tells_more = any(name.split("/")[2:3] == ["manifests"] for name in lost)
            found = now - there - tried if tells_more else set()
    return given


def _lacked_by_leader(agreement: Agreement, epoch: Epoch, some: AbstractSet[str]) -> set[str]:
    """Those of some objects that the leader lacks now."""

    def lacks(name: str) -> bool:
        try:
            agreement.ask(epoch, epoch.leader, lambda storage: storage.size(name))
        except ObjectNotFound:
            return True
        return False

    in_order = sorted(some)
    ask = partial(_patiently, agreement)
    judged = agreement.controller.storage.gather(
        partial(ask, partial(lacks, name)) for name in in_order
    )
    return {name for name, is_lacked in zip(in_order, judged, strict=True) if is_lacked}


def _lacked_by(
    agreement: Agreement, epoch: Epoch, member: Member, some: AbstractSet[str]
) -> set[str]:
    """Those of some objects that a new listing of a member does not show."""
    left = {*some}
    for portion in portions(agreement, epoch, member, "") if left else ():
        left.difference_update(name for name, _ in portion)
    return left


def _delete(agreement: Agreement, epoch: Epoch, member: Member, some: Iterable[str]) -> None:
    if doomed := sorted(some):
        _patiently(
            agreement,
            lambda: agreement.ask(epoch, member, lambda storage: storage.delete(doomed)),
        )


def _give_back(agreement: Agreement, epoch: Epoch, is_sound: IsSound, name: str) -> None:
    """Give the leader an object that has one writer, from any member; does nothing if it has it."""
    for member in (*epoch.members, *by_last_in_sync(epoch)):
        try:
            size = partial(agreement.ask, epoch, member, within_s=time_for(epoch))
            size(lambda storage: storage.size(name))
        except ObjectNotFound:
            continue
        except MemberFailed:
            if member in epoch.members:
                raise
            continue
        if member != epoch.leader:
            agreement.check_mark(epoch, epoch.leader)
            with suppress(ObjectNotFound):  # it was deleted meanwhile
                source = sound_source(agreement, epoch, name, member, is_sound)
                copy_between(agreement, epoch, source, epoch.leader, name)
        return


def _copy(
    agreement: Agreement,
    epoch: Epoch,
    member: Member,
    is_sound: IsSound,
    named: NamedFiles,
    kept: Kept,
) -> tuple[int, int, int, int]:
    """Copy the leader's objects, then delete those that the leader no longer has.

    Returns how many were copied, their bytes, how many were kept, and their bytes.
    """
    copied: set[str] = set()
    missed: set[str] = set()
    sizes = []
    kept_sizes = []

    def copy(name: str, holders: Sequence[tuple[Member, int]]) -> None:
        if (size_bytes := kept.keep(name, holders)) is not None:
            kept_sizes.append(size_bytes)
            copied.add(name)
            return
        try:
            source = source_of(agreement, epoch, name)
            agreement.ask(epoch, source, lambda storage: storage.confirm(name))
            if names.is_framed(name):
                data = bytes_to_join_with(agreement, epoch, name)
                put_at(agreement, epoch, member, name, data)
                sizes.append(len(data))
            else:
                sizes.append(copy_sound(agreement, epoch, name, source, member, is_sound))
        except ObjectNotFound:
            missed.add(name)
        else:
            copied.add(name)
            missed.discard(name)

    waiting = []
    for name, _ in _asked(agreement, epoch):
        if member in targets(epoch, name):
            waiting.append(partial(copy, name, kept.holders(name)))
        if len(waiting) == _AT_ONCE:
            _round(agreement, waiting)
            waiting = []
            _check_joins(agreement, member)
    _round(agreement, waiting)
    # Last, since the leader may lose more meanwhile.
    _round(agreement, [partial(copy, name, ()) for name in _find_lacked(agreement, epoch, member)])
    # A deletion begins at the leader: an object listed there now is deleted here too, if it ever
    # is. Data that is moved meanwhile may be seen nowhere: if it comes back, vacuum deletes it.
    paths = (name.split("/") for name in copied)
    inside = {path[1] for path in paths if path[0] == names.TOPICS and path[2:]}
    needed = _named_now(epoch, inside, named)
    there = {name for name, _ in _asked(agreement, epoch)}
    _check_missed(epoch, missed & there)
    given = _give_back_lost(agreement, epoch, there, needed, is_sound, named)
    # What the leader has got meanwhile it may have got back. Writers give it to this one, too.
    more = there.intersection(chain.from_iterable(needed.values())) - copied
    back = given | _lacked_by(agreement, epoch, member, more)
    _round(agreement, [partial(copy, name, kept.holders(name)) for name in sorted(back)])
    gone = (copied - there - given) | _lacked_by_leader(agreement, epoch, back)
    # What the leader has lost since it was copied nobody has deleted.
    framed = [*filter(names.is_framed, gone)]
    gone -= _patiently(agreement, lambda: lost_by_leader(agreement, epoch, framed))
    _delete(agreement, epoch, member, (name for name in gone if not is_placed(epoch, name)))
    return len(sizes), sum(sizes), len(kept_sizes), sum(kept_sizes)


def _check_joins(agreement: Agreement, member: Member) -> None:
    """Raise NotEnoughReplicas if a member is no longer joining."""
    epoch = agreement.refresh()
    if member not in epoch.joining:
        raise NotEnoughReplicas(f"{member} is not joining any more, as of epoch {epoch.number}")


def _check_missed(epoch: Epoch, missed: set[str]) -> None:
    """Raise NotEnoughReplicas if objects that still exist were missed, as on an unmounted disk."""
    if missed:
        raise NotEnoughReplicas(
            f"{len(missed)} objects that {epoch.leader} has were not found when they were to be "
            f"copied, such as {min(missed)}: try again"
        )


def _asked(agreement: Agreement, epoch: Epoch) -> list[tuple[str, int]]:
    return _patiently(
        agreement,
        lambda: agreement.ask(epoch, epoch.leader, lambda _: list(_listing(agreement, epoch))),
    )


def _round(agreement: Agreement, calls: list[partial[None]]) -> None:
    agreement.controller.storage.gather(partial(_patiently, agreement, one) for one in calls)


def _patiently(agreement: Agreement, call: Callable[[], T]) -> T:
    """Retry a failing call for as long as a member may fail before it leaves the set."""
    clock = agreement.clock
    began_s = clock.monotonic_s()
    while True:
        try:
            return call()
        except MemberFailed:
            if clock.monotonic_s() - began_s > agreement.epoch().lag_s:
                raise
            clock.sleep(_PAUSE_S * (0.5 + clock.jitter()))


def _finish(agreement: Agreement, epoch: Epoch, member: Member) -> Epoch:
    """Put the member in sync, by a further epoch of the same leader; returns that epoch."""
    since = epoch.joining[member]
    while True:
        newest = agreement.refresh()
        who = agreement.proposer(f"{member} has copied everything")
        proposed = joined(newest, member, since, epoch.leader_since, who)
        if proposed is None:
            why = f"the leader has changed, or {member} was put out, while it copied: try again"
            led = newest.leader_since != epoch.leader_since  # perhaps by the same one again
            if led and {*epoch.in_sync} <= {*newest.in_sync}:
                raise _HandedOver(why)
            raise NotEnoughReplicas(why)
        if agreement.propose(proposed):
            return proposed
