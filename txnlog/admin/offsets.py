"""The first and last offsets of partitions, and offsets by time.

Ends need no segment; a time, or the newest record, takes the index and a piece of one segment per
partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

from txnlog.config import check_whole_number
from txnlog.errors import (
    CorruptEntry,
    InvalidOption,
    TxnlogError,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from txnlog.inspect.describe import describe_or_error
from txnlog.log.named_folders import list_topics
from txnlog.log.open_logs import Logs
from txnlog.names import TopicPartition
from txnlog.read.offset_for_time import newest_record, offset_for_time
from txnlog.read.pin import pin_topics
from txnlog.storage.base import for_each

OffsetSpec: TypeAlias = Literal["earliest", "stable", "latest", "max-timestamp"]
OFFSET_SPECS: tuple[OffsetSpec, ...] = ("earliest", "stable", "latest", "max-timestamp")


@dataclass(frozen=True, slots=True)
class ListedOffset:
    """An offset in a partition; None if no record is as new as the requested time.

    ``timestamp_ms`` is that of the record, if a time or the newest record was requested.
    """

    topic: str
    partition: int
    offset: int | None
    timestamp_ms: int | None = None


def list_offsets(
    logs: Logs,
    topics: str | Iterable[str | TopicPartition] | None,
    *,
    at: OffsetSpec | None,
    timestamp_ms: int | None,
) -> Callable[[], Iterator[ListedOffset | TxnlogError]]:
    """Check the arguments; return a function that lists. See :meth:`txnlog.Store.topics.offsets`.

    Raises InvalidOption.
    """
    if (at is None) == (timestamp_ms is None):
        known = ", ".join(map(repr, OFFSET_SPECS))
        raise InvalidOption(f"give either one of {known}, or timestamp_ms")
    if at is not None and at not in OFFSET_SPECS:
        raise InvalidOption(f"at={at!r} is not one of {', '.join(OFFSET_SPECS)}")
    chosen = None if topics is None else _group_by_topic(topics)
    return partial(_list, logs, chosen, at, timestamp_ms)


def _list(
    logs: Logs,
    chosen: Mapping[str, list[int] | None] | None,
    at: OffsetSpec | None,
    timestamp_ms: int | None,
) -> Iterator[ListedOffset | TxnlogError]:
    if chosen is not None:
        work = partial(describe_or_error, partial(_list_topic, logs, chosen, at, timestamp_ms))
        for listed in for_each(logs.storage, work, chosen):
            if isinstance(listed, CorruptEntry | UnsupportedVersion):
                yield listed
            elif isinstance(listed, TxnlogError):
                raise listed
            else:
                yield from listed
        return
    work_alone = partial(_list_alone, logs, at, timestamp_ms)
    for found in for_each(logs.storage, work_alone, list_topics(logs.storage)):
        if isinstance(found, TxnlogError):
            yield found
        else:
            yield from found


def _list_alone(
    logs: Logs, at: OffsetSpec | None, timestamp_ms: int | None, topic: str
) -> list[ListedOffset] | TxnlogError:
    # Its own log: the memory of a topic's segments is freed again.
    own = Logs(logs.storage, logs.config, logs.clock)
    try:
        return _list_topic(own, {}, at, timestamp_ms, topic)
    except UnknownTopicOrPartition:
        return []  # it was deleted
    except TxnlogError as error:
        if error.retriable:
            raise
        return error


def _group_by_topic(
    topics: str | Iterable[str | TopicPartition],
) -> dict[str, list[int] | None]:
    """The requested partitions, in the order of their topics; None for all of them."""
    chosen: dict[str, list[int] | None] = {}
    for item in [topics] if isinstance(topics, str) else topics:
        if isinstance(item, str):
            chosen[item] = None
            continue
        topic, partition = item
        check_whole_number(partition, f"the partition of {topic!r}", InvalidOption)
        known = chosen.setdefault(topic, [])
        if known is not None and partition not in known:
            known.append(partition)
    return chosen


def _list_topic(
    logs: Logs,
    chosen: Mapping[str, list[int] | None],
    at: OffsetSpec | None,
    timestamp_ms: int | None,
    topic: str,
) -> list[ListedOffset]:
    partitions = chosen.get(topic)
    if timestamp_ms is not None or at == "max-timestamp":
        view = pin_topics(logs, [topic]).views[topic]
        numbers = range(len(view.partitions)) if partitions is None else partitions
        find = partial(newest_record, view, logs.storage)
        if timestamp_ms is not None:
            find = partial(offset_for_time, view, logs.storage, timestamp_ms=timestamp_ms)
        places = logs.storage.run_ahead((0, partial(find, number)) for number in numbers)
        return [
            ListedOffset(topic, number, None)
            if found is None
            else ListedOffset(topic, number, found.offset, found.timestamp)
            for number, found in zip(numbers, places, strict=True)
        ]
    log = logs.fresh_topic(topic)
    with log.lock:
        state = log.state
        state.check_partitions(topic, partitions or ())
        ends = {
            "earliest": [part.log_start_offset for part in state.partitions],
            "stable": state.last_stable_offsets(),
            "latest": [part.end_offset for part in state.partitions],
        }[at or "latest"]
    return [
        ListedOffset(topic, number, ends[number])
        for number in (range(len(ends)) if partitions is None else partitions)
    ]
