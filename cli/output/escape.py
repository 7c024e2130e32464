"""Text and bytes for terminals and JSON, without control sequences."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeAlias

Json: TypeAlias = bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"] | None

_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_OBEYED = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Characters that JSON permits but a terminal obeys: C1 controls, line separators, direction
changes.
"""

_MOST_CHARACTERS = 2000
"""Of a message for people."""


def escape_text(value: str) -> str:
    """``value`` on one line, without control characters; backslash is doubled."""
    if value.isprintable() and "\\" not in value:
        return value
    return value.translate(_ESCAPED)


def escape_bytes(data: bytes | None) -> str:
    r"""Bytes as text: UTF-8 where valid, else ``\xNN``; ``\N`` means null."""
    if data is None:
        return "\\N"
    try:
        return escape_text(data.decode())
    except UnicodeDecodeError:
        return data.decode(errors="surrogateescape").translate(_ESCAPED_BYTES)


def shorten(message: str) -> str:
    """A message for people that repeats no value of any size: its beginning, and its end.

    Advice comes last. Every message of the command passes here, those of wrong usage too.
    """
    left_out = len(message) - _MOST_CHARACTERS
    if left_out <= 0:
        return message
    ends_at = len(message) - _MOST_CHARACTERS // 4
    begins = message[: ends_at - left_out]
    return f"{begins} ... ({left_out:,} characters left out) ... {message[ends_at:]}"


@contextmanager
def shortening() -> Iterator[None]:
    """Wrong usage that is found in the block is said in a message of moderate length.

    Without the words that pydantic, by which typer converts values, puts before each.
    """
    try:
        yield
    except Exception as error:
        message = getattr(error, "message", None)
        if isinstance(message, str):  # an exception of typer's, which prints it
            error.message = shorten(message.removeprefix("Value error, "))  # type: ignore[attr-defined]
        raise


def escape_controls(message: str) -> str:
    """A message without control characters; its backslashes are kept."""
    if message.isprintable():
        return message
    return "\\".join(part.translate(_ESCAPED) for part in message.split("\\"))


def dump_json(content: Json, indent: int | None = None) -> str:
    """JSON with all control characters escaped."""
    dumped = json.dumps(content, ensure_ascii=False, indent=indent)
    if dumped.isascii() and "\x7f" not in dumped:
        return dumped
    return _OBEYED.sub(lambda match: f"\\u{ord(match[0]):04x}", dumped)


def bytes_to_json(data: bytes | None) -> Json:
    """Bytes as JSON: a string where they are UTF-8, else ``{"base64": ...}``; null stays null."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        from base64 import b64encode

        return {"base64": b64encode(data).decode("ascii")}


def _escape_char(char: str) -> str:
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


class _Escaped(dict[int, str]):
    """How each character is shown: computed once for many."""

    def __init__(self, show: Callable[[str], str]) -> None:
        self._show = show

    def __missing__(self, code: int) -> str:
        shown = self[code] = self._show(chr(code))
        return shown


def _escape_byte(char: str) -> str:
    """Bytes that are not UTF-8 arrive as lone surrogates DC80 to DCFF."""
    code = ord(char)
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else _escape_char(char)


_ESCAPED = _Escaped(_escape_char)
_ESCAPED_BYTES = _Escaped(_escape_byte)
