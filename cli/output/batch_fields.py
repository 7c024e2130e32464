"""How ``segments dump`` shows a batch: with the topic's offsets if they are known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from txnlog.cli.output.escape import Json
from txnlog.cli.output.fields import Field, flag, number, text, time, to_json
from txnlog.cli.output.record_fields import (
    CONTENT,
    PAYLOAD,
    Record,
    read_stored,
    show_content,
)
from txnlog.errors import UnsupportedCompression

if TYPE_CHECKING:
    from txnlog.inspect.descriptions import SegmentDescription
    from txnlog.segments.batch_header import BatchHeader
    from txnlog.segments.inspect.dump import DumpedBatch
    from txnlog.storage.base import Storage


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """A batch in a file, and the segment that the file is; None for a file without a store."""

    path: str
    dumped: DumpedBatch
    segment: SegmentDescription | None

    @property
    def base_offset(self) -> int | None:
        """The topic's offset if the segment is known, else the file's."""
        header = self.dumped.header
        return None if header is None else header.base_offset + self._first_offset

    @property
    def last_offset(self) -> int | None:
        header = self.dumped.header
        return None if header is None else header.last_offset + self._first_offset

    @property
    def producer_id(self) -> int | None:
        header, placed = self.dumped.header, self._placed
        if placed is not None:
            return None if placed.producer_id < 0 else placed.producer_id
        return None if header is None or header.producer_id < 0 else header.producer_id

    @property
    def producer_epoch(self) -> int | None:
        header, placed = self.dumped.header, self._placed
        if placed is not None:
            return None if placed.producer_epoch < 0 else placed.producer_epoch
        return None if header is None or header.producer_epoch < 0 else header.producer_epoch

    @property
    def base_sequence(self) -> int | None:
        """The producer's sequence if the segment is known, else the file's."""
        header, placed = self.dumped.header, self._placed
        if header is None or header.base_sequence < 0:
            return None
        if placed is None:
            return header.base_sequence
        from txnlog.state.producers import advance_sequence

        if placed.base_sequence < 0:
            return None
        return advance_sequence(placed.base_sequence, header.base_sequence)

    @property
    def last_sequence(self) -> int | None:
        """The last record's sequence, like the base sequence."""
        header, base = self.dumped.header, self.base_sequence
        if header is None or base is None:
            return None
        from txnlog.state.producers import advance_sequence

        return advance_sequence(base, header.last_offset_delta)

    @property
    def timestamp_type(self) -> str | None:
        header = self.dumped.header
        if header is None:
            return None
        return "LogAppendTime" if header.is_log_append_time else "CreateTime"

    @property
    def marker(self) -> str | None:
        """The outcome in one of Kafka's control batches."""
        decoded = self.dumped.decoded
        if decoded is None or not decoded.markers:
            return None
        from txnlog.segments.kafka_markers import ABORT, COMMIT

        names = {ABORT: "abort", COMMIT: "commit"}
        return ", ".join(names.get(m.type, f"type {m.type}") for m in decoded.markers)

    @property
    def codec(self) -> str | None:
        header = self.dumped.header
        try:
            return None if header is None else header.codec.kafka_name
        except UnsupportedCompression:
            return "unknown"

    @property
    def source(self) -> str:
        """The file, and the partition if several share it."""
        segment = self.segment
        if segment is None or segment.position < 0:
            return self.path
        return f"{self.path} ({segment.topic}:{segment.partition})"

    @property
    def position(self) -> int:
        """The position in bytes at which the batch begins in its file."""
        return self.dumped.position + (0 if self.segment is None else self.segment.ref.start)

    @property
    def _placed(self) -> SegmentDescription | None:
        """Facts from the log instead of the file; none for a file from Kafka."""
        return None if self.segment is None or self.segment.from_kafka else self.segment

    @property
    def _first_offset(self) -> int:
        return 0 if self._placed is None else self._placed.base_offset

    def records(self) -> Iterator[Record]:
        """The records, if they can be decoded."""
        decoded = self.dumped.decoded
        if decoded is None:
            return
        first = decoded.header.base_offset + self._first_offset
        deltas = decoded.offset_deltas
        for row, content in enumerate(read_stored(decoded.records)):
            offset = first + (row if deltas is None else int(deltas[row]))
            yield Record(None, None, None, offset, content)


def _get_number(get: Callable[[BatchHeader], int]) -> Callable[[Batch], int | None]:
    return lambda batch: None if batch.dumped.header is None else get(batch.dumped.header)


def _get_flag(get: Callable[[BatchHeader], bool]) -> Callable[[Batch], bool | None]:
    return lambda batch: None if batch.dumped.header is None else get(batch.dumped.header)


def _get_records(shown: Sequence[Field[Record]]) -> Callable[[Batch], Json]:
    def get(batch: Batch) -> Json:
        if batch.dumped.decoded is None:
            return None
        return [to_json(shown, record) for record in batch.records()]

    return get


def batch_fields(*, with_records: bool, metadata: bool = True) -> list[Field[Batch]]:
    """The fields of a batch; without ``metadata`` only keys and values of its records."""
    fields: list[Field[Batch]] = [
        text("topic", None, lambda batch: batch.segment.topic if batch.segment else None),
        number("partition", None, lambda batch: batch.segment.partition if batch.segment else None),
        text("segment", None, lambda batch: batch.segment.name if batch.segment else None),
        text("path", None, lambda batch: batch.path),
        number("base_offset", "BASE", lambda batch: batch.base_offset),
        number("last_offset", "LAST", lambda batch: batch.last_offset),
        number("position", "POSITION", lambda batch: batch.position),
        number("size_bytes", "BYTES", lambda batch: batch.dumped.size_bytes),
        number("record_count", "RECORDS", _get_number(lambda head: head.record_count)),
        text("codec", "CODEC", lambda batch: batch.codec),
        text("marker", "MARKER", lambda batch: batch.marker, wide=True),
        Field("crc", "CRC", _get_number(lambda head: head.crc), _show_crc, numeric=True, wide=True),
        flag("crc_ok", "VALID", lambda batch: batch.dumped.crc_ok, "ok", "BAD"),
        number("magic", "MAGIC", _get_number(lambda head: head.magic), wide=True),
        time("max_timestamp_ms", "MAX TIMESTAMP", _get_number(lambda h: h.max_timestamp_ms)),
        time(
            "base_timestamp_ms",
            "BASE TIMESTAMP",
            _get_number(lambda head: head.base_timestamp_ms),
            wide=True,
        ),
        number("producer_id", "PRODUCER", lambda batch: batch.producer_id, wide=True),
        number("producer_epoch", "EPOCH", lambda batch: batch.producer_epoch, wide=True),
        number("base_sequence", "SEQUENCE", lambda batch: batch.base_sequence, wide=True),
        number("last_sequence", None, lambda batch: batch.last_sequence),
        number("leader_epoch", None, _get_number(lambda head: head.kafka_leader_epoch)),
        text("timestamp_type", None, lambda batch: batch.timestamp_type),
        flag("transactional", None, _get_flag(lambda head: head.is_transactional), "yes", "no"),
        flag("control", None, _get_flag(lambda head: head.is_control), "yes", "no"),
        text("damage", None, lambda batch: batch.dumped.damage),
    ]
    if with_records:
        shown = CONTENT if metadata else PAYLOAD
        fields.append(Field("records", None, _get_records(shown), lambda _: ""))
    return fields


def show_records(batch: Batch, *, metadata: bool = True) -> Iterator[str]:
    """The records of a batch for people, one per line."""
    return (show_content(record, metadata=metadata) for record in batch.records())


def _show_crc(batch: Batch) -> str:
    return "-" if batch.dumped.header is None else f"{batch.dumped.header.crc:08x}"


def read_placed_batches(storage: Storage, segment: SegmentDescription) -> Iterator[Batch]:
    """The content of a segment in a store."""
    from txnlog.inspect.segments import dump_placed_segment

    for dumped in dump_placed_segment(storage, segment):
        yield Batch(segment.paths.log, dumped, segment)


def read_file_batches(path: str, storage_options: Mapping[str, object]) -> Iterator[Batch]:
    """The content of a segment file outside a store. Raises StorageError."""
    from txnlog.inspect.files import open_segment_file
    from txnlog.segments.inspect.dump import dump_segment

    with open_segment_file(path, storage_options) as file:
        for dumped in dump_segment(file):
            yield Batch(file.name, dumped, None)
