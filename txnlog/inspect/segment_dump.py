"""Shows a placed segment as it lies in the store, damage and all. Modifies nothing."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from txnlog import names
from txnlog.errors import ObjectNotFound
from txnlog.inspect.descriptions import SegmentDescription
from txnlog.segments.inspect.dump import DumpedBatch, dump_segment
from txnlog.storage.base import Storage


def segment_path(segment: SegmentDescription) -> str:
    """The name of the segment's file within the store."""
    return names.segment_file(segment.topic, segment.partition, segment.name)


def dump_placed_segment(storage: Storage, segment: SegmentDescription) -> Iterator[DumpedBatch]:
    """Yield every byte that the segment should have, as batches and damaged stretches.

    Offsets and sequences are relative, as in the file; the segment's description has the bases.
    A file that is gone or shorter than its log entry says is damage too, reported at the end.

    Raises:
        StorageError: the filesystem failed.
    """
    path = segment_path(segment)
    try:
        size_bytes = storage.size(path)
    except ObjectNotFound:
        reason = f"segment {path} is gone; restore it from a backup"
        yield DumpedBatch(0, segment.size_bytes, None, None, None, reason)
        return
    yield from dump_segment(
        partial(storage.get_range, path), size_bytes, name=path, identity=segment.identity
    )
    missing = segment.size_bytes - size_bytes
    if missing > 0:
        reason = (
            f"{path} has {size_bytes} bytes, but entry {segment.entry} of its log placed "
            f"{segment.size_bytes}"
        )
        yield DumpedBatch(size_bytes, missing, None, None, None, reason)
