"""The folds of topics and groups, without any storage: conditions 1 to 10, 26, 32 and 35."""

from __future__ import annotations

import pytest

from txnlog.errors import (
    CommitFailed,
    ConcurrentTransactions,
    InvalidProducerEpoch,
    OffsetOutOfRange,
    OutOfOrderSequence,
    UnknownTopicOrPartition,
)
from txnlog.state import group, topic, topic_entries
from txnlog.state.group import GroupState, OffsetCommit, OffsetsCommitted
from txnlog.state.producers import ProducerRef
from txnlog.state.segment import SegmentEntry, StoredSegment
from txnlog.state.topic import TopicState
from txnlog.state.topic_entries import Append, Created, Trimmed
from txnlog.state.transaction import Outcome, TransactionRef
from txnlog.storage import envelope

pytestmark = pytest.mark.rule("G1", "G2", "L1", "L4", "L5", "L7")

PRODUCER = ProducerRef(producer_id=9, producer_epoch=3)
SEQUENCE_LIMIT = 2**31


def transaction(name: str, number: int = 1) -> TransactionRef:
    return TransactionRef(name, number, producer_id=hash(name) % 1000, producer_epoch=0)


class Topic:
    """Builds a topic's history entry by entry."""

    def __init__(self, partitions: int = 2, expiration_ms: int = 1000) -> None:
        self.state = TopicState(producer_id_expiration_ms=expiration_ms)
        self.add(Created("n", 0, "id", partitions, {}))

    def add(self, entry: topic_entries.TopicEntry) -> int:
        self.state.apply(self.state.next_entry, entry)
        return self.state.next_entry - 1

    def append(
        self,
        counts: dict[int, int],
        *,
        sequence: int = -1,
        at_ms: int = 0,
        owner: ProducerRef | TransactionRef | None = None,
    ) -> int:
        segments = tuple(
            SegmentEntry(
                p,
                self.state.partitions[p].end_offset,
                StoredSegment(f"w-{p}", n, 10 * n, 1, 2),
                sequence,
            )
            for p, n in counts.items()
        )
        return self.add(
            Append(
                "n",
                at_ms,
                segments,
                transaction=owner if isinstance(owner, TransactionRef) else None,
                producer=owner if isinstance(owner, ProducerRef) else None,
            )
        )

    def check(
        self, sequence: int, count: int = 1, producer: ProducerRef = PRODUCER, partition: int = 0
    ) -> dict[int, int] | None:
        return self.state.check_sequences("t", producer, {partition: (sequence, count)})


@pytest.mark.condition(1)
@pytest.mark.parametrize("sequence", [1, 5])
def test_a_first_batch_starts_at_sequence_0(sequence: int) -> None:
    """0 is accepted, 1 and 5 are out of order."""
    assert Topic().check(0) is None
    with pytest.raises(OutOfOrderSequence, match="where 0 is next"):
        Topic().check(sequence)


@pytest.mark.condition(2)
def test_a_higher_epoch_starts_over_and_fences() -> None:
    """Epoch 4 starts at 0, afterwards epoch 3 is fenced."""
    log = Topic()
    log.append({0: 5}, sequence=0, owner=PRODUCER)
    newer = ProducerRef(9, 4)
    with pytest.raises(OutOfOrderSequence):
        log.check(5, producer=newer)
    assert log.check(0, producer=newer) is None
    log.append({0: 1}, sequence=0, owner=newer)
    with pytest.raises(InvalidProducerEpoch, match="epoch 4"):
        log.check(5)


@pytest.mark.condition(3, 9)
def test_a_gap_is_refused_and_changes_nothing() -> None:
    """0, then 2 is out of order; the state stays as it was."""
    log = Topic()
    log.append({0: 1}, sequence=0, owner=PRODUCER)
    before = envelope.encode(log.state)
    with pytest.raises(OutOfOrderSequence, match="where 1 is next"):
        log.check(2)
    assert envelope.encode(log.state) == before


@pytest.mark.condition(4, 5)
def test_recent_batches_are_recognised_and_older_ones_are_not() -> None:
    """A repeat of the last five has its offset again; a sixth is refused."""
    log = Topic()
    for sequence in range(0, 12, 2):
        log.append({0: 2}, sequence=sequence, owner=PRODUCER)
    assert [log.check(s, 2) for s in (2, 4, 6, 8, 10)] == [{0: s} for s in (2, 4, 6, 8, 10)]
    with pytest.raises(OutOfOrderSequence):
        log.check(0, 2)


@pytest.mark.condition(6)
def test_an_overlap_is_out_of_order() -> None:
    """Two records that overlap the middle of three."""
    log = Topic()
    log.append({0: 3}, sequence=0, owner=PRODUCER)
    with pytest.raises(OutOfOrderSequence):
        log.check(1, 2)


def test_an_append_is_repeated_whole_or_not_at_all() -> None:
    """Partitions of one append cannot be half repeated, half new."""
    log = Topic()
    log.append({0: 3}, sequence=0, owner=PRODUCER)
    with pytest.raises(OutOfOrderSequence, match="whole"):
        log.state.check_sequences("t", PRODUCER, {0: (0, 3), 1: (0, 1)})


@pytest.mark.condition(7)
def test_idle_producers_are_forgotten_but_not_with_an_open_transaction() -> None:
    """Expiry by idle time spares whoever has something undecided."""
    log = Topic()
    open_one = transaction("open")
    log.append({0: 1}, sequence=0, owner=PRODUCER, at_ms=0)
    entry = log.append({0: 1}, sequence=0, owner=open_one, at_ms=0)
    log.append({1: 1}, at_ms=1001)
    log.state.expire()
    assert set(log.state.producers) == {open_one.producer_id}
    log.state.decide(entry, Outcome.COMMIT)
    log.append({1: 1}, at_ms=1002)
    log.state.expire()
    assert log.state.producers == {}


def test_sequences_wrap() -> None:
    """After 2^31 - 1 comes 0."""
    log = Topic()
    log.append({0: SEQUENCE_LIMIT - 1}, sequence=0, owner=PRODUCER)
    log.append({0: 3}, sequence=SEQUENCE_LIMIT - 1, owner=PRODUCER)
    assert log.state.next_sequence(PRODUCER, 0) == 2


@pytest.mark.condition(10)
def test_a_state_from_a_checkpoint_is_the_state() -> None:
    """Reopening at any checkpoint gives what folding everything gives."""
    entries: list[topic_entries.TopicEntry] = []
    whole = Topic()
    add = whole.add

    def recording(entry: topic_entries.TopicEntry) -> int:
        entries.append(entry)
        return add(entry)

    whole.add = recording  # type: ignore[method-assign]
    whole.append({0: 4, 1: 2}, sequence=0, owner=PRODUCER, at_ms=5)
    whole.append({1: 1}, sequence=0, owner=transaction("a"), at_ms=6)
    whole.append({0: 1}, at_ms=7)
    whole.add(topic_entries.Altered("n", 8, partitions=3, config={"compression.type": "zstd"}))
    whole.append({2: 1, 0: 2}, sequence=4, owner=ProducerRef(9, 3), at_ms=9)
    whole.add(Trimmed("n", 10, {0: 4}))
    whole.state.decide(2, Outcome.ABORT)
    for cut in range(len(entries) + 1):
        part = Topic()
        for entry in entries[:cut]:
            part.add(entry)
        reopened = envelope.decode(envelope.encode(part.state), topic.CHECKPOINT_DECODER, "x")
        for entry in entries[cut:]:
            reopened.apply(reopened.next_entry, entry)
        reopened.decide(2, Outcome.ABORT)
        assert reopened == whole.state, f"reopened after {cut} entries"


def test_entries_are_folded_in_order() -> None:
    """Invariant L1: an entry out of turn is refused."""
    log = Topic()
    with pytest.raises(ValueError, match="folded where 1 is next"):
        log.state.apply(2, Append("n", 0, ()))


@pytest.mark.condition(26)
def test_the_last_stable_offset_follows_the_earliest_open_transaction() -> None:
    """Three open transactions, decided in another order than begun."""
    log = Topic(partitions=1)
    entries = [log.append({0: 10}, owner=transaction(name)) for name in "abc"]
    stable = [log.state.last_stable_offsets()]
    for entry in (entries[1], entries[0], entries[2]):
        log.state.decide(entry, Outcome.COMMIT)
        stable.append(log.state.last_stable_offsets())
    assert stable == [[0], [0], [20], [30]]


@pytest.mark.condition(32)
def test_the_last_stable_offset_is_never_below_the_log_start() -> None:
    """Also where the log start was moved while a transaction is open."""
    log = Topic(partitions=1)
    log.append({0: 10})
    log.append({0: 5}, owner=transaction("a"))
    log.state.check_trim("t", {0: 10})
    with pytest.raises(OffsetOutOfRange):
        log.state.check_trim("t", {0: 11})
    log.add(Trimmed("n", 0, {0: 12}))
    assert log.state.last_stable_offsets() == [12]


def test_a_deleted_topic_is_gone_and_a_new_one_is_another() -> None:
    """Data uploaded for a deleted topic must not land in its successor."""
    log = Topic()
    log.add(topic_entries.Deleted("n", 0))
    with pytest.raises(UnknownTopicOrPartition, match="does not exist"):
        log.state.check_exists("t")
    log.add(Created("n", 0, "other", 1, {}))
    with pytest.raises(UnknownTopicOrPartition, match="recreated"):
        log.state.check_exists("t", "id")


@pytest.mark.condition(35)
def test_an_offset_commit_is_compared_with_where_it_started() -> None:
    """Of two that start from the same offset, the second is refused."""
    state = GroupState()
    first = OffsetCommit("in", 0, 10, compare=True, start=None)
    state.check_commit("g", [first])
    state.apply(0, OffsetsCommitted("n", 1, (first,)))
    with pytest.raises(
        CommitFailed, match="read when the group had no offset, but the group is at 10"
    ):
        state.check_commit("g", [first])
    state.check_commit("g", [OffsetCommit("in", 0, 20, compare=True, start=10)])


@pytest.mark.condition(34)
def test_pending_offsets_are_nobody_elses() -> None:
    """Undecided offsets are invisible, hold the partition, and vanish on abort."""
    state = GroupState()
    moved = OffsetCommit("in", 0, 10)
    state.apply(0, OffsetsCommitted("n", 1, (moved,), transaction("a")))
    assert state.offset_of("in", 0) is None
    with pytest.raises(ConcurrentTransactions, match="in:0"):
        state.check_commit("g", [moved])
    state.check_commit("g", [OffsetCommit("in", 1, 10)])
    copy = envelope.decode(envelope.encode(state), group.CHECKPOINT_DECODER, "x")
    state.decide(0, Outcome.ABORT)
    copy.decide(0, Outcome.COMMIT)
    assert state.offset_of("in", 0) is None
    found = copy.offset_of("in", 0)
    assert found is not None
    assert found.offset == 10
