"""Text and bytes for terminals and JSON: nothing stands in them that a terminal would obey."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

Json: TypeAlias = bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"] | None

_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_OBEYED = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""JSON lets it through, a terminal obeys it: C1 controls, new lines, changes of direction."""


def escape_text(value: str) -> str:
    """``value`` on one line, without anything that a terminal would obey; backslash is doubled."""
    if value.isprintable() and "\\" not in value:
        return value
    return value.translate(_ESCAPED)


def escape_bytes(data: bytes | None) -> str:
    r"""Bytes as text: UTF-8 where they are, ``\xNN`` where not; ``\N`` stands for null."""
    if data is None:
        return "\\N"
    try:
        return escape_text(data.decode())
    except UnicodeDecodeError:
        return data.decode(errors="surrogateescape").translate(_ESCAPED_BYTES)


def escape_controls(message: str) -> str:
    """A message without anything that a terminal would obey; its backslashes are its own."""
    if message.isprintable():
        return message
    return "\\".join(part.translate(_ESCAPED) for part in message.split("\\"))


def dump_json(content: Json, indent: int | None = None) -> str:
    """JSON in which nothing stands that a terminal would obey: it is escaped, as JSON can."""
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
    """What each character is shown as: found out once, of many."""

    def __init__(self, show: Callable[[str], str]) -> None:
        self._show = show

    def __missing__(self, code: int) -> str:
        shown = self[code] = self._show(chr(code))
        return shown


def _escape_byte(char: str) -> str:
    """Bytes that are no UTF-8 come as lone surrogates DC80 to DCFF."""
    code = ord(char)
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else _escape_char(char)


_ESCAPED = _Escaped(_escape_char)
_ESCAPED_BYTES = _Escaped(_escape_byte)
