"""Files outside a store, or treated as such: a copy of a segment, a broker's own; their indexes.

Only local files are written, and only ``.index`` and ``.timeindex``, in one step each.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final

from txnlog.errors import InvalidOption, ObjectNotFound, StorageError, UnsupportedRecordFormat
from txnlog.inspect.placed_indexes import (
    ACCELERATORS,
    IndexCheck,
    IndexEntry,
    IndexRebuild,
    check_index_files,
    dump_index_files,
    dump_page_index,
    rebuild_index_files,
    strip_padding,
)
from txnlog.kafka.folders import base_offset_of
from txnlog.names import INDEX_ENDINGS, IndexKind, SegmentPaths
from txnlog.segments.errors import CorruptRecord
from txnlog.segments.indexes.sparse import DEFAULT_INDEX_INTERVAL_BYTES
from txnlog.segments.inspect.dump import is_foreign, is_shared
from txnlog.segments.parquet.footer import MAGIC as PARQUET_MAGIC
from txnlog.segments.parquet.footer import read_tail
from txnlog.segments.segment_file import ReadRange, SegmentFile
from txnlog.storage import open_storage
from txnlog.storage.adapters.inside import open_named
from txnlog.storage.failure_messages import failure
from txnlog.storage.whole import TooLarge, check_whole

_ENCRYPTED_MAGIC: Final = b"PARE"


@contextmanager
def open_segment_file(
    path: str, storage_options: Mapping[str, object] | None = None
) -> Iterator[SegmentFile]:
    """Open a path on the local disk, or the URL of an object.

    Its indexes count from the offset that it is named for, from 0 if it is not named as Kafka names
    segments. Raises StorageError if it cannot be read, also within the block.
    """
    base_offset = base_offset_of(path) or 0
    if "://" in path:
        folder, _, name = path.rpartition("/")
        storage = open_storage(folder, storage_options)
        read = partial(storage.get_range, name)
        yield _segment_file(read, storage.size(name), path, base_offset)
        return
    try:
        descriptor, about = open_named(path)
        with os.fdopen(descriptor, "rb") as file:
            read = partial(_read, file, about.st_size)
            yield _segment_file(read, about.st_size, path, base_offset)
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from error


def read_file(path: str, storage_options: Mapping[str, object] | None = None) -> bytes:
    """All of a small file. Raises StorageError, and ObjectNotFound if it is missing."""
    if "://" in path:
        folder, _, name = path.rpartition("/")
        return open_storage(folder, storage_options).get(name)
    try:
        descriptor, about = open_named(path)
        with os.fdopen(descriptor, "rb") as file:
            check_whole(about.st_size)
            return file.read(about.st_size)
    except TooLarge as error:
        raise failure("reading", path, "", error) from error
    except FileNotFoundError as error:
        raise ObjectNotFound(f"{path} cannot be read: {error.strerror}") from error
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from error


def replace_file(path: Path, data: bytes) -> None:
    """Write a whole local file, replacing an existing one. Raises StorageError."""
    # Nobody can know the name before, and what already has it is not written to.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        file = temporary.open("xb")
        try:
            with file:
                file.write(data)
            temporary.replace(path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}") from error


def _segment_file(read: ReadRange, size_bytes: int, path: str, base_offset: int) -> SegmentFile:
    """The file's kind, by its first bytes: a batch begins with its offset."""
    begins = bytes(read(0, min(len(PARQUET_MAGIC), size_bytes)))
    if begins == _ENCRYPTED_MAGIC:
        raise UnsupportedRecordFormat(
            f"{path} is an encrypted Parquet file: nothing here can decrypt it, or tell if it "
            "is sound"
        )
    is_parquet = begins == PARQUET_MAGIC
    return SegmentFile(read, size_bytes, path, base_offset, is_parquet=is_parquet)


def _read(file: BinaryIO, size_bytes: int, start: int, stop: int) -> bytes:
    file.seek(start)
    return file.read(max(min(stop, size_bytes) - start, 0))


def dump_file_indexes(
    path: str, storage_options: Mapping[str, object] | None = None
) -> tuple[Iterator[IndexEntry], int]:
    """The entries of one index file, or of those beside a segment.

    Their offsets are counted from the one that the file is named for (0 if it is not named as Kafka
    names them). It is also told how many bytes of zeros follow: a broker preallocates the files of
    its newest segment. A Parquet file has its own, see ``IndexEntry``.

    Raises InvalidOption: the name is that of neither, or it is another program's Parquet file.
    StorageError.
    """
    paths = _paths(path)
    if paths.is_parquet and path == paths.log:
        return _dump_pages(path, storage_options), 0
    files, padding = _read_indexes(path, _choose_indexes(path), storage_options)
    return dump_index_files(files, base_offset_of(path) or 0), padding


def _dump_pages(path: str, storage_options: Mapping[str, object] | None) -> Iterator[IndexEntry]:
    with open_segment_file(path, storage_options) as file:
        with suppress(CorruptRecord):  # which is told as of any other
            if is_foreign(file, read_tail(file)):
                raise InvalidOption(f"{path} is a Parquet file of another program, and no segment")
        yield from dump_page_index(file, path, base_offset_of(path) or 0)


def check_file_indexes(
    path: str, storage_options: Mapping[str, object] | None = None
) -> tuple[list[IndexCheck], str | None]:
    """Check one index file, or those beside a segment; see ``check_index_files``.

    Raises InvalidOption: the name is that of neither, or of a transaction index; or several
    segments share the file. StorageError.
    """
    wanted = {kind: index for kind, index in _choose_indexes(path).items() if kind in ACCELERATORS}
    if not wanted:
        raise InvalidOption(f"{path}: a transaction index can only be checked within a store")
    files, _ = _read_indexes(path, wanted, storage_options)
    with open_segment_file(_paths(path).log, storage_options) as segment:
        if segment.is_parquet:
            raise InvalidOption(
                f"{segment.name} is a Parquet file: its footer is its index, and it has no other"
            )
        if is_shared(segment):
            raise InvalidOption(
                f"{segment.name} is shared by several segments: they are small, need no index, "
                "and have none"
            )
        return check_index_files(files, segment, exact=base_offset_of(path) is None)


def rebuild_file_indexes(
    path: str, *, dry_run: bool = False
) -> tuple[list[IndexRebuild], str | None]:
    """Write the indexes beside a local segment file that are missing or damaged.

    Returns what was (or would be) done, and what is wrong with the segment: what lies behind that
    is not in the indexes. Raises InvalidOption: the file is not a local segment. StorageError.
    """
    paths = SegmentPaths.of(path)
    if "://" in path or paths is None or path != paths.log:
        raise InvalidOption(f"{path} is not a local segment file (*.log)")
    checks, damage = check_file_indexes(path)

    def write(check: IndexCheck, data: bytes) -> None:
        replace_file(Path(check.path), data)

    with open_segment_file(path) as segment:
        done = rebuild_index_files(
            checks,
            segment,
            interval_bytes=DEFAULT_INDEX_INTERVAL_BYTES,
            always_time=base_offset_of(path) is not None,
            write=None if dry_run else write,
        )
    return done, damage


def _paths(path: str) -> SegmentPaths:
    paths = SegmentPaths.of(path)
    if paths is None:
        endings = ", *".join(INDEX_ENDINGS.values())
        raise InvalidOption(f"{path} is neither a segment (*.log) nor an index (*{endings})")
    return paths


def _choose_indexes(path: str) -> dict[IndexKind, str]:
    """The index files that a path means: itself, or all beside the segment that it is."""
    paths = _paths(path)
    every = {kind: paths.index(kind) for kind in INDEX_ENDINGS}
    return {kind: index for kind, index in every.items() if path in (index, paths.log)}


def _read_indexes(
    path: str, indexes: Mapping[IndexKind, str], storage_options: Mapping[str, object] | None
) -> tuple[dict[IndexKind, tuple[str, bytes | None]], int]:
    """Index files by kind, their paths and contents without padding, and how much of it there was.

    One that is missing beside a segment has None; ``path`` itself must be there.
    """
    files: dict[IndexKind, tuple[str, bytes | None]] = {}
    padding = 0
    for kind, index in indexes.items():
        try:
            data = read_file(index, storage_options)
        except ObjectNotFound:
            if index == path:
                raise
            files[kind] = (index, None)
            continue
        kept = strip_padding(kind, data)
        padding += len(data) - len(kept)
        files[kind] = (index, kept)
    return files, padding
