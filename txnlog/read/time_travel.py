"""Topics of the past: pinned by a token, or as of a time."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import numpy as np

from txnlog.config import check_whole_number
from txnlog.errors import InvalidOption, OffsetOutOfRange, UnknownTopicOrPartition
from txnlog.log.open_logs import SKEW_MS, Logs
from txnlog.log.topic_log import TopicLog
from txnlog.names import TopicPartition
from txnlog.read.isolation_levels import IsolationLevel
from txnlog.read.pin import PinnedTopics, pin_topics
from txnlog.read.snapshot_token import PinnedOffsets, SnapshotToken
from txnlog.read.topic_view import PartitionView, TopicView
from txnlog.segments.records import Int64Array
from txnlog.state.cut import Part, cut_at_time
from txnlog.state.manifest import ManifestList, Settled
from txnlog.state.producers import TIMED_APPENDS

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DATE = re.compile(r"\d{4}-", re.ASCII)
"""How a time begins, and no token."""


def parse_at(at: object) -> int | SnapshotToken:
    """The moment in milliseconds since 1970, of an ISO text too, or the content of a token.

    Raises InvalidOption: it is neither, or has no zone, or is damaged. UnsupportedVersion: a newer
    txnlog has made the token.
    """
    if isinstance(at, str):
        if not _DATE.match(at):
            return SnapshotToken.decode(at)
        try:
            at = datetime.fromisoformat(at)
        except ValueError as error:
            raise InvalidOption(f"{at!r:.60} is not a time: {error}") from error
    if isinstance(at, datetime):
        try:
            if at.utcoffset() is not None:
                return moment_ms(at)
        except ValueError as error:  # NaT of pandas is a datetime, too
            raise InvalidOption(f"{at} is not a time") from error
        raise InvalidOption(
            f"at={at.isoformat()} has no time zone: give it one, such as "
            "datetime(..., tzinfo=UTC), or Z behind a text"
        )
    what = "at (a datetime, milliseconds since 1970, or a token)"
    check_whole_number(at, what, InvalidOption, least=0)
    assert isinstance(at, int)
    return at


def moment_ms(moment: datetime) -> int:
    """Milliseconds since 1970, rounded down; ``moment`` has a zone."""
    return max((moment - _EPOCH) // timedelta(milliseconds=1), 0)


def pin_at(logs: Logs, topics: Sequence[str], at: int | SnapshotToken) -> PinnedTopics:
    """Pin topics as of a moment, in milliseconds, or by a token.

    Raises UnknownTopicOrPartition: a topic does not exist, did not then, or was recreated since.
    OffsetOutOfRange: records were deleted, or the token is ahead of the log. InvalidOption: the
    token does not have a topic.
    """
    if isinstance(at, SnapshotToken):
        return pin_again(logs, topics, at)
    return PinnedTopics(_at_time(logs, pin_topics(logs, topics, rounds=1).views, at), "atomic")


def pin_again(
    logs: Logs,
    topics: Sequence[str],
    token: SnapshotToken,
    isolation_level: IsolationLevel = "read_committed",
) -> PinnedTopics:
    """Pin topics as they were pinned at this level, maybe by another process.

    At level ``snapshot`` more may show before the ends: what was undecided then, and is committed.

    Raises what :func:`pin_at` does.
    """
    views = pin_topics(logs, topics, isolation_level, rounds=1).views
    is_prefix = isolation_level == "read_committed"
    again = {
        name: _at_token(
            logs.topic(name),
            view,
            token,
            view.last_stable_offsets if is_prefix else view.log_end_offsets,
        )
        for name, view in views.items()
    }
    return PinnedTopics(again, token.consistency)


# -- by a token ----------------------------------------------------------------------------------


def _at_token(
    log: TopicLog, view: TopicView, token: SnapshotToken, ends: Sequence[int]
) -> TopicView:
    """The view as it was; ``ends`` is how far it can have reached by now."""
    pinned = pinned_offsets(token, view.topic, view.topic_id)
    count = len(pinned.ends)
    beyond = [n for n, end in enumerate(pinned.ends) if n >= len(ends) or end > ends[n]]
    if beyond:
        n = beyond[0]
        there = f"ends at {ends[n]}" if n < len(ends) else "does not exist"
        raise OffsetOutOfRange(
            f"the token's snapshot ended at offset {pinned.ends[n]} of {view.topic}:{n}, which "
            f"{there} now: was the store set back to an older copy?"
        )
    partitions = tuple(
        PartitionView(start, end, now.head, now.log_start_offset, now.first_offset)
        for start, end, now in zip(pinned.starts, pinned.ends, view.partitions, strict=False)
    )
    view = replace(
        view,
        partitions=partitions,
        last_stable_offsets=view.last_stable_offsets[:count],
        log_end_offsets=view.log_end_offsets[:count],
        compactions_end=pinned.next_entry,
    )
    return _with_schema_before(log, view, pinned.next_entry)


def pinned_offsets(token: SnapshotToken, topic: str, topic_id: str) -> PinnedOffsets:
    """A topic in a token. Raises InvalidOption, UnknownTopicOrPartition."""
    pinned = token.topics.get(topic)
    if pinned is None:
        raise InvalidOption(f"the token is of {', '.join(token.topics)}, not of topic {topic!r}")
    if pinned.topic_id != topic_id:
        raise UnknownTopicOrPartition(
            f"the token is of another topic {topic!r}: this one was deleted and recreated since, "
            "or is another store's"
        )
    return pinned


def _with_schema_before(log: TopicLog, view: TopicView, entry: int) -> TopicView:
    with log.lock:
        state = log.state
        if state.topic_id != view.topic_id:
            return view  # deleted meanwhile: reading it will raise
        schema, changed_in = state.schema_before(entry)
    return replace(view, schema=schema, next_entry=entry, schema_end=changed_in)


# -- at a time -----------------------------------------------------------------------------------


def _at_time(logs: Logs, views: Mapping[str, TopicView], at_ms: int) -> dict[str, TopicView]:
    # Transactions in the views were committed before these logs were last read, which was done
    # twice: so all of their appends are known by now.
    opened = [logs.topic(name) for name in views]
    ends: dict[TopicPartition, int] = {}
    for log, view in zip(opened, views.values(), strict=True):
        with log.lock:
            state = log.state
            state.check_exists(log.name, view.topic_id)
            if state.created_at_ms > at_ms:
                raise UnknownTopicOrPartition(
                    f"topic {log.name!r} was made at {_moment(state.created_at_ms)}, after "
                    f"{_moment(at_ms)}"
                )
        ends.update({TopicPartition(log.name, p): end for p, end in view.end_offsets.items()})
    cut = _find_cut(logs, opened, ends, at_ms)
    found = {}
    for log in opened:
        view = views[log.name]
        mine = {number: cut[TopicPartition(log.name, number)] for number in view.end_offsets}
        _check_left(view, mine, at_ms)
        # What was stable at that time is not known; what lies before these ends was.
        stable = tuple(mine[number] for number in range(len(view.partitions)))
        view = replace(view.truncate(mine), last_stable_offsets=stable)
        changed_in = _first_schema_change(log, mine, at_ms)
        entry = view.next_entry if changed_in is None else changed_in
        found[log.name] = _with_schema_before(log, view, entry)
    return found


def _first_schema_change(log: TopicLog, ends: Mapping[int, int], at_ms: int) -> int | None:
    """The first schema change later than a time, and after all appends within ``ends``.

    None if there is none. An append that follows a change was written under that schema, so the
    view has it even if the clock of the process that made the change was ahead.
    """
    with log.lock:
        state = log.state
        changes = [e.entry for e in state.earlier_schemas if e.at_ms > at_ms]
    if not changes:
        return None
    last = last_append(log, {number: (0, end) for number, end in ends.items()}, changes[0])
    return next((entry for entry in changes if entry > last), None)


def _find_cut(
    logs: Logs, opened: Sequence[TopicLog], ends: Mapping[TopicPartition, int], at_ms: int
) -> dict[TopicPartition, int]:
    """The cut at a time, from enough appends that no transaction is known only in part."""
    longest_ms = logs.config.transaction_max_timeout_ms + SKEW_MS
    since_ms = at_ms - longest_ms
    while True:
        loaded = [AppendTimes.since(log, since_ms) for log in opened]
        cut = dict(ends)
        parts: list[Part] = []
        for appends in loaded:
            # A transaction that appends later than this has nothing before the cut.
            for number, offset in appends.first_after(at_ms + longest_ms).items():
                where = TopicPartition(appends.topic, number)
                cut[where] = min(cut.get(where, offset), offset)
            parts += appends.parts(at_ms + longest_ms)
        cut = cut_at_time({where: cut[where] for where in ends}, parts, at_ms)
        hidden_ms = [p.at_ms for p in parts if isinstance(p.unit, Transaction) and p.reaches(cut)]
        first_ms = min(hidden_ms, default=at_ms) - longest_ms
        if all(appends.older_ms < max(first_ms, 0) for appends in loaded):
            return cut
        since_ms = min(first_ms, since_ms - longest_ms)


def _check_left(view: TopicView, cut: Mapping[int, int], at_ms: int) -> None:
    """Raise OffsetOutOfRange if all remaining records of a partition are later."""
    for number, part in enumerate(view.partitions):
        start = part.log_start_offset
        if start and cut[number] <= start < part.end_offset:
            raise OffsetOutOfRange(
                f"the records of {view.topic}:{number} below offset {start} were deleted, and all "
                f"that are left came after {_moment(at_ms)}: nobody can tell what was there then"
            )


def _moment(at_ms: int) -> str:
    try:
        return (_EPOCH + timedelta(milliseconds=at_ms)).isoformat()
    except OverflowError:
        return f"{at_ms} ms"


def end_with(log: TopicLog, view: TopicView, newer: TopicView) -> TopicView:
    """A view of a past time that ends where a newer one does if only aborted data lies between.

    Aborted appends have no time, so such a view may end after ones that came later. The appends
    decide, because a merged segment may span them.
    """
    ends = newer.end_offsets
    for number, end in view.end_offsets.items():
        newer_end = ends.setdefault(number, 0)
        if newer_end >= end or last_append(log, {number: (newer_end, end)}, -1) >= 0:
            ends[number] = end
    return view.truncate({number: ends[number] for number in view.end_offsets})


def end_no_earlier(view: TopicView, token: SnapshotToken) -> TopicView:
    """A view that is no older than a token's snapshot, up to the ends of that at least.

    The ends of successive snapshots may go back while a transaction is open. What lies before the
    token's ends is decided, so in these partitions nothing was added.
    """
    pinned = pinned_offsets(token, view.topic, view.topic_id)
    if view.next_entry < pinned.next_entry:
        return view
    ends = view.end_offsets
    for number, since_end in enumerate(pinned.ends[: len(ends)]):
        if since_end <= view.last_stable_offsets[number]:
            ends[number] = max(ends[number], since_end)
    return view.truncate(ends)


def added_since(view: TopicView, token: SnapshotToken) -> dict[int, int]:
    """By partition, the offset from which on a view has records that a token's snapshot lacks.

    Raises InvalidOption: the view has less, or the token is not of its topic. OffsetOutOfRange:
    some added records were deleted. UnknownTopicOrPartition: the topic was recreated since.
    """
    ends = pinned_offsets(token, view.topic, view.topic_id).ends
    starts = {
        n: max(ends[n] if n < len(ends) else 0, min(part.first_offset, part.end_offset))
        for n, part in enumerate(view.partitions)
    }
    for number, since_end in enumerate(ends):
        # A partition that was added later is there at a time, and empty.
        end = view.partitions[number].end_offset if number < len(view.partitions) else 0
        if since_end > end:
            raise InvalidOption(
                f"since has more than until: {view.topic}:{number} ended at {since_end} and {end}. "
                "It is later, or until was taken while a transaction was open, which hid what "
                "stood behind it"
            )
    for number, part in enumerate(view.partitions):
        if starts[number] < min(part.left_from, part.end_offset):
            raise OffsetOutOfRange(
                f"the records of {view.topic}:{number} from offset {starts[number]} to "
                f"{part.left_from - 1} were deleted since, so what was added is not whole: take a "
                "snapshot"
            )
    return starts


# -- when appends were made ----------------------------------------------------------------------

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
        """By partition, the first offset that was appended later than a time."""
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


def last_append(log: TopicLog, spans: Mapping[int, tuple[int, int]], after: int) -> int:
    """The last append after an entry with a record between these offsets; -1 if there is none.

    By partition from the start of an append. What was aborted does not count.

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
                and any(
                    number in spans and spans[number][0] <= offset < spans[number][1]
                    for number, offset in entry.first_offsets.items()
                )
            ),
            default=-1,
        )

    def look_back(listing: ManifestList) -> int:
        assert isinstance(settled, Settled)
        wanted = {number: [span] for number, span in spans.items() if span[0] < span[1]}
        refs = [ref for ref in listing.manifests if ref.end_entry > after and ref.touches(wanted)]
        last = -1
        for table in log.manifests.tables(refs, settled):
            for number, rows in table.committed().by_partition():
                entries = rows.overlapping(number, *spans.get(number, (0, 0))).ints("entry")
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
    """For each time, the median of the ``TIMED_APPENDS`` times before it.

    Where there are fewer, ``before_ms`` stands for the missing ones.
    """
    padded = np.concatenate([np.full(TIMED_APPENDS, before_ms), times[:-1]])
    windows = np.lib.stride_tricks.sliding_window_view(padded, TIMED_APPENDS)
    middle = TIMED_APPENDS // 2
    pieces = [windows[at : at + _AT_ONCE] for at in range(0, len(times), _AT_ONCE)]
    return np.concatenate([np.partition(piece, middle)[:, middle] for piece in pieces])


def _second_after(times: Int64Array) -> Int64Array:
    """For each time, the second earliest of the later ones in order; ``_NEVER_MS`` if none."""
    none, last_first = np.array([_NEVER_MS]), times[::-1]
    earliest = np.concatenate([none, np.minimum.accumulate(last_first)[:-1]])
    second = np.minimum.accumulate(np.maximum(earliest, last_first))
    return np.concatenate([none, second[:-1]])[::-1]
