"""The options of a read inside of a ``transaction(...)`` block, and of one by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from txnlog.errors import InvalidOption
from txnlog.spark.options.columns import format_columns
from txnlog.spark.options.kafka_client_options import (
    IGNORE_KAFKA_CLIENT_OPTIONS,
    display_name,
    is_client_option,
    warn_passed_over,
)
from txnlog.spark.options.option_names import (
    AT_TIMESTAMP,
    AT_TOKEN,
    PRE_IMAGES,
    RATE_OPTIONS,
    SINCE_TIMESTAMP,
    SINCE_TOKEN,
)
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


_RATES = {name.lower() for name in RATE_OPTIONS}
_OF_ARGUMENTS = {
    "columns": ("columns",),
    "include_headers": ("includeheaders",),
    "starting_offsets": ("startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp"),
    "ending_offsets": ("endingoffsets", "endingtimestamp", "endingoffsetsbytimestamp"),
    "at": (AT_TIMESTAMP.lower(), AT_TOKEN.lower()),
}
"""The options that say the same as an argument."""


def merge_read_options(
    options: Mapping[str, bool | int | str],
    *,
    columns: str | Sequence[str] | None,
    include_headers: bool,
    starting_offsets: OffsetsOption | None,
    ending_offsets: OffsetsOption | None = None,
    at: datetime | int | str | None = None,
    since: datetime | int | str | None = None,
    in_block: bool = True,
    decoded: bool = False,
) -> dict[str, str]:
    """The arguments of ``txn.read(...)``, or ``read(...)``, as options of the format.

    ``decoded``: the columns are those that values are decoded from.

    Raises InvalidOption for those that the block, or the call, decides itself.
    """
    is_given = {
        "columns": columns is not None,
        "include_headers": include_headers or decoded,
        "starting_offsets": starting_offsets is not None,
        "ending_offsets": ending_offsets is not None,
        "at": at is not None,
    }
    arguments = {o: name for name, some in _OF_ARGUMENTS.items() if is_given[name] for o in some}
    merged = _without_client_options(
        {name: _format_value(value) for name, value in options.items()}
    )
    for option in merged:
        name = option.lower().removeprefix("kafka.")
        if (name in _DECIDED_BY_BLOCK and in_block) or name.startswith("storage."):
            raise InvalidOption(
                f"option {option}: it is decided by transaction(...) and the names given to read()"
            )
        if name in (PRE_IMAGES.lower(), SINCE_TIMESTAMP.lower(), SINCE_TOKEN.lower()):
            raise InvalidOption(
                f"option {option}: txnlog.spark.read(...) has since and pre_images for it, and a "
                "transaction(...) reads records, no feed of changes"
            )
        if name in _DECIDED_BY_CALL:
            raise InvalidOption(
                f"option {option}: read(...) has arguments for its store and its topics, and is "
                "not part of a transaction; that is txn.read(...) of transaction(...)"
            )
        if name in arguments:
            raise InvalidOption(f"option {option}: give read(...) {arguments[name]}=... instead")
        if name in _RATES:
            raise InvalidOption(
                f"option {option} is for a stream; "
                + ("transaction(...) has max_records" if in_block else "give maxRecords")
            )
    if columns is not None:
        merged["columns"] = columns if isinstance(columns, str) else format_columns(columns)
    if include_headers:
        merged["includeHeaders"] = "true"
    for name, given in (("startingOffsets", starting_offsets), ("endingOffsets", ending_offsets)):
        if given is not None:
            merged[name] = given if isinstance(given, str) else offsets_json(given)
    for moment, by_token, by_time in (
        (at, AT_TOKEN, AT_TIMESTAMP),
        (since, SINCE_TOKEN, SINCE_TIMESTAMP),
    ):
        if moment is not None:
            merged[by_token if isinstance(moment, str) else by_time] = (
                moment.isoformat() if isinstance(moment, datetime) else str(moment)
            )
    return merged


def _without_client_options(options: dict[str, str]) -> dict[str, str]:
    """Warn once about ignored options here, so that the data source does not warn again."""
    lower = {name.lower(): value.strip().lower() for name, value in options.items()}
    if lower.get(IGNORE_KAFKA_CLIENT_OPTIONS.lower()) != "true":
        return options
    dropped = sorted(name for name in lower if is_client_option(name))
    warn_passed_over([display_name(name) for name in dropped])
    return {name: value for name, value in options.items() if name.lower() not in dropped}


def _format_value(value: bool | int | str) -> str:
    """The text that Spark's ``.option(...)`` makes of a value."""
    return str(value).lower() if isinstance(value, bool) else str(value)
