"""A topic: the state that the entries of its log fold into.

One log serves all partitions of a topic. Processes that have read the same entries get the same
state; decisions about transactional entries come in from outside through :meth:`TopicState.decide`.
docs/PROTOCOL.md numbers the invariants (L1, L2, ...) cited here.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Annotated, Final

import msgspec
from msgspec.structs import replace

from txnlog.config import check_stored_topic_config, check_whole_number
from txnlog.errors import (
    InvalidOption,
    InvalidTxnState,
    OffsetOutOfRange,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from txnlog.limits import (
    AnyNumber,
    Counter,
    CounterOrNone,
    DurationMs,
    Name,
    Offset,
    PartitionNumber,
    PerPartition,
    ProducerId,
    Settings,
    TimeMs,
)
from txnlog.schema import TopicSchema
from txnlog.state.folded_state import FoldedState, Unsettled
from txnlog.state.manifest import Settled
from txnlog.state.producers import (
    ProducerRef,
    ProducerState,
    SequenceRange,
    batches_of,
    judge_batches,
    pass_time,
    remember,
)
from txnlog.state.segment import Rewrite, Rewritten, Segment, records_in
from txnlog.state.topic_entries import (
    Altered,
    Append,
    Appends,
    Bundle,
    Created,
    Deleted,
    Imported,
    OffsetSpan,
    Purged,
    TopicEntry,
    Trimmed,
)
from txnlog.state.transaction import Outcome, TransactionRef

_EARLIER_SCHEMAS = 16
"""How many earlier schemas of a topic are remembered."""


class Partition(msgspec.Struct, omit_defaults=True):
    """One partition: its ends, and its unsettled segments in the order of offsets.

    ``rewrites`` are the unsettled ones, in the order of entries. Nothing was ever before
    ``first_offset``: what was imported may begin anywhere.
    """

    log_start_offset: Offset = 0
    end_offset: Offset = 0
    segments: Annotated[list[Segment], AnyNumber] = []
    rewrites: Annotated[list[Rewrite], AnyNumber] = []
    first_offset: Offset = 0

    @property
    def head_offset(self) -> int:
        """The first offset of the segments in this state; earlier segments are in manifests."""
        return self.segments[0].base_offset if self.segments else self.end_offset

    def record_segments(self) -> Sequence[Segment]:
        """The segments in this state that hold its records, in order.

        Those of aborted and undecided transactions too.
        """
        if not self.rewrites:
            return self.segments
        return records_in(self.segments, self.rewrites, self.log_start_offset, self.end_offset)

    @property
    def is_untouched(self) -> bool:
        """Whether nothing was ever written to it."""
        return self.end_offset == 0


UNTOUCHED: Final = Partition()
"""Every partition with nothing in it, of which a topic may have 100,000; it is never changed."""


class RecentEntry(msgspec.Struct, frozen=True):
    """An append that is remembered by itself, so that a consistent cut can fall before it.

    ``file`` is the number of the bundle that holds it; -1 if it has a file of its own.
    ``time_before_ms`` and ``topic_time_ms`` are the topic's own time before and after it.
    """

    number: Counter
    at_ms: TimeMs
    first_offsets: Annotated[dict[PartitionNumber, Offset], PerPartition]
    transaction: TransactionRef | None
    time_before_ms: TimeMs
    topic_time_ms: TimeMs
    file: CounterOrNone = -1


class EarlierSchema(msgspec.Struct, frozen=True, array_like=True):
    """The schema that a typed topic had before entry ``entry``, put at ``at_ms``."""

    entry: Counter
    at_ms: TimeMs
    schema: TopicSchema


class TopicState(FoldedState[TopicEntry], tag_field="kind", tag="topic-checkpoint"):
    """A topic according to its log.

    Changes through ``apply``, ``decide``, ``expire`` and ``leave_to_manifests``. Appends before
    ``settled.end`` are in manifests, and nothing of them is here: no segments, no outcomes, and
    only producers that wrote since. ``recent`` holds the later ones, without gaps.
    ``append_time_ms`` is the topic's own time, by which producers are idle; it only grows, see
    :func:`pass_time`. ``append_times`` are the times in the newest appends, oldest first, and
    ``clock_ms`` the time that most of their clocks have last reached; -1 if not known. The newest
    file holds ``newest_size`` entries. ``purge_end`` follows the last entry that purges; 0: none.
    """

    topic_id: Name | None = None
    created_at_ms: TimeMs = 0
    config: Settings = {}
    partitions: Annotated[list[Partition], PerPartition] = []
    undecided: Annotated[dict[Counter, TransactionRef], AnyNumber] = {}
    aborted: Annotated[list[Counter], AnyNumber] = []
    recent: Annotated[list[RecentEntry], AnyNumber] = []
    producers: Annotated[dict[ProducerId, ProducerState], AnyNumber] = {}
    append_time_ms: TimeMs = 0
    append_times: Annotated[list[TimeMs], AnyNumber] = []
    clock_ms: TimeMs = -1
    producer_id_expiration_ms: DurationMs = 86_400_000
    settled: Settled | None = None
    schema: TopicSchema | None = None
    newest_size: Counter = 1
    purge_end: Counter = 0
    earlier_schemas: Annotated[list[EarlierSchema], AnyNumber] = []
    """The schemas before the newest changes, oldest first."""

    def __post_init__(self) -> None:
        check_stored_topic_config(self.config)
        named = (max(entry.first_offsets, default=0) for entry in self.recent)
        if self.recent and max(named) >= max(len(self.partitions), 1):
            raise ValueError("an entry of it has written to a partition that it does not have")
        self.partitions = [UNTOUCHED if part == UNTOUCHED else part for part in self.partitions]

    # -- folding ---------------------------------------------------------------------------------

    @property
    def newest_file(self) -> int:
        return self.next_entry - self.newest_size if self.next_entry else -1

    def file_of(self, number: int) -> int:
        at = bisect_left(self.recent, number, key=lambda entry: entry.number)
        if at < len(self.recent) and self.recent[at].number == number:
            return number if self.recent[at].file < 0 else self.recent[at].file
        return number

    def apply(self, number: int, entry: TopicEntry) -> None:
        super().apply(number, entry)
        self.newest_size = self.next_entry - number
        if self.newest_size > 1:
            self.recent[-self.newest_size :] = [
                replace(one, file=number) for one in self.recent[-self.newest_size :]
            ]

    def to_change(self, partition: int) -> Partition:
        """One partition, as an object of its own."""
        if self.partitions[partition] == UNTOUCHED:
            self.partitions[partition] = Partition()
        return self.partitions[partition]

    def undecided_entries(self) -> dict[int, TransactionRef]:
        return self.undecided

    def time_of_undecided_ms(self, number: int) -> int:
        return next((entry.at_ms for entry in self.recent if entry.number == number), 0)

    def has_transactions(self) -> bool:
        return any(entry.transaction is not None for entry in self.recent) or (
            self.settled is not None and self.settled.has_transactions
        )

    def fold(self, entry: TopicEntry, number: int) -> int:
        match entry:
            case Append():
                self._apply_appends(number, entry.at_ms, (entry,))
            case Appends(appends=appends):
                self._apply_appends(number, entry.at_ms, appends)
            case Imported():
                self._apply_imported(number, entry)
            case Bundle():
                raise ValueError("a bundle in a bundle")
            case Created():
                self.topic_id = entry.topic_id
                self.created_at_ms = entry.at_ms
                self.config = dict(entry.config)
                self.schema = entry.schema
                self.earlier_schemas = []
                self.partitions = [UNTOUCHED] * entry.partitions
            case Altered():
                merged = {**self.config, **entry.config}
                self.config = {key: value for key, value in merged.items() if value is not None}
                if entry.schema is not None and self.schema is not None:
                    before = EarlierSchema(number, entry.at_ms, self.schema)
                    self.earlier_schemas = [*self.earlier_schemas, before][-_EARLIER_SCHEMAS:]
                self.schema = entry.schema or self.schema
                missing = (entry.partitions or 0) - len(self.partitions)
                self.partitions += [UNTOUCHED] * missing
            case Trimmed():
                for index, offset in entry.log_start_offsets.items():
                    self._trim(self.to_change(index), offset)
                self._drop_unused_aborts()
            case Rewritten():
                if entry.purges:
                    self.purge_end = number + 1
                for place in entry.segments:
                    self.to_change(place.partition).rewrites.append(
                        Rewrite(entry.at_ms, place.partition, Segment.of(number, place))
                    )
            case Purged():
                self.purge_end = number + 1
            case Deleted():
                self.topic_id = None
                self.config = {}
                self.schema = None
                self.earlier_schemas = []
                self.partitions = []
                self.undecided = {}
                self.aborted = []
                self.recent = []
                self.producers = {}
                self.settled = None
                self.purge_end = 0
        return entry.at_ms

    def _apply_appends(self, number: int, at_ms: int, appends: Sequence[Append]) -> None:
        """Fold the appends of one entry, put at ``at_ms``."""
        first_offsets: dict[int, int] = {}
        time_before_ms = self.append_time_ms
        for append in appends:
            self._place(number, append, first_offsets)
            self.append_times, self.clock_ms, self.append_time_ms = pass_time(
                self.append_times,
                self.clock_ms,
                self.append_time_ms,
                at_ms=append.at_ms,
                back_ms=self.producer_id_expiration_ms,
            )
        owner, time_ms = self.undecided.get(number), self.append_time_ms
        self.recent.append(
            RecentEntry(number, at_ms, first_offsets, owner, time_before_ms, time_ms)
        )
        for append in appends:
            # By the times of the whole entry, the only ones in manifests.
            if (producer := append.transaction or append.producer) is not None:
                self._remember(number, at_ms, producer, append, time_before_ms)

    def _place(self, number: int, append: Append, first_offsets: dict[int, int]) -> None:
        producer = append.transaction or append.producer
        producer_id = producer.producer_id if producer else -1
        producer_epoch = producer.producer_epoch if producer else -1
        transaction = append.transaction.number if append.transaction else -1
        for place in append.segments:
            partition = self.to_change(place.partition)
            first_offsets.setdefault(place.partition, place.base_offset)
            partition.segments.append(
                Segment.of(number, place, producer_id, producer_epoch, transaction)
            )
            partition.end_offset = place.end_offset
        if append.transaction is not None:
            self.undecided[number] = append.transaction

    def _apply_imported(self, number: int, entry: Imported) -> None:
        first_offsets = {}
        for index, span in entry.offsets.items():
            partition = self.to_change(index)
            if partition.is_untouched:
                partition.first_offset = partition.log_start_offset = span.start
                partition.end_offset = span.start
            if span.end > partition.end_offset:  # else there is nothing of it to hide
                first_offsets[index] = partition.end_offset
            partition.end_offset = span.end
        for place in entry.segments:
            self.to_change(place.partition).segments.append(Segment.of(number, place))
        time_ms = self.append_time_ms
        self.recent.append(RecentEntry(number, entry.at_ms, first_offsets, None, time_ms, time_ms))

    def _remember(
        self,
        number: int,
        at_ms: int,
        producer: ProducerRef | TransactionRef,
        append: Append,
        time_before_ms: int,
    ) -> None:
        # Popped and put back, so that the dict is ordered by last activity.
        self.producers[producer.producer_id] = remember(
            self.producers.pop(producer.producer_id, None),
            producer.producer_epoch,
            append.transaction.number if append.transaction else -1,
            batches_of(append.segments),
            at_ms=at_ms,
            now_ms=self.append_time_ms,
            idle_since_ms=time_before_ms - self.producer_id_expiration_ms,
            entry=number,
            is_whole=self.settled is None,
        )

    def expire(self) -> None:
        # Not while folding: then the undecided ones would depend on when decisions were learnt.
        idle_since_ms = self.append_time_ms - self.producer_id_expiration_ms
        in_use = {ref.producer_id for ref in self.undecided.values()}
        idle = takewhile(lambda item: item[1].was_idle(idle_since_ms), self.producers.items())
        for producer_id in [producer_id for producer_id, _ in idle if producer_id not in in_use]:
            del self.producers[producer_id]

    @staticmethod
    def _trim(partition: Partition, offset: int) -> None:
        partition.log_start_offset = max(partition.log_start_offset, offset)
        partition.segments = [
            segment
            for segment in partition.segments
            if segment.end_offset > partition.log_start_offset
        ]
        partition.rewrites = [
            rewrite for rewrite in partition.rewrites if rewrite.end > partition.log_start_offset
        ]

    def _drop_unused_aborts(self) -> None:
        used = {segment.entry for part in self.partitions for segment in part.segments}
        self.aborted = [number for number in self.aborted if number in used]

    def outcome_of(self, number: int) -> Outcome | Unsettled:
        if number in self.undecided:
            return "undecided"
        if number in self.aborted:
            return Outcome.ABORT
        for partition in self.partitions:
            at = bisect_right(partition.segments, number, key=lambda segment: segment.entry) - 1
            if at >= 0 and partition.segments[at].entry == number:
                return Outcome.COMMIT
        return "gone"

    def decide(self, number: int, outcome: Outcome) -> None:
        if self.undecided.pop(number, None) is not None and outcome is Outcome.ABORT:
            self.aborted.append(number)

    def first_unsettled(self, kept: int) -> int:
        """Where the settled part could end: before it all is decided, and not among the newest."""
        return max(min([self.next_entry - kept, *map(self.file_of, self.undecided)]), 0)

    def leave_to_manifests(
        self,
        settled: Settled,
        left_out_below: Mapping[int, int] | None = None,
        kept_producers: Container[int] = (),
    ) -> None:
        """Drop the appends before ``settled.end``, which are decided and in manifests.

        Producers that manifests may not know in full stay here: their records were deleted before
        they were settled; and so do ``kept_producers``. ``left_out_below``: by partition, an offset
        below which manifests may lack segments.
        """
        starts = {number: part.log_start_offset for number, part in enumerate(self.partitions)}
        for number, start in (left_out_below or {}).items():
            starts[number] = max(start, starts.get(number, 0))
        for partition in self.partitions:
            first = bisect_left(partition.segments, settled.end, key=lambda s: s.entry)
            if first:
                partition.segments = partition.segments[first:]
            if partition.rewrites:
                partition.rewrites = [r for r in partition.rewrites if r.entry >= settled.end]
        self.recent = [entry for entry in self.recent if entry.number >= settled.end]
        self.aborted = [number for number in self.aborted if number >= settled.end]
        self.producers = {
            producer_id: known
            for producer_id, known in self.producers.items()
            if not 0 <= known.entry < settled.end
            or producer_id in kept_producers
            or known.reaches_below(starts)
        }
        self.settled = settled

    # -- reading ---------------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        return self.topic_id is not None

    def schema_before(self, entry: int) -> tuple[TopicSchema | None, int | None]:
        """The schema that a topic had before an entry, and the entry that has changed it since.

        The entry is None if none has, as far as is remembered.
        """
        for earlier in self.earlier_schemas:
            if earlier.entry >= entry:
                return earlier.schema, earlier.entry
        return self.schema, None

    def last_stable_offsets(self) -> list[int]:
        """By partition, the offset at which read_committed stops (invariant L5)."""
        ends = [partition.end_offset for partition in self.partitions]
        if self.undecided:
            for entry in self.recent:
                if entry.number in self.undecided:
                    for partition, offset in entry.first_offsets.items():
                        ends[partition] = min(ends[partition], offset)
        return [
            max(end, partition.log_start_offset)
            for end, partition in zip(ends, self.partitions, strict=True)
        ]

    def next_sequence(self, producer: ProducerRef | TransactionRef, partition: int) -> int:
        """The sequence number that the producer's next record to the partition must have."""
        known = self.producers.get(producer.producer_id)
        batches = known.recent(producer.producer_epoch, partition) if known else ()
        return batches[-1].next_sequence if batches else 0

    def placed_since(self, first_entry: int, names: Mapping[int, str]) -> dict[int, int]:
        """Where entries from ``first_entry`` on have placed segments with these names.

        Names are unique, so this recognises an append whatever is remembered of its producer.
        Returns the base offsets by partition: empty if none was placed; an append places all or
        none.
        """
        found = {}
        for partition, name in names.items():
            for segment in reversed(self.partitions[partition].segments):
                if segment.entry < first_entry:
                    break
                if segment.stored.name == name:
                    found[partition] = segment.base_offset
                    break
        return found

    def knows(self, producer: ProducerRef | TransactionRef) -> bool:
        """False if this producer is not remembered: it never wrote, or was idle too long."""
        return producer.producer_id in self.producers

    # -- what may be added -----------------------------------------------------------------------

    def check_exists(self, topic: str, topic_id: str | None = None) -> None:
        """Raise UnknownTopicOrPartition unless the topic exists (and is still the same one)."""
        if self.topic_id is None:
            raise UnknownTopicOrPartition(
                f"topic {topic!r} does not exist; make it with store.topics.create or "
                f"`txnlog topics create {topic}`"
            )
        if topic_id is not None and topic_id != self.topic_id:
            raise UnknownTopicOrPartition(
                f"topic {topic!r} was deleted and recreated since this operation began; "
                "nothing was done to the new topic: start again"
            )

    def check_absent(self, topic: str) -> None:
        """Raise TopicAlreadyExists if the topic exists."""
        if self.topic_id is not None:
            raise TopicAlreadyExists(f"topic {topic!r} exists already")

    def check_partitions(self, topic: str, partitions: Iterable[int]) -> None:
        """Raise UnknownTopicOrPartition for a partition that the topic does not have."""
        for partition in partitions:
            if not 0 <= partition < len(self.partitions):
                raise UnknownTopicOrPartition(
                    f"topic {topic!r} has no partition {partition}; "
                    f"it has {len(self.partitions)}, numbered from 0"
                )

    def check_sequences(
        self,
        topic: str,
        producer: ProducerRef | TransactionRef,
        batches: Mapping[int, tuple[int, int]],
        names: Mapping[int, str] | None = None,
    ) -> dict[int, int] | None:
        """Judge one append of an idempotent producer (invariant L4). Changes nothing.

        ``batches``: by partition, (base sequence, record count). ``names``: by partition, the name
        of the first segment. An append is a repeat only if they are those that were placed, since
        names are unique and sequences are not: a copied process goes on counting. None: the
        sequences must suffice. Returns None if the append is new; if it repeats a recent one, the
        offsets of that one.

        Raises InvalidProducerEpoch: the topic has seen a newer epoch. OutOfOrderSequence: neither
        the next sequence nor that of a recent batch, or that of another process's batch.
        InvalidTxnState: the producer has an open transaction, and this is not part of it.
        """

        def is_same(partition: int, batch: SequenceRange) -> bool:
            if names is None:
                return True
            return names[partition] == batch.name

        known = self.producers.get(producer.producer_id)
        repeated = judge_batches(topic, producer, known, batches, is_same)
        if repeated is None and isinstance(producer, ProducerRef):
            for open_one in self.undecided.values():
                if open_one.producer_id == producer.producer_id:
                    raise InvalidTxnState(
                        f"producer {producer.producer_id} writes to topic {topic!r} without its "
                        f"transaction, while {open_one} is open: commit or abort that first"
                    )
        return repeated

    def check_import(
        self,
        topic: str,
        offsets: Mapping[int, OffsetSpan],
        known_ends: Mapping[int, int] | None = None,
    ) -> None:
        """Raise OffsetOutOfRange unless each span begins where its partition ends, or is its first.

        So nothing is imported twice, and missing records do not pass for deleted ones. Nor may the
        partition have had another of ``known_ends``, 0 if it is none of them: what was at its end
        decides which transactions of the import are aborted.
        """
        if self.schema is not None:
            raise InvalidOption(
                f"topic {topic!r} has a schema, and Kafka has keys and values: import "
                "into another topic, and write the columns from there"
            )
        self.check_partitions(topic, offsets)
        for number, span in offsets.items():
            partition = self.partitions[number]
            if not partition.is_untouched and partition.end_offset != span.start:
                raise OffsetOutOfRange(
                    f"{topic}:{number} holds records up to offset {partition.end_offset}, what is "
                    f"to be imported begins at {span.start}: offsets are kept, so it must begin "
                    f"where the partition ends, or the partition be new. Import into another topic"
                )
            if known_ends is not None and partition.end_offset != known_ends.get(number, 0):
                raise OffsetOutOfRange(
                    f"{topic}:{number} was written to up to offset {partition.end_offset} while "
                    "what follows was copied, and so nobody has looked which transactions begin "
                    "there and go on in what follows: nothing was imported; repeat it"
                )

    def check_trim(self, topic: str, offsets: Mapping[int, int]) -> None:
        """Raise unless each offset lies between the log's start and its last stable offset."""
        self.check_partitions(topic, offsets)
        stable = self.last_stable_offsets()
        for partition, offset in offsets.items():
            what = f"the offset to delete records of {topic}:{partition} below"
            check_whole_number(offset, what, InvalidOption)
            if not 0 <= offset <= stable[partition]:
                raise OffsetOutOfRange(
                    f"cannot delete the records of {topic}:{partition} below {offset}: "
                    f"the last stable offset is {stable[partition]}"
                )


def last_appended(state: TopicState, partition: int) -> Segment | None:
    """A partition's last unsettled segment, as it was appended.

    None if there is none: deleted ones do not count. What an import brought without records may
    follow.
    """
    for part in state.partitions[partition : partition + 1]:
        if part.segments:
            return part.segments[-1]
    return None


CHECKPOINT_DECODER: msgspec.json.Decoder[TopicState] = msgspec.json.Decoder(TopicState)
