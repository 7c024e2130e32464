"""Compares roots in sync: finds missing and damaged objects, and repairs them.

Differences in listings are checked again, at the leader last. A deletion begins there, so an object
that the leader still has was not deleted when a follower was asked. Nothing is concluded under an
epoch that has passed.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from itertools import chain, filterfalse, islice
from threading import Lock
from typing import Final, Literal, TypeAlias

from txnlog import names
from txnlog.errors import NotEnoughReplicas, ObjectNotFound, StorageError
from txnlog.replication.roots import same_bytes, soundness
from txnlog.replication.roots.agreement import Agreement, MemberFailed
from txnlog.replication.roots.copies import CHUNK_BYTES, copy_between, help_out
from txnlog.replication.roots.epochs import (
    Epoch,
    Member,
    by_last_in_sync,
    member_of,
    root_of,
)
from txnlog.replication.roots.former_members import is_of_log, sound_of_former
from txnlog.replication.roots.listings import BEHIND_SLASH, Listings, add_listing
from txnlog.replication.roots.placement import is_placed, keepers, places
from txnlog.replication.roots.replicated_storage import ReplicatedStorage
from txnlog.replication.roots.slowness import time_for
from txnlog.replication.roots.soundness import (
    STORE,
    IsSound,
    NamedFiles,
    Unnamed,
    judged,
    names_nothing,
    unnames_nothing,
)
from txnlog.replication.roots.trim import OpenNote, noted, read_notes
from txnlog.storage.base import CannotReplace, Storage

Kind: TypeAlias = Literal["missing", "damaged", "differs", "extra", "undecided"]
"""Programs read these words: only add new ones."""

_AT_ONCE: Final = 64
_NOT_SHARED: Final = "replicas: %s leaves, and may alone have some of %s: %s"
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReplicaDifference:
    """An object that is not the same on all roots in sync.

    ``kind`` is

    * 'missing': ``members`` lack it.
    * 'damaged': their copies cannot be read, or do not match their checksums.
    * 'differs': their copies are not those of the majority, and no checksum says which are right.
    * 'undecided': as with 'differs', but there is no majority.
    * 'extra': the leader lacks it; or some members do, and no log names it. It is being put or
      deleted, was left by an upload or a deletion, or was never acknowledged.

    ``size_bytes`` is the size of the largest copy, 0 if there is none. ``is_repairable``: a repair
    can help, as a root has it intact. ``is_repaired``: the object is the same everywhere now.
    """

    name: str
    kind: Kind
    members: tuple[str, ...]
    size_bytes: int
    detail: str
    is_repairable: bool = False
    is_repaired: bool = False


@dataclass(frozen=True, slots=True)
class _Copy:
    size_bytes: int
    digest: bytes | None
    why_unread: str = ""


def verify(
    storage: ReplicatedStorage,
    is_sound: IsSound,
    *,
    with_contents: bool,
    repair: bool,
    look: Callable[[Epoch, Listings], object] = lambda *_: None,
    choose: Callable[[Listings, Epoch], Iterable[Iterator[str]]] | None = None,
    named: NamedFiles = names_nothing,
    unnamed: Unnamed = unnames_nothing,
) -> Iterator[ReplicaDifference]:
    """Compare the members that are in sync, name by name.

    ``is_sound`` judges objects that have no checksum of their own. ``look`` is given the listings,
    for callers that read more from them. ``choose`` returns the names to compare, by default all:
    several iterators, each of which is read when those before it are done. ``named`` returns the
    files that a topic's log names, some of which may be lost. ``unnamed`` returns those of some
    missing files that no log names.

    Raises StorageError: the controller fails, or a member.
    """
    agreement = storage.agreement
    epoch = agreement.refresh()
    is_sound = partial(judged, is_sound)
    judge = _Judge(agreement, is_sound, named, unnamed, with_contents=with_contents)
    mend = _Repair(storage, is_sound) if repair else None
    with Listings(epoch.in_sync) as listings:
        for member in epoch.in_sync:
            try:
                add_listing(listings, agreement, epoch, member)
            except MemberFailed as failed:
                raise _fails(epoch, failed) from failed
        look(epoch, listings)
        choose = choose or partial(_doubtful, named=named, with_contents=with_contents)
        for doubtful in choose(listings, epoch):
            while some := list(islice(doubtful, _AT_ONCE)):
                # Whoever reads the logs, by which data is judged, heals what is damaged there.
                for data in (False, True):
                    found = judge.look([name for name in some if names.is_unique(name) is data])
                    if mend is not None:
                        repairs = [partial(mend.repaired, one) for one in found]
                        found = agreement.controller.storage.gather(repairs)
                    yield from found


def check_again(
    agreement: Agreement, doubtful: Iterable[str], unnamed: Unnamed
) -> Iterator[ReplicaDifference]:
    """Check names again: yields those that a member in sync lacks, or has in another size.

    Raises NotEnoughReplicas: a member fails. StorageError: the controller does.
    """
    untold = partial(judged, _untold)
    judge = _Judge(agreement, untold, names_nothing, unnamed, with_contents=False)
    found = iter(doubtful)
    while some := list(islice(found, _AT_ONCE)):
        yield from judge.look(some)


def _untold(storage: Storage, name: str) -> None:
    """Judges no data: none is read here."""


def share_logs(storage: ReplicatedStorage, leaving: str) -> bool:
    """Give all members in sync the files of logs that a leaving root has, if it answers.

    Listing a log does that; failures are logged as warnings. Returns whether the root has other
    bytes than the leader, or, if it leads itself, than the next leader. For that, all files of logs
    that both have are read.

    Raises StorageError: the controller fails.
    """
    agreement = storage.agreement
    epoch = agreement.refresh()
    member = member_of(epoch, leaving)
    if member not in epoch.in_sync or not agreement.answers(epoch, member):
        return False  # it may be out because it does not answer: nothing is to be had of it
    members = [one for one in epoch.in_sync if one == member or agreement.answers(epoch, one)]
    with Listings(members) as listings:
        try:
            for one in members:
                add_listing(
                    *(listings, agreement, epoch, one),
                    counts=lambda listed: names.is_framed(listed[0]),
                )
        except MemberFailed as failed:
            _logger.warning(_NOT_SHARED, leaving, "all logs", failed)
            return False
        folders = {name.rpartition("/")[0] for name in listings.differing()}
        for folder in sorted(filter(names.is_log_folder, folders)):
            try:
                storage.list_names(folder)
            except NotEnoughReplicas as error:
                _logger.warning(_NOT_SHARED, leaving, folder, error)
        stay = (one for one in epoch.members if one in members and one != member)
        other = next(stay, member)
        differs = partial(_differs, agreement, epoch, member, other)
        logs = filter(is_of_log, listings.names())
        while some := list(islice(logs, _AT_ONCE)):
            if any(agreement.controller.storage.gather(partial(differs, name) for name in some)):
                return True
    return False


def _differs(agreement: Agreement, epoch: Epoch, one: Member, other: Member, name: str) -> bool:
    """Whether two members have different bytes of an object, both of them intact."""
    ask = partial(agreement.ask, epoch, within_s=time_for(epoch))
    try:
        data, others = (ask(member, lambda storage: storage.get(name)) for member in (one, other))
    except ObjectNotFound:
        return False
    except MemberFailed as error:
        _logger.warning(_NOT_SHARED, one, name, error)
        return False
    is_whole = same_bytes.is_sound(name, data) and same_bytes.is_sound(name, others)
    return bool(is_whole) and not same_bytes.says_the_same(name, data, others)


def _doubtful(
    listings: Listings, epoch: Epoch, named: NamedFiles, *, with_contents: bool
) -> Iterable[Iterator[str]]:
    """The names to check, data last, so that logs are compared before they are read.

    Placed data need not be at every member: only its existing copies are compared.
    """

    def compared() -> Iterator[str]:
        return chain(listings.differing(), listings.alike() if with_contents else ())

    is_data = partial(is_placed, epoch) if places(epoch) else names.is_unique
    data = compared()
    if places(epoch):
        data = listings.names() if with_contents else listings.uneven()
    listed = chain(filterfalse(is_data, compared()), filter(is_data, data))
    return listed, list_lost(listings, named)


def list_lost(
    listings: Listings, named: NamedFiles, after: str = "", last: str | None = None
) -> Iterator[str]:
    """Find names that must exist, but are in no listing; those behind ``after``, up to ``last``.

    Compare the logs before: a read heals files of logs that are damaged.
    """

    def is_within(name: str) -> bool:
        return after < name and (last is None or name <= last)

    for topic in (*listings.folders(names.TOPICS), STORE):
        first, end = f"{names.TOPICS}/{topic}/", f"{names.TOPICS}/{topic}{BEHIND_SLASH}"
        if topic == STORE or (end > after and (last is None or first <= last)):
            for name in sorted(named(topic)):
                if is_within(name) and not listings.sizes_of(name):
                    yield name


def _fails(epoch: Epoch, failed: MemberFailed) -> StorageError:
    where = epoch.roots[root_of(failed.member)].url
    return NotEnoughReplicas(f"{failed.member} at {where} cannot be compared: {failed}")


def _digest(storage: Storage, name: str, size_bytes: int) -> bytes:
    digest = blake2b(digest_size=16)
    for start in range(0, size_bytes, CHUNK_BYTES):
        digest.update(storage.get_range(name, start, min(start + CHUNK_BYTES, size_bytes)))
    return digest.digest()


def _has_one_writer(name: str) -> bool:
    """Whether any intact copy is right: the object is data, a manifest, or the store's own file."""
    return names.is_unique(name) or name == names.STORE_FILE


_MOST_REPLACED_BYTES: Final = 64 << 20
_STAYS: Final = (
    "the root alone has other objects whole: `add` another root, which gets all, and verify again"
)
_NOWHERE: Final = "its bytes are as they were written at no root in sync"


class _Judge:
    """Checks names again, and reports what is wrong with each."""

    def __init__(
        self,
        agreement: Agreement,
        is_sound: IsSound,
        named: NamedFiles,
        unnamed: Unnamed,
        *,
        with_contents: bool,
    ) -> None:
        self._agreement = agreement
        self._is_sound = is_sound
        self._named = named
        self._unnamed = unnamed
        self._with_contents = with_contents

    def look(self, some: list[str]) -> list[ReplicaDifference]:
        """Check names under an epoch that is still the newest afterwards; returns what is wrong."""
        agreement = self._agreement
        while some:
            epoch = agreement.refresh()
            nowhere: list[str] = []
            try:
                looks = [partial(self._compare, epoch, name, nowhere) for name in some]
                found = agreement.controller.storage.gather(looks)
                # A disk that is not mounted any more lacks everything.
                for member in epoch.in_sync:
                    agreement.check_mark(epoch, member)
            except MemberFailed as failed:
                if agreement.is_newest(epoch):
                    raise _fails(epoch, failed) from failed
                continue
            if agreement.is_newest(epoch):
                lost = (self._lost(epoch, name) for name in self._needed(nowhere))
                return [*self._by_log(epoch, [one for one in found if one is not None]), *lost]
        return []

    def _by_log(
        self, epoch: Epoch, found: Sequence[ReplicaDifference]
    ) -> Iterator[ReplicaDifference]:
        """Turn missing files that no log names into 'extra' ones.

        The logs are read after the files were missed: a file that is placed later is at all
        members.
        """
        missing = [one.name for one in found if one.kind == "missing" and names.is_unique(one.name)]
        unnamed = {
            name for topic, some in _by_topic(missing) for name in self._unnamed(topic, some)
        }
        for one in found:
            if one.name not in unnamed:
                yield one
                continue
            there = tuple(member for member in epoch.in_sync if member not in one.members)
            why = (
                f"{_named(there)} {_has(there)} it, and no entry of the log places it (any more): "
                "an upload or a deletion is under way, or was cut short"
            )
            yield replace(one, kind="extra", members=there, detail=why, is_repairable=False)

    def _lost(self, epoch: Epoch, name: str) -> ReplicaDifference:
        """Make the finding for a file that must exist, and that no member in sync has.

        It is missing at the members where it belongs.
        """
        members = tuple(keepers(epoch, name)) if is_placed(epoch, name) else epoch.in_sync
        told, is_whole = self._of_former(epoch, name)
        why = f"no root in sync has it; {told}"
        return ReplicaDifference(name, "missing", members, 0, why, is_whole)

    def _of_former(self, epoch: Epoch, name: str) -> tuple[str, bool]:
        """Advice about an object that no member in sync has intact, and whether a repair can help.

        Raises MemberFailed.
        """
        whole, unseen = [], []
        for member in by_last_in_sync(epoch):
            try:
                if _is_sound_at(self._agreement, epoch, member, name, self._is_sound):
                    whole.append(member)
            except MemberFailed:
                unseen.append(member)
            except ObjectNotFound:
                if not self._agreement.answers(epoch, member):
                    unseen.append(member)  # its disk is not mounted
        if whole and _has_one_writer(name):
            return f"{_named(whole)} {_has(whole)} it whole, from when it was put out", True
        if whole and sound_of_former(self._agreement, epoch, name) is not None:
            if len(epoch.in_sync) > 1:
                return f"{_named(whole)} {_has(whole)} it whole, from when it was put out", True
            return (
                f"{_named(whole)} has it whole: `txnlog replicas add` a root, which gets it",
                False,
            )
        if unseen:
            roots = ", ".join(sorted({*map(root_of, unseen)}))
            return f"{roots} may have it whole: mount its disk, or start its server", False
        return "restore it from a backup", False

    def _needed(self, some: Sequence[str]) -> Iterator[str]:
        """Those of some names that no member has, but that must exist; the others were deleted."""
        yield from (name for name in some if name == names.STORE_FILE)
        for topic, lacked in _by_topic(filter(names.is_unique, some)):
            yield from sorted({*self._named(topic)}.intersection(lacked))

    def _copy(self, epoch: Epoch, member: Member, name: str) -> _Copy | None:
        def read(storage: Storage) -> _Copy:
            size_bytes = storage.size(name)
            if names.is_closing_mark(name) and same_bytes.is_sound(name, storage.get(name)):
                return _Copy(size_bytes, None)  # its name alone tells
            digest = _digest(storage, name, size_bytes) if self._with_contents else None
            return _Copy(size_bytes, digest)

        ask = partial(self._agreement.ask, epoch, member)
        with suppress(ObjectNotFound):  # also if it is deleted after it could not be read
            with suppress(MemberFailed):
                return ask(read)
            try:
                return ask(read)
            except MemberFailed as failed:
                _check_unread(self._agreement, epoch, failed)
                return _Copy(ask(lambda storage: storage.size(name)), None, str(failed))
        return None

    def _compare(self, epoch: Epoch, name: str, nowhere: list[str]) -> ReplicaDifference | None:
        """What is wrong with an object, if anything; one that is lost is added to ``nowhere``."""
        leaders_last = [*(one for one in epoch.in_sync if one != epoch.leader), epoch.leader]
        copies = {member: self._copy(epoch, member, name) for member in leaders_last}
        leaders = copies[epoch.leader]
        there = {member: copy for member, copy in copies.items() if copy is not None}
        lacking = tuple(member for member in copies if member not in there)
        # Of data that need not be everywhere reassigning counts the copies.
        if not there:
            nowhere.append(name)
            return None
        size_bytes = max(copy.size_bytes for copy in there.values())
        if len({*there.values()}) == 1 and (not lacking or is_placed(epoch, name)):
            return self._alike(epoch, name, size_bytes, there)
        if len({*there.values()}) > 1:
            try:
                return self._differing(epoch, name, there, size_bytes)
            except ObjectNotFound:
                return None  # it was deleted meanwhile
        if leaders is None and soundness.lost_by_leader(self._agreement, epoch, [name]):
            why = f"the leader has lost it, and {_named(there)} still has it"
            return ReplicaDifference(name, "missing", (epoch.leader,), size_bytes, why, True)
        if leaders is None and not _has_one_writer(name):
            why = (
                "the leader lacks it: it is being deleted, was left by a deletion that was cut "
                "short, or was never acknowledged"
            )
            return ReplicaDifference(name, "extra", tuple(there), size_bytes, why)
        why = f"{_named(there)} {_has(there)} it"
        if leaders is None and name != names.STORE_FILE:
            why += "; a deletion that is under way looks the same, and then nothing refers to it"
        return ReplicaDifference(name, "missing", lacking, size_bytes, why, True)

    def _alike(
        self, epoch: Epoch, name: str, size_bytes: int, there: dict[Member, _Copy]
    ) -> ReplicaDifference | None:
        """Judge copies that are equal: all may be damaged, and then a joining root would copy that.

        Raises MemberFailed.
        """
        # To judge an index takes its whole segment, and readers do so at each entry.
        if not self._with_contents or (len(there) > 1 and names.is_accelerator(name)):
            return None
        with suppress(ObjectNotFound):  # deleted meanwhile
            # A segment is judged with its index of aborted transactions, which is at its root.
            if all(self._judged(epoch, member, name) is False for member in there):
                return self._damaged_everywhere(epoch, name, there, size_bytes)
        return None

    def _damaged_everywhere(
        self, epoch: Epoch, name: str, there: dict[Member, _Copy], size_bytes: int
    ) -> ReplicaDifference:
        told, is_whole = self._of_former(epoch, name)
        unread = {copy.why_unread: None for copy in there.values() if copy.why_unread}
        why = f"{'; '.join(unread) or _NOWHERE}; {told}"
        is_whole = is_whole and not (unread and not names.is_unique(name))
        return ReplicaDifference(name, "damaged", tuple(there), size_bytes, why, is_whole)

    def _judged(self, epoch: Epoch, member: Member, name: str) -> bool | None:
        sound = _is_sound_at(self._agreement, epoch, member, name, self._is_sound)
        if sound is False:  # or it is gone, which looks like damage
            self._agreement.ask(epoch, member, lambda one: one.size(name))
        return sound

    def _differing(
        self, epoch: Epoch, name: str, there: dict[Member, _Copy], size_bytes: int
    ) -> ReplicaDifference:
        """Tell which of differing copies are wrong: by their checksums, else by the majority.

        Raises MemberFailed, ObjectNotFound.
        """
        agreement = self._agreement
        sound = {
            member: not copy.why_unread
            and _is_sound_at(agreement, epoch, member, name, self._is_sound)
            for member, copy in there.items()
        }
        damaged = tuple(member for member in there if sound[member] is False)
        good = {member: copy for member, copy in there.items() if sound[member]}
        if damaged and not good and len(damaged) == len(there):
            return self._damaged_everywhere(epoch, name, there, size_bytes)
        if damaged and len({*good.values()}) <= 1:
            right = good or {m: copy for m, copy in there.items() if m not in damaged}
            is_repairable = bool(good) or self._of_former(epoch, name)[1]
            why = f"its bytes are not as they were written; those of {_named(right)} are"
            if unread := {copy.why_unread: None for copy in there.values() if copy.why_unread}:
                why = f"{'; '.join(unread)}; {_named(right)} {_has(right)} it whole"
                if not names.is_unique(name):
                    # What cannot be read now may be another one, which somebody has won with.
                    roots = ", ".join(map(root_of, damaged))
                    why += f": `txnlog replicas remove` {roots}, and `add` it again"
                    is_repairable = False
            return ReplicaDifference(name, "damaged", damaged, size_bytes, why, is_repairable)
        counted = Counter(good.values() or there.values())
        copy, count = counted.most_common(1)[0]
        is_majority = count > len(there) / 2
        if names.is_unique(name) and len(good) == len(there):
            # A shared file's parts that were let go of, say: any copy will do, if all have one.
            if not is_majority:
                copy = there.get(epoch.leader, copy)
            others = tuple(member for member in there if there[member] != copy)
            right = {member: copy for member in there if there[member] == copy}
            why = f"not what {_named(right)} {_has(right)}, though all that is named is whole"
            return ReplicaDifference(name, "damaged", others, size_bytes, why, True)
        others = tuple(member for member in there if there[member] != copy)
        if names.is_unique(name) and not good:
            why = (
                "no log that can be read names it, so nothing tells whose is right: if none does, "
                "nobody needs it, and it is deleted in time"
            )
            found = others if is_majority else tuple(there)
            kind: Kind = "differs" if is_majority else "undecided"
            return ReplicaDifference(name, kind, found, size_bytes, why)
        if not is_majority:
            why = (
                "most of them do not have it alike, and no checksum tells whose is right: look at "
                "each. `elect` the root that is right, `remove` the others, and `add` them again"
            )
            return ReplicaDifference(name, "undecided", tuple(there), size_bytes, why)
        right = {member: copy for member in there if there[member] == copy}
        first = "" if epoch.leader in right else f"`elect` {_named(right)} first, then "
        why = (
            f"not what {_named(right)} have, which are the majority: {first}`txnlog replicas "
            f"remove` {', '.join(map(root_of, others))} and `add` it again"
        )
        return ReplicaDifference(name, "differs", others, size_bytes, why)


def _check_unread(agreement: Agreement, epoch: Epoch, failed: MemberFailed) -> None:
    """Raise a failure to read one object if the member is slow, or answers nothing else."""
    if failed.is_slow or not agreement.answers(epoch, failed.member):
        raise failed


def _is_sound_at(
    agreement: Agreement, epoch: Epoch, member: Member, name: str, is_sound: IsSound
) -> bool | None:
    """Whether a member's copy is intact; one that cannot be read is not. Raises MemberFailed."""
    try:
        return agreement.ask(epoch, member, lambda one: is_sound(one, name))
    except MemberFailed as failed:
        _check_unread(agreement, epoch, failed)
        return False


def _by_topic(some: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Group the names of data files and manifests by topic."""
    found: dict[str, list[str]] = {}
    for name in some:
        found.setdefault(name.split("/")[1], []).append(name)
    yield from found.items()


def _named(members: Iterable[Member]) -> str:
    return ", ".join(members)


def _has(members: Collection[Member]) -> str:
    return "has" if len(members) == 1 else "have"


class _Repair:
    """Gives members the objects that they lack, without deciding anything.

    Data files, manifests and the store's own file have one writer each, so any process may copy
    them: at worst nothing refers to the copy. Of anything else a follower gets the leader's object,
    as it would from a reader.
    """

    def __init__(self, storage: ReplicatedStorage, is_sound: IsSound) -> None:
        self._storage = storage
        self._agreement = storage.agreement
        self._is_sound = is_sound
        self._replacing = Lock()

    def repaired(self, found: ReplicaDifference) -> ReplicaDifference:
        """Repair what was found, if possible; returns it with the outcome. Raises StorageError."""
        epoch = self._agreement.refresh()
        members = [member for member in found.members if member in epoch.in_sync]
        if not found.is_repairable or len(members) < len(found.members):
            return found
        try:
            lacks_a_copy = found.kind == "missing" and _has_one_writer(found.name)
            if lacks_a_copy or names.is_unique(found.name):
                done = self._copy(epoch, found, members)
            else:
                if epoch.leader in members:
                    self._storage.list_names(found.name.rpartition("/")[0])  # it is given back
                done = self._help(found.name)
                is_left = {(one, found.name) for one in members} & self._agreement.left_damaged
                if done and is_left:
                    why = f"{found.detail}; its storage cannot replace it, and {_STAYS}"
                    return replace(found, detail=why)
        except MemberFailed as failed:
            raise _fails(epoch, failed) from failed
        except ObjectNotFound:
            return found  # it was deleted meanwhile
        how = "it was repaired" if done else "no copy of it is sound: nothing was changed"
        return replace(found, detail=f"{found.detail}; {how}", is_repaired=done)

    def _help(self, name: str) -> bool:
        """Repair an object as readers do: replace it, or have another member lead.

        Returns whether it is intact now.
        """

        def step(epoch: Epoch) -> bool:
            data = soundness.leaders_bytes(self._agreement, epoch, name)
            if same_bytes.is_sound(name, data) is False and soundness.take_from_former(
                self._agreement, epoch, name
            ):
                data = soundness.leaders_bytes(self._agreement, epoch, name)  # another one leads
            help_out(self._agreement, epoch, name, data, epoch.members[1:])
            return same_bytes.is_sound(name, data) is not False

        return self._agreement.settle(step)

    def _copy(self, epoch: Epoch, found: ReplicaDifference, members: list[Member]) -> bool:
        if not is_placed(epoch, found.name):
            return self._copy_from(epoch, found, members, epoch.in_sync)
        # A process may be about to delete the others' copies, since these have it.
        doomed = {member: [found.name] for member in members}
        with noted(self._agreement, epoch, doomed) as note:
            notes = read_notes(self._agreement, epoch, epoch.in_sync, but=note.path)
            others = sorted(epoch.in_sync, key=lambda member: found.name in notes[member])
            if found.kind == "missing":
                others = [member for member in others if found.name not in notes[member]]
            return self._copy_from(epoch, found, members, others, note)

    def _copy_from(
        self,
        epoch: Epoch,
        found: ReplicaDifference,
        members: list[Member],
        others: Sequence[Member],
        note: OpenNote | None = None,
    ) -> bool:
        name, agreement = found.name, self._agreement
        candidates = (one for one in others if one not in members)
        # What is out and whole is as it was written: of data that is enough.
        source = next(
            (
                one
                for one in (*candidates, *by_last_in_sync(epoch))
                if self._may_be_copied(epoch, one, found)
            ),
            None,
        )
        if source is None or (is_placed(epoch, name) and not agreement.is_newest(epoch)):
            return False
        for member in members:
            agreement.check_mark(epoch, member)
            if found.kind == "damaged":
                if self._replace(epoch, source, member, found):
                    continue
                # A deletion that is not answered may come late.
                if note is not None:
                    note.is_used = True
                self._delete(epoch, member, name)
                if note is not None:
                    note.is_used = False
            copy_between(agreement, epoch, source, member, name)
        return True

    def _replace(
        self, epoch: Epoch, source: Member, member: Member, found: ReplicaDifference
    ) -> bool:
        """Replace a damaged object in one step; False if it is too large, or the storage cannot."""
        if found.size_bytes > _MOST_REPLACED_BYTES:
            return False
        ask = partial(self._agreement.ask, epoch)
        try:
            with self._replacing:  # which is held in memory
                data = ask(source, lambda storage: storage.get(found.name))
                ask(member, lambda storage: storage.replace(found.name, data))
        except MemberFailed as failed:
            if isinstance(failed.error, CannotReplace):
                return False
            raise
        return True

    def _delete(self, epoch: Epoch, member: Member, name: str) -> None:
        try:
            self._agreement.ask(epoch, member, lambda storage: storage.delete([name]))
        except MemberFailed as failed:
            if not is_placed(epoch, name):  # it may come at any time, and delete what is put there
                self._agreement.put_out(epoch, member, str(failed), may_lose=False)
            raise

    def _may_be_copied(self, epoch: Epoch, member: Member, found: ReplicaDifference) -> bool:
        try:
            sound = _is_sound_at(self._agreement, epoch, member, found.name, self._is_sound)
        except ObjectNotFound:
            return False
        except MemberFailed:
            if member in epoch.in_sync:
                raise
            return False
        # What replaces another copy, or is out, is known to be right.
        if found.kind == "damaged" or member not in epoch.in_sync:
            return sound is True
        return sound is not False
