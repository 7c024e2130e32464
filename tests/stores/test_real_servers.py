"""Each real server: it conforms, or is refused; jobs that are killed on it lose and tear nothing.

How far a process is when it is killed is up to the machine; the judges count what is there in the
end. Figures go into benchmarks/STORES.md.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

import txnlog
from tests.stores import small_files
from tests.stores.servers import StoreServer
from tests.stores.stores_report import Report
from tests.support.replication.standby_journey import there_and_back
from tests.support.simulation.bank import LEAST_AGE, open_banks, open_for_business
from tests.support.simulation.copy_job import (
    PREPARED,
    TOTAL,
    check_whole_transactions,
    copy_all,
    judge,
)
from txnlog.errors import PutIfAbsentBroken, TxnlogError
from txnlog.replication import open_replicas
from txnlog.storage import open_storage
from txnlog.storage.adapters.local import LocalStorage
from txnlog.storage.adapters.s3 import S3Storage
from txnlog.storage.counting import CountingStorage
from txnlog.storage.probe import check_before_first_write, probe
from txnlog.store import Store, attach
from txnlog.testing import Fault, FaultyStorage, ProcessStopped, VirtualClock
from txnlog.testing.conformance.fault_proxy import ProxyFaults
from txnlog.testing.conformance.lost_responses import create_over_cut_connections, through_proxy
from txnlog.testing.conformance.races import RaceFigures, race
from txnlog.testing.conformance.speed import Speed
from txnlog.testing.conformance.suite import Suite
from txnlog.testing.conformance.ways import Way

SLOW_TIMEOUT_MS = 10_000
PROBES = 20
COMMITS = 60
LOGIN_CUTS = ProxyFaults(refuse=0.03, lose=0.08, truncate=0.03)
"""A login takes several requests: with as many cuts as elsewhere hardly any succeeds."""
MILLION = 1_000_000


def place(server: StoreServer) -> tuple[str, dict[str, Any]]:
    """A new folder on the server, and how to reach it."""
    return f"{server.url}/{uuid4().hex}", dict(server.options)


def new_store(server: StoreServer, **config: object) -> Store:
    url, options = place(server)
    return txnlog.open(url, create=True, storage_options=options, config=config)


def test_it_conforms(server: StoreServer, report: Report) -> None:
    """The shipped suite: the interface, races of four processes, cut connections, forks."""
    url, options = place(server)
    cut_check = "creates_over_cut_connections_are_found_out"
    suite = Suite(url, options, rounds=server.races)
    ran = suite.run(lambda name: server.cuts or name != cut_check)
    results = {result.check: result for result in ran}
    failed = [result for result in results.values() if result.state == "failed"]
    assert not failed
    raced = results["processes_that_race_have_one_winner"].figures
    speed = results["speed"].figures
    assert isinstance(raced, RaceFigures)
    assert isinstance(speed, Speed)
    report.add(server, "race of 16 in 4 processes", raced)
    report.add(server, "single requests", speed)
    cut = results.get(cut_check)
    if cut is not None and cut.state == "passed":
        report.add(server, "cut connections", cut.detail)
    passed = sum(result.state == "passed" for result in results.values())
    report.add(server, "conformance", f"{passed} checks passed")


@pytest.mark.one_server("hdfs_kerberos")
def test_logins_that_are_cut_are_given_up(server: StoreServer) -> None:
    """hdfs-native waits without end for the rest of a Kerberos handshake: our limit ends it."""
    url, options = place(server)
    storage = open_storage(url, options)
    storage.trust()
    with through_proxy(Way(url, {**options, "timeout_s": 6}), LOGIN_CUTS, seed=1) as found:
        assert found is not None
        disturbed, proxy = found
        create_over_cut_connections(storage, open_storage(disturbed.url, disturbed.options), 6)
        assert proxy.counts["lost"] > 2


def test_what_the_probe_costs(server: StoreServer, report: Report) -> None:
    """At creation and before a first write, in requests and time; both pass."""
    url, options = place(server)
    for what, check in (
        ("probe at creation", probe),
        ("check before a first write", check_before_first_write),
    ):
        counting = CountingStorage(open_storage(f"{url}/{what.split()[0]}", options))
        counting.trust()
        begun_s = time.perf_counter()
        check(counting)
        took_ms = (time.perf_counter() - begun_s) * 1000
        requests = counting.counts.total()
        assert requests > 10
        report.add(server, what, f"{requests} requests, {took_ms:.0f} ms")


def test_a_root_that_comes_back_is_sent_what_it_lacks(server: StoreServer, report: Report) -> None:
    """On disks, and where the server copies; else everything. Either way it is whole."""
    url, options = place(server)
    roots, controller = [f"{url}/r0", f"{url}/r1"], f"{url}/control"
    given = dict.fromkeys((*roots, controller), options)
    replicas = open_replicas(roots, controller=controller, create=True, storage_options=given)
    store = replicas.store
    store.topics.create("t", partitions=1, config={"compression.type": "none"})
    chance = random.Random(1)

    def send() -> None:
        with store.producer() as producer:
            producer.send("t", value=chance.randbytes(MILLION))

    for _ in range(4):
        send()
    replicas.remove("r1")
    send()
    joined = replicas.add(roots[1])
    copies = isinstance(open_storage(url, options), S3Storage | LocalStorage)
    assert joined.kept_bytes >= 4 * MILLION if copies else joined.kept_objects == 0
    assert joined.bytes < (2 if copies else 6) * MILLION
    assert [*replicas.verify(with_contents=True)] == []
    replicas.remove("r0")
    assert len(txnlog.open(roots[1], storage_options=given).scan("t").to_arrow()) == 5
    copied, kept = joined.bytes / MILLION, joined.kept_bytes / MILLION
    report.add(server, "a root comes back", f"{copied:.1f} MB copied, {kept:.1f} MB kept")


@pytest.mark.parametrize(("check", "least"), [(probe, PROBES), (check_before_first_write, 18)])
def test_a_liar_is_refused(liar: StoreServer, check: Any, least: int, report: Report) -> None:
    """At creation each time; before a first write, by fewer races, on a busy machine mostly."""
    refused, took_ms = 0, []
    for _ in range(PROBES):
        url, options = place(liar)
        storage = open_storage(url, options)
        storage.trust()
        begun_s = time.perf_counter()
        with suppress(PutIfAbsentBroken):
            try:
                check(storage)
            finally:
                took_ms.append((time.perf_counter() - begun_s) * 1000)
            continue
        refused += 1
    figure = f"refused {refused} of {PROBES}, in {statistics.median(took_ms):.0f} ms each"
    report.add(liar, f"`{check.__name__}`", figure)
    assert refused >= least


def test_a_liar_is_seen_by_the_race(liar: StoreServer, report: Report) -> None:
    """The measure of how much it lies, which says whether the probe's rounds are enough."""
    url, options = place(liar)
    figures = race(open_storage(url, options))
    report.add(liar, "race of 16 in 4 processes", figures)
    assert figures.exclusive < figures.rounds


def test_no_store_is_made_on_a_liar(liar: StoreServer) -> None:
    """Creating one says why it fails, and leaves nothing."""
    url, options = place(liar)
    with pytest.raises(PutIfAbsentBroken, match="cannot carry a store"):
        txnlog.open(url, create=True, storage_options=options)
    assert list(open_storage(url, options).list_all("")) == []


def test_a_bank_whose_processes_are_killed(
    server: StoreServer, tmp_path: Path, report: Report
) -> None:
    """Kill -9, stops and zombies: nothing torn, nothing acknowledged lost, nothing doubled."""
    url, options = place(server)
    with open_banks(tmp_path) as opened:
        config = dict.fromkeys(LEAST_AGE, SLOW_TIMEOUT_MS) if server.slow else LEAST_AGE
        bank = opened(11, url, options, config)
        bank.kill = 0.08
        if server.slow:
            bank.timeout_ms = SLOW_TIMEOUT_MS
        open_for_business(bank, 3, 10)
    assert bank.done["transfers"] > 5
    assert bank.done["killed"] >= 2
    done = bank.done
    report.add(
        server,
        "bank",
        f"{done['transfers']} transfers, {done['killed']} kills, {done['stopped']} stops, "
        f"{done['saw']} snapshots: none torn, none lost",
    )


@pytest.mark.parametrize(
    ("fault", "what"),
    [(Fault.STOP_AFTER, "stops"), (Fault.LOSE_RESPONSE, "loses a response")],
    ids=["stop", "lost-response"],
)
def test_crash_points(server: StoreServer, fault: Fault, what: str, report: Report) -> None:
    """A job that stops, or loses a response, here and there; the next one finishes it."""
    tried = range(0, TOTAL, 24 if server.slow else 12)
    for number in tried:
        url, options = place(server)
        storage = open_storage(url, options)
        storage.trust()
        storage.gather(
            [partial(storage.put, name, PREPARED.get(name)) for name, _ in PREPARED.list_all("")]
        )
        faulty = FaultyStorage(storage, {number: fault})
        with suppress(ProcessStopped, TxnlogError):
            copy_all(attach(faulty, clock=VirtualClock(seed=2)), abort_once=True)
        context = f"{fault.value}: request {number}"
        check_whole_transactions(storage, context)
        copy_all(attach(storage, clock=VirtualClock(seed=3)))
        judge(storage, context)
    figure = f"at {len(tried)} of its {TOTAL} requests, each time finished by the next job"
    report.add(server, f"a job that {what}", f"{figure}: whole transactions, each record once")


def test_standbys_there_and_back(server: StoreServer, tmp_path: Path) -> None:
    """A standby on the server that is promoted, and a standby of that."""
    there_and_back(tmp_path, *place(server))


@pytest.mark.s3_servers  # with the others no parts are left, see the tests of their adapters
def test_an_upload_that_was_killed(server: StoreServer, report: Report) -> None:
    """Its parts are listed with their age, below the store's folder alone, and aborted."""
    url, options = place(server)
    storage, beside = open_storage(url, options), open_storage(f"{url}-beside", options)
    assert isinstance(storage, S3Storage)
    assert isinstance(beside, S3Storage)
    for one in (storage, beside):
        key = {"Bucket": "test", "Key": one._key("data/killed.log")}
        begun = one.client.files.call_s3("create_multipart_upload", **key)
        one.client.files.call_s3(
            "upload_part", PartNumber=1, Body=b"part", UploadId=begun["UploadId"], **key
        )
    assert list(storage.list_all("")) == []
    found = list(storage.list_unfinished_uploads())
    what = "uploads that were killed"
    if not found:
        report.add(server, what, "are not listed by a folder: the server's own expiry aborts them")
        return
    (left,) = found
    assert (left.name, left.size_bytes) == ("data/killed.log", 4)
    assert abs(left.begun_ms - time.time() * 1000) < 60_000
    storage.abort_uploads(found)
    assert list(storage.list_unfinished_uploads()) == []
    assert len(list(beside.list_unfinished_uploads())) == 1
    report.add(server, what, "are listed with their age and size, and aborted by vacuum")


def test_commits(server: StoreServer, report: Report) -> None:
    """Transactions over two topics, and plain flushes, one after the other."""
    store = new_store(server)
    for topic in ("a", "b"):
        store.topics.create(topic)
    transactions, flushes = [], []
    with store.producer(transactional_id="job") as producer:
        producer.init_transactions()
        for number in range(COMMITS):
            begun_s = time.perf_counter()
            with producer.transaction():
                for topic in ("a", "b"):
                    producer.send(topic, b"%d" % number)
            transactions.append((time.perf_counter() - begun_s) * 1000)
    with store.producer() as producer:
        for number in range(COMMITS):
            begun_s = time.perf_counter()
            producer.send("a", b"%d" % number)
            producer.flush()
            flushes.append((time.perf_counter() - begun_s) * 1000)
    assert store.scan("a").to_arrow().num_rows == 2 * COMMITS
    report.add(server, "transaction over two topics", quantiles(transactions))
    report.add(server, "flush of one record", quantiles(flushes))


def quantiles(times_ms: list[float]) -> str:
    ordered = sorted(times_ms)
    p99 = ordered[int(len(ordered) * 0.99)]
    return f"{statistics.median(ordered):.0f} ms, p99 {p99:.0f} ms ({len(ordered)} times)"


def test_a_scan_of_a_million_records(server: StoreServer, report: Report) -> None:
    """Written in one transaction, read back as Arrow."""
    store = new_store(server)
    store.topics.create("t", partitions=4)
    # Bytes that no codec makes smaller.
    noise = random.Random(1).randbytes(100_000 * 90)
    values = pa.array([noise[at : at + 90] for at in range(0, len(noise), 90)], pa.binary())
    begun_s = time.perf_counter()
    with store.producer(transactional_id="w") as producer:
        producer.init_transactions()
        with producer.transaction():
            for _ in range(MILLION // len(values)):
                producer.send_batch("t", pa.table({"value": values}))
    written_s = time.perf_counter() - begun_s
    begun_s = time.perf_counter()
    rows = sum(batch.num_rows for batch in store.scan("t").to_batches())
    scanned_s = time.perf_counter() - begun_s
    assert rows == MILLION
    report.add(server, "write 1,000,000 records of 90 random bytes", f"{written_s:.2f} s")
    report.add(server, "scan 1,000,000 records of 90 random bytes", f"{scanned_s:.2f} s")


def test_a_scan_of_small_files(server: StoreServer, report: Report) -> None:
    """Many small commits and scans of them all; deltalake takes turns, where it knows how."""
    url, options = place(server)
    for what, figure in small_files.compare(url, options).items():
        report.add(server, what, figure)


@pytest.mark.each_client
def test_a_transaction_of_spark(server: StoreServer, report: Report) -> None:
    """With the keys in the open store alone: Spark's tasks get them from there."""
    url, options = place(server)
    job = [sys.executable, str(Path(__file__).with_name("spark_job.py")), url]
    done = subprocess.run(
        job, input=json.dumps(options), stdout=subprocess.PIPE, text=True, check=True, timeout=600
    )
    store = txnlog.open(url, storage_options=options)
    found = store.scan("out").to_arrow().column("value").to_pylist()
    assert sorted(map(int, found)) == list(range(1000))
    assert sum(offset.offset or 0 for offset in store.groups.describe("g").offsets) == 1000
    took_s = float(done.stdout.split()[-1])
    what = "1,000 records read, written to another topic, and the group moved"
    report.add(server, "transaction of Spark", f"{what}, each once, in {took_s:.1f} s")
