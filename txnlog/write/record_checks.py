"""What a user gives as a record: checked, and turned into what a segment takes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from txnlog.errors import InvalidRecord
from txnlog.log.topic_log import TopicSpec
from txnlog.write.partitioner import Int32Array

Headers = Sequence[tuple[str, bytes | None]]


def to_bytes(value: bytes | str | None, what: str) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise InvalidRecord(f"a record's {what} is no text: {error}") from None
    raise InvalidRecord(f"a record's {what} must be bytes, a string or None, not {value!r:.60}")


def check_timestamp(timestamp_ms: int | None) -> int | None:
    if timestamp_ms is None:
        return None
    whole = isinstance(timestamp_ms, int) and not isinstance(timestamp_ms, bool)
    if whole and -1 <= timestamp_ms < 1 << 53:
        return timestamp_ms
    raise InvalidRecord(f"timestamp_ms must be milliseconds since the epoch, not {timestamp_ms!r}")


def check_headers(headers: Headers | None) -> list[tuple[str, bytes | None]]:
    checked = []
    if isinstance(headers, str | bytes | dict):
        raise InvalidRecord(f"headers must be a list of pairs, not {headers!r:.60}")
    for header in headers or ():
        if not (isinstance(header, tuple) and len(header) == 2 and isinstance(header[0], str)):
            raise InvalidRecord(
                f"a header must be a pair of a string and bytes, not {header!r:.60}"
            )
        to_bytes(header[0], "header's name")
        checked.append((header[0], to_bytes(header[1], "header")))
    return checked


def check_partition(partition: int | None, spec: TopicSpec) -> int:
    if partition is None:
        return -1
    if isinstance(partition, bool) or not isinstance(partition, int):
        raise InvalidRecord(f"partition must be a whole number, not {partition!r}")
    if not 0 <= partition < spec.partitions:
        raise InvalidRecord(
            f"topic {spec.topic!r} has no partition {partition}; it has {spec.partitions}"
        )
    return partition


def partition_column(
    batch: pa.RecordBatch, partition: int | None, spec: TopicSpec
) -> Int32Array | None:
    """The explicit partition of each record, -1 where there is none; None if all have none."""
    if partition is not None:
        return np.full(batch.num_rows, check_partition(partition, spec), dtype=np.int32)
    if "partition" not in batch.schema.names:
        return None
    column = batch.column("partition")
    if not pa.types.is_integer(column.type):
        raise InvalidRecord(f"column 'partition' is {column.type}; an integer type is needed")
    chosen = column.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
    if chosen.size and (int(chosen.min()) < -1 or int(chosen.max()) >= spec.partitions):
        raise InvalidRecord(
            f"column 'partition' holds {int(chosen.min())} to {int(chosen.max())}, but topic "
            f"{spec.topic!r} has {spec.partitions} partitions"
        )
    partitions: Int32Array = chosen.astype(np.int32)
    return partitions
