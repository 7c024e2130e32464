"""The rules of docs/PROTOCOL.md as predicates over the content of a log: by number, and pure.

Each takes a state and the next entry, and yields the rules that the entry violates. The same checks
run before an entry is put; here they judge existing entries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from txnlog.columns.layouts import has_become
from txnlog.config import check_partition_count
from txnlog.errors import CommitFailed, InvalidProducerEpoch, TxnlogError
from txnlog.names import TopicPartition
from txnlog.schema import TopicSchema
from txnlog.state.group import (
    GroupDeleted,
    GroupEntry,
    GroupState,
    OffsetsCommitted,
    OffsetsDeleted,
)
from txnlog.state.membership import MembersJoined, PartitionsAssigned
from txnlog.state.producers import ProducerRef
from txnlog.state.segment import Rewritten, Segment, SegmentEntry, resolve
from txnlog.state.topic import Partition, TopicState
from txnlog.state.topic_entries import (
    Altered,
    Append,
    Appends,
    Created,
    Imported,
    TopicEntry,
    Trimmed,
)
from txnlog.state.transaction import Status, TransactionRef, TransactionState

Violation = tuple[str, str]
"""The number of a rule, and how it is violated."""

_NEXT: Mapping[Status, frozenset[Status]] = {
    Status.EMPTY: frozenset({Status.EMPTY, Status.ONGOING, Status.DEAD}),
    Status.ONGOING: frozenset({Status.ONGOING, Status.PREPARE_COMMIT, Status.PREPARE_ABORT}),
    Status.PREPARE_COMMIT: frozenset({Status.COMPLETE_COMMIT}),
    Status.PREPARE_ABORT: frozenset({Status.COMPLETE_ABORT}),
    Status.COMPLETE_COMMIT: frozenset({Status.EMPTY, Status.ONGOING, Status.DEAD}),
    Status.COMPLETE_ABORT: frozenset({Status.EMPTY, Status.ONGOING, Status.DEAD}),
    Status.DEAD: frozenset({Status.EMPTY}),
}


# -- topics --------------------------------------------------------------------------------------


def topic_violations(topic: str, state: TopicState, entry: TopicEntry) -> Iterator[Violation]:
    """Whether ``entry`` follows from ``state``, whose entries are decided as far as possible."""
    try:
        if isinstance(entry, Created):
            state.check_absent(topic)
        else:
            state.check_exists(topic)
        match entry:
            case Altered():
                if entry.partitions is not None:
                    check_partition_count(entry.partitions, len(state.partitions))
                if entry.schema is not None:
                    yield from _schema_violations(state.schema, entry.schema)
            case Trimmed(log_start_offsets=starts):
                state.check_partitions(topic, starts)
                yield from _trim_violations(state, starts)
            case Imported(offsets=spans):
                state.check_import(topic, spans)
            case Rewritten(segments=rewritten):
                state.check_partitions(topic, {place.partition for place in rewritten})
                yield from _rewrite_violations(state, rewritten)
            case Append():
                yield from _append_violations(topic, state, [entry])
            case Appends(appends=appends):
                yield from _append_violations(topic, state, appends)
            case _:
                pass
    except TxnlogError as error:
        yield "L2", str(error)


def _schema_violations(before: TopicSchema | None, now: TopicSchema) -> Iterator[Violation]:
    if before is None:
        yield "L16", "a topic that was made without a schema has got one"
    # Before schemas had numbers, names were used once, and no column was renamed.
    elif (before.version or now.version) and not has_become(before, now):
        yield "L16", "its schema does not follow from the one before: ids are of other columns"


def _append_violations(
    topic: str, state: TopicState, appends: Sequence[Append]
) -> Iterator[Violation]:
    """The appends of one entry, of which no two may be of the same producer."""
    places = [place for append in appends for place in append.segments]
    state.check_partitions(topic, {place.partition for place in places})
    yield from _placement_violations(state, places)
    seen: set[int] = set()
    for append in appends:
        owner = append.transaction or append.producer
        if owner is None:
            continue
        if owner.producer_id in seen:
            yield "L4", f"producer {owner.producer_id} has several appends in one entry"
        seen.add(owner.producer_id)
        yield from _sequence_violations(topic, state, append, owner)


def _placement_violations(state: TopicState, places: Sequence[SegmentEntry]) -> Iterator[Violation]:
    """L2: the writer of an append has seen where each partition ends."""
    ends: dict[int, int] = {}
    for place in places:
        end = ends.get(place.partition, state.partitions[place.partition].end_offset)
        if place.base_offset != end:
            where = f"offset {place.base_offset} of partition {place.partition}"
            yield "L2", f"segment {place.stored.name} is placed at {where}, which ends at {end}"
        ends[place.partition] = place.end_offset


def _sequence_violations(
    topic: str, state: TopicState, entry: Append, owner: ProducerRef | TransactionRef
) -> Iterator[Violation]:
    """L4: a producer's batches have consecutive sequences; one that was forgotten starts over."""
    batches: dict[int, tuple[int, int]] = {}
    for place in entry.segments:
        base, count = batches.get(place.partition, (place.base_sequence, 0))
        batches[place.partition] = (base, count + place.stored.record_count)
    known = state.producers.get(owner.producer_id)
    idle_since_ms = state.append_time_ms - state.producer_id_expiration_ms
    was_idle = known is not None and known.was_idle(idle_since_ms)
    if was_idle and all(base == 0 for base, _ in batches.values()):
        return
    # Sequences of deleted records are not remembered for as long.
    batches = {
        number: batch
        for number, batch in batches.items()
        if batch[0] > 0 or not _wrote_what_was_deleted(state, owner, number)
    }
    try:
        repeated = state.check_sequences(topic, owner, batches)
    except InvalidProducerEpoch as error:
        # An instance that slept may append beside what its successor has settled. Its transaction
        # is over: T1 has its epochs in order, so it cannot commit.
        if not isinstance(owner, TransactionRef):
            yield "L4", str(error)
        return
    except TxnlogError as error:
        yield "L4", str(error)
        return
    if repeated is not None:
        yield "L4", f"producer {owner.producer_id} repeats what was placed at {repeated}"


def _wrote_what_was_deleted(
    state: TopicState, owner: ProducerRef | TransactionRef, partition: int
) -> bool:
    """Whether all remembered batches of a producer in a partition begin below its log start."""
    known = state.producers.get(owner.producer_id)
    batches = known.recent(owner.producer_epoch, partition) if known else ()
    start = state.partitions[partition].log_start_offset
    return bool(batches) and batches[-1].base_offset < start


def _trim_violations(state: TopicState, starts: Mapping[int, int]) -> Iterator[Violation]:
    for number, start in starts.items():
        end = state.partitions[number].end_offset
        if not 0 <= start <= end:
            yield "L5", f"partition {number} is trimmed to {start}, beyond its end {end}"


def _rewrite_violations(state: TopicState, places: Sequence[SegmentEntry]) -> Iterator[Violation]:
    """L2: the writer of a rewrite has seen the records."""
    for place in places:
        end = state.partitions[place.partition].end_offset
        if not 0 <= place.base_offset < place.end_offset <= end:
            where = f"offsets {place.base_offset} to {place.end_offset - 1}"
            yield "L2", f"{where} of partition {place.partition} are rewritten, which ends at {end}"


def stable_offset_violations(state: TopicState) -> Iterator[Violation]:
    """L5 and L6: the last stable offset lies within the log, and the append at it is known."""
    stable = state.last_stable_offsets()
    for number, (at, part) in enumerate(zip(stable, state.partitions, strict=True)):
        if not part.log_start_offset <= at <= max(part.end_offset, part.log_start_offset):
            log = f"{part.log_start_offset} to {part.end_offset}"
            yield "L5", f"the last stable offset {at} of partition {number} is not in {log}"
    apart = {entry.number for entry in state.recent}
    for number in sorted({*state.undecided} - apart):
        yield "L6", f"undecided entry {number} is not kept apart"


def topic_checkpoint_violations(
    replayed: TopicState,
    checkpoint: TopicState,
    trimmed: Mapping[int, int],
    left_out: Mapping[int, int],
) -> Iterator[Violation]:
    """L7: a checkpoint says the same as all entries before it. Both are states after one entry.

    Below ``trimmed``, offsets by partition, records were deleted since: the checkpoint's manifests
    may leave them out. ``left_out`` is, by partition, an entry that has replaced rewrites which
    were left out since: of a checkpoint before it nothing tells which were in force.
    """
    for what in ("topic_id", "created_at_ms", "config", "next_entry", "purge_end"):
        if getattr(replayed, what) != getattr(checkpoint, what):
            yield "L7", f"{what} is not what the entries before it say"
    if len(replayed.partitions) != len(checkpoint.partitions):
        yield "L7", "the number of partitions is not what the entries before it say"
        return
    for number, (ours, theirs) in enumerate(
        zip(replayed.partitions, checkpoint.partitions, strict=True)
    ):
        same = {
            "log_start_offset": ours.log_start_offset == theirs.log_start_offset,
            "end_offset": ours.end_offset == theirs.end_offset,
            "rewrites": checkpoint.next_entry <= left_out.get(number, -1)
            or _same_rewrites(ours, theirs, trimmed.get(number, 0)),
            "segments": _kept(ours, trimmed.get(number, 0))
            == _kept(theirs, trimmed.get(number, 0)),
        }
        for what, is_same in same.items():
            if not is_same:
                yield (
                    "L7",
                    f"{what} of partition {number} is not what the entries before it say",
                )


def _kept(partition: Partition, trimmed: int) -> list[Segment]:
    """The segments that are not trimmed away."""
    return [segment for segment in partition.segments if segment.end_offset > trimmed]


def _same_rewrites(ours: Partition, theirs: Partition, trimmed: int) -> bool:
    """Whether the same rewrites are in force; a list may leave out replaced ones."""
    return [r for r in resolve(ours.rewrites) if r.end > trimmed] == [
        r for r in resolve(theirs.rewrites) if r.end > trimmed
    ]


# -- groups --------------------------------------------------------------------------------------


def group_violations(group_id: str, state: GroupState, entry: GroupEntry) -> Iterator[Violation]:
    """G1, G2 and M1 to M5: whether ``entry`` was allowed to do what it does."""
    try:
        match entry:
            case OffsetsCommitted(offsets=offsets):
                yield from _committer_violations(group_id, state, entry)
                state.check_offsets(group_id, offsets)
            case OffsetsDeleted(partitions=partitions):
                state.check_deletion(group_id, partitions)
            case GroupDeleted():
                state.check_deletion(group_id)
            case PartitionsAssigned():
                yield from state.membership.assignment_violations(entry)
            case MembersJoined():
                yield from state.membership.join_violations(entry)
            case _:
                pass  # leaving, and expiring members, is always allowed
    except TxnlogError as error:
        yield ("G1" if isinstance(error, CommitFailed) else "G2"), str(error)


def _committer_violations(
    group_id: str, state: GroupState, entry: OffsetsCommitted
) -> Iterator[Violation]:
    partitions = [TopicPartition(moved.topic, moved.partition) for moved in entry.offsets]
    try:
        state.membership.check_commit(group_id, entry.committer, partitions, force=entry.force)
    except TxnlogError as error:
        yield "M3", str(error)


def group_checkpoint_violations(
    replayed: GroupState, checkpoint: GroupState
) -> Iterator[Violation]:
    """L7: an outcome pending in either state may be known in the other; all else is equal."""
    pending = {
        (moved.topic, moved.partition)
        for entry in [*checkpoint.pending.values(), *replayed.pending.values()]
        for moved in entry.offsets
    }
    for topic in {*replayed.committed, *checkpoint.committed}:
        ours = replayed.committed.get(topic, {})
        theirs = checkpoint.committed.get(topic, {})
        for number in {*ours, *theirs}:
            differs = ours.get(number) != theirs.get(number)
            if differs and (topic, number) not in pending:
                yield "L7", f"the offset of {topic}:{number} is not what the entries before it say"
    if replayed.membership != checkpoint.membership:
        yield "L7", "its members, or what they hold, are not what the entries before it say"


# -- transactional ids ---------------------------------------------------------------------------


def transition_violations(before: TransactionState, after: TransactionState) -> Iterator[Violation]:
    """Whether one state of a transactional id may follow the other."""
    if after.transactional_id != before.transactional_id:
        yield "T6", f"it is of another id, {after.transactional_id!r}"
        return
    if after.status not in _NEXT[before.status]:
        yield "T6", f"{after.status.value} follows {before.status.value}"
    same = after.producer_id == before.producer_id
    if same and after.producer_epoch < before.producer_epoch:
        yield "T1", f"epoch {after.producer_epoch} follows {before.producer_epoch}"
    same = same and after.producer_epoch == before.producer_epoch
    # An init's own abort has bumped it; which process that was cannot be told from the states.
    if after.status is Status.EMPTY and same and before.status is not Status.COMPLETE_ABORT:
        yield "T1", f"an init did not bump epoch {after.producer_epoch}"
    begins = after.open and not before.open
    if after.number != before.number + int(begins):
        yield "T6", f"transaction {after.number} follows {before.number}"
    finished = after.status is Status.COMPLETE_COMMIT
    if finished and before.status is Status.PREPARE_COMMIT and after.entries != before.entries:
        yield "T3", "what is completed is not what was decided"
    for application, version in before.versions.items():
        if after.versions.get(application, -1) < version:
            yield "T8", f"version {version} of application {application!r} was forgotten"
