"""``--offset RANGE``, ``records head``, ``tail`` and ``count``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from cli_command import Finished, cli, cli_each, environment

import txnlog
from txnlog.cli.input.places import Offset, Time
from txnlog.cli.input.ranges import FromEnd, FromStart, Range, parse_range

NOON_MS = 1_714_564_800_000  # 2024-05-01T12:00:00Z


def offsets(found: Finished) -> list[tuple[int, int]]:
    return [(record["partition"], record["offset"]) for record in found.json()]


def test_the_grammar_of_ranges() -> None:
    """Each form of kcat and rpk, with ISO times that have colons of their own."""
    noon, one = Time(NOON_MS), Time(NOON_MS + 3_600_000)
    for text, expected in {
        "start": Range("earliest", "latest"),
        "oldest": Range("earliest", "latest"),
        "end": Range("latest", "latest"),
        ":end": Range("earliest", "latest"),
        "42": Range(Offset(42), "latest"),
        "42:": Range(Offset(42), "latest"),
        ":42": Range("earliest", Offset(42)),
        "42:50": Range(Offset(42), Offset(50)),
        "+3": Range(FromStart(3), "latest"),
        "-3": Range(FromEnd(3), "latest"),
        "-10:-5": Range(FromEnd(10), FromEnd(5)),
        "5:@2024-05-01T12:00": Range(Offset(5), noon),
        f"@{NOON_MS}": Range(noon, "latest"),
        "@2024-05-01T12:00": Range(noon, "latest"),
        "@2024-05-01T12:00:00Z:": Range(noon, "latest"),
        "@:2024-05-01T12:00:00Z": Range("earliest", noon),
        "@2024-05-01T14:00:00+02:00:2024-05-01T13:00:00Z": Range(noon, one),
        f"@{NOON_MS}:@{NOON_MS + 3_600_000}": Range(noon, one),
        "@2024-05-01T12:00:end": Range(noon, "latest"),
    }.items():
        assert parse_range(text) == expected, text
    for text in ("", ":", "soon", "1:2:3", "@", "@soon", "@:", "--3", "1.5", "@1:x"):
        with pytest.raises(typer.BadParameter):
            parse_range(text)
    ago = parse_range("@-1h30m:-30m")
    assert isinstance(ago.start, Time)
    assert isinstance(ago.stop, Time)
    assert ago.stop.timestamp_ms - ago.start.timestamp_ms == pytest.approx(3_600_000, abs=1000)


def test_a_range_is_taken_in_each_partition(store_path: Path) -> None:
    """Relative ends are held to each partition; one end alone means up to the other."""
    cases: tuple[tuple[str, str, list[tuple[int, int]]], ...] = (
        ("orders:0", "3:5", [(0, 3), (0, 4)]),
        ("orders", "-1", [(0, 9), (1, 1)]),
        ("orders", "+9", [(0, 9)]),
        ("orders", ":1", [(0, 0), (1, 0)]),
        ("orders:0", "-3:-1", [(0, 7), (0, 8)]),
        ("orders", "end", []),
        ("orders:0", "@1700000002000:1700000004000", [(0, 2), (0, 3)]),
        ("orders", "@-1h", []),
    )
    read = ("records", "read", "--store", store_path, "-o", "json")
    for done, (target, chosen, expected) in zip(
        cli_each(*((*read, case[0], "--offset", case[1]) for case in cases)), cases, strict=True
    ):
        assert offsets(done) == expected, (target, chosen)
    for wrong in (("--offset", "x"), ("--offset", "1:2", "--from", "1")):
        assert cli("records", "read", "orders", "--store", store_path, *wrong).code == 2


def test_head_and_tail_are_over_all_partitions(store_path: Path) -> None:
    """The oldest and the newest by time; aborted ones only if they are asked for."""
    at = ("--store", store_path, "-o", "json")
    head, tail, everything, one, none, aborted = cli_each(
        ("records", "head", "orders", "-n", 4, *at),
        ("records", "tail", "orders", "-n", 2, *at),
        ("records", "tail", "orders", "-n", 99, *at),
        ("records", "tail", "orders:1", "-n", 1, *at),
        ("records", "head", "empty", *at),
        ("records", "tail", "paid", "-n", 2, "--isolation-level", "read_uncommitted", *at),
    )
    assert offsets(head) == [(0, 0), (1, 0), (1, 1), (0, 1)]
    assert offsets(tail) == [(0, 8), (0, 9)]
    assert offsets(everything) == [(0, 0), (1, 0), (1, 1), *((0, n) for n in range(1, 10))]
    assert offsets(one) == [(1, 1)]
    assert none.json() == []
    assert [record["value"] for record in aborted.json()] == ["aborted", "undecided"]
    assert cli("records", "tail", "orders:5", "--store", store_path).code == 1


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


FOLLOW = """
import signal, sys
import txnlog.cli

# A shell that runs the tests in the background has its children ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
txnlog.cli.main()
"""


@pytest.mark.skipif(os.name == "nt", reason="sends a POSIX signal")
@pytest.mark.parametrize("output", ["jsonl", "table"])
def test_a_follower_shows_what_comes_until_ctrl_c(own_store: Path, output: str) -> None:
    """The last record, then each that is committed, once and at once; aborted ones never; 130."""
    arguments = ["records", "tail", "orders", "-n", "1", "-f", "--interval", "0.05", "-o", output]
    command = [sys.executable, "-c", FOLLOW, *arguments, "--store", str(own_store)]
    store = txnlog.open(str(own_store))
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), text=True
    ) as process:
        assert process.stdout is not None
        lines = process.stdout

        def next_value() -> str:
            line = lines.readline()
            return str(json.loads(line)["value"]) if output == "jsonl" else line.split()[4]

        if output == "table":
            assert lines.readline().split()[0] == "PARTITION"
        assert next_value() == "v9"
        with store.producer(transactional_id="writer") as producer:
            producer.init_transactions()
            for number in range(3):
                producer.begin_transaction()
                producer.send("orders", f"never{number}", "k")
                producer.flush()
                producer.abort_transaction()
                producer.begin_transaction()
                producer.send("orders", f"new{number}", "k")
                producer.commit_transaction()
                assert next_value() == f"new{number}"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, "", "")


def test_a_snapshot_leaves_out_what_is_undecided_wherever_it_lies(own_store: Path) -> None:
    """What was committed behind an open transaction shows, it and what was aborted does not."""
    store = txnlog.open(str(own_store))
    with store.producer() as producer:
        producer.send("paid", "behind", partition=0)
    at = ("--store", own_store, "-o", "json", "--isolation-level", "snapshot")
    read, head, tail, count = cli_each(
        ("records", "read", "paid", *at),
        ("records", "head", "paid", *at),
        ("records", "tail", "paid", *at),
        ("records", "count", "paid", *at),
    )
    for found in (read, head, tail):
        assert sorted(record["value"] for record in found.json()) == ["behind", "committed"]
    assert count.json()["record_count"] == 2


def test_a_snapshot_keeps_no_positions(store_path: Path) -> None:
    """What decides later fills in below what was shown, so that nothing can be followed."""
    done = cli(
        *("records", "tail", "paid", "--follow", "--isolation-level", "snapshot"),
        *("--store", store_path),
    )
    assert (done.code, done.out) == (2, "")
    assert "cannot be followed" in done.err
