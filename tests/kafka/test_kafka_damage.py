"""Imports of folders that lie: never wrong data, never aborted records, nothing in silence."""

from __future__ import annotations

from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.kafka.folder_bytes import (
    batch,
    flip,
    folder,
    marker,
    offsets_and_values,
    reseal,
    wrapper,
)
from tests.kafka.folder_judges import batches, committed_records
from tests.support.log.settling import settling_early
from tests.support.steps import append, checkpoint
from txnlog import Store, TopicPartition
from txnlog.errors import CorruptRecord, InvalidOption, OffsetOutOfRange
from txnlog.results import MaintenanceFailure
from txnlog.segments.indexes.transactions import AbortedTransaction, TransactionIndex
from txnlog.store import attach
from txnlog.testing import HeapStorage, VirtualClock

P, Q = 7, 8


pytestmark = pytest.mark.store(topics={})


# -- transactions --------------------------------------------------------------------------------


def test_markers_count_and_not_an_index_that_says_otherwise(store: Store, tmp_path: Path) -> None:
    """No checksum covers a transaction index, so where markers are sound it says nothing."""
    log = (
        batch(0, b"no", b"no", producer=P)
        + batch(2, b"no", producer=P)
        + marker(3, P, commit=False)
        + batch(4, b"yes", producer=Q)
        + marker(5, Q, commit=True)
    )
    right = AbortedTransaction(P, 0, 3, 4)
    for number, entries in enumerate(
        [[], [right], [right._replace(first_offset=2)], [right, AbortedTransaction(Q, 0, 5, 6)]]
    ):
        index = {0: TransactionIndex(entries).encode()}
        topic = f"t{number}"
        done = store.kafka.import_topic(topic, [folder(tmp_path / topic, {0: log}, index)])
        assert offsets_and_values(store, topic) == [(4, b"yes")]
        assert done.partitions[0].aborted_count == 1


@pytest.mark.parametrize("index", [None, b"\0" * 33])
def test_a_lost_marker_without_an_index_hides_what_it_decided(
    store: Store, tmp_path: Path, index: bytes | None
) -> None:
    """It may have been an abort; the producer's next transaction is another one."""
    log = (
        batch(0, b"lost", producer=P)
        + flip(marker(1, P, commit=False), 77)
        + batch(2, b"yes", producer=P)
        + marker(3, P, commit=True)
    )
    path = folder(tmp_path, {0: log}, None if index is None else {0: index})
    done = store.kafka.import_topic("t", [path], skip_corrupt=True)
    assert offsets_and_values(store) == [(2, b"yes")]
    assert [item.first_offset for item in done.partitions[0].open_transactions] == [0]


def test_a_lost_commit_with_an_index_hides_nothing(store: Store, tmp_path: Path) -> None:
    """The index says where the later, aborted transaction began."""
    log = (
        batch(0, b"yes", producer=P)
        + flip(marker(1, P, commit=True), 77)
        + batch(2, b"no", producer=P)
        + marker(3, P, commit=False)
    )
    index = TransactionIndex([AbortedTransaction(P, 2, 3, 4)]).encode()
    store.kafka.import_topic("t", [folder(tmp_path, {0: log}, {0: index})], skip_corrupt=True)
    assert offsets_and_values(store) == [(0, b"yes")]


def test_a_lost_record_batch_is_no_lost_marker(store: Store, tmp_path: Path) -> None:
    """Damage that cannot have been a marker casts no doubt on open transactions."""
    log = (
        batch(0, b"yes", producer=P)
        + flip(batch(1, b"damaged" * 5), 80)
        + marker(2, P, commit=True)
    )
    store.kafka.import_topic("t", [folder(tmp_path, {0: log})], skip_corrupt=True)
    assert offsets_and_values(store) == [(0, b"yes")]


@pytest.mark.parametrize("keep", [False, True])
def test_a_transaction_that_an_import_has_cut_off_stays_aborted(
    store: Store, tmp_path: Path, keep: bool
) -> None:
    """The rest of it comes later, with a commit marker: here and in an export it is one."""
    first = folder(tmp_path / "1", {0: batch(0, b"half", producer=P) + batch(1, b"plain")})
    second = folder(
        tmp_path / "2",
        {2: batch(2, b"other half", producer=P) + marker(3, P, commit=True) + batch(4, b"more")},
    )
    store.kafka.import_topic("t", [first])
    assert offsets_and_values(store) == [(1, b"plain")]
    store.kafka.import_topic("t", [second])
    assert offsets_and_values(store) == [(1, b"plain"), (4, b"more")]
    done = store.kafka.export_topic("t", str(tmp_path / "out"), keep_offsets=keep)
    added = done.partitions[0].marker_count
    assert added == (0 if keep else 1)
    found = committed_records(batches(tmp_path / "out" / "t-0", "kafka-python"))
    assert [(r[0], r[4]) for r in found] == [(1, b"plain"), (4 + added, b"more")]


# One for each offset; the last but one is an offset of which compaction has left nothing.
TORN = (
    batch(0, b"p1", producer=P),
    batch(1, b"plain"),
    batch(2, b"q1", producer=Q),
    marker(3, Q, commit=True),
    batch(4, b"p1", producer=P),
    b"",
    marker(6, P, commit=True),
    batch(7, b"p2", producer=P),
    marker(8, P, commit=True),
)
TORN_SPANS = {b"p1": range(7), b"plain": range(1, 2), b"q1": range(2, 4), b"p2": range(7, 9)}


@pytest.mark.parametrize(
    "cuts",
    [
        pytest.param(
            cuts,
            id="".join(map(str, cuts)) or "none",
            marks=[] if len(cuts) in (2, 8) else pytest.mark.more,
        )
        for count in range(len(TORN))
        for cuts in combinations(range(1, len(TORN)), count)
    ],
)
def test_imports_that_follow_each_other_tear_no_transaction(
    tmp_path: Path, cuts: tuple[int, ...]
) -> None:
    """Wherever each of them ends: what none of them has whole is aborted in all of them."""
    store = attach(HeapStorage(), create=True)
    for start, stop in pairwise([0, *cuts, len(TORN)]):
        logs = {at: TORN[at] for at in range(start, stop)} | {stop: b""}
        store.kafka.import_topic("t", [folder(tmp_path / str(start), logs)])
    torn = {value for value, span in TORN_SPANS.items() if {*cuts} & {*span[1:]}}
    values = {0: b"p1", 1: b"plain", 2: b"q1", 4: b"p1", 7: b"p2"}
    whole = [(at, value) for at, value in values.items() if value not in torn]
    assert offsets_and_values(store) == whole
    for keep in (False, True):
        out = tmp_path / f"out-{keep}"
        store.kafka.export_topic("t", str(out), keep_offsets=keep)
        found = committed_records(batches(out / "t-0", "kafka-python"))
        assert [r[4] for r in found] == [value for _, value in whole]


@pytest.mark.parametrize("makes", [False, True], ids=["there", "made meanwhile"])
def test_an_import_ends_while_what_follows_is_copied(
    store: Store, tmp_path: Path, makes: bool
) -> None:
    """Which of the transactions there go on was not looked at: the second one is to be repeated."""
    logs = {at: data for at, data in enumerate(TORN) if data}
    first = folder(tmp_path / "1", {at: data for at, data in logs.items() if at < 2})
    second = folder(tmp_path / "2", {at: data for at, data in logs.items() if at >= 2})
    if not makes:
        store.topics.create("t")
    begun: list[int] = []

    def race(*_: int) -> None:
        if not begun:
            begun.append(1)
            store.kafka.import_topic("t", [first])

    with pytest.raises(OffsetOutOfRange, match="up to offset 2 while what follows was copied"):
        store.kafka.import_topic("t", [second], progress=race)
    assert offsets_and_values(store) == [(1, b"plain")]
    store.kafka.import_topic("t", [second])
    assert offsets_and_values(store) == [(1, b"plain"), (2, b"q1"), (7, b"p2")]


@pytest.mark.parametrize("deleted_to", range(4))
def test_it_stays_aborted_unless_all_before_it_was_deleted(
    store: Store, tmp_path: Path, deleted_to: int
) -> None:
    """Then the partition begins amid a transaction, as a broker's may, and its marker says."""
    log = batch(0, b"first") + batch(1, b"half", producer=P) + batch(2, b"plain")
    store.kafka.import_topic("t", [folder(tmp_path / "1", {0: log})])
    store.topics.delete_records({TopicPartition("t", 0): deleted_to})
    rest = batch(3, b"other half", producer=P) + marker(4, P, commit=True) + batch(5, b"more")
    store.kafka.import_topic("t", [folder(tmp_path / "2", {3: rest})])
    shown = {0: b"first", 2: b"plain"} if deleted_to < 3 else {3: b"other half"}
    shown |= {5: b"more"}
    assert offsets_and_values(store) == [(at, v) for at, v in shown.items() if at >= deleted_to]
    done = store.kafka.export_topic("t", str(tmp_path / "out"))
    added = done.partitions[0].marker_count
    found = committed_records(batches(tmp_path / "out" / "t-0", "kafka-python"))
    assert [r[4] for r in found] == [value for _, value in offsets_and_values(store)]
    assert added == (1 if deleted_to < 2 else 0)


def test_it_stays_aborted_when_the_first_half_is_settled(store: Store, tmp_path: Path) -> None:
    """The record of truncated transactions is looked for in manifests, too."""
    with settling_early():
        first = folder(tmp_path / "1", {0: batch(0, b"half", producer=P) + batch(1, b"plain")})
        store.kafka.import_topic("t", [first])
        store.topics.alter("t", partitions=2)
        for number in range(12):
            append(store, b"%d" % number, partition=1)
        checkpoint(store)
    log = store.logs.topic("t")
    with log.lock:
        state = log.state
        assert not state.partitions[0].segments
    rest = batch(2, b"other half", producer=P) + marker(3, P, commit=True) + batch(4, b"more")
    attach(store.storage).kafka.import_topic("t", [folder(tmp_path / "2", {2: rest})])
    seen = [(offset, value) for offset, value in offsets_and_values(store) if len(value) > 2]
    assert seen == [(1, b"plain"), (4, b"more")]


def test_it_stays_aborted_when_the_first_half_was_compacted(tmp_path: Path) -> None:
    """Vacuum deletes what compaction has replaced, but not the file that tells of it."""
    clock, heap = VirtualClock(), HeapStorage()
    heap.time_ms = lambda: clock.time_ms
    store = attach(heap, create=True, clock=clock)
    earlier = folder(tmp_path / "0", {0: batch(0, b"first")})
    store.kafka.import_topic("t", [earlier])
    first = folder(tmp_path / "1", {1: batch(1, b"half", producer=P) + batch(2, b"plain")})
    store.kafka.import_topic("t", [first])
    store.topics.alter("t", config={"cleanup.policy": "compact"})
    store.maintenance.compact("t")
    before = {name for name, _ in heap.list_all("topics/t/data")}
    for _ in range(3):
        clock.time_ms += 8 * 86_400_000
        assert not [s for s in store.maintain() if isinstance(s, MaintenanceFailure)]
    after = {name for name, _ in heap.list_all("topics/t/data")}
    assert len(before) > len(after) == 2  # those of the segment that an import ends with
    store.topics.alter("t", config={"cleanup.policy": "delete"})
    rest = batch(3, b"other half", producer=P) + marker(4, P, commit=True) + batch(5, b"more")
    store.kafka.import_topic("t", [folder(tmp_path / "2", {3: rest})])
    assert offsets_and_values(store) == [(5, b"more")]
    for _ in range(3):
        clock.time_ms += 8 * 86_400_000
        assert not [s for s in store.maintain() if isinstance(s, MaintenanceFailure)]
    left = {name for name, _ in heap.list_all("topics/t/data")}
    assert not left & before


def test_an_open_transaction_whose_records_are_deleted(store: Store, tmp_path: Path) -> None:
    """Nothing of it is left to be ended."""
    path = folder(tmp_path / "in", {0: batch(0, b"a", b"b", producer=P), 20: b""})
    store.kafka.import_topic("t", [path])
    store.topics.delete_records({TopicPartition("t", 0): 15})
    done = store.kafka.export_topic("t", str(tmp_path / "out"))
    assert (done.partitions[0].start_offset, done.partitions[0].end_offset) == (15, 20)


def test_a_batch_that_compaction_has_emptied_opens_no_transaction(
    store: Store, tmp_path: Path
) -> None:
    """It may outlive its marker; and control records of other kinds decide nothing."""
    emptied = bytearray(batch(0, b"gone", producer=P)[:61])
    emptied[8:12], emptied[57:61] = (49).to_bytes(4, "big"), bytes(4)
    other = bytearray(marker(2, Q, commit=True))
    at = other.index(b"\0\0\0\1", 61)
    other[at + 3] = 5
    log = b"".join(
        [
            reseal(bytes(emptied)),
            batch(1, b"yes", producer=Q),
            reseal(bytes(other)),
            marker(3, Q, commit=True),
        ]
    )
    done = store.kafka.import_topic("t", [folder(tmp_path, {0: log})])
    assert done.partitions[0].open_transactions == ()
    assert offsets_and_values(store) == [(1, b"yes")]


# -- offsets, times, sizes -----------------------------------------------------------------------


@pytest.mark.parametrize("bit", [0, 20, 31, 40, 61])
def test_an_offset_that_cannot_be_right_is_damage(store: Store, tmp_path: Path, bit: int) -> None:
    """No checksum covers it; the next batch shows which of the two is wrong."""
    parts = [batch(10 * n, *(b"%d" % (10 * n + i) for i in range(10))) for n in range(5)]
    log = b"".join([parts[0], flip(parts[1], 7 - bit // 8, bit % 8), *parts[2:]])
    path = folder(tmp_path, {0: log})
    with pytest.raises(CorruptRecord, match=f"at byte {len(parts[0])} .*cannot be right"):
        store.kafka.import_topic("t", [path])
    store.kafka.import_topic("t", [path], skip_corrupt=True)
    assert offsets_and_values(store) == [(n, b"%d" % n) for n in [*range(10), *range(20, 50)]]


@pytest.mark.parametrize(
    "written", [{}, {"keep_offsets": True}, {"magic": 1}], ids=["markers", "offsets", "magic 1"]
)
@pytest.mark.parametrize("start", [0, 5])
@pytest.mark.parametrize("base", [(1 << 31) - 8, (1 << 31) - 1, (1 << 31) + 4, 3_000_000_000])
def test_a_log_that_begins_with_a_large_gap(
    store: Store, tmp_path: Path, base: int, start: int, written: dict[str, Any]
) -> None:
    """Compaction has emptied its first segment: a file's offsets do not reach to the next one."""
    log = batch(base, b"a") + batch(base + 5, b"b", b"c")
    store.kafka.import_topic("t", [folder(tmp_path / "in", {start: b"", base: log})])
    done = store.kafka.export_topic("t", str(tmp_path / "out"), **written).partitions[0]
    assert (done.start_offset, done.end_offset) == (start, base + 7)
    back = store.kafka.import_topic("back", [str(tmp_path / "out")]).partitions[0]
    assert (back.start_offset, back.end_offset) == (start, base + 7)
    assert offsets_and_values(store, "back") == offsets_and_values(store)
    assert [value for _, value in offsets_and_values(store)] == [b"a", b"b", b"c"]


def test_old_messages_that_overlap_are_damage(store: Store, tmp_path: Path) -> None:
    """What is inside a wrapper counts, so that nothing comes in that cannot be read."""
    log = wrapper(0, b"0", b"1") + flip(wrapper(2, b"2", b"3"), 7) + wrapper(4, b"4")
    path = folder(tmp_path, {0: log})
    with pytest.raises(CorruptRecord, match="base offset 1 comes after 1"):
        store.kafka.import_topic("t", [path])
    store.kafka.import_topic("t", [path], skip_corrupt=True)
    assert offsets_and_values(store) == [(0, b"0"), (1, b"1"), (4, b"4")]


@pytest.mark.parametrize("time_ms", [1_700_000_000_000_000_000, -(1 << 62)])
def test_times_that_no_calendar_has_are_refused(store: Store, tmp_path: Path, time_ms: int) -> None:
    """Nanoseconds by mistake would be shown as some other time."""
    path = folder(tmp_path, {0: batch(0, b"x", times_ms=[time_ms])})
    with pytest.raises(CorruptRecord, match="which no calendar has"):
        store.kafka.import_topic("t", [path])


def test_a_wrapper_may_say_an_older_time_than_its_messages(store: Store, tmp_path: Path) -> None:
    """Some clients write 0 there; looking up a time finds what is inside."""
    log = wrapper(0, b"a", b"b", time_ms=0) + wrapper(2, b"c")
    store.kafka.import_topic("t", [folder(tmp_path, {0: log})])
    snapshot = store.snapshot(["t"])
    for time_ms, offset in ((0, 0), (1000, 0), (1001, 1)):
        found = snapshot.offset_for_time(TopicPartition("t", 0), time_ms)
        assert found is not None
        assert found.offset == offset


@pytest.mark.parametrize(
    ("magic", "logs"),
    [
        pytest.param(1, {0: [True, False]}, id="relative"),
        pytest.param(0, {0: [True, False]}, id="absolute"),
        pytest.param(0, {0: [False], 5: [True, False]}, id="a later segment"),
        pytest.param(0, {0: [False, True, False]}, id="within a segment"),
        pytest.param(0, {0: [True], 5: [True, True]}, id="all"),
    ],
)
def test_a_wrapper_whose_offset_says_nothing(
    store: Store, tmp_path: Path, magic: int, logs: dict[int, list[bool]]
) -> None:
    """Old brokers kept the 0 of producers: wherever a read begins or ends, nothing is lost."""
    made, following = {}, 0
    for base, unset in logs.items():
        made[base] = b""
        for is_unset in unset:
            values = [b"%d" % n for n in range(following, following + 5)]
            made[base] += wrapper(
                following, *values, magic=magic, said_offset=0 if is_unset else None
            )
            following += 5
    store.kafka.import_topic("t", [folder(tmp_path, made)])
    all_there = [(n, b"%d" % n) for n in range(following)]
    assert offsets_and_values(store) == all_there
    for stop in range(1, following + 1):
        scan = store.snapshot(["t"]).scan("t", ending_offsets={TopicPartition("t", 0): stop})
        assert scan.to_arrow().column("offset").to_pylist() == [*range(stop)]
    if magic == 1:
        found = store.snapshot(["t"]).offset_for_time(TopicPartition("t", 0), 1003)
        assert found is not None
        assert found.offset == 3
    for start in range(1, following):
        store.topics.delete_records({TopicPartition("t", 0): start})
        assert offsets_and_values(store) == all_there[start:]


def test_offsets_that_no_topic_has_are_refused(store: Store, tmp_path: Path) -> None:
    """Names and batches beyond what a segment can hold, and beyond all bounds."""
    with pytest.raises(InvalidOption, match="no topic has such offsets"):
        store.kafka.import_topic("t", [folder(tmp_path / "a", {10**20 - 1: b""})])
    far = batch(0, b"a") + batch(1 << 31, b"b")
    with pytest.raises(CorruptRecord, match="do not belong in a segment"):
        store.kafka.import_topic("t", [folder(tmp_path / "b", {0: far})])


def test_a_batch_that_is_cut_by_the_log_start_is_cut_in_an_export(
    store: Store, tmp_path: Path
) -> None:
    """The folder begins exactly where the topic does, with the right sequence."""
    log = batch(0, *(b"%d" % n for n in range(10)), producer=P) + marker(10, P, commit=True)
    store.kafka.import_topic("t", [folder(tmp_path / "in", {0: log})])
    store.topics.delete_records({TopicPartition("t", 0): 4})
    done = store.kafka.export_topic("t", str(tmp_path / "out"))
    assert done.partitions[0].start_offset == 4
    first, _ = batches(tmp_path / "out" / "t-0", "kafka-python")
    assert (first.base_offset, first.base_sequence) == (4, 4)
    again = store.kafka.import_topic("again", [str(tmp_path / "out")])
    assert again.partitions[0].start_offset == 4
    assert offsets_and_values(store, "again") == offsets_and_values(store)


def test_log_append_time_of_old_messages_survives_markers(store: Store, tmp_path: Path) -> None:
    """Behind an added marker they are encoded again; the time's type stays."""
    store.topics.create("t")
    with store.producer(transactional_id="id") as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send("t", b"own")
    log = wrapper(1, b"x", b"y", time_ms=5000, log_append_time=True)
    store.kafka.import_topic("t", [folder(tmp_path / "in", {1: log})])
    store.kafka.export_topic("t", str(tmp_path / "out"))
    found = batches(tmp_path / "out" / "t-0", "kafka-python")[-1]
    assert [(r[0], r[1], r[2], r[4]) for r in found.records] == [
        (2, 5000, 1, b"x"),
        (3, 5000, 1, b"y"),
    ]


def test_bytes_that_look_like_batches_are_searched_in_bounded_time(
    store: Store, tmp_path: Path
) -> None:
    """40,000 claims to be a batch up to the end of 2.5 MB are not all put to the test."""
    unit = bytearray(61)
    unit[7], unit[16] = 1, 2
    data = bytearray(b"\xff" * 100)
    for left in range(40_000 * 61, 0, -61):
        unit[8:12] = max(left - 12, 49).to_bytes(4, "big")
        data += bytes(unit) if left % 610 else b"\xff" * 61
    log = batch(0, b"good") + bytes(data)
    done = store.kafka.import_topic("t", [folder(tmp_path, {0: log})], skip_corrupt=True)
    assert sum(damage.size_bytes for damage in done.damages) == len(data)
    assert offsets_and_values(store) == [(0, b"good")]
