"""``txnlog groups ls``, ``describe`` and ``log``."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import txnlog
from tests.support.cli.cli_command import COMMAND, cli, environment
from txnlog import TopicPartition
from txnlog.cli.commands.groups import LOG
from txnlog.results import GroupLogEntry


def test_groups_show_offsets_and_lag(store_path: Path) -> None:
    """Lag counts to the stable offset; the JSON has the documented keys."""
    known = txnlog.open(str(store_path)).groups.describe("etl").offsets[0]
    summary: dict[str, object] = {"group_id": "etl", "topic_count": 1, "partition_count": 1}
    summary |= {"lag": 6, "trimmed": 0, "state": "Empty", "member_count": 0}

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
                "trimmed": 0,
                "committed_at_ms": known.committed_at_ms,
                "metadata": "",
                "pending": None,
            }
        ],
    }
    missing = cli("groups", "describe", "nobody", "--store", store_path)
    assert (missing.code, missing.out) == (1, "")
    assert "'nobody'" in missing.err


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
    store.groups.reset_offsets("etl", ["orders"], to=2, metadata="note")
    store.groups.delete_offsets("etl", ["orders"])
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


def test_every_partition_of_every_group(own_store: Path) -> None:
    """With --all, damage told as without it; what --watch finds comes again and again."""
    store = txnlog.open(str(own_store))
    store.groups.reset_offsets("other", ["orders"], to="latest")
    at = ("--store", own_store, "-o", "json")
    found = cli("groups", "ls", "--all", *at).json()
    assert [(row["group_id"], row["topic"], row["partition"], row["lag"]) for row in found] == [
        ("etl", "orders", 0, 6),
        ("other", "orders", 0, 0),
        ("other", "orders", 1, 0),
    ]
    assert {*found[0]} == {"group_id", *cli("groups", "describe", "etl", *at).json()["offsets"][0]}
    watching = [*COMMAND, "groups", "ls", "--watch", "--interval", "0.05", *map(str, at[:2])]
    with subprocess.Popen(
        [*watching, "-o", "jsonl"], stdout=subprocess.PIPE, env=environment()
    ) as process:
        assert process.stdout is not None
        ids = [json.loads(process.stdout.readline())["group_id"] for _ in range(6)]
        process.stdout.close()
        assert process.wait(30) == 141
    assert ids == ["etl", "other"] * 3


def test_an_entry_of_many_members_is_one_line_of_a_terminal() -> None:
    """As those have it that join or leave at one instant; a pipe and JSON show all of them."""
    ids = tuple(f"{number:032x}" for number in range(64))
    entry = GroupLogEntry(
        7, "members-joined", 0, None, None, (), members=ids, detail="c on host: orders; " * 64
    )
    shown = {field.key: field for field in LOG}
    members, detail = shown["members"], shown["detail"]
    assert members.glance is not None
    assert detail.glance is not None
    assert members.glance(entry) == f"{ids[0]} and 63 more"
    assert members.glance(replace(entry, members=ids[:2])) == f"{ids[0]}, {ids[1]}"
    assert len(detail.glance(entry)) == 60
    assert members.value(entry) == [*ids]
    assert detail.show(entry) == entry.detail
