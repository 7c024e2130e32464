"""Names that cleaning has freed, and somebody who slept meanwhile puts again (hazard 3)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.steps import another, append, begin, checkpoint, upload, values
from txnlog.errors import ProducerFenced
from txnlog.log.sequence_log import SequenceLog
from txnlog.names import TopicPartition
from txnlog.state import transaction as transitions
from txnlog.store import Store, attach
from txnlog.testing import Fault, FaultyStorage, VirtualClock

T0 = TopicPartition("t", 0)
CLEANUP_AGE_MS = 60_000


pytestmark = [
    pytest.mark.usefixtures("short_chapters"),
    pytest.mark.store(
        config={"log.cleanup.age.ms": CLEANUP_AGE_MS, "transaction.max.timeout.ms": 60_000}
    ),
    pytest.mark.rule("L17", "T6", "hazard 3"),
]


A_QUARTER = "both, a quarter of the cleaning age"
CLOCKS = pytest.mark.parametrize(
    "clocks", ["both", "the wall clock", "the monotonic clock", A_QUARTER]
)


def append_and_clean(store: Store, clock: VirtualClock) -> None:
    """Six records, each with a checkpoint after it that lets older entries go."""
    for turn in range(6):
        append(store, b"%d" % turn)
        clock.time_ms += CLEANUP_AGE_MS + 1
        checkpoint(store)


def entries(store: Store, folder: str) -> list[int]:
    """The numbers of the entries that a log's folder holds."""
    return [*SequenceLog(store.storage, folder, store.logs.clock).listing().entries]


def oldest_entry(store: Store, folder: str) -> int:
    return entries(store, folder)[0]


def stall(sleepers: VirtualClock, until_ms: int, clocks: str) -> None:
    """A process sleeps until then, and only some of its clocks show it.

    Its machine may have slept too, and the monotonic clock stood still; or its wall clock was set
    back meanwhile. Or those who clean up have clocks that differ.
    """
    begun_ms = sleepers.now_ms()
    if clocks == A_QUARTER:
        sleepers.time_ms += CLEANUP_AGE_MS // 4 + 1
        return
    if clocks == "the wall clock":
        sleepers.sleep_machine(until_ms - begun_ms)
    else:
        sleepers.time_ms = until_ms
    if clocks == "the monotonic clock":
        sleepers.set_wall(begun_ms)


@pytest.mark.condition(52)
@CLOCKS
def test_a_stalled_writer_does_not_believe_in_a_reused_name(
    store: Store, clock: VirtualClock, clocks: str
) -> None:
    """A writer that slept wins a name that was freed, and looks again (hazard 3)."""
    own = VirtualClock(clock.time_ms, seed=5)
    sleeper = attach(store.storage, clock=own)
    segments = upload(sleeper, b"late")
    sleeper.logs.topic("t").refresh()
    append_and_clean(store, clock)
    assert oldest_entry(store, "topics/t/log") > 2
    stall(own, clock.time_ms, clocks)
    appended = sleeper.logs.topic("t").place(segments, refreshed=True)
    assert appended.offsets == {T0: range(6, 7)}
    expected = [*(b"%d" % turn for turn in range(6)), b"late"]
    assert values(sleeper) == values(store) == expected
    assert values(another(store)) == expected


class AnswersLate(FaultyStorage):
    """The answer to one listing takes long; ``meanwhile`` is what others do after it was made."""

    meanwhile: Callable[[], None] | None = None

    def list_names(self, folder: str, start_after: str = "") -> list[str]:
        found = super().list_names(folder, start_after)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return found


def test_a_listing_is_as_old_as_its_beginning(store: Store, clock: VirtualClock) -> None:
    """Hazard 3: what it says of the next entry was true when it was asked for."""
    append(store, b"first")
    late = AnswersLate(store.storage)
    sleeper = another(store, late)
    segments = upload(sleeper, b"late")

    def meanwhile() -> None:
        append_and_clean(store, clock)

    late.meanwhile = meanwhile
    placed = sleeper.logs.topic("t").place(segments, timeout_ms=100 * CLEANUP_AGE_MS)
    assert placed.offsets == {T0: range(7, 8)}
    expected = [b"first", *(b"%d" % turn for turn in range(6)), b"late"]
    assert values(another(store)) == expected


@pytest.mark.condition(52)
@CLOCKS
def test_a_stalled_instance_does_not_believe_in_a_reused_transaction_state(
    store: Store, clock: VirtualClock, clocks: str
) -> None:
    """A decision put into a freed name of an id's log commits nothing (hazard 3)."""
    own = VirtualClock(clock.time_ms, seed=5)
    sleeper = begin(attach(store.storage, clock=own), "p")
    sleeper.send("t", b"late")
    sleeper.flush()
    for _ in range(200):
        clock.time_ms += CLEANUP_AGE_MS + 1
        store.producer(transactional_id="p").init_transactions()
    assert oldest_entry(store, "transactions/p") > 5
    stall(own, clock.time_ms, clocks)
    with pytest.raises(ProducerFenced):
        sleeper.commit_transaction()
    assert values(another(store)) == []


def test_a_decision_put_into_a_name_that_a_living_producer_freed_commits_nothing(
    store: Store, clock: VirtualClock
) -> None:
    """Hazard 3 where nobody is initialised anew: the entries before the sleeper's are gone too."""
    producer = store.producer(transactional_id="p")
    producer.init_transactions()
    log = store.logs.transactions
    since = log.now()
    with producer.transaction():
        producer.send("t", b"1")
    stale = log.describe("p")
    for turn in range(100):
        clock.time_ms += CLEANUP_AGE_MS // 8
        with producer.transaction():
            producer.send("t", b"%d" % turn)
    assert oldest_entry(store, "transactions/p") > stale.number + 1
    late = transitions.participate(
        stale.state, topics=["t"], groups=(), now_ms=clock.now_ms(), nonce=clock.token()
    )
    for number in (stale.number, stale.number + 1):
        assert not log.put(number, late, since)
    assert log.describe("p").number > 200
    assert len(values(another(store))) == 101


def test_a_producer_that_idles_before_a_completion_does_not_believe_in_a_reused_name(
    store: Store, clock: VirtualClock
) -> None:
    """Its commit was decided, an outage kept it from being completed, then others cleaned up."""
    storage = FaultyStorage(store.storage)
    producer = begin(attach(storage, clock=clock), "p")
    producer.send("t", b"1")
    producer.flush()
    begun = len(storage.requests)
    storage.faults = dict.fromkeys(range(begun + 1, begun + 60), Fault.FAIL)
    producer.commit_transaction()
    storage.faults = {}
    assert store.transactions.describe("p").status == "PrepareCommit"
    for _ in range(100):
        clock.time_ms += CLEANUP_AGE_MS + 1
        another(store).producer(transactional_id="p").init_transactions()
    producer.begin_transaction()
    producer.send("t", b"zombie")
    with pytest.raises(ProducerFenced):
        producer.commit_transaction()
    assert values(another(store)) == [b"1"]


def test_an_id_of_jobs_that_live_shortly_is_cleaned_up(store: Store, clock: VirtualClock) -> None:
    """Each starts over, finds states of all ages, and deletes those that are old."""
    counts = []
    for _ in range(16):
        producer = begin(store, "job")
        for turn in range(30):
            producer.send("t", b"%d" % turn)
            producer.commit_transaction()
            if turn < 29:
                producer.begin_transaction()
            clock.time_ms += CLEANUP_AGE_MS // 120
        counts.append(len(entries(store, "transactions/job")))
    # Each leaves 91 states, four of them work within the cleaning age, and one closes what is left.
    assert counts[2] > 250
    assert max(counts) < 7 * 91
    assert values(another(store)) == 16 * [b"%d" % turn for turn in range(30)]
