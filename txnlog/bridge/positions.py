"""How far a bridge from Kafka has read: records of a compacted topic, committed with the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
import pyarrow as pa

from txnlog.errors import BridgeFailed, TopicAlreadyExists
from txnlog.limits import Name, Offset, PartitionNumber
from txnlog.names import TopicPartition
from txnlog.store import Store

POSITIONS: Final = "_kafka_positions"
"""The topic with the positions of all bridges into a store."""


class _Key(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    bridge: Name
    cluster: Name
    topic: Name
    topic_id: Name
    partition: PartitionNumber


class _Position(msgspec.Struct, frozen=True):
    offset: Offset


_KEY = msgspec.json.Decoder(_Key)
_POSITION = msgspec.json.Decoder(_Position)


def make_positions(store: Store) -> None:
    """Create the topic, unless it is there."""
    if not store.topics.list([POSITIONS]):
        try:
            store.topics.create(POSITIONS, config={"cleanup.policy": "compact"})
        except TopicAlreadyExists:
            return  # another bridge was faster


def read_positions(
    store: Store, bridge: str, cluster: str, topic_ids: Mapping[str, str]
) -> dict[TopicPartition, int]:
    """The next offsets to be read from a cluster, by its partitions. Raises BridgeFailed.

    ``topic_ids`` are those of the store's topics: one that was made anew has nothing yet.
    """
    found = store.scan(POSITIONS, columns=["key", "value"], latest=True).to_arrow()
    positions = {}
    for key, value in zip(found["key"].to_pylist(), found["value"].to_pylist(), strict=True):
        try:
            at, position = _KEY.decode(key), _POSITION.decode(value)
        except (msgspec.DecodeError, TypeError) as error:
            raise BridgeFailed(
                f"topic {POSITIONS!r} has a record that no bridge has written ({error}): it says "
                "how far bridges have read, so nothing was copied; delete the record's key"
            ) from error
        mine = (bridge, cluster, topic_ids.get(at.topic))
        if (at.bridge, at.cluster, at.topic_id) == mine:
            positions[TopicPartition(at.topic, at.partition)] = position.offset
    return positions


def positions_batch(
    bridge: str,
    cluster: str,
    topic_ids: Mapping[str, str],
    positions: Mapping[TopicPartition, int],
) -> pa.RecordBatch:
    """Records that say how far a bridge has read."""
    keys = [
        _Key(bridge, cluster, where.topic, topic_ids[where.topic], where.partition)
        for where in positions
    ]
    values = [_Position(offset) for offset in positions.values()]
    columns = [list(map(msgspec.json.encode, keys)), list(map(msgspec.json.encode, values))]
    return pa.RecordBatch.from_arrays(
        [pa.array(column, pa.binary()) for column in columns], names=["key", "value"]
    )
