"""Tells the end of each log at the leader, and at every root in sync: Kafka's high watermark."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from txnlog import names
from txnlog.errors import NotEnoughReplicas, ObjectNotFound
from txnlog.names import LogFile
from txnlog.replication.roots.agreement import Agreement, MemberFailed
from txnlog.replication.roots.epochs import Epoch, Member
from txnlog.replication.roots.listings import portions


@dataclass(frozen=True, slots=True)
class LogWatermark:
    """A log's ends in the listings of the roots in sync, which are made one after the other.

    ``end_number`` is the number of the leader's next entry. Entries below ``high_watermark`` are at
    every root in sync; None if one of these does not answer. ``behind`` are members in sync that
    list less than the leader, or do not answer. A file that is lost in between is not noticed here:
    ``Replicas.verify`` finds it.
    """

    log: str
    end_number: int
    high_watermark: int | None
    behind: tuple[str, ...]


def watermarks(agreement: Agreement) -> list[LogWatermark]:
    """See :meth:`txnlog.replication.Replicas.watermarks`. The leader is listed last.

    Memory is in proportion to the number of logs.
    """
    epoch = agreement.refresh()
    followers = [member for member in epoch.in_sync if member != epoch.leader]
    found = {member: _ends(agreement, epoch, member) for member in followers}
    ends = _ends(agreement, epoch, epoch.leader)
    if isinstance(ends, MemberFailed):
        raise NotEnoughReplicas(f"the leader {epoch.leader} fails: {ends}") from ends
    return [_watermark(log, end, found) for log, end in sorted(ends.items())]


def _watermark(
    log: str, end: int, found: dict[Member, dict[str, int] | MemberFailed]
) -> LogWatermark:
    high: int | None = end
    behind = []
    for member, theirs in found.items():
        if isinstance(theirs, MemberFailed):
            high = None
            behind.append(member)
        elif theirs.get(log, 0) < end:
            high = None if high is None else min(high, theirs.get(log, 0))
            behind.append(member)
    return LogWatermark(log, end, high, tuple(behind))


def _ends(agreement: Agreement, epoch: Epoch, member: Member) -> dict[str, int] | MemberFailed:
    """By log, one more than the highest number in its folder; or the failure of the member."""
    ends: dict[str, int] = {}
    try:
        agreement.check_mark(epoch, member)
        for name, _ in chain.from_iterable(portions(agreement, epoch, member, "")):
            folder, _, last = name.rpartition("/")
            parsed = names.parse_log_file(last)
            if parsed and parsed[1] is not LogFile.SEEN and names.is_log_folder(folder):
                ends[folder] = max(ends.get(folder, 0), parsed[0] + 1)
    except MemberFailed as failed:
        return failed
    except ObjectNotFound as error:
        return MemberFailed(member, error)
    return ends
