"""``txnlog records head`` and ``tail``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import txnlog
from tests.support.cli.cli_command import INTERRUPTIBLE, cli, cli_each, environment, list_offsets


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
    assert list_offsets(head) == [(0, 0), (1, 0), (1, 1), (0, 1)]
    assert list_offsets(tail) == [(0, 8), (0, 9)]
    assert list_offsets(everything) == [(0, 0), (1, 0), (1, 1), *((0, n) for n in range(1, 10))]
    assert list_offsets(one) == [(1, 1)]
    assert none.json() == []
    assert [record["value"] for record in aborted.json()] == ["aborted", "undecided"]
    assert cli("records", "tail", "orders:5", "--store", store_path).code == 1


@pytest.mark.few(1)
@pytest.mark.skipif(os.name == "nt", reason="sends a POSIX signal")
@pytest.mark.parametrize("output", ["jsonl", "table"])
def test_a_follower_shows_what_comes_until_ctrl_c(own_store: Path, output: str) -> None:
    """The last record, then each that is committed, once and at once; aborted ones never; 130."""
    arguments = ["records", "tail", "orders", "-n", "1", "-f", "--interval", "0.05", "-o", output]
    command = [sys.executable, "-c", INTERRUPTIBLE, *arguments, "--store", str(own_store)]
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
    assert (process.returncode, out, err) == (130, "", "ready\n")


def test_a_snapshot_keeps_no_positions(store_path: Path) -> None:
    """Later decisions fill in below the shown records, so following is impossible."""
    done = cli(
        *("records", "tail", "paid", "--follow", "--isolation-level", "snapshot"),
        *("--store", store_path),
    )
    assert (done.code, done.out) == (2, "")
    assert "cannot be followed" in done.err
