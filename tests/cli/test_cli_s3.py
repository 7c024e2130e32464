"""The command on an S3 store, reached by storage options."""

from __future__ import annotations

from typing import Any

import pytest
from cli_command import cli

import txnlog


@pytest.mark.s3
def test_a_store_on_s3_is_read_with_storage_options(s3_options: dict[str, Any]) -> None:
    """Options reach the filesystem, a region in nested JSON too; a wrong bucket is one line."""
    url = "s3://test/cli-store"
    store = txnlog.open(url, create=True, storage_options=s3_options)
    store.create_topic("t")
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
