"""A read's start and end by its options: at an edge, at offsets, at times."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from txnlog.errors import InvalidOption
from txnlog.read.topic_view import EARLIEST
from txnlog.spark.options.option_values import OptionValues, whole_number

Edge = Literal["earliest", "latest"]
Numbers = Mapping[str, Mapping[int, int]]
"""A number for each partition, by topic."""

OffsetsOption = Edge | Numbers
"""An edge, or offsets by topic and partition; -2, -1 are the edges."""

OFFSETS_EXAMPLE = '{"topic":{"0":23,"1":-2}}'
TIMES_EXAMPLE = '{"topic":{"0":1735689600000,"1":0}}'


@dataclass(frozen=True, slots=True)
class ByTime:
    """The first offset at or after a time (ms since the epoch): one for all, or by partition.

    ``option`` names the option. With ``or_latest`` it is the end if no record is that late, which
    is an error otherwise.
    """

    option: str
    times: int | Numbers
    or_latest: bool


Position = OffsetsOption | ByTime

GROUP: Literal["group"] = "group"
"""``startingOffsets=group``: at the committed offsets of the group that the options name."""


def parse_starting(values: OptionValues) -> Position | Literal["group"] | None:
    """The start: of several options for it, the one that Spark's Kafka source prefers.

    ``group`` exists only here: for Spark's Kafka source a group is only a name.
    """
    strategy = (values.get("startingOffsetsByTimestampStrategy") or "error").strip().lower()
    if strategy not in ("error", "latest"):
        raise InvalidOption(
            f"option startingOffsetsByTimestampStrategy must be error or latest, not {strategy!r}"
        )
    names = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
    at_group = (values.get("startingOffsets") or "").strip().lower() == GROUP
    if at_group and values.get(names[0]) is None and values.get(names[1]) is None:
        position: Position | Literal["group"] | None = GROUP
    else:
        position = _parse_first(values, names, or_latest=strategy == "latest")
    if values.get("startingOffsetsByTimestampStrategy") and not isinstance(position, ByTime):
        raise InvalidOption(
            "option startingOffsetsByTimestampStrategy has no effect without startingTimestamp or "
            "startingOffsetsByTimestamp"
        )
    return position


def parse_ending(values: OptionValues) -> Position:
    """Parse where a read ends; the latest unless an option says otherwise."""
    names = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
    return _parse_first(values, names, or_latest=True) or "latest"


def _parse_first(
    values: OptionValues, names: tuple[str, str, str], *, or_latest: bool
) -> Position | None:
    one_time, times, offsets = names
    if (text := values.get(one_time)) is not None:
        if (time := whole_number(text.strip())) is None:
            raise InvalidOption(
                f"option {one_time} must be milliseconds since the epoch, as 1735689600000 is for "
                f"2025, not {text!r:.100}"
            )
        return ByTime(one_time, time, or_latest)
    if (text := values.get(times)) is not None:
        found = _parse_numbers(text, lowest=0)
        if found is None:
            raise InvalidOption(
                f"option {times} must be JSON like {TIMES_EXAMPLE} (milliseconds since the epoch), "
                f"not {text!r:.200}"
            )
        return ByTime(times, found, or_latest)
    text = values.get(offsets)
    return None if text is None else parse_offsets(offsets, text)


def parse_offsets(option: str, text: str) -> OffsetsOption:
    """Parse ``earliest``, ``latest`` or ``{"topic":{"0":23}}``. Raises InvalidOption."""
    word = text.strip().lower()
    if word == "earliest":
        return "earliest"
    if word == "latest":
        return "latest"
    found = _parse_numbers(text, lowest=EARLIEST)
    if found is None:
        raise InvalidOption(
            f"option {option} must be earliest, latest or JSON like {OFFSETS_EXAMPLE} "
            f"(-2 is earliest, -1 latest){', or group' if option == 'startingOffsets' else ''}, "
            f"not {text!r:.200}"
        )
    return found


def offsets_json(offsets: Numbers) -> str:
    """Offsets as the JSON that startingOffsets and endingOffsets take."""
    return json.dumps(
        {topic: {str(p): at for p, at in parts.items()} for topic, parts in offsets.items()}
    )


def _parse_numbers(text: str, *, lowest: int) -> Numbers | None:
    """JSON of numbers by topic and partition; None if it is not."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not all(isinstance(parts, dict) for parts in found.values()):
        return None
    parsed: dict[str, dict[int, int]] = {}
    for topic, partitions in found.items():
        for digits, number in partitions.items():
            partition = whole_number(digits)
            fits = type(number) is int and lowest <= number < 1 << 63
            if partition is None or not fits:
                return None
            parsed.setdefault(topic, {})[partition] = number
    return parsed
