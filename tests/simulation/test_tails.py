"""What is concluded from a log's end and put elsewhere, or deleted: the end is durable first.

A process dies when its entry shows and is not synced. Another one reads it, and concludes from it;
then the power is cut, which takes what nobody has confirmed.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from tests.support.log.settling import settling_early
from tests.support.steps import values
from txnlog.admin.vacuum import Ages, FileDeletion, vacuum_topic
from txnlog.names import TopicPartition
from txnlog.state.topic import TopicState
from txnlog.state.topic_entries import ENTRY_DECODER, Append, Bundle, TopicEntry
from txnlog.storage import envelope
from txnlog.storage.counting import CountingStorage
from txnlog.store import Store, attach
from txnlog.testing import Fault, FaultyStorage, HeapStorage, ProcessStopped, VirtualClock

pytestmark = pytest.mark.rule("hazard 1")

DAY_MS = 86_400_000
CONFIG = {"retention.ms": -1, "file.delete.delay.ms": 0, "record.format": "auto"}
ACKNOWLEDGED = [b"%d" % number for number in range(8)]
WHERE = TopicPartition("t", 0)


class World:
    """A store with a topic of eight records, and processes that use it one after the other."""

    def __init__(self) -> None:
        self.heap, self.clock = HeapStorage(), VirtualClock()
        self.heap.time_ms = lambda: self.clock.time_ms
        store = attach(self.heap, create=True, clock=self.clock)
        for topic in ("t", "out"):
            store.topics.create(topic, config=CONFIG)
        for value in ACKNOWLEDGED:
            write(store, value)
        self.clock.time_ms += 8 * DAY_MS
        self._seed = 1

    def process(self) -> Store:
        """Another process."""
        self._seed += 1
        clock = VirtualClock(self.clock.time_ms, seed=self._seed)
        return attach(self.heap, clock=clock)

    def dies(self, prefix: str, call: Callable[[Store], object]) -> str:
        """A process dies when a put below ``prefix`` shows; returns what is not durable."""
        faulty = FaultyStorage(self.heap)

        def before(text: str) -> None:
            if text.startswith(f"put_if_absent {prefix}") and not faulty.faults:
                number = len(faulty.requests)
                faulty.faults = {number: Fault.SYNC_FAILS, number + 1: Fault.STOP_BEFORE}

        self._seed += 1
        store = attach(faulty, clock=VirtualClock(self.clock.time_ms, seed=self._seed))
        faulty._before_request = before
        with pytest.raises(ProcessStopped):
            call(store)
        (shown, *_) = [name for name in self.heap.unsynced if name.startswith(prefix)]
        return shown


def write(store: Store, value: bytes) -> None:
    with store.producer() as producer:
        producer.send("t", value)


def maintain(store: Store) -> None:
    list(store.maintain())


def delete(store: Store) -> None:
    store.topics.delete("t")


def consume(store: Store, how: str) -> None:
    """The group takes what there is, and says so; in a transaction with what was made of it."""
    with store.consumer(group_id="g", auto_offset_reset="earliest") as consumer:
        consumer.assign([WHERE])
        consumer.poll(timeout_ms=0)
        if how == "commit":
            consumer.commit()
            return
        group, offsets = consumer.group_metadata(), {WHERE: consumer.position(WHERE)}
    # Somebody else may have read: then the producer's own process does not know the end.
    producing = store
    if how != "transaction":
        producing = attach(store.storage, clock=store.logs.clock)
    with producing.producer(transactional_id="p") as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send("out", b"made of it")
            producer.send_offsets_to_transaction(offsets, group)


CONCLUSIONS: dict[str, tuple[Callable[[Store], object], Callable[[Store], object]]] = {
    "vacuum by a deletion": (delete, maintain),
    "vacuum by a merge": (maintain, maintain),
    "offsets": (partial(write, value=b"lost"), partial(consume, how="commit")),
    "offsets in a transaction": (
        partial(write, value=b"lost"),
        partial(consume, how="transaction"),
    ),
    "offsets of another process": (partial(write, value=b"lost"), partial(consume, how="other")),
}
"""What the process does that dies, and the one after it."""


@pytest.mark.parametrize("case", CONCLUSIONS)
def test_a_topics_end_is_durable_before_anything_follows_from_it_elsewhere(case: str) -> None:
    """So a power cut takes neither what was deleted for it, nor what was put behind it."""
    first, then = CONCLUSIONS[case]
    world = World()
    world.dies("topics/t/log/", first)
    for _ in range(2):
        world.clock.time_ms += 60_000
        then(world.process())
    assert world.heap.power_cut() == []
    if first is not delete:
        assert values(world.process())[: len(ACKNOWLEDGED)] == ACKNOWLEDGED


@pytest.mark.parametrize("first", [delete, maintain], ids=["a deletion", "a merge"])
def test_who_only_looks_confirms_nothing(first: Callable[[Store], object]) -> None:
    """A dry run of maintenance, and a reader: what they tell of may go."""
    world = World()
    shown = world.dies("topics/t/log/", first)
    assert list(world.process().maintain(dry_run=True))
    world.process().topics.list()
    assert world.heap.power_cut() == [shown]
    assert values(world.process()) == ACKNOWLEDGED


def test_a_list_of_manifests_is_durable_before_others_are_deleted_for_it() -> None:
    """Else a power cut takes the list, and the one before it names files that are gone."""

    def fill(store: Store) -> None:
        with store.producer() as producer:
            while True:
                producer.send("t", b"x")
                producer.flush()

    world, superseded = World(), set[str]()
    with settling_early():
        for _ in range(8):
            world.dies("topics/t/manifests/", fill)
            ages = Ages(world.heap, world.clock.time_ms)
            for found in vacuum_topic(world.process().logs, "t", ages, DAY_MS):
                assert isinstance(found, FileDeletion)
                superseded |= {path.rpartition(".")[2] for path in found.paths}
            assert world.heap.power_cut() == []
            assert values(world.process())[: len(ACKNOWLEDGED)] == ACKNOWLEDGED
    assert "arrow" in superseded


@pytest.mark.parametrize("survives", [False, True])
@pytest.mark.parametrize("kind", ["topic", "group", "id"])
def test_only_the_last_entry_of_a_log_may_not_be_durable(kind: str, survives: bool) -> None:
    """Several processes die in a row: no cut leaves a hole between their entries."""
    call: Callable[[Store], object]
    if kind == "topic":
        folder, call = "topics/t/log/", partial(write, value=b"x")
    elif kind == "group":
        folder, call = "groups/g/", partial(consume, how="commit")
    else:
        folder = "transactions/p/"

        def call(store: Store) -> None:
            store.producer(transactional_id="p").init_transactions()

    world = World()
    for _ in range(3):
        shown = world.dies(folder, call)
        assert world.heap.unsynced == [shown]
    world.heap.power_cut(lambda _: survives)
    call(world.process())
    assert values(world.process())[: len(ACKNOWLEDGED)] == ACKNOWLEDGED


def test_a_writer_confirms_only_what_others_have_put() -> None:
    """Once for each end that it builds on; one that is alone confirms what it has opened, once."""
    heap = HeapStorage()
    store = attach(heap, create=True, clock=VirtualClock())
    store.topics.create("t")
    counted = [CountingStorage(heap) for _ in range(2)]
    one, two = (
        attach(storage, clock=VirtualClock(seed=seed)).producer()
        for seed, storage in enumerate(counted, start=2)
    )

    def spent(*order: int) -> list[int]:
        for number in order:
            producer = (one, two)[number]
            producer.send("t", b"x")
            producer.flush()
        return [storage.take().get("confirm", 0) for storage in counted]

    assert spent(0, 0, 0) == [1, 0]
    assert spent(1, 1, 1) == [0, 1]
    assert spent(0, 1, 0, 1, 0, 0) == [3, 2]


def test_an_end_within_a_file_that_is_just_read_is_not_taken_for_durable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One thread commits offsets while another folds a file of several entries."""
    world = World()
    reader = world.process().logs.topic("t")
    reader.refresh()
    log = world.process().logs.topic("t").log
    known = reader.next_entry
    for number in range(3):
        write(world.process(), b"%d" % number)
    files = range(known, known + 3)
    decoded = [envelope.decode(data, ENTRY_DECODER, "") for data in log.read(files)]
    entries = [entry for entry in decoded if isinstance(entry, Append)]
    world.heap.delete([log.path(number) for number in files])
    bundle = Bundle("n", world.clock.now_ms(), tuple(entries))
    with world.heap.failing_sync():
        world.heap.put_if_absent(log.path(known), envelope.encode(bundle))
    real, seen = TopicState.fold, []

    def fold(self: TopicState, entry: TopicEntry, number: int) -> int:
        at_ms = real(self, entry, number)
        if number == files[-1]:
            seen.append(number)
            with ThreadPoolExecutor(1) as other:
                other.submit(reader.confirm_read).result()
        return at_ms

    monkeypatch.setattr(TopicState, "fold", fold)
    reader.refresh()
    assert seen
    reader.confirm_read()
    assert world.heap.unsynced == []
