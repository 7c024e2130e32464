"""What a topic remembers of each producer, to refuse repeats, gaps and old epochs. Pure.

It follows from the entries alone, so all processes that have read the same entries remember the
same, whenever they learnt the outcomes of transactions.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec.structs import replace

from txnlog.errors import InvalidProducerEpoch, OutOfOrderSequence
from txnlog.limits import (
    AnyNumber,
    BaseOffset,
    CounterOrNone,
    Name,
    OffsetCount,
    PartitionNumber,
    PerPartition,
    ProducerEpoch,
    ProducerId,
    SequenceNumber,
    TimeMs,
)
from txnlog.state.segment import SegmentEntry
from txnlog.state.transaction import TransactionRef

RECENT_BATCHES = 5
"""How many of a producer's batches a partition remembers, as in Kafka."""
TIMED_APPENDS = 9
"""How many of the newest appends the time is the median of; fewer than half may be wrong."""
_SEQUENCES = 1 << 31
"""Sequence numbers wrap: after 2^31 - 1 comes 0."""


class ProducerRef(msgspec.Struct, frozen=True, order=True):
    """An idempotent producer without a transaction."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch


class SequenceRange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A batch that a producer wrote to a partition: its sequences and where it went.

    ``name`` is that of its first segment.
    """

    base_sequence: SequenceNumber
    record_count: OffsetCount
    base_offset: BaseOffset
    name: Name

    @property
    def next_sequence(self) -> int:
        return advance_sequence(self.base_sequence, self.record_count)

    @property
    def last_sequence(self) -> int:
        return advance_sequence(self.base_sequence, self.record_count - 1)


class ProducerState(msgspec.Struct):
    """One producer: its newest epoch, and the last batches of each partition.

    ``transaction`` is the number of the transaction that it wrote in last; -1 for none.
    ``last_at_ms`` is the time in its last append, ``active_ms`` the topic's own time then
    (``TopicState.append_time_ms``), by which it is idle. ``entry`` is its last append. Unless it
    ``is_whole``, it covers entries from ``since_entry`` on: manifests may hold older appends of
    this producer, which count if they are not older than ``since_ms`` of the topic's own time.
    """

    producer_epoch: ProducerEpoch
    last_at_ms: TimeMs
    partitions: Annotated[
        dict[PartitionNumber, Annotated[list[SequenceRange], AnyNumber]], PerPartition
    ] = {}
    transaction: CounterOrNone = -1
    active_ms: TimeMs = -1
    entry: CounterOrNone = -1
    is_whole: bool = True
    since_entry: CounterOrNone = -1
    since_ms: TimeMs = -1

    def was_idle(self, since_ms: int) -> bool:
        """Whether it has written nothing since ``since_ms``, by the topic's own time."""
        return self.active_ms < since_ms

    def reaches_below(self, offsets: Mapping[int, int]) -> bool:
        """Whether a batch of it begins below these offsets, by partition."""
        return any(
            batch.base_offset < offsets.get(partition, 0)
            for partition, batches in self.partitions.items()
            for batch in batches
        )

    def recent(self, producer_epoch: int, partition: int) -> Sequence[SequenceRange]:
        """Its last batch in a partition, if this is its epoch."""
        return self.partitions.get(partition, ()) if producer_epoch == self.producer_epoch else ()


def remember(
    known: ProducerState | None,
    producer_epoch: int,
    transaction: int,
    batches: Mapping[int, SequenceRange],
    *,
    at_ms: int,
    now_ms: int,
    idle_since_ms: int,
    entry: int = -1,
    is_whole: bool = True,
) -> ProducerState:
    """A producer's state after one more append (invariant L9).

    ``at_ms`` is the time in the append, ``now_ms`` the topic's own at it. A producer that last
    wrote before ``idle_since_ms``, also in the topic's time, is forgotten and starts over: but not
    within one transaction. Whether that is still open does not matter, since not every process
    knows yet. ``is_whole``: an unknown producer has no older appends elsewhere.
    """
    if known is not None and known.was_idle(idle_since_ms):
        known, is_whole = (
            (known, is_whole) if 0 <= transaction == known.transaction else (None, True)
        )
    if known is not None and known.producer_epoch < producer_epoch:
        known, is_whole = None, True
    if known is None:
        known = ProducerState(
            producer_epoch, at_ms, is_whole=is_whole, since_entry=entry, since_ms=idle_since_ms
        )
    if producer_epoch == known.producer_epoch:
        known.transaction = transaction
        for partition, batch in batches.items():
            kept = known.partitions.setdefault(partition, [])
            kept.append(batch)
            del kept[:-RECENT_BATCHES]
    known.last_at_ms, known.active_ms, known.entry = at_ms, now_ms, entry
    return known


def join(older: ProducerState | None, newer: ProducerState) -> ProducerState:
    """The state of a producer whose older appends are in manifests. Changes neither argument.

    ``older`` follows from those before ``newer.since_entry``, None if there are none. If that is
    not whole, nor is the result.
    """
    whole = copy.deepcopy(newer)
    whole.is_whole = True
    if older is None or newer.is_whole or older.producer_epoch < newer.producer_epoch:
        return whole
    if older.was_idle(newer.since_ms) and not 0 <= older.transaction == newer.transaction:
        return whole
    whole.is_whole, whole.since_entry, whole.since_ms = (
        older.is_whole,
        older.since_entry,
        older.since_ms,
    )
    if older.producer_epoch > newer.producer_epoch:
        whole.producer_epoch, whole.partitions = older.producer_epoch, {}
        whole.transaction = older.transaction
    for partition, batches in older.partitions.items():
        joined = [*batches, *whole.partitions.get(partition, [])]
        whole.partitions[partition] = joined[-RECENT_BATCHES:]
    return whole


def pass_time(
    times: list[int], clock_ms: int, time_ms: int, *, at_ms: int, back_ms: int
) -> tuple[list[int], int, int]:
    """Advance a topic's own time, by which producers are idle: a function of its appends alone.

    It follows the median of the times in the newest appends, so wrong clocks in fewer than half
    neither stop it nor make it jump; the first few are trusted. If most of them were wrong, and are
    right again, it goes on from where it is: so it never runs backwards, and does not stand still
    until the right clocks have caught up.

    ``times``: those in the newest appends, oldest first. ``clock_ms``: the time that most clocks
    had last reached; -1 if not known. ``time_ms``: the topic's own time. ``at_ms``: the time in the
    new append. ``back_ms``: how far clocks must go back to count as corrected, and not just uneven.
    Returns the first three as they are after that append.
    """
    times = [*times, at_ms][-TIMED_APPENDS:]
    full = len(times) == TIMED_APPENDS
    now_ms = sorted(times)[TIMED_APPENDS // 2] if full else max(times)
    if clock_ms < 0:
        return times, now_ms, time_ms or now_ms
    if now_ms < clock_ms:
        return times, now_ms if now_ms < clock_ms - back_ms else clock_ms, time_ms
    return times, now_ms, time_ms + now_ms - clock_ms


def batches_of(segments: Iterable[SegmentEntry]) -> dict[int, SequenceRange]:
    """What an append adds to each partition, as one batch of the producer."""
    batches: dict[int, SequenceRange] = {}
    for place in segments:
        before = batches.get(place.partition)
        batches[place.partition] = (
            SequenceRange(
                place.base_sequence, place.stored.record_count, place.base_offset, place.stored.name
            )
            if before is None
            else replace(before, record_count=before.record_count + place.stored.record_count)
        )
    return batches


def judge_batches(
    topic: str,
    producer: ProducerRef | TransactionRef,
    known: ProducerState | None,
    batches: Mapping[int, tuple[int, int]],
    is_same: Callable[[int, SequenceRange], bool],
) -> dict[int, int] | None:
    """Judge one append (invariant L4); see ``TopicState.check_sequences``.

    ``is_same(partition, remembered)`` is called for a batch with the sequence and count of a
    remembered one: whether it is the same batch, by the names of their segments.
    """
    if known is not None and producer.producer_epoch < known.producer_epoch:
        raise InvalidProducerEpoch(
            f"{_name(producer)} writes to topic {topic!r} with epoch "
            f"{producer.producer_epoch}, but epoch {known.producer_epoch} has written already: "
            "this instance was replaced by a newer one"
        )
    repeated: dict[int, int] = {}
    for partition, (sequence, count) in batches.items():
        recent = known.recent(producer.producer_epoch, partition) if known else ()
        expected = recent[-1].next_sequence if recent else 0
        if sequence == expected:
            # New, even if the numbers have wrapped round to those of a recent batch: an append of
            # unknown outcome was recognised before by the names of its segments.
            continue
        like = [b for b in recent if (b.base_sequence, b.record_count) == (sequence, count)]
        same = [batch for batch in like if is_same(partition, batch)]
        if like and not same:
            raise OutOfOrderSequence(
                f"{_name(producer)} sent sequence {sequence} to {topic}:{partition}, but the "
                f"records at offset {like[-1].base_offset} have that number already: somebody else "
                "writes as this producer, perhaps a copy of its process. Nothing was written; make "
                "a new producer in each process and send these records again"
            )
        if not same:
            raise OutOfOrderSequence(
                f"{_name(producer)} (epoch {producer.producer_epoch}) sent "
                f"sequence {sequence} to {topic}:{partition} where {expected} is next"
            )
        repeated[partition] = same[-1].base_offset
    if repeated and len(repeated) != len(batches):
        raise OutOfOrderSequence(
            f"{_name(producer)} sent to topic {topic!r} an append that repeats "
            f"partitions {sorted(repeated)} but is new to others; an append is repeated whole"
        )
    return repeated or None


def _name(producer: ProducerRef | TransactionRef) -> str:
    """A producer's name in messages: its transactional id, if it has one."""
    if isinstance(producer, TransactionRef):
        return f"producer {producer.producer_id} of transactional id {producer.transactional_id!r}"
    return f"producer {producer.producer_id}"


def advance_sequence(sequence: int, record_count: int) -> int:
    """The sequence number ``record_count`` records after ``sequence``; it wraps at 2^31."""
    return (sequence + record_count) % _SEQUENCES
