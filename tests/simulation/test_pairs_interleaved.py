"""Two or three processes that meet at every point: all orders with one preemption, many with two.

``make soak`` takes more of those with two. Smaller than the jobs of ``test_interleavings``,
and each about one thing: a timeout against a late decision, a snapshot against a commit behind an
open transaction, a checkpoint against an append, cleaning against a writer that slept, and topics
that are made and deleted under a writer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from tests.support.steps import values
from txnlog.errors import ProducerFenced, TopicAlreadyExists, UnknownTopicOrPartition
from txnlog.log.chapters import Chapters
from txnlog.log.settlement import CLOCK_MARGIN_MS
from txnlog.store import Store
from txnlog.testing import FaultRates, HeapStorage, Process, Simulation, preemptions

Body = Callable[[Process], None]
CLEANUP_AGE_MS = 20_000
TIMEOUT_MS = 20_000


pytestmark = [
    pytest.mark.usefixtures("short_chapters"),
    pytest.mark.rule("L17", "hazard 3", "hazard 4", "hazard 5"),
]


def strides(test: int, soak: int) -> pytest.MarkDecorator:
    """How far apart the points of two preemptions are: in `make test`, and in the soak."""
    return pytest.mark.parametrize(
        "stride", [test, pytest.param(soak, marks=pytest.mark.slow)], ids="every {}".format
    )


def prepare(*topics: str) -> HeapStorage:
    """A store with these topics, whose logs are cleaned soon."""
    simulation = Simulation()
    config = {"log.cleanup.age.ms": CLEANUP_AGE_MS, "transaction.max.timeout.ms": TIMEOUT_MS}
    store = simulation.store(config=config)
    for topic in topics:
        store.topics.create(topic)
    assert isinstance(simulation.storage, HeapStorage)
    return simulation.storage


def meetings(
    storage: HeapStorage,
    bodies: Callable[[Simulation], Mapping[str, Body]],
    stride: int,
    rates: FaultRates | None = None,
) -> Iterator[tuple[Simulation, tuple[int, ...]]]:
    """Run every order with one preemption, and of those with two each ``stride``-th point."""

    def run(switches: Sequence[int]) -> Simulation:
        simulation = Simulation(storage=storage.copy(), rates=rates)
        for name, body in bodies(simulation).items():
            simulation.spawn(name, body)
        simulation.run(preemptions(switches))
        return simulation

    first = run([])
    length = len(first.order)
    yield first, ()
    for switches in itertools.chain(
        ((step,) for step in range(length)),
        itertools.combinations(range(0, length, stride), 2),
    ):
        yield run(switches), switches


def of_snapshot(store: Store, *topics: str) -> list[list[bytes]]:
    snapshot = store.snapshot(topics, isolation_level="snapshot")
    return [snapshot.scan(t).to_arrow().column("value").to_pylist() for t in topics]


def transact(process: Process, transactional_id: str, *topics: str) -> None:
    """One transaction that puts one record, its id, into each topic."""
    producer = process.store().producer(
        transactional_id=transactional_id, transaction_timeout_ms=TIMEOUT_MS
    )
    producer.init_transactions()
    producer.begin_transaction()
    for topic in topics:
        producer.send(topic, transactional_id)
        producer.flush()
    producer.commit_transaction()


@strides(12, 2)
def test_a_timeout_meets_a_late_decision(stride: int) -> None:
    """Writer and reader both decide: one of them wins, and everybody agrees on who."""
    outcomes: list[bool] = []
    seen: list[list[list[bytes]]] = []

    def bodies(simulation: Simulation) -> dict[str, Body]:
        def writer(process: Process) -> None:
            outcomes.append(False)
            try:
                transact(process, "w", "a", "b")
                outcomes[-1] = True
            except ProducerFenced:
                pass

        def reader(process: Process) -> None:
            store = process.store()
            simulation.clock.time_ms += TIMEOUT_MS + CLOCK_MARGIN_MS + 1
            seen.extend(of_snapshot(store, "a", "b") for _ in range(2))

        return {"writer": writer, "reader": reader}

    for simulation, switches in meetings(prepare("a", "b"), bodies, stride):
        expected = [[b"w"], [b"w"]] if outcomes[-1] else [[], []]
        assert of_snapshot(simulation.store(), "a", "b") == expected, switches
        assert all(both in ([[], []], expected) for both in seen), switches
        seen.clear()
    assert set(outcomes) == {True, False}


@pytest.mark.more
def test_a_snapshot_meets_a_commit_behind_an_open_transaction() -> None:
    """Hazard 5 at every point: one opens in ``a``, one commits in ``a`` and ``b`` behind it."""
    seen: list[list[list[bytes]]] = []

    def bodies(_: Simulation) -> dict[str, Body]:
        return {
            "blocker": lambda process: transact(process, "open", "a"),
            "writer": lambda process: transact(process, "w", "a", "b"),
            "reader": lambda process: seen.append(of_snapshot(process.store(), "b", "a")),
        }

    for simulation, switches in meetings(prepare("a", "b"), bodies, 5):
        [in_b, in_a] = seen.pop()
        assert (b"w" in in_b) == (b"w" in in_a), switches
        assert sorted(values(simulation.store(), "a")) == [b"open", b"w"], switches


TORN = FaultRates(tear_listing=1.0, tear_delete=1.0)
SHOWS: dict[str, Callable[[str], bool]] = {
    "markers": lambda name: not name.endswith(".json"),
    "entries": lambda name: name.endswith(".json"),
    "nothing": lambda _: False,
    "every second": lambda name: int(name.partition(".")[0]) % 2 == 0,
}
"""Which names a listing shows that appear or disappear while it is made."""


@pytest.mark.few(2)
@pytest.mark.rule("hazard 7")
@strides(15, 3)
@pytest.mark.parametrize("shown", SHOWS)
def test_a_long_listing_meets_a_commit(shown: str, stride: int) -> None:
    """Hazard 5 within one topic: a listing may show the marker of an entry, and miss the next."""
    seen: list[list[bytes]] = []

    def bodies(_: Simulation) -> dict[str, Body]:
        def reader(process: Process) -> None:
            process.storage.shows = SHOWS[shown]
            store = process.store()
            seen.extend(of_snapshot(store, "a")[0] for _ in range(2))

        return {"writer": lambda process: transact(process, "w", "a", "a"), "reader": reader}

    for simulation, switches in meetings(prepare("a"), bodies, stride, TORN):
        assert all(found in ([], [b"w", b"w"]) for found in seen), switches
        seen.clear()
        assert values(simulation.store(), "a") == [b"w", b"w"], switches


@pytest.mark.more
def test_a_checkpoint_meets_an_append() -> None:
    """Folding from any checkpoint gives every record once, as in a running process."""

    def bodies(simulation: Simulation) -> dict[str, Body]:
        def writer(process: Process) -> None:
            with process.store().producer() as producer:
                for turn in range(4):
                    producer.send("a", b"%d" % turn)
                    producer.flush()

        def keeper(process: Process) -> None:
            store = process.store()
            for _ in range(3):
                log = store.logs.topic("a")
                log.refresh()
                log.checkpoint()
                simulation.clock.time_ms += CLEANUP_AGE_MS + 1
                found = values(store, "a")
                assert found == [b"%d" % n for n in range(len(found))]

        return {"writer": writer, "keeper": keeper}

    cleaned = 0
    for simulation, switches in meetings(prepare("a"), bodies, 3):
        assert values(simulation.store(), "a") == [b"0", b"1", b"2", b"3"], switches
        names = simulation.storage.list_names("topics/a/log")
        cleaned += "00000000000000000000.json" not in names
    assert cleaned > 10


def sleepers(plain: bool) -> Callable[[Simulation], dict[str, Body]]:
    """One writes once, and may sleep anywhere; the other writes, waits, and cleans up behind it."""

    def bodies(simulation: Simulation) -> dict[str, Body]:
        def sleeper(process: Process) -> None:
            if not plain:
                try:
                    transact(process, "sleeper", "a")
                except ProducerFenced:
                    transact(process, "sleeper", "a")
                return
            with process.store().producer() as producer:
                producer.send("a", b"sleeper")
                producer.flush()

        def cleaner(process: Process) -> None:
            store = process.store()
            for turn in range(4):
                with store.producer() as producer:
                    producer.send("a", b"%d" % turn)
                simulation.clock.time_ms += CLEANUP_AGE_MS + 1
                log = store.logs.topic("a")
                log.refresh()
                log.checkpoint()

        return {"sleeper": sleeper, "cleaner": cleaner}

    return bodies


@pytest.mark.few(1)
@strides(15, 3)
@pytest.mark.condition(52)
@pytest.mark.parametrize("plain", [True, False])
def test_cleaning_meets_a_writer_that_slept(plain: bool, stride: int) -> None:
    """Hazard 3 at every point: whoever is told that it wrote has written, once."""
    for simulation, switches in meetings(prepare("a"), sleepers(plain), stride):
        found = sorted(values(simulation.store(), "a"))
        assert found == [b"0", b"1", b"2", b"3", b"sleeper"], switches


def test_these_meetings_would_show_a_reused_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the second look after a stall the sleeper's record is lost in some order."""
    monkeypatch.setattr(Chapters, "is_closed", lambda *_: False)
    lost = 0
    for simulation, _ in meetings(prepare("a"), sleepers(True), 1000):
        lost += b"sleeper" not in values(simulation.store(), "a")
    assert lost > 0


def test_topics_are_made_and_deleted_under_a_writer() -> None:
    """The final topic has exactly the records acknowledged for it."""
    acknowledged: list[tuple[bytes, str]] = []

    def bodies(_: Simulation) -> dict[str, Body]:
        def owner(process: Process) -> None:
            store = process.store()
            store.topics.delete("a")
            with_topic(lambda: store.topics.create("a", partitions=2))

        def writer(process: Process) -> None:
            store = process.store()
            for turn in range(3):
                producer = store.producer()
                try:
                    producer.send("a", b"%d" % turn, partition=0)
                    producer.flush()
                except UnknownTopicOrPartition:
                    with_topic(lambda: store.topics.create("a", partitions=2))
                    continue
                topic_id = store.logs.topic("a")._state.topic_id
                acknowledged.append((b"%d" % turn, topic_id or ""))

        return {"writer": writer, "owner": owner}

    for simulation, switches in meetings(prepare("a"), bodies, 3):
        store = simulation.store()
        kept = [value for value, at in acknowledged if at == store.logs.topic_spec("a").topic_id]
        assert values(store, "a") == kept, switches
        acknowledged.clear()


def with_topic(create: Callable[[], Any]) -> None:
    try:
        create()
    except TopicAlreadyExists:
        return
