"""What a topic remembers of each producer, to refuse repeats, gaps and old epochs. Pure.

It follows from the entries alone, so that everybody who has read the same entries remembers the
same, whenever they learnt what became of transactions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from txnlog.errors import InvalidProducerEpoch, OutOfOrderSequence
from txnlog.state.transaction import TransactionRef

RECENT_BATCHES = 5
"""How many of a producer's batches a partition remembers, as in Kafka."""
_SEQUENCES = 1 << 31
"""Sequence numbers wrap: after 2^31 - 1 comes 0."""


class ProducerRef(msgspec.Struct, frozen=True, order=True):
    """An idempotent producer without a transaction."""

    producer_id: int
    producer_epoch: int


class SequenceRange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A batch that a producer wrote to a partition: its sequences and where it went."""

    base_sequence: int
    record_count: int
    base_offset: int

    @property
    def next_sequence(self) -> int:
        return advance_sequence(self.base_sequence, self.record_count)

    @property
    def last_sequence(self) -> int:
        return advance_sequence(self.base_sequence, self.record_count - 1)


class ProducerState(msgspec.Struct):
    """One producer: its newest epoch, and the last batches of each partition.

    ``transaction`` is the number of the transaction that it wrote in last; -1 for none.
    """

    producer_epoch: int
    last_at_ms: int
    partitions: dict[int, list[SequenceRange]] = {}
    transaction: int = -1

    def recent(self, producer_epoch: int, partition: int) -> Sequence[SequenceRange]:
        """What it wrote last to a partition, if this is its epoch."""
        return self.partitions.get(partition, ()) if producer_epoch == self.producer_epoch else ()


def remember(
    known: ProducerState | None,
    producer_epoch: int,
    transaction: int,
    batches: Mapping[int, SequenceRange],
    *,
    at_ms: int,
    idle_since_ms: int,
) -> ProducerState:
    """What is known of a producer after one more append of it (invariant L9).

    Whoever wrote last before ``idle_since_ms`` is forgotten and begins anew: but not within one
    transaction. Whether that is still open does not matter, since not everybody knows yet.
    """
    if known is not None and known.last_at_ms < idle_since_ms:
        known = known if 0 <= transaction == known.transaction else None
    if known is None or known.producer_epoch < producer_epoch:
        known = ProducerState(producer_epoch, at_ms)
    if producer_epoch == known.producer_epoch:
        known.transaction = transaction
        for partition, batch in batches.items():
            kept = known.partitions.setdefault(partition, [])
            kept.append(batch)
            del kept[:-RECENT_BATCHES]
    known.last_at_ms = at_ms
    return known


def judge_batches(
    topic: str,
    producer: ProducerRef | TransactionRef,
    known: ProducerState | None,
    batches: Mapping[int, tuple[int, int]],
) -> dict[int, int] | None:
    """Judge one append (invariant L4); see ``TopicState.check_sequences``."""
    if known is not None and producer.producer_epoch < known.producer_epoch:
        raise InvalidProducerEpoch(
            f"producer {producer.producer_id} writes to topic {topic!r} with epoch "
            f"{producer.producer_epoch}, but epoch {known.producer_epoch} has written already: "
            "this instance was replaced by a newer one"
        )
    repeated: dict[int, int] = {}
    for partition, (sequence, count) in batches.items():
        recent = known.recent(producer.producer_epoch, partition) if known else ()
        expected = recent[-1].next_sequence if recent else 0
        if sequence == expected:
            # New, also if the numbers have wrapped round to those of a recent batch: an append
            # that is in doubt is recognised by the names of its segments before.
            continue
        for batch in recent:
            if (batch.base_sequence, batch.record_count) == (sequence, count):
                repeated[partition] = batch.base_offset
        if partition not in repeated:
            raise OutOfOrderSequence(
                f"producer {producer.producer_id} (epoch {producer.producer_epoch}) sent "
                f"sequence {sequence} to {topic}:{partition} where {expected} is next"
            )
    if repeated and len(repeated) != len(batches):
        raise OutOfOrderSequence(
            f"producer {producer.producer_id} sent to topic {topic!r} an append that repeats "
            f"partitions {sorted(repeated)} but is new to others; an append is repeated whole"
        )
    return repeated or None


def advance_sequence(sequence: int, record_count: int) -> int:
    """The sequence number ``record_count`` records after ``sequence``; it wraps at 2^31."""
    return (sequence + record_count) % _SEQUENCES
