"""A console over a store in memory, and a browser that was let in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from tests.ui.ui_browser import HOSTILE, PORT, browser_of
from txnlog import TopicPartition
from txnlog.store import Store, attach
from txnlog.testing.heap_storage import HeapStorage
from txnlog.ui.access import Access, loopback_hosts
from txnlog.ui.console import Console
from txnlog.ui.server import make_console


@pytest.fixture
def store() -> Store:
    """Hostile records in ``orders``, committed, aborted and undecided; a typed topic; a group."""
    made = attach(HeapStorage(), create=True)
    made.topics.create("orders", partitions=2, config={"compression.type": "zstd"})
    for name in ("etl", "failing", f"open/{HOSTILE}"):
        producer = made.producer(transactional_id=name, transaction_timeout_ms=900_000)
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("orders", f'{{"by": "{name}"}}', HOSTILE, 0, headers=[(HOSTILE, b"\xff")])
        producer.flush()
        if name == "etl":
            producer.send_offsets_to_transaction({TopicPartition("orders", 0): 1}, HOSTILE)
            producer.commit_transaction()
        elif name == "failing":
            producer.abort_transaction()
    return made


@pytest.fixture
def console(store: Store) -> Console:
    """A console that changes nothing."""
    return make_console(store, Access(loopback_hosts(PORT)))


@pytest.fixture
def browser(console: Console) -> Iterator[TestClient]:
    """A browser that was let in."""
    with browser_of(console) as opened:
        yield opened
