"""Checks the indexes of a segment against its batches, and rebuilds them. Modifies nothing.

Of batches in columns it reads headers only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from txnlog.segments.batches import decode_batch
from txnlog.segments.errors import CorruptRecord
from txnlog.segments.indexes.sparse import (
    DEFAULT_INDEX_INTERVAL_BYTES,
    IndexBuilder,
    OffsetIndex,
    TimeIndex,
)
from txnlog.segments.reader import scan_headers
from txnlog.segments.segment_file import SegmentFile

_SHOWN = 5
"""How many wrong entries of an index are reported one by one."""


class IndexedBatch(NamedTuple):
    """A batch's, or old message's, data for indexes. Offsets as in the file."""

    position: int
    size_bytes: int
    base_offset: int
    last_offset: int
    max_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class IndexProblems:
    """What is wrong with the offset index, the time index, and the segment itself."""

    index: tuple[str, ...]
    time_index: tuple[str, ...]
    segment: str | None


def indexed_batches(file: SegmentFile) -> Iterator[IndexedBatch]:
    """Every batch, as an index sees it. Raises CorruptRecord if one cannot be trusted."""
    for position, header in scan_headers(file):
        shown = header
        if header.is_message_set:
            # What wraps old messages gives only its last offset, and perhaps not its latest time.
            data = file.read(position, position + header.size_bytes)
            shown = decode_batch(data, name=file.name, position=position).header
        yield IndexedBatch(
            position,
            header.size_bytes,
            shown.base_offset,
            shown.last_offset,
            shown.max_timestamp_ms,
        )


def check_indexes(
    file: SegmentFile,
    index: OffsetIndex | None,
    time_index: TimeIndex | None,
    *,
    exact: bool = True,
) -> IndexProblems:
    """Compare indexes with their segment; None of them is not checked.

    ``exact``: entries are as txnlog writes them: last offsets of batches. Kafka's may name any
    offset in what was appended together; then it is enough that they lead nobody past what is
    looked for.
    """
    offsets = _OffsetCheck(index, file.base_offset, exact)
    times = _TimeCheck(time_index, file.base_offset, exact)
    damage = None
    try:
        for batch in indexed_batches(file):
            offsets.see(batch)
            times.see(batch)
    except CorruptRecord as error:
        # Entries for positions after it can be neither right nor wrong.
        damage = str(error)
    else:
        offsets.finish(file.size_bytes)
        times.finish()
    return IndexProblems(tuple(offsets.problems), tuple(times.problems), damage)


def rebuild_indexes(
    file: SegmentFile,
    *,
    interval_bytes: int = DEFAULT_INDEX_INTERVAL_BYTES,
    always_time: bool = False,
) -> tuple[OffsetIndex, TimeIndex]:
    """The indexes of a writer with that interval; ``always_time`` as for IndexBuilder.

    Damage ends the scan: everything before it is indexed, and a reader that meets it reports it.
    """
    builder = IndexBuilder(interval_bytes)
    try:
        for batch in indexed_batches(file):
            builder.add(
                position=batch.position,
                size_bytes=batch.size_bytes,
                last_offset=batch.last_offset - file.base_offset,
                max_timestamp_ms=batch.max_timestamp_ms,
            )
    except CorruptRecord:
        pass
    return builder.finish(always_time=always_time)


@dataclass(slots=True)
class _Check:
    """Walks through the entries of an index in parallel with the batches."""

    entries: list[tuple[int, int]]
    base_offset: int
    exact: bool
    problems: list[str] = field(default_factory=list)
    at: int = 0
    wrong: int = 0

    def report(self, reason: str) -> None:
        self.wrong += 1
        if self.wrong <= _SHOWN:
            self.problems.append(f"entry {self.at}: {reason}")
        elif self.wrong == _SHOWN + 1:
            self.problems.append("and more")


class _OffsetCheck(_Check):
    def __init__(self, index: OffsetIndex | None, base_offset: int, exact: bool) -> None:
        entries = [] if index is None else index.entries.tolist()
        super().__init__(entries, base_offset, exact)

    def see(self, batch: IndexedBatch) -> None:
        while self.at < len(self.entries):
            offset, position = self.entries[self.at]
            if position >= batch.position + batch.size_bytes:
                return
            if position != batch.position:
                self.report(f"no batch begins at byte {position}")
            else:
                self._compare(self.base_offset + offset, batch)
            self.at += 1

    def _compare(self, offset: int, batch: IndexedBatch) -> None:
        if self.exact and offset != batch.last_offset:
            self.report(
                f"it says that the batch at byte {batch.position} ends with offset {offset}, but "
                f"that is {batch.last_offset}"
            )
        elif offset < batch.base_offset:
            self.report(f"offset {offset} lies before the batch at byte {batch.position}")

    def finish(self, size_bytes: int) -> None:
        while self.at < len(self.entries):
            position = self.entries[self.at][1]
            self.report(f"byte {position} lies beyond the segment's {size_bytes}")
            self.at += 1


class _TimeCheck(_Check):
    def __init__(self, time_index: TimeIndex | None, base_offset: int, exact: bool) -> None:
        entries = [] if time_index is None else time_index.entries.tolist()
        super().__init__(entries, base_offset, exact)
        self._latest_ms: int | None = None

    def see(self, batch: IndexedBatch) -> None:
        while self.at < len(self.entries):
            timestamp_ms, relative = self.entries[self.at]
            offset = self.base_offset + relative
            if offset > batch.last_offset:
                break
            self._compare(timestamp_ms, offset, batch)
            self.at += 1
        if self._latest_ms is None or batch.max_timestamp_ms > self._latest_ms:
            self._latest_ms = batch.max_timestamp_ms

    def _compare(self, timestamp_ms: int, offset: int, batch: IndexedBatch) -> None:
        if self.exact and offset != batch.last_offset:
            self.report(f"no batch ends with offset {offset}")
        elif batch.max_timestamp_ms != timestamp_ms:
            self.report(
                f"the latest time up to offset {offset} is not {timestamp_ms}: its batch has "
                f"{batch.max_timestamp_ms}"
            )
        elif self._latest_ms is not None and self._latest_ms > timestamp_ms:
            self.report(f"{self._latest_ms} comes before {timestamp_ms}, offset {offset}")

    def finish(self) -> None:
        while self.at < len(self.entries):
            self.report(f"offset {self.base_offset + self.entries[self.at][1]} is not there")
            self.at += 1
