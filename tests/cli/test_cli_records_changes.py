"""``txnlog records changes``."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import txnlog
from tests.support.cli.cli_command import cli, cli_each

PEOPLE = pa.schema([("id", pa.int64()), ("name", pa.string())])


def put(store: txnlog.Store, number: int, name: str | None) -> None:
    rows = {"id": [number], "name": pa.array([name], pa.string()), "_deleted": [name is None]}
    with store.producer() as producer:
        producer.send_batch("people", pa.table(rows))
        producer.send("plain", None if name is None else name.encode(), b"%d" % number)


@pytest.fixture
def store(tmp_path: Path) -> txnlog.Store:
    made = txnlog.open(tmp_path / "store", create=True)
    made.topics.create("people", schema=PEOPLE, key=["id"])
    made.topics.create("plain")
    return made


@pytest.mark.parametrize(
    ("topic", "key", "value"),
    [("people", "[1]", '{"id":1,"name":"%s"}'), ("plain", "1", "%s")],
)
def test_the_changes_since_a_token_and_where_to_go_on(
    store: txnlog.Store, topic: str, key: str, value: str
) -> None:
    put(store, 1, "Ada")
    token = store.snapshot(["people", "plain"]).token()
    put(store, 1, "Bea")
    put(store, 2, "Cyd")
    put(store, 1, None)
    at = ("records", "changes", topic, "--store", store.url)
    found = cli(*at, "--since", token, "-o", "jsonl")
    rows = [json.loads(line) for line in found.out.splitlines()]
    kinds = ["update_before", "update_after", "insert", "delete"]
    assert [row["change"] for row in rows] == kinds
    assert [row["offset"] for row in rows] == [1, 1, 2, 3]
    assert (rows[0]["key"], rows[0]["value"]) == (key, value % "Ada")
    assert rows[-1]["value"] == value % "Bea"
    going_on = found.err.strip().rpartition("--since ")[2]
    put(store, 2, "Dan")
    later, once, of_one = cli_each(
        (*at, "--since", going_on, "-o", "jsonl"),
        (*at, "--since", token, "--until", going_on, "-n", 1),
        (*at, "--since", token, "--until", going_on, "-o", "jsonl", "--grep", "Cyd"),
    )
    assert [json.loads(line)["change"] for line in later.out.splitlines()] == kinds[:2]
    assert [line.split()[0] for line in once.out.splitlines()] == ["CHANGE", "update_before"]
    assert "--since" not in once.err
    whole = cli(*at, "--since", "earliest", "-o", "jsonl")
    assert next(json.loads(line)["change"] for line in whole.out.splitlines()) == "insert"
    assert len(whole.out.splitlines()) == 7
    assert [json.loads(line)["change"] for line in of_one.out.splitlines()] == ["insert"]


def test_changes_go_into_files(store: txnlog.Store, tmp_path: Path) -> None:
    token = store.snapshot("people").token()
    put(store, 1, "Ada")
    put(store, 1, None)
    at = ("records", "changes", "people", "--store", store.url, "--since", token)
    cli(*at, "--to-file", tmp_path / "all.parquet")
    table = pq.read_table(tmp_path / "all.parquet")
    assert table.column_names == ["_change", "_partition", "_offset", "_timestamp", "id", "name"]
    assert table["_change"].to_pylist() == ["insert", "delete"]
    found = cli(*at, "-o", "csv", "--columns", "_change,name")
    assert found.out.replace('"', "").splitlines() == ["_change,name", "insert,Ada", "delete,Ada"]


def test_what_it_refuses(store: txnlog.Store) -> None:
    token = store.snapshot("people").token()
    at = ("--store", store.url, "--since", token)
    for arguments, why in (
        (("people:0", *at), "name the topic alone"),
        (("people", *at, "--columns", "name"), "need --to-file or -o csv"),
        (("people", *at, "-o", "csv", "--key", "1"), "are for tables and JSON"),
        (("plain", *at), "the token is of people, not of topic 'plain'"),
    ):
        found = cli("records", "changes", *arguments)
        assert found.code != 0
        assert why in " ".join(found.err.replace("│", " ").split())
