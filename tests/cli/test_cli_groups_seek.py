"""``txnlog groups seek``."""

from __future__ import annotations

import json
from pathlib import Path

import txnlog
from tests.support.cli.cli_command import cli, cli_each, list_group_offsets


def test_a_dry_run_shows_each_place_and_moves_nothing(own_store: Path, tmp_path: Path) -> None:
    """Every kind of place, over what is chosen; then it moves, and says nothing."""
    file = tmp_path / "offsets.csv"
    file.write_text("etl,orders,0,3\nother,orders,0,9\n")
    cases: tuple[tuple[tuple[object, ...], dict[int, tuple[int | None, int]]], ...] = (
        (("--to", "earliest"), {0: (4, 0)}),
        (("--to", "latest"), {0: (4, 10)}),
        (("--to-earliest",), {0: (4, 0)}),
        (("--to-latest",), {0: (4, 10)}),
        (("--to", "current"), {0: (4, 4)}),
        (("orders", "--to-current"), {0: (4, 4), 1: (None, 2)}),
        (("orders:1", "--to", "@-1h"), {1: (None, 2)}),
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
        cli_each(*((*seek, "--dry-run", *case[0]) for case in cases)), cases, strict=True
    ):
        assert (done.code, done.err) == (0, "txnlog: dry run: nothing was changed\n")
        assert json.loads(done.out) == [
            {"topic": "orders", "partition": number, "before": before, "after": after}
            for number, (before, after) in expected.items()
        ], arguments
    assert list_group_offsets(own_store) == {("orders", 0): 4}

    refused = cli(*seek, "--shift-by", "-3")
    assert (refused.code, refused.out) == (2, "")
    assert "this would move 1 offset(s) of group etl" in refused.err
    assert list_group_offsets(own_store) == {("orders", 0): 4}
    cli(*seek, "--shift-by", "-2", "--yes").json()
    cli(*seek, "--shift-by", "-1", "--metadata", "again", "--execute").json()
    cli("groups", "seek", "new", "orders:1", "--to", 1, "--store", own_store).lines()
    assert list_group_offsets(own_store) == {("orders", 0): 1}
    assert list_group_offsets(own_store, "new") == {("orders", 1): 1}
    pipe = ("groups", "seek", "piped", "--from-file", "/dev/stdin", "--store", own_store)
    assert cli(*pipe, stdin=b"orders,0,2\n").code == 0
    assert list_group_offsets(own_store, "piped") == {("orders", 0): 2}
    assert txnlog.open(str(own_store)).groups.describe("etl").offsets[0].metadata == "again"


def test_seek_refuses_what_makes_no_sense(store_path: Path, tmp_path: Path) -> None:
    """No target or two, a file with topics: usage. Unknown topics and groups: failures."""
    bad = tmp_path / "bad.csv"
    bad.write_text("orders;0;3\n")
    cases = (
        (("etl",), 2, "give one of --to"),
        (("etl", "--to", "earliest", "--shift-by", "1"), 2, "give one of --to"),
        (("etl", "--to", "yesterday"), 2, "yesterday"),
        (("etl", "--to", "latest", "--to-current"), 2, "not latest and current"),
        (("etl", "--to-current", "--shift-by", "1"), 2, "give one of --to"),
        (("etl", "orders", "--from-file", bad), 2, "names the partitions itself"),
        (("etl", "--from-file", bad), 1, "line 1 of"),
        (("etl", "absent", "--to", "earliest"), 1, "'absent' does not exist"),
        (("etl", "orders:7", "--to", "earliest"), 1, "no partition 7"),
        (("nobody", "--to", "earliest"), 1, "name the topics"),
        (("etl", "orders:1", "--shift-by", "1"), 1, "no offset for orders:1"),
    )
    seek = ("groups", "seek", "--store", store_path, "--yes")
    for done, (arguments, code, named) in zip(
        cli_each(*((*seek, *case[0]) for case in cases)), cases, strict=True
    ):
        assert (done.code, done.out) == (code, ""), (arguments, done)
        assert named in done.err, done
    assert list_group_offsets(store_path) == {("orders", 0): 4}
