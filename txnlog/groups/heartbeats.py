"""How members of a group show that they are alive: small numbered files, one after another.

The information is in a file's name, so one listing shows all members. They are not part of the log:
one that shows late, or not at all, makes a member wait, or be taken for dead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from txnlog import names
from txnlog.names import Heartbeat
from txnlog.state.membership import ToldAt
from txnlog.storage import envelope
from txnlog.storage.base import Storage

_SEEN_EACH = 2
"""A silent member is taken for dead only after at least this many looks: a process that slept finds
all others silent at once.
"""


def put_heartbeat(storage: Storage, group_id: str, beat: Heartbeat, sent_at_ms: int) -> None:
    """Put one. Only the member itself numbers and puts them."""
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
    """By member, the last one."""
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

        By member, ``newest``: the last heartbeat in it; ``revoked_in``: since which generation it
        has not released what was taken from it; ``timeouts_s``: how long it may be silent.
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
        """How long (s) a member has not released what was taken from it."""
        return self._watched.get(member_id, _Watched(-1)).holding_s
