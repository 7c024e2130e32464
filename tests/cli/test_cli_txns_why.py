"""``txnlog txns why``."""

from __future__ import annotations

import json
from pathlib import Path

import txnlog
from tests.support.cli.cli_command import cli


def test_why_names_the_holder_and_what_ends_it(store_path: Path) -> None:
    """The JSON has what the library says; a person reads who, since when, and the way out."""
    known = txnlog.open(str(store_path)).transactions.stable_offsets("paid", 0)[0]
    holder = known.holders[0]
    (found,) = cli("txns", "why", "paid:0", "--store", store_path, "-o", "json").json()
    assert found == {
        "topic": "paid",
        "partition": 0,
        "log_start_offset": 0,
        "last_stable_offset": 2,
        "end_offset": 3,
        "held_back": 1,
        "holders": [
            {
                "transaction": {
                    "transactional_id": "open",
                    "number": 1,
                    "producer_id": holder.transaction.producer_id,
                    "producer_epoch": 0,
                },
                "entry": holder.entry,
                "offset": 2,
                "placed_at_ms": holder.placed_at_ms,
                "state": "Ongoing",
                "started_at_ms": holder.started_at_ms,
                "ends_by_ms": holder.ends_by_ms,
                "ended_by": holder.ended_by,
            }
        ],
    }
    text = cli("txns", "why", "paid", "--store", store_path).out
    assert "held by transaction 1 of open" in text
    assert "txnlog txns abort open" in text
    quiet = cli("txns", "why", "orders", "--store", store_path).out
    assert quiet.count("held by nobody") == 2
    assert cli("txns", "why", "paid:3", "--store", store_path).code == 1


def test_without_a_topic_all_that_waits_is_explained(store_path: Path, tmp_path: Path) -> None:
    """Only the partitions that something holds back; of a store where nothing waits none."""
    found = cli("txns", "why", "--store", store_path, "-o", "json").json()
    store = txnlog.open(str(store_path))
    held = [
        (stable.topic, stable.partition)
        for topic in store.topics.list()
        for stable in store.transactions.stable_offsets(topic)
        if stable.holders
    ]
    assert ("paid", 0) in held
    assert [(row["topic"], row["partition"]) for row in found] == held
    txnlog.open(str(tmp_path), create=True).topics.create("quiet")
    assert cli("txns", "why", "--store", tmp_path, "-o", "json").json() == []


def test_the_command_that_ends_it_can_be_pasted(tmp_path: Path) -> None:
    """An id may have characters that a shell takes for its own."""
    store = txnlog.open(str(tmp_path), create=True)
    store.topics.create("t")
    producer = store.producer(transactional_id="etl; rm -r <x>")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("t", b"v")
    producer.flush()
    shown = cli("txns", "why", "t", "--store", tmp_path).out
    assert "txnlog txns abort 'etl; rm -r <x>'" in " ".join(shown.split())


def test_why_shows_the_error_of_a_damaged_holder_whole(own_store: Path) -> None:
    """A semicolon in an error begins no other way out."""
    newest = max((own_store / "transactions" / "open").glob("*.json"))
    newest.write_bytes(b'{"a; b": "c; d"}')
    why = ("txns", "why", "paid", "--store", own_store)
    (found,) = json.loads(cli(*why, "-o", "json").out)
    ended_by = found["holders"][0]["ended_by"]
    text = cli(*why).out
    assert text.count("ended by:") == 1
    assert " or: " not in text
    shown = text.partition("ended by:")[2]
    assert "".join(shown.split()) == "".join(ended_by.split())
