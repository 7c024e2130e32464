"""A pinned topic as a pyarrow dataset: engines that know Arrow read its Parquet files themselves.

They prune columns and row groups, and push filters down. A file that was exchanged for another one
is noticed when it is opened, by its footer, which is read anyway. What is no whole Parquet file, as
the rest of a segment whose first records were deleted, is read here and stands beside the files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem
from pyarrow import dataset
from pyarrow.fs import FSSpecHandler, LocalFileSystem, PyFileSystem

from txnlog.read.schema import ScanColumns
from txnlog.read.segment_ranges import SegmentRange, read_ranges
from txnlog.segments.parquet.footer import check_footer
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
        named = {storage.local_path(part.paths.log) or part.paths.log: part for part in whole}
        files = PyFileSystem(_Segments(_Objects(storage, named)))
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
    """Segments as files that can be read, by their names or, on this machine, their paths."""

    cachable = False

    def __init__(self, storage: Storage, segments: Mapping[str, SegmentRange]) -> None:
        super().__init__()
        self.storage = storage
        self.segments = segments

    def info(self, path: str, **_: object) -> dict[str, object]:
        size_bytes = self.segments[path].segment.size_bytes
        return {"name": path, "size": size_bytes, "type": "file"}

    def _open(self, path: str, *_: object, **__: object) -> _Object:
        return _Object(self, path, cache_type="none", size=self.info(path)["size"])


class _Segments(FSSpecHandler):  # type: ignore[misc]
    """The same for Arrow. Whoever opens a file makes sure that it is the one that was placed."""

    fs: _Objects

    def open_input_file(self, path: str) -> pa.NativeFile:
        part, storage = self.fs.segments[path], self.fs.storage
        if storage.local_path(part.paths.log) is None:
            return super().open_input_file(path)
        file = LocalFileSystem().open_input_file(path)
        check_footer(part.open(storage, lambda start, stop: file.read_at(stop - start, start)))
        return file


class _Object(AbstractBufferedFile):  # type: ignore[misc]
    """One of the files that have no path here. Its end, which Arrow reads first, is kept."""

    def __init__(self, files: _Objects, path: str, **options: object) -> None:
        super().__init__(files, path, **options)
        self._part = part = files.segments[path]
        self._storage = files.storage
        self._tail_start, self._tail = 0, b""
        check_footer(part.open(self._storage, self._read_tail))

    def _read_tail(self, start: int, stop: int) -> bytes:
        self._tail_start, self._tail = start, self._part.read_bytes(self._storage, start, stop)
        return self._tail

    def _fetch_range(self, start: int, end: int) -> bytes:
        kept = start - self._tail_start
        if kept >= 0:
            return self._tail[kept : end - self._tail_start]
        return self._part.read_bytes(self._storage, start, end)
