"""A stream's offsets in the form of the query's checkpoint: readable JSON.

    {"format": 1,
     "offsets": {"orders": {"0": 41, "1": 17}},
     "topic_ids": {"orders": "5f0c..."}}

``offsets`` can be copied into ``startingOffsets``. The ids tell a topic from a later one of its
name. A feed of changes has ``"purge_end"`` besides: that of its topic at that moment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, TypeAlias

import msgspec

from txnlog.errors import CorruptEntry, UnsupportedVersion
from txnlog.limits import AnyNumber, Counter, Name, Offset, PartitionNumber, PerPartition
from txnlog.names import TopicPartition

_FORMAT = 1

Offsets: TypeAlias = Annotated[
    dict[Name, Annotated[dict[PartitionNumber, Offset], PerPartition]], AnyNumber
]


class StreamOffset(msgspec.Struct, frozen=True):
    """The next offset to read of each partition, by topic.

    ``since`` is only there where a query begins. Spark keeps where a batch ends, but of the first
    one not where it began: a query that died in it would begin somewhere else ('latest' moves).
    """

    offsets: Offsets
    topic_ids: Annotated[dict[Name, Name], AnyNumber]
    since: Offsets | None = None
    purge_end: Counter | None = None

    @classmethod
    def of(
        cls,
        offsets: Mapping[TopicPartition, int],
        topic_ids: Mapping[str, str],
        since: Offsets | None = None,
        purge_end: int | None = None,
    ) -> StreamOffset:
        """Make one, sorted by topic and partition, because Spark compares offsets as text."""
        sorted_offsets: Offsets = {topic: {} for topic in sorted(topic_ids)}
        for where, offset in sorted(offsets.items()):
            sorted_offsets[where.topic][where.partition] = offset
        ids = {topic: topic_ids[topic] for topic in sorted(topic_ids)}
        return cls(sorted_offsets, ids, since, purge_end)

    @classmethod
    def initial(
        cls,
        offsets: Mapping[TopicPartition, int],
        topic_ids: Mapping[str, str],
        purge_end: int | None = None,
    ) -> StreamOffset:
        """The offsets at which a query begins."""
        begun = cls.of(offsets, topic_ids)
        return cls(begun.offsets, begun.topic_ids, begun.offsets, purge_end)

    @classmethod
    def parse(cls, found: Mapping[str, object]) -> StreamOffset:
        """Read what :meth:`to_json` made, perhaps long ago.

        Raises UnsupportedVersion: a newer txnlog made it; CorruptEntry: it is something else.
        """
        number = found.get("format")
        if isinstance(number, int) and number > _FORMAT:
            raise UnsupportedVersion(
                f"the query's checkpoint holds an offset of format {number}, this txnlog knows "
                f"{_FORMAT}: go on with the newer txnlog that made it"
            )
        try:
            parsed = msgspec.convert(found, cls, str_keys=True, strict=number == _FORMAT)
        except msgspec.ValidationError as error:
            raise _not_ours(found, str(error)) from None
        known = parsed.topic_ids.keys()
        if (
            number != _FORMAT
            or parsed.offsets.keys() != known
            or not {*(parsed.since or ())} <= known
        ):
            raise _not_ours(found, "topics and their ids do not match")
        return parsed

    def to_json(self) -> dict[str, object]:
        """The JSON that Spark writes to the checkpoint."""
        found: dict[str, object] = {
            "format": _FORMAT,
            "offsets": msgspec.to_builtins(self.offsets, str_keys=True),
            "topic_ids": dict(self.topic_ids),
        }
        if self.since is not None:
            found["since"] = msgspec.to_builtins(self.since, str_keys=True)
        if self.purge_end is not None:
            found["purge_end"] = self.purge_end
        return found

    @property
    def begins(self) -> bool:
        """True if nothing was read before this."""
        return self.since == self.offsets

    def at(self, where: TopicPartition, topic_id: str) -> int | None:
        """The next offset of a partition; None if it, or this topic of the name, is not known."""
        if self.topic_ids.get(where.topic) != topic_id:
            return None
        return self.offsets[where.topic].get(where.partition)

    def partitions(self) -> Iterator[tuple[TopicPartition, int]]:
        """Every partition and its next offset."""
        for topic, offsets in self.offsets.items():
            for partition, offset in offsets.items():
                yield TopicPartition(topic, partition), offset

    def start_of_batch(self, start: StreamOffset) -> StreamOffset:
        """The start of the batch that ends here: ``start``, unless this is the query's first."""
        if self.since is None:
            return start
        ids = {topic: self.topic_ids[topic] for topic in self.since}
        return StreamOffset(self.since, ids, purge_end=self.purge_end)


def proportional_shares(
    counts: Mapping[TopicPartition, int], limit: int
) -> dict[TopicPartition, int]:
    """Share ``limit`` out in proportion, as Spark's Kafka source does.

    Partitions that hold the same hours then stay together in time, whatever their sizes, and a
    watermark does not overtake the largest of them. No partition waits: each with any records gets
    at least 1, so a limit below the number of partitions is exceeded.
    """
    total = sum(counts.values())
    if total <= limit:
        return dict(counts)
    return {where: min(count, max(limit * count // total, 1)) for where, count in counts.items()}


def _not_ours(found: Mapping[str, object], reason: str) -> CorruptEntry:
    return CorruptEntry(
        f"the query's checkpoint holds {str(found)!r:.200}, which is not an offset of txnlog: "
        f"{reason}. Was the checkpoint made with another source? Give the query one of its own"
    )
