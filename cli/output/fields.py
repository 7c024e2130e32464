"""A verb's fields, each with a JSON key and a column of a table.

A list of fields is the one description of a verb's output: the JSON keys are the contract of
docs/CLI.md, the titles are for people.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from txnlog.cli.input.places import UNITS_MS
from txnlog.cli.output.escape import Json, escape_text
from txnlog.display import utc_time

T = TypeVar("T")

_ABSENT = "-"
_UNIT = 1024
_ONE_DIGIT = 9.95
"""Values that round to less than 10 get a digit after the point."""


@dataclass(frozen=True, slots=True)
class Field(Generic[T]):
    """One property of a thing.

    Without a title it is in JSON only. ``wide`` columns are left out on narrow terminals;
    ``elastic`` ones get this share of the remaining width, and are truncated to it. ``glance`` is
    shown on a terminal instead. ``seldom`` ones are left out there too if nothing has them.
    """

    key: str
    title: str | None
    value: Callable[[T], Json]
    show: Callable[[T], str]
    numeric: bool = False
    wide: bool = False
    elastic: int = 0
    glance: Callable[[T], str] | None = None
    seldom: bool = False


def text(
    key: str, title: str | None, get: Callable[[T], str | None], *, wide: bool = False
) -> Field[T]:
    """A name or a word."""
    return Field(key, title, get, lambda item: _show_text(get(item)), wide=wide)


def number(
    key: str,
    title: str | None,
    get: Callable[[T], int | None],
    *,
    wide: bool = False,
    absent: str = _ABSENT,
) -> Field[T]:
    """A count or an offset; ``absent`` is shown where there is none, or it is not known."""

    def show(item: T) -> str:
        value = get(item)
        return absent if value is None else str(value)

    return Field(key, title, get, show, numeric=True, wide=wide)


def size(
    key: str,
    title: str | None,
    get: Callable[[T], int | None],
    *,
    wide: bool = False,
    absent: str = _ABSENT,
) -> Field[T]:
    """Bytes: their number, on a terminal in a suitable unit."""

    def glance(item: T) -> str:
        value = get(item)
        return absent if value is None else show_size(value)

    return replace(number(key, title, get, wide=wide, absent=absent), glance=glance)


def time(
    key: str, title: str | None, get: Callable[[T], int | None], *, wide: bool = False
) -> Field[T]:
    """Milliseconds since the epoch: the number in JSON, ISO 8601 in UTC for people."""
    return Field(key, title, get, lambda item: show_time(get(item)), wide=wide)


def flag(
    key: str,
    title: str | None,
    get: Callable[[T], bool | None],
    yes: str,
    no: str,
    *,
    wide: bool = False,
) -> Field[T]:
    """True, false, or (None) not applicable."""

    def show(item: T) -> str:
        value = get(item)
        return _ABSENT if value is None else yes if value else no

    return Field(key, title, get, show, wide=wide)


def names(
    key: str, title: str | None, get: Callable[[T], Sequence[str]], *, wide: bool = False
) -> Field[T]:
    """Several names."""
    return Field(
        key,
        title,
        lambda item: list(get(item)),
        lambda item: ", ".join(escape_text(name) for name in get(item)) or _ABSENT,
        wide=wide,
    )


def duration(key: str, title: str, get: Callable[[T], int]) -> Field[T]:
    """Milliseconds: the number in JSON, the two largest units for people."""
    return Field(key, title, get, lambda item: show_duration(get(item)), numeric=True)


def to_json(fields: Sequence[Field[T]], item: T) -> dict[str, Json]:
    """The JSON object of a thing."""
    return {field.key: field.value(item) for field in fields}


def show_time(timestamp_ms: int | None) -> str:
    """``2024-05-01T12:00:00.000Z``; a number outside the calendar's range."""
    if timestamp_ms is None:
        return _ABSENT
    shown = utc_time(timestamp_ms, "T")
    return str(timestamp_ms) if shown is None else f"{shown}Z"


def show_duration(duration_ms: int) -> str:
    """``3d 4h``, ``2m 5s`` or ``350ms``: the two largest units."""
    if duration_ms < 0:
        return "-" + show_duration(-duration_ms)
    if duration_ms < 1000:
        return f"{duration_ms}ms"
    shown: list[str] = []
    left = duration_ms
    for unit in ("d", "h", "m", "s"):
        count, left = divmod(left, UNITS_MS[unit])
        if count or shown:
            shown.append(f"{count}{unit}")
    return " ".join(part for part in shown[:2] if not part.startswith("0"))


def show_size(size_bytes: int | None) -> str:
    """``512 B``, ``1.5 KiB`` or ``310 MiB``: at least two digits, in units of 1,024."""
    if size_bytes is None:
        return _ABSENT
    if size_bytes < _UNIT:
        return f"{size_bytes} B"
    units = ["KiB", "MiB", "GiB", "TiB", "PiB"]
    amount = size_bytes / _UNIT
    while round(amount) >= _UNIT and len(units) > 1:
        amount /= _UNIT
        units.pop(0)
    return f"{amount:.{1 if amount < _ONE_DIGIT else 0}f} {units[0]}"


def show_settings(config: Mapping[str, str]) -> str:
    """Settings that differ from the defaults, on one line."""
    return ", ".join(f"{key}={value}" for key, value in sorted(config.items())) or "defaults"


def _show_text(value: str | None) -> str:
    return _ABSENT if value is None else escape_text(value)
