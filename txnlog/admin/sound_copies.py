"""Whether a root's copy of a data file is what its topic's log has placed."""

from __future__ import annotations

from threading import Lock

from txnlog import names
from txnlog.errors import TxnlogError
from txnlog.inspect.describing import describe_segments
from txnlog.inspect.descriptions import SegmentDescription
from txnlog.inspect.segments import check_placed_segment
from txnlog.log.open_logs import Logs
from txnlog.storage.base import Storage


class SoundCopies:
    """Judges copies of files by the log. Remembers the segments of the topic asked for last.

    For several threads.
    """

    def __init__(self, logs: Logs) -> None:
        self._logs = logs
        self._lock = Lock()
        self._topic = ""
        self._placed: dict[str, list[SegmentDescription]] = {}

    def __call__(self, storage: Storage, name: str) -> bool | None:
        """Whether every batch is there and can be read.

        Of an index of aborted transactions: whether its segment's records can be told apart by it.
        None where nothing tells: it is not a segment's file, nothing refers to it, or its topic's
        log cannot be read. Memory is that of a batch, beside the descriptions of a topic's
        segments. Raises StorageError.
        """
        if names.parse_data_file(name) is None or names.is_accelerator(name):
            return None
        paths = names.SegmentPaths.of(name)
        with self._lock:
            segments = self._of_topic(name.split("/")[1]).get(paths.log if paths else name)
        if not segments:
            return None
        return all(not check_placed_segment(storage, one).damages for one in segments)

    def _of_topic(self, topic: str) -> dict[str, list[SegmentDescription]]:
        if topic != self._topic:
            self._topic, self._placed = topic, {}
            # Logs of its own: what it takes in memory is let go of when the next one comes.
            log = Logs(self._logs.storage, self._logs.config, self._logs.clock).topic(topic)
            try:
                log.refresh()
                for segment in describe_segments(log):
                    self._placed.setdefault(segment.paths.log, []).append(segment)
            except TxnlogError:
                self._placed = {}
        return self._placed
