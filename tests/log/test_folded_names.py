"""A disk that does not tell upper from lower case, as those of macOS and Windows: a fake of one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import pytest

from txnlog.errors import (
    InvalidGroupId,
    InvalidTopic,
    InvalidTransactionalId,
    UnknownTopicOrPartition,
)
from txnlog.names import TopicPartition
from txnlog.storage.base import Storage, Upload
from txnlog.storage.counting import CountingStorage
from txnlog.storage.forwarding import ForwardingStorage
from txnlog.store import Store, attach
from txnlog.testing import HeapStorage, VirtualClock


class Folding(ForwardingStorage):
    """Finds a name in any case, and lists it as it was written first."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self._first: dict[str, str] = {}

    def folds_case(self) -> bool:
        return True

    def _kept(self, name: str, *, new: bool = False) -> str:
        kept: list[str] = []
        for part in name.split("/"):
            known = "/".join([*kept, part.casefold()])
            kept.append(
                self._first.setdefault(known, part) if new else self._first.get(known, part)
            )
        return "/".join(kept)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        return super().put_if_absent(self._kept(name, new=True), data)

    def put(self, name: str, data: bytes) -> None:
        super().put(self._kept(name, new=True), data)

    def upload(self, name: str) -> Upload:
        return super().upload(self._kept(name, new=True))

    def get(self, name: str) -> bytes:
        return super().get(self._kept(name))

    def get_range(self, name: str, start: int, stop: int) -> bytes:
        return super().get_range(self._kept(name), start, stop)

    def size(self, name: str) -> int:
        return super().size(self._kept(name))

    def list_names(self, folder: str, start_after: str = "") -> list[str]:
        return super().list_names(self._kept(folder), start_after)

    def list_folders(self, folder: str) -> list[str]:
        return super().list_folders(self._kept(folder))

    def delete(self, names: Iterable[str]) -> None:
        super().delete([self._kept(name) for name in names])


@pytest.fixture
def storage() -> Folding:
    return Folding(HeapStorage())


@pytest.fixture
def store(storage: Folding) -> Store:
    store = attach(storage, create=True, clock=VirtualClock())
    store.topics.create("Orders")
    return store


def test_the_fake_folds(storage: Folding) -> None:
    """The fake is not an ordinary storage, so the tests below prove something."""
    storage.put("a/B", b"x")
    assert storage.get("A/b") == b"x"
    assert not storage.put_if_absent("A/B", b"y")
    assert storage.list_names("A") == ["B"]
    assert storage.list_folders("") == ["a"]


def test_a_second_spelling_of_a_topic_is_refused(store: Store) -> None:
    """By whoever would make it, write to it or read it, in this process and in others."""
    elsewhere = attach(store.storage, clock=VirtualClock(seed=1))
    for opened in (store, elsewhere):
        calls: list[Callable[[], object]] = [
            partial(opened.topics.create, "orders"),
            partial(opened.topics.create, "ORDERS", dry_run=True),
            partial(opened.producer().send, "orders", b"x"),
            partial(opened.scan, "orders"),
        ]
        for call in calls:
            with pytest.raises(InvalidTopic, match=r"topics/Orders is there.*that spelling"):
                call()
    store.topics.create("Orders-2")
    store.topics.create("Order")
    assert store.topics.list() == ["Order", "Orders", "Orders-2"]


def test_a_topic_that_came_meanwhile_is_found_when_one_is_made(store: Store) -> None:
    """Its log was open already, for there was no topic of either spelling."""
    with pytest.raises(UnknownTopicOrPartition):
        store.topics.describe("sales")
    attach(store.storage, clock=VirtualClock(seed=1)).topics.create("Sales")
    with pytest.raises(InvalidTopic, match="topics/Sales is there"):
        store.topics.create("sales")


def test_a_second_spelling_of_a_group_or_a_transactional_id_is_refused(store: Store) -> None:
    """A transaction would be looked for under one spelling, and be found under the other."""
    producer = store.producer(transactional_id="Etl")
    producer.init_transactions()
    with producer.transaction():
        producer.send("Orders", b"x")
        producer.send_offsets_to_transaction({TopicPartition("Orders", 0): 1}, "Readers")
    with pytest.raises(InvalidTransactionalId, match=r"transactions/Etl is there"):
        store.producer(transactional_id="etl").init_transactions()
    consumer = store.consumer(group_id="readers")
    with pytest.raises(InvalidGroupId, match=r"groups/Readers is there"):
        consumer.commit({TopicPartition("Orders", 0): 1})
    assert attach(store.storage).scan("Orders").to_arrow().num_rows == 1


def test_nothing_is_asked_where_names_are_told_apart() -> None:
    """On every object store and most disks: no listing of folders, and both spellings work."""
    storage = CountingStorage(HeapStorage())
    store = attach(storage, create=True, clock=VirtualClock())
    storage.take()
    for spelling in ("orders", "Orders"):
        store.topics.create(spelling)
        producer = store.producer(transactional_id=spelling)
        producer.init_transactions()
    assert "list_folders" not in storage.take()
    assert store.topics.list() == ["Orders", "orders"]
