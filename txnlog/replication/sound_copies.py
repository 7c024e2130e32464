"""Whether a root's copy of a data file is what its topic's log has placed; or of a manifest."""

from __future__ import annotations

from threading import Lock

from crc32c import crc32c

from txnlog import names
from txnlog.errors import TxnlogError
from txnlog.inspect.describe import describe_segments
from txnlog.inspect.descriptions import SegmentDescription
from txnlog.inspect.placed_indexes import check_placed_indexes
from txnlog.inspect.segments import check_placed_segment
from txnlog.log.open_logs import Logs
from txnlog.state.manifest import ManifestRef
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
        self._manifests: dict[str, ManifestRef] = {}

    def __call__(self, storage: Storage, name: str) -> bool | None:
        """Whether every batch is there and can be read.

        Of an index of aborted transactions: whether its segment's records can be told apart by it;
        of one of offsets or times: whether all its entries are those of its segment there; of a
        manifest: whether it is what the newest list names. None where nothing tells: it is no
        segment's file, nothing refers to it, or its topic's log cannot be read. Memory is that of a
        batch, or a manifest, beside the descriptions of a topic's segments. Raises StorageError.
        """
        if names.parse_manifest(name.rpartition("/")[2]) is not None and names.is_unique(name):
            with self._lock:
                self._of_topic(name.split("/")[1])
                ref = self._manifests.get(name)
            data = b"" if ref is None else storage.get(name)
            return None if ref is None else (len(data), crc32c(data)) == (ref.size_bytes, ref.crc)
        if names.parse_data_file(name) is None:
            return None
        paths = names.SegmentPaths.of(name)
        with self._lock:
            segments = self._of_topic(name.split("/")[1]).get(paths.log if paths else name)
        if not segments:
            return None
        if names.is_accelerator(name):
            return _is_index_of(storage, name, segments[0])
        return all(not check_placed_segment(storage, one).damages for one in segments)

    def _of_topic(self, topic: str) -> dict[str, list[SegmentDescription]]:
        if topic != self._topic:
            self._topic, self._placed, self._manifests = topic, {}, {}
            # Logs of its own: what it takes in memory is let go of when the next one comes.
            log = Logs(self._logs.storage, self._logs.config, self._logs.clock).topic(topic)
            try:
                log.refresh()
                listing = log.manifests.newest()
                for ref in listing.manifests if listing is not None else ():
                    self._manifests[f"{log.manifests.folder}/{ref.name}"] = ref
                for segment in describe_segments(log):
                    self._placed.setdefault(segment.paths.log, []).append(segment)
            except TxnlogError:
                self._topic = ""  # the next one asks again
                return {}
        return self._placed


def _is_index_of(storage: Storage, name: str, segment: SegmentDescription) -> bool | None:
    checks, damage = check_placed_indexes(storage, segment)
    found = [check.state == "ok" for check in checks if check.path == name]
    return None if damage or not found else found[0]
