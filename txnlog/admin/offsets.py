"""Where partitions begin and end, and where a time begins in them: no segment is read for ends.

For a time it is the index and a piece of one segment per partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from txnlog import names
from txnlog.errors import InvalidOption, TxnlogError, UnknownTopicOrPartition
from txnlog.log.open_logs import Logs
from txnlog.names import TopicPartition
from txnlog.read.pinning import pin_topics

OffsetSpec: TypeAlias = Literal["earliest", "stable", "latest"]
OFFSET_SPECS: tuple[OffsetSpec, ...] = ("earliest", "stable", "latest")


@dataclass(frozen=True, slots=True)
class ListedOffset:
    """An offset in a partition; None if no record is as new as the time that was asked for.

    ``timestamp_ms`` is that of the record, where a time was asked for.
    """

    topic: str
    partition: int
    offset: int | None
    timestamp_ms: int | None = None


def list_offsets(
    logs: Logs,
    topics: Iterable[str | TopicPartition] | None,
    *,
    at: OffsetSpec | None,
    timestamp_ms: int | None,
) -> Iterator[ListedOffset | TxnlogError]:
    """See :meth:`txnlog.Store.list_offsets`."""
    if (at is None) == (timestamp_ms is None):
        raise InvalidOption("give either one of 'earliest', 'stable', 'latest', or timestamp_ms")
    if at is not None and at not in OFFSET_SPECS:
        raise InvalidOption(f"at={at!r} is not one of {', '.join(OFFSET_SPECS)}")
    return _list(logs, topics, at, timestamp_ms)


def _list(
    logs: Logs,
    topics: Iterable[str | TopicPartition] | None,
    at: OffsetSpec | None,
    timestamp_ms: int | None,
) -> Iterator[ListedOffset | TxnlogError]:
    if topics is not None:
        for topic, partitions in _group_by_topic(topics).items():
            yield from _list_topic(logs, topic, partitions, at, timestamp_ms)
        return
    for topic in logs.storage.list_folders(names.TOPICS):
        # Logs of its own for each: what a topic's segments take in memory is let go of again.
        own = Logs(logs.storage, logs.config, logs.clock)
        try:
            yield from _list_topic(own, topic, None, at, timestamp_ms)
        except UnknownTopicOrPartition:
            continue  # it was deleted
        except TxnlogError as error:
            if error.retriable:
                raise
            yield error


def _group_by_topic(topics: Iterable[str | TopicPartition]) -> dict[str, list[int] | None]:
    """The partitions that are meant, in the order of their topics; None for all of them."""
    chosen: dict[str, list[int] | None] = {}
    for item in [topics] if isinstance(topics, str) else topics:
        if isinstance(item, str):
            chosen[item] = None
            continue
        topic, partition = item
        known = chosen.setdefault(topic, [])
        if known is not None and partition not in known:
            known.append(partition)
    return chosen


def _list_topic(
    logs: Logs,
    topic: str,
    partitions: list[int] | None,
    at: OffsetSpec | None,
    timestamp_ms: int | None,
) -> Iterator[ListedOffset]:
    if timestamp_ms is not None:
        view = pin_topics(logs, [topic]).views[topic]
        for number in range(len(view.partitions)) if partitions is None else partitions:
            found = view.offset_for_time(logs.storage, number, timestamp_ms)
            yield (
                ListedOffset(topic, number, None)
                if found is None
                else ListedOffset(topic, number, found.offset, found.timestamp)
            )
        return
    log = logs.fresh_topic(topic)
    with log.reading() as state:
        state.check_partitions(topic, partitions or ())
        ends = {
            "earliest": [part.log_start_offset for part in state.partitions],
            "stable": state.last_stable_offsets(),
            "latest": [part.end_offset for part in state.partitions],
        }[at or "latest"]
    for number in range(len(ends)) if partitions is None else partitions:
        yield ListedOffset(topic, number, ends[number])
