"""Vacuum: deletes files to which nothing refers, and that no live process needs any more.

A segment is deleted in three steps, by one run or by several: a note says that nothing refers to it
(``log/uploads.py``), the topic's log is read once more, the files are deleted.
docs/PROTOCOL.md ("Retention and vacuum") says why that harms neither pinned readers nor writers
that sleep, wherever it stops. Ages are by the storage's own clock.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import Literal

from txnlog import names
from txnlog.admin.live_segments import (
    has_let_go,
    kept_for_import,
    kept_for_lost,
    placed_files,
    rewritten_files,
)
from txnlog.config import DAY_MS, TopicConfig, check_whole_number
from txnlog.errors import (
    CorruptEntry,
    InvalidOption,
    ObjectNotFound,
    StorageError,
    UnknownTopicOrPartition,
)
from txnlog.inspect.leftovers import file_age_ms, list_loose_files
from txnlog.log.open_logs import Logs
from txnlog.log.topic_log import TopicLog
from txnlog.log.uploads import Note, Retired, put_notes, read_notes
from txnlog.names import INDEX_ENDINGS, SEGMENT_ENDING, FileKey
from txnlog.state.topic import TopicState
from txnlog.storage.base import Storage, lasts

DEFAULT_ORPHAN_AGE_MS = 604_800_000
"""How long an unreferenced upload may still be placed: a job may upload for days first."""
LEAST_ORPHAN_AGE_MS = 86_400_000
"""A writer checks that its uploads still exist when they are an hour old, by clocks that may be
wrong by the rest of this.
"""
_PER_DELETION = 1_000
_FIRST_DAY = date(1970, 1, 1)

Reason = Literal[
    "deleted records",
    "rewritten",
    "never placed",
    "deleted topic",
    "left behind",
    "superseded",
    "unfinished upload",
]

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FileDeletion:
    """Files that were deleted (or would be), all for the same reason.

    ``reason`` is ``deleted records``: of segments below the log start; ``rewritten``: their records
    were merged or compacted; ``never placed``: uploads that were never placed in the topic;
    ``deleted topic``; ``superseded``: manifests that the newest list does not need; ``left
    behind``: by jobs and processes, outside of topics (``topic`` is None), or proposals of a
    topic's writers; ``unfinished upload``: parts on an object store, whose upload was killed
    (``topic`` is None). ``paths`` are the files' names within the store; of what lies at roots
    outside of it, URLs.
    """

    topic: str | None
    reason: Reason
    size_bytes: int
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FileRetirement:
    """Files that a note names (or would name) because nothing refers to them.

    They are deleted by a run ``delete_after_ms`` later. ``paths`` are their names within the store.
    """

    topic: str
    size_bytes: int
    delete_after_ms: int
    paths: tuple[str, ...]


def check_orphan_age(orphan_age_ms: int | None) -> int:
    """The age at which an unreferenced upload is an orphan. Raises InvalidOption."""
    if orphan_age_ms is None:
        return DEFAULT_ORPHAN_AGE_MS
    what = "the orphan age (milliseconds; below a day a writer could still be at work)"
    return check_whole_number(orphan_age_ms, what, InvalidOption, least=LEAST_ORPHAN_AGE_MS)


@dataclass(frozen=True, slots=True)
class Ages:
    """Judges ages by the storage's own clock.

    It showed ``now_ms`` a while ago; None: it reports no time.
    """

    storage: Storage
    now_ms: int | None

    def reached(self, path: str, age_ms: int) -> bool:
        """Whether a file certainly has this age; one that is gone has not."""
        if age_ms <= 0:
            return True
        if self.now_ms is None:
            return False
        try:
            told_ms = file_age_ms(self.storage, path, self.now_ms)
        except ObjectNotFound:
            return False
        return told_ms is not None and told_ms >= age_ms


def vacuum_topic(
    logs: Logs, topic: str, ages: Ages, orphan_age_ms: int, *, dry_run: bool = False
) -> Iterator[FileDeletion | FileRetirement]:
    """Delete the files of an existing or deleted topic that nobody needs any more.

    Yields the results. Deletes nothing if the topic's log holds no entry: it may be lost.

    Raises UnknownTopicOrPartition; CorruptEntry before anything is deleted, also if a log without
    entries has old files beside it; StorageError: some of it may be done, and a later call goes on.
    """
    storage = logs.storage
    # In this order: a noted file is listed if it exists, and a segment that was placed before its
    # note was put, or before it was listed, is known from the log.
    notes = read_notes(storage, topic)
    files = list_segment_files(storage, topic)
    # Its own log: the memory is freed before the next topic.
    log = Logs(storage, logs.config, logs.clock).topic(topic)
    _refresh(log, dry_run=dry_run)
    if log.next_entry == 0:
        paths = [path for of_it in files.values() for _, path, _ in of_it]
        if any(ages.reached(path, orphan_age_ms) for path in paths):
            raise CorruptEntry(
                f"{log.log.folder} has no entry, though {names.topic_data_folder(topic)} has files "
                "that are older than the orphan age: none was deleted. If the log is lost, restore "
                "its folder from a backup; if an import of the topic was killed, run it again, or "
                "delete the files"
            )
        raise UnknownTopicOrPartition(
            f"topic {topic!r} does not exist and never existed, or its log is lost; none of its "
            "files was deleted"
        )
    state = log.whole_segments()
    left_out = log.manifests.left_out_rewrites()
    run = _Run(topic, state, ages, orphan_age_ms, files, notes, left_out)
    topic_id = state.topic_id
    run.judge(placed_files(topic, state))
    note = partial(put_notes, storage, logs.clock, topic, topic_id)
    failed: list[StorageError] = []
    if not dry_run:  # first: on a full disk no note can be put
        _delete_segments(storage, [files[key] for key in run.due], failed)
    if run.found_now and not dry_run:
        run.notes += note(sorted(run.found_now), "candidate")
        # A segment placed before the note was put shows now; a later writer sees the note.
        _refresh(log, dry_run=dry_run)
        run.judge_again(log.whole_segments())
        run.notes += note(sorted(run.found_now), "unplaced")
    chosen = run.choose_from_found()
    if not dry_run:
        _delete_segments(storage, [files[key] for key in chosen], failed)
        if failed:
            run.due.clear()  # of which some may be left, with the notes that name them
        _delete_batches(storage, run.finished_notes(), failed)
    yield from run.results()
    yield from _vacuum_manifests(log, ages, orphan_age_ms, failed, dry_run=dry_run)
    found = storage.list_all(names.topic_proposals(topic))
    yield from delete_old(found, topic, ages, orphan_age_ms, failed, dry_run=dry_run)
    if failed:
        raise failed[0]


def _refresh(log: TopicLog, *, dry_run: bool) -> None:
    """Read a log by which files are deleted: not by an entry that a power cut may take."""
    log.refresh()
    if not dry_run:
        log.confirm_read()


def _vacuum_manifests(
    log: TopicLog, ages: Ages, orphan_age_ms: int, failed: list[StorageError], *, dry_run: bool
) -> Iterator[FileDeletion]:
    """Delete the manifests that the newest list of a topic does not need. Yields the results."""
    storage, manifests = ages.storage, log.manifests
    sizes = dict(storage.list_all(manifests.folder))
    if not sizes:
        return

    def exists() -> bool:
        with log.lock:
            state = log.state
            if state.exists:
                return True
        _refresh(log, dry_run=dry_run)  # It may have been recreated since.
        with log.lock:
            state = log.state
            return state.exists

    superseded, loose = manifests.leftovers(sizes, exists, dry_run=dry_run)
    old = storage.gather([partial(ages.reached, path, orphan_age_ms) for path in loose])
    doomed = [*superseded, *(path for path, is_old in zip(loose, old, strict=True) if is_old)]
    if doomed and (dry_run or _delete_batches(storage, doomed, failed)):
        size_bytes = sum(sizes[path] for path in doomed)
        yield FileDeletion(log.name, "superseded", size_bytes, tuple(sorted(doomed)))


def vacuum_loose_files(
    storage: Storage, ages: Ages, orphan_age_ms: int, *, dry_run: bool = False
) -> Iterator[FileDeletion]:
    """Delete leftovers of killed jobs and processes outside of topics. Yields the results.

    Raises StorageError.
    """
    found = ((path, size_bytes) for _, path, size_bytes in list_loose_files(storage))
    failed: list[StorageError] = []
    yield from delete_old(found, None, ages, orphan_age_ms, failed, dry_run=dry_run)
    yield from _vacuum_tables(storage, ages, orphan_age_ms, failed, dry_run=dry_run)
    yield from _abort_old_uploads(storage, ages, orphan_age_ms, dry_run=dry_run)
    if failed:
        raise failed[0]


def _vacuum_tables(
    storage: Storage,
    ages: Ages,
    orphan_age_ms: int,
    failed: list[StorageError],
    *,
    dry_run: bool,
) -> Iterator[FileDeletion]:
    """Delete files that catalogs put for tables on days that ended ``orphan_age_ms`` ago.

    Files that a table still needs were put again in the folder of a later day. A file itself must
    be as old, too: a catalog's clock may be behind.
    """
    if ages.now_ms is None:
        return
    for folder in storage.list_folders(names.TABLES):
        day = names.day_of_tables(folder)
        if day is None or ages.now_ms < (day - _FIRST_DAY).days * DAY_MS + DAY_MS + orphan_age_ms:
            continue
        listed = storage.list_all(f"{names.TABLES}/{folder}")
        found = (one for one in listed if names.is_of_tables(one[0]))
        yield from delete_old(found, None, ages, orphan_age_ms, failed, dry_run=dry_run)


def _abort_old_uploads(
    storage: Storage, ages: Ages, orphan_age_ms: int, *, dry_run: bool
) -> Iterator[FileDeletion]:
    """Abort uploads without activity for this long. A process still at one gets an error.

    Not every server lists them, nor permits it: then they are left to the bucket's own rules.
    """
    if ages.now_ms is None:
        return
    latest_ms = ages.now_ms - orphan_age_ms
    try:
        old = [found for found in storage.list_unfinished_uploads() if found.begun_ms <= latest_ms]
    except StorageError as error:
        if error.retriable:
            raise
        _logger.warning("unfinished uploads were not looked for: %s", error)
        return
    if not old:
        return
    if not dry_run:
        storage.abort_uploads(old)
    paths = tuple(sorted(found.name for found in old))
    yield FileDeletion(None, "unfinished upload", sum(found.size_bytes for found in old), paths)


def delete_old(
    found: Iterable[tuple[str, int]],
    topic: str | None,
    ages: Ages,
    orphan_age_ms: int,
    failed: list[StorageError] | None = None,
    *,
    dry_run: bool,
) -> Iterator[FileDeletion]:
    """Delete those leftover files that are old enough. What fails is added to ``failed``."""
    sizes = dict(found)
    old = ages.storage.gather([partial(ages.reached, path, orphan_age_ms) for path in sizes])
    doomed = tuple(path for path, is_old in zip(sizes, old, strict=True) if is_old)
    if not doomed:
        return
    if dry_run or _delete_batches(ages.storage, doomed, failed):
        yield FileDeletion(topic, "left behind", sum(sizes[path] for path in doomed), doomed)


_File = tuple[str, str, int]
"""The ending, the path and the size in bytes of a file."""
Files = dict[FileKey, tuple[_File, ...]]
"""The files of each segment, or the one that several share. Tuples: there may be very many."""


def list_segment_files(storage: Storage, topic: str) -> Files:
    """The files of a topic's data by segment. Other files are left alone."""
    found: Files = {}
    for path, size_bytes in storage.list_all(names.topic_data_folder(topic)):
        parsed = names.parse_data_file(path)
        if parsed is not None:
            partition, stem, ending = parsed
            key = partition, stem
            found[key] = (*found.get(key, ()), (ending, path, size_bytes))
    return found


class _Run:
    """The plan for one topic's segments, as its log was read just now.

    ``due`` are to be deleted, by segment with the reason; for ``found_now`` a note must be put.
    ``notes`` are the existing ones.
    """

    def __init__(
        self,
        topic: str,
        state: TopicState,
        ages: Ages,
        orphan_age_ms: int,
        files: Files,
        notes: Sequence[Note],
        left_out: Mapping[int, int],
    ) -> None:
        self.due: dict[FileKey, Reason] = {}
        self.found_now: set[FileKey] = set()
        self._topic = topic
        self._state = state
        self._rewritten = rewritten_files(topic, state)
        self._ages = ages
        self._orphan_age_ms = orphan_age_ms
        self._delay_ms = TopicConfig.of(state.config).file_delete_delay_ms
        self._files = files
        self._left_out = left_out
        self.notes = [*notes]

    def judge(self, placed: Collection[FileKey]) -> None:
        """Find unreferenced files, and those that may be deleted. ``placed`` are the log's own."""
        noted: dict[FileKey, Reason | None] = {}
        for note in self.notes:
            if note.retired is None or note.retired.stage == "candidate":
                continue
            is_old = self._may_be_old(note.retired) and self._ages.reached(
                note.path, self._delay_ms
            )
            for key in note.retired.segments:
                noted[key] = noted.get(key) or self._reason(key, note.retired, is_old=is_old)
        unknown = []
        needed = {*placed, *self._kept()}
        for key in self._files.keys() - needed:
            if key not in noted:
                unknown.append(key)
            elif (reason := noted[key]) is not None:
                self.due[key] = reason
        self.found_now = {*self._find_old(unknown)}

    def _may_be_old(self, note: Retired) -> bool:
        """False if it was put a while ago by its writer's clock: that costs no request."""
        now_ms = self._ages.now_ms
        return now_ms is None or not 0 <= now_ms - note.at_ms < self._delay_ms

    def _find_old(self, keys: Sequence[FileKey]) -> list[FileKey]:
        """The segments whose files have all reached the orphan age, and the topic itself too.

        Files that are older than their topic may be all that is left of a topic with a lost log.
        """
        state, now_ms = self._state, self._ages.now_ms
        if state.exists and now_ms and now_ms - state.created_at_ms < self._orphan_age_ms:
            return []
        paths = [(key, path) for key in keys for _, path, _ in self._files[key]]
        ages, age_ms = self._ages, self._orphan_age_ms
        old = ages.storage.gather([partial(ages.reached, path, age_ms) for _, path in paths])
        young = {key for (key, _), is_old in zip(paths, old, strict=True) if not is_old}
        return [key for key in keys if key not in young]

    def _reason(self, key: FileKey, note: Retired, *, is_old: bool) -> Reason | None:
        """Why a noted segment may be deleted; None: not yet."""
        if note.topic_id != (self._state.topic_id or ""):
            return "deleted topic"
        if note.stage == "released":
            if not is_old:
                return None
            return "rewritten" if key in self._rewritten else "deleted records"
        if key in self._rewritten:
            return "rewritten" if is_old else None
        return "never placed" if is_old else self._reason_of_orphan(key)

    def _reason_of_orphan(self, key: FileKey) -> Reason | None:
        """Why an old file may be deleted at once; None: not yet.

        Its records may have been deleted a moment ago, with readers pinned to it.
        """
        if not self._state.exists:
            return "deleted topic"
        return None if has_let_go(self._state, key[0]) else "never placed"

    def judge_again(self, state: TopicState) -> None:
        """Drop from the findings segments that the log refers to, or has released just now."""
        self._state = state
        self._rewritten = rewritten_files(self._topic, state)
        self.found_now -= placed_files(self._topic, state) | self._kept()

    def choose_from_found(self) -> Collection[FileKey]:
        """Make those orphans due that were found now and need not wait; return them."""
        reasons = ((key, self._reason_of_orphan(key)) for key in self.found_now)
        chosen = {key: reason for key, reason in reasons if reason is not None}
        self.due |= chosen
        return chosen

    def _kept(self) -> set[FileKey]:
        """Files without records of the topic that are needed all the same."""
        lost = kept_for_lost(self._state, self._files, self._left_out)
        return lost | kept_for_import(self._state)

    def finished_notes(self) -> list[str]:
        """The notes without files left once the due ones are deleted."""
        left = self._files.keys() - self.due.keys()
        return [
            note.path
            for note in self.notes
            if note.unread is None
            and (note.retired is None or left.isdisjoint(note.retired.segments))
        ]

    def results(self) -> Iterator[FileDeletion | FileRetirement]:
        """The result."""
        for reason in sorted({*self.due.values()}):
            chosen = [key for key, why in self.due.items() if why == reason]
            paths, size_bytes = self._sum(chosen)
            yield FileDeletion(self._topic, reason, size_bytes, paths)
        waiting = self.found_now - self.due.keys()
        if waiting:
            paths, size_bytes = self._sum(waiting)
            yield FileRetirement(self._topic, size_bytes, self._delay_ms, paths)

    def _sum(self, keys: Iterable[FileKey]) -> tuple[tuple[str, ...], int]:
        chosen = [file for key in keys for file in self._files[key]]
        return tuple(sorted(path for _, path, _ in chosen)), sum(size for _, _, size in chosen)


_IN_ORDER = (
    (INDEX_ENDINGS["offset"], INDEX_ENDINGS["time"]),
    (SEGMENT_ENDING,),
    (INDEX_ENDINGS["transaction"],),
)
"""A reader of a segment can do without its accelerators, but not its transaction index."""


def _delete_segments(
    storage: Storage, segments: Sequence[Sequence[_File]], failed: list[StorageError]
) -> None:
    """Delete the files of segments: one that can still be opened can be read correctly."""
    for first in range(0, len(segments), _PER_DELETION):
        some = segments[first : first + _PER_DELETION]
        for endings in _IN_ORDER:
            doomed = [
                path for files in some for ending, path, _ in files if f".{ending}" in endings
            ]
            so_far = len(failed)
            _delete_batches(storage, doomed, failed)
            if SEGMENT_ENDING in endings and len(failed) > so_far:
                some = [f for f in some if all(f".{ending}" not in endings for ending, _, _ in f)]


def _delete_batches(
    storage: Storage, paths: Sequence[str], failed: list[StorageError] | None = None
) -> bool:
    """Delete files in batches; a file that cannot be deleted does not stop those after it.

    Returns whether all are deleted. Lasting errors are added to ``failed``, or raised at the end if
    it is None. Raises StorageError at once if the error is not a lasting one: the storage may be
    away.
    """
    errors: list[StorageError] = []
    for first in range(0, len(paths), _PER_DELETION):
        try:
            storage.delete(paths[first : first + _PER_DELETION])
        except StorageError as error:
            if not lasts(error):
                raise
            errors.append(error)
    if failed is None and errors:
        raise errors[0]
    if failed is not None:
        failed += errors
    return not errors
