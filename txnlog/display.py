"""What people see of values: tables in notebooks, and settings in words.

Nothing is read for the display, and everything shown is escaped: names and reasons are untrusted
text.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, Final

_TIME_UNITS: Final = (
    *(("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1000)),
    ("ms", 1),
)
BYTE_UNITS: Final = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
_BYTE_UNITS: Final = (*BYTE_UNITS, ("byte", 1))
_SHORT_UNITS: Final = {"day": "d", "hour": "h", "minute": "m", "second": "s", "byte": "b"}
_MOST_ROWS = 50
_MOST_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999."""


class Shown:
    """A result that notebooks show as tables: a base of frozen dataclasses."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return show(self)


def shorten(value: object, most: int = 200) -> str:
    """The ``repr`` of a value; of a long one how it begins, and how long it is."""
    if isinstance(value, (bytes, str)) and len(value) > most:
        return f"{value[:most]!r}... {len(value):,} in all"
    text = repr(value)
    return text if len(text) <= 2 * most else f"{text[: 2 * most]}... {len(text):,} characters"


def show(result: object) -> str:
    """A dataclass as HTML: its plain fields in one table, each of its lists in one of its own."""
    plain: list[tuple[str, object]] = []
    tables: list[str] = []
    for field in dataclasses.fields(result):  # type: ignore[arg-type]
        value = getattr(result, field.name)
        if isinstance(value, Mapping):
            tables.append(table(field.name, ("", field.name), value.items()))
        elif isinstance(value, (list, tuple)) and value and dataclasses.is_dataclass(value[0]):
            columns = [each.name for each in dataclasses.fields(value[0])]
            rows = ([getattr(row, column) for column in columns] for row in value)
            tables.append(table(field.name, columns, rows))
        else:
            plain.append((field.name, value))
    return table(type(result).__name__, ("", ""), plain) + "".join(tables)


def table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table in HTML, of the first rows."""
    shown = [*rows]
    left_out = len(shown) - _MOST_ROWS
    head = "".join(f"<th>{escape(column)}</th>" for column in columns) if any(columns) else ""
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(_text(cell))}</td>" for cell in row) + "</tr>"
        for row in shown[:_MOST_ROWS]
    )
    more = f"<p>... and {left_out:,} more</p>" if left_out > 0 else ""
    header = f"<thead><tr>{head}</tr></thead>" if head else ""
    return f"<table><caption>{escape(caption)}</caption>{header}<tbody>{body}</tbody></table>{more}"


def utc_time(timestamp_ms: int, between: str) -> str | None:
    """``2024-05-01 12:00:00.000``, or what is to stand in its middle; None beyond the calendar."""
    if not 0 <= timestamp_ms <= _MOST_MS:
        return None
    seconds, milliseconds = divmod(timestamp_ms, 1000)
    moment = datetime.fromtimestamp(seconds, UTC)
    return f"{moment:%Y-%m-%d{between}%H:%M:%S}.{milliseconds:03d}"


def show_time(timestamp_ms: int) -> str:
    """A time in UTC to the second; a number where no calendar reaches."""
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(" ", "seconds")
    except (OSError, OverflowError, ValueError):
        return str(timestamp_ms)


def _text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return ", ".join(map(str, value))
    return str(value)


def show_count(value: int | None) -> str:
    """A number with its thousands apart."""
    return "\u2013" if value is None else f"{value:,}".replace(",", "\u202f")


def show_setting(value: str, key: str) -> str:
    """The value of a setting in words: ``7 days`` for milliseconds, ``1 GiB`` for bytes."""
    number = int(value) if re.fullmatch(r"-?\d{1,19}", value, re.ASCII) else None
    kind = key.rpartition(".")[2]
    if number is None or kind not in ("ms", "bytes"):
        return value
    if number in (-1, (1 << 63) - 1):
        return "no limit"
    if kind == "bytes":
        return _count_units(number, _BYTE_UNITS)
    return _count_units(number, _TIME_UNITS)


def parse_setting(text: str, key: str) -> str:
    """A setting as it is typed: in the words of ``show_setting``, or short, as ``7d``.

    What is not understood stays as it is.
    """
    kind = key.rpartition(".")[2]
    if kind in ("ms", "bytes") and text.casefold() == "no limit":
        return "-1" if key.startswith("retention.") else str((1 << 63) - 1)
    found = re.fullmatch(r"([0-9][0-9 \u202f]{0,24}?)\s*([a-z]+)", text, re.ASCII | re.IGNORECASE)
    if found is None or kind not in ("ms", "bytes"):
        return text
    number = int(re.sub(r"\D", "", found[1]))
    word = found[2].casefold()
    for unit, each in _TIME_UNITS if kind == "ms" else _BYTE_UNITS:
        if word in (unit.casefold(), f"{unit.casefold()}s", _SHORT_UNITS.get(unit)):
            return str(number * each)
    return text


def _count_units(number: int, units: Sequence[tuple[str, int]]) -> str:
    """A number in the largest unit of which it is a whole multiple."""
    for unit, each in units:
        if number and number % each == 0:
            count = number // each
            plural = "s" if count != 1 and unit.islower() and unit != "ms" else ""
            return f"{show_count(count)} {unit}{plural}"
    return "0"
