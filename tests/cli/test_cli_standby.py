"""``txnlog replicas follow`` and ``promote``."""

from __future__ import annotations

import json
from pathlib import Path

import txnlog
from tests.support.cli.cli_command import cli


def test_a_standby_follows_and_is_promoted(own_store: Path, tmp_path: Path) -> None:
    """One round each; what is missing is told before and with the promotion."""
    url = tmp_path / "standby"
    done = cli("replicas", "follow", url, "--store", own_store, "--once", "-o", "json").json()
    assert (done[0]["round"], done[0]["lost"]) == (0, [])
    store = txnlog.open(str(own_store))
    with store.producer() as producer:
        producer.send("orders", b"later", partition=0)
    shown = cli("store", "describe", url, "-o", "json").json()
    assert (shown["kind"], shown["source"]) == ("standby", store.url)
    assert shown["reached_ms"] == done[0]["reached_ms"]
    assert f"standby of {store.url}, as of " in cli("store", "describe", url).out
    missing = [{"topic": "orders", "partition": 0, "offset_count": 1}]

    told = json.loads(cli("replicas", "promote", url, "--dry-run", "-o", "json").out)
    assert (told["missing"], told["missing_count"]) == (missing, 1)
    asked = cli("replicas", "promote", url)
    assert (asked.code, "--yes" in asked.err) == (2, True)
    again = cli("replicas", "follow", url, "--store", own_store, "--once", "-o", "json").json()
    assert (again[0]["round"], again[0]["file_count"]) == (1, 1)

    promoted = cli("replicas", "promote", url, "--yes", "-o", "json").json()
    assert (promoted["missing"], promoted["round"]) == ([], 1)
    assert cli("store", "describe", url, "-o", "json").json()["kind"] == "store"
    refused = cli("replicas", "follow", url, "--store", own_store, "--once")
    assert refused.code == 1
    assert "was promoted" in refused.err
    with txnlog.open(str(url)).producer() as producer:
        producer.send("orders", b"here", partition=0)
    ends = {one.partition: one.end_offset for one in store.topics.describe("orders").partitions}
    here = txnlog.open(str(url)).topics.describe("orders").partitions
    assert {one.partition: one.end_offset for one in here} == ends | {0: ends[0] + 1}


def test_what_is_missing_of_a_source_that_is_gone_is_unknown(
    own_store: Path, tmp_path: Path
) -> None:
    """Neither nothing nor a failure: nobody can tell, and it is said why."""
    url = tmp_path / "standby"
    cli("replicas", "follow", url, "--store", own_store, "--once")
    own_store.rename(tmp_path / "gone")
    promote = ("replicas", "promote", url, "--dry-run")
    told = cli(*promote, "-o", "json")
    found = json.loads(told.out)
    assert (found["missing"], found["missing_count"]) == (None, None)
    assert "what is missing cannot be told: " in told.err
    assert "\nmissing: unknown\n" in cli(*promote).out
