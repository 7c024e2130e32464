"""The examination of a store: every rule that files can show is seen when it is broken.

And never otherwise: not after a crash at any request, and not while others write.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from copy_job import PREPARED, TOTAL, copy_all
from long_runs.readers import settle
from long_runs.run import CALM, ROUGH, STALLING, STORMY
from long_runs.world import World, prepare, survived
from long_runs.writers import copy as copying
from long_runs.writers import feed, transfer

from txnlog import names
from txnlog.doctor.finding import Finding
from txnlog.errors import StorageError, TxnlogError, UnknownTopicOrPartition
from txnlog.log.state_log import Marker
from txnlog.names import LogFile, TopicPartition
from txnlog.state import envelope
from txnlog.state import group as group_state
from txnlog.state import topic as topic_state
from txnlog.state.group import GroupState, OffsetCommit, OffsetsCommitted
from txnlog.state.topic import Append, TopicState, Trimmed
from txnlog.state.transaction import (
    DECODER,
    EntryRef,
    Outcome,
    Status,
    TransactionRef,
    TransactionState,
)
from txnlog.storage.base import Storage
from txnlog.storage.local import LocalStorage
from txnlog.store import attach
from txnlog.testing import (
    Fault,
    FaultRates,
    FaultyStorage,
    HeapStorage,
    Process,
    ProcessStopped,
    Simulation,
    VirtualClock,
)

DAY_MS = 86_400_000


def small_store() -> HeapStorage:
    """Topics ``a`` (2 partitions, and a checkpoint) and ``b``, group ``g``, some transactions.

    ``done`` has committed transactions 1 and 2 with offsets, ``undone`` was aborted, ``open`` is
    open in b.
    """
    storage = HeapStorage()
    store = attach(storage, create=True, clock=VirtualClock(seed=1))
    store.create_topic("a", partitions=2)
    store.create_topic("b")
    with store.producer() as producer:
        for number in range(40):
            producer.send("a", f"plain {number}", partition=number % 2)
            producer.flush()
    done = store.producer(transactional_id="done")
    done.init_transactions()
    for number in (1, 2):
        done.begin_transaction(application_id="app", version=number)
        done.send("a", "committed", partition=0)
        done.send("b", "committed")
        done.send_offsets_to_transaction({TopicPartition("a", 0): number}, "g")
        done.commit_transaction()
    undone = store.producer(transactional_id="undone")
    undone.init_transactions()
    undone.begin_transaction()
    undone.send("b", "aborted")
    undone.flush()
    undone.abort_transaction()
    open_ = store.producer(transactional_id="open")
    open_.init_transactions()
    open_.begin_transaction()
    open_.send("b", "undecided")
    open_.flush()
    return storage


SMALL = small_store()


def examined(storage: Storage, **options: object) -> list[Finding]:
    """What an examination finds that is not just as it should be; it must not write."""
    store = attach(storage, clock=VirtualClock(seed=9))
    found = store.examine(with_probe=False, **options)  # type: ignore[arg-type]
    return [finding for finding in found if finding.state != "ok"]


def rules(storage: Storage) -> set[str | None]:
    return {finding.rule for finding in examined(storage) if finding.state == "damage"}


# -- breaking rules ------------------------------------------------------------------------------


class Broken:
    """A copy of the small store in which files can be replaced, checksums and all."""

    def __init__(self) -> None:
        self.storage = SMALL.copy()

    def entries(self, folder: str) -> list[int]:
        files = map(names.parse_log_file, self.storage.list_names(folder))
        return [found[0] for found in files if found and found[1] is LogFile.ENTRY]

    def replace(self, path: str, data: bytes) -> None:
        self.storage.delete([path])
        self.storage.put(path, data)

    def path(self, folder: str, number: int, kind: LogFile = LogFile.ENTRY) -> str:
        return f"{folder}/{names.log_file(number, kind)}"

    def append(self, topic: str, number: int) -> Append:
        path = self.path(names.topic_log(topic), number)
        entry = envelope.decode(self.storage.get(path), topic_state.ENTRY_DECODER, path)
        assert isinstance(entry, Append)
        return entry

    def put_entry(self, folder: str, number: int, entry: msgspec.Struct) -> None:
        self.replace(self.path(folder, number), envelope.encode(entry))

    def state(self, transactional_id: str, back: int = 0) -> tuple[int, TransactionState]:
        """A state of an id, and its number; the newest if ``back`` is 0."""
        folder = names.transaction_log(transactional_id)
        number = self.entries(folder)[-1 - back]
        path = self.path(folder, number)
        return number, envelope.decode(self.storage.get(path), DECODER, path)

    def put_state(self, transactional_id: str, number: int, state: TransactionState) -> None:
        self.put_entry(names.transaction_log(transactional_id), number, state)

    def change_append(self, topic: str, number: int, **changes: int) -> None:
        entry = self.append(topic, number)
        first, *rest = entry.segments
        changed = msgspec.structs.replace(first, **changes)
        self.put_entry(
            names.topic_log(topic),
            number,
            msgspec.structs.replace(entry, segments=(changed, *rest)),
        )


A, B, G = names.topic_log("a"), names.topic_log("b"), names.group_log("g")


def lost_entry(it: Broken) -> None:
    it.storage.delete([it.path(B, 2), it.path(B, 2, LogFile.COMMIT)])


def flipped_bit(it: Broken) -> None:
    data = bytearray(it.storage.get(it.path(A, 40)))
    data[-20] ^= 1
    it.replace(it.path(A, 40), bytes(data))


def wrong_offset(it: Broken) -> None:
    it.change_append("a", 40, base_offset=17)


def two_outcomes(it: Broken) -> None:
    it.storage.put(it.path(A, 41, LogFile.ABORT), it.storage.get(it.path(A, 41, LogFile.COMMIT)))


def wrong_sequence(it: Broken) -> None:
    it.change_append("a", 40, base_sequence=1234)


def trimmed_too_far(it: Broken) -> None:
    it.put_entry(B, it.entries(B)[-1] + 1, Trimmed("0" * 32, 1_700_000_000_000, {0: 99}))


def wrong_checkpoint(it: Broken) -> None:
    path = next(f"{A}/{n}" for n in it.storage.list_names(A) if n.endswith("checkpoint"))
    state = envelope.decode(it.storage.get(path), topic_state.CHECKPOINT_DECODER, path)
    assert isinstance(state, TopicState)
    state.partitions[1].segments.pop()
    it.replace(path, envelope.encode(state))


def lower_epoch(it: Broken) -> None:
    number, state = it.state("open")
    changed = msgspec.structs.replace(state, producer_epoch=state.producer_epoch - 1)
    it.put_state("open", number, changed)


def no_bump(it: Broken) -> None:
    number, state = it.state("done")
    empty = msgspec.structs.replace(state, status=Status.EMPTY, entries=(), topics=(), groups=())
    it.put_state("done", number + 1, empty)


def unnamed_topic(it: Broken) -> None:
    number, state = it.state("open")
    it.put_state("open", number, msgspec.structs.replace(state, topics=("a",)))


def not_on_the_list(it: Broken) -> None:
    for back in (0, 1):
        number, state = it.state("done", back)
        kept = tuple(ref for ref in state.entries if ref.name != "b")
        it.put_state("done", number, msgspec.structs.replace(state, entries=kept))


def other_list(it: Broken) -> None:
    number, state = it.state("done")
    more = (*state.entries, EntryRef("topic", "zzz", 1))
    it.put_state("done", number, msgspec.structs.replace(state, entries=more))


def unmarked(it: Broken) -> None:
    it.storage.delete([it.path(B, it.entries(B)[2], LogFile.COMMIT)])


def marked_while_open(it: Broken) -> None:
    last = it.entries(B)[-1]
    entry = it.append("b", last)
    assert entry.transaction is not None
    marker = Marker(Outcome.COMMIT, entry.transaction)
    it.storage.put(it.path(B, last, LogFile.COMMIT), envelope.encode(marker))


def marker_of_another(it: Broken) -> None:
    it.replace(it.path(B, 1, LogFile.COMMIT), it.storage.get(it.path(B, 3, LogFile.ABORT)))


def skipped_state(it: Broken) -> None:
    number, state = it.state("open")
    done = msgspec.structs.replace(state, status=Status.COMPLETE_ABORT)
    it.put_state("open", number + 1, done)


def forgotten_version(it: Broken) -> None:
    number, state = it.state("done")
    it.put_state("done", number, msgspec.structs.replace(state, versions={}))


def offsets(partition: TopicPartition, start: int | None, offset: int) -> OffsetsCommitted:
    commit = OffsetCommit(*partition, offset, compare=True, start=start)
    return OffsetsCommitted("0" * 32, 1_700_000_000_000, (commit,))


def moved_from_elsewhere(it: Broken) -> None:
    moved = offsets(TopicPartition("a", 0), 7, 9)
    it.put_entry(G, it.entries(G)[-1] + 1, moved)


def moved_while_held(it: Broken) -> None:
    moved, end = offsets(TopicPartition("b", 0), None, 9), it.entries(G)[-1] + 1
    _, state = it.state("open")
    it.put_entry(G, end, msgspec.structs.replace(moved, transaction=state.ref))
    it.put_entry(G, end + 1, moved)


def checkpoint(
    it: Broken, kind: Literal["topic", "group"], name: str, change: Callable[[Any], object]
) -> str:
    """Put a checkpoint that is as it should be but for one change; returns its path."""
    store = attach(it.storage, clock=VirtualClock(seed=5))
    log = store.logs.log(kind, name)
    log.refresh()
    store.logs.settlement.settle([log])
    change(log.state)
    path = log.log.path(log.state.next_entry - 1, LogFile.CHECKPOINT)
    it.replace(path, envelope.encode(log.state))
    return path


def as_it_is(_: object) -> None:
    """No change."""


def aborted_against_its_marker(it: Broken) -> None:
    checkpoint(it, "topic", "b", lambda state: state.aborted.append(1))


def committed_against_its_marker(it: Broken) -> None:
    checkpoint(it, "topic", "b", lambda state: state.aborted.remove(3))


def aborted_against_the_list(it: Broken) -> None:
    it.storage.delete([it.path(B, 2, LogFile.COMMIT)])
    checkpoint(it, "topic", "b", lambda state: state.aborted.append(2))


def committed_against_the_state(it: Broken) -> None:
    it.storage.delete([it.path(B, 3, LogFile.ABORT)])
    checkpoint(it, "topic", "b", lambda state: state.aborted.remove(3))


def aborted_and_cleaned_up(it: Broken) -> None:
    checkpoint(it, "topic", "b", lambda state: state.aborted.append(2))
    names_ = [n for n in it.storage.list_names(B) if not n.endswith("checkpoint")]
    it.storage.delete([f"{B}/{name}" for name in names_ if not name.startswith("0" * 19 + "4")])


def contradicted_by_another(it: Broken) -> None:
    checkpoint(it, "topic", "b", as_it_is)
    with attach(it.storage, clock=VirtualClock(seed=6)).producer() as producer:
        producer.send("b", "later")
    it.storage.delete([it.path(B, 1, LogFile.COMMIT)])  # and its id has moved on
    checkpoint(it, "topic", "b", lambda state: state.aborted.append(1))


def undecided_and_gone(it: Broken) -> None:
    checkpoint(it, "topic", "b", as_it_is)
    it.storage.delete([it.path(B, 4)])


def offset_that_was_left_out(it: Broken) -> None:
    def forget(state: GroupState) -> None:
        known = state.committed["a"][0]
        state.committed["a"][0] = msgspec.structs.replace(known, entry=0, offset=1)

    checkpoint(it, "group", "g", forget)


def moved_by(it: Broken, transactional_id: str) -> TransactionRef:
    """Entry 2 of the group's log moves an offset, as a part of this id's transaction."""
    _, state = it.state(transactional_id)
    moved = offsets(TopicPartition("b", 0), None, 9)
    it.put_entry(G, 2, msgspec.structs.replace(moved, transaction=state.ref))
    return state.ref


def offset_that_was_aborted(it: Broken) -> None:
    marker = Marker(Outcome.ABORT, moved_by(it, "undone"))
    it.storage.put(it.path(G, 2, LogFile.ABORT), envelope.encode(marker))

    def count(state: GroupState) -> None:
        known = state.committed["a"][0]
        state.committed["b"] = {0: msgspec.structs.replace(known, entry=2, offset=9)}

    checkpoint(it, "group", "g", count)


def offset_undecided_and_gone(it: Broken) -> None:
    moved_by(it, "open")
    checkpoint(it, "group", "g", as_it_is)
    it.storage.delete([it.path(G, 2)])


OUTCOMES = [
    aborted_against_its_marker,
    committed_against_its_marker,
    aborted_against_the_list,
    committed_against_the_state,
    aborted_and_cleaned_up,
    contradicted_by_another,
    undecided_and_gone,
    offset_that_was_left_out,
    offset_that_was_aborted,
    offset_undecided_and_gone,
]

BREAKS: dict[Callable[[Broken], None], set[str]] = {
    **{breaks: {"L10"} for breaks in OUTCOMES},
    lost_entry: {"L1"},
    flipped_bit: {"L1"},
    wrong_offset: {"L2"},
    two_outcomes: {"L3"},
    wrong_sequence: {"L4"},
    trimmed_too_far: {"L5"},
    wrong_checkpoint: {"L7"},
    lower_epoch: {"T1"},
    no_bump: {"T1"},
    unnamed_topic: {"T2"},
    not_on_the_list: {"T3"},
    other_list: {"T3"},
    unmarked: {"T4"},
    marked_while_open: {"T5"},
    marker_of_another: {"T5"},
    skipped_state: {"T6"},
    forgotten_version: {"T8"},
    moved_from_elsewhere: {"G1"},
    moved_while_held: {"G2"},
}


def test_a_sound_store_has_nothing_wrong() -> None:
    """The store that the cases below are made from; everything was looked at."""
    assert examined(SMALL.copy()) == []
    store = attach(SMALL.copy(), clock=VirtualClock(seed=9))
    looked = [(f.check, f.subject) for f in store.examine(with_probe=False)]
    assert looked == [
        ("transactions", ""),
        ("topic", "a"),
        ("data", "a"),
        ("topic", "b"),
        ("data", "b"),
        ("group", "g"),
        ("files", ""),
    ]


@pytest.mark.parametrize("breaks", BREAKS, ids=lambda breaks: breaks.__name__)
def test_a_broken_rule_is_seen_by_its_number(breaks: Callable[[Broken], None]) -> None:
    """Each rule that files can show; nothing but files is broken, every checksum holds."""
    broken = Broken()
    breaks(broken)
    before = dict(broken.storage.list_all(""))
    assert BREAKS[breaks] <= rules(broken.storage)
    assert dict(broken.storage.list_all("")) == before


L10_SAYS = {
    aborted_against_its_marker: (B, 1, "its marker is", "then fold"),
    committed_against_its_marker: (B, 3, "its marker is", "then fold"),
    aborted_against_the_list: (B, 2, "is CompleteCommit and it is on its list", "then fold"),
    committed_against_the_state: (B, 3, "is CompleteAbort", "then fold"),
    aborted_and_cleaned_up: (B, 2, "is CompleteCommit and it is on its list", "write the records"),
    contradicted_by_another: (B, 1, "contradicts; no marker", "backup"),
    undecided_and_gone: (B, 4, "is gone", "backup"),
    offset_that_was_left_out: (G, 1, "its marker is", "then fold"),
    offset_that_was_aborted: (G, 2, "its marker is", "then fold"),
    offset_undecided_and_gone: (G, 2, "is gone", "backup"),
}


@pytest.mark.parametrize("breaks", OUTCOMES, ids=lambda breaks: breaks.__name__)
def test_a_wrong_outcome_is_told_with_its_files(breaks: Callable[[Broken], None]) -> None:
    """L10 once for an entry: the checkpoint, the entry, who says otherwise, and what to do."""
    broken = Broken()
    breaks(broken)
    (found,) = [f for f in examined(broken.storage) if f.rule == "L10"]
    folder, entry, source, remedy = L10_SAYS[breaks]
    assert found.path is not None
    assert found.path.endswith(".checkpoint")
    assert broken.path(folder, entry) in found.detail
    assert source in found.detail
    assert remedy in found.detail


def test_the_newest_wrong_checkpoint_is_named_and_the_others_counted() -> None:
    """A fault that checkpoints hand on is one finding for the entry, not one for each of them."""
    broken = Broken()
    path = ""
    for number in range(5):
        path = checkpoint(broken, "topic", "b", lambda state: state.aborted.append(1))
        clock = VirtualClock(seed=20 + number)
        with attach(broken.storage, clock=clock).producer() as producer:
            producer.send("b", f"later {number}")
    (found,) = [f for f in examined(broken.storage) if f.rule == "L10"]
    assert found.path == path
    assert "and 2 older ones" in found.detail


def test_honest_checkpoints_agree() -> None:
    """One after each step of any sort: undecided, decided late, trimmed, deleted, made anew."""
    broken = Broken()
    store = attach(broken.storage, clock=VirtualClock(seed=6))

    def step() -> None:
        for kind, name in (("topic", "a"), ("topic", "b"), ("group", "g"), ("group", "h")):
            log = store.logs.log(kind, name)  # type: ignore[arg-type]
            log.refresh()
            if log.state.next_entry:
                store.logs.settlement.settle([log])
                log.checkpoint()
        assert {finding.state for finding in examined(broken.storage)} <= {"note"}

    step()
    late = store.producer(transactional_id="late")
    late.init_transactions()
    for ends in (late.commit_transaction, late.abort_transaction):
        late.begin_transaction()
        for where in ("a", "b"):
            late.send(where, "late", partition=0)
        late.send_offsets_to_transaction({TopicPartition("b", 0): 2}, "h")
        late.flush()
        step()
        ends()
        step()
    store.delete_group_offsets("h", ["b"])
    step()
    store.delete_group("g")
    step()
    store.abort_transaction("open", reason="it is in the way")
    step()
    store.delete_records({TopicPartition("b", 0): 4})
    step()
    store.delete_topic("a")
    step()
    store.create_topic("a")
    with store.producer() as producer:
        producer.send("a", "anew")
    step()


def test_a_stray_is_no_evidence() -> None:
    """Hazard 3: put into a name that cleaning had freed, it says nothing of the entry before it."""
    broken = Broken()
    broken.put_entry(G, 2, offsets(TopicPartition("b", 0), None, 9))
    stray = {
        (checkpoint(broken, "topic", "b", as_it_is), 3, 4): (B, 1, LogFile.COMMIT),
        (checkpoint(broken, "group", "g", as_it_is), 1, 2): (G, 0, LogFile.ABORT),
    }
    for (kept, number, end), (folder, copied, kind) in stray.items():
        entry = broken.storage.get(broken.path(folder, copied))
        cleaned = [name for name in broken.storage.list_names(folder) if int(name[:20]) < end]
        broken.storage.delete([p for p in (f"{folder}/{name}" for name in cleaned) if p != kept])
        broken.storage.put(broken.path(folder, number), entry)
        outcome = Outcome(kind.value)
        ref = broken.state("done", 3)[1].ref
        marker = Marker(outcome, msgspec.structs.replace(ref, number=1))
        broken.storage.put(broken.path(folder, number, kind), envelope.encode(marker))
    assert "L10" not in rules(broken.storage)


class Refusing(FaultyStorage):
    """Does not allow requests whose text holds any of these."""

    def __init__(self, inner: Storage, *refused: str) -> None:
        super().__init__(inner)
        self.refused = refused

    def _fault(self, text: str) -> Fault | None:
        return Fault.FAIL if any(part in text for part in self.refused) else None


def test_what_cannot_be_read_is_told_and_the_rest_looked_at() -> None:
    """An entry, a marker, a checkpoint, a state, a segment, a folder: each is a finding of its own.

    The damage beside them is still found, and nothing is called damage that only was not read.
    """
    broken = Broken()
    wrong_offset(broken)
    segment = next(name for name, _ in broken.storage.list_all("topics/b/data"))
    refused = [
        broken.path(A, 5),
        broken.path(A, 41, LogFile.COMMIT),
        next(f"{A}/{n}" for n in broken.storage.list_names(A) if n.endswith("checkpoint")),
        broken.path(names.transaction_log("undone"), 1),
        segment,
    ]
    storage = Refusing(broken.storage, *refused)
    found = examined(storage, with_contents=True)
    unreadable = [f for f in found if f.state == "unreadable"]
    assert sorted(f.path or "" for f in unreadable) == sorted(refused)
    assert all("injected failure" in f.detail for f in unreadable)
    assert ("group", "g", "ok") in [
        (f.check, f.subject, f.state)
        for f in attach(storage, clock=VirtualClock(seed=9)).examine(with_probe=False)
    ]
    lists = ("transactions/done", "topics/a/log", "groups/g", "list_all topics/b")
    found = examined(Refusing(SMALL.copy(), *(f"list {part}" for part in lists[:3]), lists[3]))
    assert {(f.check, f.subject, f.state) for f in found} == {
        ("transactions", "done", "unreadable"),
        ("topic", "a", "unreadable"),
        ("group", "g", "unreadable"),
        ("data", "b", "unreadable"),
    }


def test_one_state_or_entry_that_cannot_be_read_makes_nothing_else_wrong() -> None:
    """Whatever single file it is: no other is called damaged for that."""
    for path, _ in list(SMALL.list_all("")):
        if path == names.STORE_FILE:
            continue
        found = examined(Refusing(SMALL.copy(), f"get {path}"), with_contents=True)
        assert {f.state for f in found} <= {"unreadable"}, (path, found)


def test_what_an_unreadable_id_has_decided_is_not_guessed() -> None:
    """Two commits without markers move one offset: with the id's state that would be judged."""
    broken = Broken()
    broken.storage.delete([broken.path(G, number, LogFile.COMMIT) for number in (0, 1)])
    (found,) = examined(Refusing(broken.storage, f"get {names.transaction_log('done')}/"))[-1:]
    assert (found.check, found.subject, found.state) == ("transactions", "done", "unreadable")


def test_cleaned_up_as_if_it_were_aborted() -> None:
    """L10 for a group: one checkpoint has the offset pending, the next one has dropped it."""
    broken = Broken()

    def pend(state: GroupState) -> None:
        entry = envelope.decode(
            broken.storage.get(broken.path(G, 1)), group_state.ENTRY_DECODER, ""
        )
        assert isinstance(entry, OffsetsCommitted)
        known = state.committed["a"][0]
        state.committed["a"][0] = msgspec.structs.replace(known, entry=0, offset=1)
        state.pending[1] = entry

    checkpoint(broken, "group", "g", pend)
    broken.put_entry(G, 2, offsets(TopicPartition("b", 0), None, 9))

    def drop(state: GroupState) -> None:
        pend(state)
        state.decide(1, Outcome.ABORT)

    checkpoint(broken, "group", "g", drop)
    doomed = [(n, kind) for n in (0, 1) for kind in (LogFile.ENTRY, LogFile.COMMIT)]
    broken.storage.delete([broken.path(G, *file) for file in doomed])
    (found,) = examined(broken.storage)
    assert found.rule == "L10"
    assert "is CompleteCommit and it is on its list" in found.detail


def test_an_outage_ends_the_examination() -> None:
    """Nothing can be read: one error, not a finding for each of very many objects."""
    storage = SMALL.copy()
    store = attach(storage, clock=VirtualClock(seed=6))
    with store.producer() as producer:
        for number in range(20):
            store.create_topic(f"t{number}")
            producer.send(f"t{number}", "x")
    faulty = Refusing(storage)
    store = attach(faulty, clock=VirtualClock(seed=9))
    faulty.refused = ("get ",)
    found = []
    with pytest.raises(StorageError, match="gave up after 64 objects in a row"):
        found.extend(store.examine(with_probe=False))
    assert 0 < len(found) <= 64
    faulty.refused = ("list",)
    with pytest.raises(StorageError, match="injected failure of list_folders"):
        list(store.examine(with_probe=False))


def test_one_unreadable_log_does_not_end_it() -> None:
    """Of entries that somebody else wrote and nobody else may read some are told, not all."""
    found = examined(Refusing(SMALL.copy(), f"get {A}"))
    unreadable = [f for f in found if f.state == "unreadable"]
    assert {f.state for f in found} == {"unreadable"}
    assert {f.subject for f in unreadable} == {"a"}
    assert len(unreadable) == 17
    assert "not looked at" in unreadable[-1].detail


def test_an_id_whose_newest_state_is_damaged_is_named_with_the_way_out() -> None:
    """Which id, that readers wait for it, and the command; an older damaged state needs none."""
    for back, told in ((0, True), (1, False)):
        broken = Broken()
        number, _ = broken.state("open", back)
        path = broken.path(names.transaction_log("open"), number)
        broken.replace(path, broken.storage.get(path)[:-9] + b"somewhat}")
        (found,) = examined(broken.storage)
        assert (found.state, found.check, found.subject) == ("damage", "transactions", "open")
        assert found.path == path
        assert ("txnlog txns abort --force open" in found.detail) is told


def test_a_transaction_from_the_future_hangs() -> None:
    """Its producer's clock runs 30 days ahead: by its times nobody would end it before."""
    storage = SMALL.copy()
    before = attach(storage, clock=VirtualClock(1_700_000_000_000 - 30 * DAY_MS, seed=9))
    (found,) = [f for f in before.examine(with_probe=False) if f.state == "hanging"]
    assert found.subject == "open"
    assert f"in the future by {30 * DAY_MS}" in found.detail


def test_files_that_are_gone_short_or_nobodys() -> None:
    """Missing and truncated files are damage; what no entry places is told."""
    storage = SMALL.copy()
    first, second, *_ = sorted(
        name for name, _ in storage.list_all("topics/a/data") if name.endswith(".log")
    )
    storage.delete([first])
    short = storage.get(second)[:-1]
    storage.delete([second])
    storage.put(second, short)
    storage.put("topics/a/data/0/nobodys-0.log", b"x" * 10)
    storage.put("staging/t-000000.json", b"{}")
    found = {finding.path: finding for finding in examined(storage)}
    assert {found[first].state, found[second].state} == {"damage"}
    assert found["topics/a/data/0/nobodys-0.log"].state == "note"
    assert found["staging/t-000000.json"].check == "files"
    assert len(found) == 4


def test_contents_are_read_only_when_asked() -> None:
    """A flipped bit in a segment is found by reading it, which costs what it holds."""
    storage = SMALL.copy()
    victim = next(name for name, _ in storage.list_all("topics/b/data"))
    data = bytearray(storage.get(victim))
    data[-9] ^= 1
    storage.delete([victim])
    storage.put(victim, bytes(data))
    assert examined(storage) == []
    (found,) = examined(storage, with_contents=True)
    assert (found.state, found.path) == ("damage", victim)


def test_orphans_are_told_from_uploads_by_their_age(tmp_path: Path) -> None:
    """By the storage's own clock; nothing is deleted."""
    store = attach(LocalStorage(str(tmp_path)), create=True)
    store.create_topic("a")
    stray = tmp_path / "topics/a/data/0/w-0.log"
    stray.parent.mkdir(parents=True)
    stray.write_bytes(b"x" * 10)
    (young,) = [f for f in store.examine(with_probe=False) if f.state != "ok"]
    assert (young.state, young.size_bytes) == ("note", 10)
    (old,) = [f for f in store.examine(with_probe=False, orphan_age_ms=0) if f.state != "ok"]
    assert (old.state, old.path, old.size_bytes) == ("orphan", "topics/a/data/0/w-0.log", 10)
    assert stray.exists()


def test_a_hanging_transaction_is_told_and_left_alone() -> None:
    """Past its timeout, it is a finding of its own and no damage; the examination ends nothing."""
    storage = SMALL.copy()
    clock = VirtualClock(1_700_000_000_000 + DAY_MS, seed=9)
    before = dict(storage.list_all(""))
    found = [f for f in attach(storage, clock=clock).examine(with_probe=False) if f.state != "ok"]
    assert [(f.state, f.check, f.subject) for f in found] == [("hanging", "hanging", "open")]
    assert dict(storage.list_all("")) == before


def test_single_topics_and_unknown_ones() -> None:
    """Only the topics that are named, with the ids; a topic that never was is refused."""
    store = attach(SMALL.copy(), clock=VirtualClock(seed=9))
    looked = [(f.check, f.subject) for f in store.examine(["b"], with_probe=False)]
    assert looked == [("transactions", ""), ("topic", "b"), ("data", "b")]
    with pytest.raises(UnknownTopicOrPartition):
        list(store.examine(["nope"], with_probe=False))


@pytest.mark.parametrize("fault", [Fault.STOP_BEFORE, Fault.STOP_AFTER, Fault.LAND_LATE])
def test_a_crash_is_no_damage(fault: Fault) -> None:
    """Wherever a process stops, what it leaves breaks no rule; nor does what lands late."""
    for number in range(TOTAL):
        storage = PREPARED.copy()
        faulty = FaultyStorage(storage, {number: fault})
        with suppress(ProcessStopped, TxnlogError):
            copy_all(attach(faulty, clock=VirtualClock(seed=2)), abort_once=True)
        for _ in range(2):
            found = examined(storage, with_contents=True)
            assert {finding.state for finding in found} <= {"note"}, (number, found)
            faulty.land()


@pytest.mark.parametrize("rates", [CALM, ROUGH, STORMY, STALLING], ids="crsS")
def test_looking_while_others_write(rates: FaultRates) -> None:
    """Eight writers with faults, and somebody who examines all the while: no false alarm."""
    seed = 4
    simulation = Simulation(seed, rates=rates, step_ms=(0, 30))
    cleanup_age_ms = random.Random(seed).choice((DAY_MS, 40_000))
    world = prepare(simulation, cleanup_age_ms, 25, 0)
    looked = 0

    def look(world: World, process: Process) -> None:
        nonlocal looked
        while world.running:
            with survived():
                for finding in process.store().examine(with_probe=False):
                    looked += 1
                    assert finding.state != "damage", finding
            process.clock.sleep(1)

    for number, body in enumerate([transfer] * 3 + [copying] * 2 + [feed]):
        world.spawn(f"{body.__name__}-{number}", body, writes=True)
    world.spawn("look", look, writes=False)
    simulation.run()
    settle(world)
    assert looked > 0
    store = simulation.store()
    assert all(f.state != "damage" for f in store.examine(with_probe=False, with_contents=True))
