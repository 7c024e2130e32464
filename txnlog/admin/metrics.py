"""A store as numbers, for monitoring: offsets of topics, lag, transactions that block readers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Final, TypeVar

from txnlog.admin.found import Found
from txnlog.admin.groups import GroupAdmin
from txnlog.admin.topics import TopicAdmin
from txnlog.admin.transactions import TransactionAdmin
from txnlog.errors import TxnlogError
from txnlog.hooks import registered
from txnlog.inspect.descriptions import TopicDescription, TransactionDescription
from txnlog.inspect.group_lag import GroupDescription
from txnlog.log.open_logs import Logs
from txnlog.metric import Metric

T = TypeVar("T")

MEANINGS: Final[Mapping[str, str]] = {
    "txnlog_topic_log_entries": "Length of the topic's log.",
    "txnlog_topic_open_transactions": "Undecided transactions that hold stable offsets back.",
    "txnlog_partition_log_start_offset": "The first offset.",
    "txnlog_partition_last_stable_offset": "Where read_committed stops.",
    "txnlog_partition_end_offset": "The offset that the next record will get.",
    "txnlog_partition_segments": "Segments.",
    "txnlog_partition_size_bytes": "Bytes of its segments.",
    "txnlog_partition_future_seconds": "How far the time of its newest record lies in the future.",
    "txnlog_group_committed_offset": "The next offset that the group reads.",
    "txnlog_group_lag_records": "Offsets that the group has yet to read, up to the stable one.",
    "txnlog_group_trimmed_records": "Offsets that were deleted before the group had read them.",
    "txnlog_transactional_ids": "Transactional ids by the state of their newest transaction.",
    "txnlog_transaction_open_seconds": "For how long a transaction has been open.",
    "txnlog_transaction_overdue_seconds": "For how long others could already end a transaction.",
    "txnlog_unreadable": "Topics, groups and ids that could not be read.",
}
"""Help texts of the metrics. All are gauges: a recreated topic starts at 0 again.

Of a hook ``metrics`` the module has ``MEANINGS`` of its own, and ``measure``, which takes logs.
"""


def measure(logs: Logs) -> Found[Metric]:
    """The metrics of a store. What cannot be read is counted, too."""
    return Found(partial(_measure, logs))


def _measure(logs: Logs) -> Iterator[Metric | TxnlogError]:
    clock = logs.clock
    unreadable = Counter[str]({"topic": 0, "group": 0, "transactional_id": 0})
    for topic in _counted(TopicAdmin(logs).describe_all(), unreadable, "topic"):
        if isinstance(topic, TxnlogError):
            yield topic
        else:
            yield from _of_topic(topic, clock.now_ms())
    for group in _counted(GroupAdmin(logs).describe_all(), unreadable, "group"):
        if isinstance(group, TxnlogError):
            yield group
        else:
            yield from _of_group(group)
    states = Counter[str]()
    for transaction in _counted(TransactionAdmin(logs).list(), unreadable, "transactional_id"):
        if isinstance(transaction, TxnlogError):
            yield transaction
        else:
            states[transaction.status] += 1
            yield from _of_transaction(transaction, clock.now_ms())
    for hook in registered("metrics"):
        try:
            yield from hook.measure(logs)
        except TxnlogError as error:
            yield error
    for state, count in sorted(states.items()):
        yield Metric("txnlog_transactional_ids", {"state": state}, count)
    for kind, count in unreadable.items():
        yield Metric("txnlog_unreadable", {"kind": kind}, count)


def _counted(found: Found[T], unreadable: Counter[str], kind: str) -> Iterator[T | TxnlogError]:
    """Things, or why they cannot be read, which is counted; also if they cannot be listed."""
    try:
        for item in found.with_errors():
            unreadable[kind] += isinstance(item, TxnlogError)
            yield item
    except TxnlogError as error:
        unreadable[kind] += 1
        yield error


def to_prometheus(metrics: Iterable[Metric]) -> Iterator[str]:
    """Lines of Prometheus' text format, each metric's together."""
    meanings = dict(MEANINGS)
    for hook in registered("metrics"):
        meanings.update(hook.MEANINGS)
    by_name: dict[str, list[Metric]] = {name: [] for name in meanings}
    for metric in metrics:
        by_name[metric.name].append(metric)
    for name, found in by_name.items():
        if not found:
            continue
        yield f"# HELP {name} {meanings[name]}"
        yield f"# TYPE {name} gauge"
        for metric in found:
            labels = ",".join(f'{key}="{_escape(value)}"' for key, value in metric.labels.items())
            yield f"{name}{{{labels}}} {metric.value:.17g}"


def _of_topic(topic: TopicDescription, now_ms: int) -> Iterator[Metric]:
    labels = {"topic": topic.topic}
    yield Metric("txnlog_topic_log_entries", labels, topic.entries)
    yield Metric("txnlog_topic_open_transactions", labels, len(topic.open_transactions))
    for part in topic.partitions:
        at = {**labels, "partition": str(part.partition)}
        yield Metric("txnlog_partition_log_start_offset", at, part.log_start_offset)
        yield Metric("txnlog_partition_last_stable_offset", at, part.last_stable_offset)
        yield Metric("txnlog_partition_end_offset", at, part.end_offset)
        yield Metric("txnlog_partition_segments", at, part.segment_count)
        yield Metric("txnlog_partition_size_bytes", at, part.size_bytes)
        ahead_ms = max(part.newest_timestamp_ms - now_ms, 0)
        yield Metric("txnlog_partition_future_seconds", at, ahead_ms / 1000)


def _of_group(group: GroupDescription) -> Iterator[Metric]:
    for place in group.offsets:
        at = {"group": group.group_id, "topic": place.topic, "partition": str(place.partition)}
        if place.offset is not None:
            yield Metric("txnlog_group_committed_offset", at, place.offset)
        if place.lag is not None:
            yield Metric("txnlog_group_lag_records", at, place.lag)
        if place.trimmed is not None:
            yield Metric("txnlog_group_trimmed_records", at, place.trimmed)


def _of_transaction(transaction: TransactionDescription, now_ms: int) -> Iterator[Metric]:
    if transaction.ends_by_ms is None:
        return
    labels = {"transactional_id": transaction.transactional_id, "state": transaction.status}
    open_ms = max(now_ms - transaction.since_ms, 0)
    overdue_ms = max(now_ms - transaction.ends_by_ms, 0)
    yield Metric("txnlog_transaction_open_seconds", labels, open_ms / 1000)
    yield Metric("txnlog_transaction_overdue_seconds", labels, overdue_ms / 1000)


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
