"""The storage is away for a while, longer than any retry: nothing is lost, doubled or mistaken.

One producer, and nobody else: so whatever fails for the storage's sake can be aborted or repeated,
and it is never fenced. Or its successor comes while it does not know an outcome: then it is told
the true one. ``test_crash_points`` lets single requests fail; here many in a row do.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.support.steps import begin
from txnlog.errors import CommitStateUnknown, InvalidTxnState, ProducerFenced, StorageError
from txnlog.names import TopicPartition
from txnlog.producer import Producer
from txnlog.store import Store, attach
from txnlog.testing import Fault, FaultyStorage, HeapStorage, VirtualClock

pytestmark = pytest.mark.rule("hazard 1")

SOURCE = TopicPartition("in", 0)
DAY_MS = 24 * 3_600_000


class Outages(FaultyStorage):
    """Requests fail while ``left`` is not 0, and begin to by chance; some take effect, or late."""

    def __init__(self, inner: HeapStorage, chance: random.Random) -> None:
        super().__init__(inner)
        self.chance = chance
        self.rate = 0.0
        self.left = 0

    def _before(self, text: str) -> None:
        super()._before(text)
        if self.in_flight and self.chance.random() < 0.1:
            self.land()

    def _fault(self, text: str) -> Fault | None:  # noqa: ARG002 - by chance, not by name
        if not self.left and self.chance.random() < self.rate:
            # Some are over before a put is given up, some after that, some last into the next call.
            self.left = self.chance.choice([1, 2, 10, 12, 15, 31])
        if not self.left:
            return None
        self.left -= 1
        faults = [Fault.FAIL, Fault.LOSE_RESPONSE, Fault.LAND_LATE]
        return self.chance.choices(faults, [8, 1, 2])[0]


def prepare() -> tuple[HeapStorage, Store]:
    storage = HeapStorage()
    config = {"transaction.max.timeout.ms": DAY_MS}
    store = attach(storage, create=True, clock=VirtualClock(), config=config)
    for topic in ("a", "b", "in"):
        store.topics.create(topic)
    return storage, store


def count_values(storage: HeapStorage) -> Counter[tuple[str, bytes]]:
    store = attach(storage, clock=VirtualClock(seed=9))
    return Counter(
        (topic, value)
        for topic in ("a", "b")
        for value in store.scan(topic).to_arrow().column("value").to_pylist()
    )


@pytest.mark.condition(22)
def test_an_abort_after_a_topic_joined_in_doubt() -> None:
    """A put that joins a topic to the open transaction has landed though it failed."""
    storage, _ = prepare()
    outages = Outages(storage, random.Random(0))
    producer = begin(attach(outages, clock=VirtualClock(seed=1)), "p")
    producer.send("a", b"1")
    producer.flush()
    producer.send("b", b"1")
    # Lost once, then failing until the put is given up.
    start = len(outages.requests) + 1
    faults = {start: Fault.LOSE_RESPONSE, **dict.fromkeys(range(start + 1, start + 10), Fault.FAIL)}

    def fault(text: str) -> Fault | None:
        return faults.get(len(outages.requests))

    outages._fault = fault  # type: ignore[method-assign]
    with pytest.raises(StorageError):
        producer.flush()
    assert outages.requests[start].startswith("put_if_absent transactions/p/")
    producer.abort_transaction()
    with producer.transaction():
        producer.send("a", b"2")
    assert count_values(storage) == {("a", b"2"): 1}


class LatePuts(FaultyStorage):
    """Puts of an id's states fail while it is ``away``, and the first one takes effect late."""

    def __init__(self, inner: HeapStorage) -> None:
        super().__init__(inner)
        self.away = False
        self.lands_before_a_put = False

    def _before(self, text: str) -> None:
        if self.lands_before_a_put and text.startswith("put_if_absent transactions/"):
            self.land()

    def _fault(self, text: str) -> Fault | None:
        if not self.away or not text.startswith("put_if_absent transactions/"):
            return None
        return Fault.FAIL if self.in_flight else Fault.LAND_LATE


@pytest.mark.condition(22)
@pytest.mark.parametrize("joins", [True, False])
@pytest.mark.parametrize("lands", ["before a put", "after the abort"])
def test_a_beginning_that_lands_late(joins: bool, lands: str) -> None:
    """It meets the abort of its transaction, or the next one: it is the producer's own."""
    storage, _ = prepare()
    late = LatePuts(storage)
    producer = begin(attach(late, clock=VirtualClock(seed=1)), "p")
    if joins:
        producer.send("a", b"1")
        producer.flush()
    producer.send("b", b"1")
    late.away = True
    with pytest.raises(StorageError):
        producer.flush()
    late.away, late.lands_before_a_put = False, lands == "before a put"
    producer.abort_transaction()
    late.land()
    with producer.transaction():
        producer.send("a", b"2")
    assert count_values(storage) == {("a", b"2"): 1}


@pytest.mark.rule("T1")
@pytest.mark.condition(15)
def test_an_initialisation_whose_first_put_lands_before_its_third() -> None:
    """It bumps the epoch once: whichever of its puts has landed is known as its own."""
    storage, store = prepare()
    late = LatePuts(storage)
    producer = attach(late, clock=VirtualClock(seed=1)).producer(
        transactional_id="p", delivery_timeout_ms=0
    )
    late.away = True
    for _ in range(2):
        with pytest.raises(StorageError):
            producer.init_transactions()
    late.land()
    late.away = False
    producer.init_transactions()
    assert store.transactions.describe("p").producer_epoch == 0
    with producer.transaction():
        producer.send("a", b"1")
    assert count_values(storage) == {("a", b"1"): 1}


def through(outages: Outages, producer: Producer, values: dict[str, list[str]], move: int) -> bool:
    """One transaction through whatever happens; returns whether it was committed."""
    chance = outages.chance
    if chance.random() < 0.5:
        outages.land()
    producer.begin_transaction()
    try:
        for topic, sent in values.items():
            for value in sent:
                producer.send(topic, value)
            if chance.random() < 0.5:
                producer.flush()
        producer.send_offsets_to_transaction({SOURCE: move}, "g")
        producer.commit_transaction()
    except CommitStateUnknown:
        if chance.random() < 0.5:
            insist(outages, producer.commit_transaction)
            return True
        try:
            insist(outages, producer.abort_transaction)
        except InvalidTxnState:
            return True
        return False
    except StorageError:
        insist(outages, producer.abort_transaction)
        return False
    return True


def insist(outages: Outages, call: object) -> None:
    """Call until the storage lets it through."""
    assert callable(call)
    for _ in range(50):
        try:
            call()
        except (CommitStateUnknown, StorageError):
            outages.left = 0 if outages.chance.random() < 0.5 else 4
        else:
            return
    raise AssertionError("it does not get through")


@pytest.mark.condition(22, 23)
@pytest.mark.parametrize(
    "first_seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (20, 40, 60))]
)
def test_a_producer_that_is_alone_is_never_fenced(first_seed: int) -> None:
    """Its results are true, and after an abort the next transaction works."""
    ends: Counter[bool] = Counter()
    for seed in range(first_seed, first_seed + 20):
        storage, _ = prepare()
        outages = Outages(storage, random.Random(seed))
        producer = attach(outages, clock=VirtualClock(seed=seed)).producer(
            transactional_id="p", transaction_timeout_ms=DAY_MS, delivery_timeout_ms=seed % 3 * 500
        )
        outages.rate = 0.03
        insist(outages, producer.init_transactions)
        assert attach(storage).transactions.describe("p").producer_epoch == 0, f"seed {seed}"
        expected: Counter[tuple[str, bytes]] = Counter()
        offset = 0
        for number in range(20):
            values = {
                topic: [f"{number}-{n}" for n in range(outages.chance.randint(1, 2))]
                for topic in outages.chance.sample("ab", outages.chance.randint(1, 2))
            }
            committed = through(outages, producer, values, offset + 1)
            ends[committed] += 1
            if committed:
                offset += 1
                expected.update((t, value.encode()) for t in values for value in values[t])
        outages.rate = outages.left = 0
        producer.close()
        assert count_values(storage) == expected, f"seed {seed}"
        log = attach(storage, clock=VirtualClock(seed=9)).logs.fresh_group("g")
        moved = log._state.offset_of(*SOURCE)
        assert (moved.offset if moved else 0) == offset, f"seed {seed}"
    assert min(ends[True], ends[False]) > 20


class LateDecisions(FaultyStorage):
    """Of an id's states no put is answered, and perhaps nothing; some take effect later."""

    def __init__(self, inner: HeapStorage, chance: random.Random) -> None:
        super().__init__(inner)
        self.chance = chance
        self.fails: tuple[str, ...] = ()

    def _fault(self, text: str) -> Fault | None:
        if " transactions/" not in text or not text.startswith(self.fails or "-"):
            return None
        faults = [Fault.FAIL, Fault.LAND_LATE, Fault.LOSE_RESPONSE]
        return self.chance.choices(faults, [8, 2, 1])[0]


def end(outages: LateDecisions, store: Store, producer: Producer) -> tuple[bool, str]:
    """Ask for an end until it is certain: whether it is a commit, and who has told."""
    chance, calls = outages.chance, [producer.commit_transaction, producer.abort_transaction]
    has_successor = False
    for number in range(20):
        outages.fails = chance.choice([("put",), ("put",), ("put", "get"), ("",), ()])
        call = chance.choice(calls)
        try:
            call()
        except (CommitStateUnknown, StorageError):
            if call == producer.abort_transaction:
                calls = [call]
            if chance.random() < 0.3:
                outages.land()
            if number and not has_successor and chance.random() < 0.5:
                has_successor = True
                store.producer(transactional_id="p").init_transactions()
        except ProducerFenced:
            return False, "fenced"
        except InvalidTxnState:
            assert call == producer.abort_transaction
            return True, "too late"
        else:
            how = "committed" if call == producer.commit_transaction else "aborted"
            return how == "committed", how
    raise AssertionError("no end")


@pytest.mark.condition(23)
@pytest.mark.rule("hazard 2")
@pytest.mark.parametrize("first_seed", [0, pytest.param(300, marks=pytest.mark.slow)])
def test_a_producer_in_doubt_is_told_the_truth_though_its_successor_comes(first_seed: int) -> None:
    """Whichever of its decisions has landed: who is told that it was fenced may write it again."""
    ends: Counter[str] = Counter()
    for seed in range(first_seed, first_seed + 300):
        storage, store = prepare()
        outages = LateDecisions(storage, random.Random(seed))
        producer = attach(outages, clock=VirtualClock(seed=seed)).producer(
            transactional_id="p", delivery_timeout_ms=0
        )
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("a", b"1")
        producer.flush()
        committed, how = end(outages, store, producer)
        ends[how] += 1
        outages.land()
        store.producer(transactional_id="p").init_transactions()
        assert count_values(storage) == ({("a", b"1"): 1} if committed else {}), f"seed {seed}"
    assert len(ends) == 4, ends
