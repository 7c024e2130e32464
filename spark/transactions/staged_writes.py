"""The uploads of a ``transaction(...)`` block's writes, until the block ends."""

from __future__ import annotations

import logging
from threading import RLock

from txnlog.errors import InvalidTxnState, ObjectNotFound, TxnlogError
from txnlog.log.uploads import UploadedSegment
from txnlog.names import staging_file
from txnlog.spark.batch import commit
from txnlog.spark.batch.commit import SegmentsByTopic, StagedWrite, read_staged
from txnlog.store import Store

_logger = logging.getLogger(__name__)


class StagedWrites:
    """Staged files of writes that run, or have failed, and the segments of those that succeeded.

    Several writes may run at once, in threads.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._token = store.logs.clock.token()
        self._count = 0
        self._files: set[str] = set()
        self._closed = False
        self._mutex = RLock()
        self.segments: dict[str, list[UploadedSegment]] = {}

    def begin_write(self) -> str:
        """The name of the file that a write is to leave."""
        with self._mutex:
            path = staging_file(self._token, self._count)
            self._count += 1
            self._files.add(path)
        return path

    def end_write(self, path: str) -> None:
        """Note what a write has uploaded, and delete its file: a kill later leaves none.

        Raises InvalidTxnState: the block had ended before; what was uploaded is deleted.
        """
        staged = read_staged(self._store.storage, path)
        with self._mutex:
            in_time = not self._closed
            if in_time:
                self.add(staged.segments)
        self._delete_file(path)
        # Last: what an interrupt leaves before is deleted with the block.
        with self._mutex:
            self._files.discard(path)
        if not in_time:
            commit.discard(self._store, staged.segments)
            raise InvalidTxnState(
                "write(): the transaction's block had ended before this write did, so its records "
                "were dropped; wait for it inside the block"
            )

    def add(self, segments: SegmentsByTopic) -> None:
        """Add segments after the ones that are known."""
        with self._mutex:
            for topic, uploaded in segments.items():
                self.segments.setdefault(topic, []).extend(uploaded)

    def close(self) -> bool:
        """Take no more. Returns False if a write still runs, or has failed."""
        with self._mutex:
            self._closed = True
            return not self._files

    def discard(self) -> None:
        """Delete the uploads that were not placed, best effort."""
        for path in sorted(self._files):
            if (staged := self._read_if_there(path)) is not None:
                self._delete_file(path)
                commit.discard(self._store, staged.segments)
        with self._mutex:
            segments, self.segments = self.segments, {}
        commit.discard(self._store, segments)

    def _read_if_there(self, path: str) -> StagedWrite | None:
        try:
            return read_staged(self._store.storage, path)
        except ObjectNotFound:
            return None  # this write failed, and has deleted its files itself; or it still runs
        except TxnlogError as error:
            _logger.warning("the files that %s names were left: %s", path, error)
            return None

    def _delete_file(self, path: str) -> None:
        try:
            self._store.storage.delete([path])
        except TxnlogError as error:
            _logger.warning("a file was left in staging/: %s", error)
