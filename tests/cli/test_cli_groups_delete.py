"""``txnlog groups delete`` and ``delete-offsets``."""

from __future__ import annotations

from pathlib import Path

import txnlog
from tests.support.cli.cli_command import cli, cli_on_terminal, list_group_offsets
from txnlog import TopicPartition


def test_deletions_need_a_word(own_store: Path) -> None:
    """Without --yes nobody can be asked here: usage. With it what was there is printed and gone."""
    store = txnlog.open(str(own_store))
    store.groups.reset_offsets("etl", [TopicPartition("orders", 1)], to=1)
    store.groups.reset_offsets("two", ["orders"], to="latest")
    at = ("--store", own_store, "-o", "json")
    for refused in (
        cli("groups", "delete", "etl", *at),
        cli("groups", "delete-offsets", "etl", "orders", *at),
    ):
        assert (refused.code, refused.out, "--yes" in refused.err) == (2, "", True)
    assert cli("groups", "delete", "etl", "nobody", "--yes", *at).code == 1
    shown = cli("groups", "delete-offsets", "etl", "orders:1", "--dry-run", *at)
    assert (shown.code, "dry run" in shown.err) == (0, True)
    assert list_group_offsets(own_store) == {("orders", 0): 4, ("orders", 1): 1}

    gone = cli("groups", "delete-offsets", "etl", "orders:1", "--yes", *at).json()
    assert [(item["topic"], item["partition"], item["offset"]) for item in gone] == [
        ("orders", 1, 1)
    ]
    assert list_group_offsets(own_store) == {("orders", 0): 4}
    nothing = cli("groups", "delete-offsets", "etl", "paid", "--yes", *at)
    assert (nothing.code, nothing.out, "nothing was changed" in nothing.err) == (0, "[]\n", True)
    doomed = cli("groups", "delete", "etl", "two", "--yes", *at).json()
    assert [group["group_id"] for group in doomed] == ["etl", "two"]
    assert store.groups.list() == []


def test_offsets_that_come_in_while_the_user_thinks_stay(own_store: Path) -> None:
    """Those that were shown are deleted."""
    store = txnlog.open(str(own_store))
    code, _ = cli_on_terminal(
        *("groups", "delete-offsets", "etl", "orders", "--store", own_store),
        reply="y",
        meanwhile=lambda: store.groups.reset_offsets("etl", [TopicPartition("orders", 1)], to=1),
        env={"TERM": "dumb"},
    )
    assert code == 0
    assert list_group_offsets(own_store) == {("orders", 1): 1}
