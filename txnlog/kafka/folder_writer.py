"""Writes the files of one partition's folder, as a broker would have. Knows bytes and offsets."""

from __future__ import annotations

from dataclasses import dataclass, field

from txnlog.kafka.folders import LEADER_EPOCHS, leader_epochs, segment_paths
from txnlog.kafka.transaction_tracker import TransactionTracker
from txnlog.names import SegmentPaths
from txnlog.segments.indexes.sparse import MAX_SEGMENT_BYTES, IndexBuilder
from txnlog.segments.indexes.transactions import TransactionIndex
from txnlog.storage.base import Storage, Upload


@dataclass(frozen=True, slots=True)
class FolderSettings:
    """When a segment is rolled, and how dense its indexes are. Bytes."""

    segment_bytes: int
    index_interval_bytes: int


@dataclass(slots=True)
class _OpenSegment:
    base_offset: int
    upload: Upload
    indexes: IndexBuilder
    size_bytes: int = 0


@dataclass(slots=True)
class FolderWriter:
    """Takes batches in the order of their offsets. Call ``finish`` at the end, or ``discard``.

    ``tracker`` follows the batches' transactions, ``epochs`` where each leader epoch begins.
    """

    storage: Storage
    folder: str
    settings: FolderSettings
    tracker: TransactionTracker = field(default_factory=TransactionTracker)
    base_offsets: list[int] = field(default_factory=list)
    epochs: list[tuple[int, int]] = field(default_factory=list)
    size_bytes: int = 0
    end_offset: int = 0
    _segment: _OpenSegment | None = None
    _files: list[str] = field(default_factory=list)

    def begin(self, base_offset: int) -> None:
        """End the current segment, if there is one, and begin one of this name."""
        self._close()
        name = self._paths(base_offset).log
        upload = self.storage.upload(name)
        self._files.append(name)
        self._segment = _OpenSegment(
            base_offset, upload, IndexBuilder(self.settings.index_interval_bytes)
        )
        self.base_offsets.append(base_offset)
        self.end_offset = max(self.end_offset, base_offset)

    def has_room(self, last_offset: int) -> bool:
        """Whether a batch that ends there fits into the current segment."""
        segment = self._segment
        return (
            segment is not None
            and segment.size_bytes < self.settings.segment_bytes
            and last_offset - segment.base_offset <= MAX_SEGMENT_BYTES
        )

    def write(
        self,
        data: bytes,
        *,
        base_offset: int,
        last_offset: int,
        indexed_offsets: tuple[int, int],
        max_timestamp_ms: int,
        leader_epoch: int,
    ) -> None:
        """Add a batch, or several old messages, to the current segment.

        ``indexed_offsets`` are its offsets in the offset index and the time index.
        """
        segment = self._segment
        assert segment is not None
        if leader_epoch >= 0 and (not self.epochs or leader_epoch > self.epochs[-1][0]):
            self.epochs.append((leader_epoch, base_offset))
        first, newest = indexed_offsets
        segment.indexes.add(
            position=segment.size_bytes,
            size_bytes=len(data),
            last_offset=first - segment.base_offset,
            max_timestamp_ms=max_timestamp_ms,
            newest_offset=newest - segment.base_offset,
        )
        segment.upload.write(data)
        segment.size_bytes += len(data)
        self.size_bytes += len(data)
        self.end_offset = last_offset + 1

    def finish(self) -> None:
        """End the last segment and write the files for all of them."""
        self._close()
        aborted = self.tracker.aborted()
        for base, end in zip(self.base_offsets, [*self.base_offsets[1:], 1 << 63], strict=True):
            # A transaction is in the index of the segment that its marker is in.
            ended = [item for item in aborted if base <= item.last_offset < end]
            if ended:
                self._put(self._paths(base).transaction_index, TransactionIndex(ended).encode())
        self._put(f"{self.folder}/{LEADER_EPOCHS}", leader_epochs(self.epochs))

    def discard(self) -> None:
        """Delete everything that was written. Raises StorageError."""
        if self._segment is not None:
            self._segment.upload.discard()
        self.storage.delete(self._files)

    def _close(self) -> None:
        segment = self._segment
        if segment is None:
            return
        segment.upload.close()
        self._segment = None
        index, times = segment.indexes.finish(always_time=True)
        paths = self._paths(segment.base_offset)
        self._put(paths.offset_index, index.encode())
        self._put(paths.time_index, times.encode())

    def _put(self, name: str, data: bytes) -> None:
        self._files.append(name)
        self.storage.put(name, data)

    def _paths(self, base_offset: int) -> SegmentPaths:
        return SegmentPaths(f"{self.folder}/{segment_paths(base_offset).stem}")
