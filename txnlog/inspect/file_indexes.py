"""Index files beside a segment file that is in no store: a copy, or a broker's own.

Only local files are written, and only ``.index`` and ``.timeindex``, in one step each.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from txnlog.errors import InvalidOption, ObjectNotFound, StorageError
from txnlog.inspect.files import open_loose_file
from txnlog.inspect.indexes import (
    ACCELERATORS,
    ENDINGS,
    IndexCheck,
    IndexEntry,
    IndexKind,
    IndexRebuild,
    build_indexes,
    check_index_data,
    kept_index,
    read_entries,
    without_padding,
)
from txnlog.kafka.folders import base_offset_of
from txnlog.segments.indexes.sparse import DEFAULT_INDEX_INTERVAL_BYTES


def dump_loose_indexes(
    path: str, storage_options: Mapping[str, object] | None = None
) -> tuple[Iterator[IndexEntry], int]:
    """The entries of one index file, or of those beside a segment.

    Returns:
        The entries, offsets counted from the one that the file is named for (0 if it is not named
        as Kafka names them), and how many bytes of zeros stand behind them: a broker makes the
        files of its newest segment longer ahead of time.

    Raises:
        InvalidOption: the name is that of neither.
        StorageError: a file cannot be read.
    """
    found = []
    padding = 0
    for kind, index in _named(path).items():
        data = _content(index, storage_options, required=index == path)
        if data is not None:
            kept = without_padding(kind, data)
            padding += len(data) - len(kept)
            found.append((index, kind, kept))
    entries = (
        entry
        for index, kind, data in found
        for entry in read_entries(index, kind, data, base_offset_of(index) or 0)
    )
    return entries, padding


def check_loose_indexes(
    path: str, storage_options: Mapping[str, object] | None = None
) -> tuple[list[IndexCheck], str | None]:
    """Check one index file, or those beside a segment; see ``check_index_data``.

    Raises:
        InvalidOption: the name is that of neither, or of a transaction index.
        StorageError: a file cannot be read.
    """
    wanted = {kind: index for kind, index in _named(path).items() if kind in ACCELERATORS}
    if not wanted:
        raise InvalidOption(f"{path}: a transaction index can only be checked within a store")
    segment = _stem(path) + ".log"
    files = {
        kind: (index, _unpadded(kind, _content(index, storage_options, required=index == path)))
        for kind, index in wanted.items()
    }
    with open_loose_file(segment, storage_options) as file:
        return check_index_data(
            files,
            file.read,
            file.size_bytes,
            name=segment,
            base_offset=base_offset_of(segment) or 0,
            exact=base_offset_of(segment) is None,
        )


def rebuild_loose_indexes(
    path: str, *, dry_run: bool = False
) -> tuple[list[IndexRebuild], str | None]:
    """Write the indexes beside a local segment file that are missing or damaged.

    Returns:
        What was (or would be) done, and what is wrong with the segment: what lies behind that is
        not in the indexes.

    Raises:
        InvalidOption: the file is no local segment.
        StorageError: a file cannot be read or written.
    """
    if "://" in path or not path.endswith(".log"):
        raise InvalidOption(f"{path} is no local segment file (*.log)")
    checks, damage = check_loose_indexes(path)
    base_offset = base_offset_of(path)
    with open_loose_file(path) as file:
        built = build_indexes(
            file.read,
            file.size_bytes,
            name=path,
            interval_bytes=DEFAULT_INDEX_INTERVAL_BYTES,
            base_offset=base_offset or 0,
            always_time=base_offset is not None,
        )
    done = []
    for check in checks:
        if check.state == "ok":
            done.append(kept_index(check))
            continue
        data, count = built[check.kind]
        if not dry_run:
            _replace(Path(check.path), data)
        done.append(IndexRebuild(check.path, check.kind, check.state, "written", count))
    return done, damage


def _stem(path: str) -> str:
    for ending in (".log", *ENDINGS.values()):
        if path.endswith(ending):
            return path.removesuffix(ending)
    raise InvalidOption(
        f"{path} is neither a segment (*.log) nor an index (*{', *'.join(ENDINGS.values())})"
    )


def _named(path: str) -> dict[IndexKind, str]:
    """The index files that a path means: itself, or all beside the segment that it is."""
    stem = _stem(path)
    every = {kind: stem + ending for kind, ending in ENDINGS.items()}
    return {kind: index for kind, index in every.items() if path in (index, stem + ".log")}


def _content(
    path: str, storage_options: Mapping[str, object] | None, *, required: bool
) -> bytes | None:
    try:
        with open_loose_file(path, storage_options) as file:
            return file.content()
    except StorageError as error:
        absent = isinstance(error, ObjectNotFound) or isinstance(error.__cause__, FileNotFoundError)
        if absent and not required:
            return None
        raise


def _unpadded(kind: IndexKind, data: bytes | None) -> bytes | None:
    return None if data is None else without_padding(kind, data)


def _replace(path: Path, data: bytes) -> None:
    """Put a whole file in the place of another, or of none."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        try:
            temporary.write_bytes(data)
            temporary.replace(path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}") from error
