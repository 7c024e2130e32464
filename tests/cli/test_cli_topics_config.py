"""``txnlog topics config``."""

from __future__ import annotations

from pathlib import Path

import txnlog
from tests.support.cli.cli_command import cli


def test_config_is_shown_with_its_source_and_changed_whole(own_store: Path) -> None:
    """Get tells what holds and why; set and unset change all that is named, or nothing."""
    config = ("topics", "config")
    store = ("--store", own_store, "-o", "json")
    found = {item["key"]: item for item in cli(*config, "get", "orders", *store).json()}
    assert (found["compression.type"]["value"], found["compression.type"]["source"]) == (
        "zstd",
        "topic",
    )
    assert found["segment.bytes"]["source"] == "default"
    assert found["segment.bytes"]["value"] == found["segment.bytes"]["default"] == str(1 << 30)
    changed = cli(*config, "set", "orders", "segment.bytes=4096", "compression.type=none", *store)
    assert [item["after"] for item in changed.json()] == ["4096", "none"]
    assert cli(*config, "set", "orders", "segment.bytes=8192", "nope=1", *store).code == 1
    some = cli(*config, "get", "orders", "segment.bytes", *store).json()
    assert [(item["key"], item["value"]) for item in some] == [("segment.bytes", "4096")]
    cli(*config, "unset", "orders", "segment.bytes", *store).json()
    assert txnlog.open(str(own_store)).topics.describe("orders").config == {
        "compression.type": "none"
    }
