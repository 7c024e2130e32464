"""The topics and partitions of a read: subscribe, subscribePattern, assign."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from txnlog.errors import InvalidOption, UnknownTopicOrPartition
from txnlog.names import check_topic
from txnlog.read.topic_pattern import INTERNAL_TOPICS, compile_pattern
from txnlog.spark.options.option_values import OptionValues
from txnlog.store import Store

Partitions = Mapping[str, tuple[int, ...] | None]
"""Topics and the requested partitions of each; None: all of them."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """Topics by name, or all whose whole name matches ``pattern``."""

    topics: Partitions
    pattern: str | None = None

    def resolve(self, store: Store) -> Partitions:
        """The topics as the store has them now. Raises UnknownTopicOrPartition if none matches."""
        if self.pattern is None:
            return self.topics
        known = store.topics.list()
        matching = self.match(known)
        if not matching:
            raise UnknownTopicOrPartition(
                f"option subscribePattern {self.pattern!r} matches none of the {len(known)} topics "
                f"in {store.url}; it must match a topic's whole name"
            )
        return matching

    def match(self, known: list[str]) -> Partitions:
        """The known topics that the pattern matches; those of Kafka's own are read by name."""
        matches = compile_pattern(self.pattern).fullmatch
        return {name: None for name in known if name not in INTERNAL_TOPICS and matches(name)}


def parse_subscription(values: OptionValues) -> Subscription:
    """Exactly one of the three options. Raises InvalidOption, InvalidTopic."""
    subscribe, pattern, assign = map(values.get, ("subscribe", "subscribePattern", "assign"))
    if [subscribe, pattern, assign].count(None) != 2:
        raise InvalidOption(
            "exactly one of the options subscribe (topics, with commas between them), "
            'subscribePattern (a regular expression) and assign (JSON like {"topic":[0,1]}) must '
            "be given"
        )
    if subscribe is not None:
        return Subscription({check_topic(topic.strip()): None for topic in subscribe.split(",")})
    if pattern is not None:
        compile_pattern(pattern, "option subscribePattern")
        return Subscription({}, pattern)
    assert assign is not None
    return Subscription(_parse_assign(assign))


def _parse_assign(assign: str) -> Partitions:
    wrong = InvalidOption(f'option assign must be JSON like {{"topic":[0,1]}}, not {assign!r:.200}')
    try:
        found = json.loads(assign)
    except (ValueError, RecursionError):
        raise wrong from None
    if not isinstance(found, dict) or not found:
        raise wrong
    for partitions in found.values():
        if not isinstance(partitions, list) or not partitions:
            raise wrong
        if not all(type(number) is int and number >= 0 for number in partitions):
            raise wrong
    return {check_topic(topic): tuple(sorted(set(parts))) for topic, parts in found.items()}
