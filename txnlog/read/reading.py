"""A consumer's current read: the fetched records, and the positions after them.

A poll that fails leaves the positions where they were, so its records are returned again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

import msgspec
import pyarrow as pa

from txnlog.errors import (
    CorruptRecord,
    OffsetOutOfRange,
    RecordDeserializationFailed,
    SnapshotExpired,
    UnknownTopicOrPartition,
)
from txnlog.metric import Meter
from txnlog.names import TopicPartition
from txnlog.read.consumer_record import ConsumerRecord, each_record
from txnlog.read.fetcher import Fetched, Fetcher, FetchSettings
from txnlog.read.segment_ranges import SegmentRange
from txnlog.read.topic_view import TopicView
from txnlog.serializers import Serializers
from txnlog.storage.base import Storage

OUTDATED: Final = (OffsetOutOfRange, SnapshotExpired, UnknownTopicOrPartition)
"""What is raised when planned files are gone that the topics do not need any more: deleted records'
or topics', or those of records that were merged or compacted."""


class Reading:
    """Returns the planned ranges as records or batches, and advances the positions.

    ``views`` are the topics that it reads, or has read to their ends; none once it was dropped.
    """

    def __init__(
        self,
        storage: Storage,
        settings: FetchSettings,
        meter: Meter,
        deserializers: Serializers | None = None,
    ) -> None:
        self._meter = meter
        self._deserializers = deserializers
        self.views: list[TopicView] = []
        self.records: Iterator[ConsumerRecord] = iter(())
        """The fetched records, all of one partition. A new iterator after they were dropped."""
        self.seen: ConsumerRecord | None = None
        """The last record taken from ``records`` by iterating: its position is not advanced yet."""
        self._settings = settings
        self._fetcher = Fetcher(storage, settings)
        self._current: Fetched | None = None
        """The one whose records are in ``records``."""
        self._held: Fetched | None = None
        self._damage: CorruptRecord | RecordDeserializationFailed | None = None
        """The error of the next poll."""
        self._positions: dict[TopicPartition, int] = {}
        self._moved: dict[TopicPartition, int] = {}
        """The positions before this poll of the partitions that it has moved."""
        self._before: dict[TopicPartition, int] | None = None

    # -- positions -------------------------------------------------------------------------------

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """The offset of the next record by partition, as far as it is known."""
        seen, self.seen = self.seen, None
        if seen is not None:
            assert self._current is not None
            self._positions[self._current.where] = self._current.after(seen)
        return self._positions

    @positions.setter
    def positions(self, offsets: dict[TopicPartition, int]) -> None:
        self.seen = None
        self._positions = offsets

    def begin_poll(self) -> None:
        """From now on :meth:`before_poll` returns the current positions."""
        self._moved, self._before = {}, None
        self.positions  # noqa: B018 - that of the last record seen is one of them

    def before_poll(self) -> dict[TopicPartition, int]:
        """All positions before this poll, and those that :meth:`place` has given since.

        Computed only when needed: its cost grows with the partitions, and a poll of one record
        should be cheap.
        """
        if self._before is None:
            self._before = {**self.positions, **self._moved}
        return self._before

    def place(self, where: TopicPartition, offset: int) -> None:
        """Read on from here, even if the current poll fails."""
        self.positions[where] = offset
        self._moved.pop(where, None)
        if self._before is not None:
            self._before[where] = offset

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """They have no position any more, and had none before this poll."""
        for known in (self.positions, self._moved, self._before or {}):
            for where in partitions:
                known.pop(where, None)

    def _move(self, where: TopicPartition, offset: int) -> None:
        self._moved.setdefault(where, self.positions[where])
        self.positions[where] = offset

    # -- fetched records -------------------------------------------------------------------------

    def begin(
        self,
        views: Sequence[TopicView],
        ranges: Sequence[SegmentRange],
        ends: Mapping[TopicPartition, int],
        *,
        as_records: bool,
    ) -> None:
        """Return these ranges of these topics from now on; ``ends`` is where partitions end."""
        self.drop()
        schemas = {view.topic: view.schema for view in views}
        self._fetcher.begin(ranges, ends, schemas, as_records=as_records)
        self.views = [*views]

    def drop(self) -> None:
        """Drop fetched and planned records: those not returned yet are read again."""
        self._fetcher.drop()
        self._held = self._damage = None
        self.records = iter(())
        self.views = []

    def take_records(self, limit: int) -> list[ConsumerRecord]:
        """The next records, at most this many; fewer only if there are no more.

        Raises what :func:`txnlog.read.scanned_ranges.read_ranges` does, and drops everything.
        """
        found: list[ConsumerRecord] = []
        while len(found) < limit:
            records = [*islice(self.records, limit - len(found))]
            if records:
                assert self._current is not None
                self._move(self._current.where, self._current.after(records[-1]))
                found += records
                continue
            fetched = self._next(ending=bool(found))
            if fetched is None:
                break
            self._current = fetched
            if fetched.batch is not None:
                self.records = each_record(fetched.where, fetched.batch)
                if self._deserializers is not None:
                    self.records = self._deserialized(self.records, self._deserializers)
        return found

    def _deserialized(
        self, records: Iterator[ConsumerRecord], deserialize: Serializers
    ) -> Iterator[ConsumerRecord]:
        """The records in the user's form; ends before one that has none, whose error is next."""
        for record in records:
            try:
                key, value = deserialize(record.key, record.value)
            except Exception as error:  # noqa: BLE001 - whatever the user's function raises
                self._damage = _undeserializable(record, error)
                return
            yield msgspec.structs.replace(record, key=key, value=value)

    def take_batches(self) -> dict[TopicPartition, list[pa.RecordBatch]]:
        """The next batches by partition: as many bytes as the settings allow, or one batch.

        Raises what :meth:`take_records` does.
        """
        found: dict[TopicPartition, list[pa.RecordBatch]] = {}
        left = self._settings.max_bytes
        room: dict[TopicPartition, int] = {}
        while (fetched := self._next(ending=bool(found))) is not None:
            where, batch = fetched.where, fetched.batch
            if batch is None:
                continue
            size_bytes = batch.nbytes
            if found and size_bytes > min(
                left, room.get(where, self._settings.max_partition_bytes)
            ):
                self._held = fetched
                break
            left -= size_bytes
            room[where] = room.get(where, self._settings.max_partition_bytes) - size_bytes
            found.setdefault(where, []).append(batch)
            self._move(where, fetched.next_offset)
        return found

    def _next(self, *, ending: bool) -> Fetched | None:
        """The next batch, skipping ends of ranges; None if there is none.

        With ``ending``, also None if the plan is found outdated, or damage is all that is left: the
        records taken so far are returned.
        """
        held, self._held = self._held, None
        if held is not None:
            return held
        if self._damage is not None:
            if ending:
                return None
            damage, self._damage = self._damage, None
            raise damage
        try:
            with self._meter.timed("fetch"):
                fetched = self._fetcher.next()
        except CorruptRecord as error:
            if not ending:
                raise
            self._damage = error  # after what was found before it
            return None
        except OUTDATED:
            self.drop()
            if ending:
                return None
            raise
        if fetched is None:
            return None
        if fetched.batch is None:
            at = self.positions[fetched.where]
            self._move(fetched.where, max(at, fetched.next_offset))
        else:
            self._meter.add("records", fetched.batch.num_rows)
            self._meter.add("bytes", fetched.batch.nbytes)
        return fetched


def _undeserializable(record: ConsumerRecord, error: Exception) -> RecordDeserializationFailed:
    where = TopicPartition(record.topic, record.partition)
    failed = RecordDeserializationFailed(
        f"the record at offset {record.offset} of {where} cannot be deserialized: "
        f"{type(error).__name__}: {error}. It comes again with each poll, until the consumer seeks "
        f"past it: consumer.seek({where!r}, {record.offset + 1})"
    )
    failed.where, failed.offset, failed.__cause__ = where, record.offset, error
    return failed
