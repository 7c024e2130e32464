"""The targets of a group's reset: an end, an offset, a time, or a file.

Plans only: reads topics and commits nothing. The ways are those of ``kafka-consumer-groups``.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from txnlog.config import check_whole_number
from txnlog.errors import InvalidOption, NoOffsetForPartition
from txnlog.inspect.group_lag import OffsetReset
from txnlog.log.group_log import GroupLog
from txnlog.log.group_metadata import check_offset
from txnlog.log.open_logs import Logs
from txnlog.names import TopicPartition, check_topic
from txnlog.read.offset_for_time import offset_for_time
from txnlog.read.pin import pin_topics
from txnlog.read.topic_view import TopicView
from txnlog.storage.base import Storage

_PLACES = ("earliest", "latest", "current")
_FILE_COLUMNS = (3, 4)
_MOST_DIGITS = 1000
"""More than in any offset; Python refuses to read numbers of very many."""

Target = str | int | Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class ResetPlan:
    """A planned reset, and the ids of its topics.

    ``entries`` are those of the group's log that moved its offsets to where they were found.
    """

    resets: tuple[OffsetReset, ...]
    topic_ids: Mapping[str, str]
    entries: Mapping[TopicPartition, int | None]


@dataclass(frozen=True, slots=True)
class ResetTarget:
    """The target: exactly one of the four is given. See ``Store.groups.reset_offsets``."""

    to: Target | None = None
    timestamp_ms: int | None = None
    shift_by: int | None = None
    from_file: str | os.PathLike[str] | None = None

    def offsets_of(self, group_id: str) -> dict[TopicPartition, int] | None:
        """The offsets that are named one by one, None if it is another kind of target.

        Raises InvalidOption unless it is exactly one target, which makes sense.
        """
        kinds = ("to", "timestamp_ms", "shift_by", "from_file")
        given = [kind for kind in kinds if getattr(self, kind) is not None]
        if len(given) != 1:
            raise InvalidOption(
                f"a reset needs exactly one of {', '.join(kinds)}, not "
                f"{' and '.join(given) or 'none of them'}"
            )
        for kind in ("timestamp_ms", "shift_by"):
            value = getattr(self, kind)
            if value is not None:
                check_whole_number(value, kind, InvalidOption)
        if self.from_file is not None:
            return read_offsets(self.from_file, group_id)
        if isinstance(self.to, Mapping):
            wanted = {TopicPartition(*where): at for where, at in self.to.items()}
            return {where: check_offset(where, at).offset for where, at in wanted.items()}
        if isinstance(self.to, str) and self.to not in _PLACES:
            raise InvalidOption(
                f"to={self.to!r} is not one of {', '.join(_PLACES)}, an offset, or offsets by "
                "partition"
            )
        return None


def plan_reset(
    logs: Logs,
    group: GroupLog,
    topics: str | Iterable[str | TopicPartition] | None,
    target: ResetTarget,
) -> ResetPlan:
    """Find out where a (refreshed and settled) group's offsets would go.

    An offset outside of what its partition holds is moved to the nearest end. Raises InvalidOption,
    UnknownTopicOrPartition; NoOffsetForPartition: one without an offset cannot be shifted.
    """
    named = target.offsets_of(group.name)
    if named is not None and topics is not None:
        raise InvalidOption("where offsets are given by partition, leave the topics out")
    with group.lock:
        state = group.state
        known = [
            TopicPartition(topic, partition)
            for topic, offsets in state.committed.items()
            for partition in offsets
        ]
    chosen: list[str | TopicPartition]
    if named is not None:
        chosen = list(named)
    elif topics is None:
        chosen = list(known)
    else:
        chosen = [topics] if isinstance(topics, str) else list(topics)
    nothing = InvalidOption(
        f"there is nothing to reset: group {group.name!r} has no offsets; name the topics"
    )
    of_group = named is None and topics is None
    if not chosen:
        raise (
            nothing
            if of_group
            else InvalidOption(
                "there is nothing to reset: an empty list of topics or partitions was given"
            )
        )
    views = pin_topics(
        logs,
        sorted({item if isinstance(item, str) else item[0] for item in chosen}),
        leave_out_missing=of_group,
    ).views
    partitions = _choose_partitions(views, chosen, leave_out_missing=of_group)
    topic_ids = {topic: view.topic_id for topic, view in views.items()}
    with group.lock:
        state = group.state
        before = {w: state.logged_position(*w, topic_ids[w.topic]) for w in partitions}
    if of_group:  # of a topic that was made anew it has none
        partitions = [where for where in partitions if before[where].offset is not None]
        if not partitions:
            raise nothing
    move = _choose_move(logs.storage, views, group.name, target, named)
    resets = []
    for where in partitions:
        old = before[where].offset
        view = views[where.topic]
        begin = view.partitions[where.partition].log_start_offset
        end = view.log_end_offsets[where.partition]
        new = min(max(move(where, old), begin), end)
        resets.append(OffsetReset(where.topic, where.partition, old, new))
    return ResetPlan(tuple(resets), topic_ids, {w: at.entry for w, at in before.items()})


def _choose_partitions(
    views: Mapping[str, TopicView],
    chosen: Iterable[str | TopicPartition],
    *,
    leave_out_missing: bool,
) -> list[TopicPartition]:
    found: set[TopicPartition] = set()
    for item in chosen:
        if isinstance(item, str):
            found |= {TopicPartition(item, number) for number in range(len(views[item].partitions))}
            continue
        where = TopicPartition(*item)
        view = views.get(where.topic)
        if leave_out_missing and (view is None or where.partition >= len(view.partitions)):
            continue
        views[where.topic].check_partition(where.partition)
        found.add(where)
    return sorted(found)


def _choose_move(
    storage: Storage,
    views: Mapping[str, TopicView],
    group_id: str,
    target: ResetTarget,
    named: Mapping[TopicPartition, int] | None,
) -> Callable[[TopicPartition, int | None], int]:
    """From a partition and its committed offset, the offset that is asked for."""

    def shift(where: TopicPartition, old: int | None) -> int:
        assert target.shift_by is not None
        if old is None:
            raise NoOffsetForPartition(
                f"group {group_id!r} has no offset for {where} that could be shifted; reset it to "
                "'earliest' or 'latest' instead"
            )
        return old + target.shift_by

    def latest(where: TopicPartition) -> int:
        return views[where.topic].partitions[where.partition].end_offset

    def at_time(where: TopicPartition) -> int:
        assert target.timestamp_ms is not None
        view = views[where.topic]
        found = offset_for_time(view, storage, where.partition, target.timestamp_ms)
        return latest(where) if found is None else found.offset

    if named is not None:
        return lambda where, _: named[where]
    if target.shift_by is not None:
        return shift
    if target.timestamp_ms is not None:
        return lambda where, _: at_time(where)
    if target.to == "earliest":
        return lambda where, _: views[where.topic].partitions[where.partition].log_start_offset
    if target.to == "latest":
        return lambda where, _: latest(where)
    if target.to == "current":
        return lambda where, old: latest(where) if old is None else old
    return lambda where, _: check_offset(where, target.to).offset  # type: ignore[arg-type]


def read_offsets(path: str | os.PathLike[str], group_id: str) -> dict[TopicPartition, int]:
    """The offsets in a CSV file as ``kafka-consumer-groups --export`` writes it.

    A line is ``topic,partition,offset``, or ``group,topic,partition,offset``; of the latter only
    those of this group count. Raises InvalidOption: no such file can be read.
    """
    try:
        rows = [*csv.reader(Path(path).read_text(encoding="utf-8").splitlines())]
    except (OSError, ValueError, csv.Error) as error:  # also of a name that no file can have
        raise InvalidOption(f"the offsets in {f'{path}'!r} cannot be read: {error}") from error
    offsets: dict[TopicPartition, int] = {}
    for number, row in enumerate(rows, start=1):
        fields = [field.strip() for field in row]
        if not any(fields):
            continue
        if len(fields) not in _FILE_COLUMNS:
            raise InvalidOption(_describe_bad_line(path, number, row))
        if len(fields) == max(_FILE_COLUMNS) and fields.pop(0) != group_id:
            continue
        topic, partition, offset = fields
        if not (_is_number(partition) and _is_number(offset)):
            raise InvalidOption(_describe_bad_line(path, number, row))
        where = TopicPartition(check_topic(topic), int(partition))
        if where in offsets:
            raise InvalidOption(f"{path} has more than one offset for {where}, again in {number}")
        offsets[where] = int(offset)
    if not offsets:
        raise InvalidOption(f"{path} holds no offset for group {group_id!r}")
    return offsets


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) <= _MOST_DIGITS


def _describe_bad_line(path: str | os.PathLike[str], number: int, row: Sequence[str]) -> str:
    return (
        f"line {number} of {path} is {','.join(row)!r:.80}; it must be topic,partition,offset or "
        "group,topic,partition,offset"
    )
