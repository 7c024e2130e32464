"""The display of stores, topics, scans and results in a notebook: as tables.

Nothing is read for the display, and everything shown is escaped: names and reasons are untrusted
text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

_MOST_ROWS = 50


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
