"""A Parquet footer in which columns have other names, for engines that find them by these.

Of the footer no more is understood than it takes to find the names. Everything else stays byte for
byte, and so does the rest of the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from txnlog.segments.parquet.compact_values import CompactReader, varint

_LENGTH_BYTES: Final = 4
_TAIL_BYTES: Final = 8  # the footer's length and the magic

# Fields of Parquet's FileMetaData and SchemaElement.
_SCHEMA: Final = 2
_NAME: Final = 4
_FIELD_ID: Final = 9


def rename_columns(tail: bytes, names: Mapping[int, str]) -> bytes:
    """The end of a file, from its footer on, where columns have these names by their ids.

    Columns with other ids get names that no column of a topic has; those without one keep theirs.
    Raises ValueError: it is no such footer.
    """
    footer = tail[:-_TAIL_BYTES]
    pieces, position = [], 0
    for start, stop, number in _find_names(CompactReader(footer)):
        name = names.get(number, f"\0{number}").encode()
        pieces += [footer[position:start], varint(len(name)), name]
        position = stop
    renamed = b"".join([*pieces, footer[position:]])
    return renamed + len(renamed).to_bytes(_LENGTH_BYTES, "little") + tail[-_LENGTH_BYTES:]


def _find_names(footer: CompactReader) -> list[tuple[int, int, int]]:
    """For each column with an id, the position of its name, length included, and the id."""
    found = []
    for field, kind in footer.fields():
        if field != _SCHEMA:
            footer.skip(kind)
            continue
        for _ in range(footer.list_head()[0]):
            place = _find_name(footer)
            if place is not None:
                found.append(place)
    return found


def _find_name(footer: CompactReader) -> tuple[int, int, int] | None:
    start = stop = number = -1
    for field, kind in footer.fields():
        before = footer.at
        if field == _FIELD_ID:
            number = footer.integer()
            continue
        footer.skip(kind)
        if field == _NAME:
            start, stop = before, footer.at
    return (start, stop, number) if start >= 0 and number >= 0 else None
