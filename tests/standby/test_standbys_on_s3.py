"""A standby on S3, and one of a store on S3."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import txnlog
from tests.support.replication.standby_journey import there_and_back
from tests.support.steps import values
from txnlog.replication import Follower, Standby, open_replicas


@pytest.mark.more
def test_there_and_back(tmp_path: Path, s3_options: dict[str, Any]) -> None:
    there_and_back(tmp_path, "s3://test/standbys/journey", s3_options)


@pytest.mark.more
def test_a_standby_of_a_store_on_a_disk_and_s3(tmp_path: Path, s3_options: dict[str, Any]) -> None:
    """The options are for the roots on S3; the standby, on a disk of its own, takes none."""
    bucket = "s3://test/standbys"
    store = open_replicas(
        [str(tmp_path / "a"), f"{bucket}/root"],
        controller=f"{bucket}/control",
        storage_options=s3_options,
        create=True,
    ).store
    store.topics.create("t")
    with store.producer() as producer:
        producer.send("t", b"one")
    Follower(store, str(tmp_path / "standby")).follow()
    (tmp_path / "a").rename(tmp_path / "away")
    store.topics.create("u")  # who writes puts the root out
    copy = txnlog.open(str(tmp_path / "standby"))
    assert values(copy, "t") == [b"one"]
    assert "nothing is sent there" in Standby(copy).promote(s3_options, dry_run=True).why_unknown
    assert Standby(copy).promote({"s3://test": s3_options}, dry_run=True).why_unknown == ""
