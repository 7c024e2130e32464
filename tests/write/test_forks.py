"""Children of a fork: a producer stays with the process that made it, everything else works."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.groups.alone import read_alone
from tests.support.log.settling import settle_early
from tests.support.runtime.forked_child import CHILD_S, Child, in_child
from tests.support.runtime.held_locks import locks_held
from tests.support.steps import begin, values
from txnlog import AcksValue
from txnlog.errors import ForkedProducer, TxnlogError
from txnlog.names import TopicPartition
from txnlog.store import Store, open_store

T0 = TopicPartition("t", 0)


pytestmark = [pytest.mark.usefixtures("frozen_heap"), pytest.mark.store(on="disk")]


def read_back(store: Store) -> list[bytes]:
    return values(open_store(store.storage.url))


def files(store: Store) -> set[str]:
    root = Path(store.storage.url)
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def test_children_do_not_write_through_their_parents_producer(store: Store) -> None:
    """Four flush what they sent: each is told that it may not, and nothing is lost in silence."""
    producer = store.producer()
    producer.send("t", b"parent")

    def flush() -> object:
        producer.send("t", b"child")
        return producer.flush()

    for told in [child.result() for child in [Child(flush) for _ in range(4)]]:
        assert told.startswith(f"ForkedProducer: this producer belongs to process {os.getpid()}")
        assert "make a new producer in the child" in told
    assert producer.flush() == {T0: [range(1)]}
    assert read_back(store) == [b"parent"]


@pytest.mark.parametrize(
    "call",
    [
        "init_transactions",
        "begin_transaction",
        "commit_transaction",
        "abort_transaction",
        "flush",
    ],
)
def test_a_child_touches_no_transaction(store: Store, call: str) -> None:
    """Whatever a child calls, its parent commits everything."""
    producer = begin(store, "p")
    producer.send("t", b"parent")
    assert in_child(getattr(producer, call)).startswith("ForkedProducer")
    producer.commit_transaction()
    assert read_back(store) == [b"parent"]


@pytest.mark.parametrize("failing", [True, False])
def test_a_child_that_leaves_a_transaction_does_not_end_it(store: Store, failing: bool) -> None:
    """By an error, which stays the block's own, or by its end: the parent's transaction stays."""
    producer = store.producer(transactional_id="p")
    producer.init_transactions()
    reading, writing = os.pipe()
    parent, told = os.getpid(), "nothing was raised"
    try:
        with producer, producer.transaction():
            producer.send("t", b"1")
            producer.flush()
            producer.send("t", b"2")
            before = files(store)
            child = os.fork()
            if child == 0:
                signal.alarm(CHILD_S)
                if failing:
                    raise ZeroDivisionError  # noqa: TRY301 - as a user's block does
            else:
                os.close(writing)
                with os.fdopen(reading, "rb") as pipe:
                    told = pipe.read().decode()
                os.waitpid(child, 0)
                assert files(store) == before
    except (ZeroDivisionError, ForkedProducer) as error:
        told = type(error).__name__
    finally:
        if os.getpid() != parent:
            os.write(writing, told.encode())
            os._exit(0)
    assert told == ("ZeroDivisionError" if failing else "ForkedProducer")
    assert read_back(store) == [b"1", b"2"]


@pytest.mark.usefixtures("early_files")
@pytest.mark.parametrize("acks", ["all", "1", "0"])
def test_closing_in_a_child_leaves_the_parents_uploads(store: Store, acks: AcksValue) -> None:
    """Neither close, nor the end of the block, nor the last reference takes what is on its way."""
    producer = store.producer(acks=acks, buffer_memory_bytes=1)
    for number in range(3):
        producer.send("t", b"%d" % number * 100)
    producer._records.by_topic["t"].flush_rows()  # an upload is open
    before = files(store)
    assert any(name.startswith(".tmp/") for name in before)

    def leave() -> None:
        nonlocal producer
        producer.close()
        with producer:
            pass
        producer.close(flush=False)
        del producer
        gc.collect()

    assert in_child(leave) == "None"
    assert files(store) == before
    producer.close()
    assert read_back(store) == [b"%d" % number * 100 for number in range(3)]


def test_a_child_does_not_wait_for_what_a_thread_of_its_parent_held(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Locks that are held for ever there, and a state of which half is folded."""
    settle_early(monkeypatch)
    producer = store.producer()
    for _ in range(9):
        producer.send("t", b"1")
        producer.flush()
    consumer = read_alone(store, "t", group_id="g", auto_offset_reset="earliest")
    log, group = store.logs.topic("t"), store.logs.group("g")
    assert log.state.settled is not None
    snapshot = store.snapshot(["t"])
    ends = log._state.partitions[0]

    def work() -> object:
        seen = len(consumer.poll())
        consumer.commit()
        with store.producer() as mine:
            mine.send("t", b"2")
            placed = mine.flush()
        counts = [pinned.scan("t").record_count for pinned in (snapshot, store.snapshot(["t"]))]
        refused = [f(producer) for f in (lambda p: p.close(), lambda p: _error(p.flush))]
        return seen, placed[T0], counts, refused

    with locks_held(store, log, group, producer, consumer, snapshot):
        ends.end_offset += 7
        try:
            told = in_child(work)
        finally:
            ends.end_offset -= 7
    assert told == "(9, [range(9, 10)], [9, 10], [None, 'ForkedProducer'])"
    assert read_back(store) == [b"1"] * 9 + [b"2"]


def test_a_child_leaves_what_its_parent_has_read_to_the_parent(store: Store) -> None:
    """By auto commit it commits only what it has read itself: the parent may be ahead by then."""
    with store.producer() as producer:
        for number in range(3):
            producer.send("t", b"%d" % number)
    consumer = read_alone(
        store, "t", group_id="g", auto_offset_reset="earliest", enable_auto_commit=True
    )
    assert [record.offset for record in consumer.poll(max_records=2)] == [0, 1]
    committed = store.consumer("t", group_id="g").committed
    assert in_child(consumer.close) == "None"
    assert committed(T0) is None

    def read_on() -> object:
        offsets = [record.offset for record in consumer.poll()]
        consumer.close()
        return offsets

    assert in_child(read_on) == "[2]"
    found = committed(T0)
    assert found is not None
    assert found.offset == 3
    consumer.close()


def test_a_child_commits_what_it_has_read_in_a_loop_of_its_parent(store: Store) -> None:
    with store.producer() as producer:
        for number in range(3):
            producer.send("t", b"%d" % number)
    consumer = read_alone(
        store, "t", group_id="g", auto_offset_reset="earliest", enable_auto_commit=True
    )
    records = iter(consumer)
    assert next(records).offset == 0

    def read_on() -> object:
        offset = next(records).offset
        consumer.close()
        return offset

    assert in_child(read_on) == "1"
    found = store.consumer("t", group_id="g").committed(T0)
    assert found is not None
    assert found.offset == 2
    consumer.close()


def _error(call: Callable[[], object]) -> str:
    try:
        call()
    except TxnlogError as error:
        return type(error).__name__
    return "none"


def test_stores_and_consumers_work_in_children_while_the_parent_writes(store: Store) -> None:
    """Four children, forked at any moment of a thread that flushes and one that scans."""
    producer = store.producer()
    stop = threading.Event()
    written = 0

    def write() -> None:
        nonlocal written
        while not stop.is_set():
            producer.send("t", b"parent")
            producer.flush()
            written += 1

    def scan() -> None:
        while not stop.is_set():
            store.scan("t").to_arrow()
            store.consumer("t", group_id="parent").commit({T0: 0})

    threads = [threading.Thread(target=write), threading.Thread(target=scan)]
    for thread in threads:
        thread.start()

    def work() -> object:
        before = store.scan("t").record_count
        consumer = read_alone(store, "t", group_id="g", auto_offset_reset="earliest")
        with store.producer() as mine:
            for _ in range(3):
                mine.send("t", b"child")
                mine.flush()
        seen = consumer.poll(max_records=100_000)
        consumer.commit({T0: 1})
        with store.producer(transactional_id=f"p{os.getpid()}") as ours:
            ours.init_transactions()
            with ours.transaction():
                ours.send("t", b"child")
        return before <= len(seen), sum(record.value == b"child" for record in seen) >= 3

    try:
        children = []
        for _ in range(4):
            count = written
            while written < count + 2:
                time.sleep(0)
            children.append(Child(work))
        told = [child.result() for child in children]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert told == ["(True, True)"] * 4
    found = read_back(store)
    assert (found.count(b"parent"), found.count(b"child")) == (written, 16)
