"""What a topic's checkpoints leave to manifests: the appends that are settled. Pure.

A manifest holds what a run of entries has placed, in columns; a manifest list names those that
together hold every append before an entry. Both are facts that never change, so any later list
says of an entry what an earlier one says, but for what was trimmed since.
"""

from __future__ import annotations

import msgspec


class Settled(msgspec.Struct, frozen=True, array_like=True):
    """Where the appends before entry ``end`` are: in manifest list ``number``, or any later one.

    ``has_transactions``: some of them are of transactions.
    """

    number: int
    end: int
    has_transactions: bool = False


class PartitionSpan(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a manifest holds of one partition: segments within [first_offset, end_offset)."""

    partition: int
    first_offset: int
    end_offset: int
    segment_count: int
    size_bytes: int
    max_timestamp_ms: int


class ManifestRef(msgspec.Struct, frozen=True):
    """One manifest: the appends among entries [first_entry, end_entry).

    ``crc`` is the CRC-32C of its bytes. ``min_at_ms`` and ``max_at_ms`` are of the times that its
    entries carry, ``topic_time_ms`` the topic's own time at the last of them; -1 where older
    versions have not kept one. ``spans`` are its partitions in order; None where there are too
    many to name them here.
    """

    name: str
    first_entry: int
    end_entry: int
    segment_count: int
    size_bytes: int
    crc: int
    min_at_ms: int
    max_at_ms: int
    topic_time_ms: int
    has_transactions: bool
    spans: tuple[PartitionSpan, ...] | None = None


class ManifestList(msgspec.Struct, frozen=True, tag_field="kind", tag="manifests"):
    """Which manifests hold the appends of a topic before entry ``end``, in the entries' order.

    List ``number`` is put by somebody who has read the one before it, so the newest is complete.
    ``log_start_offsets``, by partition, are what lies below which may be left out; 0 is not said.
    """

    number: int
    topic_id: str
    end: int
    manifests: tuple[ManifestRef, ...]
    log_start_offsets: dict[int, int] = {}

    @property
    def has_transactions(self) -> bool:
        return any(ref.has_transactions for ref in self.manifests)


LIST_DECODER: msgspec.json.Decoder[ManifestList] = msgspec.json.Decoder(ManifestList)
