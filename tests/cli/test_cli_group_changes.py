"""``txnlog groups seek``, ``delete``, ``delete-offsets`` and ``log``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cli_command import cli, cli_each

import txnlog
from txnlog import TopicPartition


def committed(store: Path, group: str = "etl") -> dict[tuple[str, int], int | None]:
    """Where the group is, by topic and partition."""
    found = txnlog.open(str(store)).describe_group(group).offsets
    return {(at.topic, at.partition): at.offset for at in found}


def test_seek_shows_and_changes_nothing_unless_told_to(own_store: Path, tmp_path: Path) -> None:
    """Every kind of place, over what is chosen; only --execute moves, and says nothing then."""
    file = tmp_path / "offsets.csv"
    file.write_text("etl,orders,0,3\nother,orders,0,9\n")
    cases: tuple[tuple[tuple[object, ...], dict[int, tuple[int | None, int]]], ...] = (
        (("--to", "earliest"), {0: (4, 0)}),
        (("--to", "latest"), {0: (4, 10)}),
        (("--to", "7"), {0: (4, 7)}),
        (("--to", "99"), {0: (4, 10)}),
        (("orders", "--to", "@1700000005000"), {0: (4, 5), 1: (None, 2)}),
        (("orders:1", "--to", "latest"), {1: (None, 2)}),
        (("--shift-by", "-3"), {0: (4, 1)}),
        (("--shift-by", "+2"), {0: (4, 6)}),
        (("--from-file", file), {0: (4, 3)}),
    )
    seek = ("groups", "seek", "etl", "--store", own_store, "-o", "json")
    for done, (arguments, expected) in zip(
        cli_each(*((*seek, *case[0]) for case in cases)), cases, strict=True
    ):
        assert (done.code, done.err) == (
            0,
            "txnlog: dry run: nothing was changed; add --execute to do it\n",
        )
        assert json.loads(done.out) == [
            {"topic": "orders", "partition": number, "before": before, "after": after}
            for number, (before, after) in expected.items()
        ], arguments
    assert committed(own_store) == {("orders", 0): 4}

    cli(*seek, "--shift-by", "-3", "--metadata", "again", "--execute").json()
    cli("groups", "seek", "new", "orders:1", "--to", 1, "--store", own_store, "--execute").lines()
    assert committed(own_store) == {("orders", 0): 1}
    assert committed(own_store, "new") == {("orders", 1): 1}
    assert txnlog.open(str(own_store)).describe_group("etl").offsets[0].metadata == "again"


def test_seek_refuses_what_makes_no_sense(store_path: Path, tmp_path: Path) -> None:
    """No target or two, a file with topics: usage. Unknown topics and groups: failures."""
    bad = tmp_path / "bad.csv"
    bad.write_text("orders;0;3\n")
    cases = (
        (("etl",), 2, "give one of --to"),
        (("etl", "--to", "earliest", "--shift-by", "1"), 2, "give one of --to"),
        (("etl", "--to", "yesterday"), 2, "yesterday"),
        (("etl", "orders", "--from-file", bad), 2, "names the partitions itself"),
        (("etl", "--from-file", bad), 1, "line 1 of"),
        (("etl", "absent", "--to", "earliest"), 1, "'absent' does not exist"),
        (("etl", "orders:7", "--to", "earliest"), 1, "no partition 7"),
        (("nobody", "--to", "earliest"), 1, "name the topics"),
        (("etl", "orders:1", "--shift-by", "1"), 1, "no offset for orders:1"),
    )
    seek = ("groups", "seek", "--store", store_path, "--execute")
    for done, (arguments, code, named) in zip(
        cli_each(*((*seek, *case[0]) for case in cases)), cases, strict=True
    ):
        assert (done.code, done.out) == (code, ""), (arguments, done)
        assert named in done.err, done
    assert committed(store_path) == {("orders", 0): 4}


def test_deletions_need_a_word(own_store: Path) -> None:
    """Without --yes nobody can be asked here: usage. With it what was there is printed and gone."""
    store = txnlog.open(str(own_store))
    store.reset_group_offsets("etl", [TopicPartition("orders", 1)], to=1)
    store.reset_group_offsets("two", ["orders"], to="latest")
    at = ("--store", own_store, "-o", "json")
    for refused in (
        cli("groups", "delete", "etl", *at),
        cli("groups", "delete-offsets", "etl", "orders", *at),
    ):
        assert (refused.code, refused.out, "--yes" in refused.err) == (2, "", True)
    assert cli("groups", "delete", "etl", "nobody", "--yes", *at).code == 1
    shown = cli("groups", "delete-offsets", "etl", "orders:1", "--dry-run", *at)
    assert (shown.code, "dry run" in shown.err) == (0, True)
    assert committed(own_store) == {("orders", 0): 4, ("orders", 1): 1}

    gone = cli("groups", "delete-offsets", "etl", "orders:1", "--yes", *at).json()
    assert [(item["topic"], item["partition"], item["offset"]) for item in gone] == [
        ("orders", 1, 1)
    ]
    assert committed(own_store) == {("orders", 0): 4}
    nothing = cli("groups", "delete-offsets", "etl", "paid", "--yes", *at)
    assert (nothing.code, nothing.out, "nothing was changed" in nothing.err) == (0, "[]\n", True)
    doomed = cli("groups", "delete", "etl", "two", "--yes", *at).json()
    assert [group["group_id"] for group in doomed] == ["etl", "two"]
    assert store.groups() == []


def test_a_groups_log_is_shown_as_it_lies(own_store: Path) -> None:
    """Moves with their transaction and marker, deletions, and damage: exit code 3 and the rest."""
    store = txnlog.open(str(own_store))
    with store.producer(transactional_id="undecided") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("paid", b"x")
        producer.send_offsets_to_transaction({TopicPartition("orders", 0): 6}, "etl")
        assert producer._coordinator is not None
        producer.flush()
        producer.abort_transaction()
    store.reset_group_offsets("etl", ["orders"], to=2, metadata="note")
    store.delete_group_offsets("etl", ["orders"])
    log = ("groups", "log", "etl", "--store", own_store, "-o", "json")
    found: list[dict[str, Any]] = cli(*log).json()
    first = found[0]
    assert first["transaction"]["transactional_id"] == "etl-1"
    assert [(entry["kind"], entry["marker"]) for entry in found] == [
        ("offsets", "commit"),
        ("offsets", None),
        ("offsets-deleted", None),
    ]
    move = {"topic": "orders", "partition": 0, "offset": 2, "start": 4, "metadata": "note"}
    assert found[1]["offsets"][0] == move
    assert found[2]["offsets"][0]["offset"] is None

    entry = own_store / "groups" / "etl" / f"{1:020}.json"
    entry.write_bytes(entry.read_bytes()[:-9])
    damaged = cli(*log)
    assert damaged.code == 3
    assert [item["entry"] for item in json.loads(damaged.out)] == [0, 2]
    assert entry.name in damaged.err
    missing = cli("groups", "log", "nobody", "--store", own_store)
    assert (missing.code, "'nobody'" in missing.err) == (1, True)
