"""Kafka's transaction markers: the records of control batches, which are not data.

Key: version int16, type int16. Value: version int16, coordinator epoch int32.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from txnlog.segments.records import RECORD_SCHEMA, Int64Array, constant_timestamps, empty_headers

ABORT: Final = 0
COMMIT: Final = 1
MARKER_BYTES: Final = 78
"""A control batch with one marker."""

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
_VERSION = 0


@dataclass(frozen=True, slots=True)
class ControlMarker:
    """One control record. ``type`` is ABORT, COMMIT or one of Kafka's that do not concern data.

    ``offset`` is the marker's own, as in the file; ``coordinator_epoch`` is None for other types.
    """

    offset: int
    timestamp_ms: int
    type: int
    coordinator_epoch: int | None


def decode_markers(records: pa.RecordBatch, offsets: Int64Array) -> tuple[ControlMarker, ...]:
    """Decode the records of a control batch. Raises ValueError or struct.error.

    Later versions may append to key and value, so further bytes are ignored.
    """
    markers = []
    times = records.column("timestamp").cast(pa.int64()).to_pylist()
    keys, values = records.column("key").to_pylist(), records.column("value").to_pylist()
    for offset, time, key, value in zip(offsets.tolist(), times, keys, values, strict=True):
        if key is None:
            raise ValueError("a control record has no key")
        _, kind = _KEY.unpack_from(key)
        epoch = None
        if kind in (ABORT, COMMIT):
            if value is None:
                raise ValueError("a transaction marker has no value")
            _, epoch = _VALUE.unpack_from(value)
        markers.append(ControlMarker(offset, time, kind, epoch))
    return tuple(markers)


def marker_record(kind: int, timestamp_ms: int, coordinator_epoch: int) -> pa.RecordBatch:
    """The one record, of RECORD_SCHEMA, that a transaction marker's batch holds."""
    return pa.RecordBatch.from_arrays(
        [
            pa.array([_KEY.pack(_VERSION, kind)], pa.binary()),
            pa.array([_VALUE.pack(_VERSION, coordinator_epoch)], pa.binary()),
            constant_timestamps(timestamp_ms, 1),
            empty_headers(1),
        ],
        schema=RECORD_SCHEMA,
    )
