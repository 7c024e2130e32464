"""Pinning topics: what a reader may see of each of them, at one moment for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from txnlog.errors import ConcurrentTransactions, InvalidOption, UnknownTopicOrPartition
from txnlog.log.open_logs import Logs
from txnlog.log.topic_log import TopicLog
from txnlog.read.consistent_cut import cut_views, is_kept_apart
from txnlog.read.isolation import IsolationLevel
from txnlog.read.topic_view import TopicView
from txnlog.state.transaction import TransactionKey

_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class PinnedTopics:
    """Topics by name, pinned; ``is_atomic``: each transaction shows whole or not at all."""

    views: dict[str, TopicView]
    is_atomic: bool


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
    attempts: int = _ATTEMPTS,
) -> PinnedTopics:
    """Read every topic once, list each again, and leave out partial transactions (invariant S1).

    A listing is not a snapshot, and neither are several. The second one finds the rest of a
    transaction that the first has shown in part. It is skipped for a single topic whose listing has
    decided nothing: its entries existed before it began, or are not decided.

    Args:
        logs: of the store.
        topics: their names.
        isolation_level: which transactions show.
        leave_out_missing: go on with the other topics if some do not exist.
        may_be_none: there may be no topic at all, or none be left.
        refreshed: the topics' logs were refreshed just now, which serves as their first reading.
        attempts: how often to try at level ``snapshot``.

    Raises:
        UnknownTopicOrPartition: one of the topics does not exist, or none of them.
        ConcurrentTransactions: at level ``snapshot``, if it cannot be told which transactions are
            whole.
    """
    names = list(dict.fromkeys(topics))
    if not names and not may_be_none:
        raise InvalidOption("a snapshot needs at least one topic")
    opened = [logs.topic(name) for name in names]
    if not refreshed:
        logs.storage.gather([log.refresh for log in opened])
    if isolation_level != "read_uncommitted":
        logs.settlement.settle(opened)
    views: dict[str, TopicView] = {}
    first = _FirstReading()
    missing: list[UnknownTopicOrPartition] = []
    once = len(opened) == 1
    for log in opened:
        try:
            with log.lock:
                views[log.name] = _pin(log, isolation_level)
                first.add(log, with_outcomes=isolation_level == "snapshot")
                once = once and not log.ahead
        except UnknownTopicOrPartition as error:
            missing.append(error)
    if missing and not (leave_out_missing and (views or may_be_none)):
        raise missing[0]
    if isolation_level == "read_uncommitted":
        return PinnedTopics(views, is_atomic=False)
    opened = [log for log in opened if log.name in views]
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
        )
    if isolation_level == "snapshot":
        first.look_back(opened)
        logs.settlement.settle([log for log in opened if first.finds_part(log)])
        whole = {log.name: first.pin_whole(log) for log in opened}
        if (
            any(map(first.finds_part, opened))
            or any(map(first.has_missed, opened))
            or not is_kept_apart(logs, opened, first.left_out_ms)
        ):
            # We stalled between the readings for so long that newer appends are no longer known
            # separately, or an id's log could not be read.
            return _try_again(logs, names, leave_out_missing=leave_out_missing, attempts=attempts)
        return PinnedTopics(whole, is_atomic=True)
    # A topic that was read once and has nothing undecided needs no cut; nor do several, if the
    # second reading has found nothing new.
    still = once or not any(map(first.has_grown, opened))
    if still and all(view.is_stable for view in views.values()):
        return PinnedTopics(views, is_atomic=True)
    cut = (
        None
        if any(map(first.has_missed, opened))
        else cut_views(logs, opened, views, first.reaching)
    )
    # Otherwise each partition is left as it is, up to its last stable offset.
    return PinnedTopics(cut or views, is_atomic=cut is not None)


def _try_again(
    logs: Logs, topics: Sequence[str], *, leave_out_missing: bool, attempts: int
) -> PinnedTopics:
    if attempts <= 1:
        raise ConcurrentTransactions(
            f"{', '.join(topics)} changed so fast, or the storage is so slow, that a snapshot "
            "could not tell which transactions are complete: read again, or use read_committed"
        )
    return pin_topics(
        logs, topics, "snapshot", leave_out_missing=leave_out_missing, attempts=attempts - 1
    )


def _pin(log: TopicLog, isolation_level: IsolationLevel) -> TopicView:
    """Copy the visible part of a topic at this moment, each partition up to its own end.

    As long as nothing has changed it is the same view: the cost of a copy grows with the segments.
    """
    with log.reading() as state:
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
    with log.reading() as state:
        return state.topic_id


# -- comparing two readings ----------------------------------------------------------------------


class _FirstReading:
    """What was known at the first reading of the topics.

    Transactions committed then had placed all their entries, so the second reading shows them
    whole. Those decided since may be seen in part, and are left out at level ``snapshot``.
    """

    def __init__(self) -> None:
        self._undecided: set[TransactionKey] = set()
        self._committed: set[TransactionKey] = set()
        self._next_entries: dict[str, int] = {}
        self.reaching: dict[str, int] = {}
        """By topic, the first entry that may lie at or beyond an end of its view."""
        self.left_out_ms: list[int] = []
        """The times of appends hidden because their transactions are not whole."""

    def add(self, log: TopicLog, *, with_outcomes: bool) -> None:
        """Record what is known about one topic."""
        with log.reading() as state:
            self._next_entries[log.name] = state.next_entry
            self.reaching[log.name] = min([state.next_entry, *state.undecided])
            if not with_outcomes:
                return
            self._undecided |= {ref.key for ref in state.undecided.values()}
            unseen = {*state.undecided, *state.aborted}
            self._committed |= {
                entry.transaction.key
                for entry in state.recent
                if entry.transaction is not None and entry.number not in unseen
            }

    def look_back(self, opened: Sequence[TopicLog]) -> None:
        """Find which of the relevant transactions had been committed, and were settled."""
        asked = {ref.key for log in opened for ref in log.undecided().values()}
        for log in opened:
            # Newer appends may be settled by now, if this process slept.
            asked |= {
                entry.transaction.key
                for entry in log.appends_since(self._next_entries[log.name])
                if entry.transaction is not None
            }
        asked -= self._committed | self._undecided
        for log in opened:
            self._committed |= {
                entry.transaction.key
                for entry in log.settled_appends_of(asked)
                if entry.transaction is not None and entry.number < self._next_entries[log.name]
            }

    def has_grown(self, log: TopicLog) -> bool:
        """True if there is an entry that came after the first reading."""
        with log.reading() as state:
            return state.next_entry != self._next_entries[log.name]

    def has_missed(self, log: TopicLog) -> bool:
        """True if an append after the first reading is no longer known separately.

        This process stalled for long: other parts of that append's transaction may be unknown.
        """
        new = self._next_entries[log.name]
        with log.reading() as state:
            if state.settled is None or state.settled.end <= new:
                return state.let_go_entry >= new
        return log.kept_apart().first_entry > new

    def finds_part(self, log: TopicLog) -> bool:
        """True if an entry is undecided whose transaction is known to be committed."""
        return any(ref.key in self._committed for ref in log.undecided().values())

    def pin_whole(self, log: TopicLog) -> TopicView:
        """Copy a topic's current content, without what was uncommitted at the first reading."""
        with log.reading() as state:
            new = self._next_entries[log.name]
            settled_end = state.settled.end if state.settled else 0
            appends = [*log.settled_appends_of(self._undecided), *state.recent]
            if settled_end > new:
                appends += [e for e in log.appends_since(new) if e.number < settled_end]
            unfinished = [
                entry
                for entry in appends
                if entry.transaction is not None
                and (
                    entry.transaction.key in self._undecided
                    or (entry.number >= new and entry.transaction.key not in self._committed)
                )
            ]
            # Undecided appends are shown nowhere.
            self.left_out_ms += [e.at_ms for e in unfinished if e.number not in state.undecided]
            hidden = {*state.aborted, *state.undecided, *(entry.number for entry in unfinished)}
            begins: dict[int, list[int]] = {}
            for entry in unfinished:
                for partition, offset in entry.first_offsets.items():
                    begins.setdefault(partition, []).append(offset)
            return TopicView.of(
                log.name,
                state,
                log.manifests,
                frozenset(hidden),
                to_stable_offsets=False,
                hides_aborted=True,
                unfinished=begins,
            )
