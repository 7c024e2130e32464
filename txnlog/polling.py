"""Polling: the half of a consumer that hands out records, and waits for them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import TypeVar

import pyarrow as pa

from txnlog.config import check_whole_number
from txnlog.errors import IllegalState, InvalidOption, UnknownTopicOrPartition
from txnlog.log.open_logs import Logs
from txnlog.names import TopicPartition
from txnlog.read.auto_commit import AutoCommit
from txnlog.read.consumer_record import ConsumerRecord
from txnlog.read.fetcher import FetchSettings
from txnlog.read.lookout import Lookout
from txnlog.read.reading import Reading
from txnlog.read.segment_ranges import SegmentRange

Taken = TypeVar("Taken", list[ConsumerRecord], dict[TopicPartition, list[pa.RecordBatch]])


class Polling(ABC):
    """The part of :class:`~txnlog.consumer.Consumer` that polls, once positions are known.

    The consumer itself knows which partitions are assigned, and plans what is read of them.
    """

    def __init__(
        self,
        logs: Logs,
        fetch: FetchSettings,
        max_poll_records: int,
        *,
        stop_at_end: bool,
        auto_commit: AutoCommit | None,
    ) -> None:
        check_whole_number(max_poll_records, "max_poll_records", InvalidOption, least=1)
        self._logs = logs
        self._fetch = fetch.check()
        self._max_poll_records = max_poll_records
        self._stop_at_end = stop_at_end
        self._auto_commit = auto_commit
        self._assigned: dict[TopicPartition, None] = {}
        self._topic_ids: dict[str, str] = {}
        self._ids_before: dict[str, str] | None = None
        """The topics' ids before this poll; None if it has not needed them."""
        self._reading = Reading(logs.storage, fetch)
        self._as_records = True
        """Whether what is planned to be read becomes records, or batches of columns."""
        self._lookout = Lookout(logs.clock, logs.storage.url, fetch.max_wait_ms)
        self._held_back_since_s: float | None = None
        """Since when there have been too few bytes to be read."""
        self._closed = False

    @abstractmethod
    def _take_part(self) -> None:
        """Do what its group asks for. Raises IllegalState: there is nothing that it reads."""

    @abstractmethod
    def _leave(self) -> None:
        """Leave the group, if it is in one."""

    @abstractmethod
    def _refresh(self) -> None:
        """Pin what there is now, and begin to read from the positions to its ends."""

    @abstractmethod
    def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """See :meth:`txnlog.Consumer.commit`."""

    def __iter__(self) -> Iterator[ConsumerRecord]:
        reading = self._reading
        take_one = partial(reading.take_records, 1)
        timeout_ms = 0 if self._stop_at_end else None
        while True:
            # Each so many records are a poll of their own, as in Kafka's clients.
            first: list[ConsumerRecord] = self._polled(take_one, [], timeout_ms)
            if not first:
                return
            yield first[0]
            records = reading.records
            for record in islice(records, self._max_poll_records - 1):
                # Leaving the loop leaves the position behind the last record seen.
                reading.seen = record
                yield record
                if reading.records is not records:  # they were dropped: it was moved, say
                    break

    def poll(
        self, *unnamed: object, timeout_ms: int = 0, max_records: int | None = None
    ) -> list[ConsumerRecord]:
        """The next records; an empty list if none came in time.

        Args:
            unnamed: not allowed: a bare number could be meant as a time or as a count.
            timeout_ms: how long to wait for the first record, in milliseconds. With 0 it looks
                once. Otherwise it sees at once what this process writes, and what others write
                within ``fetch_max_wait_ms``.
            max_records: the most that it returns; ``max_poll_records`` if left out.

        Raises:
            UnknownTopicOrPartition: all topics were deleted, or an assigned partition is gone.
            NoOffsetForPartition: no committed offset, and ``auto_offset_reset`` is none.
            OffsetOutOfRange: the position is gone, and ``auto_offset_reset`` is none.
            Wakeup: another thread called :meth:`wakeup`.
        """
        if unnamed:
            raise _ambiguous("poll", unnamed[0], "max_records=...")
        limit = self._max_poll_records
        if max_records is not None:
            limit = check_whole_number(max_records, "max_records", InvalidOption, least=1)
        take = partial(self._reading.take_records, limit)
        return self._polled(take, [], _check_timeout(timeout_ms))

    def poll_batches(
        self, *unnamed: object, timeout_ms: int = 0
    ) -> dict[TopicPartition, list[pa.RecordBatch]]:
        """The next records as Arrow, by partition; an empty dict if none came in time.

        The fast way: records do not become Python objects. Batches have the columns of
        :meth:`txnlog.Store.scan`; those of typed topics have the schema's columns, ``_offset``,
        ``_timestamp``, ``_headers`` and, if there is a key, ``_deleted``. They are as long as they
        were stored. Together they have at most ``fetch_max_bytes``, and those of one partition
        ``max_partition_fetch_bytes``; but a single batch may be larger. Afterwards the positions
        are behind all of them: :meth:`commit` without offsets commits everything returned.

        Arguments and errors are those of :meth:`poll`.
        """
        if unnamed:
            raise _ambiguous("poll_batches", unnamed[0], "fetch_max_bytes=... of the consumer")
        take = self._reading.take_batches
        return self._polled(take, {}, _check_timeout(timeout_ms), as_records=False)

    def wakeup(self) -> None:
        """Make the poll that waits, or the next one, raise Wakeup. May be called by any thread."""
        self._lookout.wake()

    def _polled(
        self,
        take: Callable[[], Taken],
        nothing: Taken,
        timeout_ms: int | None,
        *,
        as_records: bool = True,
    ) -> Taken:
        """The result of ``take`` from fetched records, or those that exist or arrive in time."""
        self._open()
        self._lookout.check()
        self._take_part()
        if self._auto_commit is not None and not self._auto_commit.commit_if_due(
            self.commit, self._positions
        ):
            self._take_part()  # partitions are somebody else's by now
        if as_records is not self._as_records:
            self._drop_buffered()
            self._as_records = as_records
        self._reading.begin_poll()
        self._ids_before = None
        try:
            return self._take_left(take, nothing) or self._lookout.until_found(
                partial(self._look, take), nothing, timeout_ms
            )
        except BaseException:
            # The caller has not got them, so they must come again: unless they are of a topic
            # that was found to be gone.
            before = self._reading.before_poll()
            topic_ids = self._topic_ids if self._ids_before is None else self._ids_before
            self._positions = {
                where: at
                for where, at in before.items()
                if where in self._assigned
                and self._topic_ids.get(where.topic) == topic_ids.get(where.topic)
            }
            self._drop_buffered()
            raise

    def _take_left(self, take: Callable[[], Taken], nothing: Taken) -> Taken:
        """The rest of the planned ranges."""
        try:
            return take()
        except UnknownTopicOrPartition:
            # Deleted while it was read: refreshing tells what is left.
            return nothing

    def _look(self, take: Callable[[], Taken]) -> Taken:
        self._reading.before_poll()
        self._ids_before = dict(self._topic_ids) if self._ids_before is None else self._ids_before
        self._refresh()
        return take()

    def _holds_back(self, ranges: Iterable[SegmentRange]) -> bool:
        """Whether that is so little that it is better to wait for more."""
        now_s = self._logs.clock.monotonic_s()
        found_bytes = sum(part.size_bytes for part in ranges) if self._fetch.min_bytes > 1 else 1
        if self._stop_at_end or not 0 < found_bytes < self._fetch.min_bytes:
            self._held_back_since_s = None
            return False
        if self._held_back_since_s is None:
            self._held_back_since_s = now_s
        if (now_s - self._held_back_since_s) * 1000 < self._fetch.max_wait_ms:
            return True
        self._held_back_since_s = None
        return False

    @property
    def _positions(self) -> dict[TopicPartition, int]:
        return self._reading.positions

    @_positions.setter
    def _positions(self, positions: dict[TopicPartition, int]) -> None:
        self._reading.positions = positions

    def _open(self) -> None:
        if self._closed:
            raise IllegalState("the consumer is closed")

    def _close(self, *, commit: bool) -> None:
        try:
            if commit and self._auto_commit is not None and not self._closed:
                self._auto_commit.commit_at_end(self.commit, self._positions)
        finally:
            try:
                self._leave()  # again, if it was interrupted
            finally:
                self._drop_buffered()
                self._closed = True

    def _drop_buffered(self) -> None:
        self._reading.drop()
        self._lookout.look_soon()


def _check_timeout(timeout_ms: int) -> int:
    if isinstance(timeout_ms, float):
        raise InvalidOption(
            f"timeout_ms is {timeout_ms!r}; it is a whole number of milliseconds: for so many "
            f"seconds give timeout_ms={round(timeout_ms * 1000)}"
        )
    return check_whole_number(timeout_ms, "timeout_ms", InvalidOption, least=0)


def _ambiguous(call: str, given: object, count: str) -> InvalidOption:
    return InvalidOption(
        f"{call}({given!r}): is that a time or a count? Say {call}(timeout_ms=...), in "
        f"milliseconds, or {count}"
    )
