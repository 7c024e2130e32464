"""The ends of a scan, and records from text: against what plain Python makes of the same data."""

from __future__ import annotations

import io
import json
import random

import pytest

from txnlog.errors import InvalidOption, InvalidRecord, RecordTooLarge
from txnlog.storage.base import Storage
from txnlog.store import Store, attach
from txnlog.write.text_records import LineFormat, read_json_lines, read_lines

PARTITIONS = 3


@pytest.fixture
def store(memory_storage: Storage) -> Store:
    """``t``: segments of a few records, times that run backwards too, aborted records between."""
    store = attach(memory_storage, create=True)
    store.create_topic("t", partitions=PARTITIONS)
    chance = random.Random(7)
    for round_ in range(12):
        with store.producer(transactional_id="w") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            for number in range(chance.randrange(1, 9)):
                producer.send(
                    "t",
                    f"{round_}-{number}",
                    None,
                    chance.randrange(PARTITIONS),
                    chance.randrange(99),
                )
            producer.flush()
            if round_ % 3 == 1:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    return store


def merge_by_time(store: Store) -> list[tuple[int, int]]:
    """Partition and offset of every record, by the greatest time seen so far in its partition."""
    rows = store.scan("t", columns=["partition", "offset", "timestamp"]).to_arrow().to_pylist()
    keyed = []
    newest: dict[int, object] = {}
    for row in rows:
        number = row["partition"]
        newest[number] = max(newest.get(number, row["timestamp"]), row["timestamp"])
        keyed.append((newest[number], number, row["offset"]))
    return [(number, offset) for _, number, offset in sorted(keyed)]


def test_head_is_the_oldest_in_the_order_of_times(store: Store) -> None:
    """For every count; offsets ascend in each partition; only the columns asked for."""
    everything = merge_by_time(store)
    scan = store.scan("t", columns=["partition", "offset"])
    for count in (0, 1, 5, len(everything), len(everything) + 5):
        found = scan.head(count)
        assert found.schema == scan.schema
        assert [tuple(row.values()) for row in found.to_pylist()] == everything[:count]
    with pytest.raises(InvalidOption):
        scan.head(-1)


def test_tail_is_a_suffix_of_each_partition(store: Store) -> None:
    """So many as are asked for, none twice, and in each partition the last ones in their order."""
    rows = store.scan("t", columns=["partition", "offset"]).to_arrow().to_pylist()
    by_partition = {
        number: [row["offset"] for row in rows if row["partition"] == number]
        for number in range(PARTITIONS)
    }
    for count in (0, 1, 5, len(rows) - 1, len(rows), len(rows) + 5):
        found = store.scan("t", columns=["partition", "offset"]).tail(count).to_pylist()
        assert len(found) == min(count, len(rows))
        for number, offsets in by_partition.items():
            mine = [row["offset"] for row in found if row["partition"] == number]
            assert mine == offsets[len(offsets) - len(mine) :]


def test_count_is_exact(store: Store) -> None:
    """As many of each partition as are read, also of a part of it."""
    for start in (None, {0: 3, 2: 1}):
        scan = store.scan("t", start)
        found = scan.to_arrow().column("partition").to_pylist()
        assert scan.count() == {number: found.count(number) for number in range(PARTITIONS)}


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
