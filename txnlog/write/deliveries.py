"""Futures of records that were sent: where each is, once that is known.

As in Kafka's producer, records share the state of the batch that they become part of, and a future
is no more than that batch and a number in it: thousands cost little.
"""

from __future__ import annotations

import logging
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from txnlog.names import TopicPartition

_logger = logging.getLogger(__name__)

Flush: TypeAlias = Callable[[], Callable[[], object] | None]
"""Tells how records are flushed, if that can still be done: ``weakref.WeakMethod``, say."""


@dataclass(frozen=True, slots=True)
class RecordMetadata:
    """Where a record is. In a transaction it shows when that is committed, not before."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class _Placement:
    """Where the records of a batch are: ``partitions`` of each record, and their offsets.

    ``before`` is how many records of each partition in ``offsets`` come before the batch. It ends
    with the last partition that has any.
    """

    partitions: npt.NDArray[np.int32]
    before: npt.NDArray[np.int64]
    topic: str
    offsets: Mapping[TopicPartition, Sequence[range]]

    def of(self, row: int) -> RecordMetadata:
        partition = int(self.partitions[row])
        left = int(np.count_nonzero(self.partitions[:row] == partition))
        left += int(self.before[partition : partition + 1].sum())
        for offsets in self.offsets[TopicPartition(self.topic, partition)]:
            if left < len(offsets):
                return RecordMetadata(self.topic, partition, offsets[left])
            left -= len(offsets)
        raise AssertionError(f"record {row} of a batch was placed nowhere")


class SentBatch:
    """Records that were sent one by one and become a batch; what their futures share.

    Who waits for it holds it. Only if somebody is to be called it is in ``held``, a set of its
    buffer: so what nobody asks for takes no memory until it is placed.
    """

    __slots__ = ("__weakref__", "_calls", "_flush", "_held", "_placement", "before", "partitions")

    def __init__(self, flush: Flush, held: set[SentBatch]) -> None:
        self._flush = flush
        self._held = held
        self.partitions: npt.NDArray[np.int32] | None = None
        self.before: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self._placement: Future[_Placement] = Future()
        self._calls: deque[Callable[[], object]] = deque()

    def resolve(self, topic: str, offsets: Mapping[TopicPartition, Sequence[range]]) -> None:
        """Tell where the records were placed, unless that is known.

        After an interrupt it is called again.
        """
        if not self.done:
            assert self.partitions is not None
            placed = _Placement(self.partitions, self.before, topic, offsets)
            self._placement.set_result(placed)
        self._call_all()

    def refuse(self, error: BaseException) -> None:
        """Tell that the records were not written."""
        if not self.done:
            self._placement.set_exception(error)
        self._call_all()

    @property
    def done(self) -> bool:
        """Whether it is known what became of the records."""
        return self._placement.done()

    def wait(self, timeout: float | None) -> Future[_Placement]:
        """Wait for the placement, after a flush of the producer if nobody has flushed it.

        Without the flush the records might never be sent. Raises what a flush raises, and
        TimeoutError.
        """
        flush = None if self.done else self._flush()
        if flush is not None:
            flush()
        self._placement.exception(timeout)
        return self._placement

    def call_when_done(self, call: Callable[[], object]) -> None:
        """Call it when it is known what became of the records, in the thread that learns it."""
        self._held.add(self)
        self._calls.append(call)
        if self.done:
            self._call_all()

    def _call_all(self) -> None:
        """Once each, in order, also if an interrupt comes between two."""
        while self._calls:
            call = self._calls.popleft()
            try:
                call()
            except Exception:
                _logger.exception("on_delivery failed")
        self._held.discard(self)


class FutureRecordMetadata(msgspec.Struct, frozen=True, gc=False, eq=False):
    """The future of a record, as :meth:`txnlog.Producer.send` returns it.

    It is done when a flush has placed the record. It does not keep the producer alive.
    """

    _batch: SentBatch
    _row: int

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Where the record is; flushes its producer, if nobody has.

        Args:
            timeout: in seconds; None waits as long as it takes.

        Raises:
            TxnlogError: what the flush raises, and what became of the record otherwise.
            TimeoutError: it is not known in time.
        """
        return self._batch.wait(timeout).result().of(self._row)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Why the record was not written; None if it was. Flushes as :meth:`result` does."""
        return self._batch.wait(timeout).exception()

    def done(self) -> bool:
        """Whether it is known what became of the record. Flushes nothing."""
        return self._batch.done

    def add_done_callback(self, call: Callable[[FutureRecordMetadata], object]) -> None:
        """Call it with this future when it is done, in the thread that flushes; at once if it is.

        It must not use the producer. What it raises is logged.
        """
        self._batch.call_when_done(partial(call, self))

    def __repr__(self) -> str:
        state = "done" if self.done() else "pending"
        return f"<{type(self).__name__} {state}>"


@contextmanager
def refusing(batches: Iterable[SentBatch]) -> Iterator[None]:
    """An error within the block is the records' too."""
    try:
        yield
    except BaseException as error:
        refuse(batches, error)
        raise


def refuse(batches: Iterable[SentBatch], error: BaseException) -> None:
    """Tell those who wait for records that these were not written."""
    for batch in batches:
        batch.refuse(error)


def number(
    batch: weakref.ref[SentBatch],
    partitions: npt.NDArray[np.int32],
    before: npt.NDArray[np.int64],
) -> None:
    """Note the partition of each record, and how many of each are placed before these."""
    for one in living([batch]):
        one.partitions, one.before = partitions, before


def living(batches: Iterable[weakref.ref[SentBatch]]) -> Iterator[SentBatch]:
    """The batches that still exist, because a future refers to them, when each is yielded."""
    for one in batches:
        if (batch := one()) is not None:
            yield batch
