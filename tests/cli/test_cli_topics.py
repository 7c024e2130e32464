"""``txnlog topics ls``, ``describe``, ``create`` and ``add-partitions``."""

from __future__ import annotations

import json
from pathlib import Path

import txnlog
from tests.support.cli.cli_command import cli, cli_on_terminal


def test_ls_prints_one_row_or_object_for_each_topic(store_path: Path) -> None:
    """The JSON keys are the documented ones and the table says the same, sorted by name."""
    store = txnlog.open(str(store_path))
    known = {name: store.topics.describe(name) for name in store.topics.list()}
    expected = [
        {
            "topic": name,
            "partition_count": partitions,
            "record_count": records,
            "segment_count": segments,
            "size_bytes": known[name].size_bytes,
            "entries": entries,
            "compression_type": codec,
            "open_transaction_count": open_count,
        }
        for name, partitions, records, segments, entries, codec, open_count in (
            ("empty", 1, 0, 0, 1, "producer", 0),
            ("orders", 2, 12, 3, 3, "zstd", 0),
            ("paid", 1, 3, 3, 4, "producer", 1),
        )
    ]

    assert cli("topics", "ls", "--store", store_path, "-o", "json").json() == expected
    lines = cli("-o", "jsonl", "topics", "ls", "--store", store_path).lines()
    assert [json.loads(line) for line in lines] == expected
    table = cli("topics", "ls", env={"TXNLOG_STORE": str(store_path)}).lines()
    assert [line.split() for line in table] == [
        ["TOPIC", "PARTITIONS", "RECORDS", "SEGMENTS", "BYTES", "ENTRIES", "CODEC", "OPEN"],
        *[[str(value) for value in row.values()] for row in expected],
    ]


def test_ls_lists_what_patterns_match(store_path: Path) -> None:
    """Names, or patterns as shells have them; what matches nothing is not an error."""
    for patterns, expected in (
        (["*"], ["empty", "orders", "paid"]),
        (["ord*", "paid"], ["orders", "paid"]),
        (["p??d", "p*"], ["paid"]),
        (["ORD*", "x"], []),
    ):
        found = cli("topics", "ls", *patterns, "--store", store_path, "-o", "json").json()
        assert [row["topic"] for row in found] == expected


def test_describe_shows_offsets_settings_and_open_transactions(store_path: Path) -> None:
    """An undecided transaction holds the stable offset back and is named."""
    known = txnlog.open(str(store_path)).topics.describe("paid")
    owner = known.open_transactions[0]
    size = known.size_bytes

    found = cli("topics", "describe", "paid", "--store", store_path, "-o", "json").json()

    assert found == {
        "topic": "paid",
        "partition_count": 1,
        "record_count": 3,
        "segment_count": 3,
        "size_bytes": size,
        "entries": 4,
        "compression_type": "producer",
        "open_transaction_count": 1,
        "topic_id": known.topic_id,
        "created_at_ms": known.created_at_ms,
        "config": {},
        "partitions": [
            {
                "partition": 0,
                "log_start_offset": 0,
                "last_stable_offset": 2,
                "end_offset": 3,
                "segment_count": 3,
                "size_bytes": size,
                "newest_timestamp_ms": known.partitions[0].newest_timestamp_ms,
                "open_transactions": ["open"],
            }
        ],
        "open_transactions": [
            {
                "transactional_id": "open",
                "number": 1,
                "producer_id": owner.producer_id,
                "producer_epoch": 0,
            }
        ],
    }
    table = cli("topics", "describe", "orders", "--store", store_path).lines()
    assert "config      compression.type=zstd" in table
    assert "Open transactions: none" in table


def test_several_topics_are_described_one_after_the_other(store_path: Path) -> None:
    """By name or pattern, each once; what is not there is told, and the others are shown."""
    describe = ("topics", "describe", "--store", store_path)
    found = cli(*describe, "paid", "p*", "orders", "-o", "json").json()
    assert [topic["topic"] for topic in found] == ["paid", "orders"]
    lines = cli(*describe, "*", "-o", "jsonl").out.splitlines()
    assert [json.loads(line)["topic"] for line in lines] == ["empty", "orders", "paid"]
    text = cli(*describe, "paid", "orders").out
    assert text.index("topic       paid") < text.index("\n\ntopic       orders")
    missing = cli(*describe, "none", "x*", "paid", "-o", "json")
    assert (missing.code, [row["topic"] for row in json.loads(missing.out)]) == (1, ["paid"])
    assert "'none' does not exist" in missing.err
    assert "no topic is called 'x*'" in missing.err


def test_create_makes_a_topic_and_refuses_what_the_library_refuses(empty_store: Path) -> None:
    """A created topic is described; bad settings, names and repeats are one line and exit 1."""
    create = ("topics", "create", "--store", empty_store)
    made = cli(*create, "new", "--partitions", 3, "--config", "segment.bytes=4096", "-o", "json")
    found = made.json()
    assert (found["partition_count"], found["config"]) == (3, {"segment.bytes": "4096"})
    assert txnlog.open(str(empty_store)).topics.list() == ["new"]

    for arguments, named in (
        (("new",), "exists already"),
        (("other", "--config", "segment.byte=1"), "did you mean 'segment.bytes'?"),
        (("other", "--partitions", "0"), "partitions"),
        (("no/slash",), "'no/slash'"),
    ):
        refused = cli(*create, *arguments)
        assert (refused.code, refused.out) == (1, "")
        assert named in refused.err
        assert refused.err.count("\n") == 1
    assert txnlog.open(str(empty_store)).topics.list() == ["new"]


def test_topics_grow_and_scripts_may_repeat_themselves(own_store: Path) -> None:
    """add-partitions counts them all; --if-not-exists and --if-exists make repeats harmless."""
    store = ("--store", own_store, "-o", "json")
    grown = cli("topics", "add-partitions", "paid", "--to", 3, *store).json()
    assert [part["end_offset"] for part in grown["partitions"]] == [3, 0, 0]
    same = cli("topics", "create", "paid", "--if-not-exists", *store).json()
    assert same["topic_id"] == grown["topic_id"]
    assert cli("topics", "delete", "nope", "--if-exists", "--yes", *store).lines() == []


def test_a_pattern_that_no_topic_matches_is_told_to_people(store_path: Path) -> None:
    """On a terminal, for it may be a mistake; nothing is wrong with the store."""
    env = {"TXNLOG_STORE": str(store_path), "TERM": "xterm"}
    told = "txnlog: no topic is called nope or x*"
    for patterns, ends in ((("nope", "x*"), True), (("nope", "orders"), False)):
        code, shown = cli_on_terminal("topics", "ls", *patterns, reply="", env=env)
        assert (code, told in shown) == (0, ends), shown
