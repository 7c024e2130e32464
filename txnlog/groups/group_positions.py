"""A consumer's offsets in its group: those committed, and those from which it began to read.

Offsets that are committed in a transaction are compared with where their reader began, so two
readers of the same records cannot both commit.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from txnlog.errors import TxnlogError
from txnlog.log.group_metadata import GroupMetadata, OffsetAndMetadata, check_offset
from txnlog.log.open_logs import Logs
from txnlog.names import TopicPartition
from txnlog.state.group import CommittedOffset, GroupState, LoggedPosition, OffsetCommit
from txnlog.state.membership import Committer
from txnlog.storage.threads import submit

CommitCallback: TypeAlias = Callable[[Mapping[TopicPartition, int], TxnlogError | None], object]
"""Called with the offsets of a commit, and with the error if they were not committed."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """A commit in the thread, of the process that began it."""

    commits: list[OffsetCommit]
    future: Future[int | None]
    callback: CommitCallback | None
    pid: int


class GroupPositions:
    """The starting offsets of one consumer, by partition, shared with its group metadata.

    ``topic_ids`` are those of the topics as the consumer has read them.
    """

    def __init__(self, logs: Logs, group_id: str, topic_ids: dict[str, str]) -> None:
        self._logs = logs
        self._group_id = group_id
        self._topic_ids = topic_ids
        self._starts: dict[TopicPartition, int | None] = {}
        self._start_entries: dict[TopicPartition, int] = {}
        self._looked_up: dict[TopicPartition, tuple[LoggedPosition, LoggedPosition]] = {}
        """The group's offset when it was asked for, and the start known then."""
        self._under_way: _UnderWay | None = None
        self._reports: deque[
            tuple[CommitCallback | None, dict[TopicPartition, int], TxnlogError | None]
        ] = deque()
        """What became of commits that were made in the thread, and who is to be told."""

    def read(self) -> GroupState:
        """A copy of the group's committed offsets as they are now."""
        self.finish()
        log = self._logs.fresh_group(self._group_id)
        with log.lock:
            state = log.state
            return state.copy_positions()

    def keep(self, partitions: Collection[TopicPartition]) -> None:
        """Forget where it began in all other partitions."""
        self.finish()
        for where in self._starts.keys() - {*partitions}:
            self.forget(where)

    def forget(self, where: TopicPartition) -> None:
        """Forget where it began in a partition."""
        self.finish()
        self._starts.pop(where, None)
        self._start_entries.pop(where, None)
        self._looked_up.pop(where, None)

    def start_from(self, where: TopicPartition, found: LoggedPosition) -> None:
        """Begin at the group's offsets; metadata handed out before follows."""
        self._starts[where] = found.offset
        self._start_entries.pop(where, None)
        if found.entry is not None:
            self._start_entries[where] = found.entry

    def begin_anew(self, where: TopicPartition, offset: int) -> None:
        """Begin at the offset that :meth:`committed` returned, if it is the one sought."""
        self.finish()
        if where not in self._starts:
            self._note_start(where)
        if where not in self._looked_up:
            return
        found, known = self._looked_up.pop(where)
        # Not if a transaction of ours has moved the group since.
        if found.offset in (None, offset) and self._start(where) == known:
            self.start_from(where, found)

    def committed(self, where: TopicPartition) -> CommittedOffset | None:
        """See :meth:`txnlog.Consumer.committed`."""
        self.finish()
        topic_id = self._topic_id(where.topic)
        log = self._logs.fresh_group(self._group_id)
        with log.lock:
            state = log.state
            found = state.offset_of(*where, topic_id)
            logged = state.logged_position(*where, topic_id)
        self._looked_up[where] = (logged, self._start(where))
        return found

    def commit(
        self,
        given: Mapping[TopicPartition, int | OffsetAndMetadata],
        metadata: str,
        committer: Committer | None,
    ) -> None:
        """Commit these offsets, and go on from them. See :meth:`txnlog.Consumer.commit`."""
        self.finish()
        commits = self._checked(given, metadata, committer)
        self._note(commits, self._append(commits, committer))

    def commit_async(
        self,
        given: Mapping[TopicPartition, int | OffsetAndMetadata],
        metadata: str,
        committer: Committer | None,
        callback: CommitCallback | None,
    ) -> None:
        """Commit these in a thread, after what is under way. See ``Consumer.commit_async``."""
        self.finish()
        commits = self._checked(given, metadata, committer)
        thread = ThreadPoolExecutor(1, thread_name_prefix="txnlog-commit")
        future = submit(thread, partial(self._append, commits, committer))
        thread.shutdown(wait=False)
        self._under_way = _UnderWay(commits, future, callback, os.getpid())

    def finish(self) -> None:
        """Wait for the commit that is under way, if any: the next one begins at its offsets."""
        waiting = self._under_way
        if waiting is None:
            return
        if waiting.pid != os.getpid():  # a forked child has not got the thread
            self._under_way = None
            return
        error = waiting.future.exception()
        self._under_way = None
        if error is None:
            self._note(waiting.commits, waiting.future.result())
        elif not isinstance(error, TxnlogError):
            raise error
        offsets = {TopicPartition(c.topic, c.partition): c.offset for c in waiting.commits}
        self._reports.append((waiting.callback, offsets, error))

    def report(self, *, wait: bool = False) -> None:
        """Call the callbacks of commits that have ended, in the order in which these were made.

        With ``wait`` the commit that is under way is waited for.
        """
        if self._under_way is not None and (wait or self._under_way.future.done()):
            self.finish()
        while self._reports:
            callback, offsets, error = self._reports.popleft()
            if callback is not None:
                callback(offsets, error)
            elif error is not None:
                _logger.warning("offsets were not committed: %s", error)

    def _checked(
        self,
        given: Mapping[TopicPartition, int | OffsetAndMetadata],
        metadata: str,
        committer: Committer | None,
    ) -> list[OffsetCommit]:
        offsets = {where: check_offset(where, at, metadata) for where, at in given.items()}
        topic_ids = {topic: self._topic_id(topic) for topic in {w.topic for w in offsets}}
        if committer is None:  # a member commits for what the group has given it alone
            # It has read those in which it began.
            self._logs.check_partitions([w for w in offsets if w not in self._starts], topic_ids)
        return [
            OffsetCommit(*where, at.offset, at.metadata, topic_id=topic_ids[where.topic])
            for where, at in sorted(offsets.items())
        ]

    def _append(self, commits: list[OffsetCommit], committer: Committer | None) -> int | None:
        """Commit; returns the entry's number, or None."""
        if not commits:
            return None
        log = self._logs.fresh_group(self._group_id)
        number = log.commit(commits, committer=committer, refreshed=True)
        self._logs.tidy([log])
        return number

    def _note(self, commits: Iterable[OffsetCommit], number: int | None) -> None:
        """Go on from what was committed."""
        if number is not None:
            for commit in commits:
                where = TopicPartition(commit.topic, commit.partition)
                self.start_from(where, LoggedPosition(commit.offset, number))

    def metadata(
        self, partitions: Iterable[TopicPartition], committer: Committer | None
    ) -> GroupMetadata:
        """Where it began in these partitions; if not known yet, the current offsets."""
        self.finish()
        for where in partitions:
            if where not in self._starts:
                self._note_start(where)
        return GroupMetadata(
            self._group_id, self._starts, self._topic_ids, self._start_entries, committer
        )

    def _note_start(self, where: TopicPartition) -> None:
        self.committed(where)
        self.start_from(where, self._looked_up[where][0])

    def _start(self, where: TopicPartition) -> LoggedPosition:
        return LoggedPosition(self._starts.get(where), self._start_entries.get(where))

    def _topic_id(self, topic: str) -> str:
        """The id of the topic as this consumer has read it; otherwise its current id."""
        return self._topic_ids.get(topic) or self._logs.topic_spec(topic).topic_id
