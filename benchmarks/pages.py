"""CPU time of the pages of `txnlog ui` over a large store."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence

from starlette.testclient import TestClient

from txnlog.clock import SystemClock
from txnlog.names import TopicPartition
from txnlog.replication.roots.controller import Controller
from txnlog.replication.roots.election import take_out
from txnlog.replication.roots.epochs import Proposer, first_epoch
from txnlog.replication.roots.members import put_mark
from txnlog.replication.roots.replicated_storage import ReplicatedStorage
from txnlog.store import Store, attach
from txnlog.testing import HeapStorage
from txnlog.ui.access import Access, loopback_hosts
from txnlog.ui.app import make_app
from txnlog.ui.server import make_console

PORT = 8080
TURNS = 5
PAGES = (
    "/",
    "/?find=999",
    "/topics/big",
    "/topics/big/0",
    "/topics/big/0?index&page=500",
    "/topics/big/0/records",
    "/transactions",
    "/transactions/writer",
    "/groups",
    "/groups/big",
    "/topics/big/0/records?from=0&grep=nothing",
    "/store",
    "/store/maintenance",
)


JOBS = ("/store/maintenance?plan", "/store?examine")
REPLICAS = ("/", "/store/replicas")
REPLICA_JOBS = ("/store/replicas?lag",)
"""Pages that begin what goes on behind them."""


def measure(topics: int, commits: int) -> Iterator[str]:
    """Markdown lines: the CPU of each page, in ms; each visit is to a new console."""
    store = _fill(topics, commits)
    gc.collect()
    gc.freeze()  # the store itself, which is elsewhere otherwise
    yield f"{topics:,} topics, of which one has {commits:,} segments, each a transaction with a"
    yield "group's offset, all within one cleaning age; in memory, with listings like S3's. CPU of"
    yield f"a first visit and the median of {TURNS} others, each in a new console that knows"
    yield "nothing of the store yet."
    yield ""
    yield from _tables(store, PAGES, JOBS)
    yield ""
    yield "The same store on two roots and one that is out and lacks everything:"
    yield ""
    assert isinstance(store.storage, HeapStorage)
    yield from _tables(attach(_replicated(store.storage)), REPLICAS, REPLICA_JOBS)


def _tables(store: Store, pages: Sequence[str], jobs: Sequence[str]) -> Iterator[str]:
    """One of pages, one of those that begin what goes on behind them."""
    yield "| page | first, ms | median, ms |"
    yield "|---|---|---|"
    for page in pages:
        first, *others = [_look(store, page)[0] for _ in range(1 + TURNS)]
        yield f"| `{page}` | {first:.0f} | {sorted(others)[TURNS // 2]:.0f} |"
    yield ""
    yield "| page | until it was shown, ms | the next look, meanwhile, ms | all of it, s |"
    yield "|---|---|---|---|"
    for page in jobs:
        shown_ms, again_ms, whole_s = _look(store, page)
        yield f"| `{page}` | {shown_ms:.0f} | {again_ms:.0f} | {whole_s:.1f} |"


def _replicated(storage: HeapStorage) -> ReplicatedStorage:
    """What lies in a storage, on two roots in sync; a third one is out, and empty."""
    control = HeapStorage()
    who = Proposer("benchmark", 0, "made")
    first = first_epoch({f"r{n}": f"heap://{n}" for n in range(3)}, {}, who)
    places = (storage, storage.copy(), HeapStorage())
    members = dict(zip(first.in_sync, places, strict=True))
    for member, place in members.items():
        put_mark(place, member, control.url, first.store)
    assert Controller(control).propose(first)
    found = ReplicatedStorage(control, lambda _, member: members[member])
    found.trust(probed=True)
    take_out(found.agreement, "r2")
    return found


def _look(store: Store, page: str) -> tuple[float, float, float]:
    """The CPU of a page, of the same one once more, and of all that was begun, in seconds."""
    console = make_console(store, Access(loopback_hosts(PORT)))
    address = f"http://127.0.0.1:{PORT}"
    with TestClient(make_app(console), base_url=address, follow_redirects=False) as browser:
        browser.get(f"/?token={console.access.token}")
        times = [time.process_time()]
        for _ in range(2 if page in JOBS + REPLICA_JOBS else 1):
            answer = browser.get(page)
            if answer.status_code != 200:
                raise RuntimeError(f"{page}: {answer.status_code}")
            times.append(time.process_time())
        job = console.jobs.newest(page.rpartition("?")[2])
        if job is not None:
            job.wait(600)
        whole_s = time.process_time() - times[0]
    return (times[1] - times[0]) * 1000, (times[-1] - times[-2]) * 1000, whole_s


def _fill(topics: int, commits: int) -> Store:
    store = attach(HeapStorage(), create=True, clock=SystemClock())
    for number in range(topics - 1):
        store.topics.create(f"topic-{number:04}", partitions=2)
        with store.producer() as producer:
            producer.send(f"topic-{number:04}", "value", key="key", partition=0)
    store.topics.create("big")
    writer = store.producer(transactional_id="writer")
    writer.init_transactions()
    for number in range(commits):
        with writer.transaction():
            writer.send("big", "value", key="key", partition=0)
            writer.send_offsets_to_transaction({TopicPartition("big", 0): number}, "big")
    writer.close()
    return store
