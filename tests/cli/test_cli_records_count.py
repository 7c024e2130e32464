"""``txnlog records count``."""

from __future__ import annotations

from pathlib import Path

from tests.support.cli.cli_command import cli_each


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
