"""The appends of a topic since a time, in a few columns: offsets, transactions and times.

Manifests with only older appends are not read.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

import numpy as np

from txnlog.log.topic_log import TopicLog
from txnlog.names import TopicPartition
from txnlog.segments.records import Int64Array
from txnlog.state.cut import Part
from txnlog.state.manifest import ManifestList, Settled
from txnlog.state.producers import TIMED_APPENDS

_NEVER_MS = np.iinfo(np.int64).max
_AT_ONCE = 1 << 16
_COLUMNS = ("entry", "partition", "base_offset", "at_ms", "producer_id", "transaction")


@dataclass(frozen=True, slots=True, eq=False)
class AppendTimes:
    """Appends that were not aborted, a row for each partition (or segment), in the log's order.

    ``older_ms`` is the latest time of any append left out; -1 if none is.
    """

    topic: str
    rows: dict[str, Int64Array]
    older_ms: int

    @classmethod
    def since(cls, log: TopicLog, since_ms: int) -> AppendTimes:
        """All appends of a log's state since a time, and maybe some before it.

        Raises CorruptEntry, StorageError, UnknownTopicOrPartition.
        """
        with log.lock:
            state = log.state
            settled = state.settled
            aborted = set(state.aborted)
            recent = [entry for entry in state.recent if entry.number not in aborted]
            topic_id, created_at_ms = state.topic_id, state.created_at_ms

        def load(listing: ManifestList) -> tuple[list[dict[str, Int64Array]], int]:
            assert isinstance(settled, Settled)
            times = [ref.max_at_ms for ref in listing.manifests]
            first = next((n for n, at_ms in enumerate(times) if at_ms >= since_ms), len(times))
            tables = log.manifests.tables(listing.manifests[first:], settled)
            loaded = [{name: table.committed().ints(name) for name in _COLUMNS} for table in tables]
            return loaded, max(times[:first], default=-1)

        loaded, older_ms = log.manifests.read(settled, topic_id, load) or ([], -1)
        listed = [
            (
                entry.number,
                partition,
                offset,
                entry.at_ms,
                entry.transaction.producer_id if entry.transaction else -1,
                entry.transaction.number if entry.transaction else -1,
            )
            for entry in recent
            for partition, offset in entry.first_offsets.items()
        ]
        newest = np.array(listed, dtype=np.int64).reshape(len(listed), len(_COLUMNS))
        loaded.append({name: newest[:, at] for at, name in enumerate(_COLUMNS)})
        rows = {name: np.concatenate([table[name] for table in loaded]) for name in _COLUMNS}
        order = np.lexsort((rows["base_offset"], rows["entry"]))
        rows = {name: column[order] for name, column in rows.items()}
        rows["at_ms"] = probable_times(rows["entry"], rows["at_ms"], max(older_ms, created_at_ms))
        return cls(log.name, rows, older_ms)

    def first_after(self, at_ms: int) -> dict[int, int]:
        """By partition, the first offset of all appends that are later than a time."""
        late = self.rows["at_ms"] > at_ms
        partitions, offsets = self.rows["partition"][late], self.rows["base_offset"][late]
        order = np.lexsort((offsets, partitions))
        numbers, first = np.unique(partitions[order], return_index=True)
        return dict(zip(numbers.tolist(), offsets[order][first].tolist(), strict=True))

    def parts(self, until_ms: int) -> list[Part]:
        """The appends that are not later than a time, each as a unit of visibility."""
        chosen = self.rows["at_ms"] <= until_ms
        columns = (self.rows[name][chosen].tolist() for name in _COLUMNS)
        found: dict[int, Part] = {}
        for entry, partition, offset, at_ms, producer_id, transaction in zip(*columns, strict=True):
            part = found.get(entry)
            if part is None:
                unit: Hashable = (self.topic, entry)
                if transaction >= 0:
                    unit = Transaction(producer_id, transaction)
                part = found[entry] = Part(unit, {}, at_ms)
            offsets = part.first_offsets
            assert isinstance(offsets, dict)
            offsets.setdefault(TopicPartition(self.topic, partition), offset)
        return [*found.values()]


def last_append(log: TopicLog, ends: Mapping[int, int], after: int) -> int:
    """The last append after an entry with a record before these ends; -1 if there is none.

    Raises CorruptEntry, StorageError, UnknownTopicOrPartition.
    """
    with log.lock:
        state = log.state
        settled, topic_id, aborted = state.settled, state.topic_id, set(state.aborted)
        found = max(
            (
                entry.number
                for entry in state.recent
                if entry.number not in aborted
                and any(offset < ends.get(n, 0) for n, offset in entry.first_offsets.items())
            ),
            default=-1,
        )

    def look_back(listing: ManifestList) -> int:
        assert isinstance(settled, Settled)
        spans = {number: [(0, end)] for number, end in ends.items() if end}
        refs = [ref for ref in listing.manifests if ref.end_entry > after and ref.touches(spans)]
        last = -1
        for table in log.manifests.tables(refs, settled):
            for number, rows in table.committed().by_partition():
                entries = rows.overlapping(number, 0, ends.get(number, 0)).ints("entry")
                last = max(last, int(entries.max(initial=-1)))
        return last

    older = log.manifests.read(settled, topic_id, look_back)
    return found if older is None else max(found, older)


@dataclass(frozen=True, slots=True)
class Transaction:
    """Distinguishes a transaction from all others, as in segments."""

    producer_id: int
    number: int


def probable_times(entries: Int64Array, at_ms: Int64Array, before_ms: int) -> Int64Array:
    """When appends were made, as far as can be told with wrong clocks.

    None was made before ``before_ms``, by another process's clock. The median of an append's own
    time, the median before it and the second earliest after it is taken: so one that is wrong
    changes no other's. When all clocks have passed a time, it is settled which appends are not
    later: what comes then is later itself, and is none of two after them that are not.
    """
    if not len(entries):
        return at_ms
    _, first, rows = np.unique(entries, return_index=True, return_inverse=True)
    own = at_ms[first]
    three = [_medians_before(own, before_ms), own, _second_after(own)]
    middle: Int64Array = np.sort(np.stack(three), axis=0)[1]
    return middle[rows]


def _medians_before(times: Int64Array, before_ms: int) -> Int64Array:
    """Of each, the median of so many before it, the first of which were at ``before_ms``."""
    padded = np.concatenate([np.full(TIMED_APPENDS, before_ms), times[:-1]])
    windows = np.lib.stride_tricks.sliding_window_view(padded, TIMED_APPENDS)
    middle = TIMED_APPENDS // 2
    pieces = [windows[at : at + _AT_ONCE] for at in range(0, len(times), _AT_ONCE)]
    return np.concatenate([np.partition(piece, middle)[:, middle] for piece in pieces])


def _second_after(times: Int64Array) -> Int64Array:
    """Of each, the second earliest after it; none is ``_NEVER_MS``."""
    none, last_first = np.array([_NEVER_MS]), times[::-1]
    earliest = np.concatenate([none, np.minimum.accumulate(last_first)[:-1]])
    second = np.minimum.accumulate(np.maximum(earliest, last_first))
    return np.concatenate([none, second[:-1]])[::-1]
