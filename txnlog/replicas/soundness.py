"""Whether an object is as it was written, by its bytes alone; and what is done where it is not.

Where two members have other bytes, the checksum decides, not who leads:

* A follower's object is damaged: the leader's replaces it, once all others have that. Then nobody
  can ever put another one there: the name is taken at the damaged one, too, and stays so. So a
  process that sleeps before it replaces the object does no harm, whatever has happened since.
* The leader's is damaged, and a member in sync has it whole: that one leads, by the next epoch, and
  nobody leaves the set. It may not be replaced under the same leader: a writer may have been told
  that it has won the name, by what is damaged now.
* Nobody in sync has it whole: it stays where it is, so that its name stays taken, and is given to
  members that lack it. Nobody leaves the set for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from txnlog import names
from txnlog.errors import ObjectNotFound, StorageError
from txnlog.replicas.agreement import Agreement, MemberFailed
from txnlog.replicas.epochs import Epoch, Member, elected
from txnlog.replicas.slowness import time_for
from txnlog.state import envelope
from txnlog.storage.base import CannotReplace, Storage

_logger = logging.getLogger(__name__)


IsSound: TypeAlias = Callable[[Storage, str], bool | None]
"""Whether data in a storage is as it was written; None: it cannot be told."""


class Damaged(StorageError):
    """A member's object is not as it was written."""


def is_sound(name: str, data: bytes) -> bool | None:
    """Whether an object is as it was written. None: it has no checksum of its own."""
    return envelope.is_sound(data) if names.is_framed(name) else None


def leaders_bytes(agreement: Agreement, epoch: Epoch, name: str) -> bytes:
    """What the leader has; damaged only if no member in sync has it whole.

    Raises:
        ObjectNotFound: the leader does not have it.
        MemberFailed: it fails; or its object is damaged, and another member is to lead.
    """
    data = _get(agreement, epoch, epoch.leader, name)
    if is_sound(name, data) is not False:
        return data
    failed: MemberFailed | None = None
    for member in epoch.in_sync:
        if member == epoch.leader:
            continue
        try:
            found = _get(agreement, epoch, member, name)
        except ObjectNotFound:
            continue
        except MemberFailed as error:
            failed = error
            continue
        if is_sound(name, found):
            why = f"{name} is damaged at the leader {epoch.leader}; {member} has it whole"
            lead = partial(_hand_over, agreement, epoch, member, why)
            raise MemberFailed(epoch.leader, Damaged(why), remedy=lead)
    if failed is not None:
        raise failed  # that one may have it
    return data


def sound_bytes(agreement: Agreement, epoch: Epoch, name: str) -> bytes:
    """The same, but another member's if that one has it whole: nobody need lead for a copy."""
    data = _get(agreement, epoch, epoch.leader, name)
    if is_sound(name, data) is False:
        for member in epoch.in_sync:
            try:
                found = _get(agreement, epoch, member, name)
            except (ObjectNotFound, MemberFailed):
                continue
            if is_sound(name, found):
                return found
    return data


def _get(agreement: Agreement, epoch: Epoch, member: Member, name: str) -> bytes:
    within_s = time_for(epoch)
    return agreement.ask(
        epoch, member, lambda storage: storage.get(name), within_s=within_s, may_be_large=True
    )


def _hand_over(agreement: Agreement, epoch: Epoch, heir: Member, why: str) -> bool:
    if not agreement.is_newest(epoch):
        return True
    return agreement.propose(elected(epoch, heir, agreement.proposer(why), keep=True))


def damaged_at(
    agreement: Agreement, epoch: Epoch, member: Member, name: str, data: bytes
) -> MemberFailed:
    """A follower's object is damaged: what is done about it is to replace it by the leader's."""
    error = Damaged(f"{name} is damaged at {member}")
    mend = partial(_mend, agreement, epoch, member, name, data)
    return MemberFailed(member, error, remedy=mend)


def _mend(agreement: Agreement, epoch: Epoch, member: Member, name: str, data: bytes) -> bool:
    """Replace a follower's object by the leader's. Raises ObjectNotFound, MemberFailed."""
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
        if found != data and (other == epoch.leader or is_sound(name, found) is not False):
            return True  # another process has been there: the step tells
    _ask(agreement, epoch, epoch.leader, lambda one: one.confirm(name))
    if not agreement.is_newest(epoch):
        return True
    agreement.check_mark(epoch, member)
    try:
        _ask(agreement, epoch, member, lambda one: one.replace(name, data))
    except MemberFailed as failed:
        if isinstance(failed.error, CannotReplace):
            return agreement.put_out(epoch, member, f"{failed}; it is whole when it joins again")
        raise
    _logger.warning(
        "replicas: %s was damaged at %s, and is replaced by what others have", name, member
    )
    return True


def _ask(
    agreement: Agreement, epoch: Epoch, member: Member, call: Callable[[Storage], object]
) -> None:
    agreement.ask(epoch, member, call, within_s=time_for(epoch))
