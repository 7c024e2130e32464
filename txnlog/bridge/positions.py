"""How far a bridge has read: records of a compacted topic of where it writes to.

They are committed with what was copied, so they are always right.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from txnlog.errors import BridgeFailed
from txnlog.limits import Name, Offset, PartitionNumber
from txnlog.names import TopicPartition


class _Key(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """``source`` is the cluster, or the store, that is read; ``topic_id`` that of the store's."""

    bridge: Name
    source: Name
    topic: Name
    topic_id: Name
    partition: PartitionNumber


_KEY = msgspec.json.Decoder(_Key)
_OFFSET = msgspec.json.Decoder(Offset)


@dataclass(frozen=True, slots=True)
class Positions:
    """The positions of one bridge.

    ``topic_ids`` are those of the store's topics: of one that was made anew nothing was copied.
    """

    bridge: str
    source: str
    topic_ids: Mapping[str, str]

    def encode(self, moved: Mapping[TopicPartition, int]) -> tuple[list[bytes], list[bytes]]:
        """Keys and values of records."""
        ids = self.topic_ids
        keys = [
            _Key(self.bridge, self.source, topic, ids[topic], partition)
            for topic, partition in moved
        ]
        return [*map(msgspec.json.encode, keys)], [*map(msgspec.json.encode, moved.values())]

    def decode(
        self, topic: str, records: Iterable[tuple[bytes | None, bytes | None]]
    ) -> dict[TopicPartition, int]:
        """The newest positions in records of a topic, the oldest first. Raises BridgeFailed."""
        found: dict[TopicPartition, int] = {}
        for key, value in records:
            try:
                at = _KEY.decode(key or b"")
                offset = None if value is None else _OFFSET.decode(value)
            except msgspec.MsgspecError as error:
                raise BridgeFailed(
                    f"topic {topic!r} has a record that no bridge has written ({error}): it says "
                    "how far bridges have read, so nothing was copied; delete the record's key"
                ) from error
            mine = (self.bridge, self.source, self.topic_ids.get(at.topic))
            if (at.bridge, at.source, at.topic_id) == mine:
                where = TopicPartition(at.topic, at.partition)
                if offset is None:
                    found.pop(where, None)
                else:
                    found[where] = offset
        return found
