"""Consumer groups as a library: conditions 34, 35 and 37, and invariant G2.

The judge is plain dictionaries of what was committed. Clocks are virtual.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.groups.alone import read_alone
from tests.support.steps import another, begin, begin_with_offsets, elsewhere, new_store
from txnlog import Consumer, ConsumerConfig, OffsetAndMetadata
from txnlog.config import DAY_MS
from txnlog.errors import (
    CommitFailed,
    ConcurrentTransactions,
    GroupIdNotFound,
    GroupNotEmpty,
    InvalidConfig,
    InvalidOption,
    NoOffsetForPartition,
    OffsetMetadataTooLarge,
    UnknownTopicOrPartition,
)
from txnlog.inspect.group_lag import OffsetReset
from txnlog.log.group_log import GroupLog
from txnlog.names import TopicPartition
from txnlog.results import Expiry
from txnlog.state.group import GroupState, OffsetCommit, OffsetsCommitted, OffsetsDeleted
from txnlog.state.transaction import Outcome, TransactionRef
from txnlog.storage.base import Storage
from txnlog.store import Store, attach
from txnlog.testing import FaultyStorage, HeapStorage, VirtualClock

pytestmark = pytest.mark.rule("G2")

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


@pytest.fixture
def store(memory_storage: Storage, clock: VirtualClock) -> Store:
    """Topics ``a`` (two partitions of 10 records, at 1000, 1010, ... ms) and ``b`` (5)."""
    store = new_store(memory_storage, clock, {"a": 2, "b": 1})
    with store.producer() as producer:
        for number in range(10):
            for partition in range(2):
                producer.send("a", b"x", partition=partition, timestamp_ms=1000 + 10 * number)
        for _ in range(5):
            producer.send("b", b"x", timestamp_ms=1)
    return store


def commit(store: Store, offsets: dict[TopicPartition, int], group_id: str = "g") -> None:
    store.consumer(group_id=group_id).commit(offsets)


def offsets(store: Store, group_id: str = "g") -> dict[TopicPartition, int | None]:
    return {
        TopicPartition(at.topic, at.partition): at.offset
        for at in store.groups.describe(group_id).offsets
    }


# -- what is told --------------------------------------------------------------------------------


def test_lag_counts_to_the_last_stable_offset(store: Store, clock: VirtualClock) -> None:
    """Records behind an open transaction are not lag; those committed since are."""
    commit(store, {A0: 4, A1: 10, B0: 0})
    with store.producer() as plain:
        plain.send("a", b"x", partition=1)
    waiting = begin(store, "w")
    waiting.send("a", b"open", partition=0)
    waiting.flush()
    for reader in (store, elsewhere(store.storage, clock)):
        found = reader.groups.describe("g")
        lags = [(at.topic, at.partition, at.end_offset, at.lag) for at in found.offsets]
        assert lags == [("a", 0, 10, 6), ("a", 1, 11, 1), ("b", 0, 5, 5)]
        assert found.lag == 12
    waiting.commit_transaction()
    assert store.groups.describe("g").lag == 13


def test_what_was_trimmed_before_it_was_read_is_no_lag(store: Store) -> None:
    """It is told beside it; a group that has read it, or whose topic is gone, has lost nothing."""
    commit(store, {A0: 4, A1: 9, B0: 2})
    store.topics.delete_records({A0: 7, A1: 7, B0: 5})
    found = store.groups.describe("g")
    told = [(at.offset, at.log_start_offset, at.lag, at.trimmed) for at in found.offsets]
    assert told == [(4, 7, 3, 3), (9, 7, 1, 0), (2, 5, 0, 3)]
    assert (found.lag, found.trimmed) == (4, 6)
    store.topics.delete("b")
    gone = store.groups.describe("g").offsets[-1]
    assert (gone.lag, gone.trimmed, gone.log_start_offset) == (None, None, None)
    assert store.groups.describe("g").trimmed == 3


def test_metadata_is_kept_alone_and_in_transactions(store: Store, clock: VirtualClock) -> None:
    """Condition 37: each offset has a note of its own, and none that is too long."""
    consumer = store.consumer(group_id="g")
    consumer.commit({A0: 1, A1: OffsetAndMetadata(2, "own")}, metadata="for all others")
    producer = store.producer(transactional_id="p")
    producer.init_transactions()
    with producer.transaction():
        producer.send_offsets_to_transaction({B0: OffsetAndMetadata(3, "in a transaction")}, "g")
    found = elsewhere(store.storage, clock).groups.describe("g").offsets
    notes = ["for all others", "own", "in a transaction"]
    assert [at.metadata for at in found] == notes
    assert consumer.committed(B0).metadata == notes[2]  # type: ignore[union-attr]
    consumer.commit({A0: 1}, metadata="x" * 4096)
    with pytest.raises(OffsetMetadataTooLarge, match="a:0 takes 4098 bytes; at most 4096"):
        consumer.commit({A0: 1}, metadata="ä" * 2049)
    with pytest.raises(InvalidOption, match="must be a string"):
        consumer.commit({A0: OffsetAndMetadata(1, 7)})  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match=r"the offset to commit for a:0 must be .*, not -1$"):
        consumer.commit({A0: -1})


# -- reset ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ({"to": "earliest"}, {A0: 2, A1: 0}),
        ({"to": "latest"}, {A0: 10, A1: 10}),
        ({"to": 7}, {A0: 7, A1: 7}),
        ({"to": 1}, {A0: 2, A1: 1}),
        ({"to": 99}, {A0: 10, A1: 10}),
        ({"timestamp_ms": 1041}, {A0: 5, A1: 5}),
        ({"timestamp_ms": 0}, {A0: 2, A1: 0}),
        ({"timestamp_ms": 9999}, {A0: 10, A1: 10}),
        ({"shift_by": 3}, {A0: 8, A1: 10}),
        ({"shift_by": -4}, {A0: 2, A1: 4}),
        ({"shift_by": 0}, {A0: 5, A1: 8}),
    ],
)
def test_offsets_are_reset(
    store: Store, clock: VirtualClock, target: dict[str, object], expected: dict[object, int]
) -> None:
    """Condition 37: every way of kafka-consumer-groups; beyond an end is the end."""
    store.topics.delete_records({A0: 2})
    commit(store, {A0: 5, A1: 8, B0: 3})
    plan = store.groups.reset_offsets("g", "a", dry_run=True, **target)  # type: ignore[arg-type]
    assert plan == [
        OffsetReset("a", 0, 5, expected[A0]),
        OffsetReset("a", 1, 8, expected[A1]),
    ]
    assert offsets(elsewhere(store.storage, clock)) == {A0: 5, A1: 8, B0: 3}
    assert store.groups.reset_offsets("g", "a", **target) == plan  # type: ignore[arg-type]
    assert offsets(elsewhere(store.storage, clock)) == {**expected, B0: 3}


def test_the_partitions_of_a_reset(store: Store, clock: VirtualClock) -> None:
    """All that the group has, whole topics, single partitions; a new group if they are named."""
    commit(store, {A0: 5, B0: 3})
    store.groups.reset_offsets("g", to="latest")
    assert offsets(store) == {A0: 10, B0: 5}
    store.groups.reset_offsets("g", [A1, "b"], to=1, metadata="by hand")
    assert offsets(store) == {A0: 10, A1: 1, B0: 1}
    assert [at.metadata for at in store.groups.describe("g").offsets] == ["", "by hand", "by hand"]
    assert store.groups.reset_offsets("new", ["b"], to="earliest") == [OffsetReset("b", 0, None, 0)]
    assert elsewhere(store.storage, clock).groups.list() == ["g", "new"]
    store.topics.delete("b")
    assert [r.topic for r in store.groups.reset_offsets("g", to="earliest")] == ["a", "a"]
    consumer = store.consumer("a", group_id="g", stop_at_end=True)
    assert [record.offset for record in consumer][:3] == [0, 1, 2]


CHANGES: dict[str, Callable[[Store, bool], object]] = {
    "reset": lambda at, dry: at.groups.reset_offsets("g", to="latest", dry_run=dry),
    "forced": lambda at, dry: at.groups.reset_offsets("g", to="latest", force=True, dry_run=dry),
    "delete": lambda at, dry: at.groups.delete("g", dry_run=dry),
    "of-a-topic": lambda at, dry: at.groups.delete_offsets("g", ["a"], dry_run=dry),
    "unread": lambda at, dry: at.groups.delete_offsets("g", ["b"], dry_run=dry),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("members", [[], ["alive"], ["dead"], ["dead", "alive"]], ids="-".join)
@pytest.mark.parametrize("is_held", [False, True], ids=["free", "held"])
def test_a_dry_run_tells_what_the_change_does(
    clock: VirtualClock, members: list[str], change: str, *, is_held: bool
) -> None:
    """Its result or its error: the dead count as gone, and a dry run writes nothing."""
    heap = HeapStorage()
    heap.time_ms = lambda: clock.time_ms
    store = new_store(heap, clock, {"a": 2})
    commit(store, {A0: 0})
    if is_held:
        begin_with_offsets(store, "p", {A0: 0})
    for member in members:
        if member == "alive":
            clock.time_ms += 46_000
        elsewhere(heap, clock).consumer("a", group_id="g").poll()
    if members == ["dead"]:
        clock.time_ms += 46_000

    def outcome(*, dry_run: bool) -> object:
        try:
            return CHANGES[change](elsewhere(heap, clock), dry_run)
        except (ConcurrentTransactions, GroupNotEmpty) as error:
            return type(error)

    before = {*heap.list_all("groups")}
    planned = outcome(dry_run=True)
    assert {*heap.list_all("groups")} == before
    assert outcome(dry_run=False) == planned
    expected: object = [OffsetReset("a", 0, 0, 0)] if change in ("reset", "forced") else None
    if is_held and change != "unread":
        expected = ConcurrentTransactions
    if "alive" in members and change not in ("forced", "unread"):
        expected = GroupNotEmpty
    assert planned == expected


def test_a_reset_of_all_leaves_out_a_topic_that_was_made_anew(store: Store) -> None:
    """The group has no offsets for it, though for one of its name."""
    store.topics.create("again")
    for topic in ("a", "again"):
        with store.producer() as producer:
            producer.send(topic, b"x", partition=0)
        with store.consumer(topic, group_id="both", auto_offset_reset="earliest") as consumer:
            consumer.poll()
            consumer.commit()
    store.topics.delete("again")
    store.topics.create("again")
    with store.producer() as producer:
        producer.send("again", b"new")
    for to in ({"to": "current"}, {"shift_by": -1}, {"to": "latest"}):
        planned = store.groups.reset_offsets("both", dry_run=True, **to)
        assert {reset.topic for reset in planned} == {"a"}
    store.groups.delete_offsets("both", ["a"])
    with pytest.raises(InvalidOption, match="there is nothing to reset"):
        store.groups.reset_offsets("both", to="earliest")


def test_a_reset_may_go_behind_the_last_stable_offset(store: Store) -> None:
    """To the end of the log, as Kafka's; ``latest`` is where read_committed ends."""
    waiting = begin(store, "w")
    waiting.send("b", b"open")
    waiting.flush()
    for target, expected in ((6, 6), (9, 6), ("latest", 5)):
        [done] = store.groups.reset_offsets("g", [B0], to=target)
        assert done.after == expected


def test_resets_that_make_no_sense(store: Store) -> None:
    """Each names what is wrong, and nothing is changed."""
    commit(store, {A0: 5})
    refused: list[tuple[type[Exception], str, Callable[[], object]]] = [
        (InvalidOption, "exactly one", lambda: store.groups.reset_offsets("g")),
        (
            InvalidOption,
            "to and shift_by",
            lambda: store.groups.reset_offsets("g", to=1, shift_by=1),
        ),
        (InvalidOption, "'newest'", lambda: store.groups.reset_offsets("g", to="newest")),
        (
            InvalidOption,
            "offset .* must be .*, not -3",
            lambda: store.groups.reset_offsets("g", to=-3),
        ),
        (
            InvalidOption,
            "shift_by must",
            lambda: store.groups.reset_offsets("g", shift_by=1.5),  # type: ignore[arg-type]
        ),
        (InvalidOption, "leave", lambda: store.groups.reset_offsets("g", "a", to={A0: 1})),
        (InvalidOption, "has no offsets", lambda: store.groups.reset_offsets("none", to=1)),
        (InvalidOption, "an empty list", lambda: store.groups.reset_offsets("g", to={})),
        (InvalidOption, "an empty list", lambda: store.groups.reset_offsets("g", [], to=1)),
        (NoOffsetForPartition, "a:1", lambda: store.groups.reset_offsets("g", "a", shift_by=1)),
        (UnknownTopicOrPartition, "no", lambda: store.groups.reset_offsets("g", "no", to=1)),
        (
            UnknownTopicOrPartition,
            "no partition 9",
            lambda: store.groups.reset_offsets("g", to={TopicPartition("a", 9): 1}),
        ),
    ]
    for kind, message, call in refused:
        with pytest.raises(kind, match=message):
            call()
    assert offsets(store) == {A0: 5}


def test_offsets_are_reset_from_a_file(store: Store, tmp_path: Path) -> None:
    """What kafka-consumer-groups exports, with and without the group in front."""
    path = tmp_path / "offsets.csv"
    path.write_text('a,0,3\n\n"a",1, 4\n')
    store.groups.reset_offsets("g", from_file=path)
    assert offsets(store) == {A0: 3, A1: 4}
    path.write_text("g,a,0,6\nother,a,1,9\n")
    store.groups.reset_offsets("g", from_file=str(path))
    assert offsets(store) == {A0: 6, A1: 4}
    for text, message in (
        ("a,0", "line 1 .* must be topic,partition,offset"),
        ("a,0,1\na,x,1", "line 2"),
        ("a,0,1\na,0,2", "more than one offset for a:0"),
        ("other,a,0,1", "no offset for group 'g'"),
        ("a,0," + "9" * 5000, "line 1 .* must be topic,partition,offset"),
        ("a," + "9" * 5000 + ",0", "line 1 .* must be topic,partition,offset"),
        ('a,0,"' + "1" * 200_000 + '"', "cannot be read: field larger"),
        ("a,99999999999,0", "no partition 99999999999"),
    ):
        path.write_text(text)
        with pytest.raises((InvalidOption, UnknownTopicOrPartition), match=message):
            store.groups.reset_offsets("g", from_file=path)
    with pytest.raises(InvalidOption, match="cannot be read"):
        store.groups.reset_offsets("g", from_file=tmp_path / "none.csv")
    assert offsets(store) == {A0: 6, A1: 4}


def test_a_job_that_read_before_a_reset_cannot_commit(store: Store, clock: VirtualClock) -> None:
    """Condition 35: the reset stands, and the job's transaction is refused."""
    job = elsewhere(store.storage, clock)
    consumer = read_alone(job, "a", group_id="g", auto_offset_reset="earliest")
    consumer.poll()
    producer = begin(job, "job")
    producer.send_offsets_to_transaction({A0: 10}, consumer.group_metadata())
    store.groups.reset_offsets("g", [A0], to=2)
    with pytest.raises(CommitFailed):
        producer.commit_transaction()
    producer.abort_transaction()
    assert offsets(store) == {A0: 2}


def test_a_reset_that_loses_a_race_changes_nothing(store: Store, clock: VirtualClock) -> None:
    """The group moves between the plan and the put: what was planned does not fit any more."""
    commit(store, {A0: 4, A1: 4})
    raced: list[str] = []

    def meanwhile(request: str) -> None:
        if request.startswith("put_if_absent groups/g") and not raced:
            raced.append(request)
            commit(store, {A0: 6})

    operator = attach(FaultyStorage(store.storage, before_request=meanwhile), clock=clock)
    with pytest.raises(CommitFailed, match="read from offset 4, but the group is at 6"):
        operator.groups.reset_offsets("g", shift_by=-1)
    assert raced
    assert offsets(store) == {A0: 6, A1: 4}


# -- pending offsets are never lost --------------------------------------------------------------


@pytest.mark.parametrize("outcome", ["commit", "abort"])
@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_pending_offset_commit_is_never_lost(
    store: Store, clock: VirtualClock, outcome: str, checkpointed: bool
) -> None:
    """Invariant G2: everything else that would move the partition is refused until the decision."""
    commit(store, {A0: 1, B0: 1})
    holder = begin_with_offsets(store, "p", {A0: 5})
    if checkpointed:
        store.logs.group("g").checkpoint()
    other = elsewhere(store.storage, clock)
    rival = begin(other, "rival")
    rival.send_offsets_to_transaction({A0: 7}, "g")
    refused: list[Callable[[], object]] = [
        rival.commit_transaction,
        lambda: commit(other, {A0: 6}),
        lambda: other.groups.reset_offsets("g", to="latest"),
        lambda: other.groups.delete("g"),
        lambda: other.groups.delete_offsets("g", [A0]),
    ]
    for call in refused:
        with pytest.raises(ConcurrentTransactions, match="transaction 1 of 'p'"):
            call()
    rival.abort_transaction()
    clock.time_ms += 10
    assert elsewhere(store.storage, clock).groups.expire(older_than_ms=0) == []
    commit(other, {B0: 2})  # what is not held moves
    if outcome == "commit":
        holder.commit_transaction()
    else:
        holder.abort_transaction()
    expected = {A0: 5 if outcome == "commit" else 1, B0: 2}
    for reader in (store, other, elsewhere(store.storage, clock)):
        assert offsets(reader) == expected
    with rival.transaction():
        rival.send_offsets_to_transaction({A0: 8}, "g")
    assert offsets(elsewhere(store.storage, clock))[A0] == 8


def test_a_pending_offset_shows_in_the_description(store: Store) -> None:
    """Condition 34: who is about to move an offset, also where there is none yet."""
    holder = begin_with_offsets(store, "p", {A0: 5})
    (found,) = store.groups.describe("g").offsets
    assert found.offset is None
    assert found.pending is not None
    assert found.pending.transactional_id == "p"
    assert store.groups.list() == ["g"]
    holder.abort_transaction()
    with pytest.raises(GroupIdNotFound):
        store.groups.describe("g")
    assert store.groups.list() == []


def test_a_decision_that_is_learnt_late_brings_no_deleted_offset_back() -> None:
    """An entry counts where it stands: what is deleted after it stays so, whenever it is read."""
    ref = TransactionRef("p", 1, 5, 0)
    state = GroupState()
    moves = (OffsetCommit("a", 0, 5), OffsetCommit("a", 1, 6))
    state.apply(0, OffsetsCommitted("n", 1, moves, ref))
    state.apply(1, OffsetsDeleted("n", 2, (A0,)))
    state.decide(0, Outcome.COMMIT)
    assert state.offset_of(*A0) is None
    assert state.offset_of(*A1).offset == 6  # type: ignore[union-attr]
    state.apply(2, OffsetsCommitted("n", 3, (OffsetCommit("a", 0, 9),)))
    assert state.offset_of(*A0).offset == 9  # type: ignore[union-attr]


# -- deletion and expiry -------------------------------------------------------------------------


def test_groups_are_deleted(store: Store, clock: VirtualClock) -> None:
    """A deleted group has never read anything; a new one of the id starts over."""
    commit(store, {A0: 5, B0: 1})
    commit(store, {A0: 2}, "kept")
    store.groups.delete("g")
    for reader in (store, elsewhere(store.storage, clock)):
        assert reader.groups.list() == ["kept"]
        assert [d.group_id for d in reader.groups.describe_all()] == ["kept"]
        assert reader.consumer(group_id="g").committed(A0) is None
        for call in (reader.groups.describe, reader.groups.delete):
            with pytest.raises(GroupIdNotFound, match="'g' has no offsets"):
                call("g")
    commit(store, {A1: 3})
    assert offsets(elsewhere(store.storage, clock)) == {A1: 3}


def test_single_offsets_are_deleted(store: Store, clock: VirtualClock) -> None:
    """By partition or by topic, also of a topic that is gone; with the last one goes the group."""
    commit(store, {A0: 5, A1: 6, B0: 1})
    store.groups.delete_offsets("g", [A0, TopicPartition("never", 3)])
    assert offsets(elsewhere(store.storage, clock)) == {A1: 6, B0: 1}
    store.topics.delete("b")
    store.groups.delete_offsets("g", "b")
    assert offsets(elsewhere(store.storage, clock)) == {A1: 6}
    store.logs.group("g").checkpoint()
    store.groups.delete_offsets("g", ["a"])
    assert elsewhere(store.storage, clock).groups.list() == []
    with pytest.raises(GroupIdNotFound):
        store.groups.delete_offsets("g", [A0])


def test_idle_groups_expire(memory_storage: Storage, clock: VirtualClock) -> None:
    """After offsets.retention.ms without a commit; by default, and with -1, never."""
    store = attach(memory_storage, create=True, clock=clock, config={"offsets.retention.ms": 1000})
    store.topics.create("a", partitions=2)
    store.topics.create("b")
    commit(store, {A0: 0}, "idle")
    commit(store, {A0: 0}, "busy")
    begin_with_offsets(store, "p", {B0: 0})
    clock.time_ms += 600
    commit(store, {A1: 0}, "busy")
    clock.time_ms += 400
    assert elsewhere(store.storage, clock).groups.expire() == []
    clock.time_ms += 1
    store.storage.put("groups/bad/00000000000000000000.json", b"damaged")
    assert elsewhere(store.storage, clock).groups.expire(dry_run=True) == ["idle"]
    assert elsewhere(store.storage, clock).groups.expire() == ["idle"]
    assert elsewhere(store.storage, clock).groups.list() == ["bad", "busy", "g"]
    assert store.consumer(group_id="busy").committed(A0) is not None
    clock.time_ms += 10**9
    keeps = attach(store.storage, clock=clock)
    assert keeps.groups.expire(older_than_ms=10**10) == []
    assert keeps.groups.expire() == ["busy"]


WEEK_MS = 7 * 86_400_000


@pytest.mark.rule("hazard 10")
@pytest.mark.parametrize("wrong", ["maintenance", "committer", "storage"])
@pytest.mark.parametrize("by", ["expire", "maintain"])
def test_one_wrong_clock_deletes_no_group(clock: VirtualClock, wrong: str, by: str) -> None:
    """Whichever it is: ahead of time who maintains, or the storage; or behind, who commits."""
    storage = HeapStorage(like_disk=True)
    ahead_ms = {wrong: WEEK_MS + 10**8}
    stored_ms = 0
    storage.time_ms = lambda: clock.time_ms + stored_ms
    store = attach(storage, create=True, clock=clock, config={"offsets.retention.ms": WEEK_MS})
    store.topics.create("a", partitions=2)
    committer = elsewhere(storage, clock, -ahead_ms.get("committer", 0))
    commit(committer, {A0: 5})
    stored_ms = ahead_ms.get("storage", 0)

    def expire() -> list[str]:
        process = elsewhere(storage, clock, ahead_ms.get("maintenance", 0))
        if by == "expire":
            return process.groups.expire()
        return [step.name for step in process.maintain() if isinstance(step, Expiry)]

    assert expire() == []
    clock.time_ms += WEEK_MS
    assert expire() == []
    commit(elsewhere(storage, clock, -ahead_ms.get("committer", 0)), {A0: 1}, "busy")
    clock.time_ms += 1
    assert expire() == ["g"]
    assert offsets(another(store), "busy") == {A0: 1}


def test_a_group_is_as_old_as_its_last_commit_to_any_partition(clock: VirtualClock) -> None:
    """By the storage's clock, too: the others may be as old as they like."""
    storage = HeapStorage()
    storage.time_ms = lambda: clock.time_ms
    store = attach(storage, create=True, clock=clock, config={"offsets.retention.ms": 1000})
    store.topics.create("a", partitions=2)
    behind = elsewhere(storage, clock, -(10**9))
    commit(behind, {A0: 5})
    clock.time_ms += 900
    commit(behind, {A1: 5})
    clock.time_ms += 1000
    assert elsewhere(storage, clock).groups.expire() == []
    clock.time_ms += 1
    assert elsewhere(storage, clock).groups.expire() == ["g"]


def _aborts(store: Store) -> None:
    producer = begin_with_offsets(store, "p", {A0: 7})
    producer.flush()
    producer.abort_transaction()


def _joins_and_leaves(_: Store, consumer: Consumer) -> None:
    consumer.poll(timeout_ms=0)
    consumer.close()


def _joins_and_is_removed(store: Store, consumer: Consumer) -> None:
    consumer.poll(timeout_ms=0)
    store.groups.remove_members("g")


ACTIVITIES: dict[str, Callable[[Store, Consumer], object]] = {
    "commit": lambda store, _: commit(store, {A0: 7}),
    "reset": lambda store, _: store.groups.reset_offsets("g", ["a"], to="earliest"),
    "deleted offsets": lambda store, _: store.groups.delete_offsets("g", [B0]),
    "aborted transaction": lambda store, _: _aborts(store),
    "member that leaves": _joins_and_leaves,
    "removed member": _joins_and_is_removed,
    "dead member": lambda _, consumer: consumer.poll(timeout_ms=0),
}
"""The last thing that shows that a group is in use: what is done with a store, or by a consumer."""


@pytest.mark.parametrize("is_member", [False, True])
@pytest.mark.parametrize("activity", ACTIVITIES)
def test_a_group_is_as_old_as_its_last_activity(
    clock: VirtualClock, activity: str, is_member: bool
) -> None:
    """Whatever offsets are left, and though a member that lived had nothing to commit for long."""
    storage = HeapStorage()
    storage.time_ms = lambda: clock.time_ms
    store = attach(storage, create=True, clock=clock, config={"offsets.retention.ms": DAY_MS})
    for topic in ("a", "b"):
        store.topics.create(topic)
    commit(store, {A0: 0, B0: 0})
    consumer = store.consumer("a", group_id="g")
    if is_member:
        consumer.poll(timeout_ms=0)
    clock.time_ms += DAY_MS
    if is_member and "member" not in activity:
        consumer.close()
        clock.time_ms += DAY_MS
    ACTIVITIES[activity](store, consumer)
    if activity == "dead member":
        clock.time_ms += ConsumerConfig().session_timeout_ms
    for idle_ms, expected in [(1, []), (DAY_MS - 1, []), (1, ["g"])]:
        clock.time_ms += idle_ms
        for dry_run in (True, False):
            found = elsewhere(storage, clock).groups.expire(dry_run=dry_run)
            assert found == expected, (idle_ms, dry_run)


@pytest.mark.few(2)
@pytest.mark.parametrize("is_member", [False, True])
@pytest.mark.parametrize("retention_ms", [-1, DAY_MS, 30 * DAY_MS])
def test_a_quiet_consumer_keeps_its_group(
    clock: VirtualClock, retention_ms: int, is_member: bool
) -> None:
    """By auto commits, a few of them, if it is not a member; a member by being one."""
    storage = HeapStorage()
    storage.time_ms = lambda: clock.time_ms
    store = attach(storage, create=True, clock=clock, config={"offsets.retention.ms": retention_ms})
    store.topics.create("a")
    with store.producer() as producer:
        producer.send("a", b"x")
    consumer = store.consumer(group_id="g", auto_offset_reset="earliest", enable_auto_commit=True)
    consumer.subscribe(["a"]) if is_member else consumer.assign([A0])
    for _ in range(40 * 24 * 3):
        consumer.poll(timeout_ms=0)
        clock.time_ms += 1_200_000
    steps = elsewhere(storage, clock).maintain()
    assert not [step for step in steps if isinstance(step, Expiry)]
    if is_member:
        assert [entry.kind for entry in store.groups.history("g")].count("offsets") == 1
    else:
        state = elsewhere(storage, clock).logs.fresh_group("g").state
        assert state.next_entry == {-1: 1, DAY_MS: 160, 30 * DAY_MS: 40}[retention_ms]
    consumer.close()


def test_groups_whose_last_commit_was_cleaned_up(clock: VirtualClock) -> None:
    """By the storage's clock the log's newest entry tells for how long there was none, at least."""
    storage = HeapStorage()
    storage.time_ms = lambda: clock.time_ms
    store = attach(storage, create=True, clock=clock, config={"offsets.retention.ms": 1000})
    store.topics.create("a", partitions=2)
    behind = elsewhere(storage, clock, -(10**9))
    commit(behind, {A0: 5})
    commit(behind, {A1: 5})
    clock.time_ms += 900
    behind.groups.delete_offsets("g", [A1])
    behind.logs.group("g").checkpoint()
    behind.logs.group("g").log.delete_entries(0, 2)
    clock.time_ms += 1000
    assert elsewhere(storage, clock).groups.expire() == []
    clock.time_ms += 1
    assert elsewhere(storage, clock).groups.expire(dry_run=True) == ["g"]
    assert elsewhere(storage, clock).groups.expire() == ["g"]


def _deleted(store: Store, clock: VirtualClock) -> None:
    store.groups.delete("g")


def _expired(store: Store, clock: VirtualClock) -> None:
    clock.time_ms += 2 * DAY_MS
    assert store.groups.expire() == ["g"]


def _emptied(store: Store, clock: VirtualClock) -> None:
    store.groups.delete_offsets("g", [TopicPartition("t", 0)])


def _unchecked(store: Store, clock: VirtualClock) -> None:
    """Its writer was killed before it left a checkpoint."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GroupLog, "checkpoint_at_end", lambda _: False)
        store.groups.delete("g")
    store.groups.expire()


def _maintained(store: Store) -> None:
    store.maintain()


@pytest.mark.parametrize("ends", [_deleted, _expired, _emptied, _unchecked])
@pytest.mark.parametrize(
    "asks",
    [
        pytest.param(lambda store: store.groups.list(), id="list"),
        pytest.param(lambda store: [*store.metrics()], id="metrics"),
        pytest.param(_maintained, id="maintain"),
    ],
)
def test_what_a_group_costs_that_has_ended(
    ends: Callable[[Store, VirtualClock], None], asks: Callable[[Store], object]
) -> None:
    """Two requests, however it has lived; and it can live again."""
    clock, heap = VirtualClock(1_700_000_000_000, seed=1), HeapStorage()
    heap.time_ms = lambda: clock.time_ms
    config = {"offsets.retention.ms": DAY_MS}
    store = attach(heap, create=True, clock=clock, config=config)
    store.topics.create("t")
    for _ in range(3):
        with store.consumer("t", group_id="g") as consumer:
            consumer.poll(timeout_ms=0)
            consumer.commit()
    ends(store, clock)
    counted = FaultyStorage(heap)
    asks(attach(counted, clock=clock))
    of_group = [request for request in counted.requests if "groups/g" in request]
    assert len(of_group) == 2
    again = attach(heap, clock=clock).consumer(group_id="g")
    again.commit({TopicPartition("t", 0): 0})
    for one in (store, attach(heap, clock=clock)):
        assert one.groups.describe("g").offsets[0].offset == 0


def test_groups_are_kept_for_ever_by_default(store: Store, clock: VirtualClock) -> None:
    """A monthly job must find its offsets: Kafka's seven days are not the default here."""
    commit(store, {A0: 5})
    clock.time_ms += 10**13
    assert store.groups.expire() == []
    assert offsets(store) == {A0: 5}
    with pytest.raises(InvalidConfig, match=r"offsets\.retention\.ms"):
        attach(store.storage, config={"offsets.retention.ms": -2})


def test_offsets_do_not_move_backwards_for_a_new_reader(store: Store, clock: VirtualClock) -> None:
    """A transaction's offsets count where they stand, though their marker is seen last."""
    producer = begin(store)
    producer.send_offsets_to_transaction({A0: 5}, "g")
    producer.commit_transaction()
    store.consumer("a", group_id="g").commit({A0: 10})
    found = elsewhere(store.storage, clock).consumer("a", group_id="g").committed(A0)
    assert found is not None
    assert found.offset == 10
