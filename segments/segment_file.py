"""A segment's file for readers: the source of its bytes, and the facts known about them.

Pieces are served from chunks read in order, so that no reader holds a whole file.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

from txnlog.segments.batch_header import BytesLike, SegmentIdentity
from txnlog.segments.errors import CorruptRecord

T = TypeVar("T")

# Bytes [start, stop) of a file. Fewer may be returned only if the file has ended.
ReadRange: TypeAlias = Callable[[int, int], BytesLike]
# The bytes of several ranges of a file, in their order.
ReadRanges: TypeAlias = Callable[[Iterable[range]], Generator[BytesLike]]
# About how many bytes the result of a call takes, and the call.
SizedCall: TypeAlias = tuple[int, Callable[[], T]]
# Results of calls, in their order. What raises, the calls or what they come from, raises in its
# turn.
WorkAhead: TypeAlias = Callable[[Iterable[SizedCall[Any]]], Generator[Any]]


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """The file of one segment: in a store, on a broker's disk, or in memory.

    ``name`` stands in messages. ``base_offset`` is what the indexes count from, as an offset in
    the file: 0 in segments that txnlog writes, absolute in Kafka's. With an ``identity`` every
    batch must be one of that segment. ``is_parquet``: it is a Parquet file, not made of batches;
    ``read_ahead`` gets several of its ranges, one after another, and may request some together;
    ``work_ahead`` does what is made of them, in several threads, and yields it in order.
    """

    read: ReadRange
    size_bytes: int
    name: str
    base_offset: int = 0
    identity: SegmentIdentity | None = None
    is_parquet: bool = False
    read_ahead: ReadRanges | None = None
    work_ahead: WorkAhead | None = None


def work_on(file: SegmentFile, calls: Iterable[SizedCall[T]]) -> Generator[T]:
    """The results of calls, in order: by ``work_ahead``, if the file has it."""
    if file.work_ahead is not None:
        return file.work_ahead(calls)
    return (call() for _, call in calls)


# Measured on a local disk with default batches: 1, 4 and 16 MiB scan within 15 % of each other,
# 4 MiB the fastest; on an object store, where a request waits 20 ms or so, 1 MiB would be too few.
DEFAULT_CHUNK_BYTES: Final = 4 << 20

# A remainder up to this is copied into the next chunk; a larger one only into the piece asked for.
_SMALL_BYTES = 4096

_NOTHING = memoryview(b"")


class Window:
    """The newest chunk of a file. Pieces are views into it where that is possible.

    With ``aligned_bytes`` the chunks end at multiples of it, so a reader of a whole file knows them
    in advance: :func:`aligned_chunks`. Then a piece's request to read ahead is ignored.
    """

    def __init__(self, file: SegmentFile, aligned_bytes: int | None = None) -> None:
        self.file = file
        self._aligned_bytes = aligned_bytes
        self._start = 0
        self._data = _NOTHING

    def get(self, start: int, stop: int, ahead_stop: int) -> memoryview:
        """Bytes [start, stop) of the file, which must be inside it.

        Missing bytes are read, together with those up to ``ahead_stop``. Raises CorruptRecord if
        the file is shorter than it was said to be.
        """
        held_stop = self._start + len(self._data)
        if not self._start <= start < held_stop:
            self._data, self._start = _NOTHING, start  # free the old chunk before reading
            self._data = self._fetch(start, self._stop(stop, ahead_stop))
        elif stop > held_stop:
            rest = bytes(self._data[start - self._start :])
            self._data, self._start = _NOTHING, held_stop
            self._data = self._fetch(held_stop, self._stop(stop, ahead_stop))
            if len(rest) > _SMALL_BYTES:
                return memoryview(b"".join((rest, self._data[: stop - held_stop])))
            # Likely a header: the batch that it starts will be asked for next, from here on.
            self._data, self._start = memoryview(b"".join((rest, self._data))), start
        return self._data[start - self._start : stop - self._start]

    def _stop(self, stop: int, ahead_stop: int) -> int:
        aligned = self._aligned_bytes
        return max(stop, ahead_stop) if aligned is None else -(-stop // aligned) * aligned

    def _fetch(self, start: int, stop: int) -> memoryview:
        stop = min(stop, self.file.size_bytes)
        data = memoryview(self.file.read(start, stop)).cast("B")
        if len(data) != stop - start:
            raise CorruptRecord.at(
                self.file.name, start, f"{stop - start} bytes were asked for, {len(data)} came"
            )
        return data


def aligned_chunks(size_bytes: int) -> list[range]:
    """The chunks of a window with ``aligned_bytes`` for a whole file without larger batches."""
    starts = range(0, size_bytes, DEFAULT_CHUNK_BYTES)
    return [range(start, min(start + DEFAULT_CHUNK_BYTES, size_bytes)) for start in starts]
