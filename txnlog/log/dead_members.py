"""Finds members of a group whose heartbeats stopped long ago, without watching: by one clock.

Members watch each other by their own monotonic clocks. A short-lived process, when all members may
be dead, can only ask the storage when their last heartbeats were put, and what time it is now.
"""

from __future__ import annotations

from collections.abc import Collection

from txnlog import names
from txnlog.clock import Clock
from txnlog.errors import ObjectNotFound
from txnlog.names import Heartbeat, LogFile
from txnlog.state.membership import Membership, Silence
from txnlog.storage.base import Storage

REASON = "session.timeout.ms, by the storage's clock"


def find_dead_members(
    storage: Storage,
    clock: Clock,
    group_id: str,
    group: Membership,
    newest_entry: int,
    *,
    silent_ms: int = 0,
    now_ms: int | None = None,
) -> list[Silence]:
    """The members whose last heartbeat is older than their session timeout and ``silent_ms``.

    None if the storage does not report when its objects were put, or if a living member tidies the
    folder meanwhile: it watches the others. ``newest_entry`` is the last one of the group's log.
    Without ``now_ms`` the storage's clock is asked for the time, by an object that is put.
    """
    newest = _newest_heartbeats(storage, group_id)
    if not {*group.members} <= {*newest}:
        # A listing is not a snapshot: it may have missed a heartbeat and the next one.
        newest = {**_newest_heartbeats(storage, group_id), **newest}
    if now_ms is None:
        now_ms = _ask_time(storage, clock, group_id)
    if now_ms is None:
        return []
    found = []
    for member_id, held in group.members.items():
        beat = newest.get(member_id)
        try:
            if beat is not None:
                told_ms = storage.modified_ms(names.heartbeat(group_id, beat))
            else:
                told_ms = _entry_ms(storage, group_id, held.joined_entry, newest_entry)
        except ObjectNotFound:
            continue  # it has put another one meanwhile, or others are active just now
        if told_ms is not None and now_ms - told_ms > held.member.session_timeout_ms + silent_ms:
            found.append(Silence(member_id, -1 if beat is None else beat.number, REASON))
    return found


def _ask_time(storage: Storage, clock: Clock, group_id: str) -> int | None:
    """The time by the storage's clock; None if it cannot be told."""
    probe = names.heartbeat(group_id, Heartbeat(clock.token(), 0, 0, 0))
    storage.put_if_absent(probe, b"now\n")
    try:
        return storage.modified_ms(probe)
    except ObjectNotFound:
        return None  # taken for a stranger's heartbeat by a member, which lives
    finally:
        storage.delete([probe])


def delete_heartbeats(storage: Storage, group_id: str, member_ids: Collection[str]) -> None:
    """Delete the files of former members."""
    folder = names.group_members(group_id)
    told = [(name, names.parse_heartbeat(name)) for name in storage.list_names(folder)]
    doomed = [f"{folder}/{name}" for name, beat in told if beat and beat.member_id in member_ids]
    if doomed:
        storage.delete(doomed)


def _entry_ms(storage: Storage, group_id: str, joined_entry: int, newest_entry: int) -> int | None:
    """When a member joined, or something later: a disk frees names of entries within seconds."""
    folder = names.group_log(group_id)
    try:
        return storage.modified_ms(f"{folder}/{names.log_file(joined_entry, LogFile.ENTRY)}")
    except ObjectNotFound:
        return storage.modified_ms(f"{folder}/{names.log_file(newest_entry, LogFile.ENTRY)}")


def _newest_heartbeats(storage: Storage, group_id: str) -> dict[str, Heartbeat]:
    newest: dict[str, Heartbeat] = {}
    for name in storage.list_names(names.group_members(group_id)):
        beat = names.parse_heartbeat(name)
        if beat is not None and beat.number >= newest.get(beat.member_id, beat).number:
            newest[beat.member_id] = beat
    return newest
