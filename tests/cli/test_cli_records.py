"""``txnlog records read``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cli_command import Finished, cli, cli_each


def offsets(found: Finished) -> list[int]:
    return [record["offset"] for record in found.json()]


def test_records_are_shown_whole_in_each_format(store_path: Path) -> None:
    """Text, other bytes, nulls and headers survive in JSON, and are one harmless line as text."""
    read = ("records", "read", "orders:1", "--store", store_path)
    expected: list[dict[str, Any]] = [
        {
            "topic": "orders",
            "partition": 1,
            "timestamp_type": "CreateTime",
            "offset": 0,
            "timestamp_ms": 1_700_000_000_000,
            "key": None,
            "value": {"base64": "/wA="},
            "headers": [{"key": "n", "value": None}, {"key": "b", "value": {"base64": "/g=="}}],
        },
        {
            "topic": "orders",
            "partition": 1,
            "timestamp_type": "CreateTime",
            "offset": 1,
            "timestamp_ms": 1_700_000_000_001,
            "key": "tab\tnul\0esc\x1b[31m \\ \u00e9",
            "value": None,
            "headers": [],
        },
    ]
    assert cli(*read, "-o", "json").json() == expected
    assert [json.loads(line) for line in cli(*read, "-o", "jsonl").lines()] == expected
    table = cli(*read, env={"PYTHONIOENCODING": "utf-8"}).lines()
    assert table[0].split() == ["PARTITION", "OFFSET", "TIMESTAMP", "KEY", "VALUE", "HEADERS"]
    assert table[1].split() == [
        *("1", "0", "2023-11-14T22:13:20.000Z", "\\N", "\\xff\\x00", "n=\\N,", "b=\\xfe")
    ]
    assert "tab\\tnul\\x00esc\\x1b[31m \\\\ \u00e9" in table[2]


def test_a_range_is_read(store_path: Path) -> None:
    """Offsets, times with and without zones, and a limit choose the records, across segments."""
    cases: tuple[tuple[tuple[str, ...], list[int]], ...] = (
        (("--from", "3", "--to", "8"), [3, 4, 5, 6, 7]),
        (("--from", "4", "-n", "3"), [4, 5, 6]),
        (("--from", "@1700000007500"), [8, 9]),
        (("--from", "@2023-11-14T23:13:26+01:00", "--to", "@2023-11-14T22:13:28"), [6, 7]),
        (("--from", "latest"), []),
        (("--from", "7", "--to", "2"), []),
    )
    read = ("records", "read", "orders:0", "--store", store_path, "-o", "json")
    for done, (arguments, expected) in zip(
        cli_each(*((*read, *case[0]) for case in cases)), cases, strict=True
    ):
        assert offsets(done) == expected, arguments


def test_isolation_and_partitions(store_path: Path) -> None:
    """read_committed stops before the undecided; an offset is held to each partition's range."""
    store = ("--store", store_path, "-o", "json")
    assert offsets(cli("records", "read", "paid", *store)) == [0]
    uncommitted = cli("records", "read", "paid", "--isolation-level", "read_uncommitted", *store)
    assert offsets(uncommitted) == [0, 1, 2]
    assert offsets(cli("records", "read", "orders", "--from", "9", *store)) == [9]
    assert cli("records", "read", "empty", *store).json() == []

    beyond = cli("records", "read", "orders:0", "--from", "99", "--store", store_path)
    assert (beyond.code, beyond.out) == (1, "")
    assert "offset 99 of orders:0 is out of range" in beyond.err
    unknown = cli("records", "read", "orders:7", "--store", store_path)
    assert (unknown.code, "no partition 7" in unknown.err) == (1, True)
