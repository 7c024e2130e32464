"""Reads ranges of segments as they are stored: requests together, copies where one is damaged."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import NamedTuple, TypeAlias

import crc32c

from txnlog.errors import (
    CorruptRecord,
    NotEnoughReplicas,
    ObjectNotFound,
    OffsetOutOfRange,
    SnapshotExpired,
    StorageError,
    TxnlogError,
    UnknownTopicOrPartition,
)
from txnlog.log.rewriting import current_records
from txnlog.names import OWN_FILE, TopicPartition
from txnlog.read.plan import Place, SegmentRange, join_reads
from txnlog.segments.indexes.sparse import OffsetIndex, TimeIndex
from txnlog.segments.indexes.transactions import TransactionIndex
from txnlog.segments.parquet.chosen_rows import RowChoice
from txnlog.segments.reader import (
    SegmentBatch,
    SkipBatch,
    find_timestamp,
    first_chunk,
    read_segment,
    row_group_batches,
)
from txnlog.segments.schema_columns import Columns
from txnlog.segments.segment_file import DEFAULT_CHUNK_BYTES, aligned_chunks
from txnlog.storage.base import Storage, read_one_copy, warn_of_damage
from txnlog.storage.threads import MAX_AHEAD_BYTES, InTurn, SizedCall

_SMALL_BYTES = 64 << 10
"""Reads up to this size may be combined: see ``Storage.small_reads_at_once``."""
_MISSING = (ObjectNotFound, NotEnoughReplicas)
"""What reading a segment raises if it is nowhere, or where no root answers that may have it."""


def read_batches(storage: Storage, part: SegmentRange, columns: Columns) -> Iterator[SegmentBatch]:
    """Read one range as it is stored: offsets are those in the file. Raises CorruptRecord."""
    with closing(read_stored(storage, [part], columns)) as reads:
        for _, batches in reads:
            yield from batches


_Run: TypeAlias = list[tuple[int, SegmentRange]]
"""Ranges that one request reads, in the order of their places, with their numbers in the plan."""


class RowSelection(NamedTuple):
    """What to read from a range: columns; from a Parquet file only the selected rows."""

    columns: Columns
    choice: RowChoice | None = None


def read_stored(
    storage: Storage,
    parts: Sequence[SegmentRange],
    columns: Columns = None,
    wanted: Callable[[SegmentRange], RowSelection] | None = None,
    ahead_bytes: int = MAX_AHEAD_BYTES,
    *,
    by_page: bool = False,
) -> Generator[tuple[SegmentRange, Iterator[SegmentBatch]]]:
    """Read ranges as they are stored, each with its batches, to be read before the next one.

    ``wanted`` says for each range what to read instead of all rows of these columns. Requests are
    in flight together, if the storage makes that worthwhile: see
    :meth:`txnlog.storage.base.Storage.run_ahead`. Row groups of Parquet files are decoded in
    parallel, those of the next file while the last ones of a file are; ``by_page`` only the pages
    of the batch that is asked for. Raises what ``read_ranges`` does.
    """
    together = _read_together(_joined(parts), storage.small_reads_at_once())
    calls = (call for runs in together for call in _requests(storage, runs))
    of = wanted or (lambda _: RowSelection(columns))
    with closing(storage.run_ahead(calls, ahead_bytes)) as results:
        readings = InTurn(
            _readings(storage, parts, results, ahead_bytes, by_page=by_page),
            lambda reading: reading.calls(*of(reading.part)),
            lambda reading: reading.runs_ahead,
        )
        with closing(readings):
            for reading in readings:
                yield reading.part, reading.batches(of, readings.results)
                reading.skip_rest()


def _readings(
    storage: Storage,
    parts: Sequence[SegmentRange],
    results: Iterator[dict[int, _Opened] | bytes],
    ahead_bytes: int,
    *,
    by_page: bool,
) -> Iterator[_Reading]:
    opened: dict[int, _Opened] = {}
    for number, part in enumerate(parts):
        yield _Reading(storage, number, part, results, opened, ahead_bytes, by_page=by_page)


def _joined(parts: Sequence[SegmentRange]) -> list[_Run]:
    """The ranges that each request begins with: of a shared file those that are near each other."""
    joined = join_reads([_shared_place(part) for part in parts])
    return [[(number, parts[number]) for number in numbers] for numbers in joined]


def _shared_place(part: SegmentRange) -> Place | None:
    """The place of a range that may be read together with others; None if it is read by itself."""
    segment = part.segment
    alone = segment.stored.position == OWN_FILE or part.hides_aborted
    if alone or segment.stored.size_bytes > DEFAULT_CHUNK_BYTES:
        return None
    stop = segment.stored.position + segment.stored.size_bytes
    return (part.topic, segment.stored.name), segment.stored.position, stop


def _read_together(runs: Sequence[_Run], most: int) -> list[list[_Run]]:
    """Small runs are read by one call, up to ``most``; the first calls read fewer.

    So a reader that only looks at the beginning has requested little more.
    """
    calls: list[list[_Run]] = []
    room, wanted = 0, 1
    for run in runs:
        is_small = most > 1 and _is_small(run)
        if is_small and room:
            calls[-1].append(run)
            room -= 1
            continue
        calls.append([run])
        room = wanted - 1 if is_small else 0
        wanted = min(2 * wanted, most)
    return calls


def _is_small(run: _Run) -> bool:
    """Whether a run is read in one step, without examining anything first."""
    _, part = run[0]
    if _size_bytes(run) > _SMALL_BYTES or part.hides_aborted:
        return False
    if len(run) > 1:
        return True
    return part.paths.is_parquet or part.start_offset <= part.segment.base_offset


@dataclass(slots=True, eq=False)
class _Opened:
    """The first reads of a range: those that tell which batches it needs, and its first chunk.

    ``chunk`` is None if its start depends on earlier reads.
    """

    index: OffsetIndex | None
    skip: SkipBatch | None
    chunk: range | None
    data: bytes


def _open_runs(storage: Storage, runs: Sequence[_Run]) -> dict[int, _Opened]:
    (run, *others) = runs
    if not others and len(run) == 1:
        ((number, part),) = run
        return {number: _open(storage, part)}
    try:
        found = storage.get_ranges([run[0][1].place(_size_bytes(run)) for run in runs])
    except _MISSING:
        # Each is read in turn, so a missing one is reported by its own name.
        return {number: _Opened(None, None, None, b"") for run in runs for number, _ in run}
    return {
        number: opened
        for run, data in zip(runs, found, strict=True)
        for number, opened in _cut(run, data)
    }


def _size_bytes(run: _Run) -> int:
    """How much is read, with what lies between the ranges."""
    first, last = run[0][1].segment, run[-1][1].segment
    return last.stored.position - first.stored.position + last.stored.size_bytes


def _cut(run: _Run, data: bytes) -> Iterator[tuple[int, _Opened]]:
    """Split the bytes of a combined read. In a file that was truncated some are missing."""
    origin = run[0][1].segment.stored.position
    for number, part in run:
        start, size = part.segment.stored.position - origin, part.segment.stored.size_bytes
        yield number, _Opened(None, None, range(size), data[start : start + size])


def _open(storage: Storage, part: SegmentRange) -> _Opened:
    segment = part.segment
    skip = load_aborted(storage, part)
    index: OffsetIndex | None = None
    chunk: range | None
    if part.paths.is_parquet:
        chunk = first_chunk(part.open(storage))
    elif part.start_offset <= segment.base_offset:
        chunk = range(min(segment.stored.size_bytes, DEFAULT_CHUNK_BYTES))
    else:
        shift = segment.offset_shift
        index = _load_index(storage, part)
        chunk = first_chunk(
            part.open(storage),
            start_offset=part.start_offset - shift,
            stop_offset=part.stop_offset - shift,
            index=index,
        )
    data = b"" if chunk is None else part.read_bytes(storage, chunk.start, chunk.stop)
    return _Opened(index, skip, chunk, data)


def _is_whole(part: SegmentRange) -> bool:
    """Whether all of the segment's bytes are needed: control batches, say, end no range."""
    return part.is_whole and part.segment.stored.kafka is None


def _later_chunks(part: SegmentRange) -> list[range]:
    """The chunks after the first one that will certainly be read."""
    segment = part.segment
    if segment.stored.size_bytes <= DEFAULT_CHUNK_BYTES or part.paths.is_parquet:
        return []
    # Batches that are larger than chunks are read at once, each in one request.
    large = segment.stored.size_bytes > segment.stored.batch_count * (DEFAULT_CHUNK_BYTES // 2)
    return aligned_chunks(segment.stored.size_bytes)[1:] if _is_whole(part) and not large else []


def _requests(
    storage: Storage, runs: Sequence[_Run]
) -> Iterator[SizedCall[dict[int, _Opened] | bytes]]:
    """The requests for reading ranges, as far as they are known in advance."""
    _, part = runs[0][0]
    size_bytes = sum(min(_size_bytes(run), DEFAULT_CHUNK_BYTES) for run in runs)
    yield size_bytes, partial(_open_runs, storage, runs)
    if len(runs[0]) > 1:
        return
    for chunk in _later_chunks(part):
        yield len(chunk), partial(part.read_bytes, storage, chunk.start, chunk.stop)


class _Reading:
    """Reads one range from the results of its requests, and by further ones if needed.

    ``opened`` are ranges, by their numbers, that earlier requests have opened together with theirs.
    """

    def __init__(
        self,
        storage: Storage,
        number: int,
        part: SegmentRange,
        results: Iterator[dict[int, _Opened] | bytes],
        opened: dict[int, _Opened],
        ahead_bytes: int,
        *,
        by_page: bool,
    ) -> None:
        self._storage = storage
        self._ahead_bytes = ahead_bytes
        self._number = number
        self._by_page = by_page
        self.part = part
        self._results = results
        self._waiting = opened
        self._opened: _Opened | None = None
        self._later = deque(_later_chunks(part))

    @property
    def runs_ahead(self) -> bool:
        """Whether it may be opened, and its work begun, while earlier ranges are read."""
        is_large = self.part.segment.stored.size_bytes > _SMALL_BYTES
        return self.part.paths.is_parquet and is_large and not self._by_page

    def calls(
        self, columns: Columns, choice: RowChoice | None
    ) -> Iterator[SizedCall[Iterable[SegmentBatch]]]:
        """The calls that read a Parquet file: one for each row group."""
        part, shift = self.part, self.part.segment.offset_shift
        return row_group_batches(
            part.open(self._storage, self._read, self._ahead_bytes),
            start_offset=part.start_offset - shift,
            stop_offset=part.stop_offset - shift,
            columns=columns,
            skip=self._open().skip,
            choice=choice,
        )

    def batches(
        self,
        wanted: Callable[[SegmentRange], RowSelection],
        made_ahead: Callable[[], Iterator[Iterable[SegmentBatch]]],
    ) -> Iterator[SegmentBatch]:
        """The batches, from ``made_ahead`` if it runs ahead. Raises what ``read_stored`` does."""
        part, shift = self.part, self.part.segment.offset_shift

        def read(other: Storage | None, start_offset: int) -> Iterator[SegmentBatch]:
            if other is None and self.runs_ahead:
                return chain.from_iterable(made_ahead())
            opened = self._open()
            own = part.open(self._storage, self._read, self._ahead_bytes)
            columns, choice = wanted(part)
            return read_segment(
                own if other is None else part.open(other, ahead_bytes=self._ahead_bytes),
                start_offset=start_offset,
                stop_offset=part.stop_offset - shift,
                index=opened.index if other is None else None,
                columns=columns,
                skip=opened.skip,
                aligned=other is None and _is_whole(part),
                choice=choice,
                by_page=self._by_page,
            )

        try:
            start_offset = part.start_offset - shift
            yield from _read_any_copy(self._storage, part.paths.log, start_offset, read)
        except _MISSING as error:
            raise _gone(self._storage, part, part.paths.log, error) from error

    def skip_rest(self) -> None:
        """Skip results that were not needed."""
        self._open()
        while self._later:
            self._later.popleft()
            next(self._results)

    def _open(self) -> _Opened:
        if self._opened is None:
            if self._number not in self._waiting:
                opened = next(self._results)
                assert isinstance(opened, dict)
                self._waiting |= opened
            self._opened = self._waiting.pop(self._number)
        return self._opened

    def _read(self, start: int, stop: int) -> bytes:
        opened = self._open()
        chunk, data = opened.chunk, opened.data
        if chunk is not None:
            opened.chunk, opened.data = None, b""  # it is asked for once
            if (chunk.start, chunk.stop) == (start, stop):
                return data
        pieces: list[bytes] = []
        while self._later and self._later[0].start == start and self._later[0].stop <= stop:
            piece = next(self._results)
            assert isinstance(piece, bytes)
            start = self._later.popleft().stop
            pieces.append(piece)
        if start < stop:
            pieces.append(self.part.read_bytes(self._storage, start, stop))
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def first_at_or_after(
    storage: Storage, part: SegmentRange, timestamp_ms: int
) -> tuple[int, int] | None:
    """The first record of a range at or after a time: (offset, timestamp in ms), or None."""
    shift = part.segment.offset_shift

    def find(source: Storage) -> tuple[int, int] | None:
        times = _load_time_index(source, part)
        return find_timestamp(
            part.open(source),
            timestamp_ms,
            start_offset=part.start_offset - shift,
            stop_offset=part.stop_offset - shift,
            time_index=times,
            index=_load_index(source, part) if times is not None else None,
            skip=load_aborted(source, part),
        )

    try:
        found = read_one_copy(storage, part.paths.log, find, (CorruptRecord,))
    except _MISSING as error:
        raise _gone(storage, part, part.paths.log, error) from error
    return None if found is None else (shift + found[0], found[1])


def _read_any_copy(
    storage: Storage,
    name: str,
    start_offset: int,
    read: Callable[[Storage | None, int], Iterator[SegmentBatch]],
) -> Iterator[SegmentBatch]:
    """The batches of a segment; after damage, the following ones from another root's copy.

    ``read``: from a storage (None: as planned) the batches from an offset on. Each copy is tried
    again after others have got further. Raises its errors; CorruptRecord if no copy has the damaged
    part.
    """
    at = damaged_at = start_offset
    damage: CorruptRecord | None = None
    source: Storage | None = None
    others: list[Storage] = []
    while True:
        try:
            for batch in read(source, at):
                at = batch.last_offset + 1
                yield batch
            return
        except CorruptRecord as error:
            if damage is None or at > damaged_at:
                damage, damaged_at = error, at
                others = [*storage.copies_of(name)]
        except StorageError:
            if source is None or damage is None:
                raise
        if not others:
            raise damage
        source = others.pop(0)
        warn_of_damage(name, source, damage)


def _gone(storage: Storage, part: SegmentRange, path: str, missing: StorageError) -> TxnlogError:
    """The error for a missing segment: its records were deleted or rewritten, or it is lost.

    Raises ``missing``, if the log still places it, and a root that is out may have it.
    """
    where = TopicPartition(part.topic, part.partition)
    now = current_records(storage, where, part.start_offset, part.stop_offset)
    if now.topic_id is None or (part.topic_id and now.topic_id != part.topic_id):
        again = now.topic_id is not None
        return UnknownTopicOrPartition(
            f"topic {part.topic!r} was deleted{' and recreated' if again else ''} since this read "
            f"was planned, and segment {path} with it; plan the read again"
            + ("" if again else ", or make the topic with store.topics.create")
        )
    start = now.log_start_offset
    if part.segment.end_offset <= start:
        return OffsetOutOfRange(
            f"the records of {part.topic}:{part.partition} below offset {start} were deleted since "
            f"this read was planned, and segment {path} with them; plan the read again, or give "
            "the topic a longer file.delete.delay.ms if your reads need it"
        )
    if part.segment.stored.name not in now.segments:
        return SnapshotExpired(
            f"the records of {where} were merged or compacted since this read was planned, and "
            f"segment {path} is gone; plan the read again, or give the topic a longer "
            "file.delete.delay.ms if your reads need it"
        )
    if isinstance(missing, NotEnoughReplicas):
        raise missing
    return CorruptRecord(
        f"segment {path} is gone, with offsets {part.start_offset} to {part.stop_offset - 1} of "
        f"{part.topic}:{part.partition}; restore it from a backup"
    )


def _load_index(storage: Storage, part: SegmentRange) -> OffsetIndex | None:
    """The offset index, if it is usable. It only saves reading from the start."""
    if not part.is_indexed:
        return None
    try:
        return OffsetIndex.decode(storage.get(part.paths.offset_index))
    except (*_MISSING, CorruptRecord, ValueError):
        return None


def _load_time_index(storage: Storage, part: SegmentRange) -> TimeIndex | None:
    """The time index, if it is usable."""
    if not part.is_indexed:
        return None
    try:
        return TimeIndex.decode(storage.get(part.paths.time_index))
    except (*_MISSING, CorruptRecord, ValueError):
        return None


def load_aborted(storage: Storage, part: SegmentRange) -> SkipBatch | None:
    """Skips the aborted records of a segment from Kafka; None if it has none."""
    if not part.hides_aborted:
        return None
    return load_transaction_index(storage, part).hides


def load_transaction_index(storage: Storage, part: SegmentRange) -> TransactionIndex:
    """The aborted transactions of a segment that came from Kafka.

    Unlike the other indexes it is not an accelerator: without it aborted records would show. Raises
    CorruptRecord: it is damaged or gone. UnknownTopicOrPartition: the topic was deleted since the
    range was planned.
    """
    known = part.segment.stored.kafka
    if known is None or not known.aborted_count:
        return TransactionIndex(())
    path = part.paths.transaction_index
    try:
        data = storage.get(path)
    except _MISSING as error:
        raise _gone(storage, part, path, error) from error
    if crc32c.crc32c(data) != known.aborted_crc:
        raise CorruptRecord(f"{path} is not as it was written; restore it from a backup")
    return TransactionIndex.decode(data, name=path)
