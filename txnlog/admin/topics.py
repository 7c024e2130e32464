"""``Store.topics``: create, describe, change and delete topics.

What is about all topics goes through a few at a time, so that memory does not grow with them.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from txnlog import names
from txnlog.admin.disk_usage import PartitionUsage, disk_usage
from txnlog.admin.dry_run import writes
from txnlog.admin.found import Found
from txnlog.admin.live_segments import placed_refs, placed_since
from txnlog.admin.offsets import ListedOffset, OffsetSpec, list_offsets
from txnlog.admin.trim import trim
from txnlog.arguments import names_wrong_arguments
from txnlog.columns.changes import changed_names, evolve
from txnlog.columns.checks import make_schema
from txnlog.columns.constraints import check_constraints
from txnlog.config import (
    CONSTRAINT,
    PARQUET,
    TopicConfig,
    check_merged_topic_config,
    check_partition_count,
    check_topic_changes,
    check_topic_config,
)
from txnlog.errors import (
    InvalidConfig,
    InvalidOption,
    InvalidSchema,
    TxnlogError,
    UnknownTopicOrPartition,
)
from txnlog.inspect.describe import (
    describe_or_error,
    describe_segments,
    describe_topic,
    describe_topic_state,
)
from txnlog.inspect.descriptions import RecordDeletion, SegmentDescription, TopicDescription
from txnlog.inspect.log_dump import DumpedEntry, dump_log
from txnlog.log.named_folders import list_topics
from txnlog.log.open_logs import Logs
from txnlog.names import SegmentRef, TopicPartition
from txnlog.state.segment import Segment
from txnlog.state.topic import TopicState
from txnlog.state.topic_entries import ENTRY_DECODER, Altered, Deleted
from txnlog.storage.base import for_each
from txnlog.write.segment_uploads import discard_files

if TYPE_CHECKING:
    import pyarrow as pa

TYPED_DEFAULTS: Final = {"record.format": PARQUET}
"""What topics with a schema are made with, where their defaults are others."""


@names_wrong_arguments()
class TopicAdmin:
    """What is done with topics: :attr:`txnlog.Store.topics`."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs

    @writes
    def create(
        self,
        topic: str,
        *,
        partitions: int = 1,
        config: Mapping[str, object] | None = None,
        schema: pa.Schema | None = None,
        key: Sequence[str] | None = None,
        defaults: Mapping[str, object] | None = None,
        replication_factor: int | None = None,
        dry_run: bool = False,
    ) -> TopicDescription:
        """Create a topic; with ``dry_run`` only say what it would be.

        With a ``schema`` (a ``pyarrow.Schema``) its records have these columns instead of a key and
        a value, and are stored in Parquet files unless ``record.format`` says ``columns`` or
        ``auto``. The columns named by ``key`` choose the partition. Columns with ``defaults`` (by
        name, as Python or Arrow values) may be left out when records are sent.

        ``replication_factor`` is for a store with replicas: at how many roots the topic's data is.
        It becomes the setting ``replication.factor.<topic>`` of the roots just before the topic is
        created, so that all of its data is placed by it.

        Raises:
            TopicAlreadyExists, InvalidTopic, InvalidPartitions, InvalidConfig, InvalidSchema:
                nothing was created.
            InvalidOption: there are not that many roots.
            NotEnoughReplicas: the set of roots has changed meanwhile; try again.
        """
        typed = None
        if schema is not None:
            typed = make_schema(schema, key, defaults)
            config = {**TYPED_DEFAULTS, **(config or {})}
        elif key is not None or defaults is not None:
            raise InvalidSchema("key and defaults are for columns of a schema, and there is none")
        checked = check_topic_config(config)
        if typed is None:
            _check_untyped_config(checked)
        else:
            _check_typed_config(checked, has_key=bool(typed.key))
            check_constraints(checked, typed)
        log = self._logs.topic(topic)
        if dry_run or replication_factor is not None:
            planned = describe_topic_state(topic, log.preview_creation(partitions, checked, typed))
        if replication_factor is not None:
            storage = self._logs.storage
            storage.set_replication_factor(topic, replication_factor, dry_run=dry_run)
        if dry_run:
            return planned
        log.create(partitions, checked, typed)
        self._logs.tidy([log])
        return describe_topic(log)

    def list(self, patterns: str | Sequence[str] = "*") -> builtins.list[str]:
        """The names of topics, sorted. Reads the log of each; one that is damaged is named, too.

        Args:
            patterns: one or several, as in a shell, such as ``ord*``; a topic must match one.
        """
        found = [name for name in list_topics(self._logs.storage) if _matches(name, patterns)]
        look = partial(describe_or_error, self._exists)
        answers = self._logs.storage.gather(partial(look, name) for name in found)
        return sorted(name for name, is_there in zip(found, answers, strict=True) if is_there)

    def _exists(self, topic: str) -> bool:
        log = self._logs.topic(topic)
        log.refresh()
        with log.lock:
            state = log.state
            return state.exists

    def describe(self, topic: str) -> TopicDescription:
        """Offsets, sizes, settings and open transactions of a topic.

        Raises UnknownTopicOrPartition.
        """
        return describe_topic(self._logs.fresh_topic(topic))

    def segments(
        self, topic: str, partition: int | None = None
    ) -> builtins.list[SegmentDescription]:
        """The segments of a topic, or of one partition, in the order of their offsets."""
        log = self._logs.fresh_topic(topic)
        if partition is not None:
            with log.lock:
                state = log.state
                state.check_partitions(topic, [partition])
        return describe_segments(log, partition)

    @writes
    def alter(
        self,
        topic: str,
        *,
        partitions: int | None = None,
        config: Mapping[str, object | None] | None = None,
        schema: pa.Schema | Callable[[pa.Schema], pa.Schema] | None = None,
        rename: Mapping[str, str] | None = None,
        defaults: Mapping[str, object] | None = None,
        dry_run: bool = False,
    ) -> TopicDescription:
        """Give a topic more partitions or other settings; None takes a key back to its default.

        With more partitions keys go to other partitions than before, as in Kafka. With ``dry_run``
        only say what it would be.

        Older records are read under the new schema; snapshots taken before keep the old one.
        docs/TYPED.md says what may change, and what ``schema.compatibility`` refuses.

        Args:
            topic: its name.
            partitions: the new number of partitions; it cannot shrink.
            config: settings by key.
            schema: all columns that a typed topic is to have: others are dropped; new ones are
                added; types may become wider and the order may change. Or a function from its
                columns (renamed already) to these: what others change meanwhile is not lost. It
                may be called more than once.
            rename: new names by old names, of columns; ``schema`` has the new names.
            defaults: values for added columns, in records that were or will be written without
                them.
            dry_run: change nothing.

        Raises:
            UnknownTopicOrPartition, InvalidPartitions, InvalidConfig, InvalidSchema: nothing was
                changed.
        """
        checked = check_topic_changes(config)
        asked = any(given is not None for given in (schema, rename, defaults))
        nonce = self._logs.clock.token()
        log = self._logs.topic(topic)

        def build(state: TopicState) -> Altered:
            state.check_exists(topic)
            if partitions is not None:
                check_partition_count(partitions, len(state.partitions))
            changes = checked if state.schema is None else _as_typed(checked)
            merged = {**state.config, **changes}
            settings = {k: v for k, v in merged.items() if v is not None}
            check_merged_topic_config(settings)
            changed = None
            if state.schema is not None:
                _check_typed_config(settings, has_key=bool(state.schema.key))
                mode = TopicConfig.of(settings).schema_compatibility
                if asked:
                    changed = evolve(state.schema, schema, rename, defaults, compatibility=mode)
                changed = None if changed is state.schema else changed
                after = changed or state.schema
                moved = changed_names(state.schema, after)
                check_constraints(settings, after, state.schema.columns.names, moved, changes)
                if moved and settings.get("table.publish") == state.config.get("table.publish"):
                    _check_published(topic, settings, moved)
            elif asked:
                raise InvalidSchema(
                    f"topic {topic!r} was created without a schema and cannot be given one"
                )
            else:
                _check_untyped_config(settings)
            return Altered(nonce, self._logs.clock.now_ms(), partitions, changes, changed)

        if dry_run:
            self._logs.fresh_topic(topic)
            return describe_topic_state(topic, log.manifests.unfold(log.preview(build)))
        log.append(build)
        self._logs.tidy([log])
        return self.describe(topic)

    @writes
    def delete(self, topic: str, *, topic_id: str | None = None) -> None:
        """Delete a topic and its data. Scans of it that exist already will fail.

        Give ``topic_id`` to be sure that no topic is hit that was made again under this name. Of a
        store with replicas the setting ``replication.factor.<topic>`` goes just before the topic.

        Raises:
            UnknownTopicOrPartition: there is no such topic, or it is another one.
            NotEnoughReplicas: the set of roots has changed meanwhile; try again.
        """
        nonce = self._logs.clock.token()
        log = self._logs.topic(topic)
        log.refresh()
        with log.lock:
            state = log.state
            state.check_exists(topic, topic_id)
        # Before: afterwards it may be that of another topic, which is created already.
        self._logs.storage.set_replication_factor(topic, None)
        # Before: listing all segments takes longer than a busy topic waits between two entries.
        whole = log.whole_segments()
        found = [*placed_refs(topic, whole)]
        added: list[tuple[SegmentRef, Segment]] = []

        def build(state: TopicState) -> Deleted:
            nonlocal topic_id
            state.check_exists(topic, topic_id)
            topic_id = state.topic_id
            added[:] = placed_since(topic, state, whole.next_entry)
            return Deleted(nonce, self._logs.clock.now_ms())

        log.append(build)
        doomed = {
            file: None
            for ref, segment in (*found, *added)
            for file in ref.files(
                segment.stored.batch_count,
                segment.stored.size_bytes,
                has_aborted=segment.stored.kafka is not None,
            )
        }
        discard_files(self._logs.storage, [*doomed])
        self._logs.tidy([log])

    @writes
    def delete_records(
        self,
        offsets: Mapping[TopicPartition, int],
        *,
        topic_ids: Mapping[str, str] | None = None,
    ) -> None:
        """Delete the oldest records: move log start offsets up to the given offsets.

        One atomic step per topic. The files stay for a while, for scans that exist already;
        ``maintain`` deletes them after the topic's ``file.delete.delay.ms``. Give ``topic_ids``
        (by name, as ``plan_delete_records`` finds them) to be sure that no topic is hit that was
        made again under its name.

        Raises:
            OffsetOutOfRange: an offset lies beyond the last stable offset.
            UnknownTopicOrPartition: there is no such topic, or it is another one.
            InvalidOption: something given is not an offset.
        """
        by_topic: dict[str, dict[int, int]] = {}
        for where, offset in offsets.items():
            if not isinstance(where, TopicPartition):
                raise InvalidOption(
                    f"offsets are by txnlog.TopicPartition(topic, partition), not by {where!r:.100}"
                )
            by_topic.setdefault(where.topic, {})[where.partition] = offset
        for topic, starts in by_topic.items():
            log = self._logs.fresh_topic(topic)

            def choose(
                state: TopicState, topic: str = topic, starts: dict[int, int] = starts
            ) -> dict[int, int]:
                state.check_exists(topic, (topic_ids or {}).get(topic))
                state.check_trim(topic, starts)
                return starts

            trim(self._logs, log, choose)

    # -- in bulk, and what deleting would do -----------------------------------------------------

    def describe_all(self, patterns: str | Sequence[str] = "*") -> Found[TopicDescription]:
        """Describe topics, sorted by name, a few at a time.

        Args:
            patterns: one or several, as in a shell, such as ``ord*``; a topic must match one.
        """
        _matches("", patterns)  # now, not when it is iterated: are they patterns?
        return Found(partial(self._describe_all, patterns))

    def _describe_all(
        self, patterns: str | Sequence[str]
    ) -> Iterator[TopicDescription | TxnlogError]:
        storage = self._logs.storage
        found = [topic for topic in list_topics(storage) if _matches(topic, patterns)]
        for item in for_each(storage, partial(describe_or_error, self._describe_alone), found):
            if not isinstance(item, UnknownTopicOrPartition):
                yield item

    def _describe_alone(self, topic: str) -> TopicDescription:
        # A log of its own: those of the store would keep what each topic has in segments.
        logs = Logs(self._logs.storage, self._logs.config, self._logs.clock)
        return describe_topic(logs.fresh_topic(topic))

    def log(self, topic: str, *, first: int = 0) -> Iterator[DumpedEntry[msgspec.Struct]]:
        """The topic's log from entry ``first`` on, as stored; no transaction is decided or ended.

        What the ``content`` of entries means is in docs/FORMAT.md.

        Raises UnknownTopicOrPartition if there is no such log.
        """
        folder = names.topic_log(topic)
        empty = True
        for found in dump_log(self._logs.storage, folder, ENTRY_DECODER, first=first):
            empty = False
            yield found
        if empty and (not first or not self._logs.storage.list_names(folder)):
            raise UnknownTopicOrPartition(f"topic {topic!r} does not exist and never existed")

    def disk_usage(self, topic: str | None = None) -> Found[PartitionUsage]:
        """The sizes in bytes of a topic's files (None: of all topics): its log, then partitions.

        Costs one listing per topic. Of deleted topics the logs are still there.

        Iterating raises UnknownTopicOrPartition, or what is wrong with the one topic.
        """
        return Found(partial(disk_usage, self._logs, topic))

    def offsets(
        self,
        topics: str | Iterable[str | TopicPartition] | None = None,
        *,
        at: OffsetSpec | None = None,
        timestamp_ms: int | None = None,
    ) -> Found[ListedOffset]:
        """The first, last stable or last offset of partitions, or the offset for a time.

        As Kafka's ``listOffsets``. Costs one listing per topic; to find a record by its time also
        a read of a part of one segment per partition.

        Args:
            topics: names of topics (all their partitions) and single partitions; None for all.
            at: 'earliest', 'stable' (where read_committed stops), 'latest' (the log's end), or
                'max-timestamp': the committed record with the greatest time, the first of several.
            timestamp_ms: instead of ``at``: the first committed record at or after this time.

        Raises:
            UnknownTopicOrPartition, InvalidOption: there is no such topic, or the arguments
                contradict each other.
        """
        return Found(list_offsets(self._logs, topics, at=at, timestamp_ms=timestamp_ms))

    def plan_delete_records(
        self,
        topics: str | Iterable[str | TopicPartition],
        *,
        before: int | None = None,
        timestamp_ms: int | None = None,
    ) -> builtins.list[RecordDeletion]:
        """Find the offsets to give to ``delete_records``: new log start offsets by partition.

        Args:
            topics: names of topics (all their partitions) and single partitions.
            before: an offset, for single partitions only.
            timestamp_ms: instead of ``before``: everything before the first record at or after
                this time. With neither, or if no record is that new, everything up to the last
                stable offset.

        Returns:
            Sorted by topic and partition, including partitions where nothing would be deleted.

        Raises:
            OffsetOutOfRange: ``before`` lies beyond the last stable offset.
            UnknownTopicOrPartition, InvalidOption: nothing was deleted.
        """
        chosen = [topics] if isinstance(topics, str) else [*topics]
        if before is not None and timestamp_ms is not None:
            raise InvalidOption("give either before or timestamp_ms")
        if before is not None and any(isinstance(item, str) for item in chosen):
            raise InvalidOption("an offset is for one partition: name partitions, not whole topics")
        starts = _offsets(self.offsets(chosen, at="earliest"))
        topic_ids = {where.topic: self._topic_id(where.topic) for where in starts}
        target = _offsets(self.offsets(chosen, at="stable"))
        if timestamp_ms is not None:
            target |= _offsets(self.offsets(chosen, timestamp_ms=timestamp_ms))
        elif before is not None:
            for where in target:
                log = self._logs.topic(where.topic)
                with log.lock:
                    state = log.state
                    state.check_trim(where.topic, {where.partition: before})
            target = dict.fromkeys(target, before)
        for topic, topic_id in topic_ids.items():
            self._topic_id(topic, topic_id)  # its offsets are those of one and the same topic
        return [
            RecordDeletion(
                *where, starts[where], max(starts[where], target[where]), topic_ids[where.topic]
            )
            for where in sorted(starts)
        ]

    def _topic_id(self, topic: str, expected: str | None = None) -> str:
        """The topic's id as far as its log was read. Raises UnknownTopicOrPartition."""
        log = self._logs.topic(topic)
        with log.lock:
            state = log.state
        state.check_exists(topic, expected)
        assert state.topic_id is not None
        return state.topic_id


def _matches(topic: str, patterns: str | Sequence[str]) -> bool:
    wanted = [patterns] if isinstance(patterns, str) else patterns
    return any(fnmatchcase(topic, pattern) for pattern in wanted)


def _offsets(listed: Iterable[ListedOffset]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(item.topic, item.partition): item.offset
        for item in listed
        if item.offset is not None
    }


def _as_typed(changes: Mapping[str, str | None]) -> dict[str, str | None]:
    """Changes of settings in which None means the default of a topic with a schema."""
    return {k: TYPED_DEFAULTS.get(k) if v is None else v for k, v in changes.items()}


def _check_typed_config(config: Mapping[str, str], *, has_key: bool) -> None:
    """Raise InvalidConfig if a topic with a schema cannot have these settings."""
    settings = TopicConfig.of(config)
    if settings.record_format == "kafka":
        raise InvalidConfig(
            "topic config record.format: kafka has keys and values, no columns of a schema; leave "
            "it out for Parquet files, or set it to columns"
        )
    if settings.compacts and not has_key:
        raise InvalidConfig(
            "topic config cleanup.policy: the topic's schema has no key to compact by: use delete, "
            "or make the topic with a key"
        )


def _check_published(topic: str, config: Mapping[str, str], moved: Iterable[str]) -> None:
    """Raise InvalidSchema if the topic's table would be published no more."""
    table = TopicConfig.of(config).table_publish
    if table.startswith("delta:"):
        raise InvalidSchema(
            f"topic {topic!r} has table.publish={table}, and Delta finds columns by their names, "
            f"of which {', '.join(sorted(moved))} would mean others: unset it, and give "
            "another folder afterwards"
        )


def _check_untyped_config(config: Mapping[str, str]) -> None:
    """Raise InvalidConfig if settings are only for topics with a schema."""
    if "schema.compatibility" in config:
        raise InvalidConfig("topic config schema.compatibility: the topic has no schema")
    for key in config:
        if key.startswith(CONSTRAINT):
            raise InvalidConfig(f"topic config {key}: the topic has no schema")
