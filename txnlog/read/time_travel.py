"""Topics of the past: pinned by a token, or as of a time."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from txnlog.config import check_whole_number
from txnlog.errors import InvalidOption, OffsetOutOfRange, UnknownTopicOrPartition
from txnlog.log.open_logs import SKEW_MS, Logs
from txnlog.log.topic_log import TopicLog
from txnlog.names import TopicPartition
from txnlog.read.append_times import AppendTimes, Transaction, last_append
from txnlog.read.isolation import IsolationLevel
from txnlog.read.pin import PinnedTopics, pin_topics
from txnlog.read.snapshot_token import PinnedOffsets, SnapshotToken
from txnlog.read.topic_view import PartitionView, TopicView
from txnlog.state.cut import Part, cut_at_time

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
    """The first entry later than a time that has changed the schema; None if there is none.

    Not one that has an append behind it within the ends, even if its process's clock was ahead: the
    records before them were written under the schema that it has made.
    """
    with log.lock:
        state = log.state
        changes = [e.entry for e in state.earlier_schemas if e.at_ms > at_ms]
    if not changes:
        return None
    last = last_append(log, ends, changes[0])
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


def end_with(view: TopicView, newer: TopicView) -> TopicView:
    """A view of a time that ends no later than a newer one, where nothing shows in between.

    What was aborted has no time: a view may end behind such records that came later.
    """
    ends = newer.end_offsets
    for number, end in view.end_offsets.items():
        newer_end = ends.setdefault(number, 0)
        if newer_end >= end or view.visible_ranges({number: newer_end}, {number: end}):
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

    Raises InvalidOption: the view is older, or the token not of its topic. OffsetOutOfRange: some
    added records were deleted. UnknownTopicOrPartition: the topic was recreated since.
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
                f"since is later than until: {view.topic}:{number} ended at {since_end} and {end}"
            )
    for number, part in enumerate(view.partitions):
        if starts[number] < min(part.left_from, part.end_offset):
            raise OffsetOutOfRange(
                f"the records of {view.topic}:{number} from offset {starts[number]} to "
                f"{part.left_from - 1} were deleted since, so what was added is not whole: take a "
                "snapshot"
            )
    return starts
