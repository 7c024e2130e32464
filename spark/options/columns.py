"""The columns of a read: those of Spark's Kafka source, or of a topic's schema, and the choice."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from txnlog.errors import InvalidOption

if TYPE_CHECKING:
    from txnlog.read.plan import ScanColumns
    from txnlog.schema import TopicSchema

COLUMNS = (
    "key",
    "value",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
    "headers",
)


@dataclass(frozen=True, slots=True)
class ColumnChoice:
    """The options about columns; the available ones are known once the topic is."""

    names: tuple[str, ...] | None = None
    include_headers: bool = False

    def of(self, schema: TopicSchema | None) -> ScanColumns:
        """The columns to read of topics with this schema; None: they have none.

        Without the option all of them, headers only if they are asked for. Raises InvalidOption.
        """
        from txnlog.read.plan import TYPED_METADATA, scan_columns
        from txnlog.schema import DELETED, HEADERS

        headers, known = "headers", COLUMNS
        if schema is not None:
            more = [n for n in TYPED_METADATA.names if n != DELETED or schema.key]
            headers, known = HEADERS, (*schema.columns.names, *more)
        if self.names is None:
            every = known if schema is None else (*schema.columns.names, HEADERS)
            return scan_columns([c for c in every if c != headers or self.include_headers], schema)
        names = meant_names(self.names, known)
        for name in names:
            if name not in known:
                raise InvalidOption(
                    f"option columns: there is no {name!r}; known: {', '.join(known)}"
                )
        if self.include_headers and headers not in names:
            raise InvalidOption(f"option includeHeaders is true, but columns leaves {headers} out")
        return scan_columns(names, schema)


def meant_names(names: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """The known names that ``names`` stand for; an unknown name is left as it is.

    Case may differ, as it may in Spark: ``id`` is the topic's ``Id``. But not if ``Id`` is given as
    well, or if two given or two known names differ only in case.
    """
    others = [name for name in names if name not in known]
    wanted = [name for name in known if name not in names]
    mine, theirs = (Counter(map(str.lower, some)) for some in (others, wanted))
    meant = {name.lower(): name for name in wanted if theirs[name.lower()] == 1}
    return tuple(
        name if name in known or mine[name.lower()] > 1 else meant.get(name.lower(), name)
        for name in names
    )


def parse_columns(text: str | None, include_headers: bool) -> ColumnChoice:
    """The option ``columns``: names with commas between them, or a JSON list. InvalidOption."""
    if text is None:
        return ColumnChoice(None, include_headers)
    names = _parse_list(text)
    if len(set(names)) != len(names):
        raise InvalidOption("option columns names a column twice")
    return ColumnChoice(names, include_headers)


def _parse_list(text: str) -> tuple[str, ...]:
    if not text.lstrip().startswith("["):
        return tuple(name.strip() for name in text.split(","))
    try:
        names = json.loads(text)
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or not names:
        raise InvalidOption(
            "option columns that begins with [ must be a JSON list of names, which may then have "
            f'commas in them: ["a", "b, c"], not {text!r:.100}'
        )
    return tuple(names)


def format_columns(names: Sequence[str]) -> str:
    """The option's text for these names."""
    return json.dumps(list(names))
