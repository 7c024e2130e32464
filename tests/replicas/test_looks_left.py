"""Data that is put without a look at the epochs of its own: it counts before anything names it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import pytest

from tests.support.replication.replica_world import Roots
from tests.support.steps import new_store
from txnlog import names
from txnlog.errors import LogTruncated, StorageError
from txnlog.replication.roots.epochs import Epoch, Member, elected_unclean, without
from txnlog.replication.roots.replicated_storage import ReplicatedStorage
from txnlog.replication.roots.root_join import join
from txnlog.storage.base import Storage
from txnlog.storage.counting import CountingStorage
from txnlog.storage.forwarding import ForwardingStorage
from txnlog.testing import VirtualClock

pytestmark = pytest.mark.rule("R3")

DATA = f"topics/t/data/0/{names.segment_name('f' * 32, 0)}.log"


@pytest.fixture
def roots() -> Roots:
    return Roots(2)


@pytest.fixture
def control(roots: Roots) -> CountingStorage:
    return CountingStorage(roots.controller)


@pytest.fixture
def storage(roots: Roots, control: CountingStorage, clock: VirtualClock) -> ReplicatedStorage:
    return ReplicatedStorage(control, lambda _, member: roots.heap(member), clock=clock)


def put_data(storage: Storage, *more: str) -> Callable[[], None]:
    with storage.count_later() as count:
        storage.put_round(partial(storage.put, name, b"1") for name in (DATA, *more))
    return count


def has(roots: Roots, member: Member, name: str = DATA) -> bool:
    return name in {path for path, _ in roots.heap(member).list_all("")}


def test_a_look_for_something_else_will_do(
    storage: ReplicatedStorage, control: CountingStorage
) -> None:
    storage.put_if_absent("before", b"1")
    control.take()
    count = put_data(storage)
    assert control.take() == {}
    storage.put_if_absent("begun", b"1")
    assert control.take() == {"list": 1}
    count()
    count()
    assert control.take() == {}


def test_one_that_was_made_before_proves_nothing(
    storage: ReplicatedStorage, control: CountingStorage
) -> None:
    storage.put_if_absent("before", b"1")
    count = put_data(storage)
    control.take()
    count()
    assert control.take() == {"list": 1}


def test_one_that_began_before_proves_nothing(
    roots: Roots, storage: ReplicatedStorage, control: CountingStorage
) -> None:
    """It may have listed the epochs before the data was put, whenever it is answered."""
    storage.put_if_absent("before", b"1")
    heap, counts = roots.controller, []
    list_names = heap.list_names

    def answer_late(folder: str, start_after: str = "") -> list[str]:
        found = list_names(folder, start_after)
        del heap.list_names
        counts.append(put_data(storage))
        return found

    heap.list_names = answer_late  # type: ignore[method-assign]
    storage.agreement.refresh()
    control.take()
    counts[0]()
    assert control.take() == {"list": 1}


def test_who_came_in_before_is_given_it(
    roots: Roots, storage: ReplicatedStorage, clock: VirtualClock
) -> None:
    """The writer did not know: he is told by the look for what he puts next."""
    storage.put_if_absent("before", b"1")
    join(roots.plain(clock).agreement, "d", "heap://d")
    count = put_data(storage)
    storage.put_if_absent("begun", b"1")
    assert (has(roots, "d-0", "begun"), has(roots, "d-0")) == (True, False)
    count()
    assert has(roots, "d-0")


def test_many_are_not_left(storage: ReplicatedStorage, control: CountingStorage) -> None:
    """Each keeps its bytes until then."""
    storage.put_if_absent("before", b"1")
    control.take()
    others = [f"topics/t/data/0/{names.segment_name('e' * 32, n)}.log" for n in range(70)]
    count = put_data(storage, *others)
    assert control.take() == {"list": 1}
    count()
    assert control.take() == {}


def test_a_round_of_another_thread_or_later_has_its_own(
    storage: ReplicatedStorage, control: CountingStorage
) -> None:
    storage.put_if_absent("before", b"1")
    control.take()
    with storage.count_later():
        pass
    storage.put_round([lambda: storage.put(DATA, b"1")])
    assert control.take() == {"list": 1}


def test_it_does_not_count_in_another_history(
    roots: Roots, storage: ReplicatedStorage, clock: VirtualClock
) -> None:
    storage.put_if_absent("before", b"1")
    other = roots.plain(clock).agreement
    who = other.proposer("test")
    assert other.propose(without(other.epoch(), "b-0", who))
    assert other.propose(elected_unclean(other.epoch(), "b-0", who))
    count = put_data(storage)
    with pytest.raises(LogTruncated):
        count()


class Watched(ForwardingStorage):
    """A member's storage that calls before an entry of a topic's log is put."""

    def __init__(self, inner: Storage, look: Callable[[str], None]) -> None:
        super().__init__(inner)
        self._look = look

    def put_if_absent(self, name: str, data: bytes) -> bool:
        self._look(name)
        return super().put_if_absent(name, data)


@pytest.mark.parametrize("flushes", [1, 2])
def test_a_transactions_data_counts_before_it_is_appended(
    roots: Roots, clock: VirtualClock, flushes: int
) -> None:
    """Also what a transaction that was begun already writes."""
    placed: list[bool] = []

    def look(name: str) -> None:
        if name.startswith("topics/t/log/") and has(roots, "d-0"):
            data = [path for path, _ in roots.heap("a-0").list_all("topics/t/data")]
            placed.append(all(has(roots, "d-0", path) for path in data))

    def open_member(_: Epoch, member: Member) -> Storage:
        heap = roots.heap(member)
        return Watched(heap, look) if member == "a-0" else heap

    storage = ReplicatedStorage(roots.controller, open_member, clock=clock)
    storage.trust(probed=True)
    store = new_store(storage, clock)
    producer = store.producer(transactional_id="p")
    producer.init_transactions()
    producer.begin_transaction()
    for flush in range(flushes):
        producer.send("t", b"1")
        if flush == flushes - 1:
            storage.put_if_absent(DATA, b"1")
            join(roots.plain(clock).agreement, "d", "heap://d")
            placed.clear()
        producer.flush()
    producer.commit_transaction()
    assert placed[0] is True
    assert all(placed)


def test_what_fails_is_the_transactions(roots: Roots, clock: VirtualClock) -> None:
    """Nothing is appended if the data cannot be known to count."""
    storage = roots.plain(clock)
    storage.trust(probed=True)
    store = new_store(storage, clock)
    producer = store.producer(transactional_id="p")
    producer.init_transactions()
    listed = storage.list_names("topics/t/log")
    producer.begin_transaction()
    producer.send("t", b"1")

    def fail(_: Iterable[object]) -> None:
        raise StorageError("no look")

    storage.agreement._count = fail  # type: ignore[assignment, method-assign]
    with pytest.raises(StorageError, match="no look"):
        producer.commit_transaction()
    del storage.agreement._count
    producer.abort_transaction()
    assert [name for name in storage.list_names("topics/t/log") if name.endswith(".json")] == [
        name for name in listed if name.endswith(".json")
    ]
