"""What members that have left the set are asked for, of logs: only what was decided.

A former member may have what was never acknowledged, and another entry may have its number by now,
or get it. So that it has something says nothing, but for this:

* If it joined since the present leader was elected, or that one has always led, it was given
  nothing but what this leader has decided, and what everybody decides alike.
* An entry behind which it has a later one of that log, or the entry's marker, was decided: nobody
  builds on one, or marks it, unless all members have the same (R2), and it was a member then.
* Markers, and marks that close, say what was decided elsewhere.

But one that left since it had other bytes than others is not asked: it had lost what it had, or it
would not have them, so that it has later entries says nothing.

All of this is so within one history: an unclean election begins another one. And it may only be
given to the leader if that has lost it: what was deleted meanwhile is not.
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
    """What a former member has whole of an object of a log that no member in sync has so.

    None: none that answers has it, or it is unknown whether it was decided.
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
    """What a call finds at the first former member where it finds anything; who fails has nothing.

    A root of which one incarnation hangs is not waited for at another one.
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
    """Whether former members are asked for an object at all."""
    folder, _, last = name.rpartition("/")
    is_mark = names.parse_closing_mark(last) is not None
    return names.is_log_folder(folder) and (is_mark or names.parse_log_file(last) is not None)


def was_decided(agreement: Agreement, epoch: Epoch, former: Member, name: str) -> bool:
    """Whether what a former member of this history has of a log was decided, as far as it tells.

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
    """Whether a listing of a log's folder tells that a marker comes too late to be given back.

    The other outcome was marked, or a checkpoint says what became of the entry.
    """
    number, kind = names.parse_log_file(name) or (-1, LogFile.ENTRY)
    if kind not in _MARKERS:
        return False
    parsed = [found for found in map(names.parse_log_file, there) if found is not None]
    return (number, _MARKERS[kind]) in parsed or any(
        what is LogFile.CHECKPOINT and at >= number for at, what in parsed
    )
