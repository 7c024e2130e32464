"""The options of a read inside of a ``transaction(...)`` block, and of one by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from txnlog.errors import InvalidOption
from txnlog.spark.options.columns import format_columns
from txnlog.spark.options.option_names import AT_TIMESTAMP, AT_TOKEN
from txnlog.spark.options.positions import OffsetsOption, offsets_json

_DECIDED_BY_BLOCK = (
    "path",
    "subscribe",
    "subscribepattern",
    "assign",
    "group.id",
    "maxrecords",
    "unsafesinglewriter",
    "transactional.id",
    "transaction.timeout.ms",
    "isolation.level",
)
_DECIDED_BY_CALL = (
    "path",
    "subscribe",
    "subscribepattern",
    "assign",
    "unsafesinglewriter",
    "transactional.id",
    "transaction.timeout.ms",
)


def merge_read_options(
    options: Mapping[str, bool | int | str],
    *,
    columns: Sequence[str] | None,
    include_headers: bool,
    starting_offsets: OffsetsOption | None,
    ending_offsets: OffsetsOption | None = None,
    at: datetime | int | str | None = None,
    in_block: bool = True,
) -> dict[str, str]:
    """The arguments of ``txn.read(...)``, or ``read(...)``, as options of the format.

    Raises InvalidOption for those that the block, or the call, decides itself.
    """
    merged = {name: _format_value(value) for name, value in options.items()}
    for option in merged:
        name = option.lower().removeprefix("kafka.")
        if (name in _DECIDED_BY_BLOCK and in_block) or name.startswith("storage."):
            raise InvalidOption(
                f"option {option}: it is decided by transaction(...) and the names given to read()"
            )
        if name in _DECIDED_BY_CALL:
            raise InvalidOption(
                f"option {option}: read(...) has arguments for its store and its topics, and is no "
                "part of a transaction; that is txn.read(...) of transaction(...)"
            )
    if columns is not None:
        merged["columns"] = format_columns(columns)
    if include_headers:
        merged["includeHeaders"] = "true"
    for name, given in (("startingOffsets", starting_offsets), ("endingOffsets", ending_offsets)):
        if given is not None:
            merged[name] = given if isinstance(given, str) else offsets_json(given)
    if at is not None:
        merged[AT_TOKEN if isinstance(at, str) else AT_TIMESTAMP] = (
            at.isoformat() if isinstance(at, datetime) else str(at)
        )
    return merged


def _format_value(value: bool | int | str) -> str:
    """The text that Spark's ``.option(...)`` makes of a value."""
    return str(value).lower() if isinstance(value, bool) else str(value)
