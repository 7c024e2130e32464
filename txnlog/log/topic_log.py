"""The log of one topic in this process: which entries may be added, and how they are built."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from txnlog import names
from txnlog.clock import Clock, SystemClock
from txnlog.config import WriterCodec
from txnlog.errors import InvalidTopic
from txnlog.log.folded_names import check_case
from txnlog.log.retired_segments import UploadCheck
from txnlog.log.sequence_log import SequenceLog
from txnlog.log.state_log import DELIVERY_TIMEOUT_MS, LogPolicy, StateLog
from txnlog.names import SegmentRef, TopicPartition
from txnlog.segments.identity import NO_TAG
from txnlog.state import topic as kinds
from txnlog.state.placement import Placement
from txnlog.state.producers import ProducerRef, advance_sequence
from txnlog.state.topic import (
    Append,
    Created,
    Imported,
    OffsetSpan,
    TopicEntry,
    TopicState,
    check_partition_count,
)
from txnlog.state.transaction import TransactionRef, new_producer_id
from txnlog.storage.base import Storage


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """What an uploader must know of a topic. Plain data, to travel to Spark's tasks."""

    topic: str
    topic_id: str
    partitions: int
    config: dict[str, str]

    def with_codec(self, codec: WriterCodec | None) -> TopicSpec:
        """The same for a writer that has chosen a codec. Raises InvalidConfig."""
        return self if codec is None else replace(self, config=codec.override(self.config))


@dataclass(frozen=True, slots=True)
class UploadedSegment:
    """A segment whose files are uploaded and that no log entry names yet.

    ``topic_id`` is that of the topic it was made for: it must not land in a later topic of the
    same name. Sizes in bytes, times in milliseconds since the epoch. ``tag`` is in all its batches.
    ``begun_ms`` is when the upload began, by the clock of whoever made it; None: not known.
    """

    topic: str
    topic_id: str
    partition: int
    name: str
    record_count: int
    batch_count: int
    size_bytes: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    tag: int = NO_TAG
    begun_ms: int | None = None

    @property
    def files(self) -> list[str]:
        """The names of its files within the store."""
        return SegmentRef(self.topic, self.partition, self.name).paths.files(self.batch_count)


@dataclass(frozen=True, slots=True)
class Appended:
    """Where an append went: its entry, and the offsets of each partition it wrote to.

    ``entry`` is None if the append repeated an earlier one, which is not written again.
    """

    entry: int | None
    offsets: dict[TopicPartition, range]


@dataclass(slots=True)
class Writer:
    """A producer without a transaction, as one topic knows it: its id and its next sequences.

    For one append at a time; :meth:`TopicLog.place` moves it on when it has placed one.
    """

    producer: ProducerRef
    sequences: dict[int, int] = field(default_factory=dict)

    @classmethod
    def new(cls, token: str) -> Writer:
        """One that has written nothing yet, with an id made of a random token."""
        return cls(ProducerRef(new_producer_id(token), 0))


class TopicLog(StateLog[TopicEntry, TopicState]):
    """A topic's log and state."""

    def __init__(
        self,
        storage: Storage,
        topic: str,
        clock: Clock,
        policy: LogPolicy,
        producer_id_expiration_ms: int,
    ) -> None:
        super().__init__(
            SequenceLog(storage, names.topic_log(topic), clock),
            "topic",
            topic,
            new_state=lambda: TopicState(producer_id_expiration_ms=producer_id_expiration_ms),
            entry_decoder=kinds.ENTRY_DECODER,
            checkpoint_decoder=kinds.CHECKPOINT_DECODER,
            clock=clock,
            policy=policy,
        )

    def spec(self) -> TopicSpec:
        """What an uploader must know of the topic. Raises UnknownTopicOrPartition."""
        with self.reading() as state:
            state.check_exists(self.name)
            assert state.topic_id is not None
            return TopicSpec(self.name, state.topic_id, len(state.partitions), dict(state.config))

    def create(self, partitions: int, config: Mapping[str, str]) -> None:
        """Make the topic, with settings that were checked.

        Raises:
            TopicAlreadyExists, InvalidPartitions.
            InvalidTopic: the storage takes its name for that of another.
        """
        self.append(self._creation(partitions, config))

    def preview_creation(self, partitions: int, config: Mapping[str, str]) -> TopicState:
        """The topic as :meth:`create` would make it; raises what that does."""
        return self.preview(self._creation(partitions, config))

    def _creation(
        self, partitions: int, config: Mapping[str, str]
    ) -> Callable[[TopicState], Created]:
        check_partition_count(partitions)
        folder = names.topic_folder(self.name)
        check_case(self.log.storage, folder, f"topic {self.name!r}", InvalidTopic)
        nonce, topic_id = self.clock.token(), self.clock.token()

        def build(state: TopicState) -> Created:
            state.check_absent(self.name)
            return Created(nonce, self.clock.now_ms(), topic_id, partitions, dict(config))

        return build

    def place(
        self,
        segments: Sequence[UploadedSegment],
        *,
        transaction: TransactionRef | None = None,
        writer: Writer | None = None,
        since_entry: int | None = None,
        refreshed: bool = False,
        timeout_ms: int = DELIVERY_TIMEOUT_MS,
    ) -> Appended:
        """Give uploaded segments their offsets, all in one entry.

        Args:
            segments: at least one, all of this topic; a partition's are placed in this order.
            transaction: the open transaction that they belong to, or
            writer: the idempotent producer that wrote them.
            since_entry: if an earlier call for these segments had an unknown outcome, a number that
                the log had not passed by then: what was placed since is not placed again.
            refreshed: the log was refreshed just now.
            timeout_ms: how long it goes on while other writers are faster.

        Raises:
            UnknownTopicOrPartition: the topic or a partition is not there (any more).
            InvalidProducerEpoch, OutOfOrderSequence: see ``TopicState.check_sequences``.
            UploadExpired: vacuum took the segments for left behind; nothing was placed.
            StorageError: the outcome is unknown.
        """
        uploads = UploadCheck(
            self.log.storage,
            self.clock,
            self.name,
            [(segment.partition, segment.name) for segment in segments],
            [segment.begun_ms for segment in segments],
        )
        uploads.before()
        nonce = self.clock.token()
        offsets: dict[TopicPartition, range] = {}
        following: dict[int, int] = {}
        counts: dict[int, int] = {}
        for segment in segments:
            counts[segment.partition] = counts.get(segment.partition, 0) + segment.record_count
        first_names = {segment.partition: segment.name for segment in reversed(segments)}
        first_entry = self.next_entry if since_entry is None else since_entry

        def build(state: TopicState) -> Append | None:
            state.check_exists(self.name, segments[0].topic_id)
            state.check_partitions(self.name, counts)
            placed = state.placed_since(first_entry, first_names)
            if placed:
                offsets.update(self._ranges(placed, counts))
                if writer:
                    # Perhaps it has been moved on already, and was interrupted then.
                    following.update({p: state.next_sequence(writer.producer, p) for p in counts})
                return None
            if writer and any(writer.sequences.values()) and not state.knows(writer.producer):
                # It was idle for too long, and nothing of it is in doubt: it starts over.
                writer.producer = Writer.new(self.clock.token()).producer
                writer.sequences.clear()
            owner = transaction or (writer.producer if writer else None)
            given: dict[int, int] = {}
            if owner is not None:
                for partition in counts:
                    given[partition] = (
                        writer.sequences.get(partition, 0)
                        if writer
                        else state.next_sequence(owner, partition)
                    )
                batches = {p: (given[p], count) for p, count in counts.items()}
                repeated = state.check_sequences(self.name, owner, batches, first_names)
                if repeated is not None:
                    offsets.update(self._ranges(repeated, counts))
                    return None
            ends = {p: state.partitions[p].end_offset for p in counts}
            offsets.clear()
            offsets.update(self._ranges(ends, counts))
            return Append(
                nonce=nonce,
                at_ms=self.clock.now_ms(),
                segments=_placements(segments, ends, given),
                transaction=transaction,
                producer=writer.producer if writer else None,
            )

        appended = Appended(self.append(build, refreshed=refreshed, timeout_ms=timeout_ms), offsets)
        uploads.after(appended.entry)
        if appended.entry is None:
            self._confirm(offsets)
        if writer:
            # Only now, so that after an unknown outcome exactly the same append is repeated.
            before = writer.sequences
            following = following or {
                partition: advance_sequence(before.get(partition, 0), count)
                for partition, count in counts.items()
            }
            writer.sequences = {**before, **following}
        return appended

    def place_imported(
        self,
        topic_id: str,
        offsets: Mapping[int, OffsetSpan],
        segments: Sequence[Placement],
        begun_ms: int | None = None,
    ) -> int:
        """Make segments of Kafka's a part of the topic, with their own offsets, in one entry.

        Args:
            topic_id: of the topic that they were uploaded for.
            offsets: by partition, the offsets that the import brings.
            segments: in the order of partitions and offsets.
            begun_ms: when the first upload began, by the same clock; None: not known.

        Returns:
            The entry's number.

        Raises:
            UnknownTopicOrPartition: the topic or a partition is not there (any more).
            OffsetOutOfRange: a partition ends elsewhere than the import begins.
            UploadExpired: vacuum took the segments for left behind; nothing was placed.
            StorageError: the outcome is unknown.
        """
        keys = [(place.partition, place.name) for place in segments]
        uploads = UploadCheck(self.log.storage, self.clock, self.name, keys, [begun_ms])
        uploads.before()
        nonce = self.clock.token()

        def build(state: TopicState) -> Imported:
            state.check_exists(self.name, topic_id)
            state.check_import(self.name, offsets)
            return Imported(nonce, self.clock.now_ms(), dict(offsets), tuple(segments))

        number = self.append(build)
        assert number is not None
        uploads.after(number)
        return number

    def _confirm(self, offsets: Mapping[TopicPartition, range]) -> None:
        """Make sure that entries which placed these records earlier are durable.

        Raises:
            StorageError: the outcome is still unknown.
        """
        with self.reading() as state:
            entries = {
                segment.entry
                for where, places in offsets.items()
                for segment in state.partitions[where.partition].segments
                if segment.base_offset == places.start
            }
        for number in sorted(entries):
            self.log.confirm(number)

    def _ranges(
        self, bases: Mapping[int, int], counts: Mapping[int, int]
    ) -> dict[TopicPartition, range]:
        return {
            TopicPartition(self.name, partition): range(base, base + counts[partition])
            for partition, base in sorted(bases.items())
        }


def current_log_starts(storage: Storage, topic: str) -> tuple[str | None, dict[int, int]]:
    """The id of the topic that has this name now, and where its partitions begin. Reads its log.

    None and nothing if there is none.
    """
    log = TopicLog(storage, topic, SystemClock(), LogPolicy(0, 0), 0)
    log.refresh()
    with log.reading() as state:
        starts = {n: part.log_start_offset for n, part in enumerate(state.partitions)}
        return state.topic_id, starts


def _placements(
    segments: Sequence[UploadedSegment], ends: Mapping[int, int], sequences: Mapping[int, int]
) -> tuple[Placement, ...]:
    next_offsets, next_sequences = dict(ends), dict(sequences)
    placed = []
    for segment in segments:
        partition = segment.partition
        sequence = next_sequences.get(partition, -1)
        placed.append(
            Placement(
                partition=partition,
                name=segment.name,
                base_offset=next_offsets[partition],
                record_count=segment.record_count,
                size_bytes=segment.size_bytes,
                min_timestamp_ms=segment.min_timestamp_ms,
                max_timestamp_ms=segment.max_timestamp_ms,
                batch_count=segment.batch_count,
                base_sequence=sequence,
                tag=segment.tag,
            )
        )
        next_offsets[partition] += segment.record_count
        if sequence >= 0:
            next_sequences[partition] = advance_sequence(sequence, segment.record_count)
    return tuple(placed)
