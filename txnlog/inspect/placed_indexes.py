"""The index files beside a segment: their content, checks, and rebuilding them.

Offset and time indexes are accelerators: readers check them and can do without. So a damaged one
may be deleted and put again, the only case in which a name is used twice: a reader meanwhile finds
the old one, the new one or none, and reads the same records. A transaction index is not an
accelerator: nothing else says which records are aborted, and it cannot be rebuilt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from txnlog.errors import CorruptRecord, ObjectNotFound
from txnlog.inspect.descriptions import SegmentDescription
from txnlog.inspect.segments import describe_loss, open_segment
from txnlog.names import IndexKind
from txnlog.segments.indexes.sparse import OFFSET_ENTRY, TIME_ENTRY, OffsetIndex, TimeIndex
from txnlog.segments.indexes.transactions import TRANSACTION_ENTRY
from txnlog.segments.inspect.indexes import IndexProblems, check_indexes, rebuild_indexes
from txnlog.segments.parquet.open_segment import ParquetSegment
from txnlog.segments.segment_file import SegmentFile
from txnlog.segments.writer import NO_TIMESTAMP_MS
from txnlog.storage.base import Storage

IndexState: TypeAlias = Literal["ok", "missing", "damaged"]
ACCELERATORS: tuple[IndexKind, ...] = ("offset", "time")
_LAYOUTS: dict[IndexKind, np.dtype[np.void]] = {
    "offset": OFFSET_ENTRY,
    "time": TIME_ENTRY,
    "transaction": TRANSACTION_ENTRY,
}


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One entry of an index file; None for fields that its kind lacks. Offsets are the topic's.

    ``offset`` of a transaction is its last one. Without any of them: bytes that are not an entry.
    Of a Parquet file an entry is of its page index: pages of all columns that begin with the record
    of the offset, the first of them at the position, up to that time.
    """

    path: str
    kind: IndexKind | Literal["page"]
    number: int
    offset: int | None = None
    position: int | None = None
    timestamp_ms: int | None = None
    producer_id: int | None = None
    first_offset: int | None = None
    last_stable_offset: int | None = None
    damage: str | None = None


@dataclass(frozen=True, slots=True)
class IndexCheck:
    """An index file and what is wrong with it; ``entry_count`` is None if it cannot be read."""

    path: str
    kind: IndexKind
    state: IndexState
    entry_count: int | None
    damages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class IndexRebuild:
    """The result for an index file: kept as it was, or written."""

    path: str
    kind: IndexKind
    before: IndexState
    action: Literal["kept", "written"]
    entry_count: int


# -- any index -----------------------------------------------------------------------------------


def dump_index_files(
    files: Mapping[IndexKind, tuple[str, bytes | None]], base_offset: int
) -> Iterator[IndexEntry]:
    """The entries of index files, by kind their path and content; a missing one has none."""
    for kind, (path, data) in files.items():
        if data is not None:
            yield from _read_entries(path, kind, data, base_offset)


def _read_entries(
    path: str, kind: IndexKind, data: bytes, base_offset: int
) -> Iterator[IndexEntry]:
    """Every entry of a file as it is, even where it makes no sense.

    ``base_offset`` is added to what is relative; in a transaction index nothing is.
    """
    layout = _LAYOUTS[kind]
    count, rest = divmod(len(data), layout.itemsize)
    rows = np.frombuffer(data, dtype=layout, count=count)
    before: tuple[int, ...] | None = None
    for number, row in enumerate(rows):
        values = row.item()
        damage = None
        if kind == "offset":
            entry = IndexEntry(path, kind, number, base_offset + values[0], values[1])
        elif kind == "time":
            entry = IndexEntry(path, kind, number, base_offset + values[1], timestamp_ms=values[0])
        else:
            version, producer_id, first, last, stable = values
            damage = None if version == 0 else f"{path}: entry {number} has version {version}"
            entry = IndexEntry(
                path,
                kind,
                number,
                last,
                producer_id=producer_id,
                first_offset=first,
                last_stable_offset=stable,
                damage=damage,
            )
        if kind != "transaction":
            if before is not None and any(a <= b for a, b in zip(values, before, strict=True)):
                damage = f"{path}: entry {number} does not ascend"
            entry = replace(entry, damage=damage)
        before = values
        yield entry
    if rest:
        damage = f"{path}: {rest} bytes at the end are not a whole {layout.itemsize}-byte entry"
        yield IndexEntry(path, kind, count, damage=damage)


def strip_padding(kind: IndexKind, data: bytes) -> bytes:
    """The data without the zeros that a broker preallocates in the files of its newest segment."""
    size = _LAYOUTS[kind].itemsize
    used = len(data.rstrip(b"\0"))
    kept = -(-used // size) * size
    return data if len(data) - kept < size else data[:kept]


def check_index_files(
    files: Mapping[IndexKind, tuple[str, bytes | None]], segment: SegmentFile, *, exact: bool
) -> tuple[list[IndexCheck], str | None]:
    """Check index files, by kind their path and content (None: missing), against their segment.

    Returns the checks, and what is wrong with the segment: entries that lead behind that were not
    compared.
    """
    decoded: dict[IndexKind, OffsetIndex | TimeIndex] = {}
    found: dict[IndexKind, IndexCheck] = {}
    for kind, (path, data) in files.items():
        if data is None:
            found[kind] = IndexCheck(path, kind, "missing", None, ())
            continue
        try:
            if kind == "offset":
                decoded[kind] = OffsetIndex.decode(
                    data, name=path, segment_bytes=segment.size_bytes
                )
            else:
                decoded[kind] = TimeIndex.decode(data, name=path)
        except CorruptRecord as error:
            found[kind] = IndexCheck(path, kind, "damaged", None, (str(error),))
    index, times = decoded.get("offset"), decoded.get("time")
    problems = IndexProblems((), (), None)
    if decoded:
        problems = check_indexes(
            segment,
            index if isinstance(index, OffsetIndex) else None,
            times if isinstance(times, TimeIndex) else None,
            exact=exact,
        )
    for kind, entries in decoded.items():
        path = files[kind][0]
        reasons = problems.index if kind == "offset" else problems.time_index
        damages = tuple(f"{path}: {reason}" for reason in reasons)
        state: IndexState = "damaged" if damages else "ok"
        found[kind] = IndexCheck(path, kind, state, len(entries), damages)
    return [found[kind] for kind in files], problems.segment


def rebuild_index_files(
    checks: Iterable[IndexCheck],
    segment: SegmentFile,
    *,
    interval_bytes: int,
    always_time: bool,
    write: Callable[[IndexCheck, bytes], None] | None,
) -> list[IndexRebuild]:
    """Rebuild the unsound ones of the checked indexes, and ``write`` them, if given.

    Returns what was (or would be) done to each.
    """
    built: dict[IndexKind, OffsetIndex | TimeIndex] = {}
    done = []
    for check in checks:
        if check.state == "ok":
            count = check.entry_count or 0
            done.append(IndexRebuild(check.path, check.kind, check.state, "kept", count))
            continue
        if not built:
            index, times = rebuild_indexes(
                segment, interval_bytes=interval_bytes, always_time=always_time
            )
            built = {"offset": index, "time": times}
        if write is not None:
            write(check, built[check.kind].encode())
        count = len(built[check.kind])
        done.append(IndexRebuild(check.path, check.kind, check.state, "written", count))
    return done


# -- in a store ----------------------------------------------------------------------------------


def index_paths(segment: SegmentDescription) -> dict[IndexKind, str]:
    """The index files that a placed segment should have."""
    return segment.ref.indexes(
        segment.batch_count, segment.size_bytes, has_aborted=segment.aborted_count > 0
    )


def dump_placed_indexes(storage: Storage, segment: SegmentDescription) -> Iterator[IndexEntry]:
    """The entries of a placed segment's index files; a missing one has none.

    A Parquet file has its own, see :class:`IndexEntry`.
    """
    if segment.paths.is_parquet:
        return _page_entries(storage, segment)
    return dump_index_files(_read_files(storage, index_paths(segment)), segment.base_offset)


def _page_entries(storage: Storage, segment: SegmentDescription) -> Iterator[IndexEntry]:
    path = segment.paths.log
    try:
        file = open_segment(storage, segment)
        yield from dump_page_index(file, path, segment.base_offset)
    except ObjectNotFound:
        yield IndexEntry(path, "page", 0, damage=describe_loss(segment))


def dump_page_index(file: SegmentFile, path: str, base_offset: int) -> Iterator[IndexEntry]:
    """The beginnings of a Parquet file's pages, by offsets counted from the file's first."""
    try:
        opened = ParquetSegment(file)
    except CorruptRecord as error:
        yield IndexEntry(path, "page", 0, damage=str(error))
        return
    for number, page in enumerate(opened.pages()):
        offset, time_ms = page.header.base_offset, page.header.max_timestamp_ms
        yield IndexEntry(
            path,
            "page",
            number,
            base_offset + offset,
            page.position,
            None if time_ms == NO_TIMESTAMP_MS else time_ms,
        )


def check_placed_indexes(
    storage: Storage, segment: SegmentDescription
) -> tuple[list[IndexCheck], str | None]:
    """Check the offset and time index of a placed segment; see ``check_index_files``."""
    wanted = {k: p for k, p in index_paths(segment).items() if k in ACCELERATORS}
    if not wanted:
        return [], None
    try:
        file = open_segment(storage, segment)
    except ObjectNotFound:
        return [], describe_loss(segment)
    return check_index_files(_read_files(storage, wanted), file, exact=True)


def rebuild_placed_indexes(
    storage: Storage, segment: SegmentDescription, interval_bytes: int, *, dry_run: bool = False
) -> tuple[list[IndexRebuild], str | None]:
    """Write the offset and time indexes of a placed segment that are missing or damaged.

    Returns what was (or would be) done, and what is wrong with the segment: what lies behind that
    is not in the indexes. Raises StorageError: one may be missing now; repeat it.
    """
    checks, damage = check_placed_indexes(storage, segment)

    def write(check: IndexCheck, data: bytes) -> None:
        if check.state == "damaged":
            storage.delete([check.path])
        # If another process is faster, its index is as good.
        storage.put_if_absent(check.path, data)

    if not checks:
        return [], damage
    done = rebuild_index_files(
        checks,
        open_segment(storage, segment),
        interval_bytes=interval_bytes,
        always_time=False,
        write=None if dry_run else write,
    )
    return done, damage


def _read_files(
    storage: Storage, paths: Mapping[IndexKind, str]
) -> dict[IndexKind, tuple[str, bytes | None]]:
    """Index files by kind: their paths and contents, None for one that is not there."""

    def read(path: str) -> bytes | None:
        try:
            return storage.get(path)
        except ObjectNotFound:
            return None

    return {kind: (path, read(path)) for kind, path in paths.items()}
