"""``txnlog schemas``, and what reads values by them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import txnlog
from tests.support.cli.cli_command import INTERRUPTIBLE, cli, cli_each, environment
from txnlog.values import ValueWriter

V1 = {"type": "record", "name": "O", "fields": [{"name": "id", "type": "long"}]}
V2 = {"type": "record", "name": "O", "fields": [{"name": "x", "type": "string"}]}


@pytest.fixture
def orders(empty_store: Path, tmp_path: Path) -> Path:
    """A store with three orders in Avro and two dead letters; ``v1.avsc`` is beside it."""
    (tmp_path / "v1.avsc").write_text(json.dumps(V1))
    (tmp_path / "v2.avsc").write_text(json.dumps(V2))
    done = cli("schemas", "add", "orders-value", tmp_path / "v1.avsc", "--store", empty_store)
    assert done.code == 0, done.err
    store = txnlog.open(str(empty_store))
    store.topics.create("orders")
    writer = ValueWriter(store.schemas, "avro", subject="orders-value")
    with store.producer(value_serializer=writer) as producer:
        for number in range(3):
            producer.send("orders", {"id": number}, key=b"k%d" % number)
    with store.producer() as producer:
        producer.send("orders", b"\0\0\0\0\x09\xff", key=b"unknown")
        producer.send("orders", b"plain", key=b"plain")
    return empty_store


def test_schemas_are_added_shown_and_compared(orders: Path, tmp_path: Path) -> None:
    """The same one keeps its id; one that cannot follow is refused, with the field."""
    again = cli(
        "schemas", "add", "copies-value", tmp_path / "v1.avsc", "--store", orders, "-o", "jsonl"
    )
    assert json.loads(again.out) == {
        "subject": "copies-value",
        "version": 1,
        "id": 1,
        "type": "AVRO",
        "references": [],
    }
    shown = cli("schemas", "show", "--id", "1", "--store", orders, "-o", "json")
    assert json.loads(json.loads(shown.out)["schema"]) == V1
    for verb, code in (("check", 1), ("add", 1)):
        refused = cli("schemas", verb, "orders-value", tmp_path / "v2.avsc", "--store", orders)
        assert refused.code == code
        assert "x: the reader's field has no default" in refused.out + refused.err
    dry = cli(
        *("schemas", "config", "orders-value", "--compatibility", "none", "--dry-run"),
        *("--store", orders),
    )
    assert dry.code == 0
    assert "BACKWARD" in cli("schemas", "config", "orders-value", "--store", orders).out
    assert cli("schemas", "config", "--compatibility", "NONE", "--store", orders).code == 0
    assert cli("schemas", "add", "orders-value", tmp_path / "v2.avsc", "--store", orders).code == 0
    listed = cli("schemas", "ls", "--store", orders, "-o", "jsonl").out.splitlines()
    assert [(one["subject"], one["version"], one["id"]) for one in map(json.loads, listed)] == [
        ("copies-value", 1, 1),
        ("orders-value", 1, 1),
        ("orders-value", 2, 2),
    ]


def test_schemas_are_deleted_and_values_still_read(orders: Path) -> None:
    """It asks first; for good only what was deleted before, and then values are dead letters."""
    at = ("--store", orders)
    delete = ("schemas", "delete", "orders-value")
    unasked, dry, early = cli_each(
        (*delete, *at), (*delete, "--dry-run", *at), (*delete, "--permanent", "--yes", *at)
    )
    assert (unasked.code, "delete 1 schema(s) of subject orders-value;" in unasked.err) == (2, True)
    assert (dry.code, "dry run" in dry.err) == (0, True)
    assert (early.code, "not deleted yet" in early.err) == (1, True)
    assert cli("schemas", "ls", *at, "-o", "jsonl").out
    done = cli(*delete, "--version", 1, "--yes", *at, "-o", "jsonl")
    assert (json.loads(done.out)["id"], done.code) == (1, 0)
    listed, deleted = cli_each(
        ("schemas", "ls", *at, "-o", "jsonl"), ("schemas", "ls", "--deleted", *at, "-o", "jsonl")
    )
    assert (listed.out, json.loads(deleted.out)["version"]) == ("", 1)
    read = ("records", "head", "orders", "-n", 1, "--value-format", "avro", "-o", "jsonl")
    chosen = (*read, "--value-subject", "orders-value:1", *at)
    assert json.loads(cli(*chosen).out)["value"] == '{"id":0}'
    unasked = cli(*delete, "--permanent", *at)
    assert "for good: values with the ids 1 are dead letters" in unasked.err
    assert cli(*delete, "--permanent", "--yes", *at).code == 0
    assert "no subject 'orders-value'" in cli(*chosen).err


def test_wrong_usage(orders: Path, tmp_path: Path) -> None:
    """Each says what was meant."""
    (tmp_path / "x.txt").write_text("{}")
    for words, reason in (
        (("schemas", "add", "s", tmp_path / "x.txt"), ".avsc is Avro"),
        (("schemas", "show"), "name a SUBJECT"),
        (("schemas", "show", "nobody"), "no subject 'nobody'"),
        (("schemas", "add", "s", tmp_path / "v1.avsc", "--reference", "x"), "SUBJECT:VERSION"),
        (("records", "read", "orders", "--id-bytes", "8"), "need --value-format"),
        (("records", "read", "orders", "--value-format", "avro", "--id-bytes", "5"), "4 or 8"),
        (("records", "read", "orders", "--value-message", "M"), "need --value-format"),
        (("topics", "create", "t", "--subject", "s", "--schema", "a int"), "name one"),
        (("topics", "create", "t", "--message", "M"), "for the schema of a --subject"),
    ):
        done = cli(*words, "--store", orders)
        assert done.code != 0
        assert reason in done.err, done.err


def test_values_are_shown_by_their_fields(orders: Path, tmp_path: Path) -> None:
    """As JSON that filters look into, and as columns of files; dead letters as they are."""
    read = ("records", "read", "orders", "--value-format", "avro", "--store", orders)
    shown = cli(*read, "-o", "jsonl")
    assert shown.code == 0
    values = [json.loads(line)["value"] for line in shown.out.splitlines()]
    assert values == ['{"id":0}', '{"id":1}', '{"id":2}', {"base64": "AAAAAAn/"}, "plain"]
    assert "orders:0:3 is a dead letter: schema 9 is unknown" in shown.err
    assert "orders:0:4 is a dead letter: it begins with the byte 112" in shown.err
    for chosen in (("-w", "value.id=1"), ("-g", '"id":1'), ("-k", "k1")):
        found = cli(*read, *chosen, "-o", "jsonl").out.splitlines()
        assert [json.loads(line)["key"] for line in found] == ["k1"], chosen
    file = tmp_path / "orders.parquet"
    assert cli(*read, "--to-file", file).code == 0
    table = pq.read_table(file)
    assert table.column_names[:2] == ["id", "_key"]
    assert table.column("id").to_pylist() == [0, 1, 2, None, None]
    assert table.column("_value").to_pylist() == [None] * 3 + [b"\0\0\0\0\x09\xff", b"plain"]
    some = cli(*read, "-o", "csv", "--columns", "id,_offset", "-w", "value.id>0")
    assert some.out.splitlines() == ['"id","_offset"', "1,1", "2,2"]
    hexed = cli(*read, "-o", "csv", "--columns", "_value", "--encoding", "hex")
    assert hexed.out.splitlines()[-2:] == ['"0000000009ff"', '"706c61696e"']
    refused = cli(*read, "-o", "csv", "--columns", "_value")
    assert "column '_value' is not UTF-8 text" in refused.err
    folder = tmp_path / "schemas"
    folder.mkdir()
    (folder / "orders-value-9.avsc").write_text(json.dumps(V2))
    other = cli(*read, "--registry", folder, "-o", "jsonl")
    assert "orders:0:0 is a dead letter: schema 1 is unknown" in other.err
    group = cli(*read, "--group", "g", "--commit", "-o", "jsonl")
    assert [json.loads(line)["value"] for line in group.out.splitlines()] == values


def test_other_verbs_show_fields_too(orders: Path) -> None:
    """The oldest, the newest, and what was done to keys; each with its dead letters."""
    at = ("--value-format", "avro", "--store", orders, "-o", "jsonl")
    store = txnlog.open(str(orders))
    since = ("--since", store.snapshot("orders").token())
    with store.producer() as producer:
        for key, value in ((b"k1", b"\0\0\0\0\x01\x0e"), (b"k2", b"\0\0\0\0\x09\xff")):
            producer.send("orders", value, key=key)
    head, tail, changes, some = cli_each(
        ("records", "head", "orders", "-n", 1, *at),
        ("records", "tail", "orders", "-n", 3, *at),
        ("records", "changes", "orders", *since, *at),
        ("records", "changes", "orders", *since, "-g", '"id":7', *at),
    )
    unknown = {"base64": "AAAAAAn/"}
    for done, values in (
        (head, ['{"id":0}']),
        (tail, ["plain", '{"id":7}', unknown]),
        (changes, ['{"id":1}', '{"id":7}', '{"id":2}', unknown]),
        (some, ['{"id":7}']),
    ):
        assert done.code == 0, done.err
        assert [json.loads(line)["value"] for line in done.out.splitlines()] == values
        assert ("schema 9 is unknown" in done.err) == (done is not head)
    file = cli("records", "changes", "orders", *since, *at[:-2], "-o", "csv")
    assert "--value-format are for tables and JSON" in file.err
    store.topics.create("typed", schema=pa.schema([("id", pa.int64())]))
    for verb in (("head",), ("tail",), ("read",), ("read", "--group", "g")):
        refused = cli("records", verb[0], "typed", *verb[1:], *at)
        assert (refused.code, "the records of typed have columns" in refused.err) == (2, True)


@pytest.mark.skipif(os.name == "nt", reason="sends a POSIX signal")
def test_a_follower_shows_fields(orders: Path) -> None:
    """Of what comes later, too: also of a schema that came meanwhile."""
    words = ("records", "tail", "orders", "-n", "1", "-f", "--interval", "0.05", "-o", "jsonl")
    more = ("--value-format", "avro", "--store", str(orders))
    command = [sys.executable, "-c", INTERRUPTIBLE, *words, *more]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), text=True
    ) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["value"] == "plain"
        store = txnlog.open(str(orders))
        wider = {**V1, "fields": [*V1["fields"], {"name": "n", "type": "int", "default": 0}]}
        store.schemas.add("orders-value", json.dumps(wider))
        writer = ValueWriter(store.schemas, "avro", subject="orders-value")
        store.topics.alter("orders", partitions=2)
        with store.producer(value_serializer=writer) as producer:
            producer.send("orders", {"id": 7, "n": 1}, partition=1)
        assert json.loads(process.stdout.readline())["value"] == '{"id":7}'
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert process.returncode == 130


def test_a_typed_topic_of_a_subject(orders: Path) -> None:
    """Its columns are those of the schema."""
    made = cli(
        *("topics", "create", "rows", "--subject", "orders-value:1", "--key", "id"),
        *("--store", orders, "-o", "json"),
    )
    assert made.code == 0, made.err
    schema = txnlog.open(str(orders)).topics.describe("rows").schema
    assert schema is not None
    assert (schema.columns.names, schema.key) == (["id"], ("id",))


def test_a_message_of_a_proto_is_chosen(orders: Path, tmp_path: Path) -> None:
    """Of several in a file: those of the others are dead letters; also for a typed topic."""
    text = 'syntax = "proto3"; package p; message A { int32 a = 1; } message B { int32 b = 1; }'
    (tmp_path / "m.proto").write_text(text)
    at = ("--store", orders)
    assert cli("schemas", "add", "mixed-value", tmp_path / "m.proto", *at).code == 0
    store = txnlog.open(str(orders))
    store.topics.create("mixed")
    with store.producer() as producer:
        for message, row in (("p.A", {"a": 1}), ("p.B", {"b": 2})):
            writer = ValueWriter(store.schemas, "protobuf", subject="mixed-value", message=message)
            producer.send("mixed", writer(row))
    for verb in (("read",), ("head", "-n", "2")):
        words = (*("records", verb[0], "mixed", *verb[1:]), "--value-format", "protobuf", *at)
        shown = cli(*words, "--value-message", "p.B", "-o", "jsonl")
        assert shown.code == 0, shown.err
        assert json.loads(shown.out.splitlines()[-1])["value"] == '{"b":2}'
        assert "it is a p.A, not a p.B" in shown.err
    typed = ("topics", "create", "bs", "--subject", "mixed-value", *at)
    assert cli(*typed, "--message", "p.B").code == 0
    schema = store.topics.describe("bs").schema
    assert schema is not None
    assert schema.columns.names == ["b"]
    assert "no message 'p.C'; it has p.A, p.B" in cli(*typed, "--message", "p.C").err
