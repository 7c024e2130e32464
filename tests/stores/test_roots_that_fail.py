"""Replicated stores on real roots, under a bank, while the roots are stopped and come back.

What is stopped when is decided by a seed; how far everybody is by then is up to the machine. The
bank's own judges hold that nothing is torn and nothing acknowledged is lost.
"""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.stores.failing_roots import DiskRoot, FailingRoot, ServerRoot
from tests.stores.servers import CannotStart, StoreServer
from tests.stores.stores_report import Report
from tests.support.simulation.bank import Bank, looks, open_banks
from tests.support.simulation.bank import judge as judge_bank
from tests.support.simulation.bank_worker import Ledger
from txnlog.errors import CommitStateUnknown, NotEnoughReplicas, StorageError
from txnlog.replication import Replicas, open_replicas
from txnlog.replication.root_names import MEMBER_MARKS
from txnlog.replication.roots.replicated_storage import ReplicatedStorage
from txnlog.storage.base import Storage
from txnlog.store import Store, open_store

EXAMPLES = Path(__file__).parents[2] / "examples"
FLIGHTS = 3_000
BATCH = 1_000
LAG_S = 2.0
PATIENCE_S = 300.0
MANY = 10_000
TIMEOUT_MS = 20_000
CONFIG: dict[str, Any] = {
    "transaction.max.timeout.ms": TIMEOUT_MS,
    "log.cleanup.age.ms": TIMEOUT_MS,
    "replica.lag.time.max.ms": int(LAG_S * 1000),
}


@dataclass
class Outages:
    """Stops one root after the other, as often as it should, and brings each back in.

    Attributes:
        times: how often.
        took_s: by way, how long the next commit took after a root was stopped.
        elections: how often it was the one that led.
    """

    roots: Sequence[FailingRoot]
    store: Store
    seed: int
    times: int
    took_s: dict[str, list[float]] = field(default_factory=dict)
    elections: int = 0

    def run(self) -> None:
        chance = random.Random(self.seed)
        for number in range(self.times):
            for root in self.roots:  # on a busy machine one may have been taken for gone
                self._bring_in(root)
            (leader,) = (root for root in self.roots if self._state_of(root) == "leader")
            others = [root for root in self.roots if root is not leader]
            gone = leader if number % 2 else chance.choice(others)
            self._lose(gone, chance.choice(gone.ways))
            self.elections += gone is leader
            time.sleep(chance.uniform(0, 1))
        for root in self.roots:
            self._bring_in(root)

    def _state_of(self, root: FailingRoot) -> str:
        (state,) = (
            one.state for one in Replicas(self.store).describe().replicas if one.url == root.url
        )
        return state

    def _lose(self, root: FailingRoot, way: str) -> None:
        """Stop a root; what is committed then is acknowledged without it."""
        root.stop(way)
        began_s = time.monotonic()
        while True:
            try:
                commit(self.store)
                break
            except (NotEnoughReplicas, CommitStateUnknown):  # if others were taken for gone, too
                root.bring_back()
                for one in self.roots:
                    self._bring_in(one)
                root.stop(way)
                began_s = time.monotonic()
        self.took_s.setdefault(way, []).append(time.monotonic() - began_s)
        assert self._state_of(root) == "out", f"acknowledged while it was {way}, and is in sync"
        root.bring_back()

    def _bring_in(self, root: FailingRoot) -> None:
        began_s = time.monotonic()
        while self._state_of(root) == "out":
            # The set may change meanwhile: on a busy machine others find that a root fails, too.
            assert time.monotonic() - began_s < PATIENCE_S, f"{root.url} does not come back"
            with suppress(NotEnoughReplicas):
                Replicas(self.store).add(root.url)


def commit(store: Store) -> None:
    """One record, outside of any transaction."""
    with store.producer() as producer:
        producer.send("beats", b"one")
        producer.flush()


def lose_controller(controller: FailingRoot, store: Store, ledger: Ledger) -> None:
    """Nothing that is asked for while it is gone is acknowledged; then all go on."""
    controller.stop("killed")
    ledger.read()
    asked = set(ledger.said["ask"])  # who had looked at the epochs before may note it down late
    for _ in range(4):
        with pytest.raises(StorageError):
            commit(store)
    ledger.read()
    assert ledger.said["ack"] <= asked
    controller.bring_back()
    commit(store)


@contextmanager
def started(*roots: FailingRoot | ServerRoot) -> Iterator[None]:
    try:
        yield
    finally:
        for root in roots:
            root.end()


def server_root(kind: str, folder: Path, report: Report) -> ServerRoot:
    """A server that is started; the test is skipped where it cannot be had."""
    try:
        return ServerRoot(kind, folder)
    except CannotStart as why:
        report.missing[kind] = str(why)
        pytest.skip(f"{kind} cannot be started: {why}")


def run_bank(
    folder: Path,
    roots: Sequence[FailingRoot],
    controller: FailingRoot,
    seed: int,
    times: int,
    *,
    loses_controller: bool = False,
) -> tuple[Outages, Bank]:
    """A bank of three writers, one who tidies up and a reader, until all outages are over."""
    options = {one.url: one.options for one in (*roots, controller) if one.options}
    others = [root.url for root in roots[1:]]
    with open_banks(folder) as opened, ThreadPoolExecutor(1) as pool:
        bank = opened(
            *(seed, roots[0].url, options, CONFIG), others=others, controller=controller.url
        )
        bank.kill, bank.stop, bank.timeout_ms, bank.patience_s = 0.02, 0.03, TIMEOUT_MS, PATIENCE_S
        store = open_store(controller.url, storage_options=options)
        store.topics.create("beats")
        outages = Outages(roots, store, seed, times)

        def disturb() -> None:
            outages.run()
            if loses_controller:
                lose_controller(controller, store, Ledger(str(bank.ledger)))

        disturbing = pool.submit(disturb)
        # Where it has failed nobody may be able to go on: then the bank ends with its error.
        bank.is_over = lambda: disturbing.done() and disturbing.result() is None
        for number in range(3):
            bank.hire("write", f"w{number}", timeout_ms=TIMEOUT_MS)
        bank.hire("tidy", "t0")
        bank.hire("read", "r0", looks=looks(MANY), anew=True)
        bank.run()
        disturbing.result()
        judge_bank(bank)
        assert sum(map(len, outages.took_s.values())) == times
        assert store.scan("beats").to_arrow().num_rows >= times
        check_roots_agree(store)
    return outages, bank


def check_roots_agree(store: Store) -> None:
    """All that the leader has is at every other root that is in sync, with the same bytes."""
    storage = store.storage
    assert isinstance(storage, ReplicatedStorage)
    epoch = storage.agreement.refresh()
    leader, *others = (storage.agreement.storage(epoch, one) for one in epoch.members)
    assert others
    expected = objects(leader)
    assert len(expected) > 20
    for other in others:
        found = objects(other)
        assert expected.keys() <= found.keys(), sorted(expected.keys() - found.keys())[:5]
        assert not [name for name, data in expected.items() if found[name] != data]


def objects(storage: Storage) -> dict[str, bytes]:
    aside = (f"{MEMBER_MARKS}/", ".")
    found = [name for name, _ in storage.list_all("") if not name.startswith(aside)]
    return {name: storage.get(name) for name in found}


def tell(report: Report, server: StoreServer, ran: tuple[Outages, Bank]) -> None:
    outages, bank = ran
    report.begin(server)
    done = bank.done
    report.add(
        server,
        "bank",
        f"{done['transfers']} transfers, {done['acknowledged']} acknowledged, {done['killed']} "
        f"kills, {done['saw']} snapshots: none torn, none lost",
    )
    report.add(server, "outages", f"{outages.times}, {outages.elections} of them of the leader")
    for way, took_s in sorted(outages.took_s.items()):
        figure = f"{statistics.median(took_s):.1f} s, at most {max(took_s):.1f} s"
        report.add(
            server, f"commit after a root is stopped: {way}", f"{figure} ({len(took_s)} times)"
        )
    report.add(server, "`replica.lag.time.max.ms`", f"{LAG_S * 1000:.0f}")


def test_disks_and_a_controller_on_s3(tmp_path: Path, report: Report) -> None:
    """A folder goes away 12 times, every second time the leader's; then the controller does."""
    controller = server_root("versitygw", tmp_path / "controller", report)
    roots = [DiskRoot(tmp_path / "one"), DiskRoot(tmp_path / "two")]
    with started(controller):
        outages = run_bank(tmp_path, roots, controller, 3, 12, loses_controller=True)
    name = StoreServer("replicas-on-disks", f"with versitygw {controller.server.version}", "")
    tell(report, name, outages)


def test_two_servers_and_a_disk(tmp_path: Path, report: Report) -> None:
    """Servers are killed or stand still, a folder goes away, 6 times, and come back.

    To be copied to a server takes half a minute: the bank goes on meanwhile.
    """
    first = server_root("versitygw", tmp_path / "versitygw", report)
    with started(first):
        second = server_root("minio", tmp_path / "minio", report)
        with started(second):
            roots = [first, second, DiskRoot(tmp_path / "disk")]
            outages = run_bank(tmp_path, roots, DiskRoot(tmp_path / "controller"), 4, 6)
    version = f"versitygw {first.server.version}, minio {second.server.version}, a disk"
    tell(report, StoreServer("replicas-on-servers", version, ""), outages)


def test_the_flights_demo_loses_a_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job is killed, and the leader's disk goes while the next one runs; each flight once."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import flights_etl as demo
    from flights_data import load_flights
    from flights_proof import consumed_flights

    flights = load_flights(FLIGHTS)
    leader, other = (DiskRoot(tmp_path / name) for name in ("one", "two"))
    controller = str(tmp_path / "controller")
    config = {"replica.lag.time.max.ms": int(LAG_S * 1000)}
    store = open_replicas(
        [leader.url, other.url], controller=controller, create=True, config=config
    ).store
    for topic, partitions in demo.TOPICS.items():
        store.topics.create(topic, partitions=partitions)
    demo.fill(store, flights)
    command = [sys.executable, str(EXAMPLES / "flights_job.py"), "--store", controller]
    with subprocess.Popen([*command, "--batch-size", str(BATCH)]) as killed:
        try:
            wait_for(lambda: bool(store.groups.list()) and consumed_flights(store) >= BATCH)
        finally:
            killed.kill()
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(demo.run_job, store, BATCH)
        before = consumed_flights(store)
        wait_for(lambda: consumed_flights(store) > before or job.done())
        leader.stop("not mounted")
        assert before < consumed_flights(store) < FLIGHTS
        job.result()
    prove(demo, open_store(controller), flights)
    assert Replicas(store).describe().leader == "r1-0"
    leader.bring_back()
    Replicas(store).add(leader.url)
    other.stop("gone")
    after = open_store(leader.url)
    after.maintain()  # nobody else writes, by whom it would be put out
    prove(demo, after, flights)


def wait_for(holds: Callable[[], bool]) -> None:
    """For as long as Spark may take to begin on a busy machine."""
    began_s = time.monotonic()
    while not holds():
        assert time.monotonic() - began_s < 5 * PATIENCE_S
        time.sleep(0.1)


def prove(demo: Any, store: Store, flights: Any) -> None:
    proof = demo.Proof()
    proof.all_of(store, flights)
    assert not proof.failed
