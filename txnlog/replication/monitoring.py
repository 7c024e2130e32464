"""Numbers of a store with replicas: who is in sync, and what the scrub has compared and found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from txnlog.log.open_logs import Logs
from txnlog.metric import Metric
from txnlog.replication.roots.epochs import counted_roots, member_of
from txnlog.replication.roots.replicated_storage import find_replicated
from txnlog.replication.roots.scrub import newest_scrub

MEANINGS: Final[Mapping[str, str]] = {
    "txnlog_replicas_epoch": "The newest epoch: it grows with each change of the in-sync set.",
    "txnlog_replicas_in_sync": "Roots in the in-sync set.",
    "txnlog_replicas_min_in_sync": "What min.insync.replicas says.",
    "txnlog_replicas_under_min": "1 if fewer are in sync than that: nothing is acknowledged.",
    "txnlog_replicas_out": "Roots that are out, and were not given up.",
    "txnlog_replicas_joining": "Roots that copy, to come in.",
    "txnlog_scrub_begun_seconds": "Since when all objects of all roots are being compared again.",
    "txnlog_scrub_objects": "Objects that were compared since then.",
    "txnlog_scrub_found": "Those that were missing or damaged at a root, then and the time before.",
    "txnlog_scrub_left": "Those of them that could not be repaired.",
}


def measure(logs: Logs) -> Iterator[Metric]:
    """Yield the metrics; none of a store on one root, of the scrub none before it has begun.

    The set is what the newest epoch says: a listing, and no question to a root.
    """
    storage = find_replicated(logs.storage)
    if storage is None:
        return
    agreement = storage.agreement
    epoch = agreement.refresh()
    out = [root for root in counted_roots(epoch) if member_of(epoch, root) is None]
    yield Metric("txnlog_replicas_epoch", {}, epoch.number)
    yield Metric("txnlog_replicas_in_sync", {}, len(epoch.in_sync))
    yield Metric("txnlog_replicas_min_in_sync", {}, epoch.min_insync)
    yield Metric("txnlog_replicas_under_min", {}, int(len(epoch.in_sync) < epoch.min_insync))
    yield Metric("txnlog_replicas_out", {}, len(out))
    yield Metric("txnlog_replicas_joining", {}, len(epoch.joining))
    note = newest_scrub(agreement, epoch)
    if note is None:
        return
    passes = [one for one in (note.running, note.before) if one is not None]
    begun_s = (agreement.clock.now_ms() - note.running.began_ms) / 1000
    yield Metric("txnlog_scrub_begun_seconds", {}, begun_s)
    yield Metric("txnlog_scrub_objects", {}, note.running.objects)
    yield Metric("txnlog_scrub_found", {}, sum(one.found for one in passes))
    yield Metric("txnlog_scrub_left", {}, sum(len(one.left) for one in passes))
