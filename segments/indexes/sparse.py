"""The sparse offset and time indexes of a segment, in Kafka's layouts. Knows no batches.

Both only make reading faster. A reader checks the batch at an entry's position and goes on without
an index if they disagree, so a wrong one costs time and never records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from txnlog.segments.batch_header import BytesLike
from txnlog.segments.errors import CorruptRecord, SegmentTooLarge

MAX_SEGMENT_BYTES: Final = (1 << 31) - 1
DEFAULT_INDEX_INTERVAL_BYTES: Final = 4096

# offset: last offset of the batch, relative to the segment; position: where the batch starts.
OFFSET_ENTRY: Final = np.dtype([("offset", ">i4"), ("position", ">i4")])
# timestamp: ms, the largest in the segment so far; offset: last offset of the batch that has it.
TIME_ENTRY: Final = np.dtype([("timestamp", ">i8"), ("offset", ">i4")])

Entries = npt.NDArray[np.void]


class OffsetEntry(NamedTuple):
    """The batch at ``position`` (bytes) ends with ``offset``; -1 means the segment's start."""

    offset: int
    position: int


class TimeEntry(NamedTuple):
    """No record after ``offset`` is needed to find timestamps up to ``timestamp_ms``."""

    timestamp_ms: int
    offset: int


SEGMENT_START: Final = OffsetEntry(-1, 0)


@dataclass(frozen=True, slots=True, eq=False)
class OffsetIndex:
    """Entries of OFFSET_ENTRY, ascending strictly in both fields."""

    entries: Entries

    @classmethod
    def decode(
        cls, data: BytesLike, *, name: str = "index", segment_bytes: int = MAX_SEGMENT_BYTES
    ) -> OffsetIndex:
        """Raises CorruptRecord if the entries cannot be those of a segment of that size."""
        entries = _decode_entries(data, OFFSET_ENTRY, name)
        _check_ascending(entries["offset"], 0, name, "offsets")
        _check_ascending(entries["position"], 0, name, "positions")
        if len(entries) and entries["position"][-1] >= segment_bytes:
            raise CorruptRecord(
                f"{name}: position {entries['position'][-1]} lies beyond the segment's "
                f"{segment_bytes} bytes"
            )
        return cls(entries)

    def encode(self) -> bytes:
        """8 bytes for each entry."""
        return self.entries.tobytes()

    def __len__(self) -> int:
        return len(self.entries)

    def lookup(self, offset: int) -> OffsetEntry:
        """The greatest entry at or below ``offset``, else the segment's start."""
        found = int(np.searchsorted(self.entries["offset"], offset, side="right")) - 1
        if found < 0:
            return SEGMENT_START
        entry = self.entries[found]
        return OffsetEntry(int(entry["offset"]), int(entry["position"]))

    def stop_position(self, stop_offset: int) -> int | None:
        """A position that no batch before ``stop_offset`` reaches beyond; None if not known."""
        # The first entry at or after the last wanted offset belongs to a batch that is needed at
        # most; the entry behind it starts where that batch, or a later one, has ended.
        found = int(np.searchsorted(self.entries["offset"], stop_offset - 1, side="left")) + 1
        return int(self.entries["position"][found]) if found < len(self.entries) else None


@dataclass(frozen=True, slots=True, eq=False)
class TimeIndex:
    """Entries of TIME_ENTRY, ascending strictly in both fields."""

    entries: Entries

    @classmethod
    def decode(cls, data: BytesLike, *, name: str = "timeindex") -> TimeIndex:
        """Raises CorruptRecord if the entries cannot be those of any segment."""
        entries = _decode_entries(data, TIME_ENTRY, name)
        _check_ascending(entries["offset"], 0, name, "offsets")
        _check_ascending(entries["timestamp"], None, name, "timestamps")
        return cls(entries)

    def encode(self) -> bytes:
        """12 bytes for each entry."""
        return self.entries.tobytes()

    def __len__(self) -> int:
        return len(self.entries)

    def lookup(self, timestamp_ms: int) -> TimeEntry | None:
        """The greatest entry at or below ``timestamp_ms``; None if there is none.

        Every record before the batch that ends with its offset is older than the entry, so the
        first record at or after ``timestamp_ms`` is in that batch or behind it.
        """
        found = int(np.searchsorted(self.entries["timestamp"], timestamp_ms, side="right")) - 1
        if found < 0:
            return None
        entry = self.entries[found]
        return TimeEntry(int(entry["timestamp"]), int(entry["offset"]))


class IndexBuilder:
    """Collects entries as Kafka does: one when ``interval_bytes`` have passed since the last."""

    def __init__(self, interval_bytes: int = DEFAULT_INDEX_INTERVAL_BYTES) -> None:
        self._interval_bytes = interval_bytes
        self._bytes_since_entry = 0
        self._offsets: list[tuple[int, int]] = []
        self._times: list[tuple[int, int]] = []
        self._latest: tuple[int, int] | None = None  # max timestamp so far, its batch's last offset

    def add(
        self,
        *,
        position: int,
        size_bytes: int,
        last_offset: int,
        max_timestamp_ms: int,
        newest_offset: int | None = None,
    ) -> None:
        """Add a batch of the segment, in the order of the file.

        For a run of old messages ``last_offset`` is that of the first one, at ``position``, and
        ``newest_offset`` that of the one with the largest timestamp. Raises SegmentTooLarge if the
        segment would not fit the index's 32-bit fields.
        """
        if position + size_bytes > MAX_SEGMENT_BYTES or last_offset > MAX_SEGMENT_BYTES:
            raise SegmentTooLarge(
                f"a batch of {size_bytes} bytes at byte {position} with last relative offset "
                f"{last_offset} takes the segment over its limit {MAX_SEGMENT_BYTES}: "
                "roll to a new segment earlier (segment.bytes)"
            )
        if self._latest is None or max_timestamp_ms > self._latest[0]:
            newest = last_offset if newest_offset is None else newest_offset
            self._latest = (max_timestamp_ms, newest)
        if position > 0 and self._bytes_since_entry > self._interval_bytes:
            self._offsets.append((last_offset, position))
            self._add_time()
            self._bytes_since_entry = 0
        self._bytes_since_entry += size_bytes

    def finish(self, *, always_time: bool = False) -> tuple[OffsetIndex, TimeIndex]:
        """Both are empty for a segment that is not worth indexing, such as a single batch.

        With ``always_time`` the time index still ends with the segment's largest timestamp, as in
        Kafka's.
        """
        if self._offsets or always_time:
            self._add_time()
        offsets = np.array(self._offsets, dtype=OFFSET_ENTRY)
        return OffsetIndex(offsets), TimeIndex(np.array(self._times, dtype=TIME_ENTRY))

    def _add_time(self) -> None:
        latest = self._latest
        # Kafka's oldest messages have no time, which is -1.
        if latest is None or latest[0] < 0:
            return
        if not self._times or latest[0] > self._times[-1][0]:
            self._times.append(latest)


def _decode_entries(data: BytesLike, layout: np.dtype[np.void], name: str) -> Entries:
    if len(data) % layout.itemsize:
        raise CorruptRecord(
            f"{name}: {len(data)} bytes are not a whole number of {layout.itemsize}-byte entries"
        )
    return np.frombuffer(data, dtype=layout)


def _check_ascending(
    values: npt.NDArray[np.integer], least: int | None, name: str, what: str
) -> None:
    if len(values) == 0:
        return
    if least is not None and values[0] < least:
        raise CorruptRecord(f"{name}: {what} start below {least}")
    falls = np.flatnonzero(values[1:] <= values[:-1])
    if len(falls):
        raise CorruptRecord(f"{name}: {what} do not ascend after entry {int(falls[0])}")
