"""Records whose sender wants to know where they are: futures, done when their offsets are known."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from txnlog.names import TopicPartition


@dataclass(frozen=True, slots=True)
class RecordMetadata:
    """Where a record is. In a transaction it shows when that is committed, not before."""

    topic: str
    partition: int
    offset: int


class Delivery(Future[RecordMetadata]):
    """The future of a record, made by :meth:`txnlog.Producer.submit`; it cannot be cancelled.

    To wait for it flushes the producer, if nobody has: nothing else might ever do so. It holds the
    producer weakly, whose records hold it: one that is dropped is still noticed.
    """

    def __init__(self, flush: Callable[[], object]) -> None:
        super().__init__()
        self._flush = weakref.WeakMethod(flush)

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Where the record is. Raises what a flush raises, and what became of it otherwise."""
        self._send()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Why the record was not written; None if it was."""
        self._send()
        return super().exception(timeout)

    def cancel(self) -> bool:
        """A record that was sent cannot be taken back."""
        return False

    def _send(self) -> None:
        flush = None if self.done() else self._flush()
        if flush is not None:
            flush()


@dataclass(frozen=True, slots=True)
class Sent:
    """A delivery, and which one it is among those of its partition that are placed together."""

    delivery: Delivery
    partition: int
    number: int


def number_deliveries(
    deliveries: Mapping[int, Delivery],
    partitions: npt.NDArray[np.int32],
    count_before: Callable[[int], int],
) -> list[Sent]:
    """The deliveries of a batch, by row.

    Args:
        deliveries: by the number of their row.
        partitions: of each row.
        count_before: tells how many records of a partition come before the batch.
    """
    order = np.argsort(partitions, kind="stable")
    counts = np.bincount(partitions)
    ranks = np.empty(len(partitions), np.int64)
    ranks[order] = np.arange(len(partitions)) - (np.cumsum(counts) - counts)[partitions[order]]
    before = {int(number): count_before(int(number)) for number in np.flatnonzero(counts)}
    return [
        Sent(delivery, int(partitions[row]), before[int(partitions[row])] + int(ranks[row]))
        for row, delivery in deliveries.items()
    ]


def resolve(
    sent: Iterable[Sent], topic: str, placed: Mapping[TopicPartition, Sequence[range]]
) -> None:
    """Tell the deliveries of a topic where their records were placed, unless they know.

    After an interrupt it is called again.
    """
    for one in sent:
        if one.delivery.done():
            continue
        left = one.number
        for offsets in placed[TopicPartition(topic, one.partition)]:
            if left < len(offsets):
                one.delivery.set_result(RecordMetadata(topic, one.partition, offsets[left]))
                break
            left -= len(offsets)


@contextmanager
def refusing(deliveries: Iterable[Delivery]) -> Iterator[None]:
    """An error within the block is the deliveries' too."""
    try:
        yield
    except BaseException as error:
        refuse(deliveries, error)
        raise


def refuse(deliveries: Iterable[Delivery], error: BaseException) -> None:
    """Tell deliveries that their records were not written."""
    for delivery in deliveries:
        if not delivery.done():
            delivery.set_exception(error)
