"""What is logged for those who watch: commits, requests, retries; nothing for those who do not."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path

import pytest

import txnlog
from txnlog.storage.forwarding import LoggedStorage
from txnlog.store import attach
from txnlog.testing import Fault, FaultyStorage, HeapStorage, VirtualClock

WATCHED = ("txnlog.commits", "txnlog.requests", "txnlog.retries")


def said(caplog: pytest.LogCaptureFixture, logger: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == logger]


def test_commits_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One line for each transaction that was decided and each plain flush, with its fields."""
    store = txnlog.open(str(tmp_path / "store"), create=True)
    store.topics.create("t")
    with caplog.at_level(logging.INFO, "txnlog.commits"):
        with store.producer(transactional_id="etl") as producer:
            producer.init_transactions()
            for finish in (producer.commit_transaction, producer.abort_transaction):
                producer.begin_transaction()
                producer.send("t", b"x")
                producer.flush()
                finish()
        with store.producer() as producer:
            producer.send("t", b"x")
    first, second, third = said(caplog, "txnlog.commits")
    assert first.startswith("transaction 1 of 'etl'")
    assert ": commit, " in first
    assert ": abort, " in second
    assert third == "t: appended, 1 records"
    fields = caplog.records[0].__dict__
    assert (fields["transactional_id"], fields["outcome"]) == ("etl", "commit")


def test_requests_are_told_of_stores_that_were_opened_while_it_was_asked_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Kind, name, bytes and time of each; never what is in an object."""
    path = str(tmp_path / "store")
    assert not isinstance(txnlog.open(path, create=True).storage, LoggedStorage)
    with caplog.at_level(logging.DEBUG, "txnlog.requests"):
        store = txnlog.open(path)
        store.topics.create("t")
        with store.producer() as producer:
            producer.send("t", b"the-secret")
        assert store.scan("t").to_arrow().num_rows == 1
    text = "\n".join(said(caplog, "txnlog.requests"))
    for kind in (
        "get txnlog.json: ",
        "put_if_absent topics/t/log/",
        "list topics/t/log: ",
        "upload ",
    ):
        assert kind in text, text
    assert "the-secret" not in text
    assert "delete :" not in text
    assert {"request", "object", "bytes", "took_ms"} <= caplog.records[-1].__dict__.keys()
    assert not isinstance(pickle.loads(pickle.dumps(store)).storage, LoggedStorage)


def test_what_is_read_by_one_request_counts_together(caplog: pytest.LogCaptureFixture) -> None:
    """Several objects, or several of their parts."""
    storage = LoggedStorage(HeapStorage())
    for name in "ab":
        storage.put(name, b"12345")
    with caplog.at_level(logging.DEBUG, "txnlog.requests"):
        storage.get_many(["a", "b"])
        storage.get_ranges([("a", 1, 3), ("b", 0, 2)])
        storage.list_names("")
    assert [record.__dict__["bytes"] for record in caplog.records] == [10, 4, 0]


def test_retries_are_told(caplog: pytest.LogCaptureFixture) -> None:
    """A failed put is logged: its name, the next attempt, and the reason."""
    failed: list[str] = []

    def fail_one_put(text: str) -> None:
        if text.startswith("put_if_absent topics/t/log/") and not failed:
            storage.faults = {len(storage.requests): Fault.FAIL}
            failed.append(text)

    heap = HeapStorage()
    attach(heap, create=True, clock=VirtualClock()).topics.create("t")
    storage = FaultyStorage(heap, before_request=fail_one_put)
    store = attach(storage, clock=VirtualClock())
    with store.producer() as producer, caplog.at_level(logging.INFO, "txnlog.retries"):
        producer.send("t", b"x")
        producer.flush()
    [line] = said(caplog, "txnlog.retries")
    assert line.startswith(failed[0].removeprefix("put_if_absent "))
    assert ": tried again in " in line
    assert "injected failure" in line


def test_nobody_is_told_who_did_not_ask() -> None:
    """The levels are below what Python shows by default, and no handler is added."""
    for name in WATCHED:
        logger = logging.getLogger(name)
        assert not logger.handlers
        assert not logger.isEnabledFor(logging.INFO)
