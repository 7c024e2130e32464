"""``txnlog tables publish``."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

import txnlog
from tests.support.cli.cli_command import cli


@pytest.fixture
def typed_store(own_store: Path) -> Path:
    """A store with a typed topic ``flights`` of two rows."""
    store = txnlog.open(str(own_store))
    store.topics.create("flights", schema=pa.schema([("carrier", pa.string())]))
    with store.producer() as producer:
        producer.send_batch("flights", pa.table({"carrier": ["AA", "UA"]}))
    return own_store


def test_a_topic_becomes_a_table(typed_store: Path, tmp_path: Path) -> None:
    """A Delta table and an Iceberg table, and the second time nothing is left to do."""
    publish = ("tables", "publish", "flights", "--store", typed_store, "-o", "json")
    delta = cli(*publish, "--delta", tmp_path / "delta").json()
    assert (delta["version"], delta["added_files"], delta["copied_files"]) == (0, 1, 0)
    found = pa.table(DeltaTable(str(tmp_path / "delta")).scan(columns=["carrier"]))
    assert found["carrier"].to_pylist() == ["AA", "UA"]
    uri = f"sqlite:///{tmp_path / 'catalog.db'}"
    iceberg = ("--iceberg", uri, "--table", "sales.flights", "--catalog", "mine")
    option = ("--table-option", f"warehouse=file://{tmp_path / 'warehouse'}")
    first = cli(*publish, *iceberg, *option).json()
    assert (first["url"], first["added_files"]) == ("sales.flights", 1)
    again = cli(*publish, *iceberg, *option).json()
    assert (again["version"], again["added_files"]) == (first["version"], 0)
    opened = load_catalog("mine", uri=uri).load_table("sales.flights")
    assert opened.scan().to_arrow()["carrier"].to_pylist() == ["AA", "UA"]


def test_what_is_asked_for_must_be_clear(typed_store: Path, tmp_path: Path) -> None:
    publish = ("tables", "publish", "flights", "--store", typed_store)
    for wrong, said in (
        ((), "either --delta DIR or --iceberg URI"),
        (("--delta", tmp_path / "t", "--table", "a.b"), "are for --iceberg"),
        (("--iceberg", "sqlite://"), "needs --table NAME"),
    ):
        done = cli(*publish, *wrong)
        assert (done.code, done.out) == (2, "")
        assert said in done.err
    inside = cli(*publish, "--delta", typed_store / "t")
    assert inside.code == 1
    assert "are nested" in inside.err
    nowhere = cli(*publish, "--iceberg", "nonsense://user:hidden-word@host", "--table", "a.b")
    assert nowhere.code == 1
    assert "hidden-word" not in nowhere.err


def test_maintenance_publishes_where_it_is_told(typed_store: Path, tmp_path: Path) -> None:
    """And tells what it would do, and what waits for a place."""
    url = f"delta:{tmp_path}/lake/flights"
    secret = "table.publish=delta:s3://me:hidden-word@lake/flights"
    refused = cli("topics", "config", "set", "flights", secret, "--store", typed_store)
    assert refused.code == 1
    assert "may hold a secret" in refused.err
    assert "hidden-word" not in refused.err
    setting = f"table.publish={url}"
    assert cli("topics", "config", "set", "flights", setting, "--store", typed_store).code == 0
    waiting = cli("maintain", "--store", typed_store, "-o", "json")
    assert (waiting.code, waiting.out) == (0, "[]\n")
    assert "topic 'flights' is not published" in waiting.err
    publish = ("maintain", "--store", typed_store, "-o", "json", "--publish")
    told = cli(*publish, "iceberg", "--publish", f"delta:{tmp_path}/lake", "--dry-run")
    [done] = cli(*publish, f"delta:{tmp_path}/lake").json()
    assert json.loads(told.out) == [{**done, "version": None}]
    shown = [done[key] for key in ("done", "reason", "topic", "url", "version", "added_files")]
    assert shown == [
        "table published",
        "table.publish",
        "flights",
        f"{tmp_path}/lake/flights",
        0,
        1,
    ]
    assert cli(*publish, f"delta:{tmp_path}/lake").json() == []
    elsewhere = cli(*publish, f"delta:{tmp_path}/other")
    assert elsewhere.code == 1
    assert "publishing of topic 'flights' failed: " in elsewhere.err
    wrong = cli(*publish, f"{tmp_path}/lake")
    assert wrong.code == 1
    assert "begins with 'delta:' or 'iceberg:'" in wrong.err
