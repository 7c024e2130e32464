"""Roots that are lost with all that is in sync, and unclean elections that say what that loses.

Beside what :mod:`replica_world` judges: what was acknowledged before the epoch that an election
names is there afterwards, and all data that it has not announced as lost can be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from tests.support.replication.replica_world import CALM, CONTROLLER, Violation, World
from tests.support.replication.world_entries import entry_number, named_in
from txnlog.errors import InvalidOption, StorageError
from txnlog.replication.roots.agreement import Agreement
from txnlog.replication.roots.election import Election, elect
from txnlog.replication.roots.epochs import Epoch, last_in_sync, root_of
from txnlog.replication.roots.losses import NamedSegment
from txnlog.replication.roots.replicated_storage import ReplicatedStorage
from txnlog.storage.base import Storage
from txnlog.testing import FaultRates, Process

LOG = "topics/t/log"


def named_segments(storage: Storage) -> Iterator[NamedSegment]:
    """What the entries in a storage name: each a segment of one record."""
    for number in sorted(storage.list_names(LOG)):
        path = named_in(storage.get(f"{LOG}/{number}"))
        at = entry_number(number)
        yield NamedSegment("t", 0, at, at + 1, 1, path, 1, 1)


class UncleanWorld(World):
    """One run."""

    def __init__(
        self, seed: int, rates: FaultRates, *, roots: int = 3, placed: bool = True
    ) -> None:
        # What elections may lose is known of the log alone.
        super().__init__(seed, rates, roots=roots, placed=placed, completes=False)
        self.acked_under: dict[str, int] = {}
        self.noted = -1
        """The newest epoch that something was acknowledged under when a reader last began."""
        self.told: dict[int, Election] = {}
        """By their epochs, what elections have said."""
        self.heeded: dict[int, Epoch] = {}
        self.entries: dict[int, dict[str, bytes]] = {}
        """What the leaders of these epochs had, where the losses are not known yet."""
        self.is_lost = False
        """All that is in sync is gone, and nobody was elected since."""
        self.is_electing = False
        self.wiped: set[str] = set()
        """What disks had that were lost since an election has looked at them."""
        self.missed: set[str] = set()
        """What disks had that were lost while it looked: it starts over, or announces it."""
        self.faults = 0
        self.came_back = False
        """A root in sync answers since an election has looked at others."""
        self.kept = 0

    def acknowledge(
        self, storage: ReplicatedStorage, name: str, entry: bytes, began_in: int
    ) -> None:
        self.heed()
        under = storage.agreement.epoch().number
        if any(one.number > under for one in self.elections()):
            return  # it may be lost, and the election says so
        self.acked_under[name] = under
        super().acknowledge(storage, name, entry, began_in)

    def _read(self, process: Process, storage: ReplicatedStorage) -> None:
        self.noted = max(self.acked_under.values(), default=-1)
        super()._read(process, storage)

    def show_read(self, storage: ReplicatedStorage, name: str, data: bytes) -> None:
        """Who lists without the controller knows of an election if something was put under it."""
        newest, agreement = max(self.heeded, default=-1), storage.agreement
        is_known = agreement.lost is None or agreement.epoch().number >= newest
        if is_known or self.noted >= newest:
            super().show_read(storage, name, data)

    def elections(self) -> list[Epoch]:
        return [epoch for epoch in self.roots.epochs() if epoch.unclean is not None]

    def unclean(self) -> int:
        self.heed()
        return len(self.heeded)

    def heed(self) -> None:
        """Take what an election may lose by its epoch from what must be there."""
        for epoch in self.elections():
            if epoch.number in self.heeded:
                continue
            self.heeded[epoch.number] = epoch
            assert epoch.unclean is not None
            for name, under in [*self.acked_under.items()]:
                if under >= epoch.unclean:
                    self.acked.pop(name, None)
                    del self.acked_under[name]
            self.kept += len(self.acked_under)
            heap = self.roots.heap(epoch.leader)
            there = {f"{LOG}/{name}": heap.get(f"{LOG}/{name}") for name in heap.list_names(LOG)}
            self.entries[epoch.number] = there
            self.shown = {n: data for n, data in there.items() if self.shown.get(n) == data}
            # It may have gone for good between the look at it and its election.
            self.is_lost = epoch.leader in self.roots.dead

    def knows_losses(self) -> bool:
        """Take the data that elections have announced as lost; False if one has not yet."""
        self.heed()
        if self.is_electing and self.missed | self.wiped:
            return False
        for number, there in [*self.entries.items()]:
            told = self.told.get(number)
            if told is None and self.is_electing:
                return False
            del self.entries[number]
            lost = {at for one in told.older for at in range(one.start, one.end)} if told else set()
            for name, data in there.items():
                if told is None or entry_number(name) in lost:  # its answer was lost
                    self.given_up.add(named_in(data))
        return True

    def judge(self) -> None:
        if self.knows_losses() and not self.is_lost:
            super().judge()

    def _check_copies(self, name: str, entry: bytes, began_in: int) -> None:
        gone = self.given_up | self.missed | self.wiped
        # Else it may have been lost when it had been put.
        if not self.is_lost and named_in(entry) not in gone:
            super()._check_copies(name, entry, began_in)

    def _check_data(self, storage: ReplicatedStorage, named: str) -> None:
        if self.knows_losses():
            super()._check_data(storage, named)

    def trouble(self, process: Process) -> None:
        while self.writing:
            process.clock.sleep(process.chance.uniform(0, 5))
            process.step("trouble")
            self.judge()
            if self.roots.down or self.roots.cut:
                if not self.is_lost or process.chance.random() < 0.2:
                    self._calm()
                continue
            if process.chance.random() < 0.4 and self._lose_all(process):
                continue
            self.came_back = False
            self.roots.down.add(process.chance.choice([*self.roots.names, CONTROLLER]))

    def _wipe(self, roots: Iterable[str]) -> None:
        """Disks are lost for good."""
        for member, heap in self.roots.heaps.items():
            if root_of(member) in roots:
                found = [name for name, _ in heap.list_all("")]
                self.wiped.update(found)
                heap.delete(found)
                self.roots.dead.add(member)

    def _lose_all(self, process: Process) -> bool:
        """All roots in sync are gone: for good, for a while, or for those who elect alone."""
        epoch = self.roots.epoch()
        gone = {root_of(member) for member in (*epoch.in_sync, *epoch.joining)}
        alive = {root_of(member) for member in epoch.left if member not in self.roots.dead}
        if not alive - gone:
            return False
        self.came_back = False
        what = process.chance.random()
        if what < 0.5:
            self._wipe(gone)
            self.is_lost = True
        elif what < 0.75:
            self.roots.down.update(gone)
        else:
            self.roots.cut.update(("elect", root) for root in gone)
        if process.chance.random() < 0.5:
            others = sorted(set(self.roots.names) - gone)
            self.roots.down.update(others[1:])
        return True

    def elect(self, process: Process) -> None:
        """A root that answers leads, if none in sync does."""
        storage = self.roots.storage(process)
        while self.writing:
            process.clock.sleep(process.chance.uniform(0, 3))
            with suppress(StorageError, InvalidOption):
                epoch = storage.agreement.refresh()
                out = sorted({root_of(member) for member in epoch.left})
                if not out:
                    continue
                root = process.chance.choice(out)
                self._elect(process, storage.agreement, root)

    def _elect(self, process: Process, agreement: Agreement, root: str) -> None:
        self.wiped, self.missed, self.came_back = set(), set(), False
        self.is_electing = True
        named = partial(self._look, process, root)
        try:
            done = elect(agreement, root, unclean=True, name_segments=named)
            self.missed.clear()
            if done.clean:
                return
            self.told[done.epoch] = done
            if self.came_back and process.faults == self.faults:
                raise Violation(f"a root in sync answers, and {root} is elected: {done}")
        finally:
            self.is_electing = False
            self.given_up |= self.missed | self.wiped

    def _look(self, process: Process, root: str, storage: Storage) -> Iterator[NamedSegment]:
        """Disks are lost while an election looks at others, and roots in sync come back."""
        epoch = self.roots.epoch()
        known = {root_of(member) for member in epoch.members} | {root}
        others = sorted({*map(root_of, epoch.left)} - known)
        what = process.chance.random()
        leads = last_in_sync(epoch, root) not in self.roots.dead
        if leads and others and what < 0.4:
            self._wipe([process.chance.choice(others)])
        elif what > 0.8:
            self._calm()
        yield from named_segments(storage)
        self.missed, self.wiped = self.wiped, set()
        down, self.faults = {*self.roots.down}, process.faults
        down |= {cut for name, cut in self.roots.cut if name == process.name}
        there = {root_of(one) for one in {*self.roots.epoch().in_sync} - self.roots.dead}
        self.came_back = self.roots.epoch() == epoch and not there <= down

    def spawn_others(self) -> None:
        self.simulation.spawn("elect", self.elect, restart=True)

    def _settle(self) -> None:
        if self.is_lost:  # nobody was elected before all had written: what is left leads
            storage = self.roots.plain(self.simulation.clock)
            left = self.roots.epoch().left
            root = next(root_of(member) for member in left if member not in self.roots.dead)
            done = elect(storage.agreement, root, unclean=True, name_segments=named_segments)
            self.told[done.epoch] = done
            self.judge()
        super()._settle()


def run_seeds(seeds: Iterable[int], rates: FaultRates = CALM, **options: Any) -> dict[str, int]:
    """Run one seed after the other; returns how much has happened in all."""
    total = {"acknowledged": 0, "unclean": 0, "told": 0, "kept": 0, "lost": 0}
    for seed in seeds:
        world = UncleanWorld(seed, rates, **options).run()
        total["acknowledged"] += len(world.acked)
        total["unclean"] += len(world.heeded)
        total["told"] += len(world.told)
        total["kept"] += world.kept
        total["lost"] += len(world.given_up)
    return total
