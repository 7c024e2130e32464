"""A root as a simulated process sees it: not reached, slow, or with faults of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from txnlog.errors import StorageError
from txnlog.replication import root_names
from txnlog.replication.roots.agreement import OpenMember
from txnlog.replication.roots.epochs import Epoch, Member, Root, incarnation_of
from txnlog.replication.roots.members import MarkedDisk, MarkGone, OwnerMark
from txnlog.replication.roots.slowness import TookTooLong
from txnlog.storage import envelope
from txnlog.storage.base import Storage
from txnlog.storage.forwarding import ForwardingStorage
from txnlog.testing import HeapStorage, Process, Simulation

if TYPE_CHECKING:
    from tests.support.replication.replica_world import World

_REQUESTS = {
    "put_if_absent",
    "put_decided",
    "confirm",
    "put",
    "replace",
    "take_over",
    "upload",
    "get",
    "get_range",
    "size",
    "modified_ms",
    "list_names",
    "list_folders",
    "list_all",
    "delete",
}


def view_of(process: Process, inner: Storage) -> Storage:
    """A storage of a simulated process, with its faults, over other objects."""
    kind = type(process.storage)
    named = type("View", (kind,), {"url": property(lambda view: view.inner.url)})
    view: ForwardingStorage = object.__new__(named)
    view.__dict__ = process.storage.__dict__
    view.inner = inner
    return view


class Gate(ForwardingStorage):
    """A root's storage, which answers while the root is up. ``reaches`` tells.

    ``stall`` makes a request, its kind and object before it, where the root is slow just now, or
    the object hangs; it returns how.
    """

    def __init__(
        self,
        inner: Storage,
        reaches: Callable[[], bool],
        stall: Callable[[str, str, Callable[[], Any]], Any] = lambda _, __, call: call(),
    ) -> None:
        super().__init__(inner)
        self._reaches = reaches
        self._stall = stall

    def __getattribute__(self, name: str) -> Any:
        told = object.__getattribute__
        if name not in _REQUESTS:
            return super().__getattribute__(name)
        if not told(self, "_reaches")():
            raise StorageError(f"{told(self, 'url')} is down")
        method, stall = super().__getattribute__(name), told(self, "_stall")
        return lambda *given: stall(name, str(given[0]), lambda: method(*given))


class Disk(MarkedDisk):
    """A disk in memory. While it is not mounted what lies ``beneath`` is in its place."""

    def __init__(
        self, mounted: Storage, mark: str, beneath: HeapStorage, is_mounted: Callable[[], bool]
    ) -> None:
        self._mounted = mounted
        self._beneath = beneath
        self._is_mounted = is_mounted
        super().__init__(mounted, mark)

    @property
    def inner(self) -> Storage:
        return self._mounted if self._is_mounted() else self._beneath

    @inner.setter
    def inner(self, _: Storage) -> None:
        pass

    def check(self) -> None:
        if self.inner is not self._mounted:
            raise MarkGone(f"{self.url} is not mounted")


class RootFolder(HeapStorage):
    """A root, with its mark and the folders of its incarnations."""

    def __init__(self, url: str, root: str, controller: str, store: str) -> None:
        super().__init__()
        self.url = url
        self.put(root_names.REPLICA_FILE, envelope.encode(OwnerMark(controller, store, root)))

    def show(self, members: Iterable[Member]) -> None:
        """It has the folders of these incarnations."""
        for member in members:
            folder = root_names.incarnation_folder(incarnation_of(member))
            self.put_if_absent(f"{folder}/x", b"")


class NotesOpener:
    """Opens what is asked for epochs that roots keep, where the controller does not answer."""

    def __init__(
        self, open_root: Callable[[str], Storage], open_member: OpenMember, epoch: Epoch
    ) -> None:
        self.root = open_root
        self._open_member = open_member
        self._any = epoch

    def at(self, _: Root, member: Member, _store: str) -> Storage:
        return self._open_member(self._any, member)

    def __call__(self, epoch: Epoch, member: Member) -> Storage:
        return self._open_member(epoch, member)


class TimedPuts(ForwardingStorage):
    """Tells a world how long each put-if-absent took that went well."""

    def __init__(self, inner: Storage, world: World, process: Process) -> None:
        super().__init__(inner)
        self._world = world
        self._clock = process.clock

    def put_if_absent(self, name: str, data: bytes) -> bool:
        world = self._world
        began_s, stalls = self._clock.monotonic_s(), max(len(world.slow_roots) - 1, 0)
        began_in = world.roots.epoch().number
        put = super().put_if_absent(name, data)
        took_s = self._clock.monotonic_s() - began_s
        world.check_time(took_s, world.slow_roots[stalls:], began_in)
        return put


class Patience:
    """Leaves requests behind, by a simulated process's clock: they land when it has come."""

    def __init__(self, simulation: Simulation, process: Process) -> None:
        self._simulation = simulation
        self._process = process
        self._until_s: float | None = None
        self._for_s = 0.0
        self._go_on: Callable[[], bool] | None = None
        self._is_over: Callable[[], bool] | None = None

    def run_within(
        self,
        call: Callable[[], Any],
        for_s: float,
        go_on: Callable[[], bool] | None = None,
        is_over: Callable[[], bool] | None = None,
    ) -> Any:
        before = self._until_s, self._for_s, self._go_on, self._is_over
        self._until_s, self._is_over = self._process.clock.monotonic_s() + for_s, is_over
        self._for_s, self._go_on = for_s, go_on
        try:
            return call()
        finally:
            self._until_s, self._for_s, self._go_on, self._is_over = before

    def hang(self, hangs: Callable[[], bool], call: Callable[[], Any]) -> Any:
        """Make a request of an object that hangs, while its root answers all others."""
        clock, within_s = self._process.clock, self._for_s
        go_on, is_over = self._go_on, self._is_over
        if threading.current_thread() is threading.main_thread():
            return call()
        while hangs():
            clock.sleep(within_s / 4 if within_s else 1)
            if is_over is not None and is_over():
                raise TookTooLong("others go on without it")
            goes_on = not within_s or (go_on is not None and go_on())
            clock.sleep(within_s * 3 / 4)
            if hangs() and not goes_on:
                raise TookTooLong("no answer in time")
        return call()

    def stall(self, takes_s: float, name: str, call: Callable[[], Any]) -> Any:
        """Make a request that takes so long."""
        if threading.current_thread() is threading.main_thread():
            return call()  # it lands
        clock = self._process.clock
        left_s = takes_s if self._until_s is None else self._until_s - clock.monotonic_s()
        if takes_s <= left_s:
            clock.sleep(takes_s)
            return call()
        ends_s = clock.monotonic_s() + takes_s
        until_s, is_over = clock.monotonic_s() + max(left_s, 0.0), self._is_over
        if is_over is not None:
            clock.sleep((until_s - clock.monotonic_s()) / 4)
        if is_over is None or not is_over():
            clock.sleep(max(until_s - clock.monotonic_s(), 0.0))
        if name in ("put", "put_if_absent", "replace", "take_over", "delete"):
            lands_ms = self._simulation.clock.time_ms + int(
                1000 * max(ends_s - clock.monotonic_s(), 0.0)
            )
            self._simulation._landings.append((lands_ms, name, call))
        raise TookTooLong("no answer in time")
