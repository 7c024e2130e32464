"""Lets roots rejoin that left the in-sync set and answer again, if a setting says so."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final, TypeAlias

from txnlog.admin.storage_step import StorageStep
from txnlog.admin.times import storage_time_ms
from txnlog.admin.vacuum import Ages
from txnlog.config import DAY_MS
from txnlog.errors import InvalidOption, StorageError, TxnlogError
from txnlog.replication import root_names
from txnlog.replication.roots.agreement import Agreement, MemberFailed
from txnlog.replication.roots.epochs import Epoch, FailedJoins, Member, root_of
from txnlog.replication.roots.old_incarnations import check_root, forget, old_incarnations
from txnlog.replication.roots.placed_data import IsReplaced
from txnlog.replication.roots.replicated_storage import ReplicatedStorage
from txnlog.replication.roots.root_join import Joined, join
from txnlog.replication.roots.slowness import time_for
from txnlog.replication.roots.soundness import IsSound, NamedFiles, names_nothing
from txnlog.storage.base import Storage
from txnlog.storage.reach import UnnamedUrl

_JOINS_IN_MS: Final = DAY_MS
"""After so long the process that joins a root counts as killed, and another may start over."""
_FIRST_PAUSE_MS: Final = 10 * 60 * 1000
_LONGEST_PAUSE_MS: Final = DAY_MS
_logger = logging.getLogger(__name__)
Prepare: TypeAlias = Callable[[ReplicatedStorage, str], tuple[str, str]]


@dataclass(frozen=True, slots=True)
class ReplicaReturn(StorageStep):
    """A root that was out and is in sync again, or would be."""

    done: ClassVar = "root brought back"
    why: ClassVar = "it answers again"

    root: str
    url: str
    member: str | None
    objects: int
    size_bytes: int


def roots_to_return(epoch: Epoch, is_abandoned: Callable[[Member], bool], now_ms: int) -> list[str]:
    """The roots that are out and should rejoin, except those that an operator has taken out.

    ``is_abandoned`` returns whether a joining member is no longer copied to.
    """
    busy = {root_of(member) for member in epoch.in_sync}
    # A clock that has jumped keeps no root out.
    for root, failed in epoch.failed_joins.items():
        if failed.at_ms <= now_ms < try_again_ms(failed):
            busy.add(root)
    busy.update(root_of(member) for member in epoch.joining if not is_abandoned(member))
    return sorted(set(epoch.roots) - busy - set(epoch.taken_out))


def try_again_ms(failed: FailedJoins) -> int:
    """When maintenance tries a root again that failed to rejoin, in Unix milliseconds.

    The pauses double, up to a day.
    """
    pause_ms = _FIRST_PAUSE_MS << min(failed.count - 1, 16)
    return failed.at_ms + min(pause_ms, _LONGEST_PAUSE_MS)


def outdated(epoch: Epoch, old: Sequence[Member]) -> list[Member]:
    """Choose the old incarnations of a root that nobody could miss; ``old`` has the oldest first.

    The one that was last in sync stays. Those that were in sync before an unclean election stay as
    well: they may have all that is left of the lost data, and only an operator deletes them. One
    that never was in sync has only copies of other members' objects.
    """
    was_in_sync = [member for member in old if member in epoch.left]
    kept = {
        *was_in_sync[-1:],
        *(member for member in was_in_sync if epoch.left[member].epoch < epoch.last_unclean),
    }
    return [member for member in old if member not in kept]


def return_roots(
    storage: ReplicatedStorage,
    prepare: Prepare,
    is_sound: IsSound = lambda *_: None,
    named: NamedFiles = names_nothing,
    *,
    is_replaced: IsReplaced = lambda *_: False,
    dry_run: bool = False,
) -> Iterator[ReplicaReturn]:
    """Rejoin the roots that answer, one after the other; yields each that is in sync again.

    Then deletes the root's outdated incarnations. Does nothing if ``replica.auto.return`` is false.
    A root that fails does not stop the others.

    Raises TxnlogError: the first failure, after all were tried. Call it again.
    """
    agreement = storage.agreement
    if not agreement.refresh().returns_roots:
        return

    failed: TxnlogError | None = None
    tried: list[str] = []
    while (root := _next_to_return(agreement, tried)) is not None:
        tried.append(root)
        epoch = agreement.epoch()
        url = epoch.roots[root].url
        if dry_run:
            with suppress(TxnlogError):
                check = partial(check_root, storage, epoch, root)
                agreement.slowness.ask(root, check, time_for(epoch))
                yield ReplicaReturn(root, url, None, 0, 0)
            continue
        try:
            joined = _try_to_join(storage, prepare, root, url, is_sound, named)
            if joined is None:
                continue
            yield ReplicaReturn(root, url, joined.member, joined.objects, joined.bytes)
            newest = agreement.refresh()
            look = partial(old_incarnations, storage, newest, root)
            for old in outdated(newest, agreement.slowness.ask(root, look, time_for(newest))):
                try:
                    forget(storage, old, is_sound, is_replaced=is_replaced)
                except InvalidOption as kept:  # it has the only copy of something
                    _logger.warning("replicas: %s stays: %s", old, kept)
        except TxnlogError as error:
            failed = failed or error
    if failed is not None:
        raise failed


def _next_to_return(agreement: Agreement, tried: Sequence[str]) -> str | None:
    """The next root to bring back that was not ``tried`` yet; None if all were.

    The epochs are read each time, since another process may bring roots back meanwhile.
    """
    epoch = agreement.refresh()
    is_abandoned = partial(_is_abandoned, agreement, epoch)
    due = roots_to_return(epoch, is_abandoned, agreement.clock.now_ms())
    return next((root for root in due if root not in tried), None)


def _is_abandoned(agreement: Agreement, epoch: Epoch, member: Member) -> bool:
    """Whether a member has been joining for a day, by its root's own clock: others may be wrong."""

    def look(inside: Storage) -> bool:
        ages = Ages(inside, storage_time_ms(inside, agreement.clock))
        return ages.reached(root_names.member_mark(member, epoch.store), _JOINS_IN_MS)

    with suppress(MemberFailed):  # it would not come back now
        return agreement.ask(epoch, member, look, within_s=time_for(epoch))
    return False


def _try_to_join(
    storage: ReplicatedStorage,
    prepare: Prepare,
    root: str,
    url: str,
    is_sound: IsSound,
    named: NamedFiles,
) -> Joined | None:
    """Join a root; None if it does not answer yet, or another process has added it."""
    agreement = storage.agreement
    try:
        look = partial(prepare, storage, url)
        root, found = agreement.slowness.ask(root, look, time_for(agreement.epoch()))
    except UnnamedUrl:
        raise  # somebody must say that it may be asked
    except (InvalidOption, StorageError):
        return None
    return join(agreement, root, found, is_sound, named)
