"""The log of one consumer group in this process: committing offsets, alone or in a transaction."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress

from txnlog import names
from txnlog.clock import Clock
from txnlog.errors import GroupNotEmpty, ObjectNotFound
from txnlog.log.sequence_log import SequenceLog
from txnlog.log.state_log import LogPolicy, StateLog
from txnlog.names import Heartbeat, LogFile, TopicPartition
from txnlog.state import group as kinds
from txnlog.state.group import (
    GroupDeleted,
    GroupEntry,
    GroupState,
    OffsetCommit,
    OffsetsCommitted,
    OffsetsDeleted,
)
from txnlog.state.membership import Committer, MembersExpired, Membership, MembersLeft, Silence
from txnlog.state.transaction import TransactionKey, TransactionRef
from txnlog.storage.base import Storage

_logger = logging.getLogger(__name__)


class GroupLog(StateLog[GroupEntry, GroupState]):
    """A consumer group's log and state."""

    def __init__(
        self,
        storage: Storage,
        group_id: str,
        clock: Clock,
        policy: LogPolicy,
        topic_id_of: Callable[[str], str | None],
        confirm_ends: Callable[[Iterable[tuple[str, int, int]]], None],
    ) -> None:
        """Make the log; nothing is read.

        ``topic_id_of`` tells the id of a topic as it is now, None if there is none.
        ``confirm_ends`` makes durable what offsets pass, by topic and partition.
        """
        super().__init__(
            SequenceLog(storage, names.group_log(group_id), clock),
            "group",
            group_id,
            new_state=GroupState,
            entry_decoder=kinds.ENTRY_DECODER,
            checkpoint_decoder=kinds.CHECKPOINT_DECODER,
            clock=clock,
            policy=policy,
        )
        self._topic_id_of = topic_id_of
        self._confirm_ends = confirm_ends

    def commit(
        self,
        offsets: Sequence[OffsetCommit],
        *,
        transaction: TransactionRef | None = None,
        committer: Committer | None = None,
        force: bool = False,
        refreshed: bool = False,
    ) -> int | None:
        """Add one entry that moves these offsets, at least one; returns its number.

        Offsets of a topic that was deleted would replace those of a later topic of its name. They
        are left out, unless they are compared; None if no others are left. What they pass is made
        durable first: else a power cut could take it, and they would pass what comes in its place.

        ``transaction``: the one that they belong to. ``committer``: the member that has read; None
        if it is not a member. ``force``: move them though the group has members. ``refreshed``: see
        :meth:`append`.

        Raises CommitFailed: the group has moved since the offsets were read, or the committer does
        not own one of the partitions; the subclasses tell why. GroupNotEmpty: the group has
        members, the committer is not one, and it is not forced. ConcurrentTransactions: an
        undecided transaction is about to move one of them. StorageError: the outcome is unknown.
        """
        self._confirm_ends((moved.topic, moved.partition, moved.offset) for moved in offsets)
        nonce = self.clock.token()

        def build(state: GroupState) -> OffsetsCommitted | None:
            chosen = self._leave_out(state, offsets)
            if not chosen:
                return None
            state.check_commit(self.name, chosen, committer, force=force)
            return OffsetsCommitted(
                nonce=nonce,
                at_ms=self.clock.now_ms(),
                offsets=chosen,
                transaction=transaction,
                committer=committer,
                force=force and bool(state.membership.members),
            )

        try:
            number = self.append(build, refreshed=refreshed)
        except GroupNotEmpty:
            if not self.expire_dead_members():
                raise
            number = self.append(build)
        return number

    def check_commit(self, offsets: Sequence[OffsetCommit], *, force: bool) -> None:
        """Raise what :meth:`commit` would, as far as the log was read; writes nothing.

        Members are taken for dead by this process's clock: the storage tells its own only of what
        is put.
        """
        with self.lock:
            state = self.state
            try:
                state.check_commit(self.name, offsets, force=force)
            except GroupNotEmpty:
                if len(self._would_be_dead()) < len(state.membership.members):
                    raise
                state.check_offsets(self.name, offsets)

    def _leave_out(
        self, state: GroupState, offsets: Sequence[OffsetCommit]
    ) -> tuple[OffsetCommit, ...]:
        """The offsets that do not replace those of a later topic.

        A topic is asked for only if the group has an offset of another one of its name. Whichever
        is the later one was made before that was committed, so its log, read now, tells.
        """
        ids: dict[str, str | None] = {}

        def is_late(moved: OffsetCommit) -> bool:
            known = state.offset_of(moved.topic, moved.partition)
            if moved.compare or known is None or known.topic_id in ("", moved.topic_id):
                return False
            if moved.topic not in ids:
                ids[moved.topic] = self._topic_id_of(moved.topic)
            return moved.topic_id not in ("", ids[moved.topic])

        chosen = tuple(moved for moved in offsets if not is_late(moved))
        if len(chosen) < len(offsets):
            late = sorted({moved.topic for moved in {*offsets} - {*chosen}})
            what = "group %r: offsets of %s were not committed: deleted, and recreated, since then"
            _logger.warning(what, self.name, ", ".join(late))
        return chosen

    def read_moved(self, number: int, key: TransactionKey) -> tuple[OffsetCommit, ...] | None:
        """The offsets that a transaction's entry ``number`` moves; None if it is gone.

        Raises CorruptEntry.
        """
        try:
            entry = self._decode(number, self.log.read([number])[0])
        except ObjectNotFound:
            return None
        if not isinstance(entry, OffsetsCommitted) or entry.transaction is None:
            return None
        return entry.offsets if entry.transaction.key == key else None

    def expire_dead_members(self, silent_ms: int = 0) -> bool:
        """Expire members who have been dead for this long; returns whether there were any.

        By the storage's clock alone: for processes that cannot watch them.
        """
        dead = self._find_dead_members(silent_ms)
        nonce = self.clock.token()

        def build(state: GroupState) -> MembersExpired | None:
            left = tuple(s for s in dead if s.member_id in state.membership.members)
            return MembersExpired(nonce, self.clock.now_ms(), "", left) if left else None

        if not dead or self.append(build) is None:
            return False
        delete_heartbeats(self.log.storage, self.name, {silence.member_id for silence in dead})
        return True

    def _find_dead_members(self, silent_ms: int = 0, *, now_ms: int | None = None) -> list[Silence]:
        with self.lock:
            state = self.state
            group = state.membership
            newest = state.next_entry - 1
            return find_dead_members(
                self.log.storage,
                self.clock,
                self.name,
                group,
                newest,
                silent_ms=silent_ms,
                now_ms=now_ms,
            )

    def _would_be_dead(self, silent_ms: int = 0) -> set[str]:
        """The members that :meth:`expire_dead_members` would expire, by this process's clock."""
        dead = self._find_dead_members(silent_ms, now_ms=self.clock.now_ms())
        return {silence.member_id for silence in dead}

    def remove_members(self, member_ids: Collection[str], reason: str) -> tuple[str, ...]:
        """Put that members have left; returns those that existed. Also takes instance ids."""
        nonce = self.clock.token()
        removed: tuple[str, ...] = ()

        def build(state: GroupState) -> MembersLeft | None:
            nonlocal removed
            removed = tuple(
                member_id
                for member_id, held in state.membership.members.items()
                if {member_id, held.member.instance_id} & {*member_ids}
            )
            return MembersLeft(nonce, self.clock.now_ms(), removed, reason) if removed else None

        if self.append(build) is not None:
            delete_heartbeats(self.log.storage, self.name, removed)
        self._leave_checkpoint()
        return removed

    def _leave_checkpoint(self) -> None:
        """Put a checkpoint if one is due, or if the group is empty.

        An empty group may never get another one. Jobs that name their groups anew leave very many,
        and all of them are read again and again.
        """
        with self.lock:
            state = self.state
            if state.empty:
                self.checkpoint_at_end()
            else:
                self.checkpoint_if_due()

    def check_deletion(self, partitions: Sequence[TopicPartition] | None = None) -> None:
        """Raise what :meth:`delete` would, as far as the log was read; writes nothing.

        Members are taken for dead as :meth:`check_commit` does.
        """
        with self.lock:
            self.state.check_deletion(self.name, partitions, self._would_be_dead())

    def delete(self, partitions: Sequence[TopicPartition] | None = None) -> None:
        """End the group's offsets: those of these partitions, or (None) all of them.

        Raises what :meth:`GroupState.check_deletion` does; StorageError: the outcome is unknown;
        repeating it does no harm.
        """
        nonce = self.clock.token()

        def build(state: GroupState) -> GroupEntry:
            state.check_deletion(self.name, partitions)
            if partitions is None:
                return GroupDeleted(nonce, self.clock.now_ms())
            return OffsetsDeleted(nonce, self.clock.now_ms(), tuple(partitions))

        try:
            self.append(build, refreshed=True)
        except GroupNotEmpty:
            if not self.expire_dead_members():
                raise
            self.append(build)
        self._leave_checkpoint()

    def newest_put_ms(self) -> int | None:
        """When the newest entry was put, by the storage's clock; None if it does not tell."""
        with self.lock:
            state = self.state
            newest = state.next_entry - 1
        with suppress(ObjectNotFound):
            return self.log.storage.modified_ms(self.log.path(max(newest, 0)))
        return None

    def expire(
        self, is_old: Callable[[GroupState], bool], *, silent_ms: int, dry_run: bool = False
    ) -> bool:
        """Delete the group if its last entry is old; True if it was deleted.

        A group is left alone while it has members, but for those that have been dead for
        ``silent_ms``, which are expired first; so is one that an undecided transaction is about to
        move. With ``dry_run`` it only tells.
        """
        with self.lock:
            state = self.state
            if state.empty and not dry_run:
                self._leave_checkpoint()
            if state.empty or state.pending or not is_old(state):
                return False
            seen, has_members = state.next_entry, bool(state.membership.members)
        dead: set[str] = set()
        if has_members and dry_run:
            dead = self._would_be_dead(silent_ms)
        elif has_members and self.expire_dead_members(silent_ms):
            seen += 1
        nonce = self.clock.token()

        def build(state: GroupState) -> GroupDeleted | None:
            busy = state.empty or state.pending or state.membership.members.keys() - dead
            if busy or state.next_entry != seen:
                return None
            return GroupDeleted(nonce, self.clock.now_ms())

        if dry_run:
            with self.lock:
                state = self.state
                return build(state) is not None
        if self.append(build, refreshed=True) is None:
            return False
        self._leave_checkpoint()
        return True


SILENCE_REASON = "session.timeout.ms, by the storage's clock"


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

    Members watch each other by their own monotonic clocks. A short-lived process, when all members
    may be dead, can only ask the storage when their last heartbeats were put, and what time it is.

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
            found.append(Silence(member_id, -1 if beat is None else beat.number, SILENCE_REASON))
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
