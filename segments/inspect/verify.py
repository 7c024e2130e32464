"""Verifies a whole segment: its sound and its damaged parts. Read-only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from txnlog.segments.inspect.dump import DumpedBatch
from txnlog.segments.records import time_column, timestamps_ms


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes [position, position + size_bytes) that cannot be read, and why."""

    position: int
    size_bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class Verification:
    """The content of a segment.

    Counts, timestamps (None if there are no records) and ``next_offset``, the offset after the last
    one, are those of sound batches; Kafka's markers are not records. Damages are in the order
    of their positions.
    """

    size_bytes: int
    batch_count: int
    record_count: int
    next_offset: int
    min_timestamp_ms: int | None
    max_timestamp_ms: int | None
    damages: tuple[Damage, ...]


def verify_batches(batches: Iterable[DumpedBatch]) -> Verification:
    """The summary of a segment's batches and damaged stretches, in order."""
    size_bytes = batch_count = record_count = next_offset = 0
    min_ms: int | None = None
    max_ms: int | None = None
    damages: list[Damage] = []
    for batch in batches:
        size_bytes += batch.size_bytes
        if batch.decoded is None:
            damages.append(Damage(batch.position, batch.size_bytes, str(batch.damage)))
            continue
        batch_count += 1
        next_offset = batch.decoded.header.last_offset + 1
        records = batch.decoded.records
        record_count += records.num_rows
        has_times = time_column(records.schema.names) is not None
        if records.num_rows and has_times:
            times = timestamps_ms(records)
            first_ms, last_ms = int(times.min()), int(times.max())
            min_ms = first_ms if min_ms is None else min(min_ms, first_ms)
            max_ms = last_ms if max_ms is None else max(max_ms, last_ms)
    return Verification(
        size_bytes=size_bytes,
        batch_count=batch_count,
        record_count=record_count,
        next_offset=next_offset,
        min_timestamp_ms=min_ms,
        max_timestamp_ms=max_ms,
        damages=tuple(damages),
    )
