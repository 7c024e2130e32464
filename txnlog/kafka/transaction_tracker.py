"""Finds a Kafka partition's aborted transactions, batch by batch. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from txnlog.segments.batch_header import BatchHeader
from txnlog.segments.indexes.transactions import NO_MARKER, AbortedTransaction
from txnlog.segments.kafka_markers import ABORT, COMMIT, ControlMarker


class OpenTransaction(NamedTuple):
    """A producer's records not yet decided by a marker."""

    producer_id: int
    producer_epoch: int
    first_offset: int


class TransactionTracker:
    """Follows the batches of one partition in the order of their offsets. Markers decide.

    ``indexed`` is the transaction indexes' content: no checksum covers them, so they count only
    where damaged markers leave the outcome open. ``doomed`` are producers whose next marker ends a
    transaction that counts as aborted already: an earlier import ended inside of it.
    """

    def __init__(
        self, indexed: Iterable[AbortedTransaction] = (), doomed: Iterable[int] = ()
    ) -> None:
        self._doomed = set(doomed)
        self._indexed = {(item.producer_id, item.last_offset): item for item in indexed}
        self._open: dict[int, OpenTransaction] = {}
        self._aborted: dict[tuple[int, int], AbortedTransaction] = {}
        self._lost: list[OpenTransaction] = []
        self._in_doubt: set[int] = set()

    @property
    def open(self) -> list[OpenTransaction]:
        """Undecided transactions, in the order in which they began."""
        return sorted(self._open.values(), key=lambda item: item.first_offset)

    def aborted(self) -> list[AbortedTransaction]:
        """Aborted transactions, in the order of the markers."""
        return sorted(self._aborted.values(), key=lambda item: item.last_offset)

    def add(self, header: BatchHeader, markers: Iterable[ControlMarker]) -> None:
        """Process the next batch; ``markers`` are its own if it is a control batch."""
        # A batch emptied by compaction may have outlived its marker.
        if header.is_transactional and not header.is_control and header.record_count:
            self.begin(header.producer_id, header.producer_epoch, header.base_offset)
        for marker in markers:
            self.end(header.producer_id, marker)

    def begin(self, producer_id: int, producer_epoch: int, offset: int) -> None:
        """A producer's transaction has a record at ``offset``: its first, or one more."""
        begun = OpenTransaction(producer_id, producer_epoch, offset)
        self._open.setdefault(producer_id, begun)

    def end(self, producer_id: int, marker: ControlMarker) -> None:
        """A marker decides the producer's records since the last one."""
        if marker.type not in (ABORT, COMMIT):
            return
        ended = self._open.pop(producer_id, None)
        in_doubt = producer_id in self._in_doubt
        self._in_doubt.discard(producer_id)
        is_doomed = producer_id in self._doomed
        self._doomed.discard(producer_id)
        if (marker.type == COMMIT and not is_doomed) or ended is None:
            return  # a marker without records decides nothing: the transaction wrote elsewhere
        key = (producer_id, marker.offset)
        known = self._indexed.get(key) if in_doubt else None
        # An earlier marker may be lost: the index knows where this transaction began.
        is_later = known is not None and known.first_offset >= ended.first_offset
        self._aborted[key] = known if known and is_later else self._abort(ended, marker.offset)

    def lose(self, lost: range, *, is_indexed: bool) -> None:
        """These offsets are damaged, and markers may be among them.

        Transactions undecided there are aborted if a transaction index says so. Without an index it
        is unknown: they count as aborted, since aborted records must not be seen.
        """
        for item in self.open:
            if not is_indexed:
                self._aborted[item.producer_id, lost.start] = _end_without_marker(item, lost.start)
                self._lost.append(item)
                del self._open[item.producer_id]
                continue
            self._in_doubt.add(item.producer_id)
            for (producer_id, offset), known in self._indexed.items():
                if producer_id == item.producer_id and offset in lost:
                    self._aborted[producer_id, offset] = known
                    self._open.pop(producer_id, None)

    def still_doomed(self, end_offset: int) -> list[AbortedTransaction]:
        """Producers whose transactions an earlier import has aborted, and that did nothing since.

        They are carried over to an import that goes on at ``end_offset``.
        """
        last = max(end_offset - 1, 0)
        idle = sorted(self._doomed - self._open.keys())
        return [AbortedTransaction(producer_id, last, last, NO_MARKER) for producer_id in idle]

    def abort_open(self, end_offset: int) -> list[OpenTransaction]:
        """Take what is still undecided for aborted, up to ``end_offset``.

        Returns all of it, and whose end was lost, too.
        """
        undecided = self.open
        for item in undecided:
            last = max(end_offset - 1, item.first_offset)
            self._aborted[item.producer_id, last] = _end_without_marker(item, last)
        self._open.clear()
        return [*self._lost, *undecided]

    def _abort(self, ended: OpenTransaction, last_offset: int) -> AbortedTransaction:
        others = (o.first_offset for p, o in self._open.items() if p != ended.producer_id)
        stable = min(others, default=last_offset + 1)
        return AbortedTransaction(ended.producer_id, ended.first_offset, last_offset, stable)


def _end_without_marker(item: OpenTransaction, last_offset: int) -> AbortedTransaction:
    return AbortedTransaction(item.producer_id, item.first_offset, last_offset, NO_MARKER)
