"""``txnlog segments``: listing, and dumping healthy and damaged files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import txnlog
from tests.support.cli.cli_command import COMMAND, cli, cli_each, environment
from txnlog import TopicPartition
from txnlog.cli.input.segment_choice import choose_segments
from txnlog.inspect.descriptions import SegmentDescription
from txnlog.inspect.segments import SegmentCheck, check_placed_segment

BROKER = Path(__file__).parents[1] / "kafka" / "broker"


def batches_of(store_path: Path, topic: str, partition: int) -> list[SegmentDescription]:
    return txnlog.open(str(store_path)).topics.segments(topic, partition)


@pytest.fixture
def many_batches(tmp_path: Path) -> tuple[Path, Path, SegmentDescription]:
    """A store whose topic ``t`` has one segment of several batches behind another segment."""
    root = tmp_path / "many"
    store = txnlog.open(str(root), create=True)
    store.topics.create("t", config={"record.format": "columns", "compression.type": "none"})
    with store.producer() as producer:
        producer.send("t", b"first")
        producer.flush()
        for number in range(8):
            producer.send("t", bytes([65 + number]) * 900_000, timestamp_ms=number)
    segment = store.topics.segments("t")[1]
    assert segment.batch_count >= 4
    return root, root / segment.paths.log, segment


def test_ls_shows_where_segments_are_and_what_became_of_them(store_path: Path) -> None:
    """All three outcomes, bases and files; the JSON has the documented keys."""
    known = batches_of(store_path, "paid", 0)
    found = cli("segments", "ls", "paid", "--store", store_path, "-o", "json").json()
    assert [segment["outcome"] for segment in found] == ["committed", "aborted", "undecided"]
    assert found[1] == {
        "topic": "paid",
        "partition": 0,
        "base_offset": 1,
        "end_offset": 2,
        "record_count": 1,
        "size_bytes": known[1].size_bytes,
        "batch_count": 1,
        "entry": 2,
        "outcome": "aborted",
        "min_timestamp_ms": 1_700_000_000_000,
        "max_timestamp_ms": 1_700_000_000_000,
        "producer_id": known[1].producer_id,
        "producer_epoch": 0,
        "base_sequence": 0,
        "segment": known[1].name,
        "position": 0,
        "path": f"topics/paid/data/0/{known[1].name}.log",
    }
    table = cli("segments", "ls", "orders:0", "--store", store_path).lines()
    assert [line.split()[:4] for line in table[1:]] == [
        ["0", "0", "6", "6"],
        ["0", "6", "10", "4"],
    ]


def test_batches_of_typed_topics_are_shown_with_their_columns(tmp_path: Path) -> None:
    """From the store and as a file that is known by itself; verified as others are."""
    store = txnlog.open(str(tmp_path), create=True)
    schema = pa.schema([("carrier", pa.string()), ("n", pa.int64())])
    store.topics.create("f", schema=schema, config={"record.format": "columns"})
    with store.producer() as producer:
        producer.send_batch("f", pa.table({"carrier": ["AA", "BB"], "n": [1, None]}))
    path = str(tmp_path / store.topics.segments("f")[0].paths.log)
    for place in (("f", "--store", tmp_path), ("--file", path)):
        (batch,) = cli("segments", "dump", *place, "--records", "-o", "json").json()
        assert (batch["magic"], batch["damage"]) == (103, None)
        values = [json.loads(record["value"]) for record in batch["records"]]
        assert values == [{"carrier": "AA", "n": 1}, {"carrier": "BB", "n": None}]
    (verified,) = cli("segments", "verify", "f", "--store", tmp_path, "-o", "json").json()
    assert (verified["record_count"], verified["damages"]) == (2, [])


@pytest.mark.parametrize("typed", [False, True])
def test_parquet_segments_are_dumped_and_verified(tmp_path: Path, typed: bool) -> None:
    """By row group, from the store and as a file; damage names the file and the row group."""
    store = txnlog.open(str(tmp_path), create=True)
    schema = pa.schema([("carrier", pa.string()), ("n", pa.int64())]) if typed else None
    store.topics.create("t", schema=schema, config={"record.format": "parquet"})
    shown = [{"key": "k", "value": "v"}, {"key": None, "value": None}]
    with store.producer() as producer:
        if typed:
            producer.send_batch("t", pa.table({"carrier": ["AA", "BB"], "n": [1, None]}))
            values = ['{"carrier":"AA","n":1}', '{"carrier":"BB","n":null}']
            shown = [{"key": None, "value": value} for value in values]
        else:
            producer.send("t", b"v", b"k")
            producer.send("t", None)
    (segment,) = store.topics.segments("t")
    name = segment.paths.log
    path = tmp_path / name
    dump, verify = ("segments", "dump"), ("segments", "verify")
    places = {name: ("t", "--store", tmp_path), str(path): ("--file", path)}
    for said, place in places.items():
        (group,) = cli(*dump, *place, "--records", "-o", "json").json()
        assert (group["path"], group["codec"], group["crc_ok"]) == (said, "zstd", True)
        assert (group["base_offset"], group["last_offset"], group["damage"]) == (0, 1, None)
        assert group["leader_epoch"] == -1  # what stands there is the segment's tag
        assert [{name: r[name] for name in ("key", "value")} for r in group["records"]] == shown
        assert [record["offset"] for record in group["records"]] == [0, 1]
        (check,) = cli(*verify, *place, "-o", "json").json()
        assert (check["path"], check["ok"], check["record_count"]) == (said, True, 2)

    sound = path.read_bytes()
    path.write_bytes(sound[:20] + bytes([sound[20] ^ 1]) + sound[21:])
    for said, place in places.items():
        damage = f"{said} at byte 4 (relative offset 0): row group 0: CRC-32C is"
        for verb in (dump, verify):
            done = cli(*verb, *place, "-o", "json")
            (found,) = json.loads(done.out)
            assert (done.code, damage in done.err, found["path"]) == (3, True, said), done
        assert (found["ok"], found["record_count"]) == (False, 0)
        assert found["damages"][0].startswith(damage)
    path.write_bytes(sound[:-9])
    cut = cli(*verify, "t", "--store", tmp_path)
    assert (cut.code, name in cut.err) == (3, True)


def test_dump_shows_batches_with_the_offsets_of_the_topic(store_path: Path) -> None:
    """Offsets and sequences are absolute with a store; --records adds the records."""
    known = batches_of(store_path, "orders", 0)[1]
    dump = ("segments", "dump", "orders:0", "--store", store_path, "--segment", known.name)
    batch = {
        "topic": "orders",
        "partition": 0,
        "segment": known.name,
        "path": known.paths.log,
        "base_offset": 6,
        "last_offset": 9,
        "position": 0,
        "size_bytes": known.size_bytes,
        "record_count": 4,
        "codec": "zstd",
        "marker": None,
        "crc": int.from_bytes((store_path / known.paths.log).read_bytes()[17:21], "big"),
        "crc_ok": True,
        "magic": 102,
        "max_timestamp_ms": 1_700_000_009_000,
        "base_timestamp_ms": 1_700_000_006_000,
        "producer_id": known.producer_id,
        "producer_epoch": 0,
        "base_sequence": 6,
        "last_sequence": 9,
        "leader_epoch": -1,
        "timestamp_type": "CreateTime",
        "transactional": False,
        "control": False,
        "damage": None,
    }
    assert cli(*dump, "-o", "json").json() == [batch]
    (found,) = cli(*dump, "--records", "-o", "json").json()
    records = found.pop("records")
    assert found == batch
    assert [record["offset"] for record in records] == [6, 7, 8, 9]
    assert records[0] == {
        "offset": 6,
        "timestamp_ms": 1_700_000_006_000,
        "key": "k6",
        "value": "v6",
        "headers": [{"key": "h", "value": "1"}],
    }
    table = cli(*dump, "--records").lines()
    assert table[1] == f"# {known.paths.log} (orders:0)"
    assert table[-1] == (
        "  offset: 9  timestamp: 2023-11-14T22:13:29.000Z  key: k9  value: v9  headers: h=1"
    )
    assert len(cli("segments", "dump", "orders", "--store", store_path).lines()) == 1 + 2 * 3
    assert cli(*dump[:-1], "absent").code == 1


def test_dump_of_a_file_needs_no_store_and_shows_it_as_it_is(store_path: Path) -> None:
    """--file reads one file with offsets as they stand in it, and modifies nothing.

    Two segments share it: orders:0's second and orders:1's first.
    """
    known = batches_of(store_path, "orders", 0)[1]
    path = store_path / known.paths.log
    before = path.read_bytes()
    batch, other = cli("segments", "dump", "--file", path, "-o", "json").json()
    assert (other["base_offset"], other["last_offset"], other["position"]) == (
        *(0, 1),
        known.size_bytes,
    )
    assert (batch["base_offset"], batch["last_offset"]) == (0, 3)
    assert (batch["topic"], batch["partition"], batch["segment"]) == (None, None, None)
    assert (batch["producer_id"], batch["base_sequence"]) == (None, 0)
    assert path.read_bytes() == before


def test_a_damaged_payload_hides_no_other_batch(
    many_batches: tuple[Path, Path, SegmentDescription],
) -> None:
    """One flipped byte in a payload: that batch alone is bad, the rest is shown, exit 3."""
    root, path, segment = many_batches
    healthy = cli("segments", "dump", "t:0", "--store", root, "-o", "json").json()
    victim = healthy[2]
    data = bytearray(path.read_bytes())
    data[victim["position"] + victim["size_bytes"] // 2] ^= 1
    path.write_bytes(data)

    done = cli("segments", "dump", "t:0", "--store", root, "-o", "json")

    found = json.loads(done.out)
    assert done.code == 3
    assert f"{segment.paths.log} at byte {victim['position']}" in done.err
    assert found[2]["crc_ok"] is False
    assert "CRC-32C" in found[2]["damage"]
    assert found[:2] + found[3:] == healthy[:2] + healthy[3:]
    table = cli("segments", "dump", "--file", path)
    assert (table.code, table.out.count(" BAD "), table.out.count(" ok ")) == (
        3,
        1,
        segment.batch_count - 1,
    )
    reading = cli("records", "read", "t", "--store", root, "-o", "json")
    assert reading.code == 3
    assert [record["offset"] for record in json.loads(reading.out)] == [
        *range(healthy[2]["base_offset"])
    ]
    assert f"at byte {victim['position']}" in reading.err


def test_behind_a_damaged_header_the_next_batch_is_found(
    many_batches: tuple[Path, Path, SegmentDescription],
) -> None:
    """Nothing says how long a batch with a broken header is; its stretch is shown as damage."""
    root, path, _ = many_batches
    healthy = cli("segments", "dump", "t:0", "--store", root, "-o", "json").json()
    victim = healthy[2]
    data = bytearray(path.read_bytes())
    data[victim["position"] + 9] ^= 1
    path.write_bytes(data)

    done = cli("segments", "dump", "t:0", "--records", "--store", root, "-o", "json")

    found = json.loads(done.out)
    assert done.code == 3
    assert (found[2]["position"], found[2]["size_bytes"]) == (
        victim["position"],
        victim["size_bytes"],
    )
    assert (found[2]["base_offset"], found[2]["crc_ok"], found[2]["records"]) == (None, None, None)
    assert [batch["base_offset"] for batch in found[3:]] == [
        batch["base_offset"] for batch in healthy[3:]
    ]


def test_a_truncated_and_a_missing_file_are_damage(
    many_batches: tuple[Path, Path, SegmentDescription],
) -> None:
    """The rest of a short file is shown; the missing part, by the log, is reported."""
    root, path, segment = many_batches
    short = path.read_bytes()[:-10]
    path.write_bytes(short)
    done = cli("segments", "dump", "t:0", "--store", root, "-o", "json")
    found = json.loads(done.out)
    assert done.code == 3
    assert sum(batch["damage"] is None for batch in found) == segment.batch_count
    assert (found[-1]["position"], found[-1]["size_bytes"]) == (len(short), 10)

    path.unlink()
    gone = cli("segments", "dump", "t:0", "--store", root)
    assert gone.code == 3
    assert "is gone" in gone.err
    assert " ok " in gone.out


def test_dump_can_be_cut_short_and_show_payloads_alone(
    many_batches: tuple[Path, Path, SegmentDescription],
) -> None:
    """--max-bytes ends behind the batch that reaches it; --no-metadata leaves keys and values."""
    root, path, _ = many_batches
    every = cli("segments", "dump", "t", "--store", root, "-o", "json").json()
    for most, shown in ((0, 0), (1, 1), (every[0]["size_bytes"] + 1, 2), (1 << 40, len(every))):
        dump = ("segments", "dump", "t", "--max-bytes", most, "--store", root, "-o", "json")
        assert cli(*dump).json() == every[:shown]
    dump = ("segments", "dump", "t", "--max-batches", 10**20, "--store", root, "-o", "json")
    assert cli(*dump).json() == every
    first, *_ = cli(
        *("segments", "dump", "t", "--no-metadata", "--max-batches", 1),
        *("--store", root, "-o", "json"),
    ).json()
    assert first["records"] == [{"key": None, "value": "first"}]
    table = cli("segments", "dump", "t", "--no-metadata", "--max-batches", 1, "--store", root)
    assert table.lines()[-1] == "  key: \\N  value: first"
    both = ("segments", "dump", "--file", path, "--file", f"file://{path}", "-o", "json")
    twice = cli(*both).json()
    half = len(twice) // 2
    assert [b["position"] for b in twice[:half]] == [b["position"] for b in twice[half:]]
    assert twice[half]["path"] == f"file://{path}"


@pytest.mark.parametrize("folder", sorted(path.name for path in BROKER.glob("*-[0-9]")))
def test_kafkas_own_files_are_dumped_and_verified(folder: str) -> None:
    """Every byte of a broker's segments is shown, in order, with absolute offsets, all of it ok."""
    files = sorted((BROKER / folder).glob("*.log"))
    named = [argument for file in files for argument in ("--file", file)]
    dump, verify = cli_each(
        ("segments", "dump", *named, "--records", "-o", "json"),
        ("segments", "verify", *named, "-o", "json"),
    )
    batches = dump.json()
    assert batches
    for file in files:
        own = [batch for batch in batches if batch["path"] == str(file)]
        ends = [batch["position"] + batch["size_bytes"] for batch in own]
        assert [batch["position"] for batch in own] == [0, *ends[:-1]]
        assert ends[-1] == file.stat().st_size
        assert own[0]["base_offset"] >= int(file.stem)
    for batch in batches:
        assert (batch["crc_ok"], batch["damage"]) == (True, None)
        offsets = [record["offset"] for record in batch["records"]]
        if batch["magic"] == 2:
            assert len(offsets) == (0 if batch["control"] else batch["record_count"])
        assert all(batch["base_offset"] <= at <= batch["last_offset"] for at in offsets)
    checks = verify.json()
    assert [check["ok"] for check in checks] == [True] * len(files)
    shown = sum(len(batch["records"]) for batch in batches)
    assert sum(check["record_count"] for check in checks) == shown


def test_verify_finds_what_the_dump_shows_and_what_the_log_contradicts(own_store: Path) -> None:
    """A flipped bit, a missing file, and a sound file in the place of another one: exit 3."""
    with txnlog.open(str(own_store)).producer() as producer:
        producer.send("orders", b"alone", partition=1)
    verify = ("segments", "verify", "orders", "--store", own_store, "-o", "json")
    assert [check["ok"] for check in cli(*verify).json()] == [True] * 4
    first, second, third, fourth = txnlog.open(str(own_store)).topics.segments("orders")
    assert second.paths == third.paths
    assert [check["position"] for check in cli(*verify).json()] == [0, 0, second.size_bytes, 0]
    path = own_store / first.paths.log
    sound = path.read_bytes()
    path.write_bytes(sound[:-9] + bytes([sound[-9] ^ 1]) + sound[-8:])
    (own_store / second.paths.log).unlink()
    done = cli(*verify)
    found = json.loads(done.out)
    assert done.code == 3
    assert [check["ok"] for check in found] == [
        False,
        True,
        False,
        False,
    ]  # what is gone comes last
    assert "CRC-32C" in found[0]["damages"][0]
    assert "is gone" in found[2]["damages"][0]
    assert "is gone" in found[3]["damages"][0]
    assert done.err.count("\n") == 3
    path.write_bytes((own_store / fourth.paths.log).read_bytes())
    swapped = cli(*verify, "--segment", first.name)
    assert swapped.code == 3
    assert f"entry {first.entry} of its log" in swapped.err
    assert cli("segments", "verify", "--file", path).code == 0


@pytest.mark.parametrize("name", [None, "second"])
@pytest.mark.parametrize("way", ["lost", "trimmed", "deleted", "aborted"])
def test_segments_that_are_deleted_while_others_are_checked(
    tmp_path: Path, way: str, name: str | None
) -> None:
    """Nothing is said of them; what the log still places when it is read again is lost.

    Nor of what was aborted: a writer that slept can have placed what was gone.
    """
    store = txnlog.open(str(tmp_path), create=True)
    store.topics.create("t")
    for number in range(3):
        with store.producer(transactional_id="p") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("t", b"%d" % number)
            producer.flush()
            if way == "aborted" and number == 1:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    first, second, third = store.topics.segments("t")
    choice = choose_segments("t", name and second.name, None)

    def check(segment: SegmentDescription) -> SegmentCheck:
        if way == "deleted" and store.topics.list():
            store.topics.delete("t")
        elif way == "trimmed":
            store.topics.delete_records({TopicPartition("t", 0): 2})
        store.storage.delete([second.paths.log])
        return check_placed_segment(store.storage, segment)

    found = choice.check_each(
        store, choice.find(store), check, is_sound=lambda found: not found.damages
    )
    others = [] if name or way == "deleted" else [(first.paths.log, True), (third.paths.log, True)]
    lost = [(second.paths.log, False)] if way == "lost" else []
    assert [(check.path, not check.damages) for check in found] == others + lost


def test_verify_compares_what_came_from_kafka(tmp_path: Path) -> None:
    """Imported segments agree with their entries; without its transaction index one is damaged."""
    root = tmp_path / "imported"
    store = txnlog.open(str(root), create=True)
    for name in ("orders", "mixed", "v1compacted", "compacted", "hanging"):
        store.kafka.import_topic(name, [str(path) for path in BROKER.glob(f"{name}-[0-9]")])
    for done in cli_each(
        *(
            ("segments", "verify", name, "--store", root, "-o", "json")
            for name in store.topics.list()
        )
    ):
        assert all(check["ok"] for check in done.json())
    victim = next(s for s in store.topics.segments("orders") if s.aborted_count)
    index = (root / victim.paths.log).with_suffix(".txnindex")
    index.write_bytes(index.read_bytes()[:-34])
    damaged = cli("segments", "verify", "orders", "--store", root)
    assert (damaged.code, str(index.name) in damaged.err) == (3, True)


def test_du_adds_up_to_what_is_there(own_store: Path) -> None:
    """All files of all topics, once each; what no entry places is unreferenced."""
    txnlog.open(str(own_store)).topics.delete("empty")
    stray = own_store / "topics/orders/data/1/stray-0.log"
    stray.parent.mkdir(exist_ok=True)
    stray.write_bytes(b"x" * 1000)
    rows = cli("segments", "du", "--store", own_store, "-o", "json").json()
    files = [path for path in (own_store / "topics").rglob("*") if path.is_file()]
    assert sum(row["file_count"] for row in rows) == len(files)
    assert sum(row["size_bytes"] for row in rows) == sum(path.stat().st_size for path in files)
    by_place = {(row["topic"], row["partition"]): row for row in rows}
    assert by_place["orders", 1]["unreferenced_bytes"] == 1000
    known = txnlog.open(str(own_store)).topics.describe("orders").partitions
    for partition in known:
        segment_bytes = by_place["orders", partition.partition]["segment_bytes"]
        assert segment_bytes == partition.size_bytes
    assert by_place["orders", 1]["file_count"] == 1, "the shared one counts for the log"
    assert by_place["empty", None]["log_bytes"] > 0
    orders = cli("segments", "du", "orders", "--store", own_store, "-o", "json").json()
    assert orders == [row for row in rows if row["topic"] == "orders"]
    assert cli("segments", "du", "nope", "--store", own_store).code == 1


@pytest.mark.more
def test_a_dump_holds_one_batch_at_a_time(tmp_path: Path) -> None:
    """A table takes no more memory than JSON lines do: no batch is kept to measure columns."""
    store = txnlog.open(str(tmp_path / "store"), create=True)
    store.topics.create("t")
    with store.producer() as producer:
        for _ in range(60):
            producer.send("t", b"x" * 1_000_000)
            producer.flush()
    peaks_bytes = []
    for shown in (("jsonl", "--records"), ("table", "--records"), ("table",)):
        options = ("--store", store.url, "-o", *shown)
        process = subprocess.Popen(
            [*COMMAND, "segments", "dump", "t", *options],
            stdout=subprocess.DEVNULL,
            env=environment(),
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        peaks_bytes.append(usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024))
    assert max(peaks_bytes) < peaks_bytes[0] + 30_000_000


def test_parquet_files_of_others_are_refused(tmp_path: Path) -> None:
    """They are not called damaged; in a segment of ours what no segment has is damage."""
    path, rows = tmp_path / "foreign.parquet", pa.table({"a": [1.0, 2.0]})
    pq.write_table(rows, path)
    for verb in ("verify", "dump"):
        refused = cli("segments", verb, "--file", path)
        assert (refused.code, refused.out) == (1, "")
        assert "is a Parquet file of another program, and no segment" in " ".join(
            refused.err.split()
        )
    path.write_bytes(b"PARE" + bytes(100) + b"PARE")
    refused = cli("segments", "verify", "--file", path)
    assert (refused.code, "encrypted" in refused.err) == (1, True)
    ours = rows.replace_schema_metadata({"txnlog.row_group_crc32c": "00000000"})
    pq.write_table(ours, path, use_dictionary=False, column_encoding={"a": "BYTE_STREAM_SPLIT"})
    damaged = cli("segments", "verify", "--file", path)
    assert (damaged.code, "DAMAGED" in damaged.out) == (3, True)
