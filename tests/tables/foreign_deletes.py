"""Rows that another engine deletes from a table without a new file of what is left.

The libraries that the tests have do not write such commits.
"""

from __future__ import annotations

import base64
import json
import struct
import time
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import AddSnapshotUpdate, AssertRefSnapshotId, SetSnapshotRefUpdate
from pyiceberg.typedef import Record

from tests.tables.published import DeltaPublished, IcebergPublished, Published

_B85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


def delete_two_rows(table: Published) -> None:
    """The first two rows of one of its files."""
    if isinstance(table, DeltaPublished):
        _delete_by_vector(table)
    else:
        assert isinstance(table, IcebergPublished)
        _delete_by_position(table)


def _delete_by_vector(table: DeltaPublished) -> None:
    logs = sorted((table.folder / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
    added = next(one["add"] for one in reversed(actions) if "add" in one)
    bitmap = struct.pack("<IQI", 1681511377, 1, 0)  # the magic number, a bitmap, its key
    bitmap += struct.pack("<IIHHI2H", 12346, 1, 0, 1, 16, 0, 1)
    text = base64.b85encode(bitmap).decode().translate(str.maketrans(_B85, _Z85))
    vector = {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(bitmap)}
    same = {key: added[key] for key in ("path", "partitionValues", "size")}
    before = table.table.protocol()
    features = {"deletionVectors", "invariants", "appendOnly"} | {*(before.writer_features or ())}
    committed = [
        {
            "protocol": {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": sorted({"deletionVectors", *(before.reader_features or ())}),
                "writerFeatures": sorted(features),
            }
        },
        {"remove": {**same, "dataChange": True, "deletionTimestamp": 1}},
        {"add": {**added, "deletionVector": {**vector, "cardinality": 2}}},
    ]
    newest = logs[-1].with_name(f"{len(logs):020}.json")
    newest.write_text("\n".join(map(json.dumps, committed)))


class _DeletesWriter(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def _delete_by_position(table: IcebergPublished) -> None:
    opened = table.catalog.load_table("sales.f")
    [task, *_] = opened.scan().plan_files()
    columns = [
        pa.field("file_path", pa.string(), False, {"PARQUET:field_id": "2147483546"}),
        pa.field("pos", pa.int64(), False, {"PARQUET:field_id": "2147483545"}),
    ]
    url = f"{opened.location()}/data/deletes.parquet"
    path = Path(url.removeprefix("file://"))
    path.parent.mkdir(parents=True, exist_ok=True)
    positions = pa.table([[task.file.file_path] * 2, [0, 1]], schema=pa.schema(columns))
    parquet.write_table(positions, path)
    current = opened.current_snapshot()
    assert current is not None
    number, sequence = 4242, 1 + (current.sequence_number or 0)
    deletes = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=url,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=2,
        file_size_in_bytes=path.stat().st_size,
        spec_id=0,
    )
    entry = ManifestEntry.from_args(
        status=ManifestEntryStatus.ADDED, snapshot_id=number, data_file=deletes
    )
    manifest = opened.io.new_output(f"{opened.location()}/metadata/deletes.avro")
    spec = opened.spec()
    with _DeletesWriter(spec, opened.schema(), manifest, number, "deflate") as writer:
        writer.add_entry(entry)
    place = f"{opened.location()}/metadata/list.avro"
    lists = opened.io.new_output(place)
    before = current.snapshot_id
    with write_manifest_list(2, lists, number, before, sequence, "deflate") as listed:
        listed.add_manifests([writer.to_manifest_file(), *current.manifests(opened.io)])
    snapshot = Snapshot.model_validate(
        {
            "snapshot-id": number,
            "parent-snapshot-id": before,
            "sequence-number": sequence,
            "timestamp-ms": int(time.time() * 1000),
            "manifest-list": place,
            "summary": Summary(Operation.DELETE),
            "schema-id": opened.metadata.current_schema_id,
        }
    )
    head = {"ref-name": "main", "type": "branch", "snapshot-id": number}
    table.catalog.commit_table(
        opened,
        (AssertRefSnapshotId.model_validate({"ref": "main", "snapshot-id": before}),),
        (AddSnapshotUpdate(snapshot=snapshot), SetSnapshotRefUpdate.model_validate(head)),
    )
