"""The consistent cut of several topics: each transaction lies before it in whole or not at all.

For level ``read_committed``, which shows a prefix of each partition.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import accumulate

from txnlog.log.open_logs import SKEW_MS, Logs
from txnlog.log.topic_log import TopicLog
from txnlog.names import TopicPartition
from txnlog.read.first_reading import unit_of
from txnlog.read.topic_view import TopicView
from txnlog.state.cut import Part, consistent_cut
from txnlog.state.topic import RecentEntry, TopicState
from txnlog.state.transaction import TransactionKey


@dataclass(frozen=True, slots=True)
class CutViews:
    """Topics at a consistent cut, and the committed units that it hides below a stable offset."""

    views: dict[str, TopicView]
    cut_off: frozenset[Hashable] = frozenset()


def cut_views(
    logs: Logs,
    opened: Sequence[TopicLog],
    views: Mapping[str, TopicView],
    reaching: Mapping[str, int],
    needs: Mapping[TransactionKey, Mapping[TopicPartition, int]] | None = None,
) -> CutViews | None:
    """The views cut so that each transaction shows whole or not at all; None if impossible.

    It is also impossible where a cut lies before records for which compaction has left out older
    ones, and the older ones were purged, or are deleted, or soon may be.

    ``opened``: the topics, read a second time. ``views``: as first pinned. ``reaching``: by topic,
    the first entry that may lie at or beyond an end of its view, or belong to a transaction with
    needs. ``needs``: the offsets that transactions consumed: they are hidden with what they
    consumed.
    """
    resting = [Part(key, {}, needs=offsets) for key, offsets in (needs or {}).items()]
    ends = {
        TopicPartition(view.topic, number): partition.end_offset
        for view in views.values()
        for number, partition in enumerate(view.partitions)
    }
    if all(log.next_entry <= reaching[log.name] for log in opened):
        return CutViews(dict(views))
    since = dict(reaching)
    while True:
        parts = [part for log in opened for part in _parts(log, since[log.name])]
        cut = consistent_cut(ends, [*parts, *resting])
        hidden = [p for p in parts if isinstance(p.unit, TransactionKey) and p.reaches(cut)]
        if not _look_further_back(opened, {part.unit for part in hidden}, since):
            break
    if not is_kept_apart(logs, opened, (part.at_ms for part in hidden)):
        return None
    if not _is_fresh(logs, opened, parts, ends, cut):
        return None
    cut_off = {
        part.unit
        for part in parts
        for where, offset in part.first_offsets.items()
        if where in cut and cut[where] <= offset < ends[where]
    }
    truncated = {
        topic: view.truncate({p: cut[TopicPartition(topic, p)] for p in view.end_offsets})
        for topic, view in views.items()
    }
    # What is about to be deleted would be gone before it is read.
    soon_ms = logs.clock.now_ms() + SKEW_MS
    for topic, view in truncated.items():
        shorter = [p for p, end in view.end_offsets.items() if end < views[topic].end_offsets[p]]
        if view.needs_lost_segments(shorter, soon_ms):
            return None
    return CutViews(truncated, frozenset(cut_off))


def _look_further_back(
    opened: Sequence[TopicLog], hidden: AbstractSet[Hashable], since: dict[str, int]
) -> bool:
    """Move ``since`` back to the first appends of hidden transactions; False if not needed."""
    keys = [unit for unit in hidden if isinstance(unit, TransactionKey)]
    moved = False
    for log in opened:
        with log.lock:
            state = log.state
            in_head = [
                e.number for e in state.recent if e.transaction and e.transaction.key in hidden
            ]
        older = [entry.number for entry in log.settled_appends_of(keys)]
        first = min([*in_head, *older], default=since[log.name])
        if first < since[log.name]:
            since[log.name] = first
            moved = True
    return moved


def _parts(log: TopicLog, first_entry: int) -> list[Part]:
    """The appends of a topic before which a cut may have to fall: all but aborted ones."""
    with log.lock:
        state = log.state
        entries = log.appends_since(first_entry)
        return [
            Part(
                unit_of(log, entry),
                {TopicPartition(log.name, p): offset for p, offset in entry.first_offsets.items()},
                at_ms,
            )
            for entry, at_ms in zip(entries, _bounded_times(state, entries), strict=True)
        ]


def _bounded_times(state: TopicState, entries: Sequence[RecentEntry]) -> list[int]:
    """When appends were made, by the latest before and the earliest after each.

    Of these and its own the median. Unlike the times of time travel, which one wrong clock must not
    move, none is later than its own if nothing before it is: what is kept apart is told by these.
    """
    times = [entry.at_ms for entry in entries]
    before_all_ms = max(state.created_at_ms, entries[0].time_before_ms if entries else -1)
    latest_before = accumulate(times[:-1], max, initial=before_all_ms)
    earliest_after = [*[*accumulate(reversed(times), min)][-2::-1], *times[-1:]]
    return [sorted(three)[1] for three in zip(latest_before, times, earliest_after, strict=False)]


def is_kept_apart(logs: Logs, opened: Sequence[TopicLog], at_ms: Iterable[int]) -> bool:
    """True if all appends of transactions with these times are still known separately.

    Otherwise one of them might show while others do not (invariant L6).
    """
    times = [*at_ms]
    if not times:
        return True
    kept_since_ms = max(log.kept_apart().kept_since_ms for log in opened)
    longest_ms = logs.config.transaction_max_timeout_ms + SKEW_MS
    return kept_since_ms < 0 or all(time - longest_ms > kept_since_ms for time in times)


def _is_fresh(
    logs: Logs,
    opened: Sequence[TopicLog],
    parts: Sequence[Part],
    ends: Mapping[TopicPartition, int],
    cut: Mapping[TopicPartition, int],
) -> bool:
    """True unless the cut hides appends from long before the oldest open transaction.

    If each transaction overlaps the next one, it could fall back before all of them.
    """
    lost_ms = [part.at_ms for part in parts if part.reaches(cut) and not part.reaches(ends)]
    if not lost_ms:
        return True
    beyond = {part.unit for part in parts if part.reaches(ends)}
    began_ms: dict[Hashable, int] = {}
    for part in parts:
        if part.unit in beyond:
            began_ms[part.unit] = min(part.at_ms, began_ms.get(part.unit, part.at_ms))
    if not began_ms:
        return True  # what is hidden rests on offsets that nobody's records explain
    undecided = {ref.key for log in opened for ref in log.undecided().values()}
    timeouts_ms = {key: logs.settlement.timeout_ms(key) for key in undecided if key in began_ms}
    # Appends since the topics were settled are younger.
    known = [
        (began_ms[key], at_most) for key, at_most in timeouts_ms.items() if at_most is not None
    ]
    if not known:
        longest_ms = logs.config.transaction_max_timeout_ms
        known = [(at_ms, longest_ms) for at_ms in began_ms.values()]
    oldest_ms, timeout_ms = min(known)
    return min(lost_ms) >= oldest_ms - timeout_ms
