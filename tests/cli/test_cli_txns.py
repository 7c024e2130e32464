"""``txnlog txns ls``, ``describe``, ``producers`` and ``log``."""

from __future__ import annotations

import json
from pathlib import Path

import txnlog
from tests.cli.left_open import HOUR_MS, leave_open
from tests.support.cli.cli_command import cli, cli_each


def test_txns_show_states_and_the_entries_of_a_commit(store_path: Path) -> None:
    """Each id has its newest state; --state filters in any case, and refuses what is none."""
    known = txnlog.open(str(store_path)).transactions.describe("etl-1")

    found = cli("txns", "ls", "--store", store_path, "-o", "json").json()
    assert {txn["transactional_id"]: txn["state"] for txn in found} == {
        "etl-1": "CompleteCommit",
        "etl-2": "CompleteAbort",
        "open": "Ongoing",
    }
    table = cli("txns", "ls", "--state", "ongoing", "--store", store_path).lines()
    assert [line.split()[:2] for line in table[1:]] == [["open", "Ongoing"]]

    described = cli("txns", "describe", "etl-1", "--store", store_path, "-o", "json").json()
    own = ("log_entry", "reason", "versions", "entries")
    listed = {key: value for key, value in described.items() if key not in own}
    assert listed == {key: value for key, value in found[0].items() if key != "age_ms"}
    assert 0 <= found[0]["age_ms"] < 3_600_000
    assert described == {
        "transactional_id": "etl-1",
        "state": "CompleteCommit",
        "number": 1,
        "producer_id": known.producer_id,
        "producer_epoch": 0,
        "started_at_ms": known.started_at_ms,
        "updated_at_ms": known.updated_at_ms,
        "timeout_ms": 900_000,
        "topics": ["paid"],
        "groups": ["etl"],
        "log_entry": known.log_entry,
        "reason": None,
        "versions": {},
        "entries": [
            {"log": "group", "name": "etl", "entry": 0},
            {"log": "topic", "name": "paid", "entry": 1},
        ],
    }

    assert cli("txns", "ls", "--state", "Open", "--store", store_path).code == 2
    missing = cli("txns", "describe", "nobody", "--store", store_path)
    assert (missing.code, "'nobody'" in missing.err) == (1, True)


def test_producers_ages_and_states(own_store: Path) -> None:
    """Who wrote to a partition and what they have open; ids by age and state; an id's states."""
    leave_open(own_store, "late", 2)
    at = ("--store", own_store, "-o", "json")
    producers, old, young, history, wrong = cli_each(
        ("txns", "producers", "paid:0", *at),
        ("txns", "ls", "--older-than", "1h30m", *at),
        ("txns", "ls", "--state", "ongoing", "--state", "Completecommit", *at),
        ("txns", "log", "etl-2", *at),
        ("txns", "ls", "--older-than", "soon", *at),
    )
    opened = [found for found in producers.json() if found["transaction"]]
    assert [
        (found["transaction"]["transactional_id"], found["transaction_start_offset"])
        for found in opened
    ] == [("open", 2)]
    assert len(producers.json()) == 3
    assert [(txn["transactional_id"], txn["state"]) for txn in old.json()] == [("late", "Ongoing")]
    assert 2 * HOUR_MS <= old.json()[0]["age_ms"] < 3 * HOUR_MS
    assert [txn["transactional_id"] for txn in young.json()] == ["etl-1", "late", "open"]
    assert [state["state"] for state in history.json()] == [
        *("Empty", "Ongoing", "PrepareAbort", "CompleteAbort")
    ]
    assert (wrong.code, "soon" in wrong.err) == (2, True)
    entry = own_store / "transactions" / "etl-2" / f"{1:020}.json"
    entry.write_bytes(b"{}")
    damaged = cli("txns", "log", "etl-2", *at)
    assert (damaged.code, len(json.loads(damaged.out)), entry.name in damaged.err) == (3, 3, True)
