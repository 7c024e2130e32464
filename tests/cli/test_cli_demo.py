"""``txnlog demo``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import txnlog
from tests.support.cli.cli_command import cli


def check_demo(url: str, store: txnlog.Store, made: dict[str, Any]) -> None:
    """What the demo printed is what the library finds in its store."""
    assert made["store"] == url
    shown = {(at["topic"], at["offset"]): at for at in made["records"]}
    for topic in ("orders", "payments"):
        every = store.scan(topic, isolation_level="read_uncommitted").to_arrow().to_pylist()
        committed = store.scan(topic).to_arrow().column("offset").to_pylist()
        assert len(every) > len(committed) == 2
        for row in every:
            at = shown.pop((topic, row["offset"]))
            assert (at["key"], at["value"]) == (row["key"].decode(), row["value"].decode())
            assert at["read_committed"] == (row["offset"] in committed)
            assert at["committed_value"] == (at["value"] if at["read_committed"] else None)
    assert shown == {}
    states = {txn["transactional_id"]: txn["outcome"] for txn in made["records"]}
    assert states == {"checkout-1": "committed", "checkout-2": "aborted", "checkout-3": "undecided"}


def test_the_demo_shows_both_views(tmp_path: Path, store_path: Path) -> None:
    """In a folder, and without one in a temporary one: never in the store of the environment."""
    folder = tmp_path / "demo"
    done = cli("demo", folder, "-o", "json")
    assert (done.code, f"export TXNLOG_STORE={folder}" in done.err) == (0, True)
    check_demo(str(folder), txnlog.open(str(folder)), json.loads(done.out))
    lag = cli("groups", "ls", "--store", folder, "-o", "json").json()
    summary = {"group_id": "billing", "topic_count": 1, "partition_count": 1, "lag": 2}
    assert lag == [{**summary, "trimmed": 0, "state": "Empty", "member_count": 0}]

    before = txnlog.open(str(store_path)).topics.list()
    env = {"TXNLOG_STORE": str(store_path), "TMPDIR": str(tmp_path)}
    table = cli("demo", env=env)
    (made,) = tmp_path.glob("txnlog-demo-*")
    assert table.code == 0
    assert table.out.startswith(f"store  {made / 'store'}\n")
    assert any(line.split()[-2:] == ["samovars", "-"] for line in table.out.splitlines())
    assert txnlog.open(str(store_path)).topics.list() == before


def test_the_demo_overwrites_nothing(own_store: Path, tmp_path: Path) -> None:
    """A store with topics, and a folder with something else in it, stay as they are."""
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("years of work")
    for place, named in ((own_store, "has topics already"), (foreign, "not a txnlog store")):
        files = sorted(place.rglob("*"))
        for arguments in (("demo", place), ("demo", "--store", place), ("--store", place, "demo")):
            done = cli(*arguments)
            assert (done.code, done.out, named in done.err) == (1, "", True), done
        assert sorted(place.rglob("*")) == files


@pytest.mark.more
@pytest.mark.s3
def test_the_demo_on_s3(s3_options: dict[str, Any]) -> None:
    """A URL with storage options is as good as a folder."""
    url = "s3://test/cli-demo"
    options = [
        *("--storage-option", f"endpoint_url={s3_options['endpoint_url']}"),
        *("--storage-option", f"key={s3_options['key']}"),
        *("--storage-option", f"secret={s3_options['secret']}"),
        *("--storage-option", 'client_kwargs={"region_name": "us-east-1"}'),
    ]
    done = cli("demo", url, *options, "-o", "json")
    assert done.code == 0, done
    check_demo(url, txnlog.open(url, storage_options=s3_options), json.loads(done.out))
