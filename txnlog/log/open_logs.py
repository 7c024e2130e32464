"""The logs of one store that are open in this process: one object per topic and per group.

They are shared by every producer, consumer and scan of a :class:`~txnlog.store.Store`, so each
of them refreshes by one listing whatever the others have read before.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Generic, Literal, TypeVar

from txnlog import names
from txnlog.clock import Clock, Signal
from txnlog.config import StoreConfig
from txnlog.errors import InvalidGroupId, InvalidTopic
from txnlog.log import chapters
from txnlog.log.chapters import FreeingRule
from txnlog.log.group_log import GroupLog
from txnlog.log.sequence_log import Recent, check_case
from txnlog.log.settlement import Settlement
from txnlog.log.state_log import LogPolicy, StateLog
from txnlog.log.topic_log import TopicLog
from txnlog.log.transaction_log import TransactionLog
from txnlog.log.uploads import TopicSpec
from txnlog.names import TopicPartition
from txnlog.storage.base import Storage
from txnlog.storage.fork_safe_lock import ForkSafeLock

SKEW_MS = 60_000
"""How wrong the times of one transaction's entries may be without harm to a cut."""
_TIMEOUTS = 4
"""A cut falls behind the oldest open transaction by one timeout at most, what it hides there began
one before, and the open one is ended after one; and one for good measure."""
_OPEN: weakref.WeakSet[Logs] = weakref.WeakSet()

L = TypeVar("L", bound=StateLog[Any, Any])


class _Opened(Generic[L]):
    """Logs by name: one object for each while anybody uses it, or has asked for it lately."""

    def __init__(self, clock: Clock) -> None:
        self._recent = Recent[str, L](clock)
        self._in_use: weakref.WeakValueDictionary[str, L] = weakref.WeakValueDictionary()

    def get(self, name: str) -> L | None:
        """The open log of this name."""
        log = self._recent.get(name)
        if log is None and (log := self._in_use.get(name)) is not None:
            self._recent[name] = log
        return log

    def add(self, log: L) -> None:
        """Add one that was opened just now."""
        self._recent[log.name] = self._in_use[log.name] = log


class Logs:
    """Opens each log once, and settles its undecided entries."""

    def __init__(self, storage: Storage, config: StoreConfig, clock: Clock) -> None:
        self.storage = storage
        self.config = config
        self.clock = clock
        is_looked_at = storage.lists_whole_folders()
        most_closed = chapters.MOST_CLOSED if is_looked_at else None
        freeing = FreeingRule(config.log_cleanup_age_ms, most_closed)
        self.transactions = TransactionLog(storage, clock, freeing)
        self.settlement = Settlement(
            storage, self.transactions, clock, self, config.transaction_max_timeout_ms
        )
        if most_closed is not None:
            stay_open = chapters.STAY_OPEN
            freeing = replace(freeing, most_closed=most_closed - stay_open, stay_open=stay_open)
        self._policy = LogPolicy(
            freeing=freeing,
            recent_ms=_TIMEOUTS * config.transaction_max_timeout_ms + SKEW_MS,
        )
        self._lock = threading.Lock()
        self._forget()
        self.upkeep: Callable[[Logs, TopicLog], None] | None = None
        """Further upkeep from time to time; raises nothing."""
        _OPEN.add(self)

    def __reduce__(self) -> tuple[type[Logs], tuple[object, ...]]:
        # Travel as a place; what they have read is read again where they arrive.
        return Logs, (self.storage, self.config, self.clock)

    def reopen(self) -> None:
        """Drop every log, in a forked child, and read it again when it is asked for.

        A thread of the parent, which the child does not have, may have held its lock just then, or
        have folded half of the entries it had read.
        """
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._topics = _Opened[TopicLog](self.clock)
        self._groups = _Opened[GroupLog](self.clock)

    def topic(self, topic: str) -> TopicLog:
        """The log of a topic, whether it exists or not. Raises InvalidTopic."""
        with self._lock:
            log = self._topics.get(topic) if isinstance(topic, str) else None
            if log is None:
                folder = names.topic_folder(topic)
                check_case(self.storage, folder, f"topic {topic!r}", InvalidTopic)
                log = TopicLog(
                    self.storage,
                    topic,
                    self.clock,
                    self._policy,
                    self.config.producer_id_expiration_ms,
                )
                self._topics.add(log)
            return log

    def group(self, group_id: str) -> GroupLog:
        """The log of a consumer group, whether it exists or not. Raises InvalidGroupId."""
        with self._lock:
            log = self._groups.get(group_id) if isinstance(group_id, str) else None
            if log is None:
                folder = names.group_log(group_id)
                check_case(self.storage, folder, f"group {group_id!r}", InvalidGroupId)
                log = GroupLog(
                    self.storage,
                    group_id,
                    self.clock,
                    self._policy,
                    self._topic_id_of,
                    self.confirm_ends,
                )
                self._groups.add(log)
            return log

    def _topic_id_of(self, topic: str) -> str | None:
        """The id of a topic as it is now; None if it was deleted."""
        log = self.topic(topic)
        log.refresh()
        with log.lock:
            state = log.state
            return state.topic_id

    def confirm_ends(self, ends: Iterable[tuple[str, int, int]]) -> None:
        """See :meth:`TopicLog.confirm_ends`: topics, partitions and offsets."""
        by_topic: dict[str, dict[int, int]] = {}
        for topic, partition, end in ends:
            by_topic.setdefault(topic, {})[partition] = end
        self.storage.gather(
            [partial(self.topic(topic).confirm_ends, found) for topic, found in by_topic.items()]
        )

    def log(self, kind: Literal["topic", "group"], name: str) -> StateLog[Any, Any]:
        """The log that an entry reference names."""
        return self.topic(name) if kind == "topic" else self.group(name)

    def topic_spec(self, topic: str) -> TopicSpec:
        """What an uploader must know about a topic. Raises UnknownTopicOrPartition."""
        log = self.topic(topic)
        log.refresh()
        return log.spec()

    def check_partitions(
        self, partitions: Iterable[TopicPartition], topic_ids: Mapping[str, str]
    ) -> None:
        """Raise UnknownTopicOrPartition for a partition that its topic does not have.

        An offset of it would count as soon as the topic has it. The storage is asked only about
        numbers beyond those that are known. ``topic_ids`` are those that the topics had: of one
        that is gone no partition is refused, since its offsets count nowhere.
        """
        numbers: dict[str, list[int]] = {}
        for where in partitions:
            numbers.setdefault(where.topic, []).append(where.partition)
        for topic, chosen in numbers.items():
            log = self.topic(topic)
            with log.lock:
                state = log.state
                if state.topic_id == topic_ids[topic] and max(chosen) < len(state.partitions):
                    continue
            log.refresh()
            with log.lock:
                state = log.state
                if state.topic_id == topic_ids[topic]:
                    state.check_partitions(topic, chosen)

    def tidy(self, logs: Iterable[StateLog[Any, Any]]) -> None:
        """Upkeep by a writer after its append: end hanging transactions, put a checkpoint.

        Waiting readers of this process are woken first. A writer that has put a checkpoint also
        does the :attr:`upkeep` of its topic. Failures are logged, and left to the next writer.
        """
        chosen = list(logs)
        if any(isinstance(log, TopicLog) for log in chosen):
            announce(self.storage.url)
        self.settlement.settle_stuck(chosen)
        for log in chosen:
            if log.checkpoint_if_due() and self.upkeep and isinstance(log, TopicLog):
                self.upkeep(self, log)

    def fresh_topic(self, topic: str) -> TopicLog:
        """A topic's log, refreshed and settled. Raises UnknownTopicOrPartition if there is none."""
        log = self.topic(topic)
        log.refresh()
        with log.lock:
            state = log.state
            state.check_exists(topic)
        self.settlement.settle([log])
        return log

    def fresh_group(self, group_id: str) -> GroupLog:
        """A group's log, refreshed and settled."""
        log = self.group(group_id)
        log.refresh()
        self.settlement.settle([log])
        return log


def _after_fork() -> None:
    for logs in list(_OPEN):
        logs.reopen()


os.register_at_fork(after_in_child=_after_fork)


# -- writers wake readers that wait in the same process ------------------------------------------
# Only a hint that saves waiting: readers also look by themselves, and so find what others write.

_LOCK = ForkSafeLock()
_WAITING: defaultdict[str, weakref.WeakSet[Signal]] = defaultdict(weakref.WeakSet)
"""By the store's URL, without credentials. Two stores of one URL may wake each other needlessly."""


def listen(url: str, event: Signal) -> None:
    """Set this event whenever a writer of this process has appended to a topic of the store."""
    with _LOCK.mutex:
        for left in [known for known, waiting in _WAITING.items() if not waiting]:
            del _WAITING[left]
        _WAITING[url].add(event)


def announce(url: str) -> None:
    """Tell this process's waiting polls that something was appended or decided in a store."""
    with _LOCK.mutex:
        waiting: Iterable[Signal] = list(_WAITING.get(url, ()))
    for event in waiting:
        event.set()
