"""A pinned topic as a pyarrow dataset: engines that know Arrow read its Parquet files themselves.

They prune columns and row groups, and push filters down. What is no whole Parquet file, as the rest
of a segment whose first records were deleted, is read here and stands beside the files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial, reduce
from operator import and_

import pyarrow as pa
import pyarrow.compute as pc
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem
from pyarrow import dataset
from pyarrow.fs import FileSystem, FSSpecHandler, LocalFileSystem, PyFileSystem

from txnlog.columns.layouts import FileLayout, file_layout
from txnlog.errors import CorruptRecord
from txnlog.names import schema_version
from txnlog.read.schema import ScanColumns
from txnlog.read.segment_ranges import SegmentRange, read_ranges
from txnlog.schema import TopicSchema
from txnlog.segments.parquet.columns import children, default_of, id_of
from txnlog.segments.parquet.footer import read_tail
from txnlog.segments.parquet.renamed_columns import rename_columns
from txnlog.segments.segment_file import SegmentFile
from txnlog.storage.base import Storage


def make_dataset(
    storage: Storage, ranges: Sequence[SegmentRange], columns: ScanColumns
) -> dataset.Dataset:
    """The records of ranges, with columns that are stored. Nothing of whole files is read yet.

    Raises CorruptRecord, and what reading raises, for what is no whole file.
    """
    schema = columns.schema
    files = _Files(storage, columns.topic_schema)
    whole = [part for part in ranges if _is_file(part) and files.knows(part)]
    others = [part for part in ranges if not (_is_file(part) and files.knows(part))]
    parts: list[dataset.Dataset] = []
    if whole:
        fragments = [files.fragment(part) for part in whole]
        parts.append(dataset.FileSystemDataset(fragments, schema, files.format, files.plain))
    if others or not whole:
        table = pa.Table.from_batches(read_ranges(storage, others, columns), schema=schema)
        parts.append(dataset.dataset(table))
    return parts[0] if len(parts) == 1 else dataset.dataset(parts)


def _is_file(part: SegmentRange) -> bool:
    """Whether the range is all of a Parquet file."""
    segment = part.segment
    covered = (segment.base_offset, segment.end_offset) == (part.start_offset, part.stop_offset)
    return part.paths.is_parquet and covered


class _Files:
    """Makes fragments of a storage's files, each with the columns of a schema."""

    def __init__(self, storage: Storage, schema: TopicSchema | None) -> None:
        self._storage = storage
        self._schema = schema
        self._is_local = storage.local_path("") is not None
        self.plain: FileSystem = LocalFileSystem() if self._is_local else _open(storage, {})
        self._renamed = self.plain if schema is None else _open(storage, _names(schema))
        checked = dataset.ParquetFragmentScanOptions(page_checksum_verification=True)
        self.format = dataset.ParquetFileFormat(default_fragment_scan_options=checked)
        self._constants: dict[int, pc.Expression | None] = {}

    def knows(self, part: SegmentRange) -> bool:
        """Whether it is known what the file calls the columns."""
        return self._schema is None or file_layout(self._schema, _version(part)) is not None

    def fragment(self, part: SegmentRange) -> dataset.Fragment:
        path, files, constants = part.paths.log, self.plain, None
        if self._schema is not None:
            version = _version(part)
            layout = file_layout(self._schema, version)
            assert layout is not None
            if version not in self._constants:
                self._constants[version] = _find_constants(self._schema, layout)
            constants = self._constants[version]
            if not layout.is_plain:
                files = self._renamed
        if files is self.plain and self._is_local:
            path = self._storage.local_path(path) or path
        return self.format.make_fragment(path, filesystem=files, partition_expression=constants)


def _version(part: SegmentRange) -> int:
    return schema_version(part.segment.name)


def _find_constants(schema: TopicSchema, layout: FileLayout) -> pc.Expression | None:
    """What holds of all rows of a file: columns that it lacks have their defaults."""
    known = [
        (field.name, default_of(field))
        for field, there in zip(schema.columns, layout.columns, strict=True)
        if there is None
    ]
    given = [pc.field(name) == value for name, value in known if value is not None]
    return reduce(and_, given) if given else None


def _names(schema: TopicSchema) -> dict[int, str]:
    """The names of all columns by their ids, of nested ones too."""
    found: dict[int, str] = {}
    waiting = list(schema.columns)
    while waiting:
        field = waiting.pop()
        number = id_of(field)
        assert number is not None
        found[number] = field.name
        waiting += children(field.type)
    return found


def _open(storage: Storage, names: Mapping[int, str]) -> FileSystem:
    return PyFileSystem(FSSpecHandler(_Objects(storage, names)))


class _Objects(AbstractFileSystem):  # type: ignore[misc] # fsspec has no types
    """The objects of a storage as files that can be read.

    With ``names`` they are Parquet files, whose columns have these names by their ids.
    """

    cachable = False

    def __init__(self, storage: Storage, names: Mapping[int, str]) -> None:
        super().__init__()
        self._storage = storage
        self._names = names

    def info(self, path: str, **_: object) -> dict[str, object]:
        return {"name": path, "size": self._storage.size(path), "type": "file"}

    def _open(self, path: str, *_: object, **__: object) -> _Object:
        size = self._storage.size(path)
        if not self._names:
            return _Object(self, path, size)
        tail = read_tail(SegmentFile(partial(self.read, path), size, path, is_parquet=True))
        try:
            renamed = rename_columns(tail, self._names)
        except ValueError as error:
            raise CorruptRecord.at(path, size - len(tail), str(error)) from error
        return _Object(self, path, size - len(tail), renamed)

    def read(self, path: str, start: int, stop: int) -> bytes:
        return self._storage.get_range(path, start, stop)


class _Object(AbstractBufferedFile):  # type: ignore[misc]
    """One of them: ``size_bytes`` of the object, and what is put behind them."""

    def __init__(self, files: _Objects, path: str, size_bytes: int, end: bytes = b"") -> None:
        super().__init__(files, path, cache_type="none", size=size_bytes + len(end))
        self._size_bytes = size_bytes
        self._end = end

    def _fetch_range(self, start: int, end: int) -> bytes:
        own = self._size_bytes
        data: bytes = self.fs.read(self.path, start, min(end, own)) if start < own else b""
        return data + self._end[max(start - own, 0) : max(end - own, 0)]
