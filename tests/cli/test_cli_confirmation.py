"""``--yes`` and ``--dry-run``: what only says what it would do, and what asks first."""

from __future__ import annotations

import json
from pathlib import Path

import txnlog
from tests.support.cli.cli_command import cli, cli_each, cli_on_terminal, list_files

NOT_DONE = "txnlog: dry run: nothing was changed\n"


def answer(reply: str, *arguments: object) -> tuple[int, str]:
    """The exit code and all that is shown, of a command whose user types ``reply``."""
    return cli_on_terminal(*arguments, reply=reply, env={"TERM": "dumb"})


def test_a_dry_run_shows_what_would_be_and_changes_no_file(own_store: Path) -> None:
    """Each verb that changes a topic: the result is shown, exit 0, every file stays as it is."""
    before = list_files(own_store)
    store = ("--store", own_store, "--dry-run", "-o", "json")
    create, more, delete, trim, set_, unset = cli_each(
        ("topics", "create", "new", "-p", 2, "-c", "segment.bytes=4096", *store),
        ("topics", "add-partitions", "orders", "--to", 5, *store),
        ("topics", "delete", "orders", *store),
        ("topics", "trim", "orders:0", "--before", 3, *store),
        ("topics", "config", "set", "orders", "compression.type=none", *store),
        ("topics", "config", "unset", "orders", "compression.type", *store),
    )
    for done in (create, more, delete, trim, set_, unset):
        assert (done.code, done.err) == (0, NOT_DONE)
    made = json.loads(create.out)
    assert (made["partition_count"], made["config"]) == (2, {"segment.bytes": "4096"})
    assert [part["end_offset"] for part in json.loads(more.out)["partitions"]] == [10, 2, 0, 0, 0]
    assert json.loads(delete.out)["record_count"] == 12
    assert json.loads(trim.out) == [
        {
            "topic": "orders",
            "partition": 0,
            "log_start_offset": 0,
            "new_log_start_offset": 3,
            "record_count": 3,
        }
    ]
    assert json.loads(set_.out) == [{"key": "compression.type", "before": "zstd", "after": "none"}]
    assert json.loads(unset.out) == [
        {"key": "compression.type", "before": "zstd", "after": "producer"}
    ]
    assert list_files(own_store) == before


def test_a_dry_run_refuses_what_would_be_refused(own_store: Path) -> None:
    """The same errors, so that a dry run that passes is worth something."""
    store = ("--store", own_store, "--dry-run")
    cases = (
        (("topics", "create", "orders", *store), "exists already"),
        (("topics", "add-partitions", "orders", "--to", 1, *store), "cannot shrink"),
        (("topics", "delete", "nope", *store), "does not exist"),
        (("topics", "trim", "paid:0", "--before", 3, *store), "the last stable offset is 2"),
        (("topics", "trim", "paid:7", "--before", 1, *store), "no partition 7"),
        (("topics", "config", "set", "orders", "segment.byte=1", *store), "'segment.bytes'"),
        (("topics", "config", "set", "orders", "compression.type=gzip", *store), "gzip"),
        (("topics", "config", "unset", "orders", "nope", *store), "nope"),
    )
    for done, (_, named) in zip(cli_each(*(case[0] for case in cases)), cases, strict=True):
        assert (done.code, done.out, done.err.count("\n")) == (1, "", 1), done
        assert named in done.err


def test_nothing_is_taken_away_unasked(own_store: Path) -> None:
    """Without a terminal and without --yes: exit 2. On a terminal anything but y is a no."""
    before = list_files(own_store)
    delete = ("topics", "delete", "orders", "--store", own_store)
    trim = ("topics", "trim", "paid", "--before", "latest", "--store", own_store)
    for verb in (delete, trim):
        refused = cli(*verb)
        assert (refused.code, refused.out) == (2, "")
        assert "--yes" in refused.err
    for no in ("", "n", "yess"):
        code, shown = answer(no, *delete)
        assert code == 1
        assert "Delete topic orders with 12 records in 3 segments? [y/N]" in shown
        assert "nothing was changed" in shown
    assert list_files(own_store) == before
    code, shown = answer("y", *trim)
    assert (code, "Delete the records before the new start: 2 offsets?" in shown) == (0, True)
    code, shown = answer("Yes", *delete)
    assert code == 0
    store = txnlog.open(str(own_store))
    assert store.topics.list() == ["empty", "paid"]
    assert not (own_store / "topics/orders/data").exists()


def test_what_was_made_again_while_the_user_thinks_is_left(own_store: Path) -> None:
    """Another topic under the same name is neither deleted nor trimmed."""
    store = txnlog.open(str(own_store))

    def make_again() -> None:
        store.topics.delete("orders")
        store.topics.create("orders", partitions=2)
        with store.producer() as producer:
            producer.send("orders", "of the new topic", partition=0)

    for verb in (("delete", "orders"), ("trim", "orders:0", "--before", "1")):
        typed = ("topics", *verb, "--store", own_store)
        code, shown = cli_on_terminal(*typed, reply="y", meanwhile=make_again, env={"TERM": "dumb"})
        assert (code, "deleted and recreated" in shown) == (1, True), shown
        assert store.topics.describe("orders").partitions[0].log_start_offset == 0
        assert store.scan("orders").count() == {0: 1, 1: 0}
