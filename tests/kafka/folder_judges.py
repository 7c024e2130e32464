"""Reads a partition folder with libraries that know Kafka's formats and share no code with txnlog.

What a consumer would be shown is worked out here from control batches alone, as a client does.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiokafka.record.control_record import ControlRecord
from aiokafka.record.memory_records import MemoryRecords as AioRecords

from tests.kafka.broker_folders import Record

with warnings.catch_warnings():  # kafka-python loads its messages in a way that 3.11 warns of
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record import MemoryRecords


@dataclass(frozen=True)
class JudgedBatch:
    """One batch as a library sees it; its checksum was right. ``commit`` is a marker's word."""

    base_offset: int
    producer_id: int
    base_sequence: int
    transactional: bool
    commit: bool | None
    records: list[Record]


def _kafka_python(data: bytes) -> Iterator[JudgedBatch]:
    for batch in MemoryRecords(data):
        yield _judged(batch, lambda record: bool(record.commit))


def _aiokafka(data: bytes) -> Iterator[JudgedBatch]:
    batches = AioRecords(data)
    while batches.has_next():
        yield _judged(
            batches.next_batch(), lambda record: ControlRecord.parse(record.key).type_ == 1
        )


def _judged(batch: Any, is_commit: Callable[[Any], bool]) -> JudgedBatch:
    assert batch.validate_crc()
    is_old = not hasattr(batch, "base_sequence")  # a message set of magic 0 or 1
    records = list(batch)
    commit = None
    if not is_old and batch.is_control_batch:
        (marker,) = records
        commit, offset = is_commit(marker), marker.offset
        return JudgedBatch(offset, batch.producer_id, -1, batch.is_transactional, commit, [])
    rows: list[Record] = [
        (
            record.offset,
            -1 if record.timestamp is None else record.timestamp,
            record.timestamp_type or 0,
            record.key,
            record.value,
            [tuple(header) for header in record.headers],
        )
        for record in records
    ]
    if is_old:
        return JudgedBatch(rows[0][0], -1, -1, False, None, rows)
    return JudgedBatch(
        batch.base_offset,
        batch.producer_id,
        batch.base_sequence,
        batch.is_transactional,
        None,
        rows,
    )


JUDGES = {"kafka-python": _kafka_python, "aiokafka": _aiokafka}


def batches(folder: Path, judge: str) -> list[JudgedBatch]:
    """All batches of a folder, in the order of its segments."""
    found = []
    for path in sorted(folder.glob("*.log")):
        inside = list(JUDGES[judge](path.read_bytes()))
        assert all(batch.base_offset >= int(path.stem) for batch in inside)
        found += inside
    offsets = [batch.base_offset for batch in found]
    assert offsets == sorted(set(offsets))
    return found


def records_of_batches(found: list[JudgedBatch]) -> list[Record]:
    """What a consumer under read_uncommitted is shown."""
    return [record for batch in found for record in batch.records]


def committed_records(found: list[JudgedBatch]) -> list[Record]:
    """What a consumer under read_committed is shown: up to the first transaction without end."""
    shown: list[Record] = []
    pending: dict[int, list[Record]] = {}
    for batch in found:
        if batch.commit is not None:
            ended = pending.pop(batch.producer_id, [])
            shown += ended if batch.commit else []
        elif batch.transactional:
            pending.setdefault(batch.producer_id, []).extend(batch.records)
        else:
            shown += batch.records
    stable = min((records[0][0] for records in pending.values()), default=1 << 63)
    return sorted(record for record in shown if record[0] < stable)
