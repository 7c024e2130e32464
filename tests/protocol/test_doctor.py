"""The examination of a store: every rule that files can show is seen when it is broken.

And never otherwise: not after a crash at any request, and not while others write.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from faults import Fault, FaultyStorage, ProcessStopped, VirtualClock
from test_crash_points import PREPARED, TOTAL, copy_all
from workload import CALM, ROUGH, STALLING, STORMY, World, feed, prepare, settle, survived, transfer
from workload import copy as copying

from txnlog import names
from txnlog.doctor.finding import Finding
from txnlog.errors import TxnlogError, UnknownTopicOrPartition
from txnlog.names import LogFile, TopicPartition
from txnlog.state import envelope
from txnlog.state import topic as topic_state
from txnlog.state.group import OffsetCommit, OffsetsCommitted
from txnlog.state.topic import Append, TopicState, Trimmed
from txnlog.state.transaction import DECODER, EntryRef, Outcome, Status, TransactionState
from txnlog.state_log import Marker
from txnlog.storage.base import Storage
from txnlog.storage.local import LocalStorage
from txnlog.store import attach
from txnlog.testing import FaultRates, HeapStorage, Process, Simulation

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


BREAKS: dict[Callable[[Broken], None], set[str]] = {
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
        while world.running > 1:
            with survived():
                for finding in process.store().examine(with_probe=False):
                    looked += 1
                    assert finding.state != "damage", finding
            process.clock.sleep(1)

    for number, body in enumerate([transfer] * 3 + [copying] * 2 + [feed]):
        world.spawn(f"{body.__name__}-{number}", body)
    world.spawn("look", look)
    simulation.run()
    settle(world)
    assert looked > 0
    store = simulation.store()
    assert all(f.state != "damage" for f in store.examine(with_probe=False, with_contents=True))
