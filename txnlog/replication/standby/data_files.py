"""Copies the data that a standby's next round needs: each file once.

Segments that a topic's entries have placed up to a number are known to be copied. A round only
looks for later ones, so its cost depends on the amount of new data. If a process was killed or
failed during a round, it may have copied some of those. They are looked for first, so each attempt
resumes the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial

from crc32c import crc32c

from txnlog import names
from txnlog.admin.live_segments import placed_refs
from txnlog.errors import ObjectNotFound, StorageError
from txnlog.inspect.describe import describe_segment
from txnlog.inspect.descriptions import SegmentDescription
from txnlog.inspect.segments import check_placed_segment
from txnlog.log.topic_log import TopicLog
from txnlog.names import FileKey, SegmentRef
from txnlog.replication.roots.copies import CHUNK_BYTES, copy_object
from txnlog.replication.roots.same_bytes import Diverged, put_same
from txnlog.replication.roots.soundness import IsSound, judged
from txnlog.replication.standby.source import SourceMoved
from txnlog.state.manifest import ManifestList
from txnlog.state.segment import Segment
from txnlog.state.topic import TopicState
from txnlog.storage.base import CannotReplace, Storage
from txnlog.storage.forwarding import ForwardingStorage

_AT_ONCE = 64
"""So many of the lost files are looked for in each round."""


class _Copied(ForwardingStorage):
    """A source in which one file has the bytes that were copied."""

    def __init__(
        self, inner: Storage, name: str, size_bytes: int, read: Callable[[int, int], bytes]
    ) -> None:
        super().__init__(inner)
        self._name, self._size_bytes, self._read = name, size_bytes, read

    def size(self, name: str) -> int:
        return self._size_bytes if name == self._name else self.inner.size(name)

    def get_range(self, name: str, start: int, stop: int) -> bytes:
        if name == self._name:
            return self._read(start, stop)
        return self.inner.get_range(name, start, stop)


class DataFileCopier:
    """Copies segments and manifests from a source to a standby.

    ``make_judge`` makes a function that judges files of which only the names are known.
    """

    def __init__(
        self,
        source: Storage,
        target: Storage,
        make_judge: Callable[[], IsSound] = lambda: lambda *_: None,
    ) -> None:
        self._source = source
        self._target = target
        self._make_judge = make_judge
        self._reached: dict[str, int] = {}  # by topic: data of earlier entries is copied
        self._there: dict[str, set[str]] = {}  # by topic: files copied beyond that
        self._is_known: set[str] = set()  # topics without files of failed attempts
        self._manifests: dict[str, set[str]] = {}  # by topic: those known to be durable
        self.lost: set[str] = set()
        """Files that the source should have, but lacks, or has damaged everywhere."""
        self._damaged: set[str] = set()
        self._looked_for = ""
        self.files = 0
        self.bytes = 0

    def copy(
        self, log: TopicLog, state: TopicState, shown_before: int, in_round_before: int = 0
    ) -> None:
        """Copy the segments that a topic's state names.

        The state is the source's, or one cut from it. Segments that entries before ``shown_before``
        placed are known to be copied. Those of entries before ``in_round_before`` are in a round:
        they may have to be copied again, but copies that are there are not read to judge them.

        Raises SourceMoved: a file is gone because it was released since. StorageError.
        """
        first, end = max(shown_before, self._reached.get(log.name, 0)), state.next_entry
        wanted: dict[str, FileKey] = {}
        placed: dict[str, list[SegmentDescription]] = {}
        told: set[str] = set()
        for partition, segment in _placed_since(log, state, first):
            stored, start = segment.stored, state.partitions[partition].log_start_offset
            if stored.is_empty or segment.end_offset <= start:
                continue
            ref = SegmentRef(log.name, partition, stored.name, stored.position)
            described = describe_segment(log.name, partition, segment, "")
            placed.setdefault(ref.paths.log, []).append(described)
            for path in ref.files(
                stored.batch_count, stored.size_bytes, has_aborted=stored.has_aborted
            ):
                wanted[path] = ref.file_key
            if segment.entry < in_round_before:
                told.add(ref.paths.log)

        def is_whole(at: Storage, path: str) -> bool:
            checks = (check_placed_segment(at, one) for one in placed.get(path, ()))
            return not any(check.damages for check in checks)

        def is_left_whole(at: Storage, path: str) -> bool:
            return path in told or is_whole(at, path)

        if wanted:
            there = self._left_over(log.name, wanted, is_left_whole, is_first=first == 0)
            self._is_known.discard(log.name)
            copied = [path for path in wanted if path not in there]
            missing = [*self._copy(copied, is_whole)]
            there.update(set(copied).difference(missing))
            self.lost -= there - self._damaged - told
            if missing:
                self._judge_missing(log, state, {path: wanted[path] for path in missing})
        self._reached[log.name] = end  # a look for what is missing may have moved the state on
        self._is_known.add(log.name)
        self._there.pop(log.name, None)

    def forget(self, topic: str) -> None:
        """Look for all segments of a topic again in the next copy: some may be missing."""
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
        refs = {f"{folder}/{ref.name}": ref for ref in listing.manifests}

        def is_whole(at: Storage, path: str) -> bool:
            if (ref := refs.get(path)) is None:
                return True
            data = at.get_range(path, 0, ref.size_bytes + 1)
            return (len(data), crc32c(data)) == (ref.size_bytes, ref.crc)

        if [*self._copy([f"{folder}/{name}" for name in sorted(listing.files - there)], is_whole)]:
            raise SourceMoved(f"{folder} was tidied up while it was read")
        self._manifests[topic] = listing.files

    def _left_over(
        self, topic: str, wanted: Iterable[str], is_whole: IsSound, *, is_first: bool
    ) -> set[str]:
        """Find those of the wanted files that a killed or failed attempt has copied, undamaged.

        They are durable when this returns. It takes one listing if the topic is copied for the
        first time, else a request for each file; and each that no round has is read. Files that
        were copied damaged count as lost until they are copied again.
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
                try:
                    found = is_whole(self._target, path)
                except ObjectNotFound:
                    raise
                except StorageError:  # what cannot be read is as what is damaged
                    found = False
                (there if found else self.lost).add(path)

        self._target.gather(partial(look, path) for path in unsure)
        return there

    def _copy(self, paths: list[str], is_whole: IsSound = lambda *_: True) -> Iterator[str]:
        """Copy files, each from an undamaged copy if there is one; yields the missing ones."""
        found: dict[str, int | None] = {}

        def copy(path: str) -> None:
            try:
                found[path] = self._copy_whole(path, is_whole)
            except ObjectNotFound:
                found[path] = None

        self._target.put_round(partial(copy, path) for path in paths)
        for path, size in found.items():
            if size is None:
                yield path
            else:
                self.files += 1
                self.bytes += size

    def _copy_whole(self, path: str, is_whole: IsSound) -> int:
        size = self._copy_if_whole(self._source, path, is_whole)
        for source in self._source.copies_of(path) if size is None else ():
            with suppress(StorageError):
                if (size := self._copy_if_whole(source, path, is_whole)) is not None:
                    break
        if size is not None:
            self._damaged.discard(path)
            return size
        if names.parse_data_file(path) is not None:  # of manifests lists tell
            self._damaged.add(path)
            self.lost.add(path)
        with suppress(Diverged):  # other bytes were copied before
            return copy_object(self._source, self._target, path)  # some of it can be read
        return 0

    def _copy_if_whole(self, source: Storage, path: str, is_whole: IsSound) -> int | None:
        """Copy a file; returns its bytes, or None if it is damaged, and then does not copy it.

        A small file is judged before it is put. A large one is judged at the standby, and deleted
        if it is damaged, so that the source is read once.
        """
        data = source.get_range(path, 0, CHUNK_BYTES)
        if len(data) < CHUNK_BYTES:
            read = _Copied(source, path, len(data), lambda start, stop: data[start:stop])
            if is_whole(read, path) is False:
                return None
            self._put_whole(path, data)
            return len(data)
        if path in self.lost:  # it may be there damaged
            if is_whole(source, path) is False:
                return None
            self._target.delete([path])
        size = copy_object(source, self._target, path, first=data)
        if is_whole(_Copied(source, path, size, partial(self._target.get_range, path)), path):
            return size
        self._target.delete([path])
        return None

    def _put_whole(self, path: str, data: bytes) -> None:
        """Put a small file; replace a damaged one, in one step if the storage can.

        A round may show the damaged one.
        """
        try:
            put_same(self._target, path, data)
        except (Diverged, StorageError):
            if path not in self.lost:  # else it was damaged everywhere before
                raise
            try:
                self._target.replace(path, data)
            except CannotReplace:
                self._target.delete([path])
                put_same(self._target, path, data)

    def _judge_missing(
        self, log: TopicLog, state: TopicState, missing: Mapping[str, FileKey]
    ) -> None:
        """Find out whether the source has deleted missing files, or lost them; note lost ones.

        Raises SourceMoved: some were deleted. StorageError: the source is not mounted.
        """
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
        """Try to copy files that the source had lost: each time some of them, in turn.

        Damaged files must be read, so each time there is one of these at most. Raises StorageError.
        """
        after = sorted(path for path in self.lost if path > self._looked_for)
        some = after[:_AT_ONCE] or sorted(self.lost)[:_AT_ONCE]
        damaged = (at for at, path in enumerate(some) if path in self._damaged)
        some = some[: next(damaged, _AT_ONCE) + 1]
        if some:
            self._looked_for, judge = some[-1], self._make_judge()
            missing = self._copy(some, lambda at, path: judged(judge, at, path) is not False)
            self.lost -= {*some}.difference(missing) - self._damaged

    def drop_released(self, log: TopicLog, state: TopicState) -> None:
        """Drop from ``lost`` the files of a topic that it no longer names.

        Raises CorruptEntry, StorageError.
        """
        folder = f"{names.topic_folder(log.name)}/data/"
        lost = {path: names.parse_data_file(path) for path in self.lost if path.startswith(folder)}
        if lost:
            needed = _needed(log, state, [key[:2] for key in lost.values() if key])
            self.lost -= {path for path, key in lost.items() if key and key[:2] not in needed}


def _needed(log: TopicLog, state: TopicState, files: Iterable[FileKey]) -> set[FileKey]:
    """Those of some files that a topic's state places, without files of aborted appends only.

    Nothing is lost with these: their writer may have slept until the file was deleted.
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
    """The segments that entries from ``first`` on have placed, with their partitions.

    Segments of rewrites are among them.
    """
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
