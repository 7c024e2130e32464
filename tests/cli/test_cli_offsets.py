"""``txnlog offsets``: ends and times, of partitions, topics and whole stores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import txnlog
from tests.support.cli.cli_command import FIRST_MS, cli
from txnlog.admin.offsets import ListedOffset
from txnlog.errors import InvalidOption, TxnlogError, UnknownTopicOrPartition
from txnlog.names import TopicPartition
from txnlog.storage.adapters.local import LocalStorage
from txnlog.storage.counting import CountingStorage
from txnlog.store import attach


def offsets(found: list[dict[str, Any]]) -> list[tuple[str, int, str, int | None]]:
    return [(at["topic"], at["partition"], at["at"], at["offset"]) for at in found]


def test_ends_of_all_topics(store_path: Path) -> None:
    """Without a topic it is all of them; latest is the default; stable stops at what is open."""
    ls = ("offsets", "ls", "--store", store_path, "-o", "json")
    assert offsets(cli(*ls).json()) == [
        ("empty", 0, "latest", 0),
        ("orders", 0, "latest", 10),
        ("orders", 1, "latest", 2),
        ("paid", 0, "latest", 3),
    ]
    several = cli(*ls, "paid:0", "orders", "--at", "stable", "--at", "-2").json()
    assert offsets(several) == [
        ("paid", 0, "stable", 2),
        ("orders", 0, "stable", 10),
        ("orders", 1, "stable", 2),
        ("paid", 0, "-2", 0),
        ("orders", 0, "-2", 0),
        ("orders", 1, "-2", 0),
    ]


def test_a_time_is_the_first_committed_record_at_or_after_it(store_path: Path) -> None:
    """With the record's own time; null where nothing is as new."""
    ls = ("offsets", "ls", "orders", "--store", store_path, "-o", "json")
    found = cli(*ls, "--at", f"@{FIRST_MS + 3500}").json()
    assert [(at["offset"], at["timestamp_ms"]) for at in found] == [
        (4, FIRST_MS + 4000),
        (None, None),
    ]
    table = cli(*ls[:-2], "--at", "@2023-11-14T22:13:23.5").lines()
    assert [line.split()[3:] for line in table[1:]] == [
        ["4", "2023-11-14T22:13:24.000Z"],
        ["-", "-"],
    ]
    newest = cli(*ls, "paid", "--at", "max-timestamp", "--at", "-3").json()
    assert [(at["offset"], at["timestamp_ms"]) for at in newest] == [
        *((9, FIRST_MS + 9000), (1, FIRST_MS + 1), (0, FIRST_MS)),
        *((9, FIRST_MS + 9000), (1, FIRST_MS + 1), (0, FIRST_MS)),
    ]
    assert cli(*ls, "--at", "soon").code == cli(*ls, "--at", "42").code == 2


def test_damage_hides_no_other_topic(own_store: Path) -> None:
    """A damaged log is reported, the others are listed, exit 3; a topic that is not there is 1."""
    entry = max((own_store / "topics/orders/log").glob("*.json"))
    entry.write_bytes(b"{}")
    done = cli("offsets", "ls", "--store", own_store, "-o", "json")
    assert (done.code, done.err.count("\n")) == (3, 1)
    assert {at["topic"] for at in json.loads(done.out)} == {"empty", "paid"}
    assert cli("offsets", "ls", "nope", "--store", own_store).code == 1
    assert cli("offsets", "ls", "paid:4", "--store", own_store).code == 1


def test_no_segment_is_read_to_answer_about_ends(store_path: Path) -> None:
    """Ends cost two listings per topic, however many segments it has; a time reads one segment."""
    counting = CountingStorage(LocalStorage(str(store_path)))
    store = attach(counting)
    for at in ("earliest", "stable", "latest"):
        counting.take()
        (found,) = store.topics.offsets([TopicPartition("orders", 0)], at=at)
        assert isinstance(found, ListedOffset)
        assert "get_range" not in counting.counts
        assert counting.counts["list"] <= 2
    counting.take()
    (at_time,) = store.topics.offsets([TopicPartition("orders", 0)], timestamp_ms=FIRST_MS + 8000)
    assert at_time == ListedOffset("orders", 0, 8, FIRST_MS + 8000)
    assert counting.counts["get_range"] <= 2


def test_what_makes_no_sense_is_refused(store_path: Path) -> None:
    """Two wishes or none, unknown topics and partitions."""
    store = txnlog.open(str(store_path))
    with pytest.raises(InvalidOption):
        store.topics.offsets(["orders"])
    with pytest.raises(InvalidOption):
        store.topics.offsets(["orders"], at="latest", timestamp_ms=1)
    for topics in (["nope"], [TopicPartition("orders", 2)]):
        with pytest.raises(UnknownTopicOrPartition):
            list(store.topics.offsets(topics, at="latest"))
    everything = list(store.topics.offsets(at="latest"))
    assert not any(isinstance(item, TxnlogError) for item in everything)
    with pytest.raises(InvalidOption):
        store.topics.plan_delete_records(["orders"], before=3)
    with pytest.raises(InvalidOption):
        store.topics.plan_delete_records([TopicPartition("orders", 0)], before=3, timestamp_ms=4)
