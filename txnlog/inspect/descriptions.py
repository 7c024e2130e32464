"""What topics and transactions look like to a person or a program that asks.

Plain frozen data; what the CLI prints is this and nothing else. ``describe`` makes it.
Offsets are record numbers, sizes bytes, times milliseconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from txnlog.config import topic_setting
from txnlog.display import Shown
from txnlog.names import OWN_FILE, SegmentPaths, SegmentRef
from txnlog.schema import TopicSchema
from txnlog.segments.batch_header import SegmentIdentity
from txnlog.state.transaction import (
    HELP_AFTER_MS,
    EntryRef,
    Status,
    TransactionRef,
)


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
        """The segment's place: topic, partition, name, and position in its file."""
        return SegmentRef(self.topic, self.partition, self.name, self.position)

    @property
    def paths(self) -> SegmentPaths:
        """Its files, by their names within the store."""
        return self.ref.paths


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """One partition of a topic: offsets, what its segments take, and what is open in it.

    ``newest_timestamp_ms`` is the greatest time of a record in it, -1 if none has one.
    """

    partition: int
    log_start_offset: int
    last_stable_offset: int
    end_offset: int
    segment_count: int
    size_bytes: int
    open_transactions: tuple[TransactionRef, ...] = ()
    newest_timestamp_ms: int = -1


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
    topic_id: str

    @property
    def offset_count(self) -> int:
        """How many offsets go; aborted records count."""
        return self.new_log_start_offset - self.log_start_offset


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
