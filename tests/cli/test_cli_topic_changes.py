"""``txnlog topics``: what changes a topic, what only says so, and what asks first."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from pathlib import Path

from cli_command import COMMAND, FIRST_MS, cli, cli_each, environment

import txnlog

NOT_DONE = "txnlog: dry run: nothing was changed\n"


def files_of(store: Path) -> dict[str, bytes]:
    """Every file of a store."""
    return {
        str(path.relative_to(store)): path.read_bytes()
        for path in store.rglob("*")
        if path.is_file()
    }


def answered(answer: str, *arguments: object) -> tuple[int, str]:
    """The exit code and all that is shown, of a command whose user types ``answer``."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env=environment(TERM="dumb"),
    )
    os.close(follower)
    os.write(leader, f"{answer}\n".encode())
    shown = b""
    try:
        while chunk := os.read(leader, 65536):
            shown += chunk
    except OSError:  # Linux says so when the other end is closed
        pass
    os.close(leader)
    return process.wait(30), shown.decode()


def test_a_dry_run_shows_what_would_be_and_changes_no_file(own_store: Path) -> None:
    """Each verb that changes a topic: the result is shown, exit 0, every file stays as it is."""
    before = files_of(own_store)
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
    assert json.loads(unset.out) == [{"key": "compression.type", "before": "zstd", "after": "lz4"}]
    assert files_of(own_store) == before


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
    before = files_of(own_store)
    delete = ("topics", "delete", "orders", "--store", own_store)
    trim = ("topics", "trim", "paid", "--before", "latest", "--store", own_store)
    for verb in (delete, trim):
        refused = cli(*verb)
        assert (refused.code, refused.out) == (2, "")
        assert "--yes" in refused.err
    for answer in ("", "n", "yess"):
        code, shown = answered(answer, *delete)
        assert code == 1
        assert "Delete topic orders with 12 records in 3 segments? [y/N]" in shown
        assert "nothing was changed" in shown
    assert files_of(own_store) == before
    code, shown = answered("y", *trim)
    assert (code, "Delete the records before the new start: 2 offsets?" in shown) == (0, True)
    code, shown = answered("Yes", *delete)
    assert code == 0
    store = txnlog.open(str(own_store))
    assert store.topics() == ["empty", "paid"]
    assert not (own_store / "topics/orders/data").exists()


def test_trim_moves_the_start_and_no_further_than_asked(own_store: Path, tmp_path: Path) -> None:
    """By offset, by time, from Kafka's file; each partition for itself."""
    store = txnlog.open(str(own_store))

    def starts() -> list[int]:
        return [p.log_start_offset for p in store.describe_topic("orders").partitions]

    trim = ("topics", "trim", "--store", own_store, "--yes", "-o", "json")
    assert cli(*trim, "orders:0", "--before", 3).json()[0]["record_count"] == 3
    assert starts() == [3, 0]
    again = cli(*trim, "orders:0", "--before", 2).json()
    assert (again[0]["new_log_start_offset"], again[0]["record_count"]) == (3, 0)
    entries = store.describe_topic("orders").entries
    # Nothing in partition 1 is as new as this: all of it goes.
    cli(*trim, "orders", "--before", f"@{FIRST_MS + 4500}").json()
    assert starts() == [5, 2]
    assert store.describe_topic("orders").entries == entries + 1
    wanted = tmp_path / "offsets.json"
    item = {"topic": "orders", "partition": 0, "offset": 7}
    wanted.write_text(json.dumps({"partitions": [item], "version": 1}))
    cli(*trim, "--offset-json-file", wanted).json()
    assert starts() == [7, 2]
    item["offset"] = -1
    wanted.write_text(json.dumps({"partitions": [item]}))
    cli(*trim, "--offset-json-file", wanted).json()
    assert starts() == [10, 2]
    wanted.write_text(json.dumps({"partitions": [{**item, "offset": 10}, {**item, "offset": 9}]}))
    twice = cli(*trim, "--offset-json-file", wanted)
    assert (twice.code, twice.out, "names a partition twice" in twice.err) == (2, "", True)
    wanted.write_text('{"partitions": [{"topic": "orders"}]}')
    for arguments in (
        ("orders", "--before", 3),
        ("orders:0",),
        ("orders:0", "--before", "soon"),
        ("orders:0", "--before", "earliest"),
        ("orders:0", "--before", 1, "--offset-json-file", wanted),
        ("--offset-json-file", wanted),
    ):
        assert cli(*trim, *arguments).code == 2, arguments


def test_config_is_shown_with_its_source_and_changed_whole(own_store: Path) -> None:
    """Get tells what holds and why; set and unset change all that is named, or nothing."""
    config = ("topics", "config")
    store = ("--store", own_store, "-o", "json")
    found = {item["key"]: item for item in cli(*config, "get", "orders", *store).json()}
    assert (found["compression.type"]["value"], found["compression.type"]["source"]) == (
        "zstd",
        "topic",
    )
    assert found["segment.bytes"]["source"] == "default"
    assert found["segment.bytes"]["value"] == found["segment.bytes"]["default"] == str(1 << 30)
    changed = cli(*config, "set", "orders", "segment.bytes=4096", "compression.type=none", *store)
    assert [item["after"] for item in changed.json()] == ["4096", "none"]
    assert cli(*config, "set", "orders", "segment.bytes=8192", "nope=1", *store).code == 1
    some = cli(*config, "get", "orders", "segment.bytes", *store).json()
    assert [(item["key"], item["value"]) for item in some] == [("segment.bytes", "4096")]
    cli(*config, "unset", "orders", "segment.bytes", *store).json()
    assert txnlog.open(str(own_store)).describe_topic("orders").config == {
        "compression.type": "none"
    }


def test_topics_grow_and_scripts_may_repeat_themselves(own_store: Path) -> None:
    """add-partitions counts them all; --if-not-exists and --if-exists make repeats harmless."""
    store = ("--store", own_store, "-o", "json")
    grown = cli("topics", "add-partitions", "paid", "--to", 3, *store).json()
    assert [part["end_offset"] for part in grown["partitions"]] == [3, 0, 0]
    same = cli("topics", "create", "paid", "--if-not-exists", *store).json()
    assert same["topic_id"] == grown["topic_id"]
    assert cli("topics", "delete", "nope", "--if-exists", "--yes", *store).lines() == []
