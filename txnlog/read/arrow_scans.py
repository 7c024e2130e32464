"""Filtered reads of few columns of large Parquet files by Arrow's own scanner.

It spreads row groups over processors without a call into Python for each. Our reader decodes less
if the filter keeps few rows of other columns, knows positions, and says which row group is damaged;
so it reads everything else, and takes over if the scanner fails.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from itertools import groupby
from typing import Final, TypeAlias

import pyarrow as pa
from pyarrow import dataset, types

from txnlog.columns.layouts import file_layout
from txnlog.names import schema_version
from txnlog.read.plan import SegmentRange
from txnlog.read.schema import ScanColumns
from txnlog.read.segment_files import segment_files
from txnlog.segments.parquet.open_segment import WHOLE_BYTES
from txnlog.storage.base import Storage

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
        """Each range with its batches."""
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
