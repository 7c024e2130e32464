"""Finds and deletes old incarnations, from before a root left the in-sync set.

Only an unclean election could make one a member again. So an epoch first removes it from those that
such an election may elect. Then its mark is deleted, then the rest. No later epoch can name it,
since incarnations do not come back.

If the controller is lost later, the old incarnation may have the only note of the newest epochs. So
before it goes, a member in sync must have noted a later epoch than it has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Final

from txnlog import names
from txnlog.errors import (
    InvalidOption,
    NotEnoughReplicas,
    ObjectNotFound,
    StoreExists,
    TxnlogError,
)
from txnlog.replication import root_names
from txnlog.replication.roots import same_bytes
from txnlog.replication.roots.agreement import Agreement, MemberFailed
from txnlog.replication.roots.epoch_notes import list_notes, note_epoch
from txnlog.replication.roots.epochs import (
    Epoch,
    Member,
    forgotten,
    given_up,
    incarnation_of,
    member_of,
    root_of,
)
from txnlog.replication.roots.former_members import is_of_log
from txnlog.replication.roots.listings import Listings, add_listing
from txnlog.replication.roots.members import (
    MemberOpener,
    check_owner,
    find_mark,
    without_mark,
)
from txnlog.replication.roots.placed_data import IsReplaced
from txnlog.replication.roots.placement import is_placed, places
from txnlog.replication.roots.replicated_storage import ReplicatedStorage
from txnlog.replication.roots.slowness import time_for
from txnlog.replication.roots.soundness import CannotJudge, IsSound, list_framed, whole_alone
from txnlog.replication.roots.trim import read_notes
from txnlog.storage.base import Storage

_AT_ONCE: Final = 1000


@dataclass(frozen=True, slots=True)
class Forgotten:
    """An old incarnation that was deleted, or would be: how many objects, and their bytes."""

    member: str
    url: str
    objects: int
    bytes: int


def old_incarnations(storage: ReplicatedStorage, epoch: Epoch, root: str) -> tuple[Member, ...]:
    """A root's old incarnations that still have objects; oldest first.

    Raises StorageError: the root fails.
    """
    if not isinstance(storage.open_member, MemberOpener):
        return ()
    known = epoch.roots[root]
    within = storage.open_member.root(known.url)
    numbers = [root_names.parse_incarnation_folder(folder) for folder in within.list_folders("")]
    there = [f"{root}-{number}" for number in sorted(one for one in numbers if one is not None)]
    old = [one for one in there if not _why_not(epoch, one)]
    # A disk keeps the empty folder.
    folders = {one: root_names.incarnation_folder(incarnation_of(one)) for one in old}
    return tuple(one for one in old if next(iter(within.list_all(folders[one])), None))


def _why_not(epoch: Epoch, member: Member) -> str | None:
    known = epoch.roots.get(root_of(member))
    if known is None or not member.rpartition("-")[2].isdecimal():
        return f"{member} is not an incarnation of {', '.join(epoch.roots)}"
    if member in epoch.members:
        return f"{member} is a member of epoch {epoch.number}"
    if incarnation_of(member) >= known.incarnations:
        return f"{member} is about to join, or was never named: it is not in epoch {epoch.number}"
    return None


def forget(
    storage: ReplicatedStorage,
    member: Member,
    is_sound: IsSound,
    *,
    is_replaced: IsReplaced = lambda *_: False,
    lost: bool = False,
    dry_run: bool = False,
) -> Forgotten:
    """See :meth:`txnlog.replication.Replicas.forget`.

    ``lost``: only the epochs forget the incarnation, and nothing is deleted. ``is_sound`` judges
    data files: the incarnation stays while it has the only intact copy of one, unless
    ``is_replaced`` says that nobody needs that file.
    """
    agreement = storage.agreement
    epoch = agreement.refresh()
    if why := _why_not(epoch, member):
        raise InvalidOption(why)
    url = epoch.roots[root_of(member)].url
    if lost:
        return _give_up(storage, epoch, member, dry_run=dry_run)
    look = partial(check_root, storage, epoch, root_of(member))
    agreement.slowness.ask(root_of(member), look, time_for(epoch))
    try:
        only = _whole_alone(storage, epoch, member)
        _check_whole(member, [*filter(is_of_log, only)])  # logs tell what data is needed
        _check_data(agreement, epoch, member, is_sound, is_replaced)
        _check_whole(member, only)
        if not dry_run:
            _keep_epoch(agreement, epoch, member)
            if member in epoch.left:
                who = agreement.proposer(f"an operator forgets {member}")
                agreement.propose_alone(forgotten(epoch, member, who))
            _check_out(agreement.refresh(), member)
        done = agreement.ask(
            epoch,
            member,
            lambda found: delete_incarnation(
                found, root_names.member_mark(member, epoch.store), dry_run=dry_run
            ),
        )
    except MemberFailed as failed:
        raise failed.error from failed
    if not dry_run:
        remove_folder(agreement, epoch, member)
    if done is None:
        raise InvalidOption(f"there is nothing of {member} at {url}")
    return Forgotten(member, url, *done)


def _keep_epoch(agreement: Agreement, epoch: Epoch, member: Member) -> None:
    """Let members in sync note the newest epoch, all if possible, before an incarnation goes.

    Raises MemberFailed: none has noted a later epoch than the incarnation has. StorageError: a
    member has noted a later epoch than the controller has.
    """
    failures = _note(agreement, epoch)
    if None in failures:
        return
    ask = partial(agreement.ask, epoch, call=list_notes, within_s=time_for(epoch))
    newest = {one: max(ask(one), default=-1) for one in (member, *epoch.in_sync)}
    if newest.pop(member) > max(newest.values()):  # a disk that is full can be read
        raise next(failed for failed in failures if failed is not None)


def _note(agreement: Agreement, epoch: Epoch) -> list[MemberFailed | None]:
    """Let members in sync note an epoch; returns how each has failed, or None."""

    def keep(one: Member) -> MemberFailed | None:
        try:
            note_epoch(agreement, epoch, [one])
        except MemberFailed as failed:
            return failed
        return None

    return agreement.controller.storage.gather(partial(keep, one) for one in epoch.in_sync)


def _give_up(
    storage: ReplicatedStorage, epoch: Epoch, member: Member, *, dry_run: bool
) -> Forgotten:
    """Give up an incarnation that does not answer: nobody waits for its data any more."""
    agreement = storage.agreement
    with suppress(MemberFailed):
        agreement.check_mark(epoch, member)
        raise InvalidOption(f"{member} answers: it is not lost, and need not be given up")
    if member not in epoch.left:
        raise InvalidOption(f"{member} was let go of before, or never was in sync")
    if not dry_run:
        who = agreement.proposer(f"an operator gives {member} up as lost")
        agreement.propose_alone(given_up(epoch, member, who))
        _note(agreement, agreement.refresh())  # who reads without the controller knows it, too
    return Forgotten(member, epoch.roots[root_of(member)].url, 0, 0)


def _check_data(
    agreement: Agreement,
    epoch: Epoch,
    member: Member,
    is_sound: IsSound,
    is_replaced: IsReplaced,
) -> None:
    """Check that members in sync have the incarnation's data, and intact.

    An incarnation that was never in sync has only copies, and nobody has counted on it. Data that
    the root's present member has was judged when it joined; of other data one copy in sync is read.

    Raises InvalidOption: only the incarnation has some data, or may have it.
    """
    present = member_of(epoch, root_of(member))
    if member not in epoch.left:
        return
    notes = read_notes(agreement, epoch, epoch.in_sync) if places(epoch) else {}

    only, whole, untold = _Files(), _Files(), _Files()

    def judge(name: str, sizes: Mapping[Member, int]) -> _Files | None:
        """The group of files to which this one is added; None if it may be deleted."""
        # A copy that a process is about to delete does not count.
        others = [one for one in epoch.in_sync if one in sizes and name not in notes.get(one, ())]
        if member not in sizes:
            return None
        if not others and is_placed(epoch, name):
            return None if goes(name) else only
        if present in others or names.is_accelerator(name):
            return None
        # Without others it was deleted since, and no log names it; or they have lost it.
        try:
            is_needed = (
                not any(map(partial(may_have, name), others)) and has(name) and not goes(name)
            )
        except CannotJudge as error:
            reasons.append(error)
            return untold
        return whole if is_needed else None

    def goes(name: str) -> bool:
        with suppress(ObjectNotFound):
            return agreement.ask(epoch, member, lambda at: is_replaced(at, name))
        return True

    def may_have(name: str, one: Member) -> bool:
        with suppress(ObjectNotFound):
            return agreement.ask(epoch, one, lambda at: is_sound(at, name)) is not False
        return False

    def has(name: str) -> bool:
        with suppress(ObjectNotFound):
            return bool(agreement.ask(epoch, member, lambda at: is_sound(at, name)))
        return False

    reasons: list[CannotJudge] = []
    with Listings([member, *epoch.in_sync]) as listings:
        for one in (member, *epoch.in_sync):
            add_listing(
                *(listings, agreement, epoch, one, names.TOPICS),
                counts=lambda listed: names.is_unique(listed[0]),
            )
        found = iter(listings.holders())
        while some := list(islice(found, _AT_ONCE)):
            judged = agreement.controller.storage.gather(partial(judge, *one) for one in some)
            for (name, sizes), files in zip(some, judged, strict=True):
                if files is not None:
                    files.add(name, sizes[member])
    if only.count:
        raise InvalidOption(
            f"no root in sync has {only} that {member} has: `txnlog replicas reassign` copies them "
            "first"
        )
    if whole.count:
        raise InvalidOption(
            f"only {member} has {whole} as they were written, such as {whole.first}: "
            "`txnlog replicas verify --deep --repair` copies them first; one that no root in sync "
            "has at all must be put there by hand"
        )
    if untold.count:
        raise InvalidOption(
            f"{member} may have the only whole copies of {untold}, such as {untold.first}: "
            f"{reasons[0]}"
        )


class _Files:
    """Counts data files and their bytes."""

    def __init__(self) -> None:
        self.count = self._bytes = 0
        self.first = ""

    def __str__(self) -> str:
        return f"{self.count} data files of {self._bytes} bytes"

    def add(self, name: str, size_bytes: int) -> None:
        self.first = self.first or name
        self.count, self._bytes = self.count + 1, self._bytes + size_bytes


def _whole_alone(storage: ReplicatedStorage, epoch: Epoch, member: Member) -> list[str]:
    """Files of logs, and the store's own file, that only the incarnation has intact.

    Deleted files do not count. Raises InvalidOption: the incarnation alone has a log.
    """
    if member not in epoch.left:
        return []
    agreement = storage.agreement

    def has_store_file(one: Member) -> bool:
        with suppress(ObjectNotFound):
            data = agreement.ask(epoch, one, lambda storage: storage.get(names.STORE_FILE))
            return bool(same_bytes.is_sound(names.STORE_FILE, data))
        return False

    framed = [*chain.from_iterable(list_framed(agreement, epoch, member))]
    only = whole_alone(agreement, epoch, member, framed)
    if not any(map(has_store_file, epoch.in_sync)) and has_store_file(member):
        only.append(names.STORE_FILE)
    if not only and (lost := _lost_logs(storage, framed)):
        raise InvalidOption(
            f"{member} has {len(lost)} logs of which no root in sync has anything, such as "
            f"{lost[0]}: look at it there"
        )
    return only


def _check_whole(member: Member, only: Sequence[str]) -> None:
    if only:
        raise InvalidOption(
            f"{member} has {len(only)} objects of logs whole that no root in sync has whole, such "
            f"as {only[0]}: a root that joins (`txnlog replicas add`) takes from it what certainly "
            "was acknowledged. Look at the rest there: if nobody needs it, delete that folder, and "
            f"`txnlog replicas forget {member} --lost`"
        )


def _lost_logs(storage: ReplicatedStorage, framed: Sequence[str]) -> list[str]:
    """Find logs, among those of the ``framed`` files, that no member in sync has: lost ones.

    Only the log of an expired transactional id is ever deleted entirely, and leaves a copy.
    """
    folders = sorted({name.rpartition("/")[0] for name in framed})
    logs = [folder for folder in folders if names.is_log_folder(folder)]
    listed = storage.gather(partial(storage.list_names, folder) for folder in logs)
    return [
        log
        for log, found in zip(logs, listed, strict=True)
        if not (found or _is_gone(storage, log))
    ]


def _is_gone(storage: ReplicatedStorage, log: str) -> bool:
    kind, _, name = log.partition("/")
    return kind == names.TRANSACTIONS and bool(storage.list_names(f"{names.EXPIRED}/{name}"))


def _check_out(epoch: Epoch, member: Member) -> None:
    if member in epoch.members or member in epoch.left:
        raise NotEnoughReplicas(f"{member} is named by epoch {epoch.number}: it stays")


def check_root(storage: ReplicatedStorage, epoch: Epoch, root: str) -> None:
    """Check that a root answers and is this store's, by its mark.

    Raises InvalidOption: the root has no mark. StoreExists: it is another root, or of another
    store. StorageError.
    """
    if not isinstance(storage.open_member, MemberOpener):
        return
    found = storage.open_member.root(epoch.roots[root].url)
    where = f"{found.url}/{root_names.REPLICA_FILE}"
    try:
        mark = find_mark(found)
    except ObjectNotFound as error:
        raise InvalidOption(f"{where} is not there: is the root's disk mounted?") from error
    check_owner(found, mark, epoch, root)


def remove_folder(agreement: Agreement, epoch: Epoch, member: Member) -> None:
    """Remove the empty folder of a deleted incarnation, where the storage keeps such folders.

    Else each look at the root would ask it, too. Failures are ignored.
    """
    opener = agreement.open_member
    if isinstance(opener, MemberOpener):
        with suppress(TxnlogError):
            root = opener.root(epoch.roots[root_of(member)].url)
            folder = root_names.incarnation_folder(incarnation_of(member))
            gone = (f"{names.TEMPORARY}/none", names.STORE_FILE)  # with the last file goes a folder
            agreement.slowness.bounding(root, epoch).delete([f"{folder}/{one}" for one in gone])


def delete_incarnation(
    storage: Storage, own_mark: str, *, dry_run: bool = False
) -> tuple[int, int] | None:
    """Delete everything in a member's folder, its marks first; returns the objects and their bytes.

    No later epoch may be able to name the member. None if there was nothing.

    Raises StoreExists: the folder has marks, but not the member's own. StorageError.
    """
    inner = without_mark(storage)
    marks = inner.list_names(root_names.MEMBER_MARKS)
    found_any = bool(marks)
    owners = [mark for mark in marks if not root_names.is_trim_note(mark)]
    if owners and own_mark.rpartition("/")[2] not in owners:
        raise StoreExists(f"{storage.url} is another store's: has the root's disk been exchanged?")
    if not dry_run:
        inner.delete([f"{root_names.MEMBER_MARKS}/{mark}" for mark in marks])
        inner.abort_uploads(inner.list_unfinished_uploads())
    count = size_bytes = 0
    listed = inner.list_all("")
    while some := list(islice(listed, _AT_ONCE)):
        found_any = True
        counted = [size for name, size in some if root_names.is_of_store(name)]
        count, size_bytes = count + len(counted), size_bytes + sum(counted)
        if not dry_run:
            inner.delete([name for name, _ in some])
    return (count, size_bytes) if found_any else None
