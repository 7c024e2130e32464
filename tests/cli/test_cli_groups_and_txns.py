"""``txnlog groups`` and ``txnlog txns``."""

from __future__ import annotations

from pathlib import Path

from cli_command import cli

import txnlog


def test_groups_show_offsets_and_lag(store_path: Path) -> None:
    """Lag counts to the stable offset; the JSON has the documented keys."""
    known = txnlog.open(str(store_path)).describe_group("etl").offsets[0]
    summary = {"group_id": "etl", "topic_count": 1, "partition_count": 1, "lag": 6}

    assert cli("groups", "ls", "--store", store_path, "-o", "json").json() == [summary]
    assert cli("groups", "describe", "etl", "--store", store_path, "-o", "json").json() == {
        **summary,
        "offsets": [
            {
                "topic": "orders",
                "partition": 0,
                "offset": 4,
                "end_offset": 10,
                "lag": 6,
                "committed_at_ms": known.committed_at_ms,
                "metadata": "",
                "pending": None,
            }
        ],
    }
    missing = cli("groups", "describe", "nobody", "--store", store_path)
    assert (missing.code, missing.out) == (1, "")
    assert "'nobody'" in missing.err


def test_txns_show_states_and_the_entries_of_a_commit(store_path: Path) -> None:
    """Each id has its newest state; --state filters in any case, and refuses what is none."""
    known = txnlog.open(str(store_path)).describe_transaction("etl-1")

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
