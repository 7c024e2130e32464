"""Members that join at the same time: one of them puts one entry for all.

A member that is alone puts its entry, and is done. One that loses the number to another joining
member leaves a request beside the group's heartbeats, and looks again; of those that wait, the one
whose request comes first puts the next entry, for itself and all whose requests it has read. No
member depends on another: see :class:`txnlog.log.turns.Turns`.

This only saves requests. That no member is joined that has left since follows from the log alone:
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
from txnlog.groups.requests import MOST_AGE_S, delete_requests, put_request, refresh_and_list
from txnlog.log.group_log import GroupLog
from txnlog.log.state_log import DELIVERY_TIMEOUT_MS
from txnlog.log.turns import Turns
from txnlog.names import JoinRequest
from txnlog.state import envelope
from txnlog.state.group import GroupState
from txnlog.state.membership import MOST_BEHIND, GroupMember, JoinAsked, MembersJoined

_MOST_TOGETHER = 64
"""How many members join in one entry at most."""

_DECODER: msgspec.json.Decoder[JoinAsked] = msgspec.json.Decoder(JoinAsked)

_logger = logging.getLogger(__name__)


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
        shown = refresh_and_list(self._log, asks=self._own is not None)
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
        """Leave a request that was judged against a state."""
        request = JoinRequest(member.member_id, state.next_entry)
        self._own = request
        asked = JoinAsked(self._clock.now_ms(), member)
        data = envelope.encode(asked)
        put_request(self._log, names.join_request(self._log.name, request), data)

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
        is_young = abs(self._clock.now_ms() - asked.at_ms) < MOST_AGE_S * 1000  # by wall clocks
        is_own = asked.member.member_id == request.member_id
        return asked.member if is_young and is_own else None

    def _delete(self, requests: Iterable[JoinRequest]) -> None:
        delete_requests(self._log, (names.join_request(self._log.name, r) for r in requests))


def _newest_join(state: GroupState) -> int:
    """The last entry by which a current member has joined; -1: there is none."""
    return max((held.joined_entry for held in state.membership.members.values()), default=-1)
