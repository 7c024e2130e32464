"""The files of a topic's table in pieces, each of which is a manifest.

They lie in the order of the log, and a piece ends behind a file whose place says so. So a commit
makes the newest piece another one, and a merge those that it touches.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import msgspec
import numpy as np
import pyarrow as pa
from pyarrow import parquet
from pyiceberg.schema import Schema

from txnlog.columns.layouts import file_layout
from txnlog.log.open_logs import Logs
from txnlog.names import PARQUET_ENDING, schema_version
from txnlog.read.plan import ScanColumns, SegmentRange
from txnlog.read.scan_reader import read_ranges
from txnlog.schema import OFFSET
from txnlog.segments.arrays import arrow_of
from txnlog.tables.columns import defaults_lacked, time_column
from txnlog.tables.day_folder import (
    BESIDE,
    BOUNDED,
    CUT,
    DELETING,
    PLAIN,
    DayFolder,
    PutManifest,
)
from txnlog.tables.iceberg_columns import FileBounds
from txnlog.tables.iceberg_manifests import (
    DATA,
    DELETES,
    Format,
    ListedFile,
    ListedManifest,
    manifest,
    manifest_of,
)
from txnlog.tables.latest_view import first_row_id, numbers_rows
from txnlog.tables.pinned_topic import PinnedTopic
from txnlog.tables.plain_entries import Flags, Ints, PlainEntries, RangeTable
from txnlog.tables.statistics import ColumnStatistics
from txnlog.tables.table_files import TableFile, copy_files, describe_file, key_of

_MEAN_FILES = 512
"""How many files a piece has, about: each commit makes so many entries anew, a table of many files
has so few manifests."""
_MOST_FILES = 4096
MOST_FOOTERS = 8192
"""So many files are opened for one answer, for the bounds of their columns; those of more are known
by their times alone until a later one."""
_MOST_KNOWN = 16_384
_POSITIONS_AT_ONCE = 1 << 20
_DELETE_SCHEMA = pa.schema(
    [
        pa.field("file_path", pa.string(), False, {b"PARQUET:field_id": b"2147483546"}),
        pa.field("pos", pa.int64(), False, {b"PARQUET:field_id": b"2147483545"}),
    ]
)


class KnownFiles:
    """What was found out about files of one table lately, for the next answer.

    It is of a table with these columns, and in the folder of one day.
    """

    def __init__(self, columns: str) -> None:
        self.columns = columns
        self.described: OrderedDict[str, TableFile] = OrderedDict()
        """Segments whose footers were read, by their URLs."""
        self.beside: OrderedDict[str, TableFile | None] = OrderedDict()
        """Copies and deleted positions in the folder of the day; None if there is no row."""

    def trim(self) -> None:
        """Forget the oldest of too many."""
        for known in (self.described, self.beside):
            while len(known) > _MOST_KNOWN:
                known.popitem(last=False)


class FreshManifests:
    """The manifests of one answer."""

    def __init__(
        self,
        logs: Logs,
        topic: PinnedTopic,
        schema: Schema,
        schema_json: str,
        folder: DayFolder,
        known: KnownFiles,
    ) -> None:
        self._logs = logs
        self._topic = topic
        self._schema = schema
        self._schema_json = schema_json
        self._folder = folder
        self._known = known
        self._root = folder.root
        self.version: Format = 3 if numbers_rows(topic) else 2
        """Iceberg's format of the manifests."""
        self._footers_left = MOST_FOOTERS
        self.is_complete = True
        """Whether all files have their bounds."""

    def manifests(self) -> Iterator[ListedManifest]:
        """All manifests of the table; new ones are put into the day's folder.

        Raises SnapshotExpired, CorruptRecord, CorruptEntry, StorageError.
        """
        table = RangeTable.of(self._topic.view)
        rows = np.flatnonzero(table.start_offsets < table.stop_offsets)
        keys = (table.start_offsets[rows], table.partitions[rows], table.entries[rows])
        order = rows[np.lexsort(keys)]
        columns = [
            table.partitions[order],
            table.start_offsets[order],
            table.stop_offsets[order],
            table.record_counts[order],
            table.sizes_bytes[order],
        ]
        stems = table.names.take(arrow_of(order))
        topic = self._topic
        version = "" if topic.schema is None else f"{topic.schema.version}"
        known = self._root, self._schema_json, topic.topic_id, version, f"{self.version}"
        context = hashlib.blake2b("\0".join(known).encode(), digest_size=16).digest()
        plain = self._plain_entries(table, order)
        is_plain = plain.known() & self._are_shown(stems)
        for first, stop in _cut(table.entries[order], *columns[:2]):
            digest = hashlib.blake2b(context, digest_size=20)
            for column in columns:
                digest.update(column[first:stop].tobytes())
            digest.update("\0".join(stems[first:stop].to_pylist()).encode())
            entries = partial(plain.of, first, stop) if is_plain[first:stop].all() else None
            yield from self._piece(table, order[first:stop], digest.hexdigest(), entries)

    # -- one piece -------------------------------------------------------------------------------

    def _plain_entries(self, table: RangeTable, order: Ints) -> PlainEntries:
        name = time_column(self._topic.columns, self._topic.schema)
        number = None if name is None else self._schema.find_field(name).field_id
        return PlainEntries(table, order, self._root, self._topic.view.topic, number, self.version)

    def _are_shown(self, stems: pa.Array) -> Flags:
        """Which segments of files of their own engines see as they are: see ``_is_shown``."""
        schema = self._topic.schema
        if schema is None:
            return np.ones(len(stems), np.bool_)
        return np.fromiter(
            (schema_version(stem) <= schema.version for stem in stems.to_pylist()),
            np.bool_,
            len(stems),
        )

    def _piece(
        self,
        table: RangeTable,
        rows: Ints,
        digest: str,
        entries: Callable[[], pa.Array] | None,
    ) -> Iterator[ListedManifest]:
        """``entries`` are those of its files as the log describes them, if that is all."""
        folder = self._folder
        for kind in (BOUNDED, BESIDE):
            if (found := folder.find(digest, kind)) is not None:
                yield from self._listed(found, DATA)
                return
        found, deleting = folder.find(digest, CUT), folder.find(digest, DELETING)
        # Puts of a round are in no order: either may be there alone, for a moment or for ever.
        if found is not None and deleting is not None:
            yield from self._listed(deleting, DELETES)
            yield from self._listed(found, DATA)
            return
        has_bounds = len(rows) <= self._footers_left
        if not has_bounds:
            self.is_complete = False
            if (found := folder.find(digest, PLAIN)) is not None:
                yield from self._listed(found, DATA)
                return
            if entries is not None:
                data = manifest_of(self._schema_json, entries(), self.version)
                rows_shown = int(table.record_counts[rows].sum())
                put = folder.add(digest, PLAIN, data, len(rows), rows_shown)
                yield from self._listed(put, DATA)
                return
        self._known.trim()
        parts = table.ranges(rows.tolist())
        files, deletes, is_beside = self._files(parts, table.is_cut[rows], has_bounds=has_bounds)
        if deletes:
            yield from self._add(digest, DELETING, deletes, DELETES)
        kind = CUT if deletes else BESIDE if is_beside else BOUNDED if has_bounds else PLAIN
        yield from self._add(digest, kind, files, DATA)

    def _add(
        self, digest: str, kind: str, files: Sequence[ListedFile], content: int
    ) -> Iterator[ListedManifest]:
        data = manifest(self._schema_json, files, content, self.version)
        row_count = sum(file.record_count for file in files)
        put = self._folder.add(digest, kind, data, len(files), row_count)
        yield from self._listed(put, content)

    def _listed(self, put: PutManifest, content: int) -> Iterator[ListedManifest]:
        if put.file_count:
            url = self._folder.url(put.name)
            yield ListedManifest(url, put.size_bytes, put.file_count, put.row_count, content)

    def _files(
        self, parts: Sequence[SegmentRange], is_cut: Flags, *, has_bounds: bool
    ) -> tuple[list[ListedFile], list[ListedFile], bool]:
        """The files of ranges, those with deleted positions, whether some lie in the folder."""
        whole = [part for part in parts if self._is_shown(part)]
        if has_bounds:
            self._describe(whole)
        files: list[ListedFile] = []
        deletes: list[ListedFile] = []
        is_beside = False
        for part, cut in zip(parts, is_cut.tolist(), strict=True):
            if not self._is_shown(part):
                is_beside = True
                copy = self._copy(part)
                if copy is not None:
                    files.append(self._listed_file(part, copy, part.start_offset))
                continue
            url = f"{self._root}/{part.paths.log}"
            known = self._known.described.get(url) if has_bounds else None
            files.append(
                self._plain_file(part, url)
                if known is None
                else self._listed_file(part, known, part.segment.base_offset)
            )
            if cut:
                is_beside = True
                gone = self._deleted_rows(part, url)
                if gone is not None:
                    deletes.append(gone)
        return files, deletes, is_beside

    def _is_shown(self, part: SegmentRange) -> bool:
        """Whether engines see the records in the segment's own file as they are."""
        version = schema_version(part.segment.stored.name)
        schema = self._topic.schema
        is_known = schema is None or file_layout(schema, version) is not None
        return part.has_own_file and is_known

    def _describe(self, parts: Sequence[SegmentRange]) -> None:
        """Read the footers of files that are not known. Raises SnapshotExpired, CorruptRecord."""
        known = self._known.described
        unknown = [part for part in parts if f"{self._root}/{part.paths.log}" not in known]
        self._footers_left -= len(unknown)
        storage, columns = self._logs.storage, self._topic.columns
        # Each fits: all columns of the files that are named have their ids.
        calls = [
            partial(describe_file, storage, part, columns, lambda _: True, self._root)
            for part in unknown
        ]
        for part, described in zip(unknown, storage.gather(calls), strict=True):
            assert described is not None
            defaults = self._defaults_beyond(schema_version(part.segment.stored.name))
            # A footer tells of no column that is not there: engines see its default, not nulls.
            statistics = {
                name: one for name, one in described.statistics.items() if name not in defaults
            }
            known[described.url] = replace(described, statistics=statistics)

    def _defaults_beyond(self, version: int) -> frozenset[str]:
        """The columns with a default that files of the schema with this number lack."""
        schema = self._topic.schema
        return frozenset() if schema is None else defaults_lacked(schema, version)

    def _listed_file(self, part: SegmentRange, file: TableFile, offset: int) -> ListedFile:
        """``offset`` is that of its first row, or one that is before it in its partition alone."""
        return ListedFile(
            file.url,
            part.segment.entry,
            file.record_count,
            file.size_bytes,
            FileBounds.of(self._schema, file.statistics),
            file.split_offsets,
            first_row_id=first_row_id(part.partition, offset),
        )

    def _plain_file(self, part: SegmentRange, url: str) -> ListedFile:
        """A segment as the log describes it."""
        segment = part.segment
        known = {}
        name = time_column(self._topic.columns, self._topic.schema)
        if name is not None and segment.stored.min_timestamp_ms >= 0:
            times = segment.stored.min_timestamp_ms, segment.stored.max_timestamp_ms
            known[name] = ColumnStatistics(0, *(1000 * time for time in times))
        bounds = FileBounds.of(self._schema, known)
        return ListedFile(
            url,
            segment.entry,
            segment.stored.record_count,
            segment.stored.size_bytes,
            bounds,
            first_row_id=first_row_id(part.partition, segment.base_offset),
        )

    # -- beside the manifests --------------------------------------------------------------------

    def _copy(self, part: SegmentRange) -> TableFile | None:
        """The rows of a range that is no Parquet file of its own."""
        key = key_of(part)
        known = self._known.beside
        if key not in known:
            topic = self._topic
            made = copy_files(self._logs, [part], topic.schema, topic.columns, self._folder)
            known[key] = made[0] if made else None
        return known[key]

    def _deleted_rows(self, part: SegmentRange, url: str) -> ListedFile | None:
        """A file with the positions of those rows of a segment that its range leaves out."""
        key = f"deleted-{key_of(part)}"
        known = self._known.beside
        if key not in known:
            before, shown = self._count_rows(part)
            gone = [(0, before), (before + shown, part.segment.stored.record_count)]
            known[key] = self._put_positions(key, url, part.partition, gone)
        file = known[key]
        if file is None:
            return None
        entry = part.segment.entry
        return ListedFile(file.url, entry, file.record_count, file.size_bytes, content=DELETES)

    def _count_rows(self, part: SegmentRange) -> tuple[int, int]:
        """How many rows of a segment lie before its range, and how many in it."""
        segment = part.segment
        if segment.stored.is_dense:
            return part.start_offset - segment.base_offset, part.stop_offset - part.start_offset
        columns = ScanColumns((OFFSET if self._topic.schema else "offset",), self._topic.schema)
        spans = (segment.base_offset, part.start_offset), (part.start_offset, part.stop_offset)
        counts = []
        for start, stop in spans:
            span = msgspec.structs.replace(part, start_offset=start, stop_offset=stop)
            batches = read_ranges(self._logs.storage, [span] if start < stop else [], columns)
            counts.append(sum(batch.num_rows for batch in batches))
        return counts[0], counts[1]

    def _put_positions(
        self, key: str, url: str, partition: int, spans: Sequence[tuple[int, int]]
    ) -> TableFile | None:
        count = sum(stop - start for start, stop in spans)
        if not count:
            return None
        name, sink = self._folder.create(f"{key}.{self._logs.clock.token()}{PARQUET_ENDING}")
        with sink:
            with parquet.ParquetWriter(sink, _DELETE_SCHEMA, compression="zstd") as writer:
                for start, stop in spans:
                    for first in range(start, stop, _POSITIONS_AT_ONCE):
                        positions = np.arange(first, min(first + _POSITIONS_AT_ONCE, stop))
                        urls = pa.repeat(pa.scalar(url), len(positions))
                        columns = [urls, pa.array(positions, pa.int64())]
                        writer.write_table(pa.table(columns, schema=_DELETE_SCHEMA))
            size_bytes = sink.tell()
        return TableFile(name, partition, size_bytes, count, {}, ())


def _cut(entries: Ints, partitions: Ints, offsets: Ints) -> Iterator[tuple[int, int]]:
    """The pieces of files in order: (first, stop)."""
    with np.errstate(over="ignore"):
        mixed = entries.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= partitions.astype(np.uint64) * np.uint64(0xC2B2AE3D27D4EB4F)
        mixed ^= offsets.astype(np.uint64) * np.uint64(0x165667B19E3779F9)
        mixed ^= mixed >> np.uint64(29)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
    ends = np.flatnonzero((mixed >> np.uint64(32)) % np.uint64(_MEAN_FILES) == 0) + 1
    first = 0
    for end in [*ends.tolist(), len(entries)]:
        for start in range(first, end, _MOST_FILES):
            yield start, min(start + _MOST_FILES, end)
        first = end
