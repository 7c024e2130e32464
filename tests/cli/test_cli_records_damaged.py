"""``txnlog records`` at damage: what is sound comes first, and the exit code is 3."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import txnlog
from tests.support.cli.cli_command import cli

READ = ("read", "orders", "-f", "%p:%o\\n")


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A store in which offset 1 of the first of two partitions is damaged, of three in each."""
    store = txnlog.open(str(tmp_path / "shop"), create=True)
    store.topics.create("orders", partitions=2, config={"compression.type": "none"})
    for number in range(3):
        for partition in (0, 1):
            with store.producer() as producer:
                value, time_ms = b"%d of %d" % (number, partition), 10 * number + partition
                producer.send("orders", value, partition=partition, timestamp_ms=time_ms)
    (segment,) = [found for found in store.topics.segments("orders", 0) if found.base_offset == 1]
    path = tmp_path / "shop" / segment.paths.log
    content = path.read_bytes()
    assert content.count(b"1 of 0") == 1
    path.write_bytes(content.replace(b"1 of 0", b"2 of 0"))
    return tmp_path / "shop"


@pytest.mark.parametrize("more", [(), ("--group", "g")])
def test_other_partitions_are_read_and_the_error_names_where_to_go_on(
    damaged: Path, more: tuple[str, ...]
) -> None:
    """The records before the damage too; with --skip-damaged those behind it, and code 0."""
    done = cli("records", *READ, *more, "--store", damaged)
    assert (done.code, sorted(done.out.splitlines())) == (3, ["0:0", "1:0", "1:1", "1:2"])
    assert "offset 1 of orders:0 cannot be read" in done.err
    assert "next records begin at offset 2" in done.err
    done = cli("records", *READ, *more, "--skip-damaged", "--store", damaged)
    assert (done.code, sorted(done.out.splitlines())) == (0, ["0:0", "0:2", "1:0", "1:1", "1:2"])
    assert "skipped" in done.err
    assert "1 records at most" in done.err or "1 at most" in done.err
    done = cli("records", *READ, *more, "-n", "1", "--store", damaged)
    assert (done.code, len(done.out.splitlines()), done.err) == (0, 1, "")


@pytest.mark.parametrize(
    ("verb", "count", "expected"),
    [
        ("head", 4, ["0:0", "1:0", "1:1", "0:2"]),
        ("head", 2, ["0:0", "1:0"]),
        ("tail", 3, ["1:1", "0:2", "1:2"]),
        ("tail", 2, ["0:2", "1:2"]),
    ],
)
def test_head_and_tail_pass_damage(
    damaged: Path, verb: str, count: int, expected: list[str]
) -> None:
    """They show what is sound, by its times, and report what of the damage they have met."""
    command = ("records", verb, "orders", "-n", count, "--format", "%p:%o\\n", "--store", damaged)
    done, skipping = cli(*command), cli(*command, "--skip-damaged")
    assert done.out.splitlines() == skipping.out.splitlines() == expected
    met = done.code == 3
    assert met is ("offset 1 of orders:0 cannot be read" in done.err)
    assert met is ("skipped 1 records at most: offset 1 of orders:0" in skipping.err)
    assert skipping.code == 0
    assert met or (done.code, count) == (0, 2)


def test_what_is_sound_is_counted(damaged: Path) -> None:
    """As many as are printed; without the option the segments are not read for it."""
    command = ("records", "count", "orders", "--store", damaged, "-o", "json")
    done, skipping = cli(*command), cli(*command, "--skip-damaged")
    assert (done.code, done.json()["record_count"], done.err) == (0, 6, "")
    counted = json.loads(skipping.out)
    assert (skipping.code, counted["record_count"]) == (0, 5)
    assert [part["record_count"] for part in counted["partitions"]] == [2, 3]
    assert "skipped 1 records at most: offset 1 of orders:0" in skipping.err
