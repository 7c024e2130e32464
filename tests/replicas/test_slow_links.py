"""A link that carries little, by a virtual clock: nobody leaves, and little is sent twice."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.replication.world_entries import entry_of
from txnlog.errors import NotEnoughReplicas
from txnlog.replication.roots.controller import Controller
from txnlog.replication.roots.epochs import Epoch, Member, Proposer, first_epoch
from txnlog.replication.roots.members import put_mark
from txnlog.replication.roots.replicated_storage import ReplicatedStorage
from txnlog.replication.roots.slowness import Slowness, TookTooLong
from txnlog.storage.base import Storage
from txnlog.storage.forwarding import ForwardingStorage
from txnlog.testing import HeapStorage, VirtualClock

BYTES_A_SECOND = 100 << 10
LARGE = 64 << 20
ENTRY = "topics/t/log/00000000000000000000.json"
DATA = "topics/t/data/0/s-0.log"


@dataclass(eq=False)
class Transfer:
    """So many bytes, and for how long somebody waits for them."""

    left: float
    within_s: float
    go_on: Callable[[], bool] | None
    is_over: Callable[[], bool] | None
    looks_in_s: float = 0.0
    goes_on: bool = True
    is_late: bool = True
    """Whether it was looked at last when its time was over."""


class Link(VirtualClock):
    """All roots are behind it; what is on its way shares it alike."""

    def __init__(self) -> None:
        super().__init__()
        self.on_its_way: list[Transfer] = []
        self.waited_for: list[Transfer] = []
        self.carried = 0
        self._limits: tuple[Any, ...] = (1e9, None, None)

    def run_within(
        self, call: Callable[[], Any], for_s: float, go_on: Any = None, is_over: Any = None
    ) -> Any:
        before, self._limits = self._limits, (for_s, go_on, is_over)
        try:
            return call()
        finally:
            self._limits = before

    def carry(self, size_bytes: int) -> None:
        """Until it has come, it is left behind, or another one has that was waited for before."""
        self.carried += size_bytes
        mine = Transfer(size_bytes, *self._limits)
        mine.looks_in_s = mine.within_s / 4
        self.on_its_way.append(mine)
        self.waited_for.append(mine)
        try:
            while mine in self.on_its_way:
                self._go_on(mine)
                if any(one not in self.on_its_way for one in self.waited_for if one is not mine):
                    raise TookTooLong("the other one has come")
        finally:
            self.waited_for.remove(mine)

    def _go_on(self, mine: Transfer) -> None:
        each = BYTES_A_SECOND / len(self.on_its_way)
        for_s = min(mine.looks_in_s, min(one.left for one in self.on_its_way) / each)
        self.time_ms += round(1000 * for_s)
        for one in [*self.on_its_way]:
            one.left -= for_s * each
            if one.left < 1:
                self.on_its_way.remove(one)
        mine.looks_in_s -= for_s
        if mine.looks_in_s > 0.001 or mine not in self.on_its_way:
            return
        mine.is_late = not mine.is_late
        mine.looks_in_s = mine.within_s * (1 if mine.is_late else 3) / 4
        if mine.is_late and not mine.goes_on:
            raise TookTooLong("no answer in time")
        if not mine.is_late:
            mine.goes_on = mine.go_on is not None and mine.go_on()
            if mine.is_over is not None and mine.is_over():
                raise TookTooLong("others go on without it")


class Leaving(Slowness):
    """Knows what is on its way: here calls end by what is raised to who no longer waits."""

    def ask(self, member: Member, *given: Any, **how: Any) -> Any:
        try:
            return super().ask(member, *given, **how)
        except TookTooLong:
            left_as = how.get("left_as", lambda: member)
            self._left.setdefault(left_as(), {})[object()] = self._clock.monotonic_s()
            raise


class Behind(ForwardingStorage):
    """A root behind a link."""

    def __init__(self, inner: Storage, link: Link) -> None:
        super().__init__(inner)
        self._link = link

    def get(self, name: str) -> bytes:
        data = self.inner.get(name)
        self._link.carry(len(data))
        return data

    def get_range(self, name: str, start: int, stop: int) -> bytes:  # noqa: ARG002
        self._link.carry(stop - start)
        return b""

    def put(self, name: str, data: bytes) -> None:
        self._link.carry(len(data))
        self.inner.put(name, data)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        self._link.carry(len(data))
        return self.inner.put_if_absent(name, data)


@pytest.fixture
def link() -> Link:
    return Link()


@pytest.fixture
def storage(link: Link) -> ReplicatedStorage:
    return make(link, {"r0-0", "r1-0"})


def make(
    link: Link, behind: Collection[Member], objects: Mapping[str, bytes] | None = None
) -> ReplicatedStorage:
    control = HeapStorage()
    first = first_epoch({"r0": "/a", "r1": "/b"}, {}, Proposer("test", 0, "made"))
    heaps = {member: HeapStorage() for member in first.in_sync}
    for member, heap in heaps.items():
        put_mark(heap, member, control.url, first.store)
        for name, data in (objects or {}).items():
            heap.put(name, data)
    assert Controller(control).propose(first)

    def open_member(_: Epoch, member: Member) -> Storage:
        return Behind(heaps[member], link) if member in behind else heaps[member]

    storage = ReplicatedStorage(
        control, open_member, clock=link, run_within=link.run_within, writes=True
    )
    storage.agreement.slowness = Leaving(link.run_within, link)
    return storage


def test_who_reads_much_puts_nobody_out(storage: ReplicatedStorage, link: Link) -> None:
    for number in range(3):
        storage.get_range(DATA, number * LARGE, (number + 1) * LARGE)
    assert 3 * LARGE < link.carried < 6.01 * LARGE
    assert storage.agreement.refresh().number == 0


def test_who_puts_more_than_there_is_time_for_puts_nobody_out(
    storage: ReplicatedStorage, link: Link
) -> None:
    """He fails; what takes less than the lag is put."""
    for name in ("a", "b"):
        storage.put(f"topics/t/data/0/{name}-0.log", bytes(512 << 10))
        assert storage.put_if_absent(name, bytes(512 << 10))
    carried = link.carried
    for put in (storage.put, storage.put_if_absent):
        with pytest.raises(NotEnoughReplicas, match="no answer in time"):
            put("topics/t/data/0/c-0.log", bytes(8 << 20))
    assert link.carried - carried < 30 * (8 << 20)
    assert storage.agreement.refresh().number == 0


def test_a_leader_whose_link_carries_little_keeps_its_place(link: Link) -> None:
    """How large an entry is that it alone can tell nobody knows: it has ten lags for it."""
    entry = entry_of(DATA, "w" * (3 << 20))
    storage = make(link, {"r0-0"}, {ENTRY: entry})
    assert storage.get(ENTRY) == entry
    assert storage.agreement.refresh().number == 0
    assert link.carried < 1.01 * len(entry)
