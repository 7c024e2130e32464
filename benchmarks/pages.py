"""CPU time of the pages of `txnlog ui` over a large store."""

from __future__ import annotations

import time
from collections.abc import Iterator

from starlette.testclient import TestClient

from txnlog.clock import SystemClock
from txnlog.names import TopicPartition
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
    "/store",
    "/store/maintenance",
)


def measure(topics: int, commits: int) -> Iterator[str]:
    """Markdown lines: the CPU of each page, in ms; each visit is to a new console."""
    store = _fill(topics, commits)
    yield f"{topics:,} topics, of which one has {commits:,} segments, each a transaction with a"
    yield "group's offset, all within one cleaning age; in memory, with listings like S3's. CPU of"
    yield f"a first visit and the median of {TURNS} others, each in a new console that knows"
    yield "nothing of the store yet."
    yield ""
    yield "| page | first, ms | median, ms |"
    yield "|---|---|---|"
    for page in PAGES:
        first, *others = [_look_ms(store, page) for _ in range(1 + TURNS)]
        yield f"| `{page}` | {first:.0f} | {sorted(others)[TURNS // 2]:.0f} |"


def _look_ms(store: Store, page: str) -> float:
    console = make_console(store, Access(loopback_hosts(PORT)))
    address = f"http://127.0.0.1:{PORT}"
    with TestClient(make_app(console), base_url=address, follow_redirects=False) as browser:
        browser.get(f"/?token={console.access.token}")
        begun = time.process_time()
        answer = browser.get(page)
        took_ms = (time.process_time() - begun) * 1000
    if answer.status_code != 200:
        raise RuntimeError(f"{page}: {answer.status_code}")
    return took_ms


def _fill(topics: int, commits: int) -> Store:
    store = attach(HeapStorage(), create=True, clock=SystemClock())
    for number in range(topics - 1):
        store.create_topic(f"topic-{number:04}", partitions=2)
        with store.producer() as producer:
            producer.send(f"topic-{number:04}", "value", key="key", partition=0)
    store.create_topic("big")
    writer = store.producer(transactional_id="writer")
    writer.init_transactions()
    for number in range(commits):
        with writer.transaction():
            writer.send("big", "value", key="key", partition=0)
            writer.send_offsets_to_transaction({TopicPartition("big", 0): number}, "big")
    writer.close()
    return store
