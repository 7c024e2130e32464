"""Segments as files that Arrow reads by itself: opened by us, and looked at before it does.

Arrow gets no paths of a store on this machine: what it opened by name might be a link.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

import pyarrow as pa
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem
from pyarrow.fs import FileSystem, FSSpecHandler, LocalFileSystem, PyFileSystem

from txnlog.errors import CorruptRecord
from txnlog.read.plan import SegmentRange
from txnlog.segments.parquet.footer import check_footer, check_numbers
from txnlog.segments.parquet.renamed_columns import rename_columns
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
