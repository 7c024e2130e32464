"""``txnlog records count``."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

import txnlog
from tests.support.cli.cli_command import cli, cli_each


def test_count_is_what_a_read_would_show(store_path: Path) -> None:
    """Aborted and undecided records do not count, unless they are asked for."""
    at = ("--store", store_path, "-o", "json")
    orders, paid, uncommitted, some = cli_each(
        ("records", "count", "orders", *at),
        ("records", "count", "paid", *at),
        ("records", "count", "paid", "--isolation-level", "read_uncommitted", *at),
        ("records", "count", "orders:0", "--from", 3, "--to", "@1700000007000", *at),
    )
    assert orders.json() == {
        "topic": "orders",
        "record_count": 12,
        "partitions": [
            {"partition": 0, "start_offset": 0, "end_offset": 10, "record_count": 10},
            {"partition": 1, "start_offset": 0, "end_offset": 2, "record_count": 2},
        ],
    }
    assert [found.json()["record_count"] for found in (paid, uncommitted, some)] == [1, 3, 4]


def test_keys_are_counted_as_a_read_shows_them(tmp_path: Path) -> None:
    """Of a typed topic as JSON, too; with ``--skip-damaged`` there are as many."""
    schema = pa.schema([("id", pa.int64()), ("n", pa.int64())])
    store = txnlog.open(str(tmp_path / "s"), create=True)
    store.topics.create("typed", partitions=2, schema=schema, key=["id"])
    store.topics.create("plain", partitions=2)
    with store.producer() as producer:
        for number in range(10):
            producer.send_batch("typed", [{"id": number % 4, "n": number}])
            producer.send("plain", value=b"x" if number < 8 else None, key=b"%d" % (number % 4))
    at = ("--store", tmp_path / "s", "--latest")
    for topic, keys in (("typed", 4), ("plain", 2)):
        counted, sound, shown = cli_each(
            ("records", "count", topic, *at, "-o", "json"),
            ("records", "count", topic, *at, "--skip-damaged", "-o", "json"),
            ("records", "read", topic, *at, "-o", "jsonl"),
        )
        assert len(shown.lines()) == counted.json()["record_count"] == keys
        assert sound.json() == counted.json()
    refused = cli("records", "count", "plain", *at, "--offset", "100:", "-o", "json")
    assert refused.json()["record_count"] == 0
