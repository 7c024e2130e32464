"""A bank of real processes, and the last judgement of it, for tests of any storage.

Writers transfer amounts between four topics, and let consumer groups go on in the same
transactions. Readers take snapshots at each level and judge them (``bank_worker.py``); when all are
done, the last judgement is here. A seed decides who is stopped and killed when; how far they are by
then is up to the machine.
"""

from __future__ import annotations

import os
import random
import selectors
import signal
import subprocess
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

import txnlog
from tests.support.simulation.bank_worker import (
    LEVELS,
    PARTITIONS,
    SOURCES,
    STOP,
    Job,
    Ledger,
    Leg,
    Move,
)
from txnlog import IsolationLevel
from txnlog.clock import SystemClock
from txnlog.names import TopicPartition
from txnlog.replication import open_replicas
from txnlog.store import Store, open_store
from txnlog.testing import VirtualClock

SILENCE_S = 120
TIMEOUT_MS = 2_000
LEAST_AGE = {"transaction.max.timeout.ms": TIMEOUT_MS, "log.cleanup.age.ms": TIMEOUT_MS}
DAY_MS = 86_400_000
PLAIN = {f"plain-{number}" for number in range(1_500)}
"""Written before some runs, and without transactions, so that folders of logs are full."""


class Clerk:
    """A process of the bank, in one of its incarnations."""

    def __init__(self, role: str, job: Job) -> None:
        self.role = role
        self.job = job
        self.process = subprocess.Popen(
            job.command(role), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.halted_for = 0
        """If it is stopped: how many lines others say before it goes on."""
        self.killed = False

    def line(self) -> list[str]:
        assert self.process.stdout is not None
        return self.process.stdout.readline().split()

    def let(self, transfers: int) -> None:
        """Allow a writer so many transfers more."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write("." * transfers)
            self.process.stdin.flush()

    def close(self) -> None:
        """Allow it none any more; it ends."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()

    def stopped(self, lines: int) -> None:
        """Wait until it stands still, as it was told to, or is over."""
        with suppress(ChildProcessError):  # over, and known to be
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        self.halted_for = lines

    def go_on(self) -> None:
        self.halted_for = 0
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.close()


@dataclass
class Bank:
    """Starts, disturbs and replaces processes until every reader has looked often enough."""

    seed: int
    folder: Path
    url: str
    options: dict[str, Any]
    done: Counter[str] = field(default_factory=Counter)
    kill: float = 0.04
    stop: float = 0.08
    transfers: float = 0.4
    """How many there are for each look of a reader."""
    timeout_ms: int = TIMEOUT_MS
    """Of transactions."""
    patience_s: float = 0.0
    """How long its processes go on trying where the store cannot be reached."""
    is_over: Callable[[], bool] | None = None
    """When it closes; otherwise when its readers have looked as often as they should.

    What it raises ends the bank, also while nobody gets on.
    """

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.selector = selectors.DefaultSelector()
        self.going: list[Clerk] = []
        self.everybody: list[Clerk] = []
        self.incarnations: Counter[str] = Counter()
        self.lines = 0
        self.ledger = self.folder / "ledger"
        self.ledger.mkdir()

    def hire(self, role: str, name: str, **job: Any) -> Clerk:
        job.setdefault("patience_s", self.patience_s)
        given = Job(self.url, str(self.ledger), name, self.seed, self.options, **job)
        return self._start(role, given)

    def _start(self, role: str, job: Job) -> Clerk:
        clerk = Clerk(role, replace(job, incarnation=self.incarnations[job.name]))
        self.incarnations[job.name] += 1
        assert clerk.process.stdout is not None
        self.selector.register(clerk.process.stdout, selectors.EVENT_READ, clerk)
        self.going.append(clerk)
        self.everybody.append(clerk)
        clerk.let(5)
        return clerk

    def run(self) -> None:
        """Until all are done.

        The last to be killed are not replaced: what they leave open times out.
        """
        silent_s = 0
        while self.going:
            if self.is_over is not None:
                self.is_over()
            ready = [key.data for key, _ in self.selector.select(timeout=1)]
            if not ready:
                silent_s += 1
                assert silent_s < SILENCE_S, f"seed {self.seed}: nobody says anything; {self.done}"
                for clerk in self.going:
                    clerk.go_on()
                continue
            silent_s = 0
            clerk = self.chance.choice(ready)
            words = clerk.line()
            self._let_go()
            if words and words[0] != "done":
                self._heard(clerk, words)
            elif words or self._over(clerk):
                self.selector.unregister(clerk.process.stdout)
                self.going.remove(clerk)

    def _let_go(self) -> None:
        """One line more was said: whoever has stood still for long enough goes on."""
        self.lines += 1
        for clerk in self.going:
            if clerk.halted_for:
                clerk.halted_for -= 1
                if not clerk.halted_for:
                    clerk.go_on()
            elif self.lines % 20 == 0:
                clerk.go_on()  # it may have stopped itself just after it was let go on

    def _over(self, clerk: Clerk) -> bool:
        code = clerk.process.wait()
        violation = self.ledger / "violation"
        if violation.exists():
            pytest.fail(f"seed {self.seed}: {violation.read_text()[:4000]}")
        assert code == -signal.SIGKILL, f"seed {self.seed}: {clerk.job.name} ended with {code}"
        if not self._closing:
            self._start(clerk.role, clerk.job)
        return True

    @property
    def _closing(self) -> bool:
        return (self.ledger / STOP).exists()

    def _heard(self, clerk: Clerk, words: list[str]) -> None:
        self.done[words[0]] += 1
        if words[0] in ("saw", "refused"):
            self.done[" ".join(words)] += 1
            clerk.job.looks[words[1]] -= 1
            if not self._closing and (self.is_over or self._have_looked)():
                (self.ledger / STOP).touch()
                for other in self.going:
                    other.close()
            elif self.chance.random() < self.transfers and not self._closing:
                writers = [other for other in self.going if other.role == "write"]
                self.chance.choice(writers).let(1)
        if words[0] == "error":
            self.done[" ".join(words)] += 1
        if words[0] == "halt":
            # It may not stand still yet, or was let go on already for what it said before.
            clerk.halted_for = self.chance.choice([3, 10, 40])
            return
        if clerk.halted_for or clerk.killed:
            return
        if clerk.role == "read":
            self._disturb_reader(clerk)
        else:
            self._disturb(clerk)

    def _have_looked(self) -> bool:
        going = (other for other in self.everybody if other in self.going)
        return not any(sum(other.job.looks.values()) for other in going)

    def _disturb(self, clerk: Clerk) -> None:
        lot = self.chance.random()
        if lot < self.kill or (self._closing and lot < 0.3):
            self._kill(clerk)
        elif lot < self.kill + self.stop and not self._closing:
            clerk.process.send_signal(signal.SIGSTOP)
            # The longest is beyond the timeout of what it has open.
            clerk.stopped(self.chance.choice([3, 30, 250]))
            self.done["stopped"] += 1
            if clerk.role == "write" and self.chance.random() < 0.25:
                # Another takes its id while it is stopped, and it wakes up as a zombie.
                self._start(clerk.role, clerk.job)
                self.done["zombies"] += 1

    def _disturb_reader(self, clerk: Clerk) -> None:
        lot = self.chance.random()
        if lot < self.kill / 8:
            self._kill(clerk)
        elif lot < (self.kill + self.stop) / 4:
            clerk.process.send_signal(signal.SIGSTOP)
            clerk.stopped(self.chance.choice([3, 30, 100]))
            self.done["readers stopped"] += 1

    def _kill(self, clerk: Clerk) -> None:
        clerk.process.send_signal(signal.SIGKILL)
        clerk.killed = True
        self.done[f"killed {clerk.role}"] += 1
        self.done["killed"] += 1

    def end(self) -> None:
        for clerk in self.everybody:
            clerk.end()
        self.selector.close()


@contextmanager
def open_banks(folder: Path) -> Iterator[Callable[..., Bank]]:
    """Opens banks, and ends all their processes with the block."""
    banks: list[Bank] = []

    def opened(
        seed: int,
        url: str,
        options: dict[str, Any],
        config: dict[str, int],
        *,
        others: Sequence[str] = (),
        controller: str | None = None,
    ) -> Bank:
        """At a URL; with the URLs of ``others`` and of a controller it has several roots."""
        if controller is None:
            store = txnlog.open(url, create=True, storage_options=options, config=config)
        else:
            store = open_replicas(
                [url, *others],
                controller=controller,
                create=True,
                storage_options=options,
                config=config,
            ).store
        for topic, count in PARTITIONS.items():
            store.topics.create(topic, partitions=count)
        banks.append(Bank(seed, folder, controller or url, options))
        return banks[-1]

    try:
        yield opened
    finally:
        for opened_one in banks:
            opened_one.end()


# -- the runs --------------------------------------------------------------------------------------


def looks(count: int) -> dict[str, int]:
    return dict.fromkeys(LEVELS, count)


def open_for_business(bank: Bank, writers: int, count: int, halts: float = 0.0) -> None:
    """So many writers, one who tidies up, and four readers with so many looks at each level."""
    for number in range(writers):
        bank.hire("write", f"w{number}", timeout_ms=bank.timeout_ms, halts=halts / 10)
    bank.hire("tidy", "t0")
    bank.hire("read", "r0", looks=looks(count), halts=halts)
    bank.hire("read", "r1", looks=looks(count), halts=halts, anew=True)
    bank.hire("read", "r2", looks=looks(count), halts=halts, skew_ms=61_000)
    bank.hire("read", "r3", looks=looks(count), halts=halts, anew=True, skew_ms=-30 * DAY_MS)
    bank.run()
    judge(bank)
    print(dict(bank.done))  # noqa: T201 - figures for `pytest -s`


# -- the last judgement ----------------------------------------------------------------------------


def legs_of(table: Any) -> dict[str, list[Leg]]:
    found: dict[str, list[Leg]] = defaultdict(list)
    for value in table.column("value").to_pylist():
        leg = Leg.parse(value)
        found[leg.transfer].append(leg)
    return found


def everything(store: Store, level: IsolationLevel) -> dict[str, list[Leg]]:
    """By transfer, all legs that a level shows; none twice."""
    snapshot = store.snapshot(list(PARTITIONS), isolation_level=level)
    assert snapshot.is_atomic == (level != "read_uncommitted")
    legs: dict[str, list[Leg]] = defaultdict(list)
    for topic in PARTITIONS:
        for transfer, found in legs_of(snapshot.scan(topic).to_arrow()).items():
            legs[transfer] += found
    for transfer, found in legs.items():
        numbers = [leg.number for leg in found]
        assert len(numbers) == len({*numbers}), (transfer, found)
    return legs


def judge(bank: Bank) -> None:
    """Every acknowledged transfer is there once and whole, no aborted one is, and nothing hangs."""
    clock = VirtualClock(SystemClock().now_ms(), bank.seed)
    store = open_store(bank.url, storage_options=bank.options, clock=clock)
    store.snapshot(list(PARTITIONS))
    # What is open now, it has watched for longer than the timeout when it looks again.
    clock.sleep(2 * bank.timeout_ms / 1000)
    committed = everything(store, "read_committed")
    for transfer, found in committed.items():
        assert len(found) == found[0].legs, (transfer, found)
    assert sum(leg.amount for found in committed.values() for leg in found) == 0
    assert everything(store, "snapshot") == committed
    for topic, count in PARTITIONS.items():
        described = store.topics.describe(topic)
        assert not described.open_transactions, topic
        table = store.scan(topic, isolation_level="read_uncommitted").to_arrow()
        offsets: dict[int, list[int]] = {partition: [] for partition in range(count)}
        for partition, offset in zip(
            *(table.column(name).to_pylist() for name in ("partition", "offset")), strict=True
        ):
            offsets[partition].append(offset)
        assert all(found == list(range(len(found))) for found in offsets.values()), topic
    judge_ledger(bank, committed, everything(store, "read_uncommitted"))
    judge_groups(store, committed)
    for hanging in store.transactions.hanging():
        # It holds nobody up: it has no undecided entry, so no reader has come across it.
        left = hanging.transaction.transactional_id
        timeout_ms = bank.timeout_ms
        store.producer(transactional_id=left, transaction_timeout_ms=timeout_ms).init_transactions()
    assert [*store.transactions.hanging()] == []
    assert everything(store, "snapshot") == committed
    bad = [f for f in store.examine(with_contents=True) if f.state not in ("ok", "note", "orphan")]
    assert not bad, bad


def judge_ledger(bank: Bank, committed: dict[str, list[Leg]], placed: dict[str, list[Leg]]) -> None:
    """What writers were told, and what readers have seen, against what is there."""
    ledger = Ledger(str(bank.ledger))
    ledger.read()
    said, shown = ledger.said, committed.keys() - PLAIN
    assert not said["ack"] & said["abort"], said["ack"] & said["abort"]
    assert said["ack"] <= shown, said["ack"] - shown
    assert not said["abort"] & shown, said["abort"] & shown
    assert shown <= said["ask"], shown - said["ask"]
    assert placed.keys() - PLAIN <= said["begin"]
    assert committed.keys() <= placed.keys()
    for path in bank.ledger.glob("*.reader"):
        seen = set(path.read_text().split())
        assert seen <= committed.keys(), (path.name, seen - committed.keys())
    bank.done["transfers"] = len(shown)
    bank.done["acknowledged"] = len(said["ack"])
    bank.done["aborted for certain"] = len(said["abort"])
    bank.done["in doubt"] = len(said["ask"] - said["ack"] - said["abort"])


def judge_groups(store: Store, committed: dict[str, list[Leg]]) -> None:
    """Each group has read everything once: what committed transfers moved it by is one chain."""
    moves: dict[tuple[str, str, int], list[Move]] = defaultdict(list)
    for found in committed.values():
        for leg in found:
            for move in leg.moves:
                moves[move.group, move.topic, move.partition].append(move)
    assert moves
    for group, topic in SOURCES.items():
        consumer = store.consumer(topic, group_id=group)
        for partition in range(PARTITIONS[topic]):
            chain = sorted(moves[group, topic, partition], key=lambda move: move.start)
            offset = 0
            for move in chain:
                assert move.start == offset, (move, chain)
                offset = move.stop
            at = consumer.committed(TopicPartition(topic, partition))
            assert (at.offset if at else 0) == offset, (group, topic, partition, at, offset)
