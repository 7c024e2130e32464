"""Parses partitions, positions in them, ranges and lengths of time. Knows no store.

``--offset RANGE`` has kcat's and rpk's grammar for the start and the end:
start  end  42  42:  :42  42:50  :end  +10  -10  -10:-5  @TIME  @TIME:  @:TIME  @TIME:TIME
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import typer

if TYPE_CHECKING:
    from txnlog.names import TopicPartition

UNITS_MS: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_DURATION = re.compile(r"(?:\d{1,9}(?:ms|[smhd]))+", re.ASCII)
_PART = re.compile(r"(\d+)(ms|[smhd])", re.ASCII)
_TARGET = re.compile(r"([^:]+)(?::(\d{1,9}))?", re.ASCII)
_OFFSET = re.compile(r"([+-]?)(\d{1,19})", re.ASCII)


def is_duration(text: str) -> bool:
    """Whether ``text`` is a duration such as ``90s``, ``10m``, ``1h30m``, ``7d`` or ``500ms``."""
    return _DURATION.fullmatch(text) is not None


def parse_duration(text: str) -> int:
    """Milliseconds. Raises BadParameter."""
    if not is_duration(text):
        raise typer.BadParameter(
            f"{text!r} is not a length of time such as 500ms, 90s, 1h30m or 7d"
        )
    return sum(int(number) * UNITS_MS[unit] for number, unit in _PART.findall(text))


@dataclass(frozen=True, slots=True)
class Target:
    """A topic, or one partition of it."""

    topic: str
    partition: int | None


@dataclass(frozen=True, slots=True)
class Offset:
    """An offset, as a number."""

    offset: int


@dataclass(frozen=True, slots=True)
class Time:
    """The first record at or after a time, in milliseconds since the epoch."""

    timestamp_ms: int


Place = Literal["earliest", "latest"] | Offset | Time


def parse_target(text: str) -> Target:
    """``orders`` or ``orders:3``. Raises BadParameter."""
    match = _TARGET.fullmatch(text)
    if match is None:
        raise typer.BadParameter(
            f"{text!r} is neither TOPIC nor TOPIC:PARTITION, such as orders or orders:0"
        )
    return Target(match[1], None if match[2] is None else int(match[2]))


def to_partitions(targets: Iterable[Target]) -> list[str | TopicPartition]:
    """Topics and partitions as the library takes them."""
    from txnlog.names import TopicPartition

    return [
        target.topic if target.partition is None else TopicPartition(target.topic, target.partition)
        for target in targets
    ]


def parse_place(text: str) -> Place:
    """``earliest``, ``latest``, ``42`` or a time: see :func:`parse_time`.

    Raises BadParameter.
    """
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    if text.isascii() and text.isdigit() and len(text) <= 19:
        return Offset(int(text))
    if text.startswith("@"):
        return parse_time(text)
    raise typer.BadParameter(
        f"{text!r} is not a place in a log: write earliest, latest, an offset such as 42, or a "
        "time such as @2024-05-01T12:00:00Z, @1700000000000 (ms) or @-1h (ago)"
    )


def parse_time(text: str) -> Time:
    """``@1700000000000``, ``@2024-05-01T12:00`` (UTC if it names no zone) or ``@-1h30m``: ago.

    Raises BadParameter.
    """
    typed = text.removeprefix("@")
    if re.fullmatch(r"-?\d{1,18}", typed, re.ASCII):
        return Time(int(typed))
    if typed.startswith("-") and is_duration(typed[1:]):
        return Time(time.time_ns() // 1_000_000 - parse_duration(typed[1:]))
    try:
        moment = datetime.fromisoformat(typed)
    except ValueError:
        raise typer.BadParameter(
            f"@{typed} is not a time: write ISO 8601 such as @2024-05-01T12:00:00Z, milliseconds "
            "since the epoch, or how long ago it was, such as @-1h"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return Time(round(moment.timestamp() * 1000))


_NAMED: dict[str, Place] = {
    "start": "earliest",
    "earliest": "earliest",
    "oldest": "earliest",
    "end": "latest",
    "latest": "latest",
    "newest": "latest",
}


@dataclass(frozen=True, slots=True)
class FromStart:
    """This many offsets after the first one."""

    count: int


@dataclass(frozen=True, slots=True)
class FromEnd:
    """This many offsets before the end."""

    count: int


Bound: TypeAlias = Place | FromStart | FromEnd


@dataclass(frozen=True, slots=True)
class Range:
    """The start, and the exclusive end."""

    start: Bound
    stop: Bound


EVERYTHING: Final = Range("earliest", "latest")


def parse_range(text: str) -> Range:
    """A range of offsets or times. Raises BadParameter."""
    if text.startswith("@"):
        return _parse_times(text[1:])
    begin, colon, end = text.partition(":")
    if not text or text == ":":
        raise _refuse(text)
    start = "earliest" if colon and not begin else _parse_bound(begin, text)
    return Range(start, _parse_bound(end, text) if end else "latest")


def _parse_bound(bound: str, text: str) -> Bound:
    if bound in _NAMED:
        return _NAMED[bound]
    if bound.startswith("@") and (found := _parse_time(bound[1:])) is not None:
        return found
    match = _OFFSET.fullmatch(bound)
    if match is None:
        raise _refuse(text)
    number = int(match[2])
    if match[1] == "+":
        return FromStart(number)
    return FromEnd(number) if match[1] else Offset(number)


def _parse_times(text: str) -> Range:
    """``T``, ``T:``, ``:T`` or ``T1:T2``, though a T may have colons too."""
    if (start := _parse_time(text)) is not None:
        return Range(start, "latest")
    found = []
    for colon in (match.start() for match in re.finditer(":", text)):
        begin, end = text[:colon], text[colon + 1 :].removeprefix("@")
        start = _parse_time(begin) if begin else "earliest"
        stop = _parse_time(end) if end else "latest"
        if start is not None and stop is not None and (begin or end):
            found.append(Range(start, stop))
    if len(found) != 1:
        raise _refuse("@" + text)
    return found[0]


def _parse_time(text: str) -> Place | None:
    """A time, or an end; None if it is neither."""
    if text in _NAMED:
        return _NAMED[text]
    try:
        return parse_time(text)
    except typer.BadParameter:
        return None


def _refuse(text: str) -> typer.BadParameter:
    return typer.BadParameter(
        f"--offset {text!r} is not a range: write start, end, 42, 42:50, :50, +10 (after the "
        "start), -10 (before the end), @TIME or @TIME:TIME, with a TIME such as 2024-05-01T12:00, "
        "milliseconds, or -1h for an hour ago"
    )
