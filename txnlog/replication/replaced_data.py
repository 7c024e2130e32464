"""The data files whose records are in others since: they were purged, compacted or merged."""

from __future__ import annotations

from collections.abc import Collection
from threading import Lock

from txnlog import names
from txnlog.admin.live_segments import kept_for_import, kept_for_lost, rewritten_files
from txnlog.admin.vacuum import list_segment_files
from txnlog.errors import TxnlogError
from txnlog.log.open_logs import Logs


class ReplacedData:
    """Tells such files by the log. Remembers those of the topic asked for last.

    For several threads.

    Vacuum has deleted them, or will. What a trim has released the log does not tell for ever, and
    what was never placed it does not know: a writer may be about to place it.
    """

    def __init__(self, logs: Logs) -> None:
        self._logs = logs
        self._lock = Lock()
        self._topic = ""
        self._replaced: Collection[names.FileKey] = ()

    def __call__(self, name: str) -> bool:
        parsed = names.parse_data_file(name)
        if parsed is None:
            return False
        partition, stem, _ = parsed
        topic = name.split("/")[1]
        with self._lock:
            if topic != self._topic:
                self._topic, self._replaced = topic, self._read(topic)
            return (partition, stem) in self._replaced

    def _read(self, topic: str) -> Collection[names.FileKey]:
        """Nothing, if the log cannot be read."""
        # Logs of its own: what it takes in memory is let go of.
        logs = Logs(self._logs.storage, self._logs.config, self._logs.clock)
        try:
            there = list_segment_files(logs.storage, topic)
            log = logs.topic(topic)
            log.refresh()
            state = log.whole_segments()
        except TxnlogError:
            return ()
        kept = kept_for_lost(state, there, log.manifests.left_out_rewrites())
        return rewritten_files(topic, state) - kept - kept_for_import(state)
