"""The log of one topic in this process: which entries may be added, and how they are built."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence

from txnlog import names
from txnlog.clock import Clock, Moment
from txnlog.config import check_partition_count
from txnlog.errors import (
    CorruptEntry,
    InvalidTopic,
    StorageError,
    UnknownTopicOrPartition,
    UploadExpired,
)
from txnlog.log.append_batching import BatchedAppend, Proposals
from txnlog.log.manifests import KEPT_ENTRIES, SETTLED_AT_ONCE, KeptApart, Manifests
from txnlog.log.pending_append import PendingAppend
from txnlog.log.placed_records import (
    PartitionHead,
    PlacedRecords,
    count_bytes,
    find_records,
)
from txnlog.log.sequence_log import SequenceLog, check_case
from txnlog.log.state_log import CHECKPOINT_INTERVAL, DELIVERY_TIMEOUT_MS, LogPolicy, StateLog
from txnlog.log.uploads import (
    Appended,
    IdempotentWriter,
    TopicSpec,
    UploadCheck,
    UploadedSegment,
    check_history,
)
from txnlog.names import TopicPartition
from txnlog.schema import TopicSchema
from txnlog.state.folded_state import Unsettled
from txnlog.state.manifest import ManifestList, Settled
from txnlog.state.segment import Segment, SegmentEntry
from txnlog.state.topic import CHECKPOINT_DECODER, RecentEntry, TopicState
from txnlog.state.topic_entries import (
    ENTRY_DECODER,
    Created,
    Imported,
    OffsetSpan,
    TopicEntry,
)
from txnlog.state.transaction import Outcome, TransactionKey, TransactionRef
from txnlog.storage.base import Storage

ADOPT_AFTER = 512
"""With this many appends in memory, a process that only reads adopts a newer manifest list."""

_WRITERS_HERE = 16
"""How many of this process's producers stay in the state: they are likely to go on."""

_logger = logging.getLogger(__name__)


class TopicLog(StateLog[TopicEntry, TopicState]):
    """A topic's log and state, and the manifests of its settled appends."""

    def __init__(
        self,
        storage: Storage,
        topic: str,
        clock: Clock,
        policy: LogPolicy,
        producer_id_expiration_ms: int,
    ) -> None:
        super().__init__(
            SequenceLog(storage, names.topic_log(topic), clock),
            "topic",
            topic,
            new_state=lambda: TopicState(producer_id_expiration_ms=producer_id_expiration_ms),
            entry_decoder=ENTRY_DECODER,
            checkpoint_decoder=CHECKPOINT_DECODER,
            clock=clock,
            policy=policy,
        )
        self.manifests = Manifests(storage, topic, clock)
        self._proposals = Proposals(storage, topic)
        self._writers_here: deque[int] = deque(maxlen=_WRITERS_HERE)
        self._unlooked = False
        """Whether the manifests could not be looked at when the log's beginning was sought."""

    def spec(self) -> TopicSpec:
        """What an uploader must know about the topic. Raises UnknownTopicOrPartition."""
        with self.lock:
            state = self.state
            state.check_exists(self.name)
            assert state.topic_id is not None
            count = len(state.partitions)
            return TopicSpec(
                self.name,
                state.topic_id,
                count,
                dict(state.config),
                state.schema,
            )

    def is_busy(self) -> bool:
        """Whether others appended a moment ago: a refresh before :meth:`place` would be wasted."""
        return self._proposals.is_busy(self.clock)

    def create(
        self, partitions: int, config: Mapping[str, str], schema: TopicSchema | None = None
    ) -> None:
        """Create the topic, with checked settings and schema.

        Raises TopicAlreadyExists, InvalidPartitions: nothing was written. InvalidTopic: the storage
        treats its name as that of another.
        """
        self.append(self._creation(partitions, config, schema))

    def preview_creation(
        self, partitions: int, config: Mapping[str, str], schema: TopicSchema | None = None
    ) -> TopicState:
        """The topic as :meth:`create` would make it; raises what that does."""
        return self.preview(self._creation(partitions, config, schema))

    def _creation(
        self, partitions: int, config: Mapping[str, str], schema: TopicSchema | None
    ) -> Callable[[TopicState], Created]:
        check_partition_count(partitions)
        folder = names.topic_folder(self.name)
        check_case(self.log.storage, folder, f"topic {self.name!r}", InvalidTopic)
        nonce, topic_id = self.clock.token(), self.clock.token()

        def build(state: TopicState) -> Created:
            state.check_absent(self.name)
            now_ms = self.clock.now_ms()
            return Created(nonce, now_ms, topic_id, partitions, dict(config), schema)

        return build

    def place(
        self,
        segments: Sequence[UploadedSegment],
        *,
        transaction: TransactionRef | None = None,
        writer: IdempotentWriter | None = None,
        since_entry: int | None = None,
        first_of_epoch: Container[int] = (),
        refreshed: bool = False,
        timeout_ms: int = DELIVERY_TIMEOUT_MS,
    ) -> Appended:
        """Give uploaded segments their offsets, all in one entry; a partition's in their order.

        They belong to an open ``transaction``, or ``writer``, an idempotent producer, wrote them.
        ``since_entry``: if an earlier call for these segments had an unknown outcome, a number that
        the log had not passed by then: segments placed since are not placed again.
        ``first_of_epoch``: partitions that nobody has written to with the transaction's epoch.
        ``refreshed``: just now. ``timeout_ms``: how long it goes on while other writers are faster.

        Raises UnknownTopicOrPartition: the topic or a partition is not there (any more).
        InvalidProducerEpoch, OutOfOrderSequence: see ``TopicState.check_sequences``. UploadExpired:
        vacuum took the segments for left behind; nothing was placed. StorageError: the outcome is
        unknown.
        """
        begun_ms = [segment.begun_ms for segment in segments]
        refs = [segment.ref for segment in segments]
        uploads = UploadCheck(self.log.storage, self.clock, self.name, refs, begun_ms)
        expired: UploadExpired | None = None
        try:
            check_history(self.log.storage, segments)
            uploads.before(in_doubt=since_entry is not None)
        except UploadExpired as error:
            if since_entry is None:
                raise
            # Placed by an earlier call, they may have been released since.
            expired = error
        if since_entry is None and not self.next_entry:
            # Otherwise all that was ever appended would have to be searched for these segments.
            self.refresh()
            refreshed = True
        placing = PendingAppend(
            self.manifests,
            self.clock,
            segments,
            transaction=transaction,
            writer=writer,
            first_entry=self.next_entry if since_entry is None else since_entry,
            first_of_epoch=first_of_epoch,
            expired=expired,
        )
        if (owner := placing.owner) and owner.producer_id not in self._writers_here:
            self._writers_here.append(owner.producer_id)
        together = BatchedAppend(self, self._proposals, placing.build, begun_ms, timeout_ms)
        number = together.run(refreshed=refreshed)
        offsets = placing.offsets
        entries = self._entries_of(offsets) if number is None else {number}
        try:
            if offsets:
                uploads.after(max(entries, default=None))
        except StorageError as error:
            if error.retriable or self._hold_records(refs, offsets):
                raise (expired or error) from None
        if number is None:
            for file in sorted({*map(self.file_of, entries)}):
                self.log.confirm(file)
        placing.move_on()
        if number is None and transaction is not None:
            # Others have placed it: its decision must name the entry.
            number = min(entries, default=None)
        return Appended(number, offsets)

    def place_imported(
        self,
        topic_id: str,
        offsets: Mapping[int, OffsetSpan],
        segments: Sequence[SegmentEntry],
        begun_ms: int | None = None,
        *,
        known_ends: Mapping[int, int] | None = None,
    ) -> int:
        """Make segments from Kafka part of the topic, with their own offsets, in one entry.

        ``offsets``: by partition, those that the import brings. ``segments``: in the order of
        partitions and offsets. ``begun_ms``: when the first upload began, by the same clock; None:
        not known. ``known_ends``: see ``TopicState.check_import``. Returns the entry's number.

        Raises UnknownTopicOrPartition: the topic or a partition is not there (any more).
        OffsetOutOfRange: a partition ends elsewhere than the import begins. UploadExpired: vacuum
        took the segments for left behind; nothing was placed. StorageError: the outcome is unknown.
        """
        refs = [
            names.SegmentRef(self.name, place.partition, place.stored.name) for place in segments
        ]
        uploads = UploadCheck(self.log.storage, self.clock, self.name, refs, [begun_ms])
        uploads.before()
        nonce = self.clock.token()

        def build(state: TopicState) -> Imported:
            state.check_exists(self.name, topic_id)
            state.check_import(self.name, offsets, known_ends)
            return Imported(nonce, self.clock.now_ms(), dict(offsets), tuple(segments))

        number = self.append(build)
        assert number is not None
        uploads.after(number)
        return number

    def _hold_records(
        self, refs: Iterable[names.SegmentRef], offsets: Mapping[TopicPartition, range]
    ) -> bool:
        """Whether segments placed at these offsets still hold the records there.

        Otherwise they were merged, compacted or deleted since, and so released.
        """
        self.refresh()
        with self.lock:
            state = self.state
            starts = [partition.log_start_offset for partition in state.partitions]
            spans = {
                where.partition: (start, places.stop)
                for where, places in offsets.items()
                if where.partition < len(starts)
                and (start := max(places.start, starts[where.partition])) < places.stop
            }
            found = self.placed(state, spans)
        holding = {(number, s.stored.name) for number, of_it in found.items() for s in of_it}
        return any((ref.partition, ref.name) in holding for ref in refs)

    def _entries_of(self, offsets: Mapping[TopicPartition, range]) -> set[int]:
        """The entries that have placed these records, to be made durable: other processes put them.

        Those in a manifest already are: its writer has confirmed the list.
        """
        with self.lock:
            state = self.state
            return {
                segment.entry
                for where, places in offsets.items()
                for segment in state.partitions[where.partition].segments
                if segment.base_offset == places.start
            }

    def confirm_ends(self, ends: Mapping[int, int]) -> None:
        """Make durable what a reader has found before these offsets, by partition.

        See :meth:`confirm_read`. The log is read again only if they lie beyond what is known of it
        here: another process has read them. Raises CorruptEntry, StorageError.
        """
        if not self.log.storage.shows_early():
            return
        known = self._state.partitions
        if any(n >= len(known) or known[n].end_offset < end for n, end in ends.items()):
            self.refresh()
        self.confirm_read()

    # -- settled appends -------------------------------------------------------------------------

    def whole_state(self) -> TopicState:
        """A copy of the state with everything in manifests: as large as the topic's past.

        Raises CorruptEntry, StorageError.
        """
        with self.lock:
            state = self.state
            return self.manifests.unfold(state)

    def whole_segments(self) -> TopicState:
        """A copy of the state with segments and rewrites alone: see ``Manifests.unfold``."""
        with self.lock:
            state = self.state
            return self.manifests.unfold(state, segments_alone=True)

    def placed(
        self, state: TopicState, spans: Mapping[int, tuple[int, int]]
    ) -> dict[int, list[Segment]]:
        """The segments that hold the records at some offsets, by partition, aborted ones too.

        ``spans``: by partition, offsets [start, end). Raises CorruptEntry, StorageError.
        """
        return self.find_records(state, spans).segments

    def find_records(
        self, state: TopicState, spans: Mapping[int, tuple[int, int]], *, as_rows: bool = False
    ) -> PlacedRecords:
        """The segments at these offsets, and which of the settled entries were aborted."""
        heads = {number: PartitionHead.of(state, number) for number in spans}
        settled, topic_id = state.settled, state.topic_id
        return find_records(self.manifests, settled, topic_id, heads, spans, as_rows=as_rows)

    def count_bytes(
        self, state: TopicState, spans: Mapping[int, tuple[int, int]]
    ) -> dict[int, int]:
        """By partition, how large the segments of :meth:`placed` are together."""
        heads = {number: PartitionHead.of(state, number) for number in spans}
        return count_bytes(self.manifests, state.settled, state.topic_id, heads, spans)

    def kept_apart(self) -> KeptApart:
        """How far back appends are looked at for consistent cuts.

        Raises CorruptEntry, StorageError.
        """
        with self.lock:
            state = self.state
            # The earlier of two clocks: one that runs ahead must not make us forget too early.
            now_ms = min(self.clock.now_ms(), state.log_time_ms)
            return self.manifests.kept_apart(
                state.settled, state.topic_id, now_ms - self._policy.recent_ms
            )

    def appends_since(self, first_entry: int) -> list[RecentEntry]:
        """The appends from ``first_entry`` on that were not aborted, in order.

        Raises CorruptEntry, StorageError.
        """
        with self.lock:
            state = self.state
            older = self.manifests.appends(state.settled, state.topic_id, first_entry)
            aborted = set(state.aborted)
            return older + [
                entry
                for entry in state.recent
                if entry.number >= first_entry and entry.number not in aborted
            ]

    def settled_appends_of(self, keys: Iterable[TransactionKey]) -> list[RecentEntry]:
        """The settled appends of some transactions that were not aborted, as far as is looked back.

        Raises CorruptEntry, StorageError.
        """
        wanted = set(keys)
        with self.lock:
            state = self.state
            if not wanted or state.settled is None or not state.settled.has_transactions:
                return []
            found = self.manifests.appends(
                state.settled,
                state.topic_id,
                self.kept_apart().first_entry,
                {key.producer_id for key in wanted},
            )
        return [entry for entry in found if entry.transaction and entry.transaction.key in wanted]

    def _outcome_in(self, state: TopicState, number: int) -> Outcome | Unsettled:
        if state.settled is None or number >= state.settled.end:
            return state.outcome_of(number)
        try:
            is_abort = self.manifests.outcome_is_abort(state.settled, state.topic_id, number)
        except UnknownTopicOrPartition:
            return "gone"  # with the topic
        if is_abort is None:
            return "gone"
        return Outcome.ABORT if is_abort else Outcome.COMMIT

    def _find_beginning(self) -> int:
        # Names that are not cleaned up yet may take a hundred listings.
        self._unlooked = True
        try:
            newest = self.manifests.newest()
        except (CorruptEntry, StorageError) as error:
            _logger.warning("%s; reading the log from its beginning", error)
            return 0
        self._unlooked = False
        return newest.end if newest is not None else 0

    def _checkpoint_interval(self) -> int:
        # If much is undecided, or blocked from settling by that, a checkpoint is large.
        recent = self._state.recent
        interval = max(CHECKPOINT_INTERVAL, len(recent) // 8)
        # Files are read, and a bundle holds several entries.
        files = sum(entry.file in (-1, entry.number) for entry in recent)
        bundled = interval * len(recent) // max(files, 1)
        return max(interval, min(bundled, SETTLED_AT_ONCE))

    def refresh(self) -> None:
        with self.lock:
            super().refresh()
            if not self._state.next_entry and self._unlooked:
                self.manifests.newest()  # without them nobody can tell whether the log is lost
            if not self._state.next_entry and self.manifests.has_list():
                raise CorruptEntry(
                    f"{self.log.folder} has no entry, though {self.manifests.folder} names what "
                    f"topic {self.name!r} holds: the log is lost. Restore its folder from a "
                    f"backup, or move {names.topic_folder(self.name)} away to give the topic up"
                )
            if len(self._state.recent) > ADOPT_AFTER and not self._held_back():
                try:
                    newest = self.manifests.newest()
                    if newest is not None and self._lacks_trims(newest):
                        super().refresh()  # what is pinned must not begin before the list does
                    self._adopt(newest)
                except (StorageError, CorruptEntry) as error:
                    # It only saves memory.
                    _logger.warning("%s was not read: %s", self.manifests.folder, error)

    def checkpoint(self) -> None:
        with self.lock:
            staged = self._settle()
            super().checkpoint()
            if staged is not None:
                self.manifests.collect(staged)

    def _held_back(self) -> bool:
        """Whether too few appends can be moved to manifests, because the rest is undecided."""
        state = self._state
        begun = state.settled.end if state.settled else 0
        return state.first_unsettled(KEPT_ENTRIES) - begun < SETTLED_AT_ONCE

    def _adopt(self, found: ManifestList | None) -> None:
        """Drop from the state what a manifest list that was found in storage holds."""
        state = self._state
        if found is None or found.topic_id != state.topic_id:
            return
        end = min(found.end, state.first_unsettled(0))
        if end > (state.settled.end if state.settled else 0):
            self.manifests.confirm(found)
            settled = Settled(found.number, end, found.has_transactions)
            starts, kept = found.log_start_offsets, self._writers_here
            self._change(lambda state: state.leave_to_manifests(settled, starts, kept))

    def _lacks_trims(self, found: ManifestList) -> bool:
        """Whether records were deleted, before a list was put, that the state still has."""
        parts = self._state.partitions
        return any(
            number >= len(parts) or parts[number].log_start_offset < start
            for number, start in found.log_start_offsets.items()
        )

    def _is_of_later_topic(self, found: ManifestList) -> bool:
        """Whether a list is of a topic that was recreated since the log was read."""
        state = self._state
        # What an earlier topic has settled lies before its deletion, which we have read.
        return found.topic_id != state.topic_id and found.end > state.next_entry

    def _check_kept(self, newest: ManifestList | None) -> None:
        """Raise CorruptEntry if the state's manifest list is gone, and no later one is there.

        A list made from what is left would hold less, and files that it does not name are deleted.
        """
        known = self._state.settled
        if known is not None and (newest is None or newest.number < known.number):
            name = names.manifest_list(known.number)
            raise CorruptEntry(
                f"{self.manifests.folder}/{name} is missing, and no later one is there"
            )

    def _settle(self) -> ManifestList | None:
        """Move decided appends, except the newest, to a manifest, if there are enough.

        Returns the list that was put; None if there were too few, or another process was first.
        """
        if not self.state.exists or self._held_back():
            return None
        since = Moment.now(self.clock)
        try:
            newest = self.manifests.newest()
            if newest and self._is_of_later_topic(newest):
                return None
            self._check_kept(newest)
            self._adopt(newest)
            # The list leaves out what a trim has deleted.
            self.confirm_read()
            end = self._state.first_unsettled(KEPT_ENTRIES)
            begun = newest.end if newest and newest.topic_id == self._state.topic_id else 0
            if end - begun < SETTLED_AT_ONCE:
                return None
            staged = self.manifests.stage(self._state, newest, end)
            # If we slept, we may have used a freed name: others go on with the newer lists.
            if not self.manifests.publish(staged) or self._stalled_since(since):
                return None
        except (StorageError, CorruptEntry) as error:
            _logger.warning("no manifest was left in %s: %s", self.manifests.folder, error)
            return None
        settled, starts = staged.settled, staged.listing.log_start_offsets
        self._change(lambda state: state.leave_to_manifests(settled, starts, self._writers_here))
        return staged.listing
