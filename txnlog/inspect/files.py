"""Files outside a store, or treated as such: a copy of a segment, a broker's own."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final

from txnlog.errors import ObjectNotFound, StorageError, UnsupportedRecordFormat
from txnlog.kafka.folders import base_offset_of
from txnlog.segments.parquet.footer import MAGIC as PARQUET_MAGIC
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
