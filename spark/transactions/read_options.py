"""The options of a read inside of a ``transaction(...)`` block."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from txnlog.errors import InvalidOption
from txnlog.spark.batch.pinned_read import PinnedRead
from txnlog.spark.options.option_names import PINNED_TOPICS
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


def merge_read_options(
    options: Mapping[str, bool | int | str],
    *,
    columns: Sequence[str] | None,
    include_headers: bool,
    starting_offsets: OffsetsOption | None,
) -> dict[str, str]:
    """The arguments of ``txn.read(...)`` as options of the format.

    Raises InvalidOption for those that the block decides itself.
    """
    merged = {name: _format_value(value) for name, value in options.items()}
    for option in merged:
        name = option.lower().removeprefix("kafka.")
        if name in _DECIDED_BY_BLOCK or name.startswith("storage."):
            raise InvalidOption(
                f"option {option}: it is decided by transaction(...) and the names given to read()"
            )
    if columns is not None:
        merged["columns"] = ",".join(columns)
    if include_headers:
        merged["includeHeaders"] = "true"
    if isinstance(starting_offsets, str):
        merged["startingOffsets"] = starting_offsets
    elif starting_offsets is not None:
        merged["startingOffsets"] = offsets_json(starting_offsets)
    return merged


def pin_options(options: Mapping[str, str], pinned: PinnedRead) -> dict[str, str]:
    """The options with which Spark's own process resolves to exactly the pinned offsets."""
    starts: dict[str, dict[int, int]] = {}
    stops: dict[str, dict[int, int]] = {}
    for where, span in pinned.offsets.items():
        starts.setdefault(where.topic, {})[where.partition] = span.start
        stops.setdefault(where.topic, {})[where.partition] = span.stop
    return {
        **{name: value for name, value in options.items() if not _chooses_offsets(name)},
        "subscribe": ",".join(starts),
        "startingOffsets": offsets_json(starts),
        "endingOffsets": offsets_json(stops),
        PINNED_TOPICS: json.dumps(dict(pinned.topic_ids)),
    }


def _chooses_offsets(option: str) -> bool:
    return option.lower().startswith(("starting", "ending"))


def _format_value(value: bool | int | str) -> str:
    """The text that Spark's ``.option(...)`` makes of a value."""
    return str(value).lower() if isinstance(value, bool) else str(value)
