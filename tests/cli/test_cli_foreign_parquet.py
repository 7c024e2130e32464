"""``txnlog segments`` on Parquet files that txnlog has not written."""

from __future__ import annotations

import json
import struct
from base64 import b64encode
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.parquet import encryption

from tests.support.cli.cli_command import cli


def test_parquet_files_of_others_are_looked_into(tmp_path: Path) -> None:
    """Without times, keys and headers of records; an encrypted one is said to be that."""
    path = tmp_path / "foreign.parquet"
    pq.write_table(pa.table({"a": [1, 2], "day": [date(2024, 2, 29), None]}), path)
    (checked,) = cli("segments", "verify", "--file", path, "-o", "json").json()
    assert (checked["ok"], checked["record_count"]) == (True, 2)
    (batch,) = cli("segments", "dump", "--file", path, "--records", "-o", "json").json()
    shown = [(json.loads(row["value"]), row["timestamp_ms"]) for row in batch["records"]]
    assert shown == [({"a": 1, "day": "2024-02-29"}, None), ({"a": 2, "day": None}, None)]
    table = cli("segments", "dump", "--file", path, "--records")
    assert (table.code, '"day": "2024-02-29"' in table.out) == (0, True)
    path.write_bytes(b"PARE" + bytes(100) + b"PARE")
    refused = cli("segments", "verify", "--file", path)
    assert (refused.code, "encrypted" in refused.err) == (1, True)


def _write_nullable_keys(path: Path) -> None:
    """A map as Presto has written it, whose keys may be missing: a list that is called a map."""
    pq.write_table(pa.table({"m": [["k"]]}), path, store_schema=False)
    data, called_list = path.read_bytes(), b"\x15\x06\x4c\x3c"
    assert data.count(called_list) == 1
    path.write_bytes(data.replace(called_list, b"\x15\x02\x4c\x2c"))


class _OpenKeys(encryption.KmsClient):  # type: ignore[misc]
    """Keeps no key from anybody."""

    def wrap_key(self, key_bytes: bytes, _master: str) -> str:
        """As base64."""
        return b64encode(key_bytes).decode()


def _write_encrypted(rows: pa.Table, path: Path) -> None:
    """With an encrypted column, and a footer that anybody can read."""
    ways = encryption.EncryptionConfiguration("k", column_keys={"k": ["a"]}, plaintext_footer=True)
    factory = encryption.CryptoFactory(lambda _: _OpenKeys())
    sealed = factory.file_encryption_properties(encryption.KmsConnectionConfig(), ways)
    with pq.ParquetWriter(path, rows.schema, encryption_properties=sealed) as writer:
        writer.write_table(rows)


def _write_groups(path: Path, *groups: pa.Table) -> None:
    """With a row group for each of these."""
    with pq.ParquetWriter(path, groups[0].schema) as writer:
        for rows in groups:
            writer.write_table(rows)


FAR = pa.array([1 << 61, None], pa.int64())
"""Times that Python's do not reach."""
SOUND = {
    "no rows": pa.table({"a": [1]}).slice(0, 0),
    "one name twice": pa.table([[1, 2], [3, 4]], names=["a", "a"]),
    "times that are numbers": pa.table({"timestamp": [5, 6], "key": ["a", "b"], "value": [1, 2]}),
    "times that are texts": pa.table({"_timestamp": ["x", "y"], "value": ["a", "b"]}),
    "offsets that fall": pa.table({"_offset": [5, 3]}),
    "times far away": pa.table({
        "day": pa.array([1 << 30, None], pa.int32()).cast(pa.date32()),
        "time": FAR.cast(pa.timestamp("us")),
        "inside": pa.StructArray.from_arrays([FAR.cast(pa.timestamp("us", "UTC"))], ["time"]),
        "list": pa.array([[1 << 61], []], pa.list_(pa.timestamp("us"))),
    }),
    "many types": pa.table({
        "bytes": [b"\xff", b"text"],
        "map": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
        "fixed": pa.array([b"ab", b"cd"], pa.binary(2)),
        "price": pa.array([1, 2], pa.int32()).cast(pa.decimal128(20, 2)),
        "half": pa.array([0.5, float("nan")], pa.float16()),
        "nothing": pa.nulls(2),
    }),
}  # fmt: skip
WAYS: list[dict[str, Any]] = [
    {},
    {"use_dictionary": False, "data_page_version": "2.0", "compression": "gzip"},
    {"write_statistics": False, "version": "1.0", "compression": "zstd"},
    {"write_page_index": True, "write_page_checksum": True, "row_group_size": 1},
    {"store_schema": False, "compression": "lz4"},
]


@pytest.mark.parametrize("what", SOUND)
def test_sound_files_of_others_are_sound(tmp_path: Path, what: str) -> None:
    """Whatever their columns are called, and without a row too: all rows are shown."""
    path, rows = tmp_path / "foreign.parquet", SOUND[what]
    for way in WAYS:
        pq.write_table(rows, path, **way)
        (checked,) = cli("segments", "verify", "--file", path, "-o", "json").json()
        assert (checked["ok"], checked["record_count"]) == (True, rows.num_rows), way
        assert checked["size_bytes"] == path.stat().st_size
        batches = cli("segments", "dump", "--file", path, "--records", "-o", "json").json()
        shown = [json.loads(row["value"]) for batch in batches for row in batch["records"]]
        assert [[*row] for row in shown] == [[*dict.fromkeys(rows.column_names)]] * rows.num_rows
        assert cli("segments", "dump", "--file", path, "--records").code == 0


def test_values_of_files_of_others_are_shown(tmp_path: Path) -> None:
    """Times that Python does not have as their numbers, bytes as elsewhere in JSON."""
    path = tmp_path / "foreign.parquet"
    pq.write_table(SOUND["times far away"], path)
    (batch,) = cli("segments", "dump", "--file", path, "--records", "-o", "json").json()
    first, last = (json.loads(row["value"]) for row in batch["records"])
    far = 1 << 61
    assert first == {"day": 1 << 30, "time": far, "inside": {"time": far}, "list": [far]}
    assert last == {"day": None, "time": None, "inside": {"time": None}, "list": []}
    pq.write_table(SOUND["many types"].select(["bytes", "map"]), path)
    (batch,) = cli("segments", "dump", "--file", path, "--records", "-o", "json").json()
    shown = [json.loads(row["value"]) for row in batch["records"]]
    assert shown[0] == {"bytes": {"base64": "/w=="}, "map": [["k", 1]]}
    assert shown[1] == {"bytes": "text", "map": None}


def test_row_groups_of_others_without_rows_are_left_out(tmp_path: Path) -> None:
    """Between others too; offsets are numbers of rows, and positions cover the file."""
    path, rows = tmp_path / "foreign.parquet", pa.table({"a": [1, 2, 3]})
    _write_groups(path, rows.slice(0, 0), rows.slice(0, 2), rows.slice(0, 0), rows.slice(2))
    batches = cli("segments", "dump", "--file", path, "-o", "json").json()
    assert [(one["base_offset"], one["last_offset"]) for one in batches] == [(0, 1), (2, 2)]
    assert batches[0]["position"] == 0
    assert sum(one["size_bytes"] for one in batches) == path.stat().st_size


def test_a_dictionary_of_which_a_footer_says_nothing_is_read(tmp_path: Path) -> None:
    """As of parquet-mr 1.8 and 1.12, and Impala: values begin with it."""
    path = tmp_path / "foreign.parquet"
    pq.write_table(pa.table({"a": ["x", "y", "x"]}), path, compression="none")
    data = path.read_bytes()
    (length,) = struct.unpack("<I", data[-8:-4])
    footer = data[-8 - length : -8]
    chunk = pq.read_metadata(path).row_group(0).column(0)
    values, dictionary = chunk.data_page_offset, chunk.dictionary_page_offset
    # Fields 9 and 11 of the chunk, I64s: the dictionary's place is said to be that of values.
    told = bytes([0x26, values * 2, 0x26, dictionary * 2])
    assert footer.count(told) == 1
    for says in (bytes([0x26, dictionary * 2, 0x26, 0]), bytes([0x26, dictionary * 2])):
        changed = footer.replace(told, says)
        if len(says) < len(told):  # the next field is counted from 9 then
            at = changed.index(says) + len(says)
            changed = changed[:at] + bytes([changed[at] + 0x20]) + changed[at + 1 :]
        tail = changed + struct.pack("<I", len(changed)) + b"PAR1"
        path.write_bytes(data[: -8 - length] + tail)
        (checked,) = cli("segments", "verify", "--file", path, "-o", "json").json()
        assert (checked["ok"], checked["record_count"]) == (True, 3)


def test_files_of_others_that_are_damaged(tmp_path: Path) -> None:
    """Each flipped bit of a file whose pages have checksums is damage, or changes nothing."""
    path, rows = tmp_path / "foreign.parquet", pa.table({"a": [1, 2, 3], "b": ["x", None, "z"]})
    pq.write_table(rows, path, write_page_checksum=True, store_schema=False)
    data = path.read_bytes()
    for at in range(4, len(data) - 4, 7):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
        found = cli("segments", "verify", "--file", path)
        assert found.code in (0, 1, 3), at
        assert "this is a bug" not in found.err, at


def test_what_cannot_be_read_of_others_is_not_called_damaged(tmp_path: Path) -> None:
    """What Parquet has and no segment has is named; in a segment of ours it would be damage."""
    path, rows = tmp_path / "foreign.parquet", pa.table({"a": [1.0, 2.0]})
    # 200 MB, of which the file has a thousand bytes.
    words = pa.DictionaryArray.from_arrays(pa.array([0] * 200_000, pa.int32()), ["y" * 1000])
    ours = rows.replace_schema_metadata({"txnlog.row_group_crc32c": "00000000"})
    split = {"use_dictionary": False, "column_encoding": {"a": "BYTE_STREAM_SPLIT"}}
    made: dict[str, Callable[[], None]] = {
        "encrypted columns": lambda: _write_encrypted(rows, path),
        "BROTLI": lambda: pq.write_table(rows, path, compression="brotli"),
        "BYTE_STREAM_SPLIT": lambda: pq.write_table(rows, path, **split),
        "no columns": lambda: pq.write_table(rows.select([]), path),
        "dictionary": lambda: pq.write_table(pa.table({"a": words}), path),
        "over the limit": lambda: pq.write_table(pa.table({"a": words}), path, store_schema=False),
        "Arrow says": lambda: _write_nullable_keys(path),
    }
    for feature, write in made.items():
        write()
        for verb in ("verify", "dump"):
            refused = cli("segments", verb, "--file", path)
            assert (refused.code, refused.out) == (1, ""), feature
            said = " ".join(refused.err.split())
            assert feature in said
            assert "Nothing tells if it is sound" in said
    pq.write_table(ours, path, **split)
    damaged = cli("segments", "verify", "--file", path)
    assert (damaged.code, "DAMAGED" in damaged.out) == (3, True)
