"""What is asked for on the page of records: the fields of its form, each checked by itself.

A wrong field is an error beside it, and the others stay as they were typed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from functools import reduce
from operator import and_
from typing import Final, cast
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc

from txnlog.errors import InvalidOption
from txnlog.limits import MOST_OFFSETS
from txnlog.read.conditions import key_and_text_filter, parse_condition
from txnlog.read.isolation_levels import IsolationLevel
from txnlog.read.topic_view import TopicView
from txnlog.ui.look import SoughtRecords

FIELDS: Final = (
    *("key", "find", "where", "since", "until", "zone"),
    *("partitions", "offset", "order", "level"),
)
LEVELS: Final = ("read_committed", "snapshot", "read_uncommitted")
ORDERS: Final = ("newest", "oldest")
_SEARCHED: Final = ("key", "find", "where", "since", "until")
_DETAILS: Final = ("since", "until", "partitions", "offset", "order", "level")
_MOST_CHARS: Final = 2000
_MOST_PARTITIONS: Final = 256
"""So many partitions are merged: the place of each is in the addresses of the pages beside."""
_AGO_MS: Final[Mapping[str, int]] = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_AGO: Final = re.compile(r"-?(\d{1,9})\s*([smhd])(?: ago)?", re.ASCII)
_NUMBER: Final = re.compile(r"\d{1,18}", re.ASCII)
_SPAN: Final = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?", re.ASCII)


@dataclass(slots=True)
class RecordQuery:
    """The fields as they were typed, and what is wrong with some of them.

    ``before`` and ``after`` are places: offsets of the chosen partitions in their order.
    """

    typed: Mapping[str, str]
    before: str = ""
    after: str = ""
    errors: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, asked: Mapping[str, str]) -> RecordQuery:
        """Parse the parameters of a URL."""
        typed = {name: asked.get(name, "")[: _MOST_CHARS + 1] for name in FIELDS}
        for name, (default, *_) in (("level", LEVELS), ("order", ORDERS)):
            typed[name] = "" if typed[name] == default else typed[name]
        query = cls(typed, asked.get("before", ""), asked.get("after", ""))
        for name, text in typed.items():
            if len(text) > _MOST_CHARS:
                query.errors[name] = f"more than {_MOST_CHARS} characters"
        for name, known in (("level", LEVELS), ("order", ORDERS)):
            if typed[name] and typed[name] not in known:
                query.errors[name] = f"{typed[name]!r} is none of {', '.join(known)}"
        return query

    @property
    def level(self) -> IsolationLevel:
        """The isolation level; the default one if it is wrong."""
        level = self.typed["level"]
        return cast("IsolationLevel", level if level in LEVELS else LEVELS[0])

    @property
    def newest_first(self) -> bool:
        """In which order records are shown."""
        return self.typed["order"] != "oldest"

    @property
    def is_search(self) -> bool:
        """Whether the query selects only some of the records."""
        return any(self.typed[name].strip() for name in _SEARCHED)

    @property
    def has_details(self) -> bool:
        """Whether a field counts that is seldom used."""
        return any(self.typed[name] or name in self.errors for name in _DETAILS)

    def link(self, **places: str) -> str:
        """The address of the same with other places."""
        kept = {name: text for name, text in self.typed.items() if text}
        return f"?{urlencode({**kept, **places}, errors='surrogateescape')}"

    def wanted(self, now_ms: int) -> SoughtRecords:
        """The filter; errors become those of their fields."""
        typed = self.typed
        key = typed["key"].encode(errors="surrogateescape") or None
        found: list[pc.Expression | None] = [key_and_text_filter(key, None)]
        try:
            found.append(key_and_text_filter(None, typed["find"] or None))
        except InvalidOption as error:
            self.errors["find"] = str(error)
        conditions = []
        if typed["where"].strip():
            try:
                conditions.append(parse_condition(typed["where"]))
            except InvalidOption as error:
                self.errors["where"] = str(error)
        times = pc.field("timestamp")
        if (since := self._time("since", now_ms)) is not None:
            found.append(times >= since)
        if (until := self._time("until", now_ms)) is not None:
            found.append(times < until)
        expressions = [expression for expression in found if expression is not None]
        return SoughtRecords(reduce(and_, expressions) if expressions else None, conditions)

    def partitions(self, view: TopicView) -> Sequence[int]:
        """The partitions that are looked at."""
        count, text = len(view.partitions), self.typed["partitions"].strip()
        every = range(min(count, _MOST_PARTITIONS))
        if not text:
            return every
        try:
            chosen = choose_partitions(text, count)
        except ValueError as error:
            self.errors["partitions"] = str(error)
            return every
        if len(chosen) > _MOST_PARTITIONS:
            self.errors["partitions"] = f"at most {_MOST_PARTITIONS} at a time"
            return every
        return chosen

    def begin(self, view: TopicView, chosen: Sequence[int]) -> tuple[dict[int, int], bool]:
        """Where a look at them begins, and whether it leads to older records.

        Raises InvalidOption: the place is not one of ours.
        """
        starts, ends = view.beginning_offsets, view.end_offsets
        if self.before or self.after:
            offsets = _parse_place(self.before or self.after, len(chosen))
            # Partitions that were added since have all of their records ahead.
            known = dict(zip(chosen, offsets, strict=False))
            default = ends if self.before else starts
            placed = {p: known.get(p, default[p]) for p in chosen}
            begin = {p: min(max(at, starts[p]), ends[p]) for p, at in placed.items()}
            return begin, bool(self.before)
        begin = {p: (ends if self.newest_first else starts)[p] for p in chosen}
        text = self.typed["offset"].strip()
        if text and not _NUMBER.fullmatch(text):
            self.errors["offset"] = f"{text!r} is not an offset, such as 4711"
        elif text and len(chosen) != 1:
            self.errors["offset"] = "it is one of a single partition: name that one, too"
        elif text:
            at = int(text) + self.newest_first
            begin = {p: min(max(at, starts[p]), ends[p]) for p in chosen}
        return begin, self.newest_first

    def _time(self, name: str, now_ms: int) -> pa.Scalar | None:
        text = self.typed[name].strip()
        if not text:
            return None
        try:
            at_ms = parse_time(text, find_zone(self.typed["zone"]), now_ms)
            return pa.scalar(at_ms * 1000, pa.timestamp("us", tz="UTC"))
        except (ValueError, OverflowError):
            self.errors[name] = (
                f"{text!r} is not a time: give one such as 2024-05-01T12:00, a date, or 90m, 2h or "
                "7d for so long ago"
            )
            return None


def choose_partitions(text: str, count: int) -> list[int]:
    """The numbers in ``0,3,5-9``; none if it is empty. Raises ValueError, whose text is for people.

    ``count``: how many there are.
    """
    chosen: set[int] = set()
    for piece in text.replace(" ", "").split(",") if text.strip() else ():
        span = _SPAN.fullmatch(piece)
        first = int(span[1]) if span else -1
        last = int(span[2] or first) if span else -1
        if not 0 <= first <= last < count:
            raise ValueError(
                f"{piece!r} is none of the topic's, which are 0 to {count - 1}: "
                "give some, such as 0,3,5-9"
            )
        chosen.update(range(first, last + 1))
    return sorted(chosen)


def find_zone(name: str) -> tzinfo:
    """The zone of a name such as ``Europe/Berlin``; UTC if there is none, or it is not known."""
    try:
        return ZoneInfo(name) if name else UTC
    except (OSError, ValueError, KeyError):  # what is not found is a KeyError
        return UTC


def write_place(offsets: Mapping[int, int], chosen: Sequence[int]) -> str:
    """Offsets of the chosen partitions for an address."""
    return ".".join(str(offsets[p]) for p in chosen)


def _parse_place(text: str, count: int) -> list[int]:
    pieces = text.split(".")
    if len(pieces) > count or not all(_NUMBER.fullmatch(piece) for piece in pieces):
        raise InvalidOption("the address has no place of this topic: begin at its page of records")
    return [min(int(piece), MOST_OFFSETS) for piece in pieces]


def parse_time(text: str, zone: tzinfo, now_ms: int) -> int:
    """Milliseconds of what people type for a time. Raises ValueError, OverflowError."""
    if ago := _AGO.fullmatch(text):
        return now_ms - int(ago[1]) * _AGO_MS[ago[2]]
    if text.isdecimal() and len(text) in (12, 13):  # milliseconds, as logs write them
        return int(text)
    moment = datetime.fromisoformat(text)
    zoned = moment if moment.tzinfo else moment.replace(tzinfo=zone)
    return int(zoned.timestamp() * 1000)
