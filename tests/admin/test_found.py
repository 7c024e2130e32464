"""What goes over many things: all that can be read comes, and nothing is missing in silence."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator

import pytest

from txnlog.admin.found import Found
from txnlog.errors import CorruptEntry, IncompleteResult, InvalidOption, InvalidTopic, TxnlogError
from txnlog.names import TopicPartition
from txnlog.storage.base import Storage
from txnlog.store import Store, attach
from txnlog.testing import VirtualClock

BAD = b"damaged"


@pytest.fixture
def damaged(memory_storage: Storage, clock: VirtualClock) -> Store:
    """Of topics, groups and transactional ids: two that are sound, one damaged, and a stray."""
    store = attach(memory_storage, create=True, clock=clock)
    for name in ("a", "z"):
        store.topics.create(name)
        store.producer(transactional_id=f"id-{name}").init_transactions()
        store.consumer(name, group_id=f"group-{name}").commit({TopicPartition(name, 0): 0})
    for folder in ("topics/bad/log", "groups/bad", "transactions/bad"):
        memory_storage.put(f"{folder}/00000000000000000000.json", BAD)
        memory_storage.put(f"{folder.split('/')[0]}/lost+found/left", b"")
    return attach(memory_storage, clock=clock)


MANY: dict[str, Callable[[Store], Found[object]]] = {
    "topics": lambda store: store.topics.describe_all(),
    "offsets": lambda store: store.topics.offsets(at="latest"),
    "named offsets": lambda store: store.topics.offsets(["bad", "z"], at="latest"),
    "sizes": lambda store: store.topics.disk_usage(),
    "groups": lambda store: store.groups.describe_all(),
    "transactions": lambda store: store.transactions.list(),
    "hanging": lambda store: store.transactions.hanging(),
    "metrics": lambda store: store.metrics(),
}


@pytest.mark.parametrize("what", MANY)
def test_what_can_be_read_comes_and_damage_is_raised_at_the_end(damaged: Store, what: str) -> None:
    """The things are of one type; beside each other with the errors they are the same."""
    seen: list[object] = []
    with pytest.raises(IncompleteResult, match="bad") as failed:
        seen.extend(MANY[what](damaged))
    assert len({type(one) for one in seen}) == (0 if what == "hanging" else 1)
    both = [*MANY[what](damaged).with_errors()]
    errors = [one for one in both if isinstance(one, TxnlogError)]
    assert [str(error) for error in failed.value.errors] == [str(error) for error in errors]
    assert len(errors) == (3 if what == "metrics" else 1)
    assert [one for one in both if not isinstance(one, TxnlogError)] == seen
    assert all(str(error) in str(failed.value) for error in errors)


def test_what_is_damaged_is_named(damaged: Store) -> None:
    """Who only asks for names has no need of what cannot be read."""
    assert damaged.topics.list() == ["a", "bad", "z"]
    assert damaged.groups.list() == ["bad", "group-a", "group-z"]


def test_each_iteration_reads_anew_and_only_as_far_as_it_is_taken(damaged: Store) -> None:
    """A result that was made before a topic shows it; the first topic needs no other."""
    found = damaged.topics.describe_all(["a*"])
    assert [topic.topic for topic in found] == ["a"]
    damaged.topics.create("added")
    assert [topic.topic for topic in found] == ["a", "added"]
    read: list[int] = []

    def count() -> Iterator[int]:
        for number in range(3):
            read.append(number)
            yield number

    assert next(iter(Found(count))) == 0
    assert read == [0]


def test_what_was_done_is_done_once(damaged: Store) -> None:
    """Also if nobody looks at what came of it."""
    done: list[int] = []

    def act() -> Iterator[int | TxnlogError]:
        done.append(1)
        yield 1
        yield CorruptEntry("torn")

    found = Found.done(act())
    assert done == [1]
    assert [str(one) for one in found.with_errors()] == ["1", "torn"]
    with pytest.raises(IncompleteResult, match=r"^torn$"):
        list(found)
    assert done == [1]


def test_arguments_are_checked_before_it_is_iterated(damaged: Store) -> None:
    """And whether there is anything is not guessed from its being there."""
    with pytest.raises(InvalidOption, match="open"):
        damaged.transactions.list(states="open")
    with pytest.raises(InvalidTopic):
        [*damaged.topics.offsets(["a b"], at="latest")]
    with pytest.raises(InvalidOption, match="timestamp_ms"):
        damaged.topics.offsets(at="latest", timestamp_ms=1)
    with pytest.raises(TypeError, match="iterate"):
        bool(damaged.transactions.hanging())


def test_the_error_travels() -> None:
    """To another process, say, with all that it has."""
    error = pickle.loads(pickle.dumps(IncompleteResult([CorruptEntry("a"), CorruptEntry("b")])))
    assert [str(one) for one in error.errors] == ["a", "b"]
    assert str(error) == "2 things failed, and the others did not:\n- a\n- b"
