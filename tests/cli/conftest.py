"""Stores for the command line's tests, made with the library."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import txnlog
from tests.support.cli.cli_command import FIRST_MS
from txnlog import TopicPartition


@pytest.fixture(scope="session")
def store_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A healthy store that no test changes.

    ``orders`` has 10 records in partition 0 (two segments) and 2 odd ones in partition 1; ``paid``
    has a committed, an aborted and an undecided record; ``empty`` has none. Group ``etl`` has read
    4 records of orders:0. Transactional ids: ``etl-1`` committed, ``etl-2`` aborted, ``open`` open.
    """
    path = tmp_path_factory.mktemp("cli") / "store"
    store = txnlog.open(str(path), create=True)
    store.topics.create("orders", partitions=2, config={"compression.type": "zstd"})
    store.topics.create("paid")
    store.topics.create("empty")
    with store.producer() as producer:
        for number in range(10):
            producer.send(
                "orders", f"v{number}", f"k{number}", 0, FIRST_MS + 1000 * number, [("h", b"1")]
            )
            if number == 5:
                producer.flush()
        producer.send("orders", b"\xff\x00", None, 1, FIRST_MS, [("n", None), ("b", b"\xfe")])
        producer.send("orders", None, "tab\tnul\0esc\x1b[31m \\ \u00e9", 1, FIRST_MS + 1)
    for name, value in (("etl-1", "committed"), ("etl-2", "aborted"), ("open", "undecided")):
        producer = store.producer(transactional_id=name, transaction_timeout_ms=900_000)
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("paid", value, None, 0, FIRST_MS)
        producer.flush()
        if name == "etl-1":
            producer.send_offsets_to_transaction({TopicPartition("orders", 0): 4}, "etl")
            producer.commit_transaction()
        elif name == "etl-2":
            producer.abort_transaction()
    return path


@pytest.fixture
def own_store(store_path: Path, tmp_path: Path) -> Path:
    """A copy of the healthy store, to be damaged."""
    return Path(shutil.copytree(store_path, tmp_path / "copy"))


@pytest.fixture
def empty_store(tmp_path: Path) -> Path:
    """A store with nothing in it."""
    path = tmp_path / "empty"
    txnlog.open(str(path), create=True)
    return path
