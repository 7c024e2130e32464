"""Which transactions of a Kafka partition are aborted: followed batch by batch. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from txnlog.segments.header import BatchHeader
from txnlog.segments.markers import ABORT, COMMIT, ControlMarker
from txnlog.segments.transaction_index import AbortedTransaction


class OpenTransaction(NamedTuple):
    """A producer's records that no marker has decided yet."""

    producer_id: int
    producer_epoch: int
    first_offset: int


class TransactionTracker:
    """Follows the batches of one partition in the order of their offsets.

    Args:
        indexed: what transaction indexes say. It matters where markers are damaged: an index knows
            where a transaction began and ended, and what remains of the records may not.
    """

    def __init__(self, indexed: Iterable[AbortedTransaction] = ()) -> None:
        self._open: dict[int, OpenTransaction] = {}
        self._indexed: Mapping[tuple[int, int], AbortedTransaction] = {
            (item.producer_id, item.last_offset): item for item in indexed
        }
        self._aborted: dict[tuple[int, int], AbortedTransaction] = dict(self._indexed)

    @property
    def open(self) -> list[OpenTransaction]:
        """What is undecided, in the order in which it began."""
        return sorted(self._open.values(), key=lambda item: item.first_offset)

    def aborted(self) -> list[AbortedTransaction]:
        """What is aborted, in the order of the markers."""
        return sorted(self._aborted.values(), key=lambda item: item.last_offset)

    def add(self, header: BatchHeader, markers: Iterable[ControlMarker]) -> None:
        """Take note of the next batch; ``markers`` are its own if it is a control batch."""
        # One that compaction has emptied may have outlived its marker.
        if header.is_transactional and not header.is_control and header.record_count:
            self.begin(header.producer_id, header.producer_epoch, header.base_offset)
        for marker in markers:
            self.end(header.producer_id, marker)

    def begin(self, producer_id: int, producer_epoch: int, offset: int) -> None:
        """A producer's transaction has a record at ``offset``: its first, or one more."""
        begun = OpenTransaction(producer_id, producer_epoch, offset)
        self._open.setdefault(producer_id, begun)

    def end(self, producer_id: int, marker: ControlMarker) -> None:
        """A marker decides what the producer has written since the last one."""
        if marker.type not in (ABORT, COMMIT):
            return
        ended = self._open.pop(producer_id, None)
        key = (producer_id, marker.offset)
        # A marker without records decides nothing: the transaction wrote elsewhere.
        if marker.type == ABORT and ended is not None and key not in self._indexed:
            self._aborted[key] = self._abort(ended, marker.offset)

    def abort_open(self, end_offset: int) -> list[OpenTransaction]:
        """Take what is still undecided for aborted, up to ``end_offset``; returns it."""
        undecided = self.open
        for item in undecided:
            last = max(end_offset - 1, item.first_offset)
            self._aborted[item.producer_id, last] = self._abort(item, last)
        self._open.clear()
        return undecided

    def _abort(self, ended: OpenTransaction, last_offset: int) -> AbortedTransaction:
        others = (o.first_offset for p, o in self._open.items() if p != ended.producer_id)
        stable = min(others, default=last_offset + 1)
        return AbortedTransaction(ended.producer_id, ended.first_offset, last_offset, stable)
