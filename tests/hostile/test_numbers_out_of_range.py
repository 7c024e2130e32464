"""What a store says is within limits, or is damage with the file's name: no more is made of it."""

from __future__ import annotations

import io
import json
import logging
import os
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from crc32c import crc32c

import txnlog
from txnlog import ConsumerConfig, limits
from txnlog.errors import CorruptEntry, InvalidConfig, InvalidOption, InvalidPartitions
from txnlog.log.named_folders import list_groups, list_topics, list_transactional_ids
from txnlog.names import STORE_FILE, TopicPartition
from txnlog.replication.standby.follower import Follower
from txnlog.state.segment import StoredSegment
from txnlog.state.topic import CHECKPOINT_DECODER
from txnlog.store import Store, attach
from txnlog.testing import HeapStorage, VirtualClock
from txnlog.write.text_records import read_json_lines, read_json_values

STORED = StoredSegment.__struct_fields__

LONG_MAX = (1 << 63) - 1


def small_store() -> HeapStorage:
    """Topic ``t`` with a checkpoint, topic ``sound``, group ``g``, and transactions of ``id``."""
    storage = HeapStorage()
    store = attach(storage, create=True, clock=VirtualClock(seed=1))
    store.topics.create("t", partitions=2, config={"segment.bytes": "100000"})
    store.topics.create("sound")
    store.topics.alter("t", config={"retention.ms": "100000000000"})
    with store.producer() as producer:
        for number in range(34):
            producer.send("t", f"plain {number}", partition=number % 2)
            producer.flush()
    with store.producer(transactional_id="id") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", "in a transaction", partition=0)
        producer.send_offsets_to_transaction({TopicPartition("t", 0): 1}, "g")
        producer.commit_transaction()
    return storage


SMALL = small_store()


def open_store(storage: HeapStorage) -> Store:
    return attach(storage, clock=VirtualClock(seed=9))


def with_checksum(document: Mapping[str, object], format_number: int = 1) -> bytes:
    """An object as an author would forge it: checksums keep nobody from anything."""
    rest = {key: value for key, value in document.items() if key not in ("format", "checksum")}
    return sealed(json.dumps(rest, separators=(",", ":"))[1:].encode(), format_number)


def sealed(body: bytes, format_number: int = 1) -> bytes:
    body += b"\n"
    return b'{"format":%d,"checksum":"%08x",' % (format_number, crc32c(body)) + body


def forge(path: str, change: Callable[[Any], object]) -> HeapStorage:
    """The small store with one object changed."""
    storage = SMALL.copy()
    document = json.loads(storage.get(path))
    change(document)
    storage.delete([path])
    storage.put(path, with_checksum(document, document["format"]))
    return storage


def object_of(kind: str, below: str, ending: str = ".json") -> str:
    """The first object of a kind in a folder of the small store."""
    for path, _ in sorted(SMALL.list_all(below)):
        if path.endswith(ending) and json.loads(SMALL.get(path))["kind"] == kind:
            return path
    raise AssertionError(kind)


CREATED = object_of("created", "topics/t/log")
ALTERED = object_of("altered", "topics/t/log")
APPEND = object_of("append", "topics/t/log")
CHECKPOINT = object_of("topic-checkpoint", "topics/t/log", ".checkpoint")
OFFSETS = object_of("offsets", "groups/g")


def entry(*keys: str | int, value: object) -> Callable[[Any], object]:
    """A change of one value inside an object."""

    def change(document: Any) -> None:
        for key in keys[:-1]:
            document = document[key]
        document[keys[-1]] = value

    return change


WITHOUT_CHECKPOINT = (CREATED, ALTERED, APPEND)
OUT_OF_RANGE: list[tuple[str, tuple[str | int, ...], object]] = [
    *((CREATED, ("partitions",), count) for count in (2_000_000_000, -1, 0, LONG_MAX + 1, 1e3)),
    (ALTERED, ("partitions",), 2_000_000_000),
    (CREATED, ("config", "segment.bytes"), "abc"),
    (CREATED, ("config", "segment.bytes"), "9" * 100_000),
    (CREATED, ("config", "cleanup.policy"), "x"),
    (CREATED, ("config",), {f"key {number}": "" for number in range(2000)}),
    (ALTERED, ("config", "retention.ms"), "-2"),
    (APPEND, ("segments", 0, "partition"), -1),
    (APPEND, ("segments", 0, "partition"), 99_999),
    *(
        (APPEND, ("segments", 0, "stored", STORED.index("record_count")), count)
        for count in (1 << 62, -1)
    ),
    (APPEND, ("segments", 0, "base_offset"), LONG_MAX),
    (APPEND, ("segments", 0, "stored", STORED.index("size_bytes")), 1 << 50),
    (APPEND, ("segments", 0, "stored", STORED.index("position")), -2),
    (APPEND, ("segments", 0, "stored", STORED.index("max_timestamp_ms")), LONG_MAX),
    (APPEND, ("segments", 0, "stored", STORED.index("name")), "n" * 300),
    *(
        (APPEND, ("segments", 0, "stored", STORED.index("name")), name)
        for name in (
            "../../../x",
            "a/b",
            "..",
            ".x",
            "a\\b",
            "a\0b",
            "a'), reflect('java",
            "a\n",
            "\u00e9",
        )
    ),
    (APPEND, ("producer", "producer_epoch"), 1 << 15),
    (APPEND, ("at_ms",), 10**30),
    (APPEND, ("nonce",), "n" * 100_000),
    (OFFSETS, ("offsets", 0, "offset"), LONG_MAX + 1),
    (OFFSETS, ("offsets", 0, "partition"), 1 << 31),
    (OFFSETS, ("offsets", 0, "metadata"), "m" * 5000),
]


@pytest.mark.parametrize(
    ("path", "keys", "value"),
    OUT_OF_RANGE,
    ids=[f"{number} {keys[-1]}" for number, (_, keys, _) in enumerate(OUT_OF_RANGE)],
)
def test_an_entry_with_a_number_out_of_range_is_damaged(
    path: str, keys: tuple[str | int, ...], value: object
) -> None:
    """Whoever folds it hears which file, and what to do; the doctor goes on to the others."""
    storage = forge(path, entry(*keys, value=value))
    if path in WITHOUT_CHECKPOINT:
        storage.delete([CHECKPOINT])
    store = open_store(storage)
    with pytest.raises(CorruptEntry, match=r"from a backup") as raised:
        store.groups.describe("g") if path == OFFSETS else store.topics.describe("t")
    assert path in str(raised.value)
    assert len(str(raised.value)) < 1000
    found = {f.subject: f for f in open_store(storage).examine(with_probe=False)}
    assert found["g" if path == OFFSETS else "t"].state == "damage"
    assert found["sound"].state == "ok"


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        pytest.param(("config", "segment.bytes"), "abc", id="setting"),
        pytest.param(("partitions",), [{}] * 100_001, id="partitions"),
        (("partitions", 0, "segments", 0, 2, STORED.index("record_count")), 1 << 62),
        (("partitions", 0, "end_offset"), -1),
        (("recent", 0, "first_offsets"), {"5": 0}),
        (("recent", 0, "first_offsets"), {"-1": 0}),
        (("next_entry",), 1 << 63),
    ],
)
def test_a_checkpoint_with_a_number_out_of_range_is_passed_over(
    keys: tuple[str | int, ...], value: object, caplog: pytest.LogCaptureFixture
) -> None:
    """As any damaged one is: the entries are there."""
    storage = forge(CHECKPOINT, entry(*keys, value=value))
    assert open_store(storage).topics.describe("t").partitions[0].end_offset == 18
    assert f"{CHECKPOINT} does not decode" in caplog.text
    found = {f.path: f for f in open_store(storage).examine(with_probe=False)}
    assert found[CHECKPOINT].rule == "L7"


@pytest.mark.parametrize("value", ["abc", "-1", str(1 << 63), "9" * 5000])
def test_settings_in_a_store_file_are_checked(value: str) -> None:
    """Before anything is done by them."""
    storage = forge(STORE_FILE, entry("config", "transaction.max.timeout.ms", value=value))
    with pytest.raises(CorruptEntry, match=r"txnlog\.json does not decode.*from a backup"):
        open_store(storage)


DEEP = b"[" * 300_000


@pytest.mark.parametrize(
    "body",
    [b'"kind":"append","nonce":' + DEEP, b'"kind":"append","unknown":' + DEEP, b'"kind":' + DEEP],
    ids=["known", "unknown", "kind"],
)
def test_any_depth_is_damage(body: bytes) -> None:
    """Also to those who show a log as it is."""
    storage = SMALL.copy()
    storage.delete([CHECKPOINT, APPEND])
    storage.put(APPEND, sealed(body))
    with pytest.raises(CorruptEntry, match="does not decode"):
        open_store(storage).topics.describe("t")
    (finding, *_) = [f for f in open_store(storage).examine(with_probe=False) if f.path == APPEND]
    assert finding.rule == "L1"


def read_through(data: bytes) -> io.BufferedReader:
    """A file with this content."""
    return io.BufferedReader(io.BytesIO(data))


def test_any_depth_in_a_file_of_records_is_a_wrong_line() -> None:
    """With its number."""
    for line in (DEEP, b'{"value":"v","topic":' + DEEP):
        stream = read_through(b'{"value":"v"}\n' + line)
        with pytest.raises(txnlog.errors.InvalidRecord, match="line 2 is not"):
            [*read_json_lines(stream, max_line_bytes=1 << 20)]
    stream = read_through(b"1\n" + DEEP)
    with pytest.raises(txnlog.errors.InvalidRecord, match="line 2 is not JSON"):
        [*read_json_values(stream, max_line_bytes=1 << 20)]


def test_an_object_over_the_size_of_its_kind_is_not_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A store's file has some hundred bytes; an entry at most what a whole append takes."""
    storage = forge(STORE_FILE, entry("padding", value="x" * limits.MOST_MARK_BYTES))
    with pytest.raises(CorruptEntry, match=r"txnlog\.json has \d+ bytes"):
        open_store(storage)
    monkeypatch.setattr("txnlog.storage.envelope.MOST_BYTES", 1000)
    storage = forge(APPEND, entry("padding", value="x" * 1000))
    storage.delete([CHECKPOINT])
    with pytest.raises(CorruptEntry, match=rf"{APPEND} has \d+ bytes"):
        open_store(storage).topics.describe("t")
    store = open_store(SMALL.copy())
    store.logs.topic("t").refresh()
    monkeypatch.setattr("txnlog.storage.envelope.MOST_BYTES", 100)
    with pytest.raises(InvalidOption, match=r"nothing was written.*nothing of its kind"):
        store.topics.alter("t", config={"retention.ms": "1"})


def test_what_users_ask_for_has_the_same_limits() -> None:
    """So nothing is written that nobody could read."""
    store = open_store(SMALL.copy())
    with pytest.raises(InvalidPartitions, match="from 1 to 100000"):
        store.topics.create("many", partitions=limits.MAX_PARTITIONS + 1)
    with pytest.raises(InvalidPartitions):
        store.topics.alter("t", partitions=2_000_000_000)
    with pytest.raises(InvalidConfig):
        store.topics.create("wrong", config={"segment.bytes": "abc"})
    with pytest.raises(InvalidOption, match="at most"):
        store.transactions.abort("id", reason="r" * (limits.MOST_TEXT + 1))
    with pytest.raises(InvalidOption, match="session_timeout_ms"):
        store.consumer("t", group_id="g", config=ConsumerConfig(session_timeout_ms=1 << 31))
    producer = store.producer(transactional_id="id")
    producer.init_transactions()
    with pytest.raises(InvalidOption, match="at most 4096"):
        producer.begin_transaction(application_id="a" * 5000, version=1)
    assert store.topics.list() == ["sound", "t"]


def test_partitions_that_nobody_has_written_to_take_next_to_nothing() -> None:
    """A few bytes claim 100,000 of them, in each of many topics. Each was an object once."""
    storage = SMALL.copy()
    open_store(storage).topics.create("many", partitions=limits.MAX_PARTITIONS)
    log = open_store(storage).logs.topic("many")
    tracemalloc.start()
    log.refresh()
    # A checkpoint lists them one by one.
    again = CHECKPOINT_DECODER.decode(msgspec.json.encode(log.state))
    held_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held_bytes < 20 * limits.MAX_PARTITIONS
    for state in (log.state, again):
        state.to_change(7).end_offset = 1
        assert [part.end_offset for part in state.partitions[6:9]] == [0, 1, 0]


IMPOSSIBLE = ("topics/no topic", "topics/..x\u202e", "groups/%FF", "groups/a.b", "transactions/%")


def test_a_folder_that_nothing_can_be_called_is_passed_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Once it stopped a standby for ever. Who lists says so, once; the doctor has a note."""
    source = SMALL.copy()
    for folder in IMPOSSIBLE:
        source.put(f"{folder}/log/00000000000000000000.json", b"{}")
    store = open_store(source)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert list_topics(source) == ["sound", "t"] == store.topics.list()
            assert list_groups(source) == ["g"] == store.groups.list()
            assert list_transactional_ids(source) == ["id"]
    told = [record.getMessage() for record in caplog.records if "passed over" in record.message]
    assert len(told) == len(IMPOSSIBLE)
    target = HeapStorage()
    Follower(store, target).follow()
    notes = [f for f in open_store(source).examine(with_probe=False) if f.state == "note"]
    assert sorted(str(f.path) for f in notes) == sorted(IMPOSSIBLE)
    assert {f.state for f in open_store(source).examine(with_probe=False)} <= {
        "ok",
        "note",
        "orphan",
    }
    consumer = store.consumer(pattern=".*", group_id="all")
    assert {record.topic for record in consumer.poll(timeout_ms=0)} <= {"t"}
    consumer.close()


@pytest.mark.parametrize("name", [b"\xff", b"a\\b"], ids=["no-unicode", "backslash"])
def test_nor_does_one_stop_the_listing_of_those_beside_it(
    name: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Among a topic's segments it stopped maintenance, and the doctor called it damage."""
    store = txnlog.open(tmp_path, create=True)
    store.topics.create("t", partitions=1)
    with store.producer() as producer:
        producer.send("t", b"1")
    for folder in ("topics/t/data", "topics/t/data/0"):
        inside = os.fsencode(tmp_path / folder) + b"/" + name
        Path(os.fsdecode(inside)).mkdir()
        Path(os.fsdecode(inside + b"/file")).write_bytes(b"")
    listed = [*store.storage.list_all("topics/t/data")]
    assert len(listed) == 1
    store.maintain()
    assert [f for f in store.examine(with_probe=False) if f.state == "damage"] == []
    told = {record.getMessage() for record in caplog.records if "passed over" in record.message}
    assert len(told) == 2
