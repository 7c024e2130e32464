"""Records from text, against what plain Python makes of the same data."""

from __future__ import annotations

import io
import json
import os
import random
import time

import pytest

from txnlog.errors import InvalidRecord, RecordTooLarge
from txnlog.write.paced_stream import PacedStream
from txnlog.write.text_records import LineFormat, read_json_lines, read_lines


def test_lines_are_what_split_makes_of_them() -> None:
    """Over the edges of pieces, for lines of any length and any bytes."""
    chance = random.Random(11)
    data = b"".join(
        chance.randbytes(chance.choice((0, 1, 50, 70_000))).replace(b"\n", b" ") + b"\n"
        for _ in range(400)
    )
    for text in (data, data[:-1], data + b"\n", b"\n", b"x"):
        stream: io.BufferedReader = io.BufferedReader(io.BytesIO(text))
        batches = [*read_lines(stream, LineFormat(), max_line_bytes=80_000)]
        found = [value for batch in batches for value in batch.column("value").to_pylist()]
        assert found == text.removesuffix(b"\n").split(b"\n")
    assert [*read_lines(io.BufferedReader(io.BytesIO()), LineFormat(), max_line_bytes=1)] == []


def test_a_wrong_line_far_down_is_named() -> None:
    """Its number counts from the beginning of the stream; a line too long is refused."""
    lines = [b"key=" + b"v" * 1000] * 10_000
    lines[8765] = b"no delimiter"
    stream: io.BufferedReader = io.BufferedReader(io.BytesIO(b"\n".join(lines)))
    with pytest.raises(InvalidRecord, match="line 8766 "):
        list(read_lines(stream, LineFormat(key_delimiter=b"="), max_line_bytes=2000))
    records = [json.dumps({"value": "v" * 1000}).encode()] * 10_000
    records[8765] = b'{"value": 1}'
    stream = io.BufferedReader(io.BytesIO(b"\n\n".join(records)))
    with pytest.raises(InvalidRecord, match="line 17531 "):
        list(read_json_lines(stream, max_line_bytes=2000))
    endless: io.BufferedReader = io.BufferedReader(io.BytesIO(b"x" * 9_000_000))
    with pytest.raises(RecordTooLarge, match="longer than 5000000 bytes"):
        list(read_lines(endless, LineFormat(), max_line_bytes=5_000_000))


def test_headers_are_what_split_makes_of_them() -> None:
    """Random lines, with nulls and without, followed by the headers of every record."""
    chance = random.Random(7)
    texts, expected = [], []
    for _ in range(500):
        names = [chance.choice(("a", "h\u00e9", "x y")) for _ in range(chance.choice((0, 1, 3)))]
        values = [chance.choice((b"", b"1", b"x=y", b"\xff", b"NIL")) for _ in names]
        pairs = zip(names, values, strict=True)
        texts.append(b",".join(name.encode() + b"=" + value for name, value in pairs))
        nulled = [None if value == b"NIL" else value for value in values]
        expected.append([*zip(names, nulled, strict=True), ("all", b"1"), ("two", None)])
    data = b"".join(text + b";value\n" for text in texts)
    shape = LineFormat(
        header_delimiter=b";", null_marker=b"NIL", headers=[("all", b"1"), ("two", None)]
    )
    stream: io.BufferedReader = io.BufferedReader(io.BytesIO(data))
    (batch,) = read_lines(stream, shape, max_line_bytes=1000)
    found = [[(h["key"], h["value"]) for h in row] for row in batch.column("headers").to_pylist()]
    assert found == expected
    assert batch.column("value").to_pylist() == [b"value"] * 500


def test_wrong_headers_are_named_and_what_precedes_them_comes_first() -> None:
    """A name that is empty or no UTF-8, a pair without =; a missing delimiter further down."""
    for wrong in (b"=1;v", b"\xff=1;v", b"a;v", b"a=1,;v", b"a=1,b;v"):
        lines = [b"a=1,b=2;v", b";v", wrong, b"none", b";v"]
        stream: io.BufferedReader = io.BufferedReader(io.BytesIO(b"\n".join(lines)))
        batches = read_lines(stream, LineFormat(header_delimiter=b";"), max_line_bytes=1000)
        assert [len(row) for row in next(batches).column("headers").to_pylist()] == [2, 0]
        with pytest.raises(InvalidRecord, match="line 3 has headers"):
            next(batches)


def test_a_paced_stream_is_waited_for_until_its_deadline() -> None:
    """Lines that come in pieces are whole; where nothing comes there is a batch without rows."""
    reading, writing = os.pipe()
    stream = PacedStream(reading)
    batches = read_lines(stream, LineFormat(), max_line_bytes=100)
    os.write(writing, b"one\ntw")
    assert next(batches).column("value").to_pylist() == [b"one"]
    stream.deadline_s = time.monotonic()
    assert next(batches).num_rows == 0
    os.write(writing, b"o")
    stream.deadline_s = None
    os.write(writing, b"\nrest")
    os.close(writing)
    values = [value for batch in batches for value in batch.column("value").to_pylist()]
    assert values == [b"two", b"rest"]
    assert stream.read() == b""
    os.close(reading)


def test_a_paced_stream_that_is_stopped_gives_what_has_arrived() -> None:
    """Whoever stops it may be a signal's handler; it says so when all of that was given."""
    reading, writing = os.pipe()
    stream = PacedStream(reading)
    os.write(writing, b"one\n")
    assert (stream.read(), stream.is_stopped) == (b"one\n", False)
    stream.stop()
    assert (stream.read(), stream.is_stopped) == (None, True)  # without a deadline
    os.close(writing)
    assert stream.read() == b""
    os.close(reading)


def test_a_stream_that_cannot_be_read_is_refused() -> None:
    """A folder, say: that is a mistake in what was asked for."""
    folder = os.open("/", os.O_RDONLY)
    batches = read_lines(PacedStream(folder), LineFormat(), max_line_bytes=100)
    with pytest.raises(InvalidRecord, match="the input cannot be read: Is a directory"):
        next(batches)
    os.close(folder)


@pytest.mark.parametrize(
    "line",
    [
        '{"value": "x", "value": null}',
        '{"value": null, "value": "x"}',
        '{"value": "x", "\\u0076alue": null}',
        '{"value": "x", "key": "a" , "key" : "b"}',
        '{"value": "x", "key": null, "key": "b", "headers": [{"key": "a", "value": null}]}',
        '{"value": {"base64": "eA==", "base64": null}}',
        '{"value": "x", "headers": [{"key": "a", "value": "b", "value": null}]}',
        '{"value": "x", "partition": 0, "partition": 1}',
    ],
)
def test_a_key_given_twice_is_refused(line: str) -> None:
    """Whichever of the two were taken could be the wrong one, and a null would delete."""
    good = [
        '{"value": "\\"value\\"", "key": "value"}',
        '{"value": "\\u00e9", "key": "k", "headers": [{"key": "key", "value": "value"}]}',
        '{"value": {"hex": "78"}, "key": {"hex": "78"}}',
    ]
    stream: io.BufferedReader = io.BufferedReader(io.BytesIO("\n".join([*good, line]).encode()))
    batches = read_json_lines(stream, max_line_bytes=1000)
    assert next(batches).column("value").to_pylist() == [b'"value"', "\u00e9".encode(), b"x"]
    with pytest.raises(InvalidRecord, match=r"line 4 is not a record: '\w+' is given twice"):
        next(batches)
