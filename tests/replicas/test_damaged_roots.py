"""Segments that are damaged on one root are read from another."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import txnlog
from tests.support.replication.replica_folders import (
    FIRST,
    SECOND,
    break_sector,
    lose,
    make,
    make_written,
    reopened,
    skip_probes,
    write,
)
from txnlog.errors import CorruptRecord, InvalidOption
from txnlog.names import TopicPartition
from txnlog.replication import Replicas
from txnlog.segments import writer

BATCHES, RECORDS = 6, 20
"""What is sent; the segment has batches of its own."""


@pytest.fixture(autouse=True)
def unprobed(monkeypatch: pytest.MonkeyPatch) -> None:
    skip_probes(monkeypatch)
    for name in ("DEFAULT_BATCH_BYTES", "DEFAULT_ROW_GROUP_BYTES"):
        monkeypatch.setattr(writer, name, 1000)  # so that a segment has three


def fill(folder: Path, record_format: str, **more: object) -> txnlog.Store:
    """One segment of three batches."""
    store = make(folder)
    config = {"record.format": record_format, "compression.type": "none", **more}
    if record_format == "parquet":
        schema = pa.schema([("number", pa.int64())])
        store.topics.create("t", config={**config, "compression.type": "zstd"}, schema=schema)
    else:
        store.topics.create("t", config=config)
    with store.producer() as producer:
        for number in range(BATCHES):
            numbers = pa.array(range(number * RECORDS, (number + 1) * RECORDS), pa.int64())
            column = numbers if record_format == "parquet" else numbers.cast(pa.string())
            name = "number" if record_format == "parquet" else "value"
            producer.send_batch("t", pa.record_batch({name: column}))
    return store


def segment(folder: Path) -> Path:
    found = [
        path for path in folder.glob("topics/t/data/*/*") if path.suffix in (".log", ".parquet")
    ]
    (path,) = found
    return path


def damage(path: Path, share: float) -> None:
    data = bytearray(path.read_bytes())
    data[int(len(data) * share)] ^= 0x55
    path.write_bytes(data)


def numbers(store: txnlog.Store, **options: object) -> list[int]:
    table = store.scan("t", **options).to_arrow()  # type: ignore[arg-type]
    column = table["number"] if "number" in table.column_names else table["value"]
    return [int(value) for value in column.to_pylist()]


@pytest.mark.condition(61)
@pytest.mark.parametrize(("record_format", "share"), [("kafka", 0.5), ("parquet", 0.1)])
def test_a_damaged_segment_is_read_from_another_root(
    tmp_path: Path, record_format: str, share: float, caplog: pytest.LogCaptureFixture
) -> None:
    """Every record once and in order; the log tells of it."""
    fill(tmp_path, record_format)
    damage(segment(tmp_path / FIRST), share)
    with caplog.at_level(logging.WARNING, "txnlog.storage.base"):
        assert numbers(reopened(tmp_path)) == [*range(BATCHES * RECORDS)]
    assert "because it is damaged elsewhere" in caplog.text
    assert "verify --deep --repair" in caplog.text


@pytest.mark.parametrize("record_format", ["kafka", "columns", "parquet"])
def test_a_time_is_found_in_another_root(tmp_path: Path, record_format: str) -> None:
    """By whatever looks for one, wherever in the segment the damage is."""
    store = fill(tmp_path, record_format)
    where = TopicPartition("t", 0)
    sound = segment(tmp_path / FIRST).read_bytes()
    expected = store.snapshot("t").offset_for_time(where, 0)
    assert expected is not None
    for share in (0.1, 0.5, 0.9):
        segment(tmp_path / FIRST).write_bytes(sound)
        damage(segment(tmp_path / FIRST), share)
        read = reopened(tmp_path)
        assert read.snapshot("t").offset_for_time(where, 0) == expected
        (listed,) = read.topics.offsets(["t"], timestamp_ms=0)
        assert listed.offset == 0
        with read.consumer() as consumer:
            assert consumer.offsets_for_times({where: 0}) == {where: expected}
    for root in (FIRST, SECOND):
        segment(tmp_path / root).write_bytes(bytes(len(sound)))
    with pytest.raises(CorruptRecord):
        reopened(tmp_path).snapshot("t").offset_for_time(where, 0)


def test_a_segment_that_is_damaged_on_every_root(tmp_path: Path) -> None:
    """That is told, and where."""
    fill(tmp_path, "kafka")
    for root in (FIRST, SECOND):
        damage(segment(tmp_path / root), 0.5)
    with pytest.raises(CorruptRecord, match="relative offset 40"):
        numbers(reopened(tmp_path))


def test_two_roots_that_are_damaged_in_different_places(tmp_path: Path) -> None:
    """Each is gone on with where the other ends: every record once and in order."""
    fill(tmp_path, "parquet")
    damage(segment(tmp_path / FIRST), 0.1)
    damage(segment(tmp_path / SECOND), 0.3)
    assert numbers(reopened(tmp_path)) == [*range(BATCHES * RECORDS)]


def test_damage_is_told_where_no_other_root_has_the_segment(tmp_path: Path) -> None:
    fill(tmp_path, "kafka")
    damage(segment(tmp_path / FIRST), 0.5)
    segment(tmp_path / SECOND).unlink()
    with pytest.raises(CorruptRecord, match="relative offset 40"):
        numbers(reopened(tmp_path))


def test_a_filter_goes_on_at_another_root(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fill(tmp_path, "parquet")
    damage(segment(tmp_path / FIRST), 0.3)
    wanted = pc.field("number") >= 30
    with caplog.at_level(logging.WARNING, "txnlog.storage.base"):
        assert numbers(reopened(tmp_path), filter=wanted) == [*range(30, BATCHES * RECORDS)]
    assert "because it is damaged elsewhere" in caplog.text


def test_a_root_that_returns_has_no_damage(tmp_path: Path) -> None:
    """The leader has damaged a segment: who joins copies it from what was there before.

    A second return deletes the incarnation before the last, and with it no last sound copy.
    """
    fill(tmp_path, "kafka")
    whole = segment(tmp_path / SECOND).read_bytes()
    damage(segment(tmp_path / FIRST), 0.5)
    store = reopened(tmp_path)
    Replicas(store).alter({"replica.auto.return": "true"})
    name = segment(tmp_path / FIRST).name
    for number in (1, 2):
        bring_back = lose(tmp_path / "b")
        with store.producer() as producer:
            producer.send("t", value=b"120")
        bring_back()
        store.maintain()
        assert Replicas(store).describe().in_sync == ("r0-0", f"r1-{number}")
        (found,) = (tmp_path / f"b/incarnation-0000{number}").rglob(name)
        assert found.read_bytes() == whole


def test_a_root_that_joins_copies_sound_segments(tmp_path: Path) -> None:
    """And what is damaged everywhere as it is, since some of its records can be read."""
    store = fill(tmp_path, "kafka")
    whole = segment(tmp_path / FIRST).read_bytes()
    damage(segment(tmp_path / FIRST), 0.5)
    Replicas(store).add(str(tmp_path / "c"))
    assert segment(tmp_path / "c/incarnation-00000").read_bytes() == whole
    for root in ("b", "c"):
        damage(segment(tmp_path / root / "incarnation-00000"), 0.5)
    Replicas(store).add(str(tmp_path / "d"))
    assert segment(tmp_path / "d/incarnation-00000").stat().st_size == len(whole)


def test_an_incarnation_that_has_the_only_sound_entry_stays(tmp_path: Path) -> None:
    store = fill(tmp_path, "kafka")
    bring_back = lose(tmp_path / "b")
    store.topics.create("u")
    bring_back()
    Replicas(store).add(str(tmp_path / "b"))
    for folder in (FIRST, "b/incarnation-00001"):
        damage(tmp_path / folder / "topics/t/log/00000000000000000000.json", 0.5)
    with pytest.raises(InvalidOption, match=r"r1-0 has 1 .* whole that no root in sync"):
        Replicas(store).forget("r1-0")
    assert (tmp_path / SECOND / "topics/t/log/00000000000000000000.json").exists()


@pytest.mark.parametrize("log", ["topics/t/log", "groups/g", "transactions/x"])
def test_an_incarnation_that_has_the_only_log_stays(tmp_path: Path, log: str) -> None:
    """The leader has lost the folder since, and looks as if there had never been one."""
    store = fill(tmp_path, "kafka")
    producer = store.producer(transactional_id="x")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send_offsets_to_transaction({TopicPartition("t", 0): 1}, "g")
    producer.commit_transaction()
    Replicas(store).remove("r1")
    shutil.rmtree(tmp_path / FIRST / log)
    with pytest.raises(InvalidOption, match=rf"r1-0 has . objects .* {log}/"):
        Replicas(reopened(tmp_path)).forget("r1-0")
    shutil.copytree(tmp_path / SECOND / log, tmp_path / FIRST / log)
    assert Replicas(reopened(tmp_path)).forget("r1-0").objects


def test_an_incarnation_stays_while_a_log_cannot_be_read(tmp_path: Path) -> None:
    """Its data may be the only whole copy: nobody can tell, until the topic is deleted."""
    store = fill(tmp_path, "kafka")
    Replicas(store).remove("r1")
    damage(segment(tmp_path / FIRST), 0.5)
    for folder in (FIRST, SECOND):
        damage(tmp_path / folder / "topics/t/log/00000000000000000000.json", 0.5)
    replicas = Replicas(reopened(tmp_path))
    with pytest.raises(InvalidOption, match=r"r1-0 may have .* log of t cannot be read: .*json"):
        replicas.forget("r1-0")
    assert segment(tmp_path / SECOND).exists()


@pytest.mark.usefixtures("early_files")
@pytest.mark.parametrize("ending", [".log", ".index"])
def test_who_joins_takes_what_cannot_be_read_from_another_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    store = fill(tmp_path, "kafka", **{"index.interval.bytes": 100})
    (path,) = (tmp_path / FIRST).rglob(f"t/data/*/*{ending}")
    right = path.read_bytes()
    break_sector(monkeypatch, path)
    Replicas(store).add(str(tmp_path / "c"))
    joined = tmp_path / "c/incarnation-00000"
    assert (joined / path.relative_to(tmp_path / FIRST)).read_bytes() == right


@pytest.mark.usefixtures("early_files")
@pytest.mark.parametrize("where", [FIRST, SECOND])
@pytest.mark.parametrize("ending", [".index", ".timeindex"])
def test_a_damaged_index_is_judged_by_its_segment(tmp_path: Path, where: str, ending: str) -> None:
    """Its format has no checksum; each of its entries is one of a batch."""
    store = fill(tmp_path, "kafka", **{"index.interval.bytes": 100})
    (path,) = (tmp_path / where).rglob(f"*{ending}")
    right = path.read_bytes()
    assert right
    path.write_bytes(right[:-1] + bytes([right[-1] ^ 1]))
    found = [*Replicas(store).verify(with_contents=True, repair=True)]
    members = ({FIRST: "r0-0", SECOND: "r1-0"}[where],)
    assert [(one.kind, one.members, one.is_repaired) for one in found] == [
        ("damaged", members, True)
    ]
    assert path.read_bytes() == right


def merged(folder: Path) -> tuple[txnlog.Store, Path]:
    """Four segments, whose records are in a fifth one; one of them, at the leader."""
    store = make_written(folder)
    for number in range(4):
        write(store, str(number))
    path = sorted((folder / FIRST).glob("topics/t/data/0/*.log"))[1]
    store.maintenance.merge("t")
    return store, path


def test_what_was_replaced_is_judged_until_it_is_deleted(tmp_path: Path) -> None:
    """Snapshots may read it."""
    store, path = merged(tmp_path)
    right = path.read_bytes()
    damage(path, 0.5)
    Replicas(store).add(str(tmp_path / "c"))
    name = path.relative_to(tmp_path / FIRST)
    assert (tmp_path / "c/incarnation-00000" / name).read_bytes() == right
    found = [*Replicas(store).verify(with_contents=True, repair=True)]
    assert [(one.kind, one.members, one.is_repaired) for one in found] == [
        ("damaged", ("r0-0",), True)
    ]
    assert path.read_bytes() == right


def test_what_was_replaced_keeps_no_old_incarnation(tmp_path: Path) -> None:
    store, path = merged(tmp_path)
    kept = tmp_path / SECOND / path.relative_to(tmp_path / FIRST)
    Replicas(store).remove("r1")
    path.unlink()  # as vacuum does
    assert kept.exists()
    Replicas(store).forget("r1-0")
    assert not kept.exists()


def test_nobody_is_taken_out_for_what_no_log_names(tmp_path: Path) -> None:
    store = make_written(tmp_path, "1")
    name = f"topics/t/data/0/{7:032x}-0.log"
    for root, data in ((FIRST, b"1"), (SECOND, b"2")):
        (tmp_path / root / name).write_bytes(data)
    (told,) = Replicas(store).verify(with_contents=True, repair=True)
    assert (told.name, told.kind, told.is_repaired) == (name, "undecided", False)
    assert "nobody needs it" in told.detail
    assert "remove" not in told.detail


@pytest.mark.few(2)
@pytest.mark.parametrize("at_ends", [False, True], ids=["a byte", "longer"])
@pytest.mark.parametrize("roots", [2, 3])
@pytest.mark.parametrize("where", ["a", "b"])
def test_what_no_log_names_of_a_file_is_made_the_same_everywhere(
    tmp_path: Path, where: str, roots: int, at_ends: bool
) -> None:
    """A part of a shared file was trimmed away: any root has what is named whole."""
    store = make(tmp_path)
    if roots == 3:
        Replicas(store).add(str(tmp_path / "c"))
    store.topics.create("t", partitions=2)
    with store.producer() as producer:
        for partition in (0, 1):
            producer.send("t", b"1", partition=partition)
    store.topics.delete_records({TopicPartition("t", 0): 1})
    paths = [*tmp_path.glob("*/incarnation-*/topics/t/data/shared/*.log")]
    assert len(paths) == roots
    (changed,) = (path for path in paths if path.is_relative_to(tmp_path / where))
    if at_ends:
        changed.write_bytes(changed.read_bytes() + b"x")
    else:
        damage(changed, 0)
    replicas = Replicas(reopened(tmp_path))
    # Where there is no majority the leader's is taken.
    wrong = "r1-0" if roots == 2 else {"a": "r0-0", "b": "r1-0"}[where]
    for repair in (False, True):
        found = [*replicas.verify(with_contents=True, repair=repair)]
        assert [(one.kind, one.members, one.is_repaired) for one in found] == [
            ("damaged", (wrong,), repair)
        ]
    assert len({path.read_bytes() for path in paths}) == 1
    assert [*replicas.verify(with_contents=True)] == []
    assert numbers(reopened(tmp_path)) == [1]
