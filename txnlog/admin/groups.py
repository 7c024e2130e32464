"""``Store.groups``: look at consumer groups, move and delete their offsets.

A group is its log. If it has members, offsets are moved or deleted only with force; a job that is
not a member notices at its next commit within a transaction, which is refused.
"""

from __future__ import annotations

import builtins
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from txnlog.admin.dry_run import logs_for, writes
from txnlog.admin.found import Found
from txnlog.admin.resets import ResetTarget, Target, plan_reset
from txnlog.arguments import names_wrong_arguments
from txnlog.config import check_whole_number
from txnlog.errors import GroupIdNotFound, InvalidOption, TxnlogError
from txnlog.inspect.describe import describe_group, describe_or_error
from txnlog.inspect.group_lag import GroupDescription, OffsetReset
from txnlog.inspect.history import GroupLogEntry, group_history
from txnlog.log.group_log import GroupLog
from txnlog.log.group_metadata import check_offset
from txnlog.log.named_folders import list_groups
from txnlog.log.open_logs import Logs
from txnlog.names import TopicPartition
from txnlog.state.group import OffsetCommit
from txnlog.storage.base import for_each

_GROUPS_AT_ONCE = 256


@names_wrong_arguments()
class GroupAdmin:
    """What is done with consumer groups: :attr:`txnlog.Store.groups`."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs

    def list(self) -> builtins.list[str]:
        """The ids of the consumer groups that have offsets, sorted. Reads the log of each."""
        # A damaged one exists all the same; describing it says what is wrong.
        ids = self._group_ids()
        found = for_each(self._logs.storage, partial(describe_or_error, self._existing_group), ids)
        return [
            group_id
            for group_id, log in zip(ids, found, strict=True)
            if not isinstance(log, GroupIdNotFound)
        ]

    def _group_ids(self) -> builtins.list[str]:
        return list_groups(self._logs.storage)

    def _existing_group(self, group_id: str) -> GroupLog:
        log = self._logs.fresh_group(group_id)
        with log.lock:
            state = log.state
            if state.empty:
                raise GroupIdNotFound(
                    f"group {group_id!r} has no offsets in {self._logs.storage.url}"
                )
        return log

    def describe_all(self) -> Found[GroupDescription]:
        """Describe all groups that have offsets, sorted by id, some at a time.

        Each topic is read once for all groups.
        """
        return Found(self._describe_all)

    def _describe_all(self) -> Iterator[GroupDescription | TxnlogError]:
        ids = self._group_ids()
        for first in range(0, len(ids), _GROUPS_AT_ONCE):
            for described in self._describe(ids[first : first + _GROUPS_AT_ONCE]):
                if not isinstance(described, GroupIdNotFound):
                    yield described

    def history(self, group_id: str, *, newest: int | None = None) -> Found[GroupLogEntry]:
        """The entries of a group's log, oldest first, as far back as the log goes.

        With ``newest`` only that many of the last ones, and no others are read. Changes nothing.
        Iterating raises GroupIdNotFound if the group has never committed an offset.
        """
        if newest is not None:
            check_whole_number(newest, "newest", InvalidOption, least=1)
        storage, clock = self._logs.storage, self._logs.clock
        known_end = 0 if newest is None else self._logs.group(group_id).next_entry
        return Found(partial(group_history, storage, clock, group_id, newest, known_end))

    def describe(self, group_id: str) -> GroupDescription:
        """A group's offsets, and its lag against the last stable offsets.

        Raises GroupIdNotFound.
        """
        (described,) = self._describe([group_id])
        if isinstance(described, TxnlogError):
            raise described
        return described

    def _describe(self, group_ids: Sequence[str]) -> builtins.list[GroupDescription | TxnlogError]:
        """Describe groups, or give the error of one of them or of one of its topics."""
        storage = self._logs.storage
        logs = [*for_each(storage, partial(describe_or_error, self._existing_group), group_ids)]
        topics_of = [set() if isinstance(log, TxnlogError) else _topics_of(log) for log in logs]
        # After the groups: their committed offsets then lie inside the topic.
        topics = sorted(set().union(*topics_of))
        found = for_each(storage, partial(describe_or_error, self._bounds), topics)
        bounds: dict[TopicPartition, tuple[int, int]] = {}
        topic_ids: dict[str, str | None] = {}
        broken: dict[str, TxnlogError] = {}
        for topic, read in zip(topics, found, strict=True):
            if isinstance(read, TxnlogError):
                broken[topic] = read
            else:
                topic_ids[topic], spans = read
                bounds |= {TopicPartition(topic, number): at for number, at in enumerate(spans)}
        described: builtins.list[GroupDescription | TxnlogError] = []
        for log, known in zip(logs, topics_of, strict=True):
            wrong = [broken[topic] for topic in sorted(known & {*broken})]
            if isinstance(log, TxnlogError):
                described.append(log)
            else:
                described.append(wrong[0] if wrong else describe_group(log, bounds, topic_ids))
        return described

    def _bounds(self, topic: str) -> tuple[str | None, builtins.list[tuple[int, int]]]:
        """A topic's id, None if it was deleted; its partitions' starts and last stable offsets."""
        log = self._logs.topic(topic)
        log.refresh()
        self._logs.settlement.settle([log])
        with log.lock:
            state = log.state
            starts = (partition.log_start_offset for partition in state.partitions)
            return state.topic_id, [*zip(starts, state.last_stable_offsets(), strict=True)]

    @writes
    def reset_offsets(
        self,
        group_id: str,
        topics: str | Iterable[str | TopicPartition] | None = None,
        *,
        to: Target | None = None,
        timestamp_ms: int | None = None,
        shift_by: int | None = None,
        from_file: str | os.PathLike[str] | None = None,
        metadata: str = "",
        force: bool = False,
        dry_run: bool = False,
    ) -> builtins.list[OffsetReset]:
        """Move a group's offsets, all of them at once or none.

        An offset outside of its partition's log becomes the nearest one inside. A group that does
        not exist yet is created, if ``topics`` or offsets by partition are given.

        Args:
            group_id: the group.
            topics: names of topics (all their partitions) and single partitions; None for all
                partitions that the group has offsets for and that still exist.
            to: 'earliest', 'latest' (what a reader would see now: the end of a consistent cut),
                'current' (where the group is, 'latest' where it has no offset), an offset, or
                offsets by partition.
            timestamp_ms: to the first record at or after this time; 'latest' where there is none.
            shift_by: move by this many offsets; back if negative.
            from_file: a CSV file of ``topic,partition,offset``, as ``kafka-consumer-groups
                --export`` writes it (also with the group in front).
            metadata: a string to store with the offsets.
            force: also if the group has members. They are not told: their commits in transactions
                that began before are refused; other commits move the offsets back to where they
                read.
            dry_run: only say what would change, or raise what would be raised.

        Returns:
            By partition, where the group was and where it is now (or would be).

        Raises:
            ConcurrentTransactions: an undecided transaction is about to move one of them.
            CommitFailed: the group moved in the meantime; nothing was changed.
            GroupNotEmpty: the group has members, and ``force`` is False.
            InvalidOption, NoOffsetForPartition, UnknownTopicOrPartition: see the message.
        """
        target = ResetTarget(to, timestamp_ms, shift_by, from_file)
        log = self._logs.fresh_group(group_id)
        plan = plan_reset(self._logs, log, topics, target)
        commits = []
        for reset in plan.resets:
            where = TopicPartition(reset.topic, reset.partition)
            commits.append(
                OffsetCommit(
                    *where,
                    reset.after,
                    check_offset(where, reset.after, metadata).metadata,
                    compare=True,
                    start=reset.before,
                    topic_id=plan.topic_ids[reset.topic],
                    start_entry=plan.entries[where],
                )
            )
        if commits and dry_run:
            log.check_commit(commits, force=force)
        elif commits:
            log.commit(commits, force=force)
            log.checkpoint_if_due()
        return [*plan.resets]

    @writes
    def delete(self, group_id: str, *, dry_run: bool = False) -> None:
        """Delete all offsets of a group, as if it had never read anything.

        With ``dry_run`` it only raises what the deletion would.

        Raises:
            GroupIdNotFound: it has no offsets.
            GroupNotEmpty: it has members.
            ConcurrentTransactions: an undecided transaction is about to move one of them.
        """
        log = self._logs.fresh_group(group_id)
        if dry_run:
            log.check_deletion()
        else:
            log.delete()

    @writes
    def delete_offsets(
        self,
        group_id: str,
        partitions: str | Iterable[str | TopicPartition],
        *,
        dry_run: bool = False,
    ) -> None:
        """Delete a group's offsets of single partitions, or of all partitions of a topic.

        Partitions for which it has no offset are skipped, also if their topic is gone. With
        ``dry_run`` it only raises what the deletion would.

        Raises:
            GroupIdNotFound: it has no offsets at all.
            GroupNotEmpty: it has members that read these topics.
            ConcurrentTransactions: an undecided transaction is about to move one of them.
        """
        log = self._logs.fresh_group(group_id)
        with log.lock:
            state = log.state
            known = {*state.partitions()}
        doomed: set[TopicPartition] = set()
        for item in [partitions] if isinstance(partitions, str) else partitions:
            if isinstance(item, str):
                doomed |= {where for where in known if where.topic == item}
            else:
                doomed.add(TopicPartition(*item))
        if dry_run:
            log.check_deletion(sorted(doomed & known))
        else:
            log.delete(sorted(doomed & known))

    @writes
    def remove_members(
        self, group_id: str, members: str | Iterable[str] | None = None
    ) -> tuple[str, ...]:
        """Remove members from a group: those that died, or hang. One that is alive joins again.

        Args:
            group_id: the group.
            members: member or instance ids, or a single one; None for all.

        Returns:
            The member ids of those that were removed.

        Raises:
            GroupIdNotFound: the group has neither members nor offsets.
        """
        log = self._existing_group(group_id)
        with log.lock:
            state = log.state
            everybody = [*state.membership.members]
        given = [members] if isinstance(members, str) else members
        chosen = everybody if given is None else [*given]
        return log.remove_members([one for one in chosen if one], "removed by an operator")

    @writes
    def expire(
        self, *, older_than_ms: int | None = None, dry_run: bool = False
    ) -> builtins.list[str]:
        """Delete groups that have been idle for longer than ``offsets.retention.ms``.

        Since their last commit, and, as in Kafka, since their last member left or died. By every
        clock: those of the processes which wrote that, this one's and the storage's. Nothing
        expires by itself: :meth:`txnlog.Store.maintain` does this, too.

        Args:
            older_than_ms: instead of the store's ``offsets.retention.ms``.
            dry_run: only say which ones would be deleted.

        Returns:
            The ids of the groups that were deleted; empty if offsets are kept for ever.

        Raises:
            InvalidOption: ``older_than_ms`` is no number of at least 0.
        """
        from txnlog.admin.expiry import expire_groups, times_when_needed

        logs = logs_for(self._logs, dry_run=dry_run)
        times = times_when_needed(logs, dry_run=dry_run)
        found = expire_groups(logs, times, retention_ms=older_than_ms, dry_run=dry_run)
        return [group.name for group in found]


def _topics_of(log: GroupLog) -> set[str]:
    """The topics that a group has offsets in, or is about to have."""
    with log.lock:
        group = log.state
        pending = {moved.topic for entry in group.pending.values() for moved in entry.offsets}
        return {*group.committed} | pending
