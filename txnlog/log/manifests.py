"""The manifests of one topic: finding its settled segments, and settling more.

A manifest list names the manifests that hold every append before an entry. Lists are numbered, and
each is put, if absent, by a process that has read the one before it: so the newest is complete. A
manifest that is not newer than the newest list and not named by it is garbage. A process that
misses a list or a manifest to which an older checkpoint refers takes the newest list: facts do not
change, so everything before the entry in question is there too.
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, TypeVar

import msgspec

from txnlog import names
from txnlog.clock import Clock
from txnlog.config import TopicConfig
from txnlog.errors import CorruptEntry, ObjectNotFound, UnknownTopicOrPartition, UnsupportedVersion
from txnlog.state.manifest import (
    LIST_DECODER,
    ManifestList,
    ManifestRef,
    Settled,
    tail_to_join,
)
from txnlog.state.producers import join
from txnlog.state.segment import (
    REWRITE_FILE_DECODER,
    Rewrite,
    RewriteFile,
    RewriteRef,
    still_of_use,
    untrimmed,
)
from txnlog.state.topic import CHECKPOINT_DECODER, RecentEntry, TopicState
from txnlog.storage import envelope
from txnlog.storage.base import Storage, read_one_copy
from txnlog.storage.create_once import confirm, create_once
from txnlog.storage.fork_safe_lock import ForkSafeLock

if TYPE_CHECKING:
    from txnlog.log.manifest_table import ManifestTable

SETTLED_AT_ONCE = 128
"""The fewest entries that go into a manifest together."""
KEPT_ENTRIES = 64
"""How many of the newest entries stay out of manifests: most cuts fall there."""
FANOUT = 8
"""How many manifests of similar size are merged into one."""
MAX_SEGMENTS = 1 << 16
"""A manifest with this many segments is not merged any further."""
KEPT_LISTS = 32
"""How many superseded lists stay, each a few kilobytes: no process sleeps through as many."""
_REWRITES_KEPT_MS = 86_400_000
"""So much longer than their files replaced rewrites are kept; entries may be put late by less."""
_CACHE_BYTES = 8 << 20
_ATTEMPTS = 20

_FOUND_FOR_S = 60.0
"""Replaced files that were found are not asked for again by each snapshot."""

_logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Staged:
    """Manifests that are uploaded, and the list that is to name them."""

    settled: Settled
    listing: ManifestList
    uploaded: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KeptApart:
    """Which entries consistent cuts still tell apart: from ``first_entry`` on.

    Earlier entries are no newer than ``kept_since_ms``, which is -1 if there are none.
    """

    first_entry: int
    kept_since_ms: int


class Manifests:
    """Reads and puts the manifests of one topic. Safe to use from several threads."""

    def __init__(self, storage: Storage, topic: str, clock: Clock) -> None:
        self._storage = storage
        self.topic = topic
        self._clock = clock
        self.folder = names.topic_manifests(topic)
        self._lock = ForkSafeLock()
        self._list: ManifestList | None = None
        self._tables: OrderedDict[str, tuple[ManifestTable, int]] = OrderedDict()
        self._cached_bytes = 0
        self._rewrites: tuple[str, tuple[Rewrite, ...]] | None = None
        self._found: tuple[float, object, frozenset[str]] = -math.inf, None, frozenset()

    def __reduce__(self) -> tuple[type[Manifests], tuple[object, ...]]:
        # Travels as a place; what it has read is read again where it arrives.
        return Manifests, (self._storage, self.topic, self._clock)

    # -- lists -----------------------------------------------------------------------------------

    def newest(self) -> ManifestList | None:
        """The newest list, looked for by a listing of the folder; None if there is none.

        Raises CorruptEntry: it is damaged.
        """
        for _ in range(_ATTEMPTS):
            found = [*map(names.parse_manifest_list, self._storage.list_names(self.folder))]
            numbers = [number for number in found if number is not None]
            if not numbers:
                return None
            try:
                return self._read_list(max(numbers))
            except ObjectNotFound:
                continue  # superseded since, so there is a newer one
        raise CorruptEntry(f"{self.folder} shows lists that cannot be read; try again later")

    def has_list(self) -> bool:
        """Whether a list was ever read: whoever begins with a log looks for one first."""
        with self._lock.mutex:
            return self._list is not None

    def log_start_offsets(self) -> dict[int, int]:
        """By partition, the offset below which the newest list read may lack segments."""
        with self._lock.mutex:
            return dict(self._list.log_start_offsets) if self._list else {}

    def left_out_rewrites(self) -> Mapping[int, int]:
        """See :class:`RewriteRef`: according to the newest list read."""
        with self._lock.mutex:
            return self._list.rewrites.left_out if self._list and self._list.rewrites else {}

    def _read_list(self, number: int) -> ManifestList:
        path = f"{self.folder}/{names.manifest_list(number)}"
        found = envelope.decode(self._storage.get(path), LIST_DECODER, path)
        self._remember(found)
        return found

    def _remember(self, found: ManifestList) -> None:
        with self._lock.mutex:
            if self._list is None or self._list.number <= found.number:
                self._list = found
                # Manifests that were merged into others are not asked for again.
                for name in self._tables.keys() - {ref.name for ref in found.manifests}:
                    self._cached_bytes -= self._tables.pop(name)[1]

    def _list_for(self, settled: Settled) -> ManifestList:
        with self._lock.mutex:
            known = self._list
        if known is not None and known.number >= settled.number and known.end >= settled.end:
            return known
        try:
            return self._read_list(settled.number)
        except ObjectNotFound:
            return self._newest_for(settled)

    def _newest_for(self, settled: Settled) -> ManifestList:
        found = self.newest()
        if found is None or found.number < settled.number or found.end < settled.end:
            raise CorruptEntry(
                f"{self.folder}/{names.manifest_list(settled.number)} is missing, and no later one "
                "is there; restore this folder from a backup"
            )
        return found

    def read(
        self,
        settled: Settled | None,
        topic_id: str | None,
        use: Callable[[ManifestList], T],
    ) -> T | None:
        """Call ``use`` with the list that names the manifests of settled entries, or a later list.

        Returns the result of the call; None if nothing is settled. Raises UnknownTopicOrPartition:
        the topic was deleted, and recreated. CorruptEntry: a list or a manifest is damaged, or
        missing for good.
        """
        if settled is None:
            return None
        listing = self._list_for(settled)
        for attempt in range(_ATTEMPTS):
            if listing.topic_id != topic_id:
                raise UnknownTopicOrPartition(
                    f"topic {self.topic!r} was deleted and recreated since it was read: read again"
                )
            try:
                held = tuple(ref for ref in listing.manifests if ref.first_entry < settled.end)
                return use(msgspec.structs.replace(listing, manifests=held))
            except ObjectNotFound as error:
                if attempt + 1 == _ATTEMPTS:
                    raise CorruptEntry(
                        f"{self.folder} names a file that is missing: {error}; restore it from a "
                        "backup"
                    ) from error
            # Superseded by a newer list, which holds the same.
            listing = self._newest_for(settled)
        raise AssertionError

    def confirm(self, found: ManifestList) -> None:
        """Make sure that a manifest list found in storage is durable. Raises StorageError."""
        confirm(self._storage, f"{self.folder}/{names.manifest_list(found.number)}")

    def files_exist(self, paths: frozenset[str], config: object) -> bool:
        """Whether these files of the topic's records are there, or were so within a minute.

        They are asked for again when the topic's settings, as its state holds them, are others: a
        shorter delay of deletions may have come and gone. Raises StorageError.
        """
        now_s = self._clock.monotonic_s()
        found_s, known, found = self._found
        if now_s - found_s > _FOUND_FOR_S or known is not config or not paths <= found:
            try:
                self._storage.gather([partial(self._storage.size, path) for path in paths])
            except ObjectNotFound:
                return False
            self._found = now_s, config, paths
        return True

    # -- manifests -------------------------------------------------------------------------------

    def tables(self, refs: Sequence[ManifestRef], settled: Settled) -> Iterator[ManifestTable]:
        """The content of manifests, of entries before ``settled.end``. Read in parallel.

        Raises ObjectNotFound: one was superseded. CorruptEntry: one is damaged.
        """
        for first in range(0, len(refs), FANOUT):
            some = refs[first : first + FANOUT]
            with self._lock.mutex:
                known = {
                    ref.name: self._tables[ref.name][0] for ref in some if ref.name in self._tables
                }
            missing = [ref for ref in some if ref.name not in known]
            paths = [f"{self.folder}/{ref.name}" for ref in missing]
            for ref, data, path in zip(missing, self._storage.get_many(paths), paths, strict=True):
                known[ref.name] = self._decode(data, ref, path)
            for ref in some:
                table = known[ref.name]
                yield table if ref.end_entry <= settled.end else table.before(settled.end)

    def _decode(self, data: bytes, ref: ManifestRef, path: str) -> ManifestTable:
        from txnlog.log.manifest_table import ManifestTable

        decode = partial(ManifestTable.decode, ref=ref, path=path)
        table = self._of_any_copy(path, data, decode)
        size = table.nbytes
        with self._lock.mutex:
            if ref.name not in self._tables:
                self._tables[ref.name] = table, size
                self._cached_bytes += size
            while len(self._tables) > 1 and self._cached_bytes > _CACHE_BYTES:
                _, (_, dropped) = self._tables.popitem(last=False)
                self._cached_bytes -= dropped
        return table

    def _of_any_copy(self, path: str, data: bytes, decode: Callable[[bytes], T]) -> T:
        """Decode ``data``; if it is damaged, the copies of the file at other roots.

        Manifests and files of rewrites are written once, and have checksums, either their own or in
        the list that names them. So any copy that matches is right.
        """
        return read_one_copy(
            self._storage,
            path,
            lambda source: decode(data if source is self._storage else source.get(path)),
            (CorruptEntry, UnsupportedVersion),
        )

    # -- looking up settled entries --------------------------------------------------------------

    def rewrites(
        self,
        listing: ManifestList,
        settled: Settled,
        spans: Mapping[int, tuple[int, int]] | None = None,
    ) -> list[Rewrite]:
        """The rewrites before entry ``settled.end``, in the order of entries.

        None are looked for if none can be within ``spans``: by partition, offsets [start, end).
        Raises ObjectNotFound: their file was superseded. CorruptEntry: it is damaged.
        """
        ref = listing.rewrites
        if ref is None or (spans is not None and not ref.touches(spans.items())):
            return []
        with self._lock.mutex:
            known = self._rewrites
        if known is None or known[0] != ref.name:
            path = f"{self.folder}/{ref.name}"
            data = self._storage.get(path)
            decode = partial(envelope.decode, decoder=REWRITE_FILE_DECODER, path=path)
            found = self._of_any_copy(path, data, decode)
            known = ref.name, found.rewrites
            with self._lock.mutex:
                self._rewrites = known
        return [rewrite for rewrite in known[1] if rewrite.entry < settled.end]

    def unfold(self, state: TopicState, *, segments_alone: bool = False) -> TopicState:
        """A state with everything in manifests: a copy, as large as the topic's past.

        With ``segments_alone`` it lacks producers and the appends that are kept apart, which take
        most of the memory and which callers that ask for files do not need. Raises what
        :meth:`read` does.
        """
        from txnlog.log.manifest_table import ManifestTable

        whole: TopicState = CHECKPOINT_DECODER.decode(msgspec.json.encode(state))
        settled = state.settled
        whole.settled = None

        def use(listing: ManifestList) -> tuple[ManifestTable | None, list[Rewrite]]:
            assert settled is not None
            tables = [*self.tables(listing.manifests, settled)]
            rows = ManifestTable.concat(tables) if tables else None
            return rows, self.rewrites(listing, settled)

        rows, rewrites = self.read(settled, state.topic_id, use) or (None, [])
        starts = [partition.log_start_offset for partition in whole.partitions]
        settled_rewrites: dict[int, list[Rewrite]] = {}
        for rewrite in untrimmed(rewrites, starts):
            settled_rewrites.setdefault(rewrite.partition, []).append(rewrite)
        for number, of_number in settled_rewrites.items():
            partition = whole.to_change(number)
            partition.rewrites = [*of_number, *partition.rewrites]
        if rows is None:
            return whole
        kept = rows.untrimmed(starts)
        for number, of_partition in kept.by_partition():
            partition = whole.to_change(number)
            partition.segments = [*of_partition.segments(), *partition.segments]
        if segments_alone:
            return whole
        older = rows.producers(
            whole.producer_id_expiration_ms,
            before={
                number: known.since_entry
                for number, known in whole.producers.items()
                if not known.is_whole
            },
            log_starts=starts,
            now_ms=whole.append_time_ms,
        )
        whole.aborted = [*sorted(kept.aborted_entries()), *whole.aborted]
        whole.recent = [*kept.entries(), *whole.recent]
        whole.producers = {
            **{number: known for number, known in older.items() if number not in whole.producers},
            **{number: join(older.get(number), known) for number, known in whole.producers.items()},
        }
        whole.expire()
        return whole

    def outcome_is_abort(
        self, settled: Settled | None, topic_id: str | None, number: int
    ) -> bool | None:
        """Whether a settled append was aborted; None if none of it is left."""

        def use(listing: ManifestList) -> bool | None:
            assert settled is not None
            chosen = [ref for ref in listing.manifests if ref.first_entry <= number < ref.end_entry]
            for table in self.tables(chosen, settled):
                rows = table.of_entry(number)
                if len(rows):
                    return len(rows.committed()) == 0
            return None

        return self.read(settled, topic_id, use)

    def named(
        self,
        settled: Settled | None,
        topic_id: str | None,
        wanted: Mapping[int, str],
        first_entry: int,
    ) -> dict[int, int]:
        """The offsets of segments that settled entries from ``first_entry`` on have placed.

        ``wanted`` are their names by partition. Returns by partition those that were found.
        """

        def use(listing: ManifestList) -> dict[int, int]:
            assert settled is not None
            found = {}
            chosen = [ref for ref in listing.manifests if ref.end_entry > first_entry]
            for table in self.tables(chosen, settled):
                for partition, name in wanted.items():
                    for segment in table.named(partition, name).segments():
                        if segment.entry >= first_entry:
                            found[partition] = segment.base_offset
            return found

        return self.read(settled, topic_id, use) or {}

    def in_shared_files(
        self,
        settled: Settled | None,
        topic_id: str | None,
        entries: Collection[int],
        log_starts: Sequence[int],
    ) -> list[tuple[int, int, int]]:
        """(partition, base, end) of what these entries have in shared files, less the trimmed."""

        def use(listing: ManifestList) -> list[tuple[int, int, int]]:
            assert settled is not None
            chosen = [ref for ref in listing.manifests if ref.has_shared and ref.holds_any(entries)]
            tables = self.tables(chosen, settled)
            return [
                at for t in tables for at in t.shared_of(entries).untrimmed(log_starts).places()
            ]

        return self.read(settled, topic_id, use) or []

    def kept_apart(
        self, settled: Settled | None, topic_id: str | None, before_ms: int
    ) -> KeptApart:
        """How far back consistent cuts look at settled appends.

        Manifests are ignored while all of their appends are older than ``before_ms``.
        """

        def use(listing: ManifestList) -> KeptApart:
            let_go = [*takewhile(lambda ref: ref.max_at_ms < before_ms, listing.manifests)]
            return KeptApart(
                let_go[-1].end_entry if let_go else 0,
                max((ref.max_at_ms for ref in let_go), default=-1),
            )

        return self.read(settled, topic_id, use) or KeptApart(0, -1)

    def appends(
        self,
        settled: Settled | None,
        topic_id: str | None,
        first_entry: int,
        producer_ids: Iterable[int] | None = None,
    ) -> list[RecentEntry]:
        """The settled appends from ``first_entry`` on that were not aborted, in order.

        With ``producer_ids`` only those of these producers.
        """
        wanted = None if producer_ids is None else [*producer_ids]

        def use(listing: ManifestList) -> list[RecentEntry]:
            assert settled is not None
            chosen = [
                ref
                for ref in listing.manifests
                if ref.end_entry > first_entry and (wanted is None or ref.has_transactions)
            ]
            found = []
            for table in self.tables(chosen, settled):
                rows = (
                    table.committed() if wanted is None else table.of_producers(wanted).committed()
                )
                found += [entry for entry in rows.entries() if entry.number >= first_entry]
            return found

        if settled is None or first_entry >= settled.end or wanted == []:
            return []
        return self.read(settled, topic_id, use) or []

    # -- settling --------------------------------------------------------------------------------

    def stage(self, state: TopicState, before: ManifestList | None, end: int) -> _Staged:
        """Upload the manifests for the entries before ``end``; nothing refers to them yet.

        Small manifests are merged, and trimmed segments are left out.
        """
        from txnlog.log.manifest_table import ManifestTable

        assert state.topic_id is not None
        if before is not None and before.topic_id != state.topic_id:
            # The topic was recreated: its lists continue the numbers, without the old topic's rows.
            before = ManifestList(before.number, state.topic_id, 0, (), {})
        number = before.number + 1 if before else 0
        starts = [partition.log_start_offset for partition in state.partitions]
        first = first_entry = before.end if before else 0
        # The producers of trimmed segments are still remembered, until they expire.
        idle_since_ms = state.append_time_ms - state.producer_id_expiration_ms
        head = ManifestTable.of(
            [
                (index, [s for s in partition.segments if first <= s.entry < end])
                for index, partition in enumerate(state.partitions)
            ],
            {entry.number: entry for entry in state.recent},
            state.aborted,
        )
        kept = [*before.manifests] if before else []
        counts = [ref.segment_count for ref in kept]
        joined = tail_to_join(counts, len(head), fanout=FANOUT, most=MAX_SEGMENTS)
        if joined:
            tail = kept[-joined:]
            whole = Settled(0, end)
            parts = [*self.tables(tail, whole)]
            head = ManifestTable.concat([*parts, head]).untrimmed(starts, idle_since_ms)
            first = tail[0].first_entry
            kept = kept[:-joined]
        kept = [
            ref for ref in kept if ref.topic_time_ms >= idle_since_ms or not ref.is_trimmed(starts)
        ]
        trimmed = {index: start for index, start in enumerate(starts) if start}
        if before is not None and before.log_start_offsets != trimmed:
            kept = self._without_trimmed(kept, starts, idle_since_ms)
        uploaded = []
        for low, high, rows in head.chunks(first, end, MAX_SEGMENTS):
            name = names.manifest(number, self._clock.token())
            data = rows.encode()
            self._storage.put(f"{self.folder}/{name}", data)
            kept.append(rows.ref(name, data, low, high))
            uploaded.append(name)
        rewrites = self._stage_rewrites(state, before, first_entry, end, number)
        if rewrites is not None and (before is None or rewrites != before.rewrites):
            uploaded.append(rewrites.name)
        listing = ManifestList(number, state.topic_id, end, tuple(kept), trimmed, rewrites)
        settled = Settled(number, end, listing.has_transactions)
        return _Staged(settled, listing, tuple(uploaded))

    def _without_trimmed(
        self, refs: list[ManifestRef], starts: Sequence[int], idle_since_ms: int
    ) -> list[ManifestRef]:
        """Without the oldest ones in which all is trimmed, as only they themselves can tell.

        Their partitions are too many to be named in the list.
        """
        for at, ref in enumerate(refs):
            if ref.spans is not None or ref.topic_time_ms >= idle_since_ms:
                return refs[at:]
            (rows,) = self.tables([ref], Settled(0, ref.end_entry))
            if len(rows.untrimmed(starts)):
                return refs[at:]
        return []

    def _stage_rewrites(
        self,
        state: TopicState,
        before: ManifestList | None,
        first_entry: int,
        end: int,
        number: int,
    ) -> RewriteRef | None:
        """Upload a file of the rewrites before ``end``, if there are new ones."""
        new = [
            rewrite
            for partition in state.partitions
            for rewrite in partition.rewrites
            if first_entry <= rewrite.entry < end
        ]
        known = before.rewrites if before else None
        if not new:
            return known
        older = self.rewrites(before, Settled(0, end)) if before else []
        delay_ms = TopicConfig.of(state.config).file_delete_delay_ms
        # One clock that is ahead must not let go of what readers are pinned to.
        now_ms = min(self._clock.now_ms(), state.log_time_ms, state.append_time_ms)
        kept, left_out = still_of_use(
            [*older, *sorted(new, key=lambda rewrite: rewrite.entry)],
            [partition.log_start_offset for partition in state.partitions],
            now_ms - delay_ms - _REWRITES_KEPT_MS,
        )
        spans: dict[int, tuple[int, int]] = {}
        for one in kept:
            low, high = spans.get(one.partition, (one.start, one.end))
            spans[one.partition] = min(low, one.start), max(high, one.end)
        assert state.topic_id is not None
        name = names.rewrites_file(number, self._clock.token())
        data = envelope.encode(RewriteFile(state.topic_id, tuple(kept)))
        self._storage.put(f"{self.folder}/{name}", data)
        left_out = {**(known.left_out if known else {}), **left_out}
        return RewriteRef(name, len(data), spans, left_out)

    def publish(self, staged: _Staged) -> bool:
        """Put the list; False if another process was first. Raises StorageError: unknown."""
        path = f"{self.folder}/{names.manifest_list(staged.listing.number)}"
        data = envelope.encode(staged.listing)
        if not create_once(self._storage, path, data, self._clock):
            self._withdraw(staged)
            return False
        self._remember(staged.listing)
        return True

    def _withdraw(self, staged: _Staged) -> None:
        """Delete the uploads for a list that has lost, except those named by the newest.

        It may have won after all, and its name may have been freed since.
        """
        newest = self.newest()
        if newest is not None and newest.number >= staged.listing.number:
            doomed = {*staged.uploaded} - newest.files
            self._storage.delete(f"{self.folder}/{name}" for name in sorted(doomed))

    def collect(self, listing: ManifestList) -> None:
        """Delete older files than ``listing``, which was just put, that it does not name.

        If there is a newer list its writer does that. Lists are kept for a while, so that no writer
        that slept uses one of their names again.
        """
        found = [f"{self.folder}/{name}" for name in self._storage.list_names(self.folder)]
        lists = [names.parse_manifest_list(path.rpartition("/")[2]) for path in found]
        if max((number for number in lists if number is not None), default=-1) == listing.number:
            self._storage.delete(_superseded(found, listing, listing.files))

    def leftovers(
        self, paths: Collection[str], exists: Callable[[], bool], *, dry_run: bool
    ) -> tuple[list[str], list[str]]:
        """The folder's files that are not needed according to the newest list.

        ``paths``: a listing of the folder, begun before this call. ``exists`` tells whether there
        is a topic; if not, what its list names is not needed. In a dry run nothing will be deleted,
        so the list need not be durable.

        Returns those; and manifests of a list that is not there yet, if there is no topic. Of one
        that exists they stay: their writer may sleep for however long, and put the newest list
        then.

        Raises CorruptEntry, StorageError.
        """
        newest = self.newest()
        if newest is not None and not dry_run:
            self.confirm(newest)
        number = newest.number if newest else -1
        live = newest.files if newest else set()
        loose: list[str] = []
        if not exists():
            # Asked last: had a topic been recreated before, its manifests could be in the listing.
            live = set()
            loose = [
                path
                for path in paths
                if (made_for := names.parse_manifest(path.rpartition("/")[2])) is not None
                and made_for > number
            ]
        return _superseded(paths, newest, live) if newest else [], loose


def _superseded(paths: Iterable[str], newest: ManifestList, live: Collection[str]) -> list[str]:
    """The lists and manifests not needed by a process that can find the newest list."""
    doomed = []
    for path in paths:
        name = path.rpartition("/")[2]
        of_list, of_manifest = names.parse_manifest_list(name), names.parse_manifest(name)
        if of_list is not None and of_list < newest.number - KEPT_LISTS:
            doomed.append(path)
        if of_manifest is not None and of_manifest <= newest.number and name not in live:
            doomed.append(path)
    return doomed
