"""Compacts one partition: reads its keys, decides what stays, and writes that into new segments.

The new segments are yielded group by group, to be put into the log before the next group. It
changes nothing itself: a crash leaves files that nothing refers to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Final

import pyarrow as pa

from txnlog.admin.compaction.cleanable import Cleanable, Group, SegmentFacts, group_segments
from txnlog.admin.compaction.record_keys import RecordKeys
from txnlog.admin.compaction.span_writer import SpanWriter
from txnlog.admin.compaction.survivors import DEFAULT_MEMORY_BYTES, Survivors, find_survivors
from txnlog.admin.compaction.tombstones import horizon_of, is_due
from txnlog.admin.rewrite import Replacement
from txnlog.clock import Clock
from txnlog.columns.keys import Mask
from txnlog.config import TopicConfig
from txnlog.errors import CorruptRecord
from txnlog.log.uploads import TopicSpec
from txnlog.read.plan import SegmentRange
from txnlog.read.stored_reader import read_stored
from txnlog.segments.reader import SegmentBatch
from txnlog.segments.records import Int64Array
from txnlog.storage.base import Storage

DEFAULT_GROUP_BYTES: Final = 1 << 30
"""How much is rewritten with one entry of the log: what a crash loses."""


@dataclass(frozen=True, slots=True)
class SourceSegment:
    """An existing segment: its facts, and how to read its records.

    ``part`` is None if none of its records is visible (they were aborted). The segment covers the
    offsets of ``facts``; ``part`` may begin later, at the log start. Between ``start`` and them
    earlier compactions have left nothing: what takes its place covers them too, or each of these
    would be remembered for ever.
    """

    facts: SegmentFacts
    part: SegmentRange | None
    start: int

    @property
    def most_records(self) -> int:
        """How many records it holds, at most."""
        return 0 if self.part is None else self.part.segment.stored.record_count


@dataclass(frozen=True, slots=True)
class CompactedGroup:
    """New segments for adjacent ones: sources [start, stop) of the partition.

    ``spans`` cover their offsets without a gap. Counts are of records read, and of those that have
    stayed; sizes are in bytes.
    """

    start: int
    stop: int
    spans: tuple[Replacement, ...]
    records_before: int
    records_after: int
    bytes_before: int
    bytes_after: int


class Cleaner:
    """One compaction of a partition; the new segments are written by the topic's current settings.

    ``now_ms`` is by the earliest clock available: due by it means due by all. The keys processed
    together take ``memory_bytes`` at most; one entry rewrites ``group_bytes``.
    """

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        spec: TopicSpec,
        partition: int,
        *,
        now_ms: int,
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
        group_bytes: int = DEFAULT_GROUP_BYTES,
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._spec = spec
        self._partition = partition
        self._config = TopicConfig.of(spec.config)
        self._keys = RecordKeys(spec.schema)
        self._now_ms = now_ms
        self._memory_bytes = memory_bytes
        self._group_bytes = group_bytes

    def clean(
        self, sources: Sequence[SourceSegment], cleanable: Cleanable
    ) -> Iterator[CompactedGroup]:
        """Yield new segments for old ones, in the order in which they must be put into the log.

        If one cannot be put, those after it must not be. ``sources`` are all segments of the
        partition, from its log start on. Raises CorruptRecord: one is damaged or gone;
        StorageError. Groups yielded before are valid.
        """
        end = cleanable.clean + cleanable.dirty
        clean, dirty = _Side(sources[: cleanable.clean]), _Side(sources[cleanable.clean : end])
        survivors = Survivors(clean.count, dirty.count)
        if dirty.sources:
            survivors = find_survivors(
                partial(self._read_keys, clean),
                partial(self._read_keys, dirty),
                clean.count,
                dirty.count,
                self._memory_bytes,
            )
        groups = group_segments(
            [source.facts for source in sources],
            cleanable,
            lambda number: survivors.superseded(*clean.positions(number)) > 0,
            self._config,
            # Another one is written with the entry that makes them clean.
            new_horizon_ms=horizon_of(self._now_ms, self._config.delete_retention_ms),
            now_ms=self._now_ms,
            max_input_bytes=self._group_bytes,
        )
        for group in groups:
            if group.is_dirty:
                chosen = range(group.start - cleanable.clean, group.stop - cleanable.clean)
                yield self._rewrite(group, dirty, chosen, survivors.of_dirty)
            else:
                chosen = range(group.start, group.stop)
                yield self._rewrite(group, clean, chosen, survivors.of_clean)

    def _read_keys(self, side: _Side) -> Iterator[tuple[int, pa.Array]]:
        columns = self._keys.key_columns
        for _, position, batch in self._read(side, range(len(side.sources)), columns):
            yield position, self._keys.keys(batch.records)

    def _rewrite(
        self, group: Group, side: _Side, chosen: range, survive: Callable[[int, int], Mask]
    ) -> CompactedGroup:
        sources = [side.sources[number] for number in chosen]
        facts = [source.facts for source in sources]
        writer = SpanWriter(
            self._storage,
            self._spec,
            self._partition,
            self._clock,
            start=sources[0].start,
            delete_horizon_ms=group.delete_horizon_ms,
        )
        before = after = 0
        try:
            for source, position, batch in self._read(side, chosen, self._keys.columns):
                stays = survive(position, position + batch.record_count)
                if not group.is_dirty and is_due(source.facts.delete_horizon_ms, self._now_ms):
                    stays &= ~self._keys.deleting(batch.records)
                assert source.part is not None
                records, offsets = kept_records(source.part, batch, stays, self._keys.columns)
                before += batch.record_count
                after += records.num_rows
                writer.append(records, offsets)
            spans = writer.finish(facts[-1].end_offset)
        except BaseException:
            writer.discard()
            raise
        return CompactedGroup(
            start=group.start,
            stop=group.stop,
            spans=tuple(spans),
            records_before=before,
            records_after=after,
            bytes_before=sum(fact.size_bytes for fact in facts),
            bytes_after=sum(span.uploaded.stored.size_bytes for span in spans if span.uploaded),
        )

    def _read(
        self, side: _Side, chosen: range, columns: pa.Schema
    ) -> Iterator[tuple[SourceSegment, int, SegmentBatch]]:
        """The batches of some sources, each with the position of its first record."""
        numbers = [number for number in chosen if side.sources[number].part is not None]
        parts = [part for number in numbers if (part := side.sources[number].part) is not None]
        with closing(read_stored(self._storage, parts, columns)) as reads:
            for number, (part, batches) in zip(numbers, reads, strict=True):
                position, stop = side.positions(number)
                for batch in batches:
                    if position + batch.record_count > stop:
                        raise CorruptRecord(
                            f"segment {part.paths.log} has more records than the "
                            f"{part.segment.stored.record_count} that the log has placed; "
                            "restore it from a backup"
                        )
                    yield side.sources[number], position, batch
                    position += batch.record_count


class _Side:
    """The clean or the dirty part: its segments, and the positions of their records."""

    def __init__(self, sources: Sequence[SourceSegment]) -> None:
        self.sources = sources
        self._ends = list(accumulate(source.most_records for source in sources))

    @property
    def count(self) -> int:
        """The number of positions: each is below it."""
        return self._ends[-1] if self._ends else 0

    def positions(self, number: int) -> tuple[int, int]:
        """The positions [start, stop) of the records of one source."""
        return (self._ends[number - 1] if number else 0), self._ends[number]


def kept_records(
    part: SegmentRange, batch: SegmentBatch, stays: Mask, schema: pa.Schema
) -> tuple[pa.RecordBatch, Int64Array]:
    """The records of a batch that stay, and the partition's own offsets of them."""
    offsets = batch.offsets() + part.segment.offset_shift
    records = pa.RecordBatch.from_arrays(batch.records.columns, schema=schema)
    if stays.all():
        return records, offsets
    return records.filter(pa.array(stays)), offsets[stays]
