"""Subscriptions by pattern: existing and future topics whose names match an expression.

Each consumer evaluates its own, and tells its group the names that it has found: so an expression
that takes forever to match blocks only its own consumer.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable
from typing import NamedTuple

from txnlog import names
from txnlog.config import check_whole_number
from txnlog.errors import InvalidOption, InvalidTopic
from txnlog.log.named_folders import list_topics
from txnlog.log.open_logs import Logs

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""Kafka's internal topics: they may have been imported, and are read only by name."""

_NEVER_S = float("-inf")
_LONGEST_REST = 4
"""After so many looks at the latest a deleted topic's name is looked at again."""

_logger = logging.getLogger(__name__)


class _Gone(NamedTuple):
    """When to look again for a deleted topic's name: not before look ``rests_until``."""

    looks: int
    rests_until: int


class TopicPattern:
    """Finds the topics of one consumer, and tells when to look again.

    ``pattern``: what whole names must match, in Python's syntax. ``max_age_ms``: how long it may
    take until a new topic is found.
    """

    def __init__(self, logs: Logs, pattern: str | re.Pattern[str], max_age_ms: int) -> None:
        self._logs = logs
        self._expression = compile_pattern(pattern)
        self._max_age_ms = max_age_ms
        self._looked_at_s = _NEVER_S
        self._named: Collection[str] = ()
        self._looks = 0
        self._gone: dict[str, _Gone] = {}

    def is_due(self) -> bool:
        """Whether the last look is too old."""
        return (self._logs.clock.monotonic_s() - self._looked_at_s) * 1000 >= self._max_age_ms

    def calls_for_look(self, known: Collection[str], named: Collection[str]) -> bool:
        """Whether to look now: it is time, or members of the group name an unknown topic.

        ``named``: the same object as long as nothing has changed.
        """
        if self.is_due():
            return True
        if named is self._named:
            return False
        if any(self._matches(n) for n in named if n not in known and n not in self._gone):
            return True
        self._named = named
        return False

    def look(self, known: Collection[str] = (), named: Iterable[str] = ()) -> tuple[str, ...]:
        """The topics that match and exist, sorted: one listing, and one for each that was unknown.

        The names of deleted topics are looked at again, less and less often: there may be many.

        Args:
            known: the topics that are read: the last state of their logs is relied on.
            named: others that may exist.
        """
        # A topic missing in a listing does not count as deleted: only its log says that.
        named = {*named}
        listed = {*list_topics(self._logs.storage), *named}
        self._looks += 1
        resting = {n for n, gone in self._gone.items() if gone.rests_until > self._looks} - named
        chosen = sorted({*filter(self._matches, listed - resting), *known})
        logs = [self._logs.topic(name) for name in chosen]
        self._logs.storage.gather([log.refresh for log in logs if log.name not in known])
        found = []
        for log in logs:
            with log.lock:
                state = log.state
                if state.topic_id is not None:
                    found.append(log.name)
        self._gone = {name: gone for name, gone in self._gone.items() if name in listed}
        for name in {*chosen} - {*found}:
            before = self._gone.get(name)
            looks = min(2 * before.looks, _LONGEST_REST) if before else 1
            self._gone[name] = _Gone(looks, self._looks + looks)
        for name in found:
            self._gone.pop(name, None)
        if not found:
            self._warn(listed)
        return tuple(found)

    def looked(self, named: Collection[str] = ()) -> None:
        """Record that the found topics are read from now on."""
        self._looked_at_s = self._logs.clock.monotonic_s()
        self._named = named

    def _matches(self, name: str) -> bool:
        return (
            name not in INTERNAL_TOPICS
            and self._expression.fullmatch(name) is not None
            and _is_topic(name)
        )

    def _warn(self, listed: Iterable[str]) -> None:
        """Warn if the pattern looks meant for a part of the name, as in other clients."""
        near = sorted(name for name in listed if self._expression.match(name))
        if near and self._looked_at_s == _NEVER_S:
            _logger.warning(
                "the pattern %r matches no topic, since it must match whole names; it is the "
                "beginning of %r, for one: was %r meant?",
                self._expression.pattern,
                near[0],
                f"{self._expression.pattern}.*",
            )


def check_metadata_age(max_age_ms: int) -> int:
    """Return the setting of that name. Raises InvalidOption."""
    return check_whole_number(max_age_ms, "metadata_max_age_ms", InvalidOption, least=0)


def compile_pattern(pattern: object, what: str = "pattern") -> re.Pattern[str]:
    """Compile a pattern for topics' names; ``what`` names it in errors. Raises InvalidOption."""
    if isinstance(pattern, re.Pattern) and isinstance(pattern.pattern, str):
        return pattern
    if not isinstance(pattern, str) or not pattern:
        raise InvalidOption(
            f"{what} must be a regular expression for names of topics, not {pattern!r:.200}"
        )
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise InvalidOption(
            f"{what} {pattern!r:.200} is not a regular expression: {error}"
        ) from error


def _is_topic(name: str) -> bool:
    """Whether a folder's name is a valid name of a topic."""
    try:
        names.check_topic(name)
    except InvalidTopic:
        return False
    return True
