"""What topics, groups and transactions look like to a person or a program that asks.

Plain frozen data, made from folded states; what the CLI prints is this and nothing else.
Offsets are record numbers, sizes bytes, times milliseconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from txnlog.config import topic_setting
from txnlog.display import Shown
from txnlog.errors import StorageError, TxnlogError
from txnlog.log.group_log import GroupLog
from txnlog.log.topic_log import TopicLog
from txnlog.log.transaction_log import Head
from txnlog.names import OWN_FILE, SegmentPaths, SegmentRef, TopicPartition
from txnlog.schema import TopicSchema
from txnlog.segments.identity import SegmentIdentity
from txnlog.state.membership import Held
from txnlog.state.placement import Segment
from txnlog.state.topic import TopicState
from txnlog.state.transaction import (
    HELP_AFTER_MS,
    EntryRef,
    Status,
    TransactionRef,
    TransactionState,
)

Described = TypeVar("Described")


@dataclass(frozen=True, slots=True)
class SegmentDescription:
    """A placed segment. ``outcome`` is committed, aborted or undecided.

    In one that was imported from Kafka (``from_kafka``) offsets are absolute and may have gaps, and
    its batches have producers and transactions of their own: ``aborted_count`` of these are in its
    transaction index, whose CRC-32C is ``aborted_crc``. ``identity`` is what its
    file is recognised by. ``position`` is where it begins in a file that it shares with segments of
    other partitions; -1 if it has files of its own.
    """

    topic: str
    partition: int
    name: str
    entry: int
    base_offset: int
    end_offset: int
    record_count: int
    size_bytes: int
    batch_count: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    outcome: str
    from_kafka: bool
    aborted_count: int = 0
    aborted_crc: int = 0
    identity: SegmentIdentity | None = None
    position: int = OWN_FILE

    @property
    def ref(self) -> SegmentRef:
        """Where it lies."""
        return SegmentRef(self.topic, self.partition, self.name, self.position)

    @property
    def paths(self) -> SegmentPaths:
        """Its files, by their names within the store."""
        return self.ref.paths


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """One partition of a topic: offsets, what its segments take, and what is open in it."""

    partition: int
    log_start_offset: int
    last_stable_offset: int
    end_offset: int
    segment_count: int
    size_bytes: int
    open_transactions: tuple[TransactionRef, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicDescription(Shown):
    """A topic as its log has it. ``open_transactions`` are those that hold stable offsets back.

    ``schema`` is that of a typed topic: its ``columns`` are an Arrow schema, its ``key`` names.
    """

    topic: str
    topic_id: str
    created_at_ms: int
    config: dict[str, str]
    partitions: tuple[PartitionDescription, ...]
    open_transactions: tuple[TransactionRef, ...]
    entries: int
    schema: TopicSchema | None = None

    @property
    def size_bytes(self) -> int:
        """The bytes of all segments."""
        return sum(partition.size_bytes for partition in self.partitions)

    @property
    def segment_count(self) -> int:
        """How many segments all partitions have."""
        return sum(partition.segment_count for partition in self.partitions)

    @property
    def offset_count(self) -> int:
        """End minus start offsets, over all partitions: aborted records count."""
        return sum(part.end_offset - part.log_start_offset for part in self.partitions)

    @property
    def compression_type(self) -> str:
        """The codec that is set for what is written from now on."""
        return topic_setting(self.config, "compression.type")


@dataclass(frozen=True, slots=True)
class RecordDeletion:
    """Where a partition's log starts, and where it is to start: records below that go."""

    topic: str
    partition: int
    log_start_offset: int
    new_log_start_offset: int

    @property
    def offset_count(self) -> int:
        """How many offsets go; aborted records count."""
        return self.new_log_start_offset - self.log_start_offset


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """A group's place in one partition. ``end_offset`` is the last stable offset.

    Both it and ``lag`` are None if the topic was deleted, also if it was created again since: the
    offset does not count there. ``pending`` is the undecided transaction that is about to move the
    offset.
    """

    topic: str
    partition: int
    offset: int | None
    metadata: str
    committed_at_ms: int | None
    end_offset: int | None
    pending: TransactionRef | None

    @property
    def lag(self) -> int | None:
        """Offsets that the group has yet to read, up to the last stable one."""
        if self.end_offset is None:
            return None
        return max(self.end_offset - (self.offset or 0), 0)


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member of a group, and the partitions that it has.

    ``revoking`` are those that it has to let go of; nobody else has them until it does.
    ``instance_id`` is that of a static member, else empty.
    """

    member_id: str
    instance_id: str
    client_id: str
    host: str
    topics: tuple[str, ...]
    assignors: tuple[str, ...]
    partitions: tuple[TopicPartition, ...]
    revoking: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupDescription(Shown):
    """A consumer group: its offsets, sorted by topic and partition, and its members.

    ``state`` is Kafka's: ``Empty``, ``PreparingRebalance``, ``CompletingRebalance``, ``Stable`` or
    ``Dead``. ``assignor`` is empty without members.
    """

    group_id: str
    offsets: tuple[GroupOffset, ...]
    state: str = "Empty"
    generation: int = 0
    assignor: str = ""
    members: tuple[MemberDescription, ...] = ()

    @property
    def lag(self) -> int:
        """Records that the group has yet to read, over the partitions it has offsets for."""
        return sum(offset.lag or 0 for offset in self.offsets)


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """Where a group's offset in one partition was (None: there was none), and where it is now."""

    topic: str
    partition: int
    before: int | None
    after: int


@dataclass(frozen=True, slots=True)
class TransactionDescription(Shown):
    """The newest state of a transactional id. ``entries`` are those that a commit covers.

    ``reason`` says why somebody other than the producer aborted the transaction. ``versions`` maps
    applications to the last idempotence version that each has committed.
    """

    transactional_id: str
    status: str
    producer_id: int
    producer_epoch: int
    number: int
    timeout_ms: int
    started_at_ms: int | None
    updated_at_ms: int
    topics: tuple[str, ...]
    groups: tuple[str, ...]
    entries: tuple[EntryRef, ...]
    log_entry: int
    reason: str = ""
    versions: Mapping[str, int] = field(default_factory=dict)

    @property
    def since_ms(self) -> int:
        """When the open transaction began; if none is open, when the state changed last."""
        if self.status == Status.ONGOING.value and self.started_at_ms is not None:
            return self.started_at_ms
        return self.updated_at_ms

    @property
    def ends_by_ms(self) -> int | None:
        """When others begin to end it, if its producer has not; None if it has ended."""
        if self.status == Status.ONGOING.value:
            return self.since_ms + self.timeout_ms
        if self.status in (Status.PREPARE_COMMIT.value, Status.PREPARE_ABORT.value):
            return self.updated_at_ms + HELP_AFTER_MS
        return None


@dataclass(frozen=True, slots=True)
class HangingTransaction:
    """A transaction that should have ended, for how long, and what ends it.

    ``overdue_ms`` is 0 where that is not known: its times lie in the future. ``reason`` says why it
    is taken for one that hangs, for people.
    """

    transaction: TransactionDescription
    overdue_ms: int
    ended_by: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ProducerDescription:
    """What a topic remembers of a producer in one partition.

    ``last_sequence`` is None if nothing is known of its newest epoch there. ``transaction`` is its
    open one that has written to the partition, from ``transaction_start_offset`` on. ``last_at_ms``
    is when it last wrote to the topic.
    """

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    last_sequence: int | None
    last_at_ms: int
    transaction: TransactionRef | None
    transaction_start_offset: int | None


@dataclass(frozen=True, slots=True)
class StableOffsetHolder:
    """An undecided transaction in a partition: its first entry and offset there.

    ``status`` and times are None if its state cannot be read, or it has ended just now. Whoever
    reads after ``ends_by_ms`` ends it.
    """

    transaction: TransactionRef
    entry: int
    offset: int
    placed_at_ms: int
    status: str | None
    started_at_ms: int | None
    ends_by_ms: int | None
    ended_by: str


@dataclass(frozen=True, slots=True)
class StableOffset:
    """Where a partition's last stable offset stands, and who holds it there: the first one does."""

    topic: str
    partition: int
    log_start_offset: int
    last_stable_offset: int
    end_offset: int
    holders: tuple[StableOffsetHolder, ...]


def describe_topic(log: TopicLog) -> TopicDescription:
    """Describe a refreshed and settled topic."""
    return describe_topic_state(log.name, log.whole_segments())


def describe_topic_state(topic: str, state: TopicState) -> TopicDescription:
    """Describe a topic as one state has it; of its segments nothing is left to manifests.

    Raises UnknownTopicOrPartition.
    """
    state.check_exists(topic)
    assert state.topic_id is not None
    stable = state.last_stable_offsets()
    segments = [partition.record_segments() for partition in state.partitions]
    open_in: dict[int, set[TransactionRef]] = {}
    for entry in state.recent:
        ref = state.undecided.get(entry.number)
        for number in entry.first_offsets if ref else ():
            open_in.setdefault(number, set()).add(state.undecided[entry.number])
    return TopicDescription(
        topic=topic,
        topic_id=state.topic_id,
        created_at_ms=state.created_at_ms,
        config=dict(state.config),
        partitions=tuple(
            PartitionDescription(
                number,
                partition.log_start_offset,
                stable[number],
                partition.end_offset,
                len(segments[number]),
                sum(segment.size_bytes for segment in segments[number]),
                tuple(sorted(open_in.get(number, ()))),
            )
            for number, partition in enumerate(state.partitions)
        ),
        open_transactions=tuple(sorted(set(state.undecided.values()))),
        entries=state.next_entry,
        schema=state.schema,
    )


def describe_segments(log: TopicLog, partition: int | None = None) -> list[SegmentDescription]:
    """Describe the segments of a refreshed and settled topic, by partition and offset."""
    state = log.whole_state()
    outcomes = {
        **dict.fromkeys(state.aborted, "aborted"),
        **dict.fromkeys(state.undecided, "undecided"),
    }
    return [
        _describe_segment(log.name, number, segment, outcomes.get(segment.entry, "committed"))
        for number, part in enumerate(state.partitions)
        if partition in (None, number)
        for segment in part.record_segments()
    ]


def _describe_segment(
    topic: str, partition: int, segment: Segment, outcome: str
) -> SegmentDescription:
    return SegmentDescription(
        topic=topic,
        partition=partition,
        name=segment.name,
        entry=segment.entry,
        base_offset=segment.base_offset,
        end_offset=segment.end_offset,
        record_count=segment.record_count,
        size_bytes=segment.size_bytes,
        batch_count=segment.batch_count,
        min_timestamp_ms=segment.min_timestamp_ms,
        max_timestamp_ms=segment.max_timestamp_ms,
        producer_id=segment.producer_id,
        producer_epoch=segment.producer_epoch,
        base_sequence=segment.base_sequence,
        outcome=outcome,
        from_kafka=segment.kafka is not None,
        aborted_count=segment.kafka.aborted_count if segment.kafka else 0,
        aborted_crc=segment.kafka.aborted_crc if segment.kafka else 0,
        identity=segment.identity,
        position=segment.position,
    )


def describe_producers(log: TopicLog, partition: int | None = None) -> list[ProducerDescription]:
    """Describe the producers of a refreshed and settled topic, by partition and producer id."""
    state = log.whole_state()
    open_in: dict[tuple[int, int], tuple[TransactionRef, int]] = {}
    for entry in state.recent:
        ref = state.undecided.get(entry.number)
        for number, offset in entry.first_offsets.items():
            if ref is not None:
                open_in.setdefault((number, ref.producer_id), (ref, offset))
    wrote = {(n, who) for who, known in state.producers.items() for n in known.partitions}
    found = []
    for number, producer_id in sorted(wrote | {*open_in}):
        if partition not in (None, number):
            continue
        producer = state.producers[producer_id]
        batches = producer.partitions.get(number)
        transaction, start = open_in.get((number, producer_id), (None, None))
        found.append(
            ProducerDescription(
                topic=log.name,
                partition=number,
                producer_id=producer_id,
                producer_epoch=producer.producer_epoch,
                last_sequence=batches[-1].last_sequence if batches else None,
                last_at_ms=producer.last_at_ms,
                transaction=transaction,
                transaction_start_offset=start,
            )
        )
    return found


def describe_group(
    log: GroupLog, end_offsets: dict[TopicPartition, int], topic_ids: dict[str, str | None]
) -> GroupDescription:
    """Describe a refreshed and settled group against the last stable offsets of its topics."""
    with log.reading() as state:
        pending = {
            TopicPartition(moved.topic, moved.partition): entry.transaction
            for entry in state.pending.values()
            for moved in entry.offsets
        }
        committed = {
            TopicPartition(topic, partition): offset
            for topic, partitions in state.committed.items()
            for partition, offset in partitions.items()
        }
        group = state.membership
        status = group.status(has_offsets=bool(pending or committed))
        members = tuple(_describe_member(held) for held in group.members.values())
    offsets = []
    for where in sorted({*pending, *committed}):
        known = committed.get(where)
        stale = known and known.topic_id and known.topic_id != topic_ids.get(where.topic)
        offsets.append(
            GroupOffset(
                topic=where.topic,
                partition=where.partition,
                offset=known.offset if known else None,
                metadata=known.metadata if known else "",
                committed_at_ms=known.at_ms if known else None,
                end_offset=None if stale else end_offsets.get(where),
                pending=pending.get(where),
            )
        )
    return GroupDescription(
        log.name,
        tuple(offsets),
        state=status,
        generation=group.generation,
        assignor=group.chosen_assignor(),
        members=members,
    )


def _describe_member(held: Held) -> MemberDescription:
    member = held.member
    return MemberDescription(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        host=member.host,
        topics=member.topics,
        assignors=member.assignors,
        partitions=tuple(sorted(held.owned_partitions())),
        revoking=tuple(sorted(held.revoking_partitions())),
    )


def describe_transaction(head: Head) -> TransactionDescription:
    """Describe the newest state of a transactional id."""
    state: TransactionState = head.state
    return TransactionDescription(
        transactional_id=state.transactional_id,
        status=state.status.value,
        producer_id=state.producer_id,
        producer_epoch=state.producer_epoch,
        number=state.number,
        timeout_ms=state.timeout_ms,
        started_at_ms=state.started_at_ms,
        updated_at_ms=state.updated_at_ms,
        topics=state.topics,
        groups=state.groups,
        entries=state.entries,
        log_entry=head.number,
        reason=state.reason,
        versions=dict(state.versions),
    )


def describe_or_error(describe: Callable[[str], Described], name: str) -> Described | TxnlogError:
    """What ``describe`` returns, or the error that concerns this name alone."""
    try:
        return describe(name)
    except StorageError:
        raise
    except TxnlogError as error:
        return error
