"""What a verb shows of a thing: its fields, each with a JSON key and a column of a table.

A list of fields is the one description of a verb's output: the JSON keys are the contract of
docs/CLI.md, the titles are for people.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Generic, TypeAlias, TypeVar

Json: TypeAlias = bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"] | None
T = TypeVar("T")

_ABSENT = "-"
_MAX_SHOWN_MS = 253_402_300_799_999
"""The last millisecond of the year 9999: what comes later is shown as a number."""
_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_OBEYED = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""JSON lets it through, a terminal obeys it: C1 controls, new lines, changes of direction."""


@dataclass(frozen=True, slots=True)
class Field(Generic[T]):
    """One property of a thing.

    Without a title it is in JSON only. ``wide`` columns are left out on narrow terminals.
    """

    key: str
    title: str | None
    value: Callable[[T], Json]
    show: Callable[[T], str]
    numeric: bool = False
    wide: bool = False


def text(
    key: str, title: str | None, get: Callable[[T], str | None], *, wide: bool = False
) -> Field[T]:
    """A name or a word."""
    return Field(key, title, get, lambda item: _or_absent(get(item)), wide=wide)


def number(
    key: str, title: str | None, get: Callable[[T], int | None], *, wide: bool = False
) -> Field[T]:
    """A count, an offset or a size in bytes."""

    def show(item: T) -> str:
        value = get(item)
        return _ABSENT if value is None else str(value)

    return Field(key, title, get, show, numeric=True, wide=wide)


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
    """Something that holds, does not hold, or (None) does not apply."""

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
        lambda item: ", ".join(printable(name) for name in get(item)) or _ABSENT,
        wide=wide,
    )


def as_json(fields: Sequence[Field[T]], item: T) -> dict[str, Json]:
    """The JSON object of a thing."""
    return {field.key: field.value(item) for field in fields}


def show_time(timestamp_ms: int | None) -> str:
    """``2024-05-01T12:00:00.000Z``; a number where no calendar reaches."""
    if timestamp_ms is None:
        return _ABSENT
    if not 0 <= timestamp_ms <= _MAX_SHOWN_MS:
        return str(timestamp_ms)
    seconds, milliseconds = divmod(timestamp_ms, 1000)
    moment = datetime.fromtimestamp(seconds, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{milliseconds:03d}Z"


def printable(value: str) -> str:
    """``value`` on one line, without anything that a terminal would obey; backslash is doubled."""
    if value.isprintable() and "\\" not in value:
        return value
    return "".join(_printable_char(char) for char in value)


def printable_bytes(data: bytes | None) -> str:
    r"""Bytes as text: UTF-8 where they are, ``\xNN`` where not; ``\N`` stands for null."""
    if data is None:
        return "\\N"
    try:
        return printable(data.decode())
    except UnicodeDecodeError:
        # Bytes that are no UTF-8 come as lone surrogates DC80 to DCFF.
        return "".join(
            f"\\x{ord(char) - 0xDC00:02x}"
            if 0xDC80 <= ord(char) <= 0xDCFF
            else _printable_char(char)
            for char in data.decode(errors="surrogateescape")
        )


def harmless(message: str) -> str:
    """A message without anything that a terminal would obey; its backslashes are its own."""
    if message.isprintable():
        return message
    return "".join(char if char == "\\" else _printable_char(char) for char in message)


def json_text(content: Json, indent: int | None = None) -> str:
    """JSON in which nothing stands that a terminal would obey: it is escaped, as JSON can."""
    dumped = json.dumps(content, ensure_ascii=False, indent=indent)
    if dumped.isascii() and "\x7f" not in dumped:
        return dumped
    return _OBEYED.sub(lambda match: f"\\u{ord(match[0]):04x}", dumped)


def json_bytes(data: bytes | None) -> Json:
    """Bytes as JSON: a string where they are UTF-8, else ``{"base64": ...}``; null stays null."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        from base64 import b64encode

        return {"base64": b64encode(data).decode("ascii")}


def _printable_char(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    if char.isprintable():
        return char
    code = ord(char)
    return (
        f"\\x{code:02x}"
        if code < 0x80
        else f"\\u{code:04x}"
        if code < 1 << 16
        else f"\\U{code:08x}"
    )


def _or_absent(value: str | None) -> str:
    return _ABSENT if value is None else printable(value)
