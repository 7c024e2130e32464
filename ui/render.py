"""Makes pages of templates. Everything is escaped: names and records may hold anything.

Also what no browser shows, or shows in another order than it stands there: it is written out.
"""

from __future__ import annotations

import json
import re
from html import escape
from typing import Final
from urllib.parse import quote

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from txnlog.display import BYTE_UNITS, show_count, show_setting, utc_time
from txnlog.hooks import registered

_UNSEEN: Final = re.compile(
    "[\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\x7f-\\x9f"
    "\\u061c\\u200b\\u200e\\u200f\\u2028-\\u202e\\u2060-\\u2069\\ufeff]|\\r(?!\\n)"
)
"""Controls, and what changes the direction of all that follows."""
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[][{},:]|[^][{},:"\s]+')
"""Of JSON that is sound."""
_ABSENT: Final = "\u2013"
SHOWN_BYTES: Final = 20_000
"""Of a key or value no more is shown."""
_LINE_BYTES: Final = 240
_SHORT_CHARS: Final = 60
"""Lists and structs of a column are laid out over several lines if they are longer."""


def make_environment() -> Environment:
    """The templates, with the filters that they use."""
    packages = ["txnlog.ui", *(hook.__package__ for hook in registered("pages"))]
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(name) for name in packages]),
        autoescape=True,
        finalize=write_out,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(address=address_of)
    environment.filters.update(
        ago=show_ago,
        count=show_count,
        counted=show_counted,
        size=show_size,
        time=mark_time,
        utc=show_time,
        content=show_content,
        cell=show_cell,
        line=show_line,
        words=show_setting,
        prose=show_prose,
    )
    return environment


def write_out(value: object) -> object:
    r"""Text with ``\x1b`` and ``\u202e`` in place of what is not seen; tabs and ends of lines stay.

    What joins emoji stays. Markup is left alone, so ``|e`` keeps what a form is to send back.
    """
    if not isinstance(value, str) or hasattr(value, "__html__") or value.isprintable():
        return value
    return _UNSEEN.sub(_name_of, value)


def _name_of(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}"


def address_of(kind: str, name: str, verb: str = "") -> str:
    """The address of the page of a group or a transactional id, or of a change to it.

    The names ``.`` and ``..`` go into the query: in a path browsers take them for folders, however
    they are quoted.
    """
    if name in (".", ".."):
        return f"/{kind}/-{verb}?id={name}"
    return f"/{kind}/{quote(name, safe='')}{verb}"


def show_counted(number: int, what: str) -> str:
    """So many of something: ``what`` is a single one, and takes an s."""
    return f"{show_count(number)} {what}{'' if number == 1 else 's'}"


def show_size(size_bytes: int) -> str:
    """Bytes in the largest unit that leaves a whole number before the point."""
    for unit, bytes_each in BYTE_UNITS:
        if size_bytes >= bytes_each:
            return f"{size_bytes / bytes_each:.1f} {unit}"
    return f"{size_bytes} B"


def show_time(timestamp_ms: int | None) -> str:
    """A time in UTC, which it says; a number where no calendar reaches."""
    if timestamp_ms is None:
        return _ABSENT
    shown = utc_time(timestamp_ms, " ")
    return str(timestamp_ms) if shown is None else f"{shown} UTC"


class _Markup(str):
    """Text that is HTML already, and is not escaped."""

    __slots__ = ()

    def __html__(self) -> str:
        return self


def show_prose(text: str) -> str:
    """A sentence of ours, in which a command or a name stands between backticks."""
    pieces = [escape(str(write_out(piece))) for piece in text.split("`")]
    for at in range(1, len(pieces) - 1, 2):
        pieces[at] = f"<code>{pieces[at]}</code>"
    if len(pieces) % 2 == 0:  # one that is not closed
        pieces[-2:] = [f"{pieces[-2]}`{pieces[-1]}"]
    return _Markup("".join(pieces))


def mark_time(timestamp_ms: int | None) -> str:
    """Show a time as an element, which a script shows in the zone of the browser."""
    written = None if timestamp_ms is None else utc_time(timestamp_ms, " ")
    if written is None:
        return show_time(timestamp_ms)
    iso = written.replace(" ", "T")
    return _Markup(f'<time datetime="{iso}Z">{written} <small>UTC</small></time>')


def show_ago(elapsed_ms: int) -> str:
    """How long ago something was, in the largest unit that it fills; clocks may disagree."""
    for unit, each_ms in (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000)):
        if elapsed_ms >= each_ms:
            count = elapsed_ms // each_ms
            return f"{count} {unit}{'' if count == 1 else 's'} ago"
    seconds = elapsed_ms // 1000
    if seconds < 0:
        return f"{-seconds} s ahead of this machine's clock"
    return f"{seconds} s ago"


def show_content(data: bytes | None, most: int = SHOWN_BYTES) -> str:
    """A key or a value as text: JSON laid out, other text as it is, the rest in hex.

    No more than ``most`` bytes of it.
    """
    if data is None:
        return "null"
    shown = data[:most]
    rest = f"\n… {show_size(len(data))} in all" if len(shown) < len(data) else ""
    try:
        text = shown.decode()
    except UnicodeDecodeError as error:
        if rest and error.start > len(shown) - 4:
            text = shown[: error.start].decode()
        else:
            return shown.hex(" ") + rest
    if not rest and text[:1] in ("{", "["):
        try:
            return _lay_out(text, 4 * most)
        except (ValueError, RecursionError):
            return text
    return text + rest


def show_line(data: bytes | None) -> str:
    """The begin of a key or a value on one line: text with single spaces, or hex."""
    if data is None:
        return "null"
    begin = data[:_LINE_BYTES]
    try:
        text = begin.decode()
    except UnicodeDecodeError as error:
        if len(begin) < len(data) and error.start > len(begin) - 4:
            text = begin[: error.start].decode()
        else:
            text = begin[: _LINE_BYTES // 4].hex(" ")
    line = " ".join(text.split(None))
    return f"{line} \u2026" if len(begin) < len(data) else line


def show_cell(data: bytes | None, most: int = SHOWN_BYTES) -> str:
    """What a column holds: as content is shown, in one line if it is short."""
    if data is not None and len(data) <= _SHORT_CHARS:
        return data.decode(errors="replace")
    return show_content(data, most)


def _lay_out(text: str, room: int) -> str:
    """JSON indented; as it is where it is so deep that most of it would be indentation.

    Numbers stay as they are written, and names that occur twice: these are no values of Python.
    Raises ValueError, RecursionError: it is not JSON.
    """
    json.loads(text)
    pieces: list[str] = []
    before, depth = "", 0
    for token in _TOKEN.findall(text):
        depth -= token in ("]", "}")
        if before + token in ("[]", "{}"):
            gap = ""
        elif before in ("[", "{", ",") or token in ("]", "}"):
            gap = "\n" + depth * "  "
        else:
            gap = " " if before == ":" else ""
        depth += token in ("[", "{")
        # Without a backslash a string is shown as it is written.
        shown = json.dumps(json.loads(token), ensure_ascii=False) if "\\" in token else token
        pieces += gap, shown
        room -= len(gap) + len(shown)
        if room < 0:
            return text
        before = token
    return "".join(pieces)
