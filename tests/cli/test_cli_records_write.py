"""``txnlog records write``: stdin becomes records, all of them or none."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pytest

import txnlog
from tests.support.cli.cli_command import INTERRUPTIBLE, Finished, cli, environment
from txnlog.cli.commands.records.write import _Pace, _write_paced
from txnlog.cli.input.places import Target
from txnlog.errors import InvalidRecord, StorageError
from txnlog.write.paced_stream import PacedStream
from txnlog.write.text_records import read_json_lines

if TYPE_CHECKING:
    from txnlog.producer import Producer


@pytest.fixture
def store(tmp_path: Path) -> txnlog.Store:
    """A store with the topic ``t`` of two partitions."""
    store = txnlog.open(str(tmp_path / "store"), create=True)
    store.topics.create("t", partitions=2)
    return store


def write(store: txnlog.Store, data: bytes, *arguments: object) -> Finished:
    """Run ``txnlog records write ARGUMENTS`` with this on its stdin."""
    return cli("records", "write", *arguments, "--store", store.url, "-o", "json", stdin=data)


def records(store: txnlog.Store, topic: str = "t") -> list[tuple[object, ...]]:
    found = store.scan(topic, columns=["key", "value", "headers"]).to_arrow().to_pylist()
    return [
        (row["key"], row["value"], [(h["key"], h["value"]) for h in row["headers"]])
        for row in found
    ]


def test_lines_become_records(store: txnlog.Store) -> None:
    """Values, keys, nulls, headers; any bytes; the last line needs no newline."""
    done = write(store, b"a\n\n\xff\x00\r\nlast", "t:1").json()
    assert done == [
        {"topic": "t", "partition": 1, "start_offset": 0, "end_offset": 4, "record_count": 4}
    ]
    assert records(store) == [(None, value, []) for value in (b"a", b"", b"\xff\x00\r", b"last")]
    store.topics.create("keyed")
    keyed = ("keyed", "-K", "::", "--null-marker", "NIL", "-H", "h=1", "-H", "e=")
    write(store, b"k::v::w\nNIL::x\ny::NIL\n::\n", *keyed).json()
    headers = [("h", b"1"), ("e", b"")]
    assert records(store, "keyed") == [
        (b"k", b"v::w", headers),
        (None, b"x", headers),
        (b"y", None, headers),
        (b"", b"", headers),
    ]
    write(store, b"same\n" * 3, "keyed", "-k", "key").json()
    assert records(store, "keyed")[4:] == [(b"key", b"same", [])] * 3
    nothing = write(store, b"", "t")
    assert (nothing.code, nothing.out, "no records" in nothing.err) == (0, "[]\n", True)


def test_what_was_read_is_written_again(store_path: Path, own_store: Path) -> None:
    """JSON lines carry keys, values, headers, times and partitions over, whatever the bytes."""
    store = txnlog.open(str(own_store))
    store.topics.create("copy", partitions=2)
    for encoding in ("text", "hex", "base64"):
        read = cli(
            *("records", "read", "orders", "--store", store_path, "-o", "jsonl"),
            *("--encoding", encoding),
        )
        start = store.snapshot(["copy"]).end_offsets("copy")
        done = write(store, read.out.encode(), "copy", "-i", "jsonl").json()
        assert [part["record_count"] for part in done] == [10, 2]
        columns = ["key", "value", "partition", "timestamp", "headers"]
        copied = store.scan("copy", start, columns=columns).to_arrow()
        assert copied == store.scan("orders", columns=columns).to_arrow()
    write(
        store,
        b'\n{"value": null}\n \n{"value": "x", "partition": 7}\n',
        "copy:0",
        "-i",
        "jsonl",
        "-H",
        "a=b",
    ).json()
    assert records(store, "copy")[30:32] == [
        (None, None, [("a", b"b")]),
        (None, b"x", [("a", b"b")]),
    ]


def test_a_mistake_writes_nothing(store: txnlog.Store) -> None:
    """The line is named, nothing is visible, and no segment is left behind."""
    good = b'{"value": "' + b"x" * 50_000 + b'"}\n'
    cases: tuple[tuple[bytes, tuple[str, ...], int, str], ...] = (
        (b"k=v\nv\n", ("t", "-K", "="), 1, "line 2 "),
        (good * 200 + b"{", ("t", "-i", "jsonl"), 1, "line 201 "),
        (good * 200 + b'{"id": 1, "value": "x"}', ("t", "-i", "jsonl"), 1, "line 201 "),
        (b"x" * 3_000_000, ("t",), 1, "longer than"),
        (b"x\n" + b"x" * 2_000_000 + b"\n", ("t",), 1, "max.message.bytes"),
        (b"x", ("absent",), 1, "'absent' does not exist"),
        (b"x", ("t:2",), 1, "no partition 2"),
        (b"x", ("t", "-H", "name"), 2, "NAME=VALUE"),
        (b"x", ("t", "-K", ""), 2, "empty"),
        (b"x", ("t", "-K", ":", "-k", "x"), 2, "either"),
        (b"x", ("t", "-i", "jsonl", "-K", ":"), 2, "--input lines"),
        (b"x", ("t", "-i", "jsonl", "-k", "x"), 2, "--input lines"),
        (b"x", ("t", "--value-is-line", "-K", ":"), 2, "takes lines whole"),
        (b"x", ("t", "--header-delimiter", ""), 2, "--header-delimiter is empty"),
        (b"x", ("t", "--flush-every", "1"), 2, "not a length of time"),
        (b"x", ("t", "--batch", "0"), 2, "--batch"),
        (b"h=1;v\nh;v\n", ("t", "--header-delimiter", ";"), 1, "line 2 has headers b'h'"),
        (b"h=1;v\nv\n", ("t", "--header-delimiter", ";"), 1, "line 2 has no header delimiter"),
        (b'{"id":1}\n{"id":', ("t", "-i", "jsonl", "--value-is-line"), 1, "line 2 is not JSON"),
        (b'{"id":1}\n"\xff"', ("t", "-i", "jsonl", "--value-is-line"), 1, "line 2 is not JSON"),
        (b"x", ("t", "--compression", "lzo"), 2, "lzo"),
        (b"x", ("t", "--compression", "gzip"), 1, "gzip"),
    )
    for data, arguments, code, named in cases:
        done = write(store, data, *arguments)
        assert (done.code, done.out) == (code, ""), (arguments, done)
        assert named in done.err, (arguments, done)
        if code == 1 and named not in ("gzip", "no partition 2", "'absent' does not exist"):
            assert done.err.endswith("; nothing was written\n"), done
    assert records(store) == []
    assert store.topics.describe("t").entries == 1
    assert list(Path(store.url).glob("topics/t/data/**/*.log")) == []


BAD_LINES = {
    b'{"id": 1, "name": "x"}': "unknown field `id`",
    b'{"key": "k"}': "missing required field `value`",
    b"{}": "missing required field `value`",
    b'{"value": "x", "Key": "k"}': "unknown field `Key`",
    b'{"value": {"id": 1}}': "unknown field `id`",
    b'{"value": {}}': "bytes are",
    b'{"value": 1}': "got `int`",
    b'{"value": ["x"]}': "got `array`",
    b'["x"]': "got `array`",
    b'"x"': "got `str`",
    b"null": "got `null`",
    b'{"value": "x"} {"value": "y"}': "trailing characters",
    b'{"value": "x", "headers": [{"key": "h"}]}': "missing required field `value`",
    b'{"value": "x", "headers": [{"key": "h", "value": "1", "type": "s"}]}': "unknown field `type`",
    b'{"value": "x", "headers": {"h": "1"}}': "got `object`",
    b'{"value": "x", "key": {"base64": "?"}}': "cannot be decoded",
    b'{"value": "x", "key": {"hex": "0", "base64": ""}}': "bytes are",
    b'{"value": "\xff"}': "utf-8",
    b'{"value": "x", "timestamp_ms": "2024-05-01"}': "got `str`",
    b'{"value": "x", "timestamp_ms": 1e3}': "got `float`",
    b'{"value": "x", "timestamp_ms": 9223372036854775807}': "`$.timestamp_ms`",
    b'{"value": "x", "timestamp_ms": -99999999999999999999}': "`$.timestamp_ms`",
    b'{"value": "x", "partition": 2147483648}': "`$.partition`",
    b'{"value": "x", "partition": -1}': "`$.partition`",
    b'{"value": "x", "partition": 2}': "the topic has 2, numbered from 0",
}


def test_a_line_of_another_shape_is_no_record(store: txnlog.Store) -> None:
    """Each is refused by its number, with what is wrong, the shape and the way out; none written.

    The lines before it are good ones: nothing of the input is written.
    """
    good = b'{"value": "x"}\n'
    for line, named in BAD_LINES.items():
        stream: BufferedReader = BufferedReader(BytesIO(good * 3 + b"\n" + line + b"\n" + good))
        with pytest.raises(InvalidRecord) as caught:
            list(read_json_lines(stream, max_line_bytes=1000, partition_count=2))
        message = str(caught.value)
        assert message.startswith("line 5 is not a record: "), line
        assert named in message.lower() or named in message, (line, message)
        assert '"value": null' in message
        assert "--value-is-line" in message
        assert "--input lines" in message
    one = write(store, good + b'{"id": 1, "name": "x"}\n', "t", "-i", "jsonl")
    assert (one.code, one.out) == (1, "")
    assert "line 2 is not a record" in one.err
    assert records(store) == []
    assert store.topics.describe("t").entries == 1


@pytest.mark.skipif(os.name == "nt", reason="sends a POSIX signal")
def test_ctrl_c_leaves_nothing_half_done(store: txnlog.Store) -> None:
    """Interrupted in the middle of its input it writes nothing, whatever it had uploaded."""
    command = [sys.executable, "-c", INTERRUPTIBLE, "records", "write", "t", "--store", store.url]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stderr.readline()
        line = b"x" * 99_999 + b"\n"
        for _ in range(1500):  # more than the pipe and a buffer hold: by now it has uploaded
            process.stdin.write(line)
        process.stdin.flush()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr.read() == b""
    assert records(store) == []
    assert list(Path(store.url).glob("topics/t/data/**/*.log")) == []


def test_a_partitioner_is_chosen(store: txnlog.Store) -> None:
    """By name; one that there is not is refused before a line is read."""
    written = write(store, b"k:1\nk:2\n", "t", "-K", ":", "--partitioner", "round_robin").json()
    assert [part["partition"] for part in written] == [0, 1]
    refused = write(store, b"1\n", "t", "--partitioner", "best")
    assert refused.code == 2
    assert "is not one of murmur2" in refused.err
    assert store.scan("t").record_count == 2


def test_whole_lines_of_json_are_values(store: txnlog.Store) -> None:
    """Lines of any shape are values, with one key and one header; empty ones are skipped."""
    lines = [b'{"id": 1, "name": "x"}', b" [2]", b"null", b'"s"\r']
    option = ("-i", "jsonl", "--value-is-line")
    write(store, b"\n\n".join(lines) + b"\n", "t:0", *option, "-k", "k", "-H", "h=1").json()
    assert records(store) == [(b"k", line, [("h", b"1")]) for line in lines]
    write(store, b"no json", "t:1", "--value-is-line").json()
    assert records(store)[4:] == [(None, b"no json", [])]


def test_lines_have_headers_of_their_own(store: txnlog.Store) -> None:
    """Before a delimiter, as --format's %h prints them; those of all records behind them."""
    data = b"a=1,b=x=y\tk:v\n\tk:NIL\na=NIL,e=\tk:a\tb\n"
    options = ("--header-delimiter", "\t", "-K", ":", "--null-marker", "NIL")
    write(store, data, "t:0", *options).json()
    expected: list[tuple[bytes, bytes | None, list[tuple[str, bytes | None]]]] = [
        (b"k", b"v", [("a", b"1"), ("b", b"x=y")]),
        (b"k", None, []),
        (b"k", b"a\tb", [("a", None), ("e", b"")]),
    ]
    assert records(store) == expected
    write(store, data, "t:1", *options, "-H", "all=1").json()
    with_all = [(key, value, [*headers, ("all", b"1")]) for key, value, headers in expected]
    assert records(store)[3:] == with_all


def test_batches_are_written_one_by_one(store: txnlog.Store) -> None:
    """Each is an entry of its own, and what is left at the end is one too."""
    written = write(store, b"0\n1\n2\n3\n4\n", "t:0", "--batch", 2).json()
    ranges = [(part["start_offset"], part["end_offset"]) for part in written]
    assert ranges == [(0, 2), (2, 4), (4, 5)]
    assert store.topics.describe("t").entries == 4
    assert [value for _, value, _ in records(store)] == [b"0", b"1", b"2", b"3", b"4"]


def test_what_precedes_a_wrong_line_is_written_where_lines_stream(store: txnlog.Store) -> None:
    """All of it and nothing else, and the message tells how many records that is."""
    wrong = b'{"value": "x"}\n\n' * 5 + b'{"id": 1}\n' + b'{"value": "y"}\n'
    done = write(store, wrong, "t:0", "-i", "jsonl", "--batch", 2)
    assert (done.code, len(json.loads(done.out))) == (1, 3)
    told, reason = done.err.splitlines()
    assert told == "txnlog: the first 5 records of the input are written, and no others"
    assert reason.startswith("txnlog: line 11 is not a record: ")
    assert records(store) == [(None, b"x", [])] * 5
    keyless = write(store, b"k:v\n" * 3 + b"v\n", "t:1", "-K", ":", "--flush-every", "1h")
    assert (keyless.code, "the first 3 records" in keyless.err) == (1, True)
    assert len(records(store)) == 8


@pytest.mark.parametrize(
    ("config", "data", "arguments", "reason"),
    [
        (
            {"max.message.bytes": "120"},
            b"a:1\nb:2\nc:" + b"x" * 100 + b"\nd:4\n",
            ("-K", ":"),
            "record 3 of the input takes 121 bytes, and max.message.bytes of the topic is 120",
        ),
        (
            {"cleanup.policy": "compact"},
            (
                b'{"key":"a","value":"1"}\n{"key":"b","value":"2"}\n{"value":"3"}\n'
                b'{"key":"d","value":"4"}\n'
            ),
            ("-i", "jsonl"),
            "key",
        ),
    ],
)
def test_what_precedes_a_record_that_its_topic_does_not_take_is_written(
    store: txnlog.Store,
    config: dict[str, str],
    data: bytes,
    arguments: tuple[str, ...],
    reason: str,
) -> None:
    """It came with others in one piece, which wait for their batch: they are not lost with it."""
    store.topics.create("strict", config=config)
    done = write(store, data, "strict", *arguments, "--flush-every", "1h")
    told, why = done.err.splitlines()
    assert told == "txnlog: the first 2 records of the input are written, and no others"
    assert (done.code, reason in why) == (1, True)
    assert [row[:2] for row in records(store, "strict")] == [(b"a", b"1"), (b"b", b"2")]


@pytest.mark.skipif(os.name == "nt", reason="sends a POSIX signal")
def test_lines_are_written_as_they_come(store: txnlog.Store) -> None:
    """Each is there to be read before the next one comes; Ctrl-C tells how many there are."""
    arguments = ("t:0", "--flush-every", "20ms", "-o", "jsonl", "--store", store.url)
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE, "records", "write", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stderr.readline()
        for number in range(3):
            process.stdin.write(b"%d\n" % number)
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["start_offset"] == number
            assert len(records(store)) == number + 1
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        told = "txnlog: the first 3 records of the input are written, and no others\n"
        assert process.stderr.read().decode() == told


@pytest.mark.skipif(os.name == "nt", reason="sends a POSIX signal")
@pytest.mark.parametrize("sent", ["SIGINT", "SIGTERM"])
def test_who_is_stopped_writes_what_it_has_read(store: txnlog.Store, sent: str) -> None:
    """As systemd and Kubernetes stop it; a line whose end has not come is not one yet."""
    arguments = ("t:0", "--batch", "3", "--flush-every", "1h", "-o", "jsonl", "--store", store.url)
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE, "records", "write", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(b"0\n1\n2\n3\n4\nhal")  # one write: what comes of it comes together
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["end_offset"] == 3
        process.send_signal(getattr(signal, sent))
        assert process.wait(30) == 130
        assert json.loads(process.stdout.readline())["end_offset"] == 5
        _, told = process.stderr.read().decode().splitlines()
        assert told == "txnlog: the first 5 records of the input are written, and no others"
    assert [value for _, value, _ in records(store)] == [b"%d" % number for number in range(5)]


def test_a_flush_that_fails_leaves_what_it_held_in_doubt(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whether those records are written nobody knows, and the message says so."""

    class Broken:
        flushes = 0

        def send_batch(self, *sent: object) -> None: ...

        def flush(self) -> dict[object, object]:
            self.flushes += 1
            if self.flushes == 2:
                raise StorageError("gone")
            return {}

    reading, writing = os.pipe()
    os.close(writing)
    stream = PacedStream(reading)
    assert stream.read() == b""  # its thread is done: it would read what next has this number
    batches = iter([pa.record_batch({"value": [b"1", b"2", b"3", b"4", b"5"]})])
    paced = _write_paced(
        cast("Producer", Broken()),
        Target("t", None),
        batches,
        stream,
        _Pace(None, 2),
    )
    with pytest.raises(StorageError):
        list(paced)
    os.close(reading)
    assert capsys.readouterr().err == (
        "txnlog: the first 2 records of the input are written, and perhaps the 2 behind them: look "
        "before you send them again\n"
    )
