"""One append that is being placed in a topic's log: its content for a given state, or an error.

It is judged again for each state that it could follow, and recognised if it was placed already.
Puts nothing; reads manifests if the state is not enough.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from txnlog.clock import Clock
from txnlog.errors import UploadExpired
from txnlog.log.manifests import FANOUT, Manifests
from txnlog.log.uploads import IdempotentWriter, UploadedSegment
from txnlog.names import TopicPartition
from txnlog.state.manifest import ManifestList, ManifestRef
from txnlog.state.producers import ProducerRef, ProducerState, advance_sequence, join
from txnlog.state.segment import SegmentEntry
from txnlog.state.topic import TopicState
from txnlog.state.topic_entries import Append
from txnlog.state.transaction import TransactionRef

if TYPE_CHECKING:
    from txnlog.log.manifest_table import ManifestTable


class PendingAppend:
    """See ``TopicLog.place`` for the arguments.

    ``offsets`` are the append's, once placed, or as it was last built. ``first_entry`` is a number
    that the log had not passed before it was first tried. ``expired`` is raised unless it was
    placed then.
    """

    def __init__(
        self,
        manifests: Manifests,
        clock: Clock,
        segments: Sequence[UploadedSegment],
        *,
        transaction: TransactionRef | None,
        writer: IdempotentWriter | None,
        first_entry: int,
        first_of_epoch: Container[int],
        expired: UploadExpired | None,
    ) -> None:
        self.offsets: dict[TopicPartition, range] = {}
        self._manifests = manifests
        self._topic = manifests.topic
        self._clock = clock
        self._segments = segments
        # Those of a job whose tasks looked at different times may be of different topics.
        self._topic_ids = {segment.topic_id for segment in segments}
        self._transaction = transaction
        self._writer = writer
        self._first_entry = first_entry
        self._first_of_epoch = first_of_epoch
        self._expired = expired
        self._nonce = clock.token()
        self._following: dict[int, int] = {}
        self._counts: dict[int, int] = {}
        for segment in segments:
            count = self._counts.get(segment.partition, 0)
            self._counts[segment.partition] = count + segment.stored.record_count
        self._first_names = {
            segment.partition: segment.stored.name for segment in reversed(segments)
        }

    @property
    def owner(self) -> TransactionRef | ProducerRef | None:
        """The owner of the sequence numbers."""
        return self._transaction or (self._writer.producer if self._writer else None)

    def build(self, state: TopicState) -> Append | None:
        """The append as it follows a state; None if it was placed already.

        Raises what ``TopicLog.place`` does.
        """
        for topic_id in self._topic_ids:
            state.check_exists(self._topic, topic_id)
        state.check_partitions(self._topic, self._counts)
        placed = self._placed_in(state)
        if self._expired is not None and not placed:
            raise self._expired
        if (owner := self.owner) is not None:
            asked = [p for p in self._counts if placed or not self._is_first(p, state)]
            recall(self._manifests, state, owner, asked)
        if placed:
            self._take(placed)
            if writer := self._writer:
                # Perhaps the writer was moved on already, and interrupted then.
                self._following = {p: state.next_sequence(writer.producer, p) for p in self._counts}
            return None
        self._begin_anew_if_forgotten(state)
        given = self._sequences(state)
        if (owner := self.owner) is not None:
            batches = {p: (given[p], count) for p, count in self._counts.items()}
            repeated = state.check_sequences(self._topic, owner, batches, self._first_names)
            if repeated is not None:
                self._take(repeated)
                return None
        ends = {p: state.partitions[p].end_offset for p in self._counts}
        self._take(ends)
        return Append(
            nonce=self._nonce,
            at_ms=self._clock.now_ms(),
            segments=_placements(self._segments, ends, given),
            transaction=self._transaction,
            producer=self._writer.producer if self._writer else None,
        )

    def move_on(self) -> None:
        """Move the writer's sequences past it.

        Only once the append is certain, so that after an unknown outcome exactly the same is
        repeated.
        """
        if self._writer is not None:
            before = self._writer.sequences
            following = self._following or {
                partition: advance_sequence(before.get(partition, 0), count)
                for partition, count in self._counts.items()
            }
            self._writer.sequences = {**before, **following}

    def _placed_in(self, state: TopicState) -> dict[int, int]:
        """See ``TopicState.placed_since``; also finds appends settled since."""
        found = state.placed_since(self._first_entry, self._first_names)
        if not found and state.settled is not None and self._first_entry < state.settled.end:
            settled, wanted = state.settled, self._first_names
            found = self._manifests.named(settled, state.topic_id, wanted, self._first_entry)
        return found

    def _has_written_to(self, partition: int) -> bool:
        return self._writer is not None and self._writer.sequences.get(partition, 0) > 0

    def _is_first(self, partition: int, state: TopicState) -> bool:
        """Whether this owner has not written to a partition before.

        For an epoch this was so when the append was first tried. If some of the entries since are
        in manifests, a newer epoch's may be among them.
        """
        if self._writer is not None:
            return not self._has_written_to(partition)
        in_sight = state.settled is None or state.settled.end <= self._first_entry
        return in_sight and partition in self._first_of_epoch

    def _begin_anew_if_forgotten(self, state: TopicState) -> None:
        """A writer that was idle for too long, with no append of unknown outcome, starts over."""
        writer = self._writer
        if writer and not _remembers(state, writer, filter(self._has_written_to, self._counts)):
            writer.begin_anew(self._clock.token())

    def _sequences(self, state: TopicState) -> dict[int, int]:
        """By partition, the sequence of its first record; empty without a producer."""
        if self._writer is not None:
            return {p: self._writer.sequences.get(p, 0) for p in self._counts}
        owner = self._transaction
        return {p: state.next_sequence(owner, p) for p in self._counts} if owner else {}

    def _take(self, bases: Mapping[int, int]) -> None:
        """Remember its offsets."""
        self.offsets = {
            TopicPartition(self._topic, partition): range(base, base + self._counts[partition])
            for partition, base in sorted(bases.items())
        }


def _remembers(state: TopicState, writer: IdempotentWriter, partitions: Iterable[int]) -> bool:
    """Whether the writer's last batches in these partitions, if any, are known."""
    known = state.producers.get(writer.producer.producer_id)
    if known is None:
        return not any(writer.sequences.values())
    epoch = writer.producer.producer_epoch
    # Of what was deleted long ago nothing is known; else who is known wholly wrote no more.
    return all(
        known.recent(epoch, p) or (known.is_whole and not state.partitions[p].log_start_offset)
        for p in partitions
    )


def _placements(
    segments: Sequence[UploadedSegment], ends: Mapping[int, int], sequences: Mapping[int, int]
) -> tuple[SegmentEntry, ...]:
    next_offsets, next_sequences = dict(ends), dict(sequences)
    placed = []
    for segment in segments:
        partition = segment.partition
        sequence = next_sequences.get(partition, -1)
        placed.append(SegmentEntry(partition, next_offsets[partition], segment.stored, sequence))
        next_offsets[partition] += segment.stored.record_count
        if sequence >= 0:
            next_sequences[partition] = advance_sequence(sequence, segment.stored.record_count)
    return tuple(placed)


def recall(
    manifests: Manifests,
    state: TopicState,
    owner: ProducerRef | TransactionRef,
    partitions: Collection[int],
) -> None:
    """Add to a state what manifests know of a producer, if it matters for these partitions.

    Raises CorruptEntry, StorageError.
    """
    known = state.producers.get(owner.producer_id)
    if state.settled is None or (known is not None and known.is_whole):
        return
    if all(known and known.recent(owner.producer_epoch, p) for p in partitions):
        return
    older = settled_producer(manifests, state, owner, partitions, known)
    if known is not None:
        state.producers[owner.producer_id] = join(older, known)
    elif older is not None:
        # In the order of activity: it was idle for longer than those known here.
        state.producers = {owner.producer_id: older, **state.producers}
        state.expire()


def settled_producer(
    manifests: Manifests,
    state: TopicState,
    owner: ProducerRef | TransactionRef,
    partitions: Collection[int],
    known: ProducerState | None = None,
) -> ProducerState | None:
    """A producer's state from its settled appends; None if there are none.

    They are read from the newest manifest back, as far as the producer was never idle; and no
    further than its last appends to each of ``partitions`` in its epoch: then it is not whole.
    Deleted appends older than the expiry are ignored: lists may leave them out. ``known``: its
    state from newer appends. Raises CorruptEntry, StorageError.
    """
    from txnlog.log.manifest_table import ManifestTable

    settled, now_ms = state.settled, state.append_time_ms
    expiration_ms = state.producer_id_expiration_ms

    def use(listing: ManifestList) -> ProducerState | None:
        assert settled is not None
        found: list[ManifestTable] = []
        wanted, is_whole = {*partitions}, True
        since_ms = known.since_ms if known else now_ms - expiration_ms
        older = deque(reversed(listing.manifests))
        starts = [
            max(partition.log_start_offset, listing.log_start_offsets.get(number, 0))
            for number, partition in enumerate(state.partitions)
        ]
        while is_whole:
            some: list[ManifestRef] = []
            while older and older[0].topic_time_ms >= since_ms and len(some) < FANOUT:
                some.append(older.popleft())
            if not some:
                break
            for table in manifests.tables(some, settled):
                rows = table.of_producers([owner.producer_id])
                rows = rows if known is None else rows.before(known.since_entry)
                if not len(rows):
                    continue
                found.append(rows)
                since_ms = min(since_ms, rows.first_time_before_ms() - expiration_ms)
                told = rows.untrimmed(starts, now_ms - expiration_ms)
                wanted -= told.partitions_of_epoch(owner.producer_epoch)
                # Commits of an older epoch came before all appends of this one.
                if not wanted or rows.has_committed_below_epoch(owner.producer_epoch):
                    is_whole = False
                    break
        if not found:
            return None
        return ManifestTable.concat(found).producers(
            expiration_ms, log_starts=starts, now_ms=now_ms, is_whole=is_whole
        )[owner.producer_id]

    return manifests.read(settled, state.topic_id, use)
