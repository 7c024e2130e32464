"""Copies data files to where they belong, and deletes them where they do not.

First every root in sync gets the files that it should have but lacks, from others in sync, or from
old incarnations of roots that are out. Only then, and under the same epoch, surplus copies are
deleted. Repeating this does no harm, so a killed process only leaves work to do. Other processes
write, compact and clean up meanwhile. A file that they delete while it is copied may come back, but
then nothing refers to it. Files that only old incarnations have are copied, unless they were
replaced since.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, groupby, islice
from typing import ClassVar, Final, TypeAlias

import msgspec

from txnlog import names
from txnlog.admin.storage_step import StorageStep
from txnlog.errors import InvalidOption, NotEnoughReplicas, ObjectNotFound, TxnlogError
from txnlog.replication.roots.agreement import Agreement, MemberFailed
from txnlog.replication.roots.copies import copy_between
from txnlog.replication.roots.epochs import (
    Epoch,
    Left,
    Member,
    by_last_in_sync,
    member_of,
    root_of,
)
from txnlog.replication.roots.listings import Listings
from txnlog.replication.roots.placed_data import IsReplaced, add_data, sound_source
from txnlog.replication.roots.placement import copies, keepers, places, topic_of
from txnlog.replication.roots.soundness import IsSound
from txnlog.replication.roots.trim import Noted, read_notes, trim

Sizes: TypeAlias = Mapping[Member, int]

_AT_ONCE: Final = 64
_TRIES: Final = 20


@dataclass(frozen=True, slots=True)
class Reassigned(StorageStep):
    """A topic's data files that were copied to roots and deleted at others, or would be.

    ``lacking`` counts files that still have fewer copies than ``replication.factor`` says.
    """

    done: ClassVar = "data moved"
    why: ClassVar = "it belongs elsewhere"

    topic: str
    copied: int = 0
    copied_bytes: int = 0
    deleted: int = 0
    deleted_bytes: int = 0
    lacking: int = 0


class _Passed(Exception):
    """There is a newer epoch."""


def reassign(
    agreement: Agreement,
    topics: Collection[str] | None = None,
    is_sound: IsSound = lambda *_: None,
    *,
    is_replaced: IsReplaced = lambda *_: False,
    without: str | None = None,
    deletes: bool = True,
    dry_run: bool = False,
) -> list[Reassigned]:
    """See :meth:`txnlog.replication.Replicas.reassign`.

    ``is_sound`` judges copies: surplus ones stay if another is damaged. ``is_replaced`` says of a
    file that only old incarnations have whether it need not be copied. ``without`` names a root in
    sync that counts as out. Unless it ``deletes``, surplus copies stay.
    """
    done: dict[str, Reassigned] = {}
    for _ in range(_TRIES):
        epoch = agreement.refresh()
        if not places(epoch):
            raise InvalidOption(
                "every root has everything: `txnlog replicas config replication.factor=2` or "
                "replication.factor.<topic>=2 comes first"
            )
        one = _Pass(agreement, epoch, _as_if_out(epoch, without), is_sound, is_replaced, done)
        one.deletes, one.dry_run = deletes, dry_run
        try:
            one.run(topics)
        except _Passed:
            continue
        except MemberFailed as failed:
            if not agreement.is_newest(epoch):
                continue
            raise _fails(epoch, failed) from failed
        return sorted(done.values(), key=lambda one: one.topic)
    raise NotEnoughReplicas("the set of roots kept changing: call it again")


def copy_lacking(agreement: Agreement, some: Sequence[tuple[str, Sizes]], is_sound: IsSound) -> int:
    """Copy data files that too few members in sync have; returns how many have enough copies then.

    Each is given with the members that have it.

    Raises NotEnoughReplicas: a member fails. StorageError: the controller does.
    """
    epoch, done = agreement.refresh(), dict[str, Reassigned]()
    one = _Pass(agreement, epoch, epoch, is_sound, lambda *_: False, done)
    try:
        one.copy(some)
    except MemberFailed as failed:
        raise _fails(epoch, failed) from failed
    lacking = sum(topic.lacking for topic in done.values())
    return len(some) - lacking if agreement.is_newest(epoch) else 0


def _fails(epoch: Epoch, failed: MemberFailed) -> NotEnoughReplicas:
    where = epoch.roots[root_of(failed.member)].url
    return NotEnoughReplicas(
        f"{failed.member} at {where} failed while data was reassigned: {failed}"
    )


def _as_if_out(epoch: Epoch, root: str | None) -> Epoch:
    member = member_of(epoch, root) if root is not None else None
    if member not in epoch.in_sync or len(epoch.in_sync) == 1:
        return epoch
    rest = tuple(one for one in epoch.in_sync if one != member)
    left = {**epoch.left, member: Left(epoch.number, 0)}
    return msgspec.structs.replace(epoch, in_sync=rest, left=left)


class _Pass:
    """One attempt at reassigning everything, under one epoch."""

    def __init__(
        self,
        agreement: Agreement,
        epoch: Epoch,
        placing: Epoch,
        is_sound: IsSound,
        is_replaced: IsReplaced,
        done: dict[str, Reassigned],
    ) -> None:
        self._agreement = agreement
        self._epoch = epoch
        self._placing = placing
        self._is_sound = is_sound
        self._is_replaced = is_replaced
        self._done = done
        self._notes: Noted = {}
        self.deletes = True
        self.dry_run = False

    def run(self, topics: Collection[str] | None) -> None:
        """Copy and delete. Raises _Passed, MemberFailed, StorageError."""
        placing = self._placing
        folders = [names.TOPICS] if topics is None else [f"{names.topic_folder(t)}" for t in topics]
        for topic, was in self._done.items():
            self._done[topic] = replace(was, lacking=0)
        with Listings([*placing.in_sync, *placing.left]) as listings:
            self._read_notes()
            for folder in folders:
                self._list(listings, folder)
            self._move_each(filter(self._is_needed, listings.holders()))
        if not self._agreement.is_newest(self._epoch):
            raise _Passed

    def copy(self, files: Iterable[tuple[str, Sizes]]) -> None:
        """Copy files to members that should have them; these are given with the members that do.

        Raises MemberFailed.
        """
        self.deletes = False
        self._read_notes()
        self._move_each(files)

    def _read_notes(self) -> None:
        self._notes = read_notes(self._agreement, self._placing, self._placing.in_sync)

    def _move_each(self, files: Iterable[tuple[str, Sizes]]) -> None:
        # A segment is judged with its index of aborted transactions.
        by_segment = groupby(files, lambda one: one[0].rpartition(".")[0])
        segments = (tuple(found) for _, found in by_segment)
        while some := [*chain.from_iterable(islice(segments, _AT_ONCE))]:
            self._move(some)

    def _list(self, listings: Listings, folder: str) -> None:
        for member in self._placing.in_sync:
            add_data(listings, self._agreement, self._placing, member, folder)
        for member in by_last_in_sync(self._placing):
            with suppress(MemberFailed, TxnlogError):  # it is out
                add_data(listings, self._agreement, self._placing, member, folder)

    def _is_needed(self, found: tuple[str, Sizes]) -> bool:
        """Whether a file is needed: it was not deleted while an old incarnation with it was out."""
        name, sizes = found
        if not sizes.keys().isdisjoint(self._epoch.in_sync):
            return True
        return not any(self._is_replaced_at(member, name) for member in sizes)

    def _is_replaced_at(self, member: Member, name: str) -> bool:
        ask = partial(self._agreement.ask, self._placing, member)
        with suppress(MemberFailed, ObjectNotFound):  # it is out
            return ask(lambda storage: self._is_replaced(storage, name))
        return False

    def _note(self, name: str, **more: int) -> None:
        topic = topic_of(name)
        assert topic is not None
        was = self._done.get(topic, Reassigned(topic))
        self._done[topic] = replace(was, **{key: getattr(was, key) + n for key, n in more.items()})

    def _move(self, some: Sequence[tuple[str, Sizes]]) -> None:
        in_sync = set(self._placing.in_sync)
        tasks: list[tuple[str, Sizes, Member]] = []
        wanted: dict[str, list[Member]] = {}
        for name, sizes in some:
            doomed = [member for member in in_sync if name in self._notes[member]]
            wanted[name] = keepers(self._placing, name, doomed)
            tasks += [(name, sizes, member) for member in wanted[name] if member not in sizes]
        lacking = self._copy_all(tasks)
        surplus = {}
        for name, sizes in some:
            if name in lacking or len(wanted[name]) < copies(self._placing, name):
                self._note(name, lacking=1)
                continue
            over = in_sync.intersection(sizes).difference(wanted[name])
            # If copies differ in size one is damaged: verification finds out which.
            if self.deletes and over and len({*sizes.values()}) == 1:
                surplus[name] = sorted(over)
        self._trim(surplus, dict(some))

    def _copy_all(self, tasks: Sequence[tuple[str, Sizes, Member]]) -> set[str]:
        """Copy files to members; returns the names of those that could not be copied."""
        if self.dry_run:
            copied: list[int | None] = [max(sizes.values()) for _, sizes, _ in tasks]
        else:
            calls = [partial(self._copy, *task) for task in tasks]
            copied = self._agreement.controller.storage.gather(calls)
        lacking = set()
        for (name, *_), size in zip(tasks, copied, strict=True):
            if size is None:
                lacking.add(name)
            else:
                self._note(name, copied=1, copied_bytes=size)
        return lacking

    def _copy(self, name: str, sizes: Sizes, target: Member) -> int | None:
        """Copy a file to a member; returns its bytes, or None if no member that has it answers."""
        in_sync = self._placing.in_sync
        # One that is shorter than others is damaged.
        for source in sorted(sizes, key=lambda one: (-sizes[one], one not in in_sync)):
            at = self._agreement, self._placing
            try:
                sound = sound_source(*at, name, source, self._is_sound)
                return copy_between(*at, sound, target, name)
            except ObjectNotFound:
                continue
            except MemberFailed as failed:
                if failed.member == target:
                    raise
        return None

    def _trim(self, surplus: Mapping[str, Sequence[Member]], sizes: Mapping[str, Sizes]) -> None:
        if not surplus:
            return
        chosen = [*surplus]
        if not self.dry_run:
            chosen = trim(self._agreement, self._epoch, surplus, self._is_sound)
            if not chosen and not self._agreement.is_newest(self._epoch):
                raise _Passed
        for name in chosen:
            gone = [sizes[name][member] for member in surplus[name]]
            self._note(name, deleted=len(gone), deleted_bytes=sum(gone))
