"""Filtered reads of few columns of large Parquet files by Arrow's own scanner, and its files.

It spreads row groups over processors without a call into Python for each. Our reader decodes less
if the filter keeps few rows of other columns, knows positions, and says which row group is damaged;
so it reads everything else, and takes over if the scanner fails.

Files are opened by us, and looked at before Arrow reads them. It gets no paths of a store on this
machine: what it opened by name might be a link.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import groupby
from typing import Final, TypeAlias

import pyarrow as pa
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem
from pyarrow import dataset, types
from pyarrow.fs import FileSystem, FSSpecHandler, LocalFileSystem, PyFileSystem

from txnlog.columns.layouts import file_layout
from txnlog.errors import CorruptRecord
from txnlog.names import schema_version
from txnlog.read.plan import ScanColumns, SegmentRange
from txnlog.segments.parquet.footer import check_footer, check_numbers
from txnlog.segments.parquet.footer_edits import rename_columns
from txnlog.segments.parquet.open_segment import WHOLE_BYTES
from txnlog.storage.base import Storage


def segment_files(
    storage: Storage,
    segments: Mapping[str, SegmentRange],
    names: Mapping[int, str],
    numbers: Collection[str] = (),
) -> FileSystem:
    """A filesystem of segments, by whatever they are called in ``segments``.

    With ``names`` their columns have these names, by id. Opening one raises what reading a footer
    does, and CorruptRecord if it is not the one that was placed. Of files on this machine the pages
    of columns in ``numbers`` are checked, too: see ``check_numbers``.
    """
    return PyFileSystem(_Segments(_Objects(storage, segments, names, numbers)))


class _Objects(AbstractFileSystem):  # type: ignore[misc] # fsspec has no types
    """Segments as readable files, by their names or, on this machine, their paths.

    With ``names`` their columns have these names, by id.
    """

    cachable = False

    def __init__(
        self,
        storage: Storage,
        segments: Mapping[str, SegmentRange],
        names: Mapping[int, str],
        numbers: Collection[str],
    ) -> None:
        super().__init__()
        self.numbers = numbers
        self.storage = storage
        self.segments = segments
        self.names = names

    def info(self, path: str, **_: object) -> dict[str, object]:
        size_bytes = self.segments[path].segment.stored.size_bytes
        return {"name": path, "size": size_bytes, "type": "file"}

    def _open(self, path: str, *_: object, **__: object) -> _Object:
        return _Object(self, path)


class _Segments(FSSpecHandler):  # type: ignore[misc]
    """Segments' files for Arrow. Opening one checks that it is the one that was placed."""

    fs: _Objects

    def open_input_file(self, path: str) -> pa.NativeFile:
        part, storage = self.fs.segments[path], self.fs.storage
        file = None if self.fs.names else _open_natively(storage, part.paths.log)
        if file is None:
            return super().open_input_file(path)
        opened = part.open(storage, lambda start, stop: file.read_at(stop - start, start))
        if self.fs.numbers:
            check_numbers(opened, self.fs.numbers)
        else:
            check_footer(opened)
        return file


def _open_natively(storage: Storage, name: str) -> pa.NativeFile | None:
    """An object's file, for Arrow to read without us; None if there is none that it can open."""
    descriptor = storage.open_file(name)
    if descriptor is None:
        return None
    try:
        return LocalFileSystem().open_input_file(f"/dev/fd/{descriptor}")
    except OSError:
        return None  # the system, or a container, has no such names
    finally:
        os.close(descriptor)


class _Object(AbstractBufferedFile):  # type: ignore[misc]
    """A file that Arrow does not open natively: the segment's bytes, and its footer.

    The bytes read to check the footer are kept: Arrow reads them first.
    """

    def __init__(self, files: _Objects, path: str) -> None:
        self._part = part = files.segments[path]
        self._storage = files.storage
        self._kept_start, self._kept = part.segment.stored.size_bytes, b""
        end = check_footer(part.open(self._storage, self._read_end))
        self._own_bytes = part.segment.stored.size_bytes - len(end)
        try:
            self._end = rename_columns(end, files.names) if files.names else end
        except ValueError as error:
            raise CorruptRecord.at(part.paths.log, self._own_bytes, str(error)) from error
        size_bytes = self._own_bytes + len(self._end)
        super().__init__(files, path, cache_type="none", size=size_bytes)

    def _read_end(self, start: int, stop: int) -> bytes:
        data = self._part.read_bytes(self._storage, start, stop)
        if stop == self._part.segment.stored.size_bytes:
            self._kept_start, self._kept = start, data
        return data

    def _fetch_range(self, start: int, end: int) -> bytes:
        own = self._own_bytes
        data = self._read_own(start, min(end, own)) if start < own else b""
        return data + self._end[max(start - own, 0) : max(end - own, 0)]

    def _read_own(self, start: int, stop: int) -> bytes:
        if start >= self._kept_start:
            return self._kept[start - self._kept_start : stop - self._kept_start]
        return self._part.read_bytes(self._storage, start, stop)


_BATCH_BYTES: Final = 8 << 20
"""The largest decoded size of a batch, which is of one row group."""
_FILES_AHEAD: Final = 2
"""How many files batches are decoded ahead of, one or two of each."""

Reads: TypeAlias = Generator[tuple[SegmentRange, Iterator[pa.RecordBatch]]]
"""Ranges, each with its batches, to be read before the next one is asked for."""


def scan_or_read(
    storage: Storage,
    parts: Sequence[SegmentRange],
    columns: ScanColumns,
    read: Callable[[Sequence[SegmentRange]], Reads],
) -> Reads:
    """Filtered rows of ranges, by Arrow's scanner if that pays, else by ``read``."""
    if not _is_worth_it(columns):
        yield from read(parts)
        return
    runs = groupby(parts, key=lambda part: _local_path(storage, part, columns) is not None)
    for is_scanned, run in runs:
        some = [*run]
        reads = _Scanning(storage, some, columns, read).reads() if is_scanned else read(some)
        with closing(reads):
            yield from reads


def _is_worth_it(columns: ScanColumns) -> bool:
    """Whether at most as many other columns are read as the filter needs.

    They must be of types that are not decoded faster for chosen rows, and the filter's of types
    whose statistics are complete: without NaN, which statistics ignore.
    """
    typed, looked_at = columns.topic_schema, columns.looked_at.names
    if typed is None or columns.as_json or not looked_at:
        return False
    others = [name for name in columns.names if name not in looked_at]
    own = {*typed.columns.names}
    return (
        len(others) <= len(looked_at)
        and own.issuperset((*others, *looked_at))
        and all(_is_plain(columns.field(name).type) for name in others)
        and all(_has_bounds(columns.field(name).type) for name in looked_at)
    )


def _is_plain(kind: pa.DataType) -> bool:
    return bool(types.is_primitive(kind))


def _has_bounds(kind: pa.DataType) -> bool:
    return bool(types.is_integer(kind) or types.is_boolean(kind) or types.is_temporal(kind))


def _local_path(storage: Storage, part: SegmentRange, columns: ScanColumns) -> str | None:
    """The path of a range's file, if it is large, on this machine, and read whole.

    The file has all columns, under their present names.
    """
    segment = part.segment
    if not (part.paths.is_parquet and part.is_whole and segment.stored.size_bytes > WHOLE_BYTES):
        return None
    assert columns.topic_schema is not None
    layout = file_layout(columns.topic_schema, schema_version(segment.stored.name))
    if layout is None or not layout.is_plain or any(there is None for there in layout.columns):
        return None
    return storage.local_path(part.paths.log)


class _Scanning:
    """Ranges to scan, and to read otherwise after the scanner has failed."""

    def __init__(
        self,
        storage: Storage,
        parts: Sequence[SegmentRange],
        columns: ScanColumns,
        read: Callable[[Sequence[SegmentRange]], Reads],
    ) -> None:
        self._storage = storage
        self._parts = parts
        self._columns = columns
        self._read = read
        self._found: Iterator[tuple[int, pa.RecordBatch]] | None = None
        self._held: tuple[int, pa.RecordBatch] | None = None
        self._has_failed = False

    def reads(self) -> Reads:
        """The ranges, each with its batches."""
        for number, part in enumerate(self._parts):
            if self._has_failed:
                with closing(self._read(self._parts[number:])) as reads:
                    yield from reads
                return
            yield part, self._batches(number)

    def _batches(self, number: int) -> Iterator[pa.RecordBatch]:
        """The rows of a range; if the scanner fails, the rest is read by our own reader."""
        done = 0
        while not self._has_failed:
            found = self._next()
            if found is None or found[0] > number:
                break
            self._held = None
            if found[0] == number and found[1].num_rows:
                done += found[1].num_rows
                yield found[1]
        if self._has_failed:
            with closing(self._read([self._parts[number]])) as reads:
                for _, batches in reads:
                    yield from _beyond(done, batches)

    def _next(self) -> tuple[int, pa.RecordBatch] | None:
        """The next batch with the number of its range. Our own reader reports failures."""
        try:
            if self._found is None:
                self._found = self._scan()
            if self._held is None:
                self._held = next(self._found, None)
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001 - whatever Arrow raises: it is read again, and told exactly
            self._has_failed = True
        return self._held

    def _scan(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        columns, looked_at = self._columns, self._columns.row_filter
        assert looked_at is not None
        checked = dataset.ParquetFragmentScanOptions(
            page_checksum_verification=True, pre_buffer=False
        )
        file_format = dataset.ParquetFileFormat(default_fragment_scan_options=checked)
        numbers: dict[str, int] = {}
        segments: dict[str, SegmentRange] = {}
        read = columns.with_looked_at.schema
        files = segment_files(self._storage, segments, {}, read.names)
        fragments = []
        for number, part in enumerate(self._parts):
            path = _local_path(self._storage, part, columns)
            assert path is not None
            numbers[path] = number
            segments[path] = part
            fragments.append(file_format.make_fragment(path, filesystem=files))
        scanner = dataset.FileSystemDataset(fragments, read, file_format, files).scanner(
            columns=[*columns.names],
            filter=looked_at.expression,
            batch_size=_BATCH_BYTES // sum(-(-field.type.bit_width // 8) for field in read),
            batch_readahead=2,
            fragment_readahead=_FILES_AHEAD,
        )
        for tagged in scanner.scan_batches():
            batch = tagged.record_batch
            yield (
                numbers[tagged.fragment.path],
                pa.RecordBatch.from_arrays(batch.columns, schema=columns.schema),
            )


def _beyond(count: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches without the first ``count`` rows."""
    for batch in batches:
        if count < batch.num_rows:
            yield batch.slice(count)
        count = max(count - batch.num_rows, 0)
