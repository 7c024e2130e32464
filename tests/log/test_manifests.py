"""Settled appends move to manifests: reads stay the same, and so does a commit's cost."""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from tests.support.log.settling import settle_early
from tests.support.steps import (
    another,
    append,
    begin,
    begin_with,
    checkpoint,
    new_store,
    send,
    upload,
    values,
)
from tests.support.storage.disturbed_storages import LosingStorage
from txnlog import names
from txnlog.errors import (
    CorruptEntry,
    OffsetOutOfRange,
    StorageError,
    TxnlogError,
    UnknownTopicOrPartition,
)
from txnlog.log import manifest_table, manifests
from txnlog.log.manifest_table import ManifestTable
from txnlog.log.uploads import IdempotentWriter
from txnlog.names import TopicPartition
from txnlog.state.manifest import ManifestList
from txnlog.state.topic import TopicState
from txnlog.state.topic_entries import ENTRY_DECODER
from txnlog.storage import envelope
from txnlog.storage.base import Storage
from txnlog.storage.counting import CountingStorage
from txnlog.store import Store, attach
from txnlog.testing import FaultyStorage, HeapStorage, VirtualClock


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    settle_early(monkeypatch)


pytestmark = [pytest.mark.store(topics={"t": 2}, on="heap"), pytest.mark.rule("L8", "L12")]


def fold_entries(store: Store, outcomes: Mapping[int, Any]) -> TopicState:
    """The state that the entries alone give, as if there were no checkpoints and manifests."""
    log = store.logs.topic("t").log
    state = TopicState(producer_id_expiration_ms=store.logs.config.producer_id_expiration_ms)
    for number in log.listing().entries:
        entry = envelope.decode(log.read([number])[0], ENTRY_DECODER, log.path(number))
        state.apply(number, entry)
        if number in outcomes:
            state.decide(number, outcomes[number])
    state.expire()
    return state


def facts(state: TopicState) -> dict[str, Any]:
    """What two states that say the same have in common, however they keep it."""
    said: dict[str, Any] = msgspec.to_builtins(state)
    used = {segment.entry for part in state.partitions for segment in part.segments}
    said["aborted"] = sorted({*said["aborted"]} & used)
    held = {(s.entry, n) for n, part in enumerate(state.partitions) for s in part.segments}
    said["recent"] = [entry for entry in said["recent"] if entry["number"] in used]
    for entry in said["recent"]:
        found = entry["first_offsets"]
        entry["first_offsets"] = {n: found[n] for n in found if (entry["number"], n) in held}
    for known in said["producers"].values():
        del known["is_whole"], known["since_ms"], known["since_entry"]
    del said["settled"]
    return said


def newest_list(store: Store, topic: str = "t") -> ManifestList:
    found = store.logs.topic(topic).manifests.newest()
    assert found is not None
    return found


def folder(store: Store) -> list[str]:
    return store.storage.list_names(names.topic_manifests("t"))


@pytest.mark.few(1)
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("expiration_ms", [86_400_000, 3_600_000])
@pytest.mark.parametrize(
    "seed",
    [
        *(0, 1),
        *(pytest.param(n, marks=pytest.mark.more) for n in range(2, 5)),
        *(pytest.param(n, marks=pytest.mark.slow) for n in range(5, 9)),
    ],
)
def test_states_say_the_same_whatever_is_in_manifests(
    heap: HeapStorage,
    clock: VirtualClock,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    expiration_ms: int,
) -> None:
    """Several processes append, abort, trim, settle, stay behind and catch up, in any order.

    Or producers are forgotten; not both, since what was deleted is not remembered for as long.
    Entries are also larger than manifests, and partitions too many for lists, by every other seed.
    """
    random_ = random.Random(seed)
    if seed % 2:
        monkeypatch.setattr(manifests, "MAX_SEGMENTS", 1)
        monkeypatch.setattr(manifest_table, "MAX_SPANS", 1 + seed % 3)
    config = {"producer.id.expiration.ms": expiration_ms, "log.cleanup.age.ms": 86_400_000}
    store = new_store(heap, clock, {"t": 3}, config=config)
    stores = [store, *(another(store) for _ in range(3))]
    producers = {}
    for index, one in enumerate(stores):
        producers[index] = one.producer(transactional_id=f"p{index}")
        producers[index].init_transactions()
    plain = [one.producer() for one in stores]
    written: list[bytes] = []
    for turn in range(120):
        clock.time_ms += random_.choice([0, 1000, 600_000])
        index = random_.randrange(len(stores))
        value = b"%d" % turn
        match random_.randrange(8):
            case 0 | 1 | 2:
                for partition in {random_.randrange(3), random_.randrange(3)}:
                    plain[index].send("t", value, partition=partition)
                plain[index].flush()
                written.append(value)
            case 3 | 4 | 5:
                producers[index].begin_transaction()
                for _ in range(random_.randrange(1, 3)):
                    send(producers[index], value, partition=random_.randrange(3))
                    if random_.random() < 0.5:
                        plain[0].send("t", value + b"+", partition=random_.randrange(3))
                        plain[0].flush()
                        written.append(value + b"+")
                if random_.random() < 0.7:
                    producers[index].commit_transaction()
                else:
                    producers[index].abort_transaction()
            case 6:
                checkpoint(stores[index])
            case 7 if turn % 5 < 2:
                store.logs.topic("t").reload()
            case 7 if turn % 5 == 2 and expiration_ms == 86_400_000:
                part = random_.randrange(3)
                at = TopicPartition("t", part)
                low, high = (
                    offsets["t"][part]
                    for offsets in (
                        {"t": stores[index].snapshot("t").beginning_offsets("t")},
                        {"t": stores[index].snapshot("t").end_offsets("t")},
                    )
                )
                most = random_.choice([high, (low + high) // 2])
                stores[index].topics.delete_records({at: random_.randint(low, most)})
    reference = another(store)
    listing = reference.logs.topic("t").log.listing()
    expected = facts(fold_entries(reference, listing.outcomes))
    assert newest_list(store).end > 60
    for one in [*stores, reference]:
        log = one.logs.fresh_topic("t")
        whole = facts(log.whole_state())
        for what in expected:
            if what != "producers":
                assert whole[what] == expected[what], what
        assert whole["producers"].keys() == expected["producers"].keys()
        for producer_id, known in expected["producers"].items():
            assert whole["producers"][producer_id] == known
        assert sorted(values(one)) == sorted(values(reference))
        uncommitted = values(one, isolation_level="read_uncommitted")
        assert uncommitted == values(reference, isolation_level="read_uncommitted")
    assert [found for found in store.examine() if found.state in ("damage", "unreadable")] == []


@pytest.mark.usefixtures("small")
def test_checkpoints_and_folders_stay_small(
    heap: HeapStorage, store: Store, clock: VirtualClock
) -> None:
    """After 400 appends a checkpoint is as large as after 40, and little is superseded."""
    sizes: list[int] = []
    for turn in range(400):
        append(store, b"%d" % turn)
        if turn in (40, 399):
            checkpoint(store)
            names_ = heap.list_names("topics/t/log")
            last = max(name for name in names_ if name.endswith(".checkpoint"))
            sizes.append(heap.size(f"topics/t/log/{last}"))
            assert sum(name.endswith(".checkpoint") for name in names_) <= 2
    assert sizes[1] < 1.5 * sizes[0]
    live = {ref.name for ref in newest_list(store).manifests}
    lists = [name for name in folder(store) if name.endswith(".list")]
    assert {*folder(store)} - {*lists} == live
    assert len(lists) <= 3
    assert len(live) < 30
    assert values(another(store)) == [b"%d" % turn for turn in range(400)]


@pytest.mark.usefixtures("small")
def test_superseded_manifests_leave_the_memory(store: Store) -> None:
    """Of a process that settles and of one that reads: both keep what is in the list they know."""
    reader, kept = another(store), 0
    for turn in range(120):
        append(store, b"%d" % turn)
        if turn % 4 == 3:
            assert len(values(reader)) == turn + 1
        for one in (store, reader):
            known = one.logs.topic("t").manifests
            names_ = {ref.name for ref in known._list.manifests} if known._list else set()
            assert known._tables.keys() <= names_
            assert known._cached_bytes == sum(size for _, size in known._tables.values())
            kept = max(kept, len(known._tables))
    assert kept > 1


@pytest.mark.usefixtures("small")
def test_an_append_in_doubt_that_was_settled_is_not_placed_again(
    heap: HeapStorage, store: Store, clock: VirtualClock
) -> None:
    """Invariant L8: found by its name in a manifest, it counts in the sequences of its producer."""
    losing = LosingStorage(heap)
    mine = another(store, losing)
    log, segments, writer = (
        mine.logs.topic("t"),
        upload(mine, b"mine"),
        IdempotentWriter.new("00" * 16),
    )
    log.refresh()
    since = log.next_entry
    losing.losing = ".json"
    with pytest.raises(StorageError):
        log.place(segments, writer=writer, since_entry=since)
    losing.losing = ""
    for turn in range(20):
        append(store, b"%d" % turn)
    log.reload()
    assert log.place(segments, writer=writer, since_entry=since).entry is None
    assert writer.sequences == {0: 1}
    with log.lock:
        state = log.state
        assert state.settled is not None
        assert state.settled.end > since
    assert values(another(store)).count(b"mine") == 1
    assert log.place(upload(mine, b"next"), writer=writer).entry is not None
    assert writer.sequences == {0: 2}
    assert [f for f in store.examine() if f.state == "damage"] == []


@pytest.mark.usefixtures("small")
def test_a_producer_that_was_settled_goes_on_where_it_was(
    heap: HeapStorage, store: Store, clock: VirtualClock
) -> None:
    """Its sequences follow on, in each partition, also where it is another process that goes on."""
    producer = begin(store)
    for partition in (0, 1):
        send(producer, b"x", b"x", partition=partition)
    producer.commit_transaction()
    for turn in range(20):
        append(store, b"%d" % turn)
    producer.begin_transaction()
    send(producer, b"y", partition=1)
    for turn in range(20):
        append(store, b"%d" % turn)
    other = another(store)
    resumed = other.producer(transactional_id="p")
    coordinator = resumed._coordinator
    assert coordinator is not None
    coordinator.resume()
    log = other.logs.topic("t")
    for partition, expected in ((0, 2), (1, 3)):
        coordinator.place({"t": upload(other, b"z", partition=partition)})
        number = coordinator._entries[-1].number
        entry = envelope.decode(log.log.read([number])[0], ENTRY_DECODER, "")
        assert entry.segments[0].base_sequence == expected  # type: ignore[union-attr]
    producer.abort_transaction()
    assert [f for f in store.examine() if f.state == "damage"] == []


@pytest.mark.usefixtures("small")
def test_a_settler_that_sleeps_harms_nobody(
    heap: HeapStorage, store: Store, clock: VirtualClock
) -> None:
    """Its list comes when the newest ones are others: it is nobody's, and nothing is deleted."""
    for turn in range(12):
        append(store, b"%d" % turn)
    slow = another(store)
    log = slow.logs.topic("t")
    log.refresh()
    before = newest_list(slow)
    staged = log.manifests.stage(log._state, before, log._state.first_unsettled(1))
    for turn in range(12, 60):
        append(store, b"%d" % turn)
    newest = newest_list(store)
    assert newest.number > staged.listing.number + 2
    assert names.manifest_list(staged.listing.number) not in folder(store)
    assert log.manifests.publish(staged)
    log.manifests.collect(staged.listing)
    # Nor would anything be for a list under a number freed since, made by who knew nothing of it.
    stray = msgspec.structs.replace(staged.listing, number=newest.number - 1, manifests=())
    log.manifests.collect(stray)
    assert newest.files <= {*folder(store)}
    # Even if it goes on with its own list: what that names is gone, and the newest one has it.
    log._state.leave_to_manifests(staged.settled)
    expected = [b"%d" % turn for turn in range(60)]
    assert sorted(values(slow)) == sorted(expected)
    log.checkpoint()
    for turn in range(60, 80):
        append(store, b"%d" % turn)
    assert newest_list(store).number > newest.number
    for one in (slow, another(store)):
        assert sorted(values(one)) == sorted([*expected, *(b"%d" % turn for turn in range(60, 80))])


@pytest.mark.usefixtures("small")
def test_two_settlers_at_once(heap: HeapStorage, store: Store) -> None:
    """One list wins; what the other one has uploaded is deleted again."""
    for turn in range(10):
        append(store, b"%d" % turn)
    logs = [another(store).logs.topic("t") for _ in range(2)]
    staged = []
    for log in logs:
        log.refresh()
        found = log.manifests.newest()
        staged.append(log.manifests.stage(log._state, found, log._state.first_unsettled(1)))
    published = [log.manifests.publish(one) for log, one in zip(logs, staged, strict=True)]
    assert published == [True, False]
    assert not {*staged[1].uploaded} & {*folder(store)}
    assert {*staged[0].uploaded} <= {*folder(store)}


@pytest.mark.usefixtures("small")
def test_a_view_outlives_the_manifests_that_it_was_pinned_with(
    heap: HeapStorage, store: Store
) -> None:
    """Its later reads are planned from newer ones; trimmed records raise."""
    for turn in range(20):
        append(store, b"%d" % turn, partition=0)
    reader = another(store)
    early = reader.snapshot("t")
    for turn in range(20, 60):
        append(store, b"%d" % turn, partition=0)
    wanted = [b"%d" % turn for turn in range(20)]
    assert early.scan("t").to_arrow().column("value").to_pylist() == wanted
    early = another(store).snapshot("t")
    store.topics.delete_records({TopicPartition("t", 0): 30})
    for turn in range(60, 90):
        append(store, b"%d" % turn, partition=0)
    with pytest.raises(OffsetOutOfRange, match=r"t:0 is read from offset 0, .* below 30 were dele"):
        early.scan("t")
    assert values(another(store)) == [b"%d" % turn for turn in range(30, 90)]


@pytest.mark.usefixtures("small")
def test_a_topic_that_is_made_anew_has_nothing_of_the_old_one(
    heap: HeapStorage, store: Store
) -> None:
    """Lists are counted on, and what the old topic's views look for is told to be gone."""
    for turn in range(30):
        append(store, b"%d" % turn)
    old, number = another(store).snapshot("t"), newest_list(store).number
    store.topics.delete("t")
    store.topics.create("t", partitions=1)
    for turn in range(30):
        append(store, b"new %d" % turn)
    assert newest_list(store).number > number
    assert values(another(store)) == [b"new %d" % turn for turn in range(30)]
    with pytest.raises((UnknownTopicOrPartition, CorruptEntry)):
        old.scan("t")
    assert [f for f in store.examine() if f.state == "damage"] == []


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("ending", [".arrow", ".list"])
def test_a_damaged_manifest_is_told(heap: HeapStorage, store: Store, ending: str) -> None:
    """It names the file; the entries are not lost, and the newest records are read all the same."""
    for turn in range(30):
        append(store, b"%d" % turn, partition=0)
    doomed = max(name for name in folder(store) if name.endswith(ending))
    path = f"{names.topic_manifests('t')}/{doomed}"
    data = bytearray(heap.get(path))
    data[len(data) // 2] ^= 4
    heap.delete([path])
    heap.put(path, bytes(data))
    with pytest.raises(CorruptEntry, match=doomed):
        another(store).scan("t")
    end = another(store).snapshot("t").end_offsets("t")[0]
    newest = another(store).scan("t", starting_offsets={0: end - 1})
    assert newest.to_arrow().column("value").to_pylist() == [b"29"]
    assert any(doomed in str(found) for found in store.examine() if found.state == "damage")


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("kept", [0, 1], ids=["all", "newest"])
def test_lists_that_are_lost_are_not_made_anew(heap: HeapStorage, store: Store, kept: int) -> None:
    """Writers go on; a list of theirs would lack what was settled, which would be deleted."""
    for turn in range(30):
        append(store, b"%d" % turn, partition=0)
    at = names.topic_manifests("t")
    lists = sorted(name for name in folder(store) if name.endswith(".list"))
    lost = {name: heap.get(f"{at}/{name}") for name in lists[kept:]}
    heap.delete([f"{at}/{name}" for name in lost])
    for turn in range(30, 60):
        append(another(store), b"%d" % turn, partition=0)
    with pytest.raises(CorruptEntry, match=f"{lists[-1]} is missing"):
        another(store).scan("t")
    for name, data in lost.items():
        heap.put(f"{at}/{name}", data)
    append(another(store), b"60", partition=0)
    assert values(another(store)) == [b"%d" % turn for turn in range(61)]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("most", [1, 2, 3])
def test_an_append_may_have_more_segments_than_a_manifest(
    heap: HeapStorage, monkeypatch: pytest.MonkeyPatch, before: int, most: int
) -> None:
    """Also the first one, behind an entry without any: no manifest is empty."""
    monkeypatch.setattr(manifests, "MAX_SEGMENTS", most)
    store = new_store(heap, VirtualClock(), {"t": 7})
    for turn in range(before):
        append(store, b"%d" % turn)
    with store.producer() as producer:
        for partition in range(7):
            producer.send("t", b"all %d" % partition, partition=partition)
    for turn in range(before, 12):
        append(store, b"%d" % turn)
    assert all(ref.segment_count for ref in newest_list(store).manifests)
    wanted = [b"%d" % turn for turn in range(12)] + [b"all %d" % turn for turn in range(7)]
    assert sorted(values(another(store))) == sorted(wanted)
    store.topics.delete("t")


@pytest.mark.few(1)
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("spans", [1, 7])
def test_what_is_deleted_leaves_the_manifests(
    heap: HeapStorage, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, spans: int
) -> None:
    """Also of more partitions than a list names: else each plan would read all there ever were."""
    monkeypatch.setattr(manifest_table, "MAX_SPANS", spans)
    monkeypatch.setattr(manifests, "MAX_SEGMENTS", 7)
    store = new_store(heap, clock, {"t": 7})
    counts = []
    for turn in range(30):
        for _ in range(10):
            with store.producer() as producer:
                for partition in range(7):
                    producer.send("t", b"%d" % turn, partition=partition)
        clock.time_ms += 3 * 86_400_000  # producers are forgotten
        ends = store.snapshot("t").end_offsets("t")
        left = {TopicPartition("t", n): end - (n == 0) for n, end in ends.items()}
        store.topics.delete_records(left)
        assert values(another(store)) == [b"%d" % turn]
        counts.append(sum(ref.segment_count for ref in newest_list(store).manifests))
    assert max(counts[15:]) <= max(counts[:15])


@pytest.mark.parametrize("count", [0, 300_000])
def test_a_manifest_of_any_size_can_be_read_again(
    heap: HeapStorage, store: Store, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Of an append with as many segments as an entry can hold, or of none."""
    begin_with(store, "x" * 200, b"v").commit_transaction()
    log = store.logs.topic("t")
    log.refresh()
    parts = [(n, part.segments) for n, part in enumerate(log.state.partitions)]
    one = ManifestTable.of(parts, {entry.number: entry for entry in log.state.recent}, ())
    assert len(one) == 1
    many = ManifestTable(one.table.take(pa.array(np.zeros(count, np.int64))))
    data = many.encode()
    assert len(ManifestTable.decode(data, many.ref("m", data, 0, 9), "m")) == count
    monkeypatch.setattr("txnlog.log.manifest_table.MOST_STATE_BYTES", many.nbytes - 1)
    if count:
        with pytest.raises(CorruptEntry, match=f"a manifest of {count} segments takes"):
            many.encode()


def requests_of_commits(storage: Storage, clock: VirtualClock, count: int) -> list[int]:
    """The requests of each of so many commits over two topics."""
    counting = CountingStorage(storage)
    store = attach(counting, clock=clock)
    producer = store.producer(transactional_id="p")
    producer.init_transactions()
    requests = []
    for _ in range(count):
        clock.time_ms += 100
        counting.take()
        with producer.transaction():
            producer.send("t", b"x")
            producer.send("u", b"x")
        requests.append(sum(counting.take().values()))
    return requests


@pytest.mark.more
def test_a_commit_costs_no_more_after_thousands(clock: VirtualClock) -> None:
    """Requests of 256 commits, at the beginning and after 2,000; inside an hour."""
    heap = HeapStorage()
    new_store(heap, clock, {"t": 1, "u": 1})
    requests = requests_of_commits(heap, clock, 2304)
    first, last = sum(requests[:256]), sum(requests[-256:])
    assert last < 1.05 * first


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(n, marks=[pytest.mark.slow] * (n % 3 > 0) or [pytest.mark.more] * (n % 9 > 0))
        for n in range(40)
    ],
)
def test_settling_may_fail_at_any_request(heap: HeapStorage, store: Store, request_: int) -> None:
    """The append is there, the checkpoint is later's, and everybody reads on."""
    for turn in range(7):
        append(store, b"%d" % turn)
    count = 0

    def fail(text: str) -> None:
        nonlocal count
        if "manifests" in text or "checkpoint" in text or "delete" in text:
            count += 1
            if count > request_:
                raise StorageError("the connection was reset")

    failing = FaultyStorage(heap, before_request=fail)
    mine = another(store, failing)
    written = [b"%d" % turn for turn in range(7)]
    for turn in range(20):
        try:
            append(mine, b"m%d" % turn)
        except TxnlogError:
            continue
        written.append(b"m%d" % turn)
    for turn in range(20):
        append(store, b"l%d" % turn)
        written.append(b"l%d" % turn)
    assert count > request_
    assert sorted(values(another(store))) == sorted(written)
    assert [f for f in store.examine() if f.state == "damage"] == []


@pytest.mark.usefixtures("small")
def test_equal_numbers_of_a_plan_are_one_object(store: Store) -> None:
    """Each would take 32 bytes more of every range; a plan may have a million."""
    with store.producer() as producer:
        for number in range(30):
            for _ in range(20):  # offsets beyond the numbers that Python keeps by itself
                producer.send("t", bytes(30), partition=0, timestamp_ms=10_000 + number)
            producer.flush()
    ranges = another(store).scan("t").ranges
    settled = ranges[15:20]
    assert [r.start_offset for r in settled] == [300, 320, 340, 360, 380]
    assert all(a.stop_offset is b.start_offset for a, b in pairwise(ranges[15:25]))
    assert all(r.start_offset is r.segment.base_offset for r in settled)
    times = [
        (r.segment.stored.min_timestamp_ms, r.segment.stored.max_timestamp_ms) for r in settled
    ]
    assert all(first is last for first, last in times)
    sizes = {id(r.segment.stored.size_bytes) for r in settled}
    assert len(sizes) < len(settled)
    (partial,) = another(store).scan("t", {0: 301}, {0: 303}).ranges
    assert (partial.start_offset, partial.stop_offset) == (301, 303)


@pytest.mark.usefixtures("small")
def test_who_has_read_nothing_looks_for_its_segments_in_no_manifest(
    heap: HeapStorage, store: Store
) -> None:
    """A job of Spark's commits in a process of its own; it has tried nothing before."""
    for number in range(60):
        append(another(store), b"%d" % number)
    segments = upload(another(store), b"last")
    faulty = FaultyStorage(heap)
    attach(faulty, clock=VirtualClock(seed=9)).logs.topic("t").place(segments)
    read = [text for text in faulty.requests if text.startswith("get topics/t/manifests/")]
    assert read
    assert [text for text in read if ".list" not in text] == []
    assert values(another(store))[-1] == b"last"
