"""Two libraries that know Kafka's formats and share no code with txnlog, behind one interface."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from aiokafka.record.control_record import ControlRecord
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder as AioLegacyBuilder
from aiokafka.record.memory_records import MemoryRecords as AioRecords

from tests.support.segments.segment_samples import Row

with warnings.catch_warnings():  # kafka-python loads its messages in a way that 3.11 warns of
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record import MemoryRecords
    from kafka.record.default_records import DefaultRecordBatchBuilder
    from kafka.record.legacy_records import LegacyRecordBatchBuilder

NO_TIMESTAMP = -1
BATCH_BYTES = 1 << 30

Read = tuple[list[int], list[Row]]


@dataclass(frozen=True)
class Judge:
    """``read`` gives offsets and rows of all batches in the bytes; ``write`` makes one batch.

    ``read`` fails if a checksum is wrong. What v0 and v1 cannot say is -1 or empty in rows.
    """

    name: str
    read: Callable[[bytes], Read]
    write: Callable[[Sequence[Row], int, int], bytes]

    def can(self, magic: int, codec: int) -> bool:
        """Whether the format allows the codec and the library implements it."""
        if magic < 2 and codec == 4:
            return False
        return not (self.name == "aiokafka" and (magic, codec) == (0, 3))


def _rows(batches: Iterable[Any]) -> Read:
    offsets, rows = [], []
    for batch in batches:
        assert batch.validate_crc()
        for record in batch:
            offsets.append(record.offset)
            time = NO_TIMESTAMP if record.timestamp is None else record.timestamp
            rows.append((record.key, record.value, time, list(record.headers)))
    return offsets, rows


def _append_all(builder: Any, rows: Sequence[Row], magic: int) -> bytes:
    for offset, (key, value, time, headers) in enumerate(rows):
        arguments = {"timestamp": time, "key": key, "value": value}
        kept = headers if magic == 2 else []
        assert builder.append(offset, *arguments.values(), headers=kept) is not None
    return bytes(builder.build())


def _kafka_python_read(data: bytes) -> Read:
    return _rows(MemoryRecords(data))


def _kafka_python_write(rows: Sequence[Row], magic: int, codec: int) -> bytes:
    if magic < 2:
        return _append_all(LegacyRecordBatchBuilder(magic, codec, BATCH_BYTES), rows, magic)
    builder = DefaultRecordBatchBuilder(2, codec, False, -1, -1, -1, BATCH_BYTES)
    return _append_all(builder, rows, magic)


def _aiokafka_read(data: bytes) -> Read:
    return _rows(_aiokafka_batches(data))


def _aiokafka_batches(data: bytes) -> Iterable[Any]:
    records = AioRecords(data)
    while records.has_next():
        yield records.next_batch()


def _aiokafka_write(rows: Sequence[Row], magic: int, codec: int) -> bytes:
    if magic < 2:
        return _append_all(AioLegacyBuilder(magic, codec, BATCH_BYTES), rows, magic)
    builder = AioBuilder(2, codec, 0, -1, -1, -1, BATCH_BYTES)
    return _append_all(builder, rows, magic)


JUDGES = [
    Judge("kafka-python", _kafka_python_read, _kafka_python_write),
    Judge("aiokafka", _aiokafka_read, _aiokafka_write),
]


@dataclass(frozen=True)
class Marker:
    """What a judge says of a control record."""

    offset: int
    is_commit: bool


def markers_read(data: bytes) -> list[list[Marker]]:
    """The markers of control batches, as each judge sees them."""
    theirs: list[Marker] = []
    for batch in MemoryRecords(data):
        assert batch.is_control_batch
        assert batch.is_transactional
        theirs += [Marker(record.offset, record.commit) for record in batch]
    others: list[Marker] = []
    for batch in _aiokafka_batches(data):
        assert batch.is_control_batch
        assert batch.is_transactional
        others += [
            Marker(record.offset, ControlRecord.parse(record.key).type_ == 1) for record in batch
        ]
    return [theirs, others]
