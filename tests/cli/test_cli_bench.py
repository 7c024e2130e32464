"""``txnlog bench``."""

from __future__ import annotations

import json
from pathlib import Path

import txnlog
from tests.support.cli.cli_command import cli
from tests.support.replication.replica_folders import make


def test_bench_measures_and_cleans_up(own_store: Path, tmp_path: Path) -> None:
    """Three phases with counts and requests; the topic goes, the variable's store is untouched."""
    store = txnlog.open(str(own_store))
    before = store.topics.list()
    small = ("--records", 1000, "--record-bytes", 10, "--commits", 3, "-o", "json")
    done = cli("bench", "--store", own_store, *small).json()
    assert [(m["phase"], m["count"], m["size_bytes"]) for m in done] == [
        ("write", 1000, 10_000),
        ("read", 1000, 10_000),
        ("commit", 3, 3),
    ]
    write, read, commit = done
    assert write["p50_us"] is read["p99_us"] is None
    assert 0 < commit["p50_us"] <= commit["p99_us"]
    assert 0 < read["request_count"] < commit["request_count"]
    assert store.topics.list() == before
    assert list(own_store.glob("topics/txnlog-bench-*/data/**/*.log")) == []

    temporary = tmp_path / "temporary"
    temporary.mkdir()
    env = {"TXNLOG_STORE": str(own_store), "TMPDIR": str(temporary)}
    there = cli("bench", *small, "--partitions", 1, env=env)
    assert (there.code, str(temporary) in there.err) == (0, True)
    assert [m["count"] for m in json.loads(there.out)] == [1000, 1000, 3]
    assert (store.topics.list(), list(temporary.iterdir())) == (before, [])
    assert cli("bench", "--records", 0).code == 2
    replicas = make(tmp_path / "replicas")
    one_root = cli("bench", "--store", tmp_path / "replicas" / "a" / "incarnation-00000", *small)
    assert (one_root.code, "replicated store" in one_root.err) == (1, True)
    assert replicas.topics.list() == []
    assert cli("bench", "--store", tmp_path / "absent").code == 1
