"""``txnlog maintain``: what it does, what it tells, and how it ends."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import txnlog
from tests.cli.left_open import leave_open
from tests.support.cli.cli_command import cli, list_files
from txnlog import TopicPartition
from txnlog.storage.adapters.local import LocalStorage
from txnlog.store import attach
from txnlog.testing import VirtualClock

WEEK_S = 7 * 86_400


def make_old(*paths: Path, by_s: int = WEEK_S + 60) -> None:
    """As if the files had been put so long ago."""
    for path in paths:
        then_s = path.stat().st_mtime - by_s
        os.utime(path, (then_s, then_s))


def make_old_topic(root: Path, name: str) -> None:
    """As if it had been created so long ago: until then no orphan of it counts as old."""
    clock = VirtualClock(seed=8)
    clock.time_ms = time.time_ns() // 1_000_000 - (WEEK_S + 60) * 1000
    attach(LocalStorage(str(root)), clock=clock).topics.create(name)


def test_what_is_to_be_done_is_shown_and_done(own_store: Path) -> None:
    """A dry run says the same and leaves every file as it is; afterwards nothing is left to do."""
    store = txnlog.open(str(own_store))
    make_old_topic(own_store, "early")
    store.topics.alter("orders", config={"retention.ms": 1000, "file.delete.delay.ms": 0})
    store.topics.delete_records({TopicPartition("paid", 0): 1})
    store.topics.create("gone")
    with store.producer() as producer:
        producer.send("gone", "x")
    store.topics.delete_records({TopicPartition("gone", 0): 1})
    store.topics.delete("gone")
    orphan = own_store / "topics/early/data/0/w-0.log"
    left = own_store / "staging/t-000000.json"
    for path in (orphan, left):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"12345")
    make_old(orphan, left)
    before = list_files(own_store)
    told = cli("maintain", "--store", own_store, "--dry-run", "-o", "json")
    assert "nothing was changed" in told.err
    assert list_files(own_store) == before
    done = cli("maintain", "--store", own_store, "-o", "json").json()
    # The files of what retention deletes are not let go of before it has run.
    released = [step for step in done if step["reason"] == "deleted records"]
    assert [step for step in done if step not in released] == json.loads(told.out)
    assert [(step["topic"], step["file_count"]) for step in released] == [("orders", 2)]
    shown = [(step["done"], step["reason"], step["topic"], step["partition"]) for step in done]
    assert shown == [
        ("files deleted", "never placed", "early", None),
        ("files deleted", "deleted topic", "gone", None),
        ("records deleted", "retention", "orders", 0),
        ("records deleted", "retention", "orders", 1),
        ("files deleted", "deleted records", "orders", None),
        ("files deleted", "left behind", None, None),
    ]
    assert done[0]["paths"] == ["topics/early/data/0/w-0.log"]
    assert (done[0]["file_count"], done[0]["size_bytes"]) == (1, 5)
    assert done[2]["new_log_start_offset"] == 10
    assert cli("maintain", "--store", own_store, "-o", "json").json() == []
    assert not {path for path in list_files(own_store) if "/gone/data" in str(path)}
    assert len(cli("records", "read", "paid", "--store", own_store, "-o", "json").json()) == 0


def test_only_the_topics_that_are_named(own_store: Path) -> None:
    """And people see a table."""
    make_old_topic(own_store, "early")
    left = own_store / "staging/t-000000.json"
    orphan = own_store / "topics/early/data/0/w-0.index"
    for path in (left, orphan):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    make_old(left, orphan)
    shown = cli("maintain", "early", "--store", own_store, "--orphan-age", "2d").out
    assert "never placed" in shown
    assert left.exists()
    assert not orphan.exists()


def test_what_fails_is_told_and_stops_nothing_else(own_store: Path) -> None:
    """Damage is exit code 3, a topic that never was is 1, wrong usage is 2 or told."""
    make_old_topic(own_store, "early")
    entry = own_store / "topics/orders/log/00000000000000000001.json"
    entry.write_bytes(entry.read_bytes()[:-9])
    orphan = own_store / "topics/early/data/0/w-0.log"
    orphan.parent.mkdir(parents=True)
    orphan.write_bytes(b"x")
    make_old(orphan)
    done = cli("maintain", "--store", own_store, "-o", "json")
    assert done.code == 3
    assert "retention of topic 'orders' failed" in done.err
    assert "vacuum of topic 'orders' failed" in done.err
    assert [step["topic"] for step in json.loads(done.out)] == ["early"]
    nobodys = cli("maintain", "nope", "paid", "--store", own_store)
    assert nobodys.code == 1
    assert "'nope' does not exist" in nobodys.err
    assert cli("maintain", "--store", own_store, "--orphan-age", "soon").code == 2
    short = cli("maintain", "--store", own_store, "--orphan-age", "23h")
    assert short.code == 1
    assert "orphan age" in short.err


def test_what_is_named_and_what_is_ended(own_store: Path) -> None:
    """A record from the future is passed by; a transaction that nobody ends is ended."""
    store = txnlog.open(str(own_store))
    config = {"message.timestamp.after.max.ms": 10**18, "retention.ms": 3_600_000}
    store.topics.create("ahead", config=config)
    with store.producer() as producer:
        producer.send("ahead", "x", timestamp_ms=10**15)
    leave_open(own_store, "half", hours=2)
    done = cli("maintain", "--store", own_store, "-o", "json")
    steps = [step for step in json.loads(done.out) if step["topic"] in (None, "ahead")]
    ended, named = steps
    assert (ended["done"], ended["reason"]) == ("transaction ended", "open past its timeout")
    assert (ended["transactional_id"], ended["number"], ended["outcome"]) == ("half", 1, "abort")
    assert (named["done"], named["partition"]) == ("records passed by", 0)
    assert (named["base_offset"], named["end_offset"], named["timestamp_ms"]) == (0, 1, 10**15)
    assert "which lies in the future" in done.err
    shown = cli("maintain", "ahead", "--store", own_store).out
    assert "their time lies in the future" in shown
