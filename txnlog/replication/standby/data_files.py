"""Copies the data that a standby's next round needs: each file once.

Segments placed by a topic's entries up to a number are known to be copied, so a round only looks
for later ones: its cost depends on what is new. A process that was killed, or failed, during a
round has copied some of those: they are looked for first, so each attempt resumes the last one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial

from txnlog import names
from txnlog.admin.live_segments import placed_refs
from txnlog.errors import ObjectNotFound, StorageError
from txnlog.log.topic_log import TopicLog
from txnlog.names import FileKey, SegmentRef
from txnlog.replication.roots.copies import copy_object
from txnlog.replication.standby.source import SourceMoved
from txnlog.state.manifest import ManifestList
from txnlog.state.segment import Segment
from txnlog.state.topic import TopicState
from txnlog.storage.base import Storage

_AT_ONCE = 64
"""So many of those that are lost are looked for in each round."""


class DataFileCopier:
    """Copies segments and manifests from a source to a standby."""

    def __init__(self, source: Storage, target: Storage) -> None:
        self._source = source
        self._target = target
        self._reached: dict[str, int] = {}  # by topic: data of earlier entries is copied
        self._there: dict[str, set[str]] = {}  # by topic: files copied beyond that
        self._is_known: set[str] = set()  # topics without files of failed attempts
        self._manifests: dict[str, set[str]] = {}  # by topic: those known to be durable
        self.lost: set[str] = set()
        """Files that the source should have, but lacks."""
        self._looked_for = ""
        self.files = 0
        self.bytes = 0

    def copy(self, log: TopicLog, state: TopicState, shown_before: int) -> None:
        """Copy the segments of a topic's state, and the manifests that it refers to.

        The state is the source's, or one that is cut from it; its segments are those of entries
        before ``shown_before``. Raises SourceMoved: a file is gone because it was released since.
        StorageError.
        """
        first, end = max(shown_before, self._reached.get(log.name, 0)), state.next_entry
        wanted: dict[str, FileKey] = {}
        for partition, segment in _placed_since(log, state, first):
            stored, start = segment.stored, state.partitions[partition].log_start_offset
            if stored.is_empty or segment.end_offset <= start:
                continue
            ref = SegmentRef(log.name, partition, stored.name, stored.position)
            for path in ref.files(
                stored.batch_count, stored.size_bytes, has_aborted=stored.has_aborted
            ):
                wanted[path] = ref.file_key
        if wanted:
            there = self._left_over(log.name, wanted, is_first=first == 0)
            self._is_known.discard(log.name)
            copied = [path for path in wanted if path not in there]
            missing = [*self._copy(copied)]
            there.update(set(copied).difference(missing))
            if missing:
                self._judge_missing(log, state, {path: wanted[path] for path in missing})
        self._reached[log.name] = end  # a look for what is missing may have moved the state on
        self._is_known.add(log.name)
        self._there.pop(log.name, None)

    def forget(self, topic: str) -> None:
        """Look again for segments of earlier entries: they may be missing."""
        self._reached.pop(topic, None)
        self._there.pop(topic, None)
        self._is_known.discard(topic)
        self._manifests.pop(topic, None)

    def copy_manifests(self, topic: str, listing: ManifestList) -> None:
        """Copy the files that a manifest list names. Raises SourceMoved, StorageError."""
        folder = names.topic_manifests(topic)
        there = listing.files & {*self._target.list_names(folder)}
        # A killed or failed round may have left them, not durable yet.
        unsure = sorted(there - self._manifests.get(topic, set()))
        self._target.gather(partial(self._target.confirm, f"{folder}/{name}") for name in unsure)
        if [*self._copy([f"{folder}/{name}" for name in sorted(listing.files - there)])]:
            raise SourceMoved(f"{folder} was tidied up while it was read")
        self._manifests[topic] = listing.files

    def _left_over(self, topic: str, wanted: Iterable[str], *, is_first: bool) -> set[str]:
        """Return which of these files a killed or failed attempt has copied.

        They are whole, since their names are unique; and durable when this returns. It takes
        one listing if the topic is copied for the first time, else a request for each file.
        """
        there = self._there.setdefault(topic, set())
        if topic in self._is_known:
            return there
        unsure = [path for path in wanted if path not in there]
        if is_first:
            listed = {
                path for path, _ in self._target.list_all(f"{names.topic_folder(topic)}/data")
            }
            unsure = [path for path in unsure if path in listed]

        def look(path: str) -> None:
            with suppress(ObjectNotFound):
                if not is_first:
                    self._target.size(path)
                self._target.confirm(path)
                there.add(path)

        self._target.gather(partial(look, path) for path in unsure)
        return there

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
        needed = _needed(log, state, missing.values())
        gone = {path for path, key in missing.items() if key in needed}
        if not any(not names.is_accelerator(path) for path in gone):
            return
        log.refresh()
        with log.lock:
            needed = _needed(log, log.state, missing.values())
        if any(missing[path] not in needed for path in gone):
            raise SourceMoved(f"segments of topic {log.name!r} were deleted while they were copied")
        # Absence proves nothing: the disk may not have been mounted for a moment.
        self._check_source()
        still = [*self._copy(sorted(gone))]
        self._check_source()
        self.lost.update(path for path in still if not names.is_accelerator(path))

    def _check_source(self) -> None:
        try:
            self._source.size(names.STORE_FILE)
        except ObjectNotFound as error:
            raise StorageError(
                f"{self._source.url} is not the store that it was: is its disk mounted?"
            ) from error

    def look_for_lost(self) -> None:
        """Copy files that were lost at the source, and are there now: some of them each time.

        Raises StorageError.
        """
        after = sorted(path for path in self.lost if path > self._looked_for)
        some = after[:_AT_ONCE] or sorted(self.lost)[:_AT_ONCE]
        if some:
            self._looked_for = some[-1]
            self.lost.difference_update(set(some).difference(self._copy(some)))

    def drop_released(self, log: TopicLog, state: TopicState) -> None:
        """Files to which a topic does not lead any more are not lost.

        Raises CorruptEntry, StorageError.
        """
        folder = f"{names.topic_folder(log.name)}/data/"
        lost = {path: names.parse_data_file(path) for path in self.lost if path.startswith(folder)}
        if lost:
            needed = _needed(log, state, [key[:2] for key in lost.values() if key])
            self.lost -= {path for path, key in lost.items() if key and key[:2] not in needed}


def _needed(log: TopicLog, state: TopicState, files: Iterable[FileKey]) -> set[FileKey]:
    """Those of some files that the topic places, and not only for aborted appends.

    Those have lost nothing with their file: their writer may have slept until it was deleted.
    """
    asked = {*files}
    entries: dict[FileKey, set[int]] = {}
    for ref, segment in placed_refs(log.name, log.manifests.unfold(state, segments_alone=True)):
        if ref.file_key in asked:
            entries.setdefault(ref.file_key, set()).add(segment.entry)

    def is_aborted(entry: int) -> bool:
        if entry in state.aborted:
            return True
        return log.manifests.outcome_is_abort(state.settled, state.topic_id, entry) is True

    aborted = {one for one in set().union(*entries.values()) if is_aborted(one)}
    return {key for key, placed_by in entries.items() if not placed_by <= aborted}


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
