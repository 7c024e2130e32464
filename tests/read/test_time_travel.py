"""Snapshots of the past, by token and by time, and what was added between two (invariant S2)."""

from __future__ import annotations

import base64
import datetime as dt
import random
import string
import zlib
from collections.abc import Callable
from contextlib import suppress

import msgspec
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from crc32c import crc32c

from tests.support.admin.compacted_topics import compact
from tests.support.log.settling import settle_early
from tests.support.read.overlapping_transactions import overlap
from tests.support.steps import another, append, begin, elsewhere
from txnlog import ChangeFeed, Scan
from txnlog.errors import (
    InvalidOption,
    InvalidTxnState,
    OffsetOutOfRange,
    ProducerFenced,
    SnapshotExpired,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from txnlog.log.manifests import KEPT_ENTRIES, SETTLED_AT_ONCE
from txnlog.names import TopicPartition
from txnlog.snapshot import Snapshot
from txnlog.storage.counting import CountingStorage
from txnlog.store import Store, attach
from txnlog.testing import HeapStorage, VirtualClock

DAY_MS = 86_400_000
HOUR_MS = 3_600_000
LONGEST_MS = 900_000
"""``transaction.max.timeout.ms``."""
MANY = SETTLED_AT_ONCE + KEPT_ENTRIES + 100
"""So many appends that some of them are settled."""


pytestmark = [pytest.mark.store(topics={"t": 2, "u": 2}, on="heap"), pytest.mark.rule("S2")]


def values(snapshot: Snapshot) -> dict[str, list[tuple[int, bytes]]]:
    """The records of each topic: partition and value, in order."""
    found = {}
    for topic in snapshot.topics:
        rows = snapshot.scan(topic, columns=["partition", "value"]).to_arrow().to_pylist()
        found[topic] = [(row["partition"], row["value"]) for row in rows]
    return found


# -- tokens ----------------------------------------------------------------------------------------


def test_a_token_shows_the_same_whatever_comes_later(store: Store, clock: VirtualClock) -> None:
    """Later appends, transactions, merging, manifests, partitions; read by another process."""
    for number in range(5):
        append(store, b"%d" % number, partition=number % 2)
    with begin(store) as producer:
        producer.send("t", b"both", partition=0)
        producer.send("u", b"both", partition=1)
        producer.commit_transaction()
    then = store.snapshot(["t", "u"])
    token, expected = then.token(), values(then)
    assert set(token) <= {*string.ascii_letters, *string.digits, *"-_."}
    for number in range(MANY):
        append(store, b"later %d" % number, partition=number % 2)
    store.topics.alter("t", partitions=4)
    append(store, b"new", partition=3)
    assert store.maintenance.merge("t")
    clock.sleep(30)
    again = another(store).snapshot(["u", "t"], at=token)
    assert values(again) == expected
    assert again.is_atomic
    assert again.end_offsets("t") == then.end_offsets("t")
    assert again.partitions("t") == [0, 1]
    assert values(store.snapshot("u", at=token)) == {"u": expected["u"]}
    one = another(store).snapshot("t", at=token)
    assert one.token() == store.snapshot("t", at=one.token()).token()


def test_a_token_of_a_thousand_partitions_is_short(store: Store) -> None:
    store.topics.create("wide", partitions=5000)
    token = store.snapshot(["wide", "t"]).token()
    assert len(token) < 5000
    assert len(store.snapshot("wide", at=token).partitions("wide")) == 5000


def _token_of(content: object) -> str:
    packed = zlib.compress(msgspec.msgpack.encode(content))
    data = packed + crc32c(packed).to_bytes(4, "big")
    return f"txnlog1.{base64.urlsafe_b64encode(data).decode().rstrip('=')}"


def test_a_token_that_is_none_is_refused(store: Store) -> None:
    """Whatever it is: never another error, nor another snapshot."""
    append(store, b"a")
    token = store.snapshot("t").token()
    topic_id = store.logs.topic_spec("t").topic_id
    refused: list[str] = [
        "",
        "txnlog1.",
        "latest",
        "txnlog.x",
        token[:-1],
        token[:-7],
        token + "A",
        token + "é",
        "txnlog1." + "A" * 40_000,
        _token_of("hello"),
        _token_of([True, [["t", topic_id, 1, [0, 0], [1, 0]]]]),
        _token_of(["instant", []]),
        _token_of(["instant", [["t", topic_id, 1, [0, 0], [1]]]]),
        _token_of(["instant", [["t", topic_id, 1, [2, 0], [1, 0]]]]),
        _token_of(["instant", [["t", topic_id, -1, [0, 0], [1, 0]]]]),
        _token_of(["instant", [["t", topic_id, 1, [0, 0], [1 << 63, 0]]]]),
        _token_of(["instant", [["../t", topic_id, 1, [0, 0], [1, 0]]]]),
        _token_of(["instant", [["t", topic_id, 1, [0, 0], [1, 0]]] * 2]),
    ]
    rng = random.Random(5)
    for _ in range(60):
        at = rng.randrange(len(token))
        changed = token[:at] + rng.choice(string.ascii_letters) + token[at + 1 :]
        if changed != token:
            refused.append(changed)
    for text in refused:
        with pytest.raises(InvalidOption):
            store.snapshot("t", at=text)
    with pytest.raises(InvalidOption, match="does not end where it should"):  # it would be large
        store.snapshot("t", at=_token_of(b"\0" * (33 << 20)))
    with pytest.raises(UnsupportedVersion, match="newer"):
        store.snapshot("t", at="txnlog2.whatever")
    with pytest.raises(OffsetOutOfRange, match="set back to an older copy"):
        store.snapshot("t", at=_token_of(["instant", [["t", topic_id, 1, [0, 0], [9, 0]]]]))
    with pytest.raises(OffsetOutOfRange, match="does not exist now"):
        store.snapshot("t", at=_token_of(["instant", [["t", topic_id, 1, [0] * 3, [0] * 3]]]))
    with pytest.raises(InvalidOption, match="is of t, not of topic 'u'"):
        store.snapshot("u", at=token)


def test_only_a_prefix_has_a_token(store: Store) -> None:
    """What lies between undecided records cannot be told by offsets."""
    for level in ("snapshot", "read_uncommitted"):
        with pytest.raises(InvalidOption, match="not a prefix"):
            store.snapshot("t", isolation_level=level).token()
        with pytest.raises(InvalidOption, match="read_committed"):
            store.snapshot("t", isolation_level=level, at=5)


def test_a_token_of_a_topic_that_was_made_anew_is_refused(store: Store) -> None:
    token = store.snapshot(["t", "u"]).token()
    store.topics.delete("t")
    with pytest.raises(UnknownTopicOrPartition):
        store.snapshot("t", at=token)
    store.topics.create("t", partitions=2)
    with pytest.raises(UnknownTopicOrPartition, match="recreated since"):
        store.snapshot("t", at=token)
    with pytest.raises(UnknownTopicOrPartition, match="recreated since"):
        store.changes("t", token)
    assert store.snapshot("u", at=token).topics == ["u"]


# -- what is gone ----------------------------------------------------------------------------------


def test_what_was_deleted_since_is_named(store: Store) -> None:
    """Never fewer records than there were: what is left is read by offsets."""
    for number in range(6):
        append(store, b"%d" % number, partition=0)
    token = store.snapshot("t").token()
    store.topics.delete_records({TopicPartition("t", 0): 4})
    snapshot = another(store).snapshot("t", at=token)
    assert snapshot.beginning_offsets("t") == {0: 0, 1: 0}
    for read in (snapshot.scan, snapshot.dataset):
        with pytest.raises(OffsetOutOfRange, match=r"t:0 from offset 0 to 3.*later starting"):
            read("t")
    rows = snapshot.scan("t", {0: 4}).to_arrow()["value"].to_pylist()
    assert rows == [b"4", b"5"]
    store.topics.delete_records({TopicPartition("t", 0): 6})
    append(store, b"new", partition=0)
    with pytest.raises(OffsetOutOfRange, match="t:0 from offset 4 to 5"):
        store.snapshot("t", at=token).scan("t", {0: 4})
    with pytest.raises(OffsetOutOfRange, match="to 5 were deleted since, so what was added is not"):
        store.changes("t", _token_of(["instant", [["t", *_start(token)]]]))


def _start(token: str) -> list[object]:
    """What a token says of its topic, as if nothing had been there."""
    from txnlog.read.snapshot_token import SnapshotToken

    [pinned] = SnapshotToken.decode(token).topics.values()
    return [pinned.topic_id, pinned.next_entry, [0, 0], [0, 0]]


def test_records_that_compaction_took_away_are_there_until_vacuum(
    heap: HeapStorage, clock: VirtualClock
) -> None:
    """Then the snapshot has expired, and says so: it never shows a part."""
    store = attach(heap, create=True, clock=clock)
    store.topics.create("t", config={"cleanup.policy": "compact"})
    for number in range(4):
        with store.producer() as producer:
            producer.send("t", b"%d" % number, key=b"k")
    token = store.snapshot("t").token()
    with store.producer() as producer:
        producer.send("t", b"newest", key=b"k")
    clock.sleep(1)
    assert compact(store)
    assert store.scan("t").to_arrow()["value"].to_pylist() == [b"newest"]
    then = another(store).snapshot("t", at=token)
    assert values(then)["t"] == [(0, b"%d" % number) for number in range(4)]
    for _ in range(3):
        clock.sleep(8 * 86_400)
        store.maintain()
    late = another(store).snapshot("t", at=token)
    assert late.end_offsets("t") == {0: 4}
    with pytest.raises(SnapshotExpired, match="merged or compacted"):
        late.scan("t").to_arrow()


def test_a_token_is_of_what_was_there_before_compaction(
    heap: HeapStorage, clock: VirtualClock
) -> None:
    """Also of a compaction that has seen nothing later; by time it shows what that has left."""
    store = attach(heap, create=True, clock=clock)
    store.topics.create("t", config={"cleanup.policy": "compact"})
    for number in range(4):
        with store.producer() as producer:
            producer.send("t", b"%d" % number, key=b"k%d" % (number % 2))
    before, then_ms = store.snapshot("t").token(), clock.now_ms()
    clock.sleep(1)
    assert compact(store)
    left = [(2, b"2"), (3, b"3")]
    after = store.snapshot("t").token()
    every = [(0, b"%d" % number) for number in range(4)]
    assert values(store.snapshot("t", at=before))["t"] == every
    store.maintenance.merge("t")
    for handle in (store, another(store)):
        assert values(handle.snapshot("t", at=before))["t"] == every
        for at in (after, then_ms):
            found = handle.snapshot("t", at=at).scan("t", columns=["offset", "value"]).to_arrow()
            assert [*zip(*found.to_pydict().values(), strict=True)] == left


@pytest.mark.few(3)
@pytest.mark.parametrize("seed", range(24))
def test_what_stood_at_a_moment_shows_or_has_expired(
    monkeypatch: pytest.MonkeyPatch, clock: VirtualClock, seed: int
) -> None:
    """However often it was compacted since, and whatever of that the newest list has left out.

    Vacuum comes late, or never where the storage reports no times, so all files are there still.
    """
    settle_early(monkeypatch)
    chance = random.Random(seed)
    heap = HeapStorage()
    heap.time_ms = lambda: clock.time_ms
    if seed % 2:
        monkeypatch.setattr(HeapStorage, "modified_ms", lambda *_: None)
    store = attach(heap, create=True, clock=clock)
    settings = {"cleanup.policy": "compact", "delete.retention.ms": 0, "segment.bytes": 1024}
    store.topics.create("t", config={**settings, "compression.type": "none"})

    def show(snapshot: Snapshot) -> list[tuple[int, bytes, bytes]]:
        found = snapshot.scan("t", columns=["offset", "key", "value"]).to_arrow().to_pydict()
        return [*zip(*found.values(), strict=True)]

    def rows_of(shown: list[tuple[int, bytes, bytes]]) -> dict[bytes, bytes]:
        newest = {key: value for _, key, value in shown}
        return {key: value for key, value in newest.items() if value is not None}

    then: list[tuple[str, int, list[tuple[int, bytes, bytes]]]] = []
    for _ in range(40):
        match chance.choice(["write"] * 5 + ["compact"] * 2 + ["look", "days"]):
            case "write":
                with store.producer() as producer:
                    for _ in range(chance.randint(1, 4)):
                        value = None if chance.random() < 0.2 else bytes(chance.randrange(600))
                        producer.send("t", value, key=b"%d" % chance.randrange(6))
            case "compact":
                compact(store)
            case "look":
                snapshot = store.snapshot("t")
                then.append((snapshot.token(), clock.now_ms(), show(snapshot)))
            case "days":
                clock.sleep(chance.choice([1, 9]) * 86_400)
        clock.sleep(60)
    fresh = another(store)
    for token, at_ms, shown in then:
        with suppress(SnapshotExpired):
            assert show(fresh.snapshot("t", at=token)) == shown
        with suppress(SnapshotExpired):
            assert rows_of(show(fresh.snapshot("t", at=at_ms))) == rows_of(shown)
        with suppress(SnapshotExpired):
            changes = fresh.changes("t", since=token, pre_images=True).to_arrow().to_pylist()
            rows = rows_of(shown)
            for change in changes:
                if change["_change"] in ("update_before", "delete"):
                    assert rows.pop(change["key"]) == change["value"]
                else:
                    rows[change["key"]] = change["value"]


def test_a_schema_is_that_of_the_time(store: Store, clock: VirtualClock) -> None:
    """By token and by time, whoever reads, and whatever has been settled and merged since."""
    old = pa.schema([("id", pa.int32()), ("gone", pa.string())])
    new = pa.schema([("id", pa.int64()), ("more", pa.string())])
    store.topics.create("typed", schema=old)
    for number in range(4):
        with store.producer() as producer:
            producer.send_batch("typed", pa.table({"id": [number], "gone": ["x"]}, schema=old))
    token = store.snapshot("typed").token()
    expected = store.scan("typed").to_arrow()
    then_ms = clock.now_ms()
    clock.sleep(10)
    store.topics.alter("typed", schema=new)
    for _ in range(140):
        with store.producer() as producer:
            producer.send_batch("typed", pa.table({"id": [2**40], "more": ["y"]}, schema=new))
    assert store.maintenance.merge("typed")
    store = another(store)
    for at in (token, then_ms, dt.datetime.fromtimestamp(then_ms / 1000, tz=dt.UTC)):
        assert store.snapshot("typed", at=at).scan("typed").to_arrow() == expected
    later = store.snapshot("typed", at=store.snapshot("typed").token())
    assert later.scan("typed").schema == new
    assert store.changes("typed", token).to_arrow()["more"].to_pylist() == ["y"] * 140
    clock.sleep(20 * 86_400)
    store.maintain()
    clock.sleep(20 * 86_400)
    store.maintain()
    with pytest.raises(SnapshotExpired):  # the merged file has no column "gone" any more
        another(store).snapshot("typed", at=token).scan("typed").to_arrow()


@pytest.mark.few(1)
@pytest.mark.parametrize("ahead_s", [-2 * 3600, -60, 0, 60, 2 * 3600])
@pytest.mark.parametrize("later", [0, MANY])
def test_a_schema_is_no_older_than_the_records_whatever_the_clocks(
    store: Store, heap: HeapStorage, clock: VirtualClock, ahead_s: int, later: int
) -> None:
    """A process whose clock is not that of the writers puts one column in place of another."""
    other = VirtualClock(seed=1)
    ids = pa.field("id", pa.int64(), nullable=False)
    store.topics.create("typed", schema=pa.schema([ids, pa.field("c0", pa.int64(), False)]))
    rows: list[dict[str, int]] = []

    def write(number: int) -> None:
        clock.sleep(1)
        rows.append({"id": len(rows), f"c{number}": len(rows)})
        with another(store).producer() as producer:
            producer.send_batch("typed", rows[-1:])

    write(0)
    moments: list[tuple[int, int, int]] = []
    for number in range(1, 6):
        clock.sleep(1)
        other.time_ms = clock.time_ms + ahead_s * 1000
        column = pa.field(f"c{number}", pa.int64(), nullable=number % 2 == 0)
        attach(heap, clock=other).topics.alter(
            "typed",
            schema=pa.schema([ids, column]),
            defaults={} if column.nullable else {column.name: -1},
        )
        clock.sleep(1)
        moments.append((clock.now_ms(), len(rows), number - 1))
        write(number)
        moments.append((clock.now_ms(), len(rows), number))
    for _ in range(later):
        write(5)
    reader = another(store)
    for at_ms, count, oldest in moments:
        found = reader.snapshot("typed", at=at_ms).scan("typed").to_arrow()
        assert found["id"].to_pylist() == [*range(count)]
        name = found.column_names[1]
        number = int(name[1:])
        assert number >= oldest
        if not ahead_s:
            assert number <= oldest + 1
        absent = None if number % 2 == 0 else -1
        assert found[name].to_pylist() == [row.get(name, absent) for row in rows[:count]]


# -- times -----------------------------------------------------------------------------------------


def _history(
    store: Store, clock: VirtualClock, rng: random.Random, steps: int
) -> list[tuple[int, dict[str, list[tuple[int, bytes]]], bool]]:
    """Writes at random; tells at each moment what showed, and whether nothing was undecided."""
    seen = []
    producers = [store.producer(transactional_id=f"p{n}") for n in range(3)]
    for producer in producers:
        producer.init_transactions()
    is_open = [False] * 3
    for step in range(steps):
        clock.sleep(1)
        number = rng.randrange(4)
        if number == 3:
            append(store, b"%d" % step, topic=rng.choice("tu"), partition=rng.randrange(2))
        else:
            producer = producers[number]
            if not is_open[number]:
                producer.begin_transaction()
                is_open[number] = True
            for turn in range(rng.randint(1, 2)):
                value = b"p%d of %d, %d" % (number, step, turn)
                producer.send(rng.choice("tu"), value, partition=rng.randrange(2))
                producer.flush()
            if rng.random() < 0.6:
                (
                    producer.abort_transaction
                    if rng.random() < 0.2
                    else producer.commit_transaction
                )()
                is_open[number] = False
        clock.sleep(1)
        seen.append((clock.now_ms(), values(store.snapshot(["t", "u"])), not any(is_open)))
    for number, producer in enumerate(producers):
        if is_open[number]:
            producer.commit_transaction()
    return seen


@pytest.mark.parametrize(
    ("seed", "steps"),
    [
        *((1, 40), (2, 40)),
        pytest.param(3, 120, marks=pytest.mark.more),
        pytest.param(4, 120, marks=pytest.mark.slow),
    ],
)
def test_a_time_shows_what_showed_then(
    store: Store, clock: VirtualClock, seed: int, steps: int
) -> None:
    """Where nothing was undecided just that; else what was committed, and maybe what was placed."""
    rng = random.Random(seed)
    seen = _history(store, clock, rng, steps)
    clock.sleep(100)
    reader = another(store)
    for at_ms, then, was_decided in seen:
        found = values(reader.snapshot(["t", "u"], at=at_ms))
        if was_decided:
            assert found == then
        for topic, expected in then.items():
            assert {*expected} <= {*found[topic]}
    final = values(reader.snapshot(["t", "u"]))
    assert values(reader.snapshot(["t", "u"], at=clock.now_ms())) == final
    # Between any two moments what was added is what the second shows and the first does not.
    for (early_ms, _, _), (late_ms, _, _) in zip(seen[::7], seen[3::7], strict=False):
        early, late = (values(reader.snapshot("t", at=m))["t"] for m in (early_ms, late_ms))
        rows = reader.changes("t", early_ms, late_ms, ["partition", "value"]).to_arrow().to_pylist()
        added = [(row["partition"], row["value"]) for row in rows]
        assert sorted(added) == sorted({*late} - {*early})


def test_a_time_is_found_in_manifests_and_only_in_those_that_matter(
    store: Store, heap: HeapStorage, clock: VirtualClock
) -> None:
    """Hours of appends and transactions, of which the oldest are in manifests of their own."""
    for number in range(3 * MANY):
        clock.sleep(60)
        if number % 50 == 0:
            with begin(store, "p") as producer:
                producer.send("t", b"%d" % number, partition=0)
                producer.flush()
                clock.sleep(10)
                producer.send("u", b"%d" % number, partition=0)
                producer.commit_transaction()
        else:
            append(store, b"%d" % number, partition=number % 2)
        if number == 100:
            at_ms = clock.now_ms()
            then = values(store.snapshot(["t", "u"]))
        if number == 120:
            with begin(store, "aborted") as producer:
                producer.send("t", b"aborted", partition=0)
                producer.flush()
                append(store, b"behind", partition=0)
                behind_ms = clock.now_ms()
                clock.sleep(10)
                producer.send("t", b"aborted", partition=0)
                producer.flush()
                producer.abort_transaction()
    reader = another(store)
    assert values(reader.snapshot(["t", "u"], at=at_ms)) == then
    # Inside of the transaction at number 100, between its two appends, none of it shows.
    torn_ms = at_ms - 1
    both = values(reader.snapshot(["t", "u"], at=torn_ms))
    assert not any(value == b"100" for topic in both.values() for _, value in topic)
    # What was aborted cuts nothing, though it lies on both sides of the time.
    assert values(reader.snapshot("t", at=behind_ms))["t"].count((0, b"behind")) == 1
    counting = CountingStorage(heap)
    reader = attach(counting, clock=clock)
    reader.snapshot(["t", "u"])
    counting.take()
    reader.snapshot(["t", "u"], at=clock.now_ms() - HOUR_MS)
    at_an_hour = counting.take().get("get", 0)
    reader.snapshot(["t", "u"], at=at_ms)
    # Of manifests that are older not even one.
    assert at_an_hour < counting.take().get("get", 0)


def test_a_cut_that_falls_far_back_tears_nothing(heap: HeapStorage, clock: VirtualClock) -> None:
    """Each transaction overlaps the next, back to appends that nobody would have looked at."""
    config = {"transaction.max.timeout.ms": 60_000}
    store = attach(heap, create=True, clock=clock, config=config)
    store.topics.create("t")
    append(store, b"before")
    writers = [begin(store, f"w{number}") for number in range(2)]

    def place(turn: int) -> None:
        writers[turn % 2].send("t", b"%d" % turn)
        writers[turn % 2].flush()

    place(0)
    moments = []
    for turn in range(1, MANY):
        clock.sleep(20)
        moments.append(clock.now_ms())
        place(turn)
        clock.sleep(1)
        place(turn - 1)
        writers[(turn - 1) % 2].commit_transaction()
        writers[(turn - 1) % 2].begin_transaction()
    reader = another(store)
    for at_ms in (moments[-2], moments[MANY // 2], moments[3]):
        snapshot = reader.snapshot("t", at=at_ms)
        assert values(snapshot) == {"t": [(0, b"before")]}
        assert snapshot.is_atomic


def test_a_topic_whose_own_time_is_ahead_is_cut_all_the_same(
    store: Store, clock: VirtualClock
) -> None:
    """Clocks were once a month ahead, and are right since; one transaction is open."""
    store.topics.create("other")
    ahead = elsewhere(store.storage, clock, ahead_ms=30 * 86_400_000)
    for _ in range(12):
        append(ahead, b"ahead", topic="other")
    for _ in range(40):
        clock.sleep(3_600)
        append(store, b"right", topic="other")
        append(store, b"right")
    holding, both = begin(store, "holding"), begin(store, "both")
    for producer, topics in ((holding, ["other"]), (both, ["t", "other"])):
        for topic in topics:
            producer.send(topic, b"x")
        producer.flush()
    both.commit_transaction()
    assert store.snapshot(["t", "other"]).consistency == "atomic"
    holding.abort_transaction()


def test_clocks_that_are_wrong_tear_nothing(store: Store, clock: VirtualClock) -> None:
    """One writer's clock is a day ahead: what it wrote last may be missing, nothing by half."""
    append(store, b"before", topic="u", partition=0)
    ahead = elsewhere(store.storage, clock, ahead_ms=DAY_MS)
    clock.sleep(1)
    with begin(ahead, "p") as producer:
        producer.send("t", b"ahead", partition=0)
        producer.flush()
        producer.send("u", b"ahead", partition=0)
        producer.commit_transaction()
    now_ms = clock.now_ms() + 5
    assert values(store.snapshot(["t", "u"], at=now_ms)) == {"t": [], "u": [(0, b"before")]}
    clock.sleep(10)
    for _ in range(2):
        append(store, b"after", topic="u", partition=1)
        append(store, b"after", topic="t", partition=1)
    # Now two others have come behind them, whose clocks tell that they are older than that.
    later = values(store.snapshot(["t", "u"], at=clock.now_ms()))
    assert later["t"] == [(0, b"ahead"), (1, b"after"), (1, b"after")]
    assert later["u"] == [(0, b"before"), (0, b"ahead"), (1, b"after"), (1, b"after")]


def test_a_time_of_which_nothing_is_left_is_refused(store: Store, clock: VirtualClock) -> None:
    """Before the topic was, or where all that is left of a partition came later."""
    with pytest.raises(UnknownTopicOrPartition, match="was made at 2023-11-14T22:13:20"):
        store.snapshot("t", at=clock.now_ms() - 1)
    assert values(store.snapshot("t", at=clock.now_ms())) == {"t": []}
    clock.sleep(10)
    append(store, b"old", partition=0)
    then_ms = clock.now_ms()
    clock.sleep(10)
    append(store, b"new", partition=0)
    store.topics.delete_records({TopicPartition("t", 0): 1})
    with pytest.raises(OffsetOutOfRange, match="t:0 below offset 1 were deleted"):
        store.snapshot("t", at=then_ms)
    text = dt.datetime.fromtimestamp(clock.now_ms() / 1000, dt.UTC).isoformat()
    assert values(store.snapshot("t", at=text)) == {"t": [(0, b"new")]}
    assert values(store.snapshot("t", at=clock.now_ms())) == {"t": [(0, b"new")]}


@pytest.mark.parametrize(
    ("at", "reason"),
    [
        (dt.datetime.fromisoformat("2024-01-01"), "has no time zone"),
        ("2024-01-01T12:00", "at=2024-01-01T12:00:00 has no time zone"),
        ("2024-13-01", "'2024-13-01' is not a time: month must be"),
        ("yesterday", "a time is written as 2025-01-01T00:00:00Z"),
        (pd.NaT, "NaT is not a time"),
        (1.5, "whole number"),
        (True, "whole number"),
        (-1, "at least 0"),
        (b"txnlog1.x", "whole number"),
    ],
)
def test_a_moment_that_is_none_is_refused(store: Store, at: object, reason: str) -> None:
    with pytest.raises(InvalidOption, match=reason):
        store.snapshot("t", at=at)  # type: ignore[arg-type]


# -- what was added --------------------------------------------------------------------------------


def test_changes_between_snapshots_tokens_and_times(store: Store, clock: VirtualClock) -> None:
    """All of them say the same; new partitions are new from their beginning."""
    append(store, b"a", partition=0)
    early = store.snapshot(["t", "u"])
    early_ms = clock.now_ms()
    clock.sleep(5)
    with begin(store) as producer:
        producer.send("t", b"b", partition=1)
        producer.send("t", b"c", partition=0)
        producer.commit_transaction()
    store.topics.alter("t", partitions=3)
    append(store, b"d", partition=2)
    late = store.snapshot("t")
    late_ms = clock.now_ms()
    clock.sleep(5)
    append(store, b"e", partition=0)

    def added(
        since: Snapshot | int | str, until: Snapshot | int | str | None = None
    ) -> list[bytes]:
        found: list[bytes] = store.changes("t", since, until).to_arrow()["value"].to_pylist()
        return found

    ways: list[Callable[[Snapshot, int], Snapshot | int | str]] = [
        lambda snapshot, _: snapshot,
        lambda snapshot, _: snapshot.token(),
        lambda _, at_ms: at_ms,
    ]
    for one in ways:
        for other in ways:
            assert added(one(early, early_ms), other(late, late_ms)) == [b"c", b"b", b"d"]
        assert added(one(early, early_ms)) == [b"c", b"e", b"b", b"d"]
        assert added(one(late, late_ms), one(late, late_ms)) == []
    kept = pc.field("value") > b"b"
    rows = store.changes("t", early, late, ["value", "offset"], filter=kept).to_arrow()
    assert rows.to_pylist() == [{"value": b"c", "offset": 1}, {"value": b"d", "offset": 0}]
    with pytest.raises(InvalidOption, match="more than until"):
        store.changes("t", late, early)
    with pytest.raises(InvalidOption, match="not of topic 'u'"):
        store.changes("u", late)
    with pytest.raises(UnknownTopicOrPartition):
        store.changes("u", early, late)


@pytest.mark.few(6)
@pytest.mark.store(topics={"a": 1, "b": 1, "c": 1}, on="heap")
@pytest.mark.parametrize("pre_images", [False, True], ids=["added", "feed"])
@pytest.mark.parametrize("seed", range(12))
def test_changes_between_snapshots_whose_ends_go_back(
    store: Store, seed: int, pre_images: bool
) -> None:
    """A later snapshot of more topics may end earlier in one: nothing was added there.

    A chain that goes on from where each ends tells everything once.
    """
    rng = random.Random(seed)
    topics = ["a", "b", "c"]
    last: Snapshot | None = None
    told: list[int] = []
    end = "earliest"

    def offsets(snapshot: Snapshot, topic: str) -> set[int]:
        return {*snapshot.scan(topic, columns=["offset"]).to_arrow()["offset"].to_pylist()}

    def feed(since: Snapshot | str, until: Snapshot | str) -> Scan | ChangeFeed:
        if pre_images:
            return store.changes("a", since, until, ["offset"], pre_images=True)
        return store.changes("a", since, until, ["offset"])

    def added(since: Snapshot | str, until: Snapshot | str) -> list[int]:
        found: list[int] = feed(since, until).to_arrow()["offset"].to_pylist()
        return found

    for _ in overlap(store, topics, seed):
        others = rng.sample(topics[1:], rng.randint(0, 2))
        now = store.snapshot(["a", *others])
        told += added(end, now)
        ended = feed(end, now).until
        assert ended is not None
        end = ended
        assert told == sorted(offsets(store.snapshot("a", at=end), "a") | offsets(now, "a"))
        if last is not None:
            since = last if rng.random() < 0.5 else last.token()
            until = now if rng.random() < 0.5 else now.token()
            assert added(since, until) == sorted(offsets(now, "a") - offsets(last, "a"))
            newest = store.snapshot("a")
            if newest.end_offsets("a")[0] > last.view("a").last_stable_offsets[0]:
                with pytest.raises(InvalidOption, match="more than until"):
                    added(newest, last)
        last = now


def test_what_has_outlived_every_timeout_cannot_grow(store: Store, clock: VirtualClock) -> None:
    """Nobody has looked meanwhile, so nobody has ended it; half of it would show at a time."""
    producer = begin(store, "p", timeout_ms=10_000)
    producer.send("t", b"early")
    producer.flush()
    clock.time_ms += LONGEST_MS - 1000
    producer.send("t", b"late, and nobody minds")
    producer.flush()
    clock.time_ms += 32_000
    producer.send("u", b"too late")
    with pytest.raises(InvalidTxnState, match=r"nothing can be added to it any more; abort it"):
        producer.commit_transaction()
    producer.abort_transaction()
    assert values(store.snapshot(["t", "u"], at=clock.now_ms())) == {"t": [], "u": []}
    producer = begin(store, "p", timeout_ms=10_000)
    producer.send("t", b"early")
    producer.flush()
    clock.time_ms += HOUR_MS
    store.snapshot("t")  # ends it
    producer.send("u", b"too late")
    with pytest.raises(ProducerFenced):
        producer.commit_transaction()


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", range(8))
def test_a_time_shows_the_same_once_all_clocks_have_passed_it(
    heap: HeapStorage, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some appends are by clocks that are days ahead, or hours behind, and then set right.

    So feeds from time to time neither repeat a record nor leave one out.
    """
    if seed % 2:
        settle_early(monkeypatch)
    rng, clock = random.Random(seed), VirtualClock()
    store = attach(heap, create=True, clock=clock)
    store.topics.create("t", partitions=3)
    wrong = VirtualClock(seed=1)
    other = attach(heap, clock=wrong)
    seen: list[tuple[int, int, object]] = []
    own_ms: list[int] = []
    for number in range(40):
        clock.time_ms += rng.randrange(1, 3 * HOUR_MS)
        wrong.time_ms = clock.time_ms
        if rng.random() < 0.15:
            wrong.time_ms += rng.choice([rng.randrange(3 * DAY_MS), -rng.randrange(6 * HOUR_MS)])
        append(other, b"%d" % number, partition=rng.randrange(3))
        own_ms.append(wrong.time_ms)
        at_ms = clock.time_ms - rng.randrange(1, 5 * HOUR_MS)
        with suppress(UnknownTopicOrPartition):
            seen.append((at_ms, number, values(store.snapshot("t", at=at_ms))))
    checked = 0
    for at_ms, number, found in seen:
        if min(own_ms[number + 1 :], default=at_ms) > at_ms:
            checked += 1
            assert values(store.snapshot("t", at=at_ms)) == found
    assert checked


@pytest.mark.parametrize("off_ms", [30 * DAY_MS, -30 * DAY_MS], ids=["ahead", "behind"])
def test_one_wrong_clock_moves_no_other_append(
    store: Store, clock: VirtualClock, heap: HeapStorage, off_ms: int
) -> None:
    """A single append by it, among ten that are an hour apart."""
    times = {}
    for number in range(10):
        clock.time_ms += HOUR_MS
        if number == 5:
            append(elsewhere(heap, clock, off_ms), b"wrong", partition=1)
        append(store, b"%d" % number, partition=0)
        times[number] = clock.now_ms()
    clock.time_ms += 40 * DAY_MS
    for number, at_ms in times.items():
        found = values(store.snapshot("t", at=at_ms))["t"]
        assert [v for n, v in found if n == 0] == [b"%d" % n for n in range(number + 1)]
