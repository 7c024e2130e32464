"""Where a read starts and ends, as options say it: at an edge, at offsets, at times."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from txnlog.errors import InvalidOption, OffsetOutOfRange
from txnlog.names import TopicPartition
from txnlog.read.view import EARLIEST, LATEST, OffsetAndTimestamp
from txnlog.snapshot import Snapshot
from txnlog.spark.given import Given
from txnlog.storage.base import Storage

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

    ``option`` is what said so. ``or_latest``: the end where no record is so late; else an error.
    """

    option: str
    times: int | Numbers
    or_latest: bool


Position = OffsetsOption | ByTime

GROUP: Literal["group"] = "group"
"""``startingOffsets=group``: where the group is that the options name."""


def parse_starting(given: Given) -> Position | Literal["group"] | None:
    """Of the options that say where to start the one that Spark's Kafka source would follow.

    ``group`` is ours alone: its source takes a group for a name, and starts where options say.
    """
    strategy = (given.get("startingOffsetsByTimestampStrategy") or "error").strip().lower()
    if strategy not in ("error", "latest"):
        raise InvalidOption(
            f"option startingOffsetsByTimestampStrategy must be error or latest, not {strategy!r}"
        )
    names = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
    at_group = (given.get("startingOffsets") or "").strip().lower() == GROUP
    if at_group and given.get(names[0]) is None and given.get(names[1]) is None:
        position: Position | Literal["group"] | None = GROUP
    else:
        position = _first(given, names, or_latest=strategy == "latest")
    if given.get("startingOffsetsByTimestampStrategy") and not isinstance(position, ByTime):
        raise InvalidOption(
            "option startingOffsetsByTimestampStrategy has no effect without startingTimestamp or "
            "startingOffsetsByTimestamp"
        )
    return position


def parse_ending(given: Given) -> Position:
    """The same for the end; the latest unless an option says otherwise."""
    names = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
    return _first(given, names, or_latest=True) or "latest"


def _first(given: Given, names: tuple[str, str, str], *, or_latest: bool) -> Position | None:
    one_time, times, offsets = names
    if (text := given.get(one_time)) is not None:
        if not (text.strip().isascii() and text.strip().isdigit()):
            raise InvalidOption(
                f"option {one_time} must be milliseconds since the epoch, as 1735689600000 is for "
                f"2025, not {text!r:.100}"
            )
        return ByTime(one_time, int(text), or_latest)
    if (text := given.get(times)) is not None:
        found = _numbers(text, lowest=0)
        if found is None:
            raise InvalidOption(
                f"option {times} must be JSON like {TIMES_EXAMPLE} (milliseconds since the epoch), "
                f"not {text!r:.200}"
            )
        return ByTime(times, found, or_latest)
    text = given.get(offsets)
    return None if text is None else parse_offsets(offsets, text)


def parse_offsets(option: str, text: str) -> OffsetsOption:
    """Parse ``earliest``, ``latest`` or ``{"topic":{"0":23}}``. Raises InvalidOption."""
    word = text.strip().lower()
    if word == "earliest":
        return "earliest"
    if word == "latest":
        return "latest"
    found = _numbers(text, lowest=EARLIEST)
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


def _numbers(text: str, *, lowest: int) -> Numbers | None:
    """JSON of numbers by topic and partition; None if it is not."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    if not isinstance(found, dict) or not all(isinstance(parts, dict) for parts in found.values()):
        return None
    parsed: dict[str, dict[int, int]] = {}
    for topic, partitions in found.items():
        for partition, number in partitions.items():
            fits = type(number) is int and lowest <= number < 1 << 63
            if not (partition.isascii() and partition.isdigit() and fits):
                return None
            parsed.setdefault(topic, {})[int(partition)] = number
    return parsed


# -- resolving -------------------------------------------------------------------------------------


def resolve(
    storage: Storage,
    snapshot: Snapshot,
    wanted: Sequence[TopicPartition],
    option: str,
    position: Position,
) -> dict[TopicPartition, int]:
    """The offset of each partition; -2 and -1 stand for the edges of the snapshot.

    Raises:
        InvalidOption: numbers for partitions other than those wanted, or not for all of them.
        OffsetOutOfRange: no record is as late as a time that was given.
    """
    if isinstance(position, str):
        return dict.fromkeys(wanted, EARLIEST if position == "earliest" else LATEST)
    if isinstance(position, ByTime):
        return _at_times(storage, snapshot, wanted, position)
    return _by_partition(snapshot, wanted, option, position)


def _at_times(
    storage: Storage, snapshot: Snapshot, wanted: Sequence[TopicPartition], position: ByTime
) -> dict[TopicPartition, int]:
    times = (
        dict.fromkeys(wanted, position.times)
        if isinstance(position.times, int)
        else _by_partition(snapshot, wanted, position.option, position.times)
    )
    found: Sequence[OffsetAndTimestamp | None] = storage.gather(
        [partial(snapshot.offset_for_time, where, times[where]) for where in wanted]
    )
    late = [where for where, at in zip(wanted, found, strict=True) if at is None]
    if late and not position.or_latest:
        raise OffsetOutOfRange(
            f"option {position.option}: {late[0]} has no record at or after {times[late[0]]} ms"
            f"{f', nor have {len(late) - 1} other partitions' if len(late) > 1 else ''}; give an "
            "earlier time, or startingOffsetsByTimestampStrategy=latest to start at the end there"
        )
    return {w: LATEST if at is None else at.offset for w, at in zip(wanted, found, strict=True)}


def _by_partition(
    snapshot: Snapshot, wanted: Sequence[TopicPartition], option: str, numbers: Numbers
) -> dict[TopicPartition, int]:
    flat = {TopicPartition(t, p): at for t, parts in numbers.items() for p, at in parts.items()}
    known = set(wanted)
    for where in flat:
        if where not in known:
            reason = (
                "has no such partition, or it is not assigned"
                if where.topic in snapshot.topics
                else "is not subscribed"
            )
            raise InvalidOption(
                f"option {option} names {where}, but topic {where.topic!r} {reason}"
            )
    missing = [str(where) for where in wanted if where not in flat]
    if missing:
        edges = "" if option.endswith("ByTimestamp") else " (-2 is earliest, -1 latest)"
        raise InvalidOption(
            f"option {option} must have a number for every partition{edges}; it has none for "
            f"{', '.join(missing[:10])}{' ...' if len(missing) > 10 else ''}"
        )
    return flat
