"""A process of ``test_bank``: transfers between accounts, tidies up, or reads and judges.

Run as ``python bank_worker.py ROLE JOB``, where JOB is a :class:`Job` as JSON. All say line by line
what they do, so that whoever started them can stop or kill them in the middle of it. What writers
mean and learn they also append to a file of their own before they say it: readers look there for
what was acknowledged before they look into the store.

A record tells which transaction it is part of, which leg of how many it is, its amount, and where
the transaction has moved a group: so whoever reads can judge by records alone.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import txnlog
from txnlog import IsolationLevel
from txnlog.clock import SystemClock
from txnlog.errors import CommitStateUnknown, ConcurrentTransactions, StorageError, TxnlogError
from txnlog.names import TopicPartition
from txnlog.producer import Producer
from txnlog.read.isolation_levels import check_isolation_level
from txnlog.read.plan import ScanColumns
from txnlog.read.scan_reader import read_ranges
from txnlog.snapshot import Snapshot

T = TypeVar("T")

PARTITIONS = {"a": 1, "b": 2, "c": 1, "d": 2}
SOURCES = {"g0": "a", "g1": "b"}
"""By consumer group, the topic that it reads."""
LEVELS = ("read_committed", "snapshot", "read_uncommitted")
VALUE = ScanColumns(("value",))
STOP = "stop"
"""The name of a file beside the ledger: when it is there, nobody tidies up or looks any more."""


@dataclass
class Job:
    """The job of one process.

    ``looks`` are how many snapshots of each level a reader takes. ``halts`` is the chance of a
    listing that the process stops itself in the middle of it. ``patience_s`` is how long it goes on
    trying where its store cannot be reached, as while a root of it is gone.
    """

    url: str
    ledger: str
    name: str
    seed: int
    options: dict[str, Any] = field(default_factory=dict)
    incarnation: int = 0
    timeout_ms: int = 2_000
    skew_ms: int = 0
    anew: bool = False
    looks: dict[str, int] = field(default_factory=dict)
    halts: float = 0.0
    patience_s: float = 0.0

    def command(self, role: str) -> list[str]:
        return [sys.executable, __file__, role, json.dumps(asdict(self))]


class SkewedClock(SystemClock):
    """A wall clock that somebody has set wrong."""

    def __init__(self, skew_ms: int) -> None:
        self._skew_ms = skew_ms

    def now_ms(self) -> int:
        return super().now_ms() + self._skew_ms


def open_store(job: Job) -> txnlog.Store:
    clock = SkewedClock(job.skew_ms)
    return patiently(job, lambda: txnlog.open(job.url, storage_options=job.options, clock=clock))


def patiently(job: Job, call: Callable[[], T]) -> T:
    """Make a call again while the store cannot be reached, as long as the job has patience."""
    clock = SystemClock()
    began_s = clock.monotonic_s()
    while True:
        try:
            return call()
        except StorageError as error:
            if clock.monotonic_s() - began_s >= job.patience_s:
                raise
            say("failed", type(error).__name__)
            clock.sleep(0.2)


_said = threading.Lock()


def say(*words: object) -> None:
    with _said:
        sys.stdout.write(" ".join(map(str, words)) + "\n")
        sys.stdout.flush()


# -- records and the ledger ----------------------------------------------------------------------


class Move(NamedTuple):
    """A group went from one offset of a partition to another."""

    group: str
    topic: str
    partition: int
    start: int
    stop: int


class Leg(NamedTuple):
    """One record: a part of a transfer."""

    transfer: str
    number: int
    legs: int
    amount: int
    moves: tuple[Move, ...] = ()

    def encode(self) -> str:
        return json.dumps(self)

    @classmethod
    def parse(cls, value: bytes) -> Leg:
        transfer, number, count, amount, moves = json.loads(value)
        return cls(transfer, number, count, amount, tuple(Move(*move) for move in moves))


class Ledger:
    """What the writers have noted down: each line is a word and a transfer.

    ``begin``; ``ask`` before the commit; then ``ack``, ``abort`` (for certain), or nothing. Who
    comes later may find out: ``ack`` or ``abort`` again. Reading goes on where it was.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._read_to: dict[str, int] = defaultdict(int)
        self.said: dict[str, set[str]] = {word: set() for word in ("begin", "ask", "ack", "abort")}

    def read(self) -> None:
        for path in sorted(self._folder.glob("*.writer")):
            with path.open("rb") as file:
                file.seek(self._read_to[path.name])
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read_to[path.name] += len(whole)
            for line in whole.decode().splitlines():
                word, transfer = line.split()
                self.said[word].add(transfer)

    def in_doubt(self, name: str) -> list[str]:
        """The unanswered requests of the writer with this name."""
        doubt = self.said["ask"] - self.said["ack"] - self.said["abort"]
        return sorted(transfer for transfer in doubt if transfer.startswith(f"{name}."))


def version_of(transfer: str) -> int:
    """The idempotence version of a transfer ``name.incarnation/number``."""
    incarnation, number = transfer.rpartition(".")[2].split("/")
    return int(incarnation) * 100_000 + int(number)


class Notes:
    """A writer's own file of the ledger."""

    def __init__(self, job: Job) -> None:
        self._path = Path(job.ledger) / f"{job.name}.{job.incarnation}.writer"
        self._path.touch()

    def add(self, word: str, transfer: str) -> None:
        with self._path.open("a") as file:
            file.write(f"{word} {transfer}\n")


# -- writing -------------------------------------------------------------------------------------


class Teller:
    """A writer. Every second one has versions, by which its successors learn what it committed."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.chance = random.Random(f"{job.seed} {job.name} {job.incarnation}")
        self.notes = Notes(job)
        self.number = 0
        self.versioned = int(job.name[1:]) % 2 == 0
        self.closed = False

    def run(self) -> None:
        store = open_store(self.job)
        while not self._is_over():
            # Before the init: what was asked for by then has its outcome after it.
            ledger = Ledger(self.job.ledger)
            ledger.read()
            try:
                producer = store.producer(
                    transactional_id=self.job.name, transaction_timeout_ms=self.job.timeout_ms
                )
                producer.init_transactions()
                self._learn(producer, ledger)
                while not self._is_over() and self._is_let():
                    self._transfer(store, producer)
            except TxnlogError as error:
                say("error", type(error).__name__)

    def _is_over(self) -> bool:
        """Whether the bank closes, or another instance has this one's place."""
        following = f"{self.job.name}.{self.job.incarnation + 1}.writer"
        return self.closed or (Path(self.job.ledger) / following).exists()

    def _is_let(self) -> bool:
        """Wait for a byte on the standard input, which stands for one transfer; False at its end.

        So there are not so many that those who look at them fall behind.
        """
        self.closed = not os.read(sys.stdin.fileno(), 1)
        return not self.closed

    def _learn(self, producer: Producer, ledger: Ledger) -> None:
        """Find out what became of transfers whose writer never learnt it, from the id's version."""
        if not self.versioned:
            return
        last = producer.committed_version(self.job.name)
        known = -1 if last is None else last
        mine = [t for t in ledger.said["ack"] if t.startswith(f"{self.job.name}.")]
        assert max(map(version_of, mine), default=-1) <= known, f"a commit is lost: {mine}, {last}"
        for transfer in ledger.in_doubt(self.job.name):
            if version_of(transfer) >= known:
                self.notes.add("ack" if version_of(transfer) == known else "abort", transfer)

    def _transfer(self, store: txnlog.Store, producer: Producer) -> None:
        transfer = f"{self.job.name}.{self.job.incarnation}/{self.number}"
        self.number += 1
        self.notes.add("begin", transfer)
        try:
            if self.versioned:
                begun = producer.begin_transaction(
                    application_id=self.job.name, version=version_of(transfer)
                )
                if begun.already_committed:
                    self.notes.add("abort", transfer)
                    return
            else:
                producer.begin_transaction()
            self._fill(store, producer, transfer)
            if self.chance.random() < 0.08:
                self.notes.add("abort", transfer)
                producer.abort_transaction()
                say("aborted", transfer)
                return
        except TxnlogError:
            self.notes.add("abort", transfer)
            with suppress(TxnlogError):
                producer.abort_transaction()
            raise
        self.notes.add("ask", transfer)
        self._commit(producer, transfer)

    def _fill(self, store: txnlog.Store, producer: Producer, transfer: str) -> None:
        chance = self.chance
        topics = chance.sample(sorted(PARTITIONS), chance.choice([2, 2, 2, 3, 4]))
        if chance.random() < 0.3:
            topics += [chance.choice(topics)]
        amounts = [chance.randint(-999, 999) for _ in topics[1:]]
        amounts.append(-sum(amounts))
        moves = self._move(store, producer) if chance.random() < 0.3 else ()
        for number, (topic, amount) in enumerate(zip(topics, amounts, strict=True)):
            leg = Leg(transfer, number, len(topics), amount, moves if number == 0 else ())
            partition = chance.randrange(PARTITIONS[topic])
            producer.send(topic, leg.encode(), partition=partition)
            if chance.random() < 0.4:
                producer.flush()
                say("open", transfer)

    def _move(self, store: txnlog.Store, producer: Producer) -> tuple[Move, ...]:
        """Let a group go on by some records, together with the transfer."""
        group, topic = self.chance.choice(sorted(SOURCES.items()))
        places = [TopicPartition(topic, number) for number in range(PARTITIONS[topic])]
        with store.consumer(group_id=group, auto_offset_reset="earliest") as consumer:
            consumer.assign(places)
            starts = [consumer.position(place) for place in places]
            consumer.poll(max_records=self.chance.randint(1, 20))
            stops = [consumer.position(place) for place in places]
            moved = {
                p: stop
                for p, start, stop in zip(places, starts, stops, strict=True)
                if stop > start
            }
            if moved:
                producer.send_offsets_to_transaction(moved, consumer.group_metadata())
        return tuple(
            Move(group, topic, p.partition, start, stop)
            for p, start, stop in zip(places, starts, stops, strict=True)
            if stop > start
        )

    def _commit(self, producer: Producer, transfer: str) -> None:
        unknown = False
        for _ in range(4):
            try:
                producer.commit_transaction()
                self.notes.add("ack", transfer)
                say("ack", transfer)
                return
            except CommitStateUnknown:
                unknown = True
            except TxnlogError:
                if not unknown:
                    self.notes.add("abort", transfer)
                    with suppress(TxnlogError):
                        producer.abort_transaction()
                raise
        say("unknown", transfer)
        raise CommitStateUnknown(transfer)


def tidy(job: Job) -> None:
    """Leave checkpoints and clean up much more often than writers do."""
    chance = random.Random(f"{job.seed} {job.name} {job.incarnation}")
    logs = open_store(job).logs
    clock = SystemClock()
    done = 0
    while not (Path(job.ledger) / STOP).exists():
        clock.sleep(chance.random() * 0.2)
        kind, name = chance.choice(
            [*[("topic", topic) for topic in PARTITIONS], *[("group", group) for group in SOURCES]]
        )
        log = logs.topic(name) if kind == "topic" else logs.group(name)
        patiently(job, log.refresh)
        if chance.random() < 0.7:
            patiently(job, partial(logs.settlement.settle, [log]))
        if log.next_entry:
            patiently(job, log.checkpoint)
            done += 1
            if done % 10 == 0:
                say("tidied", name)


# -- reading -------------------------------------------------------------------------------------


class Place(NamedTuple):
    """What a segment or a part of it takes of a partition."""

    topic: str
    partition: int
    start: int
    stop: int
    segment: str


Shown = dict[tuple[str, int], list[Place]]


class Torn(Exception):
    """A snapshot has shown what it must not show, or not shown what it must."""


class Auditor:
    """Takes snapshots of all topics, and judges each by its own records and by those before it."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.ledger = Ledger(job.ledger)
        self.store = open_store(job)
        self._legs: dict[Place, list[Leg]] = {}
        self._prefix: Shown = {}
        self._stable: dict[tuple[str, int], int] = {}
        self._committed: set[Place] = set()
        self._everything: set[Place] = set()
        self._told: set[str] = set()

    def look(self, level: IsolationLevel) -> bool:
        """One snapshot; True if it calls itself atomic. Raises Torn."""
        if self.job.anew:
            self.store = open_store(self.job)
        self.ledger.read()
        acknowledged = set(self.ledger.said["ack"])
        snapshot = self.store.snapshot(list(PARTITIONS), isolation_level=level)
        shown = self._shown(snapshot)
        places = {place for of_partition in shown.values() for place in of_partition}
        legs = self._gathered(places)
        if level == "read_uncommitted":
            self._judge_everything(snapshot, shown, legs, acknowledged)
        else:
            self._judge_committed(legs, whole=level == "snapshot" or snapshot.is_atomic)
            if level == "snapshot":
                check(acknowledged <= legs.keys(), "acknowledged before", acknowledged - {*legs})
                check(self._committed <= places, "gone", self._committed - places)
            else:
                self._judge_prefix(snapshot, shown)
            self._committed |= places
            self._tell(legs)
        self._everything |= places
        return snapshot.is_atomic

    def _shown(self, snapshot: Snapshot) -> Shown:
        """Where the records of a snapshot are. Each segment is read once, and then remembered."""
        shown: Shown = {}
        for topic, count in PARTITIONS.items():
            for partition in range(count):
                shown[topic, partition] = []
            for part in snapshot.scan(topic).ranges:
                place = Place(
                    topic,
                    part.partition,
                    part.start_offset,
                    part.stop_offset,
                    part.segment.stored.name,
                )
                shown[topic, part.partition].append(place)
                if place not in self._legs:
                    self._legs[place] = [
                        Leg.parse(value)
                        for batch in read_ranges(self.store.storage, [part], VALUE)
                        for value in batch.column("value").to_pylist()
                    ]
                    check(len(self._legs[place]) == place.stop - place.start, "records", place)
        return shown

    def _gathered(self, places: set[Place]) -> dict[str, list[Leg]]:
        legs: dict[str, list[Leg]] = defaultdict(list)
        for place in places:
            for leg in self._legs[place]:
                legs[leg.transfer].append(leg)
        for transfer, found in legs.items():
            numbers = [leg.number for leg in found]
            check(len(numbers) == len({*numbers}), "doubled", (transfer, found))
        return legs

    def _judge_committed(self, legs: Mapping[str, list[Leg]], *, whole: bool) -> None:
        self.ledger.read()
        aborted = self.ledger.said["abort"] & legs.keys()
        check(not aborted, "aborted", aborted)
        if not whole:
            return
        torn = {t: found for t, found in legs.items() if len(found) != found[0].legs}
        check(not torn, "torn", torn)
        total = sum(leg.amount for found in legs.values() for leg in found)
        check(total == 0, "the sum", total)

    def _judge_prefix(self, snapshot: Snapshot, shown: Shown) -> None:
        """Each partition shows a prefix of what was seen before, or more.

        Only a cut may end before what an earlier snapshot has shown.
        """
        for where, places in shown.items():
            known = self._prefix.get(where, [])
            shorter = min(len(known), len(places))
            check(known[:shorter] == places[:shorter], "no prefix", (known, places))
            end = snapshot.end_offsets(where[0])[where[1]]
            if not snapshot.is_atomic:
                check(end >= self._stable.get(where, 0), "stable offset", (where, end))
            self._stable[where] = max(end, self._stable.get(where, 0))
            if len(places) > len(known):
                self._prefix[where] = places

    def _judge_everything(
        self,
        snapshot: Snapshot,
        shown: Shown,
        legs: Mapping[str, list[Leg]],
        acknowledged: set[str],
    ) -> None:
        for where, places in shown.items():
            ends = [0, *[place.stop for place in places]]
            starts = [*[place.start for place in places], snapshot.end_offsets(where[0])[where[1]]]
            check(ends == starts, "a gap", (where, places))
        everything = {place for places in shown.values() for place in places}
        check(self._everything <= everything, "lost", self._everything - everything)
        check(acknowledged <= legs.keys(), "acknowledged and lost", acknowledged - {*legs})
        for transfer in acknowledged:
            found = legs[transfer]
            check(len(found) == found[0].legs, "acknowledged in part", found)

    def _tell(self, legs: Mapping[str, list[Leg]]) -> None:
        """Note down what was shown as committed, for the last judgement."""
        new = legs.keys() - self._told
        self._told |= new
        with (Path(self.job.ledger) / f"{self.job.name}.{self.job.incarnation}.reader").open(
            "a"
        ) as file:
            file.writelines(f"{transfer}\n" for transfer in sorted(new))


def check(holds: bool, what: str, seen: object) -> None:
    if not holds:
        raise Torn(f"{what}: {seen}")


def read(job: Job) -> None:
    """Take so many snapshots of each level, in an order that the seed decides."""
    chance = random.Random(f"{job.seed} {job.name} {job.incarnation}")
    levels = [level for level, count in job.looks.items() for _ in range(count)]
    chance.shuffle(levels)
    auditor = Auditor(job)
    for number, level in enumerate(levels):
        if (Path(job.ledger) / STOP).exists():
            break
        try:
            atomic = patiently(job, partial(auditor.look, check_isolation_level(level)))
        except ConcurrentTransactions:
            say("refused", level)
            continue
        except (Torn, TxnlogError) as error:
            what = f"{job.name}, look {number} at {level}: {type(error).__name__}: {error}"
            (Path(job.ledger) / "violation").write_text(f"{what}\n{job}\n")
            raise
        say("saw", level, "atomic" if atomic else "apart")


# -- stopping in the middle of a listing ---------------------------------------------------------


class HaltingListing:
    """A listing in the middle of which the process stops itself, until somebody continues it."""

    _one_at_a_time = threading.Lock()

    def __init__(self, inner: Any, after: int) -> None:
        self._inner = inner
        self._after = after

    def __enter__(self) -> Iterator[os.DirEntry[str]]:
        return self._entries(self._inner.__enter__())

    def __exit__(self, *exception: object) -> None:
        self._inner.__exit__(*exception)

    def _entries(self, entries: Iterator[os.DirEntry[str]]) -> Iterator[os.DirEntry[str]]:
        number = -1
        for number, entry in enumerate(entries):
            if number == self._after:
                self._halt(number)
            yield entry
        if number < self._after:
            self._halt(number)

    def _halt(self, number: int) -> None:
        with self._one_at_a_time:
            say("halt", number)
            os.kill(os.getpid(), signal.SIGSTOP)


def halt_listings(job: Job) -> None:
    chance, scandir = random.Random(f"{job.seed} {job.name} halts"), os.scandir

    def halting(path: Any = ".") -> Any:
        listing = scandir(path)
        if chance.random() >= job.halts:
            return listing
        return HaltingListing(listing, chance.choice([0, 10, 500, 1_000, 2_000, 3_000]))

    os.scandir = halting


ROLES: dict[str, Callable[[Job], None]] = {
    "write": lambda job: Teller(job).run(),
    "tidy": tidy,
    "read": read,
}

if __name__ == "__main__":
    role, given = sys.argv[1:]
    chosen = Job(**json.loads(given))
    if chosen.halts:
        halt_listings(chosen)
    ROLES[role](chosen)
    say("done")
