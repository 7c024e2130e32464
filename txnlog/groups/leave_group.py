"""Members that leave at the same time: one of them puts one entry for all.

A member that is alone puts its entry, and is done. One that loses the number to another leaving
member puts a request beside the group's heartbeats, and looks again; of those that wait, the one
whose request comes first puts the next entry, for itself and all whose requests it has seen. No
member depends on another: see :class:`txnlog.log.turns.Turns`.

A member's id is used once, so a member that has asked to leave is gone for ever: a request stays
valid however late it is read, and by whichever process.
"""

from __future__ import annotations

from collections.abc import Iterable

from txnlog import names
from txnlog.groups.requests import delete_requests, put_request, refresh_and_list
from txnlog.log.group_log import GroupLog
from txnlog.log.state_log import DELIVERY_TIMEOUT_MS
from txnlog.log.turns import Turns
from txnlog.state import envelope
from txnlog.state.membership import Membership, MembersLeft, ToldAt


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
        found = map(names.parse_leave_request, refresh_and_list(self._log, asks=self._asked))
        return [who for who in found if who is not None]

    def _ask(self) -> None:
        self._asked = True
        path = names.leave_request(self._log.name, self._member_id)
        put_request(self._log, path, envelope.encode(ToldAt(self._clock.now_ms())))

    def _delete(self, asking: Iterable[str]) -> None:
        delete_requests(self._log, (names.leave_request(self._log.name, who) for who in asking))


def _newest_gone(group: Membership) -> int:
    """The last entry that has removed a member, as far as is known; -1: none."""
    return max(group.gone.values(), default=-1)
