"""The columns of a read: those of Spark's Kafka source, and which of them an option takes."""

from __future__ import annotations

from txnlog.errors import InvalidOption

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


def parse_columns(text: str | None, include_headers: bool) -> tuple[str, ...]:
    """The columns to read. Without the option all of them, headers only if they are asked for."""
    if text is None:
        return COLUMNS if include_headers else tuple(c for c in COLUMNS if c != "headers")
    chosen = tuple(name.strip() for name in text.split(","))
    for name in chosen:
        if name not in COLUMNS:
            raise InvalidOption(
                f"option columns: there is no {name!r}; known: {', '.join(COLUMNS)}"
            )
    if len(set(chosen)) != len(chosen):
        raise InvalidOption("option columns names a column twice")
    if include_headers and "headers" not in chosen:
        raise InvalidOption("option includeHeaders is true, but columns leaves headers out")
    return chosen
