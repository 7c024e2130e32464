"""``txnlog records read`` with ``--key``, ``--grep`` and ``--where``."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
import typer

import txnlog
from tests.support.cli.cli_command import cli, list_offsets
from txnlog.cli.input.record_filter import RecordFilter

RECORDS: list[tuple[bytes | None, bytes | None]] = [
    (b"alice", b'{"id": 7, "name": "tea", "items": [{"n": 1.5}, {"n": 2}], "a b": true}'),
    (b"bob", b'{"id": "7", "name": "Milk", "items": []}'),
    (b"alice", b"plain, no JSON"),
    (None, None),
    (b"007", b"\xff\x00 tea"),
    (b"bob", b"[1, 2, 3]"),
]
BATCH = pa.record_batch(
    {
        name: pa.array(column, pa.binary())
        for name, column in zip(("key", "value"), zip(*RECORDS, strict=True), strict=True)
    }
)


@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        ("value.id=7", [0]),
        ("value.id == 7.0", [0]),
        ('value.id="7"', [1]),
        ("value.id!=7", [1, 2, 3, 4, 5]),
        ("value.id>6.5", [0]),
        ("value.name>N", [0]),
        ("value.name = tea", [0]),
        ("value.name = 'tea'", [0]),
        ("value.name != 'it''s'", [0, 1, 2, 3, 4, 5]),
        ("value.name ~ (?i)^M", [1]),
        ("value.items[0].n<2", [0]),
        ("value.items[-1].n=2", [0]),
        ("value[2]=3", [5]),
        ('value."a b"=true', [0]),
        ('value."a b"=1', []),
        ("value.id=null", [2, 3, 4, 5]),
        ("value.items = []", [1]),
        ("key=alice", [0, 2]),
        ("key != alice", [1, 3, 4, 5]),
        ("key=007", [4]),
        ("key ~ ^0+7$", [4]),
        ("value ~ tea", [0, 4]),
        ("value=null", [3]),
    ],
)
def test_a_condition_looks_into_json(condition: str, rows: list[int]) -> None:
    """Types are kept apart; what is not there, or no JSON, is null and has no order."""
    held = RecordFilter.of(None, None, [condition]).keep([BATCH])
    assert [batch.to_pylist() for batch in held] == [BATCH.take(pa.array(rows, "i4")).to_pylist()]


@pytest.mark.parametrize(
    "condition",
    [
        "value.id",
        "value.id=",
        "value.id == ",
        "offset=7",
        "value.id>null",
        "value.id>[1]",
        "value. id=1",
        "value~(",
        "",
    ],
)
def test_what_is_no_condition_is_wrong_usage(condition: str) -> None:
    """Rather than a filter that never holds."""
    with pytest.raises(typer.BadParameter, match="--where"):
        RecordFilter.of(None, None, [condition])


def test_a_column_alone_is_told_where_it_is() -> None:
    """Whoever names a column, as one would in SQL, is shown the condition to type."""
    with pytest.raises(typer.BadParameter, match=r"within value: 'value\.carrier = AA'"):
        RecordFilter.of(None, None, ["carrier = AA"])
    with pytest.raises(typer.BadParameter, match="that is not a condition"):
        RecordFilter.of(None, None, ["offset = 7"])


def test_deeply_nested_json_is_no_json() -> None:
    """It ends no command."""
    deep = pa.record_batch({"key": [None], "value": [b"[" * 100_000]}, pa.schema(BATCH.schema))
    [kept] = RecordFilter.of(None, None, ["value[0]=1"]).keep([deep])
    assert kept.num_rows == 0


def test_no_pattern_takes_for_ever() -> None:
    """One that a backtracking matcher would try in as many ways as there are subsets."""
    long = pa.record_batch({"key": [None], "value": [b"a" * 200 + b"!"]}, pa.schema(BATCH.schema))
    [kept] = RecordFilter.of(None, None, ["value ~ ^(a+)+$"]).keep([long])
    assert kept.num_rows == 0


def test_json_that_few_parsers_take_is_looked_into() -> None:
    """Half a surrogate, or a number beyond a double, hides nothing else in the record."""
    values = [
        b'{"id": 7, "u": "\\ud800"}',
        b'{"id": 7, "n": 1e400}',
        b'{"id": ' + b"7" * 5000 + b"}",
    ]
    batch = pa.record_batch({"key": [None] * 3, "value": values}, pa.schema(BATCH.schema))
    [kept] = RecordFilter.of(None, None, ["value.id=7"]).keep([batch])
    assert kept.num_rows == 2


def test_records_are_found(store_path: Path, tmp_path: Path) -> None:
    """All that is asked for must hold, and -n counts what is found; of typed topics the columns."""
    read = ("records", "read", "orders", "--store", store_path, "-o", "json")
    assert list_offsets(cli(*read, "--key", "k3")) == [(0, 3)]
    assert list_offsets(cli(*read, "--grep", "^v[2-4]$", "--max", "2")) == [(0, 2), (0, 3)]
    assert list_offsets(cli(*read, "--grep", "k[2-4]", "--where", "value!=v3")) == [(0, 2), (0, 4)]
    assert list_offsets(cli(*read, "-g", "absent")) == []
    wrong = cli(*read, "--grep", "(")
    assert (wrong.code, "--grep '('" in wrong.err) == (2, True)
    twice = cli(*read, "--to-file", tmp_path / "x.csv", "--key", "k3")
    assert (twice.code, "-o or --to-file" in twice.err) == (2, True)
    store = txnlog.open(str(tmp_path / "typed"), create=True)
    store.topics.create("flights", schema=pa.schema([("carrier", pa.string())]))
    with store.producer() as producer:
        producer.send_batch("flights", pa.record_batch({"carrier": ["AA", "UA", "AA"]}))
    typed = ("records", "read", "flights", "--store", tmp_path / "typed", "-o", "json")
    assert list_offsets(cli(*typed, "-w", "value.carrier=AA")) == [(0, 0), (0, 2)]


def test_the_newest_record_of_each_key(tmp_path: Path) -> None:
    """Filters, ranges and counts are of these; tombstones, and records without a key, are not."""
    store = txnlog.open(str(tmp_path / "s"), create=True)
    store.topics.create("t", partitions=2)
    store.topics.create("typed", schema=pa.schema([("a", pa.int64())]))
    sent = [("a", "old"), ("b", "old"), ("c", "old"), (None, "x"), ("a", "new"), ("c", None)]
    with store.producer() as producer:
        for key, value in sent:
            producer.send("t", value, key, partition=0)
        producer.send("t", "moved", "b", partition=1)
    read = ("records", "read", "t", "--store", tmp_path / "s", "-o", "json", "--latest")
    assert list_offsets(cli(*read)) == [(0, 4), (1, 0)]
    assert list_offsets(cli(*read, "--to", "3")) == [(0, 0), (0, 2), (1, 0)]
    assert list_offsets(cli(*read, "-n", "1")) == [(0, 4)]
    assert list_offsets(cli(*read, "--key", "b")) == [(1, 0)]
    assert list_offsets(cli(*read, "--grep", "old")) == []
    assert list_offsets(cli(*read, "--where", "value=new")) == [(0, 4)]
    assert list_offsets(cli(*read[:2], "t:0", *read[3:])) == [(0, 1), (0, 4)]
    path = tmp_path / "x.csv"
    assert cli(*read[:-3], "--latest", "--to-file", path).code == 0
    assert len(path.read_text().splitlines()) == 3
    grouped = cli(*read, "--group", "g")
    assert (grouped.code, "--latest" in grouped.err) == (2, True)
    keyless = cli(*read[:2], "typed", *read[3:])
    assert keyless.code != 0
    assert "the schema of typed has no key" in keyless.err
