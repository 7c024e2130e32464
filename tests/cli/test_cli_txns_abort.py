"""``txnlog txns abort``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import txnlog
from tests.support.cli.cli_command import cli, environment, list_files
from tests.support.steps import begin, stop_before_marking
from txnlog.errors import ProducerFenced

FORCED = """
import sys
import txnlog.cli
from txnlog.admin.transactions import TransactionAdmin
from txnlog.errors import CorruptTransactionState
from txnlog.state.transaction import Outcome, Status, TransactionState
from txnlog.inspect.describe import (describe_transaction)
from txnlog.log.transaction_log import Head

def abort(self, transactional_id, **options):
    print(sorted(options.items()), file=sys.stderr)
    if not options.get("force"):
        raise CorruptTransactionState(
            f"its state is damaged; `txnlog txns abort --force {transactional_id}` does so at once"
        )
    state = TransactionState(transactional_id, Status.COMPLETE_ABORT, 1, 1, 3, 1, 1, "n")
    return describe_transaction(Head(9, state))

TransactionAdmin.abort = abort
txnlog.cli.main()
"""


@pytest.mark.more
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
    assert refused.stderr.count("txnlog txns abort --force") == 1
    assert "what it may have committed is given up" in refused.stderr
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


def test_a_commit_that_was_decided_is_completed(own_store: Path) -> None:
    """It says that it was committed, asks nothing, and find-hanging has nothing to say any more."""
    store = txnlog.open(str(own_store))
    stop_before_marking(producer := begin(store, "half"))
    producer.send("empty", b"decided")
    producer.commit_transaction()
    dry = cli("txns", "abort", "half", "--store", str(own_store), "--dry-run")
    assert "was committed, and is not complete yet; it cannot be aborted" in dry.err
    done = cli("txns", "abort", "half", "--store", str(own_store), "-o", "json")
    assert json.loads(done.out)["state"] == "CompleteCommit"
    assert "transaction 1 of half was committed, now complete; nothing was aborted" in done.err
    assert (dry.code, done.code) == (0, 0)
    again = cli("txns", "abort", "half", "--store", str(own_store))
    assert again.code == 1
    assert "there is no open transaction to abort" in again.err


def test_the_transaction_that_was_shown_is_aborted_and_no_later_one(own_store: Path) -> None:
    """Another one may begin between the question and the answer."""
    sound = FORCED.replace('not options.get("force")', "False")
    done = subprocess.run(
        [sys.executable, "-c", sound, "txns", "abort", "x", "--store", str(own_store), "--yes"],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
        stdin=subprocess.DEVNULL,
    )
    shown, aborted = [line for line in done.stderr.splitlines() if line.startswith("[(")]
    assert "('dry_run', True), ('number', None)" in shown
    assert "('number', 3)" in aborted
    assert "dry_run" not in aborted


def test_force_changes_nothing_where_the_state_is_sound(own_store: Path) -> None:
    """An open transaction is aborted as without it; one that has committed is refused."""
    abort = ("txns", "abort", "--force", "--yes", "--store", own_store, "-o", "json")
    assert cli(*abort, "open").json()["state"] == "CompleteAbort"
    committed = cli(*abort, "etl-1")
    assert (committed.code, "no open transaction" in committed.err) == (1, True)


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
    assert store.transactions.describe("live").status == "Ongoing"

    done = cli(*abort, "--reason", "its host is gone", "--yes").json()
    assert (done["state"], done["reason"]) == ("CompleteAbort", "its host is gone")
    assert cli(*abort).json()["state"] == "CompleteAbort"  # nothing left to ask about
    with pytest.raises(ProducerFenced, match="its host is gone"):
        producer.commit_transaction()
    committed = cli("txns", "abort", "etl-1", "--yes", "--store", own_store)
    assert (committed.code, "no open transaction" in committed.err) == (1, True)
    assert cli("txns", "abort", "nobody", "--yes", "--store", own_store).code == 1


def test_the_remedy_of_a_damaged_id_is_named_once(own_store: Path) -> None:
    """The error names the file, --force and what that gives up; nothing is changed."""
    newest = max((own_store / "transactions" / "etl-1").glob("*.json"))
    newest.write_bytes(newest.read_bytes()[:-9])
    before = list_files(own_store)
    refused = cli("txns", "abort", "etl-1", "--yes", "--store", own_store)
    assert (refused.code, refused.out) == (3, "")
    assert newest.name in refused.err
    assert refused.err.count("txnlog txns abort --force") == 1
    assert "what it may have committed is given up then (see --help)" in refused.err
    assert list_files(own_store) == before
