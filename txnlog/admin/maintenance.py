"""All periodic work at once: ``Store.maintain``.

Of a hook ``maintenance`` the module has ``PART``, a name, and ``steps``, which takes logs and
``dry_run`` and yields a StorageStep for each thing that is done.

Several processes may do each part at the same time, and stop anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from txnlog import names
from txnlog.admin.compaction.compact import Compaction, compact_topic
from txnlog.admin.compaction.survivors import DEFAULT_MEMORY_BYTES
from txnlog.admin.dry_run import logs_for
from txnlog.admin.expiry import Expiry, TransactionEnd, expire_groups, tend_ids, times_when_needed
from txnlog.admin.merge_topic import Merge, merge_topic
from txnlog.admin.publish import check_places, publish_as_set, table_here
from txnlog.admin.retention import RetentionDeletion, apply_retention
from txnlog.admin.rewrite import TaskRunner
from txnlog.admin.storage_step import StorageStep
from txnlog.admin.times import FutureRecords, Times
from txnlog.admin.vacuum import (
    Ages,
    FileDeletion,
    FileRetirement,
    check_orphan_age,
    vacuum_loose_files,
    vacuum_topic,
)
from txnlog.config import TopicConfig, check_whole_number
from txnlog.errors import InvalidOption, StorageError, TxnlogError, UnknownTopicOrPartition
from txnlog.hooks import registered
from txnlog.log.named_folders import list_topics
from txnlog.log.open_logs import Logs
from txnlog.tables.publication import TablePublication

Part: TypeAlias = str
"""Such as "retention", "compaction", "merging", "publishing", "vacuum" or "groups"."""


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
    | FutureRecords
    | Compaction
    | Merge
    | FileDeletion
    | FileRetirement
    | TransactionEnd
    | Expiry
    | StorageStep
    | TablePublication
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


class Maintenance:
    """One run, of ``topics`` only if they are named.

    ``publish`` has the places at which topics may be published.
    ``run_tasks`` runs the reads and uploads of compaction and merging; None: in this process.
    Raises InvalidOption, InvalidTopic.
    """

    def __init__(
        self,
        logs: Logs,
        topics: Sequence[str] | None,
        orphan_age_ms: int | None,
        *,
        dry_run: bool,
        publish: str | Sequence[str] = (),
        run_tasks: TaskRunner | None = None,
    ) -> None:
        self._logs = logs_for(logs, dry_run=dry_run)
        self._logs.storage.will_write()
        self._topics = None if topics is None else [names.check_topic(name) for name in topics]
        self._orphan_age_ms = check_orphan_age(orphan_age_ms)
        self._dry_run = dry_run
        self._places = check_places(publish)
        self._run_tasks = run_tasks
        self._unpublished: set[str] = set()
        self._unknown: set[str] = set()

    def steps(self) -> Iterator[MaintenanceStep]:
        """Do everything, and yield each thing when it is done.

        Failures are yielded too, and stop nothing else. Raises StorageError if the storage's time
        could not be read, or the topics not listed: then only what hooks do was done.
        """
        for part in self.parts():
            yield from part.steps

    def parts(self) -> Iterator[MaintenancePart]:
        """The parts, in order: the steps of each are to be taken before the next part.

        Raises as ``steps`` does.
        """
        topics = self._topics
        if topics is None:
            for hook in registered("maintenance"):
                steps = partial(hook.steps, self._logs, dry_run=self._dry_run)
                yield self._part(hook.PART, None, steps)
        # By a put, which may need the roots that were just brought back.
        times = times_when_needed(self._logs, dry_run=self._dry_run)()
        ages = Ages(self._logs.storage, times.told_ms)
        if topics is None:
            # Before topics: what nobody ends would keep their records from being deleted.
            yield self._part("transactional ids", None, partial(self._tend_ids, times))
        named = list_topics(self._logs.storage) if topics is None else topics
        for number, topic in enumerate(named):
            for part in self._parts_of_topic(topic, times, ages):
                yield replace(part, done=number, of=len(named))
        if topics is None:
            yield self._part("vacuum", None, partial(self._vacuum_loose, ages))
            expire = partial(expire_groups, self._logs, lambda: times, dry_run=self._dry_run)
            yield self._part("groups", None, expire)

    def _parts_of_topic(self, topic: str, times: Times, ages: Ages) -> Iterator[MaintenancePart]:
        # Its own logs: a topic's memory is freed before the next one.
        logs = Logs(self._logs.storage, self._logs.config, self._logs.clock)
        yield self._part("retention", topic, partial(self._retain, logs, topic, times))
        if topic not in self._unknown:  # a deleted one is there for ever
            yield self._part("compaction", topic, partial(self._compact, logs, topic, times))
            yield self._part("merging", topic, partial(self._merge, logs, topic))
            # Behind what makes other files, before what deletes those that the table has named.
            yield self._part("publishing", topic, partial(self._publish, logs, topic))
        yield self._part("vacuum", topic, partial(self._vacuum, logs, topic, ages))

    def _retain(self, logs: Logs, topic: str, times: Times) -> Iterable[MaintenanceStep]:
        try:
            return apply_retention(logs, topic, times.earliest_ms, dry_run=self._dry_run)
        except UnknownTopicOrPartition:
            self._unknown.add(topic)  # it was deleted, or never existed: vacuum tells
            return []

    def _compact(self, logs: Logs, topic: str, times: Times) -> Iterator[MaintenanceStep]:
        try:
            yield from compact_topic(
                logs,
                topic,
                times,
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

    def _publish(self, logs: Logs, topic: str) -> Iterator[MaintenanceStep]:
        try:
            done = publish_as_set(logs, topic, self._places, dry_run=self._dry_run)
        except UnknownTopicOrPartition:
            return  # as above
        except TxnlogError:
            self._unpublished.add(topic)
            raise
        if done is not None and (done.added_files or done.removed_files):
            yield done

    def _vacuum(self, logs: Logs, topic: str, ages: Ages) -> Iterator[MaintenanceStep]:
        try:
            if topic in self._unpublished and (table := table_here(logs, topic, self._places)):
                # Its newest version names files that would be deleted.
                raise StorageError(
                    f"topic {topic!r}: no file is deleted, purged records among them, until "
                    f"{table} is published; or unset table.publish"
                )
            yield from vacuum_topic(logs, topic, ages, self._orphan_age_ms, dry_run=self._dry_run)
        except UnknownTopicOrPartition:
            # An import that has not got that far, or a folder with nothing in it.
            if self._topics is not None:
                raise

    def _vacuum_loose(self, ages: Ages) -> Iterable[MaintenanceStep]:
        storage = self._logs.storage
        return vacuum_loose_files(storage, ages, self._orphan_age_ms, dry_run=self._dry_run)

    def _tend_ids(self, times: Times) -> Iterator[MaintenanceStep]:
        for step in tend_ids(self._logs, lambda: times, dry_run=self._dry_run):
            if isinstance(step, TxnlogError):
                yield MaintenanceFailure("transactional ids", None, step)
            else:
                yield step

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
    """Compact what is new in a topic's partitions. See ``Store.maintenance.compact``."""
    memory_bytes = DEFAULT_MEMORY_BYTES if max_memory_bytes is None else max_memory_bytes
    check_whole_number(memory_bytes, "max_memory_bytes", InvalidOption, least=1 << 20)
    if not TopicConfig.of(logs.topic_spec(topic).config).compacts:
        raise InvalidOption(
            f"topic {topic!r} is not set to be compacted: alter its cleanup.policy to compact, "
            "or to compact,delete"
        )
    logs = logs_for(logs, dry_run=dry_run)
    times = times_when_needed(logs, dry_run=dry_run)()
    return [
        *compact_topic(
            logs, topic, times, even_clean=True, dry_run=dry_run, memory_bytes=memory_bytes
        )
    ]
