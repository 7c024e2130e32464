"""``txnlog topics compact``, and what `maintain` tells of compaction."""

from __future__ import annotations

import json
from pathlib import Path

import txnlog
from tests.support.cli.cli_command import cli


def test_a_topic_is_compacted(own_store: Path) -> None:
    """A dry run tells; the log shows the entry; the newest record of each key stays."""
    store = txnlog.open(str(own_store))
    store.topics.create("keyed", config={"cleanup.policy": "compact"})
    with store.producer() as producer:
        for number in range(60):
            producer.send("keyed", b"%d" % number, b"%d" % (number % 7))
    compact = ("topics", "compact", "keyed", "--store", own_store, "-o", "json")
    (planned,) = json.loads(cli(*compact, "--dry-run").out)
    assert (planned["segment_count"], planned["compacted_count"]) == (1, None)
    (done,) = cli(*compact).json()
    assert (done["record_count"], done["compacted_record_count"]) == (60, 7)
    assert (done["topic"], done["partition"], done["compacted_count"]) == ("keyed", 0, 1)
    assert cli(*compact).json() == []
    (segment,) = cli("segments", "ls", "keyed", "--store", own_store, "-o", "json").json()
    assert (segment["base_offset"], segment["end_offset"], segment["record_count"]) == (0, 60, 7)
    entry = cli("log", "dump", "keyed", "--store", own_store, "-o", "json").json()[-1]
    assert entry["kind"] == "rewritten"
    values = store.scan("keyed").to_arrow()["value"].to_pylist()
    assert values == [b"%d" % number for number in range(53, 60)]
    assert cli("segments", "verify", "keyed", "--store", own_store).code == 0


def test_maintain_tells_of_it(own_store: Path) -> None:
    """With the counts before and after."""
    store = txnlog.open(str(own_store))
    store.topics.create("keyed", config={"cleanup.policy": "compact"})
    with store.producer() as producer:
        producer.send("keyed", b"1", b"k")
        producer.send("keyed", b"2", b"k")
    (step,) = cli("maintain", "keyed", "--store", own_store, "-o", "json").json()
    assert (step["done"], step["reason"]) == ("records compacted", "newer ones of their keys")
    assert (step["record_count"], step["compacted_record_count"]) == (2, 1)


def test_records_without_a_key_are_refused(own_store: Path) -> None:
    """And topics that are not to be compacted are not: both say what to do."""
    store = txnlog.open(str(own_store))
    store.topics.create("keyed", config={"cleanup.policy": "compact"})
    store.topics.create("plain")
    refused = cli("records", "write", "keyed", "--store", own_store, stdin=b"value\n")
    assert refused.code != 0
    assert "compacted by key" in refused.err
    other = cli("topics", "compact", "plain", "--store", own_store)
    assert other.code != 0
    assert "cleanup.policy" in other.err
