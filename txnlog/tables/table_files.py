"""The files that a topic's table should have, compared with its current ones.

A segment that is a whole Parquet file, and fully visible, is named by its URL. Visible rows of
others are copied next to the table: the rest of a trimmed segment, or a segment whose columns the
engines would not find.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import parquet, types

from txnlog.errors import InvalidOption, ObjectNotFound, SnapshotExpired
from txnlog.log.open_logs import Logs
from txnlog.names import PARQUET_ENDING, schema_version
from txnlog.read.plan import ScanColumns, SegmentRange
from txnlog.read.scan_reader import read_each, read_ranges
from txnlog.schema import OFFSET, TopicSchema
from txnlog.segments.parquet.footer import read_footer
from txnlog.segments.records import joined_batches
from txnlog.state.segment import Segment
from txnlog.storage.base import Storage
from txnlog.tables.columns import names_in_file, time_column
from txnlog.tables.statistics import ColumnStatistics, column_statistics

_FOOTERS_AT_ONCE = 256
_ROW_GROUP_BYTES = 32 << 20
"""Of copies, as of segments."""
_SPLIT_BYTES = 16 << 20
"""Iceberg makes no smaller tasks. Told of each row group it packs the tasks of files that are not
much smaller with pieces of others, and one is left that is nearly empty."""
_ENGINES_READ = ("s3", "gs", "gcs", "az", "abfs", "abfss", "hdfs")
"""The URL schemes, besides local ones, that the engines also know by that name."""

_UNTIMED = "-untimed"
"""The names of copies without times end so, before the ending of Parquet."""

Fits = Callable[[pa.Schema], bool]
"""Whether an engine finds the table's columns in a file of this schema."""
Shows = Callable[[int], bool]
"""Whether an engine sees the topic's records in files of its schema with this number."""


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file that a table should have, with rows of one partition."""

    url: str
    partition: int
    size_bytes: int
    record_count: int
    statistics: Mapping[str, ColumnStatistics]
    split_offsets: tuple[int, ...]
    """Where engines may split it: the positions of row groups that are no less than
    ``_SPLIT_BYTES`` apart."""


class CopyTarget(Protocol):
    """The destination of copies: the table's own folder."""

    def create(self, name: str) -> tuple[str, pa.NativeFile]:
        """A new file of this name: its name in the table, and where to write it."""
        ...


class Sink:
    """A file that accepts any bytes-like object, and counts bytes."""

    closed = False

    def __init__(self, file: Any) -> None:  # noqa: ANN401 - each library has its own
        self._file = file
        self._size_bytes = 0

    def write(self, data: Any) -> int:  # noqa: ANN401 - a buffer of any kind
        piece = bytes(data)
        self._file.write(piece)
        self._size_bytes += len(piece)
        return len(piece)

    def tell(self) -> int:
        return self._size_bytes

    def flush(self) -> None:
        """Do nothing: the file is written in one piece when it is closed."""

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._file.close()


@dataclass(slots=True)
class FilePlan:
    """``kept`` are current files that stay, by name; the rest is to be added."""

    kept: set[str] = field(default_factory=set)
    references: list[TableFile] = field(default_factory=list)
    copies: list[SegmentRange] = field(default_factory=list)

    def counts(self, current: Collection[str]) -> tuple[int, int, int]:
        """How many files are to be added, removed, and copied among those that are added."""
        copied = len(self.copies)
        return len(self.references) + copied, len(current) - len(self.kept), copied


def store_url(storage: Storage) -> str:
    """The URL at which engines find the store's files. Raises InvalidOption if they cannot."""
    if storage.kind() == "replicated":
        raise InvalidOption(
            f"the store at {storage.url} lies on several roots: where its files are changes with "
            "the leader, so no table can name them. Tables are of stores on one root"
        )
    local = storage.local_path("")
    if local is not None:
        return f"file://{local}"
    if storage.url.partition("://")[0] not in _ENGINES_READ:
        raise InvalidOption(
            f"engines that read tables cannot read the files of {storage.url}: publish from a "
            "store on a local disk, S3, Google Cloud Storage, Azure or HDFS"
        )
    return storage.url.rstrip("/")


def iceberg_url(storage: Storage) -> str:
    """:func:`store_url` for names that Iceberg's libraries take as they are, and do not decode.

    pyiceberg cuts off what follows '#' or '?' in a URL, but not in a path.

    Raises InvalidOption: they cannot find the files.
    """
    url = store_url(storage)
    if "#" not in url and "?" not in url:
        return url
    local = storage.local_path("")
    if local is None:
        raise InvalidOption(
            f"Iceberg's libraries find no files below {storage.url}, because of the '#' or '?': "
            "publish from a store whose URL has none, or a Delta table"
        )
    return local


def check_apart(storage: Storage, table_url: str) -> None:
    """Raise InvalidOption if a table's folder lies in the store's, or the other way round.

    An engine's VACUUM deletes files in the table's folder that are not part of the table.
    """
    store = _as_folder(storage.local_path("") or store_url(storage))
    # Some libraries decode the URL of a table, some cut it.
    names = {table_url}
    if table_url.startswith("file:") or "://" in table_url:
        names |= {unquote(table_url), re.split("[?#]", table_url)[0]}
    tables = map(_as_folder, names)
    if any(store.startswith(table) or table.startswith(store) for table in tables):
        raise InvalidOption(
            f"{table_url} and the store {storage.url} are nested, so cleaning the table "
            "could delete the store's files: choose a folder beside the store"
        )


_SAME_SCHEME = {"s3a": "s3", "gcs": "gs"}


def _as_folder(url: str) -> str:
    """A folder's URL or path, normalised so that those below it begin with it."""
    if url.startswith("file:"):
        url = re.sub("^file:(//[^/]*)?", "", url)
    if "://" not in url:
        return f"{Path(url).resolve()}".rstrip("/") + "/"
    scheme, _, rest = url.partition("://")
    return f"{_SAME_SCHEME.get(scheme, scheme)}://{rest.rstrip('/')}/"


def plan_files(
    storage: Storage,
    ranges: Sequence[SegmentRange],
    current: Collection[str],
    schema: TopicSchema | None,
    columns: pa.Schema,
    fits: Fits,
    shows: Shows,
    root: str,
    *,
    timed: bool,
) -> FilePlan:
    """The files of a table of these ranges.

    ``current`` are the table's files, by the names under which they were added. ``fits`` says
    whether a file can be read as it is, ``shows`` whether files of an earlier schema can be:
    otherwise neither segments nor copies of it are in the plan. The names of segments in the table
    begin with ``root``. ``timed``: the table has a column of times, so copies without them are not
    in the plan.

    Raises CorruptRecord: a footer is damaged, or not of the file that the log has placed;
    SnapshotExpired: a file is gone since the topic was pinned; StorageError.
    """
    there = frozenset(current)
    copies = {
        _key_in(name): name
        for name in there
        if shows(version_of(name)) and not (timed and is_untimed(name))
    }
    plan = FilePlan()
    unknown: list[SegmentRange] = []
    for part in ranges:
        if part.segment.stored.is_empty or part.start_offset >= part.stop_offset:
            continue
        url = f"{root}/{part.paths.log}"
        is_shown = _is_file(part) and shows(schema_version(part.segment.stored.name))
        if is_shown and url in there:
            plan.kept.add(url)
        elif key_of(part) in copies:
            plan.kept.add(copies[key_of(part)])
        elif is_shown:
            unknown.append(part)
        else:
            plan.copies.append(part)
    for first in range(0, len(unknown), _FOOTERS_AT_ONCE):
        some = unknown[first : first + _FOOTERS_AT_ONCE]
        calls = [partial(describe_file, storage, part, columns, fits, root) for part in some]
        for part, described in zip(some, storage.gather(calls), strict=True):
            if described is None:
                plan.copies.append(part)
            else:
                plan.references.append(described)
    plan.copies = [part for part in plan.copies if _has_rows(storage, part, schema)]
    return plan


def _has_rows(storage: Storage, part: SegmentRange, schema: TopicSchema | None) -> bool:
    """Whether a range is no gap, as what a trim has left of a segment may be: seldom it must look.

    Raises CorruptRecord, StorageError.
    """
    stored = part.segment.stored
    if stored.is_dense or (part.is_whole and not stored.has_aborted):
        return stored.record_count > 0
    offsets = ScanColumns((OFFSET if schema else "offset",), schema)
    with closing(read_each(storage, [part], offsets, by_page=True)) as reads:
        return any(batch.num_rows for _, batches in reads for batch in batches)


def _is_file(part: SegmentRange) -> bool:
    """Whether the range is the whole of the segment's own Parquet file."""
    return part.has_own_file and part.is_whole


def describe_file(
    storage: Storage, part: SegmentRange, columns: pa.Schema, fits: Fits, root: str
) -> TableFile | None:
    """A segment's file by its footer; None if it must be copied.

    Raises SnapshotExpired, CorruptRecord, StorageError.
    """
    try:
        metadata = read_footer(part.open(storage)).metadata
    except ObjectNotFound as error:
        raise SnapshotExpired(
            f"{part.paths.log} is gone since {part.topic} was pinned: try again"
        ) from error
    schema = metadata.schema.to_arrow_schema()
    if not fits(schema):
        return None
    url = f"{root}/{part.paths.log}"
    return _table_file(url, part.partition, part.segment.stored.size_bytes, metadata, columns)


def _table_file(
    url: str, partition: int, size_bytes: int, metadata: parquet.FileMetaData, columns: pa.Schema
) -> TableFile:
    names = names_in_file(metadata.schema.to_arrow_schema(), columns)
    firsts = [metadata.row_group(n).column(0) for n in range(metadata.num_row_groups)]
    begins = [chunk.dictionary_page_offset or chunk.data_page_offset for chunk in firsts]
    return TableFile(
        url,
        partition,
        size_bytes,
        metadata.num_rows,
        column_statistics(metadata, columns, names),
        _far_apart(begins, _SPLIT_BYTES),
    )


def _far_apart(positions: Iterable[int], least: int) -> tuple[int, ...]:
    """The first of ascending positions, and each at least ``least`` after the one kept before."""
    kept: list[int] = []
    for position in positions:
        if not kept or position >= kept[-1] + least:
            kept.append(position)
    return tuple(kept)


# -- copies --------------------------------------------------------------------------------------


def key_of(part: SegmentRange) -> str:
    """A copy's content. It stays the same for ever: placed records do not change."""
    segment = copied_segment(part.partition, part.segment)
    return f"{segment}-{part.start_offset}-{part.stop_offset}"


def copied_segment(partition: int, segment: Segment) -> str:
    """A segment, as copies of its rows name it: see :func:`segment_of_copy`."""
    return f"{partition}-{segment.stored.name.removesuffix(PARQUET_ENDING)}"


def is_copy(name: str) -> bool:
    """Whether a file in the folder of a table is a copy of rows."""
    return re.fullmatch(r"[0-9]+-.+\.parquet", name.rpartition("/")[2]) is not None


def segment_of_copy(name: str) -> str:
    """The segment whose rows a copy has, by the copy's name."""
    return _key_in(name).rsplit("-", 2)[0]


def _key_in(name: str) -> str:
    """The content of a table's file, if it is a copy."""
    return _copy_stem(name).rpartition("-")[0]


def _copy_stem(name: str) -> str:
    """The part of a copy's name before the token: its key, and the number of the schema."""
    return name.rpartition("/")[2].removesuffix(PARQUET_ENDING).rpartition(".")[0]


def version_of(name: str) -> int:
    """The number of the schema under which a file of a table was written, by its name."""
    number = _copy_stem(name).rpartition("-")[2]
    return int(number) if number.isdecimal() else schema_version(name)


def is_untimed(name: str) -> bool:
    """Whether a file is a copy without times: its table had no column of them."""
    return name.removesuffix(PARQUET_ENDING).endswith(_UNTIMED)


def copy_files(
    logs: Logs,
    parts: Sequence[SegmentRange],
    schema: TopicSchema | None,
    columns: pa.Schema,
    target: CopyTarget,
) -> list[TableFile]:
    """Copy the rows of ranges into new files; ranges without rows have none.

    If the publication fails, leftover files belong to no table: the table's own VACUUM, or removal
    of orphans, deletes them.

    Raises CorruptRecord, SnapshotExpired, StorageError.
    """
    scanned = ScanColumns(tuple(columns.names), schema)
    version = 0 if schema is None else schema.version
    ending = f"{'' if time_column(columns, schema) else _UNTIMED}{PARQUET_ENDING}"
    files = []
    for part in parts:
        batches = read_ranges(logs.storage, [part], scanned)
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            continue
        name = f"{key_of(part)}-{version}.{logs.clock.token()}{ending}"
        url, sink = target.create(name)
        with sink:
            metadata = _write_rows(chain([first], batches), columns, sink)
            size_bytes = sink.tell()
        files.append(_table_file(url, part.partition, size_bytes, metadata, columns))
    return files


def _write_rows(
    batches: Iterator[pa.RecordBatch], columns: pa.Schema, sink: pa.NativeFile
) -> parquet.FileMetaData:
    collected: list[parquet.FileMetaData] = []
    # Bounds leave NaN out, so that engines would pass over it: here floats have none at all. Nor do
    # they have dictionaries, in which Iceberg looks for -0.0 and finds that 0.0 is another value.
    exact = [field.name for field in columns if not _is_float_or_nested(field.type)]
    with parquet.ParquetWriter(
        sink,
        columns,
        compression="zstd",
        store_schema=False,
        write_page_checksum=True,
        write_statistics=exact,
        use_dictionary=exact,
        metadata_collector=collected,
    ) as writer:
        for rows in joined_batches(batches, _ROW_GROUP_BYTES):
            fields = zip(rows.columns, columns, strict=True)
            arrays = [array.cast(field.type) for array, field in fields]
            writer.write_table(pa.table(arrays, schema=columns), rows.num_rows)
    return collected[0]


def _is_float_or_nested(kind: pa.DataType) -> bool:
    return bool(types.is_floating(kind) or types.is_nested(kind))
