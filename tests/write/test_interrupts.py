"""Ctrl-C at any line of the producer: what was sent is committed whole, or not at all."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import FrameType, SimpleNamespace
from typing import NoReturn

import pytest

from tests.support.steps import another, begin, begin_with, new_store, values
from tests.support.storage.disturbed_storages import HookedStorage
from tests.support.tiers import more
from txnlog import producer
from txnlog.errors import InvalidTxnState, TxnlogError
from txnlog.log import append_batching, group_metadata, topic_log
from txnlog.names import TopicPartition
from txnlog.producer import Producer
from txnlog.store import Store, attach
from txnlog.testing import HeapStorage, VirtualClock
from txnlog.write import plain_writer

pytestmark = pytest.mark.rule("hazard 2")

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
MODULES = {
    module.__file__
    for module in (producer, plain_writer, topic_log, append_batching, group_metadata)
}


class Interrupts:
    """Raises KeyboardInterrupt at the ``at``-th line that runs in the modules above."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, frame: FrameType, event: str, _: object) -> Interrupts | None:
        if frame.f_code.co_filename not in MODULES:
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self


def interrupted(at: int, call: Callable[[], object]) -> bool:
    """Whether the call was interrupted; False if it is through before so many lines."""
    tracer = Interrupts(at)
    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def interrupted_after(at: int, call: Callable[[], object]) -> bool:
    """As ``interrupted``, after the ``at``-th function of C that the modules call."""
    left = at

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal left
        left -= event == "c_return" and frame.f_code.co_filename in MODULES
        if left == 0:
            left = -1
            raise KeyboardInterrupt

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(before)
    return False


def two_topics(clock: VirtualClock) -> Store:
    return new_store(HeapStorage(), clock, {"t": 2, "in": 1})


def begin_everywhere(store: Store) -> Producer:
    producer = begin_with(store, "p", b"1")
    producer.send("t", b"2", partition=1)
    producer.send_offsets_to_transaction({TopicPartition("in", 0): 7}, "g")
    return producer


def outcome(store: Store, clock: VirtualClock) -> tuple[int, int | None]:
    """The records and the group's offset, as a process that starts now finds them."""
    fresh = attach(store.storage, clock=clock)
    found = fresh.consumer("in", group_id="g").committed(TopicPartition("in", 0))
    return fresh.scan("t").record_count, found.offset if found else None


NOTHING, ALL = (0, None), (2, 7)


@pytest.mark.few(1)
@pytest.mark.parametrize("then", ["commit_transaction", *more(["abort_transaction", "close"])])
@pytest.mark.parametrize("call", ["flush", "commit_transaction", *more(["abort_transaction"])])
def test_a_transaction_is_whole_wherever_it_is_interrupted(
    clock: VirtualClock, call: str, then: str
) -> None:
    """At each line of the call in turn; then it is committed, aborted, or the producer closed."""
    outcomes = set()
    at = 0
    while True:
        at += 1
        store = two_topics(clock)
        transaction = begin_everywhere(store)
        if not interrupted(at, getattr(transaction, call)):
            break
        try:
            getattr(transaction, then)()
        except InvalidTxnState:
            told = False
        else:
            told = True
        if not told and then == "commit_transaction":
            # It was aborted, or only abort is left.
            transaction.abort_transaction()
        found = outcome(store, clock)
        outcomes.add(found)
        assert found in (NOTHING, ALL), f"interrupted at line {at}"
        if then == "commit_transaction":
            assert found == (ALL if told else NOTHING), f"interrupted at line {at}"
        if then == "abort_transaction":
            assert found == (NOTHING if told else ALL), f"interrupted at line {at}"
        # The producer goes on, or a new one takes over.
        again = transaction if then != "close" else store.producer(transactional_id="p")
        if then == "close":
            again.init_transactions()
        again.begin_transaction()
        again.send("t", b"later", partition=0)
        again.commit_transaction()
        assert outcome(store, clock)[0] == found[0] + 1
    assert at > 15
    assert outcomes


def test_what_is_sent_without_a_transaction_is_written_once_or_is_known_to_be_lost(
    clock: VirtualClock,
) -> None:
    """At each line of a flush in turn: a later flush writes it, or says that it cannot."""
    at = 0
    told = set()
    while True:
        at += 1
        store = two_topics(clock)
        plain = store.producer()
        plain.send("t", b"1", partition=0)
        plain.send("t", b"1", partition=1)
        plain.flush()
        plain.send("t", b"2", partition=0)
        plain.send("t", b"2", partition=1)
        if not interrupted(at, plain.flush):
            break
        refused = ""
        try:
            plain.flush()
            plain.send("t", b"3", partition=0)
            plain.flush()
        except TxnlogError as error:
            refused = str(error)
        told.add(refused)
        assert outcome(store, clock)[0] == (2 if refused else 5), f"interrupted at line {at}"
    assert at > 15
    told.remove("")
    (lost,) = told
    assert "what was sent since the last flush is lost" in lost


def test_wherever_a_send_is_interrupted_other_threads_go_on(clock: VirtualClock) -> None:
    """After each call that it makes, which is where Ctrl-C comes; also while it waits for them."""
    plain = two_topics(clock).producer()
    plain.send("t", b"1")
    with ThreadPoolExecutor(1) as other:
        at = 1
        while interrupted_after(at, partial(plain.send, "t", b"2")):
            assert other.submit(plain._lock.mutex.acquire, blocking=False).result()
            other.submit(plain._lock.mutex.release).result()
            plain.close(flush=False)
            plain = two_topics(clock).producer()
            plain.send("t", b"1")
            at += 1
        assert at > 5

        def wait() -> NoReturn:
            raise KeyboardInterrupt

        mutex = plain._lock.mutex
        other.submit(mutex.acquire).result()
        plain._lock.mutex = SimpleNamespace(acquire=wait, release=mutex.release)  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            plain.send("t", b"3")
        other.submit(mutex.release).result()
        plain._lock.mutex = mutex
        plain.close(flush=False)


def test_an_interrupted_commit_is_not_half_repeated(store: Store, hooked: HookedStorage) -> None:
    """After Ctrl-C between placements only abort is left; no part of it is committed."""
    store.topics.create("u")
    producer = begin(another(store, hooked))
    producer.send("t", b"1")
    producer.send("u", b"1")
    hooked.interrupt_at("topics/u/log")
    with pytest.raises(KeyboardInterrupt):
        producer.commit_transaction()
    with pytest.raises(InvalidTxnState, match="only be aborted"):
        producer.commit_transaction()
    producer.abort_transaction()
    assert values(another(store)) == []


def test_an_interrupt_while_marking_is_no_abort(store: Store, hooked: HookedStorage) -> None:
    """The decision stands: abort must not say that it has aborted."""
    producer = begin(another(store, hooked))
    producer.send("t", b"1")
    hooked.interrupt_at(".commit")
    with pytest.raises(KeyboardInterrupt):
        producer.commit_transaction()
    with pytest.raises(InvalidTxnState, match="ended with commit"):
        producer.abort_transaction()
    assert values(another(store)) == [b"1"]


@pytest.mark.parametrize("transactional", [False, True])
def test_records_that_were_taken_are_not_passed_over(
    store: Store, monkeypatch: pytest.MonkeyPatch, transactional: bool
) -> None:
    """An interrupt while single records become a batch loses them: no later call may go on."""
    producer = begin(store) if transactional else store.producer()
    producer.send("t", b"1")

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("txnlog.write.topic_buffer.normalize", interrupted)
        with pytest.raises(KeyboardInterrupt):
            producer.flush()
    go_on = producer.commit_transaction if transactional else producer.flush
    with pytest.raises(InvalidTxnState, match=r"only be aborted|is lost"):
        go_on()
    assert values(store) == []
