"""The judge: what was meant, what was acknowledged, and whether what is read agrees with it.

A plain model in memory that shares no code with the library and knows nothing of logs, entries or
markers. Whoever writes tells it first what a transaction will write (every value is unique);
whoever reads tells it what was there. It raises :class:`Violation` at the first contradiction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise

Place = tuple[str, int]
"""A topic and a partition."""
View = Mapping[Place, list[tuple[int, str]]]
"""What a reader saw: for each partition all offsets up to where it reads, with their values."""


class Violation(AssertionError):
    """A promise was broken. ``check`` says which one."""

    def __init__(self, check: str, what: str) -> None:
        super().__init__(f"{check}: {what}")
        self.check = check


class Fate(Enum):
    """What is known of a transaction from what its writer was told."""

    OPEN = "its writer has not asked to commit it"
    COMMITTING = "its writer asked to commit it, and does not know the outcome"
    COMMITTED = "its writer was told that it is committed"
    ABORTED = "its writer was told that nothing of it was committed"


@dataclass
class Intent:
    """One transaction (or one flush without a transaction) as its writer meant it."""

    name: str
    fate: Fate = Fate.OPEN
    committed_at_ms: int = 0
    values: dict[str, list[str]] = field(default_factory=dict)
    """By topic, in the order of writing."""
    consumed: dict[Place, range] = field(default_factory=dict)
    """What it read of each partition, to be committed as the group's offsets with it."""
    learnt: int | None = None
    """By when its writer had learnt where its group was, if that group may be reset."""
    asked: int = 0
    """When its writer first asked to commit it. Both are ticks of the judge."""


@dataclass
class _Meaning:
    intent: Intent
    key: str | None
    order: int
    amount: int


class Judge:
    """All that was meant and seen in one store."""

    def __init__(self) -> None:
        self.intents: dict[str, Intent] = {}
        self._meanings: dict[str, _Meaning] = {}
        self._places: dict[tuple[str, int, int], str] = {}
        self._seen: set[str] = set()
        self._orders: dict[str, int] = {}
        self._shown: dict[Place, set[int]] = {}
        self._resets: list[tuple[int, int]] = []
        self._ticks = 0

    def tick(self) -> int:
        """A number greater than those before it: which of two things came first."""
        self._ticks += 1
        return self._ticks

    # -- what writers tell -----------------------------------------------------------------------

    def begin(self, name: str) -> Intent:
        assert name not in self.intents, "names of intents are unique"
        self.intents[name] = Intent(name)
        return self.intents[name]

    def write(self, intent: Intent, topic: str, key: str | None = None, amount: int = 0) -> str:
        """Announce one record; returns the value to write."""
        value = f"{intent.name}#{sum(map(len, intent.values.values()))}"
        intent.values.setdefault(topic, []).append(value)
        order = 0
        if key is not None:
            order = self._orders[key] = self._orders.get(key, 0) + 1
        self._meanings[value] = _Meaning(intent, key, order, amount)
        return value

    def committed(self, intent: Intent, at_ms: int) -> None:
        if intent.fate is Fate.ABORTED:
            raise Violation("outcome", f"{intent.name} was aborted, and is committed now")
        intent.fate, intent.committed_at_ms = Fate.COMMITTED, at_ms
        self._check_resets(intent)

    def reset(self, begun: int) -> None:
        """A group was reset: the call began at this tick, and has returned."""
        self._resets.append((begun, self.tick()))

    def power_cut(self) -> None:
        """Everything has stopped. What nobody was told of may be gone, and its places taken."""
        unsure = {
            value
            for intent in self.intents.values()
            if intent.fate is not Fate.COMMITTED
            for values in intent.values.values()
            for value in values
        }
        self._seen -= unsure
        for place, value in [*self._places.items()]:
            if value in unsure:
                del self._places[place]
                self._shown.get(place[:2], set()).discard(place[2])

    def aborted(self, intent: Intent) -> None:
        if intent.fate is Fate.COMMITTED:
            raise Violation("outcome", f"{intent.name} was committed, and is aborted now")
        intent.fate = Fate.ABORTED
        seen = self._seen & {value for values in intent.values.values() for value in values}
        if seen:
            raise Violation("aborted read", f"{seen} was seen before {intent.name} was aborted")

    def count(self, fate: Fate) -> int:
        return sum(intent.fate is fate for intent in self.intents.values())

    # -- what readers tell -----------------------------------------------------------------------

    def saw(self, view: View, who: str, *, atomic: bool = True, prefix: bool = True) -> None:
        """Judge a view of whole topics from which what is open or aborted is left out.

        Args:
            view: what was seen.
            who: by whom.
            atomic: each transaction is in it as a whole or not at all.
            prefix: in each partition nothing is missing before what is there.
        """
        seen: set[str] = set()
        for place, records in view.items():
            self._check_records(place, records, who)
            for _, value in records:
                meaning = self._meanings[value]
                if meaning.intent.fate in (Fate.OPEN, Fate.ABORTED):
                    raise Violation(
                        "aborted read", f"{who} saw {value}, but {meaning.intent.fate.value}"
                    )
                if value in seen:
                    raise Violation("duplicate", f"{who} saw {value} twice")
                seen.add(value)
            self._check_order(place, records, who)
            if prefix:
                self._check_prefix(place, records, who)
        topics = {topic for topic, _ in view}
        intents = {self._meanings[value].intent.name for value in seen}
        consumed: dict[Place, list[range]] = {}
        for name in sorted(intents):
            intent = self.intents[name]
            for topic in topics & intent.values.keys():
                missing = set(intent.values[topic]) - seen
                if missing and atomic:
                    raise Violation("torn", f"{who} saw a part of {name}, but not {missing}")
            for place, offsets in intent.consumed.items():
                consumed.setdefault(place, []).append(offsets)
        for place, ranges in consumed.items():
            ranges.sort(key=lambda offsets: offsets.start)
            for before, after in pairwise(ranges):
                if after.start < before.stop:
                    raise Violation("duplicate", f"{place} was consumed twice: {before}, {after}")
        if atomic:
            self._check_bank(topics, seen, who)
        self._seen |= seen

    def saw_everything(self, view: View, who: str) -> None:
        """Judge a view under read_uncommitted: every offset has its one value."""
        for place, records in view.items():
            self._check_records(place, records, who)
            found = [offset for offset, _ in records]
            if found != list(range(len(found))):
                raise Violation("gap", f"{who} found offsets {found[-20:]} in {place}")

    def saw_by(self, values: Iterable[str], topic: str, before_ms: int, who: str) -> None:
        """Judge how late a reader of one topic is: what was committed by then must be there."""
        seen = set(values)
        for intent in self.intents.values():
            if intent.fate is Fate.COMMITTED and intent.committed_at_ms <= before_ms:
                missing = set(intent.values.get(topic, ())) - seen
                if missing:
                    late = f"{who} does not see {missing}, committed at {intent.committed_at_ms}"
                    raise Violation("blocked", f"{late}, which is before {before_ms}")

    def saw_offsets(self, offsets: Mapping[Place, int], who: str, before_ms: int) -> None:
        """Judge a group's committed offsets: not behind what was committed before."""
        for intent in self.intents.values():
            if intent.fate is Fate.COMMITTED and intent.committed_at_ms <= before_ms:
                for place, consumed in intent.consumed.items():
                    if offsets.get(place, 0) < consumed.stop:
                        found = f"{who} found {place} at {offsets.get(place)}"
                        raise Violation("offsets", f"{found}, but {intent.name} moved: {consumed}")

    def settle(self, view: View, everything: View, offsets: Mapping[Place, int]) -> None:
        """Judge what is there when all is over, read in one go by somebody new."""
        self.saw(view, "the last reader")
        self.saw_everything(everything, "the last reader of all")
        seen = {value for records in view.values() for _, value in records}
        if self._seen - seen:
            raise Violation("lost", f"{self._seen - seen} was seen once, and is gone")
        stored = {(p, *record) for p, records in everything.items() for record in records}
        if not {(p, *record) for p, records in view.items() for record in records} <= stored:
            raise Violation("two values", "read_committed shows what read_uncommitted does not")
        tiles: dict[Place, list[range]] = {}
        for intent in self.intents.values():
            values = {value for found in intent.values.values() for value in found}
            if intent.fate is Fate.COMMITTED and not values <= seen:
                raise Violation("lost", f"{intent.name} was committed; not found: {values - seen}")
            if values <= seen:
                self._check_resets(intent)
                for place, consumed in intent.consumed.items():
                    tiles.setdefault(place, []).append(consumed)
        for place in tiles.keys() | offsets.keys():
            at = 0
            for consumed in sorted(tiles.get(place, ()), key=lambda found: found.start):
                if consumed.start != at:
                    raise Violation("offsets", f"{place}: outputs end at {at}, go on at {consumed}")
                at = consumed.stop
            if offsets.get(place, 0) != at:
                found = offsets.get(place)
                raise Violation("offsets", f"{place}: outputs reach {at}, the group is at {found}")

    # -- the checks ------------------------------------------------------------------------------

    def _check_records(self, place: Place, records: list[tuple[int, str]], who: str) -> None:
        last = -1
        for offset, value in records:
            if value not in self._meanings:
                raise Violation("unknown value", f"{who} found {value!r} in {place}:{offset}")
            if offset <= last:
                raise Violation("order", f"{who} found offset {offset} after {last} in {place}")
            last = offset
            first = self._places.setdefault((*place, offset), value)
            if first != value:
                where = f"{place} offset {offset}"
                raise Violation("two values", f"{where} was {first}; {who} found {value}")

    def _check_order(self, place: Place, records: list[tuple[int, str]], who: str) -> None:
        newest: dict[str, int] = {}
        for _, value in records:
            meaning = self._meanings[value]
            if meaning.key is not None:
                if meaning.order <= newest.get(meaning.key, 0):
                    raise Violation("order", f"{who} saw {value} too late in {place}")
                newest[meaning.key] = meaning.order

    def _check_prefix(self, place: Place, records: list[tuple[int, str]], who: str) -> None:
        """A record shown once is shown to every reader that sees a later one."""
        shown = self._shown.setdefault(place, set())
        offsets = {offset for offset, _ in records}
        missing = {offset for offset in shown - offsets if offset < max(offsets, default=0)}
        if missing:
            raise Violation("hole", f"{who} did not see offsets {sorted(missing)} of {place}")
        shown |= offsets

    def _check_resets(self, intent: Intent) -> None:
        """A process that read before a reset must not commit after it."""
        for begun, done in self._resets:
            if intent.learnt is not None and intent.learnt < begun and done < intent.asked:
                raise Violation("reset", f"{intent.name} read before a reset and commits after it")

    def _check_bank(self, topics: set[str], seen: set[str], who: str) -> None:
        """Where all topics of a transfer are looked at, money is neither made nor lost."""
        total = sum(
            self._meanings[value].amount
            for value in seen
            if self._meanings[value].intent.values.keys() <= topics
        )
        if total != 0:
            raise Violation("bank", f"{who} finds a sum of {total} instead of 0")
