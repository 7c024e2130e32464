"""``--offset RANGE``: kcat's and rpk's grammar for the start and the end. Knows no store.

start  end  42  42:  :42  42:50  :end  +10  -10  -10:-5  @TIME  @TIME:  @:TIME  @TIME:TIME
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, TypeAlias

import typer

from txnlog.cli.input.places import Offset, Place, parse_time

_NAMED: dict[str, Place] = {
    "start": "earliest",
    "earliest": "earliest",
    "oldest": "earliest",
    "end": "latest",
    "latest": "latest",
    "newest": "latest",
}
_OFFSET = re.compile(r"([+-]?)(\d{1,19})", re.ASCII)


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
