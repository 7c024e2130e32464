"""``txnlog import`` and ``txnlog export``: a broker's folders, as a shell meets them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.cli.cli_command import cli
from txnlog import Store
from txnlog.segments.batches import encode_batch, encode_marker
from txnlog.segments.records import normalize

RECORDS = 3
pytestmark = pytest.mark.store(on="disk", topics={})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A partition: a plain batch, an aborted transaction, and one that has not ended."""
    import pyarrow as pa

    row = {"key": [b"k"] * RECORDS, "value": [b"v"] * RECORDS, "timestamp": [5] * RECORDS}
    records = normalize(pa.record_batch(row), now_ms=0)
    producer: dict[str, Any] = {"producer_epoch": 0, "base_sequence": 0, "transactional": True}
    data = [
        encode_batch(records, record_format="kafka"),
        encode_batch(records, record_format="kafka", base_offset=3, producer_id=7, **producer),
        encode_marker(
            commit=False,
            offset=6,
            timestamp_ms=5,
            producer_id=7,
            producer_epoch=1,
            coordinator_epoch=0,
        ),
        encode_batch(records, record_format="kafka", base_offset=7, producer_id=8, **producer),
    ]
    path = tmp_path / "broker" / "orders-0"
    path.mkdir(parents=True)
    (path / f"{0:020}.log").write_bytes(b"".join(data))
    return path


def test_a_folder_comes_in_and_goes_out(store: Store, folder: Path, tmp_path: Path) -> None:
    """The numbers are those of docs/CLI.md, a dump shows the marker, and it exports again."""
    size = (folder / f"{0:020}.log").stat().st_size
    done = cli("import", folder, "--topic", "orders", "--store", store.url, "-o", "json").json()
    assert done == {
        "topic": "orders",
        "record_count": 9,
        "partitions": [
            {
                "partition": 0,
                "start_offset": 0,
                "end_offset": 10,
                "record_count": 9,
                "segment_count": 1,
                "size_bytes": size,
                "aborted_count": 2,
                "open_count": 1,
            }
        ],
        "damages": [],
    }
    dumped = cli("segments", "dump", "orders", "--store", store.url, "-o", "json").json()
    assert [
        (batch["base_offset"], batch["producer_id"], batch["marker"], batch["control"])
        for batch in dumped
    ] == [(0, None, None, False), (3, 7, None, False), (6, 7, "abort", True), (7, 8, None, False)]
    read = cli("records", "read", "orders", "-n", 4, "--store", store.url, "-o", "json").json()
    assert [record["offset"] for record in read] == [0, 1, 2]
    every = ("records", "read", "orders", "--isolation-level", "read_uncommitted", "-n", 8)
    read = cli(*every, "--store", store.url, "-o", "json").json()
    assert [record["offset"] for record in read] == [0, 1, 2, 3, 4, 5, 7, 8]
    out = tmp_path / "out"
    done = cli("export", "orders", out, "--kafka", "--store", store.url, "-o", "json").json()
    (part,) = done["partitions"]
    assert (done["url"], part["folder"], part["end_offset"]) == (str(out), "orders-0", 11)
    assert part["marker_count"] == 1  # ends what had not ended
    kept = ("export", "orders", tmp_path / "kept", "--keep-offsets", "--store", store.url)
    (part,) = cli(*kept, "-o", "json").json()["partitions"]
    assert (part["marker_count"], part["end_offset"]) == (0, 10)
    old = cli("export", "orders", tmp_path / "old", "--magic", 1, "--store", store.url).lines()
    assert old[0].split() == ["topic", "orders"]


def test_damage_is_refused_or_left_out(store: Store, folder: Path) -> None:
    """Exit code 3 and nothing imported; with --skip-corrupt the rest, and a word on stderr."""
    path = folder / f"{0:020}.log"
    path.write_bytes(path.read_bytes() + b"garbage")
    command = ("import", folder.parent, "--topic", "orders", "--store", store.url)
    refused = cli(*command)
    assert refused.code == 3
    assert "nothing was imported" in refused.err
    assert "--skip-corrupt" in refused.err
    assert store.topics.list() == []
    done = cli(*command, "--skip-corrupt", "-o", "jsonl")
    assert done.code == 0
    assert f"{path} at byte {path.stat().st_size - 7}" in done.err
    assert '"damages":[{"path":' in done.out.replace(" ", "")
    assert cli(*command, "--skip-corrupt").code == 1  # not twice


def test_wrong_usage_is_explained(store: Store, folder: Path, tmp_path: Path) -> None:
    """Missing and wrong arguments name themselves."""
    store.topics.create("t")
    for arguments, code, said in [
        (("import", folder), 2, "--topic"),
        (("import", tmp_path / "none", "--topic", "t"), 1, "is not a Kafka log folder"),
        (("export", "nothing", tmp_path / "x"), 1, "'nothing' does not exist"),
        (("export", "t", tmp_path / "x", "--magic", 3), 2, "--magic"),
        (("export", "t", tmp_path / "x", "--compression", "lzo"), 2, "'lzo' is not one of"),
        (("export", "t", tmp_path / "x", "--folder-option", "x"), 2, "--folder-option number 1"),
        (("import", folder, "--topic", "t", "--folder-option", "x"), 2, "--folder-option number 1"),
    ]:
        found = cli(*arguments, "--store", store.url)
        assert (found.code, said in found.err) == (code, True), found
