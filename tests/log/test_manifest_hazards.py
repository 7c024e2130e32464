"""Manifests against processes that sleep, topics recreated, trims, and producers that come back."""

from __future__ import annotations

import pytest

from tests.support.log.settling import settle_early
from tests.support.steps import another, append, send, upload, values
from tests.support.storage.disturbed_storages import HookedStorage
from txnlog import names
from txnlog.admin.vacuum import Ages, _vacuum_manifests, vacuum_topic
from txnlog.errors import OffsetOutOfRange, StorageError
from txnlog.log.pending_append import settled_producer
from txnlog.log.placed_records import PartitionHead, find_records
from txnlog.log.uploads import IdempotentWriter
from txnlog.names import TopicPartition
from txnlog.state.manifest import ManifestList
from txnlog.state.producers import ProducerState, SequenceRange, join
from txnlog.state.transaction import Outcome
from txnlog.store import Store
from txnlog.testing import FaultyStorage, HeapStorage, VirtualClock

T0 = TopicPartition("t", 0)
HOUR_MS = 3_600_000
WEEK_MS = 7 * 24 * HOUR_MS


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    settle_early(monkeypatch)


pytestmark = [pytest.mark.store(topics={"t": 2}, on="heap"), pytest.mark.rule("L9", "L12")]


def append_each(store: Store, what: str, count: int, partition: int = 0) -> list[bytes]:
    """So many appends of one record each; returns their values."""
    written = [f"{what} {turn}".encode() for turn in range(count)]
    for value in written:
        append(store, value, partition=partition)
    return written


def newest_list(store: Store) -> ManifestList:
    found = store.logs.topic("t").manifests.newest()
    assert found is not None
    return found


def missing(store: Store) -> set[str]:
    """The manifests that the newest list names and that are not there."""
    there = {*store.storage.list_names(names.topic_manifests("t"))}
    return {ref.name for ref in newest_list(store).manifests} - there


def damage(store: Store) -> list[object]:
    return [found for found in another(store).examine() if found.state in ("damage", "unreadable")]


def test_a_settler_that_sleeps_over_a_new_topic_harms_nobody(
    store: Store, clock: VirtualClock
) -> None:
    """It knows the old topic; the newest list is of the new one, and stays as it is."""
    append_each(store, "old", 20)
    slow = another(store)
    log = slow.logs.topic("t")
    log.refresh()
    for turn in range(3):
        log.place(upload(slow, b"slow %d" % turn))
    store.topics.delete("t")
    store.topics.create("t", partitions=1)
    written = append_each(store, "new", 20)
    before = newest_list(store)
    log.checkpoint()
    assert newest_list(store) == before
    assert missing(store) == set()
    written += append_each(store, "newer", 10)
    assert values(another(store)) == written
    assert damage(store) == []


def test_vacuum_of_a_deleted_topic_that_is_made_anew_meanwhile(
    heap: HeapStorage, store: Store, clock: VirtualClock
) -> None:
    """What the new topic's list names is not what the old one has left."""
    append_each(store, "old", 20)
    store.topics.delete("t")
    vacuum = another(store)
    log = vacuum.logs.topic("t")
    log.refresh()
    store.topics.create("t", partitions=1)
    written = append_each(store, "new", 20)
    clock.time_ms += WEEK_MS
    [*_vacuum_manifests(log, Ages(heap, clock.time_ms), WEEK_MS, [], dry_run=False)]
    assert missing(store) == set()
    assert values(another(store)) == written


def test_vacuum_deletes_what_a_deleted_topic_has_settled(
    heap: HeapStorage, store: Store, clock: VirtualClock
) -> None:
    append_each(store, "old", 20)
    store.topics.delete("t")
    clock.time_ms += 2 * WEEK_MS
    another(store).maintain()
    left = heap.list_names(names.topic_manifests("t"))
    assert [name for name in left if names.parse_manifest(name) is not None] == []


def test_manifests_that_wait_for_their_list_are_not_vacuumed(
    heap: HeapStorage, store: Store, clock: VirtualClock
) -> None:
    """Their settler may sleep for however long: if nobody else settles, its list is the newest."""
    written = append_each(store, "x", 20)
    slow = another(store)
    log = slow.logs.topic("t")
    log.refresh()
    for turn in range(5):
        value = b"slow %d" % turn
        written.append(value)
        log.place(upload(slow, value))
    staged = log.manifests.stage(log._state, newest_list(store), log._state.first_unsettled(1))
    assert staged.uploaded
    assert staged.listing.number == newest_list(store).number + 1
    clock.time_ms += 2 * WEEK_MS
    logs = another(store).logs
    assert [*vacuum_topic(logs, "t", Ages(heap, clock.time_ms), WEEK_MS)] == []
    assert log.manifests.publish(staged)
    assert missing(store) == set()
    written += append_each(store, "z", 20)
    assert values(another(store)) == written


def test_a_settler_whose_put_is_answered_too_late_deletes_nothing_of_its_own(
    heap: HeapStorage, store: Store, clock: VirtualClock
) -> None:
    """Its list had landed, others went on from it, and its name is free again or another's."""
    written = append_each(store, "x", 20)
    lossy = HookedStorage(heap)
    mine = another(store, lossy)
    log = mine.logs.topic("t")
    log.refresh()
    for turn in range(40):  # so many are joined with no others
        value = b"mine %d" % turn
        written.append(value)
        log.place(upload(mine, value))
    staged = log.manifests.stage(log._state, newest_list(store), log._state.first_unsettled(1))
    path = f"{names.topic_manifests('t')}/{names.manifest_list(staged.listing.number)}"

    def sleep(name: str) -> None:
        # The client repeats a put of which it has lost the response, and it is told "taken".
        assert name == path
        lossy.rule = None
        heap.put_if_absent(*lossy.last)

    def get(name: str) -> bytes:
        del lossy.get
        turns = 0
        while path.rpartition("/")[2] in heap.list_names(names.topic_manifests("t")):
            written.extend(append_each(store, f"later {turns}", 4))
            turns += 1
        return lossy.get(name)

    lossy.rule = sleep
    lossy.get = get  # type: ignore[method-assign]
    assert not log.manifests.publish(staged)
    assert newest_list(store).number > staged.listing.number
    assert missing(store) == set()
    assert sorted(values(another(store))) == sorted(written)


def test_a_list_that_has_seen_a_trim_is_adopted_by_who_has_not(
    heap: HeapStorage, store: Store, clock: VirtualClock
) -> None:
    """Records that were deleted are not left out of a read in silence."""
    append_each(store, "x", 4)
    slow = another(store)
    log = slow.logs.topic("t")
    log.refresh()
    written = append_each(store, "y", 12)
    log.reload()
    log.refresh()
    store.topics.delete_records({T0: 8})
    clock.time_ms += 2 * WEEK_MS
    append_each(store, "z", 12)
    # It has listed its log before the trim, and the lists after it.
    log._adopt(newest_list(store))
    with log.lock:
        state = log.state
        assert state.partitions[0].log_start_offset == 0
        settled, topic_id = state.settled, state.topic_id
        heads = {0: PartitionHead.of(state, 0)}
    assert settled is not None
    assert settled.number == newest_list(store).number
    with pytest.raises(OffsetOutOfRange, match="below 8 were deleted meanwhile"):
        find_records(log.manifests, settled, topic_id, heads, {0: (0, 16)})
    found = find_records(log.manifests, settled, topic_id, heads, {0: (8, 16)}).segments
    assert found[0][0].base_offset <= 8
    assert written


def test_a_producer_whose_records_were_trimmed_before_they_were_settled(
    store: Store, clock: VirtualClock
) -> None:
    """No manifest tells of them, so it stays in the state as long as it is remembered."""
    producer = store.producer(transactional_id="p")
    producer.init_transactions()
    with producer.transaction():
        for _ in range(5):
            producer.send("t", b"x", partition=0)
    store.topics.delete_records({T0: 5})
    append_each(store, "y", 20, partition=1)
    assert newest_list(store).end > 10
    for one in (store, another(store)):
        log = one.logs.fresh_topic("t")
        assert producer._coordinator is not None
        ref = producer._coordinator.state.ref
        assert log.whole_state().next_sequence(ref, 0) == 5
    with producer.transaction():
        producer.send("t", b"z", partition=0)
    log = another(store).logs.fresh_topic("t")
    assert log.whole_state().next_sequence(ref, 0) == 6
    assert damage(store) == []


def test_a_settled_producer_is_known_in_each_partition_as_long_as_it_is_not_idle(
    store: Store, clock: VirtualClock
) -> None:
    """Its append to one partition is older than the expiry, but it has never been idle for long."""
    log = store.logs.topic("t")
    writer = IdempotentWriter.new("00" * 16)
    expiration_ms = store.logs.config.producer_id_expiration_ms
    both = [*upload(store, b"a", b"b", partition=0), *upload(store, b"a", partition=1)]
    log.place(both, writer=writer)
    append_each(store, "x", 40, partition=1)  # so many are joined with no others
    clock.time_ms += expiration_ms - HOUR_MS
    append_each(store, "x", 20, partition=1)
    log.place(upload(store, b"c", partition=1), writer=writer)
    append_each(store, "x", 20, partition=1)
    clock.time_ms += 2 * HOUR_MS
    append_each(store, "x", 20, partition=1)
    producer = writer.producer
    other = another(store).logs.topic("t")
    other.refresh()
    whole = other.whole_state()
    assert whole.next_sequence(producer, 0) == 2
    assert not other._state.knows(producer)
    placed = other.place(upload(store, b"d", partition=0), writer=writer)
    assert placed.entry is not None
    assert writer.producer == producer
    assert writer.sequences == {0: 3, 1: 2}
    assert damage(store) == []


def test_a_reader_that_cannot_let_go_reads_on(
    heap: HeapStorage, store: Store, clock: VirtualClock
) -> None:
    """Adopting a list spares memory alone: if it fails, what is read is read all the same."""

    def refuse(text: str) -> None:
        if "manifests" in text:
            raise StorageError("permission denied")

    reader = another(store, FaultyStorage(heap, before_request=refuse))
    log = reader.logs.topic("t")
    log.refresh()
    written = append_each(store, "x", 2)
    log.refresh()
    for turn in range(30):
        written += append_each(store, f"y {turn}", 1)
        log.refresh()
    assert values(reader) == written


def test_what_lists_may_leave_out_is_not_told_of_a_producer(
    store: Store, clock: VirtualClock
) -> None:
    """Records that were deleted, older than the expiry: one list may tell of the first alone.

    A writer goes on under a new id there.
    """
    log = store.logs.topic("t")
    writer = IdempotentWriter.new("00" * 16)
    first = writer.producer
    expiration_ms = store.logs.config.producer_id_expiration_ms
    both = [*upload(store, b"a", partition=0), *upload(store, b"a", partition=1)]
    log.place(both, writer=writer)
    clock.time_ms += expiration_ms - HOUR_MS
    log.place(upload(store, b"b", partition=1), writer=writer)
    append_each(store, "x", 20, partition=1)
    clock.time_ms += 2 * HOUR_MS
    append_each(store, "x", 20, partition=1)
    with log.lock:
        state = log.state
        for start, told in ((0, {0, 1}), (1, {1})):
            state.partitions[0].log_start_offset = start
            known = settled_producer(log.manifests, state, first, [0, 1])
            assert known is not None
            assert {partition for partition in (0, 1) if known.recent(0, partition)} == told
        state.partitions[0].log_start_offset = 0
    store.topics.delete_records({T0: 1})
    assert log.place(upload(store, b"c", partition=0), writer=writer).entry is not None
    assert writer.producer != first
    assert writer.sequences == {0: 1}
    assert damage(store) == []


def test_outcomes_of_settled_appends_are_told(store: Store) -> None:
    """Each append's, to whoever has it undecided still; of what is not settled nothing."""
    producer = store.producer(transactional_id="p")
    producer.init_transactions()
    for turn in range(20):
        producer.begin_transaction()
        send(producer, b"x", partition=turn % 2)
        if turn % 3:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    log = store.logs.fresh_topic("t")
    expected = log.log.listing().outcomes
    with log.lock:
        state = log.state
        settled, topic_id = state.settled, state.topic_id
    assert settled is not None
    assert settled.end > 10
    for number, outcome in expected.items():
        is_abort = log.manifests.outcome_is_abort(settled, topic_id, number)
        wanted = None if number >= settled.end else outcome is Outcome.ABORT
        assert is_abort is wanted, number


def test_old_manifests_are_not_looked_at_for_cuts(store: Store, clock: VirtualClock) -> None:
    """They are let go when all in them is older than what a cut may fall behind."""
    append_each(store, "x", 40)
    log = store.logs.topic("t")
    assert log.kept_apart().first_entry == 0
    at_ms = clock.time_ms
    clock.time_ms += store.logs._policy.recent_ms + 1
    append_each(store, "y", 40)
    first = newest_list(store).manifests[0]
    assert log.kept_apart().first_entry >= first.end_entry
    assert log.kept_apart().kept_since_ms == at_ms


def test_checkpoints_tell_outcomes_of_what_is_settled(store: Store) -> None:
    """Invariant L10: who has an entry undecided that was cleaned up asks a checkpoint for it."""
    producer = store.producer(transactional_id="p")
    producer.init_transactions()
    for turn in range(20):
        producer.begin_transaction()
        send(producer, b"x")
        if turn % 3:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    log = store.logs.fresh_topic("t")
    listing = log.log.listing()
    older = {number: outcome for number, outcome in listing.outcomes.items() if number < 10}
    assert log.outcomes_in_checkpoints(older, listing) == older


def test_a_list_that_was_put_after_a_long_sleep_is_not_used(
    heap: HeapStorage, store: Store, clock: VirtualClock
) -> None:
    """Its name may have been freed; whoever settles next finds out, in a listing."""
    append_each(store, "x", 2)
    hooked = HookedStorage(heap)
    log = another(store, hooked).logs.topic("t")
    for turn in range(6):
        log.place(upload(store, b"%d" % turn))

    def sleep(name: str) -> None:
        if name.endswith(".list"):
            clock.time_ms += store.logs.config.log_cleanup_age_ms

    hooked.rule = sleep
    log.checkpoint()
    with log.lock:
        state = log.state
        assert state.settled is None
    assert newest_list(store).number == 0
    assert len(values(another(store))) == 8


def test_a_list_is_confirmed_before_it_is_built_on(heap: HeapStorage, store: Store) -> None:
    """Else a power cut takes it back, and leaves the checkpoint that leads to it."""
    storage = FaultyStorage(heap)
    log = another(store, storage).logs.topic("t")
    log.refresh()
    append_each(store, "x", 20)
    log.reload()
    path = f"{names.topic_manifests('t')}/{names.manifest_list(newest_list(store).number)}"
    for number in log.log.listing().checkpoints:
        log.log.delete_checkpoints([number])
    log.refresh()
    with log.lock:
        state = log.state
        assert state.settled is not None
    assert f"confirm {path}" in storage.requests


def test_a_zombies_append_does_not_hide_the_newer_epoch_that_was_settled() -> None:
    """All that is known here is of an older epoch: what manifests tell of the newer one counts."""
    batch = SequenceRange(0, 5, 10, "a")
    older = ProducerState(3, 1, {0: [batch]}, transaction=7, active_ms=1, entry=1)
    zombie = ProducerState(2, 2, {0: [SequenceRange(0, 1, 20, "z")]}, 6, 2, 9, False, 9, 0)
    known = join(older, zombie)
    assert (known.producer_epoch, known.transaction) == (3, 7)
    assert known.recent(3, 0) == [batch]
    assert known.entry == 9
