"""``txnlog txns find-hanging``, ``why``, ``abort``, ``producers`` and ``log``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest
from cli_command import cli, cli_each, environment

import txnlog
from txnlog.clock import SystemClock
from txnlog.errors import ProducerFenced
from txnlog.storage import open_storage
from txnlog.store import attach

HOUR_MS = 3_600_000


class Earlier(SystemClock):
    """A machine's clock as it was some hours ago: what it wrote is old now."""

    def __init__(self, hours: int) -> None:
        self._behind_ms = hours * HOUR_MS

    def now_ms(self) -> int:
        return super().now_ms() - self._behind_ms


def left_open(path: Path, name: str, hours: int) -> None:
    """A transaction that began hours ago in ``paid``, and whose producer is gone."""
    store = attach(open_storage(str(path)), clock=Earlier(hours))
    producer = store.producer(transactional_id=name, transaction_timeout_ms=60_000)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("empty", name)
    producer.flush()
    begun_s = Earlier(max(hours, 0)).now_ms() / 1000
    for state in (path / "transactions" / quote(name)).iterdir():
        # By the disk's clock, too.
        os.utime(state, (begun_s, begun_s))


def test_hanging_transactions_are_exit_4(own_store: Path) -> None:
    """The most overdue first; looking ends nothing; a reader does; damage is exit 3 instead."""
    find = ("txns", "find-hanging", "--store", own_store, "-o", "json")
    assert cli(*find).json() == []
    left_open(own_store, "late", 2)
    left_open(own_store, "later", 3)
    for _ in range(2):
        done = cli(*find)
        found = json.loads(done.out)
        assert (done.code, done.err) == (4, "")
        assert [hung["transactional_id"] for hung in found] == ["later", "late"]
        assert 3 * HOUR_MS > found[0]["overdue_ms"] - HOUR_MS * 3 + 60_000 >= 0
        assert (found[0]["state"], found[0]["topics"]) == ("Ongoing", ["empty"])
    entry = own_store / "transactions" / "etl-1"
    newest = max(entry.glob("*.json"))
    whole = newest.read_bytes()
    newest.write_bytes(whole[:-9])
    damaged = cli(*find)
    assert (damaged.code, newest.name in damaged.err) == (3, True)
    assert len(json.loads(damaged.out)) == 2
    newest.write_bytes(whole)
    assert cli("records", "read", "empty", "--store", own_store).code == 0
    assert cli(*find).json() == []


def test_clocks_ahead_and_damaged_ids_are_named(own_store: Path) -> None:
    """A start in the future is told with why; a damaged id by its name, with the way out."""
    find = ("txns", "find-hanging", "--store", own_store, "-o", "json")
    left_open(own_store, "early bird", -30 * 24)
    done = cli(*find)
    (found,) = json.loads(done.out)
    assert (done.code, done.err) == (4, "")
    assert (found["transactional_id"], found["overdue_ms"]) == ("early bird", 0)
    assert "in the future by 2591" in found["reason"]
    left_open(own_store, "late", 2)
    later = json.loads(cli(*find).out)
    assert [hung["transactional_id"] for hung in later] == ["late", "early bird"]
    assert later[0]["reason"].startswith("open past its timeout: ")
    newest = max((own_store / "transactions" / "early%20bird").glob("*.json"))
    newest.write_bytes(newest.read_bytes()[:-9])
    damaged = cli(*find)
    assert (damaged.code, len(json.loads(damaged.out))) == (3, 1)
    assert "transactional id 'early bird' may hang" in damaged.err
    assert "txnlog txns abort --force 'early bird'" in damaged.err


FORCED = """
import sys
import txnlog.cli
from txnlog import Store
from txnlog.errors import CorruptEntry
from txnlog.state.transaction import Outcome, Status, TransactionState
from txnlog.inspect.descriptions import describe_transaction
from txnlog.log.transaction_log import Head

def abort(self, transactional_id, **options):
    print(sorted(options.items()), file=sys.stderr)
    if not options.get("force"):
        raise CorruptEntry("its state is damaged")
    state = TransactionState(transactional_id, Status.COMPLETE_ABORT, 1, 1, 3, 1, 1, "n")
    return describe_transaction(Head(9, state))

Store.abort_transaction = abort
txnlog.cli.main()
"""


def test_force_is_asked_for_by_its_price(own_store: Path) -> None:
    """A damaged state is refused with the remedy; --force needs consent, and then is passed on."""

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                sys.executable,
                "-c",
                FORCED,
                "txns",
                "abort",
                "x",
                "--store",
                str(own_store),
                *options,
            ],
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    refused = run("--yes")
    assert (refused.returncode, refused.stdout) == (3, "")
    assert "txnlog txns abort --force" in refused.stderr
    asked = run("--force")
    assert (asked.returncode, asked.stdout) == (2, "")
    assert "give up for ever what it committed" in asked.stderr
    assert "('force', True)" not in asked.stderr
    dry = run("--force", "--dry-run")
    assert dry.returncode == 0
    assert "('dry_run', True), ('force', True)" in dry.stderr
    done = run("--force", "--yes", "--number", "3", "--reason", "lost", "-o", "json")
    assert json.loads(done.stdout)["state"] == "CompleteAbort"
    passed = "[('dry_run', False), ('force', True), ('number', 3), ('reason', 'lost')]"
    assert passed in done.stderr


def test_force_changes_nothing_where_the_state_is_sound(own_store: Path) -> None:
    """An open transaction is aborted as without it; one that has committed is refused."""
    abort = ("txns", "abort", "--force", "--yes", "--store", own_store, "-o", "json")
    assert cli(*abort, "open").json()["state"] == "CompleteAbort"
    committed = cli(*abort, "etl-1")
    assert (committed.code, "no open transaction" in committed.err) == (1, True)


def test_why_names_the_holder_and_what_ends_it(store_path: Path) -> None:
    """The JSON has what the library says; a person reads who, since when, and the way out."""
    known = txnlog.open(str(store_path)).stable_offsets("paid", 0)[0]
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


def test_abort_ends_what_is_meant_and_fences(own_store: Path) -> None:
    """It needs --yes here, only that transaction is hit, and the producer is told the reason."""
    store = txnlog.open(str(own_store))
    producer = store.producer(transactional_id="live", transaction_timeout_ms=600_000)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("empty", b"x")
    producer.flush()
    abort = ("txns", "abort", "live", "--store", own_store, "-o", "json")
    assert cli(*abort).code == 2
    assert cli(*abort, "--number", 7, "--yes").code == 1
    dry = cli(*abort, "--dry-run")
    assert (dry.code, json.loads(dry.out)["state"]) == (0, "Ongoing")
    assert store.describe_transaction("live").status == "Ongoing"

    done = cli(*abort, "--reason", "its host is gone", "--yes").json()
    assert (done["state"], done["reason"]) == ("CompleteAbort", "its host is gone")
    assert cli(*abort).json()["state"] == "CompleteAbort"  # nothing left to ask about
    with pytest.raises(ProducerFenced, match="its host is gone"):
        producer.commit_transaction()
    committed = cli("txns", "abort", "etl-1", "--yes", "--store", own_store)
    assert (committed.code, "no open transaction" in committed.err) == (1, True)
    assert cli("txns", "abort", "nobody", "--yes", "--store", own_store).code == 1


def test_producers_ages_and_states(own_store: Path) -> None:
    """Who wrote to a partition and what they have open; ids by age and state; an id's states."""
    left_open(own_store, "late", 2)
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
