"""A consumer's share of its group's partitions: taking and giving partitions, in `poll`.

A thread sends heartbeats. Changes by a rebalance reach the application only in its polls: its
listener is called there, and nowhere else.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Sized
from contextlib import suppress
from typing import Protocol

from txnlog.clock import Signal, SystemClock
from txnlog.errors import (
    IllegalState,
    StorageError,
    TxnlogError,
    UnknownMemberId,
    UnknownTopicOrPartition,
)
from txnlog.groups.member import Member, MemberSettings
from txnlog.log.open_logs import Logs
from txnlog.names import TopicPartition
from txnlog.state.membership import AssignedTopic, Committer

_ROUNDS = 8
"""Rebalances in one poll: each may release partitions, which lets the next one begin."""
_LEAVING_S = 5.0
"""How long the end of a process waits for unclosed consumers to leave."""

_logger = logging.getLogger(__name__)


class ConsumerRebalanceListener:
    """An application's callbacks when partitions come and go.

    Called within the consumer's own calls. Subclass it and override methods as needed. An error in
    a method leaves the consumer's call, and the rebalance goes on in the next one.
    """

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        """Called before partitions are taken away: commit offsets of what was read of them.

        Other members get them afterwards.
        """

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        """Called when partitions were given to this consumer, besides those that it has.

        It may seek in them.
        """

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        """Called when partitions may have another owner already.

        Their offsets can no longer be committed.
        """
        self.on_partitions_revoked(partitions)


class PartitionReader(Protocol):
    """The reader of the partitions: the consumer."""

    def _take(self, partitions: Collection[TopicPartition]) -> None:
        """Begin to read these too, from the group's offsets."""

    def _hand_over(self, partitions: Collection[TopicPartition]) -> None:
        """Commit the offsets of partitions that are about to be revoked, with auto commit."""

    def _drop(self, partitions: Collection[TopicPartition]) -> None:
        """Stop reading these."""


class SeenTopic(Protocol):
    """A topic as a reader has pinned it."""

    @property
    def topic(self) -> str: ...
    @property
    def topic_id(self) -> str: ...
    @property
    def partitions(self) -> Sized: ...


class Rebalancer:
    """One consumer's partitions of a group.

    ``on_news`` is called by its thread when the group has something for the next poll.
    """

    def __init__(
        self, logs: Logs, group_id: str, settings: MemberSettings, on_news: Callable[[], object]
    ) -> None:
        self._logs = logs
        self._on_news = on_news
        self._group_id = group_id
        self._settings = settings
        self._topics: tuple[str, ...] = ()
        self._listener = ConsumerRebalanceListener()
        self._owned: dict[TopicPartition, int] = {}
        self._member: Member | None = None
        self._thread: _HeartbeatThread | None = None
        self._process = 0
        self._joining: tuple[int, Member] | None = None
        """Who is about to join, and its process."""
        self._calling = False

    @property
    def is_calling(self) -> bool:
        """Whether its listener is being called."""
        return self._calling

    @property
    def has_joined(self) -> bool:
        """Whether it has ever been a member of the group."""
        return self._process != 0

    @property
    def committer(self) -> Committer | None:
        """The identity by which the consumer commits; None if it has not joined.

        Without one, a commit is refused if the group has members. Raises UnknownMemberId if it is
        no longer a member.
        """
        if not self.has_joined:
            return None
        if self._member is None or self._process != os.getpid():
            raise UnknownMemberId(
                f"this consumer is not a member of group {self._group_id!r} any more: poll first, "
                "which joins it again"
            )
        return self._member.committer

    def subscribe(self, topics: Iterable[str], listener: ConsumerRebalanceListener | None) -> None:
        """Share in these topics: from the next poll on, if it is not a member yet."""
        self._listener = listener or ConsumerRebalanceListener()
        self.change_topics(topics)

    def change_topics(self, topics: Iterable[str]) -> None:
        """Share in other topics from now on, with the same listener."""
        self._topics = tuple(topics)
        with suppress(UnknownMemberId):  # the next poll joins, with these
            if self._joining is not None:
                self._joining[1].subscribe(self._topics)
            if self._member is not None and self._process == os.getpid():
                self._member.subscribe(self._topics)

    def named_topics(self) -> Collection[str]:
        """The topics that members subscribe to; the same object until that changes."""
        return () if self._member is None else self._member.named_topics()

    def poll(self, reader: PartitionReader) -> None:
        """Join the group, or take this consumer's part in a rebalance. Otherwise costs nothing.

        Raises FencedInstanceId: a newer consumer has taken its ``group_instance_id`` over.
        InconsistentGroupProtocol: the members have no assignor in common.
        """
        if self._calling:
            return  # a listener calls the consumer
        member = self._member
        if member is not None and self._process == os.getpid():
            self._tell(member)
            if not member.has_news():
                return
        self._calling = True
        try:
            for _ in range(_ROUNDS):
                if not self._take_part(reader):
                    return
        except BaseException:
            if self._member is not None:
                self._member.look_again()
            raise
        finally:
            self._calling = False

    def keep_up(self) -> bool:
        """Count as polling, while a poll waits; returns whether there is news, for :meth:`poll`."""
        member = self._member
        if member is None or self._process != os.getpid() or self._calling:
            return False
        self._tell(member)
        return member.has_news()

    def pause_s(self) -> float:
        """How long a poll may wait, in s, until it calls :meth:`keep_up`."""
        longest_s = self._settings.max_poll_interval_ms / 2000
        return longest_s if self._member is None else min(longest_s, self._member.pause_s())

    def _tell(self, member: Member) -> None:
        """Record that the application polls; send a heartbeat if one is late.

        One is late if there is no thread that sends them, or if the whole process was held up. If
        the thread met an error, the heartbeat is tried here once more, so that the application gets
        the error.
        """
        member.polled()
        self._keep_beating(member)
        thread = self._thread
        late_s = -member.due_in_s()
        if late_s >= (0 if thread is None else member.pause_s()) or (thread and thread.has_failed):
            member.tick()
            if thread is not None:
                thread.has_failed = False

    def _keep_beating(self, member: Member) -> None:
        """Start the thread, if it has not started: an interrupt may have come between."""
        if self._thread is None and isinstance(self._logs.clock, SystemClock):
            self._thread = _HeartbeatThread(member, self, self._on_news)
        if self._thread is not None:
            self._thread.start()

    def _take_part(self, reader: PartitionReader) -> bool:
        """One step; whether there may be another one."""
        member = self._member
        if member is None or self._process != os.getpid():
            # A forked child is another consumer: its inherited partitions are its parent's.
            self._lose(reader)
            member = self._new_member()
            member.polled()
            try:
                member.join()
            except UnknownMemberId:
                self._joining = None  # it had joined, failed then, and was taken for dead
                return True
            self._member, self._process = member, os.getpid()
            self._joining = self._thread = None
            self._keep_beating(member)
        if not member.has_news():
            return False
        view = member.view()
        if not view.is_member:
            self._stop()
            member.leave("lost")
            self._member = None
            self._lose(reader)
            return True
        gone = [where for where, since in self._owned.items() if view.owned.get(where) != since]
        if gone:
            reader._hand_over(gone)  # noqa: SLF001 - the consumer's own part of this
            self._revoke(reader, gone)
        if view.generation > member.followed:
            member.follow(view.generation, at_once=view.must_release)
        come = [where for where in view.owned if where not in self._owned]
        if come:
            # First: what it has, and does not read, nobody would.
            reader._take(come)  # noqa: SLF001 - the consumer's own part of this
            self._owned |= {where: view.owned[where] for where in come}
            self._listener.on_partitions_assigned(come)
        return True

    def _new_member(self) -> Member:
        """Return one member until it has joined: an interrupted one may be in the group already."""
        known = self._joining
        if known is None or known[0] != os.getpid():
            member = Member(self._logs, self._group_id, self._settings, self._topics)
            known = self._joining = os.getpid(), member
        return known[1]

    def _revoke(self, reader: PartitionReader, gone: Collection[TopicPartition]) -> None:
        """Tell the listener: of partitions that no longer exist only once, if that is an error.

        It may ask for their positions, and would at each poll.
        """
        try:
            self._listener.on_partitions_revoked(gone)
        except UnknownTopicOrPartition:
            counts = {topic: self._partition_count(topic) for topic in {w.topic for w in gone}}
            self._let_go(reader, [w for w in gone if w.partition >= counts[w.topic]])
            raise
        self._let_go(reader, gone)

    def _partition_count(self, topic: str) -> int:
        """How many partitions a topic has now; none if it was deleted."""
        try:
            return self._logs.topic_spec(topic).partitions
        except UnknownTopicOrPartition:
            return 0

    def _lose(self, reader: PartitionReader) -> None:
        lost = [*self._owned]
        self._let_go(reader, lost)
        if lost:
            self._listener.on_partitions_lost(lost)

    def _let_go(self, reader: PartitionReader, partitions: Collection[TopicPartition]) -> None:
        # First: if it is interrupted then, they are taken away once more.
        reader._drop(partitions)  # noqa: SLF001 - the consumer's own part of this
        gone = {*partitions}
        self._owned = {where: at for where, at in self._owned.items() if where not in gone}

    def saw(
        self, reader: PartitionReader, asked: Collection[str], topics: Iterable[SeenTopic]
    ) -> bool:
        """Tell the group which topics exist; returns whether that changed this consumer's share.

        ``asked``: the subscribed topics that were looked for, found or not.
        """
        if self._member is None:
            return False
        if not self._calling:
            self._tell(self._member)
        known = {seen.topic: AssignedTopic(seen.topic_id, len(seen.partitions)) for seen in topics}
        self._member.saw_topics(asked, known)
        if not self._member.has_news():
            return False
        before = dict(self._owned)
        self.poll(reader)
        return before != self._owned

    def check_may_close(self, what: str) -> None:
        """Raise IllegalState if the listener calls it."""
        if self._calling:
            raise IllegalState(f"{what} by a rebalance listener: do it when poll has returned")

    def close(self, reader: PartitionReader | None = None, *, reason: str = "closed") -> None:
        """Leave the group; the partitions are revoked first. A static member stays in it.

        ``reader``: None if it is gone. ``reason``: for readers of the group's log.
        """
        member = self._member
        self._stop()
        if self._joining is not None and self._joining[0] == os.getpid():
            self._joining[1].close(reason)  # it was interrupted, and may be in the group
            self._joining = None
        if member is None or self._process != os.getpid():
            self._member = None
            return
        try:
            if reader is not None and self._owned:
                gone = [*self._owned]
                self._calling = True
                # Its commits are the member's.
                self._revoke(reader, gone)
        finally:
            self._calling = False
            member.close(reason)
            self._member = None

    def _stop(self) -> None:
        if self._thread is not None:
            self._thread.stop()
            self._thread = None


class _HeartbeatThread:
    """Sends heartbeats while its owner lives; leaves the group when it is collected, or at exit.

    Only with the machine's clock: with another one polls do its work.
    """

    def __init__(self, member: Member, owner: Rebalancer, on_news: Callable[[], object]) -> None:
        self._member = member
        self._on_news = on_news
        self._woken = Signal()
        self._abandoned = False
        self.has_failed = False
        """Whether it met an error since a poll has sent a heartbeat: one that may not pass."""
        # The owner may be collected anywhere, even while this group's log is read, or this thread
        # waits: so only the thread leaves, and the signal takes no lock.
        self._end = weakref.finalize(owner, self.abandon)
        self._end.atexit = False
        self._thread = threading.Thread(
            target=self._run, name=f"txnlog-heartbeat-{member.member_id[:8]}", daemon=True
        )

    def start(self) -> None:
        """Start it. Does nothing if it was started, even if an interrupt came before that's end."""
        if self._thread.ident is None:
            _RUNNING.add(self)
            self._thread.start()

    def stop(self) -> None:
        """End it."""
        self._woken.set()
        self._end.detach()

    def abandon(self) -> None:
        """End it, and leave the group: its consumer was never closed."""
        self._abandoned = True
        self._woken.set()

    def join(self) -> None:
        """Wait for its end, but not for long."""
        self._thread.join(_LEAVING_S)

    def _run(self) -> None:
        while True:
            self._woken.wait(self._member.due_in_s())
            if self._woken.is_set():
                break
            try:
                self._member.tick()
                if self._member.has_news():
                    self._on_news()
            except StorageError as error:
                # The beat that failed counts as one: the next one is due an interval later.
                _logger.warning("a heartbeat of group %r failed: %s", self._member.group_id, error)
            except Exception:  # an assignor of the user's may raise anything
                # It goes on: the application may work for long until its next poll.
                if not self.has_failed:
                    _logger.exception("a heartbeat of group %r failed", self._member.group_id)
                self.has_failed = True
        if self._abandoned:
            try:
                self._member.close("never closed")
            except TxnlogError as error:
                _logger.warning("a consumer of %r did not leave: %s", self._member.group_id, error)


_RUNNING: weakref.WeakSet[_HeartbeatThread] = weakref.WeakSet()


@atexit.register
def _leave_at_exit() -> None:
    running = [*_RUNNING]
    for thread in running:
        thread.abandon()
    for thread in running:
        thread.join()
