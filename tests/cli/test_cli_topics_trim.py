"""``txnlog topics trim``."""

from __future__ import annotations

import json
from pathlib import Path

import txnlog
from tests.support.cli.cli_command import FIRST_MS, cli


def test_trim_moves_the_start_and_no_further_than_asked(own_store: Path, tmp_path: Path) -> None:
    """By offset, by time, from Kafka's file; each partition for itself."""
    store = txnlog.open(str(own_store))

    def starts() -> list[int]:
        return [p.log_start_offset for p in store.topics.describe("orders").partitions]

    trim = ("topics", "trim", "--store", own_store, "--yes", "-o", "json")
    assert cli(*trim, "orders:0", "--before", 3).json()[0]["record_count"] == 3
    assert starts() == [3, 0]
    again = cli(*trim, "orders:0", "--before", 2).json()
    assert (again[0]["new_log_start_offset"], again[0]["record_count"]) == (3, 0)
    entries = store.topics.describe("orders").entries
    # Nothing in partition 1 is as new as this: all of it goes.
    cli(*trim, "orders", "--before", f"@{FIRST_MS + 4500}").json()
    assert starts() == [5, 2]
    assert store.topics.describe("orders").entries == entries + 1
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
    for field, wrong in (("topic", 5), ("partition", True), ("partition", 1e999), ("offset", 1.9)):
        wanted.write_text(json.dumps({"partitions": [{**item, field: wrong}]}))
        refused = cli(*trim, "--offset-json-file", wanted)
        assert (refused.code, f"{wrong!r} is no" in refused.err) == (2, True), refused.err
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
