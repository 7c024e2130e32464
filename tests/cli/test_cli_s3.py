"""The command on an S3 store, reached by storage options."""

from __future__ import annotations

from typing import Any

import pytest

import txnlog
from tests.support.cli.cli_command import cli, cli_each


@pytest.mark.s3
def test_a_store_on_s3_is_read_with_storage_options(s3_options: dict[str, Any]) -> None:
    """Options reach the filesystem, a region in nested JSON too; a wrong bucket is one line."""
    url = "s3://test/cli-store"
    store = txnlog.open(url, create=True, storage_options=s3_options)
    store.topics.create("t")
    with store.producer() as producer:
        producer.send("t", b"value")
    options = [
        *("--storage-option", f"endpoint_url={s3_options['endpoint_url']}"),
        *("--storage-option", f"key={s3_options['key']}"),
        *("--storage-option", f"secret={s3_options['secret']}"),
        *("--storage-option", 'client_kwargs={"region_name": "us-east-1"}'),
    ]
    found = cli("--store", url, *options, "records", "read", "t", "-o", "json").json()
    assert [record["value"] for record in found] == ["value"]
    missing = cli("--store", "s3://absent/x", *options, "topics", "ls")
    assert (missing.code, missing.out, missing.err.count("\n")) == (1, "", 1)
    assert s3_options["secret"] not in missing.err


@pytest.mark.more
@pytest.mark.s3
def test_files_are_looked_into_on_s3(s3_options: dict[str, Any]) -> None:
    """Dumps, checks, indexes, usage and the examination do there what they do on a disk."""
    url = "s3://test/cli-files"
    store = txnlog.open(url, create=True, storage_options=s3_options)
    store.topics.create("t", config={"record.format": "columns", "compression.type": "none"})
    with store.producer() as producer:
        for number in range(8):
            producer.send("t", bytes([65 + number]) * 900_000)
    (segment,) = store.topics.segments("t")
    options = [
        *("--storage-option", f"endpoint_url={s3_options['endpoint_url']}"),
        *("--storage-option", f"key={s3_options['key']}"),
        *("--storage-option", f"secret={s3_options['secret']}"),
        *("--storage-option", 'client_kwargs={"region_name": "us-east-1"}'),
        *("-o", "json"),
    ]
    within = ("--store", url, *options)
    path = segment.paths.log
    usage, log, offsets, verified = (
        done.json()
        for done in cli_each(
            ("segments", "du", *within),
            ("log", "dump", "t", *within),
            ("offsets", "ls", "t", *within),
            ("index", "verify", "t", *within),
        )
    )
    assert usage[1]["segment_bytes"] == segment.size_bytes
    assert [entry["kind"] for entry in log] == ["created", "append"]
    assert [at["offset"] for at in offsets] == [8]
    assert [check["state"] for check in verified] == ["ok", "ok"]
    stored, alone = cli_each(
        ("segments", "dump", "t", *within),
        ("segments", "dump", "--file", f"{url}/{path}", *options),
    )
    assert [b["position"] for b in stored.json()] == [b["position"] for b in alone.json()]
    index = path.removesuffix(".log") + ".index"
    sound = store.storage.get(index)
    store.storage.delete([index])
    store.storage.put(index, sound[:-1])
    store.storage.put("topics/t/data/0/stray-0.log", b"x")
    assert cli("index", "verify", "t", *within).code == 3
    cli("index", "rebuild", "t", *within).json()
    assert store.storage.get(index) == sound
    found = cli("doctor", "--deep", *within).json()
    assert [(f["state"], f["path"]) for f in found if f["state"] != "ok"] == [
        ("note", "topics/t/data/0/stray-0.log")
    ]
    old = cli("doctor", "--orphan-age", "0s", *within)
    assert (old.code, '"orphan"' in old.out) == (0, True)
    assert not store.storage.list_folders(".probe")
    trim = cli("topics", "trim", "t:0", "--before", 3, "--yes", *within).json()
    assert trim[0]["record_count"] == 3
    cli("topics", "delete", "t", "--yes", *within).json()
    assert store.topics.list() == []
