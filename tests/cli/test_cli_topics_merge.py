"""``txnlog topics merge``."""

from __future__ import annotations

import json
from pathlib import Path

import txnlog
from tests.support.cli.cli_command import cli


def test_small_segments_are_merged(own_store: Path) -> None:
    """A dry run tells; the log shows the entry; records stay."""
    store = txnlog.open(str(own_store))
    store.topics.create("small", config={"record.format": "columns"})
    for number in range(6):
        with store.producer() as producer:
            producer.send("small", b"%d" % number)
    merge = ("topics", "merge", "small", "--store", own_store, "-o", "json")
    (told,) = json.loads(cli(*merge, "--dry-run").out)
    assert (told["segment_count"], told["merged_count"]) == (6, None)
    (done,) = cli(*merge).json()
    assert (done["topic"], done["partition"]) == ("small", 0)
    assert (done["segment_count"], done["merged_count"]) == (6, 1)
    assert done["merged_bytes"] < done["size_bytes"] == told["size_bytes"]
    assert cli(*merge).json() == []
    (segment,) = cli("segments", "ls", "small", "--store", own_store, "-o", "json").json()
    assert (segment["base_offset"], segment["end_offset"]) == (0, 6)
    entry = cli("log", "dump", "small", "--store", own_store, "-o", "json").json()[-1]
    assert entry["kind"] == "rewritten"
    assert entry["content"]["segments"][0]["stored"][-1][0] == 6
    assert "0:[0,6)" in cli("log", "dump", "small", "--store", own_store).out
    values = store.scan("small").to_arrow()["value"].to_pylist()
    assert values == [b"%d" % number for number in range(6)]
    missing = cli("topics", "merge", "nowhere", "--store", own_store)
    assert missing.code == 1
    assert "nowhere" in missing.err
