"""Checks the files of topics: placed ones exist, and others are accounted for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from txnlog import names
from txnlog.admin.times import lies_ahead
from txnlog.doctor.findings import Finding, ReadFailures
from txnlog.errors import NotEnoughReplicas, ObjectNotFound, StorageError, TxnlogError
from txnlog.inspect.descriptions import SegmentDescription
from txnlog.inspect.leftovers import file_age_ms, list_loose_files, list_topic_files
from txnlog.inspect.placed_indexes import check_placed_indexes, index_paths
from txnlog.inspect.segments import check_placed_segment
from txnlog.storage.base import Storage

_ELSEWHERE: Final = (
    "another root has it whole: `txnlog replicas verify --deep --repair` replaces it"
)
_REPLACED: Final = (
    "a rewrite has replaced it; `txnlog maintain` deletes it when file.delete.delay.ms has passed"
)


@dataclass(slots=True)
class OrphanJudge:
    """Tells orphans from files that are still being written, by their age."""

    storage: Storage
    now_ms: int
    orphan_age_ms: int
    read_failures: ReadFailures

    def judge(
        self,
        check: str,
        subject: str,
        path: str,
        size_bytes: int,
        what: str,
        *,
        known: bool = False,
    ) -> Finding:
        """The finding for a file that nothing refers to; ``known``: ``what`` says whose it was."""
        hint = "" if known else ", so an upload may still be running"
        try:
            age_ms = file_age_ms(self.storage, path, self.now_ms)
        except ObjectNotFound:
            return Finding(check, subject, "note", f"{what}; gone by now", path=path)
        except StorageError as error:
            return self.read_failures.add(check, subject, path, error)
        if age_ms is None:
            return Finding(
                check,
                subject,
                "note",
                f"{what}; its age is not known{hint}",
                path=path,
                size_bytes=size_bytes,
            )
        if age_ms < self.orphan_age_ms:
            detail = f"{what}; {age_ms // 1000} s old{hint}"
            return Finding(check, subject, "note", detail, path=path, size_bytes=size_bytes)
        detail = f"{what}; {age_ms // 1000} s old" if known else f"{what} for {age_ms // 1000} s"
        return Finding(check, subject, "orphan", detail, path=path, size_bytes=size_bytes)


@dataclass(slots=True)
class DataFileCheck:
    """The data files of one topic. ``placed`` are the segments of its log, read just now.

    ``aborted`` are the entries that nobody is shown.

    ``missing`` are placed files that a listing did not show, ``unplaced`` (with sizes) others that
    it did; whether that is wrong is known when the log has been read once more.
    """

    storage: Storage
    topic: str
    orphans: OrphanJudge
    placed: Sequence[SegmentDescription]
    aborted: Collection[int]
    missing: list[str] = field(default_factory=list)
    unplaced: dict[str, int] = field(default_factory=dict)
    file_count: int = 0
    size_bytes: int = 0

    def check_sizes(self) -> Iterator[Finding]:
        """List the files once; yield segments whose size is not the placed one."""
        expected = _sizes(self.placed)
        for path, size_bytes in list_topic_files(self.storage, self.topic):
            self.file_count += 1
            self.size_bytes += size_bytes
            if path not in expected:
                self.unplaced[path] = size_bytes
                continue
            placed = expected.pop(path)
            if not placed.start <= size_bytes < placed.stop:
                remedy = "restore it from a backup"
                if all(self._is_whole_elsewhere(one, path) for one in self._placed_in(path)):
                    remedy = _ELSEWHERE
                detail = f"it has {size_bytes} bytes, but the log refers to {placed.start}"
                yield Finding("data", self.topic, "damage", f"{detail}; {remedy}", path=path)
        self.missing = [*expected]

    def check_listing(
        self, placed_now: Sequence[SegmentDescription], replaced: Collection[names.FileKey]
    ) -> Iterator[Finding]:
        """Yield missing files, and files that no entry has placed, even after the listing.

        ``replaced``: the files of segments that rewrites have replaced.
        """
        known = _sizes(placed_now)
        needed = self._needed(placed_now)
        elsewhere = []
        for path in self.missing:
            try:
                is_there = path in known and self._is_there(path)
            except NotEnoughReplicas as error:
                yield self.orphans.read_failures.add("data", self.topic, path, error)
                continue
            if is_there:
                elsewhere.append(path)
            elif path in needed:
                detail = "it is gone; restore it from a backup"
                if names.is_accelerator(path):
                    detail = f"it is gone; `txnlog index rebuild {self.topic}` rebuilds it"
                yield Finding("data", self.topic, "damage", detail, path=path)
            elif path in known and not names.is_accelerator(path):
                detail = "it is gone; what it held was aborted: only read_uncommitted misses it"
                yield Finding("data", self.topic, "note", detail, path=path)
        if elsewhere and self.storage.may_be_unlisted(elsewhere[0]):
            detail = (
                f"no root in sync has shown {len(elsewhere)} files, such as this one: `txnlog "
                "replicas verify --repair` copies what only old incarnations have"
            )
            yield Finding("data", self.topic, "note", detail, path=elsewhere[0])
        stems = {f"{names.topic_data(self.topic, at)}/{name}" for at, name in replaced}
        for path, size_bytes in self.unplaced.items():
            if path not in known:
                paths = names.SegmentPaths.of(path)
                old = paths is not None and paths.stem in stems
                what = _REPLACED if old else "no entry of the log places it (any more)"
                yield self.orphans.judge("data", self.topic, path, size_bytes, what, known=old)

    def _is_there(self, path: str) -> bool:
        """Whether a file that the listing did not show can be read: another root may have it."""
        try:
            self.storage.size(path)
        except ObjectNotFound:
            return False
        return True

    def check_times(self, now_ms: int) -> Iterator[Finding]:
        """Yield the partitions that hold records whose times lie in the future."""
        newest: dict[int, SegmentDescription] = {}
        for segment in self.placed:
            if lies_ahead(segment.max_timestamp_ms, now_ms):
                known = newest.setdefault(segment.partition, segment)
                if segment.max_timestamp_ms > known.max_timestamp_ms:
                    newest[segment.partition] = segment
        for partition, segment in sorted(newest.items()):
            detail = (
                f"a record of the offsets [{segment.base_offset}, {segment.end_offset}) of "
                f"partition {partition} has the time {segment.max_timestamp_ms}, which lies in the "
                "future by more than an hour: retention goes by the time of its upload instead"
            )
            yield Finding("data", self.topic, "note", detail, path=segment.paths.log)

    def check_contents(
        self, read_again: Callable[[], Sequence[SegmentDescription]]
    ) -> Iterator[Finding]:
        """Read every segment and index. Memory is that of a batch.

        ``read_again`` reads which segments are placed now. It is called once if files are gone:
        only with it can be told whether that is wrong.
        """
        gone: dict[str, list[Finding]] = {}
        for segment in self.placed:
            path = segment.paths.log
            try:
                found = [*self._check_segment(segment)]
                self.orphans.read_failures.reset()
            except StorageError as error:
                found = [self.orphans.read_failures.add("data", self.topic, path, error)]
            if found and self._is_gone(path):
                gone.setdefault(path, []).extend(found)
            else:
                yield from found
        needed = self._needed(read_again()) if gone else ()
        for path, found in gone.items():
            if path in needed:
                yield from found

    def _needed(self, placed: Sequence[SegmentDescription]) -> Collection[str]:
        """The files that must not be missing.

        A writer that slept can have placed what vacuum had deleted: then its append was aborted.
        """
        return _sizes([one for one in placed if one.entry not in self.aborted]).keys()

    def _is_gone(self, path: str) -> bool:
        """Whether a file is certainly not there."""
        try:
            return not self._is_there(path)
        except StorageError:
            return False

    def _placed_in(self, path: str) -> Iterator[SegmentDescription]:
        return (one for one in self.placed if one.paths.log == path)

    def _check_segment(self, segment: SegmentDescription) -> Iterator[Finding]:
        for path, damages in _damages(self.storage, segment).items():
            told: Sequence[str] = damages
            if self._is_whole_elsewhere(segment, path):
                told = [f"it is not as it was written; {_ELSEWHERE}"]
            for detail in told:
                yield Finding("data", self.topic, "damage", detail, path=path)

    def _is_whole_elsewhere(self, segment: SegmentDescription, path: str) -> bool:
        """Whether a file is whole in another copy of the store, where there are some."""
        for copy in self.storage.copies_of(path):
            with suppress(TxnlogError):
                copy.size(path)
                if path not in _damages(copy, segment):
                    return True
        return False


def _damages(storage: Storage, segment: SegmentDescription) -> dict[str, Sequence[str]]:
    """What is wrong with a segment's file, and with its indexes. Raises StorageError."""
    found = {segment.paths.log: check_placed_segment(storage, segment).damages}
    found |= {check.path: check.damages for check in check_placed_indexes(storage, segment)[0]}
    return {path: damages for path, damages in found.items() if damages}


def _sizes(segments: Sequence[SegmentDescription]) -> dict[str, range]:
    """The files of segments, with their permitted sizes.

    A shared file may go on after the known segments: later ones were deleted.
    """
    sizes: dict[str, range] = {}
    for segment in segments:
        ref, path = segment.ref, segment.paths.log
        end = ref.start + segment.size_bytes
        if ref.position == names.OWN_FILE:
            sizes[path] = range(end, end + 1)
        else:
            known = sizes.get(path)
            sizes[path] = range(max(end, known.start if known else 0), sys.maxsize)
        sizes.update(dict.fromkeys(index_paths(segment).values(), range(sys.maxsize)))
    return sizes


def check_loose_files(storage: Storage, orphans: OrphanJudge) -> Iterator[Finding]:
    """Yield leftovers of killed jobs and processes outside of topics."""
    count = 0
    for folder, path, size_bytes in list_loose_files(storage):
        count += 1
        yield orphans.judge("files", folder, path, size_bytes, "left by a job or a process")
    if not count:
        yield Finding("files", "", "ok", "nothing was left behind by jobs or processes")
