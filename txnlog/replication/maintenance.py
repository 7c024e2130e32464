"""What maintenance does for roots: those that answer again rejoin, data goes where it belongs.

Old epochs are deleted, and a share of all objects is compared. Numbers tell who is in sync, and
what has been compared and found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from txnlog.admin.times import storage_time_ms
from txnlog.admin.vacuum import Ages, FileDeletion, delete_old
from txnlog.clock import Clock
from txnlog.config import DAY_MS
from txnlog.errors import StorageError, TxnlogError
from txnlog.log.open_logs import Logs
from txnlog.metric import Metric
from txnlog.replication.replaced_data import ReplacedData
from txnlog.replication.roots.epoch_cleaning import EpochCleaning, clean_epochs
from txnlog.replication.roots.epochs import counted_roots, member_of, root_of
from txnlog.replication.roots.find_replicas import prepare_return
from txnlog.replication.roots.members import MemberOpener
from txnlog.replication.roots.outdated_controller import check_controller
from txnlog.replication.roots.placement import places
from txnlog.replication.roots.reassignment import Reassigned, reassign
from txnlog.replication.roots.replica_return import ReplicaReturn, return_roots
from txnlog.replication.roots.replicated_storage import ReplicatedStorage, find_replicated
from txnlog.replication.roots.scrub import Scrubbed, newest_scrub, scrub
from txnlog.replication.sound_copies import SoundCopies
from txnlog.storage import probe

PART = "replicas"


def steps(
    logs: Logs, *, dry_run: bool
) -> Iterator[ReplicaReturn | Reassigned | EpochCleaning | Scrubbed | FileDeletion]:
    """Yield what was found damaged, each root that came back, what was moved, and left behind.

    Nothing for a store on one root. Raises OutdatedController.
    """
    storage = find_replicated(logs.storage)
    if storage is None:
        return
    check_controller(storage.agreement, storage.open_member)
    cleaned = clean_epochs(storage.agreement, dry_run=dry_run)
    if cleaned is not None:
        yield cleaned
    failed: TxnlogError | None = None
    if not dry_run:
        try:
            storage.check_writable()
        except TxnlogError as error:
            failed = error  # what needs no epoch is done all the same
        try:
            copies = SoundCopies(logs)
            scrubbed = scrub(storage, copies, copies.needed, copies.unnamed)
        except TxnlogError as error:
            failed = failed or error
        else:
            if scrubbed is not None:
                yield scrubbed
    came_back = False
    copies, is_replaced = SoundCopies(logs), ReplacedData(logs)
    return_them = partial(return_roots, storage, prepare_return, copies, copies.files)
    for one in return_them(is_replaced=is_replaced, dry_run=dry_run):
        came_back |= one.member is not None
        yield one
    if came_back and places(storage.agreement.epoch()):
        is_sound, is_replaced = SoundCopies(logs), ReplacedData(logs)
        yield from reassign(storage.agreement, is_sound=is_sound, is_replaced=is_replaced)
    if not dry_run:
        yield from _delete_probes(storage, logs.clock)
    if failed is not None:
        raise failed


def _delete_probes(storage: ReplicatedStorage, clock: Clock) -> Iterator[FileDeletion]:
    """Delete what checks of servers that were killed a day ago have left at roots.

    They lie beside the incarnations. At roots, or a controller, that do not answer they stay.
    """
    opener, agreement = storage.open_member, storage.agreement
    if not isinstance(opener, MemberOpener):
        return
    epoch = agreement.epoch()
    for url in (storage.url, *(epoch.roots[root_of(member)].url for member in epoch.in_sync)):
        with suppress(StorageError):
            place = agreement.slowness.bounding(opener.root(url), epoch)
            if found := [*place.list_all(probe.FOLDER)]:
                ages = Ages(place, storage_time_ms(place, clock))
                for done in delete_old(found, None, ages, DAY_MS, dry_run=False):
                    yield replace(done, paths=tuple(f"{url}/{path}" for path in done.paths))


MEANINGS: Final[Mapping[str, str]] = {
    "txnlog_replicas_epoch": "The newest epoch: it grows with each change of the in-sync set.",
    "txnlog_replicas_in_sync": "Roots in the in-sync set.",
    "txnlog_replicas_min_in_sync": "What min.insync.replicas says.",
    "txnlog_replicas_under_min": "1 if fewer are in sync than that: nothing is acknowledged.",
    "txnlog_replicas_out": "Roots that are out, and were not given up.",
    "txnlog_replicas_joining": "Roots that copy, to come in.",
    "txnlog_replicas_controller_answers": "0 if it does not: nothing is acknowledged.",
    "txnlog_scrub_begun_seconds": "Since when all objects of all roots are being compared again.",
    "txnlog_scrub_objects": "Objects that were compared since then.",
    "txnlog_scrub_found": "Those that were missing or damaged at a root, then and the time before.",
    "txnlog_scrub_left": "Those of them that could not be repaired.",
    "txnlog_scrub_under_replicated": "Data files that were then at too few roots: reassign them.",
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
    yield Metric("txnlog_replicas_controller_answers", {}, int(agreement.lost is None))
    note = newest_scrub(agreement, epoch)
    if note is None:
        return
    passes = [one for one in (note.running, note.before) if one is not None]
    begun_s = (agreement.clock.now_ms() - note.running.began_ms) / 1000
    yield Metric("txnlog_scrub_begun_seconds", {}, begun_s)
    yield Metric("txnlog_scrub_objects", {}, note.running.objects)
    yield Metric("txnlog_scrub_found", {}, sum(one.found for one in passes))
    yield Metric("txnlog_scrub_left", {}, sum(len(one.left) for one in passes))
    lacking = max(one.under_replicated for one in passes)
    yield Metric("txnlog_scrub_under_replicated", {}, lacking)
