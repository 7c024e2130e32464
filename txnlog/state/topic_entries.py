"""The kinds of entries of a topic's log. ``topic.py`` folds them. Pure."""

from __future__ import annotations

from typing import Annotated

import msgspec

from txnlog.config import check_stored_topic_config
from txnlog.limits import (
    AnyNumber,
    Name,
    Offset,
    PartitionCount,
    PartitionNumber,
    PerPartition,
    SettingChanges,
    Settings,
    TimeMs,
)
from txnlog.schema import TopicSchema
from txnlog.state.producers import ProducerRef
from txnlog.state.segment import Rewritten, SegmentEntry
from txnlog.state.transaction import TransactionRef


class Created(msgspec.Struct, frozen=True, tag_field="kind", tag="created", omit_defaults=True):
    """The topic begins here: entry 0, or the first entry after a deletion."""

    nonce: Name
    at_ms: TimeMs
    topic_id: Name
    partitions: PartitionCount
    config: Settings
    schema: TopicSchema | None = None

    def __post_init__(self) -> None:
        check_stored_topic_config(self.config)


class Append(msgspec.Struct, frozen=True, tag_field="kind", tag="append", omit_defaults=True):
    """Places segments of any number of partitions, all of them or none."""

    nonce: Name
    at_ms: TimeMs
    segments: Annotated[tuple[SegmentEntry, ...], AnyNumber]
    transaction: TransactionRef | None = None
    producer: ProducerRef | None = None


class Appends(msgspec.Struct, frozen=True, tag_field="kind", tag="appends"):
    """Appends of several writers, put together by one of them (``state/proposal.py``).

    Each is as whole as if it were alone. None has a transaction, and no producer has two.
    """

    nonce: Name
    at_ms: TimeMs
    appends: Annotated[tuple[Append, ...], AnyNumber]


class Bundle(msgspec.Struct, frozen=True, tag_field="kind", tag="bundle"):
    """A file that holds several entries: appends of several writers, some with a transaction.

    The first has the number of the file, each of the others the next one; the next file's number
    follows. So each has its own marker, outcome and line in its transaction's list. Two or more, no
    two of one producer.
    """

    nonce: Name
    at_ms: TimeMs
    appends: Annotated[tuple[Append, ...], AnyNumber]

    @property
    def bundled(self) -> tuple[Append, ...]:
        """The protocol that ``unbundled`` relies on."""
        return self.appends


class OffsetSpan(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The offsets [start, end) of a partition."""

    start: Offset
    end: Offset


class Imported(msgspec.Struct, frozen=True, tag_field="kind", tag="imported"):
    """Partition folders of a Kafka broker become part of the topic, with their own offsets.

    ``offsets`` are, by partition, the imported offsets that belong to the topic from now on.
    """

    nonce: Name
    at_ms: TimeMs
    offsets: Annotated[dict[PartitionNumber, OffsetSpan], PerPartition]
    segments: Annotated[tuple[SegmentEntry, ...], AnyNumber]


class Altered(msgspec.Struct, frozen=True, tag_field="kind", tag="altered", omit_defaults=True):
    """More partitions, other settings (None resets a key to its default), another schema."""

    nonce: Name
    at_ms: TimeMs
    partitions: PartitionCount | None = None
    config: SettingChanges = {}
    schema: TopicSchema | None = None

    def __post_init__(self) -> None:
        check_stored_topic_config(self.config)


class Trimmed(msgspec.Struct, frozen=True, tag_field="kind", tag="trimmed"):
    """Records below these offsets (by partition) no longer belong to the topic."""

    nonce: Name
    at_ms: TimeMs
    log_start_offsets: Annotated[dict[PartitionNumber, Offset], PerPartition]


class Purged(msgspec.Struct, frozen=True, tag_field="kind", tag="purged"):
    """All records of some keys are gone from the segments that hold the topic's records now.

    Those that compaction had replaced before may hold more of them.
    """

    nonce: Name
    at_ms: TimeMs


class Deleted(msgspec.Struct, frozen=True, tag_field="kind", tag="deleted"):
    """The topic ends here; its log stays, and a later topic of this name continues it."""

    nonce: Name
    at_ms: TimeMs


TopicEntry = (
    Created
    | Append
    | Appends
    | Bundle
    | Imported
    | Altered
    | Trimmed
    | Rewritten
    | Purged
    | Deleted
)
ENTRY_DECODER: msgspec.json.Decoder[TopicEntry] = msgspec.json.Decoder(TopicEntry)
