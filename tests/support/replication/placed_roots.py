"""Three roots in memory, and data files that are at some of them."""

from __future__ import annotations

from tests.support.replication.replica_world import Roots
from txnlog.errors import (
    ObjectNotFound,
)
from txnlog.replication import root_names
from txnlog.replication.roots import trim
from txnlog.replication.roots.agreement import Agreement
from txnlog.replication.roots.epochs import (
    FACTOR,
    Member,
)
from txnlog.replication.roots.placement import keepers
from txnlog.replication.roots.replicated_storage import ReplicatedStorage
from txnlog.storage.base import Storage
from txnlog.testing import VirtualClock

FILES = [f"topics/t/data/{number % 5}/{number:032x}-0.log" for number in range(12)]


class Set:
    """Three roots in memory, and one process; without a factor each has everything."""

    def __init__(self, factor: int | None = 2, count: int = 3) -> None:
        self.clock = VirtualClock()
        self.roots = Roots(count, {} if factor is None else {FACTOR: str(factor)})
        self.storage = self.roots.plain(self.clock)

    @property
    def agreement(self) -> Agreement:
        return self.storage.agreement

    def other(self) -> ReplicatedStorage:
        """What another process sees."""
        return self.roots.plain(self.clock)

    def put_files(self) -> None:
        for name in FILES:
            self.storage.put(name, name.encode())

    def holders(self, name: str) -> set[Member]:
        found = set()
        for member in self.roots.epoch().in_sync:
            try:
                self.roots.heap(member).get(name)
            except ObjectNotFound:
                continue
            found.add(member)
        return found

    def check_placed(self) -> None:
        """Each file is where it belongs and nowhere else, and can be read."""
        epoch = self.roots.epoch()
        for name in FILES:
            assert self.holders(name) == {*keepers(epoch, name)}
            assert self.storage.get(name) == name.encode()

    def notes(self) -> list[str]:
        listed = [self.roots.heap(m).list_names(".replica") for m in self.roots.epoch().in_sync]
        return [name for names in listed for name in names if root_names.is_trim_note(name)]


def is_whole(storage: Storage, name: str) -> bool:
    """Whether a file is one of those that are put here, undamaged."""
    return storage.get(name) in (name.encode(), b"1")


def trim_at(them: Set, name: str, member: Member) -> list[str]:
    return trim.trim(them.other().agreement, them.roots.epoch(), {name: [member]}, is_whole)
