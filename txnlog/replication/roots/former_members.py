"""Asks former members, which have left the set, for objects of logs: only for decided ones.

A former member may have entries that were never acknowledged, and whose numbers other entries have,
or will get. So the presence of an object there proves nothing, except in these cases:

* The member joined since the present leader was elected, or this leader has always led. Then the
  member got only objects that this leader has decided, and ones that nobody need decide.
* An entry is decided if the member has a later entry of the log, or the entry's marker. Nobody
  appends behind an entry, or marks it, unless all members have the same one (R2), and this was a
  member then.
* Markers and closing marks only record decisions, which were made elsewhere.

A member that left because it had other bytes than others is not asked. It must have lost objects
that it had, so its later entries prove nothing.

All of this holds within one history: an unclean election begins another one. An object may only be
given to the leader if the leader has lost it, and not if it was deleted meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from txnlog import names
from txnlog.errors import ObjectNotFound
from txnlog.names import LogFile
from txnlog.replication.roots.agreement import Agreement, MemberFailed
from txnlog.replication.roots.epochs import Epoch, Member, may_be_asked, root_of
from txnlog.replication.roots.same_bytes import is_sound
from txnlog.replication.roots.slowness import time_for

T = TypeVar("T")

_MARKERS = {LogFile.COMMIT: LogFile.ABORT, LogFile.ABORT: LogFile.COMMIT}


def sound_of_former(agreement: Agreement, epoch: Epoch, name: str) -> bytes | None:
    """The bytes of a log's object, from a former member; no member in sync has them undamaged.

    Returns None if no former member that answers has them, or it is unknown whether they were
    decided.
    """
    if not is_of_log(name):
        return None

    def read(former: Member) -> bytes | None:
        ask = partial(agreement.ask, epoch, former, within_s=time_for(epoch))
        data = ask(lambda storage: storage.get(name))
        decided = is_sound(name, data) and was_decided(agreement, epoch, former, name)
        return data if decided else None

    return first_of_former(epoch, read)


def first_of_former(epoch: Epoch, call: Callable[[Member], T | None]) -> T | None:
    """Call a function for each former member, until it returns something other than None.

    A member that fails is passed over. If it hangs, other incarnations of its root are not asked.
    """
    hanging: set[str] = set()
    for former in may_be_asked(epoch):
        if root_of(former) not in hanging:
            try:
                if (found := call(former)) is not None:
                    return found
            except ObjectNotFound:
                continue
            except MemberFailed as failed:
                if failed.is_slow:
                    hanging.add(root_of(former))
    return None


def is_of_log(name: str) -> bool:
    """Whether an object is of a log: a numbered file or a closing mark.

    Former members are asked for no others.
    """
    folder, _, last = name.rpartition("/")
    is_mark = names.parse_closing_mark(last) is not None
    return names.is_log_folder(folder) and (is_mark or names.parse_log_file(last) is not None)


def was_decided(agreement: Agreement, epoch: Epoch, former: Member, name: str) -> bool:
    """Whether an object of a log was decided, judged by what a former member of this history has.

    Raises MemberFailed.
    """
    folder, _, last = name.rpartition("/")
    found = names.parse_log_file(last)
    if found is None or found[1] in _MARKERS or not agreement.had_other_leader(epoch, former):
        return True
    number = found[0]
    start_after = names.log_file_prefix(number)
    within_s = time_for(epoch)
    agreement.check_mark(epoch, former)
    behind = agreement.ask(
        epoch, former, lambda one: one.list_names(folder, start_after), within_s=within_s
    )
    parsed = [one for one in map(names.parse_log_file, behind) if one is not None]
    return any(
        (at > number and kind is LogFile.ENTRY) or (at == number and kind in _MARKERS)
        for at, kind in parsed
    )


def contradicts(name: str, there: Iterable[str]) -> bool:
    """Whether a listing of a log's folder shows that a marker must not be given back any more.

    That is so if the other outcome was marked, or a checkpoint has the outcome of the entry.
    """
    number, kind = names.parse_log_file(name) or (-1, LogFile.ENTRY)
    if kind not in _MARKERS:
        return False
    parsed = [found for found in map(names.parse_log_file, there) if found is not None]
    return (number, _MARKERS[kind]) in parsed or any(
        what is LogFile.CHECKPOINT and at >= number for at, what in parsed
    )
