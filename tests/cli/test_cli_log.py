"""``txnlog log dump``: entries and markers as they lie."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa

import txnlog
from tests.support.cli.cli_command import cli
from tests.support.log.proposing import place, propose
from tests.support.steps import append


def dump(store: Path, *options: object) -> list[dict[str, Any]]:
    """What is shown of the log of ``paid``, healthy or not."""
    done = cli("log", "dump", "paid", "--store", store, "-o", "json", *options)
    found: list[dict[str, Any]] = json.loads(done.out)
    damages = [entry["damage"] for entry in found if entry["damage"]]
    assert done.code == (3 if damages else 0)
    assert done.err.count("\n") == len(damages)
    return found


def test_entries_are_shown_with_their_markers_and_all_they_hold(store_path: Path) -> None:
    """A committed, an aborted and an undecided append; the content is the file's, word for word."""
    found = dump(store_path)
    assert [(e["entry"], e["kind"], e["marker"]) for e in found] == [
        (0, "created", None),
        (1, "append", "commit"),
        (2, "append", "abort"),
        (3, "append", None),
    ]
    for entry in found:
        data = (store_path / entry["path"]).read_bytes()
        assert (entry["content"], entry["size_bytes"]) == (json.loads(data), len(data))
        assert entry["at_ms"] == entry["content"]["at_ms"]
    assert [e["transaction"] and e["transaction"]["transactional_id"] for e in found] == [
        None,
        "etl-1",
        "etl-2",
        "open",
    ]
    assert dump(store_path, "--from", 1, "-n", 2) == found[1:3]
    assert dump(store_path, "--from", 4) == []
    table = cli("log", "dump", "paid", "--store", store_path).lines()
    assert table[2].split()[-1] == "0:[0,1)"
    assert cli("log", "dump", "nope", "--store", store_path).code == 1


def test_a_schema_and_its_changes_are_told_in_short(tmp_path: Path) -> None:
    """The columns from then on, and what those are called that had other names; so in describe."""
    store = txnlog.open(str(tmp_path), create=True)
    columns = [("k", pa.string()), ("in", pa.struct([("x", pa.int8())]))]
    store.topics.create("t", schema=pa.schema(columns), key=["k"])
    store.topics.alter("t", rename={"in": "out"})
    more = [(f"c{n}", pa.int8()) for n in range(6)]
    known = store.topics.describe("t").schema
    assert known is not None
    schema = pa.schema([*known.columns, *more])
    store.topics.alter("t", schema=schema, defaults={"c0": -1})
    created, renamed, grown = cli("log", "dump", "t", "--store", tmp_path).lines()[-3:]
    assert "columns: k string, in struct<x: int8> record.format" in created
    assert renamed.endswith("columns: k string, out struct<x: int8> (was in)")
    assert grown.endswith("c3 int8 and 2 more")
    shown = json.loads(cli("topics", "describe", "t", "--store", tmp_path, "-o", "json").out)
    assert len({column.pop("id") for column in shown["columns"]}) == 8
    assert shown["columns"][0]["key"]
    assert shown["columns"][2] == {
        "name": "c0",
        "type": "int8",
        "nullable": True,
        "key": False,
        "default": "-1",
    }


def test_an_entry_of_several_appends_is_shown_with_all_places(tmp_path: Path) -> None:
    """Appends that a writer has placed for others are shown like its own."""
    store = txnlog.open(str(tmp_path), create=True)
    store.topics.create("t", partitions=2)
    append(store, b"first", partition=0)
    propose(store, b"one", partition=1)
    place(store, b"two", partition=1)
    last = cli("log", "dump", "t", "--store", tmp_path).lines()[-1]
    assert last.split()[1] == "appends"
    assert "1:[0,1) 1:[1,2)" in last
    found = json.loads(cli("log", "dump", "t", "--store", tmp_path, "-o", "json").out)[-1]
    assert (found["kind"], len(found["content"]["appends"])) == ("appends", 2)


def test_damage_is_shown_where_it_is_and_hides_nothing(own_store: Path) -> None:
    """A flipped bit, a lost entry, two outcomes and a strange marker: each with what is left."""
    log = own_store / "topics/paid/log"
    healthy = dump(own_store)
    first = log / "00000000000000000001.json"
    first.write_bytes(first.read_bytes().replace(b'"at_ms":1', b'"at_ms":2'))
    (log / "00000000000000000002.json").unlink()
    (log / "00000000000000000003.commit").write_bytes(
        (log / "00000000000000000001.commit").read_bytes()
    )
    (log / "00000000000000000003.abort").write_bytes(b"{")
    found = dump(own_store)
    assert [entry["entry"] for entry in found] == [0, 1, 2, 3]
    assert found[0] == healthy[0]
    assert "checksum" in found[1]["damage"]
    assert found[1]["content"]["segments"] == healthy[1]["content"]["segments"]
    assert found[1]["at_ms"] is None
    assert "missing" in found[2]["damage"]
    assert (found[2]["kind"], found[2]["marker"]) == (None, "abort")
    assert found[3]["marker"] == "commit and abort"
    for what in ("both a commit and an abort marker", "'etl-1'", "00000000000000000003.abort"):
        assert what in found[3]["damage"]
    (log / "00000000000000000002.abort").unlink()
    (log / "00000000000000000001.json").unlink()
    (log / "00000000000000000001.commit").unlink()
    gap = dump(own_store)[1]
    assert (gap["entry"], gap["kind"], gap["missing_count"]) == (1, "missing", 2)


def test_what_was_cleaned_up_is_missing_and_no_damage(tmp_path: Path) -> None:
    """Entries behind a checkpoint may be gone; without the checkpoint they are damage."""
    store = txnlog.open(str(tmp_path / "s"), create=True)
    store.topics.create("paid")
    with store.producer() as producer:
        for number in range(40):
            producer.send("paid", f"{number}")
            producer.flush()
    log = tmp_path / "s/topics/paid/log"
    (checkpoint,) = log.glob("*.checkpoint")
    kept = int(checkpoint.stem)
    for number in range(kept):
        (log / f"{number:020}.json").unlink()
    found = dump(tmp_path / "s")
    assert (found[0]["kind"], found[0]["missing_count"]) == ("missing", kept)
    assert [entry["entry"] for entry in found[1:]] == [*range(kept, 41)]
    assert found[1]["checkpoint"] is True
    checkpoint.unlink()
    assert "missing" in dump(tmp_path / "s")[0]["damage"]


def test_looking_ends_no_transaction(tmp_path: Path) -> None:
    """A transaction past its timeout is as undecided after the dump as before."""
    store = txnlog.open(str(tmp_path / "s"), create=True)
    store.topics.create("paid")
    producer = store.producer(transactional_id="late", transaction_timeout_ms=1)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("paid", "x")
    producer.flush()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert [entry["marker"] for entry in dump(tmp_path / "s")] == [None, None]
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
