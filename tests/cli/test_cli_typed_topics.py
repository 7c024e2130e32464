"""Typed topics from a shell: made, changed, filled from files, and read into others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import txnlog
from tests.support.cli.cli_command import Finished, cli
from txnlog.columns.schema_words import parse_columns

COLUMNS = (
    "carrier string not null, flight int not null, at timestamptz, price decimal(8, 2), day date, "
    "tags array<string>, gate string default '?', raw binary, where map<string, double>, "
    "seat struct<row: int, letter: string>"
)
ROWS: list[dict[str, Any]] = [
    {
        "carrier": "AA",
        "flight": 1,
        "at": "2024-01-01T10:00:00.25Z",
        "price": "12.50",
        "day": "2024-02-29",
        "tags": ["a", None],
        "raw": "/w==",
        "where": [["x", 1.5]],
        "seat": {"row": 3, "letter": "C"},
    },
    {"carrier": "U\n,A", "flight": 2, "gate": "", "_headers": [{"key": "h", "value": "1"}]},
    {"carrier": "AA", "flight": 3, "gate": None, "_timestamp": 1_700_000_000_000},
    {"carrier": "AA", "flight": 1, "_deleted": True},
]
FULL = ["carrier", "flight", "at", "price", "day", "tags", "gate", "raw", "where", "seat"]
ALL = [*FULL, "_timestamp", "_headers", "_deleted", "_offset"]


@pytest.fixture
def store(tmp_path: Path) -> txnlog.Store:
    """A store with a typed topic and its empty copy."""
    store = txnlog.open(str(tmp_path / "store"), create=True)
    made = parse_columns(COLUMNS)
    for topic in ("flights", "copy"):
        store.topics.create(topic, schema=made.columns, defaults=made.defaults, key=FULL[:2])
    return store


def test_a_topic_is_created_with_columns(tmp_path: Path) -> None:
    """As they are typed, with a key and with defaults of both kinds."""
    txnlog.open(str(tmp_path / "s"), create=True)
    create = ("topics", "create", "flights", "--store", tmp_path / "s", "-o", "json")
    options = ("--key", "carrier, flight", "--default", "price=1.5")
    made = cli(*create, "--schema", COLUMNS, *options).json()
    columns = {column["name"]: column for column in made["columns"]}
    assert [*columns] == FULL
    assert [name for name in FULL if columns[name]["key"]] == FULL[:2]
    assert (columns["price"]["default"], columns["gate"]["default"]) == ("1.50", "?")


def write(store: txnlog.Store, data: bytes | str, *arguments: object) -> Finished:
    given = data.encode() if isinstance(data, str) else data
    return cli("records", "write", *arguments, "--store", store.url, "-o", "json", stdin=given)


def lines(*rows: object) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def all_of(store: txnlog.Store, topic: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = store.scan(topic, columns=ALL).to_arrow().to_pylist()
    return found


def test_lines_of_columns_go_round_by_every_format(store: txnlog.Store, tmp_path: Path) -> None:
    """What was read as JSON lines, Parquet or Arrow is written again: the very same records."""
    written = write(store, lines(*ROWS), "flights", "-i", "jsonl").json()
    assert sum(part["record_count"] for part in written) == 4
    first = all_of(store, "flights")
    assert [row["gate"] for row in first[:3]] == ["?", "", None]
    assert (first[1]["_headers"], first[3]["_deleted"]) == ([{"key": "h", "value": b"1"}], True)
    assert (str(first[0]["price"]), first[0]["raw"], first[0]["where"]) == (
        *("12.50", b"\xff"),
        [("x", 1.5)],
    )
    read = ("records", "read", "flights", "--store", store.url)
    path = tmp_path / "f.parquet"
    assert cli(*read, "--to-file", path).code == 0
    jsonl = cli(*read, "-o", "jsonl").out
    ways: tuple[tuple[str, tuple[object, ...]], ...] = (
        (jsonl, ("-i", "jsonl")),
        (jsonl, ("-i", "jsonl", "--batch", "1")),
        ("", ("--from-file", path)),
    )
    for number, (data, options) in enumerate(ways, 1):
        assert write(store, data, "copy", *options).code == 0
        copied = all_of(store, "copy")[4 * (number - 1) :]
        assert [{**row, "_offset": 0} for row in copied] == [{**row, "_offset": 0} for row in first]


def test_csv_goes_round(store: txnlog.Store) -> None:
    """Null and empty text differ there, commas and line breaks in text count for nothing."""
    write(store, lines(*ROWS), "flights", "-i", "jsonl").json()
    flat = "carrier,flight,at,price,day,gate,_timestamp,_headers,_deleted"
    read = ("records", "read", "flights", "--store", store.url, "-o", "csv")
    refused = cli(*read)
    assert (refused.code, "'tags'" in refused.err) == (1, True)
    table = cli(*read, "--columns", flat)
    assert (table.code, table.err) == (0, "")
    assert write(store, table.out, "copy", "-i", "csv").code == 0
    names = flat.split(",")
    kept = [store.scan(topic, columns=names).to_arrow() for topic in ("flights", "copy")]
    assert kept[0] == kept[1]
    twice = write(store, "carrier,flight,carrier\nAA,1,AA\n", "copy", "-i", "csv")
    assert (twice.code, "has column 'carrier' twice" in twice.err) == (1, True)
    marked = 'carrier,flight,gate,price\nMQ,2,NA,NA\nMQ,3,"NA",\n'
    assert "--null-marker" in write(store, marked, "copy", "-i", "csv").err
    assert write(store, marked, "copy", "-i", "csv", "--null-marker", "NA").code == 0
    written = [row for row in store.scan("copy").to_arrow().to_pylist() if row["carrier"] == "MQ"]
    found = {(row["flight"], row["gate"], row["price"]) for row in written}
    assert found == {(2, None, None), (3, "NA", None)}
    wrong = write(store, "carrier,flight\nAA,1\nAA,x\n", "copy", "-i", "csv")
    assert (wrong.code, "Row #3" in wrong.err, "nothing was written" in wrong.err) == (
        1,
        True,
        True,
    )


def test_files_of_topics_without_a_schema_go_round(
    store_path: Path, own_store: Path, tmp_path: Path
) -> None:
    """Keys, values, headers and times of any bytes through Parquet and CSV; filters apply."""
    store = txnlog.open(str(own_store))
    store.topics.create("copy", partitions=2)
    columns = ["partition", "key", "value", "headers", "timestamp"]
    read = ("records", "read", "orders", "--store", own_store)
    path = tmp_path / "o.parquet"
    assert cli(*read, "--to-file", path).code == 0
    assert cli("records", "write", "copy", "--from-file", path, "--store", own_store).code == 0
    expected = store.scan("orders", columns=columns).to_arrow()
    assert store.scan("copy", columns=columns).to_arrow() == expected
    table = cli(*read[:2], "orders:0", *read[3:], "-o", "csv", "--key", "k3", "-w", "value=v3")
    assert write(store, table.out, "paid", "-i", "csv", "--partitioner", "crc32").code == 0
    last = (
        store.scan("paid", columns=columns, isolation_level="snapshot").to_arrow().to_pylist()[-1]
    )
    assert last == expected.to_pylist()[3]
    one = tmp_path / "one.arrow"
    assert cli(*read, "--to-file", one, "--grep", "^v", "-n", "2", "--columns", "value").code == 0
    with pa.ipc.open_file(one) as reader:
        assert reader.read_all().to_pydict() == {"value": [b"v0", b"v1"]}


def test_filters_look_into_columns_that_are_not_written(store: txnlog.Store) -> None:
    """A typed record is found by its key and value as they are shown; -n counts what is found."""
    write(store, lines(*ROWS), "flights", "-i", "jsonl").json()
    read = ("records", "read", "flights", "--store", store.url, "-o", "csv", "--columns", "flight")
    assert cli(*read, "--where", "value.carrier=AA").lines() == ['"flight"', "1", "3"]
    assert cli(*read, "--key", '["AA",1]', "-n", "1").lines() == ['"flight"', "1"]
    assert cli(*read, "--latest", "--grep", "AA").lines() == ['"flight"', "3"]


def test_records_before_a_wrong_line_are_written_if_they_go_as_they_come(
    store: txnlog.Store,
) -> None:
    """A typed line that is refused leaves those before it, and the message counts them."""
    data = lines({"carrier": "AA", "flight": 1}, {"carrier": "AA"}, {"carrier": "AA", "flight": 2})
    done = write(store, data, "flights", "-i", "jsonl", "--batch", "10")
    assert (done.code, "the first 1 records" in done.err) == (1, True)
    assert [row["flight"] for row in all_of(store, "flights")] == [1]


def test_what_is_no_such_file_is_said(store: txnlog.Store, tmp_path: Path) -> None:
    """Text in a typed topic, other formats than named, options that are for lines."""
    text = write(store, "a\n", "flights")
    assert (text.code, "--input jsonl" in text.err) == (1, True)
    for name in ("parquet", "arrow"):
        done = write(store, b"nonsense" * 9, "flights", "-i", name)
        assert (done.code, "nothing was written" in done.err) == (1, True)
    assert write(store, "", "flights", "-i", "csv").code == 0
    assert write(store, "a\n", "flights", "-i", "csv", "--batch", "1").code == 2
    assert write(store, "", "flights", "--from-file", tmp_path / "absent.csv").code == 2
    unnamed = write(store, "", "flights", tmp_path / "absent.csv")
    assert (unnamed.code, "name a file with --from-file" in unnamed.err) == (2, True)
    both = cli("records", "read", "flights", "--store", store.url, "-o", "csv", "--group", "g")
    assert (both.code, "-o parquet" in both.err) == (2, True)


def test_columns_change(store: txnlog.Store) -> None:
    """Added, dropped, renamed and widened in one step, with a preview; refused as a whole."""
    alter = ("topics", "alter", "flights", "--store", store.url, "-o", "json")
    changes = ("--add", "stop int default 0", "--rename", "at=when", "--drop", "raw, day")
    wider = (*changes, "--widen", "flight bigint", "--nullable", "stop")
    preview = cli(*alter, *changes, "--widen", "flight bigint", "--dry-run")
    assert ("dry run" in preview.err, preview.code) == (True, 0)
    assert store.topics.describe("flights").schema == store.topics.describe("copy").schema
    assert cli(*alter, *wider).code == 1  # a new column is not there to be made nullable
    done = cli(*alter, *changes, "--widen", "flight bigint").json()
    columns = {column["name"]: column for column in done["columns"]}
    assert [*columns] == [
        *("carrier", "flight", "when", "price", "tags", "gate", "where", "seat", "stop")
    ]
    assert (columns["flight"]["type"], columns["stop"]["default"]) == ("int64", "0")
    for wrong in (
        (),
        ("--add", "gate int"),
        ("--drop", "nothing"),
        ("--rename", "gate"),
        ("--widen", "gate int"),
        ("--drop", "gate", "--schema", "a int"),
        ("--add", "a int", "--default", "b=1"),
        ("--add", "a int", "--default", "a=x"),
    ):
        assert cli(*alter, *wrong).code in (1, 2)
    assert cli(*alter, "--partitions", "3").json()["partition_count"] == 3


def test_what_others_add_meanwhile_is_not_dropped(store: txnlog.Store) -> None:
    """A change is made of the columns that the topic has then, not of those it had at a look."""
    seen: list[pa.Schema] = []

    def add_one(columns: pa.Schema) -> pa.Schema:
        if not seen:
            seen.append(columns)
            store.topics.alter("copy", schema=columns.append(pa.field("theirs", pa.int32())))
        return columns.append(pa.field("ours", pa.int32()))

    other = txnlog.open(store.url)
    other.topics.alter("copy", schema=add_one)
    schema = other.topics.describe("copy").schema
    assert schema is not None
    assert schema.columns.names[-2:] == ["theirs", "ours"]


def test_a_topic_gets_the_columns_of_a_file(store: txnlog.Store, tmp_path: Path) -> None:
    """Those of Parquet and Arrow files; and of the file whose records it then takes."""
    table = pa.table(
        {
            "a": pa.array([1, 2], pa.int32()),
            "at": pa.array([1_000, 2_000], pa.timestamp("ns", "UTC")),
            "_offset": pa.array([7, 8]),
        }
    )
    pq.write_table(table, tmp_path / "x.parquet")
    with pa.ipc.new_file(tmp_path / "x.arrow", table.schema) as writer:
        writer.write_table(table)
    for name in ("x.parquet", "x.arrow"):
        topic = name.replace(".", "-")
        create = ("topics", "create", topic, "--store", store.url, "-o", "json")
        made = cli(*create, "--schema", tmp_path / name).json()
        types = [column["type"] for column in made["columns"]]
        assert types == ["int32", "timestamp[us, tz=UTC]"]
        assert write(store, "", topic, "--from-file", tmp_path / name).code == 0
        assert store.scan(topic, columns=["a"]).to_arrow().to_pydict() == {"a": [1, 2]}
    absent = cli(*create[:2], "y", *create[3:], "--schema", "absent.sql")
    assert (absent.code, "cannot be read" in absent.err) == (2, True)
    wrong = cli(*create[:2], "y", *create[3:], "--schema", "a timestamp")
    assert (wrong.code, "timestamptz" in wrong.err) == (2, True)
    assert cli(*create[:2], "y", *create[3:], "--key", "a").code == 2
