r"""``--format TEMPLATE``: records as bytes of the user's own layout, as kcat and rpk have it.

%t topic  %p partition  %o offset  %d timestamp in ms  %D the same as ISO 8601
%k key  %v value  %h headers  %K %V their sizes in bytes (-1: null)  %% percent
%k{hex} %k{base64} %k{text} %k{json}: the same for %v       \n \t \r \0 \\ \xNN
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Sequence
from typing import Final

import typer

from txnlog.cli.output.fields import (
    json_bytes,
    json_text,
    printable,
    printable_bytes,
    show_time,
)
from txnlog.cli.output.record_fields import Header, Record

_PIECE = re.compile(
    r"%(?P<directive>[a-zA-Z])(?:\{(?P<how>\w+)\})?|%%|\\x(?P<code>[0-9a-fA-F]{2})"
    r"|\\(?P<escape>[ntr0\\])|(?P<literal>[^%\\]+)|(?P<unknown>.)",
    re.DOTALL,
)
_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}

Writer = Callable[[Record], bytes]
Bytes = Callable[[bytes | None], bytes]

_BYTES: Final[dict[str, Bytes]] = {
    "raw": lambda data: data or b"",
    "hex": lambda data: (data or b"").hex().encode(),
    "base64": lambda data: b64encode(data or b""),
    "text": lambda data: printable_bytes(data).encode(errors="backslashreplace"),
    "json": lambda data: json_text(json_bytes(data)).encode(),
}
_PLAIN: Final[dict[str, Writer]] = {
    "t": lambda record: (record.topic or "").encode(),
    "p": lambda record: b"%d" % (record.partition or 0),
    "o": lambda record: b"%d" % record.offset,
    "d": lambda record: b"%d" % record.content.timestamp_ms,
    "D": lambda record: show_time(record.content.timestamp_ms).encode(),
    "K": lambda record: _size(record.content.key),
    "V": lambda record: _size(record.content.value),
}


class Template:
    """A parsed template. ``raw`` says what %k and %v are without braces: the bytes themselves."""

    def __init__(self, template: str, *, raw: bool) -> None:
        self._default = "raw" if raw else "text"
        self._writers: list[Writer] = [self._writer(m, template) for m in _PIECE.finditer(template)]

    def render(self, record: Record) -> bytes:
        """The record's bytes; nothing is added at the end."""
        return b"".join(writer(record) for writer in self._writers)

    def _writer(self, match: re.Match[str], template: str) -> Writer:
        if match[0] == "%%":
            return _constant(b"%")
        if match["code"]:
            return _constant(bytes.fromhex(match["code"]))
        if match["escape"]:
            return _constant(_ESCAPES[match["escape"]])
        if match["literal"]:
            return _constant(match["literal"].encode(errors="surrogateescape"))
        directive, how = match["directive"], match["how"]
        if directive in _PLAIN and how is None:
            return _PLAIN[directive]
        if directive in ("k", "v", "h") and (how or self._default) in _BYTES:
            encode = _BYTES[how or self._default]
            if directive == "h":
                show = _raw_name if encode is _BYTES["raw"] else _printable_name
                return lambda record: _headers(record.content.headers, show, encode)
            if directive == "k":
                return lambda record: encode(record.content.key)
            return lambda record: encode(record.content.value)
        raise typer.BadParameter(
            f"--format {template!r} has {match[0]!r}, which is nothing: there are %t %p %o %d %D "
            "%k %v %h %K %V %%, %k{hex}, {base64}, {text} or {json}, and \\n \\t \\r \\0 \\\\ \\xNN"
        )


def _constant(data: bytes) -> Writer:
    return lambda _: data


def _size(data: bytes | None) -> bytes:
    return b"%d" % (-1 if data is None else len(data))


def _headers(headers: Sequence[Header], show: Callable[[str], bytes], encode: Bytes) -> bytes:
    return b",".join(show(name) + b"=" + encode(value) for name, value in headers)


def _raw_name(name: str) -> bytes:
    return name.encode(errors="backslashreplace")


def _printable_name(name: str) -> bytes:
    return _raw_name(printable(name))
