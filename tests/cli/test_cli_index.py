"""``txnlog index``: entries as they lie, checked against segments, and recreated."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

import txnlog
from tests.support.cli.cli_command import cli, cli_each
from tests.support.steps import end_batches
from txnlog.segments.parquet import writer

BROKER = Path(__file__).parents[1] / "kafka" / "broker"


@pytest.fixture
def indexed(tmp_path: Path) -> tuple[Path, Path]:
    """A store whose topic ``t`` has a segment of several batches behind one of one batch."""
    root = tmp_path / "indexed"
    store = txnlog.open(str(root), create=True)
    store.topics.create("t", config={"record.format": "columns", "compression.type": "none"})
    with store.producer() as producer:
        producer.send("t", b"first", timestamp_ms=0)
        producer.flush()
        for number in range(12):
            producer.send("t", bytes([65 + number]) * 900_000, timestamp_ms=1000 + number)
    return root, (root / store.topics.segments("t")[1].paths.log).with_suffix(".index")


def test_entries_have_the_topics_offsets(indexed: tuple[Path, Path]) -> None:
    """An entry is the last offset of a batch and where it begins, as the segment's dump has it."""
    root, path = indexed
    batches = cli("segments", "dump", "t", "--store", root, "-o", "json").json()[1:]
    found = cli("index", "dump", "t", "--store", root, "-o", "json").json()
    assert [(e["offset"], e["position"]) for e in found if e["kind"] == "offset"] == [
        (batch["last_offset"], batch["position"]) for batch in batches[1:]
    ]
    assert [(e["offset"], e["timestamp_ms"]) for e in found if e["kind"] == "time"] == [
        (batch["last_offset"], batch["max_timestamp_ms"]) for batch in batches[1:]
    ]
    alone = cli("index", "dump", "--file", path, "-o", "json").json()
    assert [e["offset"] + 1 for e in alone] == [e["offset"] for e in found[: len(alone)]]
    assert [e["number"] for e in alone] == [*range(len(batches) - 1)]


@pytest.mark.parametrize("verb", ["dump", "verify", "rebuild"])
def test_small_segments_have_none(tmp_path: Path, verb: str) -> None:
    """Which people are told; and in a shared file there are several of them."""
    store = txnlog.open(str(tmp_path), create=True)
    store.topics.create("t", partitions=2)
    with store.producer() as producer:
        for number in range(4):
            producer.send("t", b"%d" % number, partition=number % 2)
            end_batches(producer)
    done = cli("index", verb, "t", "--store", tmp_path, "-o", "json")
    assert (done.code, json.loads(done.out)) == (0, [])
    assert "there are no index files" in done.err
    refused = cli("index", verb, "--file", tmp_path / store.topics.segments("t")[0].paths.log)
    assert refused.code == (0 if verb == "dump" else 1)
    assert verb == "dump" or "is shared by several segments" in refused.err


def test_damaged_and_missing_indexes_are_told_and_come_back(indexed: tuple[Path, Path]) -> None:
    """Condition 42 for people: verify says what is wrong, rebuild makes the same bytes again."""
    root, path = indexed
    times = path.with_suffix(".timeindex")
    sound = path.read_bytes(), times.read_bytes()
    verify = ("index", "verify", "t", "--store", root, "-o", "json")
    rebuild = ("index", "rebuild", "t", "--store", root, "-o", "json")
    assert [check["state"] for check in cli(*verify).json()] == ["ok", "ok"]
    assert [done["action"] for done in cli(*rebuild).json()] == ["kept", "kept"]

    path.write_bytes(sound[0][:-3])
    times.unlink()
    dump = cli("index", "dump", "t", "--store", root, "-o", "json")
    last = json.loads(dump.out)[-1]
    assert (dump.code, last["offset"], "5 bytes" in last["damage"]) == (3, None, True)
    done = cli(*verify)
    assert done.code == 3
    assert [check["state"] for check in json.loads(done.out)] == ["damaged", "missing"]
    assert done.err.count("\n") == 2
    dry = cli(*rebuild, "--dry-run")
    assert (dry.code, path.read_bytes(), times.exists()) == (0, sound[0][:-3], False)
    assert [(d["before"], d["action"]) for d in json.loads(dry.out)] == [
        ("damaged", "written"),
        ("missing", "written"),
    ]
    assert cli(*rebuild).json() == json.loads(dry.out)
    assert (path.read_bytes(), times.read_bytes()) == sound

    wrong = bytearray(sound[0])
    wrong[3] ^= 1
    path.write_bytes(wrong)
    assert "ends with offset" in cli(*verify).err
    assert cli("records", "read", "t:0", "--from", 9, "-n", 1, "--store", root).code == 0
    cli(*rebuild).json()
    assert path.read_bytes() == sound[0]


def test_a_damaged_segment_is_indexed_up_to_its_damage(indexed: tuple[Path, Path]) -> None:
    """What precedes is found by the index; the damage is reported, and no segment is changed."""
    root, path = indexed
    segment = path.with_suffix(".log")
    entries = cli("index", "dump", "--file", path, "-o", "json").json()
    data = bytearray(segment.read_bytes())
    data[entries[2]["position"] + 9] ^= 1
    segment.write_bytes(data)
    path.unlink()
    done = cli("index", "rebuild", "t", "--store", root, "-o", "json")
    assert (done.code, json.loads(done.out)[0]["entry_count"]) == (3, 2)
    assert f"at byte {entries[2]['position']}" in done.err
    assert segment.read_bytes() == bytes(data)
    segment.unlink()
    assert cli("index", "verify", "t", "--store", root).code == 3


def test_kafkas_own_indexes(tmp_path: Path) -> None:
    """Dumped with absolute offsets, also what a broker allocated ahead; rebuilt beside a copy."""
    folder = Path(shutil.copytree(BROKER / "orders-0", tmp_path / "orders-0"))
    logs = sorted(folder.glob("*.log"))
    named = [argument for log in logs for argument in ("--file", log)]
    verify, dump = cli_each(
        ("index", "verify", *named, "-o", "json"), ("index", "dump", *named, "-o", "json")
    )
    assert {check["state"] for check in verify.json()} == {"ok"}
    entries = dump.json()
    assert {entry["kind"] for entry in entries} == {"offset", "time", "transaction"}
    assert all(entry["offset"] >= int(Path(entry["path"]).stem) for entry in entries)

    index = folder / f"{161:020}.index"
    with index.open("ab") as file:
        file.write(bytes(8000))
    ahead = cli("index", "dump", "--file", index)
    assert (ahead.code, "8000 bytes of zeros" in ahead.err) == (0, True)
    assert cli("index", "verify", "--file", index).code == 0

    before = {path: path.read_bytes() for path in folder.glob("*.log")}
    for ending in ("index", "timeindex"):
        (folder / f"{161:020}.{ending}").write_bytes(b"damaged")
        (folder / f"{40:020}.{ending}").unlink()
    assert cli("index", "verify", *named).code == 3
    lying = {path: path.read_bytes() for path in folder.iterdir()}
    dry = cli("index", "rebuild", *named, "--dry-run", "-o", "json")
    assert "nothing was changed" in dry.err
    assert {path: path.read_bytes() for path in folder.iterdir()} == lying
    done = cli("index", "rebuild", *named, "-o", "json").json()
    assert json.loads(dry.out) == done
    assert sum(item["action"] == "written" for item in done) == 4
    assert cli("index", "verify", *named).code == 0
    assert {path: path.read_bytes() for path in folder.glob("*.log")} == before
    assert not list(folder.glob(".*"))


@pytest.mark.parametrize("typed", [False, True])
def test_parquet_files_have_no_index_files_and_people_are_told(tmp_path: Path, typed: bool) -> None:
    """In a store nothing is checked or written, and stderr says why; of a file it is refused."""
    store = txnlog.open(str(tmp_path), create=True)
    schema = pa.schema([("value", pa.string())]) if typed else None
    store.topics.create("t", schema=schema, config={"record.format": "parquet"})
    with store.producer() as producer:
        producer.send_batch("t", pa.table({"value": ["a", "b"]}))
    (segment,) = store.topics.segments("t")
    path = tmp_path / segment.paths.log
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for verb in ("verify", "rebuild"):
        done = cli("index", verb, "t", "--store", tmp_path, "-o", "json")
        assert (done.code, json.loads(done.out)) == (0, []), done
        assert "t: segments that are Parquet files have their index in themselves" in done.err
        assert "there is nothing to do" in done.err
    for verb in ("verify", "rebuild"):
        alone = cli("index", verb, "--file", path)
        assert (alone.code, alone.out) == (1, "")
        assert (
            f"{path} is a Parquet file: its footer is its index, and it has no other" in alone.err
        )
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_the_page_index_of_a_parquet_file_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the offsets and times that pages begin with and reach; and damage of the file."""
    monkeypatch.setattr(writer, "_RECORD_PAGE_BYTES", 4 << 10)
    store = txnlog.open(str(tmp_path), create=True)
    store.topics.create("t", config={"record.format": "parquet"})
    rows = {
        "value": pa.array([b"%0100d" % number for number in range(100)], pa.binary()),
        "timestamp": pa.array(range(100), pa.timestamp("ms", "UTC")),
    }
    for _ in range(2):
        with store.producer() as producer:
            producer.send_batch("t", pa.table(rows))
    done = cli("index", "dump", "t", "--store", tmp_path, "-o", "json")
    entries = json.loads(done.out)
    assert {entry["kind"] for entry in entries} == {"page"}
    first = [entry for entry in entries if entry["offset"] < 100]
    assert [entry["number"] for entry in first] == [*range(len(first))]
    assert 2 < len(first) < 10
    assert [entry["offset"] for entry in entries] == [
        *(entry["offset"] for entry in first), *(100 + entry["offset"] for entry in first)
    ]  # fmt: skip
    ends = [*(entry["offset"] for entry in first[1:]), 100]
    assert [entry["timestamp_ms"] for entry in first] == [end - 1 for end in ends]
    positions = [entry["position"] for entry in first]
    assert positions == sorted({*positions})
    segment = store.topics.segments("t")[0]
    file = tmp_path / segment.paths.log
    alone = cli("index", "dump", "--file", file, "-o", "json").json()
    assert alone == [{**entry, "path": str(file)} for entry in first]
    file.write_bytes(b"x" * segment.size_bytes)
    for chosen in (("t", "--store", tmp_path), ("--file", file)):
        damaged = cli("index", "dump", *chosen, "-o", "json")
        assert damaged.code == 3
        assert "PAR1" in json.loads(damaged.out)[0]["damage"]
    parquet.write_table(pa.table(rows), file)
    foreign = cli("index", "dump", "--file", file)
    assert (foreign.code, "of another program, and no segment" in foreign.err) == (1, True)


def test_wrong_files_are_refused(tmp_path: Path, store_path: Path) -> None:
    """A file that is not an index, one that is not there, a URL to be written."""
    text = tmp_path / "notes.txt"
    text.write_text("x")
    lone = tmp_path / "lone.index"
    lone.write_bytes(bytes(8))
    for arguments, code in (
        (("dump", "--file", text), 1),
        (("dump", "--file", tmp_path / "absent.index"), 1),
        (("verify", "--file", lone), 1),
        (("rebuild", "--file", lone), 1),
        (("rebuild", "--file", f"file://{tmp_path}/absent.log"), 1),
        (("verify",), 2),
        (("verify", "orders", "--file", lone), 2),
    ):
        done = cli("index", *arguments, "--store", store_path)
        assert (done.code, done.out.strip() in ("", "STATE  ENTRIES  PATH")) == (code, True), done
    assert cli("segments", "dump", "--file", lone).code == 2
