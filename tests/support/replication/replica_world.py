"""Several roots and a controller that go down and come back, and processes that use them.

The judge is of the roots themselves: what was acknowledged is at every member that is in sync, and
nobody is shown two histories. It shares no code with the library but the bytes of an epoch.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any, Self

from tests.support.replication.replica_gates import (
    Disk,
    Gate,
    NotesOpener,
    Patience,
    RootFolder,
    TimedPuts,
    view_of,
)
from tests.support.replication.world_entries import (
    Rot,
    entry_name,
    entry_number,
    entry_of,
    named_in,
)
from txnlog import names
from txnlog.clock import Clock
from txnlog.errors import (
    CorruptEntry,
    InvalidOption,
    LogTruncated,
    NotAStore,
    NotEnoughReplicas,
    ObjectNotFound,
    StorageError,
    StoreExists,
)
from txnlog.replication import root_names
from txnlog.replication.roots.controller import Controller, list_epochs
from txnlog.replication.roots.controller_move import move
from txnlog.replication.roots.election import change_settings, elect, take_out
from txnlog.replication.roots.epoch_cleaning import clean_epochs
from txnlog.replication.roots.epoch_notes import list_notes
from txnlog.replication.roots.epochs import (
    AUTO_RETURN,
    DECODER,
    FACTOR,
    LAG_TIME,
    MIN_INSYNC,
    Epoch,
    Member,
    Proposer,
    first_epoch,
    root_of,
)
from txnlog.replication.roots.members import put_mark
from txnlog.replication.roots.old_incarnations import forget
from txnlog.replication.roots.placement import copies, places
from txnlog.replication.roots.reassignment import reassign
from txnlog.replication.roots.recovery import kept_epochs, recover_at
from txnlog.replication.roots.replica_return import return_roots
from txnlog.replication.roots.replicated_storage import ReplicatedStorage
from txnlog.replication.roots.root_join import join
from txnlog.replication.roots.slowness import Slowness
from txnlog.replication.roots.verification import verify
from txnlog.storage import envelope
from txnlog.storage.base import Storage
from txnlog.storage.create_once import create_once
from txnlog.testing import FaultRates, HeapStorage, Process, Simulation
from txnlog.time_limits import run_whole

LAG_MS = 2_000
CONTROLLER = "ctl"
CALM = FaultRates()
ROUGH = FaultRates(
    fail=0.004,
    lose_response=0.004,
    land_late=0.004,
    pause=0.004,
    stop=0.001,
    tear_listing=0.1,
    pause_ms=(10, 5_000),
    landing_ms=(10, 6_000),
    tear_ms=(0, 50),
)
STORMY = replace(ROUGH, fail=0.02, lose_response=0.02, land_late=0.02, pause=0.01, stop=0.004)


class Violation(AssertionError):
    """A promise was broken."""


_ANEW = b" was lost: now "
"""In the first epoch of a controller that was made anew."""
SPARE = tuple(f"spare-{number}" for number in range(8))
"""Places for a controller that is made anew."""
_OPERATIONS = ("elect", "take out", "config", "verify", "move", "forget")


class Place(HeapStorage):
    """A place of the controller's. All places note each epoch as it was first put, by its name."""

    def __init__(self, name: str, decided: dict[str, bytes]) -> None:
        super().__init__()
        self.url = f"heap://{name}"
        self._decided = decided
        self.kept = 0
        """So many epochs are never deleted; 0: none is."""

    def was_probed(self) -> bool:
        return True

    def put_if_absent(self, name: str, data: bytes) -> bool:
        put = super().put_if_absent(name, data)
        last = name.removeprefix(f"{root_names.EPOCHS}/")
        if put and _ANEW in data:
            self._begin_anew(last, data)
        elif put and b"before are lost with the controller" in data:
            return put
        if put and last != name and self._decided.setdefault(last, data) != data:
            later = [other for other in self._decided if entry_number(other) > entry_number(last)]
            if not self.kept or len(later) < self.kept:
                raise Violation(f"two epochs {name}: {self._decided[last]!r}, {data!r}")
        return put

    def _begin_anew(self, last: str, data: bytes) -> None:
        """Nothing was acknowledged under the epochs that this one does not follow from."""
        before = self._decided.get(last, data)
        if before == data:
            return
        if _ANEW in before:
            raise Violation(f"two controllers: {before!r}, {data!r}")
        is_newest = self.url.encode() in data.partition(_ANEW)[2]
        for gone in [other for other in self._decided if other >= last and is_newest]:
            del self._decided[gone]
        self._decided[last] = data  # else somebody has gone on from there before that was done


class MemberHeap(HeapStorage):
    """A member's disk, which remembers the epochs that it was given: old ones are deleted again."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: set[int] = set()

    def put_if_absent(self, name: str, data: bytes) -> bool:
        put = super().put_if_absent(name, data)
        if put and name.startswith(f"{root_names.EPOCH_NOTES}/"):
            self.noted.add(entry_number(name))
        return put


class Roots:
    """The disks, and who reaches which: shared by all processes."""

    def __init__(
        self, count: int = 3, settings: dict[str, str] | None = None, *, grows: bool = False
    ) -> None:
        self.names = "abcde"[:count]
        self.newcomer = self.names[-1] if grows else None
        """A root that is none at first."""
        self.heaps: dict[Member, MemberHeap] = {}
        self._decided: dict[str, bytes] = {}
        self.places = {name: Place(name, self._decided) for name in (CONTROLLER, "new")}
        """Where the controller is, or was, or may be moved to."""
        self.spare = {name: Place(name, self._decided) for name in SPARE}
        """Where it is made anew, once it is lost."""
        self.lost: set[str] = set()
        """Places that are lost for good."""
        self.folders: dict[str, RootFolder] = {}
        self.controller = self.places[CONTROLLER]
        self.down: set[str] = set()
        self.gone: set[str] = set()
        """The same, and only who has taken them away brings them back."""
        self.dead: set[Member] = set()
        """What is lost for good: nobody finds a mark there."""
        self.unmounted: set[str] = set()
        """Roots with an empty folder in their place."""
        self.beneath: defaultdict[str, HeapStorage] = defaultdict(HeapStorage)
        self.cut: set[tuple[str, str]] = set()
        """Pairs of a process and a root that cannot reach each other."""
        self.severed: set[tuple[str, str]] = set()
        """The same, and nobody mends it soon: others go on meanwhile."""
        self.stalled: dict[str, float] = {}
        """How long each request to a root takes, in seconds, where that is long."""
        self.hanging: set[tuple[Member, str]] = set()
        """Single objects that cannot be read at a member which answers otherwise."""
        self._decoded: dict[bytes, Epoch] = {}
        who = Proposer("test", 0, "made")
        urls = {name: f"heap://{name}" for name in self.names if name != self.newcomer}
        chosen = {LAG_TIME: str(LAG_MS), **(settings or {})}
        first = first_epoch(urls, chosen, who)
        for member in first.in_sync:
            put_mark(self.heap(member), member, "heap://ctl", first.store)
        assert Controller(self.controller).propose(first)

    def heap(self, member: Member) -> MemberHeap:
        if member not in self.heaps:
            self.heaps[member] = MemberHeap()
        return self.heaps[member]

    def gate(self, storage: Storage, root: str, process: str, member: Member = "") -> Gate:
        def reaches() -> bool:
            is_away = root in self.down or root in self.gone or root in self.lost
            is_cut = is_away or (process, root) in self.cut | self.severed
            return not is_cut and member not in self.dead

        mark = root_names.member_mark(member, "test") if member else root_names.epoch_file(0)
        disk = Disk(storage, mark, self.beneath[root], lambda: root not in self.unmounted)
        return Gate(disk, reaches)

    def storage(self, process: Process, *, observes: bool = False) -> ReplicatedStorage:
        """What one simulated process sees: its own faults, in front of the roots' gates.

        It was given any place that has epochs.
        """
        simulation: Simulation = process.storage._simulation  # type: ignore[attr-defined]
        patience = Patience(simulation, process)

        def open_member(_: Epoch, member: Member) -> Storage:
            root = root_of(member)

            def stall(kind: str, name: str, call: Callable[[], Any]) -> Any:
                if (member, name) in self.hanging and kind in ("get", "get_range"):
                    return patience.hang(lambda: (member, name) in self.hanging, call)
                takes_s = self.stalled.get(root)
                return patience.stall(takes_s, kind, call) if takes_s else call()

            gate = self.gate(self.heap(member), root, process.name, member)
            return view_of(process, Gate(gate.inner, gate._reaches, stall))

        def open_place(url: str) -> Storage:
            return self.place(process, self.place_of(url))

        there = self._all_places()
        given = [name for name, heap in there.items() if heap.list_names(root_names.EPOCHS)]
        if self.lost and (made := self.made_anew()):
            given = [made]
        which = process.chance.choice(given) if len(given) > 1 else CONTROLLER
        controller = self.place(process, which)

        def open_root(url: str) -> Storage:
            return view_of(process, self.root(url, process.name))

        found = ReplicatedStorage(
            controller,
            open_member,
            clock=process.clock,
            open_place=open_place,
            run_within=patience.run_within,
            writes=not observes,
        )
        self._watch(found.agreement.controller)
        self._keep(found, open_root, process.chance.choice(self.names))
        return found

    def _keep(
        self, storage: ReplicatedStorage, open_root: Callable[[str], Storage], root: str
    ) -> None:
        """Who only reads goes by what roots keep while the controller fails."""
        opener: Any = NotesOpener(open_root, storage.open_member, self.epoch())
        storage.agreement.find_kept = lambda slowness, known, first: kept_epochs(
            opener, open_root(f"heap://{root}"), slowness, known, first
        )

    def _all_places(self) -> dict[str, Place]:
        return self.places | (self.spare if self.lost else {})

    def made_anew(self) -> str | None:
        """Where the controller is since it was lost; None if it is nowhere."""
        name = self.epoch().controller.removeprefix("heap://")
        if name not in self.spare or name in self.lost:
            return None
        return name if 0 in list_epochs(self.spare[name]) else None  # else it goes on

    def root(self, url: str, process: str) -> Storage:
        return self.gate(self._folder(url), url.removeprefix("heap://"), process)

    def _folder(self, url: str) -> RootFolder:
        name = url.removeprefix("heap://")
        members = [member for member in self.heaps if root_of(member) == name]
        if name not in self.folders:
            self.folders[name] = RootFolder(url, name, "heap://ctl", self.epoch().store)
        self.folders[name].show(members)
        return self.folders[name]

    def kept(self, root: str, clock: Clock) -> Epoch:
        """The newest epoch that is found by a root if the controller is lost, and all answer."""
        opener: Any = NotesOpener(self._folder, lambda _, one: self.heap(one), self.epoch())
        slowness = Slowness(run_whole, clock)
        return kept_epochs(opener, self._folder(f"heap://{root}"), slowness, None, 0)[-1]

    def _watch(self, controller: Controller) -> None:
        """Nobody is told that he has put an epoch that nobody follows."""
        propose = controller.propose

        def watched(epoch: Epoch, at: str = "") -> bool:
            lost = {*self.lost}
            put = propose(epoch, at)
            if lost != self.lost or (self.lost and not self.made_anew()):
                return put
            decided = self.since(epoch.number)[0]
            if put and decided != epoch:
                raise Violation(f"two epochs: {epoch} was put, and others follow {decided}")
            return put

        controller.propose = watched  # type: ignore[method-assign]

    def place(self, process: Process, name: str) -> Storage:
        """A place of the controller's, as a process sees it."""
        return view_of(process, self.gate(self._all_places()[name], name, process.name))

    def place_of(self, url: str) -> str:
        return next(name for name, heap in self._all_places().items() if heap.url == url)

    def plain(
        self, clock: Clock, process: str = "test", *, observes: bool = False
    ) -> ReplicatedStorage:
        """Without faults, but through the gates: for a test's own use, outside of a run."""

        def open_member(_: Epoch, member: Member) -> Storage:
            return self.gate(self.heap(member), root_of(member), process, member)

        def open_place(url: str) -> Storage:
            name = self.place_of(url)
            return self.gate(self._all_places()[name], name, process)

        controller = open_place(f"heap://{self.made_anew() or CONTROLLER}")
        found = ReplicatedStorage(
            controller, open_member, clock=clock, open_place=open_place, writes=not observes
        )
        self._keep(found, lambda url: self.root(url, process), "b")
        return found

    def epochs(self) -> list[Epoch]:
        """All that there were, wherever they were decided."""
        found = self._decided
        for data in found.values():
            if data not in self._decoded:
                self._decoded[data] = envelope.decode(data, DECODER, "epoch")
        epochs = [self._decoded[found[name]] for name in sorted(found)]
        if [epoch.number for epoch in epochs] != [*range(len(epochs))] and not self.lost:
            raise Violation(f"an epoch is not there: {[epoch.number for epoch in epochs]}")
        return epochs

    def since(self, number: int) -> list[Epoch]:
        """All from a number on, or the newest one, if it has a lower one since others are lost."""
        epochs = self.epochs()
        return [epoch for epoch in epochs if epoch.number >= number] or epochs[-1:]

    def epoch(self) -> Epoch:
        return self.epochs()[-1]


class World:
    """A log, and data beside it, that several processes write and read."""

    def __init__(
        self,
        seed: int,
        rates: FaultRates,
        *,
        turns: int = 25,
        roots: int = 3,
        operated: bool = False,
        placed: bool = False,
        stalls: bool = False,
        timed: bool = True,
        unmounts: bool = False,
        completes: bool = True,
        scarce: bool = False,
        rots: bool = False,
        forgets: bool = False,
        cleans: int = 0,
        severs: bool = False,
        grows: bool = False,
        loses: bool = False,
        decays: bool = False,
        hangs: bool = False,
    ) -> None:
        chance = random.Random(seed)
        least = chance.choice([1, 1, 2])
        settings = {MIN_INSYNC: str(2 if scarce else least)}
        self.scarce = scarce
        """Two roots are wanted in sync, and who is out comes back late."""
        self.completes = completes
        """Whether writers put what everybody puts alike, too."""
        self.placed = placed
        """Whether data is at some roots only, at how many changes, and it is moved."""
        if placed:
            settings[FACTOR] = str(chance.choice([int(settings[MIN_INSYNC]), 2]))
        self.moved = 0
        self.operated = operated
        self.stalls = stalls
        """Roots are slow, and not down."""
        self.unmounts = unmounts
        """Disks are not mounted at times."""
        self.timed = timed and stalls
        """A put takes no longer than two timeouts."""
        if operated:
            settings[AUTO_RETURN] = "true"
        self.returned = 0
        self.roots = Roots(roots, settings, grows=grows)
        """If it grows a root is new, and all others go when it has come."""
        self.hangs = chance.choice(self.roots.names) if hangs else None
        """At this root single objects hang, and nothing else is wrong with roots."""
        self.acked_in = 0
        """The newest epoch under which something was acknowledged."""
        self.found = 0
        """How often that was found without the controller."""
        self.forgets = forgets
        """Newest entries are lost at a root; and nothing else is wrong with roots."""
        self.rot = Rot(self.roots.names if rots or forgets else "a", chance)
        """Entries are damaged at some roots."""
        self.rots = rots
        """Data of earlier incarnations is damaged, too: who comes back has to look."""
        self.decays = decays
        """Data is damaged or lost at one root, while others have it, and nobody moves any."""
        self.moving = 0
        self.kept_data = 0
        self.cleans = cleans
        """Old epochs are deleted, and so many of the newest stay."""
        for place in self.roots.places.values():
            place.kept = cleans
        self.cleaned = 0
        self.severs = severs
        """Who only reads does not reach the controller at times, and others go on."""
        self.alone = 0
        self.loses = loses
        """The controller is lost for good, and made anew, twice."""
        self.simulation = Simulation(
            seed, storage=self.roots.controller, rates=rates, step_ms=(0, 20)
        )
        self.turns = turns
        self.acked: dict[str, bytes] = {}
        self.meant: dict[str, bytes] = {}
        """Data files, by their names: what they hold."""
        self.shown: dict[str, bytes] = {}
        self.deleted: set[str] = set()
        self.given_up: set[str] = set()
        """Data files that an unclean election has announced as lost."""
        self.writing = 0
        self.appending = 0
        self.slow_roots: list[str] = []
        """One after the other, as they became slow."""
        self.done: dict[str, int] = {}
        self.opened: dict[str, int] = {}
        """By process, how many controllers were lost when it opened the store."""
        self.recovered = 0

    # -- the judge -------------------------------------------------------------------------------

    def judge(self) -> None:
        """Everything acknowledged, and each file that an entry names, is at all members in sync."""
        epoch = self.roots.epoch()
        for member in epoch.in_sync:
            heap = self.roots.heap(member)
            for name, data in self.acked.items():
                if name in self.deleted:
                    continue
                if not self._has(member, name, data):
                    raise Violation(f"lost: {name} was acknowledged, {member} lacks it in {epoch}")
                named = named_in(data)
                if places(epoch) or self.decays:
                    continue
                if _get(heap, named) != self.meant[named]:
                    raise Violation(f"lost: {named}, which {name} names, at {member} in {epoch}")
            if len(epoch.in_sync) < 1:
                raise Violation("nobody is in sync")
        if epoch.number < self.acked_in:
            raise Violation(f"lost: {epoch}, and something was acknowledged under {self.acked_in}")
        if places(epoch) or self.decays:
            self._judge_placed(epoch)
        for member in {*epoch.in_sync} - self.roots.dead:
            heap = self.roots.heap(member)
            if heap.noted and max(heap.noted) not in list_notes(heap):
                raise Violation(f"{member} has the newest epoch that it knew no more")

    def _judge_recovery(self) -> None:
        """If the controller were lost now, any root would lead to what was acknowledged."""
        for root in self.roots.names if not self.roots.dead else ():
            with suppress(InvalidOption, NotEnoughReplicas):  # refused
                found = self.roots.kept(root, self.simulation.clock)
                if found.number < self.acked_in:
                    raise Violation(
                        f"lost: {root} leads to epoch {found.number}, and something was "
                        f"acknowledged under {self.acked_in}"
                    )
                self.found += 1

    def _has(self, member: Member, name: str, data: bytes) -> bool:
        """Whether a member has an object, or had it before its disk damaged it."""
        found = _get(self.roots.heap(member), name)
        if found is None and (
            (member, name) in self.rot.lost
            or self._is_superseded(name)
            or self._is_damaged_for_good(name)
        ):
            return True
        if found is None or found == data or envelope.is_sound(found):
            return found == data
        return (member, name) in self.rot.damaged or self._is_damaged_for_good(name)

    def _is_superseded(self, name: str) -> bool:
        """Whether it is a state that a root has lost, and nobody wants, since there is a newer one.

        Who joined then has it not.
        """
        later = (one for one in self.acked if one > name and one.startswith("transactions/"))
        lost = name.startswith("transactions/") and name in {lost for _, lost in self.rot.lost}
        return lost and next(later, None) is not None

    def _is_damaged_for_good(self, name: str) -> bool:
        """Whether it was damaged where nobody else was in sync: who joined has it like that.

        Or lost, and who joined has it not.
        """
        return name in {one for _, one in (*self.rot.damaged, *self.rot.lost)} and any(
            {root_of(member) for member in epoch.in_sync} <= {*self.rot.roots}
            for epoch in self.roots.epochs()
        )

    def _judge_placed(self, epoch: Epoch) -> None:
        """Every file that an entry names is at a root in sync, or in an old incarnation."""
        heaps = [self.roots.heap(member) for member in (*epoch.in_sync, *epoch.left)]
        for name, data in self.acked.items():
            named = named_in(data)
            if named in self.given_up or named not in self.meant:
                continue
            if self.meant[named] not in {_get(one, named) for one in heaps}:
                raise Violation(f"lost: {named}, which {name} names, at all in {epoch}")

    def unclean(self) -> int:
        """How many unclean elections there were; what they lose need not be there any more."""
        return 0

    def show_read(self, storage: ReplicatedStorage, name: str, data: bytes) -> None:
        """A reader shows an entry."""
        del storage
        self.show(name, data)

    def show(self, name: str, data: bytes) -> None:
        if self.shown.setdefault(name, data) != data:
            raise Violation(f"two histories: {name} was {self.shown[name]!r}, and is {data!r} now")

    # -- processes -------------------------------------------------------------------------------

    def left_for(self, process: Process) -> bool:
        self.done[process.name] = self.done.get(process.name, 0) + 1
        return self.done[process.name] <= self.turns

    def write(self, process: Process) -> None:
        """Upload data, then place it at the log's end, as a transaction's writer does."""
        storage = self.roots.storage(process)
        while self.left_for(process):
            storage = self._reopened(process, storage)
            try:
                self.appending += 1
                try:
                    self._append(process, storage)
                finally:
                    self.appending -= 1
            except LogTruncated:
                storage = self.roots.storage(process)
            except StorageError:
                pass
            process.clock.sleep(process.chance.uniform(0, 1.5))
        self.writing -= 1
        if not self.writing:
            self.roots.hanging.clear()

    def _reopened(self, process: Process, storage: ReplicatedStorage) -> ReplicatedStorage:
        """Where the controller was lost, and made anew; else it stays open."""
        was = self.opened.get(process.name, 0)
        if was == len(self.roots.lost) or not self.roots.made_anew():
            return storage
        self.opened[process.name] = len(self.roots.lost)
        return self.roots.storage(process, observes=storage.agreement.observes)

    def _append(self, process: Process, storage: ReplicatedStorage) -> None:
        token = process.clock.token()
        data_name = names.segment_name(token, 0)
        partition = process.chance.randrange(4) if self.placed else 0
        path = f"topics/t/data/{partition}/{data_name}.log"
        self.meant[path] = f"data of {token}".encode()
        began_in = self.roots.epoch().number
        if process.chance.random() < 0.5:
            storage.put_round([lambda: storage.put(path, self.meant[path])])
        else:
            with storage.upload(path) as upload:
                upload.write(self.meant[path][:7])
                upload.write(self.meant[path][7:])
        if self.placed and not self.operated:
            self._check_placed_put(path, began_in)
        entry = entry_of(path, process.name)
        for _ in range(3):
            listed = storage.list_names("topics/t/log")
            if listed != [entry_name(number) for number in range(len(listed))]:
                return  # a listing is not a snapshot: it may show one and miss the one before it
            name = f"topics/t/log/{entry_name(len(listed))}"
            began_in = self.roots.epoch().number
            if create_once(TimedPuts(storage, self, process), name, entry, process.clock):
                self.acknowledge(storage, name, entry, began_in)
                break
        if self.completes and process.chance.random() < 0.7:
            self._complete(process, storage)

    def _complete(self, process: Process, storage: ReplicatedStorage) -> None:
        """Put what follows from one of the last entries: whoever does so puts the same bytes."""
        last = process.chance.choice(storage.list_names("topics/t/log")[-2:] or [entry_name(0)])
        with suppress(ObjectNotFound):
            entry = storage.get(f"topics/t/log/{last}")
            if not envelope.is_sound(entry):
                return
            name = f"transactions/t/{entry_number(last):020d}.json"
            began_in = self.roots.epoch().number
            put = partial(create_once, storage, name, entry, process.clock, decided=True)
            if process.chance.random() < 0.5:
                put()
            else:
                storage.put_round([put])
            self.acknowledge(storage, name, entry, began_in)

    def acknowledge(
        self,
        storage: ReplicatedStorage,
        name: str,
        entry: bytes,
        began_in: int,
    ) -> None:
        self._check_noted(storage.agreement.epoch())
        self.acked_in = max(self.acked_in, storage.agreement.epoch().number)
        self.acked[name] = entry
        self.show(name, entry)
        self._check_copies(name, entry, began_in)

    def check_time(self, took_s: float, slow: list[str], began_in: int) -> None:
        # The rest is for the requests themselves: those of all others move the clock, too.
        if not self.timed or took_s <= (2 * max(len(slow), 1) + 0.8) * LAG_MS / 1000:
            return
        for epoch in self.roots.since(began_in):
            if len(epoch.in_sync) < epoch.min_insync:
                return  # nothing is acknowledged until one that joins has copied everything
            if [root_of(member) for member in epoch.in_sync] in [[root] for root in slow]:
                return  # the last one in sync stays in, however slow it is
        raise Violation(f"stuck: {took_s} s for a put while {slow} were slow in turn")

    def _check_noted(self, epoch: Epoch) -> None:
        """Under which something is acknowledged: the controller may be lost now.

        Whoever acknowledges may have slept since: later epochs came, and its notes were deleted.
        """
        there = {one for one in epoch.in_sync if epoch.number in self.roots.heap(one).noted}
        if lacking := {*epoch.in_sync} - there:
            raise Violation(f"{lacking} were told nothing of epoch {epoch.number}")

    def _check_copies(self, name: str, entry: bytes, began_in: int) -> None:
        """When it is acknowledged, as many roots as ``min.insync.replicas`` says have it."""
        since = self.roots.since(began_in)
        if all(len(epoch.in_sync) < epoch.min_insync for epoch in since):
            raise Violation(f"too few: {name} was acknowledged in {since}")
        heaps = self.roots.heaps.items()
        now = self.roots.epoch()
        had = {one for epoch in since for one in epoch.in_sync} - {*now.members, *now.left}
        # Who had it may have been put out since, and forgotten.
        having = {root_of(one) for one in self.roots.heaps if self._has(one, name, entry)}
        having |= {*map(root_of, had)}
        named = named_in(entry)
        if self.placed and not any(_get(heap, named) for _, heap in heaps):
            raise Violation(f"{named} is nowhere, and {name} was acknowledged")
        if len(having) < now.min_insync:
            raise Violation(f"too few: {name} was acknowledged, and only {having} have it")

    def _check_placed_put(self, name: str, began_in: int) -> None:
        """When data has been put, as many roots have it as its epoch says."""
        heaps = self.roots.heaps.items()
        having = {root_of(member) for member, heap in heaps if _get(heap, name) is not None}
        wanted = min(copies(epoch, name) for epoch in self.roots.since(began_in))
        if len(having) < wanted and not self.roots.dead:
            raise Violation(f"too few: {name} was put, and {having} have it instead of {wanted}")

    def read(self, process: Process) -> None:
        storage = self._observing(process)
        while self.writing:
            try:
                self._read(process, storage)
            except LogTruncated:
                storage = self._observing(process)
            except StorageError:
                pass
            process.clock.sleep(process.chance.uniform(0.1, 2))

    def _observing(self, process: Process) -> ReplicatedStorage:
        """A storage that only reads: others may reach what it does not."""
        storage = self.roots.storage(process, observes=True)
        propose = storage.agreement.propose

        def watched(epoch: Epoch, at: str = "") -> bool:
            gone = {*storage.agreement.epoch().in_sync}.difference(epoch.in_sync)
            if gone and "is not what the leader" not in epoch.why:
                raise Violation(f"a reader puts out {gone}: {epoch}")
            return propose(epoch, at)

        storage.agreement.propose = watched  # type: ignore[method-assign]
        return storage

    def _read(self, process: Process, storage: ReplicatedStorage) -> None:
        if self.completes:
            self._read_states(storage)
        unclean, before = self.unclean(), set(self.acked)
        listed = [f"topics/t/log/{name}" for name in storage.list_names("topics/t/log")]
        if unclean != self.unclean():
            return  # it may have been asked of those that are lost
        if missing := {n for n in before if "/log/" in n}.difference(listed):
            raise Violation(f"stale: {missing} was acknowledged before, is not listed")
        for name in listed:
            data = self._get_in_time(storage, name)
            if unclean != self.unclean():
                return
            if not self._is_whole(name, data):
                continue
            self.show_read(storage, name, data)
            there = {*self.roots.epoch().in_sync} - self.roots.dead
            lacking = [one for one in sorted(there) if not self._has(one, name, data)]
            if lacking and not unclean and name not in self.deleted:
                raise Violation(f"shown: {name}, which {lacking} in sync lack")
            named = named_in(data)
            if process.chance.random() < 0.2:
                self._check_data(storage, named)
        self.alone += storage.agreement.lost is not None

    def _get_in_time(self, storage: ReplicatedStorage, name: str) -> bytes:
        """Nobody waits for an object that hangs at one root."""
        began_ms = self.simulation.clock.time_ms
        data = storage.get(name)
        took_ms = self.simulation.clock.time_ms - began_ms
        if self.hangs and took_ms > 3 * LAG_MS:
            raise Violation(f"stuck: {took_ms} ms for {name}, while one root has all else")
        return data

    def _is_whole(self, name: str, data: bytes) -> bool:
        """Whether an object is shown as it was written; else nobody may have it so."""
        if envelope.is_sound(data):
            return True
        if name in self.acked and not self._is_damaged_for_good(name):
            raise Violation(f"damaged: {name} is shown as {data!r}, and others have it whole")
        return False

    def _read_states(self, storage: ReplicatedStorage) -> None:
        before = {name for name in self.acked if name.startswith("transactions/")}
        listed = [f"transactions/t/{name}" for name in storage.list_names("transactions/t")]
        # Of those that are lost at a root the newest alone is wanted, and put there again.
        lost = {name for _, name in self.rot.lost if name < max(listed, default="")}
        missing = before.difference(listed, lost)
        if not all(map(self._is_damaged_for_good, missing)):
            raise Violation(f"stale: {missing} was acknowledged before, is not listed")
        for name in listed[-3:]:
            if self._is_whole(name, data := storage.get(name)):
                self.show(name, data)

    def _check_data(self, storage: ReplicatedStorage, named: str) -> None:
        try:
            found = self._get_in_time(storage, named)
        except ObjectNotFound as error:
            if named in self.given_up:
                return
            if self.placed or self.decays:
                raise Violation(f"{named} is named by an entry, and not found") from error
            raise
        if found == self.meant[named] or named in self.rot.decayed:
            return
        # Readers look at all copies for one that is whole, also where roots are out.
        if self.meant[named] not in {_get(one, named) for one in storage.copies_of(named)}:
            raise Violation(f"{named} is not what was written")

    def reassign(self, process: Process) -> None:
        """Change at how many roots data is, and move it."""
        storage = self.roots.storage(process)
        while self.writing:
            storage = self._reopened(process, storage)
            process.clock.sleep(process.chance.uniform(0, 4))
            with suppress(StorageError, InvalidOption), self._moving():
                if process.chance.random() < 0.3:
                    factor = process.chance.choice(["1", "2", "2", "all"])
                    change_settings(storage.agreement, {FACTOR: factor})
                for done in reassign(storage.agreement, is_sound=self._is_sound):
                    self.moved += done.copied + done.deleted

    def bring_back(self, process: Process) -> None:
        """Bring roots back that are out, as an operator does."""
        storage = self.roots.storage(process)
        while self.writing:
            storage = self._reopened(process, storage)
            late = self.operated or self.scarce
            process.clock.sleep(process.chance.uniform(0, 20 if late else 2))
            with suppress(StorageError), self._moving():
                epoch = storage.agreement.refresh()
                known = {root_of(member) for member in epoch.in_sync}
                if process.chance.random() < 0.9:  # else they are in each other's way
                    known |= {root_of(member) for member in epoch.joining}
                away = sorted(set(self.roots.names) - known - self.roots.down)
                if away:
                    root = process.chance.choice(away)
                    before = self._named("t")
                    judge = self._is_sound, self._named
                    joined = join(storage.agreement, root, f"heap://{root}", *judge)
                    self._check_joined(root, before)
                    self.kept_data += joined.kept_objects
                    if root == self.roots.newcomer:
                        self._leave_alone(process, root)
                    self.judge()

    def _leave_alone(self, process: Process, root: str) -> None:
        """All other roots go when one has come, and nobody brings them back for a while."""
        self.roots.gone.update({*self.roots.names} - {root})
        try:
            process.clock.sleep(process.chance.uniform(1, 4) * LAG_MS / 1000)
            self._judge_recovery()
        finally:
            self.roots.gone.clear()

    def maintain(self, process: Process) -> None:
        """Bring roots back that are out, as :meth:`Store.maintain` does where a setting says so."""
        storage = self.roots.storage(process)

        def prepare(_: ReplicatedStorage, url: str) -> tuple[str, str]:
            return url.removeprefix("heap://"), url

        while self.writing:
            storage = self._reopened(process, storage)
            process.clock.sleep(process.chance.uniform(0, 2))
            with suppress(StorageError), self._moving():
                before = self._named("t")
                for one in return_roots(storage, prepare, self._is_sound, self._named):
                    self.returned += 1
                    self._check_joined(one.root, before)

    def operate(self, process: Process) -> None:
        """Elect, take out, change settings, verify and repair, and forget, as an operator does."""
        storage = self.roots.storage(process)
        while self.writing:
            storage = self._reopened(process, storage)
            process.clock.sleep(process.chance.uniform(0, 6))
            refused = StorageError, InvalidOption, NotAStore, StoreExists
            with suppress(*refused), self._moving():
                epoch = storage.agreement.refresh()
                root = process.chance.choice(self.roots.names)
                match process.chance.choice(_OPERATIONS):
                    case "elect":
                        elect(storage.agreement, root)
                    case "take out" if len(epoch.in_sync) > 2:
                        take_out(storage.agreement, root)
                    case "config":
                        returns = process.chance.random() < 0.5
                        change_settings(storage.agreement, {AUTO_RETURN: returns})
                    case "verify":
                        self._repair(storage)
                    case "move":
                        places = self.roots.spare if self.roots.lost else self.roots.places
                        place = process.chance.choice([*places])
                        move(storage.agreement, self.roots.place(process, place))
                    case "forget":
                        forget(storage, f"{root}-{process.chance.randrange(4)}", self._is_sound)

    def clean(self, process: Process) -> None:
        """Delete old epochs, as maintenance does."""
        storage = self.roots.storage(process)
        while self.writing:
            storage = self._reopened(process, storage)
            process.clock.sleep(process.chance.uniform(0, 2))
            with suppress(StorageError):
                done = clean_epochs(storage.agreement, kept=self.cleans)
                self.cleaned += 0 if done is None else done.epochs

    def _is_sound(self, storage: Storage, name: str) -> bool | None:
        """Whether a copy of data is what was written."""
        return storage.get(name) == self.meant[name] if name in self.meant else None

    def _named(self, _: str) -> set[str]:
        """What the log names."""
        return {named_in(data) for data in self.acked.values()} - self.given_up

    def _check_joined(self, root: str, named: set[str]) -> None:
        """Who has come has what was named before and any root in sync has, whoever leads."""
        epoch = self.roots.epoch()
        came = next((member for member in epoch.in_sync if root_of(member) == root), None)
        if came is None or places(epoch):
            return
        has = {name for name, _ in self.roots.heap(came).list_all("topics/t/data")}
        for member in epoch.in_sync:
            heap = self.roots.heap(member)
            if lacked := [name for name in named - has if _get(heap, name) == self.meant[name]]:
                raise Violation(f"{came} has come without {lacked}, which {member} has in {epoch}")

    def _repair(self, storage: ReplicatedStorage) -> None:
        compare = partial(verify, storage, self._is_sound, with_contents=True, repair=True)
        for _ in compare(named=self._named):
            pass

    @contextmanager
    def _moving(self) -> Iterator[None]:
        """Somebody copies or deletes data, and may just have found a copy of it whole."""
        self.moving += 1
        try:
            yield
        finally:
            self.moving -= 1

    def _decay(self, chance: random.Random) -> None:
        """Change data at one root, or lose it there, where others that may be asked have it whole.

        On a disk a root's incarnations share the file, and each has a name of its own.
        """
        epoch = self.roots.epoch()
        named = sorted({named_in(data) for data in self.acked.values()} - self.given_up)
        if not self.decays or self.moving or not named:
            return
        name = chance.choice(named)
        whole: dict[str, list[Member]] = {}
        for member in (*epoch.in_sync, *epoch.left):
            heap = self.roots.heap(member)
            if root_of(member) == self.hangs:
                continue  # it may hang there
            if _get(heap, name) == self.meant[name] and not _is_doomed(heap, name):
                whole.setdefault(root_of(member), []).append(member)
        if len(whole) > 1:
            doomed = chance.choice(sorted(whole))
            if chance.random() < 0.5:
                self.roots.heap(chance.choice(whole[doomed])).delete([name])
                return
            self.rot.decay(name, (self.roots.heap(member) for member in whole[doomed]))

    def sever(self, process: Process) -> None:
        while self.writing:
            process.clock.sleep(process.chance.uniform(0, 10))
            process.step("sever")
            self.roots.severed.update(("read", place) for place in self.roots.places)
            if process.chance.random() < 0.5:
                self.roots.severed.add(("read", process.chance.choice(self.roots.names)))
            process.clock.sleep(process.chance.uniform(0, 30))
            self.roots.severed.clear()

    def lose_controller(self, process: Process) -> None:
        """It is gone for good, and its place is never used again."""
        for _ in range(2):
            process.clock.sleep(process.chance.uniform(4, 20))
            process.step("the controller is lost")
            self.roots.lost.add(self.roots.place_of(self.roots.epoch().controller or "heap://ctl"))
            while self.writing and not self.roots.made_anew():
                process.clock.sleep(1)

    def recover(self, process: Process) -> None:
        """Make a lost controller anew, by whatever root, at whatever place that is empty."""
        while self.writing:
            process.clock.sleep(process.chance.uniform(0, 3))
            if not self.roots.lost or self.roots.made_anew():
                continue
            root = process.chance.choice(self.roots.names)
            to = SPARE[2 * len(self.roots.lost) - process.chance.randrange(1, 3)]
            opener: Any = NotesOpener(
                self._place_or_root(process),
                self.roots.storage(process).open_member,
                self.roots.epoch(),
            )
            slowness = Slowness(run_whole, process.clock)
            with suppress(StorageError, InvalidOption, StoreExists):
                given, place = opener.root(f"heap://{root}"), opener.root(f"heap://{to}")
                recover_at(opener, given, place, slowness, process.clock)
                self.recovered += 1

    def _recover_calmly(self) -> None:
        """All roots answer, and nobody else does anything: then it can be made anew."""
        clock, roots = self.simulation.clock, self.roots

        def open_url(url: str) -> Storage:
            name = url.removeprefix("heap://")
            if name in roots.names:
                return roots.root(url, "test")
            return roots.gate(roots._all_places()[name], name, "test")

        opener: Any = NotesOpener(open_url, lambda _, one: roots.heap(one), roots.epoch())
        failures = []
        for root, to in product(roots.names, SPARE):
            try:
                slowness = Slowness(run_whole, clock)
                recover_at(
                    opener, open_url(f"heap://{root}"), open_url(f"heap://{to}"), slowness, clock
                )
            except (StorageError, InvalidOption, StoreExists, CorruptEntry) as error:
                failures.append(error)
            else:
                return
        raise Violation(f"stuck: the controller cannot be made anew: {failures}")

    def _place_or_root(self, process: Process) -> Callable[[str], Storage]:
        def open_url(url: str) -> Storage:
            if url.removeprefix("heap://") in self.roots.names:
                return view_of(process, self.roots.root(url, process.name))
            return self.roots.place(process, self.roots.place_of(url))

        return open_url

    def _damage_earlier(self) -> None:
        """Change data that nobody reads any more, nor has just found to be whole."""
        epoch = self.roots.epoch()
        if self.rots and not epoch.joining and not places(epoch):
            for member in sorted({*self.roots.heaps} - {*epoch.members}):
                self.rot.flip_data(self.roots.heap(member))

    def trouble(self, process: Process) -> None:
        """One root after the other goes down, or cannot be reached by some, and comes back."""
        while self.writing:
            process.clock.sleep(process.chance.uniform(0, 5))
            process.step("trouble")  # which ends this if the run has ended
            self._damage_earlier()
            self._decay(process.chance)
            for root in self.rot.roots:
                epoch = self.roots.epoch()
                others = [one for one in epoch.in_sync if root_of(one) not in self.rot.roots]
                for member in [one for one in epoch.members if root_of(one) == root]:
                    if not self.forgets:
                        self.rot.flip(member, self.roots.heap(member))
                    # Who is in sync alone loses it for good. Who has listed the log looks no more.
                    elif others and not self.appending:
                        self.rot.lose(member, self.roots.heap(member))
            self.judge()
            if self.roots.newcomer:
                self._judge_recovery()
            if self.forgets:
                continue
            if self.hangs:
                self._hang(process.chance)
                continue
            if self.roots.down or self.roots.cut or self.roots.stalled or self.roots.unmounted:
                self._calm()
                continue
            if self.unmounts and process.chance.random() < 0.7:
                self.roots.unmounted.update(
                    process.chance.sample([*self.roots.names, CONTROLLER], 2)
                )
                continue
            if self.stalls:
                root = process.chance.choice(self.roots.names)
                self.slow_roots.append(root)
                self.roots.stalled[root] = process.chance.uniform(1, 10) * LAG_MS / 1000
                continue
            root = process.chance.choice([*self.roots.names, *self.roots.places])
            if (kind := process.chance.random()) < 0.6:
                self.roots.down.add(root)
            elif kind < 0.8:
                self.roots.cut.update((f"write-{number}", root) for number in range(2))
            else:
                unseen = process.chance.sample(self.roots.names, len(self.roots.names) - 1)
                self.roots.cut.update(("read", root) for root in unseen)

    def _hang(self, chance: random.Random) -> None:
        """Some of what one root has, for as long as anybody writes.

        Of an id's states the leader alone tells: who only reads waits for it.
        """
        epoch = self.roots.epoch()
        member = next((one for one in epoch.in_sync if root_of(one) == self.hangs), None)
        if member is None or len(epoch.in_sync) == 1 or not self.writing:
            return
        for name, data in self.acked.items():
            if "/log/" in name and chance.random() < 0.3:
                self.roots.hanging.add((member, chance.choice([name, named_in(data)])))

    def _calm(self) -> None:
        self.roots.down.clear()
        self.roots.cut.clear()
        self.roots.stalled.clear()
        self.roots.hanging.clear()
        self.roots.unmounted.clear()

    def run(self, *, writers: int = 3) -> Self:
        self.writing = writers
        for number in range(writers):
            self.simulation.spawn(f"write-{number}", self.write, restart=True)
        self.simulation.spawn("read", self.read, restart=True)
        if self.operated:
            self.simulation.spawn("operate", self.operate, restart=True)
            self.simulation.spawn("maintain-0", self.maintain, restart=True)
            self.simulation.spawn("maintain-1", self.maintain, restart=True)
        else:
            self.simulation.spawn("back-1", self.bring_back, restart=True)
        for number in range(2 if self.cleans else 0):
            self.simulation.spawn(f"clean-{number}", self.clean, restart=True)
        if self.loses:
            self.simulation.spawn("lose", self.lose_controller, rates=CALM)
            for number in range(2):
                self.simulation.spawn(f"recover-{number}", self.recover, restart=True)
        if self.severs:
            self.simulation.spawn("sever", self.sever, rates=CALM)
        for number in range(2 if self.placed else 0):
            self.simulation.spawn(f"reassign-{number}", self.reassign, restart=True)
        self.simulation.spawn("back-0", self.bring_back, restart=True)
        self.spawn_others()
        self.simulation.spawn("trouble", self.trouble, rates=CALM)
        self.simulation.run(max_steps=200_000)
        self._calm()
        self.judge()
        self._settle()
        return self

    def spawn_others(self) -> None:
        """For other worlds: whoever else takes part."""

    def _settle(self) -> None:
        """All is up again: everything that was acknowledged or shown is there."""
        if self.roots.lost and not self.roots.made_anew():
            self._recover_calmly()
        storage = self.roots.plain(self.simulation.clock)
        began_ms = self.simulation.clock.time_ms
        if len(self.roots.epoch().in_sync) >= self.roots.epoch().min_insync:
            assert storage.put_if_absent("last", b"topics/t/data/0/last.log x")
        took_ms = self.simulation.clock.time_ms - began_ms
        if took_ms > 2 * LAG_MS:
            raise Violation(f"stuck: {took_ms} ms for a put when all was up again")
        for name in storage.list_names("topics/t/log"):
            path = f"topics/t/log/{name}"
            if self._is_whole(path, data := storage.get(path)):
                self.show(path, data)
        self.judge()
        self._judge_recovery()
        if self.decays:
            if self.placed:  # what old incarnations alone have is not compared
                reassign(storage.agreement, is_sound=self._is_sound)
            for _ in range(2):  # one root may lack what another one has damaged
                self._repair(storage)
            self.rot.decayed.clear()
        if self.placed or self.decays:
            self._check_placed(storage)

    def _check_placed(self, storage: ReplicatedStorage) -> None:
        """Everything can be read, and is where it belongs when it has been moved there."""
        named = {named_in(data) for data in self.acked.values()} - self.given_up
        for name in sorted(named):
            self._check_data(storage, name)
        if not self.placed:
            return
        moved = reassign(storage.agreement, is_sound=self._is_sound)
        lacking = sum(done.lacking for done in moved)
        epoch = self.roots.epoch()
        heaps = [self.roots.heap(member) for member in epoch.in_sync]
        few = [n for n in named if sum(_get(h, n) is not None for h in heaps) < copies(epoch, n)]
        if len(few) > lacking:
            raise Violation(f"{few} are at too few roots in {epoch}")
        self.judge()


def _is_doomed(heap: HeapStorage, name: str) -> bool:
    """Whether somebody was about to delete it there: that may still come."""
    marks = (
        f"{root_names.MEMBER_MARKS}/{mark}" for mark in heap.list_names(root_names.MEMBER_MARKS)
    )
    return any(name.encode() in heap.get(mark) for mark in marks)


def _get(heap: Storage, name: str) -> bytes | None:
    try:
        return heap.get(name)
    except ObjectNotFound:
        return None


def run_seeds(seeds: Iterable[int], rates: FaultRates, **options: Any) -> dict[str, int]:
    """Run one seed after the other; returns how much has happened in all."""
    total = {
        "acknowledged": 0,
        "epochs": 0,
        "elections": 0,
        "joined": 0,
        "returned": 0,
        "moved": 0,
        "kept": 0,
        "cleaned": 0,
        "slow": 0,
        "controllers": 0,
        "alone": 0,
        "found": 0,
        "recovered": 0,
    }
    for seed in seeds:
        world = World(seed, rates, **options).run()
        total["acknowledged"] += len(world.acked)
        total["returned"] += world.returned
        total["moved"] += world.moved
        total["kept"] += world.kept_data
        total["cleaned"] += world.cleaned
        total["alone"] += world.alone
        total["found"] += world.found
        total["recovered"] += world.recovered
        for epoch in world.roots.epochs():
            total["epochs"] += 1
            total["elections"] += epoch.leader_since == epoch.number > 0
            total["controllers"] += epoch.why.startswith("the controller moves to")
            total["slow"] += "no answer in time" in epoch.why
            total["joined"] += epoch.why.endswith("has copied everything")
    return total
