"""Records from text, against what plain Python makes of the same data."""

from __future__ import annotations

import io
import json
import random

import pytest

from txnlog.errors import InvalidRecord, RecordTooLarge
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
