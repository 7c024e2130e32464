"""A writer's settings for all topics, chosen once for a whole producer."""

from __future__ import annotations

from dataclasses import dataclass, field

from txnlog.config import Acks, WriterCodec
from txnlog.storage.base import Storage
from txnlog.write.partitioner import DEFAULT_PARTITIONER, PartitionFunction
from txnlog.write.retries import Retries
from txnlog.write.segment_uploads import DEFAULT_MEMORY_BYTES


@dataclass(frozen=True, slots=True)
class WriterSettings:
    """Kafka's defaults.

    ``codec`` None: each topic's own; ``memory_bytes``: of buffered records; ``linger_ms`` None:
    only a flush sends.
    """

    codec: WriterCodec | None = None
    partitioner: str | PartitionFunction = DEFAULT_PARTITIONER
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    acks: Acks = Acks.ALL
    retries: Retries = field(default_factory=Retries)
    linger_ms: int | None = None

    def uploads_to(self, storage: Storage) -> Storage:
        """The storage for uploads of segments: durable at once only with acks=all."""
        return storage if self.acks is Acks.ALL else storage.without_fsync()
