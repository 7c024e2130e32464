"""The segments that the logs at one root of a replicated store name, whatever others have."""

from __future__ import annotations

from collections.abc import Iterator

from txnlog import names
from txnlog.clock import Clock
from txnlog.config import StoreConfig
from txnlog.errors import ObjectNotFound, StorageError, TxnlogError
from txnlog.inspect.describe import describe_segments
from txnlog.inspect.descriptions import SegmentDescription
from txnlog.log.named_folders import list_topics
from txnlog.log.open_logs import Logs
from txnlog.replication.roots.losses import NamedSegment
from txnlog.storage.base import Storage
from txnlog.storage.forwarding import ReadOnlyStorage
from txnlog.storage.registry import StoreFile


class _Alone(ReadOnlyStorage):
    """A root as it would be read if it led: by listings, as all roots are."""

    def why_read_only(self) -> str:
        return "it is only read"

    def lists_whole_folders(self) -> bool:
        return True


def named_segments(storage: Storage, clock: Clock) -> Iterator[NamedSegment]:
    """The segments whose records are not deleted or aborted; by topic, partition and offset.

    Memory is that of the descriptions of a topic's segments. For a topic whose log is damaged only
    the name is given. Raises StorageError, CorruptEntry.
    """
    alone = _Alone(storage)
    try:
        data = alone.get(names.STORE_FILE)
    except ObjectNotFound:
        return  # it was out before the store existed
    found = StoreFile.decode(data, names.STORE_FILE)
    config = StoreConfig.of(found.config)
    for topic in sorted(list_topics(alone)):
        # Its own logs: a topic's memory is freed before the next one.
        log = Logs(alone, config, clock).topic(topic)
        try:
            log.refresh()
            segments = describe_segments(log)
        except StorageError:
            raise
        except TxnlogError:
            yield NamedSegment(topic)
            continue
        for segment in segments:
            if segment.outcome != "aborted" and segment.record_count:
                yield _named(segment)


def _named(segment: SegmentDescription) -> NamedSegment:
    return NamedSegment(
        segment.topic,
        segment.partition,
        segment.base_offset,
        segment.end_offset,
        segment.record_count,
        segment.paths.log,
        segment.ref.start + segment.size_bytes,
        segment.size_bytes,
    )
