"""A segment's file for readers: the source of its bytes, and the facts known about them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from txnlog.segments.batch_header import BytesLike, SegmentIdentity

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
