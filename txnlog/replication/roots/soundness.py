"""Judges whether an object is as it was written, by its bytes alone; and repairs it if it is not.

Where two members have different bytes, the checksum decides, and not who leads. "Damage" in
docs/REPLICATION.md has the rules. They are safe for these reasons:

* A follower's damaged object is replaced by the leader's once all other members have that. The
  damaged object keeps the name taken until then, so nobody can ever put a third object there. A
  process that sleeps before it replaces the object does no harm.
* The leader's damaged object stays, and another member leads. A writer may have won the name with
  the object that is damaged now.
* A numbered object that the leader has lost, and a member in sync still has, was acknowledged or is
  in doubt: by the order of deletions, nobody is deleting it. It is put back at the leader before a
  process acts on its absence: takes its number, aborts a transaction whose marker is missing, or
  takes the name for one that was never freed. If a process was faster, its object decides.
* The leader may lose an object, and then accept another one under the same name. If all others in
  sync have the lost object, the leader leaves the set: its new object was never acknowledged, or
  they would have it.
* An object that is damaged at all members in sync stays, so that its name stays taken.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final, Self, TypeAlias, TypeVar

import msgspec

from txnlog import names
from txnlog.errors import ObjectNotFound
from txnlog.log.chapters import first_of_widest, is_closed, is_widened, marks_below
from txnlog.names import LogFile
from txnlog.replication import root_names
from txnlog.replication.roots.agreement import Agreement, MemberFailed
from txnlog.replication.roots.epochs import Epoch, Member, elected, may_be_asked, of_this_history
from txnlog.replication.roots.former_members import (
    contradicts,
    is_of_log,
    sound_of_former,
    was_decided,
)
from txnlog.replication.roots.listings import portions
from txnlog.replication.roots.same_bytes import Damaged, Diverged, is_sound, says_the_same
from txnlog.replication.roots.slowness import MOST_LAGS, time_for
from txnlog.state.proposal import MOST_TOGETHER
from txnlog.storage.base import CannotReplace, Storage

T = TypeVar("T")

_AT_ONCE: Final = 64

_logger = logging.getLogger(__name__)


IsSound: TypeAlias = Callable[[Storage, str], bool | None]
"""Whether a storage's data file is intact; None if no log names it. Raises CannotJudge."""
NamedFiles: TypeAlias = Callable[[str], Collection[str]]
"""The data files and manifests that a topic's log names now; of ``STORE`` what each store has."""
Unnamed: TypeAlias = Callable[[str, Collection[str]], Collection[str]]
"""Those of some data files and manifests of a topic that its log does not name now."""
STORE: Final = ""


class CannotJudge(Exception):
    """A data file cannot be judged, since the log that names it cannot be read.

    Such a file is copied anyway, and is not deleted.
    """


def judged(judge: IsSound, storage: Storage, name: str) -> bool | None:
    """Whether an object is intact, for copying it; None if that cannot be known.

    An object that has a checksum of its own is judged by that, others by ``judge``.
    """
    if names.is_framed(name):
        return is_sound(name, storage.get(name))
    with suppress(CannotJudge):
        return judge(storage, name)
    return None


def names_nothing(_: str) -> Collection[str]:
    """Names no files, for callers that read no logs."""
    return ()


def unnames_nothing(_: str, __: Collection[str]) -> Collection[str]:
    """Returns no files, for callers that read no logs: any file may be named."""
    return ()


def leaders_bytes(agreement: Agreement, epoch: Epoch, name: str) -> bytes:
    """The leader's bytes of an object; damaged ones only if no member in sync has it intact.

    Raises ObjectNotFound. MemberFailed: the leader fails; or its object is damaged, or hangs, and
    another member is to lead.
    """

    def get(storage: Storage) -> tuple[Member, bytes]:
        return epoch.leader, storage.get(name)

    # Its size is not known: on a slow link a sound leader is not to lose its place for that.
    within_s = MOST_LAGS * epoch.lag_s

    def ask_another() -> list[tuple[Member, bytes]]:
        # An observer waits: it may hang for this process alone.
        found = None
        if not agreement.observes:
            found = _whole_elsewhere(agreement, epoch, name, within_s)
        return [] if found is None else [found]

    member, data = agreement.ask_late(epoch, epoch.leader, get, ask_another, within_s)
    how = "hangs"
    if member == epoch.leader:
        if is_sound(name, data) is not False:
            return data
        found = _whole_elsewhere(agreement, epoch, name)
        if found is None:
            return data
        member, how = found[0], "is damaged"
    why = f"{name} {how} at the leader {epoch.leader}; {member} has it whole"
    lead = partial(_hand_over, agreement, epoch, member, why)
    raise MemberFailed(epoch.leader, Damaged(why), remedy=lead)


def sound_bytes(agreement: Agreement, epoch: Epoch, name: str) -> bytes:
    """The bytes to copy of an object: if the leader's are damaged, another member's.

    Nobody need lead because of that.
    """
    data = _get(agreement, epoch, epoch.leader, name)
    if is_sound(name, data) is not False:
        return data
    found = _whole_elsewhere(agreement, epoch, name)
    return data if found is None else found[1]


def bytes_to_join_with(agreement: Agreement, epoch: Epoch, name: str) -> bytes:
    """The bytes to give to a joining member; a former member's if all in sync are damaged."""
    data = sound_bytes(agreement, epoch, name)
    if is_sound(name, data) is not False:
        return data
    return sound_of_former(agreement, epoch, name) or data


def take_from_former(agreement: Agreement, epoch: Epoch, name: str) -> bool:
    """Repair an object that is damaged at all in sync, at one follower, from a former member.

    The damaged objects keep the name taken, and no process was told of other bytes. So a process
    that sleeps does no harm. Returns whether the object was repaired.

    Raises ObjectNotFound, MemberFailed.
    """
    data = sound_of_former(agreement, epoch, name)
    follower = next((one for one in epoch.in_sync if one != epoch.leader), None)
    if data is None or follower is None or not agreement.is_newest(epoch):
        return False
    agreement.check_mark(epoch, follower)
    _get(agreement, epoch, follower, name)  # it is there: nobody has deleted it
    try:
        _ask(agreement, epoch, follower, lambda one: one.replace(name, data))
    except MemberFailed as failed:
        if isinstance(failed.error, CannotReplace):
            return False
        raise
    _logger.warning("replicas: %s was damaged everywhere, and is as a former member has it", name)
    return True


def list_framed(agreement: Agreement, epoch: Epoch, member: Member) -> Iterator[list[str]]:
    """The names of a member's objects that have their own checksums, in portions.

    Raises MemberFailed.
    """
    for some in portions(agreement, epoch, member, ""):
        listed = (name for name, _ in some if root_names.is_of_store(name))
        yield [name for name in listed if names.is_framed(name)]


def whole_alone(
    agreement: Agreement, epoch: Epoch, member: Member, some: Sequence[str]
) -> list[str]:
    """Those of some objects that only this member has intact; deleted ones are not among them.

    All are read at the leader. If the leader has decided all that a former member was given, an
    entry of a log counts even if the leader has other bytes: then the leader had lost it, and given
    its number away. Raises MemberFailed.
    """
    others = tuple(one for one in epoch.in_sync if one != member)
    without = msgspec.structs.replace(epoch, in_sync=others)
    is_former = member in of_this_history(epoch)
    decides = is_former and not agreement.had_other_leader(epoch, member)
    gather = agreement.controller.storage.gather

    def is_alone(name: str) -> bool | None:
        """None: the leader lacks the object."""
        try:
            data = sound_bytes(agreement, without, name)
        except ObjectNotFound:
            return None
        is_entry = is_of_log(name) and name.endswith(f".{LogFile.ENTRY.value}")
        if is_sound(name, data) is not False and not (decides and is_entry):
            return False
        with suppress(ObjectNotFound):
            theirs = _get(agreement, epoch, member, name)
            return theirs != data and bool(is_sound(name, theirs))
        return False

    def is_left(name: str) -> bool:
        if _whole_elsewhere(agreement, without, name) is not None:
            return False
        with suppress(ObjectNotFound):
            return bool(is_sound(name, _get(agreement, epoch, member, name)))
        return False

    judged = dict(zip(some, gather(partial(is_alone, name) for name in some), strict=True))
    # It is deleted at the leader first, or lost. What is lost with another history is announced.
    lacked = [name for name in some if judged[name] is None]
    asked = lacked if is_former or member in epoch.in_sync else []
    lost = sorted(lost_by_leader(agreement, epoch, asked))
    judged |= zip(lost, gather(partial(is_left, name) for name in lost), strict=True)
    return [name for name in some if judged[name]]


def _whole_elsewhere(
    agreement: Agreement, epoch: Epoch, name: str, within_s: float | None = None
) -> tuple[Member, bytes] | None:
    """Find a follower in sync that has an object intact; returns it and the bytes, or None.

    Each is waited for ``within_s`` seconds, since the object may hang there, too; if None, while it
    shows its mark.

    Raises MemberFailed.
    """

    def get(member: Member) -> bytes:
        if within_s is None:
            return _get(agreement, epoch, member, name)
        return agreement.ask_beside(epoch, member, lambda one: one.get(name), within_s)

    failed: MemberFailed | None = None
    for member in reversed(epoch.in_sync):  # who came last has copied only what was whole
        if member == epoch.leader:
            continue
        try:
            found = get(member)
        except ObjectNotFound:
            continue
        except MemberFailed as error:
            failed = error
            continue
        if is_sound(name, found):
            return member, found
    if failed is not None:
        raise failed  # that one may have it
    return None


def bring_back_lost(
    agreement: Agreement,
    epoch: Epoch,
    folder: str,
    listed: Sequence[str],
    others: Mapping[Member, AbstractSet[str]],
) -> set[str]:
    """Give the leader files of a log, or manifest lists, that it has lost and others have.

    ``listed`` are the leader's names in the folder, ``others`` those of other members; former
    members give only what was decided. Returns the leader's names by now, from the first one that
    it lacked on: other processes may have put more.

    Raises MemberFailed.
    """
    numbered = _Numbered.of(folder)
    if numbered is None:
        return set()
    former = may_be_asked(epoch) if names.is_log_folder(folder) else []
    asked = [member for member in (*epoch.in_sync, *former) if member in others]
    theirs = {
        name for member in asked for name in others[member] - {*listed} if numbered.counts(name)
    }
    if not theirs:
        return set()
    there = _of_leader(agreement, epoch, numbered, theirs)
    found = {name for name in there if name >= min(theirs)}

    def may_give(member: Member, last: str) -> bool:
        return member in epoch.in_sync or (
            not contradicts(last, there)
            and was_decided(agreement, epoch, member, f"{folder}/{last}")
        )

    def bring_back(last: str) -> str | None:
        having = (member for member in asked if last in others[member] and may_give(member, last))
        done = any(_bring_back(agreement, epoch, one, f"{folder}/{last}") for one in having)
        return last if done else None

    # The newest first: meanwhile there are gaps, and no end that is too early.
    lost = _lost(agreement, epoch, numbered, sorted(theirs - found, reverse=True), there)
    while some := list(islice(lost, _AT_ONCE)):
        done = agreement.controller.storage.gather(partial(bring_back, last) for last in some)
        found.update(last for last in done if last is not None)
    return found


def bring_back_mark(agreement: Agreement, epoch: Epoch, name: str) -> bool:
    """Give the leader a closing mark that it has lost; False if no other in sync has it.

    Listings of a log find other lost files, but a closing mark is looked for by its name. If the
    mark stayed lost, an entry under a freed name would pass for the original one.

    Raises MemberFailed.
    """
    if not names.is_closing_mark(name):
        return False
    folder, _, last = name.rpartition("/")
    others = {}
    for member in epoch.in_sync:
        if member == epoch.leader:
            continue
        try:
            _ask(agreement, epoch, member, lambda storage: storage.size(name))
        except ObjectNotFound:
            continue
        except MemberFailed:
            if agreement.observes:
                continue
            raise
        others[member] = {last}
    if not others:
        return False
    agreement.check_mark(epoch, epoch.leader)
    return last in bring_back_lost(agreement, epoch, folder, (), others)


@dataclass(frozen=True, slots=True)
class _Numbered:
    """A folder of numbered objects, and the kinds that allow lower numbers to be deleted.

    In the log of a topic or a group, checkpoints are deleted below another one; entries below a
    checkpoint if their chapter is closed, and their markers after them. In an id's log, states
    below the newest one are deleted; of manifest lists those below the newest. Only a dead id's log
    is deleted as a whole, and leaves a copy of its last state. Closing marks are deleted with that,
    or when there is a wider one.
    """

    folder: str
    kinds: frozenset[LogFile] | None
    """The kinds of files that count; None in a folder of manifest lists."""
    kept_from: LogFile | None

    @classmethod
    def of(cls, folder: str) -> Self | None:
        if folder.startswith(f"{names.TOPICS}/") and folder.endswith("/manifests"):
            return cls(folder, None, None)
        if folder.startswith((f"{names.TRANSACTIONS}/", f"{names.EXPIRED}/")):
            return cls(folder, frozenset([LogFile.ENTRY]), LogFile.ENTRY)
        if names.is_log_folder(folder):
            return cls(folder, frozenset(LogFile), LogFile.CHECKPOINT)
        return None

    @property
    def needs_marks(self) -> bool:
        """Whether entries are only deleted in closed chapters."""
        return self.kept_from is LogFile.CHECKPOINT

    def parse(self, name: str) -> tuple[int, LogFile | None] | None:
        if self.kinds is None:
            number = names.parse_manifest_list(name)
            return None if number is None else (number, None)
        found = names.parse_log_file(name)
        return found if found is not None and found[1] in self.kinds else None

    def is_mark(self, name: str) -> bool:
        return self.kinds is not None and names.parse_closing_mark(name) is not None

    def counts(self, name: str) -> bool:
        """Whether a name is of a numbered object or closing mark, which may have been lost."""
        return self.parse(name) is not None or self.is_mark(name)


def _lost(
    agreement: Agreement,
    epoch: Epoch,
    numbered: _Numbered,
    lacked: Sequence[str],
    there: Sequence[str],
) -> Iterator[str]:
    """Those of the ``lacked`` names that the leader has lost; the others were deleted.

    The files that the leader still has, ``there``, show which is which. Raises MemberFailed.
    """
    parsed = [found for found in map(numbered.parse, there) if found is not None]
    kept_from = max((at for at, kind in parsed if kind is numbered.kept_from), default=-1)
    entries = [at for at, kind in parsed if kind is LogFile.ENTRY]
    marks = [*filter(numbered.is_mark, there)]
    removed_end = -1
    if lacked and numbered.folder.startswith(f"{names.TRANSACTIONS}/"):
        copies = f"{names.EXPIRED}/{numbered.folder.partition('/')[2]}"
        listed = _ask(agreement, epoch, epoch.leader, lambda one: one.list_names(copies))
        removed = (found[0] for found in map(names.parse_log_file, listed) if found is not None)
        removed_end = max(removed, default=-1)
        kept_from = max(kept_from, removed_end)
    for name in lacked:
        if numbered.is_mark(name):
            if not (is_widened(name, marks) or marks_below([name], removed_end)):
                yield name
            continue
        number, kind = numbered.parse(name) or (-1, None)
        # A bundle's entries have no files but its first; their markers go after it.
        at = bisect_right(entries, number) - 1
        has_entry = at >= 0 and number - entries[at] < MOST_TOGETHER
        is_marker = kind in (LogFile.COMMIT, LogFile.ABORT)
        # That of the checkpoint, or of what it calls undecided, is needed.
        is_kept = kind is not LogFile.CHECKPOINT and numbered.needs_marks
        if (
            number > kept_from
            or (is_marker and has_entry)
            or (is_kept and not is_closed(number, marks))
        ):
            yield name


def _of_leader(
    agreement: Agreement, epoch: Epoch, numbered: _Numbered, lacked: Collection[str]
) -> list[str]:
    """List the leader's files from which it follows which of the ``lacked`` ones it has lost.

    The listing begins after these were found missing. So if they were deleted, it has the files
    that allowed that.
    """
    number = int(min(lacked)[: names.NUMBER_DIGITS])

    def list_from(first: int) -> list[str]:
        if numbered.needs_marks:
            first -= MOST_TOGETHER - 1  # a marker's bundle
        start_after = names.log_file_prefix(max(first, 0))
        return _ask(
            agreement, epoch, epoch.leader, lambda one: one.list_names(numbered.folder, start_after)
        )

    if not any(map(numbered.is_mark, lacked)):
        there = list_from(number)
        parsed = [found for found in map(numbered.parse, there) if found is not None]
        is_above = all(at < number for at, kind in parsed if kind is LogFile.CHECKPOINT)
        if is_above or not numbered.needs_marks:
            return there
    return list_from(first_of_widest(number))  # the marks tell, which may be far back


def lost_by_leader(agreement: Agreement, epoch: Epoch, some: Iterable[str]) -> set[str]:
    """Those of some names that the leader lacks and has lost: nobody has deleted them.

    Raises MemberFailed.
    """
    by_folder: dict[str, list[str]] = {}
    for name in some:
        folder, _, last = name.rpartition("/")
        by_folder.setdefault(folder, []).append(last)
    found = set()
    for folder, lacked in by_folder.items():
        numbered = _Numbered.of(folder)
        counted = [last for last in lacked if numbered is not None and numbered.counts(last)]
        if numbered is not None and counted:
            there = _of_leader(agreement, epoch, numbered, counted)
            lost = _lost(agreement, epoch, numbered, sorted({*counted} - {*there}), there)
            found |= {f"{folder}/{last}" for last in lost}
    return found


def _bring_back(agreement: Agreement, epoch: Epoch, member: Member, name: str) -> bool:
    try:
        data = _get(agreement, epoch, member, name)
    except ObjectNotFound:
        return False
    if not is_sound(name, data):
        return False
    _ask(agreement, epoch, epoch.leader, lambda one: one.put_if_absent(name, data))
    _logger.warning("replicas: the leader %s lacked %s, which %s has", epoch.leader, name, member)
    return True


def _get(agreement: Agreement, epoch: Epoch, member: Member, name: str) -> bytes:
    return agreement.ask_large(epoch, member, lambda storage: storage.get(name))


def _hand_over(agreement: Agreement, epoch: Epoch, heir: Member, why: str) -> bool:
    # If the epoch has passed, the next number is taken.
    return agreement.propose(elected(epoch, heir, agreement.proposer(why), keep=True))


def diverged_at(agreement: Agreement, epoch: Epoch, member: Member, name: str) -> MemberFailed:
    """Make the failure of a follower, which leaves the set, with other bytes than the leader.

    The follower's bytes are intact. If all others in sync have them, the leader leaves instead: it
    has lost that object, and given its name away.

    Raises MemberFailed: one of them fails.
    """
    failed = differs(epoch, member, name)
    if names.is_framed(name) and _gave_away(agreement, epoch, member, name):
        why = f"{failed}, and all others in sync have it: it has lost that, or never had it"
        return MemberFailed(epoch.leader, Diverged(why), useless=True)
    return failed


def differs(epoch: Epoch, member: Member, name: str) -> MemberFailed:
    """Make the failure of a follower whose object is not the leader's, when the leader is right."""
    error = Diverged(f"{name} is not what the leader {epoch.leader} has")
    return MemberFailed(member, error, useless=True)


def _gave_away(agreement: Agreement, epoch: Epoch, member: Member, name: str) -> bool:
    """Whether all members in sync except the leader have what this follower has.

    Then the leader's object was never acknowledged: the others would have it.
    """
    if member not in epoch.in_sync:
        return False
    try:
        found = {_get(agreement, epoch, one, name) for one in epoch.in_sync if one != epoch.leader}
    except ObjectNotFound:
        return False
    return len(found) == 1 and all(is_sound(name, data) for data in found)


def damaged_at(
    agreement: Agreement, epoch: Epoch, member: Member, name: str, data: bytes
) -> MemberFailed:
    """Make the failure of a follower with a damaged object; its remedy puts the leader's there."""
    error = Damaged(f"{name} is damaged at {member}")
    mend = partial(_mend, agreement, epoch, member, name, data)
    return MemberFailed(member, error, remedy=mend)


def _mend(agreement: Agreement, epoch: Epoch, member: Member, name: str, data: bytes) -> bool:
    """Replace a follower's damaged object by the leader's; returns whether to try the step again.

    Raises ObjectNotFound, MemberFailed.
    """
    for other in epoch.members:
        if other == member:
            continue
        try:
            found = _get(agreement, epoch, other, name)
        except ObjectNotFound:
            if other == epoch.leader:
                raise
            agreement.check_mark(epoch, other)
            _ask(agreement, epoch, other, lambda one: one.put_if_absent(name, data))
            return True  # and look again
        if says_the_same(name, found, data):
            continue
        if other == epoch.leader:
            return True  # another process has been there: the step tells
        if is_sound(name, found) is not False:
            raise diverged_at(agreement, epoch, other, name)
    _ask(agreement, epoch, epoch.leader, lambda one: one.confirm(name))
    if not agreement.is_newest(epoch):
        return True
    agreement.check_mark(epoch, member)
    try:
        _ask(agreement, epoch, member, lambda one: one.replace(name, data))
    except MemberFailed as failed:
        if isinstance(failed.error, CannotReplace):
            listed = list_framed(agreement, epoch, member) if member in epoch.in_sync else ()
            for some in listed:
                if alone := whole_alone(agreement, epoch, member, some):
                    _logger.warning("replicas: %s; it stays, and has %s alone", failed, alone[0])
                    agreement.left_damaged.add((member, name))
                    return True
            return agreement.put_out(epoch, member, f"{failed}; it is whole when it joins again")
        raise
    _logger.warning(
        "replicas: %s was damaged at %s, and is replaced by what others have", name, member
    )
    return True


def _ask(agreement: Agreement, epoch: Epoch, member: Member, call: Callable[[Storage], T]) -> T:
    return agreement.ask(epoch, member, call, within_s=time_for(epoch))
