"""One store, used by several threads of a process; and a producer that they share."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pytest

from tests.support.steps import begin
from txnlog.errors import StorageError
from txnlog.names import TopicPartition
from txnlog.storage.base import Storage
from txnlog.store import Store, attach
from txnlog.testing import FaultyStorage, VirtualClock

TURNS = 12


@pytest.fixture
def hurried() -> Iterator[None]:
    """Threads are switched as often as Python can, so that they meet in the middle of things."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


def run(bodies: Sequence[Callable[[], None]]) -> None:
    """Run each in a thread of its own; the first error that one raises is raised here."""
    errors: list[BaseException] = []

    def guarded(body: Callable[[], None]) -> None:
        try:
            body()
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def appended(storage: Storage, topic: str, value: bytes) -> None:
    with attach(storage).producer() as producer:
        producer.send(topic, value)


class Meanwhile(FaultyStorage):
    """Lets another thread do something before the first request that contains ``at``."""

    at = "-"
    failing = False

    def __init__(self, inner: Storage, other: Callable[[], None]) -> None:
        super().__init__(inner, before_request=self._before)
        self._other = other

    def _before(self, request: str) -> None:
        if self.failing and request.startswith("get "):
            raise StorageError("503")
        if self.at in request:
            self.at = "-"
            thread = threading.Thread(target=self._other)
            thread.start()
            thread.join()


CALLS: dict[str, tuple[str, Callable[[Store], object]]] = {
    "snapshot": (
        "list topics/u/log",
        lambda store: store.snapshot(["t", "u"], isolation_level="read_uncommitted").view("t"),
    ),
    "topics": ("list topics/u/log", lambda store: store.topics.list()),
    "topics.describe": ("list transactions/p", lambda store: store.topics.describe("t")),
    "segments": ("list transactions/p", lambda store: store.topics.segments("t", 0)),
    "scan": ("list transactions/p", lambda store: store.scan("t").record_count),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_refresh_that_fails_in_one_thread_disturbs_no_other(
    memory_storage: Storage, name: str
) -> None:
    """A thread drops what a log is known to hold, just after another one has refreshed it."""
    plain = attach(memory_storage, create=True)
    for topic in "tu":
        plain.topics.create(topic)
        appended(memory_storage, topic, b"1")
    waiting = begin(plain, "p")
    waiting.send("t", b"2")
    waiting.flush()
    at, call = CALLS[name]
    expected = call(attach(memory_storage))
    later = "topics/t/log/00000000000000000003.json"

    def fail_to_refresh() -> None:
        memory_storage.put(later, b"{}")
        storage.failing = True
        with pytest.raises(StorageError, match="503"):
            store.logs.topic("t").refresh()
        storage.failing = False
        memory_storage.delete([later])

    storage = Meanwhile(memory_storage, fail_to_refresh)
    store = attach(storage)
    storage.at = at
    assert call(store) == expected
    assert storage.at == "-"


@pytest.mark.usefixtures("hurried")
def test_threads_share_a_store(memory_storage: Storage) -> None:
    """Writers with transactions, and readers of everything, over the same logs in memory."""
    store = attach(memory_storage, create=True)
    for topic in "tu":
        store.topics.create(topic, partitions=2)
    done = threading.Event()
    left = [3]

    def write(name: str) -> None:
        try:
            producer = store.producer(transactional_id=name)
            producer.init_transactions()
            for turn in range(TURNS):
                producer.begin_transaction()
                for topic in "tu":
                    producer.send(topic, b"%d" % turn, key=name)
                    producer.flush()
                producer.send_offsets_to_transaction({TopicPartition("t", 0): turn + 1}, name)
                if turn % 4 == 3:
                    producer.abort_transaction()
                else:
                    producer.commit_transaction()
        finally:
            left[0] -= 1
            if left[0] == 0:
                done.set()

    def read() -> None:
        while not done.is_set():
            snapshot = store.snapshot(["t", "u"])
            counts = [snapshot.scan(topic).record_count for topic in "tu"]
            assert counts[0] == counts[1]
            assert store.topics.list() == ["t", "u"]
            assert len([*store.topics.describe_all()]) == 2
            assert all(store.groups.describe_all())
            store.topics.segments("t")

    run([*[partial(write, name) for name in ("a", "b", "c")], read, read])
    assert store.scan("t").record_count == 3 * TURNS * 3 // 4
    assert [group.group_id for group in store.groups.describe_all()] == ["a", "b", "c"]


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("transactional_id", [None, "p"])
def test_threads_share_a_producer(memory_storage: Storage, transactional_id: str | None) -> None:
    """As with Kafka's: every record arrives whole, those of a thread in their order."""
    store = attach(memory_storage, create=True, clock=VirtualClock())
    store.topics.create("t")
    producer = store.producer(transactional_id=transactional_id)
    if transactional_id:
        producer.init_transactions()
        producer.begin_transaction()

    def send(sender: int) -> None:
        for number in range(1000):
            text = b"%d %d" % (sender, number)
            producer.send("t", text, key=text)
            if number % 200 == 0:
                producer.flush()

    run([partial(send, sender) for sender in range(4)])
    if transactional_id:
        producer.commit_transaction()
    producer.close()
    table = store.scan("t").to_arrow()
    assert table.column("key").equals(table.column("value"))
    found = [tuple(map(int, value.split())) for value in table.column("value").to_pylist()]
    for sender in range(4):
        assert [number for who, number in found if who == sender] == [*range(1000)]
