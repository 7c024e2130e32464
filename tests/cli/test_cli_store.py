"""``txnlog store create``, ``describe`` and ``config``."""

from __future__ import annotations

from pathlib import Path

import txnlog
from tests.support.cli.cli_command import cli, list_files


def test_a_store_is_made_without_python(tmp_path: Path) -> None:
    """By argument, option or variable; it shows what it is, and topics can be made in it."""
    made = cli("store", "create", tmp_path / "a", "-c", "offsets.retention.ms=1000", "-o", "json")
    opened = txnlog.open(str(tmp_path / "a"))
    assert made.json() == {
        "url": opened.url,
        "store_id": opened.store_id,
        "created_at_ms": opened.created_at_ms,
        "kind": "store",
        "source": None,
        "reached_ms": None,
        "config": {"offsets.retention.ms": "1000"},
    }
    assert cli("store", "describe", tmp_path / "a", "-o", "json") == made
    variable = {"TXNLOG_STORE": str(tmp_path / "b")}
    assert cli("store", "create", env=variable).lines()[-1].split() == ["config", "defaults"]
    assert cli("topics", "create", "orders", env=variable).code == 0
    assert txnlog.open(str(tmp_path / "b")).topics.list() == ["orders"]


def test_what_exists_is_not_made_again(empty_store: Path, tmp_path: Path) -> None:
    """Neither a store nor a folder that holds something else."""
    before = list_files(empty_store)
    again = cli("store", "create", empty_store)
    assert (again.code, again.out) == (1, "")
    assert "is a store already" in again.err
    other = cli("store", "create", empty_store, "--if-not-exists", "-c", "offsets.retention.ms=5")
    assert (other.code, "fixed when it is created" in other.err) == (1, True)
    shown = cli("store", "create", empty_store, "--if-not-exists", "-o", "jsonl")
    assert shown == cli("store", "describe", empty_store, "-o", "jsonl")
    assert list_files(empty_store) == before
    (tmp_path / "notes.txt").write_text("mine")
    foreign = cli("store", "create", tmp_path)
    assert (foreign.code, "is not a txnlog store" in foreign.err) == (1, True)


def test_settings_of_a_store_are_shown_and_checked(tmp_path: Path) -> None:
    """Each with where it comes from; a wrong one makes no store."""
    store = tmp_path / "store"
    wrong = cli("store", "create", store, "--config", "offset.retention.ms=5")
    assert (wrong.code, "did you mean 'offsets.retention.ms'" in wrong.err) == (1, True)
    assert not store.exists()
    cli("store", "create", store, "--config", "offsets.retention.ms=5").lines()
    found = cli("store", "config", store, "-o", "json").json()
    sources = {row["key"]: (row["value"], row["source"]) for row in found}
    assert sources["offsets.retention.ms"] == ("5", "store")
    assert sources["transaction.max.timeout.ms"] == ("900000", "default")


def test_a_store_is_named_once_and_told_how_to_make(tmp_path: Path) -> None:
    """Two names are wrong usage; a missing store names the verb that makes it."""
    twice = cli("store", "describe", tmp_path / "a", "--store", tmp_path / "b")
    assert (twice.code, "name the store once" in twice.err) == (2, True)
    nowhere = cli("topics", "create", "orders", "--store", tmp_path / "a")
    assert (nowhere.code, "`txnlog store create`" in nowhere.err) == (1, True)
    unnamed = cli("topics", "ls")
    assert (unnamed.code, "`txnlog store create`" in unnamed.err) == (2, True)
