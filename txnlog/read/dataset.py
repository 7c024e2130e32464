"""A pinned topic as a pyarrow dataset: engines that know Arrow read its Parquet files themselves.

They prune columns and row groups, and push filters down. A file that was swapped with another one
is noticed when it is opened, by its footer, which is read anyway. Ranges that are not a whole
Parquet file, such as the rest of a segment whose first records were deleted, are read here and
added between the files: a scan has the order of the ranges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import groupby
from operator import and_
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset

from txnlog.columns.layouts import FileLayout, file_layout
from txnlog.errors import InvalidOption
from txnlog.names import schema_version
from txnlog.read.arrow_scans import segment_files
from txnlog.read.plan import ScanColumns, SegmentRange
from txnlog.read.scan_reader import read_each
from txnlog.schema import TopicSchema
from txnlog.segments.schema_columns import children, default_of, id_of
from txnlog.storage.base import Storage

_ARROWS_OWN: Final = frozenset(
    {"__fragment_index", "__batch_index", "__last_in_fragment", "__filename"}
)
"""The columns that every scanner of Arrow adds."""


def make_dataset(
    storage: Storage, ranges: Sequence[SegmentRange], columns: ScanColumns
) -> dataset.Dataset:
    """The records of ranges in their order, with stored columns. Whole files are not read yet.

    Raises InvalidOption for a column with a name that Arrow's datasets give to one of their own;
    CorruptRecord, and reading errors, for ranges that are not whole files.
    """
    schema = columns.schema
    for name in schema.names:
        if name in _ARROWS_OWN:
            raise InvalidOption(
                f"Arrow's datasets have a column {name!r} of their own, so there can be none of a "
                "topic with a column of this name: use its scan, or rename the column"
            )
    files = _Files(storage, columns.topic_schema)
    others = [part for part in ranges if not files.has(part)]
    read = read_each(storage, others, columns)
    tables = [pa.Table.from_batches(batches, schema=schema) for _, batches in read]
    tables.reverse()
    parts: list[dataset.Dataset] = []
    for is_whole, run in groupby(ranges, files.has):
        if is_whole:
            fragments = [files.fragment(part) for part in run]
            parts.append(_FileDataset(fragments, schema, files.format, files.plain))
        else:
            parts.append(dataset.dataset(pa.concat_tables([tables.pop() for _ in run])))
    if not parts:
        parts.append(dataset.dataset(schema.empty_table()))
    return parts[0] if len(parts) == 1 else _Union(schema, parts)


class _FileDataset(dataset.FileSystemDataset):  # type: ignore[misc] # pyarrow has no types
    """Files that are opened here, and scanned without holding Python's lock."""

    def scanner(self, **options: Any) -> Any:  # noqa: ANN401 - they are pyarrow's
        return _unlocked(super().scanner(**options), options)

    def replace_schema(self, schema: pa.Schema) -> dataset.Dataset:
        super().replace_schema(schema)  # which raises if it does not fit, and returns pyarrow's own
        return _FileDataset([*self.get_fragments()], schema, self.format, self.filesystem)


class _Union(dataset.UnionDataset):  # type: ignore[misc]
    """A dataset of several datasets, which may have files of different kinds."""

    def scanner(self, **options: Any) -> Any:  # noqa: ANN401
        return _unlocked(super().scanner(**options), options)

    def replace_schema(self, schema: pa.Schema) -> dataset.Dataset:
        return _Union(schema, [part.replace_schema(schema) for part in self.children])


def _unlocked(scanner: Any, options: Mapping[str, object]) -> Any:  # noqa: ANN401
    """The scanner for whoever asks for a reader; pyarrow's own ``write_dataset`` must have its own.

    That says ``use_threads``, and lets go of Python's lock.
    """
    return scanner if "use_threads" in options else _Scanner(scanner)


class _Scanner:
    """A scanner of pyarrow, whose reader may be asked for while files are opened.

    pyarrow begins to scan while it holds Python's lock, and the scan may wait for another thread,
    which opens a file here and so waits for that lock: DuckDB stood still now and then.
    """

    def __init__(self, scanner: Any) -> None:  # noqa: ANN401
        self._scanner = scanner

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._scanner, name)

    def to_reader(self) -> pa.RecordBatchReader:
        """Begins only when the first batch is read."""
        batches = (batch for scanner in [self._scanner] for batch in scanner.to_batches())
        return pa.RecordBatchReader.from_batches(self._scanner.projected_schema, batches)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """For functions that take data in Arrow's form, but this scanner for none of pyarrow's."""
        return self.to_reader().__arrow_c_stream__(requested_schema)


class _Files:
    """Makes fragments of a storage's files, each with the columns of a schema."""

    def __init__(self, storage: Storage, schema: TopicSchema | None) -> None:
        self._storage = storage
        self._schema = schema
        self._segments: dict[str, SegmentRange] = {}
        self.plain = segment_files(storage, self._segments, {})
        names = {} if schema is None else _names(schema)
        self._renamed = (
            self.plain if schema is None else segment_files(storage, self._segments, names)
        )
        checked = dataset.ParquetFragmentScanOptions(page_checksum_verification=True)
        self.format = dataset.ParquetFileFormat(default_fragment_scan_options=checked)
        self._constants: dict[int, pc.Expression | None] = {}

    def has(self, part: SegmentRange) -> bool:
        """Whether the range is all of a Parquet file, whose names of the columns are known."""
        if not (part.paths.is_parquet and part.is_whole):
            return False
        return self._schema is None or file_layout(self._schema, _version(part)) is not None

    def fragment(self, part: SegmentRange) -> dataset.Fragment:
        files, constants = self.plain, None
        if self._schema is not None:
            version = _version(part)
            layout = file_layout(self._schema, version)
            assert layout is not None
            if version not in self._constants:
                self._constants[version] = _find_constants(self._schema, layout)
            constants = self._constants[version]
            if not layout.is_plain:
                files = self._renamed
        path = self._storage.local_path(part.paths.log) or part.paths.log
        self._segments[path] = part
        return self.format.make_fragment(path, filesystem=files, partition_expression=constants)


def _version(part: SegmentRange) -> int:
    return schema_version(part.segment.stored.name)


def _find_constants(schema: TopicSchema, layout: FileLayout) -> pc.Expression | None:
    """The guarantee for all rows of a file: columns that it lacks have their defaults."""
    known = [
        (field.name, default_of(field))
        for field, there in zip(schema.columns, layout.columns, strict=True)
        if there is None
    ]
    given = [pc.field(name) == value for name, value in known if value is not None]
    return reduce(and_, given) if given else None


def _names(schema: TopicSchema) -> dict[int, str]:
    """The names of all columns by id, nested ones too."""
    found: dict[int, str] = {}
    waiting = list(schema.columns)
    while waiting:
        field = waiting.pop()
        number = id_of(field)
        assert number is not None
        found[number] = field.name
        waiting += children(field.type)
    return found
