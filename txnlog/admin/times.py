"""What time it is, and how old records are: no single wrong clock may delete anything early."""

from __future__ import annotations

import errno
import logging
from contextlib import suppress
from dataclasses import dataclass

from txnlog import names
from txnlog.clock import Clock
from txnlog.config import FUTURE_MS
from txnlog.errors import ObjectNotFound, StorageError
from txnlog.log.named_folders import list_topics
from txnlog.names import SegmentRef
from txnlog.state.segment import Segment
from txnlog.storage.base import Storage, for_each
from txnlog.storage.probe import FOLDER

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)

_logger = logging.getLogger(__name__)


def storage_time_ms(storage: Storage, clock: Clock) -> int | None:
    """The time by the storage's own clock: that of an object that is put and deleted again.

    It is empty, for which a full disk may have room. On one that has none a time that has passed
    already: nothing else could ever be deleted there. None if it reports no time. Raises
    StorageError.
    """
    path = f"{FOLDER}/{clock.token()}/now"
    try:
        storage.put(path, b"")
    except StorageError as error:
        if getattr(error.__cause__, "errno", None) not in _NO_SPACE:
            raise
        _logger.warning("%s; going by the newest entries of topics", error)
        newest_ms = _newest_entry_ms(storage)
        return newest_ms and min(newest_ms, clock.now_ms())  # one that is ahead ages nothing
    try:
        return storage.modified_ms(path)
    except ObjectNotFound:
        return None
    finally:
        try:
            storage.delete([path])
        except StorageError as error:
            _logger.warning("%s was left behind: %s", path, error)


def _newest_entry_ms(storage: Storage) -> int | None:
    """When the newest file of all topics' logs was put; None if that is not told."""

    def newest_of(topic: str) -> int | None:
        folder = names.topic_log(topic)
        for name in storage.list_names(folder)[-1:]:
            with suppress(ObjectNotFound):  # cleaned up meanwhile
                return storage.modified_ms(f"{folder}/{name}")
        return None

    found = for_each(storage, newest_of, list_topics(storage))
    return max((at_ms for at_ms in found if at_ms is not None), default=None)


class Times:
    """The time now, by this process's clock and by the storage's, which was asked once.

    What is decided long after that is judged by the time that it is then. ``told_ms`` is the
    storage's time at this moment; None: it reports none.
    """

    def __init__(self, clock: Clock, told_ms: int | None) -> None:
        self._clock = clock
        self._told_ms = told_ms
        self._asked_s = clock.monotonic_s()

    @classmethod
    def ask(cls, storage: Storage, clock: Clock) -> Times:
        """Ask the storage. Raises StorageError."""
        return cls(clock, storage_time_ms(storage, clock))

    @property
    def told_ms(self) -> int | None:
        """The time by the storage's clock; None if it has none."""
        if self._told_ms is None:
            return None
        return self._told_ms + round((self._clock.monotonic_s() - self._asked_s) * 1000)

    @property
    def earliest_ms(self) -> int:
        """The time by the earlier clock: what is due by it is due by both."""
        own_ms, told_ms = self._clock.now_ms(), self.told_ms
        return own_ms if told_ms is None else min(own_ms, told_ms)

    @property
    def latest_ms(self) -> int:
        """The time by the later clock: what lies ahead by it does so by both."""
        own_ms, told_ms = self._clock.now_ms(), self.told_ms
        return own_ms if told_ms is None else max(own_ms, told_ms)

    def was_put_before(self, age_ms: int, put_ms: int | None) -> bool:
        """Whether an object is older than ``age_ms``, by the storage's clock alone.

        True if it does not tell when the object was put, or what time it is.
        """
        told_ms = self.told_ms
        return told_ms is None or put_ms is None or told_ms - put_ms > age_ms


@dataclass(frozen=True, slots=True)
class FutureRecords:
    """A segment whose newest record has a time that lies in the future by more than an hour.

    It holds the offsets [``base_offset``, ``end_offset``); ``timestamp_ms`` is that time. Retention
    goes by the time of its upload instead, if the storage tells it.
    """

    topic: str
    partition: int
    base_offset: int
    end_offset: int
    timestamp_ms: int


def lies_ahead(timestamp_ms: int, now_ms: int) -> bool:
    """Whether a record's time cannot be right: clocks do not differ by that much."""
    return timestamp_ms - now_ms > FUTURE_MS


def newest_record_ms(
    storage: Storage, topic: str, partition: int, segment: Segment, now_ms: int
) -> int | None:
    """When the newest record of a segment was made, as far as is known; None if it is not.

    Records of Kafka's first format have no time. As in Kafka, the file's is used then; also if the
    time lies in the future, since no record was made after its upload.
    """
    said_ms = segment.stored.max_timestamp_ms
    if said_ms >= 0 and not lies_ahead(said_ms, now_ms):
        return said_ms
    try:
        put_ms = storage.modified_ms(
            SegmentRef(topic, partition, segment.stored.name, segment.stored.position).paths.log
        )
    except ObjectNotFound:
        put_ms = None  # it is missing, or others have deleted it
    if said_ms < 0:
        return put_ms
    return said_ms if put_ms is None else min(said_ms, put_ms)
