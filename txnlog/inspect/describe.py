"""Makes descriptions of topics, groups and transactions, from refreshed logs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from txnlog.errors import StorageError, TxnlogError
from txnlog.inspect.descriptions import (
    PartitionDescription,
    ProducerDescription,
    SegmentDescription,
    TopicDescription,
    TransactionDescription,
)
from txnlog.inspect.group_lag import GroupDescription, GroupOffset, MemberDescription
from txnlog.log.group_log import GroupLog
from txnlog.log.topic_log import TopicLog
from txnlog.log.transaction_log import Head
from txnlog.names import TopicPartition
from txnlog.state.membership import Held
from txnlog.state.segment import Segment
from txnlog.state.topic import Partition, TopicState
from txnlog.state.transaction import (
    TransactionRef,
    TransactionState,
)

Described = TypeVar("Described")


def describe_topic(log: TopicLog) -> TopicDescription:
    """Describe a refreshed and settled topic."""
    return describe_topic_state(log.name, log.whole_segments())


def describe_topic_state(topic: str, state: TopicState) -> TopicDescription:
    """Describe a topic by one state, with none of its segments in manifests.

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
                sum(segment.stored.size_bytes for segment in segments[number]),
                tuple(sorted(open_in.get(number, ()))),
                max((segment.stored.max_timestamp_ms for segment in segments[number]), default=-1),
            )
            for number, partition in enumerate(state.partitions)
        ),
        open_transactions=tuple(sorted(set(state.undecided.values()))),
        entries=state.next_entry,
        schema=state.schema,
    )


def describe_segments(log: TopicLog, partition: int | None = None) -> list[SegmentDescription]:
    """Describe the segments of a refreshed and settled topic, by partition and offset."""
    return _describe_segments(log.name, log.whole_state(), Partition.record_segments, partition)


def describe_with_replaced(
    log: TopicLog,
) -> tuple[list[SegmentDescription], list[SegmentDescription]]:
    """Descriptions of the segments that hold records, and of all if some were rewritten.

    The second list has replaced segments for as long as the log knows them, even if their files are
    deleted. It is empty for partitions without rewrites.
    """

    def held(part: Partition) -> Sequence[Segment]:
        rewrites = (rewrite.segment for rewrite in part.rewrites)
        return [*part.segments, *rewrites] if part.rewrites else ()

    state = log.whole_state()
    describe = partial(_describe_segments, log.name, state)
    return describe(Partition.record_segments), describe(held)


def _describe_segments(
    topic: str,
    state: TopicState,
    segments_of: Callable[[Partition], Sequence[Segment]],
    partition: int | None = None,
) -> list[SegmentDescription]:
    outcomes = {
        **dict.fromkeys(state.aborted, "aborted"),
        **dict.fromkeys(state.undecided, "undecided"),
    }
    return [
        describe_segment(topic, number, segment, outcomes.get(segment.entry, "committed"))
        for number, part in enumerate(state.partitions)
        if partition in (None, number)
        for segment in segments_of(part)
    ]


def describe_segments_within(
    log: TopicLog, partition: int, start: int, end: int
) -> list[SegmentDescription]:
    """Describe the segments of one partition that hold any of the offsets [start, end).

    Deleted ones are left out. The cost depends only on these. Raises OffsetOutOfRange,
    CorruptEntry.
    """
    with log.lock:
        state = log.state
        start = max(start, state.partitions[partition].log_start_offset)
        found = log.find_records(state, {partition: (start, end)})
        outcomes = {
            **dict.fromkeys((*found.aborted, *state.aborted), "aborted"),
            **dict.fromkeys(state.undecided, "undecided"),
        }
    return [
        describe_segment(log.name, partition, segment, outcomes.get(segment.entry, "committed"))
        for segment in found.segments[partition]
    ]


def describe_segment(
    topic: str, partition: int, segment: Segment, outcome: str
) -> SegmentDescription:
    """Describe a segment that a topic's log has placed."""
    stored, kafka = segment.stored, segment.stored.kafka
    return SegmentDescription(
        topic=topic,
        partition=partition,
        name=stored.name,
        entry=segment.entry,
        base_offset=segment.base_offset,
        end_offset=segment.end_offset,
        record_count=stored.record_count,
        size_bytes=stored.size_bytes,
        batch_count=stored.batch_count,
        min_timestamp_ms=stored.min_timestamp_ms,
        max_timestamp_ms=stored.max_timestamp_ms,
        producer_id=segment.producer_id,
        producer_epoch=segment.producer_epoch,
        base_sequence=segment.base_sequence,
        outcome=outcome,
        from_kafka=kafka is not None,
        aborted_count=kafka.aborted_count if kafka else 0,
        aborted_crc=kafka.aborted_crc if kafka else 0,
        identity=segment.identity,
        position=stored.position,
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
    log: GroupLog, bounds: dict[TopicPartition, tuple[int, int]], topic_ids: dict[str, str | None]
) -> GroupDescription:
    """Describe a refreshed and settled group.

    ``bounds`` are the starts and the last stable offsets of its topics' partitions.
    """
    with log.lock:
        state = log.state
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
        start, end = (None, None) if stale else bounds.get(where, (None, None))
        offsets.append(
            GroupOffset(
                topic=where.topic,
                partition=where.partition,
                offset=known.offset if known else None,
                metadata=known.metadata if known else "",
                committed_at_ms=known.at_ms if known else None,
                end_offset=end,
                pending=pending.get(where),
                log_start_offset=start,
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
    """The result of ``describe``, or an error that concerns only this name."""
    try:
        return describe(name)
    except StorageError:
        raise
    except TxnlogError as error:
        return error
