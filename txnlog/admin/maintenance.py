"""All periodic work at once: ``Store.maintain``.

Several processes may do each part at the same time, and stop anywhere.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, Protocol

from txnlog import names
from txnlog.admin.compaction.compact import Compaction, compact_topic
from txnlog.admin.compaction.survivors import DEFAULT_MEMORY_BYTES
from txnlog.admin.merging import Merge, merge_topic
from txnlog.admin.retention import RetentionDeletion, apply_retention
from txnlog.admin.rewrite_tasks import TaskRunner
from txnlog.admin.vacuum import (
    Ages,
    FileDeletion,
    FileRetirement,
    check_orphan_age,
    storage_time_ms,
    vacuum_loose_files,
    vacuum_topic,
)
from txnlog.config import TopicConfig, check_whole_number
from txnlog.errors import InvalidOption, StorageError, TxnlogError, UnknownTopicOrPartition
from txnlog.log.open_logs import Logs
from txnlog.replicas.opening import prepare_return
from txnlog.replicas.placement import places
from txnlog.replicas.reassigning import Reassigned, reassign
from txnlog.replicas.replicated_storage import find_replicated
from txnlog.replicas.returning import ReplicaReturn, return_roots

Part = Literal[
    "replicas", "retention", "compaction", "merging", "vacuum", "transactional ids", "groups"
]

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Expiry:
    """A transactional id or a consumer group that was idle for so long that it has expired."""

    kind: Literal["transactional id", "group"]
    name: str


@dataclass(frozen=True, slots=True)
class MaintenanceFailure:
    """A part of the maintenance that failed; the others were still done.

    ``topic`` is None if it is not about one.
    """

    part: Part
    topic: str | None
    error: TxnlogError


MaintenanceStep = (
    RetentionDeletion
    | Compaction
    | Merge
    | FileDeletion
    | FileRetirement
    | Expiry
    | ReplicaReturn
    | Reassigned
    | MaintenanceFailure
)


@dataclass(frozen=True, slots=True)
class MaintenancePart:
    """What is done next: ``steps`` does it while it is taken.

    ``topic`` is None where it is not about one; else ``done`` topics of ``of`` were done before.
    """

    part: Part
    topic: str | None
    steps: Iterator[MaintenanceStep]
    done: int = 0
    of: int = 0


@dataclass(frozen=True, slots=True)
class Times:
    """The time by the earliest and by the latest clock: nothing may be deleted early by either."""

    earliest_ms: int
    latest_ms: int

    @classmethod
    def of(cls, own_ms: int, told_ms: int | None) -> Times:
        """By this process's clock and the storage's, if that has one."""
        told_ms = own_ms if told_ms is None else told_ms
        return cls(min(own_ms, told_ms), max(own_ms, told_ms))


class Expiring(Protocol):
    """The calls that expire transactional ids and groups."""

    def expire_transactional_ids(self, *, dry_run: bool = False) -> list[str]:
        """Forget the ids that were idle for too long."""
        ...

    def expire_groups(self, *, dry_run: bool = False) -> list[str]:
        """Forget the groups that were idle for too long."""
        ...


class Maintenance:
    """One run, of ``topics`` only if they are named.

    ``run_tasks`` runs the reads and uploads of compaction and merging; None: in this process.
    Raises InvalidOption, InvalidTopic.
    """

    def __init__(
        self,
        logs: Logs,
        admin: Expiring,
        topics: Sequence[str] | None,
        orphan_age_ms: int | None,
        *,
        dry_run: bool,
        run_tasks: TaskRunner | None = None,
    ) -> None:
        self._logs = logs
        self._admin = admin
        self._topics = None if topics is None else [names.check_topic(name) for name in topics]
        self._orphan_age_ms = check_orphan_age(orphan_age_ms)
        self._dry_run = dry_run
        self._run_tasks = run_tasks

    def steps(self) -> Iterator[MaintenanceStep]:
        """Do everything, and yield each thing when it is done.

        Failures are yielded too, and stop nothing else. Raises StorageError if the storage's time
        could not be read, or the topics not listed: then nothing was done.
        """
        for part in self.parts():
            yield from part.steps

    def parts(self) -> Iterator[MaintenancePart]:
        """The parts, in order: the steps of each are to be taken before the next part.

        Raises as ``steps`` does.
        """
        told_ms = self._storage_time_ms()
        ages = Ages(self._logs.storage, told_ms)
        own_ms = self._logs.clock.now_ms()
        times = Times.of(own_ms, told_ms)
        topics = self._topics
        if topics is None:
            yield self._part("replicas", None, self._return_replicas)
        named = self._logs.storage.list_folders(names.TOPICS) if topics is None else topics
        for number, topic in enumerate(named):
            for part in self._parts_of_topic(topic, times, ages):
                yield replace(part, done=number, of=len(named))
        if topics is None:
            yield self._part("vacuum", None, partial(self._vacuum_loose, ages))
            yield self._part("transactional ids", None, self._expire_ids)
            yield self._part("groups", None, self._expire_groups)

    def _storage_time_ms(self) -> int | None:
        try:
            return storage_time_ms(self._logs.storage, self._logs.clock)
        except StorageError as error:
            if not self._dry_run:
                raise
            # A read-only process can be told what would be done, if its own clock is right.
            _logger.warning("the storage's time is not known, so this process's is used: %s", error)
            return self._logs.clock.now_ms()

    def _parts_of_topic(self, topic: str, times: Times, ages: Ages) -> Iterator[MaintenancePart]:
        # Its own logs: a topic's memory is freed before the next one.
        logs = Logs(self._logs.storage, self._logs.config, self._logs.clock)
        yield self._part("retention", topic, partial(self._retain, logs, topic, times))
        yield self._part("compaction", topic, partial(self._compact, logs, topic, times))
        yield self._part("merging", topic, partial(self._merge, logs, topic))
        yield self._part("vacuum", topic, partial(self._vacuum, logs, topic, ages))

    def _retain(self, logs: Logs, topic: str, times: Times) -> Iterable[MaintenanceStep]:
        try:
            return apply_retention(logs, topic, times.earliest_ms, dry_run=self._dry_run)
        except UnknownTopicOrPartition:
            return []  # it was deleted, or never existed: vacuum tells

    def _compact(self, logs: Logs, topic: str, times: Times) -> Iterator[MaintenanceStep]:
        try:
            yield from compact_topic(
                logs,
                topic,
                times.earliest_ms,
                times.latest_ms,
                dry_run=self._dry_run,
                run_tasks=self._run_tasks,
            )
        except UnknownTopicOrPartition:
            return  # as above

    def _merge(self, logs: Logs, topic: str) -> Iterator[MaintenanceStep]:
        try:
            yield from merge_topic(logs, topic, dry_run=self._dry_run, run_tasks=self._run_tasks)
        except UnknownTopicOrPartition:
            return  # as above

    def _vacuum(self, logs: Logs, topic: str, ages: Ages) -> Iterator[MaintenanceStep]:
        try:
            yield from vacuum_topic(logs, topic, ages, self._orphan_age_ms, dry_run=self._dry_run)
        except UnknownTopicOrPartition:
            # An import that never got that far; or the log is lost, then everything else stays.
            if self._topics is not None:
                raise

    def _return_replicas(self) -> Iterator[MaintenanceStep]:
        storage = find_replicated(self._logs.storage)
        if storage is not None:
            came_back = False
            for one in return_roots(storage, prepare_return, dry_run=self._dry_run):
                came_back |= one.member is not None
                yield one
            if came_back and places(storage.agreement.epoch()):
                yield from reassign(storage.agreement)

    def _vacuum_loose(self, ages: Ages) -> Iterable[MaintenanceStep]:
        storage = self._logs.storage
        return vacuum_loose_files(storage, ages, self._orphan_age_ms, dry_run=self._dry_run)

    def _expire_ids(self) -> Iterable[MaintenanceStep]:
        expired = self._admin.expire_transactional_ids(dry_run=self._dry_run)
        return [Expiry("transactional id", name) for name in expired]

    def _expire_groups(self) -> Iterable[MaintenanceStep]:
        return [Expiry("group", n) for n in self._admin.expire_groups(dry_run=self._dry_run)]

    def _part(
        self, part: Part, topic: str | None, do: Callable[[], Iterable[MaintenanceStep]]
    ) -> MaintenancePart:
        return MaintenancePart(part, topic, self._try(part, topic, do))

    def _try(
        self, part: Part, topic: str | None, do: Callable[[], Iterable[MaintenanceStep]]
    ) -> Iterator[MaintenanceStep]:
        try:
            yield from do()
        except TxnlogError as error:
            yield MaintenanceFailure(part, topic, error)


def compact_now(
    logs: Logs, topic: str, *, dry_run: bool = False, max_memory_bytes: int | None = None
) -> list[Compaction]:
    """Compact the partitions of a topic that have new records. See ``Store.compact``."""
    memory_bytes = DEFAULT_MEMORY_BYTES if max_memory_bytes is None else max_memory_bytes
    check_whole_number(memory_bytes, "max_memory_bytes", InvalidOption, least=1 << 20)
    if not TopicConfig.of(logs.topic_spec(topic).config).compacts:
        raise InvalidOption(
            f"topic {topic!r} is not set to be compacted: alter its cleanup.policy to compact, "
            "or to compact,delete"
        )
    told_ms = logs.clock.now_ms() if dry_run else storage_time_ms(logs.storage, logs.clock)
    times = Times.of(logs.clock.now_ms(), told_ms)
    return [
        *compact_topic(
            logs,
            topic,
            times.earliest_ms,
            times.latest_ms,
            even_clean=True,
            dry_run=dry_run,
            memory_bytes=memory_bytes,
        )
    ]
