"""The judge of pairs: what was meant, by whom, after what; and whether what is read agrees.

It shares no code with the library. Each process notes what it knows to be acknowledged before it
asks for something: its own writes, and what it has read. So the judge knows causes and effects, and
by its ticks which of two things ended before the other one began.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field
from enum import Enum

Place = tuple[str, int]
"""A topic and a partition."""
KeyOf = tuple[str, str]
"""A topic and a key."""


class Violation(AssertionError):
    """A promise was broken. ``check`` says which one."""

    def __init__(self, check: str, what: str) -> None:
        super().__init__(f"{check}: {what}")
        self.check = check


class Fate(Enum):
    """What is known of an intent from what its writer was told."""

    OPEN = "its writer has not asked to commit it"
    ASKED = "its writer asked to commit it, and was told nothing"
    COMMITTED = "its writer was told that it is committed"
    ABORTED = "its writer was told that nothing of it was committed"


@dataclass(slots=True)
class Intent:
    """One transaction, or one flush without a transaction, as its writer meant it."""

    name: str
    began: int
    writer: str = ""
    causes: frozenset[str] = frozenset()
    """What its process had seen acknowledged when it began."""
    consumed: frozenset[str] = frozenset()
    """Those whose records it moves its group's offsets past."""
    span: range = range(0)
    """The offsets of these records."""
    fate: Fate = Fate.OPEN
    asked: int = 0
    told: int = 0
    """When its writer asked to commit it, and was told the outcome: ticks of the judge."""
    values: dict[str, str] = field(default_factory=dict)
    """The topic of each value."""
    keys: dict[KeyOf, str | None] = field(default_factory=dict)
    """What keys become; None: they are deleted."""
    purges: bool = False
    """It is no transaction, but a purge of these keys."""


@dataclass(slots=True)
class Seen:
    """What a reader saw of one partition."""

    start: int
    end: int
    records: list[tuple[int, str]]
    """Offsets and values, ascending."""


View = Mapping[Place, Seen]


@dataclass(slots=True)
class _Deletion:
    began: int
    told: int = 0


class History:
    """All that was meant and seen in one store."""

    def __init__(self) -> None:
        self.intents: dict[str, Intent] = {}
        self._of_value: dict[str, str] = {}
        self._places: dict[tuple[str, int, int], str] = {}
        self._seen: dict[str, str] = {}
        self._trims: dict[Place, int] = {}
        self._deletions: dict[str, list[_Deletion]] = {}
        self._fading: set[str] = set()
        self._tables: dict[KeyOf, list[Intent]] = {}
        self._compacted: set[str] = set()
        self._moves: dict[str, dict[str, int | None]] = {}
        self._ticks = 0

    def copy(self) -> History:
        """The same history, to go on from."""
        other = copy(self)
        other.intents = {name: copy(intent) for name, intent in self.intents.items()}
        other._of_value = dict(self._of_value)
        other._places, other._seen = dict(self._places), dict(self._seen)
        other._trims = dict(self._trims)
        other._deletions = {topic: [copy(d) for d in of] for topic, of in self._deletions.items()}
        other._fading = set(self._fading)
        other._moves = {group: dict(of) for group, of in self._moves.items()}
        other._compacted = set(self._compacted)
        other._tables = {
            key: [other.intents[intent.name] for intent in of] for key, of in self._tables.items()
        }
        return other

    def tick(self) -> int:
        """A number greater than those before it: which of two things came first."""
        self._ticks += 1
        return self._ticks

    # -- what processes tell ---------------------------------------------------------------------

    def begin(self, name: str, writer: str, causes: Iterable[str]) -> Intent:
        """A process begins a transaction, or a flush."""
        name = f"{name}.{len(self.intents)}"
        intent = Intent(name, self.tick(), writer, frozenset(causes))
        self.intents[name] = intent
        return intent

    def write(self, intent: Intent, topic: str) -> str:
        """Announce one record; returns its value."""
        value = f"{intent.name}#{len(intent.values)}"
        intent.values[value] = topic
        self._of_value[value] = intent.name
        return value

    def write_key(self, intent: Intent, topic: str, key: str, value: str | None) -> None:
        """Announce what a key becomes; None: it is deleted."""
        intent.keys[topic, key] = value
        of_key = self._tables.setdefault((topic, key), [])
        if intent not in of_key:
            of_key.append(intent)

    def ask(self, intent: Intent) -> None:
        """Its writer asks to commit it now."""
        intent.fate, intent.asked = Fate.ASKED, self.tick()

    def committed(self, intent: Intent) -> None:
        """Its writer was told so."""
        if intent.fate is Fate.ABORTED:
            raise Violation("outcome", f"{intent.name} was aborted, and is committed now")
        intent.fate, intent.told = Fate.COMMITTED, self.tick()

    def aborted(self, intent: Intent) -> None:
        """Its writer was told so."""
        if intent.fate is Fate.COMMITTED:
            raise Violation("outcome", f"{intent.name} was committed, and is aborted now")
        intent.fate, intent.told = Fate.ABORTED, self.tick()
        for value in intent.values:
            if value in self._seen:
                who = self._seen[value]
                raise Violation("aborted read", f"{who} saw {value}, and it was aborted")

    def move(self, group: str, intent: Intent, offset: int | None) -> None:
        """Announce where an intent moves a group; None: its process does not know yet."""
        self._moves.setdefault(group, {})[intent.name] = offset

    def name_of(self, value: str) -> str:
        """Which intent a value is of."""
        return self._of_value[value]

    def trim(self, place: Place, before: int) -> None:
        """Somebody asks to delete the records below an offset."""
        self._trims[place] = max(before, self._trims.get(place, 0))

    def purging(self, topic: str, key: str) -> Intent:
        """Somebody asks to purge a key; ``committed``: no record of it was left out."""
        purge = self.begin(f"purge of {topic} {key}", "", ())
        purge.purges = True
        self.write_key(purge, topic, key, None)
        self.ask(purge)
        return purge

    def was_purged(self, topic: str, key: str) -> bool:
        """Whether somebody has asked to purge a key."""
        return any(intent.purges for intent in self._tables.get((topic, key), ()))

    def written(self, topic: str, since: int, until: int) -> set[str]:
        """The values that were written to keys, not purged, wholly between two ticks."""
        return {
            value
            for (of_topic, key), of_key in self._tables.items()
            if of_topic == topic and not self.was_purged(topic, key)
            for one in of_key
            if one.fate is Fate.COMMITTED and since < one.began and one.told < until
            if (value := one.keys[of_topic, key]) is not None
        }

    def fade(self, topic: str) -> None:
        """From now on retention may delete records of a topic."""
        self._fading.add(topic)

    def compacts(self, topic: str) -> None:
        """From now on compaction may delete records of a topic."""
        self._compacted.add(topic)

    def is_compacted(self, topic: str) -> bool:
        """Whether compaction may have deleted records of a topic."""
        return topic in self._compacted

    def deleting(self, topic: str) -> _Deletion:
        """Somebody asks to delete a topic."""
        deletion = _Deletion(self.tick())
        self._deletions.setdefault(topic, []).append(deletion)
        return deletion

    def deleted(self, deletion: _Deletion) -> None:
        """They were told that it is gone."""
        deletion.told = self.tick()

    def was_deleted(self, topic: str | None) -> bool:
        """Whether somebody has asked to delete a topic."""
        return topic in self._deletions

    def held_back(self, at: int) -> bool:
        """Whether a transaction may have been open at a tick, so that readers were held back."""
        return any(i.began < at and not 0 < i.told < at for i in self.intents.values())

    # -- what readers tell -----------------------------------------------------------------------

    def saw(
        self,
        view: View,
        who: str,
        *,
        began: int,
        atomic: bool = True,
        fresh: bool = False,
        past: bool = False,
        causal: bool = True,
        instant: bool = False,
    ) -> set[str]:
        """Judge a view of whole topics in which only what is committed shows.

        Args:
            view: what was seen.
            who: by whom.
            began: the tick at which the reader began to look.
            atomic: each transaction is in it as a whole or not at all.
            fresh: whatever was acknowledged before that is in it.
            past: it is a view of the past, so what was acknowledged may be missing.
            causal: what a transaction that it shows has consumed is in it.
            instant: it shows the state of one instant: all that was acknowledged before anything
                that it shows began.

        Returns:
            The intents that it shows.
        """
        seen: set[str] = set()
        for place, found in view.items():
            self._check_records(place, found, who)
            for _, value in found.records:
                intent = self.intents[self._of_value[value]]
                if intent.fate in (Fate.OPEN, Fate.ABORTED):
                    raise Violation("aborted read", f"{who} saw {value}, but {intent.fate.value}")
                if value in seen:
                    raise Violation("doubled", f"{who} saw {value} twice")
                seen.add(value)
                self._seen.setdefault(value, who)
        topics = {topic for topic, _ in view}
        shown = {self._of_value[value] for value in seen}
        for name in sorted(shown):
            intent = self.intents[name]
            missing = self._missing(intent, view, topics, seen)
            if missing and atomic:
                raise Violation("torn", f"{who} saw a part of {name}, but not {missing}")
            causes = intent.consumed if causal else frozenset()
            if instant:
                causes |= intent.causes | self._told_before(intent)
            self._check_causes(intent, causes, view, topics, seen, who)
        self._check_order(view, seen, who)
        if not past:
            self._check_purged(seen, who, began)
        if fresh and not past:
            for intent in self.intents.values():
                if intent.fate is Fate.COMMITTED and intent.told < began:
                    missing = self._missing(intent, view, topics, seen)
                    if missing:
                        raise Violation(
                            "lost", f"{who} does not see {missing}, acknowledged before"
                        )
        return shown

    def saw_table(
        self, topic: str, table: Mapping[str, str], who: str, *, began: int, for_long: bool = False
    ) -> None:
        """Judge what a topic's keys are, as somebody has found who read to its end.

        ``for_long``: part of it was read before ``began``: no record tells of a purge.
        """
        for (of_topic, key), of_key in self._tables.items():
            if of_topic != topic or (for_long and self.was_purged(topic, key)):
                continue
            value = table.get(key)
            possible = [
                i
                for i in of_key
                if i.keys[topic, key] == value and i.fate in (Fate.COMMITTED, Fate.ASKED)
            ]
            if value is None and key not in table:
                never = not any(i.fate is Fate.COMMITTED and i.told < began for i in of_key)
                if never:
                    continue
            if not possible:
                raise Violation("table", f"{who} finds {key}={value}, which nobody committed")
            newest = max(
                (i.began for i in of_key if i.fate is Fate.COMMITTED and i.told < began), default=-1
            )
            if all(i.fate is Fate.COMMITTED and i.told < newest for i in possible):
                raise Violation("table", f"{who} finds {key}={value}, which was overwritten")
        unknown = table.keys() - {key for of_topic, key in self._tables if of_topic == topic}
        if unknown:
            raise Violation("table", f"{who} finds the unknown keys {unknown}")

    def saw_values(self, topic: str, values: Iterable[str], who: str, *, began: int) -> None:
        """Judge a fresh view of a topic whose offsets are not known."""
        seen = self._check_values(values, who)
        self._check_purged(seen, who, began)
        for intent in self.intents.values():
            told = intent.fate is Fate.COMMITTED and intent.told < began
            missing = self._missing(intent, {}, {topic}, seen)
            if missing and (told or not seen.isdisjoint(intent.values)):
                raise Violation("lost", f"{who} does not see {missing} of {intent.name}")

    def saw_everything(self, view: View, who: str) -> None:
        """Judge a view of everything that was written: offsets have no gaps, and one value each."""
        for place, found in view.items():
            self._check_records(place, found, who)
            offsets = [offset for offset, _ in found.records]
            if offsets != list(range(found.start, found.end)):
                raise Violation("gap", f"{who} found offsets {offsets} in {place}")

    def polled(self, values: Iterable[str], who: str) -> None:
        """Judge what a consumer has got, one poll after the other."""
        self._check_values(values, who)

    def _check_values(self, values: Iterable[str], who: str) -> set[str]:
        """What somebody saw whose offsets are not known: each once, and none that is aborted."""
        seen: set[str] = set()
        for value in values:
            if value in seen:
                raise Violation("doubled", f"{who} saw {value} twice")
            seen.add(value)
            intent = self.intents[self._of_value[value]]
            if intent.fate in (Fate.OPEN, Fate.ABORTED):
                raise Violation("aborted read", f"{who} saw {value}, but {intent.fate.value}")
            self._seen.setdefault(value, who)
        return seen

    def check_group(self, group: str, offset: int | None, *, began: int, is_moved: bool) -> None:
        """Judge where a group is; ``is_moved``: also by others than who read its records."""
        moves = self._moves.get(group, {})
        self._check_register(
            f"group {group}",
            str(offset),
            [(self.intents[n], str(to)) for n, to in moves.items()],
            began,
        )
        if not is_moved:
            at = 0
            spans = [i.span for i in self.intents.values() if i.fate is Fate.COMMITTED and i.span]
            for span in sorted(spans, key=lambda of: of.start):
                if span.start < at:
                    raise Violation("doubled", f"{span} was consumed twice, up to {at} before")
                at = span.stop

    def _check_register(
        self, what: str, found: str, writes: list[tuple[Intent, str]], began: int
    ) -> None:
        """Judge one value that is overwritten: the newest acknowledged, or one beside it."""
        known = [(i, v) for i, v in writes if i.fate is Fate.COMMITTED and i.told < began]
        if not known:
            return
        may_be = [
            i
            for i, v in writes
            if v in (found, str(None)) and i.fate in (Fate.COMMITTED, Fate.ASKED)
        ]
        if not may_be:
            raise Violation("register", f"{what} is {found}, which nobody wrote")
        newest = max(i.began for i, _ in known)
        if all(i.fate is Fate.COMMITTED and i.told < newest for i in may_be):
            raise Violation("register", f"{what} is {found}, which was overwritten")

    def _check_records(self, place: Place, found: Seen, who: str) -> None:
        last = found.start - 1
        for offset, value in found.records:
            if value not in self._of_value:
                raise Violation("unknown value", f"{who} found {value!r} in {place}:{offset}")
            if not last < offset < found.end:
                raise Violation("order", f"{who} found offset {offset} after {last} in {place}")
            last = offset
            if place[0] in self._deletions:
                continue
            first = self._places.setdefault((*place, offset), value)
            if first != value:
                where = f"{place} offset {offset}"
                raise Violation("two values", f"{where} was {first}; {who} found {value}")

    def _check_purged(self, seen: Iterable[str], who: str, began: int) -> None:
        """What was there when a purge began does not show afterwards."""
        for value in seen:
            intent = self.intents[self._of_value[value]]
            for purge in self._purges_of(intent, value):
                was_there = intent.fate is Fate.COMMITTED and intent.told < purge.began
                if was_there and purge.fate is Fate.COMMITTED and purge.told < began:
                    raise Violation("purged", f"{who} saw {value} after {purge.name}")

    def _purges_of(self, intent: Intent, value: str) -> Iterable[Intent]:
        keys = [key for key, of_key in intent.keys.items() if of_key == value]
        return (purge for key in keys for purge in self._tables[key] if purge.purges)

    def _missing(self, intent: Intent, view: View, topics: set[str], seen: set[str]) -> list[str]:
        """What a view that should have all of an intent lacks, and why is not known."""
        return [
            value
            for value, topic in intent.values.items()
            if topic in topics
            and value not in seen
            and not self._may_be_gone(intent, value, topic, view)
        ]

    def _may_be_gone(self, intent: Intent, value: str, topic: str, view: View) -> bool:
        if topic in self._fading:
            return True
        if any(not of.told or intent.began < of.told for of in self._purges_of(intent, value)):
            return True
        for key, of_key in intent.keys.items() if topic in self._compacted else ():
            if of_key == value and len(self._tables[key]) > 1:
                return True
        if any(not of.told or intent.began < of.told for of in self._deletions.get(topic, ())):
            return True
        for (name, partition), found in view.items():
            if name != topic or not found.start:
                continue
            if found.start > self._trims.get((name, partition), 0):
                raise Violation("trimmed", f"{name}-{partition} begins at {found.start}")
            if any(
                self._places.get((name, partition, at)) == value for at in range(found.start)
            ) or not any(known == value for (t, _, _), known in self._places.items() if t == topic):
                return True
        return False

    def _told_before(self, intent: Intent) -> frozenset[str]:
        """What was acknowledged before an intent began, whoever knew it."""
        return frozenset(
            other.name
            for other in self.intents.values()
            if other.fate is Fate.COMMITTED and other.told < intent.began
        )

    def _check_causes(
        self,
        intent: Intent,
        causes: frozenset[str],
        view: View,
        topics: set[str],
        seen: set[str],
        who: str,
    ) -> None:
        """Where an effect shows, its causes do."""
        for name in causes:
            missing = self._missing(self.intents[name], view, topics, seen)
            if missing:
                raise Violation(
                    "effect without cause", f"{who} saw {intent.name} without {name}: {missing}"
                )

    def _check_order(self, view: View, seen: set[str], who: str) -> None:
        """Within a partition nothing acknowledged is left out behind something later."""
        for place, found in view.items():
            if not found.records or place[0] in self._deletions:
                continue
            newest = max(self.intents[self._of_value[v]].began for _, v in found.records)
            last = found.records[-1][0]
            for (topic, partition, offset), value in self._places.items():
                if (topic, partition) != place or value in seen or not found.start <= offset < last:
                    continue
                intent = self.intents[self._of_value[value]]
                acknowledged = intent.fate is Fate.COMMITTED and intent.told < newest
                if acknowledged and not self._may_be_gone(intent, value, topic, view):
                    raise Violation("hole", f"{who} did not see {value} at {place}:{offset}")
