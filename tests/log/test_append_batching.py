"""Append batching: who places what for whom, what each writer is told, and what it costs."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable

import pytest

from tests.support.log.proposing import LOG, PROPOSALS, Losing, place, propose
from tests.support.steps import another, append, checkpoint, new_store, upload, values
from txnlog.admin.vacuum import DEFAULT_ORPHAN_AGE_MS
from txnlog.errors import (
    CommitStateUnknown,
    InvalidProducerEpoch,
    OutOfOrderSequence,
    StorageError,
    UnknownTopicOrPartition,
    UploadExpired,
)
from txnlog.log.append_batching import MOST_AGE_MS
from txnlog.log.uploads import RECHECK_AFTER_MS, Appended, IdempotentWriter
from txnlog.names import TopicPartition
from txnlog.results import FileDeletion
from txnlog.state.producers import ProducerRef
from txnlog.state.proposal import MOST_BEHIND
from txnlog.storage.counting import CountingStorage
from txnlog.store import Store
from txnlog.testing import HeapStorage, ProcessStopped, VirtualClock

pytestmark = pytest.mark.rule("L14", "hazard 9")

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def store(clock: VirtualClock) -> Store:
    """A topic with one append: time passes by appends, and begins with the first."""
    heap = HeapStorage()
    heap.time_ms = lambda: clock.time_ms
    found = new_store(heap, clock, {"t": 2})
    append(found, b"first", partition=0)
    return found


def proposals(store: Store) -> list[str]:
    return store.storage.list_names(PROPOSALS)


def kinds(store: Store) -> list[str | None]:
    return [json.loads(store.storage.get(f"{LOG}/{name}"))["kind"] for name in entries(store)]


def entries(store: Store) -> list[str]:
    return [name for name in store.storage.list_names(LOG) if name.endswith(".json")]


def test_one_entry_places_what_several_have_proposed(store: Store) -> None:
    """A writer places two dead writers' appends with its own; no proposals are left."""
    propose(store, b"one", IdempotentWriter.new("1" * 32), partition=0)
    propose(store, b"two", partition=1)
    writer = IdempotentWriter.new("2" * 32)
    assert place(store, b"three", writer, partition=1).offsets == {T1: range(1)}
    assert kinds(store) == ["created", *["append"] * 4, "appends"]
    assert sorted(values(another(store))) == [b"faster"] * 3 + [b"first", b"one", b"three", b"two"]
    assert writer.sequences == {1: 1}
    assert proposals(store) == []
    whole = {
        (s.entry, s.partition, s.base_offset, s.base_sequence) for s in store.topics.segments("t")
    }
    assert {(5, 0, 4, 0), (5, 1, 0, 0), (5, 1, 1, -1)} <= whole
    assert not [f for f in store.examine() if f.state == "damage"]


def test_its_writer_finds_itself_placed(store: Store) -> None:
    """By an entry of somebody else's: nothing is appended again, and its sequences go on."""
    writer = IdempotentWriter.new("1" * 32)
    since_entry = 2
    segments = propose(store, b"mine", writer)
    place(store, b"other")
    count = len(entries(store))
    log = another(store).logs.topic("t")
    found = log.place(segments, writer=writer, since_entry=since_entry)
    assert found == Appended(None, {T0: range(4, 5)})
    assert writer.sequences == {0: 1}
    assert len(entries(store)) == count
    place(store, b"next", writer)
    assert values(another(store)).count(b"mine") == 1


def test_only_one_append_of_a_producer_is_placed(store: Store) -> None:
    """A copy of a producer has proposed other records with the same sequence: it is refused."""
    ref = ProducerRef(9, 0)
    propose(store, b"copy", IdempotentWriter(ref))
    place(store, b"mine", IdempotentWriter(ref))
    assert kinds(store)[-1] == "append"
    assert proposals(store) == []
    with pytest.raises(OutOfOrderSequence):
        place(store, b"late", IdempotentWriter(ref))


def test_a_fenced_epoch_is_left_out_and_told(store: Store) -> None:
    """An older epoch's proposal is not placed with, or after, a newer epoch's append."""
    segments = propose(store, b"old", IdempotentWriter(ProducerRef(9, 0)))
    place(store, b"new", IdempotentWriter(ProducerRef(9, 1)), partition=1)
    place(store, b"other")
    assert b"old" not in values(another(store))
    with pytest.raises(InvalidProducerEpoch):
        another(store).logs.topic("t").place(
            segments, writer=IdempotentWriter(ProducerRef(9, 0), {0: 1})
        )


def test_a_topic_that_was_made_anew_gets_nothing_of_the_old_one(store: Store) -> None:
    """Its writer is refused."""
    segments = propose(store, b"old")
    store.topics.delete("t")
    store.topics.create("t", partitions=2)
    place(store, b"new")
    place(store, b"newer")
    assert sorted(values(another(store))) == [b"faster", b"faster", b"new", b"newer"]
    with pytest.raises(UnknownTopicOrPartition, match="recreated"):
        another(store).logs.topic("t").place(segments)


def test_what_many_entries_have_overtaken_is_not_even_listed(store: Store) -> None:
    """Its place in the log is known from its name."""
    propose(store, b"old")
    for _ in range(MOST_BEHIND):
        append(store, b"x")
    place(store, b"mine")
    assert kinds(store)[-1] == "append"
    assert len(proposals(store)) == 1


@pytest.mark.parametrize("later_ms", [2 * MOST_AGE_MS, -2 * MOST_AGE_MS])
def test_what_is_old_by_the_clock_is_left_to_its_writer(
    store: Store, clock: VirtualClock, later_ms: int
) -> None:
    """Nothing is concluded from it: its writer places it still."""
    segments = propose(store, b"old")
    clock.time_ms += later_ms
    place(store, b"mine")
    assert b"old" not in values(another(store))
    assert len(proposals(store)) == 1
    another(store).logs.topic("t").place(segments)
    assert b"old" in values(another(store))


def test_uploads_that_vacuum_may_take_for_left_behind_are_not_proposed(
    store: Store, clock: VirtualClock
) -> None:
    """Others could not look at them again when they have placed them."""
    segments = upload(store, b"old")
    clock.time_ms += RECHECK_AFTER_MS + 1
    place(store, b"", segments=segments)
    assert kinds(store) == ["created", "append", "append", "append"]
    assert not store.storage.list_folders("topics/t").count("proposals")


def test_uploads_that_have_become_old_since_are_not_placed_for_others(
    store: Store, clock: VirtualClock
) -> None:
    """The proposal itself is young."""
    segments = upload(store, b"old")
    clock.time_ms += RECHECK_AFTER_MS - MOST_AGE_MS // 2
    process = another(store, Losing(store, dies=True))
    with pytest.raises(ProcessStopped):
        process.logs.topic("t").place(segments)
    clock.time_ms += MOST_AGE_MS - 1000
    place(store, b"mine")
    assert b"old" not in values(another(store))
    another(store).logs.topic("t").place(segments)
    assert b"old" in values(another(store))


def test_who_has_slept_tells_what_it_placed_for_others(
    store: Store, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Vacuum was faster: a warning names what it has placed, and who repeats it is told."""
    writer = IdempotentWriter.new("1" * 32)
    segments = propose(store, b"dead", writer)
    storage = Losing(store)
    put = storage.put_if_absent

    def sleep_before_the_second(name: str, data: bytes) -> bool:
        if name.startswith(LOG) and storage.rule is None:
            clock.time_ms += 2 * DEFAULT_ORPHAN_AGE_MS
            for step in another(store).maintain():
                assert isinstance(step, FileDeletion)
        return put(name, data)

    storage.put_if_absent = sleep_before_the_second  # type: ignore[method-assign]
    own = upload(store, b"own")
    with caplog.at_level(logging.WARNING), pytest.raises(StorageError, match="left behind"):
        another(store, storage).logs.topic("t").place(own)
    assert "for other writers" in caplog.text
    assert segments[0].stored.name in caplog.text
    with pytest.raises(UploadExpired, match="nor will others"):
        another(store).logs.topic("t").place(segments, writer=writer, since_entry=2)


def test_who_has_slept_looks_at_what_others_have_placed_for_it(
    store: Store, clock: VirtualClock
) -> None:
    """As behind an entry of its own: vacuum may have taken its uploads for left behind."""
    storage = Losing(store)
    segments = upload(store, b"mine")
    list_names = storage.list_names

    def sleep(folder: str, start_after: str = "") -> list[str]:
        if folder == PROPOSALS and segments[0].stored.name in "".join(proposals(store)):
            place(store, b"other")
            clock.sleep_machine(RECHECK_AFTER_MS + 1)
            store.storage.delete(segments[0].files)
        return list_names(folder, start_after)

    storage.list_names = sleep  # type: ignore[method-assign]
    with pytest.raises(StorageError, match="left behind meanwhile"):
        another(store, storage).logs.topic("t").place(segments)


def test_while_others_may_place_it_no_error_is_final(store: Store, clock: VirtualClock) -> None:
    """A damaged log, say: the flush is in doubt, and finds out when the log is whole again."""
    storage = Losing(store)
    producer = another(store, storage).producer()
    producer.send("t", b"mine", partition=1)
    damaged = f"{LOG}/{3:020d}.json"
    put = storage.put_if_absent

    def damage(name: str, data: bytes) -> bool:
        if name.startswith(PROPOSALS):
            store.storage.put(damaged, b"{}")
        return put(name, data)

    storage.put_if_absent = damage  # type: ignore[method-assign]
    with pytest.raises(CommitStateUnknown, match="proposed to other writers"):
        producer.flush()
    store.storage.delete([damaged])
    place(store, b"other")
    assert values(another(store)).count(b"mine") == 1
    assert producer.flush() == {T1: [range(1)]}
    assert values(another(store)).count(b"mine") == 1


def test_who_gives_up_says_that_it_may_be_placed_yet(store: Store) -> None:
    """The time is over before it was its turn again."""
    process = another(store, Losing(store))
    with pytest.raises(StorageError, match="may still be placed"):
        process.logs.topic("t").place(upload(store, b"x"), timeout_ms=-1)


def test_a_proposal_that_cannot_be_put_or_read_harms_nobody(store: Store) -> None:
    """Neither the writer whose it is, nor those who find it; one of a newer version is kept."""
    propose(store, b"dead")
    (name,) = proposals(store)
    newer = b'{"format":9,"checksum":"00000000","kind":"proposal"}\n'
    damaged = name.replace("-0.json", "-1.json")
    store.storage.delete([f"{PROPOSALS}/{name}"])
    store.storage.put(f"{PROPOSALS}/{name}", newer)
    store.storage.put(f"{PROPOSALS}/{damaged}", b"{}")
    store.storage.put(f"{PROPOSALS}/README", b"hello")
    storage = Losing(store)
    storage.fail_at(PROPOSALS)
    faster = storage.rule

    def rule(path: str) -> None:
        Losing.be_faster(storage, store, path)
        storage.rule = faster

    storage.rule = rule
    another(store, storage).logs.topic("t").place(upload(store, b"mine"))
    assert b"mine" in values(another(store))
    assert set(proposals(store)) == {name, damaged, "README"}


# -- what it costs -------------------------------------------------------------------------------


def test_contention_costs_a_lone_writer_one_append_more(store: Store, clock: VirtualClock) -> None:
    """The append behind it proposes in vain; then it is one listing and one put again."""
    counting = CountingStorage(Losing(store))
    producer = another(store, counting).producer()
    spent = []
    for _ in range(4):
        producer.send("t", b"x", partition=0)
        counting.take()
        producer.flush()
        spent.append(counting.take())
    usual = {"list": 1, "put_if_absent": 1, "upload": 1}
    assert spent[0]["put_if_absent"] == 3, "one that was lost, a proposal, an entry"
    assert sum(spent[1].values()) <= 6
    assert spent[2:] == [usual, usual]
    assert proposals(store) == []


def test_placing_others_costs_a_read_each(store: Store) -> None:
    """And a deletion of all; and as these are not there any more, some looks before its turn.

    What others have put is confirmed before an attempt: twice, for one is lost.
    """
    for number in range(5):
        propose(store, b"%d" % number)
    counting = CountingStorage(Losing(store))
    log = another(store, counting).logs.topic("t")
    log.refresh()
    segments = upload(store, b"mine")
    counting.take()
    log.place(segments)
    spent = counting.take()
    assert spent.pop("list") <= 11
    assert spent == {"confirm": 2, "delete": 1, "get": 1 + 1 + 5, "put_if_absent": 3}
    assert kinds(store)[-1] == "appends"


# -- what knows of it ----------------------------------------------------------------------------


@pytest.mark.parametrize("then", [checkpoint, lambda _: None])
def test_a_snapshot_shows_all_of_the_entry(store: Store, then: Callable[[Store], None]) -> None:
    """And a cut before it hides all of it."""
    propose(store, b"one", partition=1)
    place(store, b"two", partition=0)
    then(store)
    for level in ("read_committed", "snapshot", "read_uncommitted"):
        snapshot = another(store).snapshot(["t"], isolation_level=level)
        found = snapshot.scan("t").to_arrow().column("value").to_pylist()
        assert {b"one", b"two"} <= set(found)


def test_left_proposals_are_known_and_go_when_they_are_old(
    store: Store, clock: VirtualClock
) -> None:
    """They are no orphans to the doctor; vacuum deletes them at the orphan age."""
    propose(store, b"dead")
    (name,) = proposals(store)
    assert not [found for found in store.examine() if found.path and PROPOSALS in found.path]
    assert not [step for step in store.maintain() if isinstance(step, FileDeletion)]
    clock.time_ms += DEFAULT_ORPHAN_AGE_MS + 1
    doomed = [step for step in store.maintain() if isinstance(step, FileDeletion)]
    assert (
        FileDeletion("t", "left behind", doomed[-1].size_bytes, (f"{PROPOSALS}/{name}",)) in doomed
    )
    assert proposals(store) == []
    assert [usage.partition for usage in store.topics.disk_usage("t")]
