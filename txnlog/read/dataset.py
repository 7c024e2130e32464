"""A pinned topic as a pyarrow dataset: engines that know Arrow read its Parquet files themselves.

They prune columns and row groups, and push filters down. What is no whole Parquet file, as the rest
of a segment whose first records were deleted, is read here and stands beside the files.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem
from pyarrow import dataset
from pyarrow.fs import FSSpecHandler, LocalFileSystem, PyFileSystem

from txnlog.read.schema import ScanColumns
from txnlog.read.segment_ranges import SegmentRange, read_ranges
from txnlog.storage.base import Storage


def make_dataset(
    storage: Storage, ranges: Sequence[SegmentRange], columns: ScanColumns
) -> dataset.Dataset:
    """The records of ranges, with columns that are stored. Nothing of whole files is read yet.

    Raises CorruptRecord, and what reading raises, for what is no whole file.
    """
    schema = columns.schema
    whole = [part for part in ranges if _is_file(part)]
    others = [part for part in ranges if not _is_file(part)]
    parts: list[dataset.Dataset] = []
    if whole:
        checked = dataset.ParquetFragmentScanOptions(page_checksum_verification=True)
        file_format = dataset.ParquetFileFormat(default_fragment_scan_options=checked)
        at_hand = storage.local_path("") is not None
        files = LocalFileSystem() if at_hand else PyFileSystem(FSSpecHandler(_Objects(storage)))
        paths = [part.paths.log for part in whole]
        named = [storage.local_path(path) if at_hand else path for path in paths]
        fragments = [file_format.make_fragment(name, filesystem=files) for name in named]
        parts.append(dataset.FileSystemDataset(fragments, schema, file_format, files))
    if others or not whole:
        table = pa.Table.from_batches(read_ranges(storage, others, columns), schema=schema)
        parts.append(dataset.dataset(table))
    return parts[0] if len(parts) == 1 else dataset.dataset(parts)


def _is_file(part: SegmentRange) -> bool:
    """Whether the range is all of a Parquet file."""
    segment = part.segment
    covered = (segment.base_offset, segment.end_offset) == (part.start_offset, part.stop_offset)
    return part.paths.is_parquet and covered


class _Objects(AbstractFileSystem):  # type: ignore[misc] # fsspec has no types
    """The objects of a storage as files that can be read."""

    cachable = False

    def __init__(self, storage: Storage) -> None:
        super().__init__()
        self._storage = storage

    def info(self, path: str, **_: object) -> dict[str, object]:
        return {"name": path, "size": self._storage.size(path), "type": "file"}

    def _open(self, path: str, *_: object, **__: object) -> _Object:
        return _Object(self, path, cache_type="none", size=self._storage.size(path))

    def read(self, path: str, start: int, stop: int) -> bytes:
        return self._storage.get_range(path, start, stop)


class _Object(AbstractBufferedFile):  # type: ignore[misc]
    """One of them."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        data: bytes = self.fs.read(self.path, start, end)
        return data
