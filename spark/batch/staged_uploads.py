"""Staged uploads: those of the writes of a ``transaction(...)`` block that are not placed yet.

A write's own driver-side process leaves one small file; the user's process, which holds the
transaction, reads it when the block ends.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from txnlog.limits import AnyNumber, Name
from txnlog.log.uploads import UploadedSegment
from txnlog.spark.batch.commit import SegmentsByTopic
from txnlog.storage import envelope
from txnlog.storage.base import Storage


class StagedWrite(msgspec.Struct, frozen=True, tag_field="kind", tag="staged-write"):
    """The uploaded segments of one write, by topic in the order they are to be placed."""

    segments: Annotated[dict[Name, Annotated[list[UploadedSegment], AnyNumber]], AnyNumber]


_DECODER = msgspec.json.Decoder(StagedWrite)


def put_staged(storage: Storage, path: str, segments: SegmentsByTopic) -> None:
    """Leave one. Raises StorageError; then the write counts as failed."""
    staged = StagedWrite({topic: list(uploaded) for topic, uploaded in segments.items()})
    storage.put(path, envelope.encode(staged))


def read_staged(storage: Storage, path: str) -> StagedWrite:
    """Read one. Raises ObjectNotFound, CorruptEntry."""
    return envelope.decode(storage.get(path), _DECODER, f"{storage.url}/{path}")
