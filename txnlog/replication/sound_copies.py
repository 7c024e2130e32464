"""Whether a root's copy of a data file is what its topic's log has placed; or of a manifest."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import filterfalse
from threading import Lock
from typing import Final

from crc32c import crc32c

from txnlog import names
from txnlog.errors import StorageError, TxnlogError, UnknownTopicOrPartition
from txnlog.inspect.describe import describe_with_replaced
from txnlog.inspect.descriptions import SegmentDescription
from txnlog.inspect.placed_indexes import check_placed_indexes, index_paths
from txnlog.inspect.segments import check_placed_segment
from txnlog.log.open_logs import Logs
from txnlog.replication.roots.soundness import STORE, CannotJudge
from txnlog.state.manifest import ManifestRef
from txnlog.storage.base import Storage

_MOST_REMEMBERED: Final = 20_000


@dataclass(slots=True)
class _Named:
    """What a topic's log names, by path; and why it cannot be read, if so."""

    segments: dict[str, list[SegmentDescription]] = field(default_factory=dict)
    replaced: dict[str, list[SegmentDescription]] = field(default_factory=dict)
    """Those whose records are in others since, and their shared files' that are not."""
    manifests: dict[str, ManifestRef] = field(default_factory=dict)
    listed: set[str] = field(default_factory=set)
    """The manifests, and the file of rewrites."""
    unreadable: str = ""

    def names(self, name: str) -> bool:
        """Whether a file is one of these, or an index of one."""
        paths = names.SegmentPaths.of(name)
        path = paths.log if paths else name
        return any(path in some for some in (self.segments, self.replaced, self.listed))

    @property
    def count(self) -> int:
        return len(self.segments) + len(self.replaced) + len(self.listed)


class SoundCopies:
    """Judges copies of files by the log. Remembers the files of the topics asked for last.

    For several threads.
    """

    def __init__(self, logs: Logs) -> None:
        self._logs = logs
        self._lock = Lock()
        self._topics: dict[str, _Named] = {}

    def __call__(self, storage: Storage, name: str) -> bool | None:
        """Whether every batch is there and can be read.

        Of an index of aborted transactions: whether its segment's records can be told apart by it;
        of one of offsets or times: whether all its entries are those of its segment there; of a
        manifest: whether it is what the newest list names. What was replaced is judged until it is
        deleted. None where nothing tells: it is no segment's file, or no log names it. Memory is
        that of a batch, or a manifest, beside the descriptions of a topic's segments. Raises
        StorageError; CannotJudge: its topic's log cannot be read.
        """
        if not names.is_unique(name):
            return None
        named = self._named(name.split("/")[1])
        if (ref := named.manifests.get(name)) is not None:
            data = storage.get(name)
            return (len(data), crc32c(data)) == (ref.size_bytes, ref.crc)
        if named.unreadable:
            raise CannotJudge(named.unreadable)
        paths = names.SegmentPaths.of(name)
        path = paths.log if paths else name
        segments = named.segments.get(path) or named.replaced.get(path)
        if not segments:
            return None
        if names.is_accelerator(name):
            return _is_index_of(storage, name, segments[0])
        return all(not check_placed_segment(storage, one).damages for one in segments)

    def files(self, topic: str) -> set[str]:
        """What the topic's log names now: the files of its segments, and its manifests.

        Of a log that cannot be read what is found all the same; of ``STORE`` the store's own file.
        Raises StorageError.
        """
        return self._files(topic)

    def needed(self, topic: str) -> set[str]:
        """Those of :meth:`files` that must not be missing.

        A writer that slept can have placed what vacuum had deleted: then its append was aborted.
        """
        return self._files(topic, but="aborted")

    def unnamed(self, topic: str, some: Collection[str]) -> Collection[str]:
        """Those of some data files and manifests that the topic's log does not name now.

        None, if it cannot be read.
        """
        for anew in (False, True):  # what was named when it was read last need not be asked for
            try:
                named = self._named(topic, anew=anew)
            except CannotJudge:
                return ()
            some = () if named.unreadable else [*filterfalse(named.names, some)]
            if not some:
                break
        return some

    def _files(self, topic: str, but: str = "") -> set[str]:
        """The files that a topic's log names, without segments of the outcome ``but``."""
        if topic == STORE:
            return {names.STORE_FILE}
        with self._lock:
            named = self._remembered(topic, anew=True)
        placed = [one for some in named.segments.values() for one in some if one.outcome != but]
        indexes = (index for one in placed for index in index_paths(one).values())
        # Where nothing is left of what was rewritten there is no file.
        paths = (one.paths.log for one in placed if one.record_count)
        return {*named.listed, *paths, *indexes}

    def _named(self, topic: str, *, anew: bool = False) -> _Named:
        try:
            with self._lock:
                return self._remembered(topic, anew=anew)
        except StorageError as error:  # the next one asks again
            raise CannotJudge(f"the log of {topic} does not answer: {error}") from error

    def _remembered(self, topic: str, *, anew: bool = False) -> _Named:
        found = self._topics.pop(topic, None)
        if found is None or anew:
            found = self._read(topic)
            while sum(one.count for one in self._topics.values()) > _MOST_REMEMBERED:
                del self._topics[next(iter(self._topics))]
        self._topics[topic] = found
        return found

    def _read(self, topic: str) -> _Named:
        found = _Named()
        if names.topic_of_folder(topic) is None:
            return found  # somebody has put something beside the topics
        # Logs of its own: what it takes in memory is let go of with the topic.
        log = Logs(self._logs.storage, self._logs.config, self._logs.clock).topic(topic)
        try:
            log.refresh()
            with log.lock:
                topic_id = log.state.topic_id if log.state.exists else None
            listing = log.manifests.newest()
            if listing is not None and listing.topic_id == topic_id:
                found.listed = {f"{log.manifests.folder}/{name}" for name in listing.files}
                for ref in listing.manifests:
                    found.manifests[f"{log.manifests.folder}/{ref.name}"] = ref
            holding, replaced = describe_with_replaced(log)
            for segment in holding:
                found.segments.setdefault(segment.paths.log, []).append(segment)
            for segment in replaced:
                if segment.paths.log not in found.segments:
                    found.replaced.setdefault(segment.paths.log, []).append(segment)
        except UnknownTopicOrPartition:
            pass  # nothing of a deleted topic is named
        except StorageError:
            raise
        except TxnlogError as error:
            found.unreadable = f"the log of {topic} cannot be read: {error}"
        return found


def _is_index_of(storage: Storage, name: str, segment: SegmentDescription) -> bool | None:
    checks, damage = check_placed_indexes(storage, segment)
    found = [check.state == "ok" for check in checks if check.path == name]
    return None if damage or not found else found[0]
