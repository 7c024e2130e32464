"""Copies the data that a standby's next round needs: each file once.

Segments placed by a topic's entries up to a number are known to be copied, so a round only looks
for later ones: its cost depends on what is new.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from txnlog import names
from txnlog.admin.live_segments import placed_files
from txnlog.errors import ObjectNotFound
from txnlog.log.topic_log import TopicLog
from txnlog.names import FileKey, SegmentRef
from txnlog.replicas.copying import copy_object
from txnlog.standby.source import SourceMoved
from txnlog.state.manifest import ManifestList
from txnlog.state.placement import Segment
from txnlog.state.topic import TopicState
from txnlog.storage.base import Storage


class DataFiles:
    """Copies segments and manifests from a source to a standby.

    Args:
        source: its storage.
        target: the standby's.
    """

    def __init__(self, source: Storage, target: Storage) -> None:
        self._source = source
        self._target = target
        self._reached: dict[str, int] = {}  # by topic: data of earlier entries is copied
        self._there: dict[str, set[str]] = {}  # by topic: files of earlier attempts
        self.lost: set[str] = set()
        """Files that the source should have, but lacks."""
        self.files = 0
        self.bytes = 0

    def copy(self, log: TopicLog, state: TopicState, shown_before: int) -> None:
        """Copy the segments of a topic's state, and the manifests that it refers to.

        Args:
            log: the topic's.
            state: the source's, or one that is cut from it.
            shown_before: segments of entries before this one are copied.

        Raises:
            SourceMoved: a file is gone because it was released since.
            StorageError: the source or the standby fails.
        """
        first = max(shown_before, self._reached.get(log.name, 0))
        wanted: dict[str, FileKey] = {}
        for partition, segment in _placed_since(log, state, first):
            if segment.is_empty or segment.end_offset <= _start(state, partition):
                continue
            ref = SegmentRef(log.name, partition, segment.name, segment.position)
            for path in ref.paths.files(segment.batch_count, has_aborted=segment.has_aborted):
                wanted[path] = ref.file_key
        there = self._left_over(log.name) if first == 0 and wanted else set()
        missing = [*self._copy([path for path in wanted if path not in there])]
        if missing:
            self._judge_missing(log, state, {path: wanted[path] for path in missing})
        self._reached[log.name] = state.next_entry

    def forget(self, topic: str) -> None:
        """Look again for segments of earlier entries: they may be missing."""
        self._reached.pop(topic, None)
        self._there.pop(topic, None)

    def copy_manifests(self, topic: str, listing: ManifestList) -> None:
        """Copy the files that a manifest list names. Raises SourceMoved, StorageError."""
        folder = names.topic_manifests(topic)
        there = {*self._target.list_names(folder)}
        if [*self._copy([f"{folder}/{name}" for name in sorted(listing.files - there)])]:
            raise SourceMoved(f"{folder} was tidied up while it was read")

    def _left_over(self, topic: str) -> set[str]:
        """Files copied by a killed attempt: whole objects, with unique names."""
        if topic not in self._there:
            folder = f"{names.topic_folder(topic)}/data"
            self._there[topic] = {name for name, _ in self._target.list_all(folder)}
        return self._there[topic]

    def _copy(self, paths: list[str]) -> Iterator[str]:
        """Copy files; yields missing ones."""
        found: dict[str, int | None] = {}

        def copy(path: str) -> None:
            try:
                found[path] = copy_object(self._source, self._target, path)
            except ObjectNotFound:
                found[path] = None

        self._target.put_round(partial(copy, path) for path in paths)
        for path, size in found.items():
            if size is None:
                yield path
            else:
                self.files += 1
                self.bytes += size

    def _judge_missing(
        self, log: TopicLog, state: TopicState, missing: Mapping[str, FileKey]
    ) -> None:
        """Files that are gone at the source: rightly, by now, or lost there too."""
        needed = placed_files(log.name, log.manifests.unfold(state, segments_alone=True))
        gone = {path for path, key in missing.items() if key in needed}
        if not any(not names.is_accelerator(path) for path in gone):
            return
        log.refresh()
        placed = placed_files(log.name, log.whole_segments())
        if any(missing[path] not in placed for path in gone):
            raise SourceMoved(f"segments of topic {log.name!r} were deleted while they were copied")
        self.lost |= {path for path in gone if not names.is_accelerator(path)}


def _start(state: TopicState, partition: int) -> int:
    return state.partitions[partition].log_start_offset


def _placed_since(log: TopicLog, state: TopicState, first: int) -> Iterator[tuple[int, Segment]]:
    """The segments that entries from ``first`` on have placed, by partition: rewrites' too."""
    for number, partition in enumerate(state.partitions):
        for segment in partition.segments:
            if segment.entry >= first:
                yield number, segment
        for rewrite in partition.rewrites:
            if rewrite.entry >= first:
                yield number, rewrite.segment
    settled = state.settled
    if settled is None or settled.end <= first:
        return

    def use(listing: ManifestList) -> list[tuple[int, Segment]]:
        assert settled is not None
        chosen = [ref for ref in listing.manifests if ref.end_entry > first]
        found = [
            (number, segment)
            for table in log.manifests.tables(chosen, settled)
            for number, of_partition in table.by_partition()
            for segment in of_partition.segments()
            if segment.entry >= first
        ]
        return found + [
            (rewrite.partition, rewrite.segment)
            for rewrite in log.manifests.rewrites(listing, settled)
            if rewrite.entry >= first
        ]

    yield from log.manifests.read(settled, state.topic_id, use) or ()
