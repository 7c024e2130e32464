"""Pinning topics: what a reader may see of each of them, at one moment for all."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from txnlog.errors import ConcurrentTransactions, InvalidOption, UnknownTopicOrPartition
from txnlog.log.open_logs import Logs
from txnlog.log.topic_log import TopicLog
from txnlog.read.consistent_cut import (
    FirstReading,
    Standing,
    Younger,
    cut_views,
    is_kept_apart,
    look_up_needs,
    standing_of,
)
from txnlog.read.isolation_levels import Consistency, IsolationLevel
from txnlog.read.topic_view import TopicView
from txnlog.state.cut import hide_effects

ROUNDS = 3
"""How many readings are tried to be followed by one that finds nothing new."""
_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class PinnedTopics:
    """Pinned topics by name, and how consistent they are with each other."""

    views: dict[str, TopicView]
    consistency: Consistency


_PINNED: WeakKeyDictionary[TopicLog, dict[bool, tuple[tuple[object, ...], TopicView]]] = (
    WeakKeyDictionary()
)
"""The newest view of each log, by whether it hides uncommitted data, with its source state."""


def pin_topics(
    logs: Logs,
    topics: Sequence[str],
    isolation_level: IsolationLevel = "read_committed",
    *,
    leave_out_missing: bool = False,
    may_be_none: bool = False,
    refreshed: bool = False,
    rounds: int = ROUNDS,
    attempts: int = _ATTEMPTS,
) -> PinnedTopics:
    """Read every topic, list each again until nothing is new, and leave out what is partial.

    A listing is not a snapshot, and neither are several. If the second ones find nothing new,
    nothing has changed since the last of the first ones had ended: that is the instant which is
    shown (invariant S3). Otherwise the second ones are the first ones of the next round. In the
    last round the second ones find the rest of transactions that the first ones have shown in part:
    these are left out (invariant S1), with what is known to rest on them.

    The second one is skipped for a single topic whose listing has decided nothing: its entries
    existed before it began, or are not decided.

    ``leave_out_missing``: go on with the other topics if some do not exist. ``may_be_none``: there
    may be no topic at all, or none be left. ``refreshed``: the topics' logs, just now, which serves
    as their first reading. ``rounds``: how many there may be. After fewer than three nothing is
    looked up: the snapshot is an instant, or atomic. ``attempts``: at level ``snapshot``.

    Raises UnknownTopicOrPartition: one of the topics does not exist, or none of them.
    ConcurrentTransactions: at level ``snapshot``, if it cannot be told which transactions are
    whole.
    """
    opened = list({log.name: log for log in map(logs.topic, topics)}.values())
    if not opened and not may_be_none:
        raise InvalidOption("a snapshot needs at least one topic")
    names = [log.name for log in opened]
    if not refreshed:
        logs.storage.gather([log.refresh for log in opened])
    if isolation_level == "read_uncommitted":
        views, _ = _pin_all(opened, isolation_level, leave_out_missing, may_be_none)
        return PinnedTopics(views, "none")
    readings: list[FirstReading] = []
    while True:
        settled = _settle(logs, opened)
        views, first = _pin_all(opened, isolation_level, leave_out_missing, may_be_none)
        opened = [log for log in opened if log.name in views]
        once = len(names) == 1 and not first.may_lack_entries
        if not once:
            logs.storage.gather([log.refresh for log in opened])
        if any(_topic_id(log) != views[log.name].topic_id for log in opened):
            # Deleted since it was pinned: its log now describes another topic, or none.
            return pin_topics(
                logs,
                names,
                isolation_level,
                leave_out_missing=leave_out_missing,
                may_be_none=may_be_none,
                rounds=rounds,
            )
        readings.append(first)
        is_instant = first.stands_as(settled) and (once or not any(map(first.has_grown, opened)))
        if is_instant or len(readings) >= rounds:
            break
    if isolation_level == "snapshot":
        pinned = _pin_whole(logs, opened, readings, is_instant=is_instant)
        if pinned is not None:
            return pinned
        # We stalled between the readings for so long that newer appends are no longer known
        # separately, or an id's log could not be read.
        return _try_again(
            logs, names, leave_out_missing=leave_out_missing, rounds=rounds, attempts=attempts
        )
    # What has nothing undecided needs no cut, if nothing is new.
    if is_instant and all(view.is_stable for view in views.values()):
        return PinnedTopics(views, "instant")
    return _cut(logs, opened, views, readings, is_instant=is_instant)


def _settle(logs: Logs, opened: Sequence[TopicLog]) -> dict[str, Standing]:
    """Decide what can be decided; returns how the logs stand then.

    Ids are looked up one after another. So they are looked up again while some of them were found
    decided and others not: else what one has decided might rest on what another one decided after
    it was looked up. Each time fewer are left.
    """
    before = {log.name: standing_of(log) for log in opened}
    while True:
        logs.settlement.settle(opened)
        after = {log.name: standing_of(log) for log in opened}
        if after == before or not any(undecided for _, undecided in after.values()):
            return after
        before = after


def _pin_all(
    opened: Sequence[TopicLog],
    isolation_level: IsolationLevel,
    leave_out_missing: bool,
    may_be_none: bool,
) -> tuple[dict[str, TopicView], FirstReading]:
    """Pin each topic as it is known now. Raises UnknownTopicOrPartition."""
    views: dict[str, TopicView] = {}
    first = FirstReading()
    missing: list[UnknownTopicOrPartition] = []
    for log in opened:
        try:
            with log.lock:
                views[log.name] = view = _pin(log, isolation_level)
                first.add(log, view, with_outcomes=isolation_level == "snapshot")
        except UnknownTopicOrPartition as error:
            missing.append(error)
    if missing and not (leave_out_missing and (views or may_be_none)):
        raise missing[0]
    return views, first


def _cut(
    logs: Logs,
    opened: Sequence[TopicLog],
    views: Mapping[str, TopicView],
    readings: Sequence[FirstReading],
    *,
    is_instant: bool,
) -> PinnedTopics:
    """Level ``read_committed``: shorten the views until each transaction is whole."""
    first = readings[-1]
    if any(map(first.has_missed, opened)):
        return PinnedTopics({**views}, "none")
    young, needs = None, None
    if not is_instant and len(readings) >= ROUNDS:
        young = Younger.since(opened, readings[-3])
        needs = look_up_needs(logs, opened, young, readings)
    reaching = first.reaching if needs is None else readings[-3].reaching
    cut = cut_views(logs, opened, views, reaching, needs)
    if cut is None:
        # Each partition is left as it is, up to its last stable offset.
        return PinnedTopics({**views}, "none")
    if is_instant:
        return PinnedTopics(cut.views, "atomic" if cut.cut_off else "instant")
    if young is None or needs is None:
        return PinnedTopics(cut.views, "atomic")
    # Older transactions were not looked up: they may rest on what was known a reading before.
    rests = any(unit not in young.units or young.knew(readings[-2], unit) for unit in cut.cut_off)
    return PinnedTopics(cut.views, "atomic" if rests else "causal")


def _pin_whole(
    logs: Logs, opened: Sequence[TopicLog], readings: Sequence[FirstReading], *, is_instant: bool
) -> PinnedTopics | None:
    """Level ``snapshot``: all that was committed and whole at the last reading; None: not known."""
    first = readings[-1]
    first.look_back(opened)
    logs.settlement.settle([log for log in opened if first.finds_part(log)])
    consistency: Consistency = "instant"
    left_out: set[Hashable] = set()
    if not is_instant:
        consistency, left_out = _leave_out(logs, opened, readings)
    whole = {log.name: first.pin_whole(log, left_out) for log in opened}
    if (
        any(map(first.finds_part, opened))
        or any(map(first.has_missed, opened))
        or not is_kept_apart(logs, opened, first.left_out_ms)
    ):
        return None
    return PinnedTopics(whole, consistency)


def _leave_out(
    logs: Logs, opened: Sequence[TopicLog], readings: Sequence[FirstReading]
) -> tuple[Consistency, set[Hashable]]:
    """How consistent the last reading is, and the units to hide to make it so.

    These are the units that it shows in part, and those known to rest on them.
    """
    last = readings[-1]
    if len(readings) < ROUNDS:
        young = Younger.since(opened, last)
        return "atomic", young.partial(last)
    young = Younger.since(opened, readings[-3])
    needs = look_up_needs(logs, opened, young, readings)
    partial = young.partial(last)
    shown = young.shown(last, readings[-2], needs or {})
    left_out, is_closed = hide_effects(shown, partial, last.ends)
    return "causal" if is_closed and needs is not None else "atomic", left_out


def _try_again(
    logs: Logs, topics: Sequence[str], *, leave_out_missing: bool, rounds: int, attempts: int
) -> PinnedTopics:
    if attempts <= 1:
        raise ConcurrentTransactions(
            f"{', '.join(topics)} changed so fast, or the storage is so slow, that a snapshot "
            "could not tell which transactions are complete: read again, or use read_committed"
        )
    return pin_topics(
        logs,
        topics,
        "snapshot",
        leave_out_missing=leave_out_missing,
        rounds=rounds,
        attempts=attempts - 1,
    )


def _pin(log: TopicLog, isolation_level: IsolationLevel) -> TopicView:
    """Copy the visible part of a topic at this moment, each partition up to its own end.

    As long as nothing has changed it is the same view: the cost of a copy grows with the segments.
    """
    with log.lock:
        state = log.state
        committed = isolation_level != "read_uncommitted"
        seen = (state.topic_id, state.next_entry, *state.undecided, None, *state.aborted)
        known = _PINNED.get(log, {}).get(committed)
        if known is not None and known[0] == seen:
            return known[1]
        hidden = frozenset(state.aborted) if committed else frozenset()
        view = TopicView.of(
            log.name,
            state,
            log.manifests,
            hidden,
            to_stable_offsets=committed,
            hides_aborted=committed,
        )
        _PINNED.setdefault(log, {})[committed] = seen, view
        return view


def _topic_id(log: TopicLog) -> str | None:
    with log.lock:
        state = log.state
        return state.topic_id
