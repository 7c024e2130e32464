"""How old records are, though their times may be missing, or wrong."""

from __future__ import annotations

from dataclasses import dataclass

from txnlog.config import FUTURE_MS
from txnlog.errors import ObjectNotFound
from txnlog.names import SegmentRef
from txnlog.state.segment import Segment
from txnlog.storage.base import Storage


@dataclass(frozen=True, slots=True)
class FutureRecords:
    """A segment whose newest record has a time that lies in the future by more than an hour.

    It holds the offsets [``base_offset``, ``end_offset``); ``timestamp_ms`` is that time. Retention
    goes by the time of its upload instead, if the storage tells it.
    """

    topic: str
    partition: int
    base_offset: int
    end_offset: int
    timestamp_ms: int


def lies_ahead(timestamp_ms: int, now_ms: int) -> bool:
    """Whether a record's time cannot be right: clocks do not differ by that much."""
    return timestamp_ms - now_ms > FUTURE_MS


def newest_record_ms(
    storage: Storage, topic: str, partition: int, segment: Segment, now_ms: int
) -> int | None:
    """When the newest record of a segment was made, as far as is known; None if it is not.

    Records of Kafka's first format have no time. As in Kafka, the file's is used then; also if the
    time lies in the future, since no record was made after its upload.
    """
    said_ms = segment.stored.max_timestamp_ms
    if said_ms >= 0 and not lies_ahead(said_ms, now_ms):
        return said_ms
    try:
        put_ms = storage.modified_ms(
            SegmentRef(topic, partition, segment.stored.name, segment.stored.position).paths.log
        )
    except ObjectNotFound:
        put_ms = None  # it is missing, or others have deleted it
    if said_ms < 0:
        return put_ms
    return said_ms if put_ms is None else min(said_ms, put_ms)
