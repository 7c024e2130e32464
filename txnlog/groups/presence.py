"""How members of a group show that they are alive, and how they join and leave it.

Heartbeats are small numbered files, one after another. The information is in a file's name, so one
listing shows all members. They are not part of the log: one that shows late, or not at all, makes a
member wait, or be taken for dead.

Of members that join, or leave, at the same time one puts one entry for all. A member that is alone
puts its entry, and is done. One that loses the number to another that does the same leaves a
request beside the heartbeats, and looks again; of those that wait, the one whose request comes
first puts the next entry, for itself and all whose requests it has read. No member depends on
another: see :class:`txnlog.log.sequence_log.Turns`. Nor does anything depend on a request: it may
be lost, or deleted at any time, since its writer can do without. So failures with requests are only
logged.

This only saves requests to the storage. That no member is joined that has left since follows from
the log alone: :meth:`txnlog.state.membership.Membership.may_join`. A member's id is used once, so
one that has asked to leave is gone for ever: that request stays valid however late it is read, and
by whichever process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from txnlog import names
from txnlog.errors import (
    CorruptEntry,
    InvalidTopic,
    ObjectNotFound,
    StorageError,
    UnknownMemberId,
    UnsupportedVersion,
)
from txnlog.log.group_log import GroupLog
from txnlog.log.sequence_log import Turns
from txnlog.log.state_log import DELIVERY_TIMEOUT_MS
from txnlog.names import Heartbeat, JoinRequest
from txnlog.state.group import GroupState
from txnlog.state.membership import (
    MOST_BEHIND,
    GroupMember,
    JoinAsked,
    Membership,
    MembersJoined,
    MembersLeft,
    ToldAt,
)
from txnlog.storage import envelope
from txnlog.storage.base import Storage

_SEEN_EACH = 2
"""A silent member is taken for dead only after at least this many looks: a process that slept finds
all others silent at once.
"""


def put_heartbeat(storage: Storage, group_id: str, beat: Heartbeat, sent_at_ms: int) -> None:
    """Put a heartbeat. Only the member itself numbers and puts its own."""
    storage.put_if_absent(names.heartbeat(group_id, beat), envelope.encode(ToldAt(sent_at_ms)))


def delete_heartbeats(storage: Storage, group_id: str, beats: Iterable[Heartbeat]) -> None:
    """Delete some; missing ones are not an error."""
    doomed = [names.heartbeat(group_id, beat) for beat in beats]
    if doomed:
        storage.delete(doomed)


def find_heartbeats(shown: Iterable[str]) -> list[Heartbeat]:
    """The heartbeats among some names in ``members/``."""
    found = map(names.parse_heartbeat, shown)
    return [beat for beat in found if beat is not None]


def newest_of(beats: Iterable[Heartbeat]) -> dict[str, Heartbeat]:
    """The last heartbeat of each member."""
    newest: dict[str, Heartbeat] = {}
    for beat in beats:
        if beat.member_id not in newest or newest[beat.member_id].number < beat.number:
            newest[beat.member_id] = beat
    return newest


@dataclass(frozen=True, slots=True)
class _Watched:
    number: int
    silent_s: float = 0.0
    holding_s: float = 0.0
    revoked_in: int = -1


class Observer:
    """What one process knows about the silence of others, only by its own monotonic clock.

    Time in which it did not look counts only in part: it may have slept.
    """

    def __init__(self) -> None:
        self._watched: dict[str, _Watched] = {}
        self._looked_at_s: float | None = None

    def forget(self) -> None:
        """Start watching again."""
        self._watched = {}
        self._looked_at_s = None

    def look(
        self,
        began_s: float,
        newest: Mapping[str, Heartbeat],
        revoked_in: Mapping[str, int],
        timeouts_s: Mapping[str, float],
    ) -> None:
        """Record a listing that began at ``began_s`` of the monotonic clock.

        All are by member. ``newest``: the last heartbeat that was listed. ``revoked_in``: the
        generation that revoked partitions which the member still holds. ``timeouts_s``: how long it
        may be silent.
        """
        passed_s = 0.0 if self._looked_at_s is None else began_s - self._looked_at_s
        self._looked_at_s = began_s
        watched = {}
        for member_id, timeout_s in timeouts_s.items():
            number = newest[member_id].number if member_id in newest else -1
            known = self._watched.get(member_id, _Watched(number))
            counted_s = min(max(passed_s, 0.0), timeout_s / _SEEN_EACH)
            if number > known.number:
                known = replace(known, number=number, silent_s=0.0)
            elif member_id in self._watched:
                known = replace(known, silent_s=known.silent_s + counted_s)
            since = revoked_in.get(member_id, -1)
            if since < 0 or since != known.revoked_in:
                known = replace(known, revoked_in=since, holding_s=0.0)
            else:
                known = replace(known, holding_s=known.holding_s + counted_s)
            watched[member_id] = known
        self._watched = watched

    def silence(self, member_id: str) -> tuple[int, float]:
        """The last heartbeat of a member that was seen (-1: none), and for how long, in s."""
        known = self._watched.get(member_id, _Watched(-1))
        return known.number, known.silent_s

    def holds_for(self, member_id: str) -> float:
        """How long (s) a member has held on to partitions that were revoked."""
        return self._watched.get(member_id, _Watched(-1)).holding_s


_MOST_AGE_S = 60
"""An older request is left to its own writer, which may be dead."""
_MOST_TOGETHER = 64
"""How many members join in one entry at most."""

_DECODER: msgspec.json.Decoder[JoinAsked] = msgspec.json.Decoder(JoinAsked)

_logger = logging.getLogger(__name__)


def _put_request(log: GroupLog, path: str, data: bytes) -> None:
    """Put a request. It need not be durable."""
    try:
        log.log.storage.without_fsync().put_if_absent(path, data)
    except StorageError as error:
        _logger.debug("a request, %s, was not put: %s", path, error)


def _refresh_and_list(log: GroupLog, *, asks: bool) -> list[str]:
    """Refresh a group's log; with ``asks`` also list the names in ``members/`` at the same time."""
    if not asks:
        log.refresh()
        return []
    shown = list[str]()
    log.refresh_beside(lambda: shown.extend(_list(log)))
    return shown


def _list(log: GroupLog) -> list[str]:
    try:
        return log.log.storage.list_names(names.group_members(log.name))
    except StorageError as error:
        _logger.debug("requests of members of %r were not listed: %s", log.name, error)
        return []


def find_requests(group_id: str, shown: Iterable[str]) -> list[str]:
    """The files of requests among some names in ``members/``."""
    folder = names.group_members(group_id)
    return [
        f"{folder}/{name}"
        for name in shown
        if names.parse_join_request(name) or names.parse_leave_request(name)
    ]


def delete_requests(log: GroupLog, paths: Iterable[str]) -> None:
    """Delete requests."""
    doomed = [*paths]
    try:
        if doomed:
            log.log.storage.delete(doomed)
    except StorageError as error:
        _logger.debug("requests of members of %r were left: %s", log.name, error)


class OldRequests:
    """Requests whose writers have died: this process has seen them for a minute, by its clock."""

    def __init__(self) -> None:
        self._seen_since_s: dict[str, float] = {}

    def look(self, now_s: float, paths: Iterable[str]) -> list[str]:
        """Record the requests that exist; returns the old ones among them."""
        known = self._seen_since_s
        self._seen_since_s = {path: known.get(path, now_s) for path in paths}
        return [path for path, at_s in self._seen_since_s.items() if now_s - at_s > _MOST_AGE_S]


class JoinGroup:
    """One member that joins its group, or changes its subscription.

    ``judge``: the member's description for a state; None if the state has it already; raises if it
    may not join.
    """

    def __init__(self, log: GroupLog, judge: Callable[[GroupState], GroupMember | None]) -> None:
        self._log = log
        self._clock = log.clock
        self._judge = judge
        self._own: JoinRequest | None = None
        self._known: dict[JoinRequest, GroupMember | None] = {}

    def run(self) -> bool:
        """Join; returns whether this process has put the entry: otherwise another one has.

        Raises what ``judge`` and ``StateLog.append`` do; UnknownMemberId if it is too late to join
        under its id.
        """
        with self._log.lock:
            try:
                return self._go_on()
            except BaseException:
                if self._own is not None:
                    self._delete([self._own])
                raise

    def _go_on(self) -> bool:
        turns = Turns(self._clock, DELIVERY_TIMEOUT_MS)
        while True:
            before = self._log.next_entry
            with turns.looking():
                shown = self._refresh()
            with self._log.lock:
                state = self._log.state
                member = self._judge(state)
                if member is None:
                    return False
                self._check_id(state, member)
                turns.looked(has_gone_on=_newest_join(state) >= before)
                others = self._waiting(state, shown)
                own = self._own
                if own is None and turns.is_crowd(_newest_join(state)):
                    self._ask(state, member)
                elif own is None or turns.may_put(sum(other < own for other in others)):
                    number = state.next_entry
                    if self._put(state, member, others, shown):
                        return True
                    turns.lose(number)
            turns.check_in_time(f"group {self._log.name!r}", "it has not joined")
            turns.pause(asked=self._own is not None)

    def _refresh(self) -> list[JoinRequest]:
        """Refresh the log; with a request of its own, list the requests at the same time."""
        shown = _refresh_and_list(self._log, asks=self._own is not None)
        found = map(names.parse_join_request, shown)
        return [request for request in found if request is not None]

    def _put(
        self,
        state: GroupState,
        member: GroupMember,
        others: Sequence[JoinRequest],
        shown: Sequence[JoinRequest],
    ) -> bool:
        """Put an entry for itself and those that ask; returns whether it won the number."""
        asking = self._read(others[: _MOST_TOGETHER - 1])
        group = state.membership
        also = [
            other
            for request, other in asking
            if group.may_join(other, request.next_entry, state.next_entry)
        ]
        members = group.joinable(self._log.name, member, also)
        entry = MembersJoined(self._clock.token(), self._clock.now_ms(), members)
        if self._log.put_next(entry) is None:
            return False
        own = [] if self._own is None else [self._own]  # even if the listing has not shown it
        self._delete(r for r in {*shown, *own} if not self._may_be_fulfilled(state, r))
        return True

    def _check_id(self, state: GroupState, member: GroupMember) -> None:
        """Raise UnknownMemberId if it may have been joined meanwhile, and removed again."""
        own, group = self._own, state.membership
        is_member = member.member_id in group.members
        if own is not None and not is_member and state.next_entry > own.next_entry + MOST_BEHIND:
            raise UnknownMemberId(
                f"group {self._log.name!r}: it has gone on for {MOST_BEHIND} entries since this "
                "consumer asked to join; poll again, which joins it under another id"
            )

    def _may_be_fulfilled(self, state: GroupState, request: JoinRequest) -> bool:
        """Whether a request may still be needed, as far as is known here."""
        if request == self._own or state.membership.is_overtaken(*request, state.next_entry):
            return False
        known = self._known.get(request)
        if known is None:
            return request not in self._known
        return state.membership.may_join(known, request.next_entry, state.next_entry)

    # -- requests --------------------------------------------------------------------------------

    def _ask(self, state: GroupState, member: GroupMember) -> None:
        """Leave a request to join, which names the last entry that this member has seen."""
        request = JoinRequest(member.member_id, state.next_entry)
        self._own = request
        asked = JoinAsked(self._clock.now_ms(), member)
        data = envelope.encode(asked)
        _put_request(self._log, names.join_request(self._log.name, request), data)

    def _waiting(self, state: GroupState, shown: Iterable[JoinRequest]) -> list[JoinRequest]:
        """Others' requests that may be fulfilled, judged by their names."""
        return sorted(r for r in shown if r != self._own and self._may_be_fulfilled(state, r))

    def _read(self, chosen: Sequence[JoinRequest]) -> list[tuple[JoinRequest, GroupMember]]:
        """The members that ask, if readable and recent; each request is read once."""
        new = [request for request in chosen if request not in self._known]
        storage = self._log.log.storage
        found = storage.gather([partial(self._read_one, request) for request in new])
        self._known |= dict(zip(new, found, strict=True))
        return [(r, member) for r in chosen if (member := self._known[r]) is not None]

    def _read_one(self, request: JoinRequest) -> GroupMember | None:
        path = names.join_request(self._log.name, request)
        try:
            asked = envelope.decode(self._log.log.storage.get(path), _DECODER, path)
            for topic in asked.member.topics:
                names.check_topic(topic)  # in the log it would block all members
        except ObjectNotFound:
            return None
        except (StorageError, CorruptEntry, UnsupportedVersion, InvalidTopic) as error:
            _logger.debug("a request to join was passed over: %s", error)
            return None
        is_young = abs(self._clock.now_ms() - asked.at_ms) < _MOST_AGE_S * 1000  # by wall clocks
        is_own = asked.member.member_id == request.member_id
        return asked.member if is_young and is_own else None

    def _delete(self, requests: Iterable[JoinRequest]) -> None:
        delete_requests(self._log, (names.join_request(self._log.name, r) for r in requests))


def _newest_join(state: GroupState) -> int:
    """The last entry by which a current member has joined; -1 if no member is there."""
    return max((held.joined_entry for held in state.membership.members.values()), default=-1)


class LeaveGroup:
    """One member that leaves its group.

    ``reason``: for readers of the log. Others whose requests are fulfilled get it, too.
    """

    def __init__(self, log: GroupLog, member_id: str, reason: str) -> None:
        self._log = log
        self._clock = log.clock
        self._member_id = member_id
        self._reason = reason
        self._asked = False

    def run(self) -> bool:
        """Leave; returns whether this process has put the entry: otherwise it was not a member.

        Raises StorageError; it may have left then.
        """
        with self._log.lock:
            try:
                return self._go_on()
            finally:
                if self._asked:
                    self._delete([self._member_id])

    def _go_on(self) -> bool:
        turns = Turns(self._clock, DELIVERY_TIMEOUT_MS)
        while True:
            before = self._log.next_entry
            with turns.looking():
                asking = self._refresh()
            with self._log.lock:
                state = self._log.state
                group = state.membership
                if self._member_id not in group.members:
                    return False
                turns.looked(has_gone_on=_newest_gone(group) >= before)
                others = sorted({*asking} & group.members.keys() - {self._member_id})
                if not self._asked and turns.is_crowd(_newest_gone(group)):
                    self._ask()
                elif not self._asked or turns.may_put(sum(o < self._member_id for o in others)):
                    number = state.next_entry
                    gone = (self._member_id, *others)
                    entry = MembersLeft(
                        self._clock.token(), self._clock.now_ms(), gone, self._reason
                    )
                    if self._log.put_next(entry) is not None:
                        self._delete(asking)
                        return True
                    turns.lose(number)
            turns.check_in_time(f"group {self._log.name!r}", "it has not left")
            turns.pause(asked=self._asked)

    def _refresh(self) -> list[str]:
        """Refresh the log; once it has asked, list the requests at the same time."""
        found = map(names.parse_leave_request, _refresh_and_list(self._log, asks=self._asked))
        return [who for who in found if who is not None]

    def _ask(self) -> None:
        self._asked = True
        path = names.leave_request(self._log.name, self._member_id)
        _put_request(self._log, path, envelope.encode(ToldAt(self._clock.now_ms())))

    def _delete(self, asking: Iterable[str]) -> None:
        delete_requests(self._log, (names.leave_request(self._log.name, who) for who in asking))


def _newest_gone(group: Membership) -> int:
    """The last entry that has removed a member, as far as is known; -1: none."""
    return max(group.gone.values(), default=-1)
