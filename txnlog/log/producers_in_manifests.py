"""Reads a returning producer's last batches from manifests, as far as they matter."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import TYPE_CHECKING

from txnlog.log.manifests import FANOUT, Manifests
from txnlog.state.manifest import ManifestList, ManifestRef
from txnlog.state.producers import ProducerRef, ProducerState, join
from txnlog.state.topic import TopicState
from txnlog.state.transaction import TransactionRef

if TYPE_CHECKING:
    from txnlog.log.manifest_table import ManifestTable


def recall(
    manifests: Manifests,
    state: TopicState,
    owner: ProducerRef | TransactionRef,
    partitions: Collection[int],
) -> None:
    """Add to a state what manifests know of a producer, if it matters for these partitions.

    Raises CorruptEntry, StorageError.
    """
    known = state.producers.get(owner.producer_id)
    if state.settled is None or (known is not None and known.is_whole):
        return
    if all(known and known.recent(owner.producer_epoch, p) for p in partitions):
        return
    older = settled_producer(manifests, state, owner, partitions, known)
    if known is not None:
        state.producers[owner.producer_id] = join(older, known)
    elif older is not None:
        # In the order of activity: it was idle for longer than those known here.
        state.producers = {owner.producer_id: older, **state.producers}
        state.expire()


def settled_producer(
    manifests: Manifests,
    state: TopicState,
    owner: ProducerRef | TransactionRef,
    partitions: Collection[int],
    known: ProducerState | None = None,
) -> ProducerState | None:
    """A producer's state from its settled appends; None if there are none.

    They are read from the newest manifest back, as far as the producer was never idle; and no
    further than its last appends to each of ``partitions`` in its epoch: then it is not whole.
    Deleted appends older than the expiry are ignored: lists may leave them out. ``known``: its
    state from newer appends. Raises CorruptEntry, StorageError.
    """
    from txnlog.log.manifest_table import ManifestTable

    settled, now_ms = state.settled, state.append_time_ms
    expiration_ms = state.producer_id_expiration_ms

    def use(listing: ManifestList) -> ProducerState | None:
        assert settled is not None
        found: list[ManifestTable] = []
        wanted, is_whole = {*partitions}, True
        since_ms = known.since_ms if known else now_ms - expiration_ms
        older = deque(reversed(listing.manifests))
        starts = [
            max(partition.log_start_offset, listing.log_start_offsets.get(number, 0))
            for number, partition in enumerate(state.partitions)
        ]
        while is_whole:
            some: list[ManifestRef] = []
            while older and older[0].topic_time_ms >= since_ms and len(some) < FANOUT:
                some.append(older.popleft())
            if not some:
                break
            for table in manifests.tables(some, settled):
                rows = table.of_producers([owner.producer_id])
                rows = rows if known is None else rows.before(known.since_entry)
                if not len(rows):
                    continue
                found.append(rows)
                since_ms = min(since_ms, rows.first_time_before_ms() - expiration_ms)
                told = rows.untrimmed(starts, now_ms - expiration_ms)
                wanted -= told.partitions_of_epoch(owner.producer_epoch)
                # Commits of an older epoch came before all appends of this one.
                if not wanted or rows.has_committed_below_epoch(owner.producer_epoch):
                    is_whole = False
                    break
        if not found:
            return None
        return ManifestTable.concat(found).producers(
            expiration_ms, log_starts=starts, now_ms=now_ms, is_whole=is_whole
        )[owner.producer_id]

    return manifests.read(settled, state.topic_id, use)
