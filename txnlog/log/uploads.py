"""Uploads for a topic, their writers and their offsets: plain data, no log and no state."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from txnlog.config import WriterCodec
from txnlog.limits import (
    CounterOrNone,
    Name,
    PartitionNumber,
    TimeMs,
)
from txnlog.names import OWN_FILE, SegmentRef, TopicPartition
from txnlog.schema import TopicSchema
from txnlog.state.producers import ProducerRef
from txnlog.state.segment import StoredSegment
from txnlog.state.transaction import new_producer_id

if TYPE_CHECKING:
    from txnlog.segments.writer import SegmentSummary


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """What an uploader must know about a topic. Plain data, to be sent to Spark's tasks.

    ``schema`` is that of a typed topic; else records have a key and a value.
    """

    topic: str
    topic_id: str
    partitions: int
    config: dict[str, str]
    schema: TopicSchema | None = None

    @property
    def schema_version(self) -> int:
        """How many schemas the topic had before this one."""
        return 0 if self.schema is None else self.schema.version

    def with_codec(self, codec: WriterCodec | None) -> TopicSpec:
        """The topic for a writer that has chosen a codec. Raises InvalidConfig."""
        return self if codec is None else replace(self, config=codec.override(self.config))


@dataclass(frozen=True, slots=True)
class UploadedSegment:
    """A segment whose files are uploaded and that no log entry names yet.

    ``topic_id`` is that of the topic it was made for: it must not land in a later topic of the same
    name. Segments that share a file are placed by one entry, or not at all. ``begun_ms`` is when
    the upload began, by its writer's clock; None: not known. ``history`` is that of the storage
    that it was uploaded to: in another one it may be lost.
    """

    topic: Name
    topic_id: Name
    partition: PartitionNumber
    stored: StoredSegment
    begun_ms: TimeMs | None = None
    history: CounterOrNone = -1

    @classmethod
    def of(
        cls,
        summary: SegmentSummary,
        spec: TopicSpec,
        partition: int,
        name: str,
        begun_ms: int,
        position: int = OWN_FILE,
        *,
        history: int,
    ) -> UploadedSegment:
        """The segment that a writer has just finished."""
        stored = StoredSegment(
            name,
            summary.record_count,
            summary.size_bytes,
            summary.min_timestamp_ms,
            summary.max_timestamp_ms,
            summary.batch_count,
            summary.tag,
            position,
        )
        return cls(spec.topic, spec.topic_id, partition, stored, begun_ms, history)

    @property
    def ref(self) -> SegmentRef:
        """Its files' names."""
        return SegmentRef(self.topic, self.partition, self.stored.name, self.stored.position)

    @property
    def files(self) -> list[str]:
        """The names of its files within the store; one may be shared with others."""
        return self.ref.files(self.stored.batch_count, self.stored.size_bytes)


@dataclass(frozen=True, slots=True)
class Appended:
    """Where an append went: its entry, and the offsets of each partition it wrote to.

    ``entry`` is None if it is not known: the append was placed before, or by another writer. Within
    a transaction it is known, unless that has ended and was moved to manifests since.
    """

    entry: int | None
    offsets: dict[TopicPartition, range]


@dataclass(slots=True)
class IdempotentWriter:
    """A producer without a transaction, as one topic knows it: its id and its next sequences.

    For one append at a time; :meth:`TopicLog.place` moves it on when it has placed one.
    """

    producer: ProducerRef
    sequences: dict[int, int] = field(default_factory=dict)

    @classmethod
    def new(cls, token: str) -> IdempotentWriter:
        """One that has written nothing yet, with an id made of a random token."""
        return cls(ProducerRef(new_producer_id(token), 0))
