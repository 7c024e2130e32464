"""The index of aborted transactions of a segment (``.txnindex``), in Kafka's layout.

Segments that txnlog writes have none: there log entries say which transactions are aborted. One
from Kafka holds interleaved records of several transactions, and this file says which of them
readers under read_committed must skip.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np

from txnlog.segments.batch_header import BatchHeader, BytesLike
from txnlog.segments.errors import CorruptRecord

_ENTRY = struct.Struct(">hqqqq")
TRANSACTION_ENTRY: Final = np.dtype(
    [
        ("version", ">i2"),
        ("producer_id", ">i8"),
        ("first_offset", ">i8"),
        ("last_offset", ">i8"),
        ("last_stable_offset", ">i8"),
    ]
)
_VERSION: Final = 0

NO_MARKER: Final = -1
"""In place of a last stable offset, only in a store: no marker says that it was aborted."""


class AbortedTransaction(NamedTuple):
    """A producer's transactional records from first_offset to last_offset are aborted.

    Offsets are absolute; ``last_offset`` is that of the marker. ``last_stable_offset`` is its value
    after the abort.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """The aborted transactions that reach into one segment."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self.aborted = tuple(sorted(aborted, key=lambda item: (item.last_offset, item)))
        # By producer: first offsets, ascending, and the last offset of what begins up to there.
        self._firsts: dict[int, list[int]] = {}
        self._lasts: dict[int, list[int]] = {}
        for item in sorted(self.aborted, key=lambda item: item.first_offset):
            lasts = self._lasts.setdefault(item.producer_id, [])
            lasts.append(max(item.last_offset, lasts[-1] if lasts else -1))
            self._firsts.setdefault(item.producer_id, []).append(item.first_offset)

    @classmethod
    def decode(cls, data: BytesLike, *, name: str = "txnindex") -> TransactionIndex:
        """Raises CorruptRecord if the bytes are no whole entries of a known version."""
        if len(data) % _ENTRY.size:
            raise CorruptRecord(
                f"{name}: {len(data)} bytes are not a whole number of {_ENTRY.size}-byte entries"
            )
        aborted = []
        for number, (version, *fields) in enumerate(_ENTRY.iter_unpack(data)):
            item = AbortedTransaction(*fields)
            if version != _VERSION or not 0 <= item.first_offset <= item.last_offset:
                raise CorruptRecord(
                    f"{name}: entry {number} is damaged: version {version}, offsets "
                    f"{item.first_offset} to {item.last_offset}"
                )
            aborted.append(item)
        return cls(aborted)

    def encode(self) -> bytes:
        """34 bytes for each transaction, in the order of their markers."""
        return b"".join(_ENTRY.pack(_VERSION, *item) for item in self.aborted)

    def hides(self, header: BatchHeader) -> bool:
        """Whether the records of this batch (absolute offsets) belong to one of them."""
        if not header.is_transactional:
            return False
        at = bisect_right(self._firsts.get(header.producer_id, ()), header.base_offset) - 1
        return at >= 0 and header.base_offset <= self._lasts[header.producer_id][at]
