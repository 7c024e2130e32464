"""How members of a group tell that they are there: small numbered files, one behind the other.

What a member has to say stands in a file's name, so one listing tells of all members. They are no
part of the log: whatever shows late, or not at all, makes somebody wait, or be taken for dead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from txnlog import names
from txnlog.names import Heartbeat
from txnlog.storage.base import Storage

_SEEN_EACH = 2
"""Nobody is taken for dead who was not looked for at least so often while he was silent: who
sleeps sees all others silent at once."""


def put_heartbeat(storage: Storage, group_id: str, beat: Heartbeat, sent_at_ms: int) -> None:
    """Put one. A member numbers them, and nobody else puts them."""
    # The content is for people who look at the file.
    storage.put_if_absent(names.heartbeat(group_id, beat), b"%d\n" % sent_at_ms)


def delete_heartbeats(storage: Storage, group_id: str, beats: Iterable[Heartbeat]) -> None:
    """Delete some; those that are not there are no error."""
    doomed = [names.heartbeat(group_id, beat) for beat in beats]
    if doomed:
        storage.delete(doomed)


def find_heartbeats(shown: Iterable[str]) -> list[Heartbeat]:
    """Those that some names in ``members/`` tell of."""
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
    """What one process knows of the silence of others, by its own monotonic clock alone.

    Time in which it did not look itself counts in part only: it may have slept.
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
        """Take note of a listing.

        Args:
            began_s: when it began, by the monotonic clock.
            newest: by member, the last heartbeat that it has shown.
            revoked_in: by member that has not let go of what was taken from it, since which
                generation.
            timeouts_s: of all members, how long they may be silent.
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
        """For how long (s) a member has not let go of what was taken from it."""
        return self._watched.get(member_id, _Watched(-1)).holding_s
