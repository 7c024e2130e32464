r"""``--format TEMPLATE``: records as bytes in the user's own layout, as in kcat and rpk.

%t topic  %p partition  %o offset  %d timestamp in ms  %D the same as ISO 8601
%k key  %v value  %h headers  %K %V their sizes in bytes (-1: null)  %% percent
%k{hex} %k{base64} %k{text} %k{json}: the same for %v       \n \t \r \0 \\ \xNN
"""

from __future__ import annotations

import re
import sys
from base64 import b64encode
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import typer

from txnlog.cli.input.record_options import Encoding
from txnlog.cli.output.escape import bytes_to_json, dump_json, escape_bytes, escape_text
from txnlog.cli.output.fields import show_time
from txnlog.cli.output.record_fields import Record, record_fields
from txnlog.cli.output.streams import write_bytes

if TYPE_CHECKING:
    from txnlog.cli.output.output import Output


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
    "text": lambda data: escape_bytes(data).encode(errors="backslashreplace"),
    "json": lambda data: dump_json(bytes_to_json(data)).encode(),
}
_PLAIN: Final[dict[str, Writer]] = {
    "t": lambda record: (record.topic or "").encode(),
    "p": lambda record: b"%d" % (record.partition or 0),
    "o": lambda record: b"%d" % record.offset,
    "d": lambda record: str(record.content.timestamp_ms).encode(),
    "D": lambda record: show_time(record.content.timestamp_ms).encode(),
    "K": lambda record: _count_bytes(record.content.key),
    "V": lambda record: _count_bytes(record.content.value),
}


class Template:
    """A parsed template. ``raw``: %k and %v without braces are the bytes themselves."""

    def __init__(self, template: str, *, raw: bool) -> None:
        self._default = "raw" if raw else "text"
        self._writers: list[Writer] = [
            self._make_writer(m, template) for m in _PIECE.finditer(template)
        ]

    def render(self, record: Record) -> bytes:
        """The record's bytes; nothing is added at the end."""
        return b"".join(writer(record) for writer in self._writers)

    def _make_writer(self, match: re.Match[str], template: str) -> Writer:
        if match[0] == "%%":
            return _make_constant(b"%")
        if match["code"]:
            return _make_constant(bytes.fromhex(match["code"]))
        if match["escape"]:
            return _make_constant(_ESCAPES[match["escape"]])
        if match["literal"]:
            return _make_constant(match["literal"].encode(errors="surrogateescape"))
        directive, how = match["directive"], match["how"]
        if directive in _PLAIN and how is None:
            return _PLAIN[directive]
        if directive in ("k", "v", "h") and (how or self._default) in _BYTES:
            encode = _BYTES[how or self._default]
            if directive == "h":
                show = _encode_name if encode is _BYTES["raw"] else _escape_name
                return lambda record: b",".join(
                    show(name) + b"=" + encode(value) for name, value in record.content.headers
                )
            if directive == "k":
                return lambda record: encode(record.content.key)
            return lambda record: encode(record.content.value)
        raise typer.BadParameter(
            f"--format {template!r} has {match[0]!r}, which is unknown; known are %t %p %o %d %D "
            "%k %v %h %K %V %%, %k{hex}, {base64}, {text} or {json}, and \\n \\t \\r \\0 \\\\ \\xNN"
        )


def _make_constant(data: bytes) -> Writer:
    return lambda _: data


def _count_bytes(data: bytes | None) -> bytes:
    return b"%d" % (-1 if data is None else len(data))


def _encode_name(name: str) -> bytes:
    return name.encode(errors="backslashreplace")


def _escape_name(name: str) -> bytes:
    return _encode_name(escape_text(name))


@dataclass(frozen=True, slots=True)
class RecordPrinter:
    """``--encoding`` and ``--format``, which overrides the former."""

    encoding: Encoding
    template: Template | None

    @classmethod
    def of(cls, encoding: Encoding, template: str | None) -> RecordPrinter:
        """The printer for the options. Raises BadParameter."""
        if template is None:
            return cls(encoding, None)
        # A terminal would obey control characters in a record; a pipe gets the bytes.
        return cls(encoding, Template(template, raw=not sys.stdout.isatty()))

    def print(self, output: Output, records: Iterable[Record], *, live: bool = False) -> None:
        """Print records as they arrive."""
        if self.template is None:
            output.rows(record_fields(self.encoding), records, streamed=True, live=live)
            return
        for record in records:
            write_bytes(self.template.render(record))
