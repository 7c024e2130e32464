"""A store that several processes write to, a standby that follows it, and a judge of the standby.

The judge knows what the writers meant and were told. At any moment, between any two requests of
who follows, it opens what lies there and looks: each transaction is whole over two topics and a
group; nothing that showed once is gone or stands elsewhere; a group never stands behind records
that are not there; and what was acknowledged when a round began shows when it has ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from tests.support.replication.replica_gates import Disk, view_of
from txnlog.errors import TxnlogError
from txnlog.names import STORE_FILE, TopicPartition
from txnlog.replication import Standby
from txnlog.replication.standby.follower import Follower
from txnlog.replication.standby.standby_storage import find_at
from txnlog.storage.base import Storage
from txnlog.storage.forwarding import ForwardingStorage
from txnlog.store import Store, attach
from txnlog.testing import FaultRates, HeapStorage, Process, Simulation, VirtualClock

CALM = FaultRates()
ROUGH = FaultRates(
    fail=0.004,
    lose_response=0.004,
    land_late=0.004,
    pause=0.006,
    stop=0.002,
    tear_listing=0.1,
    pause_ms=(10, 20_000),
    landing_ms=(10, 20_000),
    tear_ms=(0, 50),
)
CONFIG = {"transaction.max.timeout.ms": 4_000, "log.cleanup.age.ms": 4_000}
GROUP = "g"
STORMY = replace(ROUGH, fail=0.006, lose_response=0.006, land_late=0.006, pause=0.01, stop=0.004)
"""A round is a hundred requests that must all go well: with many more faults none ever ends."""


class Violation(AssertionError):
    """A promise was broken."""


class StandbyWorld:
    """One run."""

    def __init__(
        self,
        seed: int,
        rates: FaultRates,
        *,
        turns: int = 12,
        writers: int = 3,
        unmounts: bool = False,
        sweeps: bool = False,
    ) -> None:
        self.simulation = Simulation(seed, rates=rates, step_ms=(0, 8))
        self.target = HeapStorage()
        self.target.time_ms = lambda: self.simulation.clock.time_ms
        self.sweeps = sweeps
        """Somebody sweeps all the time."""
        self.unmounts = unmounts
        self.is_mounted = True
        """Else whoever follows finds an empty folder where the source was."""
        self.turns = turns
        self.writers = writers
        self.writing = 0
        self.done = dict.fromkeys(range(writers), 0)
        self.acked: set[bytes] = set()
        self.given_up: set[bytes] = set()
        self.floor: set[bytes] = set()
        """What had been acknowledged when the newest round that has ended began."""
        self.shown: dict[tuple[str, int, int], bytes] = {}
        self.rounds = 0
        self.looks = 0
        store = self.simulation.store(config=CONFIG)
        store.topics.create("a", partitions=2)
        store.topics.create("b")
        store.topics.create("in", partitions=writers)
        Follower(store, self.target).follow()

    # -- processes -------------------------------------------------------------------------------

    def write(self, process: Process) -> None:
        """Appends a record, then copies it to two topics and moves a group, in a transaction."""
        who = int(process.name.rpartition("-")[2])
        while self.done[who] < self.turns:
            with suppress(TxnlogError):
                self._write(process, process.store(), who)
            process.clock.sleep(process.chance.uniform(0, 1))
        self.writing -= 1

    def _write(self, process: Process, store: Store, who: int) -> None:
        plain = store.producer()
        producer = store.producer(transactional_id=f"w{who}", transaction_timeout_ms=4_000)
        producer.init_transactions()
        while self.done[who] < self.turns:
            self.done[who] += 1
            value = f"{who}/{self.done[who]}".encode()
            where = TopicPartition("in", who)
            plain.send("in", value, partition=who)
            at = plain.flush()[where][0].start
            producer.begin_transaction()
            producer.send("a", value)
            if process.chance.random() < 0.3:
                producer.flush()
            producer.send("b", value)
            producer.send_offsets_to_transaction({where: at + 1}, GROUP)
            if process.chance.random() < 0.15:
                self.given_up.add(value)
                producer.abort_transaction()
                continue
            producer.commit_transaction()
            self.acked.add(value)
            if process.chance.random() < 0.3:
                process.clock.sleep(process.chance.uniform(0, 2))

    def view(self, process: Process, inner: Storage) -> Storage:
        """A storage of the same process, with its faults, over other objects."""
        named = ForwardingStorage(view_of(process, inner))
        named.url = inner.url
        return named

    def source(self, process: Process) -> Store:
        """The store as one who follows sees it."""
        if not self.unmounts:
            return process.store()
        beneath = HeapStorage()
        disk = Disk(self.simulation.storage, STORE_FILE, beneath, lambda: self.is_mounted)
        return attach(self.view(process, disk), clock=process.clock)

    def unmount(self, process: Process) -> None:
        """Take the source's disk away for a while, now and then."""
        while self.writing:
            process.clock.sleep(process.chance.uniform(0, 3))
            process.step("unmount")  # which ends this if the run has ended
            self.is_mounted = False
            process.clock.sleep(process.chance.uniform(0, 3))
            self.is_mounted = True

    def follow(self, process: Process) -> None:
        standby: Follower | None = None
        while True:
            is_last = not self.writing
            with suppress(TxnlogError):
                before = set(self.acked)
                standby = standby or Follower(self.source(process), self.view(process, self.target))
                standby.follow()
                self.rounds += 1
                self.floor |= before
                if process.chance.random() < 0.2:
                    standby.sweep()
                if is_last:
                    return
            process.clock.sleep(process.chance.uniform(0, 2))

    def sweep(self, process: Process) -> None:
        standby: Follower | None = None
        while self.writing:
            process.clock.sleep(process.chance.uniform(0, 1))
            with suppress(TxnlogError):
                standby = standby or Follower(self.source(process), self.view(process, self.target))
                standby.sweep()

    def look(self, process: Process) -> None:
        while self.writing:
            self.judge()
            process.clock.sleep(process.chance.uniform(0, 2))

    # -- the judge -------------------------------------------------------------------------------

    def open(self) -> Store | None:
        """The standby as it is, without faults, with nobody going on meanwhile."""
        found = find_at(self.target)
        clock = VirtualClock(self.simulation.clock.time_ms, seed=1)
        return None if found is None else attach(found, clock=clock)

    def judge(self, store: Store | None = None) -> set[bytes]:
        store = store or self.open()
        if store is None:
            if self.rounds:
                raise Violation("a round has ended, and nothing shows")
            return set()
        self.looks += 1
        seen = {topic: self._read(store, topic) for topic in ("a", "b", "in")}
        if seen["a"] != seen["b"]:
            raise Violation(f"half a transaction: {seen['a'] ^ seen['b']}")
        if lost := self.floor - seen["a"]:
            raise Violation(f"{lost} was acknowledged before the round began")
        if ghosts := seen["a"] & self.given_up:
            raise Violation(f"{ghosts} was aborted, and shows")
        if early := seen["a"] - seen["in"]:
            raise Violation(f"{early} was copied from records that are not there")
        self._check_group(store, seen["a"])
        return seen["a"]

    def _read(self, store: Store, topic: str) -> set[bytes]:
        level: Any = "snapshot"
        columns = ["value", "partition", "offset"]
        table = store.scan(topic, columns=columns, isolation_level=level).to_arrow()
        found = set()
        places = set()
        for value, partition, offset in zip(
            *(table.column(name).to_pylist() for name in columns), strict=True
        ):
            place = topic, partition, offset
            places.add(place)
            if self.shown.setdefault(place, value) != value:
                raise Violation(f"{place} was {self.shown[place]!r}, and is {value!r} now")
            if value in found:
                raise Violation(f"{value!r} shows twice in {topic}")
            found.add(value)
        if gone := {place for place in self.shown if place[0] == topic} - places:
            raise Violation(f"gone since it showed: {gone}")
        return found

    def _check_group(self, store: Store, copied: set[bytes]) -> None:
        for who in range(self.writers):
            where = TopicPartition("in", who)
            consumer = store.consumer(group_id=GROUP, auto_offset_reset="none")
            known = consumer.committed(where)
            mine = {value for value in copied if value.startswith(b"%d/" % who)}
            if known is None:
                if mine:
                    raise Violation(f"{mine} was copied, and the group has no offset")
                continue
            at = self.shown.get(("in", who, known.offset - 1))
            if at is None:
                raise Violation(f"the group stands at {known.offset} of {where}: no record there")
            last = max(mine, key=lambda value: int(value.partition(b"/")[2]), default=None)
            if at != last:
                raise Violation(f"the group has read {at!r}, and {last!r} was copied last")

    def run(self, *, followers: int = 1) -> StandbyWorld:
        self.writing = self.writers
        for number in range(self.writers):
            self.simulation.spawn(f"write-{number}", self.write, restart=True)
        for number in range(followers):
            self.simulation.spawn(f"follow-{number}", self.follow, restart=True)
        self.simulation.spawn("look", self.look, rates=CALM)
        if self.sweeps:
            self.simulation.spawn("sweep", self.sweep, restart=True)
        if self.unmounts:
            self.simulation.spawn("unmount", self.unmount, rates=CALM)
        self.simulation.run(max_steps=400_000)
        self.judge()
        return self

    def promote(self) -> Store:
        """Promote it, and go on there: what the last round showed is there, and can be built on."""
        shown = self.open()
        assert shown is not None
        before = self.judge(shown)
        Standby(shown).promote()
        clock = VirtualClock(self.simulation.clock.time_ms + 60_000, seed=2)
        store = attach(self.target, clock=clock)
        if self.judge(store) != before:
            raise Violation("a promotion changed what shows")
        for who in range(self.writers):
            name = f"w{who}"
            with store.producer(transactional_id=name, transaction_timeout_ms=4_000) as producer:
                producer.init_transactions()
                with producer.transaction():
                    producer.send("a", b"%d/9999999" % who)
                    producer.send("b", b"%d/9999999" % who)
        added = {b"%d/9999999" % who for who in range(self.writers)}
        if self._read(store, "a") != before | added or self._read(store, "b") != before | added:
            raise Violation("the promoted store does not go on where the standby was")
        if broken := [one for one in store.examine() if one.state in ("damage", "unreadable")]:
            raise Violation(f"the promoted store is damaged: {broken}")
        return store


def run_seeds(seeds: Iterable[int], rates: FaultRates, **options: Any) -> dict[str, int]:
    """Run one seed after the other; returns how much has happened in all."""
    total = {"acknowledged": 0, "rounds": 0, "looks": 0}
    for seed in seeds:
        world = StandbyWorld(seed, rates, **options)
        world.run(followers=2 if world.sweeps else 1 + seed % 2)
        world.promote()
        total["acknowledged"] += len(world.acked)
        total["rounds"] += world.rounds
        total["looks"] += world.looks
    return total
