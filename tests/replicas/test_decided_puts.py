"""What everybody puts alike: at all members side by side, and what if somebody does not.

The model of the rules is in tests/simulation/test_decided_model.py.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.replication.replica_world import Roots
from tests.support.replication.world_entries import entry_of
from tests.support.steps import elsewhere, new_store
from txnlog.errors import StorageError
from txnlog.names import TopicPartition
from txnlog.replication.roots.epochs import joining
from txnlog.replication.roots.replicated_storage import ReplicatedStorage
from txnlog.replication.roots.root_join import join
from txnlog.storage.base import Storage
from txnlog.storage.counting import CountingStorage
from txnlog.storage.forwarding import ForwardingStorage
from txnlog.testing import HeapStorage, VirtualClock

pytestmark = pytest.mark.rule("R2", "R13", "T10")

NAME = "transactions/p/00000000000000000001.json"
OURS, THEIRS = entry_of("", "ours"), entry_of("", "theirs")
"""Both as they were written: no checksum tells who is right."""


@pytest.fixture
def roots() -> Roots:
    return Roots(3)


@pytest.fixture
def storage(roots: Roots, clock: VirtualClock) -> ReplicatedStorage:
    return roots.plain(clock)


def held(roots: Roots, name: str = NAME) -> dict[str, bytes | None]:
    """What each member of the newest epoch has."""
    found = {}
    for member in roots.epoch().members:
        heap = roots.heap(member)
        there = name in {path for path, _ in heap.list_all("")}
        found[member] = heap.get(name) if there else None
    return found


def at(roots: Roots, member: str, call: Callable[[], object], when: str = "put_if_absent") -> None:
    """Have something happen at the first request of a kind to a member, before it is made."""
    heap = roots.heap(member)
    method = getattr(heap, when)

    def interrupted(*arguments: object) -> object:
        delattr(heap, when)
        call()
        return method(*arguments)

    setattr(heap, when, interrupted)


def test_it_is_everywhere_and_the_first_who_puts_it_is_told_so(
    roots: Roots, storage: ReplicatedStorage, clock: VirtualClock
) -> None:
    assert storage.put_decided(NAME, OURS)
    assert held(roots) == {"a-0": OURS, "b-0": OURS, "c-0": OURS}
    assert not roots.plain(clock).put_decided(NAME, OURS)
    assert not roots.plain(clock).put_if_absent(NAME, OURS)
    assert roots.epoch().number == 0


@pytest.mark.parametrize("is_listed", [False, True])
def test_a_follower_may_have_it_first(
    roots: Roots, storage: ReplicatedStorage, clock: VirtualClock, is_listed: bool
) -> None:
    """Its writer is dead: whoever lists it, or puts it next, gives it to the leader."""
    roots.heap("b-0").put(NAME, OURS)
    if is_listed:
        assert [f"transactions/p/{one}" for one in storage.list_names("transactions/p")] == [NAME]
    assert storage.put_decided(NAME, OURS) is not is_listed
    assert held(roots) == {"a-0": OURS, "b-0": OURS, "c-0": OURS}
    assert roots.epoch().number == 0
    roots.heap("b-0").put("other", OURS)
    assert roots.plain(clock).put_if_absent("other", OURS)


def test_the_leader_is_lost_meanwhile(roots: Roots, storage: ReplicatedStorage) -> None:
    """A follower leads, and has it already: it is ours all the same."""
    roots.down.add("a")
    assert storage.put_decided(NAME, OURS)
    assert held(roots) == {"b-0": OURS, "c-0": OURS}
    assert roots.epoch().leader == "b-0"


def test_nobody_is_put_out_who_has_what_the_leader_has(
    roots: Roots, storage: ReplicatedStorage, clock: VirtualClock
) -> None:
    """Somebody has completed with bytes of their own."""
    assert roots.plain(clock).put_if_absent(NAME, THEIRS)
    assert not storage.put_decided(NAME, OURS)
    assert roots.epoch().number == 0
    assert storage.get(NAME) == THEIRS


def test_who_has_other_bytes_than_the_leader_is_put_out(
    roots: Roots, storage: ReplicatedStorage
) -> None:
    """They have reached the leader and another one."""
    roots.heap("c-0").put(NAME, THEIRS)
    at(roots, "b-0", lambda: roots.heap("a-0").put(NAME, THEIRS))
    at(roots, "a-0", lambda: roots.heap("a-0").put(NAME, THEIRS))
    assert not storage.put_decided(NAME, OURS)
    assert held(roots) == {"a-0": THEIRS, "c-0": THEIRS}
    assert storage.get(NAME) == THEIRS


def test_a_leader_that_alone_has_other_bytes_is_put_out(
    roots: Roots, storage: ReplicatedStorage
) -> None:
    """They were never acknowledged; what all others have may be, and it may have lost that."""
    roots.heap("a-0").put(NAME, THEIRS)
    for follower in ("b-0", "c-0"):
        roots.heap(follower).put(NAME, OURS)
    assert storage.put_decided(NAME, OURS)
    assert held(roots) == {"b-0": OURS, "c-0": OURS}
    assert storage.get(NAME) == OURS


@pytest.mark.parametrize("lacking", ["b", "c", "bc"])
def test_what_followers_lacked_says_nothing_against_the_leader(
    roots: Roots, storage: ReplicatedStorage, lacking: str
) -> None:
    """What it has may be acknowledged, and they may have lost that before they were given ours."""
    for member in roots.epoch().members:
        if member[0] not in lacking:
            roots.heap(member).put(NAME, THEIRS)
    assert not storage.put_decided(NAME, OURS)
    assert held(roots) == {f"{root}-0": THEIRS for root in "abc" if root not in lacking}
    assert storage.get(NAME) == THEIRS


def test_a_follower_with_other_bytes_is_put_out(roots: Roots, storage: ReplicatedStorage) -> None:
    """They were never acknowledged."""
    roots.heap("b-0").put(NAME, THEIRS)
    assert storage.put_decided(NAME, OURS)
    assert held(roots) == {"a-0": OURS, "c-0": OURS}


@pytest.mark.parametrize("interrupted", ["a-0", "b-0", "c-0"])
def test_the_epochs_are_looked_at_after_all_of_it(
    roots: Roots, storage: ReplicatedStorage, clock: VirtualClock, interrupted: str
) -> None:
    """A root comes in while it is put: it has it when that is acknowledged."""
    storage.put("before", b"1")
    other = roots.plain(clock)
    at(roots, interrupted, lambda: join(other.agreement, "d", "heap://d"))
    assert storage.put_decided(NAME, OURS)
    assert held(roots) == {"a-0": OURS, "b-0": OURS, "c-0": OURS, "d-0": OURS}


def test_who_joins_is_given_it(roots: Roots, storage: ReplicatedStorage) -> None:
    agreement = storage.agreement
    proposed = joining(roots.epoch(), "d-0", "heap://d", agreement.proposer("test"))
    assert agreement.propose(proposed)
    assert storage.put_decided(NAME, OURS)
    assert held(roots)["d-0"] == OURS


@pytest.mark.parametrize("shows", ["list_names", "confirm"])
def test_a_listing_tells_nothing_of_a_states_bytes(
    roots: Roots, storage: ReplicatedStorage, shows: str
) -> None:
    """A follower has a completion, and the leader another one: who reads it compares them."""
    roots.heap("a-0").put(NAME, THEIRS)
    roots.heap("b-0").put(NAME, OURS)
    roots.heap("c-0").put(NAME, THEIRS)
    if shows == "list_names":
        assert storage.list_names("transactions/p") == [NAME.rpartition("/")[2]]
    else:
        storage.confirm(NAME)
    assert storage.get(NAME) == THEIRS
    assert held(roots) == {"a-0": THEIRS, "c-0": THEIRS}


def test_an_entry_of_a_topic_that_is_listed_is_read_once(clock: VirtualClock) -> None:
    """What only the leader decides is the same wherever a listing shows it."""
    roots = Roots(2)
    counted = {member: CountingStorage(roots.heap(member)) for member in roots.epoch().members}
    storage = ReplicatedStorage(roots.controller, lambda _, member: counted[member], clock=clock)
    other = roots.plain(clock)
    path = "topics/t/log/00000000000000000000.json"
    for name in (path, NAME):
        other.put_if_absent(name, OURS)
        storage.list_names(name.rpartition("/")[0])
        for one in counted.values():
            one.take()
        assert storage.get(name) == OURS
        asked = {member: one.take().get("get", 0) for member, one in counted.items()}
        assert asked == {"a-0": 1, "b-0": 0 if name == path else 1}


class Decided(ForwardingStorage):
    """Notes what is put as decided, and what otherwise."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.decided: list[str] = []
        self.raced: list[str] = []

    def put_if_absent(self, name: str, data: bytes) -> bool:
        self.raced.append(name)
        return super().put_if_absent(name, data)

    def put_decided(self, name: str, data: bytes) -> bool:
        self.decided.append(name)
        return super().put_decided(name, data)


def test_what_of_a_transaction_is_decided(clock: VirtualClock) -> None:
    """A commit's markers, and completions. Not an abort's markers: a zombie's has its own epoch."""
    storage = Decided(HeapStorage())
    store = new_store(storage, clock, {"t": 1})

    def ended(ends: Callable[[], object]) -> tuple[list[str], list[str]]:
        producer.begin_transaction()
        producer.send("t", b"1")
        producer.send_offsets_to_transaction({TopicPartition("t", 0): 1}, "g")
        producer.flush()
        storage.decided.clear()
        storage.raced.clear()
        ends()
        return sorted(storage.decided), storage.raced

    def newest() -> str:
        return f"transactions/p/{storage.list_names('transactions/p')[-1]}"

    with store.producer(transactional_id="p") as producer:
        producer.init_transactions()
        decided, raced = ended(producer.commit_transaction)
        marked = ["groups/g/00000000000000000000", "topics/t/log/00000000000000000001"]
        assert decided == [*(f"{entry}.commit" for entry in marked), newest()]
        assert not any(name.endswith(".commit") for name in raced)
        decided, raced = ended(producer.abort_transaction)
        assert decided == [newest()]
        assert "topics/t/log/00000000000000000002.abort" in raced


def test_what_stands_in_for_a_damaged_completion_is_not_decided(clock: VirtualClock) -> None:
    """Its producer may know it, and go on behind it at the same time."""
    heap = HeapStorage()
    store = new_store(heap, clock, {"t": 1})
    with store.producer(transactional_id="p") as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send("t", b"1")
    last = max(heap.list_names("transactions/p"))
    data = bytearray(heap.get(f"transactions/p/{last}"))
    data[len(data) // 2] ^= 1
    heap.delete([f"transactions/p/{last}"])
    heap.put(f"transactions/p/{last}", bytes(data))
    storage = Decided(heap)
    elsewhere(storage, clock).producer(transactional_id="p").init_transactions()
    behind = heap.list_names("transactions/p", last)
    assert len(behind) == 2
    assert storage.decided == []
    assert [name for name in storage.raced if name.startswith("transactions/")] == [
        f"transactions/p/{name}" for name in behind
    ]


def test_a_failure_is_the_members(roots: Roots, storage: ReplicatedStorage) -> None:
    """Nothing is acknowledged while one in sync fails, whatever the leader has said."""
    roots.down.add("b")

    def come_back(seconds: float) -> None:
        roots.down.clear()

    storage.agreement.clock.sleep = come_back  # type: ignore[method-assign]
    assert storage.put_decided(NAME, OURS)
    assert held(roots) == {"a-0": OURS, "b-0": OURS, "c-0": OURS}
    roots.down.add("ctl")
    with pytest.raises(StorageError):
        storage.put_decided("transactions/p/00000000000000000002.json", OURS)
