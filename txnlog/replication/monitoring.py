"""Numbers of a store with replicas: what the scrub has compared, and found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from txnlog.log.open_logs import Logs
from txnlog.metric import Metric
from txnlog.replication.roots.replicated_storage import find_replicated
from txnlog.replication.roots.scrub import newest_scrub

MEANINGS: Final[Mapping[str, str]] = {
    "txnlog_scrub_begun_seconds": "Since when all objects of all roots are being compared again.",
    "txnlog_scrub_objects": "Objects that were compared since then.",
    "txnlog_scrub_found": "Those that were missing or damaged at a root, then and the time before.",
    "txnlog_scrub_left": "Those of them that could not be repaired.",
}


def measure(logs: Logs) -> Iterator[Metric]:
    """Yield the metrics; none before maintenance has run, or of a store on one root."""
    storage = find_replicated(logs.storage)
    if storage is None:
        return
    agreement = storage.agreement
    note = newest_scrub(agreement, agreement.refresh())
    if note is None:
        return
    passes = [one for one in (note.running, note.before) if one is not None]
    begun_s = (agreement.clock.now_ms() - note.running.began_ms) / 1000
    yield Metric("txnlog_scrub_begun_seconds", {}, begun_s)
    yield Metric("txnlog_scrub_objects", {}, note.running.objects)
    yield Metric("txnlog_scrub_found", {}, sum(one.found for one in passes))
    yield Metric("txnlog_scrub_left", {}, sum(len(one.left) for one in passes))
