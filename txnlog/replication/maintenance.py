"""What maintenance does for roots: those that answer again rejoin, data goes where it belongs.

Old epochs are deleted, and a share of all objects is compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial

from txnlog.admin.times import storage_time_ms
from txnlog.admin.vacuum import Ages, FileDeletion, delete_old
from txnlog.clock import Clock
from txnlog.config import DAY_MS
from txnlog.errors import StorageError, TxnlogError
from txnlog.log.open_logs import Logs
from txnlog.replication.replaced_data import ReplacedData
from txnlog.replication.roots.epoch_cleaning import EpochCleaning, clean_epochs
from txnlog.replication.roots.epochs import root_of
from txnlog.replication.roots.find_replicas import prepare_return
from txnlog.replication.roots.members import MemberOpener
from txnlog.replication.roots.outdated_controller import check_controller
from txnlog.replication.roots.placement import places
from txnlog.replication.roots.reassignment import Reassigned, reassign
from txnlog.replication.roots.replica_return import ReplicaReturn, return_roots
from txnlog.replication.roots.replicated_storage import ReplicatedStorage, find_replicated
from txnlog.replication.roots.scrub import Scrubbed, scrub
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
            scrubbed = scrub(storage, copies, copies.needed)
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
