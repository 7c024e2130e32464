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


def test_times_and_sizes_may_be_in_words(own_store: Path) -> None:
    """As the pages show them, or short; wherever settings are given. Nonsense is refused."""
    store = ("--store", own_store)
    words = ("retention.ms=7d", "segment.bytes=256 MiB", "file.delete.delay.ms=90 minutes")
    assert cli("topics", "config", "set", "orders", *words, *store).code == 0
    assert cli("topics", "create", "new", "-c", "retention.ms=2 hours", *store).code == 0
    topics = txnlog.open(str(own_store)).topics
    found = topics.describe("orders").config
    assert [found[word.partition("=")[0]] for word in words] == [
        "604800000",
        "268435456",
        "5400000",
    ]
    assert topics.describe("new").config["retention.ms"] == "7200000"
    refused = cli("topics", "config", "set", "orders", "retention.ms=7 apples", *store)
    assert refused.code == 1
    assert "'7 apples'" in refused.err
