"""``txnlog records read``."""

from __future__ import annotations

import base64
import csv
import json
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import txnlog
from tests.support.cli.cli_command import COMMAND, cli, cli_each, environment, list_offsets


def test_records_are_shown_whole_in_each_format(store_path: Path) -> None:
    """Text, other bytes, nulls and headers survive in JSON, and are one harmless line as text."""
    read = ("records", "read", "orders:1", "--store", store_path)
    expected: list[dict[str, Any]] = [
        {
            "topic": "orders",
            "partition": 1,
            "timestamp_type": "CreateTime",
            "offset": 0,
            "timestamp_ms": 1_700_000_000_000,
            "key": None,
            "value": {"base64": "/wA="},
            "headers": [{"key": "n", "value": None}, {"key": "b", "value": {"base64": "/g=="}}],
        },
        {
            "topic": "orders",
            "partition": 1,
            "timestamp_type": "CreateTime",
            "offset": 1,
            "timestamp_ms": 1_700_000_000_001,
            "key": "tab\tnul\0esc\x1b[31m \\ \u00e9",
            "value": None,
            "headers": [],
        },
    ]
    assert cli(*read, "-o", "json").json() == expected
    assert [json.loads(line) for line in cli(*read, "-o", "jsonl").lines()] == expected
    table = cli(*read, env={"PYTHONIOENCODING": "utf-8"}).lines()
    assert table[0].split() == ["PARTITION", "OFFSET", "TIMESTAMP", "KEY", "VALUE", "HEADERS"]
    assert table[1].split() == [
        *("1", "0", "2023-11-14T22:13:20.000Z", "\\N", "\\xff\\x00", "n=\\N,", "b=\\xfe")
    ]
    assert "tab\\tnul\\x00esc\\x1b[31m \\\\ \u00e9" in table[2]


def test_a_range_is_read(store_path: Path) -> None:
    """Offsets, times with and without zones, and a limit choose the records, across segments."""
    cases: tuple[tuple[tuple[str, ...], list[int]], ...] = (
        (("--from", "3", "--to", "8"), [3, 4, 5, 6, 7]),
        (("--from", "4", "-n", "3"), [4, 5, 6]),
        (("--from", "@1700000007500"), [8, 9]),
        (("--from", "@2023-11-14T23:13:26+01:00", "--to", "@2023-11-14T22:13:28"), [6, 7]),
        (("--from", "latest"), []),
        (("--from", "7", "--to", "2"), []),
    )
    read = ("records", "read", "orders:0", "--store", store_path, "-o", "json")
    for done, (arguments, expected) in zip(
        cli_each(*((*read, *case[0]) for case in cases)), cases, strict=True
    ):
        assert list_offsets(done) == [(0, offset) for offset in expected], arguments


def test_isolation_and_partitions(store_path: Path) -> None:
    """read_committed stops before the undecided; an offset is held to each partition's range."""
    store = ("--store", store_path, "-o", "json")
    assert list_offsets(cli("records", "read", "paid", *store)) == [(0, 0)]
    uncommitted = cli("records", "read", "paid", "--isolation-level", "read_uncommitted", *store)
    assert list_offsets(uncommitted) == [(0, 0), (0, 1), (0, 2)]
    assert list_offsets(cli("records", "read", "orders", "--from", "9", *store)) == [(0, 9)]
    assert cli("records", "read", "empty", *store).json() == []

    beyond = cli("records", "read", "orders:0", "--from", "99", "--store", store_path)
    assert (beyond.code, beyond.out) == (1, "")
    assert "offset 99 of orders:0 is out of range" in beyond.err
    unknown = cli("records", "read", "orders:7", "--store", store_path)
    assert (unknown.code, "no partition 7" in unknown.err) == (1, True)


def test_a_range_is_taken_in_each_partition(store_path: Path) -> None:
    """Relative ends are held to each partition; one end alone means up to the other."""
    cases: tuple[tuple[str, str, list[tuple[int, int]]], ...] = (
        ("orders:0", "3:5", [(0, 3), (0, 4)]),
        ("orders", "-1", [(0, 9), (1, 1)]),
        ("orders", "+9", [(0, 9)]),
        ("orders", ":1", [(0, 0), (1, 0)]),
        ("orders:0", "-3:-1", [(0, 7), (0, 8)]),
        ("orders", "end", []),
        ("orders:0", "@1700000002000:1700000004000", [(0, 2), (0, 3)]),
        ("orders", "@-1h", []),
    )
    read = ("records", "read", "--store", store_path, "-o", "json")
    for done, (target, chosen, expected) in zip(
        cli_each(*((*read, case[0], "--offset", case[1]) for case in cases)), cases, strict=True
    ):
        assert list_offsets(done) == expected, (target, chosen)
    for wrong in (("--offset", "x"), ("--offset", "1:2", "--from", "1")):
        assert cli("records", "read", "orders", "--store", store_path, *wrong).code == 2


def test_a_snapshot_leaves_out_what_is_undecided_wherever_it_lies(own_store: Path) -> None:
    """What was committed behind an open transaction shows, it and what was aborted does not."""
    store = txnlog.open(str(own_store))
    with store.producer() as producer:
        producer.send("paid", "behind", partition=0)
    at = ("--store", own_store, "-o", "json", "--isolation-level", "snapshot")
    read, head, tail, count = cli_each(
        ("records", "read", "paid", *at),
        ("records", "head", "paid", *at),
        ("records", "tail", "paid", *at),
        ("records", "count", "paid", *at),
    )
    for found in (read, head, tail):
        assert sorted(record["value"] for record in found.json()) == ["behind", "committed"]
    assert count.json()["record_count"] == 2


def test_a_template_prints_the_very_bytes(store_path: Path) -> None:
    """Everything a record has, each escape, and bytes that are no text, untouched in a pipe."""
    template = (
        r"%t|%p|%o|%d|%D|%K|%V|%k|%v|%h|%v{hex}|%v{base64}|%v{text}|%k{json}|%%|\t\x41\\" + "\n"
    )
    done = subprocess.run(
        [*COMMAND, "records", "read", "orders:1", "-f", template, "--store", str(store_path)],
        capture_output=True,
        env=environment(),
        check=True,
    )
    key = "tab\tnul\0esc\x1b[31m \\ é"
    first = (
        b"orders|1|0|1700000000000|2023-11-14T22:13:20.000Z|-1|2||\xff\x00|n=,b=\xfe|ff00|/wA=|"
        rb"\xff\x00|null|%|" + b"\tA\\\n"
    )
    second = (
        f"orders|1|1|1700000000001|2023-11-14T22:13:20.001Z|{len(key.encode())}|-1|{key}||||"
        f"|\\N|{json.dumps(key, ensure_ascii=False)}|%|\tA\\\n"
    ).encode()
    assert done.stdout == first + second
    lines = cli("records", "tail", "orders:0", "--format", r"%o\n", "--store", store_path).lines()
    assert lines == [str(number) for number in range(10)]
    for wrong in ("%q", "%k{rot13}", "%t{hex}", "\\q", "100%"):
        refused = cli("records", "read", "orders", "-f", wrong, "--store", store_path)
        assert (refused.code, refused.out, "--format" in refused.err) == (2, "", True), wrong


def test_bytes_in_hex_and_base64(store_path: Path) -> None:
    """--encoding is for all bytes, text or not; null stays null."""
    read = ("records", "read", "orders:1", "--store", store_path, "-o", "jsonl", "--encoding")
    for encoding, decode in (("hex", bytes.fromhex), ("base64", base64.b64decode)):
        first, second = (json.loads(line) for line in cli(*read, encoding).lines())
        assert first["key"] is None
        assert decode(first["value"][encoding]) == b"\xff\x00"
        assert first["headers"][0]["value"] is None
        assert decode(first["headers"][1]["value"][encoding]) == b"\xfe"
        assert decode(second["key"][encoding]).decode().startswith("tab\t")


def test_files_hold_what_a_scan_returns(store_path: Path, tmp_path: Path) -> None:
    """Parquet and Arrow hold the very records; CSV its text; none replaces a file."""
    expected = txnlog.open(str(store_path)).scan("orders").to_arrow()
    read = ("records", "read", "orders", "--store", store_path, "--to-file")
    parquet, arrow = tmp_path / "o.parquet", tmp_path / "records"
    done = cli_each((*read, parquet), (*read, arrow, "--file-format", "arrow"))
    assert [(one.code, one.out, "wrote 12 records" in one.err) for one in done] == [
        (0, "", True)
    ] * 2
    assert pq.read_table(parquet) == expected
    with pa.ipc.open_file(arrow) as reader:
        assert reader.read_all() == expected

    refused = cli(*read, tmp_path / "o.csv")
    assert (refused.code, "encoding" in refused.err) == (1, True)
    assert cli(*read, tmp_path / "o.csv", "--encoding", "base64").code == 0
    with (tmp_path / "o.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    values = [base64.b64decode(row["value"]) for row in rows]
    assert values == [value or b"" for value in expected.column("value").to_pylist()]
    assert json.loads(rows[10]["headers"])[1] == {"key": "b", "value": {"base64": "/g=="}}

    before = parquet.read_bytes()
    again = cli(*read, parquet)
    assert (again.code, "exists already" in again.err) == (1, True)
    assert parquet.read_bytes() == before
    for wrong in ((tmp_path / "o.xls",), (tmp_path / "a.csv", "--format", "%v")):
        assert cli(*read, *wrong).code == 2
    assert cli(*read, tmp_path / "absent" / "o.csv", "--encoding", "hex").code == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["o.csv", "o.parquet", "records"]


def test_a_damaged_segment_leaves_no_file(own_store: Path, tmp_path: Path) -> None:
    """Exit code 3, and nothing under the file's name or beside it."""
    store = txnlog.open(str(own_store))
    (segment, *_) = store.topics.segments("orders", 1)
    path = own_store / segment.paths.log
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    out = tmp_path / "files"
    out.mkdir()
    done = cli("records", "read", "orders", "--store", own_store, "--to-file", out / "o.parquet")
    assert (done.code, done.out, segment.name in done.err) == (3, "", True)
    assert list(out.iterdir()) == []


@pytest.mark.parametrize("what", ["count", "head", "tail"])
def test_records_that_came_from_kafka_may_have_gaps(tmp_path: Path, what: str) -> None:
    """Markers take offsets there and are no records: they are neither counted nor shown."""
    from txnlog.segments.batches import encode_batch, encode_marker
    from txnlog.segments.records import normalize

    row = {"value": [b"a", b"b", b"c"], "timestamp": [1, 2, 3]}
    records = normalize(pa.record_batch(row), now_ms=0)
    ids: dict[str, Any] = {
        "producer_id": 7,
        "producer_epoch": 0,
        "base_sequence": 0,
        "transactional": True,
    }
    end = {"timestamp_ms": 4, "producer_id": 7, "producer_epoch": 0, "coordinator_epoch": 0}
    later = {**ids, "base_sequence": 3, "base_offset": 4}
    folder = tmp_path / "broker" / "t-0"
    folder.mkdir(parents=True)
    (folder / f"{0:020}.log").write_bytes(
        encode_batch(records, record_format="kafka", **ids)
        + encode_marker(commit=False, offset=3, **end)
        + encode_batch(records, record_format="kafka", **later)
        + encode_marker(commit=True, offset=7, **end)
    )
    store = txnlog.open(str(tmp_path / "store"), create=True)
    store.kafka.import_topic("t", [str(folder)])
    done = cli("records", what, "t", "--store", store.url, "-o", "json").json()
    if what == "count":
        assert done["record_count"] == 3
        assert done["partitions"][0]["end_offset"] == 8
    else:
        assert [record["offset"] for record in done] == [4, 5, 6]
        last = cli("records", what, "t", "-n", 2, "--store", store.url, "-o", "json").json()
        assert [record["offset"] for record in last] == ([4, 5] if what == "head" else [5, 6])


def test_a_group_goes_on_where_it_was(own_store: Path) -> None:
    """--group begins at the committed offsets; only --commit moves them, past what was printed."""
    store = txnlog.open(str(own_store))
    store.topics.create("jobs", partitions=2)
    with store.producer() as producer:
        for number in range(6):
            producer.send("jobs", b"%d" % number, partition=number % 2)

    def read(*arguments: str, topic: str = "jobs") -> list[str]:
        read = ("records", "read", topic, "--group", "g", "--store", own_store, "-o", "jsonl")
        return [json.loads(line)["value"] for line in cli(*read, *arguments).lines()]

    everything = ["0", "2", "4", "1", "3", "5"]
    assert read() == read("-n", "9") == everything
    assert "g" not in store.groups.list()
    assert read("--commit", "-n", "4") == everything[:4]
    assert read() == everything[4:]
    assert read("--commit", topic="jobs:0") == []
    assert read("--commit") == everything[4:]
    assert read() == []
    assert store.groups.describe("g").lag == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--commit"], "--commit needs --group"),
        (["--group", "g", "--from", "3"], "--group says where to begin"),
        (["--group", "g", "--isolation-level", "snapshot"], "a group has no offsets"),
    ],
)
def test_what_a_group_does_not_go_with(
    store_path: Path, arguments: list[str], message: str
) -> None:
    """Refused before anything is read."""
    refused = cli("records", "read", "orders", "--store", store_path, *arguments)
    assert (refused.code, refused.out) == (2, "")
    assert message in refused.err


def test_a_topic_is_read_as_it_was(tmp_path: Path) -> None:
    """At a moment or by a token, in read and count; where that makes no sense it is refused."""
    store = txnlog.open(str(tmp_path / "store"), create=True)
    store.topics.create("t")
    with store.producer() as producer:
        producer.send("t", b"old")
    token = store.snapshot(["t"]).token()
    with store.producer() as producer:
        producer.send("t", b"new")
    at = ("t", "--store", store.url, "-o", "json")
    then, now, counted, before, wrong, group = cli_each(
        ("records", "read", *at, "--as-of", token),
        ("records", "read", *at, "--as-of", "@-0s"),
        ("records", "count", *at, "--as-of", token),
        ("records", "read", *at, "--as-of", "@-1d"),
        ("records", "read", *at, "--as-of", "yesterday"),
        ("records", "read", *at, "--as-of", token, "--group", "g"),
    )
    assert [record["value"] for record in then.json()] == ["old"]
    assert [record["value"] for record in now.json()] == ["old", "new"]
    assert counted.json()["record_count"] == 1
    assert (before.code, "was made at" in before.err) == (1, True)
    assert (wrong.code, "not a token" in wrong.err) == (1, True)
    assert (group.code, "--as-of" in group.err) == (2, True)
