"""Members that join at one instant: one of them puts it for all, in one entry.

Who is alone puts that it joins, and is done. Who loses the number to another one that joins leaves
a request beside the group's heartbeats, and looks again; of those who wait, the one whose request
comes first puts the next entry, and in it all whose requests it has read. Nobody depends on
anybody: if nothing comes, the next few in turn put it, then all.

It only saves requests. That nobody is joined who has left since follows from the log alone:
:meth:`txnlog.state.membership.Membership.may_join`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
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
from txnlog.log.state_log import DELIVERY_TIMEOUT_MS
from txnlog.names import JoinRequest
from txnlog.state import envelope
from txnlog.state.group import GroupState
from txnlog.state.membership import MOST_BEHIND, GroupMember, JoinAsked, MembersJoined

_MOST_TOGETHER = 64
"""So many members join in one entry at most."""
_MOST_AGE_MS = 60_000
"""A request that is so old, by wall clocks, is left to its own writer."""
_MOST_BYTES = 1 << 20
"""A request that is larger is left to its own writer."""
_TURNS = (1, 1, 1, 4, 16)
"""How many of those who wait may put the next entry when nobody was joined so many times; then all
may."""
_MOST_LOST = 3
"""Who has lost so many numbers asks others, whatever it was that took them."""
_LEAST_PAUSE_S = 0.001
_MOST_PAUSE_S = 0.25

_DECODER: msgspec.json.Decoder[JoinAsked] = msgspec.json.Decoder(JoinAsked)

_logger = logging.getLogger(__name__)


class Joining:
    """One member on its way into its group's log, or to another subscription.

    Args:
        log: the group's.
        judge: what the member says of itself, for a state; None if that has it already; raises if
            it may not join.
    """

    def __init__(self, log: GroupLog, judge: Callable[[GroupState], GroupMember | None]) -> None:
        self._log = log
        self._clock = log.clock
        self._judge = judge
        self._own: JoinRequest | None = None
        self._known: dict[JoinRequest, GroupMember | None] = {}
        self._round_s = 0.0

    def run(self) -> bool:
        """Join; whether this process has put the entry that says so: else others have.

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
        deadline_s = self._clock.monotonic_s() + DELIVERY_TIMEOUT_MS / 1000
        quiet, lost = 0, list[int]()
        while True:
            before = self._log.next_entry
            shown = self._refresh()
            with self._log.reading() as state:
                member = self._judge(state)
                if member is None:
                    return False
                self._check_id(state, member)
                # Commits are no turn that somebody has taken: he may be dead.
                quiet = 0 if _newest_join(state) >= before else quiet + 1
                others = self._waiting(state, shown)
                if self._own is None and lost and _is_crowd(state, lost):
                    self._ask(state, member)
                elif self._is_my_turn(others, quiet):
                    number = state.next_entry
                    if self._put(state, member, others, shown):
                        return True
                    lost.append(number)
            if self._clock.monotonic_s() > deadline_s:
                raise StorageError(
                    f"group {self._log.name!r}: others were faster {len(lost)} times in "
                    f"{DELIVERY_TIMEOUT_MS} ms; it has not joined: try again later"
                )
            self._pause(len(lost), quiet)

    def _pause(self, lost: int, quiet: int) -> None:
        if self._own is None:
            most_s = min(0.002 * 2**lost, _MOST_PAUSE_S)
            self._clock.sleep(self._clock.jitter() * most_s)
        else:
            pause_s = self._round_s * (0.5 + self._clock.jitter()) * max(quiet, 1)
            self._clock.sleep(min(max(pause_s, _LEAST_PAUSE_S), _MOST_PAUSE_S))

    def _refresh(self) -> list[JoinRequest]:
        """Refresh the log; with a request of its own also see which there are, beside that."""
        if self._own is None:
            self._log.refresh()
            return []
        shown = list[JoinRequest]()
        begun_s = self._clock.monotonic_s()
        self._log.refresh_beside(lambda: shown.extend(self._list()))
        self._round_s = self._clock.monotonic_s() - begun_s
        return shown

    def _is_my_turn(self, others: Sequence[JoinRequest], quiet: int) -> bool:
        """Whether it is among the first of those who wait; it always is if it has not asked."""
        if self._own is None or quiet >= len(_TURNS):
            return True
        own = self._own
        return sum(other < own for other in others) < _TURNS[quiet]

    def _put(
        self,
        state: GroupState,
        member: GroupMember,
        others: Sequence[JoinRequest],
        shown: Sequence[JoinRequest],
    ) -> bool:
        """Put that it joins, and with it those who ask for it; whether nobody was faster."""
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
        own = [] if self._own is None else [self._own]  # also if the listing has not shown it
        self._delete(r for r in {*shown, *own} if not self._may_be_fulfilled(state, r))
        return True

    def _check_id(self, state: GroupState, member: GroupMember) -> None:
        """Raise UnknownMemberId where nobody knows whether it was joined meanwhile, and is gone."""
        own, group = self._own, state.membership
        is_member = member.member_id in group.members
        if own is not None and not is_member and state.next_entry > own.next_entry + MOST_BEHIND:
            raise UnknownMemberId(
                f"group {self._log.name!r}: it has gone on for {MOST_BEHIND} entries since this "
                "consumer asked to join; poll again, which joins it under another id"
            )

    def _may_be_fulfilled(self, state: GroupState, request: JoinRequest) -> bool:
        """Whether somebody may need a request yet, as far as is known here."""
        if request == self._own or state.membership.is_overtaken(*request, state.next_entry):
            return False
        known = self._known.get(request)
        if known is None:
            return request not in self._known
        return state.membership.may_join(known, request.next_entry, state.next_entry)

    # -- requests --------------------------------------------------------------------------------

    def _ask(self, state: GroupState, member: GroupMember) -> None:
        """Leave a request that was judged against a state."""
        request = JoinRequest(member.member_id, state.next_entry)
        self._own = request
        asked = JoinAsked(self._clock.now_ms(), member)
        data = envelope.encode(asked, envelope.WITH_MEMBERS)
        try:
            # It need not be durable: who has put it can do without.
            storage = self._log.log.storage.relaxed()
            storage.put_if_absent(names.join_request(self._log.name, request), data)
        except StorageError as error:
            _logger.debug("a request to join %r was not put: %s", self._log.name, error)

    def _list(self) -> list[JoinRequest]:
        try:
            return list_join_requests(self._log)
        except StorageError as error:
            _logger.debug("requests to join %r were not listed: %s", self._log.name, error)
            return []

    def _waiting(self, state: GroupState, shown: Iterable[JoinRequest]) -> list[JoinRequest]:
        """The requests of others that may be fulfilled, as far as their names tell."""
        return sorted(r for r in shown if r != self._own and self._may_be_fulfilled(state, r))

    def _read(self, chosen: Sequence[JoinRequest]) -> list[tuple[JoinRequest, GroupMember]]:
        """Who asks, as far as that can be read and is young; each is read once."""
        new = [request for request in chosen if request not in self._known]
        storage = self._log.log.storage
        found = storage.gather([partial(self._read_one, request) for request in new])
        self._known |= dict(zip(new, found, strict=True))
        return [(r, member) for r in chosen if (member := self._known[r]) is not None]

    def _read_one(self, request: JoinRequest) -> GroupMember | None:
        path = names.join_request(self._log.name, request)
        try:
            data = self._log.log.storage.get(path)
            # What is cut off here is damaged for whoever decodes it.
            asked = envelope.decode(data[:_MOST_BYTES], _DECODER, path)
            for topic in asked.member.topics:
                names.check_topic(topic)  # in the log it would stop all members
        except ObjectNotFound:
            return None
        except (StorageError, CorruptEntry, UnsupportedVersion, InvalidTopic) as error:
            _logger.debug("a request to join was passed over: %s", error)
            return None
        is_young = abs(self._clock.now_ms() - asked.at_ms) < _MOST_AGE_MS
        is_own = asked.member.member_id == request.member_id
        return asked.member if is_young and is_own else None

    def _delete(self, requests: Iterable[JoinRequest]) -> None:
        delete_join_requests(self._log, requests)


def list_join_requests(log: GroupLog) -> list[JoinRequest]:
    """All that there are, in one listing."""
    folder = names.group_members(log.name)
    found = map(names.parse_join_request, log.log.storage.list_names(folder))
    return [request for request in found if request is not None]


def delete_join_requests(log: GroupLog, requests: Iterable[JoinRequest]) -> None:
    """Delete some, which nobody needs any more; any may be deleted at any time."""
    doomed = [names.join_request(log.name, request) for request in requests]
    try:
        if doomed:
            log.log.storage.delete(doomed)
    except StorageError as error:
        _logger.debug("requests to join %r were left: %s", log.name, error)


def _newest_join(state: GroupState) -> int:
    """The last entry by which somebody has joined who is there; -1: nobody is."""
    return max((held.joined_entry for held in state.membership.members.values()), default=-1)


def _is_crowd(state: GroupState, lost: Sequence[int]) -> bool:
    """Whether it was others that join who took the numbers."""
    return len(lost) >= _MOST_LOST or _newest_join(state) >= lost[0]
