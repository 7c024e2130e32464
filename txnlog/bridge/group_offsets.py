"""Where a group stands among the copies that a bridge has made of the records that it reads.

Offsets of the two sides differ, since Kafka's have gaps, and no file maps them. But what a group
has yet to read of what was copied is as many records on both. So it is counted back from the end of
the copy, and each record is compared with its copy: what does not fit is an error. Their times
count unless a side stamps records itself.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa

from txnlog.arguments import naming_wrong_arguments
from txnlog.bridge import client
from txnlog.bridge.base import check_bridge_name
from txnlog.bridge.client import Cluster, failure, reported
from txnlog.bridge.positions import Positions
from txnlog.bridge.sink import read_positions
from txnlog.bridge.source import POSITIONS
from txnlog.config import TopicConfig
from txnlog.errors import BridgeFailed, GroupNotEmpty, InvalidOption
from txnlog.names import TopicPartition, check_group_id, check_topic
from txnlog.read.topic_view import EARLIEST
from txnlog.scan import Scan
from txnlog.snapshot import Snapshot
from txnlog.store import Store

_AT_ONCE: Final = 1000
_IDLE: Final = frozenset({"EMPTY", "DEAD"})
"""States of a group in Kafka that has no members."""
_Record = tuple[bytes | None, bytes | None, int]
"""A key, a value and a time."""
_COLUMNS: Final = ("offset", "key", "value", "timestamp")


@dataclass(frozen=True, slots=True)
class TranslatedOffset:
    """Where a group was in a partition on the side that it leaves, and on the other side.

    There ``before`` is where it was, None if it had no offset, and ``after`` where it is now.
    """

    topic: str
    partition: int
    source_offset: int
    before: int | None
    after: int


@naming_wrong_arguments
def translate_offsets(
    store: Store,
    servers: str,
    group_id: str,
    topics: Sequence[str],
    *,
    back: bool = False,
    name: str = "bridge",
    options: Mapping[str, str] | None = None,
    force: bool = False,
    dry_run: bool = False,
) -> list[TranslatedOffset]:
    """Move a group's offsets here to where the group of the same name is in Kafka, or back.

    For topics that a :class:`KafkaSource` has copied, or for the way back a :class:`KafkaSink`, and
    to whose copies nobody else has written. All offsets move in one commit, or none does.

    Args:
        store: one side.
        servers: the other: ``broker:9092``, or several with commas.
        group_id: the group.
        topics: of which it has offsets.
        back: move the group in Kafka to where it is here.
        name: of the bridge.
        options: of librdkafka.
        force: also if the group has members, there or here, who may move on meanwhile.
        dry_run: only say what would change.

    Returns:
        By partition for which the group has an offset, what was done, or would be.

    Raises:
        BridgeFailed: Kafka refuses something; the bridge has not copied what the group has read; or
            the records there and here are not the same.
        GroupNotEmpty: the group has members, and ``force`` is False.
        InvalidOption, InvalidTopic, InvalidGroupId, GroupIdNotFound, UnknownTopicOrPartition: of
            the arguments.
    """
    if not topics or isinstance(topics, str):
        raise InvalidOption("give a list of topics, one at least")
    check_group_id(group_id)
    move = _Move(
        store,
        Cluster(servers, options),
        group_id,
        [*dict.fromkeys(map(check_topic, topics))],
        check_bridge_name(name),
        force,
        dry_run,
    )
    if not force:
        _check_idle(move.cluster, group_id)
    with closing(move.cluster.consumer(f"txnlog-bridge-{name}")) as consumer:
        return (_to_kafka if back else _from_kafka)(move, _Kafka(consumer))


@dataclass(frozen=True, slots=True)
class _Move:
    """The arguments of a translation of offsets."""

    store: Store
    cluster: Cluster
    group_id: str
    topics: Sequence[str]
    name: str
    force: bool
    dry_run: bool

    def positions_of(self, source: str) -> Positions:
        """How the positions of the bridge are recognised that reads there."""
        describe = self.store.topics.describe
        ids = {topic: describe(topic).topic_id for topic in self.topics}
        return Positions(self.name, source, ids)


def _from_kafka(move: _Move, there: _Kafka) -> list[TranslatedOffset]:
    if not move.store.topics.list([POSITIONS]):
        raise BridgeFailed("no bridge has copied anything into this store")
    # What is pinned is a consistent cut: the positions are those of the last records in it.
    here = _Store(move.store.snapshot([*move.topics, POSITIONS]))
    read = _committed(move, there.partitions(move.topics))
    copied = here.positions(move.positions_of(there.cluster_id))
    moves = {where: _find(there, here, where, at, copied.get(where)) for where, at in read.items()}
    if not moves:
        raise BridgeFailed(f"Kafka has no offsets of group {move.group_id!r} for these topics")
    resets = move.store.groups.reset_offsets(
        move.group_id, to=moves, force=move.force, dry_run=move.dry_run
    )
    return [
        TranslatedOffset(*where, read[where], one.before, one.after)
        for one in resets
        for where in [TopicPartition(one.topic, one.partition)]
    ]


def _to_kafka(move: _Move, there: _Kafka) -> list[TranslatedOffset]:
    group = move.store.groups.describe(move.group_id)
    if group.members and not move.force:
        raise GroupNotEmpty(f"group {move.group_id!r} has members: stop them first")
    read = {
        TopicPartition(one.topic, one.partition): one.offset
        for one in group.offsets
        if one.topic in move.topics and one.offset is not None
    }
    if not read:
        raise BridgeFailed(f"group {move.group_id!r} has no offsets for these topics")
    here = _Store(move.store.snapshot(move.topics))
    before = _committed(move, [*read])
    positions = move.positions_of(move.store.store_id)
    copied = read_positions(move.cluster, move.name, move.store, positions)
    moves = {where: _find(here, there, where, at, copied.get(where)) for where, at in read.items()}
    if not move.dry_run:
        _commit(move, moves)
    return [
        TranslatedOffset(*where, read[where], before.get(where), after)
        for where, after in sorted(moves.items())
    ]


# -- the group in Kafka ----------------------------------------------------------------------------


def _check_idle(cluster: Cluster, group_id: str) -> None:
    """Raises GroupNotEmpty, BridgeFailed."""
    with reported(f"group {group_id!r} of Kafka"):
        admin = cluster.admin()  # without it the answer does not come
        (future,) = admin.describe_consumer_groups([group_id]).values()
        state = future.result(client.WAIT_S).state.name
    if state not in _IDLE:
        raise GroupNotEmpty(
            f"group {group_id!r} has members in Kafka ({state}), which move its offsets: stop "
            "them, or take what it has now by force"
        )


def _committed(move: _Move, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    kafka = client.load()
    asked = [kafka.TopicPartition(*where) for where in partitions]
    doing = reported(f"the offsets of group {move.group_id!r} of Kafka")
    with closing(move.cluster.consumer(move.group_id)) as consumer, doing:
        found = consumer.committed(asked, timeout=client.WAIT_S)
    known = [one for one in _sound(found) if one.offset >= 0]
    return {TopicPartition(one.topic, one.partition): one.offset for one in known}


def _commit(move: _Move, offsets: Mapping[TopicPartition, int]) -> None:
    """Raises BridgeFailed, for instance since members have come meanwhile."""
    kafka = client.load()
    at = [kafka.TopicPartition(*where, offset) for where, offset in offsets.items()]
    given = kafka.ConsumerGroupTopicPartitions(move.group_id, at)
    with reported(f"group {move.group_id!r} of Kafka"):
        admin = move.cluster.admin()  # without it the answer does not come
        (future,) = admin.alter_consumer_group_offsets([given]).values()
        _sound(future.result(client.WAIT_S).topic_partitions)


def _sound(found: Sequence[Any]) -> Sequence[Any]:
    """Partitions with offsets. Raises BridgeFailed: Kafka refuses one."""
    for one in found:
        if one.error is not None:
            raise failure(f"the offset of {one.topic}:{one.partition} in Kafka", one.error)
    return found


# -- two sides with the same records ---------------------------------------------------------------


_OWN_TIME: Final = -1
"""In place of a time that a side has given a record itself: it tells nothing of the other's."""


class _Records:
    """Records of a partition, in their order, as far as they are compared."""

    def __init__(self, digests: array[int] | None = None, times: array[int] | None = None) -> None:
        self._digests = array("q") if digests is None else digests
        self._times = array("q") if times is None else times

    def __len__(self) -> int:
        return len(self._digests)

    def add(self, key: bytes | None, value: bytes | None, time: int) -> None:
        self._digests.append(hash((key, value)))
        self._times.append(time)

    def last(self, count: int) -> _Records:
        return _Records(self._digests[-count:], self._times[-count:])

    def are_copies_of(self, others: _Records) -> bool:
        """Whether they have the same keys and values, and times where both have others' times."""
        mine, theirs = np.asarray(self._times), np.asarray(others._times)
        return self._digests == others._digests and bool(
            np.all((mine == theirs) | (mine == _OWN_TIME) | (theirs == _OWN_TIME))
        )


class _Side(Protocol):
    """Partitions of one side."""

    def beginning(self, where: TopicPartition) -> int:
        """The first offset that is still there."""
        ...

    def read(self, where: TopicPartition, start: int, stop: int) -> _Records:
        """The records of a range."""
        ...

    def last(self, where: TopicPartition, count: int) -> tuple[array[int], _Records, int]:
        """The offsets of the last ``count`` records, or of all; the records; and the end offset."""
        ...


def _find(
    source: _Side, target: _Side, where: TopicPartition, read: int, copied: int | None
) -> int:
    """The offset in the copy of what a group reads next. Raises BridgeFailed."""
    shown = f"{where.topic}:{where.partition}"
    first = source.beginning(where)
    position = first if copied is None else copied
    if read < first:
        raise BridgeFailed(
            f"{shown}: the group is at offset {read}, and what is before {first} was deleted: say "
            "yourself where it is to go on"
        )
    unread = source.read(where, read, position)
    if source.read(where, position, read):
        raise BridgeFailed(
            f"{shown}: the group has read up to offset {read}, and the bridge has copied up to "
            f"{position}: run it until LAG is 0"
        )
    compared = unread or _read_last(source, where, first, min(read, position))
    offsets, copies, end = target.last(where, max(len(compared), 1))
    if not compared and copies:
        raise BridgeFailed(
            f"{shown}: no record is left that could be compared with its copy: if only the bridge "
            "has written there, the group belongs at the end (latest)"
        )
    if not copies.are_copies_of(compared):
        raise BridgeFailed(
            f"{shown}: the last {len(compared)} records of the copy are not those that the group "
            "has not read: others have written there, or records were compacted or deleted on one "
            "side; let the group read all first, or say yourself where it is to go on"
        )
    return offsets[0] if unread else end


def _read_last(source: _Side, where: TopicPartition, first: int, stop: int) -> _Records:
    """The last record of a range; nothing if it has none."""
    count = 1
    while True:
        start = max(first, stop - count)
        found = source.read(where, start, stop)
        if found or start <= first:
            return found.last(1)
        count *= 10


class _Kafka:
    """Reads the records that are committed in Kafka."""

    def __init__(self, consumer: Any) -> None:  # noqa: ANN401 - confluent_kafka.Consumer
        self._consumer = consumer
        self._kafka = client.load()
        self.cluster_id = ""

    def partitions(self, topics: Sequence[str]) -> list[TopicPartition]:
        """The partitions of these topics. Raises BridgeFailed."""
        found = []
        for topic in topics:
            with reported(f"topic {topic!r} of Kafka"):
                metadata = self._consumer.list_topics(topic, timeout=client.WAIT_S)
            self.cluster_id = metadata.cluster_id or ""
            known = metadata.topics.get(topic)
            if known is None or not known.partitions:
                raise BridgeFailed(f"Kafka has no topic {topic!r}")
            found += [TopicPartition(topic, number) for number in known.partitions]
        return sorted(found)

    def beginning(self, where: TopicPartition) -> int:
        return self._bounds(where)[0]

    def read(self, where: TopicPartition, start: int, stop: int) -> _Records:
        found = _Records()
        if start >= stop:
            return found
        for offset, record in self._each(where, start):
            if offset >= stop:
                break
            if record is None:
                raise BridgeFailed(
                    f"{where.topic}:{where.partition}: a transaction is open in Kafka at offset "
                    f"{offset}, before what was read; wait"
                )
            found.add(*record)
            if offset + 1 == stop:
                break
        return found

    def last(self, where: TopicPartition, count: int) -> tuple[array[int], _Records, int]:
        first, end = self._bounds(where)
        back = count
        while True:
            start = max(first, end - back)
            offsets, records = array("q"), _Records()
            for offset, record in self._each(where, start):
                if record is None:
                    end = offset
                else:
                    offsets.append(offset)
                    records.add(*record)
            if len(offsets) >= count or start <= first:
                return offsets[-count:], records.last(count), end
            back *= 2

    def _bounds(self, where: TopicPartition) -> tuple[int, int]:
        with reported(f"the offsets of {where.topic}:{where.partition} of Kafka"):
            low, high = self._consumer.get_watermark_offsets(
                self._kafka.TopicPartition(*where), timeout=client.WAIT_S
            )
        return int(low), int(high)

    def _each(self, where: TopicPartition, start: int) -> Iterator[tuple[int, _Record | None]]:
        """Records from an offset on; at last the end, with None. Raises BridgeFailed."""
        shown = f"reading {where.topic}:{where.partition} from Kafka"
        with reported(shown):
            self._consumer.assign([self._kafka.TopicPartition(*where, start)])
        while True:
            with reported(shown):
                messages = client.take(self._consumer, _AT_ONCE, client.WAIT_S)
            if not messages:
                raise BridgeFailed(f"{shown}: nothing came in {client.WAIT_S:.0f} s")
            for message in messages:
                error = message.error()
                if error is None:
                    kind, time = message.timestamp()
                    is_given = kind == self._kafka.TIMESTAMP_CREATE_TIME
                    given = time if is_given else _OWN_TIME
                    yield message.offset(), (message.key(), message.value(), given)
                elif error.name() == client.END:
                    yield message.offset(), None
                    return
                else:
                    raise failure(shown, error)


class _Store:
    """The records that are committed in the store, as of one snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def positions(self, positions: Positions) -> Mapping[TopicPartition, int]:
        """The positions of bridges that copy into the store."""
        found = self._snapshot.scan(POSITIONS, columns=["key", "value"], latest=True).to_arrow()
        columns = (found[name].to_pylist() for name in ("key", "value"))
        return positions.decode(POSITIONS, zip(*columns, strict=True))

    def beginning(self, where: TopicPartition) -> int:
        return self._snapshot.beginning_offsets(where.topic)[where.partition]

    def read(self, where: TopicPartition, start: int, stop: int) -> _Records:
        return self._records(where, start, stop)[1] if start < stop else _Records()

    def last(self, where: TopicPartition, count: int) -> tuple[array[int], _Records, int]:
        end = self._snapshot.end_offsets(where.topic)[where.partition]
        first, start = self.beginning(where), end
        while start > first:
            there = self._scan(where, start, end, ["offset"]).count()[where.partition]
            if there >= count:
                break
            start = max(first, start - (count - there))
        offsets, records = self._records(where, start, end)
        return offsets, records, end

    def _records(self, where: TopicPartition, start: int, stop: int) -> tuple[array[int], _Records]:
        offsets, records = array("q"), _Records()
        config = TopicConfig.of(self._snapshot.view(where.topic).config)
        is_given = not config.log_append_time
        for batch in self._scan(where, start, stop, _COLUMNS).to_batches():
            offsets.extend(batch.column("offset").to_pylist())
            times = batch.column("timestamp").cast(pa.int64()).to_numpy() // 1000
            # The time 0 becomes that of copying where it goes out.
            given = np.where(is_given & (times != 0), times, _OWN_TIME).tolist()
            columns = (batch.column(name).to_pylist() for name in ("key", "value"))
            for record in zip(*columns, given, strict=True):
                records.add(*record)
        return offsets, records

    def _scan(self, where: TopicPartition, start: int, stop: int, columns: Sequence[str]) -> Scan:
        """A scan of one partition. Rows of typed topics are turned into JSON, as a bridge does."""
        starts = {where.partition: start}
        partitions = self._snapshot.partitions(where.topic)
        ends = dict.fromkeys(partitions, EARLIEST) | {where.partition: stop}
        return self._snapshot.scan(where.topic, starts, ends, columns, as_json=True)
