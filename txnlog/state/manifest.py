"""Settled appends, which a topic's checkpoints move to manifests. Pure.

A manifest holds the segments that a run of entries has placed, in columns; a manifest list names
those that together hold every append before an entry. Both are facts that never change, so any
later list says the same about an entry as an earlier one, except for trimmed segments.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, ClassVar

import msgspec

from txnlog.limits import (
    MOST_STATE_BYTES,
    AnyNumber,
    Checksum,
    Counter,
    FileBytes,
    Name,
    Offset,
    PartitionNumber,
    PerPartition,
    TimeMs,
    TotalBytes,
)
from txnlog.state.segment import RewriteRef


class Settled(msgspec.Struct, frozen=True, array_like=True):
    """Where the appends before entry ``end`` are: in manifest list ``number``, or any later one.

    ``has_transactions``: some of them are of transactions.
    """

    number: Counter
    end: Counter
    has_transactions: bool = False


class PartitionSpan(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One partition in a manifest: segments within [first_offset, end_offset)."""

    partition: PartitionNumber
    first_offset: Offset
    end_offset: Offset
    segment_count: Counter
    size_bytes: TotalBytes
    max_timestamp_ms: TimeMs


class ManifestRef(msgspec.Struct, frozen=True):
    """One manifest: the appends among entries [first_entry, end_entry).

    ``crc`` is the CRC-32C of its bytes, ``max_at_ms`` the latest time in its entries and
    ``topic_time_ms`` the topic's own at the last of them.
    ``spans`` are its partitions in order; None if there are too many to name them here.
    ``has_shared``: some of its segments lie in shared files.
    """

    name: Name
    first_entry: Counter
    end_entry: Counter
    segment_count: Counter
    size_bytes: FileBytes
    crc: Checksum
    max_at_ms: TimeMs
    topic_time_ms: TimeMs
    has_transactions: bool
    spans: Annotated[tuple[PartitionSpan, ...], PerPartition] | None = None
    has_shared: bool = False

    def touches(self, offsets: Mapping[int, Sequence[tuple[int, int]]]) -> bool:
        """Whether it may hold any of these offsets: by partition, spans [start, end) in order."""
        return self.spans is None or any(
            _touches(offsets.get(span.partition, ()), span.first_offset, span.end_offset)
            for span in self.spans
        )

    def lies_within(self, offsets: Mapping[int, Sequence[tuple[int, int]]]) -> bool:
        """Whether everything it holds of each given partition lies in one of its spans."""
        return self.spans is not None and all(
            any(start <= span.first_offset and span.end_offset <= end for start, end in wanted)
            for span in self.spans
            if (wanted := offsets.get(span.partition)) is not None
        )

    def holds_any(self, entries: Iterable[int]) -> bool:
        """Whether it covers any of these entries."""
        return any(self.first_entry <= entry < self.end_entry for entry in entries)

    def is_trimmed(self, log_starts: Sequence[int]) -> bool:
        """Whether everything in it certainly lies below the log starts of its partitions."""
        return self.spans is not None and all(
            span.end_offset <= log_starts[span.partition] for span in self.spans
        )


def _touches(spans: Sequence[tuple[int, int]], first_offset: int, end_offset: int) -> bool:
    # The first one that ends after the first offset is the only one that matters.
    at = bisect_right(spans, first_offset, key=lambda span: span[1])
    return at < len(spans) and spans[at][0] < end_offset


class ManifestList(
    msgspec.Struct, frozen=True, tag_field="kind", tag="manifests", omit_defaults=True
):
    """Which manifests hold the appends of a topic before entry ``end``, in the entries' order.

    List ``number`` is put by a process that has read the one before it, so the newest is complete.
    ``log_start_offsets``, by partition: segments below them may be left out; 0 is not stored.
    ``rewrites`` is the file of the merges and compactions before ``end``.
    """

    most_bytes: ClassVar[int] = MOST_STATE_BYTES

    number: Counter
    topic_id: Name
    end: Counter
    manifests: Annotated[tuple[ManifestRef, ...], AnyNumber]
    log_start_offsets: Annotated[dict[PartitionNumber, Offset], PerPartition] = {}
    rewrites: RewriteRef | None = None

    @property
    def files(self) -> set[str]:
        """The names of the files that it refers to."""
        found = {ref.name for ref in self.manifests}
        return found | {self.rewrites.name} if self.rewrites else found

    @property
    def has_transactions(self) -> bool:
        return any(ref.has_transactions for ref in self.manifests)


def tail_to_join(counts: Sequence[int], new: int, *, fanout: int, most: int) -> int:
    """How many of the last manifests are merged with ``new`` more segments.

    As in a log-structured merge tree each segment is rewritten once per level: manifests of similar
    size are merged when there are ``fanout`` of them. ``counts``: how many segments each holds, in
    order; one with ``most`` is not merged any further.
    """
    joined, total = 0, new
    while True:
        level = joined
        while (
            level < len(counts)
            and counts[len(counts) - 1 - level] < min(total * fanout, most)
            and counts[len(counts) - 1 - level] * fanout > total
        ):
            level += 1
        if level - joined < fanout - 1:
            return joined
        total += sum(counts[len(counts) - level : len(counts) - joined])
        joined = level


LIST_DECODER: msgspec.json.Decoder[ManifestList] = msgspec.json.Decoder(ManifestList)
