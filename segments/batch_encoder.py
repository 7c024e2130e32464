"""Encodes a segment's batches, one after another, and the indexes beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from txnlog.segments.batch_header import (
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TAG,
    Compression,
)
from txnlog.segments.batches import check_format, encode_batch
from txnlog.segments.formats.columns import is_typed
from txnlog.segments.indexes.sparse import IndexBuilder
from txnlog.segments.records import Int32Array, concat_batches, timestamps_ms


class SupportsWrite(Protocol):
    """The destination of a segment: a file, a buffer, an upload."""

    def write(self, data: bytes, /) -> object: ...


@dataclass(frozen=True, slots=True)
class SegmentEnd:
    """The end of a segment: how many more bytes were written, the index files, and its tag."""

    size_bytes: int
    index: bytes
    time_index: bytes
    tag: int


class SegmentEncoder(Protocol):
    """Writes batches to a sink, in the order of their offsets, and then the end."""

    @property
    def overhead_bytes(self) -> int:
        """About how many bytes the file takes at most besides its records."""

    def write(
        self,
        pieces: Sequence[pa.RecordBatch],
        base_offset: int,
        offset_deltas: Int32Array | None,
    ) -> int:
        """Write records, given in pieces, as one batch; returns how many bytes it took."""

    def finish(self) -> SegmentEnd: ...


# The most that a batch takes besides its records: its header; the schema and the layout of columns,
# or a codec's frame around rows.
_OVERHEAD_BYTES = {"columns": 1536, "kafka": 128}
_COLUMN_BYTES = 128
"""About what the layout of a typed topic's column adds, besides its schema."""


class BatchEncoder:
    """Batches in columns, packed if they are few, or in Kafka's own format.

    Each carries the tag, if there is one, and in Kafka's format the producer's id and epoch.
    """

    def __init__(
        self,
        sink: SupportsWrite,
        *,
        record_format: str,
        compression: Compression,
        level: int | None,
        index_interval_bytes: int,
        tag: int,
        producer: tuple[int, int] | None,
    ) -> None:
        check_format(record_format)
        self.overhead_bytes = _OVERHEAD_BYTES[record_format]
        self._sink = sink
        self._record_format = record_format
        self._tag = tag
        self._leader_epoch = NO_LEADER_EPOCH if tag == NO_TAG else tag
        self._is_rows = record_format == "kafka"
        self._producer_id, self._producer_epoch = NO_PRODUCER_ID, NO_PRODUCER_EPOCH
        if self._is_rows and producer is not None:
            self._producer_id, self._producer_epoch = producer
        self._compression = compression
        self._level = level
        self._indexes = IndexBuilder(index_interval_bytes)
        self._size_bytes = 0

    def write(
        self,
        pieces: Sequence[pa.RecordBatch],
        base_offset: int,
        offset_deltas: Int32Array | None,
    ) -> int:
        records = concat_batches(pieces)
        if self._size_bytes == 0 and is_typed(records):
            schema = records.schema
            self.overhead_bytes += schema.serialize().size + len(schema) * _COLUMN_BYTES
        data = encode_batch(
            records,
            record_format=self._record_format,
            compression=self._compression,
            level=self._level,
            base_offset=base_offset,
            offset_deltas=offset_deltas,
            producer_id=self._producer_id,
            base_sequence=base_offset,
            guarded=self._is_rows,
            producer_epoch=self._producer_epoch,
            leader_epoch=self._leader_epoch,
            packs_few=True,
        )
        last_delta = records.num_rows - 1 if offset_deltas is None else int(offset_deltas[-1])
        # Before the bytes: a batch that does not fit must not be in the file either.
        self._indexes.add(
            position=self._size_bytes,
            size_bytes=len(data),
            last_offset=base_offset + last_delta,
            max_timestamp_ms=int(timestamps_ms(records).max()),
        )
        self._sink.write(data)
        self._size_bytes += len(data)
        return len(data)

    def finish(self) -> SegmentEnd:
        index, time_index = self._indexes.finish()
        return SegmentEnd(0, index.encode(), time_index.encode(), self._tag)
